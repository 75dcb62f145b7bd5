//! DeepSeek-V3: attention over latents, first layers that are dense, and mixtures whose experts
//! are chosen from the best groups by a sigmoid and a correction, with a shared expert. Reference:
//! transformers, `DeepseekV3ForCausalLM`.

use super::Family;
use crate::config::hugging_face::{RopeDefaults, activation, dense, must_be_false, must_say, rope};
use crate::config::keys::{Found, Keys};
use crate::config::{
    Activation, ConfigFault, FeedForward, LatentAttention, LayerConfig, Mixer, Mixture,
    ModelConfig, MultiTokenHead, Norms, Scoring, SharedExpert, check_head_count, check_layer_count,
};
use crate::rope::{Rope, RopeLayout};
use crate::weights::{HeadNames, ModelWeights, Resolver};

pub(super) const FAMILY: Family = Family {
    hugging_face_names: &[("shared_expert.", "shared_experts.")],
    ..Family::new(
        &["deepseek_v3"],
        "DeepseekV3ForCausalLM",
        from_json,
        weights,
    )
};

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let layer_count = check_layer_count(keys.required_size("num_hidden_layers")?)?;
    // Heads that predict further tokens; their layers come after the model's.
    let heads = keys.size_of_any(&["num_nextn_predict_layers", "num_mtp_layers"])?;
    let heads = heads.map(check_head_count).transpose()?;
    // How the training was spread over devices and balanced.
    keys.size("ep_size")?;
    keys.float("aux_loss_alpha")?;
    keys.bool("seq_aux")?;
    let mixer = Mixer::Latent(latent(keys)?);
    let dense = dense(keys, "hidden_act", Activation::Silu)?;
    let mixture = FeedForward::Mixture(mixture(keys)?);
    let first_mixture = keys.size("first_k_dense_replace")?.unwrap_or(3);
    let layer = |index| LayerConfig {
        mixer: mixer.clone(),
        feed_forward: if index < first_mixture {
            &dense
        } else {
            &mixture
        }
        .clone(),
        norms: Norms::Before,
    };
    Ok(ModelConfig {
        vocab_size: keys.required_size("vocab_size")?,
        context_length: keys.required_size("max_position_embeddings")?,
        hidden_size: keys.required_size("hidden_size")?,
        norm_eps: keys.epsilon("rms_norm_eps")?.unwrap_or(1e-6),
        tied_embeddings: keys.bool("tie_word_embeddings")?.unwrap_or(false),
        layers: (0..layer_count).map(layer).collect(),
        multi_token_head: heads
            .is_some_and(|heads| heads > 0)
            .then(|| MultiTokenHead {
                layer: layer(layer_count),
                feeds_normed: false,
            }),
        ..ModelConfig::new(FAMILY.name)
    })
}

fn latent(keys: &Keys<'_>) -> Result<LatentAttention, ConfigFault> {
    let head_count = keys.required_size("num_attention_heads")?;
    keys.must_be("num_key_value_heads", head_count, "num_attention_heads")?;
    let key_dim = keys.required_size("qk_nope_head_dim")?;
    let rotary_dim = keys.required_size("qk_rope_head_dim")?;
    // What newer files repeat.
    keys.must_be("head_dim", rotary_dim, "qk_rope_head_dim")?;
    let query_size = key_dim.saturating_add(rotary_dim);
    keys.must_be(
        "qk_head_dim",
        query_size,
        "qk_nope_head_dim + qk_rope_head_dim",
    )?;
    must_be_false(keys, "attention_bias")?;
    let recipe = rope(
        keys,
        RopeDefaults {
            head_dim: rotary_dim,
            theta: 10_000.0,
            partial: 1.0,
            context_length: keys.required_size("max_position_embeddings")?,
        },
    )?;
    let layout = match keys.bool("rope_interleave")? {
        None | Some(true) => RopeLayout::Interleaved,
        Some(false) => RopeLayout::HalfSplit,
    };
    Ok(LatentAttention {
        head_count,
        latent_size: keys.required_size("kv_lora_rank")?,
        query_rank: keys.size("q_lora_rank")?,
        key_dim,
        rotary_dim,
        value_dim: keys.required_size("v_head_dim")?,
        scale: recipe.score_factor() / (query_size as f32).sqrt(),
        rope: Rope { layout, ..recipe },
    })
}

fn mixture(keys: &Keys<'_>) -> Result<Mixture, ConfigFault> {
    must_say(keys, "topk_method", "noaux_tc")?;
    must_say(keys, "scoring_func", "sigmoid")?;
    keys.only("moe_layer_freq", "1", |found| {
        matches!(found, Found::Unsigned(1))
    })?;
    let intermediate_size = keys.required_size("moe_intermediate_size")?;
    let shared = keys.size("n_shared_experts")?.unwrap_or(1);
    let mixture = Mixture::plain(
        keys.required_size("n_routed_experts")?,
        keys.size("num_experts_per_tok")?.unwrap_or(8),
        intermediate_size,
    );
    Ok(Mixture {
        activation: activation(keys, "hidden_act", Activation::Silu)?,
        scoring: Scoring::Sigmoid,
        score_bias: true,
        renormalise: keys.bool("norm_topk_prob")?.unwrap_or(true),
        scale: keys.positive("routed_scaling_factor")?.unwrap_or(2.5) as f32,
        groups: (
            keys.size("n_group")?.unwrap_or(8),
            keys.size("topk_group")?.unwrap_or(4),
        ),
        shared: (shared > 0).then(|| SharedExpert {
            intermediate_size: shared.saturating_mul(intermediate_size),
            gated: false,
        }),
        ..mixture
    })
}

fn weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    let layer_count = config.layers.len();
    let model = super::standard_weights(resolver, config);
    let name = |part: &str| format!("model.layers.{layer_count}.{part}");
    let names = HeadNames {
        embedding_norm: name("enorm.weight"),
        hidden_norm: name("hnorm.weight"),
        join: name("eh_proj.weight"),
        layer: name(""),
        norm: name("shared_head.norm.weight"),
        copies: vec![
            (name("embed_tokens.weight"), "model.embed_tokens.weight"),
            (name("shared_head.head.weight"), "lm_head.weight"),
        ],
    };
    let multi_token_head = resolver.multi_token_head(config, &names);
    // The first head is used, if the config names one.
    let first_unused = layer_count + usize::from(multi_token_head.is_some());
    resolver.ignore(move |name| {
        let layer = name.strip_prefix("model.layers.");
        let index = layer.and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
        index.is_some_and(|index| index >= first_unused)
    });
    ModelWeights {
        multi_token_head,
        ..model
    }
}
