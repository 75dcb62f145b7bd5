//! Matrix products with dense weights: by rows of dot products for few rows, by tiles for many.
//!
//! Weights are stored as checkpoints store them, one row an output: `y = x · wᵀ`.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, normal};

use crate::elementwise::silu;

/// `y[row, column]` becomes the sum of the workgroup's `part`s.
#[device_fn]
pub(crate) fn store_sum<T: Float>(y: &mut Tensor<T, 2>, row: u32, column: u32, part: f32) {
    let total = workgroup_sum(part);
    if local_index() == 0 {
        y[[row, column]] = T::from_f32(total);
    }
}

/// Product for few rows: `y[r, n] = sum_k x[r, k] * w[n, k]`. `LANES` threads share an output:
/// 1 suits a CPU, 32 short rows on a GPU, 256 long ones. Each thread sums eight interleaved
/// chains in ascending `k`.
#[kernel(
    grid = [cols, rows],
    workgroup = LANES,
    requires(inner % 8 == 0),
    instances(T = [f32, f16, bf16], LANES = [1, 32, 128, 256])
)]
pub fn matvec<T: Float, const LANES: u32>(
    x: &Tensor<T, (rows, inner)>,
    w: &Tensor<T, (cols, inner)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (column, row) = (group_id(0), group_id(1));
    let mut sum = splat8(0.0f32);
    for i in strided(inner / 8) {
        let weights = w.load8([column, i]).to_f32();
        sum = weights.mul_add(x.load8([row, i]).to_f32(), sum);
    }
    store_sum(y, row, column, sum.sum());
}

/// Sizes of the tiles of [`linear`]. `TILE = 64` fits every target; 128 and 256 are for matrix
/// units, the larger where rows and columns fill the device with tiles of 128 × 256.
struct Sizes<const TILE: u32>;

impl<const TILE: u32> Sizes<TILE> {
    /// Rows of a tile of the output.
    const ROWS: u32 = if TILE < 128 { TILE } else { 128 };
    /// Steps of a product of tiles, so many that the products of a turn outlast its waiting.
    const DEPTH: u32 = match TILE {
        0..128 => 16,
        128 => 128,
        _ => 64,
    };
    /// Most workgroups, which then take one tile after the other: as many as an H200 has
    /// multiprocessors where a tile needs a whole one, so that the next tile's loads run beside
    /// the stores of the last.
    const GROUPS: u32 = if TILE < 128 { 32_768 } else { 132 };
}

/// Tiles of the output that share columns and are computed one after the other, so that the
/// weights they read stay in the cache.
const GROUP: u32 = 8;

/// Product for many rows by tiles: `y[r, n] = sum_k x[r, k] * w[n, k]`.
#[kernel(
    grid = [min(
        ceil_div(cols, TILE) * ceil_div(rows, Sizes::<TILE>::ROWS),
        Sizes::<TILE>::GROUPS
    )],
    workgroup = 256,
    instances(T = [f32, f16, bf16], TILE = [64]),
    instances(T = [f16, bf16], TILE = [128, 256])
)]
pub fn linear<T: Float, const TILE: u32>(
    x: &Tensor<T, (rows, inner)>,
    w: &Tensor<T, (cols, inner)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let across = cols.div_ceil(TILE);
    let down = rows.div_ceil(Sizes::<TILE>::ROWS);
    let mut x_tile = shared_tile::<T>(Sizes::<TILE>::ROWS, Sizes::<TILE>::DEPTH);
    let mut w_tile = shared_tile::<T>(TILE, Sizes::<TILE>::DEPTH);
    let mut sum = reg_tile::<f32>(Sizes::<TILE>::ROWS, TILE, 0.0);
    for tile in (group_id(0)..across * down).step_by(group_count(0) as usize) {
        let first = tile / (GROUP * across) * GROUP;
        let height = (down - first).min(GROUP);
        let within = tile % (GROUP * across);
        let first_row = (first + within % height) * Sizes::<TILE>::ROWS;
        let first_column = within / height * TILE;
        sum.fill(0.0);
        for k in (0..inner).step_by(Sizes::<TILE>::DEPTH as usize) {
            x_tile.load(x, [first_row, k]);
            w_tile.load(w, [first_column, k]);
            matmul_nt(&mut sum, &x_tile, &w_tile);
        }
        sum.store(y, [first_row, first_column]);
    }
}

/// Columns of a tile of the products of few rows: so few that 4,096 columns are tiles for nearly
/// every multiprocessor of an H200.
pub const SKINNY_COLUMNS: u32 = 32;

/// Multiprocessors of an H200.
const MULTIPROCESSORS: u32 = 132;

/// Most workgroups along the columns of [`linear_skinny`]: two a multiprocessor, one of which
/// multiplies while the other waits.
const SKINNY_GROUPS: u32 = 264;

/// Steps of a part of [`linear_parts`] are a multiple of this.
const PART_STEPS: u32 = SKINNY_STEPS;

/// Most parts of [`parts_of`].
const MOST_PARTS: u64 = 8;

/// Steps of a product of tiles of few rows. A turn of so many takes about as long as its waiting:
/// half as many steps take a third more time.
const SKINNY_STEPS: u32 = 256;

/// The least instance of the products of few rows that holds `rows`, or the largest.
pub const fn skinny_rows(rows: u64) -> u32 {
    match rows {
        0..=8 => 8,
        9..=16 => 16,
        17..=32 => 32,
        _ => 64,
    }
}

/// Parts of the inner dimension in which [`linear_parts`] multiplies by `cols` by `inner`
/// weights: a power of two, so many that every multiprocessor of an H200 has a tile where there
/// is enough to do. It depends on the weights alone, as sums do.
pub const fn parts_of(cols: u64, inner: u64) -> u64 {
    let tiles = cols.div_ceil(SKINNY_COLUMNS as u64);
    let turns = inner.div_ceil(PART_STEPS as u64);
    let mut parts = 1;
    while parts < MOST_PARTS && 2 * parts * tiles <= MULTIPROCESSORS as u64 && 2 * parts <= turns {
        parts *= 2;
    }
    parts
}

/// Product for 1 to 64 rows, in about the time of reading the weights once:
/// `y[r, n] = sum_k x[r, k] * w[n, k]`. `ROWS` is best the least that holds all rows; more rows
/// take several turns. Every `ROWS` sums in the same order (ascending `k`, in the steps of the
/// target's matrix unit), so a row's result does not depend on how many share the launch.
#[kernel(
    grid = [min(ceil_div(cols, SKINNY_COLUMNS), SKINNY_GROUPS), ceil_div(rows, ROWS)],
    workgroup = 128,
    dependent,
    instances(T = [f16, bf16], ROWS = [8, 16, 32, 64])
)]
pub fn linear_skinny<T: Float, const ROWS: u32>(
    x: &Tensor<T, (rows, inner)>,
    w: &Tensor<T, (cols, inner)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let first_row = group_id(1) * ROWS;
    let mut x_tile = shared_tile::<T>(ROWS, SKINNY_STEPS);
    let mut w_tile = shared_tile::<T>(SKINNY_COLUMNS, SKINNY_STEPS);
    let mut sum = reg_tile::<f32>(ROWS, SKINNY_COLUMNS, 0.0);
    let tiles = cols.div_ceil(SKINNY_COLUMNS);
    for tile in (group_id(0)..tiles).step_by(group_count(0) as usize) {
        sum.fill(0.0);
        for k in (0..inner).step_by(SKINNY_STEPS as usize) {
            // Weights, which no launch writes, are on their way while the launch before ends.
            w_tile.load(w, [tile * SKINNY_COLUMNS, k]);
            if k == 0 {
                launch_barrier();
            }
            x_tile.load(x, [first_row, k]);
            matmul_nt(&mut sum, &x_tile, &w_tile);
        }
        launch_barrier();
        sum.store(y, [first_row, tile * SKINNY_COLUMNS]);
    }
}

/// [`linear_skinny`] in parts of the inner dimension, for weights of few columns:
/// `partial[p, r, n]` is the sum over part `p`, a multiple of `PART_STEPS` steps;
/// [`parts_of`] gives their number. [`join_rms_norm`](crate::norm::join_rms_norm) adds them in
/// order.
#[kernel(
    grid = [min(ceil_div(cols, SKINNY_COLUMNS), MULTIPROCESSORS), parts, ceil_div(rows, ROWS)],
    workgroup = 128,
    dependent,
    instances(T = [f16, bf16], ROWS = [8, 16, 32, 64])
)]
pub fn linear_parts<T: Float, const ROWS: u32>(
    x: &Tensor<T, (rows, inner)>,
    w: &Tensor<T, (cols, inner)>,
    partial: &mut Tensor<f32, (parts, rows, cols)>,
) {
    let (part, first_row) = (group_id(1), group_id(2) * ROWS);
    let length = inner.div_ceil(PART_STEPS).div_ceil(parts) * PART_STEPS;
    let begin = (part * length).min(inner);
    let end = (begin + length).min(inner);
    let mut x_tile = shared_tile::<T>(ROWS, SKINNY_STEPS);
    let mut w_tile = shared_tile::<T>(SKINNY_COLUMNS, SKINNY_STEPS);
    let mut sum = reg_tile::<f32>(ROWS, SKINNY_COLUMNS, 0.0);
    let tiles = cols.div_ceil(SKINNY_COLUMNS);
    for tile in (group_id(0)..tiles).step_by(group_count(0) as usize) {
        sum.fill(0.0);
        for k in (begin..end).step_by(SKINNY_STEPS as usize) {
            w_tile.load(w, [tile * SKINNY_COLUMNS, k]);
            if k == begin {
                launch_barrier();
            }
            x_tile.load(x, [first_row, k]);
            matmul_nt(&mut sum, &x_tile, &w_tile);
        }
        launch_barrier();
        sum.store(partial, [part, first_row, tile * SKINNY_COLUMNS]);
    }
}

/// Gated products for 1 to 64 rows: with `w` the rows of the gate and then those of the others,
/// `y[r, n] = silu(g) * u` of the products `g` and `u` of rows `n` and `cols + n`, each summed as
/// [`linear_skinny`] does and rounded to the tensors' type.
#[kernel(
    grid = [min(ceil_div(cols, SKINNY_COLUMNS), MULTIPROCESSORS), ceil_div(rows, ROWS)],
    workgroup = 128,
    requires(cols % SKINNY_COLUMNS == 0),
    dependent,
    instances(T = [f16, bf16], ROWS = [8, 16, 32, 64])
)]
pub fn gated_skinny<T: Float, const ROWS: u32>(
    x: &Tensor<T, (rows, inner)>,
    w: &Tensor<T, { (2 * cols, inner) }>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let first_row = group_id(1) * ROWS;
    let mut x_tile = shared_tile::<T>(ROWS, SKINNY_STEPS);
    let mut gate_tile = shared_tile::<T>(SKINNY_COLUMNS, SKINNY_STEPS);
    let mut up_tile = shared_tile::<T>(SKINNY_COLUMNS, SKINNY_STEPS);
    let mut gate_sum = reg_tile::<f32>(ROWS, SKINNY_COLUMNS, 0.0);
    let mut up_sum = reg_tile::<f32>(ROWS, SKINNY_COLUMNS, 0.0);
    for tile in (group_id(0)..cols / SKINNY_COLUMNS).step_by(group_count(0) as usize) {
        let column = tile * SKINNY_COLUMNS;
        gate_sum.fill(0.0);
        up_sum.fill(0.0);
        for k in (0..inner).step_by(SKINNY_STEPS as usize) {
            gate_tile.load(w, [column, k]);
            up_tile.load(w, [cols + column, k]);
            if k == 0 {
                launch_barrier();
            }
            x_tile.load(x, [first_row, k]);
            matmul_nt(&mut gate_sum, &x_tile, &gate_tile);
            matmul_nt(&mut up_sum, &x_tile, &up_tile);
        }
        gate_sum.map2(&up_sum, |gate, up| {
            let (gate, up) = (T::from_f32(gate).to_f32(), T::from_f32(up).to_f32());
            silu(gate) * up
        });
        launch_barrier();
        gate_sum.store(y, [first_row, column]);
    }
}

/// Product of two row-major matrices by tiles: `y[r, n] = sum_k a[r, k] * b[k, n]`.
#[kernel(
    grid = [ceil_div(cols, 64), ceil_div(rows, 64)],
    workgroup = 256,
    instances(T = [f32, f16, bf16])
)]
pub fn matmul_nn<T: Float>(
    a: &Tensor<T, (rows, inner)>,
    b: &Tensor<T, (inner, cols)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (first_row, first_column) = (group_id(1) * 64, group_id(0) * 64);
    let mut a_tile = shared_tile::<T>(64, 16);
    let mut b_tile = shared_tile::<T>(16, 64);
    let mut sum = reg_tile::<f32>(64, 64, 0.0);
    for k in (0..inner).step_by(16) {
        a_tile.load(a, [first_row, k]);
        b_tile.load(b, [k, first_column]);
        matmul(&mut sum, &a_tile, &b_tile);
    }
    sum.store(y, [first_row, first_column]);
}

/// `x · wᵀ` in f64.
fn product(x: &[f64], w: &[f64], inner: usize) -> Vec<f64> {
    if inner == 0 {
        return Vec::new();
    }
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    x.chunks(inner)
        .flat_map(|x| w.chunks(inner).map(move |w| dot(x, w)))
        .collect()
}

/// A case of `y = x · wᵀ`, to 1e-5 of a result or `absolute`.
fn case_of_rows(t: &mut Cases, [rows, cols, inner]: [u64; 3], absolute: f64) {
    t.case(format!("{rows}x{cols}x{inner}"))
        .input("x", [rows, inner], normal(0.0, 1.0))
        .input("w", [cols, inner], normal(0.0, 0.1))
        .output("y", [rows, cols])
        .bound(Bound::relative(1e-5).absolute(absolute))
        .expect(move |inputs, out| {
            out.set("y", product(&inputs["x"], &inputs["w"], inner as usize));
        });
}

#[test_kernel(matvec)]
fn matvec_matches_f64(t: &mut Cases) {
    for (rows, cols, inner) in [
        (0, 3, 8),
        (1, 1, 8),
        (2, 7, 136),
        (1, 96, 576),
        (3, 5, 1536),
    ] {
        case_of_rows(t, [rows, cols, inner], 2e-5);
    }
}

const SHAPES: [(u64, u64, u64); 5] = [
    (0, 5, 16),
    (1, 1, 1),
    (65, 70, 33),
    (64, 64, 64),
    (7, 130, 100),
];

#[test_kernel(linear)]
fn linear_matches_f64(t: &mut Cases) {
    for (rows, cols, inner) in SHAPES {
        case_of_rows(t, [rows, cols, inner], 1e-5);
    }
    // Whole tiles and several turns, for which matrix units have loops of their own.
    let tile = t.constant("TILE") as u64;
    if tile > 64 {
        case_of_rows(t, [128, tile, 256], 1e-5);
    }
}

#[test_kernel(linear_skinny)]
fn linear_skinny_matches_f64(t: &mut Cases) {
    for (rows, cols, inner) in [
        (0, 5, 16),
        (1, 1, 1),
        (7, 70, 264),
        (16, 64, 128),
        (65, 33, 100),
    ] {
        case_of_rows(t, [rows, cols, inner], 1e-5);
    }
}

/// Columns, inner elements and parts: fewer turns than parts, parts of unlike lengths.
#[test_kernel(linear_parts)]
fn linear_parts_matches_f64(t: &mut Cases) {
    for (rows, cols, inner, parts) in [
        (0, 5, 16, 2),
        (1, 1, 8, 4),
        (7, 70, 600, 2),
        (65, 33, 776, 4),
    ] {
        t.case(format!("{rows}x{cols}x{inner} in {parts}"))
            .input("x", [rows, inner], normal(0.0, 1.0))
            .input("w", [cols, inner], normal(0.0, 0.1))
            .output("partial", [parts, rows, cols])
            .bound(Bound::relative(1e-5).absolute(1e-5))
            .expect(move |inputs, out| {
                let inner = inner as usize;
                let length = inner.div_ceil(256).div_ceil(parts as usize) * 256;
                let mut partial = Vec::new();
                for part in 0..parts as usize {
                    let range = (part * length).min(inner)..((part + 1) * length).min(inner);
                    for x in inputs["x"].chunks(inner) {
                        partial.extend(inputs["w"].chunks(inner).map(|w| {
                            let pairs = x[range.clone()].iter().zip(&w[range.clone()]);
                            pairs.map(|(a, b)| a * b).sum::<f64>()
                        }));
                    }
                }
                out.set("partial", partial);
            });
    }
}

#[test_kernel(gated_skinny)]
fn gated_skinny_matches_f64(t: &mut Cases) {
    // Gate and other are rounded, and meet.
    let half_ulp = match t.scalar("T") {
        iron_ir::Scalar::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-8),
    };
    for (rows, cols, inner) in [(0, 32, 16), (1, 32, 8), (65, 64, 264)] {
        t.case(format!("{rows}x{cols}x{inner}"))
            .input("x", [rows, inner], normal(0.0, 1.0))
            .input("w", [2 * cols, inner], normal(0.0, 0.1))
            .output("y", [rows, cols])
            .bound(Bound::relative(4.0 * half_ulp).absolute(4.0 * half_ulp))
            .expect(move |inputs, out| {
                let sums = product(&inputs["x"], &inputs["w"], inner as usize);
                let gated = |row: &[f64]| -> Vec<f64> {
                    let (gates, ups) = row.split_at(cols as usize);
                    let pairs = gates.iter().zip(ups);
                    pairs.map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
                };
                let rows = sums.chunks(2 * cols as usize);
                out.set("y", rows.flat_map(gated).collect());
            });
    }
}

#[test]
fn parts_fill_the_device_and_are_never_empty() {
    for (cols, inner, parts) in [
        (1024, 2048, 4),
        (1024, 3072, 4),
        (4096, 12288, 1),
        (2048, 2048, 2),
        (576, 576, 2),
        (128, 256, 1),
        (8, 0, 1),
    ] {
        assert_eq!(parts_of(cols, inner), parts, "{cols} x {inner}");
        let turns = inner.div_ceil(u64::from(PART_STEPS));
        assert!(turns.div_ceil(parts) * (parts - 1) < turns.max(1));
    }
}

#[test_kernel(matmul_nn)]
fn matmul_nn_matches_f64(t: &mut Cases) {
    for (rows, cols, inner) in SHAPES {
        t.case(format!("{rows}x{cols}x{inner}"))
            .input("a", [rows, inner], normal(0.0, 1.0))
            .input("b", [inner, cols], normal(0.0, 0.1))
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-5).absolute(1e-5))
            .expect(move |inputs, out| {
                let (b, n) = (&inputs["b"], cols as usize);
                let column = |c: usize| b.iter().skip(c).step_by(n).copied();
                let transposed: Vec<f64> = (0..n).flat_map(column).collect();
                out.set("y", product(&inputs["a"], &transposed, inner as usize));
            });
    }
}

#[bench_kernel(linear)]
fn linear_of_a_square(b: &mut Benches) {
    let (n, bytes) = (4096, u64::from(b.scalar("T").bytes()));
    b.bench(format!("{n}x{n}x{n}"))
        .input("x", [n, n], normal(0.0, 1.0))
        .input("w", [n, n], normal(0.0, 0.1))
        .output("y", [n, n])
        .bytes(3 * n * n * bytes)
        .flops(2 * n * n * n);
}

#[bench_kernel(matvec)]
fn matvec_of_8b(b: &mut Benches) {
    let bytes = u64::from(b.scalar("T").bytes());
    for (cols, inner) in [
        (12288, 4096),
        (4096, 4096),
        (4096, 12288),
        (151_936, 4096),
        (3072, 1024),
    ] {
        b.bench(format!("1x{cols}x{inner}"))
            .input("x", [1, inner], normal(0.0, 1.0))
            .input("w", [cols, inner], normal(0.0, 0.1))
            .output("y", [1, cols])
            .bytes(cols * inner * bytes)
            .flops(2 * cols * inner);
    }
}

#[bench_kernel(linear)]
fn linear_of_8b(b: &mut Benches) {
    bench_rows(b, &[512, 2048]);
}

#[bench_kernel(linear_skinny)]
fn linear_skinny_of_8b(b: &mut Benches) {
    bench_rows(b, &[8, 16, 64]);
}

/// Products of that many rows by the weights of a layer of 4096.
fn bench_rows(b: &mut Benches, rows: &[u64]) {
    let bytes = u64::from(b.scalar("T").bytes());
    for &rows in rows {
        for (cols, inner) in [(12288, 4096), (4096, 4096), (4096, 12288)] {
            b.bench(format!("{rows}x{cols}x{inner}"))
                .input("x", [rows, inner], normal(0.0, 1.0))
                .input("w", [cols, inner], normal(0.0, 0.1))
                .output("y", [rows, cols])
                .bytes((cols * inner + rows * (cols + inner)) * bytes)
                .flops(2 * rows * cols * inner);
        }
    }
}
