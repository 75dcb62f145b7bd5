//! Mixtral: Mistral's attention with a mixture of experts in each layer. Reference:
//! transformers, `MixtralForCausalLM`.

use super::{Family, standard_weights};
use crate::config::hugging_face::{RopeDefaults, activation, common, rope};
use crate::config::keys::Keys;
use crate::config::{
    Activation, Attention, ConfigFault, FeedForward, LayerConfig, Mixer, Mixture, ModelConfig,
    Norms,
};

pub(super) const FAMILY: Family = Family {
    hugging_face_names: &[
        ("mlp.", "block_sparse_moe."),
        ("gate_proj", "w1"),
        ("down_proj", "w2"),
        ("up_proj", "w3"),
    ],
    ..Family::new(
        &["mixtral"],
        "MixtralForCausalLM",
        from_json,
        standard_weights,
    )
};

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, FAMILY.name, false)?.or_norm_eps(keys, 1e-5)?;
    let defaults = RopeDefaults {
        theta: 1_000_000.0,
        ..common.rope_defaults(1.0)
    };
    // Noise of the training.
    keys.float("router_jitter_noise")?;
    let expert_count = keys.size_of_any(&["num_local_experts", "num_experts"])?;
    let mixture = Mixture::plain(
        expert_count.unwrap_or(8),
        keys.size("num_experts_per_tok")?.unwrap_or(2),
        keys.required_size("intermediate_size")?,
    );
    let layer = LayerConfig {
        mixer: Mixer::Attention(Attention {
            window: keys.size("sliding_window")?,
            rope: Some(rope(keys, defaults)?),
            ..common.attention
        }),
        feed_forward: FeedForward::Mixture(Mixture {
            activation: activation(keys, "hidden_act", Activation::Silu)?,
            renormalise: true,
            ..mixture
        }),
        norms: Norms::Before,
    };
    Ok(ModelConfig {
        layers: vec![layer; common.layer_count],
        ..common.config
    })
}
