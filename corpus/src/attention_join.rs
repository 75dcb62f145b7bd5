//! Joins the splits of rows that have few splits each: of many rows by a kernel, or in the launch that
//! attends.

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, ints, normal};

use crate::arrivals::last_to_arrive;
use crate::attention::{EXTRAS, split_length_of, split_of_length};
use crate::attention_cases::{joined_of, rows_case};
use crate::matrix_attention::{
    THREADS, WEIGHTS, attend_from_cache, decode_of, span_of, with_output,
};

/// Splits that a thread of [`attention_join`] reads at once, and one of
/// [`attention_decode_joined`], which has registers to spare there.
const JOINED: u32 = 4;
const AT_ONCE: u32 = 8;

/// Joins the splits of
/// [`attention_decode_matrix`](crate::matrix_attention::attention_decode_matrix) in their order, as
/// [`attention_combine`](crate::attention::attention_combine) does (to the bit where a row has one):
/// `y = sum_s e^(m_s - m) o_s / (e^(sink - m) + sum_s e^(m_s - m) l_s)`. A thread has eight
/// elements of a head, for many rows of few splits each.
#[kernel(
    grid = [ceil_div(heads * head_dim, 2048), rows],
    workgroup = 256,
    requires(head_dim % 8 == 0, head_dim > 0, splits > 0, least > 0),
    dependent,
    instances(T = [f16, bf16])
)]
pub fn attention_join<T: Float>(
    partial: &Tensor<f32, (rows, heads, splits, head_dim)>,
    stats: &Tensor<f32, { (rows, heads, splits, 2) }>,
    positions: &Tensor<u32, (rows,)>,
    sinks: &Tensor<f32, (heads,)>,
    y: &mut Tensor<T, (rows, heads, head_dim)>,
    window: u32,
    least: u32,
) {
    let row = group_id(1);
    let (head, column) = (global_id(0) / (head_dim / 8), global_id(0) % (head_dim / 8));
    if head >= heads {
        return;
    }
    // Every load is taken, the ones past the end again: none waits for the position.
    let mut parts = private::<f32>(8 * JOINED);
    let mut scores = private::<f32>(2 * JOINED);
    let cell = Cell { row, head, column };
    take::<JOINED>(partial, stats, &mut parts, &mut scores, cell, 0, splits - 1);
    let seen = (positions[row] + 1).min(window);
    let last = index_in(seen.div_ceil(split_length_of(seen, least)) - 1, splits);
    join_taken::<T, JOINED>(
        partial,
        stats,
        sinks,
        y,
        &mut parts,
        &mut scores,
        cell,
        last,
    );
}

/// Eight elements of a head.
#[device_struct]
struct Cell {
    row: u32,
    head: u32,
    column: u32,
}

/// Loads what splits from `first` on gave, that of split `last` where there are no more.
#[device_fn]
fn take<const AT_ONCE: u32>(
    partial: &Tensor<f32, 4>,
    stats: &Tensor<f32, 4>,
    parts: &mut Private<f32>,
    scores: &mut Private<f32>,
    cell: Cell,
    first: u32,
    last: u32,
) {
    for j in unroll(0..AT_ONCE) {
        let split = (first + j).min(last);
        parts.store8(j, partial.load8([cell.row, cell.head, split, cell.column]));
        scores.store2(j, stats.load2([cell.row, cell.head, split, 0]));
    }
}

/// Joins splits up to `last`, of which the first `AT_ONCE` are taken.
#[device_fn]
#[expect(
    clippy::too_many_arguments,
    reason = "a part of two kernels, with their tensors"
)]
fn join_taken<T: Float, const AT_ONCE: u32>(
    partial: &Tensor<f32, 4>,
    stats: &Tensor<f32, 4>,
    sinks: &Tensor<f32, 1>,
    y: &mut Tensor<T, 3>,
    parts: &mut Private<f32>,
    scores: &mut Private<f32>,
    cell: Cell,
    last: u32,
) {
    let (row, head) = (cell.row, cell.head);
    let sink = sinks[head];
    let mut largest = sink;
    for j in unroll(0..AT_ONCE) {
        largest = largest.max(select(j <= last, scores[2 * j], f32::NEG_INFINITY));
    }
    for split in AT_ONCE..last + 1 {
        largest = largest.max(stats[[row, head, split, 0]]);
    }
    let mut output = splat8(0.0f32);
    let mut sum = (sink - largest).exp();
    for start in (0..last + 1).step_by(AT_ONCE as usize) {
        for j in unroll(0..AT_ONCE) {
            let factor = (scores[2 * j] - largest).exp();
            let next = parts.load8(j).mul_add(splat8(factor), output);
            let taken = start + j <= last;
            output = select(taken, next, output);
            sum = select(taken, sum + factor * scores[2 * j + 1], sum);
        }
        if start + AT_ONCE <= last {
            take::<AT_ONCE>(partial, stats, parts, scores, cell, start + AT_ONCE, last);
        }
    }
    y.store8([row, head, cell.column], (output / splat8(sum)).to::<T>());
}

/// [`attention_decode_matrix`](crate::matrix_attention::attention_decode_matrix) and
/// [`attention_join`] in one launch, to the bit: the last workgroup of a row and its group of heads
/// joins their splits. `arrived` is 0 before a launch and after it. For rows of few splits: one
/// workgroup reads all of them.
#[kernel(
    grid = [splits, kv_heads, rows],
    workgroup = THREADS,
    resident = 4,
    requires(
        heads % kv_heads == 0,
        kv_heads <= heads,
        heads / kv_heads <= 8,
        block_size % 16 == 0,
        block_size > 0,
        least > 0
    ),
    instances(T = [bf16], HEAD_DIM = [128])
)]
pub fn attention_decode_joined<T: Float, const HEAD_DIM: u32>(
    q: &Tensor<T, (rows, heads, HEAD_DIM)>,
    k_cache: &Tensor<T, (blocks, kv_heads, block_size, HEAD_DIM)>,
    v_cache: &Tensor<T, (blocks, kv_heads, block_size, HEAD_DIM)>,
    positions: &Tensor<u32, (rows,)>,
    sequences: &Tensor<u32, (rows,)>,
    block_table: &Tensor<u32, (all_sequences, max_blocks)>,
    sinks: &Tensor<f32, (heads,)>,
    partial: &mut Tensor<f32, (rows, heads, splits, HEAD_DIM)>,
    stats: &mut Tensor<f32, { (rows, heads, splits, 2) }>,
    arrived: &mut Tensor<u32, { (rows * kv_heads,) }>,
    y: &mut Tensor<T, (rows, heads, HEAD_DIM)>,
    scale: f32,
    window: u32,
    soft_cap: f32,
    least: u32,
) {
    let (kv_head, row) = (group_id(1), group_id(2));
    let (position, sequence) = (positions[row], sequences[row]);
    let (first, end) = split_of_length(position + 1, window, group_id(0), least);
    if first >= end {
        return;
    }
    let sequence = index_in(sequence, all_sequences);
    let seen = (position + 1).min(window);
    let last = index_in(seen.div_ceil(split_length_of(seen, least)) - 1, splits);
    attend_from_cache::<T, HEAD_DIM>(
        span_of(first, end, block_size),
        sequence,
        last == 0,
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
    if last > 0 && last_to_arrive(arrived, row * kv_heads + kv_head, last + 1) {
        let mut parts = private::<f32>(8 * AT_ONCE);
        let mut scores = private::<f32>(2 * AT_ONCE);
        let (present, lanes) = (heads / kv_heads, HEAD_DIM / 8);
        for i in strided(present * lanes) {
            let head = kv_head * present + i / lanes;
            let column = i % lanes;
            let cell = Cell { row, head, column };
            take::<AT_ONCE>(partial, stats, &mut parts, &mut scores, cell, 0, last);
            join_taken::<T, AT_ONCE>(
                partial,
                stats,
                sinks,
                y,
                &mut parts,
                &mut scores,
                cell,
                last,
            );
        }
    }
}

#[test_kernel(attention_join)]
fn attention_join_matches_f64(t: &mut Cases) {
    let shapes = [
        (0, 1, 1, 64, 128u32),
        (1, 1, 1, 64, 128),
        (3, 2, 6, 80, 128),
        (3, 10, 5, 256, 64),
    ];
    for ((rows, heads, splits, head_dim, least), extras) in shapes.into_iter().zip(EXTRAS) {
        let decode = joined_of(heads, head_dim, extras, least);
        let reach = i64::from(least) * splits as i64;
        t.case(format!("{rows}x{heads}x{splits}x{head_dim}, {extras:?}"))
            .input("partial", [rows, heads, splits, head_dim], normal(0.0, 1.0))
            .input("stats", [rows, heads, splits, 2], normal(3.0, 0.5))
            .input(
                "positions",
                [rows],
                ints(0, 1).map(move |row, _| (row as i64 * 300) % reach),
            )
            .input("sinks", [heads], extras.sinks(heads))
            .output("y", [rows, heads, head_dim])
            .scalar("window", extras.window)
            .scalar("least", least)
            .bound(Bound::relative(1e-5).absolute(1e-6))
            .expect(move |inputs, out| {
                let tensors = ["partial", "stats"].map(|name| &inputs[name]);
                out.set("y", decode.joined(inputs, tensors));
            });
    }
}

#[test_kernel(attention_decode_joined)]
fn attention_decode_joined_matches_f64(t: &mut Cases) {
    let head_dim = t.constant("HEAD_DIM") as u64;
    // More splits than are read at once, rows of one and of several in one launch, a window, a
    // launch of one.
    for ((rows, heads, kv_heads, longest), extras, least) in [
        ((1, 6, 1, 1300), EXTRAS[0], 128),
        ((3, 8, 2, 150), EXTRAS[0], 64),
        ((1, 8, 1, 600), EXTRAS[3], 128),
        ((2, 6, 2, 200), EXTRAS[2], 256),
    ] {
        let decode = decode_of(heads, kv_heads, head_dim, extras, least);
        with_output(rows_case(t, decode, rows, longest, false), decode, rows)
            .input("q", [rows, heads, head_dim], normal(0.0, 1.0))
            .inout("arrived", [rows * kv_heads], ints(0, 0))
            .bound(Bound::relative(2e-5).absolute(2e-5 + WEIGHTS))
            .expect(move |inputs, out| {
                let tensors = ["q", "k_cache", "v_cache"].map(|name| &inputs[name]);
                decode.set_attended(inputs, tensors, out);
            });
    }
}
