//! OLMo 3: layers of a window between layers of full attention, norms after each block and none
//! before, queries and keys normalised over all heads together, and a context extension of the
//! full layers alone. Reference: transformers, `Olmo3ForCausalLM`.

use super::Family;
use crate::config::hugging_face::{RopeDefaults, common, dense, layer_types, read_by_layer_type};
use crate::config::keys::Keys;
use crate::config::{Activation, Attention, ConfigFault, LayerConfig, Mixer, ModelConfig, Norms};
use crate::weights::{LayerNames, ModelWeights, Resolver};

pub(super) const FAMILY: Family = Family::new(&["olmo3"], "Olmo3ForCausalLM", from_json, weights);

/// One layer of full attention after so many of a window, where the file does not say.
const PATTERN: usize = 4;

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, FAMILY.name, false)?.or_norm_eps(keys, 1e-5)?;
    let defaults = RopeDefaults {
        theta: 500_000.0,
        ..common.rope_defaults(1.0)
    };
    let (full, local) = read_by_layer_type(keys, "rope_theta", defaults, defaults)?;
    let bias = keys.bool("attention_bias")?.unwrap_or(false);
    let attention = Attention {
        bias,
        output_bias: bias,
        query_key_norm: true,
        norm_over_heads: true,
        ..common.attention
    };
    let window = keys.size("sliding_window")?.unwrap_or(4096);
    let types = layer_types(
        keys,
        common.layer_count,
        &[("full_attention", false), ("sliding_attention", true)],
    )?;
    let types = types.unwrap_or_else(|| {
        let is_sliding = |n: usize| !n.is_multiple_of(PATTERN);
        (1..=common.layer_count).map(is_sliding).collect()
    });
    let feed_forward = dense(keys, "hidden_act", Activation::Silu)?;
    let layer = |sliding: bool| LayerConfig {
        mixer: Mixer::Attention(Attention {
            window: sliding.then_some(window),
            rope: Some(if sliding { &local } else { &full }.clone()),
            ..attention.clone()
        }),
        feed_forward: feed_forward.clone(),
        norms: Norms::After,
    };
    Ok(ModelConfig {
        layers: types.into_iter().map(layer).collect(),
        ..common.config
    })
}

fn weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    resolver.model(config, |resolver, prefix, layer| {
        let names = LayerNames {
            mixer_norm: None,
            mixer_post_norm: Some("post_attention_layernorm"),
            feed_forward_norm: None,
            feed_forward_post_norm: Some("post_feedforward_layernorm"),
        };
        resolver.named_layer(prefix, layer, &names)
    })
}
