//! Joins the splits of many rows that have few splits each.

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, ints, normal};

use crate::attention::{EXTRAS, split_length_of};
use crate::attention_cases::joined_of;

/// Splits that a thread of [`attention_join`] reads at once.
const JOINED: u32 = 4;

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
    for j in unroll(0..JOINED) {
        let split = j.min(splits - 1);
        parts.store8(j, partial.load8([row, head, split, column]));
        scores.store2(j, stats.load2([row, head, split, 0]));
    }
    let seen = (positions[row] + 1).min(window);
    let last = index_in(seen.div_ceil(split_length_of(seen, least)) - 1, splits);
    let sink = sinks[head];
    let mut largest = sink;
    for j in unroll(0..JOINED) {
        largest = largest.max(select(j <= last, scores[2 * j], f32::NEG_INFINITY));
    }
    for split in JOINED..last + 1 {
        largest = largest.max(stats[[row, head, split, 0]]);
    }
    let mut output = splat8(0.0f32);
    let mut sum = (sink - largest).exp();
    for start in (0..last + 1).step_by(JOINED as usize) {
        for j in unroll(0..JOINED) {
            let factor = (scores[2 * j] - largest).exp();
            let next = parts.load8(j).mul_add(splat8(factor), output);
            let taken = start + j <= last;
            output = select(taken, next, output);
            sum = select(taken, sum + factor * scores[2 * j + 1], sum);
        }
        if start + JOINED <= last {
            for j in unroll(0..JOINED) {
                let split = (start + JOINED + j).min(last);
                parts.store8(j, partial.load8([row, head, split, column]));
                scores.store2(j, stats.load2([row, head, split, 0]));
            }
        }
    }
    y.store8([row, head, column], (output / splat8(sum)).to::<T>());
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
