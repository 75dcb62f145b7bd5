//! Attention over a cache of latents that all heads share (DeepSeek-V2): one latent a position
//! stands for every head's keys and values, and one rotated key carries the positions.
//!
//! The projections that would expand a latent are absorbed: a head's query arrives multiplied by
//! its key projection, so that it meets the latent itself, and its output leaves as a sum of
//! latents, which its value projection reads afterwards. A position costs `latent_dim +
//! rotary_dim` elements of cache, whatever the number of heads.

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, ints, normal};

use crate::attention::{MOST_POSITIONS, least_positions, split_length};
use crate::attention_cases::splits_of;

/// Largest latent and largest rotated key, DeepSeek-V3's.
const MOST_LATENT: u32 = 512;
const MOST_ROTATED: u32 = 64;

/// Attention of single query rows, split over the context as in
/// [`crate::attention::attention_decode`], whose `partial` and `stats` this kernel writes for
/// [`crate::attention::attention_combine`]: row `r` sees the positions `0..=positions[r]` of its
/// sequence, with scores `scale * (q · latent + q_rotated · key)` and the latents as values. The
/// caches are pages as in [`crate::attention`]. Splits that hold none of the row's positions write
/// nothing.
#[kernel(
    grid = [splits, heads, rows],
    workgroup = 128,
    requires(
        latent_dim % 4 == 0, latent_dim <= 512, rotary_dim % 4 == 0, rotary_dim <= 64,
        block_size > 0
    ),
    instances(T = [f32, f16, bf16])
)]
pub fn latent_decode<T: Float>(
    q: &Tensor<T, (rows, heads, latent_dim)>,
    q_rotated: &Tensor<T, (rows, heads, rotary_dim)>,
    latents: &Tensor<T, (blocks, block_size, latent_dim)>,
    keys: &Tensor<T, (blocks, block_size, rotary_dim)>,
    positions: &Tensor<u32, (rows,)>,
    sequences: &Tensor<u32, (rows,)>,
    block_table: &Tensor<u32, (all_sequences, max_blocks)>,
    partial: &mut Tensor<f32, (rows, heads, splits, latent_dim)>,
    stats: &mut Tensor<f32, { (rows, heads, splits, 2) }>,
    scale: f32,
) {
    let (split, head, row) = (group_id(0), group_id(1), group_id(2));
    let length = positions[row] + 1;
    let size = split_length(length, latent_dim);
    let (first, end) = (split * size, ((split + 1) * size).min(length));
    if first >= end {
        return;
    }
    let count = end - first;
    let sequence = index_in(sequences[row], all_sequences);

    let mut query = shared::<f32>(MOST_LATENT);
    let mut rotated = shared::<f32>(MOST_ROTATED);
    let mut weights = shared::<f32>(MOST_POSITIONS);
    for i in strided(latent_dim) {
        query[i] = q[[row, head, i]].to_f32() * scale;
    }
    for i in strided(rotary_dim) {
        rotated[i] = q_rotated[[row, head, i]].to_f32() * scale;
    }
    barrier();

    let mut largest = f32::NEG_INFINITY;
    for j in strided(count) {
        let position = first + j;
        let page = index_in(position / block_size, max_blocks);
        let block = index_in(block_table[[sequence, page]], blocks);
        let slot = position % block_size;
        let mut products = splat4(0.0f32);
        for i in 0..latent_dim / 4 {
            let latent = latents.load4([block, slot, i]).to_f32();
            products = latent.mul_add(query.load4(i), products);
        }
        for i in 0..rotary_dim / 4 {
            let key = keys.load4([block, slot, i]).to_f32();
            products = key.mul_add(rotated.load4(i), products);
        }
        let score = products.sum();
        weights[j] = score;
        largest = largest.max(score);
    }
    let largest = workgroup_max(largest);
    let mut sum = 0.0f32;
    for j in strided(count) {
        let weight = (weights[j] - largest).exp();
        weights[j] = weight;
        sum += weight;
    }
    let sum = workgroup_sum(sum);
    barrier();

    for column in strided(latent_dim / 4) {
        let mut output = splat4(0.0f32);
        for j in 0..count {
            let position = first + j;
            let page = index_in(position / block_size, max_blocks);
            let block = index_in(block_table[[sequence, page]], blocks);
            let latent = latents.load4([block, position % block_size, column]);
            output = latent.to_f32().mul_add(splat4(weights[j]), output);
        }
        partial.store4([row, head, split, column], output);
    }
    if local_index() == 0 {
        stats[[row, head, split, 0]] = largest;
        stats[[row, head, split, 1]] = sum;
    }
}

/// Rows, heads, latent, rotated key, last position of the first row. The last is DeepSeek-V3's.
const SHAPES: [(u64, u64, u64, u64, u64); 5] = [
    (0, 1, 4, 4, 0),
    (1, 1, 4, 4, 0),
    (2, 3, 36, 16, 40),
    (3, 2, 64, 8, 300),
    (1, 2, 512, 64, 600),
];

#[test_kernel(latent_decode)]
fn latent_decode_matches_f64(t: &mut Cases) {
    for (rows, heads, latent_dim, rotary_dim, longest) in SHAPES {
        let (block_size, pages) = (32, longest / 32 + 1);
        let blocks = rows.max(1) * pages;
        let least = least_positions(latent_dim as u32) as usize;
        let splits_of = move |length| splits_of(length, usize::MAX, least);
        let splits = splits_of(longest as usize + 1).len() as u64;
        let scale = 1.0 / ((latent_dim + rotary_dim) as f32).sqrt();
        let position = move |row: usize, _: i64| longest as i64 / (row as i64 + 1);
        let case = t.case(format!(
            "{rows} rows, {heads} heads of {latent_dim}+{rotary_dim}, context {}",
            longest + 1
        ));
        let case = if latent_dim == 512 {
            case.production()
        } else {
            case
        };
        case.input("q", [rows, heads, latent_dim], normal(0.0, 1.0))
            .input("q_rotated", [rows, heads, rotary_dim], normal(0.0, 1.0))
            .input(
                "latents",
                [blocks, block_size, latent_dim],
                normal(0.0, 1.0),
            )
            .input("keys", [blocks, block_size, rotary_dim], normal(0.0, 1.0))
            .input("positions", [rows], ints(0, 1).map(position))
            .input("sequences", [rows], ints(0, 1).map(|row, _| row as i64))
            .input(
                "block_table",
                [rows, pages],
                ints(0, 1).map(move |i, _| blocks as i64 - 1 - i as i64),
            )
            // Splits past a row's context stay as they were.
            .inout(
                "partial",
                [rows, heads, splits, latent_dim],
                normal(0.0, 1.0),
            )
            .inout("stats", [rows, heads, splits, 2], normal(0.0, 1.0))
            .scalar("scale", scale)
            .bound(Bound::relative(2e-5).absolute(4e-5))
            .expect(move |inputs, out| {
                let (heads, splits) = (heads as usize, splits as usize);
                let (latent, rotary) = (latent_dim as usize, rotary_dim as usize);
                let tables = inputs.ints("block_table");
                let mut partial = inputs["partial"].to_vec();
                let mut stats = inputs["stats"].to_vec();
                for (row, last) in inputs.ints("positions").iter().enumerate() {
                    let place = |p: usize| {
                        let page = row * pages as usize + p / block_size as usize;
                        tables[page] as usize * block_size as usize + p % block_size as usize
                    };
                    let of = |name: &str, at: usize, size: usize| {
                        inputs[name][at * size..(at + 1) * size].to_vec()
                    };
                    let dot =
                        |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
                    for cell in row * heads..(row + 1) * heads {
                        let query = of("q", cell, latent);
                        let rotated = of("q_rotated", cell, rotary);
                        let score = |p: usize| {
                            let whole = dot(&query, &of("latents", place(p), latent))
                                + dot(&rotated, &of("keys", place(p), rotary));
                            whole * f64::from(scale)
                        };
                        let all = splits_of(*last as usize + 1);
                        for (split, (first, end)) in all.into_iter().enumerate() {
                            let seen: Vec<usize> = (first..end).collect();
                            let scores: Vec<f64> = seen.iter().map(|p| score(*p)).collect();
                            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
                            let at = cell * splits + split;
                            let weights: Vec<f64> =
                                scores.iter().map(|s| (s - largest).exp()).collect();
                            stats[2 * at] = largest;
                            stats[2 * at + 1] = weights.iter().sum();
                            let sum = &mut partial[at * latent..(at + 1) * latent];
                            sum.fill(0.0);
                            for (p, weight) in seen.iter().zip(&weights) {
                                let value = of("latents", place(*p), latent);
                                for (sum, value) in sum.iter_mut().zip(value) {
                                    *sum += weight * value;
                                }
                            }
                        }
                    }
                }
                out.set("partial", partial);
                out.set("stats", stats);
            });
    }
}
