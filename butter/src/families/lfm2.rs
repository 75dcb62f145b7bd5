//! LFM2: gated short convolutions between layers of attention with normalised queries and keys.
//! Reference: transformers, `Lfm2ForCausalLM`.

use super::{Family, standard_weights};
use crate::config::hugging_face::{RopeDefaults, layer_types, must_be_false, must_be_true, rope};
use crate::config::keys::Keys;
use crate::config::{
    Activation, Attention, ConfigFault, FeedForward, LayerConfig, Mixer, ModelConfig, Norms,
    ShortConvolution, check_layer_count,
};

pub(super) const FAMILY: Family = Family {
    hugging_face_names: &[
        ("self_attn.q_norm", "self_attn.q_layernorm"),
        ("self_attn.k_norm", "self_attn.k_layernorm"),
        ("self_attn.o_proj", "self_attn.out_proj"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("input_layernorm", "operator_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("model.norm.", "model.embedding_norm."),
    ],
    ..Family::new(&["lfm2"], "Lfm2ForCausalLM", from_json, standard_weights)
};

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let hidden_size = keys.required_size("hidden_size")?;
    let context_length = keys.required_size("max_position_embeddings")?;
    let layer_count = check_layer_count(keys.required_size("num_hidden_layers")?)?;
    for key in ["block_dim", "conv_dim", "conv_dim_out"] {
        keys.must_be(key, hidden_size, "hidden_size")?;
    }
    must_be_false(keys, "conv_bias")?;
    must_be_true(keys, "block_use_swiglu")?;
    must_be_true(keys, "use_pos_enc")?;
    // How weights were drawn before training.
    for key in [
        "block_mlp_init_scale",
        "block_out_init_scale",
        "block_norm_eps",
    ] {
        keys.float(key)?;
    }
    for key in ["block_use_xavier_init", "conv_use_xavier_init"] {
        keys.bool(key)?;
    }
    let attention = Mixer::Attention(attention(keys, hidden_size, context_length)?);
    let convolution = Mixer::ShortConvolution(ShortConvolution {
        channels: hidden_size,
        width: keys.size("conv_L_cache")?.unwrap_or(3),
    });
    let known = [("full_attention", true), ("conv", false)];
    let full = keys.sizes("full_attn_idxs")?;
    let types = match (layer_types(keys, layer_count, &known)?, full) {
        (Some(types), _) => types,
        (None, Some(full)) => (0..layer_count).map(|i| full.contains(&i)).collect(),
        (None, None) => vec![true; layer_count],
    };
    let feed_forward = FeedForward::Dense {
        intermediate_size: intermediate_size(keys)?,
        activation: Activation::Silu,
    };
    let layer = |full| LayerConfig {
        mixer: if full { &attention } else { &convolution }.clone(),
        feed_forward: feed_forward.clone(),
        norms: Norms::Before,
    };
    let tied = keys.bool("tie_word_embeddings")?;
    Ok(ModelConfig {
        vocab_size: keys.required_size("vocab_size")?,
        context_length,
        hidden_size,
        norm_eps: keys.epsilon("norm_eps")?.unwrap_or(1e-5),
        tied_embeddings: keys.bool("tie_embedding")?.or(tied).unwrap_or(true),
        layers: types.into_iter().map(layer).collect(),
        ..ModelConfig::new(FAMILY.name)
    })
}

fn attention(
    keys: &Keys<'_>,
    hidden_size: usize,
    context_length: usize,
) -> Result<Attention, ConfigFault> {
    let head_count = keys.required_size("num_attention_heads")?;
    keys.must_be("num_heads", head_count, "num_attention_heads")?;
    let kv_head_count = keys.size("num_key_value_heads")?.unwrap_or(head_count);
    if head_count == 0 || !hidden_size.is_multiple_of(head_count) {
        return Err(ConfigFault::Invalid {
            key: "hidden_size".to_owned(),
            found: format!("{hidden_size} for {head_count} heads"),
            rule: "it must be a multiple of num_attention_heads".to_owned(),
        });
    }
    let head_dim = hidden_size / head_count;
    let defaults = RopeDefaults {
        head_dim,
        theta: 1_000_000.0,
        partial: 1.0,
        context_length,
    };
    Ok(Attention {
        query_key_norm: true,
        rope: Some(rope(keys, defaults)?),
        ..Attention::plain(head_count, kv_head_count, head_dim)
    })
}

/// The width inside, which files give before its reduction by a third.
fn intermediate_size(keys: &Keys<'_>) -> Result<usize, ConfigFault> {
    // The first wins in the reference too.
    let (old, new) = (keys.size("block_ff_dim")?, keys.size("intermediate_size")?);
    let size = keys.required("intermediate_size", old.or(new))?;
    let factor = keys.positive("block_ffn_dim_multiplier")?;
    let multiple = keys.size("block_multiple_of")?.unwrap_or(256);
    if !keys.bool("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(size);
    }
    let size = (2.0 * size as f64 / 3.0) as usize;
    let Some(factor) = factor else {
        return Ok(size);
    };
    let size = (factor * size as f64) as usize;
    size.checked_next_multiple_of(multiple)
        .ok_or_else(|| ConfigFault::Invalid {
            key: keys.name("block_multiple_of"),
            found: multiple.to_string(),
            rule: "the width inside must be a multiple of it".to_owned(),
        })
}
