//! The answer does not depend on how a prompt is chunked, who shares the batch, or what was
//! tried and given up before: random schedules of steps on one model of each kind of graph.
//!
//! Tokens come from a few fixed streams whose logits, row by row and alone, are computed once.
//! Whatever a schedule does (admit, prefill in chunks, decode in company, verify and reject,
//! abandon a prepared step, make a wrong one, go back, close, poison all state that is not in
//! use), each right row must give those logits to the bit, counters must be those of a plain
//! account, and all must come back at the end.
//!
//! The scope of the equality to the bit: rows that decode or verify, and chunks of up to 15
//! rows, in any company. A chunk of 16 rows or more takes kernels of another rounding; those
//! are held to the bound of `every_split`.
//!
//! `BUTTER_SCHEDULES` is the number of schedules a model; `IRON_TEST_BACKENDS` names the
//! backends (`cpu` where it is not set).

mod support;

use butter::checkpoint::Checkpoint;
use butter::engine::{CacheType, DeviceModel, EngineOptions, ProductInputs, Route, StateUsage};
use butter::generate::{Generator, Request};
use butter::model::{Model, ModelError, RowOutput, RowResult, SequenceId, StepRow};
use butter::sampler::{Sampler, SamplingParameters, argmax};
use butter::speculate::{DraftModel, SpeculationRequest, speculate};
use iron_ir::Scalar;
use iron_runtime::Backend;
use support::random::Random;
use support::{data, ids, json};

/// Positions of a stream; more than a ring of [`STEP_ROWS`] rows and a window of 32 holds.
const STREAM: usize = 300;
const STREAMS: usize = 3;
const STEP_ROWS: usize = 16;
const SEQUENCES: usize = 5;
/// Positions of a block of the cache.
const BLOCK: usize = butter::engine::BLOCK_SIZE;
/// Fewer than all sequences want at their longest.
const BLOCKS: usize = 10;

macro_rules! kinds {
    ($($family:ident: $bound:literal,)*) => {
        $(mod $family {
            // E05, E06, E07
            #[test]
            fn random_schedules_leave_no_trace() {
                super::on_backends(|backend| super::schedules(stringify!($family), backend));
            }

            // E09
            #[test]
            fn every_split_of_a_prompt_gives_the_whole() {
                super::on_backends(|backend| {
                    let model = super::load(stringify!($family), backend, 1, 64);
                    super::every_split(stringify!($family), backend, model, $bound);
                });
            }

            // E30
            #[test]
            fn a_request_gives_the_same_bits_in_any_company() {
                super::on_backends(|backend| {
                    let model = super::load(stringify!($family), backend, 16, 32);
                    super::company(stringify!($family), backend, model, &[1, 2, 7, 16, 7, 2, 1]);
                });
            }
        })*
    };
}

/// A cache of 8-bit floats, of layers that keep all positions and of layers with windows. The
/// bound of a split is wider than in wider types: where tiled kernels and those of single rows
/// differ in a key's last bit, the code may be the next one, a sixteenth away.
mod packed_cache {
    use super::CacheType::F8E4M3;

    // E05, E06
    #[test]
    fn random_schedules_leave_no_trace() {
        super::on_backends(|backend| super::schedules_of("gemma3", backend, F8E4M3));
    }

    // E09
    #[test]
    fn every_split_of_a_prompt_gives_the_whole() {
        super::on_backends(|backend| {
            let model = super::load_of("gemma3", backend, (1, 64), super::Scalar::F32, F8E4M3);
            super::every_split("gemma3", backend, model, 0.1);
        });
    }

    // E30
    #[test]
    fn a_request_gives_the_same_bits_in_any_company() {
        super::on_backends(|backend| {
            let model = super::load_of("gemma3", backend, (16, 32), super::Scalar::F32, F8E4M3);
            super::company("gemma3", backend, model, &[1, 7, 16, 2]);
        });
    }
}

kinds! {
    qwen3: 1e-3,
    gemma3: 1e-3,
    qwen3_moe: 1e-3,
    qwen3_next: 2e-3,
    granitemoehybrid: 1e-3,
}

fn on_backends(check: impl Fn(Backend)) {
    let names = std::env::var("IRON_TEST_BACKENDS").unwrap_or_else(|_| "cpu".to_owned());
    for name in names.split(',') {
        check(Backend::from_name(name.trim()).expect("a backend's name"));
    }
}

fn load(family: &str, backend: Backend, max_sequences: usize, max_step_rows: usize) -> DeviceModel {
    let sizes = (max_sequences, max_step_rows);
    load_of(family, backend, sizes, Scalar::F32, CacheType::Activations)
}

fn load_of(
    family: &str,
    backend: Backend,
    (max_sequences, max_step_rows): (usize, usize),
    dtype: Scalar,
    cache: CacheType,
) -> DeviceModel {
    let path = data(&format!("models/{family}/bf16"));
    let checkpoint = Checkpoint::open(&path).expect("the checkpoint loads");
    let blocks = if max_sequences == SEQUENCES {
        BLOCKS
    } else {
        5 * max_sequences
    };
    let options = EngineOptions {
        dtype,
        product_inputs: ProductInputs::Exact,
        max_sequences,
        max_step_rows,
        cache_positions: blocks * BLOCK,
        cache,
    };
    let device = iron_runtime::open(backend).expect("the backend is there");
    DeviceModel::load(device, &checkpoint, options).expect("the model loads")
}

fn prompt_of(family: &str, place: usize) -> Vec<u32> {
    let goldens = json(&data(&format!("models/{family}/goldens.json")));
    ids(&goldens["prompts"][place]["prompt_ids"])
}

/// Rows that continue a sequence of `length` positions.
fn rows(
    sequence: SequenceId,
    length: usize,
    tokens: &[u32],
    output: impl Fn(usize) -> RowOutput,
) -> Vec<StepRow> {
    let row = |(i, &token)| StepRow {
        sequence,
        token,
        position: (length + i) as u32,
        output: output(i),
    };
    tokens.iter().enumerate().map(row).collect()
}

fn logits(result: &RowResult) -> &[f32] {
    match result {
        RowResult::Logits(logits) => logits,
        other => panic!("expected logits, got {other:?}"),
    }
}

fn equal_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// An open sequence as a plain account has it.
#[derive(Clone, Copy, Debug)]
struct Live {
    id: SequenceId,
    stream: usize,
    length: usize,
    capacity: usize,
}

struct World {
    model: DeviceModel,
    streams: Vec<Vec<u32>>,
    /// Logits behind each position of each stream.
    alone: Vec<Vec<Vec<f32>>>,
    live: Vec<Live>,
    random: Random,
    /// What happened, for the message of a failure.
    log: Vec<String>,
    checked_rows: usize,
    /// Times that a model went back further than asked.
    further_back: usize,
}

fn schedules(family: &str, backend: Backend) {
    schedules_of(family, backend, CacheType::Activations);
}

fn schedules_of(family: &str, backend: Backend, cache: CacheType) {
    let count = std::env::var("BUTTER_SCHEDULES").map_or(60, |n| n.parse().expect("a number"));
    let prompt = prompt_of(family, 3);
    let streams: Vec<Vec<u32>> = (0..STREAMS)
        .map(|s| {
            (0..STREAM)
                .map(|i| prompt[(i * (s + 1) + 7 * s) % prompt.len()])
                .collect()
        })
        .collect();
    let mut world = World {
        model: load_of(family, backend, (SEQUENCES, STEP_ROWS), Scalar::F32, cache),
        alone: Vec::new(),
        streams,
        live: Vec::new(),
        random: Random(0),
        log: Vec::new(),
        checked_rows: 0,
        further_back: 0,
    };
    for stream in world.streams.clone() {
        let sequence = world.model.open_sequence(STREAM).expect("a sequence");
        let step = |(i, token): (usize, &u32)| {
            let row = rows(sequence, i, &[*token], |_| RowOutput::Logits);
            logits(&world.model.step(&row).expect("a step")[0]).to_vec()
        };
        let logits = stream.iter().enumerate().map(step).collect();
        world.alone.push(logits);
        world.model.close_sequence(sequence);
    }
    for seed in 0..count {
        world.random = Random(seed);
        world.log.clear();
        world.schedule(family);
    }
    println!(
        "{family} on {backend:?}: {count} schedules, {} rows equal to the bit, {} times further back than asked",
        world.checked_rows, world.further_back
    );
}

impl World {
    fn schedule(&mut self, family: &str) {
        if self.random.below(3) == 0 {
            // One that windows have moved past the start of.
            self.open(STREAM);
            for _ in 0..18 {
                self.chunk(0, 15, true);
            }
        }
        for _ in 0..40 {
            self.action();
            let expected = self.account();
            assert_eq!(
                self.model.state_usage(),
                expected,
                "{family}: {:#?}",
                self.log
            );
        }
        while !self.live.is_empty() {
            self.close();
        }
        let usage = self.model.state_usage();
        assert_eq!(
            (usage.sequences, usage.blocks),
            (0, 0),
            "{family}: {:#?}",
            self.log
        );
        assert_eq!(usage.free_blocks, BLOCKS);
        // As if nothing had ever been there.
        self.model.poison_unused_state().expect("written");
        self.open(40);
        for rows in [5, 1, 15] {
            self.chunk(0, rows, true);
        }
        self.close();
    }

    /// The usage that the open sequences have by their capacities.
    fn account(&self) -> StateUsage {
        let blocks = self
            .live
            .iter()
            .map(|live| live.capacity.div_ceil(BLOCK))
            .sum();
        StateUsage {
            sequences: self.live.len(),
            free_sequences: SEQUENCES - self.live.len(),
            blocks,
            free_blocks: BLOCKS - blocks,
        }
    }

    fn action(&mut self) {
        let action = self.random.below(20);
        if self.live.is_empty() || action < 3 {
            let capacity = 1 + self.random.below(STREAM);
            return self.open(capacity);
        }
        let place = self.random.below(self.live.len());
        match action {
            3..=7 => {
                let rows = self.random.pick(&[1, 2, 5, 15]);
                let commit = self.random.below(4) > 0;
                self.chunk(place, rows, commit);
            }
            8..=10 => self.together(),
            11..=13 => self.verify(place),
            14 => self.wrong(place),
            15 => self.truncate(place),
            16 => self.close(),
            17 => {
                // Closing what is closed does nothing.
                let closed = SequenceId(u32::MAX - 1);
                self.model.close_sequence(closed);
                self.close();
            }
            _ => {
                self.log.push("poison".to_owned());
                self.model.poison_unused_state().expect("written");
            }
        }
    }

    fn open(&mut self, capacity: usize) {
        let usage = self.account();
        let fits = usage.free_sequences > 0 && capacity.div_ceil(BLOCK) <= usage.free_blocks;
        let stream = self.random.below(STREAMS);
        let opened = self.model.open_sequence(capacity);
        self.log
            .push(format!("open {capacity} on stream {stream}: {opened:?}"));
        assert_eq!(opened.is_ok(), fits, "{:#?}", self.log);
        if let Ok(id) = opened {
            assert!(
                self.live.iter().all(|live| live.id != id),
                "{:#?}",
                self.log
            );
            self.live.push(Live {
                id,
                stream,
                length: 0,
                capacity,
            });
        }
    }

    fn close(&mut self) {
        let place = self.random.below(self.live.len());
        let live = self.live.swap_remove(place);
        self.log.push(format!("close {live:?}"));
        self.model.close_sequence(live.id);
    }

    /// The next rows of a sequence, as many of `rows` as fit; all logits are wanted.
    fn next(&self, place: usize, count: usize) -> Vec<StepRow> {
        let live = self.live[place];
        let end = live.capacity.min(live.length + count);
        let tokens = &self.streams[live.stream][live.length..end];
        rows(live.id, live.length, tokens, |_| RowOutput::Logits)
    }

    /// Runs rows that are all right, in the order given, and keeps or abandons them.
    fn run(&mut self, rows: &[StepRow], commit: bool) {
        self.log.push(format!("run, commit {commit}: {rows:?}"));
        let prepared = self.model.prepare(rows).expect("a step");
        let results = prepared.results().to_vec();
        if commit {
            let kept = prepared.commit();
            assert_eq!(kept.len(), results.len());
        } else {
            drop(prepared);
        }
        assert_eq!(results.len(), rows.len());
        for (row, result) in rows.iter().zip(&results) {
            self.check(row, result);
        }
        if commit {
            for row in rows {
                let live = self.live.iter_mut().find(|live| live.id == row.sequence);
                live.expect("open").length += 1;
            }
        }
    }

    fn check(&mut self, row: &StepRow, result: &RowResult) {
        let live = self
            .live
            .iter()
            .find(|live| live.id == row.sequence)
            .expect("open");
        let expected = &self.alone[live.stream][row.position as usize];
        assert!(
            equal_bits(logits(result), expected),
            "{row:?} of {live:?}: {:#?}",
            self.log
        );
        self.checked_rows += 1;
    }

    fn chunk(&mut self, place: usize, count: usize, commit: bool) {
        let rows = self.next(place, count);
        self.run(&rows, commit);
    }

    /// A row or two of every sequence, in any order, and a chunk of one of them.
    fn together(&mut self) {
        let mut order: Vec<usize> = (0..self.live.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.random.below(i + 1));
        }
        let chunked = self.random.below(2 * order.len());
        let mut batch = Vec::new();
        for (i, place) in order.into_iter().enumerate() {
            batch.extend(self.next(place, if i == chunked { 8 } else { 1 }));
        }
        let commit = self.random.below(5) > 0;
        self.run(&batch, commit);
    }

    /// A verification: the next row, and proposals that are right up to a point.
    fn verify(&mut self, place: usize) {
        let verify_rows = self.random.pick(&[2, 4, 10]);
        let mut rows = self.next(place, verify_rows);
        if rows.is_empty() {
            return;
        }
        let right = 1 + self.random.below(rows.len());
        for (i, row) in rows[right..].iter_mut().enumerate() {
            row.token = (row.token + 1 + i as u32) % self.model.vocab_size() as u32;
        }
        let commit = self.random.below(3) > 0;
        self.log
            .push(format!("verify, {right} right, commit {commit}: {rows:?}"));
        let prepared = self.model.prepare(&rows).expect("a step");
        let results = prepared.results().to_vec();
        if commit {
            prepared.commit();
        } else {
            drop(prepared);
        }
        for (row, result) in rows.iter().zip(&results).take(right) {
            self.check(row, result);
        }
        if commit {
            let before = self.live[place].length;
            self.live[place].length = before + rows.len();
            self.back(place, before + right);
        }
    }

    /// Goes back to `length` or as far before it as the layers can.
    fn back(&mut self, place: usize, length: usize) {
        let live = self.live[place];
        let kept = self.model.truncate_sequence(live.id, length).expect("open");
        self.log.push(format!("back to {length}: {kept}"));
        assert!(kept <= length.min(live.length), "{:#?}", self.log);
        if length >= live.length {
            assert_eq!(kept, live.length, "{:#?}", self.log);
        }
        self.further_back += usize::from(kept < length.min(live.length));
        self.live[place].length = kept;
    }

    fn truncate(&mut self, place: usize) {
        let length = self.random.below(self.live[place].length + 5);
        self.back(place, length);
    }

    /// A step of which some row is wrong: none runs.
    fn wrong(&mut self, place: usize) {
        let live = self.live[place];
        let mut batch: Vec<StepRow> = (0..self.live.len()).flat_map(|p| self.next(p, 1)).collect();
        let row = StepRow {
            sequence: live.id,
            token: 1,
            position: live.length as u32,
            output: RowOutput::Logits,
        };
        let wrong = match self.random.below(5) {
            0 => StepRow {
                position: row.position + 2,
                ..row
            },
            1 => StepRow {
                token: self.model.vocab_size() as u32,
                ..row
            },
            2 => StepRow {
                sequence: SequenceId(u32::MAX),
                ..row
            },
            3 => {
                batch = rows(live.id, live.length, &[1; STEP_ROWS + 1], |_| {
                    RowOutput::Nothing
                });
                row
            }
            _ => {
                let beyond = live.capacity + 1 - live.length;
                if beyond > STEP_ROWS {
                    return;
                }
                batch = rows(live.id, live.length, &vec![1; beyond], |_| {
                    RowOutput::Nothing
                });
                let error = self.model.step(&batch);
                assert!(
                    matches!(error, Err(ModelError::Capacity { .. })),
                    "{error:?}"
                );
                return;
            }
        };
        let at = self.random.below(batch.len() + 1);
        batch.insert(at, wrong);
        self.log.push(format!("wrong: {batch:?}"));
        assert!(self.model.step(&batch).is_err(), "{:#?}", self.log);
    }
}

/// Two chunks of every length, against the whole, and a chunk of each length after one of 15.
fn every_split(family: &str, backend: Backend, mut model: DeviceModel, bound: f32) {
    let prompt = prompt_of(family, 2);
    let mut last_of = |chunks: &[usize]| -> Vec<f32> {
        let sequence = model.open_sequence(prompt.len()).expect("a sequence");
        let (mut at, mut last) = (0, Vec::new());
        for &chunk in chunks {
            let wanted = |i| {
                if i + 1 == chunk {
                    RowOutput::Logits
                } else {
                    RowOutput::Nothing
                }
            };
            let batch = rows(sequence, at, &prompt[at..at + chunk], wanted);
            last = logits(&model.step(&batch).expect("a step")[0]).to_vec();
            at += chunk;
        }
        assert_eq!(at, prompt.len());
        model.close_sequence(sequence);
        last
    };
    let whole = last_of(&[prompt.len()]);
    let token = argmax(&whole).expect("finite");
    let mut worst = 0.0f32;
    for first in 1..prompt.len() {
        let mut ways = vec![vec![first, prompt.len() - first]];
        if let Some(rest) = prompt
            .len()
            .checked_sub(first + 15)
            .filter(|rest| *rest > 0)
        {
            ways.push(vec![15, first, rest]);
        }
        for chunks in ways {
            let found = last_of(&chunks);
            let differences = found.iter().zip(&whole).map(|(a, b)| (a - b).abs());
            let distance = differences.fold(0.0, f32::max);
            assert!(distance < bound, "{family}, {chunks:?}: {distance}");
            assert_eq!(argmax(&found), Ok(token), "{family}, {chunks:?}");
            worst = worst.max(distance);
        }
    }
    println!("{family} on {backend:?}: largest difference of a split {worst:e}");
}

/// A model whose every step has a row of each of some other sequences, too.
struct Company<'m> {
    model: &'m mut DeviceModel,
    others: Vec<(SequenceId, Vec<u32>, usize)>,
    /// Logits of the rows asked for.
    seen: Vec<Vec<f32>>,
}

impl Model for Company<'_> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn max_step_rows(&self) -> usize {
        15
    }

    fn open_sequence(&mut self, capacity: usize) -> Result<SequenceId, ModelError> {
        self.model.open_sequence(capacity)
    }

    fn truncate_sequence(&mut self, id: SequenceId, length: usize) -> Result<usize, ModelError> {
        self.model.truncate_sequence(id, length)
    }

    fn close_sequence(&mut self, sequence: SequenceId) {
        self.model.close_sequence(sequence);
    }

    fn step(&mut self, asked: &[StepRow]) -> Result<Vec<RowResult>, ModelError> {
        let mut batch = Vec::new();
        for (i, (id, tokens, length)) in self.others.iter_mut().enumerate() {
            // Some before the rows asked for, some behind.
            if i == self.seen.len() % 3 {
                batch.extend(asked);
            }
            if *length < tokens.len() {
                batch.extend(rows(*id, *length, &tokens[*length..=*length], |_| {
                    RowOutput::Greedy
                }));
                *length += 1;
            }
        }
        if !batch.iter().any(|row| asked.contains(row)) {
            batch.extend(asked);
        }
        let wanted = batch.iter().filter(|row| row.output != RowOutput::Nothing);
        let wanted: Vec<StepRow> = wanted.copied().collect();
        let results = self.model.step(&batch)?;
        let ours = wanted
            .iter()
            .zip(results)
            .filter(|(row, _)| asked.contains(row));
        let ours: Vec<RowResult> = ours.map(|(_, result)| result).collect();
        self.seen
            .extend(ours.iter().map(|result| logits(result).to_vec()));
        Ok(ours)
    }
}

/// As the test of each kind, with products that share a reading of the weights: of layers that
/// have fused kernels, and of layers that have none.
#[test]
fn a_request_gives_the_same_bits_in_any_company_that_shares_its_weights() {
    on_backends(|backend| {
        for (family, sizes) in [("qwen3", &[1, 2, 7, 16, 64, 1][..]), ("gemma3", &[1, 7, 2])] {
            let mut model = load_of(
                family,
                backend,
                (64, 96),
                Scalar::BF16,
                CacheType::Activations,
            );
            model.set_route(Route::Batched).expect("a route");
            company(family, backend, model, sizes);
        }
    });
}

/// A request in batches of these sizes, whose other members are at other depths, some ending on
/// the way; plain and speculative.
fn company(family: &str, backend: Backend, mut model: DeviceModel, sizes: &[usize]) {
    let prompt = prompt_of(family, 3);
    let mut draft = load("qwen3_draft", backend, 1, 64);
    // A bias that changes no order: all logits come back, and are seen.
    let parameters = SamplingParameters {
        logit_bias: [(0, -1e-3)].into(),
        ..SamplingParameters::default()
    };
    let sampler = Sampler::new(parameters, model.vocab_size()).expect("in range");
    let request = Request {
        prompt_ids: prompt[20..57].to_vec(),
        max_tokens: 12,
        sampler: sampler.clone(),
        stop_tokens: Vec::new(),
        stop_strings: Vec::new(),
    };
    let mut alone = None;
    for &size in sizes {
        let depth = |i: usize| (i * 29) % 100;
        let others: Vec<(SequenceId, Vec<u32>, usize)> = (1..size)
            .map(|i| {
                let id = model.open_sequence(STREAM).expect("a sequence");
                let start = &prompt[..depth(i)];
                for (c, chunk) in start.chunks(15).enumerate() {
                    let batch = rows(id, 15 * c, chunk, |_| RowOutput::Nothing);
                    model.step(&batch).expect("a prompt");
                }
                // The shortest end while the request runs.
                let end = (depth(i) + 3 + i).min(prompt.len());
                (id, prompt[..end].to_vec(), depth(i))
            })
            .collect();
        let ids: Vec<SequenceId> = others.iter().map(|other| other.0).collect();
        let mut company = Company {
            model: &mut model,
            others,
            seen: Vec::new(),
        };
        let answer = Generator::new(&mut company).run(&request, None, &mut |_| {});
        let tokens = answer.expect("runs").token_ids;
        let plain = std::mem::take(&mut company.seen);
        let mut proposer = DraftModel::new(&mut draft);
        let speculation = SpeculationRequest {
            prompt_ids: &request.prompt_ids,
            max_tokens: request.max_tokens,
            sampler: &sampler,
            verify_rows: 4,
        };
        let found = speculate(&mut company, &mut proposer, speculation, &mut |_| true);
        let found = found.expect("runs");
        assert_eq!(found.token_ids, tokens, "{family}, {size}");
        let speculated = std::mem::take(&mut company.seen);
        for id in ids {
            model.close_sequence(id);
        }
        let (tokens_alone, plain_alone, speculated_alone) =
            alone.get_or_insert_with(|| (tokens.clone(), plain.clone(), speculated.clone()));
        assert_eq!(&tokens, tokens_alone, "{family}, {size}");
        for (found, expected) in [(&plain, plain_alone), (&speculated, speculated_alone)] {
            assert_eq!(found.len(), expected.len());
            for (row, (found, expected)) in found.iter().zip(expected.iter()).enumerate() {
                assert!(equal_bits(found, expected), "{family}, {size}, row {row}");
            }
        }
    }
    assert_eq!(model.state_usage().blocks, 0);
}
