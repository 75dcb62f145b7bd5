//! Gemma 4 (text, dense): Gemma 3's order of norms, heads of another size in layers of full
//! attention, values normalised, keys and values that the last layers share, inputs of each layer
//! from the token itself, and a cap of the logits. Reference: transformers, `Gemma4ForCausalLM`.

use serde_json::Value as Json;

use super::Family;
use super::gemma3::LAYER_NAMES;
use crate::config::hugging_face::{
    RopeDefaults, common, dense, layer_types, must_be_false, read_by_layer_type,
};
use crate::config::keys::{Found, Keys};
use crate::config::{
    Activation, Attention, ConfigFault, FeedForward, LayerConfig, Mixer, ModelConfig, Norms,
    PerLayerInputs,
};
use crate::weights::{LayerInputWeights, ModelWeights, PerLayerInputWeights, Resolver};

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma4_text"],
    ..Family::new(&["gemma4"], "Gemma4ForCausalLM", from_json, weights)
};

/// One layer of full attention after so many of a window, where the file does not say.
const PATTERN: usize = 6;
/// Head size of layers of full attention, where the file does not say.
const GLOBAL_HEAD_DIM: usize = 512;

fn from_json(keys: &Keys<'_>) -> Result<ModelConfig, ConfigFault> {
    let common = common(keys, FAMILY.name, true)?;
    must_be_false(keys, "enable_moe_block")?;
    for key in ["num_experts", "top_k_experts", "moe_intermediate_size"] {
        keys.size(key)?;
    }
    // Tokens of images see each other; those of text never do.
    keys.only(
        "use_bidirectional_attention",
        "null, \"vision\"",
        |found| matches!(found, Found::String(v) if v == "vision"),
    )?;
    let known = [("full_attention", false), ("sliding_attention", true)];
    let types = layer_types(keys, common.layer_count, &known)?;
    let types: Vec<bool> = types.unwrap_or_else(|| {
        let is_sliding = |n: usize| n != common.layer_count && !n.is_multiple_of(PATTERN);
        (1..=common.layer_count).map(is_sliding).collect()
    });
    let bias = keys.bool("attention_bias")?.unwrap_or(false);
    let sliding = Attention {
        scale: 1.0,
        query_key_norm: true,
        value_norm: true,
        bias,
        output_bias: bias,
        ..common.attention.clone()
    };
    let full = global_attention(keys, &sliding, &types)?;
    let defaults = |theta: f64, head_dim: usize| RopeDefaults {
        theta,
        head_dim,
        ..common.rope_defaults(1.0)
    };
    let (full_rope, local_rope) = read_by_layer_type(
        keys,
        "rope_local_base_freq",
        defaults(1_000_000.0, full.head_dim),
        defaults(10_000.0, sliding.head_dim),
    )?;
    let full = Attention {
        rope: Some(full_rope),
        ..full
    };
    let sliding = Attention {
        rope: Some(local_rope),
        window: Some(keys.size("sliding_window")?.unwrap_or(512)),
        ..sliding
    };
    let shared_count = keys.size("num_kv_shared_layers")?.unwrap_or(0);
    let first_shared = common.layer_count.saturating_sub(shared_count);
    let is_wide = keys.bool("use_double_wide_mlp")?.unwrap_or(false);
    let feed_forward = dense(keys, "hidden_activation", Activation::GeluTanh)?;
    let layers = types.iter().enumerate().map(|(index, &is_sliding)| {
        let attention = if is_sliding { &sliding } else { &full };
        let is_shared = index >= first_shared;
        let owner = types[..first_shared]
            .iter()
            .rposition(|ty| *ty == is_sliding);
        let owner = owner.ok_or_else(|| ConfigFault::Invalid {
            key: keys.name("num_kv_shared_layers"),
            found: shared_count.to_string(),
            rule: "each type of layer needs one with keys and values of its own".to_owned(),
        });
        Ok(LayerConfig {
            mixer: Mixer::Attention(Attention {
                shares_cache_of: is_shared.then_some(owner).transpose()?,
                ..attention.clone()
            }),
            feed_forward: widened(&feed_forward, is_wide && is_shared),
            norms: Norms::BeforeAndAfter,
        })
    });
    let layers = layers.collect::<Result<_, ConfigFault>>()?;
    let size = keys.size("hidden_size_per_layer_input")?.unwrap_or(256);
    let vocab_size = keys.size("vocab_size_per_layer_input")?.unwrap_or(262_144);
    Ok(ModelConfig {
        layers,
        embedding_scale: (common.config.hidden_size as f32).sqrt(),
        logit_soft_cap: keys
            .positive("final_logit_softcapping")?
            .map(|cap| cap as f32),
        per_layer_inputs: (size > 0).then_some(PerLayerInputs { vocab_size, size }),
        ..common.config
    })
}

fn widened(feed_forward: &FeedForward, is_wide: bool) -> FeedForward {
    match feed_forward {
        FeedForward::Dense {
            intermediate_size,
            activation,
        } if is_wide => FeedForward::Dense {
            intermediate_size: intermediate_size.saturating_mul(2),
            activation: *activation,
        },
        other => other.clone(),
    }
}

/// The heads of full attention: of `per_layer_config` in new files, which names each such layer,
/// of `global_head_dim` and `num_global_key_value_heads` in the first ones.
fn global_attention(
    keys: &Keys<'_>,
    sliding: &Attention,
    types: &[bool],
) -> Result<Attention, ConfigFault> {
    let value_is_key = keys.bool("attention_k_eq_v")?.unwrap_or(false);
    let head_dim = keys.size("global_head_dim")?;
    let kv_heads = keys
        .size("num_global_key_value_heads")?
        .filter(|_| value_is_key);
    let mut own = [
        Some(head_dim.unwrap_or(GLOBAL_HEAD_DIM)),
        kv_heads.or(Some(sliding.kv_head_count)),
    ];
    if let Some(layers) = keys.object("per_layer_config")? {
        const KEYS: [&str; 2] = ["head_dim", "num_key_value_heads"];
        let defaults = [sliding.head_dim, sliding.kv_head_count];
        let mut found: Option<[Option<usize>; 2]> = None;
        for (index, is_sliding) in types.iter().enumerate() {
            let layer = layers.get(&index.to_string()).and_then(Json::as_object);
            let empty = serde_json::Map::new();
            let layer = Keys::json(
                layer.unwrap_or(&empty),
                &format!("per_layer_config.{index}."),
            );
            let mut sizes = [None, None];
            for ((size, key), default) in sizes.iter_mut().zip(KEYS).zip(defaults) {
                *size = Some(layer.size(key)?.unwrap_or(default));
            }
            layer.finish(&[])?;
            let expected = if *is_sliding {
                defaults.map(Some)
            } else {
                *found.get_or_insert(sizes)
            };
            if sizes != expected {
                return Err(ConfigFault::Unsupported {
                    key: layer.name("head_dim and num_key_value_heads"),
                    found: format!("{sizes:?}"),
                    supported: "one size for all layers of a type".to_owned(),
                });
            }
        }
        let known = |name: &str| name.parse::<usize>().is_ok_and(|i| i < types.len());
        if let Some(unknown) = layers.keys().find(|name| !known(name)) {
            return Err(ConfigFault::Unknown {
                keys: vec![crate::quote::quoted(&format!("per_layer_config.{unknown}"))],
            });
        }
        own = found.unwrap_or(own);
    }
    let [head_dim, kv_head_count] = own;
    Ok(Attention {
        head_dim: head_dim.unwrap_or(sliding.head_dim),
        kv_head_count: kv_head_count.unwrap_or(sliding.kv_head_count),
        value_is_key,
        ..sliding.clone()
    })
}

fn weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    // Those of layers that read another's keys and values, which some files hold. Of any other
    // layer they are not to be left aside: where a file has `v_proj` although its config says
    // that values are keys, one of the two is wrong.
    let shares = |layer: &LayerConfig| matches!(&layer.mixer, Mixer::Attention(attention) if attention.shares_cache_of.is_some());
    let shares: Vec<bool> = config.layers.iter().map(shares).collect();
    resolver.ignore(move |name| {
        let layer = name.split_once("layers.").map_or("", |(_, layer)| layer);
        let (index, part) = layer.split_once(".self_attn.").unwrap_or_default();
        let is_shared = index
            .parse()
            .is_ok_and(|i: usize| shares.get(i) == Some(&true));
        is_shared
            && ["k_proj.", "v_proj.", "k_norm.", "v_norm."]
                .iter()
                .any(|own| part.starts_with(own))
    });
    let inputs = config.per_layer_inputs.clone();
    let mut weights = resolver.model(config, |resolver, prefix, layer| {
        let mut weights = resolver.named_layer(prefix, layer, &LAYER_NAMES);
        let hidden = resolver.hidden_size();
        weights.output_scale = Some(resolver.vector(&format!("{prefix}layer_scalar"), 1));
        weights.inputs = inputs.as_ref().map(|inputs| {
            let name = |part: &str| format!("{prefix}{part}.weight");
            LayerInputWeights {
                gate: resolver.matrix(&name("per_layer_input_gate"), &[inputs.size, hidden]),
                output: resolver.matrix(&name("per_layer_projection"), &[hidden, inputs.size]),
                norm: resolver.norm(&name("post_per_layer_input_norm"), hidden),
            }
        });
        weights
    });
    weights.per_layer = inputs.map(|inputs| {
        let all = config.layers.len() * inputs.size;
        let hidden = resolver.hidden_size();
        let name = |part: &str| format!("model.{part}.weight");
        PerLayerInputWeights {
            embedding: resolver.matrix(&name("embed_tokens_per_layer"), &[inputs.vocab_size, all]),
            projection: resolver.matrix(&name("per_layer_model_projection"), &[all, hidden]),
            norm: resolver.norm(&name("per_layer_projection_norm"), inputs.size),
        }
    });
    weights
}
