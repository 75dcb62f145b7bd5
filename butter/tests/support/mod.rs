//! A plain forward pass of a Llama in `f32`, one loop a formula.
//!
//! It shares the loader with Butter and nothing with the kernels, so that with
//! it the goldens prove config, weights, RoPE layout, tokenizer and template,
//! and a disagreement of the real graph is the graph's.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod random;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use butter::checkpoint::Checkpoint;
use butter::config::{Attention, ModelConfig};
use butter::model::{Model, ModelError, RowOutput, RowResult, SequenceId, StepRow};
use butter::rope::RopeLayout;
use butter::sampler::argmax;
use butter::weights::{
    AttentionWeights, FeedForwardWeights, GatedWeights, LayerWeights, MixerWeights, ModelWeights,
    WeightMatrix, WeightVector,
};

/// A file of the shared test data.
pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/data")
        .join(path)
}

/// The SmolLM2 file, or `None` with a line that says what was skipped.
pub fn smollm2(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
        PathBuf::from,
    );
    let path = folder.join("models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf");
    if path.is_file() {
        return Some(path);
    }
    // Not `eprintln!`, which the test harness captures: a skip must be seen.
    let line =
        format!("SKIPPED 1 test ({test}): run `cargo xtask fetch-model smollm2-135m` first\n");
    std::io::stderr()
        .write_all(line.as_bytes())
        .expect("standard error takes a line");
    None
}

/// JSON of a test data file.
pub fn json(path: &Path) -> serde_json::Value {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A JSON list of token ids.
pub fn ids(json: &serde_json::Value) -> Vec<u32> {
    let list = json.as_array().expect("a list of ids");
    list.iter()
        .map(|id| id.as_u64().expect("an id") as u32)
        .collect()
}

/// A JSON list of floats.
pub fn floats(json: &serde_json::Value) -> Vec<f32> {
    let list = json.as_array().expect("a list of floats");
    list.iter()
        .map(|value| value.as_f64().expect("a float") as f32)
        .collect()
}

/// The plain model.
pub struct Oracle {
    config: ModelConfig,
    attention: Attention,
    weights: ModelWeights,
    inverse_frequencies: Vec<f32>,
    sequences: BTreeMap<SequenceId, Sequence>,
    opened: u32,
    pub max_step_rows: usize,
}

#[derive(Clone)]
struct Sequence {
    capacity: usize,
    length: usize,
    /// Keys and values of each layer, `[position, kv_size]`.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl Oracle {
    pub fn new(checkpoint: &Checkpoint) -> Self {
        let config = checkpoint.config.clone();
        let attention = config.attention_layers().next().expect("attention").clone();
        let rope = attention.rope.as_ref().expect("positions");
        Self {
            inverse_frequencies: rope.inverse_frequencies(config.context_length),
            config,
            attention,
            weights: checkpoint.weights.clone(),
            sequences: BTreeMap::new(),
            opened: 0,
            max_step_rows: 4096,
        }
    }

    /// Open sequences; zero when everything was released.
    pub fn open_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Logits of all rows of a prompt in a fresh sequence.
    pub fn logits(&mut self, prompt: &[u32]) -> Vec<Vec<f32>> {
        let sequence = self.open_sequence(prompt.len()).expect("a sequence");
        let rows: Vec<StepRow> = prompt
            .iter()
            .enumerate()
            .map(|(position, &token)| StepRow {
                sequence,
                token,
                position: position as u32,
                output: RowOutput::Logits,
            })
            .collect();
        let results = self.step(&rows).expect("a step");
        self.close_sequence(sequence);
        results
            .into_iter()
            .map(|result| match result {
                RowResult::Logits(logits) => logits,
                other => panic!("expected logits, got {other:?}"),
            })
            .collect()
    }

    fn rotate(&self, heads: &mut [f32], position: u32) {
        let rope = self.attention.rope.as_ref().expect("positions");
        let half = rope.rotary_dim / 2;
        for head in heads.chunks_exact_mut(self.attention.head_dim) {
            for (pair, frequency) in self.inverse_frequencies.iter().enumerate() {
                let (sin, cos) = (position as f32 * frequency).sin_cos();
                let (a, b) = match rope.layout {
                    RopeLayout::HalfSplit => (pair, pair + half),
                    RopeLayout::Interleaved => (2 * pair, 2 * pair + 1),
                };
                let (x, y) = (head[a], head[b]);
                head[a] = x * cos - y * sin;
                head[b] = y * cos + x * sin;
            }
        }
    }

    fn attend(&self, query: &[f32], keys: &[f32], values: &[f32], length: usize) -> Vec<f32> {
        let (head_dim, kv_size) = (self.attention.head_dim, self.attention.kv_size());
        let group = self.attention.head_count / self.attention.kv_head_count;
        let scale = (head_dim as f32).sqrt().recip();
        let mut out = vec![0.0; query.len()];
        for (head, (query, out)) in query
            .chunks_exact(head_dim)
            .zip(out.chunks_exact_mut(head_dim))
            .enumerate()
        {
            let offset = head / group * head_dim;
            let at = |cache: &[f32], position: usize| -> std::ops::Range<usize> {
                let start = position * kv_size + offset;
                assert!(start + head_dim <= cache.len());
                start..start + head_dim
            };
            let mut scores: Vec<f32> = (0..length)
                .map(|p| dot(query, &keys[at(keys, p)]) * scale)
                .collect();
            let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores
                .iter_mut()
                .for_each(|score| *score = (*score - largest).exp());
            let sum: f32 = scores.iter().sum();
            for (position, score) in scores.iter().enumerate() {
                for (out, value) in out.iter_mut().zip(&values[at(values, position)]) {
                    *out += score / sum * value;
                }
            }
        }
        out
    }
}

impl Model for Oracle {
    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn context_length(&self) -> usize {
        self.config.context_length
    }

    fn max_step_rows(&self) -> usize {
        self.max_step_rows
    }

    fn open_sequence(&mut self, capacity: usize) -> Result<SequenceId, ModelError> {
        self.opened += 1;
        let sequence = SequenceId(self.opened);
        let empty = vec![Vec::new(); self.config.layers.len()];
        self.sequences.insert(
            sequence,
            Sequence {
                capacity,
                length: 0,
                keys: empty.clone(),
                values: empty,
            },
        );
        Ok(sequence)
    }

    fn truncate_sequence(
        &mut self,
        sequence: SequenceId,
        length: usize,
    ) -> Result<usize, ModelError> {
        let kv_size = self.attention.kv_size();
        let state = self
            .sequences
            .get_mut(&sequence)
            .ok_or(ModelError::UnknownSequence(sequence))?;
        state.length = state.length.min(length);
        for cache in state.keys.iter_mut().chain(&mut state.values) {
            cache.truncate(length * kv_size);
        }
        Ok(state.length)
    }

    fn close_sequence(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }

    fn step(&mut self, rows: &[StepRow]) -> Result<Vec<RowResult>, ModelError> {
        let mut lengths: BTreeMap<SequenceId, usize> = BTreeMap::new();
        for row in rows {
            let state = self.sequences.get(&row.sequence);
            let state = state.ok_or(ModelError::UnknownSequence(row.sequence))?;
            let length = lengths.entry(row.sequence).or_insert(state.length);
            if row.position as usize != *length {
                let (sequence, length) = (row.sequence, *length);
                return Err(ModelError::Position {
                    sequence,
                    length,
                    position: row.position,
                });
            }
            *length += 1;
            if *length > state.capacity {
                let (needed, capacity) = (*length, state.capacity);
                return Err(ModelError::Capacity {
                    sequence: row.sequence,
                    needed,
                    capacity,
                });
            }
        }

        let hidden = self.config.hidden_size;
        let eps = self.config.norm_eps;
        let mut x = vec![0.0; rows.len() * hidden];
        for (row, x) in rows.iter().zip(x.chunks_exact_mut(hidden)) {
            self.weights
                .embedding
                .row_to_f32(row.token as usize, x)
                .expect("decodes");
        }
        for (index, layer) in self.weights.layers.iter().enumerate() {
            let (attention, feed_forward) = blocks(layer);
            let normed = rms_norm(&x, layer.mixer_norm.as_ref().expect("a norm"), eps);
            let mut query = multiply(&normed, &attention.query);
            let mut key = multiply(&normed, &attention.key);
            let value = multiply(&normed, &attention.value);
            let (query_size, kv_size) = (self.attention.query_size(), self.attention.kv_size());
            let mut attended = Vec::with_capacity(query.len());
            for (i, row) in rows.iter().enumerate() {
                let query = &mut query[i * query_size..(i + 1) * query_size];
                let key = &mut key[i * kv_size..(i + 1) * kv_size];
                self.rotate(query, row.position);
                self.rotate(key, row.position);
                let state = self
                    .sequences
                    .get_mut(&row.sequence)
                    .expect("checked above");
                state.keys[index].extend_from_slice(key);
                state.values[index].extend_from_slice(&value[i * kv_size..(i + 1) * kv_size]);
                let state = &self.sequences[&row.sequence];
                attended.extend(self.attend(
                    query,
                    &state.keys[index],
                    &state.values[index],
                    row.position as usize + 1,
                ));
            }
            add(&mut x, &multiply(&attended, &attention.output));

            let normed = rms_norm(&x, layer.feed_forward_norm.as_ref().expect("a norm"), eps);
            let mut gate = multiply(&normed, &feed_forward.gate);
            let up = multiply(&normed, &feed_forward.up);
            for (gate, up) in gate.iter_mut().zip(up) {
                *gate = *gate / (1.0 + (-*gate).exp()) * up;
            }
            add(&mut x, &multiply(&gate, &feed_forward.down));
        }
        for (sequence, length) in lengths {
            self.sequences
                .get_mut(&sequence)
                .expect("checked above")
                .length = length;
        }

        let wanted: Vec<usize> = (0..rows.len())
            .filter(|&i| rows[i].output != RowOutput::Nothing)
            .collect();
        let last: Vec<f32> = wanted
            .iter()
            .flat_map(|&i| x[i * hidden..(i + 1) * hidden].to_vec())
            .collect();
        let normed = rms_norm(&last, &self.weights.final_norm, eps);
        let output = self
            .weights
            .output
            .as_ref()
            .unwrap_or(&self.weights.embedding);
        let logits = multiply(&normed, output);
        Ok(wanted
            .iter()
            .zip(logits.chunks_exact(self.config.vocab_size))
            .map(|(&i, logits)| match (rows[i].output, argmax(logits)) {
                (RowOutput::Greedy, Ok(token)) => RowResult::Token(token as u32),
                (RowOutput::Greedy, Err(error)) => RowResult::Failed(error.to_string()),
                _ => RowResult::Logits(logits.to_vec()),
            })
            .collect())
    }
}

/// The weights of a layer of attention and a dense feed-forward.
fn blocks(layer: &LayerWeights) -> (&AttentionWeights, &GatedWeights) {
    match (&layer.mixer, &layer.feed_forward) {
        (MixerWeights::Attention(attention), FeedForwardWeights::Dense(gated)) => {
            (attention, gated)
        }
        _ => panic!("the oracle computes Llamas"),
    }
}

/// `x [rows, inputs]` times the transpose of `weight [outputs, inputs]`.
fn multiply(x: &[f32], weight: &WeightMatrix) -> Vec<f32> {
    let (outputs, inputs) = (weight.rows(), weight.columns());
    let rows = x.len() / inputs;
    let mut result = vec![0.0; rows * outputs];
    let mut weights = vec![0.0; inputs];
    for output in 0..outputs {
        weight.row_to_f32(output, &mut weights).expect("decodes");
        for (row, x) in x.chunks_exact(inputs).enumerate() {
            result[row * outputs + output] = dot(&weights, x);
        }
    }
    result
}

fn rms_norm(x: &[f32], weight: &WeightVector, eps: f32) -> Vec<f32> {
    let weight = weight.to_f32().expect("decodes");
    let normalise = |row: &[f32]| -> Vec<f32> {
        let mean = dot(row, row) / row.len() as f32;
        let scale = (mean + eps).sqrt().recip();
        row.iter()
            .zip(&weight)
            .map(|(x, weight)| x * scale * weight)
            .collect()
    };
    x.chunks_exact(weight.len()).flat_map(normalise).collect()
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// In eight partial sums, which the compiler turns into vector instructions.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a_chunks, a_rest) = a.as_chunks::<8>();
    let (b_chunks, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
