//! Qwen3-Next and Qwen3.5 (text): layers of gated delta nets between layers of gated attention,
//! a part of each head rotated, norm weights stored less 1. Qwen3-Next has mixtures with a
//! shared expert, and the delta net's projections interleaved by key head; Qwen3.5 stores them
//! apart. References: transformers, `Qwen3NextForCausalLM`, `Qwen3_5ForCausalLM`.

use std::ops::Range;

use super::Family;
use crate::config::hugging_face::{
    activation, common, dense, layer_types, must_be_false, must_say,
};
use crate::config::keys::Keys;
use crate::config::{
    Activation, Attention, ConfigFault, FeedForward, GatedDelta, LayerConfig, Mixer, Mixture,
    ModelConfig, MultiTokenHead, Norms, SharedExpert,
};
use crate::weights::{
    GatedDeltaWeights, HeadNames, LayerNames, MixerWeights, ModelWeights, Resolver,
};

pub(super) const FAMILY: Family = Family::new(
    &["qwen3_next"],
    "Qwen3NextForCausalLM",
    next_from_json,
    weights,
);

pub(super) const QWEN3_5: Family = Family {
    model_types: &["qwen3_5_text"],
    ..Family::new(
        &["qwen3_5"],
        "Qwen3_5ForCausalLM",
        dense_from_json,
        dense_weights,
    )
};

pub(super) const QWEN3_5_MOE: Family = Family {
    model_types: &["qwen3_5_moe_text"],
    ..Family::new(
        &["qwen3_5_moe"],
        "Qwen3_5MoeForCausalLM",
        mixture_from_json,
        dense_weights,
    )
};

/// One layer of full attention after so many, where the file does not say.
const FULL_ATTENTION_INTERVAL: usize = 4;

fn next_from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let layer_count = keys.required_size("num_hidden_layers")?;
    let layer_count = crate::config::check_layer_count(layer_count)?;
    let shared = SharedExpert {
        intermediate_size: keys.required_size("shared_expert_intermediate_size")?,
        gated: true,
    };
    let feed_forwards = super::qwen3_moe::feed_forwards(keys, layer_count, Some(shared))?;
    hybrid(keys, FAMILY.name, feed_forwards)
}

fn dense_from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let layer_count = keys.required_size("num_hidden_layers")?;
    let layer_count = crate::config::check_layer_count(layer_count)?;
    let dense = dense(keys, "hidden_act", Activation::Silu)?;
    hybrid(keys, QWEN3_5.name, vec![dense; layer_count])
}

fn mixture_from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let layer_count = keys.required_size("num_hidden_layers")?;
    let layer_count = crate::config::check_layer_count(layer_count)?;
    let expert_count = keys.size_of_any(&["num_experts", "num_local_experts"])?;
    let mixture = Mixture::plain(
        keys.required("num_experts", expert_count)?,
        keys.required_size("num_experts_per_tok")?,
        keys.required_size("moe_intermediate_size")?,
    );
    let mixture = FeedForward::Mixture(Mixture {
        activation: activation(keys, "hidden_act", Activation::Silu)?,
        renormalise: true,
        shared: Some(SharedExpert {
            intermediate_size: keys.required_size("shared_expert_intermediate_size")?,
            gated: true,
        }),
        ..mixture
    });
    hybrid(keys, QWEN3_5_MOE.name, vec![mixture; layer_count])
}

fn hybrid(
    keys: &Keys<'_>,
    family: &'static str,
    feed_forwards: Vec<FeedForward>,
) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, family, false)?;
    let attention = Mixer::Attention(Attention {
        query_key_norm: true,
        output_gate: true,
        ..common.rotary_attention(keys, 0.25)?
    });
    keys.only("attn_output_gate", "true", |found| {
        matches!(found, crate::config::keys::Found::Bool(true))
    })?;
    let delta = Mixer::GatedDelta(GatedDelta {
        key_head_count: keys.required_size("linear_num_key_heads")?,
        value_head_count: keys.required_size("linear_num_value_heads")?,
        key_head_dim: keys.required_size("linear_key_head_dim")?,
        value_head_dim: keys.required_size("linear_value_head_dim")?,
        conv_width: keys.required_size("linear_conv_kernel_dim")?,
    });
    let interval = keys.size("full_attention_interval")?;
    let interval = interval.unwrap_or(FULL_ATTENTION_INTERVAL);
    let known = [("full_attention", true), ("linear_attention", false)];
    let full = match layer_types(keys, common.layer_count, &known)? {
        Some(full) => full,
        None => (1..=common.layer_count)
            .map(|n| interval > 0 && n.is_multiple_of(interval))
            .collect(),
    };
    must_say(keys, "mamba_ssm_dtype", "float32")?;
    // Qwen3-Next says nothing of its head; its layer is one of full attention.
    must_be_false(keys, "mtp_use_dedicated_embeddings")?;
    let heads = keys.size("mtp_num_hidden_layers")?.unwrap_or(1);
    let heads = crate::config::check_head_count(heads)?;
    let multi_token_head = match (heads, feed_forwards.first()) {
        (1.., Some(feed_forward)) => Some(MultiTokenHead {
            layer: LayerConfig {
                mixer: attention.clone(),
                feed_forward: feed_forward.clone(),
                norms: Norms::Before,
            },
            feeds_normed: true,
        }),
        _ => None,
    };
    let layer = |(full, feed_forward)| LayerConfig {
        mixer: if full { &attention } else { &delta }.clone(),
        feed_forward,
        norms: Norms::Before,
    };
    Ok(ModelConfig {
        layers: full.into_iter().zip(feed_forwards).map(layer).collect(),
        multi_token_head,
        ..common.config
    })
}

fn weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    resolver.norms_are_stored_less_one();
    let model = resolver.model(config, |resolver, prefix, layer| match &layer.mixer {
        Mixer::GatedDelta(delta) => {
            let mixer = interleaved_delta(resolver, &format!("{prefix}linear_attn."), delta);
            let mixer = MixerWeights::GatedDelta(Box::new(mixer));
            let feed_forward = resolver.feed_forward(prefix, &layer.feed_forward);
            resolver.layer_of(prefix, &LayerNames::STANDARD, mixer, feed_forward)
        }
        _ => resolver.standard_layer(prefix, layer),
    });
    with_head(resolver, config, model)
}

fn dense_weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    resolver.norms_are_stored_less_one();
    let model = super::standard_weights(resolver, config);
    with_head(resolver, config, model)
}

/// The model with its multi-token head, if the checkpoint has one; layers of it behind the first
/// are not used.
fn with_head(
    resolver: &mut Resolver<'_>,
    config: &ModelConfig,
    model: ModelWeights,
) -> ModelWeights {
    let name = |part: &str| format!("mtp.{part}");
    let names = HeadNames {
        embedding_norm: name("pre_fc_norm_embedding.weight"),
        hidden_norm: name("pre_fc_norm_hidden.weight"),
        join: name("fc.weight"),
        layer: name("layers.0."),
        norm: name("norm.weight"),
        copies: Vec::new(),
    };
    let multi_token_head = resolver.multi_token_head(config, &names);
    let is_used = multi_token_head.is_some();
    resolver.ignore(move |name| match name.strip_prefix("mtp.") {
        Some(part) => !is_used || (part.starts_with("layers.") && !part.starts_with("layers.0.")),
        None => false,
    });
    ModelWeights {
        multi_token_head,
        ..model
    }
}

/// Projections stored key head after key head: its query, its key, the values of its value heads
/// and their gates; in a second tensor the strengths of its value heads, then their time steps.
fn interleaved_delta(
    resolver: &mut Resolver<'_>,
    prefix: &str,
    delta: &GatedDelta,
) -> GatedDeltaWeights {
    let hidden = resolver.hidden_size();
    let heads_a_key = delta.value_head_count / delta.key_head_count;
    let (key, value) = (delta.key_head_dim, heads_a_key * delta.value_head_dim);
    let group = 2 * (key + value);
    let all = resolver.matrix(
        &format!("{prefix}in_proj_qkvz.weight"),
        &[delta.key_head_count * group, hidden],
    );
    let gates = resolver.matrix(
        &format!("{prefix}in_proj_ba.weight"),
        &[2 * delta.value_head_count, hidden],
    );
    let of_each_key = |group: usize, start: usize, length: usize| {
        (0..delta.key_head_count).map(move |head| -> Range<usize> {
            let first = head * group + start;
            first..first + length
        })
    };
    let ranges = of_each_key(group, 0, key)
        .chain(of_each_key(group, key, key))
        .chain(of_each_key(group, 2 * key, value));
    GatedDeltaWeights {
        query_key_value: all.select(ranges),
        gate: all.select(of_each_key(group, 2 * key + value, value)),
        beta: gates.select(of_each_key(2 * heads_a_key, 0, heads_a_key)),
        alpha: gates.select(of_each_key(2 * heads_a_key, heads_a_key, heads_a_key)),
        ..resolver.gated_delta_rest(prefix, delta)
    }
}
