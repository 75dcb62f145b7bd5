//! Routes of a step on random weights: fused and unfused kernels give the same bits, rows that
//! advance by themselves choose what single steps choose, prompts do not depend on company, and
//! neither do rows that share a reading of the weights.

use butter::config::ModelConfig;
use butter::engine::{CacheType, DeviceModel, EngineOptions, ProductInputs, Route};
use butter::model::{Model, ModelError, RowOutput, RowResult, SequenceId, StepRow};
use butter::sampler::{Sampler, SamplingParameters, TokenHistory};
use butter::shapes;
use iron_ir::Scalar;
use iron_runtime::Backend;

const PROMPT: usize = 40;

fn shape() -> shapes::Shape {
    shapes::by_name("tiny").expect("a shape")
}

fn model(route: Route, dtype: Scalar) -> DeviceModel {
    model_of(route, dtype, 3)
}

fn model_of(route: Route, dtype: Scalar, max_sequences: usize) -> DeviceModel {
    let config: ModelConfig = shape().config();
    let options = EngineOptions {
        dtype,
        product_inputs: ProductInputs::Exact,
        max_sequences,
        max_step_rows: 96,
        cache_positions: max_sequences * 384,
        cache: CacheType::Activations,
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

/// Tokens that the device draws are those that the host draws of the same logits, whatever the
/// settings, beside rows that want something else.
#[test]
fn a_device_draws_the_tokens_that_the_host_draws() {
    let settings: [fn(&mut SamplingParameters); 8] = [
        |_| (),
        |p| p.top_k = 5,
        |p| p.top_p = 0.6,
        |p| (p.min_p, p.temperature) = (0.05, 3.0),
        |p| p.typical_p = 0.4,
        |p| {
            (
                p.repetition_penalty,
                p.frequency_penalty,
                p.presence_penalty,
            ) = (1.7, 0.4, -0.3);
            p.logit_bias = [(3, 5.0), (900, -100.0), (12, 7.5)].into();
        },
        |p| {
            (p.top_k, p.top_p, p.min_p, p.typical_p) = (200, 0.95, 0.001, 0.9);
            (p.repetition_penalty, p.presence_penalty) = (0.8, 1.5);
        },
        // Greedy after penalties.
        |p| (p.temperature, p.frequency_penalty) = (0.0, 2.0),
    ];
    for dtype in [Scalar::F32, Scalar::BF16] {
        let run = |on_device: bool| {
            let mut model = model(Route::Unfused, dtype);
            model.draw_on_device(on_device).expect("buffers");
            let sequences = [0, 1, 2].map(|_| model.open_sequence(300).expect("opens"));
            let mut found = Vec::new();
            for step in 0..40 {
                let mut rows = Vec::new();
                let mut draws = Vec::new();
                for (place, sequence) in sequences.into_iter().enumerate() {
                    let wanted = match (step + place) % 5 {
                        0 => RowOutput::Greedy,
                        1 => RowOutput::Logits,
                        _ => RowOutput::Drawn,
                    };
                    // A prompt of several rows, then one row a step.
                    let start = if step == 0 { 0 } else { 20 * place + step };
                    for position in start..=20 * place + step {
                        let last = position == 20 * place + step;
                        let output = if last { wanted } else { RowOutput::Nothing };
                        rows.push(row(sequence, position, output));
                    }
                    if wanted == RowOutput::Drawn {
                        let mut parameters = SamplingParameters {
                            temperature: 1.3,
                            seed: 77 + place as u64,
                            ..SamplingParameters::default()
                        };
                        settings[(step * 3 + place) % settings.len()](&mut parameters);
                        let mut history = TokenHistory::new(&[1, 2, 3, 500]);
                        (0..step).for_each(|i| history.push((i * i) as u32 % 300));
                        let sampler = Sampler::new(parameters, 1024).expect("in range");
                        draws.push(sampler.draw(&history));
                    }
                }
                found.extend(model.step_drawing(&rows, &draws).expect("runs"));
                if let Some(draw) = draws.first() {
                    // No step without as many draws as rows that draw; the state stays.
                    let error = model
                        .step_drawing(&rows, &[&draws[..], std::slice::from_ref(draw)].concat());
                    assert!(matches!(error, Err(ModelError::Draws { .. })), "{error:?}");
                }
            }
            found
        };
        let (here, there) = (run(true), run(false));
        let tokens = here.iter().filter(|r| matches!(r, RowResult::Token(_)));
        assert!(tokens.count() > 90);
        assert!(here == there, "{dtype}");
    }
}

#[test]
fn rows_that_advance_by_themselves_choose_what_single_steps_choose() {
    // The context passes a split of the attention on the way.
    let (start, steps) = (250, 12);
    for (route, dtype) in [
        (Route::Rows, Scalar::F32),
        (Route::Fused, Scalar::F32),
        (Route::Batched, Scalar::BF16),
    ] {
        let mut model = model(route, dtype);
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

/// Sequences that decode together, and rows of the first: of one group of 64 rows, of two, and
/// with every instance of the products of few rows.
const COMPANIES: [(usize, usize); 9] = [
    (1, 1),
    (2, 1),
    (7, 1),
    (1, 4),
    (9, 4),
    (16, 1),
    (31, 2),
    (64, 1),
    (70, 15),
];

#[test]
fn rows_that_share_a_reading_of_the_weights_do_not_depend_on_their_company() {
    let largest = 70;
    let mut model = model_of(Route::Batched, Scalar::BF16, largest);
    let sequences: Vec<SequenceId> = (0..largest)
        .map(|_| model.open_sequence(60).expect("opens"))
        .collect();
    let length = |i: usize| PROMPT - i % 13;
    for (i, &sequence) in sequences.iter().enumerate() {
        let rows = prompt(sequence, length(i), RowOutput::Nothing);
        model.step(&rows).expect("runs");
    }
    let mut alone: Vec<Vec<u32>> = Vec::new();
    for (company, own) in COMPANIES {
        let mut rows: Vec<StepRow> = (PROMPT..PROMPT + own)
            .map(|position| row(sequences[0], position, RowOutput::Logits))
            .collect();
        for (i, &sequence) in sequences.iter().enumerate().take(company).skip(1) {
            let other = row(sequence, length(i), RowOutput::Greedy);
            // Some before the first sequence's rows, some behind.
            rows.insert(if i % 3 == 0 { 0 } else { rows.len() }, other);
        }
        let found = model.step(&rows).expect("runs");
        let found = rows.iter().zip(&found);
        let found = found.filter(|(row, _)| row.sequence == sequences[0]);
        for (at, (_, result)) in found.enumerate() {
            let found = bits(result);
            let expected = match alone.get(at) {
                Some(expected) => expected,
                None => {
                    alone.push(found.clone());
                    &found
                }
            };
            assert!(&found == expected, "{company} sequences, row {at} of {own}");
        }
        for (i, &sequence) in sequences.iter().enumerate() {
            let left = model
                .truncate_sequence(sequence, length(i))
                .expect("is open");
            assert_eq!(left, length(i));
        }
    }
    let one = [row(sequences[0], PROMPT, RowOutput::Greedy)];
    let kinds = model.profile(&one, false, 1).expect("runs");
    let launches = |kernel: &str| -> usize {
        let of_kernel = kinds.iter().filter(|kind| kind.kind.starts_with(kernel));
        of_kernel.map(|kind| kind.launches).sum()
    };
    // Two layers, whose rows are too short for a gated product, and the vocabulary.
    let products = [
        "linear_skinny",
        "gated_skinny",
        "linear_parts",
        "matvec",
        "norm_product",
    ];
    assert_eq!(products.map(launches), [5, 0, 4, 0, 0], "{kinds:#?}");
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
