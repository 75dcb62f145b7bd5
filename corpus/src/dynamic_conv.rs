//! Convolutions whose weights depend on the position, a group of channels each ("Pay Less Attention
//! with Lightweight and Dynamic Convolutions", Wu and others, 2019): the weights first, then the
//! sums.

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, ints, normal};

/// The weights of each position and group: `weights[r, g, :]` is the softmax of `logits[r, g, :]`.
#[kernel(grid = [ceil_div(groups, 64), rows], workgroup = 64, instances(T = [f32, f16, bf16]))]
pub fn dynamic_conv_weights<T: Float>(
    logits: &Tensor<T, (rows, groups, width)>,
    weights: &mut Tensor<f32, (rows, groups, width)>,
) {
    let (group, row) = (global_id(0), group_id(1));
    if group >= groups {
        return;
    }
    let mut largest = f32::NEG_INFINITY;
    for j in 0..width {
        largest = largest.max_nan(logits[[row, group, j]].to_f32());
    }
    let mut sum = 0.0f32;
    for j in 0..width {
        sum += (logits[[row, group, j]].to_f32() - largest).exp();
    }
    for j in 0..width {
        let weight = (logits[[row, group, j]].to_f32() - largest).exp();
        weights[[row, group, j]] = weight / sum;
    }
}

/// The sums: `y[r, c] = sum_j weights[r, c / (channels / groups), j] * x[r - (width - 1) + j, c]`,
/// where the rows before a segment's first are the `width - 1` that its history holds, the oldest
/// first, as in [`causal_conv`](crate::recurrent::causal_conv);
/// [`conv_history`](crate::recurrent::conv_history) carries it on.
#[kernel(
    grid = [ceil_div(channels, 256), rows],
    workgroup = 256,
    requires(held + 1 == width, groups > 0, channels % groups == 0),
    instances(T = [f32, f16, bf16])
)]
pub fn dynamic_conv<T: Float>(
    x: &Tensor<T, (rows, channels)>,
    weights: &Tensor<f32, (rows, groups, width)>,
    history: &Tensor<T, (slots, held, channels)>,
    segment_of: &Tensor<u32, (rows,)>,
    starts: &Tensor<u32, { (segments + 1,) }>,
    from: &Tensor<u32, (segments,)>,
    y: &mut Tensor<T, (rows, channels)>,
) {
    let (channel, row) = (global_id(0), group_id(1));
    if channel >= channels {
        return;
    }
    let segment = index_in(segment_of[row], segments);
    let slot = index_in(from[segment], slots);
    let offset = row - starts[segment];
    let group = channel / (channels / groups);
    let mut sum = 0.0f32;
    for j in 0..width {
        let back = width - 1 - j;
        let value = if back <= offset {
            x[[row - back, channel]].to_f32()
        } else {
            history[[slot, held + offset - back, channel]].to_f32()
        };
        sum = fma(weights[[row, group, j]], value, sum);
    }
    y[[row, channel]] = T::from_f32(sum);
}

#[test_kernel(dynamic_conv_weights)]
fn dynamic_conv_weights_match_f64(t: &mut Cases) {
    for (rows, groups, width) in [(0u64, 2u64, 3u64), (1, 1, 1), (5, 70, 7), (64, 16, 31)] {
        t.case(format!("{rows} rows, {groups} groups of {width}"))
            .input("logits", [rows, groups, width], normal(0.0, 3.0))
            .output("weights", [rows, groups, width])
            .bound(Bound::relative(2e-6))
            .expect(move |inputs, out| {
                let mut all = Vec::new();
                for logits in inputs["logits"].chunks(width as usize) {
                    let powers: Vec<f64> = logits.iter().map(|x| x.exp()).collect();
                    let sum: f64 = powers.iter().sum();
                    all.extend(powers.iter().map(|power| power / sum));
                }
                out.set("weights", all);
            });
    }
}

#[test_kernel(dynamic_conv)]
fn dynamic_conv_matches_f64(t: &mut Cases) {
    // Lengths of the segments, channels, groups, width.
    let shapes: [(&'static [usize], u64, u64, u64); 5] = [
        (&[1], 1, 1, 1),
        (&[2, 1, 5], 12, 3, 4),
        (&[7, 3], 300, 4, 7),
        (&[1, 1, 1], 64, 64, 3),
        (&[40], 96, 2, 31),
    ];
    for (lengths, channels, groups, width) in shapes {
        let rows = lengths.iter().sum::<usize>();
        let segments = lengths.len() as u64;
        let start = move |segment: usize| lengths[..segment].iter().sum::<usize>() as i64;
        let segment_of = move |row: usize| {
            let after = |s: &usize| start(*s + 1) > row as i64;
            (0..lengths.len()).find(after).unwrap_or(0)
        };
        // Histories lie in the opposite order.
        let slot_of = move |segment: usize| lengths.len() - 1 - segment;
        t.case(format!(
            "segments {lengths:?}, {channels} channels, {groups} groups of {width}"
        ))
        .input("x", [rows as u64, channels], normal(0.0, 1.0))
        .input("weights", [rows as u64, groups, width], normal(0.0, 0.5))
        .input("history", [segments, width - 1, channels], normal(0.0, 1.0))
        .input(
            "segment_of",
            [rows as u64],
            ints(0, 1).map(move |r, _| segment_of(r) as i64),
        )
        .input(
            "starts",
            [segments + 1],
            ints(0, 1).map(move |s, _| start(s)),
        )
        .input(
            "from",
            [segments],
            ints(0, 1).map(move |s, _| slot_of(s) as i64),
        )
        .output("y", [rows as u64, channels])
        .bound(Bound::relative(1e-6).absolute(5e-6))
        .expect(move |inputs, out| {
            let (channels, width) = (channels as usize, width as usize);
            let per_group = channels / groups as usize;
            let mut y = Vec::new();
            for row in 0..rows {
                let segment = segment_of(row);
                let first = start(segment) as usize;
                for channel in 0..channels {
                    let value = |j: usize| {
                        // The row in the segment, history included, that tap `j` reads.
                        let at = row - first + j;
                        match at.checked_sub(width - 1) {
                            Some(own) => inputs["x"][(first + own) * channels + channel],
                            None => {
                                let slot = slot_of(segment);
                                inputs["history"][(slot * (width - 1) + at) * channels + channel]
                            }
                        }
                    };
                    let group = row * groups as usize + channel / per_group;
                    let term = |j: usize| inputs["weights"][group * width + j] * value(j);
                    y.push((0..width).map(term).sum());
                }
            }
            out.set("y", y);
        });
    }
}
