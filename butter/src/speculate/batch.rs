//! Proposals for many texts at once.

use super::NGram;
use crate::model::{Model, SequenceId};

/// The text of a request, to be continued.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// The request's number.
    pub request: u64,
    /// The prompt and the answer so far.
    pub tokens: &'a [u32],
    /// Most proposals.
    pub count: usize,
    /// Positions that the whole request may take.
    pub positions: usize,
}

/// Rows of a request that have entered the target in its last step.
#[derive(Clone, Debug)]
pub struct Entered<'a> {
    /// The request's number.
    pub request: u64,
    /// Its sequence in the target.
    pub sequence: SequenceId,
    /// The position of the first of the rows.
    pub position: usize,
    /// The token that follows each of the rows.
    pub following: &'a [u32],
    /// Most proposals that may follow these.
    pub count: usize,
}

/// Guesses how the texts of many requests go on. What it guesses changes no answer, and where it
/// fails it gives nothing.
pub trait Propose {
    /// For each text at most `count` tokens, best none where it does not know. Requests that are
    /// not named keep what is held for them.
    fn propose_all(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>>;

    /// Rows have entered the target, whose last step this was.
    fn entered(&mut self, target: &mut dyn Model, entered: &[Entered<'_>]) {
        let _ = (target, entered);
    }

    /// A request has ended or given its sequence up: what is held for it goes.
    fn forget(&mut self, request: u64) {
        let _ = request;
    }
}

impl Propose for NGram {
    fn propose_all(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>> {
        let of = |text: &Text<'_>| self.continuation(text.tokens, text.count).to_vec();
        texts.iter().map(of).collect()
    }
}
