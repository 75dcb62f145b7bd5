//! Text models inside models that see or hear: the text part of their `config.json`. Only text
//! goes in, so that the other parts change nothing.

use serde_json::{Map, Value as Json};

use super::ConfigFault;
use super::hugging_face::must_be_null;
use super::keys::Keys;
use crate::quote::quoted;

/// One kind of wrapper.
struct Wrapper {
    model_type: &'static str,
    architecture: &'static str,
    /// `model_type` of its text model, and that one's architecture.
    text: (&'static str, &'static str),
}

const WRAPPERS: &[Wrapper] = &[
    Wrapper {
        model_type: "gemma3",
        architecture: "Gemma3ForConditionalGeneration",
        text: ("gemma3_text", "Gemma3ForCausalLM"),
    },
    Wrapper {
        model_type: "gemma4",
        architecture: "Gemma4ForConditionalGeneration",
        text: ("gemma4_text", "Gemma4ForCausalLM"),
    },
    Wrapper {
        model_type: "qwen3_5",
        architecture: "Qwen3_5ForConditionalGeneration",
        text: ("qwen3_5_text", "Qwen3_5ForCausalLM"),
    },
    Wrapper {
        model_type: "qwen3_5_moe",
        architecture: "Qwen3_5MoeForConditionalGeneration",
        text: ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
    },
];

/// Keys beside the text model's: the other parts, and the tokens that stand for them.
const OTHER_PARTS: &[&str] = &[
    "vision_config",
    "audio_config",
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "audio_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "boi_token_id",
    "boi_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "boa_token_id",
    "boa_token_index",
    "eoa_token_id",
    "eoa_token_index",
    "mm_tokens_per_image",
    "vision_soft_tokens_per_image",
    "audio_soft_tokens_per_image",
    "audio_ms_per_token",
];

/// What absent keys of a `gemma3_text` inside a wrapper stand for; its makers wrote few.
const GEMMA3_DEFAULTS: &[(&str, u64)] = &[
    ("vocab_size", 262_208),
    ("max_position_embeddings", 131_072),
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
    ("head_dim", 256),
];

/// The text model's own config, where `object` is that of a wrapper.
pub(super) fn text_config(
    object: &Map<String, Json>,
    irrelevant: &[&str],
) -> Result<Option<Map<String, Json>>, ConfigFault> {
    let model_type = object.get("model_type").and_then(Json::as_str);
    let Some(wrapper) = WRAPPERS.iter().find(|w| Some(w.model_type) == model_type) else {
        return Ok(None);
    };
    let keys = Keys::json(object, "");
    let text = keys.required("text_config", keys.object("text_config")?)?;
    let inner = Keys::json(text, "text_config.");
    let (text_type, text_architecture) = wrapper.text;
    for (keys, key, expected) in [
        (&keys, "architectures", [wrapper.architecture]),
        (&inner, "architectures", [text_architecture]),
    ] {
        let found = keys.strings(key)?;
        if let Some(found) = found.filter(|found| *found != expected) {
            return Err(ConfigFault::Unsupported {
                key: keys.name(key),
                found: quoted(&format!("{found:?}")),
                supported: format!("{expected:?}"),
            });
        }
    }
    super::hugging_face::must_say(&inner, "model_type", text_type)?;
    must_be_null(&keys, "quantization_config")?;
    keys.string("model_type")?;
    let tied = keys.bool("tie_word_embeddings")?;
    let all: Vec<&str> = OTHER_PARTS.iter().chain(irrelevant).copied().collect();
    keys.finish(&all)?;

    let mut text = text.clone();
    text.remove("architectures");
    let mut set = |key: &str, value: Json| {
        let entry = text.entry(key).or_insert(Json::Null);
        if entry.is_null() {
            *entry = value;
        }
    };
    set("model_type", Json::from(text_type));
    if let Some(tied) = tied {
        set("tie_word_embeddings", Json::from(tied));
    }
    if text_type == "gemma3_text" {
        for (key, value) in GEMMA3_DEFAULTS {
            set(key, Json::from(*value));
        }
    }
    Ok(Some(text))
}
