//! Matrix-vector products straight from packed weights, for GPUs; the formats and their planes
//! are in [`crate::quant`], and [`crate::affine`] is for processors.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, ints, normal, uniform};

use crate::matmul::store_sum;
use crate::quant::{SCALE_BITS, f16_value, half_of};

/// Four consecutive 4-bit weights of a block, as the planes hold them: `shift` is four times the
/// place of the four in the block.
#[device_fn]
fn nibbles(words: U32x4, shift: u32) -> F32x4 {
    ((words >> splat4(shift)) & splat4(15))
        .bitcast::<I32x4>()
        .to::<f32>()
}

/// Four consecutive signed 8-bit weights of half a block: `shift` is 24 less eight times their
/// place in it. Shifting up, then down as signed, extends the sign of the field.
#[device_fn]
fn signed_bytes(words: U32x4, shift: u32) -> F32x4 {
    ((words << splat4(shift)).bitcast::<I32x4>() >> splat4(24)).to::<f32>()
}

/// `sum` and the products of a block's inputs with its weights `d * q + m` of 4 bits.
#[device_fn]
fn nibble_block<T: Float>(
    x: &Tensor<T, 2>,
    row: u32,
    block: u32,
    words: U32x4,
    scale: (f32, f32),
    sum: F32x4,
) -> F32x4 {
    let mut products = splat4(0.0f32);
    let mut inputs = splat4(0.0f32);
    for s in unroll(0..8) {
        let values = x.load4([row, block * 8 + s]).to_f32();
        inputs += values;
        products = nibbles(words, 4 * s).mul_add(values, products);
    }
    splat4(scale.0).mul_add(products, splat4(scale.1).mul_add(inputs, sum))
}

/// `y[r, n] = sum_k x[r, k] * w[n, k]` with `Q8_0` planes: `scales` are f16, `quants` 8 words a
/// block. The threads of a workgroup share an output.
#[kernel(
    grid = [cols, rows],
    workgroup = 32,
    requires(inner == blocks * 32, words == blocks * 8),
    instances(T = [f32, f16, bf16])
)]
pub fn matvec_q8_0<T: Float>(
    x: &Tensor<T, (rows, inner)>,
    scales: &Tensor<f16, (cols, blocks)>,
    quants: &Tensor<u32, (cols, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (col, row) = (group_id(0), group_id(1));
    let mut sum = splat4(0.0f32);
    for block in strided(blocks) {
        let mut products = splat4(0.0f32);
        for h in unroll(0..2) {
            let words = quants.load4([col, 2 * block + h]);
            for s in unroll(0..4) {
                let values = x.load4([row, block * 8 + 4 * h + s]).to_f32();
                products = signed_bytes(words, 24 - 8 * s).mul_add(values, products);
            }
        }
        sum = splat4(scales[[col, block]].to_f32()).mul_add(products, sum);
    }
    store_sum(y, row, col, sum.sum());
}

/// `y[r, n] = sum_k x[r, k] * w[n, k]` with `Q4_0` planes: `scales` are f16, `quants` 4 words a
/// block. As [`matvec_q8_0`].
#[kernel(
    grid = [cols, rows],
    workgroup = 32,
    requires(inner == blocks * 32, words == blocks * 4),
    instances(T = [f32, f16, bf16])
)]
pub fn matvec_q4_0<T: Float>(
    x: &Tensor<T, (rows, inner)>,
    scales: &Tensor<f16, (cols, blocks)>,
    quants: &Tensor<u32, (cols, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (col, row) = (group_id(0), group_id(1));
    let mut sum = splat4(0.0f32);
    for block in strided(blocks) {
        let d = scales[[col, block]].to_f32();
        let words = quants.load4([col, block]);
        sum = nibble_block(x, row, block, words, (d, d * -8.0), sum);
    }
    store_sum(y, row, col, sum.sum());
}

/// `y[r, n] = sum_k x[r, k] * w[n, k]` with `Q4_1` planes: `scales` hold f16 `d` in the low half
/// and f16 `m` in the high, `quants` 4 words a block. As [`matvec_q8_0`].
#[kernel(
    grid = [cols, rows],
    workgroup = 32,
    requires(inner == blocks * 32, words == blocks * 4),
    instances(T = [f32, f16, bf16])
)]
pub fn matvec_q4_1<T: Float>(
    x: &Tensor<T, (rows, inner)>,
    scales: &Tensor<u32, (cols, blocks)>,
    quants: &Tensor<u32, (cols, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (col, row) = (group_id(0), group_id(1));
    let mut sum = splat4(0.0f32);
    for block in strided(blocks) {
        let (scale, words) = (scales[[col, block]], quants.load4([col, block]));
        let scale = (half_of(scale, 0), half_of(scale, 16));
        sum = nibble_block(x, row, block, words, scale, sum);
    }
    store_sum(y, row, col, sum.sum());
}

/// Rows, outputs, blocks a row.
const PRODUCTS: [(u64, u64, u64); 4] = [(0, 3, 1), (1, 1, 1), (2, 5, 18), (1, 7, 48)];

/// `x · wᵀ` where `weight(n, k)` gives the weights.
fn product(x: &[f64], cols: u64, inner: usize, weight: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let dot = |x: &[f64], n| {
        x.iter()
            .enumerate()
            .map(|(k, x)| x * weight(n, k))
            .sum::<f64>()
    };
    x.chunks(inner)
        .flat_map(|x| (0..cols as usize).map(|n| dot(x, n)).collect::<Vec<_>>())
        .collect()
}

#[test_kernel(matvec_q8_0)]
fn matvec_q8_0_matches_f64(t: &mut Cases) {
    for (rows, cols, blocks) in PRODUCTS {
        t.case(format!("{rows}x{cols}x{}", blocks * 32))
            .input("x", [rows, blocks * 32], normal(0.0, 1.0))
            .input("scales", [cols, blocks], uniform(0.001, 0.01))
            .input("quants", [cols, blocks * 8], ints(0, 1 << 32))
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-5).absolute(3e-5))
            .expect(move |inputs, out| {
                let (scales, quants) = (&inputs["scales"], inputs.ints("quants"));
                let blocks = blocks as usize;
                let weight = |n: usize, k: usize| {
                    let (block, i) = (k / 32, k % 32);
                    let word = quants[(n * blocks + block) * 8 + i / 16 * 4 + i % 4];
                    let q = (word >> (8 * (i % 16 / 4))) as u8 as i8;
                    scales[n * blocks + block] * f64::from(q)
                };
                out.set("y", product(&inputs["x"], cols, blocks * 32, weight));
            });
    }
}

#[test_kernel(matvec_q4_0)]
fn matvec_q4_0_matches_f64(t: &mut Cases) {
    for (rows, cols, blocks) in PRODUCTS {
        t.case(format!("{rows}x{cols}x{}", blocks * 32))
            .input("x", [rows, blocks * 32], normal(0.0, 1.0))
            .input("scales", [cols, blocks], uniform(0.01, 0.1))
            .input("quants", [cols, blocks * 4], ints(0, 1 << 32))
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-5).absolute(3e-5))
            .expect(move |inputs, out| {
                let (scales, quants) = (&inputs["scales"], inputs.ints("quants"));
                let blocks = blocks as usize;
                let weight = |n: usize, k: usize| {
                    let (block, i) = (k / 32, k % 32);
                    let word = quants[(n * blocks + block) * 4 + i % 4];
                    scales[n * blocks + block] * (((word >> (i / 4 * 4)) & 15) - 8) as f64
                };
                out.set("y", product(&inputs["x"], cols, blocks * 32, weight));
            });
    }
}

#[test_kernel(matvec_q4_1)]
fn matvec_q4_1_matches_f64(t: &mut Cases) {
    for (rows, cols, blocks) in PRODUCTS {
        let scale = |i: usize, _| {
            let bits = |i: i64| SCALE_BITS.0 + (i * 37) % (SCALE_BITS.1 - SCALE_BITS.0);
            bits(i as i64) | (bits(i as i64 + 5) << 16) | 0x8000_0000
        };
        t.case(format!("{rows}x{cols}x{}", blocks * 32))
            .input("x", [rows, blocks * 32], normal(0.0, 1.0))
            .input("scales", [cols, blocks], ints(0, 1).map(scale))
            .input("quants", [cols, blocks * 4], ints(0, 1 << 32))
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-5).absolute(3e-5))
            .expect(move |inputs, out| {
                let (scales, quants) = (inputs.ints("scales"), inputs.ints("quants"));
                let blocks = blocks as usize;
                let weight = |n: usize, k: usize| {
                    let (block, i) = (k / 32, k % 32);
                    let word = quants[(n * blocks + block) * 4 + i % 4];
                    let scale = scales[n * blocks + block];
                    let (d, m) = (f16_value(scale & 0xffff), f16_value(scale >> 16));
                    d * ((word >> (i / 4 * 4)) & 15) as f64 + m
                };
                out.set("y", product(&inputs["x"], cols, blocks * 32, weight));
            });
    }
}

/// Outputs and inputs of SmolLM2-135M's feed-forward and of its vocabulary projection.
const BENCHED: [(u64, u64); 2] = [(1536, 576), (49_152, 576)];

#[bench_kernel(matvec_q8_0)]
fn matvec_q8_0_of_smollm2(b: &mut Benches) {
    for (cols, inner) in BENCHED {
        b.bench(format!("1x{cols}x{inner}"))
            .input("x", [1, inner], normal(0.0, 1.0))
            .input("scales", [cols, inner / 32], uniform(0.001, 0.01))
            .input("quants", [cols, inner / 4], ints(0, 1 << 32))
            .output("y", [1, cols])
            .bytes(cols * inner / 32 * 34)
            .flops(2 * cols * inner);
    }
}

#[bench_kernel(matvec_q4_1)]
fn matvec_q4_1_of_smollm2(b: &mut Benches) {
    for (cols, inner) in BENCHED {
        b.bench(format!("1x{cols}x{inner}"))
            .input("x", [1, inner], normal(0.0, 1.0))
            .input("scales", [cols, inner / 32], ints(0x2000_2000, 0x2000_2001))
            .input("quants", [cols, inner / 8], ints(0, 1 << 32))
            .output("y", [1, cols])
            .bytes(cols * inner / 32 * 20)
            .flops(2 * cols * inner);
    }
}
