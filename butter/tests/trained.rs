//! Real checkpoints that are not in the repository: three small trained models with a tokenizer
//! and Gemma 3 270M, against greedy tokens and logits of another implementation. What is absent
//! is skipped aloud.
//!
//! `BUTTER_TRAINED_MODELS` names a folder with `qwen3`, `hybrid` and `draft`; `cargo xtask
//! fetch-model gemma3-270m` fetches Gemma. `IRON_TEST_BACKENDS` names the backends (`cpu` where
//! it is not set), and `BUTTER_ALL_PROMPTS` asks for every prompt to its end.

mod support;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use butter::checkpoint::Checkpoint;
use butter::engine::{CacheType, DeviceModel, EngineOptions, ProductInputs};
use butter::generate::{Generator, Request, prompt_logits};
use butter::perplexity::perplexity;
use butter::sampler::Sampler;
use iron_runtime::Backend;
use serde_json::Value as Json;
use support::{data, ids, json};

fn skip(what: &str) {
    // Not `eprintln!`, which the test harness captures: a skip must be seen.
    let line = format!("SKIPPED 1 test ({what})\n");
    let written = std::io::stderr().write_all(line.as_bytes());
    written.expect("standard error takes a line");
}

/// Top logits within `bound` and every greedy token of the first `prompts` prompts, as far as
/// `tokens` go.
fn agrees(path: &Path, goldens: &Json, prompts: usize, tokens: usize, bound: f32) {
    let checkpoint = Checkpoint::open(path).expect("the checkpoint loads");
    let names = std::env::var("IRON_TEST_BACKENDS").unwrap_or_else(|_| "cpu".to_owned());
    for name in names.split(',') {
        let backend = Backend::from_name(name.trim()).expect("a backend's name");
        let device = match iron_runtime::open(backend) {
            Ok(device) => device,
            Err(error) => {
                skip(&format!("{name}: {error}"));
                continue;
            }
        };
        let options = EngineOptions {
            dtype: iron_ir::Scalar::F32,
            product_inputs: ProductInputs::Exact,
            max_sequences: 1,
            max_step_rows: 64,
            cache_positions: 1024,
            cache: CacheType::Activations,
        };
        let mut model = DeviceModel::load(device, &checkpoint, options).expect("the model loads");
        for prompt in goldens["prompts"]
            .as_array()
            .expect("prompts")
            .iter()
            .take(prompts)
        {
            let prompt_ids = ids(&prompt["prompt_ids"]);
            let logits = prompt_logits(&mut model, &prompt_ids).expect("logits");
            for entry in prompt["top20"].as_array().expect("the largest") {
                let token = entry[0].as_u64().expect("an id") as usize;
                let expected = entry[1].as_f64().expect("a logit") as f32;
                let distance = (logits[token] - expected).abs();
                assert!(distance < bound, "{token}: {} {expected}", logits[token]);
            }
            if let Some(expected) = prompt["mean_nll"].as_f64() {
                let found = perplexity(&mut model, &prompt_ids, 1024).expect("scored");
                let distance = (found.mean_nll - expected).abs();
                assert!(distance < 1e-3, "{} {expected}", found.mean_nll);
            }
            let mut expected = ids(&prompt["greedy"]);
            expected.truncate(tokens);
            let request = Request {
                prompt_ids,
                max_tokens: expected.len(),
                sampler: Sampler::greedy(),
                stop_tokens: Vec::new(),
                stop_strings: Vec::new(),
            };
            let answer = Generator::new(&mut model).run(&request, None, &mut |_| {});
            assert_eq!(answer.expect("runs").token_ids, expected, "{name}");
        }
    }
}

/// All prompts where `BUTTER_ALL_PROMPTS` is set.
fn all_prompts(some: usize) -> usize {
    match std::env::var_os("BUTTER_ALL_PROMPTS") {
        Some(_) => usize::MAX,
        None => some,
    }
}

fn trained(name: &str) {
    let folder = std::env::var_os("BUTTER_TRAINED_MODELS").map(PathBuf::from);
    let Some(path) = folder
        .map(|folder| folder.join(name))
        .filter(|path| path.is_dir())
    else {
        return skip(&format!(
            "{name}: set BUTTER_TRAINED_MODELS to the folder that holds it"
        ));
    };
    agrees(
        &path,
        &json(&path.join("goldens.json")),
        all_prompts(4),
        64,
        2e-3,
    );
}

#[test]
fn the_trained_qwen3_gives_the_references_tokens() {
    trained("qwen3");
}

#[test]
fn the_trained_hybrid_gives_the_references_tokens() {
    trained("hybrid");
}

#[test]
fn the_trained_draft_gives_the_references_tokens() {
    trained("draft");
}

#[test]
fn gemma3_270m_gives_the_references_tokens() {
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
        PathBuf::from,
    );
    let path = folder.join("models/gemma3-270m/gemma-3-270m-q4_k_m.gguf");
    if !path.is_file() {
        return skip("gemma3-270m: run `cargo xtask fetch-model gemma3-270m` first");
    }
    let prompts = all_prompts(2);
    let tokens = if prompts == 2 { 12 } else { usize::MAX };
    agrees(
        &path,
        &json(&data("gemma3-270m/goldens.json")),
        prompts,
        tokens,
        2e-3,
    );
}
