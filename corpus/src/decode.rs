//! Fused kernels of a step of few rows: products with what stands before and behind them, and the
//! chosen token's way into the next step.
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
use iron_ir::testing::{Benches, Bound, Case, Cases, Inputs, ints, normal, uniform};

use crate::attention::split_length;
use crate::elementwise::silu;
use crate::row_products::{
    NORM_THREADS, SUBGROUPS, clear, gather_sums, load_early, load_row, norm_held, norm_scale,
    normed8, sum_held, sum_products, total,
};

/// Outputs that a workgroup computes side by side, so that a thread has as many loads in flight.
pub const OUTPUTS: u32 = 4;
/// Multiprocessors of an H200, and how many workgroups each holds of a product whose workgroups
/// take one tile of outputs after the other: so many that one's loads cover another's sums.
const MULTIPROCESSORS: u32 = 132;
const RESIDENT: u32 = 4;

/// How a product of `LANES` threads a workgroup takes rows; `WHOLE` where the early vectors are
/// whole rows, whose sums of squares have the norm's order only with one vector a thread or with
/// the norm's threads.
struct Row<const LANES: u32, const EARLY: u32, const WHOLE: bool>;

impl<const LANES: u32, const EARLY: u32, const WHOLE: bool> Row<LANES, EARLY, WHOLE> {
    /// Most elements of a row.
    const MOST: u32 = if WHOLE { 8 * LANES * EARLY } else { u32::MAX };
    /// Whether a workgroup takes tile after tile: where rows are long, each tile's norm would cost
    /// as much as its products.
    const REPEATS: bool = WHOLE && LANES == NORM_THREADS;
    /// Most workgroups along the outputs, and how many a multiprocessor is to hold: of those that
    /// do not repeat, as many as let all of a layer of 1,024 by 3,072 run at once.
    const GROUPS: u32 = if Self::REPEATS {
        RESIDENT * MULTIPROCESSORS
    } else {
        u32::MAX
    };
    const RESIDENT: u32 = match (Self::REPEATS, WHOLE) {
        (true, _) => RESIDENT,
        (false, true) => 6,
        (false, false) => 0,
    };
    /// The same of gated products, which have more workgroups.
    const GATED: u32 = if Self::REPEATS || !WHOLE {
        Self::RESIDENT
    } else {
        8
    };
    /// Floats of an output's parts of sums; a workgroup that repeats fills one half while the
    /// other is read.
    const PARTS: u32 = if Self::REPEATS {
        2 * SUBGROUPS
    } else {
        SUBGROUPS
    };
}

/// Product of a normalised row, `SIDE` outputs side by side: `y[r, n] = sum_k norm(h[r, :])[k] *
/// w[n, k]`, where `norm` is the root-mean-square norm with weights `norm`, rounded to the tensor's
/// type. Where `WHOLE`, the threads' early vectors are the whole rows.
#[kernel(
    grid = [min(cols / SIDE, Row::<LANES, EARLY, WHOLE>::GROUPS), rows],
    workgroup = LANES,
    resident = Row::<LANES, EARLY, WHOLE>::RESIDENT,
    requires(
        inner % 8 == 0,
        inner > 0,
        inner <= Row::<LANES, EARLY, WHOLE>::MOST,
        cols % SIDE == 0
    ),
    dependent,
    instances(T = [f32, f16, bf16], LANES = [128], EARLY = [1], SIDE = [4], WHOLE = [false]),
    instances(T = [f32, f16, bf16], LANES = [256], EARLY = [2], SIDE = [4], WHOLE = [false]),
    instances(T = [f32, f16, bf16], LANES = [128], EARLY = [1], SIDE = [8], WHOLE = [true]),
    instances(T = [f32, f16, bf16], LANES = [256], EARLY = [2], SIDE = [2], WHOLE = [true])
)]
pub fn norm_product<
    T: Float,
    const LANES: u32,
    const EARLY: u32,
    const SIDE: u32,
    const WHOLE: bool,
>(
    h: &Tensor<T, (rows, inner)>,
    norm: &Tensor<T, (inner,)>,
    w: &Tensor<T, (cols, inner)>,
    y: &mut Tensor<T, (rows, cols)>,
    eps: f32,
) {
    let (first, row) = (group_id(0) * SIDE, group_id(1));
    let mut early = private::<T>(8 * SIDE * EARLY);
    load_early::<T, LANES, EARLY, SIDE, _>(w, &mut early, |o| first + o);
    let mut parts = shared::<f32>(SIDE * Row::<LANES, EARLY, WHOLE>::PARTS);
    let mut norms = private::<T>(8 * EARLY);
    let mut inputs = private::<T>(8 * EARLY);
    load_row::<T, LANES, EARLY, _>(inner / 8, &mut norms, |i| norm.load8(i));
    clear(
        &mut parts,
        SIDE * Row::<LANES, EARLY, WHOLE>::PARTS / SUBGROUPS,
    );
    launch_barrier();
    load_row::<T, LANES, EARLY, _>(inner / 8, &mut inputs, |i| h.load8([row, i]));
    if WHOLE {
        norm_held::<T, LANES, EARLY>(&mut inputs, &norms, inner / 8, eps);
        let mut sums = private::<f32>(SIDE);
        let mut turn = 0u32;
        for tile in (group_id(0)..cols / SIDE).step_by(group_count(0) as usize) {
            sum_held::<T, LANES, EARLY, SIDE>(&early, &inputs, inner / 8, &mut sums);
            if Row::<LANES, EARLY, WHOLE>::REPEATS {
                let next = tile + group_count(0);
                if next < cols / SIDE {
                    load_early::<T, LANES, EARLY, SIDE, _>(w, &mut early, |o| next * SIDE + o);
                }
            }
            gather_sums::<SIDE>(&sums, &mut parts, turn * SIDE);
            if local_index() < SIDE {
                let sum = T::from_f32(total(&parts, turn * SIDE + local_index()));
                y[[row, tile * SIDE + local_index()]] = sum;
            }
            turn = 1 - turn;
        }
    } else {
        let scale = norm_scale::<T, LANES>(h, row, eps);
        sum_products::<T, LANES, EARLY, SIDE, _, _, _>(
            w,
            &early,
            &mut parts,
            |o| first + o,
            |j| normed8(inputs.load8(j), norms.load8(j), scale),
            |i| normed8(h.load8([row, i]), norm.load8(i), scale),
        );
        if local_index() < SIDE {
            y[[row, first + local_index()]] = T::from_f32(total(&parts, local_index()));
        }
    }
}

/// Gated products of a normalised row, `SIDE` outputs side by side, gates and others: with `w` the
/// rows of the gate and then those of the others, `y[r, n] = silu(g) * u` of the products `g` and
/// `u` of rows `n` and `cols + n`, both rounded to the tensor's type. The norm and `WHOLE` are those
/// of [`norm_product`].
#[kernel(
    grid = [min(2 * cols / SIDE, Row::<LANES, EARLY, WHOLE>::GROUPS), rows],
    workgroup = LANES,
    resident = Row::<LANES, EARLY, WHOLE>::GATED,
    requires(
        inner % 8 == 0,
        inner > 0,
        inner <= Row::<LANES, EARLY, WHOLE>::MOST,
        2 * cols % SIDE == 0
    ),
    dependent,
    instances(T = [f32, f16, bf16], LANES = [128], EARLY = [1], SIDE = [4], WHOLE = [false]),
    instances(T = [f32, f16, bf16], LANES = [256], EARLY = [2], SIDE = [4], WHOLE = [false]),
    instances(T = [f32, f16, bf16], LANES = [128], EARLY = [1], SIDE = [8], WHOLE = [true]),
    instances(T = [f32, f16, bf16], LANES = [256], EARLY = [2], SIDE = [2], WHOLE = [true])
)]
pub fn norm_gated_product<
    T: Float,
    const LANES: u32,
    const EARLY: u32,
    const SIDE: u32,
    const WHOLE: bool,
>(
    h: &Tensor<T, (rows, inner)>,
    norm: &Tensor<T, (inner,)>,
    w: &Tensor<T, { (2 * cols, inner) }>,
    y: &mut Tensor<T, (rows, cols)>,
    eps: f32,
) {
    let pairs = SIDE / 2;
    let (first, row) = (group_id(0) * pairs, group_id(1));
    let mut early = private::<T>(8 * SIDE * EARLY);
    load_early::<T, LANES, EARLY, SIDE, _>(w, &mut early, |o| first + o % pairs + o / pairs * cols);
    let mut parts = shared::<f32>(SIDE * Row::<LANES, EARLY, WHOLE>::PARTS);
    let mut norms = private::<T>(8 * EARLY);
    let mut inputs = private::<T>(8 * EARLY);
    load_row::<T, LANES, EARLY, _>(inner / 8, &mut norms, |i| norm.load8(i));
    clear(
        &mut parts,
        SIDE * Row::<LANES, EARLY, WHOLE>::PARTS / SUBGROUPS,
    );
    launch_barrier();
    load_row::<T, LANES, EARLY, _>(inner / 8, &mut inputs, |i| h.load8([row, i]));
    if WHOLE {
        norm_held::<T, LANES, EARLY>(&mut inputs, &norms, inner / 8, eps);
        let mut sums = private::<f32>(SIDE);
        let mut turn = 0u32;
        for tile in (group_id(0)..cols / pairs).step_by(group_count(0) as usize) {
            sum_held::<T, LANES, EARLY, SIDE>(&early, &inputs, inner / 8, &mut sums);
            if Row::<LANES, EARLY, WHOLE>::REPEATS {
                let next = tile + group_count(0);
                if next < cols / pairs {
                    load_early::<T, LANES, EARLY, SIDE, _>(w, &mut early, |o| {
                        next * pairs + o % pairs + o / pairs * cols
                    });
                }
            }
            gather_sums::<SIDE>(&sums, &mut parts, turn * SIDE);
            if local_index() < pairs {
                let n = tile * pairs + local_index();
                y[[row, n]] = gated::<T>(&parts, turn * SIDE + local_index(), pairs);
            }
            turn = 1 - turn;
        }
    } else {
        let scale = norm_scale::<T, LANES>(h, row, eps);
        sum_products::<T, LANES, EARLY, SIDE, _, _, _>(
            w,
            &early,
            &mut parts,
            |o| first + o % pairs + o / pairs * cols,
            |j| normed8(inputs.load8(j), norms.load8(j), scale),
            |i| normed8(h.load8([row, i]), norm.load8(i), scale),
        );
        if local_index() < pairs {
            y[[row, first + local_index()]] = gated::<T>(&parts, local_index(), pairs);
        }
    }
}

/// The gate that is output `o` and what it gates, `pairs` outputs later.
#[device_fn]
pub(crate) fn gated<T: Float>(parts: &Shared<f32>, o: u32, pairs: u32) -> T {
    let gate = T::from_f32(total(parts, o)).to_f32();
    let up = T::from_f32(total(parts, pairs + o)).to_f32();
    T::from_f32(silu(gate) * up)
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
    load_early::<T, LANES, EARLY, OUTPUTS, _>(w, &mut early, |o| first + o);
    let mut parts = shared::<f32>(OUTPUTS * SUBGROUPS);
    clear(&mut parts, OUTPUTS);
    launch_barrier();
    // On its way with the inputs: behind the sums it would be a latency of its own.
    let n = first + local_index();
    let mut residual = T::from_f32(0.0);
    if local_index() < OUTPUTS {
        residual = h[[row, n]];
    }
    sum_products::<T, LANES, EARLY, OUTPUTS, _, _, _>(
        w,
        &early,
        &mut parts,
        |o| first + o,
        |j| x.load8([row, j * LANES + local_index()]).to_f32(),
        |i| x.load8([row, i]).to_f32(),
    );
    if local_index() < OUTPUTS {
        let sum = T::from_f32(total(&parts, local_index()));
        h[[row, n]] = T::from_f32(residual.to_f32() + sum.to_f32());
    }
}

/// Most splits of [`split_product_add`].
pub const JOINED: u32 = 4;

/// [`product_add`] of attention that is still in up to [`JOINED`] splits: joins them as
/// [`attention_combine`](crate::attention::attention_combine) does, rounds, and multiplies.
#[kernel(
    grid = [cols / OUTPUTS, rows],
    workgroup = LANES,
    requires(
        inner == heads * HEAD_DIM,
        inner <= 8 * LANES * EARLY,
        cols % OUTPUTS == 0,
        splits > 0,
        splits <= JOINED
    ),
    dependent,
    instances(T = [bf16], HEAD_DIM = [128], LANES = [256], EARLY = [1])
)]
pub fn split_product_add<T: Float, const HEAD_DIM: u32, const LANES: u32, const EARLY: u32>(
    partial: &Tensor<f32, (rows, heads, splits, HEAD_DIM)>,
    stats: &Tensor<f32, { (rows, heads, splits, 2) }>,
    positions: &Tensor<u32, (rows,)>,
    sinks: &Tensor<f32, (heads,)>,
    w: &Tensor<T, (cols, inner)>,
    h: &mut Tensor<T, (rows, cols)>,
    window: u32,
) {
    let (first, row) = (group_id(0) * OUTPUTS, group_id(1));
    let mut early = private::<T>(8 * OUTPUTS * EARLY);
    load_early::<T, LANES, EARLY, OUTPUTS, _>(w, &mut early, |o| first + o);
    let mut parts = shared::<f32>(OUTPUTS * SUBGROUPS);
    clear(&mut parts, OUTPUTS);
    // An earlier step left the position.
    let seen = (positions[row] + 1).min(window);
    let mut last_split = shared::<u32>(1);
    if local_index() == 0 {
        last_split[0] = seen.div_ceil(split_length(seen, HEAD_DIM)) - 1;
    }
    launch_barrier();
    // On its way with the inputs: behind the sums it would be a latency of its own.
    let n = first + local_index();
    let mut residual = T::from_f32(0.0);
    if local_index() < OUTPUTS {
        residual = h[[row, n]];
    }
    // Every load is taken, the ones past the end again, and none waits for another: the joining
    // needs the last split's number, which comes from behind the barrier, so that no compiler
    // begins it before.
    let mut inputs = private::<T>(8 * EARLY);
    let mut sink = private::<f32>(EARLY);
    let mut outputs = private::<f32>(8 * JOINED * EARLY);
    let mut scores = private::<f32>(2 * JOINED * EARLY);
    for j in unroll(0..EARLY) {
        let i = (j * LANES + local_index()).min(inner / 8 - 1);
        let (head, column) = (i / (HEAD_DIM / 8), i % (HEAD_DIM / 8));
        sink[j] = sinks[head];
        for split in unroll(0..JOINED) {
            let at = split.min(splits - 1);
            outputs.store8(j * JOINED + split, partial.load8([row, head, at, column]));
            scores.store2(j * JOINED + split, stats.load2([row, head, at, 0]));
        }
    }
    barrier();
    let last = last_split[0];
    for j in unroll(0..EARLY) {
        let mut largest = sink[j];
        for split in unroll(0..JOINED) {
            let score = scores[2 * (j * JOINED + split)];
            largest = largest.max(select(split <= last, score, f32::NEG_INFINITY));
        }
        let (mut output, mut sum) = (splat8(0.0f32), (sink[j] - largest).exp());
        for split in unroll(0..JOINED) {
            let at = j * JOINED + split;
            let factor = (scores[2 * at] - largest).exp();
            let part = outputs.load8(at).mul_add(splat8(factor), splat8(0.0f32));
            output = select(split <= last, output + part, output);
            let share = fma(factor, scores[2 * at + 1], 0.0);
            sum = select(split <= last, sum + share, sum);
        }
        inputs.store8(j, (output / splat8(sum)).to::<T>());
    }
    let mut sums = private::<f32>(OUTPUTS);
    sum_held::<T, LANES, EARLY, OUTPUTS>(&early, &inputs, inner / 8, &mut sums);
    gather_sums::<OUTPUTS>(&sums, &mut parts, 0);
    if local_index() < OUTPUTS {
        let sum = T::from_f32(total(&parts, local_index()));
        h[[row, n]] = T::from_f32(residual.to_f32() + sum.to_f32());
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
const PRODUCTS: [(u64, u64, u64); 4] = [(1, 8, 8), (2, 8, 136), (3, 16, 1032), (1, 8, 6144)];

/// Cases of a product of normalised rows: [`PRODUCTS`] as far as the instance takes rows, and as
/// many outputs as give workgroups that repeat a second tile, of one type.
fn normed_products(t: &Cases) -> Vec<(u64, u64, u64)> {
    let (is_whole, lanes) = (t.constant("WHOLE") != 0, t.constant("LANES") as u64);
    let longest = match is_whole {
        true => 8 * lanes * t.constant("EARLY") as u64,
        false => u64::MAX,
    };
    let cut = PRODUCTS.map(|(rows, cols, inner)| (rows, cols, inner.min(longest)));
    let is_bf16 = t.scalar("T") == iron_ir::Scalar::BF16;
    let repeats = is_bf16 && is_whole && lanes == u64::from(NORM_THREADS);
    let second = repeats.then_some((1, 1064, 72));
    cut.into_iter().chain(second).collect()
}

/// More outputs than the reference takes whole.
fn normed_case(t: &mut Cases, [rows, cols, inner]: [u64; 3]) -> &mut Case {
    let case = t.case(format!("{rows}x{cols}x{inner}"));
    if cols > 16 { case.production() } else { case }
}

/// One row's norm in f64, rounded as the kernels round it.
pub(crate) fn normed(h: &[f64], norm: &[f64], eps: f64) -> Vec<f64> {
    let mean = h.iter().map(|v| v * v).sum::<f64>() / h.len() as f64;
    let pairs = h.iter().zip(norm);
    pairs.map(|(v, w)| v * w / (mean + eps).sqrt()).collect()
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// What the rounding of inputs that the oracle does not round can add: half an ULP each of
/// `inner` terms of about 0.1.
pub(crate) fn rounding(t: &Cases, inner: u64) -> f64 {
    let ulp = match t.scalar("T") {
        iron_ir::Scalar::F16 => 2f64.powi(-11),
        iron_ir::Scalar::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    };
    0.3 * ulp * (inner as f64).sqrt()
}

/// Products of normalised rows with every row of `w`, in f64; the epsilon is the tests'.
pub(crate) fn normed_outputs(inputs: &Inputs, inner: u64) -> Vec<f64> {
    let mut y = Vec::new();
    for h in inputs["h"].chunks(inner as usize) {
        let x = normed(h, &inputs["norm"], f64::from(1e-5f32));
        y.extend(inputs["w"].chunks(inner as usize).map(|w| dot(&x, w)));
    }
    y
}

/// Gated products of normalised rows, in f64: of [`normed_outputs`] a row's first half gates its
/// other.
pub(crate) fn gated_outputs(inputs: &Inputs, inner: u64, cols: u64) -> Vec<f64> {
    let products = normed_outputs(inputs, inner);
    let rows = products.chunks(2 * cols as usize);
    rows.flat_map(|row| {
        let (gates, others) = row.split_at(cols as usize);
        gates.iter().zip(others)
    })
    .map(|(gate, other)| gate / (1.0 + (-gate).exp()) * other)
    .collect()
}

/// Rows of `h` with the products of `x` and `w` added, in f64.
pub(crate) fn added_outputs(inputs: &Inputs, inner: u64) -> Vec<f64> {
    let (x, w) = (&inputs["x"], &inputs["w"]);
    let products = x
        .chunks(inner as usize)
        .flat_map(|x| w.chunks(inner as usize).map(move |w| dot(x, w)));
    let sums = inputs["h"].iter().zip(products).map(|(h, p)| h + p);
    sums.collect()
}

#[test_kernel(norm_product)]
fn norm_product_matches_f64(t: &mut Cases) {
    for (rows, cols, inner) in normed_products(t) {
        let allowed = 3e-5 + rounding(t, inner);
        normed_case(t, [rows, cols, inner])
            .input("h", [rows, inner], normal(0.0, 1.0))
            .input("norm", [inner], uniform(0.5, 1.5))
            .input("w", [cols, inner], normal(0.0, 0.1))
            .output("y", [rows, cols])
            .scalar("eps", 1e-5f32)
            .bound(Bound::relative(2e-5).absolute(allowed))
            .expect(move |inputs, out| out.set("y", normed_outputs(inputs, inner)));
    }
}

#[test_kernel(norm_gated_product)]
fn norm_gated_product_matches_f64(t: &mut Cases) {
    for (rows, cols, inner) in normed_products(t) {
        // The gate's and the other's own rounding beside that of the inputs.
        let allowed = 3e-5 + 4.0 * rounding(t, inner) * (1.0 + 0.1 * (inner as f64).sqrt());
        normed_case(t, [rows, cols, inner])
            .input("h", [rows, inner], normal(0.0, 1.0))
            .input("norm", [inner], uniform(0.5, 1.5))
            .input("w", [2 * cols, inner], normal(0.0, 0.1))
            .output("y", [rows, cols])
            .scalar("eps", 1e-5f32)
            .bound(Bound::relative(5e-5).absolute(allowed))
            .expect(move |inputs, out| out.set("y", gated_outputs(inputs, inner, cols)));
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
            .expect(move |inputs, out| out.set("h", added_outputs(inputs, inner)));
    }
}

#[test_kernel(split_product_add)]
fn split_product_add_matches_f64(t: &mut Cases) {
    for (rows, heads, splits, longest) in [(0, 1, 1, 5), (1, 16, 2, 140), (3, 2, 4, 500)] {
        let (head_dim, cols) = (128u64, 8);
        t.case(format!("{rows}x{heads}x{splits}, context {longest}"))
            .input("partial", [rows, heads, splits, head_dim], normal(0.0, 1.0))
            .input("stats", [rows, heads, splits, 2], uniform(1.0, 2.0))
            .input(
                "positions",
                [rows],
                ints(0, 1).map(move |row, _| longest / (row as i64 + 1)),
            )
            .input("sinks", [heads], uniform(0.5, 1.5))
            .input("w", [cols, heads * head_dim], normal(0.0, 0.1))
            .inout("h", [rows, cols], normal(0.0, 1.0))
            .scalar("window", u32::MAX)
            .bound(Bound::relative(1e-2).absolute(2e-2))
            .expect(move |inputs, out| {
                let (dim, n) = (head_dim as usize, splits as usize);
                let mut sums = inputs["h"].to_vec();
                for (row, position) in inputs.ints("positions").iter().enumerate() {
                    let used = (*position as usize + 1).div_ceil(128);
                    let mut x = Vec::new();
                    for head in 0..heads as usize {
                        let cell = (row * heads as usize + head) * n;
                        let score = |split: usize| inputs["stats"][2 * (cell + split)].exp();
                        let weight = |split: usize| inputs["stats"][2 * (cell + split) + 1];
                        let sink = inputs["sinks"][head].exp();
                        let all = sink + (0..used).map(|s| score(s) * weight(s)).sum::<f64>();
                        x.extend((0..dim).map(|i| {
                            let part = |s: usize| inputs["partial"][(cell + s) * dim + i];
                            (0..used).map(|s| score(s) * part(s)).sum::<f64>() / all
                        }));
                    }
                    for (n, w) in inputs["w"].chunks(x.len()).enumerate() {
                        sums[row * cols as usize + n] += dot(&x, w);
                    }
                }
                out.set("h", sums);
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
