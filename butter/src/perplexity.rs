//! How well a model predicts a text.

use serde::Serialize;

use crate::generate::{GenerateError, check_prompt};
use crate::model::{Model, ModelError, RowOutput, RowResult, StepRow};
use crate::sampler::token_logprobs;

/// How well a model predicted a text.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Perplexity {
    /// Tokens predicted: all but the first.
    pub tokens: usize,
    /// Mean of `-ln p(token)`, in nats.
    pub mean_nll: f64,
    /// `exp(mean_nll)`.
    pub perplexity: f64,
}

/// Scores `ids` in windows of at most `window` tokens, at least 2. A window begins with the last
/// token of the one before and sees nothing else of it, so that every token but the first is
/// scored once.
pub fn perplexity(
    model: &mut dyn Model,
    ids: &[u32],
    window: usize,
) -> Result<Perplexity, GenerateError> {
    let window = window.clamp(2, model.context_length().max(2));
    let mut sum = 0.0;
    let mut tokens = 0;
    let mut start = 0;
    while start + 1 < ids.len() {
        let end = ids.len().min(start + window);
        sum += window_nll(model, &ids[start..end])?;
        tokens += end - start - 1;
        start = end - 1;
    }
    if tokens == 0 {
        return Err(GenerateError::NothingToScore { tokens: ids.len() });
    }
    let mean_nll = sum / tokens as f64;
    Ok(Perplexity {
        tokens,
        mean_nll,
        perplexity: mean_nll.exp(),
    })
}

/// The sum over all tokens but the first.
fn window_nll(model: &mut dyn Model, ids: &[u32]) -> Result<f64, GenerateError> {
    // The last token is predicted and does not enter.
    let entering = &ids[..ids.len() - 1];
    check_prompt(model, entering)?;
    if let Some(&token) = ids.last().filter(|&&id| id as usize >= model.vocab_size()) {
        return Err(GenerateError::Token {
            token,
            place: ids.len() - 1,
            vocab_size: model.vocab_size(),
        });
    }
    let sequence = model.open_sequence(entering.len())?;
    let mut sum: Result<f64, ModelError> = Ok(0.0);
    let limit = model.max_step_rows().max(1);
    for (chunk, tokens) in entering.chunks(limit).enumerate() {
        let first = chunk * limit;
        let row = |(i, &token): (usize, &u32)| StepRow {
            sequence,
            token,
            position: (first + i) as u32,
            output: RowOutput::Logits,
        };
        let rows: Vec<StepRow> = tokens.iter().enumerate().map(row).collect();
        let results = model.step(&rows);
        sum = sum.and_then(|sum| Ok(sum + chunk_nll(&results?, &ids[first + 1..])?));
        if sum.is_err() {
            break;
        }
    }
    model.close_sequence(sequence);
    Ok(sum?)
}

fn chunk_nll(results: &[RowResult], next: &[u32]) -> Result<f64, ModelError> {
    let mut sum = 0.0;
    for (result, &token) in results.iter().zip(next) {
        let scored = match result {
            RowResult::Logits(logits) => token_logprobs(logits, token, 0),
            RowResult::Failed(message) => return Err(ModelError::Device(message.clone())),
            RowResult::Token(_) => return Err(ModelError::Device("no logits".to_owned())),
        };
        let scored = scored.map_err(|error| ModelError::Device(error.to_string()))?;
        sum -= scored.logprob;
    }
    Ok(sum)
}
