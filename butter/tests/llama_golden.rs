//! The tiny random Llama checkpoint against outputs of an independent
//! implementation: loader, config spellings and RoPE recipe.

mod support;

use butter::checkpoint::Checkpoint;
use butter::cli::{ActivationType, Activations, Backend, open_model};
use butter::config::ModelConfig;
use butter::generate::{FinishReason, Generator, Request, prompt_logits};
use butter::rope::RopeScaling;
use butter::sampler::Sampler;
use support::{Oracle, data, floats, ids, json};

fn open() -> Checkpoint {
    Checkpoint::open(&data("models/llama/bf16")).expect("the checkpoint loads")
}

#[test]
fn old_and_new_config_spellings_say_the_same() {
    let old = ModelConfig::from_config_json(&data("models/llama/bf16/config.json")).expect("old");
    let new =
        ModelConfig::from_config_json(&data("models/llama/bf16/config.v5.json")).expect("new");
    assert_eq!(old, new);
    assert!(matches!(
        old.attention_layers()
            .next()
            .and_then(|a| a.rope.as_ref())
            .map(|rope| &rope.scaling),
        Some(RopeScaling::Llama3 {
            factor: 8.0,
            original_context: 64,
            ..
        })
    ));
}

#[test]
fn last_logits_are_the_references() {
    let mut oracle = Oracle::new(&open());
    let goldens = json(&data("models/llama/goldens.json"));
    let mut worst = 0.0f32;
    for prompt in goldens["prompts"].as_array().expect("prompts") {
        let logits = oracle.logits(&ids(&prompt["prompt_ids"]));
        let last = logits.last().expect("a row a token");
        let expected = floats(&prompt["last_logits"]);
        assert_eq!(last.len(), expected.len());
        let difference = last
            .iter()
            .zip(&expected)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0f32, f32::max);
        worst = worst.max(difference);
        for (row, top5) in logits.iter().zip(prompt["top5"].as_array().expect("top5")) {
            for entry in top5.as_array().expect("pairs") {
                let token = entry[0].as_u64().expect("an id") as usize;
                let value = entry[1].as_f64().expect("a logit") as f32;
                assert!(
                    (row[token] - value).abs() < 1e-3,
                    "{token}: {} {value}",
                    row[token]
                );
            }
        }
    }
    println!("largest difference of a last logit: {worst:e}");
    assert!(worst < 1e-3, "{worst}");
}

// E09
#[test]
fn greedy_tokens_are_the_references_for_every_chunking() {
    let checkpoint = open();
    let goldens = json(&data("models/llama/goldens.json"));
    for prompt in goldens["prompts"].as_array().expect("prompts") {
        let expected = ids(&prompt["greedy"]);
        for max_step_rows in [4096, 33, 7, 1] {
            let mut oracle = Oracle::new(&checkpoint);
            oracle.max_step_rows = max_step_rows;
            let request = Request {
                prompt_ids: ids(&prompt["prompt_ids"]),
                max_tokens: expected.len(),
                sampler: Sampler::greedy(),
                stop_tokens: Vec::new(),
                stop_strings: Vec::new(),
            };
            let answer = Generator::new(&mut oracle)
                .run(&request, None, &mut |_| {})
                .expect("the request runs");
            assert_eq!(answer.token_ids, expected, "chunks of {max_step_rows}");
            assert_eq!(answer.finish_reason, FinishReason::Length);
            assert_eq!(oracle.open_sequences(), 0);
        }
    }
}

#[test]
fn a_model_that_is_loaded_does_not_mind_what_becomes_of_its_files() {
    let folder = tempfile::tempdir().expect("a folder");
    for file in std::fs::read_dir(data("models/llama/bf16")).expect("a folder") {
        let file = file.expect("an entry");
        std::fs::copy(file.path(), folder.path().join(file.file_name())).expect("copied");
    }
    let checkpoint = Checkpoint::open(folder.path()).expect("the checkpoint loads");
    let (backend, dtype) = (Backend::Cpu, ActivationType::F32);
    let model = open_model(&checkpoint, backend, dtype, Activations::Exact);
    let mut model = model.expect("opens");
    drop(checkpoint);
    let before = prompt_logits(model.as_mut(), &[1, 2, 3]).expect("logits");
    for file in std::fs::read_dir(folder.path()).expect("a folder") {
        // Cut short in place: a mapping of it would end the process.
        std::fs::write(file.expect("an entry").path(), "gone").expect("written");
    }
    let after = prompt_logits(model.as_mut(), &[1, 2, 3]).expect("logits");
    assert_eq!(before, after);
}
