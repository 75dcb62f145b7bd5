//! Prompts of several sequences in one step: each row has the bits of a step of its own, the states
//! that are left are those of lonely prompts, and steps of all kinds of company are recorded a few
//! times.
//!
//! `IRON_TEST_BACKENDS` names the backends (`cpu` where it is not set).

mod support;

use std::collections::HashMap;

use butter::checkpoint::Checkpoint;
use butter::engine::{CacheType, DeviceModel, EngineOptions, ProductInputs, Route};
use butter::model::{Model, RowOutput, RowResult, SequenceId, StepRow};
use butter::shapes;
use iron_ir::Scalar;
use iron_runtime::Backend;
use support::data;
use support::random::Random;

const STEP_ROWS: usize = 160;
const SEQUENCES: usize = 6;
const SHAPE: &str = "shape";

/// A tiny checkpoint of a family; of `SHAPE` random weights of a shape that has fused kernels.
fn load(family: &str, backend: Backend, dtype: Scalar, cache: CacheType) -> DeviceModel {
    let options = EngineOptions {
        dtype,
        product_inputs: ProductInputs::Exact,
        max_sequences: SEQUENCES,
        max_step_rows: STEP_ROWS,
        cache_positions: SEQUENCES * 256,
        cache,
    };
    let device = iron_runtime::open(backend).expect("the backend is there");
    if family == SHAPE {
        let shape = shapes::by_name("tiny").expect("a shape");
        let (config, weights) = (shape.config(), shape.random_weights(7));
        return DeviceModel::of_weights(device, &config, &weights, options).expect("loads");
    }
    let path = data(&format!("models/{family}/bf16"));
    let checkpoint = Checkpoint::open(&path).expect("the checkpoint loads");
    DeviceModel::load(device, &checkpoint, options).expect("the model loads")
}

fn on_backends(check: impl Fn(Backend)) {
    let names = std::env::var("IRON_TEST_BACKENDS").unwrap_or_else(|_| "cpu".to_owned());
    for name in names.split(',') {
        check(Backend::from_name(name.trim()).expect("a backend's name"));
    }
}

/// Rows of prompt `prompt` from `first` on; the last wants logits.
fn rows(sequence: SequenceId, prompt: usize, first: usize, count: usize) -> Vec<StepRow> {
    let row = |position: usize| StepRow {
        sequence,
        token: (position * (97 + prompt) + 31 * prompt + position * position * 5) as u32 % 512,
        position: position as u32,
        output: match position + 1 == first + count {
            true => RowOutput::Logits,
            false => RowOutput::Nothing,
        },
    };
    (first..first + count).map(row).collect()
}

fn bits(result: &RowResult) -> Vec<u32> {
    match result {
        RowResult::Logits(logits) => logits.iter().map(|logit| logit.to_bits()).collect(),
        other => panic!("expected logits, got {other:?}"),
    }
}

/// How each prompt is cut: with several prompts in a step there are whole tiles, rests, few rows of
/// one, and rows that decode beside them.
const CUTS: [[usize; 4]; 5] = [
    [32, 38, 1, 1],
    [16, 16, 1, 1],
    [33, 17, 1, 1],
    [5, 20, 1, 1],
    [1, 1, 31, 1],
];

/// The logits behind each cut of each prompt; the cuts of several prompts share steps where
/// `together`, those of each have steps of their own otherwise.
fn cuts(model: &mut DeviceModel, together: bool) -> Vec<Vec<Vec<u32>>> {
    let open = |model: &mut DeviceModel| model.open_sequence(80).expect("room");
    let mut found = vec![Vec::new(); CUTS.len()];
    let sequences: Vec<SequenceId> = CUTS.iter().map(|_| open(model)).collect();
    let all: Vec<usize> = (0..CUTS.len()).collect();
    let batches: Vec<&[usize]> = match together {
        true => vec![&all],
        false => all.chunks(1).collect(),
    };
    for batch in batches {
        for step in 0..CUTS[0].len() {
            let of = |&prompt: &usize| {
                let first = CUTS[prompt][..step].iter().sum();
                rows(sequences[prompt], prompt, first, CUTS[prompt][step])
            };
            let rows: Vec<StepRow> = batch.iter().flat_map(of).collect();
            model.poison_unused_state().expect("written");
            // One that is given up leaves nothing.
            drop(model.prepare(&rows).expect("runs"));
            model.poison_unused_state().expect("written");
            let results = model.step(&rows).expect("runs");
            for (prompt, result) in batch.iter().zip(&results) {
                found[*prompt].push(bits(result));
            }
        }
    }
    for sequence in sequences {
        model.close_sequence(sequence);
    }
    found
}

// E30, E37
#[test]
fn prompts_that_share_a_step_have_the_bits_of_their_own() {
    on_backends(|backend| {
        let families = [
            ("llama", Scalar::F32),
            (SHAPE, Scalar::BF16),
            ("gemma3", Scalar::F32),
            ("qwen3_moe", Scalar::F32),
            ("qwen3_next", Scalar::F32),
            ("granitemoehybrid", Scalar::F32),
            ("deepseek_v3", Scalar::F32),
        ];
        for (family, dtype) in families {
            let both: &[bool] = if family == SHAPE {
                &[false, true]
            } else {
                &[true]
            };
            for &padding in both {
                let mut model = load(family, backend, dtype, CacheType::Activations);
                // Its products need more shared memory than some Vulkan devices have.
                if dtype == Scalar::BF16 && backend != Backend::Vulkan {
                    model.set_route(Route::Batched).expect("a route");
                }
                model.set_padding(padding);
                model.set_sharing_of_prompts(true);
                assert_eq!(model.capacity().prompts, SEQUENCES);
                let alone = cuts(&mut model, false);
                let found = cuts(&mut model, true);
                assert!(alone == found, "{family} on {backend:?}, padding {padding}");
            }
        }
        // A packed cache unpacks one sequence a step.
        let mut model = load("gemma3", backend, Scalar::F32, CacheType::F8E4M3);
        model.set_sharing_of_prompts(true);
        assert_eq!(model.capacity().prompts, 1);
        assert!(cuts(&mut model, false) == cuts(&mut model, true));
    });
}

// Prompts of random lengths, one to all sequences at once.
#[test]
fn company_of_all_kinds_is_recorded_a_few_times() {
    on_backends(|backend| {
        for family in ["llama", "granitemoehybrid"] {
            let mut model = load(family, backend, Scalar::F32, CacheType::Activations);
            model.set_padding(true);
            model.set_sharing_of_prompts(true);
            let before = model.recordings();
            let mut random = Random(1);
            let mut alone: HashMap<(usize, usize), Vec<u32>> = HashMap::new();
            let run = |model: &mut DeviceModel, prompts: &[(usize, usize)]| {
                let open = |_: &(usize, usize)| model.open_sequence(200).expect("room");
                let sequences: Vec<SequenceId> = prompts.iter().map(open).collect();
                let of = |(&sequence, &(prompt, count)): (&SequenceId, &(usize, usize))| {
                    rows(sequence, prompt, 0, count)
                };
                let rows: Vec<StepRow> = sequences.iter().zip(prompts).flat_map(of).collect();
                let results = model.step(&rows).expect("runs");
                for sequence in sequences {
                    model.close_sequence(sequence);
                }
                results.iter().map(bits).collect::<Vec<_>>()
            };
            let mut kinds = std::collections::HashSet::new();
            for _ in 0..60 {
                let (mut left, mut prompts) = (STEP_ROWS, Vec::new());
                for place in 0..1 + random.below(SEQUENCES) {
                    let count = 16 + random.below(50);
                    if count <= left {
                        left -= count;
                        prompts.push((place, count));
                    }
                }
                let mut lengths: Vec<usize> = prompts.iter().map(|(_, count)| *count).collect();
                lengths.sort_unstable();
                kinds.insert(lengths);
                let found = run(&mut model, &prompts);
                for (prompt, found) in prompts.into_iter().zip(found) {
                    let expected = alone
                        .entry(prompt)
                        .or_insert_with(|| run(&mut model, &[prompt]).remove(0));
                    assert!(&found == expected, "{family} on {backend:?}: {prompt:?}");
                }
            }
            // Rows are 16, 32, .. 112, 128 or 160; one prompt, up to 2, 4 or 8 in as many rows.
            let recorded = model.recordings() - before;
            let kinds = kinds.len();
            println!("{family} on {backend:?}: {recorded} recordings of {kinds} kinds of company");
            assert!(recorded <= 9 + 8 + 7 + 5, "{recorded} recordings");
            assert!(kinds > 40, "{kinds}");
        }
    });
}
