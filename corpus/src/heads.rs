//! Heads of new rows on their way to attention: normalised, rotated, written to the cache.

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, Inputs, ints, normal, uniform};

use crate::decode::{normed, rounding};

/// Vectors of 8 that a workgroup holds, one a thread.
pub(crate) const HELD: u32 = 256;
/// Most rotated pairs of a head.
pub(crate) const MOST_PAIRS: u32 = 128;

/// What a head's norm and rotation take.
#[device_struct]
pub(crate) struct Turned {
    pub position: u32,
    pub magnitude: f32,
    pub eps: f32,
    pub is_normed: bool,
}

/// Where cosines, sums of squares and vectors begin in the scratch of [`turned_by`], in vectors
/// of 8; sines come first.
const COSINES: u32 = MOST_PAIRS / 8;
const SQUARES: u32 = 2 * COSINES;
const VECTORS: u32 = SQUARES + HELD / 8;
/// Floats of the scratch of [`HELD`] threads.
pub(crate) const SCRATCH: u32 = 8 * (VECTORS + HELD);

/// Puts sine and cosine of every rotated pair of a row, times the magnitude, into the scratch.
#[device_fn]
pub(crate) fn rotation_of(frequencies: &Tensor<f32, 1>, turned: Turned, scratch: &mut Shared<f32>) {
    for j in strided(frequencies.dim(0)) {
        let angle = turned.position as f32 * frequencies[j];
        scratch[j] = angle.sin() * turned.magnitude;
        scratch[8 * COSINES + j] = angle.cos() * turned.magnitude;
    }
}

/// Eight elements of a head as attention takes them, of a workgroup of [`HELD`] threads, each of
/// which brings a vector `x` of some head, neighbours those of one head: over their head
/// normalised by the root mean square, and rotated in half-split form. Values stay as they are.
#[device_fn]
pub(crate) fn turned_head<T: Float, const HEAD_DIM: u32>(
    x: F32x8,
    is_query: bool,
    is_value: bool,
    q_norm: &Tensor<T, 1>,
    k_norm: &Tensor<T, 1>,
    frequencies: &Tensor<f32, 1>,
    turned: Turned,
) -> Vector<T, 8> {
    let mut scratch = shared::<f32>(SCRATCH);
    rotation_of(frequencies, turned, &mut scratch);
    let lane = local_index() % (HEAD_DIM / 8);
    let mut weights = q_norm.load8(lane).to_f32();
    if !is_query {
        weights = k_norm.load8(lane).to_f32();
    }
    let pairs = frequencies.dim(0);
    turned_by::<T, HEAD_DIM>(x, weights, is_value, pairs, turned, &mut scratch)
}

/// [`turned_head`] by the head's norm weights and what [`rotation_of`] put into the scratch, of
/// `8 * VECTORS` floats and eight a thread.
#[device_fn]
pub(crate) fn turned_by<T: Float, const HEAD_DIM: u32>(
    x: F32x8,
    weights: F32x8,
    is_value: bool,
    pairs: u32,
    turned: Turned,
    scratch: &mut Shared<f32>,
) -> Vector<T, 8> {
    let thread = local_index();
    let lane = thread % (HEAD_DIM / 8);
    let mut x = x;
    scratch[8 * SQUARES + thread] = x.dot(x);
    barrier();
    if turned.is_normed && !is_value {
        // The tree over the threads of a head.
        let first = SQUARES + (thread - lane) / 8;
        let sum = if HEAD_DIM == 64 {
            scratch.load8(first).sum()
        } else if HEAD_DIM == 128 {
            scratch.load8(first).sum() + scratch.load8(first + 1).sum()
        } else {
            let low = scratch.load8(first).sum() + scratch.load8(first + 1).sum();
            let high = scratch.load8(first + 2).sum() + scratch.load8(first + 3).sum();
            low + high
        };
        let scale = rsqrt(sum / HEAD_DIM as f32 + turned.eps);
        x = (x * scale * weights).to::<T>().to_f32();
    }
    scratch.store8(VECTORS + thread, x);
    barrier();
    let half = pairs / 8;
    if !is_value && lane < 2 * half {
        let j = lane % half;
        let (sine, cosine) = (scratch.load8(j), scratch.load8(COSINES + j));
        if lane < half {
            let partner = scratch.load8(VECTORS + thread + half);
            x = x * cosine - partner * sine;
        } else {
            let partner = scratch.load8(VECTORS + thread - half);
            x = x * cosine + partner * sine;
        }
    }
    x.to::<T>()
}

/// The heads of new rows on their way to attention. A row of `qkv` holds the query heads, then
/// the key heads, then the value heads. Queries and keys are normalised over their head by the
/// root mean square where `is_normed` is not 0, then rotated in half-split form; queries go to
/// `q`, keys and values to position `positions[r]` of sequence `sequences[r]`.
#[kernel(
    grid = [ceil_div((heads + 2 * kv_heads) * HEAD_DIM, 8 * HELD), rows],
    workgroup = HELD,
    requires(
        width == (heads + 2 * kv_heads) * HEAD_DIM,
        2 * pairs <= HEAD_DIM,
        pairs % 8 == 0,
        pairs <= MOST_PAIRS,
        block_size > 0
    ),
    dependent,
    instances(T = [f32, f16, bf16], HEAD_DIM = [64, 128, 256])
)]
pub fn heads_to_cache<T: Float, const HEAD_DIM: u32>(
    qkv: &Tensor<T, (rows, width)>,
    q_norm: &Tensor<T, { (HEAD_DIM,) }>,
    k_norm: &Tensor<T, { (HEAD_DIM,) }>,
    positions: &Tensor<u32, (rows,)>,
    frequencies: &Tensor<f32, (pairs,)>,
    sequences: &Tensor<u32, (rows,)>,
    block_table: &Tensor<u32, (all_sequences, max_blocks)>,
    q: &mut Tensor<T, (rows, heads, HEAD_DIM)>,
    k_cache: &mut Tensor<T, (blocks, kv_heads, block_size, HEAD_DIM)>,
    v_cache: &mut Tensor<T, (blocks, kv_heads, block_size, HEAD_DIM)>,
    magnitude: f32,
    eps: f32,
    is_normed: u32,
) {
    let lanes = HEAD_DIM / 8;
    let (row, thread) = (group_id(1), local_index());
    let vector = group_id(0) * HELD + thread;
    let (head, lane) = (vector / lanes, vector % lanes);
    let all_heads = heads + 2 * kv_heads;
    let (is_query, is_value) = (head < heads, head >= heads + kv_heads);
    let position = positions[row];
    let turned = Turned {
        position,
        magnitude,
        eps,
        is_normed: is_normed != 0,
    };
    let mut x = splat8(0.0f32);
    if head < all_heads {
        x = qkv.load8([row, vector]).to_f32();
    }
    let rounded =
        turned_head::<T, HEAD_DIM>(x, is_query, is_value, q_norm, k_norm, frequencies, turned);
    let sequence = index_in(sequences[row], all_sequences);
    let page = index_in(position / block_size, max_blocks);
    let block = index_in(block_table[[sequence, page]], blocks);
    let slot = position % block_size;
    if is_query {
        q.store8([row, head, lane], rounded);
    } else if !is_value {
        k_cache.store8([block, head - heads, slot, lane], rounded);
    } else if head < all_heads {
        v_cache.store8([block, head - heads - kv_heads, slot, lane], rounded);
    }
}

/// Of the tests: not 1, and exact.
pub(crate) const MAGNITUDE: f32 = 1.125;

/// Rows, heads, key-value heads, rotated share of a head.
const HEADS: [(u64, u64, u64, u64); 4] = [(0, 1, 1, 2), (1, 2, 1, 2), (5, 4, 2, 2), (3, 16, 8, 4)];

#[test_kernel(heads_to_cache)]
fn heads_to_cache_matches_f64(t: &mut Cases) {
    let head_dim = t.constant("HEAD_DIM") as u64;
    let allowed = 4e-6 + 16.0 * rounding(t, 1);
    for ((rows, heads, kv_heads, share), is_normed) in HEADS.into_iter().zip([1, 0, 1, 1]) {
        let pairs = head_dim / share;
        let pairs = if share == 2 { pairs } else { pairs / 2 };
        let cache = [6, kv_heads, 16, head_dim];
        t.case(format!(
            "{rows}x{heads}/{kv_heads}x{head_dim}, {pairs} pairs, normed {is_normed}"
        ))
        .input(
            "qkv",
            [rows, (heads + 2 * kv_heads) * head_dim],
            normal(0.0, 1.0),
        )
        .input("q_norm", [head_dim], uniform(0.5, 1.5))
        .input("k_norm", [head_dim], uniform(0.5, 1.5))
        // Distinct positions of two sequences over distinct blocks.
        .input("positions", [rows], ints(0, 1).map(|r, _| r as i64 * 9))
        .input("frequencies", [pairs], uniform(1e-4, 1.0))
        .input("sequences", [rows], ints(0, 1).map(|r, _| r as i64 % 2))
        .input("block_table", [2, 3], ints(0, 1).map(|i, _| 5 - i as i64))
        .output("q", [rows, heads, head_dim])
        .inout("k_cache", cache, normal(0.0, 1.0))
        .inout("v_cache", cache, normal(0.0, 1.0))
        .scalar("magnitude", MAGNITUDE)
        .scalar("eps", 1e-5f32)
        .scalar("is_normed", is_normed)
        .bound(Bound::relative(1e-5).absolute(allowed))
        .expect(move |inputs, out| {
            let new = NewHeads {
                heads: heads as usize,
                kv_heads: kv_heads as usize,
                head_dim: head_dim as usize,
                is_normed: is_normed != 0,
            };
            let (mut k, mut v) = (inputs["k_cache"].to_vec(), inputs["v_cache"].to_vec());
            let place = |row: usize, kv_head: usize| {
                let block = 5 - (row % 2 * 3 + row * 9 / 16);
                (block * kv_heads as usize + kv_head) * 16 + row * 9 % 16
            };
            out.set("q", new.written(inputs, place, [&mut k, &mut v]));
            out.set("k_cache", k);
            out.set("v_cache", v);
        });
    }
}

/// Sizes of the heads of new rows.
#[derive(Clone, Copy)]
pub(crate) struct NewHeads {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub is_normed: bool,
}

impl NewHeads {
    /// Writes keys and values of the rows of `qkv` where `place` says by row and key and value
    /// head; gives the queries. Angles times [`MAGNITUDE`].
    pub(crate) fn written(
        self,
        inputs: &Inputs,
        place: impl Fn(usize, usize) -> usize,
        [k, v]: [&mut [f64]; 2],
    ) -> Vec<f64> {
        let Self {
            heads,
            kv_heads,
            head_dim: dim,
            is_normed,
        } = self;
        let mut q = Vec::new();
        let all_heads = heads + 2 * kv_heads;
        for (at, head) in inputs["qkv"].chunks(dim).enumerate() {
            let (row, at) = (at / all_heads, at % all_heads);
            let position = inputs.ints("positions")[row];
            let (is_query, is_value) = (at < heads, at >= heads + kv_heads);
            let to = place(row, (at + kv_heads - heads % kv_heads) % kv_heads) * dim;
            if is_value {
                v[to..to + dim].copy_from_slice(head);
                continue;
            }
            let mut x = head.to_vec();
            if is_normed {
                let weights = &inputs[if is_query { "q_norm" } else { "k_norm" }];
                x = normed(head, weights, f64::from(1e-5f32));
            }
            let half = inputs["frequencies"].len();
            for (j, frequency) in inputs["frequencies"].iter().enumerate() {
                let angle = f64::from(position as f32 * *frequency as f32);
                let turned = [angle.sin(), angle.cos()].map(|x| x * f64::from(MAGNITUDE));
                let (a, b) = (x[j], x[half + j]);
                x[j] = a * turned[1] - b * turned[0];
                x[half + j] = b * turned[1] + a * turned[0];
            }
            if is_query {
                q.extend(x);
            } else {
                k[to..to + dim].copy_from_slice(&x);
            }
        }
        q
    }
}
