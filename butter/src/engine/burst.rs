//! Steps that follow each other on the device without the host between: each row's chosen token
//! is its next. And what a step's launches take, kind by kind.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use iron_runtime::RecordedLaunch;

use super::exchange::MOST_STEPS;
use super::matrix::failed;
use super::model::DeviceModel;
use super::rows::{reach_of, splits_of};
use super::step::StepKey;
use crate::model::{Model, ModelError, RowOutput, RowResult, StepRow};

/// What the launches of one kind take in a step.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct KindTime {
    /// Kernel, instance and shapes of its tensors.
    pub kind: String,
    /// Launches in a step.
    pub launches: usize,
    /// Of all of them, one after the other in one recording.
    pub microseconds: f64,
}

/// Whether a launch moves the rows on, so that it must not be repeated.
fn advances(launch: &RecordedLaunch) -> bool {
    &*launch.pipeline.kernel().name == "advance_rows"
}

impl DeviceModel {
    /// The key of greedy rows of one token a sequence, over `steps` steps.
    fn advancing_key(&self, rows: &[StepRow], steps: usize) -> StepKey {
        let longest = rows.iter().map(|r| r.position as usize + 1).max();
        StepKey {
            advances: true,
            // Splits that a row does not reach yet write nothing and are not read.
            splits: splits_of(longest.unwrap_or(1) + steps - 1),
            reach: reach_of(longest.unwrap_or(1) + steps - 1),
            ..self.key_of(rows, false)
        }
    }

    /// [`Model::advance`]: in one go where no layer keeps a recurrent state.
    pub(super) fn advance_on_device(
        &mut self,
        rows: &[StepRow],
        steps: usize,
    ) -> Result<Vec<Vec<RowResult>>, ModelError> {
        let steps = steps.min(MOST_STEPS);
        let mut sequences: Vec<_> = rows.iter().map(|row| row.sequence).collect();
        sequences.sort_unstable();
        sequences.dedup();
        let suits = sequences.len() == rows.len()
            && rows.iter().all(|row| row.output == RowOutput::Greedy)
            && rows.len() <= self.max_step_rows();
        if steps < 2 || !suits || self.is_recurrent() {
            return Ok(vec![self.step(rows)?]);
        }
        let mut lengths = self.check(rows)?;
        self.hidden_rows = Default::default();
        for (id, length) in &mut lengths {
            // The rows past the first are not given; their room is.
            let capacity = self.pages.get(*id)?.capacity;
            let needed = *length + steps - 1;
            if needed > capacity {
                return Err(ModelError::Capacity {
                    sequence: *id,
                    needed,
                    capacity,
                });
            }
            *length = needed;
        }
        let key = self.advancing_key(rows, steps);
        self.recorded(key)?;
        self.write_inputs(rows, false)?;
        for (id, length) in &lengths {
            self.pages.get_mut(*id)?.begin(*length);
        }
        for _ in 0..steps {
            failed(self.steps[&key].recording.replay())?;
        }
        failed(self.device.synchronize())?;
        let results = self.exchange(key.rows).read_history(rows.len(), steps)?;
        for (row, (id, length)) in rows.iter().enumerate().map(|(i, r)| {
            let length = lengths.get(&r.sequence).copied().unwrap_or_default();
            (i, (r.sequence, length))
        }) {
            // A row that failed is given back up to the step that failed, as single steps do.
            let failed_at = results
                .iter()
                .position(|step| matches!(step[row], RowResult::Failed(_)));
            let kept = failed_at.map_or(length, |at| length + at + 1 - steps);
            self.pages.get_mut(id)?.commit(kept);
        }
        Ok(results)
    }

    /// Number of launches of the step that advances these rows.
    pub fn launches_of(&mut self, rows: &[StepRow]) -> Result<usize, ModelError> {
        let key = self.advancing_key(rows, 1);
        self.recorded(key)?;
        Ok(self.steps[&key].launches.len())
    }

    /// Measures the launches of the step that these rows take, kind by kind: all launches of a
    /// kind, on their own weights, in one recording that is played `repetitions` times. The state
    /// of the rows is as before a step of them; the rows' last results are not.
    pub fn profile(
        &mut self,
        rows: &[StepRow],
        is_prompt: bool,
        repetitions: usize,
    ) -> Result<Vec<KindTime>, ModelError> {
        let key = if is_prompt {
            self.key_of(rows, true)
        } else {
            self.advancing_key(rows, 1)
        };
        self.check(rows)?;
        self.recorded(key)?;
        self.write_inputs(rows, is_prompt)?;
        failed(self.device.submit(&self.steps[&key].launches))?;
        self.write_inputs(rows, is_prompt)?;
        let mut kinds: BTreeMap<String, Vec<RecordedLaunch>> = BTreeMap::new();
        for launch in &self.steps[&key].launches {
            if !advances(launch) {
                let of_kind = kinds.entry(kind_of(launch)).or_default();
                of_kind.push(launch.clone());
            }
        }
        let mut times = Vec::new();
        for (kind, launches) in kinds {
            let recording = failed(self.device.record(&launches))?;
            failed(recording.replay())?;
            failed(self.device.synchronize())?;
            let start = Instant::now();
            for _ in 0..repetitions {
                failed(recording.replay())?;
            }
            failed(self.device.synchronize())?;
            times.push(KindTime {
                kind,
                launches: launches.len(),
                microseconds: microseconds(start.elapsed()) / repetitions.max(1) as f64,
            });
        }
        times.sort_by(|a, b| b.microseconds.total_cmp(&a.microseconds));
        Ok(times)
    }
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// Kernel, instance and the shape of each tensor.
fn kind_of(launch: &RecordedLaunch) -> String {
    let shape = |shape: &[u64]| {
        let extents: Vec<String> = shape.iter().map(u64::to_string).collect();
        extents.join("x")
    };
    let shapes: Vec<String> = launch.tensors().map(|t| shape(&t.shape)).collect();
    format!(
        "{} {}",
        launch.pipeline.kernel().full_name(),
        shapes.join(" ")
    )
}
