//! Speculation with a draft model: the draft proposes tokens, the target verifies them in one
//! step, and what both agree on is kept. The answer is the target's own, token for token.

use crate::generate::{GenerateError, check_prompt};
use crate::model::{Model, ModelError, RowOutput, RowResult, SequenceId, StepRow};

/// What a speculated answer was and how it came about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Speculation {
    /// The tokens that the target alone would have chosen.
    pub token_ids: Vec<u32>,
    /// How many proposals each verification accepted; it gave one token more.
    pub accepted: Vec<usize>,
}

/// How many rows one verification has: the token that has not entered yet, and the proposals.
pub const VERIFY_ROWS: std::ops::RangeInclusive<usize> = 2..=10;

/// Greedy tokens of `target` after a prompt, with `proposal_count` proposals of `draft` a step.
/// `wants_more` sees each token and says whether to go on; the one that it refuses is kept.
///
/// Both models give back what was rejected. A model that cannot cut its state back to the last
/// token accepted (see [`Model::truncate_sequence`]) goes back as far as it can and runs the
/// tokens accepted again.
pub fn speculate(
    target: &mut dyn Model,
    draft: &mut dyn Model,
    prompt_ids: &[u32],
    max_tokens: usize,
    proposal_count: usize,
    wants_more: &mut dyn FnMut(u32) -> bool,
) -> Result<Speculation, GenerateError> {
    check_prompt(target, prompt_ids)?;
    if !VERIFY_ROWS.contains(&(proposal_count + 1)) {
        let message = format!(
            "{proposal_count} proposals a step, {} to {} can be verified",
            VERIFY_ROWS.start() - 1,
            VERIFY_ROWS.end() - 1
        );
        return Err(ModelError::Device(message).into());
    }
    if draft.vocab_size() != target.vocab_size() {
        let (ours, theirs) = (target.vocab_size(), draft.vocab_size());
        let message = format!("the draft has {theirs} tokens, the target {ours}");
        return Err(ModelError::Device(message).into());
    }
    let context = target.context_length().min(draft.context_length());
    let max_tokens = max_tokens.min(context.saturating_sub(prompt_ids.len()));
    let capacity = (prompt_ids.len() + max_tokens + proposal_count).min(context);
    let mut target = Follower::open(target, capacity)?;
    let mut draft = Follower::open(draft, capacity)?;
    let mut tokens = prompt_ids.to_vec();
    let mut accepted = Vec::new();
    let mut ended = max_tokens == 0;
    while !ended {
        let left = prompt_ids.len() + max_tokens - tokens.len();
        let count = proposal_count.min(left - 1);
        let known = tokens.len();
        for _ in 0..count {
            let next = draft.follow(&tokens, tokens.len() - 1, 1)?;
            tokens.extend(next);
        }
        // The last token known, then the proposals.
        let chosen = target.follow(&tokens, known - 1, count + 1)?;
        let agreed = tokens[known..]
            .iter()
            .zip(&chosen)
            .take_while(|(proposed, chosen)| proposed == chosen)
            .count();
        tokens.truncate(known + agreed);
        tokens.push(chosen[agreed]);
        accepted.push(agreed);
        // The token pushed last has entered neither.
        target.keep(tokens.len() - 1)?;
        draft.keep(tokens.len() - 1)?;
        if let Some(end) = tokens[known..].iter().position(|&token| !wants_more(token)) {
            tokens.truncate(known + end + 1);
            ended = true;
        }
        ended |= tokens.len() == prompt_ids.len() + max_tokens;
    }
    Ok(Speculation {
        token_ids: tokens.split_off(prompt_ids.len()),
        accepted,
    })
}

/// A model that follows a growing list of tokens. Closes its sequence when dropped.
struct Follower<'m> {
    model: &'m mut dyn Model,
    sequence: SequenceId,
    /// Tokens of the list that have entered.
    length: usize,
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.model.close_sequence(self.sequence);
    }
}

impl<'m> Follower<'m> {
    fn open(model: &'m mut dyn Model, capacity: usize) -> Result<Self, ModelError> {
        let sequence = model.open_sequence(capacity)?;
        Ok(Self {
            model,
            sequence,
            length: 0,
        })
    }

    /// Enters what has not entered of `tokens`; gives the greedy choice after each of the
    /// `n_choices` tokens from `first_choice` on, which end the list.
    fn follow(
        &mut self,
        tokens: &[u32],
        first_choice: usize,
        n_choices: usize,
    ) -> Result<Vec<u32>, ModelError> {
        debug_assert!(self.length <= first_choice && first_choice + n_choices == tokens.len());
        // What is verified is one step of its own, however much there is to catch up on.
        let limit = self.model.max_step_rows().max(1);
        while self.length < first_choice {
            let end = first_choice.min(self.length + limit);
            self.step(tokens, end, RowOutput::Nothing)?;
        }
        self.step(tokens, tokens.len(), RowOutput::Greedy)
    }

    fn step(
        &mut self,
        tokens: &[u32],
        end: usize,
        output: RowOutput,
    ) -> Result<Vec<u32>, ModelError> {
        let row = |position: usize| StepRow {
            sequence: self.sequence,
            token: tokens[position],
            position: position as u32,
            output,
        };
        let rows: Vec<StepRow> = (self.length..end).map(row).collect();
        let results = self.model.step(&rows)?;
        self.length = end;
        let token = |result| match result {
            RowResult::Token(token) => Ok(token),
            RowResult::Failed(message) => Err(ModelError::Device(message)),
            RowResult::Logits(_) => Err(ModelError::Device("logits for a choice".to_owned())),
        };
        results.into_iter().map(token).collect()
    }

    /// Forgets what entered past `length` tokens.
    fn keep(&mut self, length: usize) -> Result<(), ModelError> {
        if length < self.length {
            self.length = self.model.truncate_sequence(self.sequence, length)?;
        }
        Ok(())
    }
}
