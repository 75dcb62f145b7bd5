//! Matrix products from packed weights for processors: a workgroup is one thread, which holds
//! a piece of the inputs in its cache and takes 32 outputs over it.
//!
//! A weight is `d * q + m`, with one `d` and `m` (f32) for a block of 32 weights of a row and
//! `q` of `BITS` bits without sign. The block formats of [`crate::quant`] become this without
//! loss:
//!
//! | format | `BITS` | `q` | `m` |
//! |---|---|---|---|
//! | `Q4_0` | 4 | `q` | `-8 d` |
//! | `Q4_1` | 4 | `q` | `m` |
//! | `Q8_0` | 8 | `q + 128` | `-128 d` |
//!
//! `d[n, b]` and `m[n, b]` belong to block `b` of row `n`, whose quants are the `BITS` words
//! from word `BITS * b` of `quants[n]`: bits `BITS * f..` of word `4h + l` of those hold weight
//! `32b + 4 (h * 32 / BITS + f) + l`, so that a vector of four words gives four consecutive
//! weights at every shift.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, Inputs, ints, normal, uniform};

use crate::quant::gather_weights;

/// Outputs of a workgroup.
const OUTPUTS: u32 = 32;
/// Input rows times blocks that a workgroup holds at once: 9 KiB, beside the weights in a cache
/// of 32 KiB.
const HELD: u32 = 64;

/// Four consecutive weights, left where their words hold them: `2^(BITS * f)` times the quants.
/// The inputs take the power instead, once for all outputs, and every product is the same to
/// the bit. The last field would reach the sign bit; it is shifted down.
#[device_fn]
fn field<const BITS: u32>(words: U32x4, f: u32) -> F32x4 {
    let mask = (1u32 << BITS) - 1;
    if BITS * (f + 1) == 32 {
        (words >> splat4(BITS * f)).bitcast::<I32x4>().to::<f32>()
    } else {
        (words & splat4(mask << (BITS * f)))
            .bitcast::<I32x4>()
            .to::<f32>()
    }
}

/// What the inputs of [`field`] are multiplied by.
#[device_fn]
fn input_scale<const BITS: u32>(f: u32) -> f32 {
    if BITS * (f + 1) == 32 {
        1.0
    } else {
        f32::from_bits((127 - BITS * f) << 23)
    }
}

/// `y[r, n] = sum_k x[r, k] * w[n, k]`. `ROWS` rows of `x` share a reading of the weights; how
/// many never changes a row's result.
#[kernel(
    grid = [ceil_div(cols, 32), ceil_div(rows, ROWS)],
    workgroup = 1,
    requires(blocks * 32 == inner, words * 32 == inner * BITS),
    instances(T = [f32, f16, bf16], BITS = [4, 8], ROWS = [1, 4])
)]
pub fn affine_product<T: Float, const BITS: u32, const ROWS: u32>(
    x: &Tensor<T, (rows, inner)>,
    d: &Tensor<f32, (cols, blocks)>,
    m: &Tensor<f32, (cols, blocks)>,
    quants: &Tensor<u32, (cols, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let fields = 32 / BITS;
    let first_row = group_id(1) * ROWS;
    let first_output = group_id(0) * OUTPUTS;
    let outputs = (cols - first_output).min(OUTPUTS);

    // For each held block: its inputs scaled for the fields, and the sum of the inputs of each
    // row, in all four lanes where there is one row.
    let mut scaled = shared::<f32>(32 * HELD);
    let mut sums = shared::<f32>(4 * HELD / ROWS);
    // For each output: the sums of its rows, four lanes each, and the part of the minimums, a
    // lane a row.
    let mut totals = private::<f32>(4 * OUTPUTS * (ROWS + 1));
    for i in 0..outputs * (ROWS + 1) {
        totals.store4(i, splat4(0.0f32));
    }

    for begin in (0..blocks).step_by((HELD / ROWS) as usize) {
        let count = (blocks - begin).min(HELD / ROWS);
        for b in 0..count {
            for r in unroll(0..ROWS) {
                let row = (first_row + r).min(rows - 1);
                let mut sum = splat4(0.0f32);
                for s in unroll(0..8) {
                    let values = x.load4([row, (begin + b) * 8 + s]).to_f32();
                    sum += values;
                    let by = input_scale::<BITS>(s % fields);
                    scaled.store4((b * 8 + s) * ROWS + r, values * by);
                }
                if ROWS == 1 {
                    sums.store4(b, splat4(sum.sum()));
                } else {
                    sums[b * ROWS + r] = sum.sum();
                }
            }
        }
        for output in 0..outputs {
            let column = first_output + output;
            let mut sum = private::<f32>(4 * ROWS);
            for r in unroll(0..ROWS) {
                sum.store4(r, totals.load4(output * (ROWS + 1) + r));
            }
            let mut minimums = totals.load4(output * (ROWS + 1) + ROWS);
            for b in 0..count {
                let mut product = private::<f32>(4 * ROWS);
                for h in unroll(0..BITS / 4) {
                    let words = quants.load4([column, (begin + b) * (BITS / 4) + h]);
                    for f in unroll(0..fields) {
                        let weights = field::<BITS>(words, f);
                        for r in unroll(0..ROWS) {
                            let values = scaled.load4((b * 8 + h * fields + f) * ROWS + r);
                            if h + f == 0 {
                                product.store4(r, weights * values);
                            } else {
                                product.store4(r, weights.mul_add(values, product.load4(r)));
                            }
                        }
                    }
                }
                let scale = splat4(d[[column, begin + b]]);
                for r in unroll(0..ROWS) {
                    sum.store4(r, scale.mul_add(product.load4(r), sum.load4(r)));
                }
                let minimum = splat4(m[[column, begin + b]]);
                minimums = minimum.mul_add(sums.load4(b), minimums);
            }
            for r in unroll(0..ROWS) {
                totals.store4(output * (ROWS + 1) + r, sum.load4(r));
            }
            totals.store4(output * (ROWS + 1) + ROWS, minimums);
        }
    }

    for output in 0..outputs {
        let minimums = totals.load4(output * (ROWS + 1) + ROWS);
        for r in unroll(0..ROWS) {
            if first_row + r < rows {
                let sum = totals.load4(output * (ROWS + 1) + r).sum();
                let total = sum + minimums[r as usize];
                y[[first_row + r, first_output + output]] = T::from_f32(total);
            }
        }
    }
}

/// Rows of a table: `y[r, :] = table[ids[r], :]`, an embedding. An id past the table fails the
/// launch's request through the error word.
#[kernel(
    grid = [rows],
    workgroup = 64,
    requires(blocks * 32 == cols, words * 32 == cols * BITS),
    instances(T = [f32, f16, bf16], BITS = [4, 8])
)]
pub fn affine_rows<T: Float, const BITS: u32>(
    d: &Tensor<f32, (vocabulary, blocks)>,
    m: &Tensor<f32, (vocabulary, blocks)>,
    quants: &Tensor<u32, (vocabulary, words)>,
    ids: &Tensor<u32, (rows,)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    gather_weights(ids, vocabulary, y, |id, block, k| {
        let (h, f) = (k / 4 / (32 / BITS), k / 4 % (32 / BITS));
        let word = quants[[id, block * BITS + h * 4 + k % 4]];
        let q = (word >> (BITS * f)) & ((1 << BITS) - 1);
        fma(d[[id, block]], q as f32, m[[id, block]])
    });
}

/// Matrices as the module's doc defines them.
pub(crate) struct Weights<'a> {
    bits: usize,
    inner: usize,
    d: &'a [f64],
    m: &'a [f64],
    quants: &'a [i64],
}

impl Weights<'_> {
    pub(crate) fn of(inputs: &Inputs, bits: u64, inner: u64) -> Weights<'_> {
        Weights {
            bits: bits as usize,
            inner: inner as usize,
            d: &inputs["d"],
            m: &inputs["m"],
            quants: inputs.ints("quants"),
        }
    }

    pub(crate) fn at(&self, n: usize, k: usize) -> f64 {
        let block = (n * self.inner + k) / 32;
        let (i, l, fields) = (k % 32 / 4, k % 4, 32 / self.bits);
        let word = self.quants[block * self.bits + i / fields * 4 + l];
        let q = (word >> (i % fields * self.bits)) & ((1 << self.bits) - 1);
        self.d[block] * q as f64 + self.m[block]
    }
}

/// Rows, outputs, blocks a row. The last has more blocks than are held at once.
pub(crate) const PRODUCTS: [(u64, u64, u64); 6] = [
    (0, 3, 1),
    (1, 1, 1),
    (2, 5, 18),
    (7, 37, 3),
    (1, 34, 48),
    (5, 4, 70),
];

#[test_kernel(affine_product)]
fn affine_product_matches_f64(t: &mut Cases) {
    let bits = t.constant("BITS") as u64;
    let d = 0.1 / (1 << bits) as f64;
    for (rows, cols, blocks) in PRODUCTS {
        let inner = blocks * 32;
        t.case(format!("{rows}x{cols}x{inner}"))
            .input("x", [rows, inner], normal(0.0, 1.0))
            .input("d", [cols, blocks], uniform(d, 2.0 * d))
            .input("m", [cols, blocks], uniform(-0.1, 0.05))
            .input("quants", [cols, blocks * bits], ints(0, 1 << 32))
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-5).absolute(5e-5))
            .expect(move |inputs, out| {
                let weights = Weights::of(inputs, bits, inner);
                let product = |x: &[f64], n: usize| -> f64 {
                    x.iter()
                        .enumerate()
                        .map(|(k, x)| x * weights.at(n, k))
                        .sum()
                };
                let row =
                    |x: &[f64]| -> Vec<f64> { (0..cols as usize).map(|n| product(x, n)).collect() };
                let rows = inputs["x"].chunks(inner as usize);
                out.set("y", rows.flat_map(row).collect());
            });
    }
}

#[test_kernel(affine_rows)]
fn affine_rows_match_definition(t: &mut Cases) {
    let bits = t.constant("BITS") as u64;
    for (rows, vocabulary, blocks) in [(0, 1, 1), (1, 1, 1), (5, 40, 18)] {
        let inner = blocks * 32;
        t.case(format!("{rows} of {vocabulary}x{inner}"))
            .input("d", [vocabulary, blocks], uniform(0.001, 0.01))
            .input("m", [vocabulary, blocks], uniform(-0.1, 0.05))
            .input("quants", [vocabulary, blocks * bits], ints(0, 1 << 32))
            .input("ids", [rows], ints(0, vocabulary as i64))
            .output("y", [rows, inner])
            .bound(Bound::relative(1e-6).absolute(1e-8))
            .expect(move |inputs, out| {
                let weights = Weights::of(inputs, bits, inner);
                let row = |id: &i64| -> Vec<f64> {
                    let at = |k| weights.at(*id as usize, k);
                    (0..inner as usize).map(at).collect()
                };
                out.set("y", inputs.ints("ids").iter().flat_map(row).collect());
            });
    }
}

/// Rows, outputs and inputs of SmolLM2-135M's feed-forward and of its vocabulary projection.
pub(crate) const BENCHED: [(u64, u64, u64); 4] = [
    (1, 1536, 576),
    (1, 576, 1536),
    (1, 49_152, 576),
    (64, 1536, 576),
];

#[bench_kernel(affine_product)]
fn affine_product_of_smollm2(b: &mut Benches) {
    let bits = b.constant("BITS") as u64;
    for (rows, cols, inner) in BENCHED {
        b.bench(format!("{rows}x{cols}x{inner}"))
            .input("x", [rows, inner], normal(0.0, 1.0))
            .input("d", [cols, inner / 32], uniform(0.001, 0.01))
            .input("m", [cols, inner / 32], uniform(-0.1, 0.05))
            .input("quants", [cols, inner * bits / 32], ints(0, 1 << 32))
            .output("y", [rows, cols])
            .bytes(cols * inner / 32 * (8 + 4 * bits))
            .flops(2 * rows * cols * inner);
    }
}
