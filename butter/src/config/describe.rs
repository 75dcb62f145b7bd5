//! One line for each kind of layer, for people.

use std::fmt;

use super::{Activation, Attention, FeedForward, LayerConfig, Mixer, ModelConfig};
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
            Mixer::Mamba2(mamba) => write!(
                f,
                "Mamba-2 {} heads of {}, state of {} in {} groups, convolution over {}",
                mamba.head_count,
                mamba.head_dim,
                mamba.state_size,
                mamba.group_count,
                mamba.conv_width
            )?,
        }
        match &self.feed_forward {
            FeedForward::Dense {
                intermediate_size,
                activation,
            } => write!(f, "; feed-forward {intermediate_size}, {activation}")?,
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
        if self.post_norms {
            f.write_str("; norms before and after")?;
        }
        Ok(())
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
            (self.output_gate, "gated output"),
            (self.sinks, "sinks"),
            (self.bias, "biases"),
        ] {
            if has {
                write!(f, ", {what}")?;
            }
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
        f.write_str(match self {
            Activation::Silu => "SiLU",
            Activation::GeluTanh => "GELU (tanh)",
        })
    }
}
