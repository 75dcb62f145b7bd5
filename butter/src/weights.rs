//! The tensors of a model by role, whatever the checkpoint calls them.
//!
//! [`ModelWeights::resolve`] consumes every tensor of a catalogue or lists it as
//! ignorable; leftovers, missing tensors and wrong shapes are load errors, the
//! missing ones all named at once.

use std::ops::Range;

use crate::catalogue::{Tensor, TensorCatalogue};
use crate::config::{
    Attention, FeedForward, GatedDelta, LatentAttention, LayerConfig, Mamba2, Mixer, Mixture,
    ModelConfig, ShortConvolution,
};
use crate::families;
use crate::gguf::DequantiseError;
use crate::quote::quoted;

mod resolve;

pub(crate) use resolve::{HeadNames, LayerNames, Resolver};

/// Which names a checkpoint uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorNames {
    /// `token_embd.weight`, `blk.0.attn_q.weight`, …
    Gguf,
    /// `model.embed_tokens.weight`, `model.layers.0.self_attn.q_proj.weight`, …
    HuggingFace,
}

/// A matrix `[rows, columns]`: rows of one tensor or of several, one after another.
///
/// A tensor of more dimensions counts as a matrix of its last: experts stored
/// together are their rows one after another.
#[derive(Clone, Debug, Default)]
pub struct WeightMatrix {
    parts: Vec<Part>,
    rows: usize,
    columns: usize,
    random: Option<Random>,
}

/// Pseudo-random weights in place of a tensor's: element `i`, in row-major order, is that of
/// [`uniform_value`](iron_corpus::decode::uniform_value).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Random {
    /// Of the generator.
    pub seed: u32,
    /// Elements are uniform in `-limit..limit`.
    pub limit: f32,
}

/// Some rows of a tensor.
#[derive(Clone, Debug)]
struct Part {
    tensor: Tensor,
    /// Rows `start`, `start + step`, …, `count` of them.
    start: usize,
    count: usize,
    step: usize,
    /// What the elements are multiplied by.
    factor: f32,
}

impl Part {
    fn row(&self, index: usize) -> usize {
        self.start + index * self.step
    }

    fn row_to_f32(&self, index: usize, out: &mut [f32]) -> Result<(), DequantiseError> {
        self.tensor.row_to_f32(self.row(index), out)?;
        if self.factor != 1.0 {
            for value in out {
                *value *= self.factor;
            }
        }
        Ok(())
    }
}

impl WeightMatrix {
    /// All rows of a tensor.
    pub fn whole(tensor: Tensor) -> Self {
        let columns = tensor.shape().last().copied().unwrap_or(1);
        let rows = tensor.elements().checked_div(columns).unwrap_or(0);
        Self {
            parts: vec![Part {
                tensor,
                start: 0,
                count: rows,
                step: 1,
                factor: 1.0,
            }],
            rows,
            columns,
            random: None,
        }
    }

    /// A matrix of pseudo-random weights, for measuring without a checkpoint.
    pub fn of_random(rows: usize, columns: usize, random: Random) -> Self {
        Self {
            parts: Vec::new(),
            rows,
            columns,
            random: Some(random),
        }
    }

    /// The generator, where the weights are pseudo-random and come from no tensor.
    pub fn random(&self) -> Option<Random> {
        self.random
    }

    /// Some of the rows, in the order of the ranges.
    ///
    /// # Panics
    /// If a range passes the last row.
    pub fn select(&self, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut selected = Self {
            columns: self.columns,
            ..Self::default()
        };
        for range in ranges {
            assert!(range.end <= self.rows || self.parts.is_empty());
            let mut first = 0;
            for part in &self.parts {
                let last = first + part.count;
                let (start, end) = (range.start.max(first), range.end.min(last));
                if start < end {
                    selected.parts.push(Part {
                        start: part.row(start - first),
                        count: end - start,
                        ..part.clone()
                    });
                    selected.rows += end - start;
                }
                first = last;
            }
        }
        selected
    }

    /// Every second row of each tensor, from `first`.
    pub fn alternate(&self, first: usize) -> Self {
        let parts = self.parts.iter().map(|part| Part {
            start: part.row(first),
            count: part.count.saturating_sub(first).div_ceil(2),
            step: 2 * part.step,
            ..part.clone()
        });
        let parts: Vec<Part> = parts.collect();
        Self {
            rows: parts.iter().map(|part| part.count).sum(),
            columns: self.columns,
            parts,
            random: None,
        }
    }

    /// Multiplies all elements.
    pub fn scale(&mut self, factor: f32) {
        for part in &mut self.parts {
            part.factor *= factor;
        }
    }

    /// Multiplies so many rows by a factor, then so many by the next, up to the last.
    ///
    /// # Panics
    /// If there are not so many rows.
    pub fn scale_rows(&mut self, runs: &[(usize, f32)]) {
        let mut first = 0;
        let runs = runs.iter().map(|&(rows, factor)| {
            let mut run = self.select(std::iter::once(first..first + rows));
            run.scale(factor);
            first += rows;
            run
        });
        *self = Self::concatenated(runs.collect::<Vec<Self>>());
    }

    /// The rows of several matrices of as many columns, one after another.
    pub fn concatenated(matrices: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self::default();
        for matrix in matrices {
            all.columns = all.columns.max(matrix.columns);
            all.rows += matrix.rows;
            all.parts.extend(matrix.parts);
        }
        all
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Storage type of the first row; `None` without rows.
    pub fn first_type(&self) -> Option<crate::gguf::TensorType> {
        self.parts.first().map(|part| part.tensor.ty())
    }

    /// The storage type of all rows, if they are of one type and decode by it alone.
    pub fn one_type(&self) -> Option<crate::gguf::TensorType> {
        let ty = self.first_type()?;
        let decodes_alone =
            |part: &Part| part.tensor.ty() == ty && part.factor == 1.0 && !part.tensor.has_scales();
        self.parts.iter().all(decodes_alone).then_some(ty)
    }

    /// The stored bytes of all rows, if they are what the elements decode from and all are of one
    /// type, and that type.
    pub fn bytes(&self) -> Option<(crate::gguf::TensorType, Vec<u8>)> {
        let ty = self.one_type()?;
        let row = ty.bytes_of(self.columns)?;
        let mut bytes = Vec::with_capacity(row * self.rows);
        for part in &self.parts {
            let tensor = &part.tensor;
            let (runs, length) = match part.step {
                1 => (1, part.count),
                _ => (part.count, 1),
            };
            for run in 0..runs {
                let start = part.row(run) * row;
                tensor.count(length * row);
                bytes.extend_from_slice(&tensor.bytes()[start..start + length * row]);
            }
        }
        Some((ty, bytes))
    }

    /// All elements decoded, row after row.
    pub fn to_f32(&self) -> Result<Vec<f32>, DequantiseError> {
        if let Some(Random { seed, limit }) = self.random {
            let value = |i| iron_corpus::decode::uniform_value(seed, i as u32, limit);
            return Ok((0..self.rows * self.columns).map(value).collect());
        }
        let mut values = vec![0.0; self.rows * self.columns];
        let mut out = values.chunks_exact_mut(self.columns.max(1));
        for part in &self.parts {
            for (index, out) in (0..part.count).zip(&mut out) {
                part.row_to_f32(index, out)?;
            }
        }
        Ok(values)
    }

    /// One row decoded; `out` holds one row.
    ///
    /// # Panics
    /// If `row` is past the last.
    pub fn row_to_f32(&self, mut row: usize, out: &mut [f32]) -> Result<(), DequantiseError> {
        if let Some(Random { seed, limit }) = self.random {
            let first = row * self.columns;
            for (i, out) in out.iter_mut().enumerate() {
                *out = iron_corpus::decode::uniform_value(seed, (first + i) as u32, limit);
            }
            return Ok(());
        }
        for part in &self.parts {
            if row < part.count {
                return part.row_to_f32(row, out);
            }
            row -= part.count;
        }
        panic!("row {row} past the last of {} rows", self.rows)
    }
}

/// A vector: a norm's weight, a bias, a number a head.
#[derive(Clone, Debug, Default)]
pub struct WeightVector {
    tensor: Option<Tensor>,
    /// Added to each element: some families store norm weights less 1.
    plus: f32,
    /// Elements, all `plus`, where there is no tensor.
    length: usize,
}

impl WeightVector {
    /// A vector of ones.
    pub fn ones(length: usize) -> Self {
        Self {
            tensor: None,
            plus: 1.0,
            length,
        }
    }

    /// The elements, decoded and with what is added to them.
    pub fn to_f32(&self) -> Result<Vec<f32>, DequantiseError> {
        let Some(tensor) = &self.tensor else {
            return Ok(vec![self.plus; self.length]);
        };
        let mut values = tensor.to_f32()?;
        for value in &mut values {
            *value += self.plus;
        }
        Ok(values)
    }
}

/// All weights of a model. Shapes are `[outputs, inputs]`, as stored.
#[derive(Clone, Debug)]
pub struct ModelWeights {
    /// `[vocab_size, hidden_size]`.
    pub embedding: WeightMatrix,
    /// The layers in order.
    pub layers: Vec<LayerWeights>,
    /// `[hidden_size]`.
    pub final_norm: WeightVector,
    /// `[vocab_size, hidden_size]`; `None` where the embedding serves.
    pub output: Option<WeightMatrix>,
    /// What makes the inputs of each layer.
    pub per_layer: Option<PerLayerInputWeights>,
    /// What proposes further tokens, where the checkpoint has it.
    pub multi_token_head: Option<Box<MultiTokenHeadWeights>>,
}

/// The weights of a [`MultiTokenHead`](crate::config::MultiTokenHead).
#[derive(Clone, Debug)]
pub struct MultiTokenHeadWeights {
    /// `[hidden_size]`, of the following token's embedding.
    pub embedding_norm: WeightVector,
    /// `[hidden_size]`, of what the model computed.
    pub hidden_norm: WeightVector,
    /// `[hidden_size, 2 * hidden_size]`: of the embedding, then of what was computed.
    pub join: WeightMatrix,
    /// Its layer.
    pub layer: LayerWeights,
    /// `[hidden_size]`, before the output projection.
    pub norm: WeightVector,
}

/// The weights of [`PerLayerInputs`](crate::config::PerLayerInputs) before the layers.
#[derive(Clone, Debug, Default)]
pub struct PerLayerInputWeights {
    /// `[vocab_size, layers * size]`: inputs that follow from the token.
    pub embedding: WeightMatrix,
    /// `[layers * size, hidden_size]`: inputs that follow from its embedding.
    pub projection: WeightMatrix,
    /// `[size]`, of the projection's output.
    pub norm: WeightVector,
}

/// The weights of a layer's own inputs: `hidden += norm(output(gelu(gate(hidden)) * input))`.
#[derive(Clone, Debug, Default)]
pub struct LayerInputWeights {
    /// `[size, hidden_size]`.
    pub gate: WeightMatrix,
    /// `[hidden_size, size]`.
    pub output: WeightMatrix,
    /// `[hidden_size]`.
    pub norm: WeightVector,
}

/// The weights of one layer.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// `[hidden_size]`, before the mixer.
    pub mixer_norm: Option<WeightVector>,
    /// The mixer's own.
    pub mixer: MixerWeights,
    /// `[hidden_size]`, after the mixer.
    pub mixer_post_norm: Option<WeightVector>,
    /// `[hidden_size]`, before the feed-forward.
    pub feed_forward_norm: Option<WeightVector>,
    /// The feed-forward's own.
    pub feed_forward: FeedForwardWeights,
    /// `[hidden_size]`, after the feed-forward.
    pub feed_forward_post_norm: Option<WeightVector>,
    /// Of the layer's own inputs.
    pub inputs: Option<LayerInputWeights>,
    /// `[1]`: what the residual stream is multiplied by at the layer's end.
    pub output_scale: Option<WeightVector>,
}

/// The weights of a [`Mixer`].
#[derive(Clone, Debug)]
pub enum MixerWeights {
    /// Of attention.
    Attention(Box<AttentionWeights>),
    /// Of a gated delta net.
    GatedDelta(Box<GatedDeltaWeights>),
    /// Of a Mamba-2 block.
    Mamba2(Box<Mamba2Weights>),
    /// Of attention over latents.
    Latent(Box<LatentWeights>),
    /// Of a gated convolution.
    ShortConvolution(Box<ShortConvolutionWeights>),
    /// Of attention and a Mamba-2 block side by side.
    Parallel(Box<(AttentionWeights, Mamba2Weights)>),
    /// Of nothing.
    Absent,
}

/// The weights of a [`LatentAttention`].
#[derive(Clone, Debug, Default)]
pub struct LatentWeights {
    /// `[query_rank, hidden_size]` and the norm of what it gives, `[query_rank]`.
    pub query_down: Option<(WeightMatrix, WeightVector)>,
    /// `[head_count * key_dim, query_rank or hidden_size]`: what is not rotated.
    pub query: WeightMatrix,
    /// `[head_count * rotary_dim, query_rank or hidden_size]`: what is.
    pub query_rotated: WeightMatrix,
    /// `[latent_size, hidden_size]`.
    pub latent: WeightMatrix,
    /// `[latent_size]`.
    pub latent_norm: WeightVector,
    /// `[rotary_dim, hidden_size]`: the key that all heads share.
    pub key_rotated: WeightMatrix,
    /// `[head_count * key_dim, latent_size]`.
    pub key: WeightMatrix,
    /// `[head_count * value_dim, latent_size]`.
    pub value: WeightMatrix,
    /// `[hidden_size, head_count * value_dim]`.
    pub output: WeightMatrix,
}

/// The weights of a [`ShortConvolution`].
#[derive(Clone, Debug, Default)]
pub struct ShortConvolutionWeights {
    /// `[channels, hidden_size]`: what the input is multiplied by before the convolution.
    pub before: WeightMatrix,
    /// `[channels, hidden_size]`: what its output is multiplied by.
    pub after: WeightMatrix,
    /// `[channels, hidden_size]`.
    pub input: WeightMatrix,
    /// `[channels, width]`.
    pub conv: WeightMatrix,
    /// `[hidden_size, channels]`.
    pub output: WeightMatrix,
}

/// The weights of an [`Attention`].
#[derive(Clone, Debug, Default)]
pub struct AttentionWeights {
    /// `[head_count * head_dim, hidden_size]`. Its rows follow the config's
    /// [`RopeLayout`](crate::rope::RopeLayout).
    pub query: WeightMatrix,
    /// `[kv_head_count * head_dim, hidden_size]`, rows as those of `query`.
    pub key: WeightMatrix,
    /// `[kv_head_count * head_dim, hidden_size]`.
    pub value: WeightMatrix,
    /// `[hidden_size, head_count * head_dim]`.
    pub output: WeightMatrix,
    /// `[head_count * head_dim, hidden_size]`: the output's gate.
    pub gate: Option<WeightMatrix>,
    /// `[head_dim]`.
    pub query_norm: Option<WeightVector>,
    /// `[head_dim]`.
    pub key_norm: Option<WeightVector>,
    /// Of query, key and value, each as long as its rows.
    pub biases: Option<[WeightVector; 3]>,
    /// `[hidden_size]`.
    pub output_bias: Option<WeightVector>,
    /// `[head_count]`.
    pub sinks: Option<WeightVector>,
}

/// The weights of a [`GatedDelta`].
#[derive(Clone, Debug, Default)]
pub struct GatedDeltaWeights {
    /// `[key_size + key_size + value_size, hidden_size]`: queries, keys, values.
    pub query_key_value: WeightMatrix,
    /// `[value_size, hidden_size]`: the output's gate.
    pub gate: WeightMatrix,
    /// `[value_head_count, hidden_size]`: the strength of each write, before its sigmoid.
    pub beta: WeightMatrix,
    /// `[value_head_count, hidden_size]`: the time step of each head's decay.
    pub alpha: WeightMatrix,
    /// `[conv_channels, conv_width]`.
    pub conv: WeightMatrix,
    /// `[value_head_count]`: logarithm of the decay's rate.
    pub decay_log: WeightVector,
    /// `[value_head_count]`: added to the time step.
    pub step_bias: WeightVector,
    /// `[value_head_dim]`.
    pub norm: WeightVector,
    /// `[hidden_size, value_size]`.
    pub output: WeightMatrix,
}

/// The weights of a [`Mamba2`].
#[derive(Clone, Debug, Default)]
pub struct Mamba2Weights {
    /// `[inner_size, hidden_size]`: the output's gate.
    pub gate: WeightMatrix,
    /// `[conv_channels, hidden_size]`: inputs and both projections of the state.
    pub input: WeightMatrix,
    /// `[head_count, hidden_size]`: time steps.
    pub step: WeightMatrix,
    /// `[conv_channels, conv_width]`.
    pub conv: WeightMatrix,
    /// `[conv_channels]`.
    pub conv_bias: Option<WeightVector>,
    /// `[head_count]`: logarithm of the decay's rate.
    pub decay_log: WeightVector,
    /// `[head_count]`: weight of a head's input in its output.
    pub skip: WeightVector,
    /// `[head_count]`: added to the time step.
    pub step_bias: WeightVector,
    /// `[inner_size]`, of the gated output.
    pub norm: Option<WeightVector>,
    /// `[hidden_size, inner_size]`.
    pub output: WeightMatrix,
}

/// The weights of a [`FeedForward`].
#[derive(Clone, Debug)]
pub enum FeedForwardWeights {
    /// Of a dense one; without a gate, that is empty.
    Dense(GatedWeights),
    /// Of a mixture.
    Mixture(Box<MixtureWeights>),
    /// Of nothing.
    Absent,
}

/// The weights of one gated feed-forward.
#[derive(Clone, Debug, Default)]
pub struct GatedWeights {
    /// `[intermediate_size, hidden_size]`.
    pub gate: WeightMatrix,
    /// `[intermediate_size, hidden_size]`.
    pub up: WeightMatrix,
    /// `[hidden_size, intermediate_size]`.
    pub down: WeightMatrix,
}

/// The weights of a [`Mixture`].
#[derive(Clone, Debug, Default)]
pub struct MixtureWeights {
    /// `[expert_count, hidden_size]`.
    pub router: WeightMatrix,
    /// `[expert_count * intermediate_size, hidden_size]`, expert after expert.
    pub gate: WeightMatrix,
    /// As `gate`.
    pub up: WeightMatrix,
    /// `[expert_count * hidden_size, intermediate_size]`, expert after expert.
    pub down: WeightMatrix,
    /// The shared expert's.
    pub shared: Option<GatedWeights>,
    /// `[1, hidden_size]`: the gate of the shared expert.
    pub shared_gate: Option<WeightMatrix>,
    /// `[expert_count]`.
    pub router_bias: Option<WeightVector>,
    /// `[expert_count]`: added to scores for the choice alone.
    pub score_bias: Option<WeightVector>,
    /// Of gate, up and down, each of as many elements as `[expert_count, outputs]`.
    pub biases: Option<[WeightMatrix; 3]>,
}

impl ModelWeights {
    /// Finds each weight in the catalogue and checks shape and type.
    pub fn resolve(
        catalogue: &TensorCatalogue,
        config: &ModelConfig,
        names: TensorNames,
    ) -> Result<Self, WeightsError> {
        let Some(family) = families::by_name(config.family) else {
            return Err(WeightsError::Family {
                name: config.family,
            });
        };
        let mut resolver = Resolver::new(catalogue, names, family);
        let weights = (family.weights)(&mut resolver, config);
        resolver.finish(config)?;
        Ok(weights)
    }
}

/// The tensors of a checkpoint do not make the model that its config describes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WeightsError {
    /// A config of no family.
    #[error("there is no family {name:?}")]
    Family {
        /// The name.
        name: &'static str,
    },
    /// Tensors that the graph needs and the checkpoint lacks.
    #[error("{count} of {needed} tensors are missing: {}", first(missing, *count))]
    Missing {
        /// The missing names, as far as they are kept.
        missing: Vec<String>,
        /// How many are missing.
        count: usize,
        /// How many the graph needs.
        needed: usize,
    },
    /// Tensors that the graph does not use and that are not known to be ignorable.
    #[error("{} tensors are not part of a {family} model of this config: {}", extra.len(), first(extra, extra.len()))]
    Unused {
        /// The family.
        family: &'static str,
        /// All their names, quoted.
        extra: Vec<String>,
    },
    /// A shape that is not the config's.
    #[error("tensor {name} has shape {found:?}, the config asks for {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that follows from the config.
        expected: Vec<usize>,
    },
    /// A storage type that is not decoded.
    #[error("tensor {name} is stored as {ty}, which is not supported yet")]
    Type {
        /// The tensor.
        name: String,
        /// Its type.
        ty: &'static str,
    },
    /// A multi-token head with an embedding or output projection of its own.
    #[error(
        "{copy} is not equal to {shared}, which the multi-token head is computed with: remove the head's tensors to load the model without it"
    )]
    HeadDiffers {
        /// The head's tensor.
        copy: String,
        /// The model's.
        shared: String,
    },
    /// An output projection that is stored and said to be the embedding, and is not.
    #[error(
        "the config ties the output projection to the embedding (tie_word_embeddings is true), but {head} is not equal to {embedding}: set it to false to use {head}, or remove that tensor"
    )]
    TiedDiffers {
        /// The stored output projection.
        head: String,
        /// The embedding.
        embedding: String,
    },
}

/// The first few names, and how many more there are.
fn first(names: &[String], count: usize) -> String {
    const SHOWN: usize = 12;
    let mut text = names
        .iter()
        .take(SHOWN)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if count > SHOWN {
        text += &format!(" and {} more", count - SHOWN);
    }
    text
}
