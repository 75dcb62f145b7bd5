//! Measuring a model on a device: prefill, decoding by batch and context, launches by kind.
//!
//! Every number is a median over repetitions of the same work, after warm-up, by the host's
//! clock around work that ends with the tokens on the host. Tokens are chosen greedily where the
//! logits are; their fingerprint must be the same in every repetition.

use std::fmt::Write as _;
use std::time::Instant;

use serde::Serialize;

use crate::engine::{DeviceModel, KindTime};
use crate::model::{Model, ModelError, RowOutput, RowResult, SequenceId, StepRow};

/// What is measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BenchPlan {
    /// Lengths of prompts.
    pub prompts: Vec<usize>,
    /// Sequences that decode together.
    pub batches: Vec<usize>,
    /// Positions before the first token that is decoded.
    pub contexts: Vec<usize>,
    /// Tokens that each sequence decodes in one repetition.
    pub tokens: usize,
    /// Repetitions that count.
    pub repetitions: usize,
    /// Repetitions before them.
    pub warm_up: usize,
    /// Whether launches are measured kind by kind.
    pub profile: bool,
}

/// One measurement.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measurement {
    /// `prefill`, `decode` (the device goes on by itself) or `decode, read back` (the host reads
    /// every token before the next step).
    pub kind: &'static str,
    /// Sequences.
    pub batch: usize,
    /// Positions before the first token, or the prompt's length.
    pub context: usize,
    /// Tokens of all sequences in one repetition.
    pub tokens: usize,
    /// Repetitions that count.
    pub repetitions: usize,
    /// Median of tokens a second.
    pub tokens_per_second: f64,
    /// The slowest repetition.
    pub least: f64,
    /// The fastest repetition.
    pub greatest: f64,
    /// Milliseconds of a step, by the median.
    pub step_milliseconds: f64,
    /// Launches of a step; none of prompts, whose steps differ.
    pub launches: Option<usize>,
    /// Hash of the tokens.
    pub fingerprint: String,
    /// Hash of the first sequence's tokens, which is the same in every batch where a row does not
    /// depend on its company.
    pub first_fingerprint: String,
}

/// Launches of a step, kind by kind.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Profile {
    /// As [`Measurement::kind`].
    pub kind: &'static str,
    /// Sequences.
    pub batch: usize,
    /// Positions before.
    pub context: usize,
    /// The kinds, the longest first.
    pub kinds: Vec<KindTime>,
}

/// Everything, with the conditions.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BenchReport {
    /// Shape or file.
    pub model: String,
    /// Where the weights come from.
    pub weights: String,
    /// Backend.
    pub backend: String,
    /// The device's own name.
    pub device: String,
    /// Driver and compiler.
    pub driver: String,
    /// Type of activations.
    pub dtype: String,
    /// Type of the key-value cache.
    pub kv_cache_dtype: &'static str,
    /// Which kernels steps are made of.
    pub route: &'static str,
    /// Commit of the program, as far as it was told.
    pub commit: String,
    /// Rows of a prompt's step.
    pub chunk: usize,
    /// Seconds from the start to the first step.
    pub load_seconds: f64,
    /// Repetitions before those that count.
    pub warm_up: usize,
    /// The measurements.
    pub measurements: Vec<Measurement>,
    /// The profiles.
    pub profiles: Vec<Profile>,
}

impl BenchPlan {
    /// Positions of the cache that the plan needs, in blocks of `block` positions.
    pub fn cache_positions(&self, block: usize) -> usize {
        let blocks = |n: usize| n.checked_next_multiple_of(block).unwrap_or(usize::MAX);
        let decoding = self.batches.iter().flat_map(|&batch| {
            let contexts = self.contexts.iter();
            contexts.map(move |&context| {
                batch.saturating_mul(blocks(context.saturating_add(self.tokens)))
            })
        });
        let prompts = self.prompts.iter().map(|&p| blocks(p));
        decoding.chain(prompts).max().unwrap_or(block)
    }

    /// Longest sequence.
    pub fn longest(&self) -> usize {
        let contexts = self.contexts.iter();
        let contexts = contexts.map(|&context| context.saturating_add(self.tokens));
        contexts
            .chain(self.prompts.iter().copied())
            .max()
            .unwrap_or(1)
    }

    /// Runs the plan on a model; tells what is measured next.
    pub fn run(
        &self,
        model: &mut DeviceModel,
        on_next: &mut dyn FnMut(&str),
    ) -> Result<(Vec<Measurement>, Vec<Profile>), ModelError> {
        let (mut measurements, mut profiles) = (Vec::new(), Vec::new());
        for &length in &self.prompts {
            on_next(&format!("a prompt of {length}"));
            measurements.push(self.prefill(model, length)?);
            if self.profile {
                profiles.push(self.profile_prefill(model, length)?);
            }
        }
        for &context in &self.contexts {
            for &batch in &self.batches {
                on_next(&format!("batch {batch} at context {context}"));
                let mut sequences = Sequences::open(model, batch, context, self.tokens)?;
                let found = self.decode(model, &mut sequences, true).and_then(|fast| {
                    measurements.push(fast);
                    measurements.push(self.decode(model, &mut sequences, false)?);
                    if self.profile {
                        profiles.push(Profile {
                            kind: "decode",
                            batch,
                            context,
                            kinds: model.profile(&sequences.rows(), false, REPLAYS)?,
                        });
                    }
                    Ok(())
                });
                sequences.close(model);
                found?;
            }
        }
        Ok((measurements, profiles))
    }

    fn prefill(&self, model: &mut DeviceModel, length: usize) -> Result<Measurement, ModelError> {
        let sequence = model.open_sequence(length)?;
        let found = self.measured("prefill", 1, length, length, || {
            model.truncate_sequence(sequence, 0)?;
            let start = Instant::now();
            let token = prompt(model, sequence, 0, length)?;
            Ok((start.elapsed().as_secs_f64(), vec![token]))
        });
        model.close_sequence(sequence);
        let mut found = found?;
        let chunks = length.div_ceil(model.max_step_rows().max(1));
        found.step_milliseconds = length as f64 / found.tokens_per_second * 1e3 / chunks as f64;
        Ok(found)
    }

    fn profile_prefill(
        &self,
        model: &mut DeviceModel,
        length: usize,
    ) -> Result<Profile, ModelError> {
        let sequence = model.open_sequence(length)?;
        let length = length.min(model.max_step_rows());
        let rows = prompt_rows(model, sequence, 0, 0..length, length);
        let kinds = model.profile(&rows, true, REPLAYS);
        model.close_sequence(sequence);
        Ok(Profile {
            kind: "prefill",
            batch: 1,
            context: length,
            kinds: kinds?,
        })
    }

    fn decode(
        &self,
        model: &mut DeviceModel,
        sequences: &mut Sequences,
        by_itself: bool,
    ) -> Result<Measurement, ModelError> {
        let kind = if by_itself {
            "decode"
        } else {
            "decode, read back"
        };
        let (batch, context) = (sequences.first.len(), sequences.context);
        let steps = self.tokens;
        let mut found = self.measured(kind, batch, context, batch * steps, || {
            sequences.rewind(model)?;
            let start = Instant::now();
            let tokens = sequences.decode(model, steps, by_itself)?;
            Ok((start.elapsed().as_secs_f64(), tokens))
        })?;
        found.step_milliseconds = batch as f64 / found.tokens_per_second * 1e3;
        sequences.rewind(model)?;
        found.launches = Some(model.launches_of(&sequences.rows())?);
        Ok(found)
    }

    /// Repeats `work`, which gives seconds and tokens.
    fn measured(
        &self,
        kind: &'static str,
        batch: usize,
        context: usize,
        tokens: usize,
        mut work: impl FnMut() -> Result<(f64, Vec<u32>), ModelError>,
    ) -> Result<Measurement, ModelError> {
        let mut rates = Vec::new();
        let mut first: Option<Vec<u32>> = None;
        for repetition in 0..self.warm_up + self.repetitions.max(1) {
            let (seconds, chosen) = work()?;
            if repetition >= self.warm_up {
                rates.push(tokens as f64 / seconds);
            }
            let expected = first.get_or_insert_with(|| chosen.clone());
            if let Some(at) = (0..chosen.len()).find(|&i| expected[i] != chosen[i]) {
                return Err(ModelError::Device(format!(
                    "{kind} of batch {batch} at context {context}: repetition {repetition} chose token {} at place {at}, the first chose {}",
                    chosen[at], expected[at]
                )));
            }
        }
        rates.sort_by(f64::total_cmp);
        let first = first.unwrap_or_default();
        let of_first: Vec<u32> = first.iter().copied().step_by(batch.max(1)).collect();
        Ok(Measurement {
            kind,
            batch,
            context,
            tokens,
            repetitions: rates.len(),
            tokens_per_second: rates[rates.len() / 2],
            least: rates[0],
            greatest: rates[rates.len() - 1],
            step_milliseconds: 0.0,
            launches: None,
            fingerprint: fingerprint(&first),
            first_fingerprint: fingerprint(&of_first),
        })
    }
}

/// Times that a kind's recording is played.
const REPLAYS: usize = 20;

/// Sequences that decode together from one context on.
struct Sequences {
    context: usize,
    /// Each with the token that follows its context.
    first: Vec<(SequenceId, u32)>,
}

impl Sequences {
    fn open(
        model: &mut DeviceModel,
        batch: usize,
        context: usize,
        tokens: usize,
    ) -> Result<Self, ModelError> {
        let mut opened = Self {
            context,
            first: Vec::new(),
        };
        for number in 0..batch {
            let sequence = model.open_sequence(context + tokens)?;
            opened.first.push((sequence, 0));
            match prompt(model, sequence, number, context) {
                Ok(token) => opened.first[number].1 = token,
                Err(error) => {
                    opened.close(model);
                    return Err(error);
                }
            }
        }
        Ok(opened)
    }

    fn close(&self, model: &mut DeviceModel) {
        for (sequence, _) in &self.first {
            model.close_sequence(*sequence);
        }
    }

    fn rewind(&self, model: &mut DeviceModel) -> Result<(), ModelError> {
        for (sequence, _) in &self.first {
            model.truncate_sequence(*sequence, self.context)?;
        }
        Ok(())
    }

    fn rows(&self) -> Vec<StepRow> {
        let row = |&(sequence, token): &(SequenceId, u32)| StepRow {
            sequence,
            token,
            position: self.context as u32,
            output: RowOutput::Greedy,
        };
        self.first.iter().map(row).collect()
    }

    /// Decodes `steps` tokens of each, step after step.
    fn decode(
        &self,
        model: &mut DeviceModel,
        steps: usize,
        by_itself: bool,
    ) -> Result<Vec<u32>, ModelError> {
        let mut rows = self.rows();
        let mut tokens = Vec::with_capacity(steps * rows.len());
        let mut done = 0;
        while done < steps {
            let found = if by_itself {
                model.advance(&rows, steps - done)?
            } else {
                vec![model.step(&rows)?]
            };
            done += found.len();
            for results in &found {
                for (row, result) in rows.iter_mut().zip(results) {
                    row.token = token_of(result)?;
                    row.position += 1;
                    tokens.push(row.token);
                }
            }
        }
        Ok(tokens)
    }
}

/// Runs a prompt in chunks; gives the token that follows.
fn prompt(
    model: &mut DeviceModel,
    sequence: SequenceId,
    number: usize,
    length: usize,
) -> Result<u32, ModelError> {
    let chunk = model.max_step_rows().max(1);
    let mut last = Vec::new();
    for start in (0..length).step_by(chunk) {
        let range = start..length.min(start + chunk);
        let rows = prompt_rows(model, sequence, number, range, length);
        last = model.step(&rows)?;
    }
    match last.first() {
        Some(result) => token_of(result),
        None => Err(ModelError::Device("a prompt without tokens".to_owned())),
    }
}

/// Rows of a prompt of `length` scattered tokens, of which the last wants a token.
fn prompt_rows(
    model: &DeviceModel,
    sequence: SequenceId,
    number: usize,
    range: std::ops::Range<usize>,
    length: usize,
) -> Vec<StepRow> {
    let vocab = model.vocab_size();
    let row = |position: usize| StepRow {
        sequence,
        token: ((position + 1).wrapping_mul(7919) + number.wrapping_mul(104_729)) as u32
            % vocab as u32,
        position: position as u32,
        output: match position + 1 == length {
            true => RowOutput::Greedy,
            false => RowOutput::Nothing,
        },
    };
    range.map(row).collect()
}

fn token_of(result: &RowResult) -> Result<u32, ModelError> {
    match result {
        RowResult::Token(token) => Ok(*token),
        RowResult::Failed(message) => Err(ModelError::Device(message.clone())),
        RowResult::Logits(_) => Err(ModelError::Device("a greedy row gave logits".to_owned())),
    }
}

/// 64-bit FNV-1a of tokens, in hexadecimal.
fn fingerprint(tokens: &[u32]) -> String {
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

impl BenchReport {
    /// The report as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# {} on {}\n\nBackend `{}`, {}. Commit {}. Activations {}, cache {}, weights: {}. Route `{}`, \
             prompts in steps of {} rows. Ready after {:.1} s; {} repetition(s) of warm-up.\n\n\
             | what | batch | context | tokens/s, median | least to greatest | ms a step | launches | tokens | of the first |\n\
             |---|---|---|---|---|---|---|---|---|\n",
            self.model,
            self.device,
            self.backend,
            self.driver,
            self.commit,
            self.dtype,
            self.kv_cache_dtype,
            self.weights,
            self.route,
            self.chunk,
            self.load_seconds,
            self.warm_up,
        );
        for m in &self.measurements {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.1} | {:.1} to {:.1} of {} | {:.3} | {} | `{}` | `{}` |",
                m.kind,
                m.batch,
                m.context,
                m.tokens_per_second,
                m.least,
                m.greatest,
                m.repetitions,
                m.step_milliseconds,
                m.launches
                    .map_or_else(|| "-".to_owned(), |launches| launches.to_string()),
                m.fingerprint,
                m.first_fingerprint,
            );
        }
        for profile in &self.profiles {
            let total: f64 = profile.kinds.iter().map(|k| k.microseconds).sum();
            let _ = write!(
                text,
                "\nLaunches of a {} step, batch {}, context {}: {total:.1} µs by kind.\n\n\
                 | kind | launches | µs of all | µs each |\n|---|---|---|---|\n",
                profile.kind, profile.batch, profile.context
            );
            for kind in &profile.kinds {
                let _ = writeln!(
                    text,
                    "| `{}` | {} | {:.1} | {:.2} |",
                    kind.kind,
                    kind.launches,
                    kind.microseconds,
                    kind.microseconds / kind.launches.max(1) as f64,
                );
            }
        }
        text
    }
}
