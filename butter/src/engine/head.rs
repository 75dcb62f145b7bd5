//! A multi-token head on a device: from what a model computes at a position and the token that
//! follows it, the token after that.
//!
//! `x = join [norm(embedding(token)); norm(hidden)]`, where `hidden` is what the model's output
//! projection reads at the position; then one layer, whose cache has the positions of the model's
//! own, a norm, and the model's output projection. Applied to what it gave itself it proposes
//! further tokens. References: DeepSeek-V3's technical report (2.2) and the published inference
//! code of both families.

use std::collections::BTreeSet;
use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Device, Tensor};

use super::exchange::{Inputs, Results};
use super::matrix::{Family, Matrix, failed, upload_vector};
use super::model::DeviceModel;
use super::plan::{Activation, Planner};
use super::rows::{gathered, reach_of};
use super::state::CacheShape;
use super::step::{Graph, Layer, StepContext, StepKey};
use crate::config::{ModelConfig, MultiTokenHead};
use crate::model::{HeadRow, HiddenFrom, Model, ModelError, RowOutput, RowResult, StepRow};
use crate::weights::{ModelWeights, MultiTokenHeadWeights};

/// The head's weights, its cache, and the hidden rows of the last steps.
pub(super) struct HeadBlock {
    embedding_norm: Tensor,
    hidden_norm: Tensor,
    /// `[hidden, 2 * hidden]`.
    join: Matrix,
    pub(super) layer: Layer,
    norm: Tensor,
    feeds_normed: bool,
    /// `[max_step_rows, hidden]`: of the model's last step, and of the head's.
    hidden: [Tensor; 2],
    /// `[max_step_rows]`: which of those rows each row of a step goes on from.
    sources: Tensor,
}

impl HeadBlock {
    fn load(
        device: &Arc<dyn Device>,
        (config, weights): (&MultiTokenHead, &MultiTokenHeadWeights),
        dtype: Scalar,
        cache: &CacheShape,
        hidden_size: usize,
    ) -> Result<Self, ModelError> {
        let rows = cache.step_rows as u64;
        let kept = || failed(Tensor::zeros(device, dtype, &[rows, hidden_size as u64]));
        Ok(Self {
            embedding_norm: upload_vector(device, &weights.embedding_norm, dtype)?,
            hidden_norm: upload_vector(device, &weights.hidden_norm, dtype)?,
            join: Matrix::upload(device, &weights.join, dtype)?,
            layer: Layer::load(device, &config.layer, &weights.layer, dtype, cache, &[])?,
            norm: upload_vector(device, &weights.norm, dtype)?,
            feeds_normed: config.feeds_normed,
            hidden: [kept()?, kept()?],
            sources: failed(Tensor::zeros(device, Scalar::U32, &[rows]))?,
        })
    }

    /// Keeps the rows of a step for those that go on from them.
    pub(super) fn keep(
        &self,
        planner: &mut Planner,
        from: HiddenFrom,
        rows: &Activation,
    ) -> Result<(), ModelError> {
        let kept = failed(self.hidden[from as usize].slice(0, 0..rows.shape()[0]))?;
        let kept = failed(kept.reshape(&[rows.elements()]))?;
        let operands = [rows.flat().into(), (&kept).into(), 1.0f32.into()];
        planner.launch(Family::Elementwise, "scale", "", operands);
        Ok(())
    }
}

impl Graph {
    /// Plans every launch of a step of the head; gives the logits, `[outputs, vocab_size]`, if any
    /// are wanted.
    pub(super) fn plan_head(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        inputs: &Inputs,
        results: &Results,
        from: HiddenFrom,
    ) -> Result<Option<Activation>, ModelError> {
        let head = self.head.as_ref().ok_or(ModelError::NoHead)?;
        let (rows, width) = (step.key.rows as u64, self.config.hidden_size as u64);
        let tokens = failed(inputs.tokens.slice(0, 0..rows))?;
        let embedded = planner.activation(&[rows, width]);
        planner.gather(&self.embedding, &tokens, &embedded);
        let embedded = planner.scaled(embedded, self.config.embedding_scale);
        let before = planner.activation(&[rows, width]);
        let sources = failed(head.sources.slice(0, 0..rows))?;
        let known = &head.hidden[from as usize];
        let operands = [known.into(), (&sources).into(), (&before).into()];
        planner.launch(Family::Layout, "select_rows", "", operands);

        let both = planner.activation(&[rows, 2 * width]);
        for (x, w, first) in [
            (&embedded, &head.embedding_norm, 0),
            (&before, &head.hidden_norm, width),
        ] {
            let half = both.columns(first, width);
            let operands = [x.into(), w.into(), half.into(), self.config.norm_eps.into()];
            planner.launch(Family::Norm, "rms_norm", "", operands);
        }
        let mut hidden = planner.projected(&head.join, &both);
        let pending = self.layer(planner, step, &head.layer, &mut hidden, None, None)?;
        let normed = self.joined(planner, pending.as_ref(), &hidden, &head.norm);
        let next = if head.feeds_normed { &normed } else { &hidden };
        head.keep(planner, HiddenFrom::Head, next)?;
        if step.key.outputs == 0 {
            return Ok(None);
        }
        let logits = self.logits(planner, step, normed, inputs)?;
        self.choices(planner, step, logits, inputs, results)
            .map(Some)
    }
}

impl DeviceModel {
    /// Loads the checkpoint's multi-token head; each later step keeps its hidden rows for it.
    pub fn load_head(
        &mut self,
        config: &ModelConfig,
        weights: &ModelWeights,
    ) -> Result<(), ModelError> {
        let (Some(config), Some(weights)) = (&config.multi_token_head, &weights.multi_token_head)
        else {
            return Err(ModelError::NoHead);
        };
        let parts = (config, weights.as_ref());
        let width = self.config.hidden_size;
        let head = HeadBlock::load(&self.device, parts, self.options.dtype, &self.cache, width)?;
        self.graph.head = Some(Box::new(head));
        // Every step changes.
        self.record_anew()?;
        for from in [HiddenFrom::Model, HiddenFrom::Head] {
            self.recorded(StepKey {
                rows: 1,
                outputs: 1,
                splits: 1,
                reach: reach_of(1),
                prompts: 0,
                segments: 0,
                is_apart: true,
                advances: false,
                pages: 0,
                draws: None,
                head: Some(from),
            })?;
        }
        Ok(())
    }

    /// The rows that the last step of the model, or of its head, kept for the head to go on from,
    /// and what was computed for each. An instrument.
    pub fn hidden_rows(&self, from: HiddenFrom) -> Result<Vec<(StepRow, Vec<f32>)>, ModelError> {
        let head = self.graph.head.as_ref().ok_or(ModelError::NoHead)?;
        let kept = &self.hidden_rows[from as usize];
        let rows = failed(head.hidden[from as usize].slice(0, 0..kept.len() as u64))?;
        let values = failed(rows.to_f32())?;
        let rows = values.chunks(self.config.hidden_size.max(1));
        Ok(kept
            .iter()
            .copied()
            .zip(rows.map(<[f32]>::to_vec))
            .collect())
    }

    /// [`Model::head_step`].
    pub(super) fn head_step_on_device(
        &mut self,
        rows: &[HeadRow],
    ) -> Result<Vec<RowResult>, ModelError> {
        if self.graph.head.is_none() {
            return Err(ModelError::NoHead);
        }
        let Some(from) = rows.first().map(|row| row.from) else {
            return Ok(Vec::new());
        };
        self.check_head(rows, from)?;
        let plain: Vec<StepRow> = rows.iter().map(HeadRow::as_step_row).collect();
        let (gathered, order) = gathered(&plain);
        let sources = self.sources(&gathered, from)?;
        let mut found = Vec::new();
        for mut part in self.parts_of(&gathered)? {
            part.key = StepKey {
                segments: 0,
                head: Some(from),
                ..part.key
            };
            self.begin_part(&mut part, Vec::new())?;
            let padded = part.rows.len();
            let sources = part.places.iter().map(|&i| sources[i]);
            // Padding goes on from whatever row.
            let sources = sources.chain(std::iter::repeat(0)).take(padded);
            let bytes: Vec<u8> = sources.flat_map(u32::to_le_bytes).collect();
            if let Some(head) = &self.graph.head {
                let sources = failed(head.sources.slice(0, 0..padded as u64))?;
                failed(sources.write_bytes(&bytes))?;
            }
            self.hidden_rows[HiddenFrom::Head as usize].clear();
            let results = self.replayed(part.key, part.real_rows())?;
            self.hidden_rows[HiddenFrom::Head as usize] = part.real_rows().to_vec();
            let wanted = part.places.iter().map(|&i| order[i]);
            let wanted = wanted.filter(|&i| rows[i].output != RowOutput::Nothing);
            found.extend(wanted.zip(results));
        }
        found.sort_by_key(|(i, _)| *i);
        Ok(found.into_iter().map(|(_, result)| result).collect())
    }

    /// Checks rows against the open sequences; a head's step moves none of them.
    fn check_head(&self, rows: &[HeadRow], from: HiddenFrom) -> Result<(), ModelError> {
        let max = self.max_step_rows();
        if rows.len() > max {
            let rows = rows.len();
            return Err(ModelError::Rows { rows, max });
        }
        let mut seen = BTreeSet::new();
        for row in rows {
            let (token, vocab_size) = (row.token, self.config.vocab_size);
            if token as usize >= vocab_size {
                return Err(ModelError::Token { token, vocab_size });
            }
            let capacity = self.pages.get(row.sequence)?.capacity;
            let needed = row.position as usize + 1;
            if needed > capacity {
                return Err(ModelError::Capacity {
                    sequence: row.sequence,
                    needed,
                    capacity,
                });
            }
            if row.from != from || !seen.insert((row.sequence, row.position)) {
                let problem = "the rows of a head's step go on from one step, each once";
                return Err(ModelError::Device(problem.to_owned()));
            }
        }
        Ok(())
    }

    /// Which of the rows kept each row goes on from.
    fn sources(&self, rows: &[StepRow], from: HiddenFrom) -> Result<Vec<u32>, ModelError> {
        let kept = &self.hidden_rows[from as usize];
        let source =
            |row: &StepRow| {
                let position = match from {
                    HiddenFrom::Model => Some(row.position),
                    HiddenFrom::Head => row.position.checked_sub(1),
                };
                let is_source = |kept: &StepRow| {
                    kept.sequence == row.sequence && Some(kept.position) == position
                };
                kept.iter().position(is_source).map(|i| i as u32).ok_or_else(|| {
                let (sequence, position) = (row.sequence, row.position);
                ModelError::Device(format!(
                    "the last step left nothing that the head's row at position {position} of \
                     {sequence} goes on from"
                ))
            })
            };
        rows.iter().map(source).collect()
    }
}
