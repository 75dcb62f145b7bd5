//! Attention of single query rows for GPUs: the heads of a group share one reading of the keys
//! and values, 16 bytes a thread, the next ones in flight while a tile is computed.

use iron_ir::Scalar;
use iron_ir::prelude::*;
use iron_ir::testing::{Bench, Benches, Bound, Cases, ints, normal};

use crate::attention::{EXTRAS, capped, least_positions, most_splits, split_of};
use crate::attention_cases::{Decode, decode_cases, heads_case, rows_case};
use crate::heads::{MOST_PAIRS, SCRATCH, Turned, rotation_of, turned_by};

/// Threads of a workgroup.
const THREADS: u32 = 256;
/// Rows of the cache that a thread reads at once.
const HELD: u32 = 4;
/// Most positions of a split.
const MOST_POSITIONS: u32 = 512;

/// How [`attention_decode_grouped`] divides its threads.
struct Shape<const HEAD_DIM: u32, const GROUP: u32>;

impl<const HEAD_DIM: u32, const GROUP: u32> Shape<HEAD_DIM, GROUP> {
    /// Threads that share a row of the cache, eight elements each.
    const LANES: u32 = HEAD_DIM / 8;
    /// Rows of the cache that the workgroup reads side by side, a *run*.
    const RUN: u32 = THREADS / Self::LANES;
    /// Positions of a tile.
    const KEYS: u32 = HELD * Self::RUN;
    /// Most blocks that the positions of a split lie in.
    const PAGES: u32 = MOST_POSITIONS / Self::KEYS + 1;
    /// Floats of a position's partial products; the odd factor keeps the columns of equal lanes
    /// in different banks.
    const STRIDE: u32 = (Self::LANES + 1) * GROUP;
    /// Heads whose outputs are joined at once.
    const TOGETHER: u32 = if GROUP.is_multiple_of(2) {
        GROUP / 2
    } else {
        1
    };
    /// Floats of the partial products of a tile, or of the outputs that are joined.
    const SCRATCH: u32 = {
        let (products, outputs) = (Self::KEYS * Self::STRIDE, Self::TOGETHER * 8 * THREADS);
        if products > outputs {
            products
        } else {
            outputs
        }
    };
}

/// The largest group that [`attention_decode_grouped`] has an instance for, of layers with so many
/// query heads for a key and value head; `None` where [`crate::attention::attention_decode`] is
/// the one to take.
pub fn group_of(scalar: Scalar, head_dim: u32, block_size: u32, heads: u32) -> Option<u32> {
    let groups: &[u32] = match (scalar, head_dim) {
        (Scalar::F16, 128) => &[4, 1],
        (Scalar::BF16, 128) => &[4, 2, 1],
        (Scalar::BF16, 256) => &[4, 3],
        _ => return None,
    };
    let fits =
        |group: &u32| heads.is_multiple_of(*group) && block_size.is_multiple_of(8192 / head_dim);
    groups.iter().copied().find(fits)
}

/// The group of [`attention_of_heads`], if it has an instance for layers with so many query heads
/// for a key and value head.
pub fn group_with_heads(scalar: Scalar, head_dim: u32, block_size: u32, heads: u32) -> Option<u32> {
    let has_instance = matches!((scalar, head_dim, heads), (Scalar::BF16, 128, 2 | 4));
    (has_instance && block_size.is_multiple_of(8192 / head_dim)).then_some(heads)
}

/// Where a tile lies: its first position, that one's row in its block, and which of the split's
/// blocks that is.
#[device_struct]
struct Place {
    tile: u32,
    slot: u32,
    page: u32,
}

/// The tile after this one, or the same where the split ends. Tiles do not cross blocks.
#[device_fn]
fn after(place: Place, tile_keys: u32, end: u32, block_size: u32) -> Place {
    let step = select(place.tile + tile_keys < end, tile_keys, 0);
    let turned = place.slot + step == block_size;
    Place {
        tile: place.tile + step,
        slot: select(turned, 0, place.slot + step),
        page: select(turned, place.page + 1, place.page),
    }
}

/// Attention of single query rows, as [`crate::attention::attention_decode`] with the same
/// splits, for `GROUP` query heads of one key and value head at once. Blocks of the cache hold a
/// multiple of a tile's positions, `32 * 256 / HEAD_DIM`.
#[kernel(
    grid = [splits, ceil_div(heads, GROUP), rows],
    workgroup = 256,
    requires(
        heads % kv_heads == 0,
        heads / kv_heads % GROUP == 0,
        block_size % (8192 / HEAD_DIM) == 0,
        block_size > 0
    ),
    instances(T = [f16, bf16], HEAD_DIM = [128], GROUP = [4, 1]),
    instances(T = [bf16], HEAD_DIM = [128], GROUP = [2]),
    instances(T = [bf16], HEAD_DIM = [256], GROUP = [4, 3])
)]
pub fn attention_decode_grouped<T: Float, const HEAD_DIM: u32, const GROUP: u32>(
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
    let (split, row) = (group_id(0), group_id(2));
    let (first, end) = split_of::<HEAD_DIM>(positions[row] + 1, window, split);
    if first >= end {
        return;
    }
    let sequence = index_in(sequences[row], all_sequences);
    let first_head = group_id(1) * GROUP;
    let range = Range {
        first,
        end,
        sequence,
        kv_head: first_head / (heads / kv_heads),
        first_head,
        split,
        row,
    };
    let mut block_of = shared::<u32>(Shape::<HEAD_DIM, GROUP>::PAGES);
    let mut held = private::<T>(2 * 8 * HELD);
    find_blocks::<HEAD_DIM, GROUP>(range, block_table, &mut block_of, block_size, blocks);
    load_first_keys::<T, HEAD_DIM, GROUP>(range, k_cache, &block_of, &mut held);
    let query = |head: u32, lane: u32| q.load8([row, first_head + head, lane]).to_f32() * scale;
    attend::<T, HEAD_DIM, GROUP, _>(
        range, query, &block_of, &mut held, k_cache, v_cache, partial, stats, soft_cap,
    );
}

/// What a workgroup attends over: the positions `first..end` of a sequence, which are a split of a
/// row, and the heads of a key and value head from `first_head` on.
#[device_struct]
struct Range {
    first: u32,
    end: u32,
    sequence: u32,
    kv_head: u32,
    first_head: u32,
    split: u32,
    row: u32,
}

/// The blocks of a split, once for all tiles. Ends with a barrier.
#[device_fn]
fn find_blocks<const HEAD_DIM: u32, const GROUP: u32>(
    range: Range,
    block_table: &Tensor<u32, 2>,
    block_of: &mut Shared<u32>,
    block_size: u32,
    blocks: u32,
) {
    let first_page = first_tile::<HEAD_DIM, GROUP>(range) / block_size;
    for i in strided((range.end - 1) / block_size - first_page + 1) {
        let page = index_in(first_page + i, block_table.dim(1));
        block_of[i] = index_in(block_table[[range.sequence, page]], blocks);
    }
    barrier();
}

/// The first position of a split's first tile.
#[device_fn]
fn first_tile<const HEAD_DIM: u32, const GROUP: u32>(range: Range) -> u32 {
    range.first - range.first % Shape::<HEAD_DIM, GROUP>::KEYS
}

/// The place of a split's first tile.
#[device_fn]
fn first_place<const HEAD_DIM: u32, const GROUP: u32>(range: Range, block_size: u32) -> Place {
    let tile = first_tile::<HEAD_DIM, GROUP>(range);
    Place {
        tile,
        slot: tile % block_size,
        page: 0,
    }
}

/// The position that a thread's row `j` of a tile is of: a thread's rows are a run apart. Rows that
/// the split does not have are others again: what nobody wrote may be NaN, which a weight of zero
/// keeps.
#[device_fn]
fn position_of<const HEAD_DIM: u32, const GROUP: u32>(range: Range, tile: u32, j: u32) -> u32 {
    let own = local_index() / Shape::<HEAD_DIM, GROUP>::LANES;
    let position = tile + j * Shape::<HEAD_DIM, GROUP>::RUN + own;
    position.max(range.first).min(range.end - 1)
}

/// The keys of a split's first two tiles.
#[device_fn]
fn load_first_keys<T: Float, const HEAD_DIM: u32, const GROUP: u32>(
    range: Range,
    k_cache: &Tensor<T, 4>,
    block_of: &Shared<u32>,
    held: &mut Private<T>,
) {
    let (lane, block_size) = (
        local_index() % Shape::<HEAD_DIM, GROUP>::LANES,
        k_cache.dim(2),
    );
    let zeroth = first_place::<HEAD_DIM, GROUP>(range, block_size);
    let second = after(
        zeroth,
        Shape::<HEAD_DIM, GROUP>::KEYS,
        range.end,
        block_size,
    );
    for half in unroll(0..2) {
        let place = if half == 0 { zeroth } else { second };
        let block = block_of[place.page];
        for j in unroll(0..HELD) {
            let position = position_of::<HEAD_DIM, GROUP>(range, place.tile, j);
            let slot = place.slot + position - place.tile;
            held.store8(
                half * HELD + j,
                k_cache.load8([block, range.kv_head, slot, lane]),
            );
        }
    }
}

/// [`attention_decode_grouped`] and the heads of its new rows, each of a sequence of its own:
/// `qkv` becomes queries, keys and values as [`heads_to_cache`](crate::heads::heads_to_cache)
/// makes them, those of the new position are written to the cache, and the queries attend. A key
/// and value head has `GROUP` query heads.
///
/// All that earlier steps left is read while the launch before still runs: of `qkv` alone may a
/// launch before this one in the same step be the writer.
#[kernel(
    grid = [splits, kv_heads, rows],
    workgroup = 256,
    requires(
        heads == GROUP * kv_heads,
        width == (heads + 2 * kv_heads) * HEAD_DIM,
        2 * pairs <= HEAD_DIM,
        pairs % 8 == 0,
        pairs <= MOST_PAIRS,
        block_size % (8192 / HEAD_DIM) == 0,
        block_size > 0
    ),
    dependent,
    instances(T = [bf16], HEAD_DIM = [128], GROUP = [2, 4])
)]
pub fn attention_of_heads<T: Float, const HEAD_DIM: u32, const GROUP: u32>(
    qkv: &Tensor<T, (rows, width)>,
    q_norm: &Tensor<T, { (HEAD_DIM,) }>,
    k_norm: &Tensor<T, { (HEAD_DIM,) }>,
    positions: &Tensor<u32, (rows,)>,
    frequencies: &Tensor<f32, (pairs,)>,
    sequences: &Tensor<u32, (rows,)>,
    block_table: &Tensor<u32, (all_sequences, max_blocks)>,
    k_cache: &mut Tensor<T, (blocks, kv_heads, block_size, HEAD_DIM)>,
    v_cache: &mut Tensor<T, (blocks, kv_heads, block_size, HEAD_DIM)>,
    partial: &mut Tensor<f32, (rows, heads, splits, HEAD_DIM)>,
    stats: &mut Tensor<f32, { (rows, heads, splits, 2) }>,
    scale: f32,
    window: u32,
    soft_cap: f32,
    magnitude: f32,
    eps: f32,
    is_normed: u32,
) {
    let (split, row) = (group_id(0), group_id(2));
    let position = positions[row];
    let (first, end) = split_of::<HEAD_DIM>(position + 1, window, split);
    if first >= end {
        return;
    }
    let sequence = index_in(sequences[row], all_sequences);
    let kv_head = group_id(1);
    let range = Range {
        first,
        end,
        sequence,
        kv_head,
        first_head: kv_head * GROUP,
        split,
        row,
    };
    let mut block_of = shared::<u32>(Shape::<HEAD_DIM, GROUP>::PAGES);
    let mut held = private::<T>(2 * 8 * HELD);
    find_blocks::<HEAD_DIM, GROUP>(range, block_table, &mut block_of, block_size, blocks);
    // The new position is not in the cache yet.
    if first < end.min(position) {
        let known = Range {
            end: end.min(position),
            ..range
        };
        load_first_keys::<T, HEAD_DIM, GROUP>(known, k_cache, &block_of, &mut held);
    }
    // The group's queries, then its key and its value.
    let lanes = HEAD_DIM / 8;
    let (own, lane) = (local_index() / lanes, local_index() % lanes);
    let (is_query, is_value) = (own < GROUP, own > GROUP);
    let mut head = kv_head * GROUP + own;
    let mut weights = q_norm.load8(lane).to_f32();
    if !is_query {
        head = heads + (own - GROUP).min(1) * kv_heads + kv_head;
        weights = k_norm.load8(lane).to_f32();
    }
    let turned = Turned {
        position,
        magnitude,
        eps,
        is_normed: is_normed != 0,
    };
    let mut scratch = shared::<f32>(SCRATCH);
    rotation_of(frequencies, turned, &mut scratch);
    launch_barrier();

    let x = qkv.load8([row, head * lanes + lane]).to_f32();
    let ready = turned_by::<T, HEAD_DIM>(x, weights, is_value, pairs, turned, &mut scratch);
    let mut queries = shared::<f32>(GROUP * HEAD_DIM);
    let mut fresh = shared::<T>(HEAD_DIM);
    if is_query {
        queries.store8(local_index(), ready.to_f32());
    }
    // The split that ends with the new position is the one that reads it.
    let is_last = end == position + 1;
    if is_last && !is_query && own <= GROUP + 1 {
        let page = index_in(position / block_size, max_blocks);
        let block = index_in(block_table[[sequence, page]], blocks);
        let slot = position % block_size;
        if is_value {
            v_cache.store8([block, kv_head, slot, lane], ready);
        } else {
            k_cache.store8([block, kv_head, slot, lane], ready);
            fresh.store8(lane, ready);
        }
    }
    barrier_global();
    if is_last {
        // Where the first tiles hold the new position, its key is the one just made.
        let key = fresh.load8(lane);
        let zeroth = first_place::<HEAD_DIM, GROUP>(range, block_size);
        let second = after(zeroth, Shape::<HEAD_DIM, GROUP>::KEYS, end, block_size);
        for half in unroll(0..2) {
            let tile = if half == 0 { zeroth.tile } else { second.tile };
            for j in unroll(0..HELD) {
                if position_of::<HEAD_DIM, GROUP>(range, tile, j) == position {
                    held.store8(half * HELD + j, key);
                }
            }
        }
    }
    let query = |head: u32, lane: u32| queries.load8(head * lanes + lane) * scale;
    attend::<T, HEAD_DIM, GROUP, _>(
        range, query, &block_of, &mut held, k_cache, v_cache, partial, stats, soft_cap,
    );
}

/// A workgroup's attention: `scaled_query` gives eight elements of one of its heads, `held` holds
/// the keys of the first two tiles.
#[device_fn]
#[expect(
    clippy::too_many_arguments,
    reason = "a part of two kernels, with their tensors"
)]
fn attend<T: Float, const HEAD_DIM: u32, const GROUP: u32, Q: Fn(u32, u32) -> F32x8>(
    range: Range,
    scaled_query: Q,
    block_of: &Shared<u32>,
    held: &mut Private<T>,
    k_cache: &Tensor<T, 4>,
    v_cache: &Tensor<T, 4>,
    partial: &mut Tensor<f32, 4>,
    stats: &mut Tensor<f32, 4>,
    soft_cap: f32,
) {
    let lanes = Shape::<HEAD_DIM, GROUP>::LANES;
    let run = Shape::<HEAD_DIM, GROUP>::RUN;
    let tile_keys = Shape::<HEAD_DIM, GROUP>::KEYS;
    let stride = Shape::<HEAD_DIM, GROUP>::STRIDE;
    let Range {
        first,
        end,
        sequence: _,
        kv_head,
        first_head,
        split,
        row,
    } = range;
    let block_size = k_cache.dim(2);
    let (lane, own) = (local_index() % lanes, local_index() / lanes);
    let begin = first_tile::<HEAD_DIM, GROUP>(range);

    let mut partials = shared::<f32>(Shape::<HEAD_DIM, GROUP>::SCRATCH);
    let mut scores = shared::<f32>((MOST_POSITIONS + 2 * tile_keys) * GROUP);
    let mut shares = shared::<f32>(THREADS);
    let mut extremes = shared::<f32>(8 * GROUP);
    let mut query = private::<f32>(8 * GROUP);

    // Two tiles are held: one is computed, the other on its way.
    let zeroth = first_place::<HEAD_DIM, GROUP>(range, block_size);
    let second = after(zeroth, tile_keys, end, block_size);
    let third = after(second, tile_keys, end, block_size);
    let row_of = |place: Place, j: u32| {
        place.slot + position_of::<HEAD_DIM, GROUP>(range, place.tile, j) - place.tile
    };
    for head in unroll(0..GROUP) {
        query.store8(head, scaled_query(head, lane));
    }

    let mut ahead = third;
    for pair in (begin..end).step_by(2 * tile_keys as usize) {
        for half in unroll(0..2) {
            for j in unroll(0..HELD) {
                let key = held.load8(half * HELD + j).to_f32();
                let to = (j * run + own) * (lanes + 1) + lane;
                let product = |head: u32| key.dot(query.load8(head));
                if GROUP % 4 == 0 {
                    for h in unroll(0..GROUP / 4) {
                        let (a, b) = (4 * h, 4 * h + 2);
                        let four = vec4(product(a), product(a + 1), product(b), product(b + 1));
                        partials.store4(to * (GROUP / 4) + h, four);
                    }
                } else if GROUP % 2 == 0 {
                    for h in unroll(0..GROUP / 2) {
                        let two = vec2(product(2 * h), product(2 * h + 1));
                        partials.store2(to * (GROUP / 2) + h, two);
                    }
                } else {
                    for head in unroll(0..GROUP) {
                        partials[to * GROUP + head] = product(head);
                    }
                }
            }
            // After the last keys come the first values.
            if pair + 2 * tile_keys < end {
                let block = block_of[ahead.page];
                for j in unroll(0..HELD) {
                    let keys = k_cache.load8([block, kv_head, row_of(ahead, j), lane]);
                    held.store8(half * HELD + j, keys);
                }
                ahead = after(ahead, tile_keys, end, block_size);
            } else {
                let place = if half == 0 { zeroth } else { second };
                let block = block_of[place.page];
                for j in unroll(0..HELD) {
                    let values = v_cache.load8([block, kv_head, row_of(place, j), lane]);
                    held.store8(half * HELD + j, values);
                }
            }
            barrier();
            let tile = pair + half * tile_keys;
            for i in strided(tile_keys * GROUP) {
                let from = i / GROUP * stride + i % GROUP;
                let mut sums = splat4(0.0f32);
                for part in unroll(0..lanes / 4) {
                    let at = from + part * 4 * GROUP;
                    let four = vec4(
                        partials[at],
                        partials[at + GROUP],
                        partials[at + 2 * GROUP],
                        partials[at + 3 * GROUP],
                    );
                    sums += four;
                }
                let position = tile + i / GROUP;
                let seen = position >= first && position < end;
                let score = capped(sums.sum(), soft_cap);
                scores[(tile - begin) * GROUP + i] = select(seen, score, f32::NEG_INFINITY);
            }
            barrier();
        }
    }

    // The largest score of each head, in two steps over its share of the threads.
    let count = (end - begin).div_ceil(2 * tile_keys) * 2 * tile_keys;
    let sharing = THREADS / GROUP / 8 * 8;
    let head = local_index() % GROUP;
    if local_index() < sharing * GROUP {
        let mut largest = f32::NEG_INFINITY;
        for i in (local_index() / GROUP..count).step_by(sharing as usize) {
            largest = largest.max(scores[i * GROUP + head]);
        }
        shares[local_index()] = largest;
    }
    barrier();
    if local_index() < 8 * GROUP {
        let mut largest = f32::NEG_INFINITY;
        for i in unroll(0..sharing / 8) {
            largest = largest.max(shares[local_index() + i * 8 * GROUP]);
        }
        extremes[local_index()] = largest;
    }
    barrier();
    for i in strided(count * GROUP) {
        let mut largest = f32::NEG_INFINITY;
        for part in unroll(0..8) {
            largest = largest.max(extremes[part * GROUP + i % GROUP]);
        }
        scores[i] = (scores[i] - largest).exp();
    }
    barrier();

    let mut output = private::<f32>(8 * GROUP);
    let mut sums = private::<f32>(GROUP);
    for head in unroll(0..GROUP) {
        output.store8(head, splat8(0.0f32));
        sums[head] = 0.0;
    }
    ahead = third;
    for pair in (0..count).step_by(2 * tile_keys as usize) {
        for half in unroll(0..2) {
            for j in unroll(0..HELD) {
                let value = held.load8(half * HELD + j).to_f32();
                let at = pair + (half * HELD + j) * run + own;
                let mut weights = private::<f32>(GROUP);
                if GROUP % 4 == 0 {
                    for h in unroll(0..GROUP / 4) {
                        weights.store4(h, scores.load4(at * (GROUP / 4) + h));
                    }
                } else if GROUP % 2 == 0 {
                    for h in unroll(0..GROUP / 2) {
                        weights.store2(h, scores.load2(at * (GROUP / 2) + h));
                    }
                } else {
                    for head in unroll(0..GROUP) {
                        weights[head] = scores[at * GROUP + head];
                    }
                }
                for head in unroll(0..GROUP) {
                    sums[head] += weights[head];
                    let sum = value.mul_add(splat8(weights[head]), output.load8(head));
                    output.store8(head, sum);
                }
            }
            if begin + pair + 2 * tile_keys < end {
                let block = block_of[ahead.page];
                for j in unroll(0..HELD) {
                    let values = v_cache.load8([block, kv_head, row_of(ahead, j), lane]);
                    held.store8(half * HELD + j, values);
                }
                ahead = after(ahead, tile_keys, end, block_size);
            }
        }
    }

    // Threads of equal lanes join what they have, run by run.
    let together = Shape::<HEAD_DIM, GROUP>::TOGETHER;
    for round in unroll(0..GROUP / together) {
        for h in unroll(0..together) {
            partials.store8(
                (h * run + own) * lanes + lane,
                output.load8(round * together + h),
            );
        }
        if round == 0 && lane == 0 {
            for head in unroll(0..GROUP) {
                shares[own * GROUP + head] = sums[head];
            }
        }
        barrier();
        for i in strided(together * HEAD_DIM) {
            let from = i / HEAD_DIM * run * HEAD_DIM + i % HEAD_DIM;
            let mut total = 0.0f32;
            for part in unroll(0..run) {
                total += partials[from + part * HEAD_DIM];
            }
            let head = first_head + round * together + i / HEAD_DIM;
            partial[[row, head, split, i % HEAD_DIM]] = total;
        }
        if round == 0 && local_index() < GROUP {
            let mut total = 0.0f32;
            for part in unroll(0..run) {
                total += shares[part * GROUP + local_index()];
            }
            let mut largest = f32::NEG_INFINITY;
            for part in unroll(0..8) {
                largest = largest.max(extremes[part * GROUP + local_index()]);
            }
            stats[[row, first_head + local_index(), split, 0]] = largest;
            stats[[row, first_head + local_index(), split, 1]] = total;
        }
        barrier();
    }
}

#[test_kernel(attention_decode_grouped)]
fn attention_decode_grouped_matches_f64(t: &mut Cases) {
    let head_dim = t.constant("HEAD_DIM") as u64;
    let group = t.constant("GROUP") as u64;
    decode_cases(
        t,
        head_dim,
        group,
        &[(1, 1, 1, 4200), (3, 2, 2, 40), (1, 1, 1, 600)],
        0.0,
    );
}

#[test_kernel(attention_of_heads)]
fn attention_of_heads_matches_f64(t: &mut Cases) {
    let (head_dim, group) = (t.constant("HEAD_DIM") as u64, t.constant("GROUP") as u64);
    for (rows, kv_heads, longest, is_normed) in
        [(0, 1, 5, true), (1, 1, 128, true), (3, 2, 300, false)]
    {
        let decode = Decode {
            heads: (kv_heads * group) as usize,
            kv_heads: kv_heads as usize,
            head_dim: head_dim as usize,
            block_size: 64,
            scale: 1.0 / (head_dim as f32).sqrt(),
            extras: EXTRAS[0],
            least: least_positions(head_dim as u32) as usize,
        };
        let case = rows_case(t, decode, rows, longest, true);
        heads_case(case, decode, rows, is_normed)
            // An element that the oracle rounds to the other neighbour moves all scores.
            .bound(Bound::relative(1e-2).absolute(3e-2))
            .expect(move |inputs, out| {
                let [q, k, v] = decode.set_heads(inputs, is_normed, out);
                let [partial, stats] = decode.outputs(inputs, [&q, &k, &v]);
                out.set("partial", partial);
                out.set("stats", stats);
            });
    }
}

/// Rows and positions of each.
const CONTEXTS: [(u64, u64); 2] = [(1, 1024), (1, 8192)];

#[bench_kernel(attention_decode_grouped)]
fn attention_of_a_token(b: &mut Benches) {
    let (head_dim, group) = (b.constant("HEAD_DIM") as u64, b.constant("GROUP") as u64);
    decode_bench(b, head_dim, group, |bench, _, _| bench);
}

/// Benches of a kernel with the contract of [`crate::attention::attention_decode`], for `group`
/// query heads a key and value head; `more` adds what a kernel has beyond, of rows and heads.
pub(crate) fn decode_bench(
    b: &mut Benches,
    head_dim: u64,
    group: u64,
    more: impl Fn(Bench<'_>, u64, u64) -> Bench<'_>,
) {
    let kv_heads = 1024 / head_dim;
    let bytes = u64::from(b.scalar("T").bytes());
    for (rows, context) in CONTEXTS {
        let (block_size, heads) = (64, kv_heads * group);
        let pages = context / block_size;
        let splits = u64::from(most_splits(context as u32, head_dim as u32));
        let cache = [rows * pages, kv_heads, block_size, head_dim];
        let bench = b.bench(format!(
            "{rows} rows, {heads}/{kv_heads} heads, context {context}"
        ));
        more(bench, rows, heads)
            .input("q", [rows, heads, head_dim], normal(0.0, 1.0))
            .input("k_cache", cache, normal(0.0, 1.0))
            .input("v_cache", cache, normal(0.0, 1.0))
            .input(
                "positions",
                [rows],
                ints(0, 1).map(move |_, _| context as i64 - 1),
            )
            .input("sequences", [rows], ints(0, 1).map(|row, _| row as i64))
            .input(
                "block_table",
                [rows, pages],
                ints(0, 1).map(|i, _| i as i64),
            )
            .output("partial", [rows, heads, splits, head_dim])
            .output("stats", [rows, heads, splits, 2])
            .scalar("scale", 0.1f32)
            .scalar("window", u32::MAX)
            .scalar("soft_cap", 0.0f32)
            .bytes(2 * rows * context * kv_heads * head_dim * bytes);
    }
}
