//! Causal attention with grouped heads over a paged key and value cache, and its writes.
//!
//! The cache of a layer is `[blocks, kv_heads, block_size, HEAD_DIM]`; a sequence's position `p`
//! lies in row `p % block_size` of block `block_table[sequence, p / block_size]`. A contiguous
//! cache is one block. Scores and sums are f32.
//!
//! Three things that some models add, each with a value that leaves plain causal attention as it
//! is, to the bit: a *window* (a row sees itself and the `window - 1` positions before it;
//! `u32::MAX` for all), a *soft cap* (scores become `c * tanh(s / c)`; 0 for none), and *sinks*
//! (each head's softmax has one more score that takes weight and has no value; minus infinity
//! for none).

use std::f32::consts::LOG2_E;

use iron_ir::Scalar;
use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, Generator, Inputs, ints, normal, values};

use crate::attention_cases::{
    MANY_PREFILLS, PREFILLS, WIDE_PREFILLS, decode_cases, joined_of, tiles_of,
};

/// Most positions of one split of [`attention_decode`].
pub(crate) const MOST_POSITIONS: u32 = 512;

/// Positions of one split of a row that sees `seen` positions: the splits fill a device that has
/// one row, and their number depends on the row alone, never on its company.
#[device_fn]
pub fn split_length(seen: u32, head_dim: u32) -> u32 {
    split_length_of(seen, select(head_dim > 128, 64, 128))
}

/// The same where splits of up to 4,096 positions have `least`; no more than [`MOST_POSITIONS`].
#[device_fn]
pub(crate) fn split_length_of(seen: u32, least: u32) -> u32 {
    (least * seen.div_ceil(4096)).min(MOST_POSITIONS)
}

/// Positions of a split of [`split_length`] where a row sees up to 4,096.
pub const fn least_positions(head_dim: u32) -> u32 {
    if head_dim > 128 { 64 } else { 128 }
}

/// Splits that no row which sees up to `seen` positions has more of.
pub fn most_splits(seen: u32, head_dim: u32) -> u32 {
    most_splits_of(seen, least_positions(head_dim))
}

/// The same where splits of up to 4,096 positions have `least`.
pub fn most_splits_of(seen: u32, least: u32) -> u32 {
    let fixed = seen.div_ceil(least).min(4096 / least);
    fixed.max(seen.div_ceil(MOST_POSITIONS))
}

/// Positions `first..end` of a split of a row of `length` positions; none where `first >= end`.
#[device_fn]
pub(crate) fn split_of<const HEAD_DIM: u32>(length: u32, window: u32, split: u32) -> (u32, u32) {
    split_of_length(length, window, split, select(HEAD_DIM > 128, 64, 128))
}

/// The same where splits of up to 4,096 positions have `least`.
#[device_fn]
pub(crate) fn split_of_length(length: u32, window: u32, split: u32, least: u32) -> (u32, u32) {
    let seen = length.min(window);
    let positions = split_length_of(seen, least);
    let first = length - seen + split * positions;
    (first, (first + positions).min(length))
}

/// Writes the keys and values of new rows: row `r` goes to position `positions[r]` of sequence
/// `sequences[r]`. Keys and values may differ in size.
#[kernel(grid = [rows, kv_heads], workgroup = 64, instances(T = [f32, f16, bf16]))]
pub fn kv_append<T: Float>(
    k: &Tensor<T, (rows, kv_heads, head_dim)>,
    v: &Tensor<T, (rows, kv_heads, value_dim)>,
    positions: &Tensor<u32, (rows,)>,
    sequences: &Tensor<u32, (rows,)>,
    block_table: &Tensor<u32, (all_sequences, max_blocks)>,
    k_cache: &mut Tensor<T, (blocks, kv_heads, block_size, head_dim)>,
    v_cache: &mut Tensor<T, (blocks, kv_heads, block_size, value_dim)>,
) {
    let (row, head) = (group_id(0), group_id(1));
    let position = positions[row];
    let sequence = index_in(sequences[row], all_sequences);
    let page = index_in(position / block_size, max_blocks);
    let block = index_in(block_table[[sequence, page]], blocks);
    let slot = position % block_size;
    for i in strided(head_dim) {
        k_cache[[block, head, slot, i]] = k[[row, head, i]];
    }
    for i in strided(value_dim) {
        v_cache[[block, head, slot, i]] = v[[row, head, i]];
    }
}

/// A score under a soft cap; 0 caps nothing.
#[device_fn]
pub(crate) fn capped(score: f32, soft_cap: f32) -> f32 {
    if soft_cap > 0.0 {
        soft_cap * (score / soft_cap).tanh()
    } else {
        score
    }
}

/// Attention of single query rows, split over the context: row `r` sees the last `window` of
/// the positions `0..=positions[r]` of its sequence. Split `s` writes its unnormalised output and its maximum
/// and sum of exponentials; [`attention_combine`] joins them. Splits that hold none of the
/// row's positions write nothing.
#[kernel(
    grid = [splits, heads, rows],
    workgroup = 128,
    requires(heads % kv_heads == 0, block_size > 0),
    instances(T = [f32, f16, bf16], HEAD_DIM = [32, 64, 80, 96, 128, 256, 16, 512])
)]
pub fn attention_decode<T: Float, const HEAD_DIM: u32>(
    q: &Tensor<T, (rows, heads, HEAD_DIM)>,
    k_cache: &Tensor<T, (blocks, kv_heads, block_size, HEAD_DIM)>,
    v_cache: &Tensor<T, (blocks, kv_heads, block_size, HEAD_DIM)>,
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
    attend_split::<HEAD_DIM, _, _, _, _, _>(
        range,
        block_table,
        partial,
        stats,
        soft_cap,
        |i| q[[row, head, i]].to_f32() * scale,
        |block, slot, i| k_cache.load4([block, kv_head, slot, i]).to_f32(),
        |score, _block, _slot| score,
        |weight, _position| weight,
        |block, slot, i| v_cache.load4([block, kv_head, slot, i]).to_f32(),
    );
}

/// What a workgroup of [`attend_split`] attends over: positions of a sequence, and the cache's
/// blocks.
#[device_struct]
pub(crate) struct Range {
    pub first: u32,
    pub count: u32,
    pub sequence: u32,
    pub blocks: u32,
    pub block_size: u32,
}

/// The attention of 128 threads to a split: `query` gives an element of the scaled query, `key`
/// and `value` four elements of a row of a block, `scored` the score of a product with such a row,
/// `weighted` what a position's weight is multiplied by its value as.
#[device_fn]
#[expect(
    clippy::too_many_arguments,
    reason = "a part of several kernels, with their tensors"
)]
pub(crate) fn attend_split<
    const HEAD_DIM: u32,
    Q: Fn(u32) -> f32,
    K: Fn(u32, u32, u32) -> F32x4,
    S: Fn(f32, u32, u32) -> f32,
    W: Fn(f32, u32) -> f32,
    V: Fn(u32, u32, u32) -> F32x4,
>(
    range: Range,
    block_table: &Tensor<u32, 2>,
    partial: &mut Tensor<f32, 4>,
    stats: &mut Tensor<f32, 4>,
    soft_cap: f32,
    query_of: Q,
    key_of: K,
    scored: S,
    weighted: W,
    value_of: V,
) {
    let (split, head, row) = (group_id(0), group_id(1), group_id(2));
    let Range {
        first,
        count,
        sequence,
        blocks,
        block_size,
    } = range;
    let max_blocks = block_table.dim(1);
    let mut query = shared::<f32>(HEAD_DIM);
    let mut weights = shared::<f32>(MOST_POSITIONS);
    for i in strided(HEAD_DIM) {
        query[i] = query_of(i);
    }
    barrier();

    let mut largest = f32::NEG_INFINITY;
    for j in strided(count) {
        let position = first + j;
        let page = index_in(position / block_size, max_blocks);
        let block = index_in(block_table[[sequence, page]], blocks);
        let slot = position % block_size;
        let mut products = splat4(0.0f32);
        for i in 0..HEAD_DIM / 4 {
            products = key_of(block, slot, i).mul_add(query.load4(i), products);
        }
        let score = capped(scored(products.sum(), block, slot), soft_cap);
        weights[j] = score;
        largest = largest.max(score);
    }
    let largest = workgroup_max(largest);
    let mut sum = 0.0f32;
    for j in strided(count) {
        let weight = (weights[j] - largest).exp();
        weights[j] = weighted(weight, first + j);
        sum += weight;
    }
    let sum = workgroup_sum(sum);
    barrier();

    // A thread owns four columns; the threads that own the same four share the positions.
    let lanes = HEAD_DIM / 4;
    let shares = 128 / lanes;
    let (column, share) = (local_index() % lanes, local_index() / lanes);
    let mut output = splat4(0.0f32);
    if share < shares {
        for j in (share..count).step_by(shares as usize) {
            let position = first + j;
            let page = index_in(position / block_size, max_blocks);
            let block = index_in(block_table[[sequence, page]], blocks);
            let value = value_of(block, position % block_size, column);
            output = value.mul_add(splat4(weights[j]), output);
        }
    }
    let mut outputs = shared::<f32>(512);
    if share < shares {
        outputs.store4(share * lanes + column, output);
    }
    barrier();
    for i in strided(HEAD_DIM) {
        let mut total = 0.0f32;
        for part in 0..shares {
            total += outputs[part * HEAD_DIM + i];
        }
        partial[[row, head, split, i]] = total;
    }
    if local_index() == 0 {
        stats[[row, head, split, 0]] = largest;
        stats[[row, head, split, 1]] = sum;
    }
}

/// Columns of a workgroup of [`attention_combine`] in vectors of four, threads that share a
/// column's splits, and splits that each reads at once: 64 in all.
const LANES: u32 = 16;
const SHARES: u32 = 16;
const TAKEN: u32 = 4;

/// Joins the splits of [`attention_decode`]:
/// `y = sum_s e^(m_s - m) o_s / (e^(sink - m) + sum_s e^(m_s - m) l_s)`.
#[kernel(
    grid = [ceil_div(head_dim, 64), heads, rows],
    workgroup = 256,
    requires(head_dim % 4 == 0, head_dim > 0),
    dependent,
    instances(T = [f32, f16, bf16])
)]
pub fn attention_combine<T: Float>(
    partial: &Tensor<f32, (rows, heads, splits, head_dim)>,
    stats: &Tensor<f32, { (rows, heads, splits, 2) }>,
    positions: &Tensor<u32, (rows,)>,
    sinks: &Tensor<f32, (heads,)>,
    y: &mut Tensor<T, (rows, heads, head_dim)>,
    window: u32,
) {
    let (head, row) = (group_id(1), group_id(2));
    let seen = (positions[row] + 1).min(window);
    let last = index_in(seen.div_ceil(split_length(seen, head_dim)) - 1, splits);
    // A thread owns four columns, the head's last where it has no more.
    let (lane, share) = (local_index() % LANES, local_index() / LANES);
    let column = (group_id(0) * LANES + lane).min(head_dim / 4 - 1);
    // Every load is taken, the ones past the end again: loads behind conditions wait for each
    // other. The first ones do not wait for the largest score either.
    let mut parts = private::<f32>(4 * TAKEN);
    let mut scales = private::<f32>(2 * TAKEN);
    for j in unroll(0..TAKEN) {
        let split = (share + j * SHARES).min(last);
        parts.store4(j, partial.load4([row, head, split, column]));
        scales.store2(j, stats.load2([row, head, split, 0]));
    }
    let sink = sinks[head];
    let mut largest = sink;
    for split in strided(last + 1) {
        largest = largest.max(stats[[row, head, split, 0]]);
    }
    let largest = workgroup_max(largest);

    let mut outputs = shared::<f32>(4 * LANES * SHARES);
    let mut sums = shared::<f32>(SHARES);
    let mut output = splat4(0.0f32);
    let mut sum = 0.0f32;
    for start in (share..last + 1).step_by((TAKEN * SHARES) as usize) {
        for j in unroll(0..TAKEN) {
            let taken = start + j * SHARES <= last;
            let factor = select(taken, (scales[2 * j] - largest).exp(), 0.0);
            sum = fma(factor, scales[2 * j + 1], sum);
            output = parts.load4(j).mul_add(splat4(factor), output);
        }
        let next = start + TAKEN * SHARES;
        if next <= last {
            for j in unroll(0..TAKEN) {
                let split = (next + j * SHARES).min(last);
                parts.store4(j, partial.load4([row, head, split, column]));
                scales.store2(j, stats.load2([row, head, split, 0]));
            }
        }
    }
    outputs.store4(local_index(), output);
    if lane == 0 {
        sums[share] = sum;
    }
    barrier();
    if local_index() < LANES && group_id(0) * LANES + local_index() < head_dim / 4 {
        let mut output = splat4(0.0f32);
        let mut sum = (sink - largest).exp();
        for part in unroll(0..SHARES) {
            output += outputs.load4(part * LANES + local_index());
            sum += sums[part];
        }
        y.store4([row, head, column], (output / splat4(sum)).to::<T>());
    }
}

/// Most tiles of which [`attention_prefill`] takes those of all heads together.
const MOST_TOGETHER: u32 = 128;

/// Below any score, and finite.
const LOWEST_SCORE: f32 = -1e30;

/// Tile sizes of [`attention_prefill`] for a head size. 16 query rows fit the 32 KiB of shared
/// memory that every target has, in f32 too; 128 are for matrix units.
struct Tiles<const HEAD_DIM: u32, const ROWS: u32>;

impl<const HEAD_DIM: u32, const ROWS: u32> Tiles<HEAD_DIM, ROWS> {
    /// Positions of a tile.
    const KEYS: u32 = if HEAD_DIM > 128 { ROWS / 2 } else { ROWS };
    /// Threads of a workgroup.
    const THREADS: u32 = if ROWS < 128 { 128 } else { 256 };
    /// Keys and values have tiles of their own, so that the next ones load meanwhile.
    const APART: bool = ROWS >= 128;
}

/// Attention of prompts, by tiles with a running softmax (Dao et al., 2022). The rows of a sequence
/// lie side by side at consecutive positions; tile `t` is the rows `tiles[t, 0]..tiles[t, 1]`, at
/// most `ROWS` of one sequence and as many as there are before the next. Its outputs are the rows
/// from `t * ROWS` on of `y`, zeros behind them; a tile may have no rows. A row sees the last
/// `window` keys up to its own, and what it gets depends on the rows of its tile alone. Queries and
/// outputs are head-major views. `scale` is above 0. Exponentials are the target's fast ones.
#[kernel(
    approximate,
    grid = [heads, tiles],
    workgroup = Tiles::<HEAD_DIM, ROWS>::THREADS,
    requires(heads % kv_heads == 0, block_size % ROWS == 0),
    instances(T = [f32, f16, bf16], HEAD_DIM = [32, 64, 80, 96, 128, 256, 16], ROWS = [16]),
    instances(T = [f16, bf16], HEAD_DIM = [64, 128, 256], ROWS = [128])
)]
pub fn attention_prefill<T: Float, const HEAD_DIM: u32, const ROWS: u32>(
    q: &Tensor<T, (heads, rows, HEAD_DIM)>,
    k_cache: &Tensor<T, (blocks, kv_heads, block_size, HEAD_DIM)>,
    v_cache: &Tensor<T, (blocks, kv_heads, block_size, HEAD_DIM)>,
    positions: &Tensor<u32, (rows,)>,
    sequences: &Tensor<u32, (rows,)>,
    tile_rows: &Tensor<u32, { (tiles, 2) }>,
    block_table: &Tensor<u32, (all_sequences, max_blocks)>,
    sinks: &Tensor<f32, (heads,)>,
    y: &mut Tensor<T, (heads, places, HEAD_DIM)>,
    scale: f32,
    window: u32,
    soft_cap: f32,
) {
    // The longest rows of a sequence first, those of all heads, so that the last workgroups to run
    // are short ones. Of long prompts that is little, and a head after the other finds its keys and
    // values in the cache.
    let place = group_id(1) * heads + group_id(0);
    let is_long = tiles > MOST_TOGETHER;
    let head = select(is_long, place / tiles, group_id(0));
    let tile = tiles - 1 - select(is_long, place % tiles, group_id(1));
    let kv_head = head / (heads / kv_heads);
    let first_row = index_in(tile_rows[[tile, 0]], rows);
    let count = (tile_rows[[tile, 1]] - first_row).min(ROWS);
    let sequence = index_in(sequences[first_row], all_sequences);
    let base = positions[first_row];
    // A tile without rows sees nothing.
    let end = select(count > 0, base + count, 0);
    // The first key that any row sees, down to a whole tile.
    let step = Tiles::<HEAD_DIM, ROWS>::KEYS;
    let lowest = base + 1 - (base + 1).min(window);
    let lowest = lowest - lowest % step;
    // Exponentials are to base 2, which devices have; capped scores are scaled already.
    let is_capped = soft_cap > 0.0;
    let factor = select(is_capped, LOG2_E, scale * LOG2_E);
    // A finite bottom: a row may see nothing of its first tiles, and the difference of two
    // infinities is NaN.
    let sink = sinks[head] * LOG2_E;
    let bottom = sink.max(LOWEST_SCORE);

    let mut queries = shared_tile::<T>(ROWS, HEAD_DIM);
    let mut keys = shared_tile::<T>(Tiles::<HEAD_DIM, ROWS>::KEYS, HEAD_DIM);
    let mut values = shared_tile::<T>(Tiles::<HEAD_DIM, ROWS>::KEYS, HEAD_DIM);
    let mut last_values = shared_tile::<T>(Tiles::<HEAD_DIM, ROWS>::KEYS, HEAD_DIM);
    let mut weights = shared_tile::<T>(ROWS, Tiles::<HEAD_DIM, ROWS>::KEYS);
    let mut scores = reg_tile::<f32>(ROWS, Tiles::<HEAD_DIM, ROWS>::KEYS, 0.0);
    let mut output = reg_tile::<f32>(ROWS, HEAD_DIM, 0.0);
    let mut largest = reg_tile::<f32>(ROWS, 1, 0.0);
    let mut next_largest = reg_tile::<f32>(ROWS, 1, 0.0);
    let mut correction = reg_tile::<f32>(ROWS, 1, 0.0);
    let mut sum = reg_tile::<f32>(ROWS, 1, 0.0);
    let mut row_sum = reg_tile::<f32>(ROWS, 1, 0.0);

    largest.fill(bottom);
    sum.fill(select(count > 0, (sink - bottom).exp2(), 1.0));
    queries.load(q, [head, first_row, 0]);
    for start in (lowest..end).step_by(step as usize) {
        let page = index_in(start / block_size, max_blocks);
        let block = index_in(block_table[[sequence, page]], blocks);
        let slot = start % block_size;
        keys.load(k_cache, [block, kv_head, slot, 0]);
        scores.fill(0.0);
        matmul_nt(&mut scores, &queries, &keys);
        if is_capped {
            scores.map(|score| capped(score * scale, soft_cap));
        }
        // The tiles at either end of what the rows see.
        if start + step > base + 1 || end - start > window {
            scores.map_indexed(|score, row, column| {
                let (query, key) = (base + row, start + column);
                let seen = key <= query && query - key < window;
                select(seen, score, f32::NEG_INFINITY)
            });
        }
        next_largest.reduce_rows_max(&scores);
        next_largest.map2(&largest, |new, old| (new * factor).max(old));
        correction.map3(&largest, &next_largest, |_, old, new| (old - new).exp2());
        scores.map2(&next_largest, |score, largest| {
            fma(score, factor, -largest).exp2()
        });
        row_sum.reduce_rows_sum(&scores);
        sum.map3(&correction, &row_sum, |sum, factor, new| {
            fma(sum, factor, new)
        });
        output.map2(&correction, |value, factor| value * factor);
        largest.copy_from(&next_largest);
        weights.copy_from(&scores);
        // Rows that no position has written yet may hold NaN, which a zero weight keeps.
        if Tiles::<HEAD_DIM, ROWS>::APART {
            if start + step > end {
                last_values.load(v_cache, [block, kv_head, slot, 0]);
                last_values.map_indexed(|value, row, _| select(start + row < end, value, T::ZERO));
                matmul(&mut output, &weights, &last_values);
            } else {
                values.load(v_cache, [block, kv_head, slot, 0]);
                matmul(&mut output, &weights, &values);
            }
        } else {
            keys.load(v_cache, [block, kv_head, slot, 0]);
            if start + step > end {
                keys.map_indexed(|value, row, _| select(start + row < end, value, T::ZERO));
            }
            matmul(&mut output, &weights, &keys);
        }
    }
    output.map2(&sum, |value, sum| value / sum);
    if count < ROWS {
        output.map_indexed(|value, row, _| select(row < count, value, 0.0));
    }
    output.store(y, [head, tile * ROWS, 0]);
}

/// Attention of one query over `length` positions in f64, reading the paged cache by its
/// definition.
struct Oracle<'a> {
    inputs: &'a Inputs,
    kv_heads: usize,
    block_size: usize,
    head_dim: usize,
    extras: Extras,
}

/// Window, soft cap, and whether there are sinks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extras {
    pub window: u32,
    pub soft_cap: f32,
    pub sinks: bool,
}

/// Plain attention, and each addition with the edges that it has.
pub(crate) const EXTRAS: [Extras; 4] = [
    Extras {
        window: u32::MAX,
        soft_cap: 0.0,
        sinks: false,
    },
    Extras {
        window: 1,
        soft_cap: 0.0,
        sinks: false,
    },
    Extras {
        window: 33,
        soft_cap: 2.0,
        sinks: true,
    },
    Extras {
        window: 300,
        soft_cap: 0.0,
        sinks: true,
    },
];

impl Extras {
    pub(crate) fn sinks(self, heads: u64) -> Generator {
        let sink = |head: u64| {
            if self.sinks {
                head as f64 - 0.5
            } else {
                f64::NEG_INFINITY
            }
        };
        values((0..heads).map(sink).collect())
    }

    pub(crate) fn capped(self, score: f64) -> f64 {
        let cap = f64::from(self.soft_cap);
        if cap > 0.0 {
            cap * (score / cap).tanh()
        } else {
            score
        }
    }
}

impl Oracle<'_> {
    fn attend(
        &self,
        q: &[f64],
        table: &[i64],
        kv_head: usize,
        length: usize,
        scale: f64,
        sink: f64,
    ) -> Vec<f64> {
        let at = |position: usize| {
            let block = table[position / self.block_size] as usize;
            let row =
                (block * self.kv_heads + kv_head) * self.block_size + position % self.block_size;
            row * self.head_dim..(row + 1) * self.head_dim
        };
        let (k, v) = (&self.inputs["k_cache"], &self.inputs["v_cache"]);
        let score = |p| {
            let dot = q.iter().zip(&k[at(p)]).map(|(a, b)| a * b).sum::<f64>();
            self.extras.capped(dot * scale)
        };
        let first = length.saturating_sub(self.extras.window as usize);
        let scores: Vec<f64> = (first..length).map(score).collect();
        let largest = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let sum = weights.iter().sum::<f64>() + (sink - largest).exp();
        let mut y = vec![0.0; self.head_dim];
        for (p, weight) in (first..).zip(&weights) {
            for (y, v) in y.iter_mut().zip(&v[at(p)]) {
                *y += weight / sum * v;
            }
        }
        y
    }
}

#[test_kernel(kv_append)]
fn kv_append_writes_only_its_rows(t: &mut Cases) {
    for (rows, kv_heads, head_dim, value_dim) in [(0, 1, 8, 8), (1, 1, 1, 3), (5, 3, 80, 80)] {
        let cache = |dim| [6, kv_heads, 16, dim];
        t.case(format!("{rows}x{kv_heads}x{head_dim}/{value_dim}"))
            .input("k", [rows, kv_heads, head_dim], normal(0.0, 1.0))
            .input("v", [rows, kv_heads, value_dim], normal(0.0, 1.0))
            // Distinct positions of two sequences over distinct blocks.
            .input("positions", [rows], ints(0, 1).map(|r, _| r as i64 * 9))
            .input("sequences", [rows], ints(0, 1).map(|r, _| r as i64 % 2))
            .input("block_table", [2, 3], ints(0, 1).map(|i, _| 5 - i as i64))
            .inout("k_cache", cache(head_dim), normal(0.0, 1.0))
            .inout("v_cache", cache(value_dim), normal(0.0, 1.0))
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                for (new, cache, head_dim) in
                    [("k", "k_cache", head_dim), ("v", "v_cache", value_dim)]
                {
                    let mut expected = inputs[cache].to_vec();
                    for row in 0..rows as usize {
                        let position = row * 9;
                        let block = 5 - (row % 2 * 3 + position / 16);
                        for head in 0..kv_heads as usize {
                            for i in 0..head_dim as usize {
                                let to = (block * kv_heads as usize + head) * 16 + position % 16;
                                let from = row * kv_heads as usize + head;
                                let (to, from) =
                                    (to * head_dim as usize + i, from * head_dim as usize + i);
                                expected[to] = inputs[new][from];
                            }
                        }
                    }
                    out.set(cache, expected);
                }
            });
    }
}

/// Rows of contexts `1..`, heads, key-value heads, positions of the longest.
pub(crate) const DECODES: [(u64, u64, u64, u64); 4] =
    [(1, 1, 1, 0), (2, 4, 2, 40), (3, 3, 1, 300), (1, 9, 3, 600)];

#[test_kernel(attention_decode)]
fn attention_decode_matches_f64(t: &mut Cases) {
    let head_dim = t.constant("HEAD_DIM") as u64;
    decode_cases(t, head_dim, 1, &DECODES, 0.0);
}

#[test_kernel(attention_combine)]
fn attention_combine_matches_f64(t: &mut Cases) {
    let shapes = [(0, 1, 1, 64), (1, 1, 1, 64), (3, 2, 4, 80), (3, 2, 32, 256)];
    for ((rows, heads, splits, head_dim), extras) in shapes.into_iter().zip(EXTRAS) {
        t.case(format!("{rows}x{heads}x{splits}x{head_dim}, {extras:?}"))
            .input("partial", [rows, heads, splits, head_dim], normal(0.0, 1.0))
            .input("stats", [rows, heads, splits, 2], normal(3.0, 0.5))
            .input(
                "positions",
                [rows],
                ints(0, 1).map(move |row, _| (row as i64 * 300) % (64 * splits as i64)),
            )
            .input("sinks", [heads], extras.sinks(heads))
            .output("y", [rows, heads, head_dim])
            .scalar("window", extras.window)
            .bound(Bound::relative(1e-5).absolute(1e-6))
            .expect(move |inputs, out| {
                let least = least_positions(head_dim as u32);
                let decode = joined_of(heads, head_dim, extras, least);
                let tensors = ["partial", "stats"].map(|name| &inputs[name]);
                out.set("y", decode.joined(inputs, tensors));
            });
    }
}

#[test_kernel(attention_prefill)]
fn attention_prefill_matches_f64(t: &mut Cases) {
    let head_dim = t.constant("HEAD_DIM") as u64;
    let tile_rows = t.constant("ROWS") as u64;
    // The weights, which sum to 1, are rounded to the tensor's type before they meet the
    // values: half an ULP of each, times values of a few deviations.
    let rounding = match t.scalar("T") {
        Scalar::F16 => 4.0 * 2f64.powi(-12),
        Scalar::BF16 => 4.0 * 2f64.powi(-9),
        _ => 0.0,
    };
    let mut cases: Vec<_> = PREFILLS.into_iter().zip(EXTRAS).collect();
    cases.push((PREFILLS[2], EXTRAS[0]));
    if tile_rows > 16 {
        cases = WIDE_PREFILLS.to_vec();
    }
    // Small tiles, for the executions that take each by itself.
    if (head_dim, tile_rows) == (16, 16) {
        cases.push((MANY_PREFILLS, EXTRAS[0]));
    }
    for ((prompts, heads, kv_heads), extras) in cases {
        let block_size = tile_rows.max(32);
        let rows: u64 = prompts.iter().map(|(_, rows)| rows).sum();
        let ends = prompts.iter().map(|(first, rows)| first + rows);
        let pages = ends.max().unwrap_or(0).div_ceil(block_size);
        let sequences = prompts.len() as u64;
        // The sequence and the position of each row.
        let places: Vec<(i64, i64)> = (0..)
            .zip(prompts)
            .flat_map(|(sequence, (first, rows))| {
                (*first..first + rows).map(move |position| (sequence, position as i64))
            })
            .collect();
        let tiles = tiles_of(prompts, tile_rows);
        let bounds = tiles
            .iter()
            .flat_map(|(first, end)| [*first as i64, *end as i64]);
        let [of_row, at] = [0, 1].map(|i| places.iter().map(|p| [p.0, p.1][i]).collect());
        let listed = |values: Vec<i64>| ints(0, 1).map(move |i, _| values[i]);
        let scale = 1.0 / (head_dim as f32).sqrt();
        let shown = match prompts {
            [first, .., _] if prompts.len() > 8 => format!("{sequences} times {first:?}"),
            _ => format!("{prompts:?}"),
        };
        t.case(format!(
            "rows {shown}, {heads}/{kv_heads} heads, {extras:?}"
        ))
        .input("q", [heads, rows, head_dim], normal(0.0, 1.0))
        .input(
            "k_cache",
            [pages * sequences, kv_heads, block_size, head_dim],
            normal(0.0, 1.0),
        )
        .input(
            "v_cache",
            [pages * sequences, kv_heads, block_size, head_dim],
            normal(0.0, 1.0),
        )
        .input("positions", [rows], listed(at))
        .input("sequences", [rows], listed(of_row))
        .input(
            "tile_rows",
            [tiles.len() as u64, 2],
            listed(bounds.collect()),
        )
        .input(
            "block_table",
            [sequences, pages],
            ints(0, 1).map(move |i, _| (pages * sequences) as i64 - 1 - i as i64),
        )
        .input("sinks", [heads], extras.sinks(heads))
        .output("y", [heads, tiles.len() as u64 * tile_rows, head_dim])
        .scalar("scale", scale)
        .scalar("window", extras.window)
        .scalar("soft_cap", extras.soft_cap)
        .bound(Bound::relative(2e-5).absolute(2e-5 + rounding))
        .expect(move |inputs, out| {
            let oracle = Oracle {
                inputs,
                kv_heads: kv_heads as usize,
                block_size: block_size as usize,
                head_dim: head_dim as usize,
                extras,
            };
            let table = inputs.ints("block_table");
            let (pages, size) = (pages as usize, tile_rows as usize);
            let (head_dim, rows) = (head_dim as usize, rows as usize);
            let mut y = vec![0.0; heads as usize * tiles.len() * size * head_dim];
            for (i, q) in inputs["q"].chunks(head_dim).enumerate() {
                let (head, row) = (i / rows, i % rows);
                let kv_head = head / (heads / kv_heads) as usize;
                let (sequence, position) = (places[row].0 as usize, places[row].1 as usize);
                let table = &table[sequence * pages..(sequence + 1) * pages];
                let sink = inputs["sinks"][head];
                let found = oracle.attend(q, table, kv_head, position + 1, f64::from(scale), sink);
                let is_its = |(first, end): &(u64, u64)| (*first..*end).contains(&(row as u64));
                let tile = tiles.iter().position(is_its).unwrap_or(0);
                let place = tile * size + row - tiles[tile].0 as usize;
                let at = (head * tiles.len() * size + place) * head_dim;
                y[at..at + head_dim].copy_from_slice(&found);
            }
            out.set("y", y);
        });
    }
}
