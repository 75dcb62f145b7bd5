//! GGUF block formats (ggml's `block_q8_0`, `block_q4_0`, `block_q4_1`): decode, and
//! matrix-vector products straight from packed weights.
//!
//! A block holds 32 weights of a row.
//!
//! | format | bytes | fields | weight |
//! |---|---|---|---|
//! | `Q8_0` | 34 | f16 `d`, 32 × i8 `q` | `d * q` |
//! | `Q4_0` | 18 | f16 `d`, 16 bytes | `d * (q - 8)` |
//! | `Q4_1` | 20 | f16 `d`, f16 `m`, 16 bytes | `d * q + m` |
//!
//! Byte `j` of a 4-bit block holds weight `j` in its low nibble and weight `j + 16` in its high.
//!
//! The products read *planes*, a permutation of the same bits that a loader makes once: the
//! scales of a row side by side, and its quants in 32-bit words such that a vector of four
//! words gives four consecutive weights at every shift. For block `b` and `s` in `0..8`, bits
//! `4s..4s + 4` of word `4b + l` hold weight `32b + 4s + l` (4-bit formats); bits
//! `8s..8s + 8`, `s` in `0..4`, of word `8b + l` hold weight `32b + 4s + l` and of word
//! `8b + 4 + l` weight `32b + 16 + 4s + l` (`Q8_0`).

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, ints, uniform};

/// The f16 in the low or high half of a word.
#[device_fn]
pub(crate) fn half_of(word: u32, shift: u32) -> f32 {
    (((word >> shift) & 0xffff) as u16)
        .bitcast::<f16>()
        .to_f32()
}

/// Decodes `Q8_0` blocks; the packed row is 17 16-bit words a block.
#[kernel(
    grid = [ceil_div(cols / 32, 64), rows],
    workgroup = 64,
    requires(cols % 32 == 0, words * 32 == cols * 17),
    instances(T = [f32, f16, bf16])
)]
pub fn dequantize_q8_0<T: Float>(
    packed: &Tensor<u16, (rows, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (block, row) = (global_id(0), group_id(1));
    if block >= cols / 32 {
        return;
    }
    let d = packed[[row, block * 17]].bitcast::<f16>().to_f32();
    for i in 0..16 {
        let pair = packed[[row, block * 17 + 1 + i]];
        let low = (pair & 0xff) as u8 as i8;
        let high = (pair >> 8) as u8 as i8;
        y[[row, block * 32 + 2 * i]] = T::from_f32(d * low as f32);
        y[[row, block * 32 + 2 * i + 1]] = T::from_f32(d * high as f32);
    }
}

/// Decodes `Q4_0` blocks; the packed row is 9 16-bit words a block.
#[kernel(
    grid = [ceil_div(cols / 32, 64), rows],
    workgroup = 64,
    requires(cols % 32 == 0, words * 32 == cols * 9),
    instances(T = [f32, f16, bf16])
)]
pub fn dequantize_q4_0<T: Float>(
    packed: &Tensor<u16, (rows, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (block, row) = (global_id(0), group_id(1));
    if block >= cols / 32 {
        return;
    }
    let d = packed[[row, block * 9]].bitcast::<f16>().to_f32();
    for i in 0..8 {
        let bytes = packed[[row, block * 9 + 1 + i]] as u32;
        for j in unroll(0..2) {
            let byte = (bytes >> (8 * j)) & 0xff;
            let at = block * 32 + 2 * i + j;
            y[[row, at]] = T::from_f32(d * ((byte & 15) as i32 - 8) as f32);
            y[[row, at + 16]] = T::from_f32(d * ((byte >> 4) as i32 - 8) as f32);
        }
    }
}

/// Decodes `Q4_1` blocks; the packed row is 5 32-bit words a block.
#[kernel(
    grid = [ceil_div(cols / 32, 64), rows],
    workgroup = 64,
    requires(cols % 32 == 0, words * 32 == cols * 5),
    instances(T = [f32, f16, bf16])
)]
pub fn dequantize_q4_1<T: Float>(
    packed: &Tensor<u32, (rows, words)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (block, row) = (global_id(0), group_id(1));
    if block >= cols / 32 {
        return;
    }
    let scales = packed[[row, block * 5]];
    let d = half_of(scales, 0);
    let m = half_of(scales, 16);
    for i in 0..4 {
        let bytes = packed[[row, block * 5 + 1 + i]];
        for j in unroll(0..4) {
            let byte = (bytes >> (8 * j)) & 0xff;
            let at = block * 32 + 4 * i + j;
            y[[row, at]] = T::from_f32(fma(d, (byte & 15) as f32, m));
            y[[row, at + 16]] = T::from_f32(fma(d, (byte >> 4) as f32, m));
        }
    }
}

/// Row `ids[group]` of a packed table: `weight(id, block, k)` gives weight `k` of a block of 32.
/// An id past the table fails the launch's request through the error word.
#[device_fn]
pub(crate) fn gather_weights<T: Float, F: Fn(u32, u32, u32) -> f32>(
    ids: &Tensor<u32, 1>,
    vocabulary: u32,
    y: &mut Tensor<T, 2>,
    weight: F,
) {
    let row = group_id(0);
    let id = index_in(ids[row], vocabulary);
    for i in strided(y.dim(1)) {
        y[[row, i]] = T::from_f32(weight(id, i / 32, i % 32));
    }
}

/// Rows of a `Q8_0` table in planes: `y[r, :] = table[ids[r], :]`, an embedding. An id past the
/// table fails the launch's request through the error word.
#[kernel(
    grid = [rows],
    workgroup = 64,
    requires(cols == blocks * 32, words == blocks * 8),
    instances(T = [f32, f16, bf16])
)]
pub fn gather_rows_q8_0<T: Float>(
    scales: &Tensor<f16, (vocabulary, blocks)>,
    quants: &Tensor<u32, (vocabulary, words)>,
    ids: &Tensor<u32, (rows,)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    gather_weights(ids, vocabulary, y, |id, block, k| {
        let word = quants[[id, block * 8 + k / 16 * 4 + k % 4]];
        let q = (word >> (8 * (k % 16 / 4))) as u8 as i8;
        scales[[id, block]].to_f32() * q as f32
    });
}

/// Rows of a `Q4_0` table in planes; as [`gather_rows_q8_0`].
#[kernel(
    grid = [rows],
    workgroup = 64,
    requires(cols == blocks * 32, words == blocks * 4),
    instances(T = [f32, f16, bf16])
)]
pub fn gather_rows_q4_0<T: Float>(
    scales: &Tensor<f16, (vocabulary, blocks)>,
    quants: &Tensor<u32, (vocabulary, words)>,
    ids: &Tensor<u32, (rows,)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    gather_weights(ids, vocabulary, y, |id, block, k| {
        let word = quants[[id, block * 4 + k % 4]];
        let q = ((word >> (k / 4 * 4)) & 15) as i32 - 8;
        scales[[id, block]].to_f32() * q as f32
    });
}

/// Rows of a `Q4_1` table in planes; as [`gather_rows_q8_0`].
#[kernel(
    grid = [rows],
    workgroup = 64,
    requires(cols == blocks * 32, words == blocks * 4),
    instances(T = [f32, f16, bf16])
)]
pub fn gather_rows_q4_1<T: Float>(
    scales: &Tensor<u32, (vocabulary, blocks)>,
    quants: &Tensor<u32, (vocabulary, words)>,
    ids: &Tensor<u32, (rows,)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    gather_weights(ids, vocabulary, y, |id, block, k| {
        let word = quants[[id, block * 4 + k % 4]];
        let q = (word >> (k / 4 * 4)) & 15;
        let scale = scales[[id, block]];
        fma(half_of(scale, 0), q as f32, half_of(scale, 16))
    });
}

/// Value of f16 bits, by the format's definition.
pub(crate) fn f16_value(bits: i64) -> f64 {
    let sign = if bits & 0x8000 != 0 { -1.0 } else { 1.0 };
    let (exponent, fraction) = ((bits >> 10) & 31, (bits & 1023) as f64);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 => f64::NAN,
        e => (1024.0 + fraction) * 2f64.powi(e as i32 - 25),
    };
    sign * magnitude
}

/// Scales between 2^-7 and 2^-5 as f16 bits: random words would hold NaN and infinities.
pub(crate) const SCALE_BITS: (i64, i64) = (0x2000, 0x2800);

const SHAPES: [(u64, u64); 4] = [(0, 32), (1, 32), (3, 96), (2, 64 * 32 + 32)];

/// Replaces the `period`-th words by scale bits, so that every block has sane scales.
fn with_scales(period: usize, scale: impl Fn(usize) -> i64) -> impl Fn(usize, i64) -> i64 {
    move |i, word| {
        if i % period == 0 {
            scale(i / period)
        } else {
            word
        }
    }
}

#[test_kernel(dequantize_q8_0)]
fn dequantize_q8_0_matches_definition(t: &mut Cases) {
    for (rows, cols) in SHAPES {
        let scale = |i| SCALE_BITS.0 + (i as i64 * 37) % (SCALE_BITS.1 - SCALE_BITS.0);
        t.case(format!("{rows}x{cols}"))
            .input(
                "packed",
                [rows, cols / 32 * 17],
                ints(0, 1 << 16).map(with_scales(17, scale)),
            )
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-7))
            .expect(|inputs, out| {
                let decode = |block: &[i64]| -> Vec<f64> {
                    let d = f16_value(block[0]);
                    let byte = |i: usize| (block[1 + i / 2] >> (8 * (i % 2))) & 0xff;
                    (0..32)
                        .map(|i| d * f64::from(byte(i) as u8 as i8))
                        .collect()
                };
                out.set(
                    "y",
                    inputs.ints("packed").chunks(17).flat_map(decode).collect(),
                );
            });
    }
}

#[test_kernel(dequantize_q4_0)]
fn dequantize_q4_0_matches_definition(t: &mut Cases) {
    for (rows, cols) in SHAPES {
        let scale = |i| SCALE_BITS.0 + (i as i64 * 37) % (SCALE_BITS.1 - SCALE_BITS.0);
        t.case(format!("{rows}x{cols}"))
            .input(
                "packed",
                [rows, cols / 32 * 9],
                ints(0, 1 << 16).map(with_scales(9, scale)),
            )
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-7))
            .expect(|inputs, out| {
                let decode = |block: &[i64]| -> Vec<f64> {
                    let d = f16_value(block[0]);
                    let byte = |j: usize| (block[1 + j / 2] >> (8 * (j % 2))) & 0xff;
                    let nibble = |i: usize| (byte(i % 16) >> (4 * (i / 16))) & 15;
                    (0..32).map(|i| d * (nibble(i) - 8) as f64).collect()
                };
                out.set(
                    "y",
                    inputs.ints("packed").chunks(9).flat_map(decode).collect(),
                );
            });
    }
}

#[test_kernel(dequantize_q4_1)]
fn dequantize_q4_1_matches_definition(t: &mut Cases) {
    for (rows, cols) in SHAPES {
        let scale = |i| {
            let bits = |i: i64| SCALE_BITS.0 + (i * 37) % (SCALE_BITS.1 - SCALE_BITS.0);
            bits(i as i64) | (bits(i as i64 + 5) << 16) | 0x8000_0000
        };
        t.case(format!("{rows}x{cols}"))
            .input(
                "packed",
                [rows, cols / 32 * 5],
                ints(0, 1 << 32).map(with_scales(5, scale)),
            )
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-6).absolute(1e-8))
            .expect(|inputs, out| {
                let decode = |block: &[i64]| -> Vec<f64> {
                    let (d, m) = (f16_value(block[0] & 0xffff), f16_value(block[0] >> 16));
                    let byte = |j: usize| (block[1 + j / 4] >> (8 * (j % 4))) & 0xff;
                    let nibble = |i: usize| (byte(i % 16) >> (4 * (i / 16))) & 15;
                    (0..32).map(|i| d * nibble(i) as f64 + m).collect()
                };
                out.set(
                    "y",
                    inputs.ints("packed").chunks(5).flat_map(decode).collect(),
                );
            });
    }
}

/// Rows, table rows, blocks a row.
const GATHERS: [(u64, u64, u64); 3] = [(0, 1, 1), (1, 1, 1), (5, 40, 18)];

#[test_kernel(gather_rows_q8_0)]
fn gather_rows_q8_0_matches_definition(t: &mut Cases) {
    for (rows, vocabulary, blocks) in GATHERS {
        t.case(format!("{rows} of {vocabulary}x{}", blocks * 32))
            .input("scales", [vocabulary, blocks], uniform(0.001, 0.01))
            .input("quants", [vocabulary, blocks * 8], ints(0, 1 << 32))
            .input("ids", [rows], ints(0, vocabulary as i64))
            .output("y", [rows, blocks * 32])
            .bound(Bound::relative(1e-7))
            .expect(move |inputs, out| {
                let (scales, quants) = (&inputs["scales"], inputs.ints("quants"));
                let value = |id: usize, k: usize| {
                    let (block, i) = (id * blocks as usize + k / 32, k % 32);
                    let word = quants[block * 8 + i / 16 * 4 + i % 4];
                    scales[block] * f64::from((word >> (8 * (i % 16 / 4))) as u8 as i8)
                };
                let row = |id: &i64| {
                    (0..blocks as usize * 32)
                        .map(|k| value(*id as usize, k))
                        .collect::<Vec<_>>()
                };
                out.set("y", inputs.ints("ids").iter().flat_map(row).collect());
            });
    }
}

#[test_kernel(gather_rows_q4_0)]
fn gather_rows_q4_0_matches_definition(t: &mut Cases) {
    for (rows, vocabulary, blocks) in GATHERS {
        t.case(format!("{rows} of {vocabulary}x{}", blocks * 32))
            .input("scales", [vocabulary, blocks], uniform(0.001, 0.01))
            .input("quants", [vocabulary, blocks * 4], ints(0, 1 << 32))
            .input("ids", [rows], ints(0, vocabulary as i64))
            .output("y", [rows, blocks * 32])
            .bound(Bound::relative(1e-7))
            .expect(move |inputs, out| {
                let (scales, quants) = (&inputs["scales"], inputs.ints("quants"));
                let value = |id: usize, k: usize| {
                    let (block, i) = (id * blocks as usize + k / 32, k % 32);
                    let word = quants[block * 4 + i % 4];
                    scales[block] * (((word >> (i / 4 * 4)) & 15) - 8) as f64
                };
                let row = |id: &i64| {
                    (0..blocks as usize * 32)
                        .map(|k| value(*id as usize, k))
                        .collect::<Vec<_>>()
                };
                out.set("y", inputs.ints("ids").iter().flat_map(row).collect());
            });
    }
}

#[test_kernel(gather_rows_q4_1)]
fn gather_rows_q4_1_matches_definition(t: &mut Cases) {
    for (rows, vocabulary, blocks) in GATHERS {
        let scale = |i: usize, _| {
            let bits = |i: i64| SCALE_BITS.0 + (i * 37) % (SCALE_BITS.1 - SCALE_BITS.0);
            bits(i as i64) | (bits(i as i64 + 5) << 16) | 0x8000_0000
        };
        t.case(format!("{rows} of {vocabulary}x{}", blocks * 32))
            .input("scales", [vocabulary, blocks], ints(0, 1).map(scale))
            .input("quants", [vocabulary, blocks * 4], ints(0, 1 << 32))
            .input("ids", [rows], ints(0, vocabulary as i64))
            .output("y", [rows, blocks * 32])
            .bound(Bound::relative(1e-6).absolute(1e-8))
            .expect(move |inputs, out| {
                let (scales, quants) = (inputs.ints("scales"), inputs.ints("quants"));
                let value = |id: usize, k: usize| {
                    let (block, i) = (id * blocks as usize + k / 32, k % 32);
                    let word = quants[block * 4 + i % 4];
                    let (d, m) = (
                        f16_value(scales[block] & 0xffff),
                        f16_value(scales[block] >> 16),
                    );
                    d * ((word >> (i / 4 * 4)) & 15) as f64 + m
                };
                let row = |id: &i64| {
                    (0..blocks as usize * 32)
                        .map(|k| value(*id as usize, k))
                        .collect::<Vec<_>>()
                };
                out.set("y", inputs.ints("ids").iter().flat_map(row).collect());
            });
    }
}
