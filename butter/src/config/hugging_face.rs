//! [`LlamaConfig`] from a Hugging Face `config.json`, old and new spellings.

use std::path::Path;

use serde_json::{Map, Value as Json};

use super::gguf::{is_one, linear};
use super::keys::{Found, Keys};
use super::{ConfigError, ConfigFault, LlamaConfig};
use crate::quote::quoted;
use crate::rope::{Rope, RopeLayout, RopeScaling};

/// Keys that do not change what the graph computes.
const IRRELEVANT: &[&str] = &[
    // Training only.
    "attention_dropout",
    "initializer_range",
    // How the weights were sharded in training; the product is the same.
    "pretraining_tp",
    // Who wrote the file and how the reference should run it.
    "_name_or_path",
    "transformers_version",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "is_llama_config",
    "transformers.js_config",
    "unsloth_fixed",
    "unsloth_version",
    // Storage type; each tensor names its own.
    "dtype",
    "torch_dtype",
    // Tokens are the tokenizer's and the generation settings' business.
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
];

impl LlamaConfig {
    /// Reads and checks `config.json`.
    pub fn from_config_json(path: &Path) -> Result<Self, ConfigError> {
        std::fs::read(path)
            .map_err(ConfigFault::Io)
            .and_then(|bytes| serde_json::from_slice(&bytes).map_err(ConfigFault::Json))
            .and_then(|object| Self::from_json(&object))
            .map_err(|fault| ConfigError {
                path: path.to_owned(),
                fault: Box::new(fault),
            })
    }

    /// The same from a parsed object.
    pub fn from_json(object: &Map<String, Json>) -> Result<Self, ConfigFault> {
        read(object).and_then(LlamaConfig::validate)
    }
}

fn read(object: &Map<String, Json>) -> Result<LlamaConfig, ConfigFault> {
    let keys = Keys::json(object, "");
    let model_type = keys.string("model_type")?;
    let model_type = keys.required("model_type", model_type)?;
    if model_type != "llama" {
        return Err(ConfigFault::Unsupported {
            key: "model_type".to_owned(),
            found: quoted(&model_type),
            supported: "\"llama\"",
        });
    }
    check_architectures(&keys, object)?;
    let is_false = |found: &Found| matches!(found, Found::Bool(false));
    keys.only("attention_bias", "false", is_false)?;
    keys.only("mlp_bias", "false", is_false)?;
    keys.only(
        "hidden_act",
        "\"silu\"",
        |found| matches!(found, Found::String(s) if s == "silu"),
    )?;
    keys.only("partial_rotary_factor", "1", is_one)?;
    keys.only("sliding_window", "null", |_| false)?;
    keys.only(
        "quantization_config",
        "null (plain F32, F16 and BF16 weights)",
        |_| false,
    )?;

    let hidden_size = keys.required_size("hidden_size")?;
    let head_count = keys.required_size("num_attention_heads")?;
    let head_dim = match keys.size("head_dim")? {
        Some(size) => size,
        None if head_count > 0 && hidden_size.is_multiple_of(head_count) => {
            hidden_size / head_count
        }
        None => {
            return Err(ConfigFault::Invalid {
                key: "hidden_size".to_owned(),
                found: format!("{hidden_size} for {head_count} heads"),
                rule: "without head_dim it must be a multiple of num_attention_heads".to_owned(),
            });
        }
    };
    let layout = match keys.bool("rope_interleaved")? {
        None | Some(false) => RopeLayout::HalfSplit,
        Some(true) => RopeLayout::Interleaved,
    };
    let (theta, scaling) = rope(&keys)?;

    // Defaults: transformers, `LlamaConfig`.
    let config = LlamaConfig {
        vocab_size: keys.required_size("vocab_size")?,
        context_length: keys.required_size("max_position_embeddings")?,
        hidden_size,
        intermediate_size: keys.required_size("intermediate_size")?,
        layer_count: keys.required_size("num_hidden_layers")?,
        head_count,
        kv_head_count: keys.size("num_key_value_heads")?.unwrap_or(head_count),
        head_dim,
        rms_norm_eps: keys.float("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        rope: Rope {
            theta,
            rotary_dim: head_dim,
            layout,
            scaling,
        },
        tied_embeddings: keys.bool("tie_word_embeddings")?.unwrap_or(false),
    };
    keys.finish(IRRELEVANT)?;
    Ok(config)
}

fn check_architectures(keys: &Keys<'_>, object: &Map<String, Json>) -> Result<(), ConfigFault> {
    let is_llama = match object.get("architectures") {
        None | Some(Json::Null) => true,
        Some(Json::Array(names)) => names.iter().all(|name| name == "LlamaForCausalLM"),
        Some(_) => false,
    };
    let found = object
        .get("architectures")
        .map(|names| quoted(&names.to_string()));
    keys.only("architectures", "[\"LlamaForCausalLM\"]", |_| is_llama)
        .map_err(|fault| match fault {
            ConfigFault::Unsupported { key, supported, .. } => ConfigFault::Unsupported {
                key,
                found: found.unwrap_or_default(),
                supported,
            },
            other => other,
        })
}

/// The RoPE base and recipe, from `rope_theta` and `rope_scaling` (old), from
/// `rope_parameters` (new), or from both where they agree.
fn rope(keys: &Keys<'_>) -> Result<(f64, RopeScaling), ConfigFault> {
    let old_theta = keys.float("rope_theta")?;
    let old = match keys.object("rope_scaling")? {
        Some(object) => Some(recipe(Keys::json(object, "rope_scaling."))?),
        None => None,
    };
    let new = match keys.object("rope_parameters")? {
        Some(object) => Some(recipe(Keys::json(object, "rope_parameters."))?),
        None => None,
    };

    let mut theta = old_theta.map(|theta| ("rope_theta", theta));
    for (key, recipe) in [
        ("rope_scaling.rope_theta", old.as_ref()),
        ("rope_parameters.rope_theta", new.as_ref()),
    ] {
        let Some(second) = recipe.and_then(|recipe| recipe.theta) else {
            continue;
        };
        match theta {
            Some((first_key, first)) if first != second => {
                return Err(conflict(
                    first_key,
                    first.to_string(),
                    key,
                    second.to_string(),
                ));
            }
            _ => theta = Some((key, second)),
        }
    }
    let scaling = match (old, new) {
        (Some(old), Some(new)) if old.scaling != new.scaling => {
            let (old, new) = (format!("{:?}", old.scaling), format!("{:?}", new.scaling));
            return Err(conflict("rope_scaling", old, "rope_parameters", new));
        }
        (Some(one), _) | (None, Some(one)) => one.scaling,
        (None, None) => RopeScaling::Default,
    };
    Ok((theta.map_or(10_000.0, |(_, theta)| theta), scaling))
}

struct Recipe {
    theta: Option<f64>,
    scaling: RopeScaling,
}

fn recipe(keys: Keys<'_>) -> Result<Recipe, ConfigFault> {
    let name = match (keys.string("rope_type")?, keys.string("type")?) {
        (Some(new), Some(old)) if new != old => {
            let (new_key, old_key) = (keys.name("rope_type"), keys.name("type"));
            return Err(conflict(&new_key, quoted(&new), &old_key, quoted(&old)));
        }
        (Some(name), _) | (None, Some(name)) => name,
        (None, None) => {
            return Err(ConfigFault::Missing {
                key: keys.name("rope_type"),
            });
        }
    };
    let positive = |key: &str| {
        let value = keys.float(key)?;
        let value = keys.required(key, value)?;
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        Err(ConfigFault::Invalid {
            key: keys.name(key),
            found: value.to_string(),
            rule: "it must be positive".to_owned(),
        })
    };
    let scaling = match name.as_str() {
        "default" => RopeScaling::Default,
        "linear" => linear(&keys.name("factor"), positive("factor")?)?,
        "llama3" => {
            let low_freq_factor = positive("low_freq_factor")?;
            let high_freq_factor = positive("high_freq_factor")?;
            if low_freq_factor >= high_freq_factor {
                return Err(ConfigFault::Invalid {
                    key: keys.name("low_freq_factor"),
                    found: low_freq_factor.to_string(),
                    rule: format!("it must be below high_freq_factor = {high_freq_factor}"),
                });
            }
            RopeScaling::Llama3 {
                factor: positive("factor")?,
                low_freq_factor,
                high_freq_factor,
                original_context: keys.required_size("original_max_position_embeddings")?,
            }
        }
        other => {
            return Err(ConfigFault::Unsupported {
                key: keys.name("rope_type"),
                found: quoted(other),
                supported: "\"default\", \"linear\", \"llama3\"",
            });
        }
    };
    let theta = keys.float("rope_theta")?;
    keys.only("partial_rotary_factor", "1", is_one)?;
    keys.finish(&[])?;
    Ok(Recipe { theta, scaling })
}

fn conflict(first_key: &str, first: String, second_key: &str, second: String) -> ConfigFault {
    ConfigFault::Conflict {
        first_key: first_key.to_owned(),
        first,
        second_key: second_key.to_owned(),
        second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn base() -> Map<String, Json> {
        let object = json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
            "intermediate_size": 160, "max_position_embeddings": 1024, "num_attention_heads": 4,
            "num_hidden_layers": 6, "vocab_size": 512, "hidden_act": "silu",
        });
        let Json::Object(object) = object else {
            unreachable!("an object literal")
        };
        object
    }

    fn with(changes: Json) -> Result<LlamaConfig, String> {
        let mut object = base();
        let Json::Object(changes) = changes else {
            unreachable!("an object literal")
        };
        object.extend(changes);
        LlamaConfig::from_json(&object).map_err(|fault| fault.to_string())
    }

    fn scaling(changes: Json) -> Result<RopeScaling, String> {
        with(changes).map(|config| config.rope.scaling)
    }

    #[test]
    fn absent_keys_take_the_reference_defaults() {
        let config = with(json!({})).expect("the base is complete");
        assert_eq!((config.head_dim, config.kv_head_count), (16, 4));
        assert_eq!((config.rope.theta, config.rms_norm_eps), (10_000.0, 1e-6));
        assert!(!config.tied_embeddings);
    }

    // E15, E16
    #[test]
    fn rope_spellings_agree_or_are_refused_by_name() {
        let linear = RopeScaling::Linear { factor: 2.0 };
        for spelling in [
            json!({"rope_scaling": {"type": "linear", "factor": 2.0}}),
            json!({"rope_scaling": {"rope_type": "linear", "factor": 2}}),
            json!({"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2.0}}),
            json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
            json!({"rope_scaling": {"type": "linear", "factor": 2.0},
                   "rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
        ] {
            assert_eq!(scaling(spelling.clone()), Ok(linear.clone()), "{spelling}");
        }
        for (wrong, words) in [
            (
                json!({"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2.0}}),
                "rope_scaling.rope_type is `llama3`, but rope_scaling.type is `linear`",
            ),
            (
                json!({"rope_scaling": {"type": "linear", "factor": 2.0},
                       "rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
                "rope_scaling is Linear { factor: 2.0 }, but rope_parameters",
            ),
            (
                json!({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
                "rope_theta is 500000, but rope_parameters.rope_theta is 10000",
            ),
            (
                json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}),
                "is `yarn`, supported",
            ),
            (
                json!({"rope_scaling": {"factor": 4.0}}),
                "rope_scaling.rope_type is missing",
            ),
            (
                json!({"rope_scaling": {"type": "linear"}}),
                "rope_scaling.factor is missing",
            ),
            (
                json!({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 1}}),
                "unknown key `rope_scaling.beta_fast`",
            ),
        ] {
            let error = scaling(wrong.clone()).expect_err("the recipe is wrong");
            assert!(error.contains(words), "{wrong}: {error}");
        }
    }

    // E19
    #[test]
    fn what_the_graph_does_not_compute_is_refused() {
        for (wrong, words) in [
            (
                json!({"attention_bias": true}),
                "attention_bias is true, supported: false",
            ),
            (
                json!({"hidden_act": "gelu"}),
                "hidden_act is `gelu`, supported: \"silu\"",
            ),
            (
                json!({"architectures": ["LlamaForSequenceClassification"]}),
                "architectures is",
            ),
            (json!({"model_type": "qwen3"}), "model_type is `qwen3`"),
            (
                json!({"attention_sinks": 4}),
                "unknown key `attention_sinks`",
            ),
            (
                json!({"sliding_window": 128}),
                "sliding_window is 128, supported: null",
            ),
            (json!({"num_key_value_heads": 3}), "3 for 4 query heads"),
            (
                json!({"hidden_size": "64"}),
                "hidden_size is `64`, expected a non-negative integer",
            ),
            (json!({"hidden_size": -64}), "hidden_size is -64"),
            (
                json!({"num_hidden_layers": 4294967296u64}),
                "layer count is 4294967296",
            ),
            (
                json!({"vocab_size": null}),
                "required key vocab_size is missing",
            ),
        ] {
            let error = with(wrong.clone()).expect_err("the config is wrong");
            assert!(error.contains(words), "{wrong}: {error}");
        }
    }
}
