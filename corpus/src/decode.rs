//! Fused kernels of a step of few rows: products with what stands before and behind them, heads
//! on their way to the cache, and the chosen token's way into the next step.
//!
//! Each rounds where the kernels that it joins round, and sums in their order, so that a step of
//! these gives the bits of a step of those: [`rms_norm`](crate::norm::rms_norm),
//! [`matvec`](crate::matmul::matvec) of as many lanes, [`rope_half`](crate::rope::rope_half),
//! [`kv_append`](crate::attention::kv_append), [`silu_mul`](crate::elementwise::silu_mul) and the
//! sum of [`add_rms_norm`](crate::norm::add_rms_norm).
//!
//! They are `dependent`: weights, which no launch writes, are loaded before
//! [`launch_barrier`], while the launch before still runs.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, ints, normal, uniform};

use crate::elementwise::silu;

/// Outputs that a workgroup computes side by side, so that a thread has as many loads in flight.
pub const OUTPUTS: u32 = 4;
/// Most subgroups of a workgroup whose sums are kept apart.
const SUBGROUPS: u32 = 32;
/// Threads of [`rms_norm`](crate::norm::rms_norm), whose order of sums is kept.
const NORM_THREADS: u32 = 256;

/// The first vectors of each output's row of weights, into `early`.
#[device_fn]
fn load_early<T: Float, const LANES: u32, const EARLY: u32, R: Fn(u32) -> u32>(
    w: &Tensor<T, 2>,
    early: &mut Private<T>,
    row_of: R,
) {
    let last = w.dim(1) / 8 - 1;
    for o in unroll(0..OUTPUTS) {
        for j in unroll(0..EARLY) {
            let i = (j * LANES + local_index()).min(last);
            early.store8(o * EARLY + j, w.load8([row_of(o), i]));
        }
    }
}

/// Dot products of each output's row of weights with the vectors of 8 that `x` gives by index,
/// and `early_x` by number among the thread's early ones: eight interleaved chains a thread in
/// ascending order, then the adjacent-pair tree over the threads, whose last levels [`total`]
/// takes. Ends with a barrier.
#[device_fn]
fn sum_products<
    T: Float,
    const LANES: u32,
    const EARLY: u32,
    R: Fn(u32) -> u32,
    E: Fn(u32) -> F32x8,
    X: Fn(u32) -> F32x8,
>(
    w: &Tensor<T, 2>,
    early: &Private<T>,
    parts: &mut Shared<f32>,
    row_of: R,
    early_x: E,
    x: X,
) {
    let vectors = w.dim(1) / 8;
    let mut sums = private::<f32>(8 * OUTPUTS);
    for o in unroll(0..OUTPUTS) {
        sums.store8(o, splat8(0.0f32));
    }
    for j in unroll(0..EARLY) {
        if j * LANES + local_index() < vectors {
            let inputs = early_x(j);
            for o in unroll(0..OUTPUTS) {
                let weights = early.load8(o * EARLY + j).to_f32();
                sums.store8(o, weights.mul_add(inputs, sums.load8(o)));
            }
        }
    }
    for i in (EARLY * LANES + local_index()..vectors).step_by(LANES as usize) {
        let inputs = x(i);
        for o in unroll(0..OUTPUTS) {
            let weights = w.load8([row_of(o), i]).to_f32();
            sums.store8(o, weights.mul_add(inputs, sums.load8(o)));
        }
    }
    if subgroup_count() <= SUBGROUPS {
        for o in unroll(0..OUTPUTS) {
            let sum = subgroup_sum(sums.load8(o).sum());
            if subgroup_lane() == 0 {
                parts[o * SUBGROUPS + subgroup_id()] = sum;
            }
        }
    } else {
        for o in unroll(0..OUTPUTS) {
            let sum = workgroup_sum(sums.load8(o).sum());
            if local_index() == 0 {
                parts[o * SUBGROUPS] = sum;
            }
        }
    }
    barrier();
}

/// Zeroes the parts of sums that no subgroup will write. Ends with a barrier.
#[device_fn]
fn clear(parts: &mut Shared<f32>) {
    for i in strided(OUTPUTS * SUBGROUPS) {
        parts[i] = 0.0;
    }
    barrier();
}

/// An output's sum: the last levels of the tree, over the subgroups.
#[device_fn]
fn total(parts: &Shared<f32>, o: u32) -> f32 {
    let vectors = o * (SUBGROUPS / 8);
    let low = parts.load8(vectors).sum() + parts.load8(vectors + 1).sum();
    let high = parts.load8(vectors + 2).sum() + parts.load8(vectors + 3).sum();
    low + high
}

/// The thread's first vectors of a row, into `early`.
#[device_fn]
fn load_row<T: Float, const LANES: u32, const EARLY: u32, X: Fn(u32) -> Vector<T, 8>>(
    vectors: u32,
    early: &mut Private<T>,
    x: X,
) {
    for j in unroll(0..EARLY) {
        early.store8(j, x((j * LANES + local_index()).min(vectors - 1)));
    }
}

/// `1 / sqrt(mean(h[row, :]^2) + eps)`.
#[device_fn]
fn norm_scale<T: Float, const LANES: u32>(h: &Tensor<T, 2>, row: u32, eps: f32) -> f32 {
    let vectors = h.dim(1) / 8;
    let shares = NORM_THREADS / LANES;
    // A thread stands for neighbours of the norm's threads, so that the tree is the same.
    let mut squares = private::<f32>(8);
    squares.store8(0u32, splat8(0.0f32));
    for share in unroll(0..NORM_THREADS / LANES) {
        let mut sum = 0.0f32;
        for i in (local_index() * shares + share..vectors).step_by(NORM_THREADS as usize) {
            let v = h.load8([row, i]).to_f32();
            sum += v.dot(v);
        }
        squares[share] = sum;
    }
    let sum = workgroup_sum(squares.load8(0u32).sum());
    rsqrt(sum / h.dim(1) as f32 + eps)
}

/// Eight elements of a normalised row, rounded.
#[device_fn]
fn normed8<T: Float>(h: Vector<T, 8>, norm: Vector<T, 8>, scale: f32) -> F32x8 {
    (h.to_f32() * scale * norm.to_f32()).to::<T>().to_f32()
}

/// Product of a normalised row: `y[r, n] = sum_k norm(h[r, :])[k] * w[n, k]`, where `norm` is the
/// root-mean-square norm with weights `norm`, rounded to the tensor's type.
#[kernel(
    grid = [cols / OUTPUTS, rows],
    workgroup = LANES,
    requires(inner % 8 == 0, inner > 0, cols % OUTPUTS == 0),
    dependent,
    instances(T = [f32, f16, bf16], LANES = [128], EARLY = [1]),
    instances(T = [f32, f16, bf16], LANES = [256], EARLY = [2])
)]
pub fn norm_product<T: Float, const LANES: u32, const EARLY: u32>(
    h: &Tensor<T, (rows, inner)>,
    norm: &Tensor<T, (inner,)>,
    w: &Tensor<T, (cols, inner)>,
    y: &mut Tensor<T, (rows, cols)>,
    eps: f32,
) {
    let (first, row) = (group_id(0) * OUTPUTS, group_id(1));
    let mut early = private::<T>(8 * OUTPUTS * EARLY);
    load_early::<T, LANES, EARLY, _>(w, &mut early, |o| first + o);
    let mut parts = shared::<f32>(OUTPUTS * SUBGROUPS);
    let mut norms = private::<T>(8 * EARLY);
    let mut inputs = private::<T>(8 * EARLY);
    load_row::<T, LANES, EARLY, _>(inner / 8, &mut norms, |i| norm.load8(i));
    clear(&mut parts);
    launch_barrier();
    load_row::<T, LANES, EARLY, _>(inner / 8, &mut inputs, |i| h.load8([row, i]));
    let scale = norm_scale::<T, LANES>(h, row, eps);
    sum_products::<T, LANES, EARLY, _, _, _>(
        w,
        &early,
        &mut parts,
        |o| first + o,
        |j| normed8(inputs.load8(j), norms.load8(j), scale),
        |i| normed8(h.load8([row, i]), norm.load8(i), scale),
    );
    if local_index() < OUTPUTS {
        y[[row, first + local_index()]] = T::from_f32(total(&parts, local_index()));
    }
}

/// Gated products of a normalised row: with `w` the rows of the gate and then those of the
/// others, `y[r, n] = silu(g) * u` of the products `g` and `u` of rows `n` and `cols + n`, both
/// rounded to the tensor's type. The norm is that of [`norm_product`].
#[kernel(
    grid = [2 * cols / OUTPUTS, rows],
    workgroup = LANES,
    requires(inner % 8 == 0, inner > 0, 2 * cols % OUTPUTS == 0),
    dependent,
    instances(T = [f32, f16, bf16], LANES = [128], EARLY = [1]),
    instances(T = [f32, f16, bf16], LANES = [256], EARLY = [2])
)]
pub fn norm_gated_product<T: Float, const LANES: u32, const EARLY: u32>(
    h: &Tensor<T, (rows, inner)>,
    norm: &Tensor<T, (inner,)>,
    w: &Tensor<T, { (2 * cols, inner) }>,
    y: &mut Tensor<T, (rows, cols)>,
    eps: f32,
) {
    let pairs = OUTPUTS / 2;
    let (first, row) = (group_id(0) * pairs, group_id(1));
    let mut early = private::<T>(8 * OUTPUTS * EARLY);
    load_early::<T, LANES, EARLY, _>(w, &mut early, |o| first + o % pairs + o / pairs * cols);
    let mut parts = shared::<f32>(OUTPUTS * SUBGROUPS);
    let mut norms = private::<T>(8 * EARLY);
    let mut inputs = private::<T>(8 * EARLY);
    load_row::<T, LANES, EARLY, _>(inner / 8, &mut norms, |i| norm.load8(i));
    clear(&mut parts);
    launch_barrier();
    load_row::<T, LANES, EARLY, _>(inner / 8, &mut inputs, |i| h.load8([row, i]));
    let scale = norm_scale::<T, LANES>(h, row, eps);
    sum_products::<T, LANES, EARLY, _, _, _>(
        w,
        &early,
        &mut parts,
        |o| first + o % pairs + o / pairs * cols,
        |j| normed8(inputs.load8(j), norms.load8(j), scale),
        |i| normed8(h.load8([row, i]), norm.load8(i), scale),
    );
    if local_index() < pairs {
        let gate = T::from_f32(total(&parts, local_index())).to_f32();
        let up = T::from_f32(total(&parts, pairs + local_index())).to_f32();
        y[[row, first + local_index()]] = T::from_f32(silu(gate) * up);
    }
}

/// Product that joins the residual stream: `h[r, n] += sum_k x[r, k] * w[n, k]`, the sum rounded
/// to the tensor's type before it is added.
#[kernel(
    grid = [cols / OUTPUTS, rows],
    workgroup = LANES,
    requires(inner % 8 == 0, inner > 0, cols % OUTPUTS == 0),
    dependent,
    instances(T = [f32, f16, bf16], LANES = [128], EARLY = [1]),
    instances(T = [f32, f16, bf16], LANES = [256], EARLY = [2])
)]
pub fn product_add<T: Float, const LANES: u32, const EARLY: u32>(
    x: &Tensor<T, (rows, inner)>,
    w: &Tensor<T, (cols, inner)>,
    h: &mut Tensor<T, (rows, cols)>,
) {
    let (first, row) = (group_id(0) * OUTPUTS, group_id(1));
    let mut early = private::<T>(8 * OUTPUTS * EARLY);
    load_early::<T, LANES, EARLY, _>(w, &mut early, |o| first + o);
    let mut parts = shared::<f32>(OUTPUTS * SUBGROUPS);
    clear(&mut parts);
    launch_barrier();
    sum_products::<T, LANES, EARLY, _, _, _>(
        w,
        &early,
        &mut parts,
        |o| first + o,
        |j| x.load8([row, j * LANES + local_index()]).to_f32(),
        |i| x.load8([row, i]).to_f32(),
    );
    if local_index() < OUTPUTS {
        let n = first + local_index();
        let sum = T::from_f32(total(&parts, local_index()));
        h[[row, n]] = T::from_f32(h[[row, n]].to_f32() + sum.to_f32());
    }
}

/// Vectors of 8 that a workgroup of [`heads_to_cache`] holds, one a thread.
const HELD: u32 = 256;
/// Most rotated pairs of a head.
const MOST_PAIRS: u32 = 128;

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
    let mut sines = shared::<f32>(MOST_PAIRS);
    let mut cosines = shared::<f32>(MOST_PAIRS);
    for j in strided(pairs) {
        let angle = position as f32 * frequencies[j];
        sines[j] = angle.sin() * magnitude;
        cosines[j] = angle.cos() * magnitude;
    }
    let mut x = splat8(0.0f32);
    if head < all_heads {
        x = qkv.load8([row, vector]).to_f32();
    }
    let mut squares = shared::<f32>(HELD);
    squares[thread] = x.dot(x);
    barrier();
    if is_normed != 0 && !is_value {
        // The tree over the threads of a head.
        let first = (thread - lane) / 8;
        let sum = if HEAD_DIM == 64 {
            squares.load8(first).sum()
        } else if HEAD_DIM == 128 {
            squares.load8(first).sum() + squares.load8(first + 1).sum()
        } else {
            let low = squares.load8(first).sum() + squares.load8(first + 1).sum();
            let high = squares.load8(first + 2).sum() + squares.load8(first + 3).sum();
            low + high
        };
        let scale = rsqrt(sum / HEAD_DIM as f32 + eps);
        let mut weights = q_norm.load8(lane).to_f32();
        if !is_query {
            weights = k_norm.load8(lane).to_f32();
        }
        x = (x * scale * weights).to::<T>().to_f32();
    }
    let mut held = shared::<f32>(8 * HELD);
    held.store8(thread, x);
    barrier();
    let half = pairs / 8;
    if !is_value && lane < 2 * half {
        let j = lane % half;
        let (sine, cosine) = (sines.load8(j), cosines.load8(j));
        if lane < half {
            let partner = held.load8(thread + half);
            x = x * cosine - partner * sine;
        } else {
            let partner = held.load8(thread - half);
            x = x * cosine + partner * sine;
        }
    }
    let rounded = x.to::<T>();
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

/// Gated activation of rows that hold the gate and then what it gates:
/// `y[r, i] = silu(x[r, i]) * x[r, cols + i]`.
#[kernel(
    grid = [ceil_div(cols, 2048), rows],
    workgroup = 256,
    requires(cols % 8 == 0),
    dependent,
    instances(T = [f32, f16, bf16])
)]
pub fn silu_mul_rows<T: Float>(
    x: &Tensor<T, { (rows, 2 * cols) }>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (i, row) = (global_id(0), group_id(1));
    if i < cols / 8 {
        let gate = x.load8([row, i]).to_f32();
        let up = x.load8([row, cols / 8 + i]).to_f32();
        y.store8([row, i], (gate.map(|v| silu(v)) * up).to::<T>());
    }
}

/// The chosen tokens' way into the next step: row `r` takes `chosen[r]` as its token and the
/// next position, and `chosen` and `largest` are kept in row `step[r]` of the history.
#[kernel(grid = [ceil_div(rows, 64)], workgroup = 64, requires(steps > 0), dependent)]
pub fn advance_rows(
    chosen: &Tensor<u32, (rows,)>,
    largest: &Tensor<f32, (rows,)>,
    tokens: &mut Tensor<u32, (rows,)>,
    positions: &mut Tensor<u32, (rows,)>,
    step: &mut Tensor<u32, (rows,)>,
    history: &mut Tensor<u32, (steps, rows)>,
    largest_history: &mut Tensor<f32, (steps, rows)>,
) {
    let row = global_id(0);
    if row >= rows {
        return;
    }
    let at = step[row];
    let place = index_in(at, steps);
    history[[place, row]] = chosen[row];
    largest_history[[place, row]] = largest[row];
    step[row] = at + 1;
    tokens[row] = chosen[row];
    positions[row] += 1;
}

/// Pseudo-random values for weights that only have to be weights: element `i` is uniform in
/// `-limit..limit`, from the bits of `seed + i` mixed as `lowbias32` of Wellons (2018) does, so
/// that every target makes the same.
#[kernel(grid = [ceil_div(n, 2048)], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn fill_uniform<T: Float>(y: &mut Tensor<T, (n,)>, seed: u32, limit: f32) {
    let first = global_id(0) * 8;
    for i in first..n.min(first + 8) {
        let mut bits = seed.wrapping_add(i);
        bits = (bits ^ (bits >> 16)).wrapping_mul(0x7feb_352d);
        bits = (bits ^ (bits >> 15)).wrapping_mul(0x846c_a68b);
        bits ^= bits >> 16;
        let unit = (bits >> 8) as f32 * (1.0 / 8_388_608.0) - 1.0;
        y[i] = T::from_f32(unit * limit);
    }
}

/// Rows, outputs, inputs: one vector a row, more than the early ones, a model's own.
const PRODUCTS: [(u64, u64, u64); 4] = [(1, 4, 8), (2, 8, 136), (3, 12, 1032), (1, 8, 6144)];

/// One row's norm in f64, rounded as the kernels round it.
fn normed(h: &[f64], norm: &[f64], eps: f64) -> Vec<f64> {
    let mean = h.iter().map(|v| v * v).sum::<f64>() / h.len() as f64;
    let pairs = h.iter().zip(norm);
    pairs.map(|(v, w)| v * w / (mean + eps).sqrt()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// What the rounding of inputs that the oracle does not round can add: half an ULP each of
/// `inner` terms of about 0.1.
fn rounding(t: &Cases, inner: u64) -> f64 {
    let ulp = match t.scalar("T") {
        iron_ir::Scalar::F16 => 2f64.powi(-11),
        iron_ir::Scalar::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    };
    0.3 * ulp * (inner as f64).sqrt()
}

#[test_kernel(norm_product)]
fn norm_product_matches_f64(t: &mut Cases) {
    for (rows, cols, inner) in PRODUCTS {
        let allowed = 3e-5 + rounding(t, inner);
        t.case(format!("{rows}x{cols}x{inner}"))
            .input("h", [rows, inner], normal(0.0, 1.0))
            .input("norm", [inner], uniform(0.5, 1.5))
            .input("w", [cols, inner], normal(0.0, 0.1))
            .output("y", [rows, cols])
            .scalar("eps", 1e-5f32)
            .bound(Bound::relative(2e-5).absolute(allowed))
            .expect(move |inputs, out| {
                let mut y = Vec::new();
                for h in inputs["h"].chunks(inner as usize) {
                    let x = normed(h, &inputs["norm"], f64::from(1e-5f32));
                    y.extend(inputs["w"].chunks(inner as usize).map(|w| dot(&x, w)));
                }
                out.set("y", y);
            });
    }
}

#[test_kernel(norm_gated_product)]
fn norm_gated_product_matches_f64(t: &mut Cases) {
    for (rows, cols, inner) in PRODUCTS {
        // The gate's and the other's own rounding beside that of the inputs.
        let allowed = 3e-5 + 4.0 * rounding(t, inner) * (1.0 + 0.1 * (inner as f64).sqrt());
        t.case(format!("{rows}x{cols}x{inner}"))
            .input("h", [rows, inner], normal(0.0, 1.0))
            .input("norm", [inner], uniform(0.5, 1.5))
            .input("w", [2 * cols, inner], normal(0.0, 0.1))
            .output("y", [rows, cols])
            .scalar("eps", 1e-5f32)
            .bound(Bound::relative(5e-5).absolute(allowed))
            .expect(move |inputs, out| {
                let mut y = Vec::new();
                let rows_of_w: Vec<&[f64]> = inputs["w"].chunks(inner as usize).collect();
                for h in inputs["h"].chunks(inner as usize) {
                    let x = normed(h, &inputs["norm"], f64::from(1e-5f32));
                    for n in 0..cols as usize {
                        let gate = dot(&x, rows_of_w[n]);
                        let up = dot(&x, rows_of_w[cols as usize + n]);
                        y.push(gate / (1.0 + (-gate).exp()) * up);
                    }
                }
                out.set("y", y);
            });
    }
}

#[test_kernel(product_add)]
fn product_add_matches_f64(t: &mut Cases) {
    for (rows, cols, inner) in PRODUCTS {
        let allowed = 3e-5 + rounding(t, inner) + 4.0 * rounding(t, 1);
        t.case(format!("{rows}x{cols}x{inner}"))
            .input("x", [rows, inner], normal(0.0, 1.0))
            .input("w", [cols, inner], normal(0.0, 0.1))
            .inout("h", [rows, cols], normal(0.0, 1.0))
            .bound(Bound::relative(2e-5).absolute(allowed))
            .expect(move |inputs, out| {
                let (x, w) = (&inputs["x"], &inputs["w"]);
                let products = x
                    .chunks(inner as usize)
                    .flat_map(|x| w.chunks(inner as usize).map(move |w| dot(x, w)));
                let sums = inputs["h"].iter().zip(products).map(|(h, p)| h + p);
                out.set("h", sums.collect());
            });
    }
}

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
        .scalar("magnitude", 1.125f32)
        .scalar("eps", 1e-5f32)
        .scalar("is_normed", is_normed)
        .bound(Bound::relative(1e-5).absolute(allowed))
        .expect(move |inputs, out| {
            let dim = head_dim as usize;
            let half = pairs as usize;
            let (mut k, mut v) = (inputs["k_cache"].to_vec(), inputs["v_cache"].to_vec());
            let mut q = Vec::new();
            let all_heads = (heads + 2 * kv_heads) as usize;
            for (at, head) in inputs["qkv"].chunks(dim).enumerate() {
                let (row, at) = (at / all_heads, at % all_heads);
                let position = row * 9;
                let block = 5 - (row % 2 * 3 + position / 16);
                let is_query = at < heads as usize;
                let is_value = at >= (heads + kv_heads) as usize;
                let kv_head = (at + kv_heads as usize - heads as usize) % kv_heads as usize;
                let to = ((block * kv_heads as usize + kv_head) * 16 + position % 16) * dim;
                if is_value {
                    v[to..to + dim].copy_from_slice(head);
                    continue;
                }
                let weights = &inputs[if is_query { "q_norm" } else { "k_norm" }];
                let mut x = head.to_vec();
                if is_normed != 0 {
                    x = normed(head, weights, f64::from(1e-5f32));
                }
                for (j, frequency) in inputs["frequencies"].iter().enumerate() {
                    let angle = f64::from(position as f32 * *frequency as f32);
                    let (sine, cosine) = (angle.sin() * 1.125, angle.cos() * 1.125);
                    let (a, b) = (x[j], x[half + j]);
                    x[j] = a * cosine - b * sine;
                    x[half + j] = b * cosine + a * sine;
                }
                if is_query {
                    q.extend(x);
                } else {
                    k[to..to + dim].copy_from_slice(&x);
                }
            }
            out.set("q", q);
            out.set("k_cache", k);
            out.set("v_cache", v);
        });
    }
}

#[test_kernel(silu_mul_rows)]
fn silu_mul_rows_matches_f64(t: &mut Cases) {
    for (rows, cols) in [(0, 8), (1, 8), (3, 576), (2, 2056)] {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, 2 * cols], normal(0.0, 2.0))
            .output("y", [rows, cols])
            .bound(Bound::relative(2e-6).absolute(1e-6))
            .expect(move |inputs, out| {
                let gated = |row: &[f64]| -> Vec<f64> {
                    let (gates, ups) = row.split_at(cols as usize);
                    let pairs = gates.iter().zip(ups);
                    pairs.map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
                };
                let rows = inputs["x"].chunks(2 * cols as usize);
                out.set("y", rows.flat_map(gated).collect());
            });
    }
}

#[test_kernel(advance_rows)]
fn advance_rows_is_exact(t: &mut Cases) {
    for (rows, steps) in [(0, 1), (1, 3), (70, 5)] {
        let step = move |row: usize, _: i64| (row as i64) % steps as i64;
        t.case(format!("{rows} rows, {steps} steps"))
            .input("chosen", [rows], ints(0, 1000))
            .input("largest", [rows], normal(0.0, 1.0))
            .inout("tokens", [rows], ints(0, 1000))
            .inout("positions", [rows], ints(0, 1000))
            .inout("step", [rows], ints(0, 1).map(step))
            .inout("history", [steps, rows], ints(0, 1000))
            .inout("largest_history", [steps, rows], normal(0.0, 1.0))
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let mut history = inputs.ints("history").to_vec();
                let mut largest = inputs["largest_history"].to_vec();
                for row in 0..rows as usize {
                    let place = inputs.ints("step")[row] as usize * rows as usize + row;
                    history[place] = inputs.ints("chosen")[row];
                    largest[place] = inputs["largest"][row];
                }
                let next = |name: &str| inputs.ints(name).iter().map(|i| i + 1).collect();
                out.set_ints("positions", next("positions"));
                out.set_ints("step", next("step"));
                out.set_ints("tokens", inputs.ints("chosen").to_vec());
                out.set_ints("history", history);
                out.set("largest_history", largest);
            });
    }
}

/// The value of [`fill_uniform`] before it is rounded to the tensor's type.
pub fn uniform_value(seed: u32, i: u32, limit: f32) -> f32 {
    let mut bits = seed.wrapping_add(i);
    bits = (bits ^ (bits >> 16)).wrapping_mul(0x7feb_352d);
    bits = (bits ^ (bits >> 15)).wrapping_mul(0x846c_a68b);
    bits ^= bits >> 16;
    ((bits >> 8) as f32 / 8_388_608.0 - 1.0) * limit
}

#[test_kernel(fill_uniform)]
fn fill_uniform_is_the_same_everywhere(t: &mut Cases) {
    for n in [0u64, 1, 7, 2049] {
        t.case(format!("{n}"))
            .output("y", [n])
            .scalar("seed", u32::MAX - 3)
            .scalar("limit", 0.03125f32)
            .bound(Bound::exact())
            .expect(move |_, out| {
                let value = |i: u64| f64::from(uniform_value(u32::MAX - 3, i as u32, 0.03125));
                out.set("y", (0..n).map(value).collect());
            });
    }
}

/// Outputs and inputs of the products of a layer of 0.6B and 8B.
#[bench_kernel(product_add)]
fn product_add_of_8b(b: &mut Benches) {
    let bytes = u64::from(b.scalar("T").bytes());
    for (cols, inner) in [(4096, 4096), (4096, 12288), (1024, 2048), (1024, 3072)] {
        b.bench(format!("1x{cols}x{inner}"))
            .input("x", [1, inner], normal(0.0, 1.0))
            .input("w", [cols, inner], normal(0.0, 0.1))
            .inout("h", [1, cols], normal(0.0, 1.0))
            .bytes(cols * inner * bytes)
            .flops(2 * cols * inner);
    }
}
