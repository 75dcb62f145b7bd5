//! Gemma 3 (text): layers of a window with their own RoPE base between layers of full
//! attention, norms before and after each block, GELU, a scaled embedding, and norm weights
//! stored less 1. Reference: transformers, `Gemma3ForCausalLM`.

use super::{Family, GgufReader};
use crate::catalogue::TensorCatalogue;
use crate::config::gguf::GgufConfig;
use crate::config::hugging_face::{
    RopeDefaults, common, dense, layer_types, must_be_false, read_by_layer_type,
};
use crate::config::keys::Keys;
use crate::config::{Activation, Attention, ConfigFault, LayerConfig, Mixer, ModelConfig, Norms};
use crate::rope::{Rope, RopeLayout, RopeScaling};
use crate::weights::{LayerNames, ModelWeights, Resolver, TensorNames};

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma3_text"],
    gguf: Some(GgufReader {
        architecture: "gemma3",
        read: from_gguf,
    }),
    gguf_names: &[
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ],
    ..Family::new(&["gemma3"], "Gemma3ForCausalLM", from_json, weights)
};

/// One layer of full attention after so many of a window, where the file does not say.
const PATTERN: usize = 6;
/// RoPE base of layers with a window, where the file does not say.
const LOCAL_THETA: f64 = 10_000.0;

/// What Gemma calls the norms of a layer.
pub(super) const LAYER_NAMES: LayerNames = LayerNames {
    mixer_norm: Some("input_layernorm"),
    mixer_post_norm: Some("post_attention_layernorm"),
    feed_forward_norm: Some("pre_feedforward_layernorm"),
    feed_forward_post_norm: Some("post_feedforward_layernorm"),
};

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, FAMILY.name, true)?;
    must_be_false(keys, "use_bidirectional_attention")?;
    let full_rope = RopeDefaults {
        theta: 1_000_000.0,
        ..common.rope_defaults(1.0)
    };
    let local_rope = RopeDefaults {
        theta: LOCAL_THETA,
        ..full_rope
    };
    let (full, local) = read_by_layer_type(keys, "rope_local_base_freq", full_rope, local_rope)?;
    let bias = keys.bool("attention_bias")?.unwrap_or(false);
    let query_scalar = keys.positive("query_pre_attn_scalar")?.unwrap_or(256.0);
    let attention = Attention {
        scale: (query_scalar.sqrt().recip()) as f32,
        soft_cap: keys
            .positive("attn_logit_softcapping")?
            .map(|cap| cap as f32),
        bias,
        output_bias: bias,
        query_key_norm: true,
        ..common.attention
    };
    let window = keys.size("sliding_window")?.unwrap_or(4096);
    let pattern = keys.size_of_any(&["sliding_window_pattern", "_sliding_window_pattern"])?;
    let types = layer_types(
        keys,
        common.layer_count,
        &[("full_attention", false), ("sliding_attention", true)],
    )?;
    let types = match types {
        Some(types) => types,
        None => pattern_types(common.layer_count, pattern.unwrap_or(PATTERN)),
    };
    let feed_forward = dense(keys, "hidden_activation", Activation::GeluTanh)?;
    let layer = |sliding| LayerConfig {
        mixer: Mixer::Attention(with_positions(&attention, sliding, window, &full, &local)),
        feed_forward: feed_forward.clone(),
        norms: Norms::BeforeAndAfter,
    };
    Ok(ModelConfig {
        layers: types.into_iter().map(layer).collect(),
        embedding_scale: (common.config.hidden_size as f32).sqrt(),
        logit_soft_cap: keys
            .positive("final_logit_softcapping")?
            .map(|cap| cap as f32),
        ..common.config
    })
}

/// Every `pattern`-th layer is one of full attention.
fn pattern_types(layer_count: usize, pattern: usize) -> Vec<bool> {
    (1..=layer_count)
        .map(|n| pattern == 0 || !n.is_multiple_of(pattern))
        .collect()
}

fn with_positions(
    attention: &Attention,
    sliding: bool,
    window: usize,
    full: &Rope,
    local: &Rope,
) -> Attention {
    Attention {
        window: sliding.then_some(window),
        rope: Some(if sliding { local } else { full }.clone()),
        ..attention.clone()
    }
}

fn from_gguf(
    file: &GgufConfig<'_>,
    catalogue: &TensorCatalogue,
) -> Result<ModelConfig, ConfigFault> {
    let common = file.common(FAMILY.name, catalogue)?;
    let full = file.rope(catalogue, &common.attention, RopeLayout::HalfSplit)?;
    let local = Rope {
        theta: file
            .keys()
            .positive("rope.freq_base_swa")?
            .unwrap_or(LOCAL_THETA),
        scaling: RopeScaling::Default,
        ..full.clone()
    };
    let window = file.keys().required_size("attention.sliding_window")?;
    let pattern = file.keys().size("attention.sliding_window_pattern")?;
    // The 27B model alone scales by the width a head would have, not by the head's.
    let attention = Attention {
        query_key_norm: true,
        scale: if common.layer_count == 62 {
            ((common.config.hidden_size / common.attention.head_count) as f32)
                .sqrt()
                .recip()
        } else {
            common.attention.scale
        },
        ..common.attention
    };
    let feed_forward = file.dense(Activation::GeluTanh)?;
    let types = pattern_types(common.layer_count, pattern.unwrap_or(PATTERN));
    let layer = |sliding| LayerConfig {
        mixer: Mixer::Attention(with_positions(&attention, sliding, window, &full, &local)),
        feed_forward: feed_forward.clone(),
        norms: Norms::BeforeAndAfter,
    };
    Ok(ModelConfig {
        layers: types.into_iter().map(layer).collect(),
        embedding_scale: (common.config.hidden_size as f32).sqrt(),
        ..common.config
    })
}

fn weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    // The converter to GGUF adds the 1.
    if resolver.names() == TensorNames::HuggingFace {
        resolver.norms_are_stored_less_one();
    }
    resolver.model(config, |resolver, prefix, layer| {
        resolver.named_layer(prefix, layer, &LAYER_NAMES)
    })
}
