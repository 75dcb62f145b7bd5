//! Counts and clocks of the scheduler, read by `/metrics` while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::lease::LeaseCounters;

/// Upper bounds of the histograms' buckets, in seconds.
pub const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

/// Durations by bucket.
#[derive(Default, Debug)]
pub struct Histogram {
    /// How many fell into each bucket; the last is for those above all bounds.
    pub buckets: [AtomicU64; BUCKETS.len() + 1],
    /// All durations together, in microseconds.
    pub microseconds: AtomicU64,
}

impl Histogram {
    /// Counts a duration.
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = BUCKETS.iter().position(|&bound| seconds <= bound);
        self.buckets[bucket.unwrap_or(BUCKETS.len())].fetch_add(1, Relaxed);
        self.microseconds
            .fetch_add(duration.as_micros() as u64, Relaxed);
    }
}

/// What the scheduler shares with whoever asks how it is.
#[derive(Default, Debug)]
pub struct SchedulerMetrics {
    /// Whether requests are taken.
    pub ready: AtomicBool,
    /// Sequences, counted where they are taken and given back.
    pub leases: Arc<LeaseCounters>,
    /// Requests that wait.
    pub queued: AtomicU64,
    /// Requests that hold a sequence.
    pub running: AtomicU64,
    /// Sequences that are kept for their prefix.
    pub kept: AtomicU64,
    /// Requests taken since the start.
    pub submitted: AtomicU64,
    /// Requests that ended by themselves.
    pub completed: AtomicU64,
    /// Requests whose client went away or that were cancelled.
    pub cancelled: AtomicU64,
    /// Requests that ended with an error.
    pub failed: AtomicU64,
    /// Times that a request gave its sequence up for another one.
    pub preemptions: AtomicU64,
    /// Steps run.
    pub steps: AtomicU64,
    /// Rows of all steps.
    pub rows: AtomicU64,
    /// Steps that the device failed.
    pub failed_steps: AtomicU64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: AtomicU64,
    /// Prompt tokens that were not computed, because a kept sequence held them.
    pub reused_tokens: AtomicU64,
    /// Tokens chosen.
    pub generated_tokens: AtomicU64,
    /// Steps of a request that held proposals.
    pub verifications: AtomicU64,
    /// Tokens proposed to requests.
    pub proposed: AtomicU64,
    /// Proposals that were accepted.
    pub accepted: AtomicU64,
    /// Sequences of a draft model.
    pub draft_leases: Arc<LeaseCounters>,
    /// From submission to admission.
    pub queue_time: Histogram,
    /// From submission to the first token.
    pub first_token: Histogram,
    /// From a token to the next.
    pub between_tokens: Histogram,
    /// Steps of rows that decode, on the device.
    pub decode_step: Histogram,
    /// Steps of prompts' chunks, of one or several requests, on the device.
    pub prefill_step: Histogram,
    /// Whole turns: what their steps do not explain is the scheduler's own time.
    pub turn: Histogram,
}
