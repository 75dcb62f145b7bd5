//! What a checkpoint says about its model, from GGUF metadata or `config.json`.
//!
//! A [`ModelConfig`] is a list of layers, each of one [`Mixer`] and one
//! [`FeedForward`]; the families in `crate::families` read it from their keys.
//!
//! Reading is strict: every key is used, listed as irrelevant to the result, or
//! a load error. A value that Butter does not compute with (another activation,
//! an unknown RoPE recipe, an unknown layer type) is an error that names key and
//! value, never a default.

mod blocks;
mod describe;
pub(crate) mod gguf;
pub(crate) mod hugging_face;
pub(crate) mod keys;
mod multimodal;
mod quantity;
mod rope_keys;

use std::path::PathBuf;

pub use blocks::{
    LatentAttention, Mixture, Multipliers, PerLayerInputs, Scoring, SharedExpert, ShortConvolution,
};
pub(crate) use gguf::{OUTPUT, ROPE_FACTORS, ignored_keys};

use quantity::Quantity;

use crate::rope::Rope;

/// Largest dimension that kernels index (dims are `u32`, below 2^31).
const LARGEST_DIMENSION: usize = (1 << 31) - 1;
/// More layers than any published model by an order of magnitude; bounds the
/// work that a lying file can ask for.
const MOST_LAYERS: usize = 4096;

/// Everything that the graph needs to know about a checkpoint.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelConfig {
    /// Name of the family in `crate::families`.
    pub family: &'static str,
    /// Tokens in the embedding.
    pub vocab_size: usize,
    /// Longest sequence, prompt and answer together.
    pub context_length: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Added to the mean square under the root of each RMS norm.
    pub norm_eps: f32,
    /// What embedded tokens are multiplied by; 1 for most.
    pub embedding_scale: f32,
    /// What each block's output is multiplied by before it joins the residual stream.
    pub residual_scale: f32,
    /// What logits are multiplied by.
    pub logit_scale: f32,
    /// Cap of the logits: `c * tanh(x / c)`.
    pub logit_soft_cap: Option<f32>,
    /// Whether the embedding is the output projection as well. A file that holds one all the same
    /// must hold the same numbers in both.
    pub tied_embeddings: bool,
    /// Inputs from the token itself that each layer has beside the residual stream.
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// What some projections are multiplied by.
    pub multipliers: Option<Multipliers>,
    /// The layers in order.
    pub layers: Vec<LayerConfig>,
    /// What the checkpoint may have to propose further tokens.
    pub multi_token_head: Option<MultiTokenHead>,
}

/// A multi-token head: from what the model computes at a position and the token that follows it,
/// the token after that. It shares the model's embedding and output projection.
#[derive(Clone, PartialEq, Debug)]
pub struct MultiTokenHead {
    /// Its one layer.
    pub layer: LayerConfig,
    /// Whether what it gives goes in again behind its last norm, else before.
    pub feeds_normed: bool,
}

/// One layer: a mixer over positions, then a feed-forward within each.
#[derive(Clone, PartialEq, Debug)]
pub struct LayerConfig {
    /// What moves information between positions.
    pub mixer: Mixer,
    /// What works on each position alone.
    pub feed_forward: FeedForward,
    /// What is normalised.
    pub norms: Norms,
}

/// What of a block is normalised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Norms {
    /// Its input.
    Before,
    /// Its output, before it joins the residual stream.
    After,
    /// Both.
    BeforeAndAfter,
}

impl Norms {
    /// Whether inputs are normalised.
    pub fn before(self) -> bool {
        self != Self::After
    }

    /// Whether outputs are normalised.
    pub fn after(self) -> bool {
        self != Self::Before
    }
}

/// What moves information between positions.
#[derive(Clone, PartialEq, Debug)]
pub enum Mixer {
    /// Softmax attention over a key-value cache.
    Attention(Attention),
    /// A gated delta net: a matrix of state a head.
    GatedDelta(GatedDelta),
    /// Mamba-2: a state-space model with a scalar decay a head.
    Mamba2(Mamba2),
    /// Attention over a cache of latents that all heads share.
    Latent(LatentAttention),
    /// A gated convolution over a few positions.
    ShortConvolution(ShortConvolution),
    /// Attention and a state-space model side by side; their outputs are added.
    Parallel(Box<(Attention, Mamba2)>),
    /// Nothing: the layer is its feed-forward alone.
    Absent,
}

/// Grouped-query attention.
#[derive(Clone, PartialEq, Debug)]
pub struct Attention {
    /// Query heads.
    pub head_count: usize,
    /// Key-value heads; a divisor of `head_count`.
    pub kv_head_count: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Positions that a row sees, itself included; `None` for all before it.
    pub window: Option<usize>,
    /// Cap of the scores: `c * tanh(s / c)`.
    pub soft_cap: Option<f32>,
    /// Whether each head has a sink, a score without a value.
    pub sinks: bool,
    /// Whether the query, key and value projections have biases.
    pub bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
    /// Whether each head's query and key are normalised before they are rotated.
    pub query_key_norm: bool,
    /// Whether that norm is one over all heads together.
    pub norm_over_heads: bool,
    /// Whether each head's value is divided by its root mean square.
    pub value_norm: bool,
    /// Whether values are the key projection's output, before its norm.
    pub value_is_key: bool,
    /// The layer whose keys and values this one reads; it has none of its own.
    pub shares_cache_of: Option<usize>,
    /// Whether the output is multiplied by the sigmoid of a gate that the query
    /// projection gives beside the query.
    pub output_gate: bool,
    /// Position embedding; `None` for attention without positions.
    pub rope: Option<Rope>,
}

impl Attention {
    /// Attention with heads of one size, scaled by `1 / sqrt(head_dim)`, and nothing else.
    pub fn plain(head_count: usize, kv_head_count: usize, head_dim: usize) -> Self {
        Self {
            head_count,
            kv_head_count,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: None,
            soft_cap: None,
            sinks: false,
            bias: false,
            output_bias: false,
            query_key_norm: false,
            norm_over_heads: false,
            value_norm: false,
            value_is_key: false,
            shares_cache_of: None,
            output_gate: false,
            rope: None,
        }
    }

    /// Elements of all query heads together.
    pub fn query_size(&self) -> usize {
        self.head_count * self.head_dim
    }

    /// Whether heads are too large for the tiles of many rows.
    pub fn attends_by_rows(&self) -> bool {
        self.head_dim > 256
    }

    /// Elements of all key (or value) heads together.
    pub fn kv_size(&self) -> usize {
        self.kv_head_count * self.head_dim
    }
}

/// A gated delta net (Yang et al., 2024).
#[derive(Clone, PartialEq, Debug)]
pub struct GatedDelta {
    /// Heads of queries and keys.
    pub key_head_count: usize,
    /// Heads of values, each with a state; a multiple of `key_head_count`.
    pub value_head_count: usize,
    /// Elements of a query or key head.
    pub key_head_dim: usize,
    /// Elements of a value head.
    pub value_head_dim: usize,
    /// Positions that the convolution before it sees.
    pub conv_width: usize,
}

impl GatedDelta {
    /// Elements of all key heads.
    pub fn key_size(&self) -> usize {
        self.key_head_count * self.key_head_dim
    }

    /// Elements of all value heads.
    pub fn value_size(&self) -> usize {
        self.value_head_count * self.value_head_dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub fn conv_channels(&self) -> usize {
        2 * self.key_size() + self.value_size()
    }
}

/// A Mamba-2 block (Dao and Gu, 2024).
#[derive(Clone, PartialEq, Debug)]
pub struct Mamba2 {
    /// Heads, each with a state.
    pub head_count: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Columns of a head's state.
    pub state_size: usize,
    /// Groups of heads that share input and output projections of the state.
    pub group_count: usize,
    /// Positions that the convolution before it sees.
    pub conv_width: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Smallest and largest time step after the softplus.
    pub time_step_limits: (f32, f32),
    /// Parts of the gated output that are normalised each for itself; `None` where it is not
    /// normalised.
    pub norm_groups: Option<usize>,
}

impl Mamba2 {
    /// Elements of all heads.
    pub fn inner_size(&self) -> usize {
        self.head_count * self.head_dim
    }

    /// Channels of the convolution: inputs, then both projections of the state.
    pub fn conv_channels(&self) -> usize {
        self.inner_size() + 2 * self.group_count * self.state_size
    }
}

/// What works on each position alone.
#[derive(Clone, PartialEq, Debug)]
pub enum FeedForward {
    /// `down(activation(gate(x)) * up(x))`.
    Dense {
        /// Width inside.
        intermediate_size: usize,
        /// Of the gate.
        activation: Activation,
    },
    /// `down(activation(up(x)))`, without a gate.
    Plain {
        /// Width inside.
        intermediate_size: usize,
        /// Between both projections.
        activation: Activation,
    },
    /// A mixture of experts.
    Mixture(Mixture),
    /// Nothing: the layer is its mixer alone.
    Absent,
}

/// Activation of a gate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// `max(x, 0)^2`; of a feed-forward without a gate.
    ReluSquared,
    /// `min(gate, limit) * sigmoid(alpha * min(gate, limit)) * (clamp(up, -limit, limit) + 1)`.
    ClampedSwiGlu {
        /// Largest gate, and largest size of what it gates.
        limit: f32,
        /// Slope of the sigmoid.
        alpha: f32,
    },
}

impl Activation {
    /// Whether it may stand between two projections without a gate.
    pub fn stands_alone(self) -> bool {
        matches!(self, Self::ReluSquared | Self::GeluTanh)
    }

    pub(crate) fn check_alone(self) -> Result<(), ConfigFault> {
        if self.stands_alone() {
            return Ok(());
        }
        let rule = "without a gate, only squared ReLU and GELU (tanh) are computed";
        quantity::ACTIVATION.invalid(self.to_string(), rule)
    }
}

impl ModelConfig {
    /// A config with every scale 1.
    pub fn new(family: &'static str) -> Self {
        Self {
            family,
            vocab_size: 0,
            context_length: 0,
            hidden_size: 0,
            norm_eps: 0.0,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_soft_cap: None,
            tied_embeddings: false,
            per_layer_inputs: None,
            multipliers: None,
            layers: Vec::new(),
            multi_token_head: None,
        }
    }

    /// The attention layers in order.
    pub fn attention_layers(&self) -> impl Iterator<Item = &Attention> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Parallel(both) => Some(&both.0),
            Mixer::GatedDelta(_)
            | Mixer::Mamba2(_)
            | Mixer::Latent(_)
            | Mixer::ShortConvolution(_)
            | Mixer::Absent => None,
        })
    }

    /// Whether any layer keeps a state that cannot be cut back to a position.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| match &layer.mixer {
            Mixer::GatedDelta(_)
            | Mixer::Mamba2(_)
            | Mixer::ShortConvolution(_)
            | Mixer::Parallel(_) => true,
            Mixer::Attention(_) | Mixer::Latent(_) | Mixer::Absent => false,
        })
    }

    /// Whether a layer's attention has no tiled form, so that each row attends for itself.
    pub fn attends_by_rows(&self) -> bool {
        self.keeps_latents() || self.attention_layers().any(Attention::attends_by_rows)
    }

    /// Whether a layer's attention keeps latents.
    pub fn keeps_latents(&self) -> bool {
        let mut mixers = self.layers.iter().map(|layer| &layer.mixer);
        mixers.any(|mixer| matches!(mixer, Mixer::Latent(_)))
    }

    /// The widest window of the layers that have one.
    pub fn widest_window(&self) -> Option<usize> {
        self.attention_layers().filter_map(|a| a.window).max()
    }

    /// Checks what each value alone and the values together must satisfy.
    pub(crate) fn validate(self) -> Result<Self, ConfigFault> {
        check_sizes(&[
            (quantity::VOCABULARY, self.vocab_size),
            (quantity::CONTEXT, self.context_length),
            (quantity::HIDDEN, self.hidden_size),
            (quantity::LAYERS, self.layers.len()),
        ])?;
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            let found = self.norm_eps.to_string();
            let rule = "it must be finite and not negative";
            return quantity::EPSILON.invalid(found, rule);
        }
        for (quantity, scale) in [
            (quantity::EMBEDDING_SCALE, self.embedding_scale),
            (quantity::RESIDUAL_SCALE, self.residual_scale),
            (quantity::LOGIT_SCALE, self.logit_scale),
        ] {
            if !scale.is_finite() || scale == 0.0 {
                return quantity.invalid(scale.to_string(), "it must be finite and not 0");
            }
        }
        check_soft_cap(quantity::LOGIT_CAP, self.logit_soft_cap)?;
        for (index, layer) in self.layers.iter().enumerate() {
            match &layer.mixer {
                Mixer::Attention(attention) => {
                    attention.validate()?;
                    self.check_shared_cache(index, attention)?;
                }
                Mixer::GatedDelta(delta) => delta.validate()?,
                Mixer::Mamba2(mamba) => mamba.validate()?,
                Mixer::Latent(latent) => latent.validate()?,
                Mixer::ShortConvolution(convolution) => convolution.validate()?,
                Mixer::Parallel(both) => {
                    both.0.validate()?;
                    both.1.validate()?;
                }
                Mixer::Absent => {}
            }
            match &layer.feed_forward {
                FeedForward::Dense {
                    intermediate_size, ..
                } => check_sizes(&[(quantity::FEED_FORWARD, *intermediate_size)])?,
                FeedForward::Plain {
                    intermediate_size,
                    activation,
                } => {
                    check_sizes(&[(quantity::FEED_FORWARD, *intermediate_size)])?;
                    activation.check_alone()?;
                }
                FeedForward::Mixture(mixture) => mixture.validate()?,
                FeedForward::Absent => {}
            }
        }
        if let Some(multipliers) = &self.multipliers {
            multipliers.validate()?;
        }
        if let Some(inputs) = &self.per_layer_inputs {
            check_sizes(&[
                (quantity::LAYER_VOCABULARY, inputs.vocab_size),
                (quantity::LAYER_INPUT, inputs.size),
            ])?;
            check_heads(quantity::LAYER_INPUT, self.layers.len(), inputs.size)?;
            if inputs.vocab_size < self.vocab_size {
                let found = format!("{} for {} tokens", inputs.vocab_size, self.vocab_size);
                return quantity::LAYER_VOCABULARY.invalid(found, "every token needs a row");
            }
        }
        Ok(self)
    }

    /// A cache that a layer reads must be an earlier layer's own, of the same shape.
    fn check_shared_cache(&self, index: usize, attention: &Attention) -> Result<(), ConfigFault> {
        let Some(source) = attention.shares_cache_of else {
            return Ok(());
        };
        let owner = self.layers[..index].get(source).map(|layer| &layer.mixer);
        let fits = matches!(owner, Some(Mixer::Attention(owner))
            if owner.shares_cache_of.is_none()
                && owner.kv_head_count == attention.kv_head_count
                && owner.head_dim == attention.head_dim
                && owner.window == attention.window);
        if fits {
            return Ok(());
        }
        let found = format!("layer {source} for layer {index}");
        let rule = "it must be an earlier layer with keys and values of the same shape";
        quantity::SHARED_CACHE.invalid(found, rule)
    }
}

/// Checks a layer count before anything of that length is made.
pub(crate) fn check_layer_count(count: usize) -> Result<usize, ConfigFault> {
    if count > MOST_LAYERS {
        return quantity::LAYERS.invalid(count.to_string(), "at most 4096 are read");
    }
    Ok(count)
}

/// Checks a count of multi-token heads, of which the first is used.
pub(crate) fn check_head_count(count: usize) -> Result<usize, ConfigFault> {
    if count > MOST_LAYERS {
        return quantity::HEAD_LAYERS.invalid(count.to_string(), "at most 4096 are read");
    }
    Ok(count)
}

fn check_sizes(sizes: &[(Quantity, usize)]) -> Result<(), ConfigFault> {
    match sizes
        .iter()
        .find(|(_, size)| *size == 0 || *size > LARGEST_DIMENSION)
    {
        Some((quantity, size)) => quantity.invalid(size.to_string(), "it must lie in 1..2^31"),
        None => Ok(()),
    }
}

fn check_heads(quantity: Quantity, count: usize, size: usize) -> Result<(), ConfigFault> {
    let together = count.checked_mul(size);
    if together.is_none_or(|size| size > LARGEST_DIMENSION) {
        let rule = "all heads together must stay below 2^31 elements";
        return quantity.invalid(format!("{count} of size {size}"), rule);
    }
    Ok(())
}

fn check_base(rope: &Rope) -> Result<(), ConfigFault> {
    if !(rope.theta.is_finite() && rope.theta > 0.0) {
        return quantity::ROPE_BASE.invalid(rope.theta.to_string(), "it must be positive");
    }
    Ok(())
}

fn check_soft_cap(quantity: Quantity, cap: Option<f32>) -> Result<(), ConfigFault> {
    match cap {
        Some(cap) if !(cap.is_finite() && cap > 0.0) => {
            quantity.invalid(cap.to_string(), "it must be positive")
        }
        _ => Ok(()),
    }
}

impl Attention {
    fn validate(&self) -> Result<(), ConfigFault> {
        check_sizes(&[
            (quantity::HEADS, self.head_count),
            (quantity::KV_HEADS, self.kv_head_count),
            (quantity::HEAD_SIZE, self.head_dim),
            (quantity::WINDOW, self.window.unwrap_or(1)),
        ])?;
        check_heads(quantity::ALL_HEADS, self.head_count, self.head_dim)?;
        if !self.head_count.is_multiple_of(self.kv_head_count) {
            let found = format!("{} for {} query heads", self.kv_head_count, self.head_count);
            let rule = "it must divide the query heads";
            return quantity::KV_HEADS.invalid(found, rule);
        }
        if !self.scale.is_finite() || self.scale <= 0.0 {
            let found = self.scale.to_string();
            return quantity::ATTENTION_SCALE.invalid(found, "it must be positive");
        }
        check_soft_cap(quantity::ATTENTION_CAP, self.soft_cap)?;
        if self.value_is_key && !self.value_norm {
            let rule = "only values that are normalised may be the key projection's";
            return quantity::VALUES.invalid("the keys".to_owned(), rule);
        }
        let Some(rope) = &self.rope else {
            return Ok(());
        };
        let rotary = rope.rotary_dim;
        if rotary == 0 || !rotary.is_multiple_of(2) || rotary > self.head_dim {
            let found = format!("{rotary} of a head of {}", self.head_dim);
            let rule = "it must be even, positive and within the head";
            return quantity::ROTARY.invalid(found, rule);
        }
        check_base(rope)
    }
}

impl GatedDelta {
    fn validate(&self) -> Result<(), ConfigFault> {
        check_sizes(&[
            (quantity::DELTA_KEY_HEADS, self.key_head_count),
            (quantity::DELTA_VALUE_HEADS, self.value_head_count),
            (quantity::DELTA_KEY_SIZE, self.key_head_dim),
            (quantity::DELTA_VALUE_SIZE, self.value_head_dim),
            (quantity::CONVOLUTION, self.conv_width),
        ])?;
        check_heads(
            quantity::DELTA_HEADS,
            self.key_head_count,
            self.key_head_dim,
        )?;
        check_heads(
            quantity::DELTA_HEADS,
            self.value_head_count,
            self.value_head_dim,
        )?;
        if !self.value_head_count.is_multiple_of(self.key_head_count) {
            let found = format!(
                "{} for {} key heads",
                self.value_head_count, self.key_head_count
            );
            return quantity::DELTA_VALUE_HEADS.invalid(found, "it must be a multiple of them");
        }
        Ok(())
    }
}

impl Mamba2 {
    fn validate(&self) -> Result<(), ConfigFault> {
        check_sizes(&[
            (quantity::STATE_HEADS, self.head_count),
            (quantity::STATE_HEAD_SIZE, self.head_dim),
            (quantity::STATE, self.state_size),
            (quantity::STATE_GROUPS, self.group_count),
            (quantity::CONVOLUTION, self.conv_width),
        ])?;
        check_heads(quantity::STATE_ALL, self.head_count, self.head_dim)?;
        check_heads(quantity::STATE_ALL, self.group_count, self.state_size)?;
        if !self.head_count.is_multiple_of(self.group_count) {
            let found = format!("{} for {} heads", self.group_count, self.head_count);
            return quantity::STATE_GROUPS.invalid(found, "it must divide the heads");
        }
        let groups = self.norm_groups.unwrap_or(1);
        if groups == 0 || !self.inner_size().is_multiple_of(groups) {
            let found = format!("{groups} for {} elements", self.inner_size());
            return quantity::NORM_GROUPS.invalid(found, "it must divide them");
        }
        let (least, most) = self.time_step_limits;
        if !(least.is_finite() && 0.0 <= least && least <= most && most > 0.0) {
            let found = format!("{least}..{most}");
            let rule = "both must be positive, the first the smaller or 0";
            return quantity::TIME_STEPS.invalid(found, rule);
        }
        Ok(())
    }
}

/// A configuration could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Box<ConfigFault>,
}

/// One thing wrong with a configuration. Names from files are already quoted.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFault {
    /// The file could not be read.
    #[error("cannot be read: {0}")]
    Io(std::io::Error),
    /// The file is not a JSON object.
    #[error("is not a JSON object: {0}")]
    Json(serde_json::Error),
    /// A required key is absent.
    #[error("required key {key} is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// A key holds another type of value.
    #[error("{key} is {found}, expected {expected}")]
    Type {
        /// The key.
        key: String,
        /// What it holds.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// Keys that Butter does not know, so that ignoring them may change results.
    #[error("unknown key{} {}: Butter cannot tell whether ignoring {} changes results", if keys.len() == 1 { "" } else { "s" }, keys.join(", "), if keys.len() == 1 { "it" } else { "them" })]
    Unknown {
        /// The keys, quoted.
        keys: Vec<String>,
    },
    /// A value that the graph does not compute with.
    #[error("{key} is {found}, supported: {supported}")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What is supported.
        supported: String,
    },
    /// Two keys that say different things.
    #[error("{first_key} is {first}, but {second_key} is {second}")]
    Conflict {
        /// One key.
        first_key: String,
        /// Its value.
        first: String,
        /// The other key.
        second_key: String,
        /// Its value.
        second: String,
    },
    /// A number that no model can have, whichever keys it comes from.
    #[error("{quantity} is {found}{given}: {rule}")]
    Range {
        /// What it is.
        quantity: &'static str,
        /// Keys that files have it under.
        keys: &'static [&'static str],
        /// Its value.
        found: String,
        /// The keys that this file has, with their values.
        given: String,
        /// What it must satisfy.
        rule: String,
    },
    /// A value that no model can have.
    #[error("{key} is {found}: {rule}")]
    Invalid {
        /// The key or quantity.
        key: String,
        /// Its value.
        found: String,
        /// What it must satisfy.
        rule: String,
    },
}
