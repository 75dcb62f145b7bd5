//! Choosing: the largest of a row.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, ints, normal, values};

/// Whether `value` at a later index takes the place of `largest`: NaN counts as the largest.
#[device_fn]
fn is_better(value: f32, largest: f32) -> bool {
    value > largest || (value.is_nan() && !largest.is_nan())
}

/// The lowest index among the threads' largest elements; `at == u32::MAX` where a thread has none.
#[device_fn]
fn workgroup_argmax(largest: f32, at: u32) -> (f32, u32) {
    let most = workgroup_max_nan(select(at == u32::MAX, f32::NEG_INFINITY, largest));
    let equal = largest == most || (largest.is_nan() && most.is_nan());
    (most, workgroup_min(select(equal, at, u32::MAX)))
}

/// Index of the largest element of each row, the lowest index among equals. NaN counts as the
/// largest; a row without elements gives `u32::MAX`.
#[kernel(grid = [rows], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn argmax_rows<T: Float>(x: &Tensor<T, (rows, cols)>, y: &mut Tensor<u32, (rows,)>) {
    let row = group_id(0);
    let mut largest = f32::NEG_INFINITY;
    let mut at = u32::MAX;
    for i in strided(cols) {
        let value = x[[row, i]].to_f32();
        if at == u32::MAX || is_better(value, largest) {
            largest = value;
            at = i;
        }
    }
    let (_, first) = workgroup_argmax(largest, at);
    if local_index() == 0 {
        y[row] = first;
    }
}

/// Columns that one workgroup of [`argmax_chunks`] takes.
pub const ARGMAX_CHUNK: u32 = 1024;

/// Largest element of each chunk of [`ARGMAX_CHUNK`] columns of each row, and its index, the
/// lowest among equals; NaN counts as the largest. [`argmax_of_chunks`] joins them. Two launches
/// spread a row of a vocabulary's width over the device.
#[kernel(
    grid = [chunks, rows],
    workgroup = 256,
    requires(chunks == ceil_div(cols, ARGMAX_CHUNK)),
    dependent,
    instances(T = [f32, f16, bf16])
)]
pub fn argmax_chunks<T: Float>(
    x: &Tensor<T, (rows, cols)>,
    largest_of: &mut Tensor<f32, (rows, chunks)>,
    index_of: &mut Tensor<u32, (rows, chunks)>,
) {
    let (chunk, row) = (group_id(0), group_id(1));
    let start = chunk * ARGMAX_CHUNK + local_index();
    let mut values = [0.0f32; (ARGMAX_CHUNK / 256) as usize];
    for j in 0..ARGMAX_CHUNK / 256 {
        values[j as usize] = x[[row, (start + j * 256).min(cols - 1)]].to_f32();
    }
    let mut largest = values[0];
    let mut at = select(start < cols, start, u32::MAX);
    for j in 1..ARGMAX_CHUNK / 256 {
        let i = start + j * 256;
        if i < cols && is_better(values[j as usize], largest) {
            largest = values[j as usize];
            at = i;
        }
    }
    let (most, first) = workgroup_argmax(largest, at);
    if local_index() == 0 {
        largest_of[[row, chunk]] = most;
        index_of[[row, chunk]] = first;
    }
}

/// Index and value of the largest element of each row, from the chunks that [`argmax_chunks`]
/// wrote; a row without chunks gives `u32::MAX` and minus infinity.
#[kernel(grid = [rows], workgroup = 256, dependent)]
pub fn argmax_of_chunks(
    largest_of: &Tensor<f32, (rows, chunks)>,
    index_of: &Tensor<u32, (rows, chunks)>,
    index: &mut Tensor<u32, (rows,)>,
    largest: &mut Tensor<f32, (rows,)>,
) {
    let row = group_id(0);
    let mut best = f32::NEG_INFINITY;
    let mut at = u32::MAX;
    for chunk in strided(chunks) {
        let value = largest_of[[row, chunk]];
        if at == u32::MAX || is_better(value, best) {
            best = value;
            at = index_of[[row, chunk]];
        }
    }
    let (most, first) = workgroup_argmax(best, at);
    if local_index() == 0 {
        index[row] = first;
        largest[row] = most;
    }
}

/// The largest value, NaN above all, and where it first stands.
fn first_of_largest(row: &[f64]) -> (f64, usize) {
    if let Some(at) = row.iter().position(|v| v.is_nan()) {
        return (f64::NAN, at);
    }
    let best = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (
        best,
        row.iter().position(|v| *v == best).unwrap_or_default(),
    )
}

#[test_kernel(argmax_rows)]
fn argmax_takes_the_first_of_equals(t: &mut Cases) {
    for (rows, cols) in [(0, 5), (1, 1), (3, 255), (2, 1000)] {
        t.case(format!("{rows}x{cols}"))
            // Few distinct values, so that ties are everywhere.
            .input("x", [rows, cols], ints(-3, 4))
            .output("y", [rows])
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let first = |row: &[f64]| first_of_largest(row).1 as i64;
                out.set_ints("y", inputs["x"].chunks(cols as usize).map(first).collect());
            });
    }
}

// K11, E29: NaN wins wherever it stands; a row of -infinity gives its first index.
#[test_kernel(argmax_rows)]
fn argmax_of_special_rows(t: &mut Cases) {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let x = vec![
        nan, 6.0, 8.0, 6.0, nan, 8.0, nan, nan, nan, -inf, -inf, -inf,
    ];
    t.case("special rows".to_string())
        .input("x", [4, 3], values(x))
        .output("y", [4])
        .bound(Bound::exact())
        .expect(|_, out| out.set_ints("y", vec![0, 1, 0, 0]));
}

#[test_kernel(argmax_chunks)]
fn argmax_chunks_takes_the_first_of_equals(t: &mut Cases) {
    for (rows, cols) in [(0, 5), (1, 1), (3, 1024), (2, 1025), (1, 10_000)] {
        let chunks = u64::div_ceil(cols, u64::from(ARGMAX_CHUNK));
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], ints(-300, 300))
            .output("largest_of", [rows, chunks])
            .output("index_of", [rows, chunks])
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let (mut largest, mut index) = (Vec::new(), Vec::new());
                for row in inputs["x"].chunks(cols as usize) {
                    for (c, chunk) in row.chunks(ARGMAX_CHUNK as usize).enumerate() {
                        let (value, at) = first_of_largest(chunk);
                        largest.push(value);
                        index.push((c * ARGMAX_CHUNK as usize + at) as i64);
                    }
                }
                out.set("largest_of", largest);
                out.set_ints("index_of", index);
            });
    }
}

#[test_kernel(argmax_of_chunks)]
fn argmax_of_chunks_takes_the_first_of_equals(t: &mut Cases) {
    for (rows, chunks) in [(0, 5), (1, 1), (3, 75), (2, 300), (2, 0)] {
        t.case(format!("{rows}x{chunks}"))
            .input("largest_of", [rows, chunks], ints(-3, 4))
            .input(
                "index_of",
                [rows, chunks],
                ints(0, 1).map(move |i, _| (i as u64 % chunks.max(1) * 1024 + 5) as i64),
            )
            .output("index", [rows])
            .output("largest", [rows])
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let row = |r: u64| {
                    &inputs["largest_of"][(r * chunks) as usize..((r + 1) * chunks) as usize]
                };
                let none = i64::from(u32::MAX);
                let first = |r| match row(r) {
                    [] => none,
                    row => (first_of_largest(row).1 * 1024 + 5) as i64,
                };
                out.set_ints("index", (0..rows).map(first).collect());
                let largest = |r| first_of_largest(row(r)).0;
                out.set("largest", (0..rows).map(largest).collect());
            });
    }
}

/// Vocabulary of Qwen3.
const VOCABULARY: u64 = 151_936;

#[bench_kernel(argmax_chunks)]
fn argmax_of_a_vocabulary(b: &mut Benches) {
    let bytes = u64::from(b.scalar("T").bytes());
    let chunks = VOCABULARY.div_ceil(u64::from(ARGMAX_CHUNK));
    b.bench(format!("{VOCABULARY}"))
        .input("x", [1, VOCABULARY], normal(0.0, 1.0))
        .output("largest_of", [1, chunks])
        .output("index_of", [1, chunks])
        .bytes(VOCABULARY * bytes);
}

#[bench_kernel(argmax_of_chunks)]
fn argmax_of_a_vocabularys_chunks(b: &mut Benches) {
    b.bench("149")
        .input("largest_of", [1, 149], normal(0.0, 1.0))
        .input("index_of", [1, 149], ints(0, 100))
        .output("index", [1])
        .output("largest", [1])
        .bytes(149 * 8);
}
