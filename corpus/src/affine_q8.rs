//! Matrix products from packed weights and inputs of 8 bits, for processors: integer products of
//! four bytes ([`dot4_mixed`](iron_ir::prelude::MixedBytes::dot4_mixed)) in place of float ones.
//!
//! The weights are those of [`crate::affine`]. Inputs are rounded in blocks of 32, as llama.cpp's
//! `Q8_1` does it: `x ≈ scale * q` with `scale = max |x| / 127` and `q` of -127 to 127, ties to
//! even, so that an input is off by half a scale at most. With the sum of a block's inputs,
//! `sum = scale * Σ q`, a product with weights `d * w + m` is `d * scale * Σ q w + m * sum`.
//!
//! The bytes of eight words a block are in the order in which the fields of a word of weights
//! come out:
//!
//! | `BITS` | byte `j` of word `4h + l` |
//! |---|---|
//! | 4 | `q[8j + 4h + l]`: field `2j + h` of word `l` |
//! | 8 | `q[16h + 4j + l]`: field `j` of word `4h + l` |

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, ints, normal, uniform};

use crate::affine::{PRODUCTS, Weights};

/// Outputs of a workgroup.
const OUTPUTS: u32 = 32;

/// Blocks whose largest input is below this are zeros: its reciprocal could overflow.
const LEAST: f32 = 1e-30;

/// Rounds inputs to 8 bits, for weights of `BITS` bits. `scales[r, b]` and `sums[r, b]` belong to
/// block `b` of row `r`, whose bytes are the eight words from `quants[r, 8b]`. A block with a NaN
/// or an infinity has NaN for its scale and sum.
#[kernel(
    grid = [rows],
    workgroup = 1,
    requires(blocks * 32 == inner, words == blocks * 8),
    instances(T = [f32, f16, bf16], BITS = [4, 8])
)]
pub fn quantize_q8<T: Float, const BITS: u32>(
    x: &Tensor<T, (rows, inner)>,
    scales: &mut Tensor<f32, (rows, blocks)>,
    sums: &mut Tensor<f32, (rows, blocks)>,
    quants: &mut Tensor<i32, (rows, words)>,
) {
    let row = group_id(0);
    for block in 0..blocks {
        let mut values = private::<f32>(32);
        let mut largest = splat4(0.0f32);
        // Zero, or NaN where an input is no number.
        let mut faults = splat4(0.0f32);
        for s in unroll(0..8) {
            let value = x.load4([row, block * 8 + s]).to_f32();
            values.store4(s, value);
            largest = largest.max(value.abs());
            faults = value.mul_add(splat4(0.0f32), faults);
        }
        let largest = largest.max_lane();
        let inverse = if largest >= LEAST {
            127.0 / largest
        } else {
            0.0
        };
        let mut packed = private::<i32>(8);
        packed.store4(0, splat4(0i32));
        packed.store4(1, splat4(0i32));
        let mut sum = splat4(0i32);
        for s in unroll(0..8) {
            let value = (values.load4(s) * splat4(inverse)).round_ties_even();
            let q = value.to::<i32>();
            sum += q;
            let (h, j) = if BITS == 4 {
                (s % 2, s / 2)
            } else {
                (s / 4, s % 4)
            };
            let byte = (q & splat4(255i32)) << splat4(8 * j);
            packed.store4(h, packed.load4(h) | byte);
        }
        let scale = if largest >= LEAST {
            largest / 127.0
        } else {
            0.0
        };
        let scale = scale + faults.sum();
        scales[[row, block]] = scale;
        sums[[row, block]] = scale * sum.sum() as f32;
        quants.store4([row, block * 2], packed.load4(0));
        quants.store4([row, block * 2 + 1], packed.load4(1));
    }
}

/// Half of a block's weights, as bytes without sign.
#[device_fn]
fn half_block<const BITS: u32>(words: U32x4, h: u32) -> I32x4 {
    if BITS == 4 {
        let fields = if h == 0 { words } else { words >> splat4(4u32) };
        (fields & splat4(0x0f0f_0f0fu32)).bitcast::<I32x4>()
    } else {
        words.bitcast::<I32x4>()
    }
}

/// `y[r, n] = sum_k x[r, k] * w[n, k]`, with the inputs as [`quantize_q8`] leaves them. `ROWS`
/// rows share a reading of the weights; how many never changes a row's result.
#[kernel(
    grid = [ceil_div(cols, 32), ceil_div(rows, ROWS)],
    workgroup = 1,
    requires(words * 32 == blocks * 32 * BITS, bytes == blocks * 8),
    instances(T = [f32, f16, bf16], BITS = [4, 8], ROWS = [1, 4])
)]
pub fn affine_product_q8<T: Float, const BITS: u32, const ROWS: u32>(
    scales: &Tensor<f32, (rows, blocks)>,
    sums: &Tensor<f32, (rows, blocks)>,
    inputs: &Tensor<i32, (rows, bytes)>,
    d: &Tensor<f32, (cols, blocks)>,
    m: &Tensor<f32, (cols, blocks)>,
    quants: &Tensor<u32, (cols, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let first_row = group_id(1) * ROWS;
    let first_output = group_id(0) * OUTPUTS;
    let outputs = (cols - first_output).min(OUTPUTS);
    for output in 0..outputs {
        let column = first_output + output;
        let mut totals = private::<f32>(4 * ROWS);
        let mut minimums = private::<f32>(ROWS);
        for r in unroll(0..ROWS) {
            totals.store4(r, splat4(0.0f32));
            minimums[r] = 0.0;
        }
        for block in 0..blocks {
            let first = quants.load4([column, block * (BITS / 4)]);
            let second = if BITS == 4 {
                first
            } else {
                quants.load4([column, block * 2 + 1])
            };
            let (low, high) = (half_block::<BITS>(first, 0), half_block::<BITS>(second, 1));
            let (scale, minimum) = (d[[column, block]], m[[column, block]]);
            for r in unroll(0..ROWS) {
                let row = (first_row + r).min(rows - 1);
                let dot = low.dot4_mixed(inputs.load4([row, block * 2]));
                let dot = high.dot4_mixed(inputs.load4([row, block * 2 + 1])) + dot;
                let scale = splat4(scale * scales[[row, block]]);
                totals.store4(r, scale.mul_add(dot.to::<f32>(), totals.load4(r)));
                minimums[r] = fma(minimum, sums[[row, block]], minimums[r]);
            }
        }
        for r in unroll(0..ROWS) {
            if first_row + r < rows {
                let total = totals.load4(r).sum() + minimums[r];
                y[[first_row + r, column]] = T::from_f32(total);
            }
        }
    }
}

/// Where the byte of input `k` of a row lies: word and byte.
fn place(bits: u64, k: usize) -> (usize, usize) {
    let (block, i) = (k / 32, k % 32);
    let (h, j, l) = match bits {
        4 => (i / 4 % 2, i / 8, i % 4),
        _ => (i / 16, i % 16 / 4, i % 4),
    };
    (block * 8 + 4 * h + l, j)
}

#[test_kernel(quantize_q8)]
fn quantize_q8_rounds_to_even(t: &mut Cases) {
    let bits = t.constant("BITS") as u64;
    for (rows, blocks) in [(0, 1), (1, 1), (3, 18)] {
        let inner = blocks * 32;
        t.case(format!("{rows}x{inner}"))
            .input(
                "x",
                [rows, inner],
                // The second block of a row holds nothing but zeros.
                normal(0.0, 2.0).map(move |i, x| if i as u64 % inner / 32 == 1 { 0.0 } else { x }),
            )
            .output("scales", [rows, blocks])
            .output("sums", [rows, blocks])
            .output("quants", [rows, blocks * 8])
            .bound(Bound::relative(1e-6).absolute(1e-9))
            .expect(move |inputs, out| {
                let (mut scales, mut sums) = (Vec::new(), Vec::new());
                let mut words = vec![0u32; (rows * blocks * 8) as usize];
                for (row, x) in inputs["x"].chunks(inner as usize).enumerate() {
                    for (block, x) in x.chunks(32).enumerate() {
                        let largest = x.iter().fold(0.0f64, |m, x| m.max(x.abs())) as f32;
                        let inverse = if largest == 0.0 { 0.0 } else { 127.0 / largest };
                        let mut sum = 0;
                        for (i, x) in x.iter().enumerate() {
                            let q = (*x as f32 * inverse).round_ties_even() as i32;
                            sum += q;
                            let (word, byte) = place(bits, block * 32 + i);
                            let word = row * blocks as usize * 8 + word;
                            words[word] |= u32::from(q as i8 as u8) << (8 * byte);
                        }
                        scales.push(f64::from(largest) / 127.0);
                        sums.push(f64::from(largest) / 127.0 * f64::from(sum));
                    }
                }
                out.set("scales", scales);
                out.set("sums", sums);
                out.set_ints(
                    "quants",
                    words.iter().map(|&w| i64::from(w as i32)).collect(),
                );
            });
    }
}

#[test_kernel(affine_product_q8)]
fn affine_product_q8_matches_f64(t: &mut Cases) {
    let bits = t.constant("BITS") as u64;
    let d = 0.1 / (1 << bits) as f64;
    for (rows, cols, blocks) in PRODUCTS {
        let inner = blocks * 32;
        t.case(format!("{rows}x{cols}x{inner}"))
            .input("scales", [rows, blocks], uniform(0.01, 0.03))
            .input("sums", [rows, blocks], normal(0.0, 4.0))
            .input("inputs", [rows, blocks * 8], ints(-(1 << 31), 1 << 31))
            .input("d", [cols, blocks], uniform(d, 2.0 * d))
            .input("m", [cols, blocks], uniform(-0.1, 0.05))
            .input("quants", [cols, blocks * bits], ints(0, 1 << 32))
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-5).absolute(2e-4))
            .expect(move |inputs, out| {
                let weights = Weights::of(inputs, bits, inner);
                let words = inputs.ints("inputs");
                let value = |r: usize, n: usize| -> f64 {
                    let blocks = blocks as usize;
                    let block = |b: usize| {
                        let product: f64 = (32 * b..32 * b + 32)
                            .map(|k| {
                                let (word, byte) = place(bits, k);
                                let x = (words[r * blocks * 8 + word] >> (8 * byte)) as u8 as i8;
                                let weight = weights.at(n, k) - inputs["m"][n * blocks + b];
                                f64::from(x) * weight
                            })
                            .sum();
                        inputs["scales"][r * blocks + b] * product
                            + inputs["m"][n * blocks + b] * inputs["sums"][r * blocks + b]
                    };
                    (0..blocks).map(block).sum()
                };
                let places =
                    (0..rows as usize).flat_map(|r| (0..cols as usize).map(move |n| (r, n)));
                out.set("y", places.map(|(r, n)| value(r, n)).collect());
            });
    }
}

#[bench_kernel(affine_product_q8)]
fn affine_product_q8_of_smollm2(b: &mut Benches) {
    let bits = b.constant("BITS") as u64;
    for (rows, cols, inner) in crate::affine::BENCHED {
        let blocks = inner / 32;
        b.bench(format!("{rows}x{cols}x{inner}"))
            .input("scales", [rows, blocks], uniform(0.01, 0.03))
            .input("sums", [rows, blocks], normal(0.0, 4.0))
            .input("inputs", [rows, inner / 4], ints(-(1 << 31), 1 << 31))
            .input("d", [cols, blocks], uniform(0.001, 0.002))
            .input("m", [cols, blocks], uniform(-0.1, 0.05))
            .input("quants", [cols, blocks * bits], ints(0, 1 << 32))
            .output("y", [rows, cols])
            .bytes(cols * inner / 32 * (8 + 4 * bits))
            .flops(2 * rows * cols * inner);
    }
}
