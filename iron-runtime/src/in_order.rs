//! What backends share that run one launch at a time, in the calling thread: lists, clocks and
//! recordings.

use std::sync::Arc;
use std::time::{Duration, Instant};

use iron_ir::kernel::Kernel;
use iron_ir::launch::LaunchLimits;
use parking_lot::Mutex;

use crate::device::{DeviceError, Graph, RecordedLaunch};

/// Threads of a cooperative launch, which are all in flight at once: each has a stack or
/// registers of its own.
const RESIDENT_THREADS: u64 = 1 << 14;

/// A device's limits for one kernel.
pub(crate) fn limits_of(limits: LaunchLimits, kernel: &Kernel) -> LaunchLimits {
    LaunchLimits {
        max_resident: RESIDENT_THREADS / u64::from(kernel.contract.threads()).max(1),
        ..limits
    }
}

/// Kernel and line of the first failed index check since the last synchronisation.
pub(crate) type ErrorWord = Mutex<Option<(String, u32)>>;

/// Runs launches one after the other.
pub(crate) trait InOrder: Send + Sync + 'static {
    /// Runs a launch, or the workgroups of it with these linear indices.
    fn run(&self, launch: &RecordedLaunch, groups: Option<&[u64]>) -> Result<(), DeviceError>;

    /// Where failed index checks are kept.
    fn error_word(&self) -> &ErrorWord;

    /// Runs every launch.
    fn run_all(&self, launches: &[RecordedLaunch]) -> Result<(), DeviceError> {
        launches
            .iter()
            .try_for_each(|launch| self.run(launch, None))
    }

    /// Runs every launch and gives the time of each.
    fn time_all(&self, launches: &[RecordedLaunch]) -> Result<Vec<Duration>, DeviceError> {
        let timed = |launch| {
            let start = Instant::now();
            self.run(launch, None)?;
            Ok(start.elapsed())
        };
        launches.iter().map(timed).collect()
    }

    /// Takes the error word.
    fn take_error(&self) -> Result<(), DeviceError> {
        match self.error_word().lock().take() {
            Some((kernel, line)) => Err(DeviceError::IndexOutOfRange { kernel, line }),
            None => Ok(()),
        }
    }
}

/// A recorded list.
pub(crate) struct Recording<Q> {
    queue: Arc<Q>,
    launches: Vec<RecordedLaunch>,
}

impl<Q: InOrder> Recording<Q> {
    /// Records launches for replay.
    pub fn of(queue: &Arc<Q>, launches: &[RecordedLaunch]) -> Box<dyn Graph> {
        Box::new(Recording {
            queue: queue.clone(),
            launches: launches.to_vec(),
        })
    }
}

impl<Q: InOrder> Graph for Recording<Q> {
    fn replay(&self) -> Result<(), DeviceError> {
        self.queue.run_all(&self.launches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workgroups_that_are_in_flight_together_are_counted_by_their_threads() {
        let of = |threads: u32| {
            let text =
                format!("kernel @k grid(1, 1, 1) workgroup({threads}, 1, 1) cooperative {{\n}}\n");
            let kernel = iron_ir::parse::parse(&text).expect("parses");
            let limits = LaunchLimits {
                max_grid: [1; 3],
                max_workgroup: [1024; 3],
                max_threads: 1024,
                max_buffer_bytes: 1,
                max_resident: u64::MAX,
            };
            limits_of(limits, &kernel).max_resident
        };
        assert_eq!([1, 256, 1024].map(of), [1 << 14, 64, 16]);
    }
}
