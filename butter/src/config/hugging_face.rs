//! [`ModelConfig`] from a Hugging Face `config.json`, old and new spellings.

use std::path::Path;

use serde_json::{Map, Value as Json};

use super::keys::{Found, Keys};
pub(crate) use super::rope_keys::{RopeDefaults, read as rope, read_by_layer_type};
use super::{
    Activation, Attention, ConfigError, ConfigFault, FeedForward, ModelConfig, check_layer_count,
    rope_keys,
};
use crate::families;
use crate::json::unique_object;
use crate::quote::quoted;

/// Keys that change nothing that the graph computes, whatever the family.
const IRRELEVANT: &[&str] = &[
    // Training only.
    "attention_dropout",
    "initializer_range",
    "router_aux_loss_coef",
    // How the weights were sharded in training; the product is the same.
    "pretraining_tp",
    // Who wrote the file and how the reference should run it.
    "_name_or_path",
    "transformers_version",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "is_llama_config",
    "transformers.js_config",
    "auto_map",
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

impl ModelConfig {
    /// Reads and checks `config.json`.
    pub fn from_config_json(path: &Path) -> Result<Self, ConfigError> {
        std::fs::read(path)
            .map_err(ConfigFault::Io)
            .and_then(|bytes| unique_object(&bytes).map_err(ConfigFault::Json))
            .and_then(|object| Self::from_json(&object))
            .map_err(|fault| ConfigError {
                path: path.to_owned(),
                fault: Box::new(fault),
            })
    }

    /// The same from a parsed object.
    pub fn from_json(object: &Map<String, Json>) -> Result<Self, ConfigFault> {
        let text = super::multimodal::text_config(object, IRRELEVANT)?;
        let object = rope_keys::with_original_context(text.unwrap_or_else(|| object.clone()));
        let keys = Keys::json(&object, "");
        let model_type = keys.string("model_type")?;
        let model_type = keys.required("model_type", model_type)?;
        let Some(family) = families::by_model_type(&model_type) else {
            return Err(ConfigFault::Unsupported {
                key: "model_type".to_owned(),
                found: quoted(&model_type),
                supported: families::supported_model_types(),
            });
        };
        check_architectures(&keys, family.architecture)?;
        let config = (family.from_json)(&keys)
            .and_then(ModelConfig::validate)
            .map_err(|fault| fault.with_keys(&keys))?;
        if !keys.is_read("quantization_config") {
            let supported = "null (plain F32, F16 and BF16 weights)";
            keys.only("quantization_config", supported, |_| false)?;
        }
        keys.finish(IRRELEVANT)?;
        Ok(config)
    }
}

fn check_architectures(keys: &Keys<'_>, architecture: &str) -> Result<(), ConfigFault> {
    let found = keys.json_value("architectures");
    let right = match found {
        None => true,
        Some(Json::Array(names)) => names.iter().all(|name| name == architecture),
        Some(_) => false,
    };
    if right {
        return Ok(());
    }
    Err(ConfigFault::Unsupported {
        key: "architectures".to_owned(),
        found: found.map_or_else(String::new, |names| quoted(&names.to_string())),
        supported: format!("[{architecture:?}]"),
    })
}

/// The sizes that every family has.
pub(crate) struct Common {
    /// Config with the sizes filled in, and no layers.
    pub(crate) config: ModelConfig,
    /// Number of layers.
    pub(crate) layer_count: usize,
    /// Attention with the heads filled in, and no positions.
    pub(crate) attention: Attention,
}

/// Reads the sizes that every family has. `tied` is the family's default.
pub(crate) fn common(
    keys: &Keys<'_>,
    family: &'static str,
    tied: bool,
) -> Result<Common, ConfigFault> {
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
    let kv_head_count = keys.size("num_key_value_heads")?.unwrap_or(head_count);
    Ok(Common {
        config: ModelConfig {
            vocab_size: keys.required_size("vocab_size")?,
            context_length: keys.required_size("max_position_embeddings")?,
            hidden_size,
            norm_eps: keys.epsilon("rms_norm_eps")?.unwrap_or(1e-6),
            tied_embeddings: keys.bool("tie_word_embeddings")?.unwrap_or(tied),
            ..ModelConfig::new(family)
        },
        layer_count: check_layer_count(keys.required_size("num_hidden_layers")?)?,
        attention: Attention::plain(head_count, kv_head_count, head_dim),
    })
}

impl Common {
    /// Epsilon of norms where the file does not say.
    pub(crate) fn or_norm_eps(
        mut self,
        keys: &Keys<'_>,
        default: f32,
    ) -> Result<Self, ConfigFault> {
        self.config.norm_eps = keys.epsilon("rms_norm_eps")?.unwrap_or(default);
        Ok(self)
    }

    /// What a family takes where the file does not say: the first recipe's base, and the part of
    /// each head that is rotated.
    pub(crate) fn rope_defaults(&self, partial: f64) -> RopeDefaults {
        RopeDefaults {
            head_dim: self.attention.head_dim,
            theta: 10_000.0,
            partial,
            context_length: self.config.context_length,
        }
    }

    /// The attention with one recipe of positions and the biases that `attention_bias` asks for.
    pub(crate) fn rotary_attention(
        &self,
        keys: &Keys<'_>,
        partial: f64,
    ) -> Result<Attention, ConfigFault> {
        let rope = rope(keys, self.rope_defaults(partial))?;
        let bias = keys.bool("attention_bias")?.unwrap_or(false);
        Ok(Attention {
            bias,
            output_bias: bias,
            rope: Some(rope),
            ..self.attention.clone()
        })
    }
}

/// The dense feed-forward of `intermediate_size` and the activation under `key`.
pub(crate) fn dense(
    keys: &Keys<'_>,
    activation_key: &str,
    default: Activation,
) -> Result<FeedForward, ConfigFault> {
    Ok(FeedForward::Dense {
        intermediate_size: keys.required_size("intermediate_size")?,
        activation: activation(keys, activation_key, default)?,
    })
}

/// The activation under a key.
pub(crate) fn activation(
    keys: &Keys<'_>,
    key: &str,
    default: Activation,
) -> Result<Activation, ConfigFault> {
    match keys.string(key)?.as_deref() {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some("relu2") => Ok(Activation::ReluSquared),
        Some(other) => Err(ConfigFault::Unsupported {
            key: keys.name(key),
            found: quoted(other),
            supported: "\"silu\", \"gelu_pytorch_tanh\", \"relu2\"".to_owned(),
        }),
    }
}

/// `layer_types`, each turned into what `known` gives for it; an unknown type is an error.
pub(crate) fn layer_types<T: Copy>(
    keys: &Keys<'_>,
    layer_count: usize,
    known: &[(&str, T)],
) -> Result<Option<Vec<T>>, ConfigFault> {
    let Some(names) = keys.strings("layer_types")? else {
        return Ok(None);
    };
    if names.len() != layer_count {
        return Err(ConfigFault::Conflict {
            first_key: "num_hidden_layers".to_owned(),
            first: layer_count.to_string(),
            second_key: "layer_types".to_owned(),
            second: format!("a list of {}", names.len()),
        });
    }
    let one = |name: &String| {
        let found = known.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<String> = known.iter().map(|(name, _)| format!("{name:?}")).collect();
            ConfigFault::Unsupported {
                key: "layer_types".to_owned(),
                found: quoted(name),
                supported: names.join(", "),
            }
        })
    };
    names.iter().map(one).collect::<Result<_, _>>().map(Some)
}

/// Accepts `true` alone.
pub(crate) fn must_be_true(keys: &Keys<'_>, key: &str) -> Result<(), ConfigFault> {
    keys.only(key, "true", |found| matches!(found, Found::Bool(true)))
}

/// Accepts `null` alone.
pub(crate) fn must_be_null(keys: &Keys<'_>, key: &str) -> Result<(), ConfigFault> {
    keys.only(key, "null", |_| false)
}

/// Accepts one string alone.
pub(crate) fn must_say(keys: &Keys<'_>, key: &str, text: &str) -> Result<(), ConfigFault> {
    let supported = format!("{text:?}");
    keys.only(
        key,
        &supported,
        |found| matches!(found, Found::String(v) if v == text),
    )
}

/// Accepts `false` alone.
pub(crate) fn must_be_false(keys: &Keys<'_>, key: &str) -> Result<(), ConfigFault> {
    keys.only(key, "false", |found| matches!(found, Found::Bool(false)))
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::rope::RopeScaling;
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

    fn with(changes: Json) -> Result<ModelConfig, String> {
        let mut object = base();
        let Json::Object(changes) = changes else {
            unreachable!("an object literal")
        };
        object.extend(changes);
        ModelConfig::from_json(&object).map_err(|fault| fault.to_string())
    }

    fn first(config: &ModelConfig) -> &Attention {
        config.attention_layers().next().expect("a layer")
    }

    fn scaling(changes: Json) -> Result<RopeScaling, String> {
        with(changes).map(|config| first(&config).rope.clone().expect("positions").scaling)
    }

    #[test]
    fn absent_keys_take_the_reference_defaults() {
        let config = with(json!({})).expect("the base is complete");
        let attention = first(&config);
        assert_eq!((attention.head_dim, attention.kv_head_count), (16, 4));
        let theta = attention.rope.as_ref().expect("positions").theta;
        assert_eq!((theta, config.norm_eps), (10_000.0, 1e-6));
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
                "rope_scaling.rope_type is Linear { factor: 2.0 }, but rope_parameters",
            ),
            (
                json!({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
                "rope_theta is 500000.0, but rope_parameters.rope_theta is 10000.0",
            ),
            (
                json!({"rope_scaling": {"type": "ntk", "factor": 4.0}}),
                "is `ntk`, supported",
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
                json!({"mlp_bias": true}),
                "mlp_bias is true, supported: false",
            ),
            (
                json!({"hidden_act": "gelu"}),
                "hidden_act is `gelu`, supported: \"silu\", \"gelu_pytorch_tanh\", \"relu2\"",
            ),
            (
                json!({"architectures": ["LlamaForSequenceClassification"]}),
                "architectures is",
            ),
            (json!({"model_type": "rwkv"}), "model_type is `rwkv`"),
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
