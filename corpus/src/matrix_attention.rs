//! Attention of single query rows by matrix products of 16-bit floats. The query heads that share
//! keys and values are the columns of one product: scores are keys times queries, outputs are
//! values, read transposed, times weights. What a thread loads is laid out as its part of a
//! product, so keys and values go from the cache to registers, 16 bytes a thread.

use iron_ir::Scalar;
use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Case, Cases, normal, uniform};

use crate::attention::{EXTRAS, Extras, MOST_POSITIONS, capped, least_positions, split_of_length};
use crate::attention_cases::{Decode, heads_case, rows_case};
use crate::grouped_attention::decode_bench;
use crate::heads::{MOST_PAIRS, Turned, rotation_of, turned_by};

/// Threads of a workgroup.
pub(crate) const THREADS: u32 = 128;
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
/// head; else [`crate::attention::attention_decode`] is the one to take.
pub fn has_matrix(scalar: Scalar, head_dim: u32, block_size: u32, heads: u32) -> bool {
    matches!(
        (scalar, head_dim),
        (Scalar::F16, 128) | (Scalar::BF16, 64 | 128 | 256)
    ) && block_size.is_multiple_of(RUN)
        && heads <= HEADS
}

/// Whether [`attention_of_heads_matrix`] takes such layers.
pub fn has_heads_matrix(scalar: Scalar, head_dim: u32, block_size: u32, heads: u32) -> bool {
    has_matrix(scalar, head_dim, block_size, heads)
        && matches!((scalar, head_dim), (Scalar::BF16, 64 | 128))
        && (heads + 2) * head_dim <= 8 * THREADS
}

/// What a workgroup attends over: the positions of its split, the first of its last run, which
/// begin at multiples of 16, and where they lie.
#[device_struct]
pub(crate) struct Span {
    first: u32,
    end: u32,
    /// `first` down to the beginning of a run.
    begin: u32,
    last_run: u32,
    first_page: u32,
    block_size: u32,
    split: u32,
    row: u32,
    kv_head: u32,
}

#[device_fn]
pub(crate) fn span_of(first: u32, end: u32, block_size: u32) -> Span {
    let begin = first - first % RUN;
    Span {
        first,
        end,
        begin,
        last_run: end - 1 - (end - 1) % RUN,
        first_page: begin / block_size,
        block_size,
        split: group_id(0),
        row: group_id(2),
        kv_head: group_id(1),
    }
}

/// A thread's place in a product: its team, its row and pair of columns, its part of a head and
/// its run of a tile.
#[device_struct]
struct Seat {
    team: u32,
    lane: u32,
    line: u32,
    pair: u32,
    part: u32,
    run: u32,
}

#[device_fn]
fn seat_of<const HEAD_DIM: u32>() -> Seat {
    let (team, lane) = (local_index() / TEAM, local_index() % TEAM);
    let parts = Shape::<HEAD_DIM>::PARTS;
    Seat {
        team,
        lane,
        line: lane / 4,
        pair: lane % 4,
        part: team % parts,
        run: team / parts,
    }
}

/// The blocks of the split, once for all tiles.
#[device_fn]
fn find_blocks(
    block_table: &Tensor<u32, 2>,
    block_of: &mut Shared<u32>,
    span: Span,
    sequence: u32,
    blocks: u32,
) {
    let max_blocks = block_table.dim(1);
    for i in strided((span.end - 1) / span.block_size - span.first_page + 1) {
        let page = index_in(span.first_page + i, max_blocks);
        block_of[i] = index_in(block_table[[sequence, page]], blocks);
    }
}

/// What a run of the cache lies in: its block, and its first row there.
#[device_fn]
fn place_of(block_of: &Shared<u32>, span: Span, start: u32) -> (u32, u32) {
    let page = start / span.block_size;
    (
        block_of[page - span.first_page],
        start - page * span.block_size,
    )
}

/// Loads a thread's keys of a run of the tile at `tile`: of every 32 elements eight, of rows `line`
/// and `line + 8`. Rows that the span does not have are others again: what nobody wrote may be
/// NaN, which a weight of zero keeps.
#[device_fn]
fn load_keys<T: Float, const HEAD_DIM: u32>(
    k_cache: &Tensor<T, 4>,
    block_of: &Shared<u32>,
    held: &mut Private<T>,
    half: u32,
    span: Span,
    seat: Seat,
    tile: u32,
) {
    let width = Shape::<HEAD_DIM>::WIDTH;
    let start = (tile + seat.run * RUN).min(span.last_run);
    let place = place_of(block_of, span, start);
    for h in unroll(0..2) {
        let position = (start + seat.line + 8 * h)
            .max(span.first)
            .min(span.end - 1);
        let row = place.1 + position - start;
        for c in unroll(0..width / 32) {
            let column = seat.part * (width / 8) + 4 * c + seat.pair;
            let keys = k_cache.load8([place.0, span.kv_head, row, column]);
            held.store8(half * Shape::<HEAD_DIM>::HELD + 2 * c + h, keys);
        }
    }
}

/// Loads a thread's keys of the first two tiles.
#[device_fn]
fn load_first_keys<T: Float, const HEAD_DIM: u32>(
    k_cache: &Tensor<T, 4>,
    block_of: &Shared<u32>,
    held: &mut Private<T>,
    span: Span,
    seat: Seat,
) {
    for half in unroll(0..2) {
        let tile = span.begin + half * Shape::<HEAD_DIM>::KEYS;
        if tile < span.end {
            load_keys::<T, HEAD_DIM>(k_cache, block_of, held, half, span, seat, tile);
        }
    }
}

/// Loads a thread's values of a run of the tile at `tile`: of every 64 elements eight, of rows
/// `4 * pair` and the next three.
#[device_fn]
fn load_values<T: Float, const HEAD_DIM: u32>(
    v_cache: &Tensor<T, 4>,
    block_of: &Shared<u32>,
    held: &mut Private<T>,
    half: u32,
    span: Span,
    seat: Seat,
    tile: u32,
) {
    let width = Shape::<HEAD_DIM>::WIDTH;
    let start = (tile + seat.run * RUN).min(span.last_run);
    let place = place_of(block_of, span, start);
    for i in unroll(0..4) {
        let position = (start + 4 * seat.pair + i)
            .max(span.first)
            .min(span.end - 1);
        let row = place.1 + position - start;
        for u in unroll(0..width / 64) {
            let column = seat.part * (width / 8) + 8 * u + seat.line;
            let values = v_cache.load8([place.0, span.kv_head, row, column]);
            held.store8(half * Shape::<HEAD_DIM>::HELD + 4 * u + i, values);
        }
    }
}

/// Attention of single query rows, as [`crate::attention::attention_decode`], for the query heads
/// of one key and value head at once, eight at most. Splits have `least` positions where a row
/// sees up to 4,096, and more as [`split_length`](crate::attention::split_length) says. Scores and
/// sums are `f32`; weights are two numbers of the tensors' type each, whose sum has twice its
/// precision. A launch of one split writes the rows of attention to `y`, with `sinks` as
/// [`attention_join`](crate::attention_join::attention_join) does; one of several writes `partial` and
/// `stats`, which that joins.
#[kernel(
    grid = [splits, kv_heads, rows],
    workgroup = THREADS,
    requires(
        heads % kv_heads == 0,
        kv_heads <= heads,
        heads / kv_heads <= 8,
        block_size % 16 == 0,
        block_size > 0,
        least > 0
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
    sinks: &Tensor<f32, (heads,)>,
    partial: &mut Tensor<f32, (rows, heads, splits, HEAD_DIM)>,
    stats: &mut Tensor<f32, { (rows, heads, splits, 2) }>,
    y: &mut Tensor<T, (rows, heads, HEAD_DIM)>,
    scale: f32,
    window: u32,
    soft_cap: f32,
    least: u32,
) {
    let row = group_id(2);
    // Both at once: the block table waits for them, and the keys for it.
    let (position, sequence) = (positions[row], sequences[row]);
    let (first, end) = split_of_length(position + 1, window, group_id(0), least);
    if first >= end {
        return;
    }
    let sequence = index_in(sequence, all_sequences);
    attend_from_cache::<T, HEAD_DIM>(
        span_of(first, end, block_size),
        sequence,
        splits == 1,
        q,
        k_cache,
        v_cache,
        block_table,
        sinks,
        partial,
        stats,
        y,
        scale,
        soft_cap,
    );
}

/// A workgroup's attention to positions that the cache holds; `is_only` as for [`attend`].
#[device_fn]
#[expect(
    clippy::too_many_arguments,
    reason = "a part of two kernels, with their tensors"
)]
pub(crate) fn attend_from_cache<T: Float, const HEAD_DIM: u32>(
    span: Span,
    sequence: u32,
    is_only: bool,
    q: &Tensor<T, 3>,
    k_cache: &Tensor<T, 4>,
    v_cache: &Tensor<T, 4>,
    block_table: &Tensor<u32, 2>,
    sinks: &Tensor<f32, 1>,
    partial: &mut Tensor<f32, 4>,
    stats: &mut Tensor<f32, 4>,
    y: &mut Tensor<T, 3>,
    scale: f32,
    soft_cap: f32,
) {
    let width = Shape::<HEAD_DIM>::WIDTH;
    let (row, seat) = (span.row, seat_of::<HEAD_DIM>());
    let mut block_of = shared::<u32>(MOST_POSITIONS / RUN + 2);
    let mut query = private::<T>(Shape::<HEAD_DIM>::WIDTH / 4);
    // Two tiles: one is computed, the other on its way.
    let mut held = private::<T>(2 * 8 * Shape::<HEAD_DIM>::HELD);

    find_blocks(block_table, &mut block_of, span, sequence, k_cache.dim(0));
    let present = q.dim(1) / k_cache.dim(1);
    let head = span.kv_head * present + seat.line.min(present - 1);
    for c in unroll(0..width / 32) {
        let column = seat.part * (width / 8) + 4 * c + seat.pair;
        query.store8(c, q.load8([row, head, column]));
    }
    barrier();
    let mut scores = shared::<f32>(HEADS * Shape::<HEAD_DIM>::STRIDE);
    load_first_keys::<T, HEAD_DIM>(k_cache, &block_of, &mut held, span, seat);
    attend::<T, HEAD_DIM>(
        span,
        seat,
        is_only,
        &block_of,
        &query,
        &mut held,
        &mut scores,
        k_cache,
        v_cache,
        sinks,
        partial,
        stats,
        y,
        present,
        scale,
        soft_cap,
    );
}

/// [`attention_decode_matrix`] and the heads of its new rows, each of a sequence of its own:
/// `qkv` becomes queries, keys and values as [`heads_to_cache`](crate::heads::heads_to_cache)
/// makes them, those of the new position are written to the cache, and the queries attend. The
/// results are those of the two kernels to the bit. What the cache holds of earlier positions, and
/// where it lies, is read while the launch before ends.
#[kernel(
    grid = [splits, kv_heads, rows],
    workgroup = THREADS,
    requires(
        heads % kv_heads == 0,
        kv_heads <= heads,
        (heads / kv_heads + 2) * HEAD_DIM <= 8 * THREADS,
        heads / kv_heads <= 8,
        width == (heads + 2 * kv_heads) * HEAD_DIM,
        2 * pairs <= HEAD_DIM,
        pairs % 8 == 0,
        pairs <= MOST_PAIRS,
        block_size % 16 == 0,
        block_size > 0,
        least > 0
    ),
    dependent,
    instances(T = [bf16], HEAD_DIM = [64, 128])
)]
pub fn attention_of_heads_matrix<T: Float, const HEAD_DIM: u32>(
    qkv: &Tensor<T, (rows, width)>,
    q_norm: &Tensor<T, { (HEAD_DIM,) }>,
    k_norm: &Tensor<T, { (HEAD_DIM,) }>,
    positions: &Tensor<u32, (rows,)>,
    frequencies: &Tensor<f32, (pairs,)>,
    sequences: &Tensor<u32, (rows,)>,
    block_table: &Tensor<u32, (all_sequences, max_blocks)>,
    sinks: &Tensor<f32, (heads,)>,
    k_cache: &mut Tensor<T, (blocks, kv_heads, block_size, HEAD_DIM)>,
    v_cache: &mut Tensor<T, (blocks, kv_heads, block_size, HEAD_DIM)>,
    partial: &mut Tensor<f32, (rows, heads, splits, HEAD_DIM)>,
    stats: &mut Tensor<f32, { (rows, heads, splits, 2) }>,
    y: &mut Tensor<T, (rows, heads, HEAD_DIM)>,
    scale: f32,
    window: u32,
    soft_cap: f32,
    least: u32,
    magnitude: f32,
    eps: f32,
    is_normed: u32,
) {
    let lanes = HEAD_DIM / 8;
    let row = group_id(2);
    let (position, sequence) = (positions[row], sequences[row]);
    let (first, end) = split_of_length(position + 1, window, group_id(0), least);
    if first >= end {
        return;
    }
    let sequence = index_in(sequence, all_sequences);
    let (span, seat) = (span_of(first, end, block_size), seat_of::<HEAD_DIM>());
    let mut block_of = shared::<u32>(MOST_POSITIONS / RUN + 2);
    let mut query = private::<T>(Shape::<HEAD_DIM>::WIDTH / 4);
    let mut held = private::<T>(2 * 8 * Shape::<HEAD_DIM>::HELD);
    find_blocks(block_table, &mut block_of, span, sequence, blocks);
    barrier();
    // The new position is not in the cache yet.
    let known = end.min(position);
    if first < known {
        let span = span_of(first, known, block_size);
        load_first_keys::<T, HEAD_DIM>(k_cache, &block_of, &mut held, span, seat);
    }
    // The group's queries, then its key and its value.
    let present = heads / kv_heads;
    let (own, lane) = (local_index() / lanes, local_index() % lanes);
    let (is_query, is_value) = (own < present, own > present);
    let mut head = span.kv_head * present + own;
    let mut weights = q_norm.load8(lane).to_f32();
    if !is_query {
        head = heads + (own - present).min(1) * kv_heads + span.kv_head;
        weights = k_norm.load8(lane).to_f32();
    }
    let turned = Turned {
        position,
        magnitude,
        eps,
        is_normed: is_normed != 0,
    };
    // Of the heads, and then of the scores: what two workgroups of products leave on a
    // multiprocessor is little.
    let mut scores = shared::<f32>(HEADS * Shape::<HEAD_DIM>::STRIDE);
    rotation_of(frequencies, turned, &mut scores);
    launch_barrier();

    let x = qkv.load8([row, head * lanes + lane]).to_f32();
    let ready = turned_by::<T, HEAD_DIM>(x, weights, is_value, pairs, turned, &mut scores);
    let mut fresh = shared::<T>(8 * THREADS);
    fresh.store8(local_index(), ready);
    // The split that ends with the new position is the one that reads it.
    if end == position + 1 && !is_query && own <= present + 1 {
        let page = index_in(position / block_size, max_blocks);
        let block = index_in(block_table[[sequence, page]], blocks);
        let slot = position % block_size;
        if is_value {
            v_cache.store8([block, span.kv_head, slot, lane], ready);
        } else {
            k_cache.store8([block, span.kv_head, slot, lane], ready);
        }
    }
    barrier_global();
    let part_lanes = Shape::<HEAD_DIM>::WIDTH / 8;
    for c in unroll(0..Shape::<HEAD_DIM>::WIDTH / 32) {
        let column = seat.part * part_lanes + 4 * c + seat.pair;
        let own_head = seat.line.min(present - 1);
        query.store8(c, fresh.load8(own_head * lanes + column));
        // Where the first tiles hold the new position, its key is the one just made.
        for half in unroll(0..2) {
            let tile = span.begin + half * Shape::<HEAD_DIM>::KEYS + seat.run * RUN;
            for h in unroll(0..2) {
                let of = tile.min(span.last_run) + seat.line + 8 * h;
                if of.max(first).min(end - 1) == position {
                    let key = fresh.load8(present * lanes + column);
                    held.store8(half * Shape::<HEAD_DIM>::HELD + 2 * c + h, key);
                }
            }
        }
    }
    attend::<T, HEAD_DIM>(
        span,
        seat,
        splits == 1,
        &block_of,
        &query,
        &mut held,
        &mut scores,
        k_cache,
        v_cache,
        sinks,
        partial,
        stats,
        y,
        present,
        scale,
        soft_cap,
    );
}

/// A workgroup's attention. `held` has the keys of the first two tiles. Where the row has no other
/// split, `is_only`, it gives the row of `y`, else the split's part of `partial` and `stats`.
#[device_fn]
#[expect(
    clippy::too_many_arguments,
    reason = "a part of two kernels, with their tensors"
)]
fn attend<T: Float, const HEAD_DIM: u32>(
    span: Span,
    seat: Seat,
    is_only: bool,
    block_of: &Shared<u32>,
    query: &Private<T>,
    held: &mut Private<T>,
    scores: &mut Shared<f32>,
    k_cache: &Tensor<T, 4>,
    v_cache: &Tensor<T, 4>,
    sinks: &Tensor<f32, 1>,
    partial: &mut Tensor<f32, 4>,
    stats: &mut Tensor<f32, 4>,
    y: &mut Tensor<T, 3>,
    present: u32,
    scale: f32,
    soft_cap: f32,
) {
    let width = Shape::<HEAD_DIM>::WIDTH;
    let parts = Shape::<HEAD_DIM>::PARTS;
    let runs = Shape::<HEAD_DIM>::RUNS;
    let tile_keys = Shape::<HEAD_DIM>::KEYS;
    let vectors = Shape::<HEAD_DIM>::HELD;
    let stride = Shape::<HEAD_DIM>::STRIDE;
    let (first, end, begin, row, split) = (span.first, span.end, span.begin, span.row, span.split);
    let (line, pair, run) = (seat.line, seat.pair, seat.run);
    let first_head = span.kv_head * present;
    let own_head = line.min(present - 1);
    let mut extremes = shared::<f32>(HEADS * 8 * Shape::<HEAD_DIM>::RUNS);
    let mut shares = shared::<f32>(THREADS);
    // Of each head, where there is one split: what its output is multiplied and divided by.
    let mut finals = shared::<f32>(2 * HEADS);

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
                let next = tile + 2 * tile_keys;
                if next < end {
                    load_keys::<T, HEAD_DIM>(k_cache, block_of, held, half, span, seat, next);
                } else {
                    let values = begin + half * tile_keys;
                    load_values::<T, HEAD_DIM>(v_cache, block_of, held, half, span, seat, values);
                }
                let to = 2 * pair * stride + tile - begin + run * RUN + line;
                if parts == 2 {
                    if seat.part == 1 {
                        scores[to] = sums[0];
                        scores[to + stride] = sums[1];
                        scores[to + 8] = sums[2];
                        scores[to + stride + 8] = sums[3];
                    }
                    barrier();
                    if seat.part == 0 {
                        let (a, b) = (scores[to], scores[to + stride]);
                        let (c, d) = (scores[to + 8], scores[to + stride + 8]);
                        sums += vec4(a, b, c, d);
                    }
                }
                if seat.part == 0 {
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
    if seat.part == 0 {
        let to = run * 8 + line;
        extremes[2 * pair * (8 * runs) + to] = left_most;
        extremes[(2 * pair + 1) * (8 * runs) + to] = right_most;
    }
    barrier();

    // 16 threads a head.
    let count = (end - begin).div_ceil(tile_keys) * tile_keys;
    let largest_of = |head: u32| {
        let mut largest = f32::NEG_INFINITY;
        for i in unroll(0..2 * runs) {
            largest = largest.max(extremes.load4(head * 2 * runs + i).max_lane());
        }
        largest
    };
    let (head, share) = (local_index() / 16, local_index() % 16);
    let largest = largest_of(head);
    let mut sum = 0.0f32;
    if head < present {
        for i in (share..count).step_by(16) {
            let weight = (scores[head * stride + i] - largest).exp();
            scores[head * stride + i] = weight;
            sum += weight;
        }
    }
    shares[local_index()] = sum;
    barrier();
    if local_index() < present {
        let (head, largest) = (local_index(), largest_of(local_index()));
        let mut total = 0.0f32;
        for i in unroll(0..16) {
            total += shares[head * 16 + i];
        }
        if is_only {
            let sink = sinks[first_head + head];
            let most = sink.max(largest);
            let factor = (largest - most).exp();
            finals[2 * head] = factor;
            finals[2 * head + 1] = (sink - most).exp() + factor * total;
        } else {
            stats[[row, first_head + head, split, 0]] = largest;
            stats[[row, first_head + head, split, 1]] = total;
        }
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
                let next = tile + 2 * tile_keys;
                if next < count {
                    let values = begin + next;
                    load_values::<T, HEAD_DIM>(v_cache, block_of, held, half, span, seat, values);
                }
            }
        }
    }

    // The runs' outputs are added, 64 elements of each part at a time, where the scores were.
    for u in unroll(0..width / 64) {
        barrier();
        for j in unroll(0..4) {
            scores.store4(
                (seat.team * 4 + j) * TEAM + seat.lane,
                output.load4(4 * u + j),
            );
        }
        barrier();
        for i in strided(128 * parts) {
            let (of_part, within) = (i / 128, i % 128);
            let mut total = splat4(0.0f32);
            for r in unroll(0..runs) {
                total += scores.load4((r * parts + of_part) * 128 + within);
            }
            let column = of_part * width + 64 * u + within % TEAM / 4 * 8 + within / TEAM * 2;
            for odd in unroll(0..2) {
                let head = within % 4 * 2 + odd;
                let two = vec2(total[odd as usize], total[2 + odd as usize]);
                if head < present && is_only {
                    let factor = splat2(finals[2 * head]);
                    let scaled = two.mul_add(factor, splat2(0.0f32));
                    let whole = scaled / splat2(finals[2 * head + 1]);
                    y.store2([row, first_head + head, column / 2], whole.to::<T>());
                } else if head < present {
                    partial.store2([row, first_head + head, split, column / 2], two);
                }
            }
        }
    }
}

/// At most half an ULP of a weight's second number is left, times values of a few deviations.
pub(crate) const WEIGHTS: f64 = 4.0 / 65536.0;

/// `heads` by `kv_heads` of `head_dim`, with splits of at least `least` positions.
pub(crate) fn decode_of(
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    extras: Extras,
    least: u32,
) -> Decode {
    Decode {
        heads: heads as usize,
        kv_heads: kv_heads as usize,
        head_dim: head_dim as usize,
        block_size: 64,
        scale: 1.0 / (head_dim as f32).sqrt(),
        extras,
        least: least as usize,
    }
}

/// What the kernels take beyond those of [`crate::attention`].
pub(crate) fn with_output(case: &mut Case, decode: Decode, rows: u64) -> &mut Case {
    let (heads, head_dim) = (decode.heads as u64, decode.head_dim as u64);
    case.input("sinks", [heads], decode.extras.sinks(heads))
        .inout("y", [rows, heads, head_dim], normal(0.0, 1.0))
        .scalar("least", decode.least as u32)
}

#[test_kernel(attention_decode_matrix)]
fn attention_decode_matrix_matches_f64(t: &mut Cases) {
    let head_dim = t.constant("HEAD_DIM") as u64;
    // The last two are launches of one split.
    for ((rows, heads, kv_heads, longest), extras, least) in [
        ((1, 6, 1, 4200), EXTRAS[0], 128),
        ((3, 8, 2, 40), EXTRAS[1], 64),
        ((1, 8, 1, 600), EXTRAS[2], 256),
        ((1, 8, 1, 600), EXTRAS[3], 128),
        ((2, 8, 2, 255), EXTRAS[0], 256),
        ((2, 6, 2, 200), EXTRAS[3], 256),
    ] {
        let decode = decode_of(heads, kv_heads, head_dim, extras, least);
        with_output(rows_case(t, decode, rows, longest, false), decode, rows)
            .input("q", [rows, heads, head_dim], normal(0.0, 1.0))
            .bound(Bound::relative(2e-5).absolute(2e-5 + WEIGHTS))
            .expect(move |inputs, out| {
                let tensors = ["q", "k_cache", "v_cache"].map(|name| &inputs[name]);
                decode.set_whole(inputs, tensors, out);
            });
    }
}

#[test_kernel(attention_of_heads_matrix)]
fn attention_of_heads_matrix_matches_f64(t: &mut Cases) {
    let head_dim = t.constant("HEAD_DIM") as u64;
    // New positions that are alone in their split, in the first tiles, in a later one; launches of
    // one split and of several.
    for ((rows, group, kv_heads, longest), extras, least, is_normed) in [
        ((0, 4, 1, 5), EXTRAS[0], 128, true),
        ((1, 4, 1, 128), EXTRAS[0], 128, true),
        ((3, 2, 2, 300), EXTRAS[3], 256, false),
        ((2, 6, 1, 199), EXTRAS[2], 256, true),
        ((2, 4, 1, 64), EXTRAS[0], 128, true),
    ] {
        let decode = decode_of(kv_heads * group, kv_heads, head_dim, extras, least);
        let case = with_output(rows_case(t, decode, rows, longest, true), decode, rows);
        heads_case(case, decode, rows, is_normed)
            // An element that the oracle rounds to the other neighbour moves all scores.
            .bound(Bound::relative(1e-2).absolute(3e-2))
            .expect(move |inputs, out| {
                let [q, k, v] = decode.set_heads(inputs, is_normed, out);
                decode.set_whole(inputs, [&q, &k, &v], out);
            });
    }
}

#[bench_kernel(attention_decode_matrix)]
fn attention_of_a_token_by_products(b: &mut Benches) {
    let head_dim = b.constant("HEAD_DIM") as u64;
    decode_bench(b, head_dim, 4, |bench, rows, heads| {
        bench
            .input("sinks", [heads], uniform(0.0, 1.0))
            .output("y", [rows, heads, head_dim])
            .scalar("least", least_positions(head_dim as u32))
    });
}
