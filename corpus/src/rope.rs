//! Rotary position embedding (Su et al., 2021), in place, for query and key heads.
//!
//! The inverse frequencies are a tensor, so that every recipe (default, linear, llama3, …) is
//! computed once on the host; positions are a device tensor, so that a recorded step replays.
//! `magnitude` scales the rotated elements, as YaRN and longrope ask for; 1 otherwise.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, ints, normal, uniform};

/// Most rotated pairs of a head.
const MOST_PAIRS: u32 = 256;

/// Sine and cosine of every pair of a row, of `positions[row] * frequencies[j]` radians, times
/// `magnitude`.
#[device_fn]
fn rotations(
    positions: &Tensor<u32, 1>,
    frequencies: &Tensor<f32, 1>,
    row: u32,
    magnitude: f32,
    sines: &mut Shared<f32>,
    cosines: &mut Shared<f32>,
) {
    let position = positions[row] as f32;
    for j in strided(frequencies.dim(0)) {
        let angle = position * frequencies[j];
        sines[j] = angle.sin() * magnitude;
        cosines[j] = angle.cos() * magnitude;
    }
    barrier();
}

/// Half-split form (GPT-NeoX, Hugging Face Llama): for `j` in `0..pairs` rotates elements
/// `(j, j + pairs)` of each head by `positions[r] * frequencies[j]` radians. Elements past
/// `2 * pairs` are untouched (partial rotary).
#[kernel(
    grid = [rows],
    workgroup = 256,
    requires(2 * pairs <= head_dim, pairs <= MOST_PAIRS, pairs % 4 == 0, head_dim % 4 == 0),
    instances(T = [f32, f16, bf16])
)]
pub fn rope_half<T: Float>(
    x: &mut Tensor<T, (rows, heads, head_dim)>,
    positions: &Tensor<u32, (rows,)>,
    frequencies: &Tensor<f32, (pairs,)>,
    magnitude: f32,
) {
    let row = group_id(0);
    let (mut sines, mut cosines) = (shared::<f32>(MOST_PAIRS), shared::<f32>(MOST_PAIRS));
    rotations(
        positions,
        frequencies,
        row,
        magnitude,
        &mut sines,
        &mut cosines,
    );
    let half = pairs / 4;
    for i in strided(heads * half) {
        let (head, j) = (i / half, i % half);
        let (sine, cosine) = (sines.load4(j), cosines.load4(j));
        let a = x.load4([row, head, j]).to_f32();
        let b = x.load4([row, head, half + j]).to_f32();
        x.store4([row, head, j], (a * cosine - b * sine).to::<T>());
        x.store4([row, head, half + j], (b * cosine + a * sine).to::<T>());
    }
}

/// [`rope_half`] by given tables: rotates by the angle of cosine `cosines[r, j]` and sine
/// `sines[r, j]`, which hold a model's magnitude too. A thread rotates eight pairs.
#[kernel(
    grid = [ceil_div(heads * pairs, 1024), rows],
    workgroup = 128,
    requires(2 * pairs <= head_dim, pairs % 8 == 0, pairs > 0, head_dim % 8 == 0),
    instances(T = [f32, f16, bf16])
)]
pub fn rope_half_by_tables<T: Float>(
    x: &mut Tensor<T, (rows, heads, head_dim)>,
    cosines: &Tensor<T, (rows, pairs)>,
    sines: &Tensor<T, (rows, pairs)>,
) {
    let (row, half) = (group_id(1), pairs / 8);
    let (head, j) = (global_id(0) / half, global_id(0) % half);
    if head >= heads {
        return;
    }
    let a = x.load8([row, head, j]).to_f32();
    let b = x.load8([row, head, half + j]).to_f32();
    let (cosine, sine) = (
        cosines.load8([row, j]).to_f32(),
        sines.load8([row, j]).to_f32(),
    );
    x.store8([row, head, j], (a * cosine - b * sine).to::<T>());
    x.store8([row, head, half + j], (b * cosine + a * sine).to::<T>());
}

/// Interleaved form (the original paper, GGUF Llama files): rotates elements `(2j, 2j + 1)`.
#[kernel(
    grid = [rows],
    workgroup = 256,
    requires(2 * pairs <= head_dim, pairs <= MOST_PAIRS, pairs % 4 == 0, head_dim % 4 == 0),
    instances(T = [f32, f16, bf16])
)]
pub fn rope_interleaved<T: Float>(
    x: &mut Tensor<T, (rows, heads, head_dim)>,
    positions: &Tensor<u32, (rows,)>,
    frequencies: &Tensor<f32, (pairs,)>,
    magnitude: f32,
) {
    let row = group_id(0);
    let (mut sines, mut cosines) = (shared::<f32>(MOST_PAIRS), shared::<f32>(MOST_PAIRS));
    rotations(
        positions,
        frequencies,
        row,
        magnitude,
        &mut sines,
        &mut cosines,
    );
    let twos = pairs / 2;
    for i in strided(heads * twos) {
        let (head, j) = (i / twos, i % twos);
        let (sine, cosine) = (sines.load2(j), cosines.load2(j));
        let v = x.load4([row, head, j]).to_f32();
        let rotated = vec4(
            v[0] * cosine[0] - v[1] * sine[0],
            v[1] * cosine[0] + v[0] * sine[0],
            v[2] * cosine[1] - v[3] * sine[1],
            v[3] * cosine[1] + v[2] * sine[1],
        );
        x.store4([row, head, j], rotated.to::<T>());
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

#[test_kernel(rope_half_by_tables)]
fn rope_half_by_tables_matches_f64(t: &mut Cases) {
    for (rows, heads, head_dim, pairs) in [
        (0, 2, 16, 8),
        (1, 1, 64, 32),
        (5, 3, 80, 40),
        (3, 40, 128, 32),
    ] {
        let table = || normal(0.0, 1.0);
        t.case(format!("{rows}x{heads}x{head_dim}/{pairs}"))
            .inout("x", [rows, heads, head_dim], normal(0.0, 1.0))
            .input("cosines", [rows, pairs], table())
            .input("sines", [rows, pairs], table())
            .bound(Bound::relative(1e-5).absolute(2e-6))
            .expect(move |inputs, out| {
                let mut y = inputs["x"].to_vec();
                for (at, head) in y.chunks_mut(head_dim as usize).enumerate() {
                    let row = at / heads as usize;
                    for j in 0..pairs as usize {
                        let [cosine, sine] =
                            ["cosines", "sines"].map(|t| inputs[t][row * pairs as usize + j]);
                        let (a, b) = (head[j], head[j + pairs as usize]);
                        head[j] = a * cosine - b * sine;
                        head[j + pairs as usize] = b * cosine + a * sine;
                    }
                }
                out.set("x", y);
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

#[bench_kernel(rope_half)]
fn rope_half_of_8b(b: &mut Benches) {
    let bytes = u64::from(b.scalar("T").bytes());
    let (rows, heads, head_dim) = (4096, 40, 128);
    b.bench(format!("{rows}x{heads}x{head_dim}"))
        .inout("x", [rows, heads, head_dim], normal(0.0, 1.0))
        .input("positions", [rows], ints(0, 8192))
        .input("frequencies", [head_dim / 2], uniform(1e-4, 1.0))
        .scalar("magnitude", 1.0f32)
        .bytes(2 * rows * heads * head_dim * bytes);
}
