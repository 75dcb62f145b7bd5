//! GGUF formats of 4, 5 and 6 bits with a scale and a minimum for each few weights (ggml's
//! `block_q4_K`, `block_q5_K`, `block_q6_K`, `block_q5_0`, `block_q5_1`): products and rows
//! straight from packed weights.
//!
//! | format | weights | weight, where `d`, `m` are f16 and `s`, `t` 6 or 8 bits a part of a block |
//! |---|---|---|
//! | `Q4_K` | 256 | `d * s * q - m * t`, a part of 32, `q` of 4 bits |
//! | `Q5_K` | 256 | the same, `q` of 5 bits |
//! | `Q6_K` | 256 | `d * s * (q - 32)`, a part of 16, `q` of 6 bits |
//! | `Q5_0` | 32 | `d * (q - 16)`, `q` of 5 bits |
//! | `Q5_1` | 32 | `d * q + m`, `q` of 5 bits |
//!
//! The kernels read *planes*, which a loader makes once of the same bits. For each 32 weights of
//! a row: two f32 `a` and `b`; four words whose bits `4s..4s + 4` in word `l` are the low bits
//! of weight `4s + l`; and, for 5 and 6 bits, four bytes or four halfwords whose one or two bits
//! at `s` or `2s` in number `l` are the high bits of weight `4s + l`. With 4 and 5 bits a weight
//! is `a * q + b`; with 6 bits it is `a * (q - 32)` in the first half and `b * (q - 32)` in the
//! second. `d * s` has at most 19 bits, so that no `a` is rounded.

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, Inputs, ints, normal, uniform};

use crate::matmul::store_sum;
use crate::quant::gather_weights;

/// Bits `shift..shift + 4` of each word, and above them the field of `high` that `mask` keeps.
#[device_fn]
fn quants(words: U32x4, shift: u32, high: U32x4, high_shift: u32, mask: u32) -> F32x4 {
    let low = (words >> splat4(shift)) & splat4(15);
    let top = ((high >> splat4(high_shift)) & splat4(mask)) << splat4(4);
    (low | top).bitcast::<I32x4>().to::<f32>()
}

/// `sum` and the products of a block's inputs with its weights `a * q + b` of 4 or 5 bits; `high`
/// holds the fifth, 0 where there is none.
#[device_fn]
fn affine_block<T: Float>(
    x: &Tensor<T, 2>,
    row: u32,
    block: u32,
    low: U32x4,
    high: U32x4,
    scale: (f32, f32),
    sum: F32x4,
) -> F32x4 {
    let mut sum = sum;
    for s in unroll(0..8) {
        let q = quants(low, 4 * s, high, s, 1);
        let w = q.mul_add(splat4(scale.0), splat4(scale.1));
        sum = x.load4([row, block * 8 + s]).to_f32().mul_add(w, sum);
    }
    sum
}

/// `y[r, n] = sum_k x[r, k] * w[n, k]` with planes of 4 bits. `LANES` threads share an output.
#[kernel(
    grid = [cols, rows],
    workgroup = LANES,
    requires(inner % 32 == 0, words * 8 == inner, parts * 16 == inner),
    instances(T = [f32, f16, bf16], LANES = [1, 32])
)]
pub fn matvec_k4<T: Float, const LANES: u32>(
    x: &Tensor<T, (rows, inner)>,
    scales: &Tensor<f32, (cols, parts)>,
    low: &Tensor<u32, (cols, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (column, row) = (group_id(0), group_id(1));
    let mut sum = splat4(0.0f32);
    for block in strided(inner / 32) {
        let words = low.load4([column, block]);
        let (a, b) = (scales[[column, 2 * block]], scales[[column, 2 * block + 1]]);
        sum = affine_block(x, row, block, words, splat4(0), (a, b), sum);
    }
    store_sum(y, row, column, sum.sum());
}

/// As [`matvec_k4`], with planes of 5 bits.
#[kernel(
    grid = [cols, rows],
    workgroup = LANES,
    requires(inner % 32 == 0, words * 8 == inner, parts * 16 == inner),
    instances(T = [f32, f16, bf16], LANES = [1, 32])
)]
pub fn matvec_k5<T: Float, const LANES: u32>(
    x: &Tensor<T, (rows, inner)>,
    scales: &Tensor<f32, (cols, parts)>,
    low: &Tensor<u32, (cols, words)>,
    high: &Tensor<u8, (cols, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (column, row) = (group_id(0), group_id(1));
    let mut sum = splat4(0.0f32);
    for block in strided(inner / 32) {
        let words = low.load4([column, block]);
        let tops = high.load4([column, block]).to::<u32>();
        let (a, b) = (scales[[column, 2 * block]], scales[[column, 2 * block + 1]]);
        sum = affine_block(x, row, block, words, tops, (a, b), sum);
    }
    store_sum(y, row, column, sum.sum());
}

/// As [`matvec_k4`], with planes of 6 bits.
#[kernel(
    grid = [cols, rows],
    workgroup = LANES,
    requires(inner % 32 == 0, words * 8 == inner, parts * 16 == inner),
    instances(T = [f32, f16, bf16], LANES = [1, 32])
)]
pub fn matvec_k6<T: Float, const LANES: u32>(
    x: &Tensor<T, (rows, inner)>,
    scales: &Tensor<f32, (cols, parts)>,
    low: &Tensor<u32, (cols, words)>,
    high: &Tensor<u16, (cols, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (column, row) = (group_id(0), group_id(1));
    let mut sum = splat4(0.0f32);
    for block in strided(inner / 32) {
        let words = low.load4([column, block]);
        let tops = high.load4([column, block]).to::<u32>();
        for half in unroll(0..2) {
            let a = splat4(scales[[column, 2 * block + half]]);
            for s in unroll(0..4) {
                let place = 4 * half + s;
                let q = quants(words, 4 * place, tops, 2 * place, 3) - splat4(32.0f32);
                let w = q * a;
                sum = x.load4([row, block * 8 + place]).to_f32().mul_add(w, sum);
            }
        }
    }
    store_sum(y, row, column, sum.sum());
}

/// Rows of a table in planes of 4 bits: `y[r, :] = table[ids[r], :]`. An id past the table fails
/// the launch's request through the error word.
#[kernel(
    grid = [rows],
    workgroup = 64,
    requires(cols % 32 == 0, words * 8 == cols, parts * 16 == cols),
    instances(T = [f32, f16, bf16])
)]
pub fn gather_rows_k4<T: Float>(
    scales: &Tensor<f32, (vocabulary, parts)>,
    low: &Tensor<u32, (vocabulary, words)>,
    ids: &Tensor<u32, (rows,)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    gather_weights(ids, vocabulary, y, |id, block, k| {
        let q = (low[[id, block * 4 + k % 4]] >> (k / 4 * 4)) & 15;
        fma(
            q as f32,
            scales[[id, 2 * block]],
            scales[[id, 2 * block + 1]],
        )
    });
}

/// As [`gather_rows_k4`], with planes of 5 bits.
#[kernel(
    grid = [rows],
    workgroup = 64,
    requires(cols % 32 == 0, words * 8 == cols, parts * 16 == cols),
    instances(T = [f32, f16, bf16])
)]
pub fn gather_rows_k5<T: Float>(
    scales: &Tensor<f32, (vocabulary, parts)>,
    low: &Tensor<u32, (vocabulary, words)>,
    high: &Tensor<u8, (vocabulary, words)>,
    ids: &Tensor<u32, (rows,)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    gather_weights(ids, vocabulary, y, |id, block, k| {
        let place = block * 4 + k % 4;
        let top = (high[[id, place]] as u32 >> (k / 4)) & 1;
        let q = ((low[[id, place]] >> (k / 4 * 4)) & 15) | (top << 4);
        fma(
            q as f32,
            scales[[id, 2 * block]],
            scales[[id, 2 * block + 1]],
        )
    });
}

/// As [`gather_rows_k4`], with planes of 6 bits.
#[kernel(
    grid = [rows],
    workgroup = 64,
    requires(cols % 32 == 0, words * 8 == cols, parts * 16 == cols),
    instances(T = [f32, f16, bf16])
)]
pub fn gather_rows_k6<T: Float>(
    scales: &Tensor<f32, (vocabulary, parts)>,
    low: &Tensor<u32, (vocabulary, words)>,
    high: &Tensor<u16, (vocabulary, words)>,
    ids: &Tensor<u32, (rows,)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    gather_weights(ids, vocabulary, y, |id, block, k| {
        let place = block * 4 + k % 4;
        let top = (high[[id, place]] as u32 >> (k / 4 * 2)) & 3;
        let q = ((low[[id, place]] >> (k / 4 * 4)) & 15) | (top << 4);
        (q as f32 - 32.0) * scales[[id, 2 * block + k / 16]]
    });
}

/// Weight `k` of row `row` by the planes' definition.
fn weight(inputs: &Inputs, bits: u32, cols: usize, row: usize, k: usize) -> f64 {
    let (block, i) = (row * cols / 32 + k / 32, k % 32);
    let field = |plane: &str, width: u32| {
        let number = inputs.ints(plane)[block * 4 + i % 4];
        (number >> (i as u32 / 4 * width)) & ((1 << width) - 1)
    };
    let top = if bits > 4 { field("high", bits - 4) } else { 0 };
    let q = (field("low", 4) + 16 * top) as f64;
    let scale = |part: usize| inputs["scales"][2 * block + part];
    if bits == 6 {
        scale(i / 16) * (q - 32.0)
    } else {
        scale(0) * q + scale(1)
    }
}

/// Rows, outputs, inputs.
const PRODUCTS: [(u64, u64, u64); 4] = [(0, 3, 32), (1, 1, 32), (2, 5, 96), (3, 7, 640)];

fn product_cases(t: &mut Cases, bits: u32) {
    for (rows, cols, inner) in PRODUCTS {
        let case = t
            .case(format!("{rows}x{cols}x{inner}"))
            .input("x", [rows, inner], normal(0.0, 1.0))
            .input("scales", [cols, inner / 16], uniform(-0.02, 0.02))
            .input("low", [cols, inner / 8], ints(0, 1 << 32));
        let case = match bits {
            4 => case,
            _ => case.input("high", [cols, inner / 8], ints(0, 1 << (8 * (bits - 4)))),
        };
        case.output("y", [rows, cols])
            .bound(Bound::relative(2e-5).absolute(2e-5))
            .expect(move |inputs, out| {
                let (cols, inner) = (cols as usize, inner as usize);
                let product = |x: &[f64], column: usize| -> f64 {
                    let terms = x.iter().enumerate();
                    terms
                        .map(|(k, x)| x * weight(inputs, bits, inner, column, k))
                        .sum()
                };
                let mut y = Vec::new();
                for x in inputs["x"].chunks(inner) {
                    y.extend((0..cols).map(|column| product(x, column)));
                }
                out.set("y", y);
            });
    }
}

fn gather_cases(t: &mut Cases, bits: u32) {
    for (rows, vocabulary, cols) in [(0, 1, 32), (1, 1, 32), (5, 9, 640)] {
        let case = t
            .case(format!("{rows} of {vocabulary}x{cols}"))
            .input("scales", [vocabulary, cols / 16], uniform(-0.02, 0.02))
            .input("low", [vocabulary, cols / 8], ints(0, 1 << 32));
        let case = match bits {
            4 => case,
            _ => case.input(
                "high",
                [vocabulary, cols / 8],
                ints(0, 1 << (8 * (bits - 4))),
            ),
        };
        case.input("ids", [rows], ints(0, vocabulary as i64))
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-6).absolute(1e-8))
            .expect(move |inputs, out| {
                let cols = cols as usize;
                let row = |id: &i64| {
                    let weights = (0..cols).map(|k| weight(inputs, bits, cols, *id as usize, k));
                    weights.collect::<Vec<_>>()
                };
                out.set("y", inputs.ints("ids").iter().flat_map(row).collect());
            });
    }
}

#[test_kernel(matvec_k4)]
fn matvec_k4_matches_definition(t: &mut Cases) {
    product_cases(t, 4);
}

#[test_kernel(gather_rows_k4)]
fn gather_rows_k4_matches_definition(t: &mut Cases) {
    gather_cases(t, 4);
}

#[test_kernel(matvec_k5)]
fn matvec_k5_matches_definition(t: &mut Cases) {
    product_cases(t, 5);
}

#[test_kernel(gather_rows_k5)]
fn gather_rows_k5_matches_definition(t: &mut Cases) {
    gather_cases(t, 5);
}

#[test_kernel(matvec_k6)]
fn matvec_k6_matches_definition(t: &mut Cases) {
    product_cases(t, 6);
}

#[test_kernel(gather_rows_k6)]
fn gather_rows_k6_matches_definition(t: &mut Cases) {
    gather_cases(t, 6);
}
