//! Reductions over rows, columns and everything; softmax and scan.
//!
//! Sums accumulate in f32, each thread in ascending order, threads by the adjacent-pair tree.

use std::f32::consts::LOG2_E;

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, ints, normal, values};

use crate::elementwise::Layout;

/// Sum of each row: `y[r] = sum(x[r, :])`.
#[kernel(grid = [rows], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn sum_rows<T: Float>(x: &Tensor<T, (rows, cols)>, y: &mut Tensor<f32, (rows,)>) {
    let row = group_id(0);
    let mut sum = 0.0f32;
    for i in strided(cols) {
        sum += x[[row, i]].to_f32();
    }
    let total = workgroup_sum(sum);
    if local_index() == 0 {
        y[row] = total;
    }
}

/// Largest of each row, NaN where the row has one: `y[r] = max(x[r, :])`.
#[kernel(grid = [rows], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn max_rows<T: Float>(x: &Tensor<T, (rows, cols)>, y: &mut Tensor<f32, (rows,)>) {
    let row = group_id(0);
    let mut largest = f32::NEG_INFINITY;
    for i in strided(cols) {
        largest = largest.max_nan(x[[row, i]].to_f32());
    }
    let total = workgroup_max_nan(largest);
    if local_index() == 0 {
        y[row] = total;
    }
}

/// Sum of each column: `y[c] = sum(x[:, c])`, rows ascending.
#[kernel(grid = [ceil_div(cols, 256)], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn sum_columns<T: Float>(x: &Tensor<T, (rows, cols)>, y: &mut Tensor<f32, (cols,)>) {
    let column = global_id(0);
    if column >= cols {
        return;
    }
    let mut sum = 0.0f32;
    for row in 0..rows {
        sum += x[[row, column]].to_f32();
    }
    y[column] = sum;
}

/// Largest of each column, NaN where the column has one: `y[c] = max(x[:, c])`.
#[kernel(grid = [ceil_div(cols, 256)], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn max_columns<T: Float>(x: &Tensor<T, (rows, cols)>, y: &mut Tensor<f32, (cols,)>) {
    let column = global_id(0);
    if column >= cols {
        return;
    }
    let mut largest = f32::NEG_INFINITY;
    for row in 0..rows {
        largest = largest.max_nan(x[[row, column]].to_f32());
    }
    y[column] = largest;
}

/// Elements that one workgroup of the chunked reductions takes.
pub const CHUNK: u32 = 16384;

/// Sum of each chunk of [`CHUNK`] elements: `y[c] = sum(x[c * CHUNK..][..CHUNK])`. Long sums are
/// this and then [`sum_all`] over the chunks: the order depends on `n` alone.
#[kernel(
    grid = [chunks],
    workgroup = 256,
    requires(chunks == ceil_div(n, CHUNK)),
    dependent,
    instances(T = [f32, f16, bf16])
)]
pub fn sum_chunks<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<f32, (chunks,)>) {
    launch_barrier();
    let chunk = group_id(0);
    let first = chunk * CHUNK;
    let count = (n - first).min(CHUNK);
    let mut sum = 0.0f32;
    // What the threads read together is contiguous: 16 bytes each.
    if Layout::<T>::IS_WIDE {
        let mut sums = splat4(0.0f32);
        for i in strided(count / 4) {
            sums += x.load4(first / 4 + i).to_f32();
        }
        sum += sums.sum();
    } else {
        let mut sums = splat8(0.0f32);
        for i in strided(count / 8) {
            sums += x.load8(first / 8 + i).to_f32();
        }
        sum += sums.sum();
    }
    let whole = count / Layout::<T>::VECTOR * Layout::<T>::VECTOR;
    for i in (whole + local_index()..count).step_by(256) {
        sum += x[first + i].to_f32();
    }
    let total = workgroup_sum(sum);
    if local_index() == 0 {
        y[chunk] = total;
    }
}

/// Largest of each chunk of [`CHUNK`] elements, NaN where the chunk has one; then [`max_all`].
#[kernel(grid = [chunks], workgroup = 256, requires(chunks == ceil_div(n, CHUNK)), instances(T = [f32, f16, bf16]))]
pub fn max_chunks<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<f32, (chunks,)>) {
    let chunk = group_id(0);
    let first = chunk * CHUNK;
    let count = (n - first).min(CHUNK);
    let mut most = splat8(f32::NEG_INFINITY);
    for i in strided(count / 8) {
        most = most.max_nan(x.load8(first / 8 + i).to_f32());
    }
    let mut largest = f32::NEG_INFINITY;
    for lane in unroll(0..8) {
        largest = largest.max_nan(most[lane as usize]);
    }
    for i in strided(count % 8) {
        largest = largest.max_nan(x[first + count / 8 * 8 + i].to_f32());
    }
    let total = workgroup_max_nan(largest);
    if local_index() == 0 {
        y[chunk] = total;
    }
}

/// Elements of a thread of [`sum_all`] that are on their way at once.
const SUM_LOADS: u32 = 16;

/// Sum of everything, by one workgroup: `y[0] = sum(x)`. For more than a few chunks,
/// [`sum_chunks`] comes first.
#[kernel(grid = [1], workgroup = 1024, dependent, instances(T = [f32, f16, bf16]))]
pub fn sum_all<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<f32, { (1,) }>) {
    launch_barrier();
    let mut sum = 0.0f32;
    for start in (local_index()..n).step_by(SUM_LOADS as usize * 1024) {
        // The last element in place of those past the end: loads behind conditions wait.
        let mut loaded = private::<f32>(SUM_LOADS);
        for j in unroll(0..SUM_LOADS) {
            loaded[j] = x[(start + j * 1024).min(n - 1)].to_f32();
        }
        for j in unroll(0..SUM_LOADS) {
            sum += select(start + j * 1024 < n, loaded[j], 0.0);
        }
    }
    let total = workgroup_sum(sum);
    if local_index() == 0 {
        y[0] = total;
    }
}

/// Largest of everything, NaN where there is one, by one workgroup: `y[0] = max(x)`. For more
/// than a few chunks, [`max_chunks`] comes first.
#[kernel(grid = [1], workgroup = 1024, instances(T = [f32, f16, bf16]))]
pub fn max_all<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<f32, { (1,) }>) {
    let mut largest = f32::NEG_INFINITY;
    for i in strided(n) {
        largest = largest.max_nan(x[i].to_f32());
    }
    let total = workgroup_max_nan(largest);
    if local_index() == 0 {
        y[0] = total;
    }
}

/// Elements that a thread of [`softmax`] keeps: rows up to 8,192 columns are read once.
const KEPT: u32 = 32;

/// Softmax of each row: `y[r, :] = exp(x[r, :] - max) / sum(exp(x[r, :] - max))`.
/// A row of minus infinities gives zeros; a NaN or plus infinity anywhere gives NaN.
#[kernel(grid = [rows], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn softmax<T: Float>(x: &Tensor<T, (rows, cols)>, y: &mut Tensor<T, (rows, cols)>) {
    let row = group_id(0);
    if cols == 0 {
        return;
    }
    let kept_columns = cols.min(256 * KEPT);
    // Every load is taken, the ones past the end again: loads behind conditions wait for each other.
    let mut kept = [f32::NEG_INFINITY; KEPT as usize];
    for j in 0..KEPT {
        let i = j * 256 + local_index();
        let value = x[[row, i.min(cols - 1)]].to_f32();
        kept[j as usize] = select(i < kept_columns, value, f32::NEG_INFINITY);
    }
    let mut largest = f32::NEG_INFINITY;
    for j in 0..KEPT {
        largest = largest.max_nan(kept[j as usize]);
    }
    for i in (kept_columns + local_index()..cols).step_by(256) {
        largest = largest.max_nan(x[[row, i]].to_f32());
    }
    let largest = workgroup_max_nan(largest);
    let shift = select(largest == f32::NEG_INFINITY, 0.0, largest);
    let mut sum = 0.0f32;
    for j in 0..KEPT {
        if j * 256 < kept_columns {
            kept[j as usize] = (kept[j as usize] - shift).exp();
            sum += kept[j as usize];
        }
    }
    for i in (kept_columns + local_index()..cols).step_by(256) {
        sum += (x[[row, i]].to_f32() - shift).exp();
    }
    let sum = workgroup_sum(sum);
    let factor = select(sum == 0.0, 0.0, 1.0 / sum);
    for j in 0..KEPT {
        let i = j * 256 + local_index();
        if i < kept_columns {
            y[[row, i]] = T::from_f32(kept[j as usize] * factor);
        }
    }
    for i in (kept_columns + local_index()..cols).step_by(256) {
        y[[row, i]] = T::from_f32((x[[row, i]].to_f32() - shift).exp() * factor);
    }
}

/// Threads of [`softmax_eights`].
const EIGHTS_THREADS: u32 = 512;

/// Rows of [`softmax_eights`] of which a thread keeps that many eights; any where it keeps none.
struct Kept<const EIGHTS: u32>;

impl<const EIGHTS: u32> Kept<EIGHTS> {
    /// Most columns.
    const COLUMNS: u32 = match EIGHTS {
        0 => u32::MAX,
        kept => 8 * kept * EIGHTS_THREADS,
    };
    /// Elements of a thread's array.
    const CELLS: u32 = match EIGHTS {
        0 => 8,
        kept => 8 * kept,
    };
}

/// As [`softmax`], for rows of whole eights, which are read and written eight elements at a time.
/// Exponentials are the target's fast ones to base 2, of the elements times `log2(e)`. A thread
/// keeps `EIGHTS` eights, so that rows up to 8,192 columns are read once with 2; with 0 a row is
/// of any length, and read three times.
#[kernel(
    approximate,
    grid = [rows],
    workgroup = EIGHTS_THREADS,
    requires(cols % 8 == 0, cols <= Kept::<EIGHTS>::COLUMNS),
    instances(T = [f32, f16, bf16], EIGHTS = [2, 0])
)]
pub fn softmax_eights<T: Float, const EIGHTS: u32>(
    x: &Tensor<T, (rows, cols)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (row, eights) = (group_id(0), cols / 8);
    if eights == 0 {
        return;
    }
    let mut kept = private::<f32>(Kept::<EIGHTS>::CELLS);
    // A NaN is no largest, but its exponential and with it the sum are NaN.
    let mut largest = splat8(f32::NEG_INFINITY);
    for j in unroll(0..EIGHTS) {
        let i = j * EIGHTS_THREADS + local_index();
        // The last of the row in place of those past its end: loads behind conditions wait.
        let value = x.load8([row, i.min(eights - 1)]).to_f32();
        kept.store8(j, value);
        largest = largest.max(value);
    }
    if EIGHTS == 0 {
        for i in strided(eights) {
            largest = largest.max(x.load8([row, i]).to_f32());
        }
    }
    let most = workgroup_max(largest.max_lane());
    let shift = select(most == f32::NEG_INFINITY, 0.0, -(most * LOG2_E));
    let (scale, shift) = (splat8(LOG2_E), splat8(shift));
    let mut sums = splat8(0.0f32);
    for j in unroll(0..EIGHTS) {
        let value = kept.load8(j).mul_add(scale, shift).exp2();
        kept.store8(j, value);
        let counts = j * EIGHTS_THREADS + local_index() < eights;
        sums = select(counts, sums + value, sums);
    }
    if EIGHTS == 0 {
        for i in strided(eights) {
            sums += x.load8([row, i]).to_f32().mul_add(scale, shift).exp2();
        }
    }
    let sum = workgroup_sum(sums.sum());
    let factor = splat8(select(sum == 0.0, 0.0, 1.0 / sum));
    for j in unroll(0..EIGHTS) {
        let i = j * EIGHTS_THREADS + local_index();
        if i < eights {
            y.store8([row, i], (kept.load8(j) * factor).to::<T>());
        }
    }
    if EIGHTS == 0 {
        for i in strided(eights) {
            let value = x.load8([row, i]).to_f32().mul_add(scale, shift).exp2();
            y.store8([row, i], (value * factor).to::<T>());
        }
    }
}

/// Inclusive prefix sum of each row: `y[r, c] = sum(x[r, 0..=c])`, wrapping.
#[kernel(grid = [rows], workgroup = 256)]
pub fn scan_rows(x: &Tensor<u32, (rows, cols)>, y: &mut Tensor<u32, (rows, cols)>) {
    let row = group_id(0);
    let mut carry = 0u32;
    for start in (0..cols).step_by(256) {
        let column = start + local_index();
        let inside = column < cols;
        let mut value = 0u32;
        if inside {
            value = x[[row, column]];
        }
        let prefix = workgroup_scan_sum(value).wrapping_add(carry);
        if inside {
            y[[row, column]] = prefix;
        }
        carry = workgroup_broadcast(prefix, 255);
    }
}

/// Counts of each byte value: `bins[v] += number of x[i] == v`.
#[kernel(grid = [min(ceil_div(n, 1024), 64)], workgroup = 256)]
pub fn histogram(x: &Tensor<u8, (n,)>, bins: &mut Tensor<u32, { (256,) }>) {
    for i in grid_strided(n) {
        bins.atomic_add(x[i] as u32, 1);
    }
}

const SHAPES: [(u64, u64); 6] = [(0, 5), (1, 1), (3, 255), (2, 257), (5, 1000), (4, 0)];

#[test_kernel(sum_rows)]
fn sum_rows_matches_f64(t: &mut Cases) {
    for (rows, cols) in SHAPES {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], normal(0.0, 1.0))
            .output("y", [rows])
            .bound(Bound::relative(1e-6).absolute(2e-5))
            .expect(move |inputs, out| {
                let row = |r: u64| &inputs["x"][(r * cols) as usize..((r + 1) * cols) as usize];
                out.set("y", (0..rows).map(|r| row(r).iter().sum()).collect());
            });
    }
}

// K18: 4096 ones in a narrow type sum to exactly 4096.
#[test_kernel(sum_rows)]
fn sum_of_ones_is_exact(t: &mut Cases) {
    t.case("4096 ones".to_string())
        .input("x", [1, 4096], values(vec![1.0; 4096]))
        .output("y", [1])
        .bound(Bound::exact())
        .expect(|_, out| out.set("y", vec![4096.0]));
}

#[test_kernel(max_rows)]
fn max_rows_matches_f64(t: &mut Cases) {
    for (rows, cols) in SHAPES {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], normal(0.0, 1.0))
            .output("y", [rows])
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let row = |r: u64| &inputs["x"][(r * cols) as usize..((r + 1) * cols) as usize];
                let largest = |r| row(r).iter().copied().fold(f64::NEG_INFINITY, f64::max);
                out.set("y", (0..rows).map(largest).collect());
            });
    }
}

// K11: NaN passes on wherever it stands.
#[test_kernel(max_rows)]
fn max_rows_passes_nan_on(t: &mut Cases) {
    let rows = vec![
        f64::NAN,
        6.0,
        8.0,
        6.0,
        f64::NAN,
        8.0,
        f64::NAN,
        f64::NAN,
        f64::NAN,
    ];
    t.case("nan".to_string())
        .input("x", [3, 3], values(rows))
        .output("y", [3])
        .bound(Bound::exact())
        .expect(|_, out| out.set("y", vec![f64::NAN; 3]));
}

#[test_kernel(sum_columns)]
fn sum_columns_matches_f64(t: &mut Cases) {
    for (rows, cols) in SHAPES {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], normal(0.0, 1.0))
            .output("y", [cols])
            .bound(Bound::relative(1e-6).absolute(1e-5))
            .expect(move |inputs, out| {
                let cell = |r: u64, c: u64| inputs["x"][(r * cols + c) as usize];
                out.set(
                    "y",
                    (0..cols)
                        .map(|c| (0..rows).map(|r| cell(r, c)).sum())
                        .collect(),
                );
            });
    }
}

#[test_kernel(max_columns)]
fn max_columns_matches_f64(t: &mut Cases) {
    for (rows, cols) in SHAPES {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], normal(0.0, 1.0))
            .output("y", [cols])
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let cell = |r: u64, c: u64| inputs["x"][(r * cols + c) as usize];
                let largest = |c| {
                    (0..rows)
                        .map(|r| cell(r, c))
                        .fold(f64::NEG_INFINITY, f64::max)
                };
                out.set("y", (0..cols).map(largest).collect());
            });
    }
}

/// Lengths around one chunk, and several.
const CHUNKED: [u64; 6] = [0, 1, 1000, 16_384, 16_391, 50_003];

/// `n` of `values` in chunks.
fn chunks_of(values: &[f64]) -> impl Iterator<Item = &[f64]> {
    values.chunks(CHUNK as usize)
}

#[test_kernel(sum_chunks)]
fn sum_chunks_matches_f64(t: &mut Cases) {
    for n in CHUNKED {
        t.case(format!("{n}"))
            .input("x", [n], normal(0.0, 1.0))
            .output("y", [n.div_ceil(u64::from(CHUNK))])
            .bound(Bound::relative(1e-6).absolute(5e-4))
            .expect(|inputs, out| {
                out.set(
                    "y",
                    chunks_of(&inputs["x"]).map(|c| c.iter().sum()).collect(),
                );
            });
    }
}

#[test_kernel(max_chunks)]
fn max_chunks_matches_f64(t: &mut Cases) {
    for n in CHUNKED {
        t.case(format!("{n}"))
            .input("x", [n], normal(0.0, 1.0))
            .output("y", [n.div_ceil(u64::from(CHUNK))])
            .bound(Bound::exact())
            .expect(|inputs, out| {
                let largest = |c: &[f64]| c.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                out.set("y", chunks_of(&inputs["x"]).map(largest).collect());
            });
    }
}

#[bench_kernel(sum_chunks)]
fn sum_of_much(b: &mut Benches) {
    let bytes = u64::from(b.scalar("T").bytes());
    let n = 256 << 20;
    b.bench(format!("{n}"))
        .input("x", [n], normal(0.0, 1.0))
        .output("y", [n / u64::from(CHUNK)])
        .bytes(n * bytes);
}

#[bench_kernel(sum_all)]
fn sum_of_chunks(b: &mut Benches) {
    b.bench("16384")
        .input("x", [16_384], normal(0.0, 1.0))
        .output("y", [1])
        .bytes(16_384 * 4);
}

#[bench_kernel(softmax_eights)]
fn softmax_rows(b: &mut Benches) {
    let bytes = u64::from(b.scalar("T").bytes());
    let (rows, cols) = (4096, 8192);
    b.bench(format!("{rows}x{cols}"))
        .input("x", [rows, cols], normal(0.0, 1.0))
        .output("y", [rows, cols])
        .bytes(2 * rows * cols * bytes);
}

#[test_kernel(sum_all)]
fn sum_all_matches_f64(t: &mut Cases) {
    for n in [0, 1, 255, 1000, 65_537] {
        t.case(format!("{n}"))
            .input("x", [n], normal(0.0, 1.0))
            .output("y", [1])
            .bound(Bound::relative(1e-6).absolute(5e-4))
            .expect(|inputs, out| out.set("y", vec![inputs["x"].iter().sum()]));
    }
}

#[test_kernel(max_all)]
fn max_all_matches_f64(t: &mut Cases) {
    for n in [0, 1, 255, 1000] {
        t.case(format!("{n}"))
            .input("x", [n], normal(0.0, 1.0))
            .output("y", [1])
            .bound(Bound::exact())
            .expect(|inputs, out| {
                let largest = inputs["x"]
                    .iter()
                    .copied()
                    .fold(f64::NEG_INFINITY, f64::max);
                out.set("y", vec![largest]);
            });
    }
}

/// Softmax of one row in f64, by the rules of [`softmax`].
fn softmax_row(x: &[f64]) -> Vec<f64> {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if x.iter().any(|v| v.is_nan()) || largest == f64::INFINITY {
        return vec![f64::NAN; x.len()];
    }
    if largest == f64::NEG_INFINITY {
        return vec![0.0; x.len()];
    }
    let sum: f64 = x.iter().map(|v| (v - largest).exp()).sum();
    x.iter().map(|v| (v - largest).exp() / sum).collect()
}

#[test_kernel(softmax)]
fn softmax_matches_f64(t: &mut Cases) {
    softmax_cases(t, &[(0, 5), (1, 1), (3, 255), (2, 257), (2, 4096)]);
}

#[test_kernel(softmax_eights)]
fn softmax_eights_matches_f64(t: &mut Cases) {
    softmax_cases(t, &[(0, 8), (1, 8), (3, 256), (5, 4104), (2, 8192)]);
    if t.constant("EIGHTS") == 0 {
        softmax_cases(t, &[(2, 8200)]);
    }
}

fn softmax_cases(t: &mut Cases, shapes: &[(u64, u64)]) {
    for &(rows, cols) in shapes {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], normal(0.0, 4.0))
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-5).absolute(1e-9))
            .expect(move |inputs, out| {
                out.set(
                    "y",
                    inputs["x"]
                        .chunks(cols as usize)
                        .flat_map(softmax_row)
                        .collect(),
                );
            });
    }
}

#[test_kernel(softmax_eights)]
fn softmax_eights_of_special_rows(t: &mut Cases) {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let mut x = vec![-inf; 8];
    x.extend([0.0, -inf, 1.0, nan, 0.0, 1.0, 0.0, 1.0]);
    x.extend([0.0, -inf, 1.0, inf, 0.0, 1.0, 0.0, 1.0]);
    x.extend([0.0, -inf, 1.0, 2.0, 0.0, 1.0, 0.0, 1.0]);
    t.case("special rows".to_string())
        .input("x", [4, 8], values(x))
        .output("y", [4, 8])
        .bound(Bound::relative(1e-5))
        .expect(|inputs, out| {
            out.set("y", inputs["x"].chunks(8).flat_map(softmax_row).collect());
        });
}

// K13: a masked row is zeros, NaN and +infinity stay visible.
#[test_kernel(softmax)]
fn softmax_of_special_rows(t: &mut Cases) {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let x = vec![
        -inf, -inf, -inf, 0.0, -inf, 1.0, nan, 0.0, 1.0, 0.0, inf, 1.0,
    ];
    t.case("special rows".to_string())
        .input("x", [4, 3], values(x))
        .output("y", [4, 3])
        .bound(Bound::relative(1e-5))
        .expect(|inputs, out| {
            out.set("y", inputs["x"].chunks(3).flat_map(softmax_row).collect());
        });
}

#[test_kernel(scan_rows)]
fn scan_rows_is_exact(t: &mut Cases) {
    for (rows, cols) in SHAPES {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], ints(0, 1 << 32))
            .output("y", [rows, cols])
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let x = inputs.ints("x");
                let mut y = Vec::with_capacity(x.len());
                for row in x.chunks(cols.max(1) as usize) {
                    let mut sum = 0i64;
                    for v in row {
                        sum = (sum + v) & 0xffff_ffff;
                        y.push(sum);
                    }
                }
                out.set_ints("y", y);
            });
    }
}

#[test_kernel(histogram)]
fn histogram_counts_every_byte(t: &mut Cases) {
    for n in [0, 1, 1000, 70_000] {
        t.case(format!("{n}"))
            .input("x", [n], ints(0, 256))
            .inout("bins", [256], ints(0, 10))
            .bound(Bound::exact())
            .expect(|inputs, out| {
                let mut bins = inputs.ints("bins").to_vec();
                for v in inputs.ints("x") {
                    bins[*v as usize] += 1;
                }
                out.set_ints("bins", bins);
            });
    }
}
