//! Routes of a step on random weights: fused and unfused kernels give the same bits, rows that
//! advance by themselves choose what single steps choose, and prompts do not depend on company.

use butter::config::ModelConfig;
use butter::engine::{DeviceModel, EngineOptions, ProductInputs, Route};
use butter::model::{Model, RowOutput, RowResult, SequenceId, StepRow};
use butter::shapes;
use iron_ir::Scalar;
use iron_runtime::Backend;

const PROMPT: usize = 40;

fn shape() -> shapes::Shape {
    shapes::by_name("tiny").expect("a shape")
}

fn model(route: Route, dtype: Scalar) -> DeviceModel {
    let config: ModelConfig = shape().config();
    let options = EngineOptions {
        dtype,
        product_inputs: ProductInputs::Exact,
        max_sequences: 3,
        max_step_rows: 96,
        cache_positions: 3 * 384,
    };
    let device = iron_runtime::open(Backend::Cpu).expect("the processor");
    let weights = shape().random_weights(7);
    let mut model = DeviceModel::of_weights(device, &config, &weights, options).expect("loads");
    model.set_route(route).expect("a route");
    model
}

fn row(sequence: SequenceId, position: usize, output: RowOutput) -> StepRow {
    StepRow {
        sequence,
        token: (position * 37 + 11) as u32 % 1024,
        position: position as u32,
        output,
    }
}

fn prompt(sequence: SequenceId, length: usize, output: RowOutput) -> Vec<StepRow> {
    (0..length)
        .map(|position| row(sequence, position, output))
        .collect()
}

fn bits(result: &RowResult) -> Vec<u32> {
    match result {
        RowResult::Logits(logits) => logits.iter().map(|logit| logit.to_bits()).collect(),
        other => panic!("expected logits, got {other:?}"),
    }
}

/// Logits of every row of a prompt, and of rows that decode side by side after it.
fn logits(route: Route, dtype: Scalar) -> Vec<Vec<u32>> {
    let mut model = model(route, dtype);
    let sequences = [0, 1].map(|_| model.open_sequence(300).expect("opens"));
    let mut found = Vec::new();
    for sequence in sequences {
        let rows = prompt(sequence, PROMPT, RowOutput::Logits);
        found.extend(model.step(&rows).expect("runs").iter().map(bits));
    }
    for position in PROMPT..PROMPT + 3 {
        let rows = sequences.map(|sequence| row(sequence, position, RowOutput::Logits));
        found.extend(model.step(&rows).expect("runs").iter().map(bits));
    }
    found
}

#[test]
fn fused_kernels_give_the_bits_of_those_that_they_join() {
    for dtype in [Scalar::F32, Scalar::BF16] {
        assert!(
            logits(Route::Unfused, dtype) == logits(Route::Fused, dtype),
            "{dtype}"
        );
    }
}

#[test]
fn rows_that_advance_by_themselves_choose_what_single_steps_choose() {
    // The context passes a split of the attention on the way.
    let (start, steps) = (250, 12);
    for route in [Route::Rows, Route::Fused] {
        let mut model = model(route, Scalar::F32);
        let sequences = [0, 1, 2].map(|_| model.open_sequence(300).expect("opens"));
        for (i, sequence) in sequences.iter().enumerate() {
            for rows in prompt(*sequence, start + i, RowOutput::Nothing).chunks(96) {
                model.step(rows).expect("runs");
            }
        }
        let mut rows: Vec<StepRow> = sequences
            .iter()
            .enumerate()
            .map(|(i, sequence)| row(*sequence, start + i, RowOutput::Greedy))
            .collect();
        let by_itself = model.advance(&rows, steps).expect("advances");
        assert_eq!(by_itself.len(), steps);
        let next: Vec<StepRow> = sequences
            .iter()
            .enumerate()
            .map(|(i, sequence)| row(*sequence, start + i + steps, RowOutput::Greedy))
            .collect();
        let after = model
            .step(&next)
            .expect("goes on where the last step ended");
        for (i, sequence) in sequences.iter().enumerate() {
            let left = model
                .truncate_sequence(*sequence, start + i)
                .expect("is open");
            assert_eq!(left, start + i);
        }
        for expected in &by_itself {
            let found = model.step(&rows).expect("runs");
            assert_eq!(&found, expected);
            for (row, result) in rows.iter_mut().zip(found) {
                let RowResult::Token(token) = result else {
                    panic!("expected a token, got {result:?}");
                };
                (row.token, row.position) = (token, row.position + 1);
            }
        }
        assert_eq!(model.step(&next).expect("runs"), after);
        let beyond = next.iter().map(|row| StepRow {
            position: row.position + 1,
            ..*row
        });
        let beyond: Vec<StepRow> = beyond.collect();
        let past = model
            .advance(&beyond, 64)
            .expect_err("past what was reserved");
        assert!(past.to_string().contains("are reserved"), "{past}");
    }
}

#[test]
fn a_prompt_does_not_depend_on_what_else_runs() {
    let mut model = model(Route::Fused, Scalar::F32);
    let [alone, with, other] = [0, 1, 2].map(|_| model.open_sequence(300).expect("opens"));
    let expected = model
        .step(&prompt(alone, PROMPT, RowOutput::Logits))
        .expect("runs");
    let mut rows = prompt(other, 3, RowOutput::Greedy);
    for (i, row) in prompt(with, PROMPT, RowOutput::Logits)
        .into_iter()
        .enumerate()
    {
        // Rows of both in turn, as a scheduler might mix them.
        rows.insert((2 * i).min(rows.len()), row);
    }
    let found = model.step(&rows).expect("runs");
    let wanted = rows
        .iter()
        .zip(&found)
        .filter(|(row, _)| row.sequence == with);
    let found: Vec<Vec<u32>> = wanted.map(|(_, result)| bits(result)).collect();
    assert_eq!(found, expected.iter().map(bits).collect::<Vec<_>>());
}
