//! The kernels of the chunked gated delta rule together, against the rule row after row in f64:
//! lengths around whole chunks, several segments of which one has no rows, values that are
//! columns of a wider tensor, and a segment of no numbers, which stays alone with them.
//! `IRON_TEST_BACKENDS=cuda` runs it on matrix units.

use std::ops::Range;
use std::sync::Arc;

use iron_ir::Scalar;
use iron_ir::launch::{Argument, AsTensorArg};
use iron_runtime::device::RecordedLaunch;
use iron_runtime::{Backend, Device, Tensor, pipeline_of};
use iron_tests::backends::targets;

const KEY_HEADS: usize = 2;
const VALUE_HEADS: usize = 6;
const KEY_DIM: usize = 128;
const VALUE_DIM: usize = 72;

/// Numbers in -1..1, the same in every run.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A prompt's rows and the state before them, as the device holds them.
struct Prompt {
    starts: Vec<u32>,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /// What `v` is columns of, a row a row.
    wide: Tensor,
    decay: Tensor,
    strength: Tensor,
    states: Tensor,
}

impl Prompt {
    fn new(device: &Arc<dyn Device>, dtype: Scalar, lengths: &[usize]) -> Prompt {
        let rows: usize = lengths.iter().sum();
        let tensor = |scalar, shape: &[usize], values: &[f32]| {
            let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
            Tensor::from_f32(device, scalar, &shape, values).expect("memory")
        };
        let scaled = |count, seed, factor: f32| -> Vec<f32> {
            numbers(count, seed).iter().map(|x| x * factor).collect()
        };
        let keys = [rows, KEY_HEADS, KEY_DIM];
        let spread = 1.7 / (KEY_DIM as f32).sqrt();
        let key = |seed| scaled(keys.iter().product(), seed, spread);
        let gates = |seed, from: f32, to: f32| -> Vec<f32> {
            let unit = numbers(rows * VALUE_HEADS, seed);
            unit.iter()
                .map(|x| from + (to - from) * (x + 1.0) / 2.0)
                .collect()
        };
        // Values are the last columns of rows with 16 more.
        let width = VALUE_HEADS * VALUE_DIM + 16;
        let wide = tensor(dtype, &[rows, width], &numbers(rows * width, 3));
        let shape = [rows, VALUE_HEADS, VALUE_DIM].map(|n| n as u64);
        let strides = [width, VALUE_DIM, 1].map(|n| n as u64);
        let v = wide
            .slice(1, 16..width as u64)
            .and_then(|v| v.with_strides(&shape, &strides))
            .expect("a view");
        let states = [2 * lengths.len(), VALUE_HEADS, VALUE_DIM, KEY_DIM];
        let gate_shape = [rows, VALUE_HEADS];
        let ends = lengths.iter().scan(0, |end, length| {
            *end += *length as u32;
            Some(*end)
        });
        Prompt {
            starts: std::iter::once(0).chain(ends).collect(),
            q: tensor(dtype, &keys, &key(1)),
            k: tensor(dtype, &keys, &key(2)),
            v,
            wide,
            decay: tensor(Scalar::F32, &gate_shape, &gates(4, 0.6, 1.0)),
            strength: tensor(Scalar::F32, &gate_shape, &gates(5, 0.0, 1.0)),
            states: tensor(Scalar::F32, &states, &numbers(states.iter().product(), 6)),
        }
    }

    /// The rows that segment `s` has.
    fn segment(&self, s: usize) -> Range<usize> {
        self.starts[s] as usize..self.starts[s + 1] as usize
    }

    /// Runs the kernels with chunks of `size` rows: segment `s` goes on from slot `2 s` to the
    /// next. Gives what the rows read.
    fn run(&self, device: &Arc<dyn Device>, size: u64) -> Vec<f32> {
        let dtype = self.q.scalar();
        let rows = self.q.shape()[0];
        let segments = self.starts.len() as u64 - 1;
        let chunks = rows / size + segments;
        let (key_heads, value_heads) = (KEY_HEADS as u64, VALUE_HEADS as u64);
        // Scratch holds no numbers before.
        let empty = |scalar, shape: &[u64]| {
            let none = vec![f32::NAN; shape.iter().product::<u64>() as usize];
            Tensor::from_f32(device, scalar, shape, &none).expect("memory")
        };
        let whole = |values: Vec<u32>| {
            let shape = [values.len() as u64];
            Tensor::from_slice(device, Scalar::U32, &shape, &values).expect("memory")
        };
        let starts = whole(self.starts.clone());
        let [from, to] = [0, 1].map(|by| whole((0..segments as u32).map(|s| 2 * s + by).collect()));
        let by_head = |x: &Tensor| x.transpose(0, 1).expect("a view");
        let [q, k, v] = [&self.q, &self.k, &self.v].map(by_head);
        let of_keys = empty(Scalar::F32, &[chunks, key_heads, size, size]);
        let of_queries = empty(Scalar::F32, &[chunks, key_heads, size, size]);
        let inverse = empty(dtype, &[chunks, value_heads, size, size]);
        let weights = empty(dtype, &[chunks, value_heads, size, size]);
        let kept = empty(Scalar::F32, &[chunks, value_heads, 2, size]);
        let by_chunk = empty(dtype, &[chunks, value_heads, VALUE_DIM as u64, size]);
        let y = empty(dtype, &[rows, value_heads, VALUE_DIM as u64]);
        let of_chunk = format!("{dtype}-CHUNK={size}");
        let of_keys_too = format!("{dtype}-KEY_DIM={KEY_DIM}-CHUNK={size}");
        let launches: [(&str, &str, Vec<&Tensor>); 4] = [
            (
                "delta_products",
                &of_chunk,
                vec![&q, &k, &starts, &of_keys, &of_queries],
            ),
            (
                "delta_inverse",
                &of_chunk,
                vec![
                    &of_keys,
                    &of_queries,
                    &self.decay,
                    &self.strength,
                    &starts,
                    &inverse,
                    &weights,
                    &kept,
                ],
            ),
            (
                "delta_chunks",
                &of_keys_too,
                vec![
                    &q,
                    &k,
                    &v,
                    &inverse,
                    &weights,
                    &kept,
                    &starts,
                    &from,
                    &to,
                    &self.states,
                    &by_chunk,
                ],
            ),
            ("delta_rows", &of_chunk, vec![&by_chunk, &starts, &y]),
        ];
        let launches = launches.map(|(kernel, instance, tensors)| {
            let module = Some("iron_corpus::delta");
            let pipeline = pipeline_of(device, kernel, module, instance).expect("compiles");
            let arguments = tensors
                .into_iter()
                .map(|t| Argument::Tensor(t.tensor_arg()));
            RecordedLaunch::new(pipeline, arguments.collect()).expect("the contract holds")
        });
        device.submit(&launches).expect("runs");
        device.synchronize().expect("no index was out of range");
        y.to_f32().expect("memory")
    }

    /// The rule in f64: what the rows of a value head of segment `s` read, and the state after
    /// them, from the state before.
    fn rule(&self, s: usize, head: usize, before: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let read = |x: &Tensor| -> Vec<f64> {
            let values = x.to_f32().expect("memory");
            values.into_iter().map(f64::from).collect()
        };
        let [q, k, v] = [&self.q, &self.k, &self.v].map(read);
        let [decay, strength] = [&self.decay, &self.strength].map(read);
        let key_head = head / (VALUE_HEADS / KEY_HEADS);
        let mut state: Vec<f64> = before.iter().map(|x| f64::from(*x)).collect();
        let mut y = Vec::new();
        for row in self.segment(s) {
            let key =
                (row * KEY_HEADS + key_head) * KEY_DIM..(row * KEY_HEADS + key_head + 1) * KEY_DIM;
            let (q, k) = (&q[key.clone()], &k[key]);
            let cell = row * VALUE_HEADS + head;
            for (j, of_value) in state.chunks_mut(KEY_DIM).enumerate() {
                let recalled: f64 = of_value
                    .iter()
                    .zip(k)
                    .map(|(s, k)| s * decay[cell] * k)
                    .sum();
                let added = strength[cell] * (v[cell * VALUE_DIM + j] - recalled);
                let mut sum = 0.0;
                for ((s, k), q) in of_value.iter_mut().zip(k).zip(q) {
                    *s = *s * decay[cell] + added * k;
                    sum += *s * q;
                }
                y.push(sum);
            }
        }
        (y, state)
    }
}

/// Chunks of that many rows of a type's numbers, on a backend.
fn chunks_equal_the_rule(device: &Arc<dyn Device>, dtype: Scalar, size: u64, bound: f64) {
    let size_of = size as usize;
    for lengths in [
        vec![1],
        vec![size_of - 1],
        vec![size_of + 1],
        vec![5, 0, 2 * size_of + 3, 2 * size_of],
    ] {
        let prompt = Prompt::new(device, dtype, &lengths);
        let before = prompt.states.to_f32().expect("memory");
        let y = prompt.run(device, size);
        let after = prompt.states.to_f32().expect("memory");
        let each = VALUE_DIM * KEY_DIM;
        let mut worst = 0.0f64;
        for s in 0..lengths.len() {
            for head in 0..VALUE_HEADS {
                let at = |slot: usize| (slot * VALUE_HEADS + head) * each;
                let (rows, state) = prompt.rule(s, head, &before[at(2 * s)..][..each]);
                let found = prompt.segment(s).flat_map(|row| {
                    let start = (row * VALUE_HEADS + head) * VALUE_DIM;
                    y[start..start + VALUE_DIM].to_vec()
                });
                let pairs = rows.into_iter().zip(found);
                let of_state = state
                    .into_iter()
                    .zip(after[at(2 * s + 1)..][..each].to_vec());
                for (expected, found) in pairs.chain(of_state) {
                    let distance = (expected - f64::from(found)).abs();
                    // Not `>`, which no NaN passes.
                    assert!(
                        distance <= bound * (1.0 + expected.abs()),
                        "{dtype}, chunks of {size}, {lengths:?}, segment {s}, head {head}: \
                         {found} for {expected}"
                    );
                    worst = worst.max(distance);
                }
            }
        }
        println!("{dtype}, chunks of {size}, {lengths:?}: largest distance {worst:e}");
    }
}

/// A segment whose rows are no numbers leaves the others' bits as they are.
fn a_bad_segment_stays_alone(device: &Arc<dyn Device>, dtype: Scalar, size: u64) {
    let length = size as usize + 3;
    let lengths = [length, length, length];
    let prompt = Prompt::new(device, dtype, &lengths);
    let good = prompt.run(device, size);
    let prompt = Prompt::new(device, dtype, &lengths);
    let Prompt {
        q,
        k,
        wide,
        decay,
        strength,
        ..
    } = &prompt;
    for x in [q, k, wide, decay, strength] {
        let range = prompt.segment(1);
        let bad = x
            .slice(0, range.start as u64..range.end as u64)
            .expect("a view");
        let none = vec![f32::NAN; bad.elements() as usize];
        bad.write_f32(&none).expect("memory");
    }
    let mixed = prompt.run(device, size);
    for s in [0, 2] {
        let range = prompt.segment(s);
        let cells = VALUE_HEADS * VALUE_DIM;
        let part = |y: &[f32]| -> Vec<u32> {
            let rows = &y[range.start * cells..range.end * cells];
            rows.iter().map(|y| y.to_bits()).collect()
        };
        assert!(
            part(&good) == part(&mixed),
            "{dtype}, chunks of {size}, segment {s}"
        );
    }
}

#[test]
fn chunks_give_what_rows_give() {
    iron_corpus::link();
    for target in targets() {
        let device = &target.device;
        let combinations: &[(Scalar, u64, f64)] = match device.backend() {
            Backend::Cuda => &[
                (Scalar::F32, 16, 1e-5),
                (Scalar::F16, 64, 2e-3),
                (Scalar::BF16, 64, 1.5e-2),
            ],
            Backend::Cpu => &[(Scalar::F32, 16, 1e-5), (Scalar::BF16, 16, 1.5e-2)],
            // The same kernels, one by one, are tested there with every other.
            _ => continue,
        };
        for &(dtype, size, bound) in combinations {
            chunks_equal_the_rule(device, dtype, size, bound);
            a_bad_segment_stays_alone(device, dtype, size);
        }
    }
}
