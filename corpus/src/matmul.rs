//! Matrix products with dense weights: by rows of dot products for few rows, by tiles for many.
//!
//! Weights are stored as checkpoints store them, one row an output: `y = x · wᵀ`.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, normal};

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

/// Columns of a tile of [`linear_skinny`]: so few that 4,096 columns are tiles for nearly every
/// multiprocessor of an H200.
const SKINNY_COLUMNS: u32 = 32;

/// Steps of a product of tiles of [`linear_skinny`].
struct SkinnySteps<const ROWS: u32>;

impl<const ROWS: u32> SkinnySteps<ROWS> {
    const DEPTH: u32 = if ROWS <= 32 { 256 } else { 128 };
}

/// Product for 2 to 64 rows, in about the time of reading the weights once:
/// `y[r, n] = sum_k x[r, k] * w[n, k]`. `ROWS` is best the least that holds all rows; more rows
/// take several turns. Every `ROWS` sums in the same order (ascending `k`, in the steps of the
/// target's matrix unit), so a row's result does not depend on how many share the launch.
#[kernel(
    grid = [min(ceil_div(cols, SKINNY_COLUMNS), 132), ceil_div(rows, ROWS)],
    workgroup = 128,
    instances(T = [f16, bf16], ROWS = [8, 16, 32, 64])
)]
pub fn linear_skinny<T: Float, const ROWS: u32>(
    x: &Tensor<T, (rows, inner)>,
    w: &Tensor<T, (cols, inner)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let first_row = group_id(1) * ROWS;
    let mut x_tile = shared_tile::<T>(ROWS, SkinnySteps::<ROWS>::DEPTH);
    let mut w_tile = shared_tile::<T>(SKINNY_COLUMNS, SkinnySteps::<ROWS>::DEPTH);
    let mut sum = reg_tile::<f32>(ROWS, SKINNY_COLUMNS, 0.0);
    let tiles = cols.div_ceil(SKINNY_COLUMNS);
    for tile in (group_id(0)..tiles).step_by(group_count(0) as usize) {
        sum.fill(0.0);
        for k in (0..inner).step_by(SkinnySteps::<ROWS>::DEPTH as usize) {
            x_tile.load(x, [first_row, k]);
            w_tile.load(w, [tile * SKINNY_COLUMNS, k]);
            matmul_nt(&mut sum, &x_tile, &w_tile);
        }
        sum.store(y, [first_row, tile * SKINNY_COLUMNS]);
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
