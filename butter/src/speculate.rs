//! Speculation: a proposer guesses tokens, the target verifies them in one step, and the answer
//! is the target's own.
//!
//! One verification runs `verify_rows` rows of the target: the last token known and
//! `proposal_count = verify_rows - 1` proposals. It commits `committed_rows` of them, the tokens
//! accepted and the row before; the token that the target gives at the first disagreement (or
//! behind the last proposal) enters with the next verification. A greedy answer is plain
//! decoding's token for token; a sampled one has plain decoding's distribution (Leviathan et
//! al., "Fast Inference from Transformers via Speculative Decoding"): with `p` the target's
//! distribution and `q` the proposer's, after all penalties and filters of the sampler in both,
//! a proposal `x` is accepted with probability `min(1, p(x) / q(x))` and replaced by a draw from
//! `max(p - q, 0)`, normalised, where it is not.

mod batch;
mod own_head;
mod propose;

pub use batch::{Entered, Propose, Text};
pub use own_head::OwnHead;
pub use propose::{DraftModel, NGram, Proposal, Proposer};

use std::time::Instant;

use serde::Serialize;

use crate::generate::{
    Answer, FinishReason, GenerateError, Output, Request, Stats, check_prompt, per_second, seconds,
};
use crate::model::{Model, ModelError, RowOutput, RowResult, SequenceId, StepRow};
use crate::sampler::{Sampler, TokenHistory, uniform_of_stream};
use crate::tokenizer::Tokenizer;

/// How many rows one verification has.
pub const VERIFY_ROWS: std::ops::RangeInclusive<usize> = 2..=10;

/// Most rows of one sequence that are verified in a step, with those that enter again before
/// them: from one more on a model may take a prompt's kernels, whose sums have another order.
pub(crate) const MOST_ROWS: usize = 15;

/// Streams of random numbers, beside that of [`Sampler::choose`].
const DRAFT_STREAM: u64 = 1;
const ACCEPT_STREAM: u64 = 2;
const REPLACE_STREAM: u64 = 3;

/// One verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Verification {
    /// Tokens proposed: `verify_rows - 1`, fewer at the end of an answer and where the proposer
    /// had no more.
    pub proposal_count: usize,
    /// Proposals accepted.
    pub accepted: usize,
}

impl Verification {
    /// Rows of the verification that joined the target's sequence.
    pub fn committed_rows(&self) -> usize {
        self.accepted + 1
    }
}

/// What a speculated answer was and how it came about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Speculation {
    /// The answer's tokens.
    pub token_ids: Vec<u32>,
    /// The verifications.
    pub verifications: Vec<Verification>,
    /// Why the answer ended early: the target gave no usable logits after these tokens.
    pub error: Option<String>,
}

impl Speculation {
    /// Tokens proposed, and how many of them were accepted.
    pub fn counts(&self) -> (usize, usize) {
        let verifications = self.verifications.iter();
        verifications.fold((0, 0), |(proposed, accepted), v| {
            (proposed + v.proposal_count, accepted + v.accepted)
        })
    }
}

/// What to speculate on.
#[derive(Clone, Copy, Debug)]
pub struct SpeculationRequest<'a> {
    /// The prompt.
    pub prompt_ids: &'a [u32],
    /// Most tokens of the answer; the context may leave fewer.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampler: &'a Sampler,
    /// Rows of one verification, one of [`VERIFY_ROWS`].
    pub verify_rows: usize,
}

/// Speculates on a request. `wants_more` sees each token and says whether to go on; the one
/// that it refuses is kept.
///
/// Both models give back what was rejected. A model that cannot cut its state back to the last
/// token accepted (see [`Model::truncate_sequence`]) goes back as far as it can and runs the
/// tokens accepted again, with the rows of the next verification.
pub fn speculate(
    target: &mut dyn Model,
    proposer: &mut dyn Proposer,
    request: SpeculationRequest<'_>,
    wants_more: &mut dyn FnMut(u32) -> bool,
) -> Result<Speculation, GenerateError> {
    let SpeculationRequest {
        prompt_ids,
        sampler,
        verify_rows,
        ..
    } = request;
    check_prompt(target, prompt_ids)?;
    if !VERIFY_ROWS.contains(&verify_rows) {
        return Err(GenerateError::VerifyRows { verify_rows });
    }
    // A verification is one step, however few rows the target takes.
    let most_proposals = (verify_rows - 1).min(target.max_step_rows().saturating_sub(1));
    let room = target.context_length() - prompt_ids.len();
    let max_tokens = request.max_tokens.min(room);
    let mut found = Speculation {
        token_ids: Vec::new(),
        verifications: Vec::new(),
        error: None,
    };
    if max_tokens == 0 {
        return Ok(found);
    }
    // The last token of an answer never enters.
    let capacity = prompt_ids.len() + max_tokens - 1;
    proposer.begin(target.vocab_size(), capacity)?;
    let mut target = Follower::new(target);
    target.open(capacity)?;
    let mut history = TokenHistory::new(prompt_ids);
    let mut tokens = prompt_ids.to_vec();
    loop {
        let known = tokens.len();
        let left = prompt_ids.len() + max_tokens - known;
        let count = most_proposals.min(left - 1);
        let mut proposals = proposer.propose(&tokens, &history, sampler, count)?;
        proposals.truncate(count);
        // What no vocabulary has cannot be the target's choice.
        let vocab_size = target.model.vocab_size();
        let known_tokens = proposals
            .iter()
            .take_while(|proposal| (proposal.token as usize) < vocab_size);
        proposals.truncate(known_tokens.count());
        let guessed = proposals.iter().map(|proposal| proposal.token);
        let wanted = sampler.row_output();
        let is_prompt = known == prompt_ids.len() && known > MOST_ROWS;
        let mut taken = Taken::default();
        if is_prompt {
            // Cut as without proposals, which come in a step of their own.
            let results = target.enter(proposer, &tokens, wanted)?;
            taken.take(&results, &proposals, &mut tokens, &mut history, sampler);
        }
        let first = taken.accepted;
        if !is_prompt || first > 0 {
            if is_prompt {
                let start = target.last;
                target.report(proposer, start, &tokens[start + 1..=known], 0)?;
            }
            tokens.extend(guessed.skip(first));
            let from = known - 1 + first;
            while let Some(end) = target.behind(from, tokens.len()) {
                let start = target.length;
                target.step(&tokens, end, end, wanted)?;
                target.report(proposer, start, &tokens[start + 1..=end], 0)?;
            }
            let results = target.step(&tokens, from, tokens.len(), wanted)?;
            tokens.truncate(known + first);
            let rest = &proposals[first..];
            taken.take(&results, rest, &mut tokens, &mut history, sampler);
        }
        let Taken { accepted, error } = taken;
        found.error = error;
        let verification = Verification {
            proposal_count: proposals.len(),
            accepted,
        };
        found.verifications.push(verification);
        // The token pushed last has entered neither.
        let committed = known - 1 + verification.committed_rows();
        let left = prompt_ids.len() + max_tokens - tokens.len();
        let wanted = most_proposals.min(left.saturating_sub(1));
        let start = target.last;
        target.report(proposer, start, &tokens[start + 1..], wanted)?;
        target.keep(committed)?;
        proposer.keep(committed)?;
        let refused = tokens[known..].iter().position(|&token| !wants_more(token));
        if let Some(end) = refused {
            tokens.truncate(known + end + 1);
            found.error = None;
        }
        if refused.is_some()
            || found.error.is_some()
            || tokens.len() == prompt_ids.len() + max_tokens
        {
            break;
        }
    }
    found.token_ids = tokens.split_off(prompt_ids.len());
    Ok(found)
}

/// Runs a request with speculation, as [`crate::generate::Generator::run`] does without.
pub fn answer(
    target: &mut dyn Model,
    proposer: &mut dyn Proposer,
    request: &Request,
    verify_rows: usize,
    tokenizer: Option<&Tokenizer>,
    on_text: &mut dyn FnMut(&str),
) -> Result<(Answer, Speculation), GenerateError> {
    let start = Instant::now();
    let mut first = None;
    let mut reason = FinishReason::Length;
    let mut output = Output::new(request, tokenizer, on_text);
    let speculation_request = SpeculationRequest {
        prompt_ids: &request.prompt_ids,
        max_tokens: request.max_tokens,
        sampler: &request.sampler,
        verify_rows,
    };
    let found = speculate(target, proposer, speculation_request, &mut |token| {
        first.get_or_insert_with(Instant::now);
        if request.stop_tokens.contains(&token) || output.push(token) {
            reason = FinishReason::Stop;
        }
        reason != FinishReason::Stop
    })?;
    if found.error.is_some() {
        reason = FinishReason::Error;
    }
    let first = first.unwrap_or(start);
    let generated_tokens = output.token_count();
    let stats = Stats {
        prompt_tokens: request.prompt_ids.len(),
        reused_tokens: 0,
        generated_tokens,
        // The first verification is the prompt's too.
        prefill_seconds: seconds(first - start),
        prefill_tokens_per_second: per_second(request.prompt_ids.len(), first - start),
        decode_seconds: seconds(first.elapsed()),
        decode_tokens_per_second: per_second(generated_tokens.saturating_sub(1), first.elapsed()),
    };
    let error = found.error.clone();
    Ok((output.finish(reason, error, stats), found))
}

/// What a verification's rows have given.
#[derive(Default)]
struct Taken {
    accepted: usize,
    error: Option<String>,
}

impl Taken {
    /// Takes the tokens of rows, each of which has a proposal behind it but perhaps the last, up to
    /// the first that is not its proposal.
    fn take(
        &mut self,
        results: &[RowResult],
        proposals: &[Proposal],
        tokens: &mut Vec<u32>,
        history: &mut TokenHistory,
        sampler: &Sampler,
    ) {
        for (i, result) in results.iter().enumerate() {
            match verified(result, proposals.get(i), history, sampler) {
                Ok((token, is_accepted)) => {
                    tokens.push(token);
                    history.push(token);
                    if !is_accepted {
                        break;
                    }
                    self.accepted += 1;
                }
                Err(message) => {
                    self.error = Some(message);
                    break;
                }
            }
        }
    }
}

/// The token that a row of a verification gives, and whether it is the proposal.
fn verified(
    result: &RowResult,
    proposal: Option<&Proposal>,
    history: &TokenHistory,
    sampler: &Sampler,
) -> Result<(u32, bool), String> {
    let logits = match result {
        RowResult::Token(token) => {
            return Ok((*token, proposal.is_some_and(|p| p.token == *token)));
        }
        RowResult::Logits(logits) => logits,
        RowResult::Failed(message) => return Err(message.clone()),
    };
    let target = sampler.distribution(logits, history);
    let target = target.map_err(|error| error.to_string())?;
    let random = |stream| {
        let seed = sampler.parameters().seed;
        uniform_of_stream(seed, stream, history.answer_length() as u64)
    };
    let Some(proposal) = proposal else {
        return Ok((target.draw(random(REPLACE_STREAM)), false));
    };
    let (p, q) = (target.probability(proposal.token), proposal.probability());
    if random(ACCEPT_STREAM) * q < p {
        return Ok((proposal.token, true));
    }
    let rest = target.residual(&proposal.distribution);
    Ok((rest.unwrap_or(target).draw(random(REPLACE_STREAM)), false))
}

/// A model that follows a growing list of tokens. Closes its sequence when dropped.
struct Follower<'m> {
    model: &'m mut dyn Model,
    sequence: Option<SequenceId>,
    /// Tokens of the list that have entered.
    length: usize,
    /// Where the last step began.
    last: usize,
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<'m> Follower<'m> {
    fn new(model: &'m mut dyn Model) -> Self {
        Self {
            model,
            sequence: None,
            length: 0,
            last: 0,
        }
    }

    /// An empty list, of which at most `capacity` tokens will enter.
    fn open(&mut self, capacity: usize) -> Result<(), ModelError> {
        self.close();
        self.sequence = Some(self.model.open_sequence(capacity)?);
        Ok(())
    }

    fn close(&mut self) {
        if let Some(sequence) = self.sequence.take() {
            self.model.close_sequence(sequence);
        }
        self.length = 0;
        self.last = 0;
    }

    fn sequence(&self) -> Result<SequenceId, ModelError> {
        let closed = || ModelError::Device("no answer was begun".to_owned());
        self.sequence.ok_or_else(closed)
    }

    /// Enters what has not entered of `tokens`; gives the result of each of the `n_choices`
    /// tokens from `first_choice` on, which end the list.
    fn follow(
        &mut self,
        tokens: &[u32],
        first_choice: usize,
        n_choices: usize,
        output: RowOutput,
    ) -> Result<Vec<RowResult>, ModelError> {
        debug_assert!(self.length <= first_choice && first_choice + n_choices == tokens.len());
        while let Some(end) = self.behind(first_choice, tokens.len()) {
            self.step(tokens, end, end, output)?;
        }
        self.step(tokens, first_choice, tokens.len(), output)
    }

    /// Enters a prompt in the steps that it has without proposals, whose number of rows is part of
    /// their result; gives that of the last row. Of the last step the proposer is not told yet.
    fn enter(
        &mut self,
        proposer: &mut dyn Proposer,
        prompt_ids: &[u32],
        output: RowOutput,
    ) -> Result<Vec<RowResult>, ModelError> {
        let limit = self.model.max_step_rows().max(1);
        while prompt_ids.len() - self.length > limit {
            let (start, end) = (self.length, self.length + limit);
            self.step(prompt_ids, end, end, output)?;
            self.report(proposer, start, &prompt_ids[start + 1..=end], 0)?;
        }
        self.step(prompt_ids, prompt_ids.len() - 1, prompt_ids.len(), output)
    }

    /// How far the next step goes that catches up on what comes before a choice; `None` where a
    /// few rows at most are missing, which enter with those of the choices up to `end`.
    fn behind(&self, first_choice: usize, end: usize) -> Option<usize> {
        let limit = self.model.max_step_rows().max(1);
        let is_behind = self.length < first_choice && end - self.length > limit.min(MOST_ROWS);
        is_behind.then(|| first_choice.min(self.length + limit))
    }

    /// Tells a proposer that rows from `position` on have entered in the last step, and what
    /// follows each; it may propose `count` tokens behind them.
    fn report(
        &mut self,
        proposer: &mut dyn Proposer,
        position: usize,
        following: &[u32],
        count: usize,
    ) -> Result<(), ModelError> {
        let entered = Entered {
            request: 0,
            sequence: self.sequence()?,
            position,
            following,
            count,
        };
        proposer.entered(self.model, &entered);
        Ok(())
    }

    /// Enters the tokens up to `end`; gives the results of those from `first_choice` on.
    fn step(
        &mut self,
        tokens: &[u32],
        first_choice: usize,
        end: usize,
        output: RowOutput,
    ) -> Result<Vec<RowResult>, ModelError> {
        let sequence = self.sequence()?;
        let row = |position: usize| StepRow {
            sequence,
            token: tokens[position],
            position: position as u32,
            output: match position < first_choice {
                true => RowOutput::Nothing,
                false => output,
            },
        };
        let rows: Vec<StepRow> = (self.length..end).map(row).collect();
        let results = self.model.step(&rows)?;
        self.last = std::mem::replace(&mut self.length, end);
        Ok(results)
    }

    /// Forgets what entered past `length` tokens.
    fn keep(&mut self, length: usize) -> Result<(), ModelError> {
        if length < self.length {
            self.length = self.model.truncate_sequence(self.sequence()?, length)?;
        }
        Ok(())
    }
}
