//! Rotary position embedding (Su et al., 2021), in place, for query and key heads.
//!
//! The inverse frequencies are a tensor, so that every recipe (default, linear, llama3, …) is
//! computed once on the host; positions are a device tensor, so that a recorded step replays.
//! `magnitude` scales the rotated elements, as YaRN and longrope ask for; 1 otherwise.

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, ints, normal, uniform};

/// Half-split form (GPT-NeoX, Hugging Face Llama): for `j` in `0..pairs` rotates elements
/// `(j, j + pairs)` of each head by `positions[r] * frequencies[j]` radians. Elements past
/// `2 * pairs` are untouched (partial rotary).
#[kernel(grid = [rows, heads], workgroup = 64, requires(2 * pairs <= head_dim), instances(T = [f32, f16, bf16]))]
pub fn rope_half<T: Float>(
    x: &mut Tensor<T, (rows, heads, head_dim)>,
    positions: &Tensor<u32, (rows,)>,
    frequencies: &Tensor<f32, (pairs,)>,
    magnitude: f32,
) {
    let (row, head) = (group_id(0), group_id(1));
    let position = positions[row] as f32;
    for j in strided(pairs) {
        let angle = position * frequencies[j];
        let (sine, cosine) = (angle.sin() * magnitude, angle.cos() * magnitude);
        let a = x[[row, head, j]].to_f32();
        let b = x[[row, head, j + pairs]].to_f32();
        x[[row, head, j]] = T::from_f32(a * cosine - b * sine);
        x[[row, head, j + pairs]] = T::from_f32(b * cosine + a * sine);
    }
}

/// Interleaved form (the original paper, GGUF Llama files): rotates elements `(2j, 2j + 1)`.
#[kernel(grid = [rows, heads], workgroup = 64, requires(2 * pairs <= head_dim), instances(T = [f32, f16, bf16]))]
pub fn rope_interleaved<T: Float>(
    x: &mut Tensor<T, (rows, heads, head_dim)>,
    positions: &Tensor<u32, (rows,)>,
    frequencies: &Tensor<f32, (pairs,)>,
    magnitude: f32,
) {
    let (row, head) = (group_id(0), group_id(1));
    let position = positions[row] as f32;
    for j in strided(pairs) {
        let angle = position * frequencies[j];
        let (sine, cosine) = (angle.sin() * magnitude, angle.cos() * magnitude);
        let a = x[[row, head, 2 * j]].to_f32();
        let b = x[[row, head, 2 * j + 1]].to_f32();
        x[[row, head, 2 * j]] = T::from_f32(a * cosine - b * sine);
        x[[row, head, 2 * j + 1]] = T::from_f32(b * cosine + a * sine);
    }
}

/// Rows, heads, head size, rotated pairs.
const SHAPES: [(u64, u64, u64, u64); 4] = [
    (0, 2, 8, 4),
    (1, 1, 64, 32),
    (5, 3, 80, 40),
    (3, 2, 128, 32),
];

/// Plain for some shapes, YaRN's for a factor of 4 for the others.
fn magnitude(pairs: u64) -> f32 {
    if pairs == 40 { 1.138_629_4 } else { 1.0 }
}

/// Rotates every pair `(first(j), second(j))` in f64. The angle is the f32 product that the
/// format defines: at large positions its rounding is part of every implementation's answer.
fn rotate(
    x: &[f64],
    positions: &[i64],
    frequencies: &[f64],
    heads: u64,
    head_dim: u64,
    pair: impl Fn(usize) -> (usize, usize),
) -> Vec<f64> {
    let mut y = x.to_vec();
    let scale = f64::from(magnitude(frequencies.len() as u64));
    for (head, values) in y.chunks_mut(head_dim as usize).enumerate() {
        let position = positions[head / heads as usize] as f32;
        for (j, frequency) in frequencies.iter().enumerate() {
            let angle = f64::from(position * *frequency as f32);
            let (first, second) = pair(j);
            let (a, b) = (values[first] * scale, values[second] * scale);
            values[first] = a * angle.cos() - b * angle.sin();
            values[second] = b * angle.cos() + a * angle.sin();
        }
    }
    y
}

#[test_kernel(rope_half)]
fn rope_half_matches_f64(t: &mut Cases) {
    for (rows, heads, head_dim, pairs) in SHAPES {
        t.case(format!("{rows}x{heads}x{head_dim}/{pairs}"))
            .inout("x", [rows, heads, head_dim], normal(0.0, 1.0))
            .input("positions", [rows], ints(0, 8192))
            .input("frequencies", [pairs], uniform(1e-4, 1.0))
            .scalar("magnitude", magnitude(pairs))
            .bound(Bound::relative(1e-5).absolute(2e-6))
            .expect(move |inputs, out| {
                let positions = inputs.ints("positions");
                let half = pairs as usize;
                let pair = |j| (j, j + half);
                let (x, f) = (&inputs["x"], &inputs["frequencies"]);
                out.set("x", rotate(x, positions, f, heads, head_dim, pair));
            });
    }
}

#[test_kernel(rope_interleaved)]
fn rope_interleaved_matches_f64(t: &mut Cases) {
    for (rows, heads, head_dim, pairs) in SHAPES {
        t.case(format!("{rows}x{heads}x{head_dim}/{pairs}"))
            .inout("x", [rows, heads, head_dim], normal(0.0, 1.0))
            .input("positions", [rows], ints(0, 8192))
            .input("frequencies", [pairs], uniform(1e-4, 1.0))
            .scalar("magnitude", magnitude(pairs))
            .bound(Bound::relative(1e-5).absolute(2e-6))
            .expect(move |inputs, out| {
                let positions = inputs.ints("positions");
                let pair = |j| (2 * j, 2 * j + 1);
                let (x, f) = (&inputs["x"], &inputs["frequencies"]);
                out.set("x", rotate(x, positions, f, heads, head_dim, pair));
            });
    }
}
