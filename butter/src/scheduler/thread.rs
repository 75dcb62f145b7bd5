//! The thread that turns a scheduler, and the handle to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Job, Scheduler, SchedulerMetrics, SchedulerOptions, Speculator};
use crate::model::{Model, ModelCapacity, ModelError};

/// How often a device that failed is asked whether it answers again.
const PROBE_EVERY: Duration = Duration::from_secs(2);

enum Command {
    Submit(Box<Job>),
    DropPrefixes,
    Stop,
}

/// A scheduler on a thread of its own, which also makes the model, because a model stays on the
/// thread that made it.
pub struct SchedulerThread {
    commands: Sender<Command>,
    metrics: Arc<SchedulerMetrics>,
    /// Requests that were handed over and have not reached the scheduler.
    handed: Arc<AtomicU64>,
    options: SchedulerOptions,
    capacity: ModelCapacity,
    max_queued: usize,
    thread: Option<JoinHandle<()>>,
}

/// Why a request is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Too many wait already.
    #[error("{queued} requests wait already, at most {limit} may")]
    Full {
        /// Requests that wait.
        queued: usize,
        /// Most that may.
        limit: usize,
    },
    /// The device failed and does not answer yet.
    #[error("the device failed and does not answer yet")]
    NotReady,
    /// The scheduler has ended.
    #[error("the scheduler has ended")]
    Ended,
}

impl SchedulerThread {
    /// Makes the model and its scheduler on a new thread and waits until both are ready.
    pub fn start(
        make: impl FnOnce() -> Result<Box<dyn Model>, ModelError> + Send + 'static,
        options: SchedulerOptions,
        max_queued: usize,
    ) -> Result<SchedulerThread, ModelError> {
        Self::start_speculating(|_| Ok((make()?, None)), options, max_queued)
    }

    /// As [`Self::start`], with what proposes tokens where there is one.
    pub fn start_speculating(
        make: impl FnOnce(&SchedulerMetrics) -> Result<(Box<dyn Model>, Option<Speculator>), ModelError>
        + Send
        + 'static,
        options: SchedulerOptions,
        max_queued: usize,
    ) -> Result<SchedulerThread, ModelError> {
        let metrics = Arc::new(SchedulerMetrics::default());
        let handed = Arc::new(AtomicU64::new(0));
        let (commands, receiver) = channel();
        let (made, wait) = channel();
        let shared = (metrics.clone(), handed.clone());
        let body = move || {
            let (metrics, handed) = shared;
            let started = make(&metrics).and_then(|(model, speculator)| {
                let capacity = model.capacity();
                let mut scheduler = Scheduler::new(model, options, metrics.clone())?;
                if let Some(speculator) = speculator {
                    scheduler.speculate(speculator)?;
                }
                Ok((scheduler, capacity))
            });
            match started {
                Ok((scheduler, capacity)) => {
                    let _ended = MarkEnded(metrics.clone());
                    metrics.ready.store(true, Relaxed);
                    let _ = made.send(Ok((scheduler.options(), capacity)));
                    serve(scheduler, &receiver, &metrics, &handed);
                }
                Err(error) => {
                    let _ = made.send(Err(error));
                }
            }
        };
        let failed = |what: String| ModelError::Device(format!("the scheduler's thread: {what}"));
        let thread = std::thread::Builder::new()
            .name("scheduler".to_owned())
            .spawn(body)
            .map_err(|error| failed(error.to_string()))?;
        let (options, capacity) = wait
            .recv()
            .map_err(|_| failed("ended while it loaded the model".to_owned()))??;
        Ok(SchedulerThread {
            commands,
            metrics,
            handed,
            options,
            capacity,
            max_queued,
            thread: Some(thread),
        })
    }

    /// Counts and clocks.
    pub fn metrics(&self) -> &Arc<SchedulerMetrics> {
        &self.metrics
    }

    /// The options as the model allows them.
    pub fn options(&self) -> SchedulerOptions {
        self.options
    }

    /// What the model reserved.
    pub fn capacity(&self) -> ModelCapacity {
        self.capacity
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        (self.metrics.queued.load(Relaxed) + self.handed.load(Relaxed)) as usize
    }

    /// Hands requests over, all or none of them.
    pub fn submit(&self, jobs: Vec<Job>) -> Result<(), Refused> {
        if !self.metrics.ready.load(Relaxed) {
            return Err(Refused::NotReady);
        }
        let (queued, limit) = (self.queued(), self.max_queued);
        // What finds a free sequence does not wait.
        let running = self.metrics.running.load(Relaxed) as usize;
        let free = self.options.max_running.saturating_sub(running);
        if queued + jobs.len() > limit + free {
            return Err(Refused::Full { queued, limit });
        }
        for job in jobs {
            self.handed.fetch_add(1, Relaxed);
            let command = Command::Submit(Box::new(job));
            self.commands.send(command).map_err(|_| Refused::Ended)?;
        }
        Ok(())
    }

    /// Gives every kept prefix back.
    pub fn drop_prefixes(&self) {
        let _ = self.commands.send(Command::DropPrefixes);
    }

    /// Ends all requests, each with [`Failure::Shutdown`](super::Failure::Shutdown), soon: the
    /// step that runs ends first.
    pub fn end(&self) {
        let _ = self.commands.send(Command::Stop);
    }

    /// Ends all requests and the thread, and waits for it.
    pub fn stop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for SchedulerThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Says that nothing is taken any more, whatever ended the thread.
struct MarkEnded(Arc<SchedulerMetrics>);

impl Drop for MarkEnded {
    fn drop(&mut self) {
        self.0.ready.store(false, Relaxed);
    }
}

fn serve(
    mut scheduler: Scheduler,
    commands: &Receiver<Command>,
    metrics: &SchedulerMetrics,
    handed: &AtomicU64,
) {
    loop {
        let healthy = metrics.ready.load(Relaxed);
        let command = if scheduler.has_work() {
            commands.try_recv().ok()
        } else if healthy {
            match commands.recv() {
                Ok(command) => Some(command),
                Err(_) => return,
            }
        } else {
            match commands.recv_timeout(PROBE_EVERY) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => {
                    metrics.ready.store(scheduler.probe().is_ok(), Relaxed);
                    None
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        };
        let mut next = command;
        while let Some(command) = next {
            match command {
                Command::Submit(job) => {
                    scheduler.submit(*job, Instant::now());
                    handed.fetch_sub(1, Relaxed);
                }
                Command::DropPrefixes => scheduler.drop_prefixes(),
                Command::Stop => return,
            }
            next = commands.try_recv().ok();
        }
        if scheduler.has_work()
            && let Err(error) = scheduler.turn(Instant::now)
        {
            tracing::error!(%error, "a step failed");
            metrics.ready.store(scheduler.probe().is_ok(), Relaxed);
        }
    }
}
