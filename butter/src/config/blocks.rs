//! Blocks that only some families have: mixtures of experts, attention over latents, short
//! convolutions, inputs of each layer.

use super::{Activation, ConfigFault, check_base, check_heads, check_sizes, quantity};
use crate::rope::Rope;

/// As [`MOST_LAYERS`](super::MOST_LAYERS), of experts a layer.
const MOST_EXPERTS: usize = 4096;

/// A mixture of experts.
#[derive(Clone, PartialEq, Debug)]
pub struct Mixture {
    /// Experts.
    pub expert_count: usize,
    /// Experts that a position goes through.
    pub experts_per_token: usize,
    /// Width inside an expert.
    pub intermediate_size: usize,
    /// Of the gate; of an expert without one, between its projections.
    pub activation: Activation,
    /// Whether an expert has a gate.
    pub gated: bool,
    /// Whether an expert's projections have biases.
    pub biases: bool,
    /// How logits become scores.
    pub scoring: Scoring,
    /// Whether the router has a bias.
    pub router_bias: bool,
    /// Whether each expert has a number that is added to its score for the choice alone.
    pub score_bias: bool,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub renormalise: bool,
    /// What weights are multiplied by.
    pub scale: f32,
    /// Groups of consecutive experts, and how many of them the choice is made from.
    pub groups: (usize, usize),
    /// An expert that every position goes through.
    pub shared: Option<SharedExpert>,
}

/// How a router's logits become scores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scoring {
    /// A softmax over all experts.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
}

/// An expert that every position goes through.
#[derive(Clone, PartialEq, Debug)]
pub struct SharedExpert {
    /// Width inside.
    pub intermediate_size: usize,
    /// Whether its output is multiplied by a sigmoid of one more projection.
    pub gated: bool,
}

impl Mixture {
    /// Gated experts with SiLU, chosen by a softmax, and nothing else.
    pub fn plain(expert_count: usize, experts_per_token: usize, intermediate_size: usize) -> Self {
        Self {
            expert_count,
            experts_per_token,
            intermediate_size,
            activation: Activation::Silu,
            gated: true,
            biases: false,
            scoring: Scoring::Softmax,
            router_bias: false,
            score_bias: false,
            renormalise: false,
            scale: 1.0,
            groups: (1, 1),
            shared: None,
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigFault> {
        check_sizes(&[
            (quantity::EXPERTS, self.expert_count),
            (quantity::CHOSEN, self.experts_per_token),
            (quantity::EXPERT_SIZE, self.intermediate_size),
        ])?;
        if self.expert_count > MOST_EXPERTS {
            let found = self.expert_count.to_string();
            return quantity::EXPERTS.invalid(found, "at most 4096 are read");
        }
        if self.experts_per_token > self.expert_count {
            let found = format!("{} of {}", self.experts_per_token, self.expert_count);
            return quantity::CHOSEN.invalid(found, "there are not so many experts");
        }
        if !self.scale.is_finite() || self.scale <= 0.0 {
            let found = self.scale.to_string();
            return quantity::EXPERT_SCALE.invalid(found, "it must be positive");
        }
        if !self.gated {
            self.activation.check_alone()?;
        }
        let (groups, used) = self.groups;
        if used == 0 || used > groups || !self.expert_count.is_multiple_of(groups) {
            let found = format!("{used} of {groups} for {} experts", self.expert_count);
            let rule = "the groups must divide the experts, and some of them must be used";
            return quantity::EXPERT_GROUPS.invalid(found, rule);
        }
        if self.experts_per_token > self.expert_count / groups * used {
            let found = format!("{} from {used} of {groups} groups", self.experts_per_token);
            return quantity::CHOSEN.invalid(found, "the groups have not so many experts");
        }
        match &self.shared {
            Some(shared) => check_sizes(&[(quantity::SHARED_EXPERT, shared.intermediate_size)]),
            None => Ok(()),
        }
    }
}

/// Attention whose keys and values all follow from one latent a position (DeepSeek-V2): the cache
/// holds the latent and one rotated key that all heads share.
#[derive(Clone, PartialEq, Debug)]
pub struct LatentAttention {
    /// Query heads.
    pub head_count: usize,
    /// Elements of a latent.
    pub latent_size: usize,
    /// Rank of the query projection; `None` where it is one matrix.
    pub query_rank: Option<usize>,
    /// Elements of a head's query and key that are not rotated.
    pub key_dim: usize,
    /// Elements of a head's query, and of the shared key, that are rotated.
    pub rotary_dim: usize,
    /// Elements of a head's value.
    pub value_dim: usize,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Position embedding.
    pub rope: Rope,
}

impl LatentAttention {
    pub(super) fn validate(&self) -> Result<(), ConfigFault> {
        check_sizes(&[
            (quantity::HEADS, self.head_count),
            (quantity::LATENT, self.latent_size),
            (quantity::QUERY_RANK, self.query_rank.unwrap_or(1)),
            (quantity::UNROTATED, self.key_dim),
            (quantity::ROTATED, self.rotary_dim),
            (quantity::LATENT_VALUE, self.value_dim),
        ])?;
        check_heads(quantity::LATENT_HEADS, self.head_count, self.latent_size)?;
        check_heads(
            quantity::LATENT_HEADS,
            self.head_count,
            self.key_dim.saturating_add(self.value_dim),
        )?;
        if !self.scale.is_finite() || self.scale <= 0.0 {
            let found = self.scale.to_string();
            return quantity::ATTENTION_SCALE.invalid(found, "it must be positive");
        }
        check_base(&self.rope)?;
        if !self.rotary_dim.is_multiple_of(2) || self.rope.rotary_dim != self.rotary_dim {
            let found = format!("{} of {}", self.rope.rotary_dim, self.rotary_dim);
            return quantity::ROTATED.invalid(found, "it must be even and rotated whole");
        }
        Ok(())
    }
}

/// A gated convolution over a few positions (LFM2): `output(c * conv(b * x))`, where `b`, `c` and
/// `x` are projections of the input, as wide as it.
#[derive(Clone, PartialEq, Debug)]
pub struct ShortConvolution {
    /// Channels.
    pub channels: usize,
    /// Positions that it sees.
    pub width: usize,
}

impl ShortConvolution {
    pub(super) fn validate(&self) -> Result<(), ConfigFault> {
        check_sizes(&[
            (quantity::CHANNELS, self.channels),
            (quantity::CONVOLUTION, self.width),
        ])?;
        check_heads(quantity::ALL_CHANNELS, self.channels, self.width)
    }
}

/// Inputs from the token itself that each layer has beside the residual stream (Gemma 3n, 4).
#[derive(Clone, PartialEq, Debug)]
pub struct PerLayerInputs {
    /// Tokens in their embedding.
    pub vocab_size: usize,
    /// Elements of a layer's input.
    pub size: usize,
}

/// What the projections of a layer are multiplied by (Falcon-H1).
#[derive(Clone, PartialEq, Debug)]
pub struct Multipliers {
    /// The input of attention.
    pub attention_in: f32,
    /// Its keys.
    pub key: f32,
    /// Its output.
    pub attention_out: f32,
    /// The input of the state-space model.
    pub mamba_in: f32,
    /// The parts of its projection: gate, input, writes, reads, time steps.
    pub mamba_parts: [f32; 5],
    /// Its output.
    pub mamba_out: f32,
    /// The gate of the feed-forward, before its activation.
    pub gate: f32,
    /// Its output.
    pub down: f32,
}

impl Default for Multipliers {
    fn default() -> Self {
        Self {
            attention_in: 1.0,
            key: 1.0,
            attention_out: 1.0,
            mamba_in: 1.0,
            mamba_parts: [1.0; 5],
            mamba_out: 1.0,
            gate: 1.0,
            down: 1.0,
        }
    }
}

impl Multipliers {
    pub(super) fn validate(&self) -> Result<(), ConfigFault> {
        let alone = [
            self.attention_in,
            self.key,
            self.attention_out,
            self.mamba_in,
            self.mamba_out,
            self.gate,
            self.down,
        ];
        let all = alone.iter().chain(&self.mamba_parts);
        let wrong = |factor: &&f32| !(factor.is_finite() && **factor > 0.0);
        match all.into_iter().find(wrong) {
            Some(factor) => quantity::MULTIPLIER.invalid(factor.to_string(), "it must be positive"),
            None => Ok(()),
        }
    }
}
