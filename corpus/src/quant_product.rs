//! Matrix-vector products straight from packed weights; the formats and their planes are in
//! [`crate::quant`].

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, ints, normal, uniform};

use crate::quant::{SCALE_BITS, f16_value, half_of};

/// The four f16 in the low or high halves of four words, widened by their bits: 32-bit lanes
/// stay side by side where 16-bit ones would not.
#[device_fn]
fn halves_of(words: U32x4, shift: u32) -> F32x4 {
    let bits = words >> splat4(shift);
    let magnitude = bits & splat4(0x7fff);
    let normal = (magnitude << splat4(13)) + splat4(112 << 23);
    // A subnormal half counts 2^-24, which f32 holds as a normal number.
    let count = magnitude.bitcast::<I32x4>();
    let small = count.to::<f32>() * f32::from_bits((127 - 24) << 23);
    let is_small = ((count - splat4(0x0400)) >> splat4(31)).bitcast::<U32x4>();
    let finite = (small.bitcast::<U32x4>() & is_small) | (normal & (is_small ^ splat4(u32::MAX)));
    // From 0x7c00 on the half is infinite or NaN, and all exponent bits are set.
    let top = (magnitude + splat4(0x0400)) & splat4(0x8000);
    let infinite = (top << splat4(16)) - (top << splat4(8));
    let sign = (bits & splat4(0x8000)) << splat4(16);
    (finite | infinite | sign).bitcast::<F32x4>()
}

/// Four consecutive 4-bit weights of a block, as the planes hold them: `shift` is four times the
/// place of the four in the block.
#[device_fn]
fn nibbles(words: U32x4, shift: u32) -> F32x4 {
    ((words >> splat4(shift)) & splat4(15))
        .bitcast::<I32x4>()
        .to::<f32>()
}

/// As [`nibbles`], left where the word holds them: `16^s` times the weights. The inputs take the
/// power instead, once for all outputs, and every product is the same to the bit.
#[device_fn]
fn field(words: U32x4, s: u32) -> F32x4 {
    (words & splat4(15 << (4 * s)))
        .bitcast::<I32x4>()
        .to::<f32>()
}

/// `16^-s`.
#[device_fn]
fn power_of_16(s: u32) -> f32 {
    f32::from_bits((127 - 4 * s) << 23)
}

/// Four consecutive signed 8-bit weights of half a block: `shift` is 24 less eight times their
/// place in it. Shifting up, then down as signed, extends the sign of the field.
#[device_fn]
fn signed_bytes(words: U32x4, shift: u32) -> F32x4 {
    ((words << splat4(shift)).bitcast::<I32x4>() >> splat4(24)).to::<f32>()
}

/// `y[r, n] = sum_k x[r, k] * w[n, k]` with `Q8_0` planes: `scales` are f16, `quants` 8 words a
/// block. `LANES` threads share an output; a single thread, as suits a CPU, takes four outputs.
#[kernel(
    grid = [ceil_div(cols, 4 / min(LANES, 4)), rows],
    workgroup = LANES,
    requires(inner == blocks * 32, words == blocks * 8),
    instances(T = [f32, f16, bf16], LANES = [1, 32])
)]
pub fn matvec_q8_0<T: Float, const LANES: u32>(
    x: &Tensor<T, (rows, inner)>,
    scales: &Tensor<f16, (cols, blocks)>,
    quants: &Tensor<u32, (cols, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let row = group_id(1);
    let c0 = group_id(0) * (4 / LANES.min(4));
    let mut sum0 = splat4(0.0f32);
    if LANES == 1 {
        // Four outputs at once: they share the inputs, and their chains of sums overlap.
        let c1 = (c0 + 1).min(cols - 1);
        let c2 = (c0 + 2).min(cols - 1);
        let c3 = (c0 + 3).min(cols - 1);
        let mut sum1 = splat4(0.0f32);
        let mut sum2 = splat4(0.0f32);
        let mut sum3 = splat4(0.0f32);
        for block in 0..blocks {
            let mut p0 = splat4(0.0f32);
            let mut p1 = splat4(0.0f32);
            let mut p2 = splat4(0.0f32);
            let mut p3 = splat4(0.0f32);
            for h in unroll(0..2) {
                let q0 = quants.load4([c0, 2 * block + h]);
                let q1 = quants.load4([c1, 2 * block + h]);
                let q2 = quants.load4([c2, 2 * block + h]);
                let q3 = quants.load4([c3, 2 * block + h]);
                for s in unroll(0..4) {
                    let values = x.load4([row, block * 8 + 4 * h + s]).to_f32();
                    p0 = signed_bytes(q0, 24 - 8 * s).mul_add(values, p0);
                    p1 = signed_bytes(q1, 24 - 8 * s).mul_add(values, p1);
                    p2 = signed_bytes(q2, 24 - 8 * s).mul_add(values, p2);
                    p3 = signed_bytes(q3, 24 - 8 * s).mul_add(values, p3);
                }
            }
            let d = vec4(
                scales[[c0, block]],
                scales[[c1, block]],
                scales[[c2, block]],
                scales[[c3, block]],
            )
            .to_f32();
            sum0 = splat4(d[0]).mul_add(p0, sum0);
            sum1 = splat4(d[1]).mul_add(p1, sum1);
            sum2 = splat4(d[2]).mul_add(p2, sum2);
            sum3 = splat4(d[3]).mul_add(p3, sum3);
        }
        if c0 + 1 < cols {
            y[[row, c0 + 1]] = T::from_f32(sum1.sum());
        }
        if c0 + 2 < cols {
            y[[row, c0 + 2]] = T::from_f32(sum2.sum());
        }
        if c0 + 3 < cols {
            y[[row, c0 + 3]] = T::from_f32(sum3.sum());
        }
    } else {
        for block in strided(blocks) {
            let mut p0 = splat4(0.0f32);
            for h in unroll(0..2) {
                let q0 = quants.load4([c0, 2 * block + h]);
                for s in unroll(0..4) {
                    let values = x.load4([row, block * 8 + 4 * h + s]).to_f32();
                    p0 = signed_bytes(q0, 24 - 8 * s).mul_add(values, p0);
                }
            }
            sum0 = splat4(scales[[c0, block]].to_f32()).mul_add(p0, sum0);
        }
    }
    let total = workgroup_sum(sum0.sum());
    if local_index() == 0 {
        y[[row, c0]] = T::from_f32(total);
    }
}

/// `y[r, n] = sum_k x[r, k] * w[n, k]` with `Q4_0` planes: `scales` are f16, `quants` 4 words a
/// block. As [`matvec_q8_0`].
#[kernel(
    grid = [ceil_div(cols, 4 / min(LANES, 4)), rows],
    workgroup = LANES,
    requires(inner == blocks * 32, words == blocks * 4),
    instances(T = [f32, f16, bf16], LANES = [1, 32])
)]
pub fn matvec_q4_0<T: Float, const LANES: u32>(
    x: &Tensor<T, (rows, inner)>,
    scales: &Tensor<f16, (cols, blocks)>,
    quants: &Tensor<u32, (cols, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let row = group_id(1);
    let c0 = group_id(0) * (4 / LANES.min(4));
    let mut sum0 = splat4(0.0f32);
    if LANES == 1 {
        // Four outputs at once: they share the inputs, and their chains of sums overlap.
        let c1 = (c0 + 1).min(cols - 1);
        let c2 = (c0 + 2).min(cols - 1);
        let c3 = (c0 + 3).min(cols - 1);
        let mut sum1 = splat4(0.0f32);
        let mut sum2 = splat4(0.0f32);
        let mut sum3 = splat4(0.0f32);
        for block in 0..blocks {
            let q0 = quants.load4([c0, block]);
            let q1 = quants.load4([c1, block]);
            let q2 = quants.load4([c2, block]);
            let q3 = quants.load4([c3, block]);
            let mut p0 = splat4(0.0f32);
            let mut p1 = splat4(0.0f32);
            let mut p2 = splat4(0.0f32);
            let mut p3 = splat4(0.0f32);
            let mut inputs = splat4(0.0f32);
            for s in unroll(0..7) {
                let values = x.load4([row, block * 8 + s]).to_f32();
                inputs += values;
                let values = values * power_of_16(s);
                p0 = field(q0, s).mul_add(values, p0);
                p1 = field(q1, s).mul_add(values, p1);
                p2 = field(q2, s).mul_add(values, p2);
                p3 = field(q3, s).mul_add(values, p3);
            }
            // The last field reaches the sign bit.
            let values = x.load4([row, block * 8 + 7]).to_f32();
            inputs += values;
            p0 = nibbles(q0, 28).mul_add(values, p0);
            p1 = nibbles(q1, 28).mul_add(values, p1);
            p2 = nibbles(q2, 28).mul_add(values, p2);
            p3 = nibbles(q3, 28).mul_add(values, p3);
            let d = vec4(
                scales[[c0, block]],
                scales[[c1, block]],
                scales[[c2, block]],
                scales[[c3, block]],
            )
            .to_f32();
            let m = d * -8.0;
            sum0 = splat4(d[0]).mul_add(p0, splat4(m[0]).mul_add(inputs, sum0));
            sum1 = splat4(d[1]).mul_add(p1, splat4(m[1]).mul_add(inputs, sum1));
            sum2 = splat4(d[2]).mul_add(p2, splat4(m[2]).mul_add(inputs, sum2));
            sum3 = splat4(d[3]).mul_add(p3, splat4(m[3]).mul_add(inputs, sum3));
        }
        if c0 + 1 < cols {
            y[[row, c0 + 1]] = T::from_f32(sum1.sum());
        }
        if c0 + 2 < cols {
            y[[row, c0 + 2]] = T::from_f32(sum2.sum());
        }
        if c0 + 3 < cols {
            y[[row, c0 + 3]] = T::from_f32(sum3.sum());
        }
    } else {
        for block in strided(blocks) {
            let q0 = quants.load4([c0, block]);
            let mut p0 = splat4(0.0f32);
            let mut inputs = splat4(0.0f32);
            for s in unroll(0..8) {
                let values = x.load4([row, block * 8 + s]).to_f32();
                inputs += values;
                p0 = nibbles(q0, 4 * s).mul_add(values, p0);
            }
            let d = scales[[c0, block]].to_f32();
            let m = d * -8.0;
            sum0 = splat4(d).mul_add(p0, splat4(m).mul_add(inputs, sum0));
        }
    }
    let total = workgroup_sum(sum0.sum());
    if local_index() == 0 {
        y[[row, c0]] = T::from_f32(total);
    }
}

/// `y[r, n] = sum_k x[r, k] * w[n, k]` with `Q4_1` planes: `scales` hold f16 `d` in the low half
/// and f16 `m` in the high, `quants` 4 words a block. As [`matvec_q8_0`].
#[kernel(
    grid = [ceil_div(cols, 4 / min(LANES, 4)), rows],
    workgroup = LANES,
    requires(inner == blocks * 32, words == blocks * 4),
    instances(T = [f32, f16, bf16], LANES = [1, 32])
)]
pub fn matvec_q4_1<T: Float, const LANES: u32>(
    x: &Tensor<T, (rows, inner)>,
    scales: &Tensor<u32, (cols, blocks)>,
    quants: &Tensor<u32, (cols, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let row = group_id(1);
    let c0 = group_id(0) * (4 / LANES.min(4));
    let mut sum0 = splat4(0.0f32);
    if LANES == 1 {
        // Four outputs at once: they share the inputs, and their chains of sums overlap.
        let c1 = (c0 + 1).min(cols - 1);
        let c2 = (c0 + 2).min(cols - 1);
        let c3 = (c0 + 3).min(cols - 1);
        let mut sum1 = splat4(0.0f32);
        let mut sum2 = splat4(0.0f32);
        let mut sum3 = splat4(0.0f32);
        for block in 0..blocks {
            let q0 = quants.load4([c0, block]);
            let q1 = quants.load4([c1, block]);
            let q2 = quants.load4([c2, block]);
            let q3 = quants.load4([c3, block]);
            let mut p0 = splat4(0.0f32);
            let mut p1 = splat4(0.0f32);
            let mut p2 = splat4(0.0f32);
            let mut p3 = splat4(0.0f32);
            let mut inputs = splat4(0.0f32);
            for s in unroll(0..7) {
                let values = x.load4([row, block * 8 + s]).to_f32();
                inputs += values;
                let values = values * power_of_16(s);
                p0 = field(q0, s).mul_add(values, p0);
                p1 = field(q1, s).mul_add(values, p1);
                p2 = field(q2, s).mul_add(values, p2);
                p3 = field(q3, s).mul_add(values, p3);
            }
            // The last field reaches the sign bit.
            let values = x.load4([row, block * 8 + 7]).to_f32();
            inputs += values;
            p0 = nibbles(q0, 28).mul_add(values, p0);
            p1 = nibbles(q1, 28).mul_add(values, p1);
            p2 = nibbles(q2, 28).mul_add(values, p2);
            p3 = nibbles(q3, 28).mul_add(values, p3);
            let words = vec4(
                scales[[c0, block]],
                scales[[c1, block]],
                scales[[c2, block]],
                scales[[c3, block]],
            );
            let d = halves_of(words, 0);
            let m = halves_of(words, 16);
            sum0 = splat4(d[0]).mul_add(p0, splat4(m[0]).mul_add(inputs, sum0));
            sum1 = splat4(d[1]).mul_add(p1, splat4(m[1]).mul_add(inputs, sum1));
            sum2 = splat4(d[2]).mul_add(p2, splat4(m[2]).mul_add(inputs, sum2));
            sum3 = splat4(d[3]).mul_add(p3, splat4(m[3]).mul_add(inputs, sum3));
        }
        if c0 + 1 < cols {
            y[[row, c0 + 1]] = T::from_f32(sum1.sum());
        }
        if c0 + 2 < cols {
            y[[row, c0 + 2]] = T::from_f32(sum2.sum());
        }
        if c0 + 3 < cols {
            y[[row, c0 + 3]] = T::from_f32(sum3.sum());
        }
    } else {
        for block in strided(blocks) {
            let q0 = quants.load4([c0, block]);
            let mut p0 = splat4(0.0f32);
            let mut inputs = splat4(0.0f32);
            for s in unroll(0..8) {
                let values = x.load4([row, block * 8 + s]).to_f32();
                inputs += values;
                p0 = nibbles(q0, 4 * s).mul_add(values, p0);
            }
            let scale = scales[[c0, block]];
            let d = half_of(scale, 0);
            let m = half_of(scale, 16);
            sum0 = splat4(d).mul_add(p0, splat4(m).mul_add(inputs, sum0));
        }
    }
    let total = workgroup_sum(sum0.sum());
    if local_index() == 0 {
        y[[row, c0]] = T::from_f32(total);
    }
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
