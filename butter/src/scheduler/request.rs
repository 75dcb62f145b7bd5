//! A request as the scheduler sees it: tokens in, tokens out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;

use super::lease::Lease;
use crate::sampler::Draw;

/// One answer to compute.
pub struct Job {
    /// The prompt: at least one token, each below the vocabulary's size.
    pub prompt: Vec<u32>,
    /// Most tokens of the answer, at least 1.
    pub max_tokens: usize,
    /// Tokens that end the answer and are not part of it.
    pub stop_tokens: Vec<u32>,
    /// How tokens are chosen.
    pub chooser: Box<dyn Choose>,
    /// Tenant: prefixes are shared among requests with the same salt alone.
    pub salt: u64,
    /// When to give up.
    pub deadline: Option<Instant>,
    /// Which of several answers this is; stands beside each event.
    pub index: usize,
    /// Where events go. When the other side is closed, the request is cancelled.
    pub events: UnboundedSender<(usize, Event)>,
    /// Set by whoever reads the events when they have enough: the answer is complete.
    pub enough: Arc<AtomicBool>,
}

/// Chooses the tokens of one answer.
pub trait Choose: Send {
    /// Whether logits are needed; else a draw, or the device's largest logit decides.
    fn wants_logits(&self) -> bool;

    /// Whether the next choice is a draw, made where the logits are: that of [`Self::draw`].
    fn wants_draw(&self) -> bool {
        false
    }

    /// The answer's next choice, where the sampler alone makes it; [`Self::take`] is told of it.
    /// `None` where logits or the largest decide.
    fn draw(&self) -> Option<Draw> {
        None
    }

    /// The next token was chosen on the device, as [`Self::draw`] said or the largest.
    fn take(&mut self, token: u32) {
        let _ = token;
    }

    /// Chooses the answer's next token from its logits; called once a token, in order. An error
    /// ends this request.
    fn choose(&mut self, logits: Vec<f32>) -> Result<Choice, Failure>;
}

/// A chosen token.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// The natural logarithm of its probability, if asked for.
    pub logprob: Option<f64>,
    /// The likeliest tokens and theirs, if asked for.
    pub top: Vec<(u32, f64)>,
    /// Whether the answer is complete with this token, which belongs to it.
    pub last: bool,
}

impl Choice {
    /// A token and nothing else.
    pub fn token(token: u32) -> Choice {
        Choice {
            token,
            logprob: None,
            top: Vec::new(),
            last: false,
        }
    }
}

/// What happens to a request.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The next token of the answer.
    Token(Choice),
    /// The answer is complete.
    Finished {
        /// Whether a stop token ended it, else its length.
        stopped: bool,
        /// Counts and clocks.
        receipt: Receipt,
    },
    /// The request ended without a complete answer.
    Failed {
        /// Why.
        failure: Failure,
        /// Counts and clocks up to there.
        receipt: Receipt,
    },
}

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The model gave nothing to choose from, or the chooser refused.
    #[error("no token could be chosen: {0}")]
    Row(String),
    /// The grammar that the answer must follow has come to a point where it allows nothing, or
    /// takes more work than it may.
    #[error("the grammar of the request cannot be followed further: {0}")]
    Grammar(String),
    /// The device failed the request's step.
    #[error("the device failed: {0}")]
    Device(String),
    /// The deadline passed.
    #[error("the deadline passed after {0} tokens")]
    Deadline(usize),
    /// The server stops.
    #[error("the server is shutting down")]
    Shutdown,
    /// Its room cannot be had.
    #[error("the request needs {needed} positions, at most {limit} can be had")]
    TooLong {
        /// Positions needed.
        needed: usize,
        /// Most that a request may have.
        limit: usize,
    },
}

/// Counts and clocks of a request.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Receipt {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that a kept sequence held.
    pub reused_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Steps in which the prompt was computed.
    pub prefill_steps: usize,
    /// Times that the request gave its sequence up for another one.
    pub preemptions: usize,
    /// Tokens proposed to it.
    pub proposed_tokens: usize,
    /// Proposals that were accepted.
    pub accepted_tokens: usize,
    /// From submission to admission.
    pub queue_seconds: f64,
    /// From admission to the first token.
    pub prefill_seconds: f64,
    /// From the first token to the end.
    pub decode_seconds: f64,
}

/// A job on its way.
pub(super) struct Request {
    pub job: Job,
    pub id: u64,
    /// The prompt and the answer so far.
    pub tokens: Vec<u32>,
    /// Tokens whose state the sequence holds.
    pub computed: usize,
    pub lease: Option<Lease>,
    pub receipt: Receipt,
    pub submitted: Instant,
    pub admitted: Option<Instant>,
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
    /// Tokens chosen since it was last admitted.
    pub since_admission: usize,
    /// When it last began to wait.
    pub waiting_since: Instant,
    /// Later requests that were admitted before it.
    pub bypassed: usize,
}

impl Request {
    pub fn new(job: Job, id: u64, now: Instant) -> Request {
        let receipt = Receipt {
            prompt_tokens: job.prompt.len(),
            ..Receipt::default()
        };
        Request {
            tokens: job.prompt.clone(),
            job,
            id,
            computed: 0,
            lease: None,
            receipt,
            submitted: now,
            admitted: None,
            first_token: None,
            last_token: None,
            since_admission: 0,
            waiting_since: now,
            bypassed: 0,
        }
    }

    /// Positions that the whole request needs: its last token never enters the sequence.
    pub fn positions(&self) -> usize {
        self.job.prompt.len() + self.job.max_tokens.max(1) - 1
    }

    /// Whether rows of the prompt are still to be computed.
    pub fn is_prefilling(&self) -> bool {
        self.computed < self.job.prompt.len()
    }

    /// Tokens of the answer so far.
    pub fn answer(&self) -> &[u32] {
        &self.tokens[self.job.prompt.len()..]
    }

    /// Whether its reader has all of the answer that it wants.
    pub fn is_enough(&self) -> bool {
        self.job.enough.load(Relaxed)
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self) -> bool {
        self.job.events.is_closed()
    }

    pub fn is_late(&self, now: Instant) -> bool {
        self.job.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// The receipt as of now.
    pub fn receipt(&self, now: Instant) -> Receipt {
        let between = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), to) => seconds(to.unwrap_or(now).saturating_duration_since(from)),
            (None, _) => 0.0,
        };
        Receipt {
            generated_tokens: self.answer().len(),
            queue_seconds: between(Some(self.submitted), self.admitted),
            prefill_seconds: between(self.admitted, self.first_token),
            decode_seconds: between(self.first_token, Some(now)),
            ..self.receipt
        }
    }

    /// Tells the client; whether one was still there.
    pub fn send(&self, event: Event) -> bool {
        self.job.events.send((self.job.index, event)).is_ok()
    }
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}
