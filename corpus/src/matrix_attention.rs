//! Attention of single query rows by matrix products of 16-bit floats. The query heads that share
//! keys and values are the columns of one product: scores are keys times queries, outputs are
//! values, read transposed, times weights. What a thread loads is laid out as its part of a
//! product, so keys and values go from the cache to registers, 16 bytes a thread.

use iron_ir::Scalar;
use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Cases};

use crate::attention::{MOST_POSITIONS, capped, split_of};
use crate::attention_cases::decode_cases;
use crate::grouped_attention::decode_bench;

/// Threads of a workgroup.
const THREADS: u32 = 128;
/// Threads that multiply together, and their number.
const TEAM: u32 = 32;
const TEAMS: u32 = THREADS / TEAM;
/// Positions that a team has of a tile.
const RUN: u32 = 16;
/// Query heads of a product.
const HEADS: u32 = 8;

/// How [`attention_decode_matrix`] divides its threads.
struct Shape<const HEAD_DIM: u32>;

impl<const HEAD_DIM: u32> Shape<HEAD_DIM> {
    /// Elements of a key and value that a team has.
    const WIDTH: u32 = if HEAD_DIM < 128 { HEAD_DIM } else { 128 };
    /// Teams that share a position, two at most.
    const PARTS: u32 = HEAD_DIM / Self::WIDTH;
    /// Runs of a tile, and its positions.
    const RUNS: u32 = TEAMS / Self::PARTS;
    const KEYS: u32 = RUN * Self::RUNS;
    /// Vectors of a tile's keys, or values, that a thread holds.
    const HELD: u32 = Self::WIDTH / 16;
    /// Floats of a head's scores: those of a split and of what its tiles have beyond, and enough
    /// to spread the columns of a product over the banks.
    const STRIDE: u32 = (MOST_POSITIONS / Self::KEYS + 1) * Self::KEYS + 20;
}

/// Whether [`attention_decode_matrix`] takes layers with so many query heads for a key and value
/// head; else
/// [`crate::attention::attention_decode`] is the one to take.
pub fn has_matrix(scalar: Scalar, head_dim: u32, block_size: u32, heads: u32) -> bool {
    matches!(
        (scalar, head_dim),
        (Scalar::F16, 128) | (Scalar::BF16, 64 | 128 | 256)
    ) && block_size.is_multiple_of(RUN)
        && heads <= HEADS
}

/// The positions of a split, and the first of its last run. Runs begin at multiples of 16.
#[device_struct]
struct Span {
    first: u32,
    end: u32,
    last_run: u32,
    first_page: u32,
}

/// What a run of the cache lies in: its block, and its first row there.
#[device_fn]
fn place_of(block_of: &Shared<u32>, span: Span, start: u32, block_size: u32) -> (u32, u32) {
    let page = start / block_size;
    (block_of[page - span.first_page], start - page * block_size)
}

/// Loads a thread's keys of a run: of every 32 elements eight, of rows `line` and `line + 8`.
/// Rows that the split does not have are others again: what nobody wrote may be NaN, which a
/// weight of zero keeps.
#[device_fn]
fn load_keys<T: Float, const HEAD_DIM: u32>(
    k_cache: &Tensor<T, 4>,
    held: &mut Private<T>,
    half: u32,
    place: (u32, u32),
    kv_head: u32,
    span: Span,
    start: u32,
    part: u32,
    line: u32,
    pair: u32,
) {
    let width = Shape::<HEAD_DIM>::WIDTH;
    for h in unroll(0..2) {
        let position = (start + line + 8 * h).max(span.first).min(span.end - 1);
        let row = place.1 + position - start;
        for c in unroll(0..width / 32) {
            let column = part * (width / 8) + 4 * c + pair;
            let keys = k_cache.load8([place.0, kv_head, row, column]);
            held.store8(half * Shape::<HEAD_DIM>::HELD + 2 * c + h, keys);
        }
    }
}

/// Loads a thread's values of a run: of every 64 elements eight, of rows `4 * pair` and the next
/// three.
#[device_fn]
fn load_values<T: Float, const HEAD_DIM: u32>(
    v_cache: &Tensor<T, 4>,
    held: &mut Private<T>,
    half: u32,
    place: (u32, u32),
    kv_head: u32,
    span: Span,
    start: u32,
    part: u32,
    line: u32,
    pair: u32,
) {
    let width = Shape::<HEAD_DIM>::WIDTH;
    for i in unroll(0..4) {
        let position = (start + 4 * pair + i).max(span.first).min(span.end - 1);
        let row = place.1 + position - start;
        for u in unroll(0..width / 64) {
            let column = part * (width / 8) + 8 * u + line;
            let values = v_cache.load8([place.0, kv_head, row, column]);
            held.store8(half * Shape::<HEAD_DIM>::HELD + 4 * u + i, values);
        }
    }
}

/// Attention of single query rows, as [`crate::attention::attention_decode`] with the same
/// splits, for the query heads of one key and value head at once, eight at most. Scores and sums are
/// `f32`; weights are two numbers of the tensors' type each, whose sum has twice its precision.
#[kernel(
    grid = [splits, kv_heads, rows],
    workgroup = 128,
    requires(
        heads % kv_heads == 0,
        kv_heads <= heads,
        heads / kv_heads <= 8,
        block_size % 16 == 0,
        block_size > 0
    ),
    instances(T = [f16], HEAD_DIM = [128]),
    instances(T = [bf16], HEAD_DIM = [64, 128, 256])
)]
pub fn attention_decode_matrix<T: Float, const HEAD_DIM: u32>(
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
    let width = Shape::<HEAD_DIM>::WIDTH;
    let parts = Shape::<HEAD_DIM>::PARTS;
    let runs = Shape::<HEAD_DIM>::RUNS;
    let tile_keys = Shape::<HEAD_DIM>::KEYS;
    let vectors = Shape::<HEAD_DIM>::HELD;
    let stride = Shape::<HEAD_DIM>::STRIDE;
    let (split, row) = (group_id(0), group_id(2));
    // Both at once: the block table waits for them, and the keys for it.
    let (position, sequence) = (positions[row], sequences[row]);
    let (first, end) = split_of::<HEAD_DIM>(position + 1, window, split);
    if first >= end {
        return;
    }
    let sequence = index_in(sequence, all_sequences);
    let begin = first - first % RUN;
    let span = Span {
        first,
        end,
        last_run: end - 1 - (end - 1) % RUN,
        first_page: begin / block_size,
    };

    let mut scores = shared::<f32>(HEADS * Shape::<HEAD_DIM>::STRIDE);
    let mut extremes = shared::<f32>(HEADS * 8 * Shape::<HEAD_DIM>::RUNS);
    let mut shares = shared::<f32>(THREADS);
    let mut block_of = shared::<u32>(MOST_POSITIONS / RUN + 2);
    let mut query = private::<T>(Shape::<HEAD_DIM>::WIDTH / 4);
    // Two tiles: one is computed, the other on its way.
    let mut held = private::<T>(2 * 8 * Shape::<HEAD_DIM>::HELD);

    // The blocks of the split, once for all tiles.
    for i in strided((end - 1) / block_size - span.first_page + 1) {
        let page = index_in(span.first_page + i, max_blocks);
        block_of[i] = index_in(block_table[[sequence, page]], blocks);
    }
    let kv_head = group_id(1);
    let present = heads / kv_heads;
    let first_head = kv_head * present;
    let (team, lane) = (local_index() / TEAM, local_index() % TEAM);
    let (line, pair) = (lane / 4, lane % 4);
    let (part, run) = (team % parts, team / parts);
    let own_head = line.min(present - 1);
    for c in unroll(0..width / 32) {
        let column = part * (width / 8) + 4 * c + pair;
        query.store8(c, q.load8([row, first_head + own_head, column]));
    }
    barrier();
    for half in unroll(0..2) {
        if begin + half * tile_keys < end {
            let start = (begin + half * tile_keys + run * RUN).min(span.last_run);
            let place = place_of(&block_of, span, start, block_size);
            load_keys::<T, HEAD_DIM>(
                k_cache, &mut held, half, place, kv_head, span, start, part, line, pair,
            );
        }
    }

    let mut left_most = f32::NEG_INFINITY;
    let mut right_most = f32::NEG_INFINITY;
    for both in (begin..end).step_by(2 * tile_keys as usize) {
        for half in unroll(0..2) {
            let tile = both + half * tile_keys;
            if tile < end {
                let mut sums = splat4(0.0f32);
                for c in 0..width / 32 {
                    for step in 0..2u32 {
                        let vector = 2 * (half * vectors + 2 * c) + step;
                        let (low, high) = (held.load4(vector), held.load4(vector + 2));
                        sums = mma_16x8x16(low, high, query.load4(2 * c + step), sums);
                    }
                }
                // After the last keys come the first values.
                if tile + 2 * tile_keys < end {
                    let start = (tile + 2 * tile_keys + run * RUN).min(span.last_run);
                    let place = place_of(&block_of, span, start, block_size);
                    load_keys::<T, HEAD_DIM>(
                        k_cache, &mut held, half, place, kv_head, span, start, part, line, pair,
                    );
                } else {
                    let start = (begin + half * tile_keys + run * RUN).min(span.last_run);
                    let place = place_of(&block_of, span, start, block_size);
                    load_values::<T, HEAD_DIM>(
                        v_cache, &mut held, half, place, kv_head, span, start, part, line, pair,
                    );
                }
                let to = 2 * pair * stride + tile - begin + run * RUN + line;
                if parts == 2 {
                    if part == 1 {
                        scores[to] = sums[0];
                        scores[to + stride] = sums[1];
                        scores[to + 8] = sums[2];
                        scores[to + stride + 8] = sums[3];
                    }
                    barrier();
                    if part == 0 {
                        let (a, b) = (scores[to], scores[to + stride]);
                        let (c, d) = (scores[to + 8], scores[to + stride + 8]);
                        sums += vec4(a, b, c, d);
                    }
                }
                if part == 0 {
                    let score = |sum: f32, further: u32| {
                        let position = tile + run * RUN + line + further;
                        let seen = position >= first && position < end;
                        select(seen, capped(sum * scale, soft_cap), f32::NEG_INFINITY)
                    };
                    let (a, b) = (score(sums[0], 0), score(sums[1], 0));
                    let (c, d) = (score(sums[2], 8), score(sums[3], 8));
                    scores[to] = a;
                    scores[to + stride] = b;
                    scores[to + 8] = c;
                    scores[to + stride + 8] = d;
                    left_most = left_most.max(a.max(c));
                    right_most = right_most.max(b.max(d));
                }
            }
        }
    }
    if part == 0 {
        let to = run * 8 + line;
        extremes[2 * pair * (8 * runs) + to] = left_most;
        extremes[(2 * pair + 1) * (8 * runs) + to] = right_most;
    }
    barrier();

    // 16 threads a head.
    let count = (end - begin).div_ceil(tile_keys) * tile_keys;
    let (head, share) = (local_index() / 16, local_index() % 16);
    let mut largest = f32::NEG_INFINITY;
    for i in unroll(0..2 * runs) {
        largest = largest.max(extremes.load4(head * 2 * runs + i).max_lane());
    }
    let mut sum = 0.0f32;
    if head < present {
        for i in (share..count).step_by(16) {
            let weight = (scores[head * stride + i] - largest).exp();
            scores[head * stride + i] = weight;
            sum += weight;
        }
        if share == 0 {
            stats[[row, first_head + head, split, 0]] = largest;
        }
    }
    shares[local_index()] = sum;
    barrier();
    if local_index() < present {
        let mut total = 0.0f32;
        for i in unroll(0..16) {
            total += shares[local_index() * 16 + i];
        }
        stats[[row, first_head + local_index(), split, 1]] = total;
    }

    let mut output = private::<f32>(Shape::<HEAD_DIM>::WIDTH / 4);
    for i in unroll(0..width / 16) {
        output.store4(i, splat4(0.0f32));
    }
    for both in (0..count).step_by(2 * tile_keys as usize) {
        for half in unroll(0..2) {
            let tile = both + half * tile_keys;
            if tile < count {
                let from = own_head * stride + tile + run * RUN + 4 * pair;
                let weights = scores.load4(from / 4);
                let coarse = weights.to::<T>();
                let fine = (weights - coarse.to_f32()).to::<T>();
                for u in 0..width / 64 {
                    for j in 0..4u32 {
                        let at = (half * vectors + 4 * u) * 8 + 2 * j;
                        let low = vec4(held[at], held[at + 8], held[at + 16], held[at + 24]);
                        let at = at + 1;
                        let high = vec4(held[at], held[at + 8], held[at + 16], held[at + 24]);
                        let place = 4 * u + j;
                        let sums = mma_16x8x16(low, high, coarse, output.load4(place));
                        output.store4(place, mma_16x8x16(low, high, fine, sums));
                    }
                }
                if tile + 2 * tile_keys < count {
                    let start = (begin + tile + 2 * tile_keys + run * RUN).min(span.last_run);
                    let place = place_of(&block_of, span, start, block_size);
                    load_values::<T, HEAD_DIM>(
                        v_cache, &mut held, half, place, kv_head, span, start, part, line, pair,
                    );
                }
            }
        }
    }

    // The runs' outputs are added, 64 elements of each part at a time, where the scores were.
    for u in unroll(0..width / 64) {
        barrier();
        for j in unroll(0..4) {
            scores.store4((team * 4 + j) * TEAM + lane, output.load4(4 * u + j));
        }
        barrier();
        for i in strided(128 * parts) {
            let (of_part, within) = (i / 128, i % 128);
            let mut total = splat4(0.0f32);
            for r in unroll(0..runs) {
                total += scores.load4((r * parts + of_part) * 128 + within);
            }
            let column = of_part * width + 64 * u + within % TEAM / 4 * 8 + within / TEAM * 2;
            let head = within % 4 * 2;
            if head < present {
                let two = vec2(total[0], total[2]);
                partial.store2([row, first_head + head, split, column / 2], two);
            }
            if head + 1 < present {
                let two = vec2(total[1], total[3]);
                partial.store2([row, first_head + head + 1, split, column / 2], two);
            }
        }
    }
}

#[test_kernel(attention_decode_matrix)]
fn attention_decode_matrix_matches_f64(t: &mut Cases) {
    let head_dim = t.constant("HEAD_DIM") as u64;
    let shapes = [(1, 6, 1, 4200), (3, 8, 2, 40), (1, 8, 1, 600)];
    // A weight is two numbers: at most half an ULP of the second is left, times values of a few
    // deviations.
    let rounding = 4.0 * 2f64.powi(-16);
    decode_cases(t, head_dim, 1, &shapes, rounding);
}

#[bench_kernel(attention_decode_matrix)]
fn attention_of_a_token_by_products(b: &mut Benches) {
    let head_dim = b.constant("HEAD_DIM") as u64;
    decode_bench(b, head_dim, 4);
}
