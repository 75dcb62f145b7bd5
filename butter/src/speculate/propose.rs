//! Where proposals come from: a draft model, or the text so far.

use super::{DRAFT_STREAM, Entered, Follower, OwnHead, Propose, Text};
use crate::generate::GenerateError;
use crate::model::{Model, ModelError, RowResult};
use crate::sampler::{Distribution, Sampler, TokenHistory, uniform_of_stream};

/// A token proposed, and what it was drawn from.
#[derive(Clone, PartialEq, Debug)]
pub struct Proposal {
    /// The token.
    pub token: u32,
    /// The distribution that it was drawn from: this one token, where it was not drawn.
    pub distribution: Distribution,
}

impl Proposal {
    /// A token that was not drawn at random.
    pub fn certain(token: u32) -> Self {
        Self {
            token,
            distribution: Distribution::certain(token),
        }
    }

    /// Probability with which it was proposed.
    pub fn probability(&self) -> f64 {
        self.distribution.probability(self.token)
    }
}

/// Guesses how a list of tokens goes on.
pub trait Proposer {
    /// An answer begins, to a target of `vocab_size` tokens; no list will be longer than
    /// `capacity` with its proposals.
    fn begin(&mut self, vocab_size: usize, capacity: usize) -> Result<(), GenerateError>;

    /// At most `count` tokens that may follow `tokens`, best none where it does not know. The
    /// history is that of the answer so far.
    fn propose(
        &mut self,
        tokens: &[u32],
        history: &TokenHistory,
        sampler: &Sampler,
        count: usize,
    ) -> Result<Vec<Proposal>, ModelError>;

    /// Of the list last proposed to, with the proposals, so many tokens stay.
    fn keep(&mut self, length: usize) -> Result<(), ModelError>;

    /// Rows have entered the target, whose last step this was.
    fn entered(&mut self, target: &mut dyn Model, entered: &Entered<'_>) {
        let _ = (target, entered);
    }
}

impl Proposer for OwnHead {
    fn begin(&mut self, _: usize, _: usize) -> Result<(), GenerateError> {
        Ok(())
    }

    fn propose(
        &mut self,
        tokens: &[u32],
        _: &TokenHistory,
        _: &Sampler,
        count: usize,
    ) -> Result<Vec<Proposal>, ModelError> {
        let text = Text {
            request: 0,
            tokens,
            count,
            positions: 0,
        };
        let next = self.propose_all(&[text]).into_iter().flatten();
        Ok(next.map(Proposal::certain).collect())
    }

    fn keep(&mut self, _: usize) -> Result<(), ModelError> {
        Ok(())
    }

    fn entered(&mut self, target: &mut dyn Model, entered: &Entered<'_>) {
        Propose::entered(self, target, std::slice::from_ref(entered));
    }
}

/// Proposals of a smaller model with the same vocabulary, chosen as the target chooses: greedy
/// for a greedy sampler, else drawn after the same penalties and filters.
pub struct DraftModel<'m> {
    follower: Follower<'m>,
    /// Positions of its sequence.
    capacity: usize,
}

impl std::fmt::Debug for DraftModel<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DraftModel")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl<'m> DraftModel<'m> {
    /// A model as proposer. It holds a sequence of the model from the first answer on until it
    /// is dropped.
    pub fn new(model: &'m mut dyn Model) -> Self {
        Self {
            follower: Follower::new(model),
            capacity: 0,
        }
    }
}

impl Proposer for DraftModel<'_> {
    fn begin(&mut self, vocab_size: usize, capacity: usize) -> Result<(), GenerateError> {
        let (draft, target) = (self.follower.model.vocab_size(), vocab_size);
        if draft != target {
            return Err(GenerateError::DraftVocabulary { draft, target });
        }
        // Where the draft's context ends it proposes no more.
        self.capacity = capacity.min(self.follower.model.context_length());
        Ok(self.follower.open(self.capacity)?)
    }

    fn propose(
        &mut self,
        tokens: &[u32],
        history: &TokenHistory,
        sampler: &Sampler,
        count: usize,
    ) -> Result<Vec<Proposal>, ModelError> {
        // A proposal is made from all tokens before it, which must fit.
        let count = count.min((self.capacity + 1).saturating_sub(tokens.len()));
        let mut tokens = tokens.to_vec();
        let mut history = history.clone();
        let mut proposals = Vec::with_capacity(count);
        for _ in 0..count {
            let last = tokens.len() - 1;
            let results = self
                .follower
                .follow(&tokens, last, 1, sampler.row_output())?;
            let proposal = match results.first() {
                Some(RowResult::Token(token)) => Proposal::certain(*token),
                Some(RowResult::Logits(logits)) => {
                    // A row that gives no choice proposes nothing; the target goes on alone.
                    let Ok(distribution) = sampler.distribution(logits, &history) else {
                        break;
                    };
                    let index = history.answer_length() as u64;
                    let seed = sampler.parameters().seed;
                    Proposal {
                        token: distribution.draw(uniform_of_stream(seed, DRAFT_STREAM, index)),
                        distribution,
                    }
                }
                Some(RowResult::Failed(_)) | None => break,
            };
            tokens.push(proposal.token);
            history.push(proposal.token);
            proposals.push(proposal);
        }
        Ok(proposals)
    }

    fn keep(&mut self, length: usize) -> Result<(), ModelError> {
        self.follower.keep(length)
    }
}

/// Proposals from the text itself: what followed the last time that its last few tokens stood
/// in it (prompt lookup). It costs nothing and helps where an answer repeats its prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NGram {
    /// Most tokens that must have stood there; longer matches are tried first.
    pub longest: usize,
    /// Fewest.
    pub shortest: usize,
}

impl Default for NGram {
    fn default() -> Self {
        Self {
            longest: 4,
            shortest: 2,
        }
    }
}

impl NGram {
    /// What followed the last time that the last few of `tokens` stood there: at most `count`
    /// tokens.
    pub fn continuation<'t>(&self, tokens: &'t [u32], count: usize) -> &'t [u32] {
        for length in (self.shortest.max(1)..=self.longest).rev() {
            let Some(start) = tokens.len().checked_sub(length) else {
                continue;
            };
            let (before, last) = (&tokens[..tokens.len() - 1], &tokens[start..]);
            // The latest place counts, and one that overlaps the end may be it.
            let found = before.windows(length).rposition(|window| window == last);
            if let Some(found) = found {
                let next = &tokens[found + length..];
                return &next[..count.min(next.len())];
            }
        }
        &[]
    }
}

impl Proposer for NGram {
    fn begin(&mut self, _: usize, _: usize) -> Result<(), GenerateError> {
        Ok(())
    }

    fn propose(
        &mut self,
        tokens: &[u32],
        _: &TokenHistory,
        _: &Sampler,
        count: usize,
    ) -> Result<Vec<Proposal>, ModelError> {
        let next = self.continuation(tokens, count).iter();
        Ok(next.map(|&token| Proposal::certain(token)).collect())
    }

    fn keep(&mut self, _: usize) -> Result<(), ModelError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_and_latest_place_proposes() {
        let propose = |tokens: &[u32], count| -> Vec<u32> {
            let history = TokenHistory::default();
            let proposals = NGram::default().propose(tokens, &history, &Sampler::greedy(), count);
            let proposals = proposals.expect("no model");
            proposals.iter().map(|proposal| proposal.token).collect()
        };
        assert_eq!(propose(&[1, 2, 3, 4, 1, 2], 2), [3, 4]);
        assert_eq!(
            propose(&[1, 2, 3, 9, 1, 2, 4, 8, 1, 2], 1),
            [4],
            "the latest"
        );
        assert_eq!(
            propose(&[7, 1, 2, 3, 9, 1, 2, 4, 7, 1, 2], 1),
            [3],
            "the longest"
        );
        assert_eq!(propose(&[5, 5, 5], 4), [5], "as far as the text goes");
        assert_eq!(propose(&[1, 2, 3], 4), [0; 0]);
        assert_eq!(propose(&[2, 1, 3, 1], 4), [0; 0], "one token is too few");
        assert_eq!(propose(&[], 4), [0; 0]);
    }
}
