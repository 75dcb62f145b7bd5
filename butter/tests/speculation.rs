//! Speculation on the tiny checkpoints: the answer is plain decoding's token for token, the
//! proposals accepted are another implementation's, and a hybrid goes back over what it
//! rejected.

mod support;

use butter::checkpoint::Checkpoint;
use butter::engine::{DeviceModel, EngineOptions, ProductInputs};
use butter::speculate::speculate;
use iron_runtime::Backend;
use support::{data, ids, json};

fn load(family: &str) -> DeviceModel {
    let path = data(&format!("models/{family}/bf16"));
    let checkpoint = Checkpoint::open(&path).expect("the checkpoint loads");
    let options = EngineOptions {
        dtype: iron_ir::Scalar::F32,
        product_inputs: ProductInputs::Exact,
        max_sequences: 1,
        max_step_rows: 64,
        cache_positions: 256,
    };
    let device = iron_runtime::open(Backend::Cpu).expect("the processor is there");
    DeviceModel::load(device, &checkpoint, options).expect("the model loads")
}

#[test]
fn a_dense_target_accepts_what_the_reference_accepts() {
    let goldens = json(&data("models/qwen3/goldens.json"));
    let (mut target, mut draft) = (load("qwen3"), load("qwen3_draft"));
    let runs = goldens["speculative"]["runs"].as_array().expect("runs");
    assert!(!runs.is_empty());
    for run in runs {
        let length = run["prompt_len"].as_u64().expect("a length") as usize;
        let count = run["k"].as_u64().expect("a count") as usize;
        let prompts = goldens["prompts"].as_array().expect("prompts");
        let prompt = prompts
            .iter()
            .find(|prompt| prompt["len"] == length)
            .expect("the prompt of that length");
        let expected = ids(&prompt["greedy"]);
        let found = speculate(
            &mut target,
            &mut draft,
            &ids(&prompt["prompt_ids"]),
            expected.len(),
            count,
            &mut |_| true,
        );
        let found = found.expect("runs");
        assert_eq!(found.token_ids, expected, "{count} after {length}");
        let reference: Vec<usize> = ids(&run["accepted_per_step"])
            .into_iter()
            .map(|n| n as usize)
            .collect();
        // The last steps propose no more than the answer has room for.
        let whole = found.accepted.len().saturating_sub(2);
        assert_eq!(
            found.accepted[..whole],
            reference[..whole],
            "{count} after {length}"
        );
    }
}

// Rejected rows leave neither cache nor state.
#[test]
fn targets_of_every_kind_give_their_own_tokens() {
    for family in ["gemma3", "qwen3_moe", "qwen3_next", "granitemoehybrid"] {
        let goldens = json(&data(&format!("models/{family}/goldens.json")));
        let (mut target, mut draft) = (load(family), load("qwen3_draft"));
        let prompt = &goldens["prompts"][2];
        let expected = ids(&prompt["greedy"]);
        for count in [1, 4] {
            let prompt_ids = ids(&prompt["prompt_ids"]);
            let most = expected.len();
            let found = speculate(
                &mut target,
                &mut draft,
                &prompt_ids,
                most,
                count,
                &mut |_| true,
            );
            assert_eq!(
                found.expect("runs").token_ids,
                expected,
                "{family}, {count}"
            );
        }
        // The target proposes to itself: everything is accepted.
        let mut twin = load(family);
        let prompt_ids = ids(&prompt["prompt_ids"]);
        let found = speculate(&mut target, &mut twin, &prompt_ids, 32, 3, &mut |_| true);
        let found = found.expect("runs");
        assert_eq!(
            (found.token_ids, found.accepted),
            (expected, vec![3; 8]),
            "{family}"
        );
    }
}
