//! The step of a model: which launch runs at which layer, on which tensors.

use std::sync::Arc;

use iron_corpus::decode::OUTPUTS;
use iron_corpus::selection::ARGMAX_CHUNK;
use iron_ir::Scalar;
use iron_runtime::{Device, Tensor};

use super::attention::AttentionBlock;
use super::draws::StepDraws;
use super::exchange::{Inputs, Results};
use super::feed_forward::GatedBlock;
use super::fused::FusedLayer;
use super::head::HeadBlock;
use super::latent::LatentBlock;
use super::layer_inputs::{InputsBlock, LayerInputBlock};
use super::matrix::{Family, Matrix, failed, upload_vector};
use super::mixture::MixtureBlock;
use super::plan::{Activation, Planner};
use super::recurrent::{GatedDeltaBlock, Mamba2Block, ShortConvolutionBlock};
use super::state::{BlockTables, CacheShape};
use crate::config::{FeedForward, Mixer, ModelConfig};
use crate::model::{HiddenFrom, ModelError};
use crate::weights::{FeedForwardWeights, LayerWeights, MixerWeights, ModelWeights, WeightVector};

/// What a recorded step is good for. Everything that a launch bakes in and that differs between
/// steps is here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StepKey {
    /// Rows.
    pub rows: usize,
    /// Rows whose logits are wanted.
    pub outputs: usize,
    /// Splits of the attention over the longest context, of heads of any size.
    pub splits: usize,
    /// Positions that no row sees more of: a power of two.
    pub reach: usize,
    /// Prompts, of rows of one sequence each at consecutive positions, whose tiled kernels run: 1,
    /// or a power of two that is not below their number. 0 where each row attends for itself.
    pub prompts: usize,
    /// Runs of rows of one sequence, some of which may be empty; 0 where no layer asks.
    pub segments: usize,
    /// Whether every row is of a sequence of its own, so that none reads what another writes.
    pub is_apart: bool,
    /// Whether the chosen tokens become the rows of the next step.
    pub advances: bool,
    /// Pages of a prompt's sequence that are unpacked for its attention; 0 where none are.
    pub pages: usize,
    /// Whether tokens are drawn, and for how many changed logits.
    pub draws: Option<usize>,
    /// For a step of the multi-token head, what its rows go on from.
    pub head: Option<HiddenFrom>,
}

/// The runs of rows of one sequence in a step.
pub struct Segments {
    /// `[rows]`.
    pub of: Tensor,
    /// `[segments + 1]`.
    pub starts: Tensor,
    /// `[segments]`.
    pub from: Tensor,
    /// `[segments]`.
    pub to: Tensor,
}

impl StepKey {
    /// Whether the rows are prompts'.
    pub fn is_prompt(&self) -> bool {
        self.prompts > 0
    }
}

/// The tiles of the prompts' attention, of one of its sizes.
pub struct StepTiles {
    /// Rows of a tile.
    pub size: u64,
    /// The first row and one past the last of each, `[tiles, 2]`.
    pub rows: Tensor,
    /// Where there are several prompts, the place of each row where tiles are whole: `[rows]`.
    pub places: Option<Tensor>,
}

/// The blocks of a prompt's sequence that its attention may read.
pub struct UnpackedPages {
    /// Of layers of full attention, `[pages]`.
    pub full: Tensor,
    /// Of layers with a window: the ring.
    pub window: Tensor,
}

/// What the layers of a step read beside activations and weights.
pub struct StepContext<'m> {
    /// The step's class.
    pub key: StepKey,
    /// `[rows]`.
    pub positions: Tensor,
    /// `[rows]`.
    pub sequences: Tensor,
    /// Where the positions of sequences lie.
    pub tables: &'m BlockTables,
    /// Runs of rows, where a layer asks.
    pub segments: Option<Segments>,
    /// The tiles of prompts' rows, for each of the sizes that kernels have.
    pub tiles: Option<[StepTiles; 2]>,
    /// The blocks of a prompt's sequence that are unpacked, where the cache is packed.
    pub unpacked: Option<UnpackedPages>,
    /// What rows draw by, where some do.
    pub draws: Option<StepDraws>,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
}

/// A layer on a device.
pub(super) struct Layer {
    mixer_norm: Option<Tensor>,
    mixer: MixerBlock,
    mixer_post_norm: Option<Tensor>,
    feed_forward_norm: Option<Tensor>,
    feed_forward: FeedForwardBlock,
    feed_forward_post_norm: Option<Tensor>,
    inputs: Option<LayerInputBlock>,
    /// What the residual stream is multiplied by at the layer's end.
    output_scale: f32,
}

enum MixerBlock {
    Attention(Box<AttentionBlock>),
    GatedDelta(Box<GatedDeltaBlock>),
    Mamba2(Box<Mamba2Block>),
    Latent(Box<LatentBlock>),
    ShortConvolution(Box<ShortConvolutionBlock>),
    Parallel(Box<(AttentionBlock, Mamba2Block)>),
    Absent,
}

enum FeedForwardBlock {
    Dense(Box<GatedBlock>),
    Mixture(Box<MixtureBlock>),
    Absent,
}

/// What a layer keeps of the sequences.
pub enum HeldState<'a> {
    /// Keys and values, `[blocks, heads, positions, …]`.
    Cache {
        /// Keys, values, and the scales of both if they have some.
        tensors: Vec<&'a Tensor>,
        /// Whether the layer keeps a window only.
        windowed: bool,
    },
    /// One slot of state a row of the first axis.
    Slots(&'a Tensor),
}

/// A model's layers on a device, with the state that each keeps.
pub struct Graph {
    pub(super) config: ModelConfig,
    pub(super) embedding: Matrix,
    /// What makes the inputs of each layer.
    per_layer: Option<InputsBlock>,
    pub(super) layers: Vec<Layer>,
    pub(super) final_norm: Tensor,
    /// `None` where the embedding serves.
    output: Option<Matrix>,
    /// Whether every layer is one that [`super::fused`] records.
    is_fusable: bool,
    /// The multi-token head, where it is loaded.
    pub(super) head: Option<Box<HeadBlock>>,
}

impl Graph {
    /// Uploads the weights and reserves each layer's state.
    pub fn load(
        device: &Arc<dyn Device>,
        config: &ModelConfig,
        weights: &ModelWeights,
        dtype: Scalar,
        cache: &CacheShape,
    ) -> Result<Self, ModelError> {
        let mut layers: Vec<Layer> = Vec::with_capacity(config.layers.len());
        for (config, weights) in config.layers.iter().zip(&weights.layers) {
            let layer = Layer::load(device, config, weights, dtype, cache, &layers)?;
            layers.push(layer);
        }
        let output = match &weights.output {
            Some(output) => Some(Matrix::upload(device, output, dtype)?),
            None => None,
        };
        Ok(Self {
            embedding: Matrix::upload(device, &weights.embedding, dtype)?,
            per_layer: match (&config.per_layer_inputs, &weights.per_layer) {
                (Some(config), Some(weights)) => {
                    Some(InputsBlock::load(device, config, weights, dtype)?)
                }
                _ => None,
            },
            final_norm: upload_vector(device, &weights.final_norm, dtype)?,
            is_fusable: config.residual_scale == 1.0
                && config.hidden_size.is_multiple_of(OUTPUTS as usize)
                && layers.iter().all(|layer| layer.fused().is_some()),
            output,
            layers,
            head: None,
            config: config.clone(),
        })
    }

    /// Plans every launch of a step; gives the logits, `[outputs, vocab_size]`, if any are
    /// wanted.
    pub fn plan(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        inputs: &Inputs,
        results: &Results,
    ) -> Result<Option<Activation>, ModelError> {
        let (rows, outputs) = (step.key.rows as u64, step.key.outputs as u64);
        let tokens = failed(inputs.tokens.slice(0, 0..rows))?;
        let mut hidden = planner.activation(&[rows, self.config.hidden_size as u64]);
        planner.gather(&self.embedding, &tokens, &hidden);
        hidden = planner.scaled(hidden, self.config.embedding_scale);

        let is_fused = planner.route.is_fused() && self.is_fusable;
        let mut normed = None;
        let pending = match is_fused {
            true if step.key.is_prompt() => self.stacked_layers(planner, step, &hidden),
            true if planner.is_shared => {
                normed = Some(self.shared_layers(planner, step, &hidden));
                None
            }
            true => {
                self.fused_layers(planner, step, &hidden);
                None
            }
            false => self.layers(planner, step, &tokens, &mut hidden)?,
        };
        let head = self.head.as_ref();
        if outputs == 0 && head.is_none() {
            return Ok(None);
        }
        let output = self.output.as_ref().unwrap_or(&self.embedding);
        let fused_logits = match (output, is_fused && rows == outputs && head.is_none()) {
            (Matrix::Dense(w), true) if pending.is_none() && normed.is_none() => {
                self.fused_product(planner, &hidden, &self.final_norm, w)
            }
            _ => None,
        };
        let logits = match fused_logits {
            Some(logits) => logits,
            None => {
                let normed = normed.unwrap_or_else(|| {
                    self.joined(planner, pending.as_ref(), &hidden, &self.final_norm)
                });
                if let Some(head) = head {
                    head.keep(planner, HiddenFrom::Model, &normed)?;
                }
                if outputs == 0 {
                    return Ok(None);
                }
                self.logits(planner, step, normed, inputs)?
            }
        };
        self.choices(planner, step, logits, inputs, results)
            .map(Some)
    }

    /// What the output projection makes of the rows that are wanted.
    pub(super) fn logits(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        normed: Activation,
        inputs: &Inputs,
    ) -> Result<Activation, ModelError> {
        let (rows, outputs) = (step.key.rows as u64, step.key.outputs as u64);
        let output = self.output.as_ref().unwrap_or(&self.embedding);
        let mut selected = normed;
        // Where every row is wanted, they are in order.
        if rows != outputs {
            let rows_of = failed(inputs.output_rows.slice(0, 0..outputs))?;
            let few = planner.activation(&[outputs, self.config.hidden_size as u64]);
            let operands = [(&selected).into(), (&rows_of).into(), (&few).into()];
            planner.launch(Family::Layout, "select_rows", "", operands);
            selected = few;
        }
        if step.key.prompts > 1 {
            // Each has one result, by the product of a prompt that is alone, however many there are.
            planner.row_numbers = None;
        }
        Ok(planner.projected(output, &selected))
    }

    /// The logits as they count, and the choice of each row from them.
    pub(super) fn choices(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        logits: Activation,
        inputs: &Inputs,
        results: &Results,
    ) -> Result<Activation, ModelError> {
        let (rows, outputs) = (step.key.rows as u64, step.key.outputs as u64);
        let mut logits = planner.scaled(logits, self.config.logit_scale);
        if let Some(cap) = self.config.logit_soft_cap {
            let capped = planner.activation(logits.shape());
            let operands = [logits.flat().into(), capped.flat().into(), cap.into()];
            planner.launch(Family::Elementwise, "soft_cap", "", operands);
            logits = capped;
        }
        planner.keep(&logits);
        let chunks = (self.config.vocab_size as u64).div_ceil(u64::from(ARGMAX_CHUNK));
        let largest_of = planner.activation_of(Scalar::F32, &[outputs, chunks]);
        let index_of = planner.activation_of(Scalar::U32, &[outputs, chunks]);
        let operands = [(&logits).into(), (&largest_of).into(), (&index_of).into()];
        planner.launch(Family::Selection, "argmax_chunks", "", operands);
        let tokens = failed(results.tokens.slice(0, 0..outputs))?;
        let largest = failed(results.largest.slice(0, 0..outputs))?;
        let operands = [
            (&largest_of).into(),
            (&index_of).into(),
            (&tokens).into(),
            (&largest).into(),
        ];
        planner.launch_instance(Family::Selection, "argmax_of_chunks", "", operands);
        if let Some(draws) = &step.draws {
            planner.drawn(draws, &logits, &tokens);
        }
        if step.key.advances {
            let part = |tensor: &Tensor| failed(tensor.slice(0, 0..rows));
            let history = |tensor: &Tensor| failed(tensor.slice(1, 0..rows));
            let operands = [
                (&tokens).into(),
                (&largest).into(),
                (&part(&inputs.tokens)?).into(),
                (&part(&inputs.positions)?).into(),
                (&part(&inputs.step)?).into(),
                (&history(&results.history)?).into(),
                (&history(&results.largest_history)?).into(),
            ];
            planner.launch_instance(Family::Decode, "advance_rows", "", operands);
        }
        Ok(logits)
    }

    /// The layers, one kernel an operation. Gives the last block's output, which has not joined
    /// the residual stream `hidden`.
    fn layers(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        tokens: &Tensor,
        hidden: &mut Activation,
    ) -> Result<Option<Activation>, ModelError> {
        let eps = self.config.norm_eps;
        let per_layer = self.per_layer.as_ref();
        let per_layer = per_layer.map(|inputs| inputs.record(planner, tokens, hidden, eps));
        // A block's output joins the residual stream with the norm that follows.
        let mut pending = None;
        for (index, layer) in self.layers.iter().enumerate() {
            let inputs = per_layer.as_ref().map(|inputs| (index, inputs));
            pending = self.layer(planner, step, layer, hidden, pending, inputs)?;
        }
        Ok(pending)
    }

    /// One layer; `pending` is what has not joined the residual stream yet, before and after it,
    /// `inputs` what this layer has beside the stream.
    pub(super) fn layer(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        layer: &Layer,
        hidden: &mut Activation,
        mut pending: Option<Activation>,
        inputs: Option<(usize, &Activation)>,
    ) -> Result<Option<Activation>, ModelError> {
        let eps = self.config.norm_eps;
        if !matches!(layer.mixer, MixerBlock::Absent) {
            let x = self.input(planner, pending.take(), hidden, layer.mixer_norm.as_ref());
            let y = layer.mixer.record(planner, step, &x)?;
            pending = y.map(|y| self.block_output(planner, y, layer.mixer_post_norm.as_ref()));
        }
        if !matches!(layer.feed_forward, FeedForwardBlock::Absent) {
            let norm = layer.feed_forward_norm.as_ref();
            let x = self.input(planner, pending.take(), hidden, norm);
            let y = match &layer.feed_forward {
                FeedForwardBlock::Dense(dense) => Some(dense.record(planner, &x)),
                FeedForwardBlock::Mixture(mixture) => Some(mixture.record(planner, &x)),
                FeedForwardBlock::Absent => None,
            };
            let norm = layer.feed_forward_post_norm.as_ref();
            pending = y.map(|y| self.block_output(planner, y, norm));
        }
        if let (Some(block), Some((index, inputs))) = (&layer.inputs, inputs) {
            let x = self.input(planner, pending.take(), hidden, None);
            pending = Some(block.record(planner, inputs, index, &x, eps));
        }
        if layer.output_scale != 1.0 {
            let x = self.input(planner, pending.take(), hidden, None);
            *hidden = planner.scaled(x, layer.output_scale);
        }
        Ok(pending)
    }

    /// `hidden += x` if there is one, then `norm(hidden) * w` if there is a norm.
    fn input(
        &self,
        planner: &mut Planner,
        x: Option<Activation>,
        hidden: &Activation,
        w: Option<&Tensor>,
    ) -> Activation {
        let (x, w) = match (x, w) {
            (Some(x), Some(w)) => (x, w),
            (None, Some(w)) => return planner.normed(hidden, w, self.config.norm_eps),
            (Some(x), None) => {
                let operands = [x.flat().into(), hidden.flat().into(), 1.0f32.into()];
                planner.launch(Family::Elementwise, "axpy", "", operands);
                return hidden.clone();
            }
            (None, None) => return hidden.clone(),
        };
        let normed = planner.activation(hidden.shape());
        let operands = [
            (&x).into(),
            w.into(),
            hidden.into(),
            (&normed).into(),
            self.config.norm_eps.into(),
        ];
        planner.launch(Family::Norm, "add_rms_norm", "", operands);
        normed
    }

    /// `hidden += x` if there is one, then `norm(hidden) * w`.
    pub(super) fn joined(
        &self,
        planner: &mut Planner,
        x: Option<&Activation>,
        hidden: &Activation,
        w: &Tensor,
    ) -> Activation {
        self.input(planner, x.cloned(), hidden, Some(w))
    }

    /// A block's output as it joins the residual stream.
    fn block_output(
        &self,
        planner: &mut Planner,
        y: Activation,
        post_norm: Option<&Tensor>,
    ) -> Activation {
        let y = match post_norm {
            Some(w) => planner.normed(&y, w, self.config.norm_eps),
            None => y,
        };
        planner.scaled(y, self.config.residual_scale)
    }

    /// The layers, and that of the multi-token head.
    fn all_layers(&self) -> impl Iterator<Item = &Layer> {
        let head = self.head.iter().map(|head| &head.layer);
        self.layers.iter().chain(head)
    }

    /// What the layers keep of the sequences.
    pub fn held_states(&self) -> Vec<HeldState<'_>> {
        let mut held = Vec::new();
        for layer in self.all_layers() {
            match &layer.mixer {
                MixerBlock::Attention(attention) => held.extend(attention.held_state()),
                MixerBlock::GatedDelta(delta) => held.extend(delta.held_state()),
                MixerBlock::Mamba2(mamba) => held.extend(mamba.held_state()),
                MixerBlock::Latent(latent) => held.push(latent.held_state()),
                MixerBlock::ShortConvolution(conv) => held.push(conv.held_state()),
                MixerBlock::Parallel(both) => {
                    held.extend(both.0.held_state());
                    held.extend(both.1.held_state());
                }
                MixerBlock::Absent => {}
            }
        }
        held
    }

    /// Bytes that the layers' caches take, and their states.
    pub fn state_bytes(&self) -> (u64, u64) {
        let (mut caches, mut states) = (0, 0);
        for layer in self.all_layers() {
            match &layer.mixer {
                MixerBlock::Attention(attention) => caches += attention.cache_bytes(),
                MixerBlock::GatedDelta(delta) => states += delta.state_bytes(),
                MixerBlock::Mamba2(mamba) => states += mamba.state_bytes(),
                MixerBlock::Latent(latent) => caches += latent.cache_bytes(),
                MixerBlock::ShortConvolution(conv) => states += conv.state_bytes(),
                MixerBlock::Parallel(both) => {
                    caches += both.0.cache_bytes();
                    states += both.1.state_bytes();
                }
                MixerBlock::Absent => {}
            }
        }
        (caches, states)
    }
}

impl MixerBlock {
    /// Records the mixer on rows `x`; gives its output, `[rows, hidden]`, if it is there.
    fn record(
        &self,
        planner: &mut Planner,
        step: &StepContext<'_>,
        x: &Activation,
    ) -> Result<Option<Activation>, ModelError> {
        Ok(Some(match self {
            MixerBlock::Attention(attention) => attention.record(planner, step, x),
            MixerBlock::GatedDelta(delta) => delta.record(planner, step, x)?,
            MixerBlock::Mamba2(mamba) => mamba.record(planner, step, x)?,
            MixerBlock::Latent(latent) => latent.record(planner, step, x)?,
            MixerBlock::ShortConvolution(convolution) => convolution.record(planner, step, x)?,
            MixerBlock::Parallel(both) => {
                let attended = both.0.record(planner, step, x);
                let mixed = both.1.record(planner, step, x)?;
                planner.added(&attended, &mixed)
            }
            MixerBlock::Absent => return Ok(None),
        }))
    }
}

impl Layer {
    /// The layer's blocks, if fused kernels record them.
    pub(super) fn fused(&self) -> Option<FusedLayer<'_>> {
        let (MixerBlock::Attention(attention), FeedForwardBlock::Dense(dense)) =
            (&self.mixer, &self.feed_forward)
        else {
            return None;
        };
        let has_more = self.mixer_post_norm.is_some()
            || self.feed_forward_post_norm.is_some()
            || self.inputs.is_some()
            || self.output_scale != 1.0;
        let (Matrix::Dense(output), Matrix::Dense(down)) = (&attention.output, &dense.down) else {
            return None;
        };
        let stacked = attention.stacked().filter(|_| !has_more)?;
        let layer = FusedLayer {
            mixer_norm: self.mixer_norm.as_ref()?,
            attention,
            stacked,
            output,
            feed_forward_norm: self.feed_forward_norm.as_ref()?,
            gate_up: dense.stacked()?,
            down,
        };
        layer.has_kernels().then_some(layer)
    }

    pub(super) fn load(
        device: &Arc<dyn Device>,
        config: &crate::config::LayerConfig,
        weights: &LayerWeights,
        dtype: Scalar,
        cache: &CacheShape,
        earlier: &[Layer],
    ) -> Result<Self, ModelError> {
        let vector = |vector: &WeightVector| upload_vector(device, vector, dtype);
        let norm = |norm: &Option<WeightVector>| norm.as_ref().map(vector).transpose();
        let unlike = || ModelError::Device("a layer's weights are not those of its config".into());
        Ok(Self {
            mixer_norm: norm(&weights.mixer_norm)?,
            mixer: match (&config.mixer, &weights.mixer) {
                (Mixer::Attention(config), MixerWeights::Attention(weights)) => {
                    let owner = match config.shares_cache_of.map(|layer| earlier.get(layer)) {
                        None => None,
                        Some(Some(Layer {
                            mixer: MixerBlock::Attention(owner),
                            ..
                        })) => Some(owner.as_ref()),
                        Some(_) => return Err(unlike()),
                    };
                    let block = AttentionBlock::load(device, config, weights, dtype, cache, owner)?;
                    MixerBlock::Attention(Box::new(block))
                }
                (Mixer::Latent(config), MixerWeights::Latent(weights)) => {
                    let block = LatentBlock::load(device, config, weights, dtype, cache)?;
                    MixerBlock::Latent(Box::new(block))
                }
                (Mixer::ShortConvolution(config), MixerWeights::ShortConvolution(weights)) => {
                    let block = ShortConvolutionBlock::load(device, config, weights, dtype, cache)?;
                    MixerBlock::ShortConvolution(Box::new(block))
                }
                (Mixer::Parallel(config), MixerWeights::Parallel(weights)) => {
                    let (attention, mamba) = (&config.0, &config.1);
                    MixerBlock::Parallel(Box::new((
                        AttentionBlock::load(device, attention, &weights.0, dtype, cache, None)?,
                        Mamba2Block::load(device, mamba, &weights.1, dtype, cache)?,
                    )))
                }
                (Mixer::Absent, MixerWeights::Absent) => MixerBlock::Absent,
                (Mixer::GatedDelta(config), MixerWeights::GatedDelta(weights)) => {
                    let block = GatedDeltaBlock::load(device, config, weights, dtype, cache)?;
                    MixerBlock::GatedDelta(Box::new(block))
                }
                (Mixer::Mamba2(config), MixerWeights::Mamba2(weights)) => {
                    let block = Mamba2Block::load(device, config, weights, dtype, cache)?;
                    MixerBlock::Mamba2(Box::new(block))
                }
                _ => return Err(unlike()),
            },
            mixer_post_norm: norm(&weights.mixer_post_norm)?,
            feed_forward_norm: norm(&weights.feed_forward_norm)?,
            feed_forward: match (&config.feed_forward, &weights.feed_forward) {
                (FeedForward::Absent, FeedForwardWeights::Absent) => FeedForwardBlock::Absent,
                (
                    FeedForward::Dense { activation, .. } | FeedForward::Plain { activation, .. },
                    FeedForwardWeights::Dense(weights),
                ) => {
                    let block = GatedBlock::load(device, *activation, weights, dtype)?;
                    FeedForwardBlock::Dense(Box::new(block))
                }
                (FeedForward::Mixture(config), FeedForwardWeights::Mixture(weights)) => {
                    let block = MixtureBlock::load(device, config, weights, dtype)?;
                    FeedForwardBlock::Mixture(Box::new(block))
                }
                _ => return Err(unlike()),
            },
            feed_forward_post_norm: norm(&weights.feed_forward_post_norm)?,
            inputs: match &weights.inputs {
                Some(weights) => Some(LayerInputBlock::load(device, weights, dtype)?),
                None => None,
            },
            output_scale: match &weights.output_scale {
                Some(scale) => {
                    let values = scale.to_f32();
                    let values = values.map_err(|e| ModelError::Device(e.to_string()))?;
                    values.first().copied().unwrap_or(1.0)
                }
                None => 1.0,
            },
        })
    }
}

impl Planner {
    /// `norm(x) * w` of each row.
    pub fn normed(&mut self, x: &Activation, w: &Tensor, eps: f32) -> Activation {
        let normed = self.activation(x.shape());
        let operands = [x.into(), w.into(), (&normed).into(), eps.into()];
        self.launch(Family::Norm, "rms_norm", "", operands);
        normed
    }

    /// `factor * x`; `x` itself where the factor is 1.
    pub fn scaled(&mut self, x: Activation, factor: f32) -> Activation {
        if factor == 1.0 {
            return x;
        }
        let scaled = self.activation(x.shape());
        let operands = [x.flat().into(), scaled.flat().into(), factor.into()];
        self.launch(Family::Elementwise, "scale", "", operands);
        scaled
    }

    /// `x[r, :] + bias`.
    pub fn biased(&mut self, x: &Activation, bias: &Tensor) -> Activation {
        let biased = self.activation(x.shape());
        let operands = [x.into(), bias.into(), (&biased).into()];
        self.launch(Family::Elementwise, "add_bias", "", operands);
        biased
    }
}
