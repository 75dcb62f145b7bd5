//! Products of few rows by long weights, which are copied to shared memory several tiles ahead of
//! their use: so many bytes are on their way while a launch waits for the one before, or for its
//! norm, that the memory is never idle.
//!
//! A workgroup takes tile after tile, and there are `GROUPS` of them: 264 are as many as an H200
//! holds with two a multiprocessor, of which one sums while the other waits. Each takes the same
//! share of tiles, so it matters that no multiprocessor has a third, which the size of shared
//! memory sees to: 320 or 384 bytes a thread of tiles on their way. Four are for tests.
//!
//! Each result has the bits of the kernel of [`decode`](crate::decode) that it stands for: the
//! order of sums and the roundings are those.

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, normal, uniform};

use crate::decode::{added_outputs, gated, gated_outputs, normed_outputs, rounding};
use crate::row_products::{
    NORM_THREADS, SUBGROUPS, clear, gather_sums, load_row, norm_held, total,
};

/// Threads of a workgroup, those of the norm.
const THREADS: u32 = NORM_THREADS;
/// Most columns of a workgroup of what a product joins: they are loaded at once, one a thread.
const MOST_COLUMNS: u32 = THREADS - 4;
/// Most outputs for which weights go ahead; with more, the products of [`decode`](crate::decode)
/// were faster.
const MOST_OUTPUTS: u64 = 1 << 16;

/// Copies the weights of a tile, if there is one of that number, as a batch: `SIDE` outputs, of
/// which a thread takes `VECTORS` vectors each.
#[device_fn]
fn copy_tile<T: Float, const VECTORS: u32, const SIDE: u32, R: Fn(u32) -> u32>(
    w: &Tensor<T, 2>,
    weights: &mut Ahead<T>,
    slot: u32,
    exists: bool,
    row_of: R,
) {
    if exists {
        for o in unroll(0..SIDE) {
            for j in unroll(0..VECTORS) {
                let at = (slot * SIDE + o) * VECTORS + j;
                weights.store8(at, w.load8([row_of(o), j * THREADS + local_index()]));
            }
        }
    }
    weights.end_batch();
}

/// The thread's sums of the outputs of a tile whose weights have arrived.
#[device_fn]
fn sum_tile<T: Float, const VECTORS: u32, const SIDE: u32>(
    weights: &Ahead<T>,
    inputs: &Private<T>,
    slot: u32,
    sums: &mut Private<f32>,
) {
    for o in unroll(0..SIDE) {
        let mut chains = splat8(0.0f32);
        for j in unroll(0..VECTORS) {
            let w = weights.load8((slot * SIDE + o) * VECTORS + j);
            chains = w.to_f32().mul_add(inputs.load8(j).to_f32(), chains);
        }
        sums[o] = chains.sum();
    }
}

/// [`norm_product`](crate::decode::norm_product) of rows of 2,048 times `VECTORS`
/// elements, `SIDE` outputs a tile, `DEPTH` tiles on their way.
#[kernel(
    grid = [min(cols / SIDE, GROUPS), rows],
    workgroup = THREADS,
    resident = 2,
    requires(inner == 8 * THREADS * VECTORS, cols % SIDE == 0),
    dependent,
    instances(T = [bf16], VECTORS = [2], SIDE = [2], DEPTH = [5], GROUPS = [264, 4])
)]
pub fn norm_product_ahead<
    T: Float,
    const VECTORS: u32,
    const SIDE: u32,
    const DEPTH: u32,
    const GROUPS: u32,
>(
    h: &Tensor<T, (rows, inner)>,
    norm: &Tensor<T, (inner,)>,
    w: &Tensor<T, (cols, inner)>,
    y: &mut Tensor<T, (rows, cols)>,
    eps: f32,
) {
    let (row, tiles, stride) = (group_id(1), cols / SIDE, group_count(0));
    let mut weights = ahead::<T>(8 * DEPTH * SIDE * VECTORS);
    for slot in unroll(0..DEPTH) {
        let tile = group_id(0) + slot * stride;
        copy_tile::<T, VECTORS, SIDE, _>(w, &mut weights, slot, tile < tiles, |o| tile * SIDE + o);
    }
    let mut parts = shared::<f32>(2 * SIDE * SUBGROUPS);
    let mut norms = private::<T>(8 * VECTORS);
    let mut inputs = private::<T>(8 * VECTORS);
    load_row::<T, THREADS, VECTORS, _>(inner / 8, &mut norms, |i| norm.load8(i));
    clear(&mut parts, 2 * SIDE);
    launch_barrier();
    load_row::<T, THREADS, VECTORS, _>(inner / 8, &mut inputs, |i| h.load8([row, i]));
    norm_held::<T, THREADS, VECTORS>(&mut inputs, &norms, inner / 8, eps);
    let mut sums = private::<f32>(SIDE);
    let (mut slot, mut turn) = (0u32, 0u32);
    for tile in (group_id(0)..tiles).step_by(stride as usize) {
        weights.wait_batches(DEPTH - 1);
        sum_tile::<T, VECTORS, SIDE>(&weights, &inputs, slot, &mut sums);
        let next = tile + DEPTH * stride;
        copy_tile::<T, VECTORS, SIDE, _>(w, &mut weights, slot, next < tiles, |o| next * SIDE + o);
        gather_sums::<SIDE>(&sums, &mut parts, turn * SIDE);
        if local_index() < SIDE {
            let sum = T::from_f32(total(&parts, turn * SIDE + local_index()));
            y[[row, tile * SIDE + local_index()]] = sum;
        }
        slot = select(slot + 1 == DEPTH, 0, slot + 1);
        turn = 1 - turn;
    }
}

/// [`norm_gated_product`](crate::decode::norm_gated_product) of rows of 2,048 times `VECTORS`
/// elements, `SIDE` outputs a tile, `DEPTH` tiles on their way.
#[kernel(
    grid = [min(2 * cols / SIDE, GROUPS), rows],
    workgroup = THREADS,
    resident = 2,
    requires(inner == 8 * THREADS * VECTORS, 2 * cols % SIDE == 0),
    dependent,
    instances(T = [bf16], VECTORS = [2], SIDE = [4], DEPTH = [3], GROUPS = [264, 4])
)]
pub fn norm_gated_product_ahead<
    T: Float,
    const VECTORS: u32,
    const SIDE: u32,
    const DEPTH: u32,
    const GROUPS: u32,
>(
    h: &Tensor<T, (rows, inner)>,
    norm: &Tensor<T, (inner,)>,
    w: &Tensor<T, { (2 * cols, inner) }>,
    y: &mut Tensor<T, (rows, cols)>,
    eps: f32,
) {
    let pairs = SIDE / 2;
    let (row, tiles, stride) = (group_id(1), cols / pairs, group_count(0));
    let row_of = |tile: u32, o: u32| tile * pairs + o % pairs + o / pairs * cols;
    let mut weights = ahead::<T>(8 * DEPTH * SIDE * VECTORS);
    for slot in unroll(0..DEPTH) {
        let tile = group_id(0) + slot * stride;
        copy_tile::<T, VECTORS, SIDE, _>(w, &mut weights, slot, tile < tiles, |o| row_of(tile, o));
    }
    let mut parts = shared::<f32>(2 * SIDE * SUBGROUPS);
    let mut norms = private::<T>(8 * VECTORS);
    let mut inputs = private::<T>(8 * VECTORS);
    load_row::<T, THREADS, VECTORS, _>(inner / 8, &mut norms, |i| norm.load8(i));
    clear(&mut parts, 2 * SIDE);
    launch_barrier();
    load_row::<T, THREADS, VECTORS, _>(inner / 8, &mut inputs, |i| h.load8([row, i]));
    norm_held::<T, THREADS, VECTORS>(&mut inputs, &norms, inner / 8, eps);
    let mut sums = private::<f32>(SIDE);
    let (mut slot, mut turn) = (0u32, 0u32);
    for tile in (group_id(0)..tiles).step_by(stride as usize) {
        weights.wait_batches(DEPTH - 1);
        sum_tile::<T, VECTORS, SIDE>(&weights, &inputs, slot, &mut sums);
        let next = tile + DEPTH * stride;
        copy_tile::<T, VECTORS, SIDE, _>(w, &mut weights, slot, next < tiles, |o| row_of(next, o));
        gather_sums::<SIDE>(&sums, &mut parts, turn * SIDE);
        if local_index() < pairs {
            let n = tile * pairs + local_index();
            y[[row, n]] = gated::<T>(&parts, turn * SIDE + local_index(), pairs);
        }
        slot = select(slot + 1 == DEPTH, 0, slot + 1);
        turn = 1 - turn;
    }
}

/// [`product_add`](crate::decode::product_add) of rows of 2,048 times `VECTORS` elements, as
/// [`norm_product_ahead`].
#[kernel(
    grid = [min(cols / SIDE, GROUPS), rows],
    workgroup = THREADS,
    resident = 2,
    requires(
        inner == 8 * THREADS * VECTORS,
        cols % SIDE == 0,
        cols <= GROUPS * MOST_COLUMNS
    ),
    dependent,
    instances(T = [bf16], VECTORS = [2], SIDE = [4], DEPTH = [3], GROUPS = [264, 4]),
    instances(T = [bf16], VECTORS = [6], SIDE = [2], DEPTH = [2], GROUPS = [264, 4])
)]
pub fn product_add_ahead<
    T: Float,
    const VECTORS: u32,
    const SIDE: u32,
    const DEPTH: u32,
    const GROUPS: u32,
>(
    x: &Tensor<T, (rows, inner)>,
    w: &Tensor<T, (cols, inner)>,
    h: &mut Tensor<T, (rows, cols)>,
) {
    let (row, tiles, stride) = (group_id(1), cols / SIDE, group_count(0));
    let mut weights = ahead::<T>(8 * DEPTH * SIDE * VECTORS);
    for slot in unroll(0..DEPTH) {
        let tile = group_id(0) + slot * stride;
        copy_tile::<T, VECTORS, SIDE, _>(w, &mut weights, slot, tile < tiles, |o| tile * SIDE + o);
    }
    let mut parts = shared::<f32>(2 * SIDE * SUBGROUPS);
    let mut residuals = shared::<T>(THREADS);
    let mut inputs = private::<T>(8 * VECTORS);
    clear(&mut parts, 2 * SIDE);
    launch_barrier();
    load_row::<T, THREADS, VECTORS, _>(inner / 8, &mut inputs, |i| x.load8([row, i]));
    // All of the workgroup's at once: each in its turn would be a latency of its own.
    let own = group_id(0) + local_index() / SIDE * stride;
    if own < tiles {
        residuals[local_index()] = h[[row, own * SIDE + local_index() % SIDE]];
    }
    barrier_global();
    let mut sums = private::<f32>(SIDE);
    let (mut slot, mut turn, mut at) = (0u32, 0u32, 0u32);
    for tile in (group_id(0)..tiles).step_by(stride as usize) {
        weights.wait_batches(DEPTH - 1);
        sum_tile::<T, VECTORS, SIDE>(&weights, &inputs, slot, &mut sums);
        let next = tile + DEPTH * stride;
        copy_tile::<T, VECTORS, SIDE, _>(w, &mut weights, slot, next < tiles, |o| next * SIDE + o);
        gather_sums::<SIDE>(&sums, &mut parts, turn * SIDE);
        if local_index() < SIDE {
            let sum = T::from_f32(total(&parts, turn * SIDE + local_index()));
            let residual = residuals[at + local_index()].to_f32();
            h[[row, tile * SIDE + local_index()]] = T::from_f32(residual + sum.to_f32());
        }
        slot = select(slot + 1 == DEPTH, 0, slot + 1);
        turn = 1 - turn;
        at += SIDE;
    }
}

/// The instance of this module's kernels for weights of `inner` inputs of that type, if there is
/// one: with 4,096 inputs of [`norm_gated_product_ahead`] and [`product_add_ahead`] or, where it
/// `leaves_room`, of [`norm_product_ahead`], beside which an H200 holds a workgroup of the attention
/// that follows; with 12,288 of [`product_add_ahead`] alone.
pub const fn ahead_instance(
    scalar: iron_ir::Scalar,
    outputs: u64,
    inner: u64,
    leaves_room: bool,
) -> Option<&'static str> {
    match inner {
        _ if !matches!(scalar, iron_ir::Scalar::BF16) || outputs > MOST_OUTPUTS => None,
        4096 if leaves_room => Some("-VECTORS=2-SIDE=2-DEPTH=5-GROUPS=264"),
        4096 => Some("-VECTORS=2-SIDE=4-DEPTH=3-GROUPS=264"),
        12288 => Some("-VECTORS=6-SIDE=2-DEPTH=2-GROUPS=264"),
        _ => None,
    }
}

/// Rows and outputs of the tests, and their inputs: a tile for each workgroup, or as many as are on
/// their way and then one for some workgroups and two for others.
fn shapes(t: &Cases) -> ([(u64, u64); 2], u64) {
    let [vectors, side, depth, groups] =
        ["VECTORS", "SIDE", "DEPTH", "GROUPS"].map(|name| t.constant(name) as u64);
    let tiles = if groups == 4 { depth * groups + 6 } else { 4 };
    (
        [(2, 8), (1, tiles * side)],
        u64::from(8 * THREADS) * vectors,
    )
}

#[test_kernel(norm_product_ahead)]
fn norm_product_ahead_matches_f64(t: &mut Cases) {
    let (shapes, inner) = shapes(t);
    for (rows, cols) in shapes {
        let allowed = 3e-5 + rounding(t, inner);
        t.case(format!("{rows}x{cols}"))
            .input("h", [rows, inner], normal(0.0, 1.0))
            .input("norm", [inner], uniform(0.5, 1.5))
            .input("w", [cols, inner], normal(0.0, 0.1))
            .output("y", [rows, cols])
            .scalar("eps", 1e-5f32)
            .bound(Bound::relative(2e-5).absolute(allowed))
            .expect(move |inputs, out| out.set("y", normed_outputs(inputs, inner)));
    }
}

#[test_kernel(norm_gated_product_ahead)]
fn norm_gated_product_ahead_matches_f64(t: &mut Cases) {
    let (shapes, inner) = shapes(t);
    for (rows, cols) in shapes.map(|(rows, outputs)| (rows, outputs / 2)) {
        // The gate's and the other's own rounding beside that of the inputs.
        let allowed = 3e-5 + 4.0 * rounding(t, inner) * (1.0 + 0.1 * (inner as f64).sqrt());
        t.case(format!("{rows}x{cols}"))
            .input("h", [rows, inner], normal(0.0, 1.0))
            .input("norm", [inner], uniform(0.5, 1.5))
            .input("w", [2 * cols, inner], normal(0.0, 0.1))
            .output("y", [rows, cols])
            .scalar("eps", 1e-5f32)
            .bound(Bound::relative(5e-5).absolute(allowed))
            .expect(move |inputs, out| out.set("y", gated_outputs(inputs, inner, cols)));
    }
}

#[test_kernel(product_add_ahead)]
fn product_add_ahead_matches_f64(t: &mut Cases) {
    let (shapes, inner) = shapes(t);
    for (rows, cols) in shapes {
        let allowed = 3e-5 + rounding(t, inner) + 4.0 * rounding(t, 1);
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, inner], normal(0.0, 1.0))
            .input("w", [cols, inner], normal(0.0, 0.1))
            .inout("h", [rows, cols], normal(0.0, 1.0))
            .bound(Bound::relative(2e-5).absolute(allowed))
            .expect(move |inputs, out| out.set("h", added_outputs(inputs, inner)));
    }
}
