//! Recurrent states of earlier positions: a sequence that is cut goes on from the nearest one with
//! the bits of a cold start, and reads nothing that is not said to be kept.
//!
//! `IRON_TEST_BACKENDS` names the backends (`cpu` where it is not set).

mod support;

use butter::checkpoint::Checkpoint;
use butter::engine::{CacheType, DeviceModel, EngineOptions, ProductInputs};
use butter::model::{Model, RowOutput, RowResult, SequenceId, StepRow};
use iron_runtime::Backend;
use support::data;

/// Rows of a step of the prompt.
const CHUNK: usize = 16;

fn load(family: &str) -> DeviceModel {
    let checkpoint = Checkpoint::open(&data(&format!("models/{family}/bf16"))).expect("loads");
    let names = std::env::var("IRON_TEST_BACKENDS").unwrap_or_else(|_| "cpu".to_owned());
    let name = names.split(',').next().unwrap_or("cpu").trim().to_owned();
    let backend = Backend::from_name(&name).expect("a backend's name");
    let options = EngineOptions {
        dtype: iron_ir::Scalar::F32,
        product_inputs: ProductInputs::Exact,
        max_sequences: 2,
        max_step_rows: 16,
        cache_positions: 1024,
        cache: CacheType::Activations,
    };
    let device = iron_runtime::open(backend).expect("opens");
    DeviceModel::load(device, &checkpoint, options).expect("loads")
}

fn tokens(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32)
        .map(|i| (i * 89 + seed * 57 + i * i * 3) % 512)
        .collect()
}

/// Runs `ids` from `start` on, in steps that end at multiples of [`CHUNK`]; gives the last logits.
fn run(model: &mut DeviceModel, sequence: SequenceId, ids: &[u32], start: usize) -> Vec<u32> {
    let mut at = start;
    let mut last = Vec::new();
    while at < ids.len() {
        let end = ((at / CHUNK + 1) * CHUNK).min(ids.len());
        let row = |i: usize| StepRow {
            sequence,
            token: ids[i],
            position: i as u32,
            output: match i + 1 == ids.len() {
                true => RowOutput::Logits,
                false => RowOutput::Nothing,
            },
        };
        let rows: Vec<StepRow> = (at..end).map(row).collect();
        last = model.step(&rows).expect("a step");
        at = end;
    }
    match last.first() {
        Some(RowResult::Logits(logits)) => logits.iter().map(|logit| logit.to_bits()).collect(),
        other => panic!("no logits: {other:?}"),
    }
}

fn a_cut_sequence_goes_on_with_the_bits_of_a_cold_start(family: &str) {
    let mut model = load(family);
    let first = tokens(1, 100);
    for (cut, left) in [(75, 64), (64, 64), (11, 0), (99, 96), (30, 16)] {
        let second = [&first[..cut], &tokens(2, 140 - cut)].concat();
        let cold = model.open_sequence(160).expect("room");
        let expected = run(&mut model, cold, &second, 0);
        model.close_sequence(cold);

        let sequence = model.open_sequence(160).expect("room");
        run(&mut model, sequence, &first, 0);
        assert_eq!(model.reusable_length(sequence, cut), left, "{family} {cut}");
        let kept = model.truncate_sequence(sequence, cut).expect("open");
        assert_eq!(kept, left, "{family} {cut}");
        model.poison_unused_state().expect("written");
        let found = run(&mut model, sequence, &second, kept);
        assert_eq!(found, expected, "{family} {cut}");
        // And once more, over states of both.
        let kept = model.truncate_sequence(sequence, 50).expect("open");
        assert_eq!(kept, 48, "{family} {cut}");
        model.poison_unused_state().expect("written");
        let found = run(&mut model, sequence, &second, kept);
        assert_eq!(found, expected, "{family} {cut}, from {kept}");
        model.close_sequence(sequence);
    }
    // Other sequences have their own states: two that go on in turns.
    let [a, b] = [1, 2].map(|seed| (seed, tokens(seed, 90)));
    let alone: Vec<Vec<u32>> = [&a, &b]
        .map(|(_, ids)| {
            let sequence = model.open_sequence(160).expect("room");
            let logits = run(&mut model, sequence, ids, 0);
            model.close_sequence(sequence);
            logits
        })
        .into();
    let open = [&a, &b].map(|(_, ids)| {
        let sequence = model.open_sequence(160).expect("room");
        run(&mut model, sequence, &ids[..60], 0);
        sequence
    });
    for (i, (_, ids)) in [&a, &b].into_iter().enumerate() {
        let kept = model.truncate_sequence(open[i], 40).expect("open");
        assert_eq!(kept, 32, "{family}");
        model.poison_unused_state().expect("written");
        assert_eq!(run(&mut model, open[i], ids, kept), alone[i], "{family}");
    }
}

macro_rules! families {
    ($($family:ident),*) => {
        $(#[test]
        fn $family() {
            a_cut_sequence_goes_on_with_the_bits_of_a_cold_start(stringify!($family));
        })*
    };
}

families!(qwen3_next, granitemoehybrid, falcon_h1, nemotron_h, lfm2);
