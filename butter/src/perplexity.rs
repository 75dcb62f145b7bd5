//! How well a model predicts a text, and how far its predictions are from another's.

use serde::Serialize;

use crate::generate::{GenerateError, check_prompt};
use crate::model::{Model, ModelError, RowOutput, RowResult, SequenceId, StepRow};
use crate::sampler::{argmax, log_sum_exp};

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

impl Perplexity {
    fn of(tokens: usize, sum: f64) -> Self {
        let mean_nll = sum / tokens.max(1) as f64;
        Self {
            tokens,
            mean_nll,
            perplexity: mean_nll.exp(),
        }
    }
}

/// Scores `ids` in windows of at most `window` tokens, at least 2. A window begins with the last
/// token of the one before and sees nothing else of it, so that every token but the first is
/// scored once.
pub fn perplexity(
    model: &mut dyn Model,
    ids: &[u32],
    window: usize,
) -> Result<Perplexity, GenerateError> {
    let (mut sum, mut tokens) = (0.0, 0);
    each_prediction(&mut [model], ids, window, &mut |place, [logits]| {
        sum -= Row::of(logits)?.logprob(ids[place]);
        tokens += 1;
        Ok(())
    })?;
    Ok(Perplexity::of(tokens, sum))
}

/// How far a model's predictions of a text are from a reference's.
///
/// The Kullback-Leibler divergence of a prediction is `sum of p (ln p - ln q)` over the
/// vocabulary, with `p` of the reference and `q` of the model, in nats: 0 where both say the same.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// The model.
    pub model: Perplexity,
    /// The reference.
    pub reference: Perplexity,
    /// Mean of the divergences.
    pub mean_kl: f64,
    /// Their median.
    pub median_kl: f64,
    /// What 99 of 100 do not exceed.
    pub p99_kl: f64,
    /// The largest.
    pub largest_kl: f64,
    /// Place of the token whose predictions differ most.
    pub largest_at: usize,
    /// Part of the predictions in which both find the same token likeliest.
    pub same_top: f64,
    /// Each prediction.
    #[serde(skip)]
    pub predictions: Vec<ComparedPrediction>,
}

/// Both models' predictions of one token.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct ComparedPrediction {
    /// The token's place in the text.
    pub place: usize,
    /// The token.
    pub token: u32,
    /// The divergence.
    pub kl: f64,
    /// The token that the model finds likeliest.
    pub top: u32,
    /// The token that the reference finds likeliest.
    pub reference_top: u32,
    /// `ln q(token)`.
    pub logprob: f64,
    /// `ln p(token)`.
    pub reference_logprob: f64,
}

/// Compares a model with a reference on `ids`, in windows as [`perplexity`] has them.
pub fn compare(
    model: &mut dyn Model,
    reference: &mut dyn Model,
    ids: &[u32],
    window: usize,
) -> Result<Comparison, GenerateError> {
    let mut predictions = Vec::new();
    let mut models: [&mut dyn Model; 2] = [model, reference];
    each_prediction(&mut models, ids, window, &mut |place, [found, expected]| {
        let (found, expected) = (Row::of(found)?, Row::of(expected)?);
        let token = ids[place];
        predictions.push(ComparedPrediction {
            place,
            token,
            kl: expected.divergence_from(&found),
            top: found.top,
            reference_top: expected.top,
            logprob: found.logprob(token),
            reference_logprob: expected.logprob(token),
        });
        Ok(())
    })?;
    Ok(Comparison::of(predictions))
}

impl Comparison {
    /// Of at least one prediction.
    fn of(predictions: Vec<ComparedPrediction>) -> Self {
        let count = predictions.len();
        let sum = |of: fn(&ComparedPrediction) -> f64| predictions.iter().map(of).sum::<f64>();
        let mut sorted: Vec<f64> = predictions.iter().map(|p| p.kl).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let index = (part * count as f64).ceil() as usize;
            sorted.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        let largest = predictions.iter().max_by(|a, b| a.kl.total_cmp(&b.kl));
        Self {
            model: Perplexity::of(count, -sum(|p| p.logprob)),
            reference: Perplexity::of(count, -sum(|p| p.reference_logprob)),
            mean_kl: sum(|p| p.kl) / count.max(1) as f64,
            median_kl: at(0.5),
            p99_kl: at(0.99),
            largest_kl: at(1.0),
            largest_at: largest.map_or(0, |p| p.place),
            same_top: sum(|p| f64::from(u8::from(p.top == p.reference_top))) / count.max(1) as f64,
            predictions,
        }
    }
}

/// A row of logits as a distribution.
struct Row<'a> {
    logits: &'a [f32],
    normaliser: f64,
    top: u32,
}

impl<'a> Row<'a> {
    fn of(logits: &'a [f32]) -> Result<Self, ModelError> {
        let failed = |error: crate::sampler::SampleError| ModelError::Device(error.to_string());
        Ok(Self {
            logits,
            normaliser: log_sum_exp(logits).map_err(failed)?,
            top: argmax(logits).map_err(failed)? as u32,
        })
    }

    fn logprob(&self, token: u32) -> f64 {
        let logit = self.logits.get(token as usize);
        logit.map_or(f64::NEG_INFINITY, |&logit| {
            f64::from(logit) - self.normaliser
        })
    }

    /// `sum of p (ln p - ln q)`, with `p` of this row; what this row gives no probability adds
    /// nothing.
    fn divergence_from(&self, other: &Row<'_>) -> f64 {
        let pairs = self.logits.iter().zip(other.logits);
        let terms = pairs.map(|(&mine, &theirs)| {
            let mine = f64::from(mine) - self.normaliser;
            let theirs = f64::from(theirs) - other.normaliser;
            let p = mine.exp();
            if p > 0.0 { p * (mine - theirs) } else { 0.0 }
        });
        // Rounding can take a sum that is 0 below it.
        terms.sum::<f64>().max(0.0)
    }
}

/// What is done with the predictions of the token at a place: each model's logits.
type OnPrediction<'a, const N: usize> =
    dyn FnMut(usize, [&[f32]; N]) -> Result<(), ModelError> + 'a;

/// Lets models of one vocabulary predict each token of `ids` but the first, in windows.
fn each_prediction<const N: usize>(
    models: &mut [&mut dyn Model; N],
    ids: &[u32],
    window: usize,
    on_prediction: &mut OnPrediction<'_, N>,
) -> Result<(), GenerateError> {
    if ids.len() < 2 {
        return Err(GenerateError::NothingToScore { tokens: ids.len() });
    }
    if let Some(other) = models
        .iter()
        .find(|m| m.vocab_size() != models[0].vocab_size())
    {
        return Err(GenerateError::ComparedVocabulary {
            model: models[0].vocab_size(),
            reference: other.vocab_size(),
        });
    }
    // All before the first window is computed: a place is one of the text, not of its window.
    let vocab_size = models[0].vocab_size();
    let unknown = ids.iter().position(|&id| id as usize >= vocab_size);
    if let Some(place) = unknown {
        return Err(GenerateError::Token {
            token: ids[place],
            place,
            vocab_size,
        });
    }
    let contexts = models.iter().map(|model| model.context_length());
    let window = window.clamp(2, contexts.min().unwrap_or(2).max(2));
    let mut start = 0;
    while start + 1 < ids.len() {
        let end = ids.len().min(start + window);
        let mut in_window =
            |place: usize, logits: [&[f32]; N]| on_prediction(start + place, logits);
        each_of_window(models, &ids[start..end], &mut in_window)?;
        start = end - 1;
    }
    Ok(())
}

fn each_of_window<const N: usize>(
    models: &mut [&mut dyn Model; N],
    ids: &[u32],
    on_prediction: &mut OnPrediction<'_, N>,
) -> Result<(), GenerateError> {
    // The last token is predicted and does not enter.
    let entering = &ids[..ids.len() - 1];
    check_prompt(models[0], entering)?;
    let mut sequences: Vec<SequenceId> = Vec::new();
    let mut opened = Ok(());
    for model in models.iter_mut() {
        match model.open_sequence(entering.len()) {
            Ok(sequence) => sequences.push(sequence),
            Err(error) => {
                opened = Err(error);
                break;
            }
        }
    }
    let done = opened.and_then(|()| run_window(models, &sequences, entering, on_prediction));
    for (model, sequence) in models.iter_mut().zip(&sequences) {
        model.close_sequence(*sequence);
    }
    Ok(done?)
}

fn run_window<const N: usize>(
    models: &mut [&mut dyn Model; N],
    sequences: &[SequenceId],
    entering: &[u32],
    on_prediction: &mut OnPrediction<'_, N>,
) -> Result<(), ModelError> {
    let limits = models.iter().map(|model| model.max_step_rows());
    let limit = limits.min().unwrap_or(1).max(1);
    for (chunk, tokens) in entering.chunks(limit).enumerate() {
        let first = chunk * limit;
        let mut results: Vec<Vec<RowResult>> = Vec::with_capacity(N);
        for (model, &sequence) in models.iter_mut().zip(sequences) {
            let row = |(i, &token): (usize, &u32)| StepRow {
                sequence,
                token,
                position: (first + i) as u32,
                output: RowOutput::Logits,
            };
            let rows: Vec<StepRow> = tokens.iter().enumerate().map(row).collect();
            results.push(model.step(&rows)?);
        }
        for i in 0..tokens.len() {
            let mut logits: [&[f32]; N] = [&[]; N];
            for (logits, results) in logits.iter_mut().zip(&results) {
                *logits = match results.get(i) {
                    Some(RowResult::Logits(logits)) => logits,
                    Some(RowResult::Failed(message)) => {
                        return Err(ModelError::Device(message.clone()));
                    }
                    Some(RowResult::Token(_)) | None => {
                        return Err(ModelError::Device("no logits".to_owned()));
                    }
                };
            }
            on_prediction(first + i + 1, logits)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kl(reference: &[f32], model: &[f32]) -> f64 {
        let (reference, model) = (Row::of(reference), Row::of(model));
        reference
            .expect("a row")
            .divergence_from(&model.expect("a row"))
    }

    #[test]
    fn divergence_is_that_of_the_reference_from_the_model() {
        let ln = |p: &[f64]| -> Vec<f32> { p.iter().map(|p| p.ln() as f32 + 3.0).collect() };
        let (p, q) = (ln(&[0.5, 0.25, 0.25]), ln(&[0.25, 0.25, 0.5]));
        // 0.5 ln 2 + 0.25 ln 1 + 0.25 ln (1/2).
        assert!((kl(&p, &q) - 0.25 * 2f64.ln()).abs() < 1e-6);
        let (p, q) = (ln(&[0.9, 0.1]), ln(&[0.5, 0.5]));
        let forward = 0.9 * 1.8f64.ln() + 0.1 * 0.2f64.ln();
        let backward = 0.5 * (0.5f64 / 0.9).ln() + 0.5 * 5f64.ln();
        assert!((kl(&p, &q) - forward).abs() < 1e-6 && (kl(&q, &p) - backward).abs() < 1e-6);
        assert_eq!(kl(&p, &p), 0.0);
        let masked = [f32::NEG_INFINITY, 0.0];
        assert!((kl(&masked, &q) - 2f64.ln()).abs() < 1e-6);
        assert_eq!(kl(&q, &masked), f64::INFINITY);
    }

    #[test]
    fn the_summary_is_of_all_predictions() {
        let one = |place: usize| ComparedPrediction {
            place,
            token: 0,
            kl: (101 - place) as f64,
            top: u32::from(place.is_multiple_of(4)),
            reference_top: 0,
            logprob: -2.0,
            reference_logprob: -1.0,
        };
        let found = Comparison::of((1..=100).map(one).collect());
        assert_eq!(
            (found.mean_kl, found.median_kl, found.p99_kl),
            (50.5, 50.0, 99.0)
        );
        assert_eq!(
            (found.largest_kl, found.largest_at, found.same_top),
            (100.0, 1, 0.75)
        );
        assert_eq!((found.model.mean_nll, found.reference.mean_nll), (2.0, 1.0));
    }
}
