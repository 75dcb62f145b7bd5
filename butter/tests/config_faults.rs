//! Configs that say something the graph does not compute, or no model can have: each is refused by
//! the keys that stand in the file, with their values.

use std::fs;
use std::path::Path;

use butter::checkpoint::Checkpoint;
use serde_json::{Value as Json, json};

fn source(family: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/data/models/{family}/bf16"))
}

/// What opening a family's test model says with `changes` in its config; `null` removes a key.
fn with(family: &str, changes: &Json) -> Result<Checkpoint, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let text = fs::read(source(family).join("config.json")).expect("read");
    let mut config: Json = serde_json::from_slice(&text).expect("JSON");
    for (pointer, value) in changes.as_object().expect("an object") {
        let (parent, key) = pointer.rsplit_once('/').unwrap_or(("", pointer));
        let parent = match parent {
            "" => &mut config,
            parent => config.pointer_mut(parent).expect("there"),
        };
        parent[key] = value.clone();
    }
    fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    let weights = source(family).join("model.safetensors");
    fs::copy(weights, folder.path().join("model.safetensors")).expect("copied");
    Checkpoint::open(folder.path()).map_err(|error| {
        let error = error.to_string();
        assert!(
            !error.contains('\n') && error.contains("config.json") || error.contains("tensor"),
            "{error}"
        );
        error
    })
}

#[test]
fn what_is_wrong_is_said_by_key_and_value() {
    let longrope = json!({"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0,
        "original_max_position_embeddings": 512, "short_factor": [1.0], "long_factor": [1.0]});
    let cases: Vec<(&str, Json, &str)> = vec![
        // What was read without a word.
        ("gemma4", json!({"attention_k_eq_v": true}), "v_proj"),
        (
            "gpt_oss",
            json!({"swiglu_limit": -7.0}),
            "swiglu_limit is -7: it must be positive",
        ),
        (
            "gpt_oss",
            json!({"swiglu_limit": 0}),
            "swiglu_limit is 0: it must be positive",
        ),
        ("gpt_oss", json!({"swiglu_limit": 1e39}), "finite in f32"),
        (
            "gpt_oss",
            json!({"/rope_scaling/beta_fast": 1.0, "/rope_scaling/beta_slow": 32.0}),
            "beta_fast is 1, but ",
        ),
        (
            "qwen3_5_moe",
            json!({"/rope_parameters/mrope_section": [400, 1, 1]}),
            "rope_parameters.mrope_section is `[400, 1, 1]`: it must have 3 entries that add up to 4",
        ),
        (
            "qwen3_5_moe",
            json!({"/rope_parameters/mrope_section": [4]}),
            "mrope_section is `[4]`",
        ),
        (
            "falcon_h1",
            json!({"key_multiplier": -0.5}),
            "key_multiplier is -0.5: it must be positive",
        ),
        (
            "falcon_h1",
            json!({"mlp_multipliers": [1.0, 0.0]}),
            "mlp_multipliers is 0: it must",
        ),
        (
            "falcon_h1",
            json!({"ssm_multipliers": [1.0]}),
            "ssm_multipliers is a list of 1: it must have 5",
        ),
        (
            "falcon_h1",
            json!({"lm_head_multiplier": -1.0}),
            "lm_head_multiplier is -1",
        ),
        (
            "llama",
            json!({"tie_word_embeddings": true}),
            "lm_head.weight is not equal to model.embed_tokens.weight",
        ),
        // What was said by another key than the file's, or by none.
        (
            "qwen2",
            json!({"use_sliding_window": false, "layer_types": vec!["sliding_attention"; 5], "sliding_window": 8}),
            "use_sliding_window is false, but layer_types is a list with \"sliding_attention\"",
        ),
        (
            "nemotron_h",
            json!({"layers_block_type": null, "hybrid_override_pattern": ""}),
            "hybrid_override_pattern is empty: it must name a layer",
        ),
        (
            "nemotron_h",
            json!({"layers_block_type": null, "hybrid_override_pattern": "M", "num_hidden_layers": 4}),
            "but hybrid_override_pattern is 1",
        ),
        (
            "llama",
            json!({"num_attention_heads": 0, "head_dim": 16}),
            "head count is 0 (num_attention_heads = 0)",
        ),
        (
            "llama",
            json!({"num_key_value_heads": 3}),
            "(num_key_value_heads = 3, num_attention_heads = 4)",
        ),
        (
            "llama",
            json!({"max_position_embeddings": 0}),
            "context length is 0 (max_position_embeddings = 0)",
        ),
        (
            "llama",
            json!({"num_hidden_layers": 5000}),
            "layer count is 5000 (num_hidden_layers = 5000)",
        ),
        (
            "mistral",
            json!({"sliding_window": 0}),
            "window is 0 (sliding_window = 0)",
        ),
        (
            "qwen3_next",
            json!({"linear_key_head_dim": 0}),
            "key head size is 0 (linear_key_head_dim = 0)",
        ),
        (
            "qwen3_moe",
            json!({"num_experts_per_tok": 0}),
            "experts a token is 0 (num_experts_per_tok = 0",
        ),
        (
            "qwen3_moe",
            json!({"num_experts_per_tok": 99}),
            "num_experts_per_tok = 99",
        ),
        ("deepseek_v3", json!({"n_group": 3}), "n_group = 3"),
        (
            "deepseek_v3",
            json!({"kv_lora_rank": 0}),
            "latent size is 0 (kv_lora_rank = 0)",
        ),
        (
            "granitemoehybrid",
            json!({"time_step_limit": [2.0, 1.0]}),
            "time step limits is 2..1 (time_step_limit = `[2.0,1.0]`)",
        ),
        (
            "gemma4",
            json!({"num_kv_shared_layers": 99}),
            "num_kv_shared_layers is 99",
        ),
        (
            "gemma3",
            json!({"query_pre_attn_scalar": -1}),
            "query_pre_attn_scalar is -1: it must be positive",
        ),
        (
            "llama",
            json!({"rms_norm_eps": -1e-5}),
            "rms_norm_eps is -0.00001: it must be finite and not negative",
        ),
        (
            "llama",
            json!({"rope_theta": null, "rope_parameters": {"rope_type": "default", "rope_theta": 0.0}}),
            "rope_parameters.rope_theta is 0",
        ),
        (
            "llama",
            json!({"rope_theta": null, "rope_scaling": null, "rope_parameters": longrope}),
            "rope_parameters.short_factor is a list of 1",
        ),
    ];
    let mut faults = Vec::new();
    for (family, changes, words) in cases {
        match with(family, &changes) {
            Ok(_) => faults.push(format!("{family} {changes}: taken")),
            Err(error) if !error.contains(words) => {
                faults.push(format!("{family} {changes}: {words:?} not in {error}"));
            }
            Err(_) => {}
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_test_model_loads_as_it_is() {
    for family in [
        "gemma4",
        "gpt_oss",
        "qwen3_5_moe",
        "falcon_h1",
        "nemotron_h",
        "qwen2",
        "lfm2",
    ] {
        with(family, &json!({})).unwrap_or_else(|error| panic!("{family}: {error}"));
    }
}
