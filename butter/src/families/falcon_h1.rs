//! Falcon-H1: attention and Mamba-2 side by side in each layer, with multipliers on most
//! projections, which are taken into their weights. Reference: transformers,
//! `FalconH1ForCausalLM`.

use super::Family;
use super::granite_hybrid::time_step_limits;
use crate::config::hugging_face::{common, dense, must_be_false, must_be_null, must_be_true};
use crate::config::keys::Keys;
use crate::config::{
    Activation, ConfigFault, LayerConfig, Mamba2, Mixer, ModelConfig, Multipliers, Norms,
};
use crate::weights::{FeedForwardWeights, LayerNames, MixerWeights, ModelWeights, Resolver};

pub(super) const FAMILY: Family = Family {
    hugging_face_names: &[
        ("mlp.", "feed_forward."),
        ("post_attention_layernorm", "pre_ff_layernorm"),
        ("model.norm.", "model.final_layernorm."),
    ],
    ..Family::new(&["falcon_h1"], "FalconH1ForCausalLM", from_json, weights)
};

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, FAMILY.name, false)?.or_norm_eps(keys, 1e-5)?;
    for key in ["projectors_bias", "mlp_bias", "mamba_proj_bias"] {
        must_be_false(keys, key)?;
    }
    must_be_null(keys, "attn_layer_indices")?;
    must_be_true(keys, "mamba_use_mlp")?;
    // How many logits the reference computes, how it cuts a prompt, how its makers chose widths.
    keys.size("num_logits_to_keep")?;
    keys.size("mamba_chunk_size")?;
    keys.float("mlp_expansion_factor")?;
    let attention = common.rotary_attention(keys, 1.0)?;
    let mamba = mamba(keys, common.config.hidden_size)?;
    let [gate, down] = keys.multipliers("mlp_multipliers")?;
    let multipliers = Multipliers {
        attention_in: keys.multiplier("attention_in_multiplier")?,
        key: keys.multiplier("key_multiplier")?,
        attention_out: keys.multiplier("attention_out_multiplier")?,
        mamba_in: keys.multiplier("ssm_in_multiplier")?,
        mamba_parts: keys.multipliers("ssm_multipliers")?,
        mamba_out: keys.multiplier("ssm_out_multiplier")?,
        gate,
        down,
    };
    let layer = LayerConfig {
        mixer: Mixer::Parallel(Box::new((attention, mamba))),
        feed_forward: dense(keys, "hidden_act", Activation::Silu)?,
        norms: Norms::Before,
    };
    Ok(ModelConfig {
        layers: vec![layer; common.layer_count],
        embedding_scale: keys.multiplier("embedding_multiplier")?,
        logit_scale: keys.multiplier("lm_head_multiplier")?,
        multipliers: Some(multipliers),
        ..common.config
    })
}

fn mamba(keys: &Keys<'_>, hidden_size: usize) -> Result<Mamba2, ConfigFault> {
    let head_count = keys.required_size("mamba_n_heads")?;
    let expand = keys.size("mamba_expand")?.unwrap_or(2);
    let inner = keys.size("mamba_d_ssm")?;
    let inner = inner.unwrap_or(expand.saturating_mul(hidden_size));
    let is_automatic = keys.json_value("mamba_d_head").is_none_or(|v| v == "auto");
    let head_dim = match is_automatic {
        true => inner.checked_div(head_count).unwrap_or(0),
        false => keys.required_size("mamba_d_head")?,
    };
    if head_dim.checked_mul(head_count) != Some(inner) {
        return Err(ConfigFault::Conflict {
            first_key: "mamba_n_heads and mamba_d_head".to_owned(),
            first: format!("{head_count} of {head_dim}"),
            second_key: "mamba_d_ssm".to_owned(),
            second: inner.to_string(),
        });
    }
    let group_count = keys.size("mamba_n_groups")?.unwrap_or(1);
    let is_normed = keys.bool("mamba_rms_norm")?.unwrap_or(false);
    let before_gate = keys.bool("mamba_norm_before_gate")?.unwrap_or(true);
    if is_normed && before_gate {
        return Err(ConfigFault::Unsupported {
            key: keys.name("mamba_norm_before_gate"),
            found: "true".to_owned(),
            supported: "false where mamba_rms_norm is true".to_owned(),
        });
    }
    Ok(Mamba2 {
        head_count,
        head_dim,
        state_size: keys.required_size("mamba_d_state")?,
        group_count,
        conv_width: keys.size("mamba_d_conv")?.unwrap_or(4),
        conv_bias: keys.bool("mamba_conv_bias")?.unwrap_or(true),
        time_step_limits: time_step_limits(keys)?,
        norm_groups: is_normed.then_some(group_count),
    })
}

fn weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    let factors = config.multipliers.clone().unwrap_or_default();
    resolver.model(config, |resolver, prefix, layer| {
        let mut mixer = resolver.mixer(prefix, &layer.mixer);
        if let (MixerWeights::Parallel(weights), Mixer::Parallel(config)) =
            (&mut mixer, &layer.mixer)
        {
            let (attention, mamba) = weights.as_mut();
            attention.query.scale(factors.attention_in);
            attention.key.scale(factors.attention_in * factors.key);
            attention.value.scale(factors.attention_in);
            attention.output.scale(factors.attention_out);
            let [gate, input, write, read, step] =
                factors.mamba_parts.map(|part| part * factors.mamba_in);
            mamba.gate.scale(gate);
            mamba.step.scale(step);
            mamba.output.scale(factors.mamba_out);
            let inner = config.1.inner_size();
            let projection = config.1.group_count * config.1.state_size;
            mamba
                .input
                .scale_rows(&[(inner, input), (projection, write), (projection, read)]);
        }
        let mut feed_forward = resolver.feed_forward(prefix, &layer.feed_forward);
        if let FeedForwardWeights::Dense(dense) = &mut feed_forward {
            dense.gate.scale(factors.gate);
            dense.down.scale(factors.down);
        }
        resolver.layer_of(prefix, &LayerNames::STANDARD, mixer, feed_forward)
    })
}
