//! Nemotron-H: layers of one block each, Mamba-2, attention without positions, a feed-forward of
//! squared ReLU without a gate, or a mixture of such. Reference: transformers,
//! `NemotronHForCausalLM`, but for one thing: it raises the time steps of a prompt to
//! `time_step_min`, which is meant for the drawing of weights, and those of single tokens not. Here
//! `time_step_limit` alone holds, for both, as in the kernels that the models were trained with.

use super::Family;
use super::granite_hybrid::time_step_limits;
use crate::config::hugging_face::{activation, must_be_false, must_be_null, must_say};
use crate::config::keys::Keys;
use crate::config::{
    Activation, Attention, ConfigFault, FeedForward, LayerConfig, Mamba2, Mixer, Mixture,
    ModelConfig, Norms, Scoring, SharedExpert, check_layer_count,
};
use crate::quote::quoted;
use crate::weights::{ModelWeights, Resolver};

pub(super) const FAMILY: Family = Family {
    hugging_face_names: &[
        ("model.embed_tokens.", "backbone.embeddings."),
        ("model.norm.", "backbone.norm_f."),
        ("model.layers.", "backbone.layers."),
        ("input_layernorm.", "norm."),
        ("post_attention_layernorm.", "norm."),
        ("mamba.", "mixer."),
        ("self_attn.", "mixer."),
        ("mlp.", "mixer."),
        ("shared_expert.", "shared_experts."),
    ],
    ..Family::new(&["nemotron_h"], "NemotronHForCausalLM", from_json, weights)
};

/// What a layer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mamba,
    Attention,
    FeedForward,
    Mixture,
}

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    for key in ["use_bias", "mlp_bias", "mamba_proj_bias", "attention_bias"] {
        must_be_false(keys, key)?;
    }
    must_be_null(keys, "sliding_window")?;
    must_say(keys, "mamba_hidden_act", "silu")?;
    ignore(keys)?;
    let (key, kinds) = kinds(keys)?;
    keys.must_be("num_hidden_layers", kinds.len(), key)?;
    let (old, new) = (
        keys.epsilon("layer_norm_epsilon")?,
        keys.epsilon("rms_norm_eps")?,
    );
    let hidden_size = keys.required_size("hidden_size")?;
    let mamba = Mixer::Mamba2(mamba(keys)?);
    let attention = Mixer::Attention(attention(keys, hidden_size)?);
    let plain = FeedForward::Plain {
        intermediate_size: keys.required_size("intermediate_size")?,
        activation: activation(keys, "mlp_hidden_act", Activation::ReluSquared)?,
    };
    let mixture = mixture(keys, kinds.contains(&Kind::Mixture))?;
    let layer = |kind: &Kind| {
        let (mixer, feed_forward) = match kind {
            Kind::Mamba => (&mamba, &FeedForward::Absent),
            Kind::Attention => (&attention, &FeedForward::Absent),
            Kind::FeedForward => (&Mixer::Absent, &plain),
            Kind::Mixture => (&Mixer::Absent, &mixture),
        };
        LayerConfig {
            mixer: mixer.clone(),
            feed_forward: feed_forward.clone(),
            norms: Norms::Before,
        }
    };
    Ok(ModelConfig {
        vocab_size: keys.required_size("vocab_size")?,
        context_length: keys.required_size("max_position_embeddings")?,
        hidden_size,
        norm_eps: old.or(new).unwrap_or(1e-5),
        tied_embeddings: keys.bool("tie_word_embeddings")?.unwrap_or(false),
        layers: kinds.iter().map(layer).collect(),
        ..ModelConfig::new(FAMILY.name)
    })
}

/// Reads what changes nothing that is computed: how weights were drawn, how the reference runs,
/// and heads for further tokens, whose tensors are left alone.
fn ignore(keys: &Keys<'_>) -> Result<(), ConfigFault> {
    for key in [
        "chunk_size",
        "expand",
        "num_logits_to_keep",
        "num_nextn_predict_layers",
    ] {
        keys.size(key)?;
    }
    for key in [
        "time_step_min",
        "time_step_max",
        "time_step_floor",
        "hidden_dropout",
    ] {
        keys.float(key)?;
    }
    for key in [
        "rescale_prenorm_residual",
        "residual_in_fp32",
        "use_mamba_kernels",
        "moe_shared_expert_overlap",
    ] {
        keys.bool(key)?;
    }
    for key in ["mamba_ssm_cache_dtype", "mtp_hybrid_override_pattern"] {
        keys.string(key)?;
    }
    keys.strings("mtp_layers_block_type")?;
    Ok(())
}

/// The layers, and the key that names them: a list of names, or in old files one letter each.
fn kinds(keys: &Keys<'_>) -> Result<(&'static str, Vec<Kind>), ConfigFault> {
    const NAMES: &str = "layers_block_type";
    const PATTERN: &str = "hybrid_override_pattern";
    let unknown = |key: &str, found: &str, supported: &str| ConfigFault::Unsupported {
        key: keys.name(key),
        found: quoted(found),
        supported: supported.to_owned(),
    };
    let names = keys.strings(NAMES)?;
    let pattern = keys.string(PATTERN)?;
    let (key, kinds): (_, Vec<Kind>) = match (names, pattern) {
        (Some(names), _) => {
            let one = |name: &String| match name.as_str() {
                "linear_attention" | "mamba" => Ok(Kind::Mamba),
                "full_attention" | "attention" => Ok(Kind::Attention),
                "mlp" => Ok(Kind::FeedForward),
                "moe" => Ok(Kind::Mixture),
                other => {
                    let known = "\"linear_attention\", \"full_attention\", \"mlp\", \"moe\"";
                    Err(unknown(NAMES, other, known))
                }
            };
            (NAMES, names.iter().map(one).collect::<Result<_, _>>()?)
        }
        (None, Some(pattern)) => {
            let one = |letter: char| match letter {
                'M' => Ok(Kind::Mamba),
                '*' => Ok(Kind::Attention),
                '-' => Ok(Kind::FeedForward),
                'E' => Ok(Kind::Mixture),
                other => {
                    let known = "letters \"M\", \"*\", \"-\", \"E\"";
                    Err(unknown(PATTERN, &other.to_string(), known))
                }
            };
            (PATTERN, pattern.chars().map(one).collect::<Result<_, _>>()?)
        }
        (None, None) => keys.required(NAMES, None)?,
    };
    if kinds.is_empty() {
        return Err(ConfigFault::Invalid {
            key: keys.name(key),
            found: "empty".to_owned(),
            rule: "it must name a layer".to_owned(),
        });
    }
    check_layer_count(kinds.len())?;
    Ok((key, kinds))
}

fn mamba(keys: &Keys<'_>) -> Result<Mamba2, ConfigFault> {
    let group_count = keys.size("n_groups")?.unwrap_or(8);
    Ok(Mamba2 {
        head_count: keys.required_size("mamba_num_heads")?,
        head_dim: keys.required_size("mamba_head_dim")?,
        state_size: keys.required_size("ssm_state_size")?,
        group_count,
        conv_width: keys.size("conv_kernel")?.unwrap_or(4),
        conv_bias: keys.bool("use_conv_bias")?.unwrap_or(true),
        time_step_limits: time_step_limits(keys)?,
        norm_groups: Some(group_count),
    })
}

fn attention(keys: &Keys<'_>, hidden_size: usize) -> Result<Attention, ConfigFault> {
    let head_count = keys.required_size("num_attention_heads")?;
    let kv_head_count = keys.size("num_key_value_heads")?.unwrap_or(head_count);
    let head_dim = keys.size_of_any(&["head_dim", "attention_head_dim"])?;
    let head_dim = head_dim.or(hidden_size.checked_div(head_count));
    Ok(Attention::plain(
        head_count,
        kv_head_count,
        keys.required("head_dim", head_dim)?,
    ))
}

/// Reads the mixture's keys, which files have whether or not a layer is one.
fn mixture(keys: &Keys<'_>, has_one: bool) -> Result<FeedForward, ConfigFault> {
    must_be_null(keys, "moe_latent_size")?;
    let experts = keys.size("n_routed_experts")?;
    let chosen = keys.size("num_experts_per_tok")?.unwrap_or(2);
    let size = keys.size("moe_intermediate_size")?;
    let shared_size = keys.size("moe_shared_expert_intermediate_size")?;
    // The reference has one shared expert, of the size given, whatever this says.
    keys.size("n_shared_experts")?;
    let groups = (
        keys.size("n_group")?.unwrap_or(1),
        keys.size("topk_group")?.unwrap_or(1),
    );
    let scale = keys.positive("routed_scaling_factor")?.unwrap_or(1.0) as f32;
    let renormalise = keys.bool("norm_topk_prob")?.unwrap_or(true);
    if !has_one {
        return Ok(FeedForward::Absent);
    }
    let mixture = Mixture::plain(
        keys.required("n_routed_experts", experts)?,
        chosen,
        keys.required("moe_intermediate_size", size)?,
    );
    Ok(FeedForward::Mixture(Mixture {
        activation: activation(keys, "mlp_hidden_act", Activation::ReluSquared)?,
        gated: false,
        scoring: Scoring::Sigmoid,
        score_bias: true,
        renormalise,
        scale,
        groups,
        shared: Some(SharedExpert {
            intermediate_size: keys.required("moe_shared_expert_intermediate_size", shared_size)?,
            gated: false,
        }),
        ..mixture
    }))
}

fn weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    resolver.ignore(|name| name.starts_with("mtp."));
    resolver.model(config, |resolver, prefix, layer| {
        resolver.standard_layer(prefix, layer)
    })
}
