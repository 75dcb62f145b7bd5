//! One request at a time: prompt in, answer out, over any [`Model`].

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::model::{Model, ModelError, RowOutput, RowResult, SequenceId, StepRow};
use crate::sampler::{Draw, Sampler, TokenHistory};
use crate::speculate::VERIFY_ROWS;
use crate::stop::StopMatcher;
use crate::tokenizer::{StreamDecoder, Tokenizer};

/// What a request asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// Most tokens of the answer. What the context leaves may be less; either
    /// limit ends the answer with [`FinishReason::Length`].
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampler: Sampler,
    /// Tokens that end the answer and are not part of it.
    pub stop_tokens: Vec<u32>,
    /// Texts that end the answer and are not part of it.
    pub stop_strings: Vec<String>,
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// A stop token or a stop string.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
    /// The model gave no usable logits; what came before them is good.
    Error,
}

/// An answer.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// The answer's tokens, without the one that ended it.
    pub token_ids: Vec<u32>,
    /// The answer's text; empty where there is no tokenizer.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What went wrong, for [`FinishReason::Error`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Clocks and counts.
    pub stats: Stats,
}

/// Clocks of one answer. Prefill ends when the first token is chosen; decode is
/// the rest.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt whose state was still there from the last answer.
    pub reused_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Time to the first token.
    pub prefill_seconds: f64,
    /// Prompt tokens that were computed, a second of prefill.
    pub prefill_tokens_per_second: f64,
    /// Time from the first token to the last.
    pub decode_seconds: f64,
    /// Tokens after the first, a second of decode.
    pub decode_tokens_per_second: f64,
}

/// A request that cannot be run.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum GenerateError {
    /// No token to start from.
    #[error("the prompt is empty, and the tokenizer adds no start token")]
    EmptyPrompt,
    /// A prompt that fills the context or passes it.
    #[error(
        "the prompt has {prompt_tokens} tokens, the context holds {context_length}: no room for an answer"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Positions of the context.
        context_length: usize,
    },
    /// A prompt id past the vocabulary.
    #[error("prompt id {token} at place {place} is past the vocabulary of {vocab_size}")]
    Token {
        /// The id.
        token: u32,
        /// Its place in the prompt.
        place: usize,
        /// Number of tokens.
        vocab_size: usize,
    },
    /// A text without a token that another comes before.
    #[error("{tokens} tokens leave none to predict, at least 2 are needed")]
    NothingToScore {
        /// Tokens of the text.
        tokens: usize,
    },
    /// A verification of another number of rows than fit.
    #[error(
        "verify_rows is {verify_rows}, it must be {} to {}",
        VERIFY_ROWS.start(),
        VERIFY_ROWS.end()
    )]
    VerifyRows {
        /// Rows asked for.
        verify_rows: usize,
    },
    /// A draft whose tokens are not the target's.
    #[error(
        "the draft (--draft) has a vocabulary of {draft} tokens, the model one of {target}; take a draft \
         with the model's own"
    )]
    DraftVocabulary {
        /// Tokens of the draft.
        draft: usize,
        /// Tokens of the target.
        target: usize,
    },
    /// Models whose predictions cannot be compared.
    #[error("the model has {model} tokens, the one to compare it with {reference}")]
    ComparedVocabulary {
        /// Tokens of the model.
        model: usize,
        /// Tokens of the other.
        reference: usize,
    },
    /// The model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Runs requests one after another on one sequence, whose state is reused as far
/// as the next prompt starts with the same tokens.
pub struct Generator<'m> {
    model: &'m mut dyn Model,
    sequence: Option<SequenceId>,
    /// Positions reserved for the sequence.
    capacity: usize,
    /// Positions to reserve even if the request needs fewer.
    reserve: usize,
    /// The tokens whose state the sequence holds.
    held: Vec<u32>,
}

impl std::fmt::Debug for Generator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generator")
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Generator<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<'m> Generator<'m> {
    /// A generator on a model.
    pub fn new(model: &'m mut dyn Model) -> Self {
        Self {
            model,
            sequence: None,
            capacity: 0,
            reserve: 0,
            held: Vec::new(),
        }
    }

    /// Reserves at least so many positions (at most the context), so that the
    /// requests of a conversation can go on in one sequence.
    pub fn reserving(mut self, positions: usize) -> Self {
        self.reserve = positions;
        self
    }

    /// Runs a request. `on_text` receives the answer's text piece by piece; the
    /// pieces joined are [`Answer::text`].
    pub fn run(
        &mut self,
        request: &Request,
        tokenizer: Option<&Tokenizer>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<Answer, GenerateError> {
        check_prompt(self.model, &request.prompt_ids)?;
        let prompt_tokens = request.prompt_ids.len();
        let room = self.model.context_length() - prompt_tokens;
        let max_tokens = request.max_tokens.min(room);
        let mut output = Output::new(request, tokenizer, on_text);
        let mut stats = Stats {
            prompt_tokens,
            ..Stats::default()
        };
        if max_tokens == 0 {
            return Ok(output.finish(FinishReason::Length, None, stats));
        }

        let result = self.answer(request, max_tokens, &mut output, &mut stats);
        if result.is_err() {
            // The step left the state as it was, but why it failed is unknown:
            // start the next request afresh.
            self.release();
        }
        let (reason, error) = result?;
        stats.generated_tokens = output.token_ids.len();
        Ok(output.finish(reason, error, stats))
    }

    fn answer(
        &mut self,
        request: &Request,
        max_tokens: usize,
        output: &mut Output<'_>,
        stats: &mut Stats,
    ) -> Result<(FinishReason, Option<String>), GenerateError> {
        let start = Instant::now();
        let sequence = self.prepare(&request.prompt_ids, max_tokens)?;
        stats.reused_tokens = self.held.len();
        let mut history = TokenHistory::new(&request.prompt_ids);
        let draws = request.sampler.draws(&history);
        let wanted = match draws.as_slice() {
            [] => RowOutput::Greedy,
            _ => RowOutput::Drawn,
        };
        let result = self.prefill(sequence, request, wanted, &draws)?;
        let mut chosen = token_of(result);
        let first = Instant::now();
        stats.prefill_seconds = seconds(first - start);
        stats.prefill_tokens_per_second =
            per_second(stats.prompt_tokens - stats.reused_tokens, first - start);

        let mut steps = 0;
        let ended = loop {
            let token = match chosen {
                Ok(token) => token,
                Err(message) => break (FinishReason::Error, Some(message)),
            };
            if request.stop_tokens.contains(&token) {
                break (FinishReason::Stop, None);
            }
            if output.push(token) {
                break (FinishReason::Stop, None);
            }
            if output.token_ids.len() == max_tokens {
                break (FinishReason::Length, None);
            }
            let row = StepRow {
                sequence,
                token,
                position: self.held.len() as u32,
                output: wanted,
            };
            history.push(token);
            let draws = request.sampler.draws(&history);
            let result = self.model.step_drawing(&[row], &draws)?;
            self.held.push(token);
            steps += 1;
            chosen = token_of(result);
        };
        stats.decode_seconds = seconds(first.elapsed());
        stats.decode_tokens_per_second = per_second(steps, first.elapsed());
        Ok(ended)
    }

    /// Gives a sequence that holds the longest start of the prompt whose state
    /// is there, short of the last token, whose logits are wanted.
    fn prepare(
        &mut self,
        prompt_ids: &[u32],
        max_tokens: usize,
    ) -> Result<SequenceId, GenerateError> {
        // The last token of an answer never enters the sequence.
        let needed = prompt_ids.len() + max_tokens - 1;
        if self.capacity < needed {
            self.release();
        }
        if let Some(sequence) = self.sequence {
            let common = self
                .held
                .iter()
                .zip(&prompt_ids[..prompt_ids.len() - 1])
                .take_while(|(held, token)| held == token)
                .count();
            let kept = self.model.truncate_sequence(sequence, common)?;
            self.held.truncate(kept);
            return Ok(sequence);
        }
        let capacity = needed.max(self.reserve.min(self.model.context_length()));
        let sequence = self.model.open_sequence(capacity)?;
        (self.sequence, self.capacity) = (Some(sequence), capacity);
        Ok(sequence)
    }

    /// Runs what is left of the prompt in steps of as many rows as fit; gives the last step's results.
    fn prefill(
        &mut self,
        sequence: SequenceId,
        request: &Request,
        wanted: RowOutput,
        draws: &[Draw],
    ) -> Result<Vec<RowResult>, GenerateError> {
        let prompt = &request.prompt_ids;
        let mut result = Vec::new();
        while self.held.len() < prompt.len() {
            let start = self.held.len();
            let end = prompt.len().min(start + self.model.max_step_rows().max(1));
            let rows: Vec<StepRow> = (start..end)
                .map(|position| StepRow {
                    sequence,
                    token: prompt[position],
                    position: position as u32,
                    output: if position + 1 == prompt.len() {
                        wanted
                    } else {
                        RowOutput::Nothing
                    },
                })
                .collect();
            let draws = if end == prompt.len() { draws } else { &[] };
            result = self.model.step_drawing(&rows, draws)?;
            self.held.extend(&prompt[start..end]);
        }
        Ok(result)
    }

    fn release(&mut self) {
        if let Some(sequence) = self.sequence.take() {
            self.model.close_sequence(sequence);
        }
        self.capacity = 0;
        self.held.clear();
    }
}

/// Refuses a prompt that the model cannot take.
pub(crate) fn check_prompt(model: &dyn Model, prompt_ids: &[u32]) -> Result<(), GenerateError> {
    if prompt_ids.is_empty() {
        return Err(GenerateError::EmptyPrompt);
    }
    let vocab_size = model.vocab_size();
    if let Some(place) = prompt_ids
        .iter()
        .position(|&token| token as usize >= vocab_size)
    {
        return Err(GenerateError::Token {
            token: prompt_ids[place],
            place,
            vocab_size,
        });
    }
    let (prompt_tokens, context_length) = (prompt_ids.len(), model.context_length());
    if prompt_tokens >= context_length {
        return Err(GenerateError::PromptTooLong {
            prompt_tokens,
            context_length,
        });
    }
    Ok(())
}

/// The logits that follow a prompt, in a sequence of its own.
pub fn prompt_logits(model: &mut dyn Model, prompt_ids: &[u32]) -> Result<Vec<f32>, GenerateError> {
    check_prompt(model, prompt_ids)?;
    let sequence = model.open_sequence(prompt_ids.len())?;
    let mut last = Ok(Vec::new());
    for (chunk, tokens) in prompt_ids.chunks(model.max_step_rows().max(1)).enumerate() {
        let first = chunk * model.max_step_rows().max(1);
        let row = |(i, &token): (usize, &u32)| StepRow {
            sequence,
            token,
            position: (first + i) as u32,
            output: if first + i + 1 == prompt_ids.len() {
                RowOutput::Logits
            } else {
                RowOutput::Nothing
            },
        };
        let rows: Vec<StepRow> = tokens.iter().enumerate().map(row).collect();
        last = model.step(&rows);
        if last.is_err() {
            break;
        }
    }
    model.close_sequence(sequence);
    match last?.into_iter().next() {
        Some(RowResult::Logits(logits)) => Ok(logits),
        Some(RowResult::Failed(message)) => Err(ModelError::Device(message).into()),
        _ => Err(ModelError::Device("the step gave no logits".to_owned()).into()),
    }
}

/// The token that a step's only result gives, or why there is none.
fn token_of(result: Vec<RowResult>) -> Result<u32, String> {
    match result.into_iter().next() {
        Some(RowResult::Token(token)) => Ok(token),
        Some(RowResult::Logits(_)) => Err("the step gave logits, not a token".to_owned()),
        Some(RowResult::Failed(message)) => Err(message),
        None => Err("the step gave no result for its last row".to_owned()),
    }
}

/// The answer so far, on its way to the caller.
pub(crate) struct Output<'a> {
    prompt_ids: Vec<u32>,
    token_ids: Vec<u32>,
    text: String,
    decoder: Option<StreamDecoder<'a>>,
    stop: StopMatcher,
    on_text: &'a mut dyn FnMut(&str),
}

impl<'a> Output<'a> {
    pub(crate) fn new(
        request: &Request,
        tokenizer: Option<&'a Tokenizer>,
        on_text: &'a mut dyn FnMut(&str),
    ) -> Self {
        Self {
            prompt_ids: request.prompt_ids.clone(),
            token_ids: Vec::new(),
            text: String::new(),
            decoder: tokenizer.map(Tokenizer::decoder),
            stop: StopMatcher::new(request.stop_strings.iter().cloned()),
            on_text,
        }
    }

    /// Takes a token; true if its text completes a stop string.
    pub(crate) fn push(&mut self, token: u32) -> bool {
        self.token_ids.push(token);
        let Some(decoder) = &mut self.decoder else {
            return false;
        };
        let text = decoder.push(token);
        let text = self.stop.push(&text);
        self.emit(&text);
        self.stop.is_stopped()
    }

    fn emit(&mut self, text: &str) {
        if !text.is_empty() {
            self.text += text;
            (self.on_text)(text);
        }
    }

    /// Tokens so far.
    pub(crate) fn token_count(&self) -> usize {
        self.token_ids.len()
    }

    /// Ends the answer.
    pub(crate) fn finish(
        mut self,
        mut reason: FinishReason,
        error: Option<String>,
        stats: Stats,
    ) -> Answer {
        if let Some(decoder) = self.decoder.take()
            && !self.stop.is_stopped()
        {
            let mut tail = self.stop.push(&decoder.finish());
            if self.stop.is_stopped() && reason == FinishReason::Length {
                reason = FinishReason::Stop;
            }
            tail += &std::mem::take(&mut self.stop).finish();
            self.emit(&tail);
        }
        Answer {
            prompt_ids: self.prompt_ids,
            token_ids: self.token_ids,
            text: self.text,
            finish_reason: reason,
            error,
            stats,
        }
    }
}

pub(crate) fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

pub(crate) fn per_second(count: usize, duration: Duration) -> f64 {
    if duration.is_zero() {
        0.0
    } else {
        count as f64 / duration.as_secs_f64()
    }
}
