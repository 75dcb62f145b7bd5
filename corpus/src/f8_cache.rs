//! A key and value cache of 8-bit floats: its writes, attention of single query rows to it, and
//! its way back to wider types for the tiles of a prompt.
//!
//! The blocks are those of [`crate::attention`], of `F8E4M3`. Each row of a head, the key or the
//! value of one position, has a scale of its own, the least power of two with which the row's
//! largest magnitude comes to at most 448, the type's largest value: nothing overflows, whatever
//! the model, no calibration is needed, and a row's bits depend on that row alone, not on who
//! wrote to the same block before. A power of two costs one byte and rounds nothing, and a float's
//! relative precision does not depend on its scale, so a finer one would gain nothing. A row that
//! holds an infinity or a NaN has the scale NaN, and reads as NaN.

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, Generator, ints, normal, uniform, values};

use crate::attention::{DECODES, Range, attend_split, split_of};
use crate::attention_cases::scaled_decode_cases;

/// Exponent field of 448, less that of 1.
const LARGEST_EXPONENT: u32 = 8;
/// Bits of the fraction of 1.75, which 448 is `2^8` of.
const LARGEST_FRACTION: u32 = 0x60_0000;

/// The bits of the scale of a row whose largest magnitude is `largest`: at least 2^-126, NaN where
/// that is no number.
#[device_fn]
fn scale_bits(largest: f32) -> u32 {
    let bits = largest.to_bits();
    let (exponent, fraction) = (bits >> 23, bits & 0x7f_ffff);
    let least = exponent + (fraction > LARGEST_FRACTION) as u32;
    let bits = least.max(LARGEST_EXPONENT + 1) - LARGEST_EXPONENT;
    select(exponent == 255, 255, bits)
}

/// Writes the keys (or the values) of new rows: row `r` goes to position `positions[r]` of
/// sequence `sequences[r]`, each head divided by its scale.
#[kernel(grid = [rows, kv_heads], workgroup = 64, instances(T = [f32, f16, bf16]))]
pub fn append_f8<T: Float>(
    x: &Tensor<T, (rows, kv_heads, head_dim)>,
    positions: &Tensor<u32, (rows,)>,
    sequences: &Tensor<u32, (rows,)>,
    block_table: &Tensor<u32, (all_sequences, max_blocks)>,
    cache: &mut Tensor<F8E4M3, (blocks, kv_heads, block_size, head_dim)>,
    scales: &mut Tensor<E8M0, (blocks, kv_heads, block_size)>,
) {
    let (row, head) = (group_id(0), group_id(1));
    let position = positions[row];
    let sequence = index_in(sequences[row], all_sequences);
    let page = index_in(position / block_size, max_blocks);
    let block = index_in(block_table[[sequence, page]], blocks);
    let slot = position % block_size;
    let mut largest = 0.0f32;
    for i in strided(head_dim) {
        largest = largest.max_nan(x[[row, head, i]].to_f32().abs());
    }
    let bits = scale_bits(workgroup_max_nan(largest));
    // Of a power of two exact, and so is the product. No number has the scale NaN.
    let inverse = f32::from_bits((254 - bits.min(253)) << 23);
    for i in strided(head_dim) {
        let scaled = x[[row, head, i]].to_f32() * inverse;
        cache[[block, head, slot, i]] = scaled.to::<F8E4M3>();
    }
    if local_index() == 0 {
        scales[[block, head, slot]] = (bits as u8).bitcast::<E8M0>();
    }
}

/// Attention of single query rows, as [`crate::attention::attention_decode`] over the values that
/// the cache stands for, to the bit.
#[kernel(
    grid = [splits, heads, rows],
    workgroup = 128,
    requires(heads % kv_heads == 0, block_size > 0),
    instances(T = [f32, f16, bf16], HEAD_DIM = [32, 64, 80, 96, 128, 256, 16, 512])
)]
pub fn attention_decode_f8<T: Float, const HEAD_DIM: u32>(
    q: &Tensor<T, (rows, heads, HEAD_DIM)>,
    k_cache: &Tensor<F8E4M3, (blocks, kv_heads, block_size, HEAD_DIM)>,
    v_cache: &Tensor<F8E4M3, (blocks, kv_heads, block_size, HEAD_DIM)>,
    k_scales: &Tensor<E8M0, (blocks, kv_heads, block_size)>,
    v_scales: &Tensor<E8M0, (blocks, kv_heads, block_size)>,
    positions: &Tensor<u32, (rows,)>,
    sequences: &Tensor<u32, (rows,)>,
    block_table: &Tensor<u32, (all_sequences, max_blocks)>,
    partial: &mut Tensor<f32, (rows, heads, splits, HEAD_DIM)>,
    stats: &mut Tensor<f32, { (rows, heads, splits, 2) }>,
    scale: f32,
    window: u32,
    soft_cap: f32,
) {
    let (split, head, row) = (group_id(0), group_id(1), group_id(2));
    let (first, end) = split_of::<HEAD_DIM>(positions[row] + 1, window, split);
    if first >= end {
        return;
    }
    let sequence = index_in(sequences[row], all_sequences);
    let kv_head = head / (heads / kv_heads);
    let range = Range {
        first,
        count: end - first,
        sequence,
        blocks,
        block_size,
    };
    // A power of two commutes with every rounding of the products' sum.
    attend_split::<HEAD_DIM, _, _, _, _, _>(
        range,
        block_table,
        partial,
        stats,
        soft_cap,
        |i| q[[row, head, i]].to_f32() * scale,
        |block, slot, i| k_cache.load4([block, kv_head, slot, i]).to_f32(),
        |score, block, slot| score * k_scales[[block, kv_head, slot]].to_f32(),
        |weight, position| {
            let page = index_in(position / block_size, max_blocks);
            let block = index_in(block_table[[sequence, page]], blocks);
            weight * v_scales[[block, kv_head, position % block_size]].to_f32()
        },
        |block, slot, i| v_cache.load4([block, kv_head, slot, i]).to_f32(),
    );
}

/// The blocks that the positions up to those of a step's rows lie in, for kernels of wider
/// caches: page `p` of `y` is block `block_table[p]`, rounded to its type. Rows are consecutive
/// positions of one sequence; pages past them are left as they are.
#[kernel(
    grid = [pages, kv_heads],
    workgroup = 256,
    requires(head_dim % 4 == 0),
    instances(T = [f32, f16, bf16])
)]
pub fn unpack_f8<T: Float>(
    cache: &Tensor<F8E4M3, (blocks, kv_heads, block_size, head_dim)>,
    scales: &Tensor<E8M0, (blocks, kv_heads, block_size)>,
    positions: &Tensor<u32, (rows,)>,
    block_table: &Tensor<u32, (pages,)>,
    y: &mut Tensor<T, (pages, kv_heads, block_size, head_dim)>,
) {
    let (page, head) = (group_id(0), group_id(1));
    if rows == 0 || page * block_size >= positions[0] + rows {
        return;
    }
    let block = index_in(block_table[page], blocks);
    let lanes = head_dim / 4;
    for i in strided(block_size * lanes) {
        let (slot, lane) = (i / lanes, i % lanes);
        let codes = cache.load4([block, head, slot, lane]).to_f32();
        let scale = scales[[block, head, slot]].to_f32();
        y.store4([page, head, slot, lane], (codes * scale).to::<T>());
    }
}

/// The scale of a row by its definition.
fn scale_of(row: &[f64]) -> f64 {
    let largest = row.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    if row.iter().any(|x| !x.is_finite()) {
        return f64::NAN;
    }
    let mut scale = 2f64.powi(-126);
    while largest > 448.0 * scale {
        scale *= 2.0;
    }
    scale
}

// K40: a row of zeros, the largest value and its neighbours, tiny and huge rows, NaN and
// infinities.
#[test_kernel(append_f8)]
fn append_f8_scales_each_row_by_itself(t: &mut Cases) {
    let special = [
        vec![0.0; 4],
        vec![448.0, -449.0, 1.0, 0.4375],
        vec![448.0, 464.0, -465.0, 3.0],
        vec![7.0, -6.75, 0.001, 0.0],
        vec![0.000_03, -0.000_01, 0.0, 0.000_000_5],
        vec![60000.0, 1.0, -120.0, 0.25],
        vec![1.0, f64::NAN, 2.0, 3.0],
        vec![1.0, 2.0, f64::NEG_INFINITY, 3.0],
    ];
    let rows = special.len() as u64;
    append_case(t, (rows, 1, 4), values(special.concat()));
    for shape in [(0, 1, 8), (1, 1, 3), (5, 3, 80)] {
        append_case(t, shape, normal(0.0, 30.0));
    }
}

fn append_case(
    t: &mut Cases,
    (rows, kv_heads, head_dim): (u64, u64, u64),
    x: impl Into<Generator>,
) {
    t.case(format!("{rows}x{kv_heads}x{head_dim}"))
        .input("x", [rows, kv_heads, head_dim], x)
        // Distinct positions of two sequences over distinct blocks.
        .input("positions", [rows], ints(0, 1).map(|r, _| r as i64 * 5))
        .input("sequences", [rows], ints(0, 1).map(|r, _| r as i64 % 2))
        .input("block_table", [2, 3], ints(0, 1).map(|i, _| 5 - i as i64))
        .inout("cache", [6, kv_heads, 16, head_dim], normal(0.0, 1.0))
        .inout("scales", [6, kv_heads, 16], uniform(0.2, 2.0))
        .bound(Bound::exact())
        .expect(move |inputs, out| {
            let dim = head_dim as usize;
            let mut codes = inputs["cache"].to_vec();
            let mut scales = inputs["scales"].to_vec();
            for (i, x) in inputs["x"].chunks(dim).enumerate() {
                let (row, head) = (i / kv_heads as usize, i % kv_heads as usize);
                let position = row * 5;
                let block = 5 - (row % 2 * 3 + position / 16);
                let to = (block * kv_heads as usize + head) * 16 + position % 16;
                let scale = scale_of(x);
                scales[to] = scale;
                // Codes of a row that is no number mean nothing, and are those of its values by
                // the largest of all scales.
                let by = if scale.is_nan() {
                    2f64.powi(126)
                } else {
                    scale
                };
                for (code, x) in codes[to * dim..].iter_mut().zip(x) {
                    // The type has no infinity.
                    *code = if x.is_infinite() { f64::NAN } else { x / by };
                }
            }
            out.set("cache", codes);
            out.set("scales", scales);
        });
}

#[test_kernel(attention_decode_f8)]
fn attention_decode_f8_matches_f64(t: &mut Cases) {
    let head_dim = t.constant("HEAD_DIM") as u64;
    scaled_decode_cases(t, head_dim, &DECODES);
}

#[test_kernel(unpack_f8)]
fn unpack_f8_gives_the_values(t: &mut Cases) {
    // Rows, first position, key and value heads, their size; the last page is not reached.
    for (rows, first, kv_heads, dim) in [(0u64, 0u64, 1u64, 4u64), (1, 0, 1, 4), (17, 30, 3, 80)] {
        let (block_size, pages) = (16u64, u64::div_ceil(first + rows, 16) + 1);
        let blocks = pages + 2;
        let block_of = move |page: usize| blocks as i64 - 1 - page as i64;
        t.case(format!("{rows} rows from {first}, {kv_heads}x{dim}"))
            .input(
                "cache",
                [blocks, kv_heads, block_size, dim],
                normal(0.0, 100.0),
            )
            .input("scales", [blocks, kv_heads, block_size], uniform(1e-3, 1.0))
            .input(
                "positions",
                [rows],
                ints(0, 1).map(move |row, _| (first + row as u64) as i64),
            )
            .input(
                "block_table",
                [pages],
                ints(0, 1).map(move |p, _| block_of(p)),
            )
            .inout("y", [pages, kv_heads, block_size, dim], normal(0.0, 1.0))
            .expect(move |inputs, out| {
                let size = (kv_heads * block_size * dim) as usize;
                let mut y = inputs["y"].to_vec();
                let reached = if rows == 0 { 0 } else { first + rows };
                for page in 0..u64::div_ceil(reached, block_size) as usize {
                    let from = block_of(page) as usize * size;
                    for i in 0..size {
                        let scale = inputs["scales"][(from + i) / dim as usize];
                        y[page * size + i] = inputs["cache"][from + i] * scale;
                    }
                }
                out.set("y", y);
            });
    }
}
