//! Qwen3-MoE: Qwen3's attention with mixtures of experts in place of the dense feed-forward.
//! Reference: transformers, `Qwen3MoeForCausalLM`.

use super::{Family, standard_weights};
use crate::config::hugging_face::{activation, common, dense};
use crate::config::keys::Keys;
use crate::config::{
    Activation, Attention, ConfigFault, FeedForward, LayerConfig, Mixer, Mixture, ModelConfig,
    Norms, SharedExpert,
};

pub(super) const FAMILY: Family = Family::new(
    &["qwen3_moe"],
    "Qwen3MoeForCausalLM",
    from_json,
    standard_weights,
);

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, FAMILY.name, false)?;
    let attention = Attention {
        query_key_norm: true,
        ..common.rotary_attention(keys, 1.0)?
    };
    let windows = super::qwen3::windows(keys, common.layer_count)?;
    let feed_forwards = feed_forwards(keys, common.layer_count, None)?;
    let layer = |(window, feed_forward)| LayerConfig {
        mixer: Mixer::Attention(Attention {
            window,
            ..attention.clone()
        }),
        feed_forward,
        norms: Norms::Before,
    };
    Ok(ModelConfig {
        layers: windows.into_iter().zip(feed_forwards).map(layer).collect(),
        ..common.config
    })
}

/// The feed-forward of each layer: a mixture in every `decoder_sparse_step`-th that is not in
/// `mlp_only_layers`, a dense one in the others.
pub(super) fn feed_forwards(
    keys: &Keys<'_>,
    layer_count: usize,
    shared: Option<SharedExpert>,
) -> Result<Vec<FeedForward>, ConfigFault> {
    let expert_count = keys.size_of_any(&["num_experts", "num_local_experts"])?;
    let expert_count = keys.required("num_experts", expert_count)?;
    let dense = dense(keys, "hidden_act", Activation::Silu)?;
    let mixture = Mixture::plain(
        expert_count,
        keys.required_size("num_experts_per_tok")?,
        keys.required_size("moe_intermediate_size")?,
    );
    let mixture = FeedForward::Mixture(Mixture {
        activation: activation(keys, "hidden_act", Activation::Silu)?,
        renormalise: keys.bool("norm_topk_prob")?.unwrap_or(false),
        shared,
        ..mixture
    });
    let step = keys.size("decoder_sparse_step")?.unwrap_or(1);
    let dense_layers = keys.sizes("mlp_only_layers")?.unwrap_or_default();
    let is_sparse = |index: usize| {
        let in_step = step > 0 && (index + 1).is_multiple_of(step);
        expert_count > 0 && in_step && !dense_layers.contains(&index)
    };
    Ok((0..layer_count)
        .map(|index| if is_sparse(index) { &mixture } else { &dense }.clone())
        .collect())
}
