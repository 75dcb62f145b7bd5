//! Granite 4 hybrids: Mamba-2 layers between layers of attention, mixtures with a shared expert
//! or the shared one alone, and four multipliers. Reference: transformers,
//! `GraniteMoeHybridForCausalLM`.

use super::Family;
use crate::config::hugging_face::{activation, common, layer_types, must_be_false, rope};
use crate::config::keys::Keys;
use crate::config::{
    Activation, Attention, ConfigFault, FeedForward, LayerConfig, Mamba2, Mixer, Mixture,
    ModelConfig, Norms, SharedExpert,
};
use crate::quote::quoted;
use crate::weights::{
    FeedForwardWeights, GatedWeights, LayerNames, MixtureWeights, ModelWeights, Resolver,
};

pub(super) const FAMILY: Family = Family::new(
    &["granitemoehybrid"],
    "GraniteMoeHybridForCausalLM",
    from_json,
    weights,
);

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, FAMILY.name, false)?;
    let recipe = rope(keys, common.rope_defaults(1.0))?;
    let rope = match keys.string("position_embedding_type")?.as_deref() {
        Some("rope") => Some(recipe),
        None | Some("nope") => None,
        Some(other) => {
            return Err(ConfigFault::Unsupported {
                key: keys.name("position_embedding_type"),
                found: quoted(other),
                supported: "\"nope\", \"rope\"".to_owned(),
            });
        }
    };
    let bias = keys.bool("attention_bias")?.unwrap_or(false);
    let attention = Mixer::Attention(Attention {
        scale: keys.multiplier("attention_multiplier")?,
        bias,
        output_bias: bias,
        rope,
        ..common.attention
    });
    let mamba = Mixer::Mamba2(mamba(keys, common.config.hidden_size)?);
    let known = [
        ("mamba", false),
        ("linear_attention", false),
        ("attention", true),
        ("full_attention", true),
    ];
    let full = layer_types(keys, common.layer_count, &known)?;
    let full = keys.required("layer_types", full)?;
    let feed_forward = feed_forward(keys)?;
    let layer = |full| LayerConfig {
        mixer: if full { &attention } else { &mamba }.clone(),
        feed_forward: feed_forward.clone(),
        norms: Norms::Before,
    };
    Ok(ModelConfig {
        layers: full.into_iter().map(layer).collect(),
        embedding_scale: keys.multiplier("embedding_multiplier")?,
        residual_scale: keys.multiplier("residual_multiplier")?,
        logit_scale: 1.0 / keys.multiplier("logits_scaling")?,
        ..common.config
    })
}

fn mamba(keys: &Keys<'_>, hidden_size: usize) -> Result<Mamba2, ConfigFault> {
    must_be_false(keys, "mamba_proj_bias")?;
    // How the reference cuts a prompt; the recurrence is the same.
    keys.size("mamba_chunk_size")?;
    let mamba = Mamba2 {
        head_count: keys.required_size("mamba_n_heads")?,
        head_dim: keys.required_size("mamba_d_head")?,
        state_size: keys.required_size("mamba_d_state")?,
        group_count: keys.size("mamba_n_groups")?.unwrap_or(1),
        conv_width: keys.size("mamba_d_conv")?.unwrap_or(4),
        conv_bias: keys.bool("mamba_conv_bias")?.unwrap_or(true),
        time_step_limits: time_step_limits(keys)?,
        norm_groups: Some(1),
    };
    let expand = keys.size("mamba_expand")?.unwrap_or(2);
    let inner = mamba.head_count.checked_mul(mamba.head_dim);
    if inner != expand.checked_mul(hidden_size) {
        return Err(ConfigFault::Conflict {
            first_key: "mamba_n_heads and mamba_d_head".to_owned(),
            first: format!("{} of {}", mamba.head_count, mamba.head_dim),
            second_key: "mamba_expand times hidden_size".to_owned(),
            second: format!("{expand} times {hidden_size}"),
        });
    }
    Ok(mamba)
}

/// `time_step_limit`: the least and the most.
pub(super) fn time_step_limits(keys: &Keys<'_>) -> Result<(f32, f32), ConfigFault> {
    let limits = keys.floats("time_step_limit")?;
    match limits.as_deref() {
        None => Ok((0.0, f32::INFINITY)),
        Some([least, most]) => Ok((*least as f32, *most as f32)),
        Some(other) => Err(ConfigFault::Invalid {
            key: keys.name("time_step_limit"),
            found: format!("a list of {}", other.len()),
            rule: "it must have two entries".to_owned(),
        }),
    }
}

/// The shared expert is there in any case; without experts it is a dense feed-forward.
fn feed_forward(keys: &Keys<'_>) -> Result<FeedForward, ConfigFault> {
    let activation = activation(keys, "hidden_act", Activation::Silu)?;
    let shared = keys.required_size("shared_intermediate_size")?;
    let intermediate_size = keys.required_size("intermediate_size")?;
    let expert_count = keys.size_of_any(&["num_local_experts", "num_experts"])?;
    let experts_per_token = keys.size("num_experts_per_tok")?.unwrap_or(0);
    match expert_count.unwrap_or(0) {
        0 => Ok(FeedForward::Dense {
            intermediate_size: shared,
            activation,
        }),
        expert_count => Ok(FeedForward::Mixture(Mixture {
            activation,
            // A softmax over the logits chosen is the softmax over all, divided by their sum.
            renormalise: true,
            shared: Some(SharedExpert {
                intermediate_size: shared,
                gated: false,
            }),
            ..Mixture::plain(expert_count, experts_per_token, intermediate_size)
        })),
    }
}

fn weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    resolver.model(config, |resolver, prefix, layer| {
        let feed_forward = match &layer.feed_forward {
            FeedForward::Dense {
                intermediate_size, ..
            } => FeedForwardWeights::Dense(fused(resolver, prefix, *intermediate_size)),
            FeedForward::Mixture(mixture) => {
                FeedForwardWeights::Mixture(Box::new(experts(resolver, prefix, mixture)))
            }
            FeedForward::Plain { .. } | FeedForward::Absent => {
                resolver.feed_forward(prefix, &layer.feed_forward)
            }
        };
        let mixer = resolver.mixer(prefix, &layer.mixer);
        resolver.layer_of(prefix, &LayerNames::STANDARD, mixer, feed_forward)
    })
}

/// The shared expert, its gate and its other projection in one tensor.
fn fused(resolver: &mut Resolver<'_>, prefix: &str, size: usize) -> GatedWeights {
    let hidden = resolver.hidden_size();
    let name = |part: &str| format!("{prefix}shared_mlp.{part}.weight");
    let both = resolver.matrix(&name("input_linear"), &[2 * size, hidden]);
    GatedWeights {
        gate: both.select(std::iter::once(0..size)),
        up: both.select(std::iter::once(size..2 * size)),
        down: resolver.matrix(&name("output_linear"), &[hidden, size]),
    }
}

fn experts(resolver: &mut Resolver<'_>, prefix: &str, mixture: &Mixture) -> MixtureWeights {
    let hidden = resolver.hidden_size();
    let (experts, size) = (mixture.expert_count, mixture.intermediate_size);
    let name = |part: &str| format!("{prefix}block_sparse_moe.{part}.weight");
    let both = resolver.matrix(&name("input_linear"), &[experts, 2 * size, hidden]);
    let half = |first: usize| {
        both.select((0..experts).map(move |expert| {
            let start = (2 * expert + first) * size;
            start..start + size
        }))
    };
    MixtureWeights {
        router: resolver.matrix(&name("router.layer"), &[experts, hidden]),
        gate: half(0),
        up: half(1),
        down: resolver.matrix(&name("output_linear"), &[experts, hidden, size]),
        shared: mixture
            .shared
            .as_ref()
            .map(|shared| fused(resolver, prefix, shared.intermediate_size)),
        ..MixtureWeights::default()
    }
}
