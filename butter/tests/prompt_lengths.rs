//! Prompts padded to a few lengths: the rows that are there keep their bits, what is behind them
//! leaves no trace, and steps are recorded a few times instead of once a length.
//!
//! `IRON_TEST_BACKENDS` names the backends (`cpu` where it is not set).

mod support;

use butter::checkpoint::Checkpoint;
use butter::engine::{CacheType, DeviceModel, EngineOptions, ProductInputs};
use butter::model::{Model, RowOutput, RowResult, StepRow};
use iron_runtime::Backend;
use support::data;

const MOST_ROWS: usize = 48;

fn load(family: &str, backend: Backend) -> DeviceModel {
    let path = data(&format!("models/{family}/bf16"));
    let checkpoint = Checkpoint::open(&path).expect("the checkpoint loads");
    let options = EngineOptions {
        dtype: iron_ir::Scalar::F32,
        product_inputs: ProductInputs::Exact,
        max_sequences: 2,
        max_step_rows: MOST_ROWS,
        cache_positions: 512,
        cache: CacheType::Activations,
    };
    let device = iron_runtime::open(backend).expect("the backend is there");
    DeviceModel::load(device, &checkpoint, options).expect("the model loads")
}

/// The logits of a prompt's last row, then of three tokens behind it, with a neighbour whose
/// positions must not change; the prompt enters by `chunk` rows.
fn logits(model: &mut DeviceModel, length: usize, chunk: usize) -> Vec<Vec<f32>> {
    let token = |i: usize| (i * 97 + 31 + i * i * 5) as u32 % 512;
    let sequence = model.open_sequence(length + 3).expect("room");
    let mut found = Vec::new();
    let places: Vec<usize> = (0..length + 3).collect();
    let (prompt, answer) = places.split_at(length);
    let mut step = |places: &[usize]| {
        let row = |&i: &usize| StepRow {
            sequence,
            token: token(i),
            position: i as u32,
            output: match i + 1 < length {
                true => RowOutput::Nothing,
                false => RowOutput::Logits,
            },
        };
        let rows: Vec<StepRow> = places.iter().map(row).collect();
        model.poison_unused_state().expect("written");
        for result in model.step(&rows).expect("runs") {
            match result {
                RowResult::Logits(logits) => found.push(logits),
                other => panic!("{other:?}"),
            }
        }
    };
    prompt.chunks(chunk).for_each(&mut step);
    answer.chunks(1).for_each(&mut step);
    model.close_sequence(sequence);
    found
}

// E09, E37: pads touch neither cache nor recurrent state.
#[test]
fn padding_changes_no_bit_and_spares_recordings() {
    let backends = std::env::var("IRON_TEST_BACKENDS").unwrap_or_else(|_| "cpu".to_owned());
    for name in backends.split(',') {
        let backend = Backend::from_name(name.trim()).expect("a backend's name");
        for family in [
            "llama",
            "gemma3",
            "qwen3_moe",
            "qwen3_next",
            "granitemoehybrid",
            "deepseek_v3",
        ] {
            let (mut padded, mut exact) = (load(family, backend), load(family, backend));
            padded.set_padding(true);
            exact.set_padding(false);
            let before = [padded.recordings(), exact.recordings()];
            // The last leave no room behind them in their blocks, or in a step.
            let lengths = [16, 17, 21, 25, 30, 31, 33, 38, 41, 45, 47, 128, 125];
            for length in lengths {
                let [found, expected] =
                    [&mut padded, &mut exact].map(|model| logits(model, length, MOST_ROWS));
                assert_eq!(found, expected, "{family} on {name}: {length}");
            }
            let found = padded.recordings() - before[0];
            let recorded = exact.recordings() - before[1];
            println!("{family} on {name}: {found} recordings, {recorded} without padding");
            // Those of single rows are among both.
            assert!(
                found + 6 <= recorded,
                "{family} on {name}: {found} of {recorded}"
            );
        }
    }
}
