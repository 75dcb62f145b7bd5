//! One line for each kind of layer, for people.

use std::fmt;

use super::{Activation, Attention, FeedForward, LayerConfig, Mamba2, Mixer, ModelConfig, Norms};
use crate::rope::{Rope, RopeLayout, RopeScaling};

impl ModelConfig {
    /// Runs of equal layers: the first, the last, and what they are.
    pub fn layer_runs(&self) -> Vec<(usize, usize, String)> {
        let mut runs: Vec<(usize, usize, String)> = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            let text = layer.to_string();
            match runs.last_mut() {
                Some((_, last, same)) if *same == text => *last = index,
                _ => runs.push((index, index, text)),
            }
        }
        runs
    }
}

impl fmt::Display for LayerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.mixer {
            Mixer::Attention(attention) => write!(f, "{attention}")?,
            Mixer::GatedDelta(delta) => write!(
                f,
                "gated delta net {}/{} heads of {}/{}, convolution over {}",
                delta.value_head_count,
                delta.key_head_count,
                delta.value_head_dim,
                delta.key_head_dim,
                delta.conv_width
            )?,
            Mixer::Mamba2(mamba) => write!(f, "{mamba}")?,
            Mixer::Latent(latent) => write!(
                f,
                "attention {} heads of {}+{}/{} over latents of {}, {}",
                latent.head_count,
                latent.key_dim,
                latent.rotary_dim,
                latent.value_dim,
                latent.latent_size,
                latent.rope
            )?,
            Mixer::ShortConvolution(convolution) => {
                write!(f, "gated convolution over {}", convolution.width)?;
            }
            Mixer::Parallel(both) => write!(f, "{} beside {}", both.0, both.1)?,
            Mixer::Absent => f.write_str("no mixer")?,
        }
        match &self.feed_forward {
            FeedForward::Dense {
                intermediate_size,
                activation,
            } => write!(f, "; feed-forward {intermediate_size}, {activation}")?,
            FeedForward::Plain {
                intermediate_size,
                activation,
            } => write!(
                f,
                "; feed-forward {intermediate_size} without a gate, {activation}"
            )?,
            FeedForward::Absent => f.write_str("; no feed-forward")?,
            FeedForward::Mixture(mixture) => {
                write!(
                    f,
                    "; {} of {} experts of {}, {}",
                    mixture.experts_per_token,
                    mixture.expert_count,
                    mixture.intermediate_size,
                    mixture.activation
                )?;
                if let Some(shared) = &mixture.shared {
                    write!(f, ", a shared one of {}", shared.intermediate_size)?;
                }
            }
        }
        match self.norms {
            Norms::Before => Ok(()),
            Norms::After => f.write_str("; norms after"),
            Norms::BeforeAndAfter => f.write_str("; norms before and after"),
        }
    }
}

impl fmt::Display for Mamba2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Mamba-2 {} heads of {}, state of {} in {} groups, convolution over {}",
            self.head_count, self.head_dim, self.state_size, self.group_count, self.conv_width
        )
    }
}

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (heads, kv_heads, size) = (self.head_count, self.kv_head_count, self.head_dim);
        write!(f, "attention {heads}/{kv_heads} heads of {size}")?;
        if let Some(window) = self.window {
            write!(f, ", window {window}")?;
        }
        for (has, what) in [
            (self.query_key_norm, "normalised queries and keys"),
            (self.value_norm, "normalised values"),
            (self.value_is_key, "values as keys"),
            (self.output_gate, "gated output"),
            (self.sinks, "sinks"),
            (self.bias, "biases"),
        ] {
            if has {
                write!(f, ", {what}")?;
            }
        }
        if let Some(layer) = self.shares_cache_of {
            write!(f, ", keys and values of layer {layer}")?;
        }
        if let Some(cap) = self.soft_cap {
            write!(f, ", scores capped at {cap}")?;
        }
        match &self.rope {
            Some(rope) => write!(f, ", {rope}"),
            None => f.write_str(", no positions"),
        }
    }
}

impl fmt::Display for Rope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layout = match self.layout {
            RopeLayout::HalfSplit => "halves",
            RopeLayout::Interleaved => "pairs",
        };
        write!(
            f,
            "RoPE base {}, {} in {layout}",
            self.theta, self.rotary_dim
        )?;
        match &self.scaling {
            RopeScaling::Default => Ok(()),
            RopeScaling::Linear { factor } => write!(f, ", linear {factor}"),
            RopeScaling::Dynamic { factor } => write!(f, ", dynamic {factor}"),
            RopeScaling::Llama3 { factor, .. } => write!(f, ", llama3 {factor}"),
            RopeScaling::Yarn { factor, .. } => write!(f, ", YaRN {factor}"),
            RopeScaling::Proportional { pairs, .. } => write!(f, ", {pairs} pairs turn"),
            RopeScaling::Longrope {
                original_context, ..
            } => write!(f, ", longrope from {original_context}"),
            RopeScaling::Factors(factors) => {
                write!(f, ", {} factors from the file", factors.len())
            }
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Activation::Silu => f.write_str("SiLU"),
            Activation::GeluTanh => f.write_str("GELU (tanh)"),
            Activation::ReluSquared => f.write_str("squared ReLU"),
            Activation::ClampedSwiGlu { limit, alpha } => {
                write!(f, "SwiGLU clamped at {limit}, slope {alpha}")
            }
        }
    }
}
