//! State-space models with a scalar decay over whole chunks of a prompt, by products of tiles
//! (Dao and Gu, "Transformers are SSMs", arXiv 2405.21060).
//!
//! [`crate::recurrent::state_space`] says what is computed: row after row. Here `CHUNK` rows of a
//! segment go together. Within a chunk that begins with the state `S`, with `d[i, j]` the product
//! of the decays of the rows `j + 1..=i`, `c[i]` of the rows `0..=i`, `e[i]` of the rows after `i`,
//! `t` the steps, `B`, `C` and `X` the rows of what is written, of what reads, and of the inputs:
//!
//! ```text
//! P[i, j] = d[i, j] t[j] (C[i] · B[j])  for j <= i, else 0        delta_products, scan_weights
//! P[i, i] += skip                                                 scan_weights
//! Y       = diag(c) C Sᵀ + P X                                    scan_chunks, delta_rows
//! S'      = c[last] S + Xᵀ diag(e t) B                            scan_chunks
//! ```
//!
//! Chunks, their numbers and their slots are those of [`crate::delta`], whose first and last
//! kernel serve here, too. Decays are multiplied, never divided. Products of 16-bit types round
//! `S`, `P` and `diag(e t) B` to the type, as much as their rows are rounded; states and sums are
//! f32.

use iron_ir::Scalar;
use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, normal, uniform};

use crate::delta::oracles::{chunks_of, numbers, unused};
use crate::recurrent::{slots, softplus, softplus_f64, source, starts, target};

/// What [`scan_chunks`] takes of each chunk and head: `weights[c, h, j, i]` is `P[i, j]` of the
/// module's doc, with zeros where a row or a column lies past the chunk's rows; `kept[c, h, 0, i]`
/// is `c[i]` and `kept[c, h, 1, i]` is `e[i] t[i]`, where rows past the chunk's keep everything and
/// add nothing. `products` are those of `C` and `B` of group `h / (heads / groups)`.
#[kernel(
    grid = [heads, ceil_div(rows, CHUNK), bounds - 1],
    workgroup = 128,
    requires(bounds > 0, heads % groups == 0, chunks + 1 == rows / CHUNK + bounds),
    instances(T = [f32, f16, bf16], CHUNK = [16])
)]
pub fn scan_weights<T: Float, const CHUNK: u32>(
    products: &Tensor<f32, (chunks, groups, CHUNK, CHUNK)>,
    step: &Tensor<T, (rows, heads)>,
    decay_log: &Tensor<f32, (heads,)>,
    skip: &Tensor<f32, (heads,)>,
    step_bias: &Tensor<f32, (heads,)>,
    starts: &Tensor<u32, (bounds,)>,
    weights: &mut Tensor<T, (chunks, heads, CHUNK, CHUNK)>,
    kept: &mut Tensor<f32, { (chunks, heads, 2, CHUNK) }>,
    least: f32,
    most: f32,
) {
    let (head, segment) = (group_id(0), group_id(2));
    let (begin, end) = (starts[segment], starts[segment + 1]);
    let first = begin + group_id(1) * CHUNK;
    if first >= end {
        return;
    }
    let chunk = begin / CHUNK + segment + group_id(1);
    let count = (end - first).min(CHUNK);
    let group = head / (heads / groups);
    let mut factors = shared::<f32>(CHUNK);
    let mut times = shared::<f32>(CHUNK);
    let rate = -(decay_log[head].exp());
    for i in strided(CHUNK) {
        let row = (first + i).min(rows - 1);
        let raw = step[[row, head]].to_f32() + step_bias[head];
        let time = softplus(raw).max(least).min(most);
        factors[i] = select(i < count, (rate * time).exp(), 1.0);
        times[i] = select(i < count, time, 0.0);
    }
    barrier();
    for at in strided(CHUNK * CHUNK) {
        let (j, i) = (at / CHUNK, at % CHUNK);
        let mut passed = 1.0f32;
        for t in j + 1..i + 1 {
            passed *= factors[t];
        }
        let product = products[[chunk, group, i, j]];
        let own = select(i == j, skip[head], 0.0);
        let weight = fma(passed * times[j], product, own);
        let inside = j <= i && i < count;
        weights[[chunk, head, j, i]] = T::from_f32(select(inside, weight, 0.0));
    }
    for i in strided(CHUNK) {
        let mut up_to = 1.0f32;
        for t in 0..i + 1 {
            up_to *= factors[t];
        }
        let mut after = 1.0f32;
        for t in i + 1..CHUNK {
            after *= factors[t];
        }
        kept[[chunk, head, 0, i]] = up_to;
        kept[[chunk, head, 1, i]] = after * times[i];
    }
}

/// Chunk after chunk of each segment: the state, and what the rows read of it, as `y[c, h, p, i]`
/// for element `p` of row `i` of chunk `c`; zero past the chunk's rows. `weights` and `kept` are
/// those of [`scan_weights`]; states and slots those of [`crate::recurrent::state_space`].
#[kernel(
    grid = [ceil_div(head_dim, CHUNK), heads, segments],
    workgroup = 128,
    requires(heads % groups == 0, chunks == rows / CHUNK + segments),
    instances(T = [f32, f16, bf16], STATE = [16, 32, 64, 128], CHUNK = [16])
)]
pub fn scan_chunks<T: Float, const STATE: u32, const CHUNK: u32>(
    x: &Tensor<T, (heads, rows, head_dim)>,
    b: &Tensor<T, (groups, rows, STATE)>,
    c: &Tensor<T, (groups, rows, STATE)>,
    weights: &Tensor<T, (chunks, heads, CHUNK, CHUNK)>,
    kept: &Tensor<f32, { (chunks, heads, 2, CHUNK) }>,
    starts: &Tensor<u32, { (segments + 1,) }>,
    from: &Tensor<u32, (segments,)>,
    to: &Tensor<u32, (segments,)>,
    states: &mut Tensor<f32, (slots, heads, head_dim, STATE)>,
    y: &mut Tensor<T, (chunks, heads, head_dim, CHUNK)>,
) {
    let (head, segment) = (group_id(1), group_id(2));
    let group = head / (heads / groups);
    let first_element = group_id(0) * CHUNK;
    let (source, target) = (index_in(from[segment], slots), index_in(to[segment], slots));
    let (begin, end) = (starts[segment], starts[segment + 1]);

    let mut vectors = shared_tile::<T>(CHUNK, STATE);
    let mut inputs = shared_tile::<T>(CHUNK, CHUNK);
    let mut shares = shared_tile::<T>(CHUNK, CHUNK);
    let mut state_left = shared_tile::<T>(CHUNK, STATE);
    let mut state = reg_tile::<f32>(CHUNK, STATE, 0.0);
    let mut output = reg_tile::<f32>(CHUNK, CHUNK, 0.0);
    let mut up_to = reg_tile::<f32>(1, CHUNK, 0.0);

    state.map_indexed(|_, row, column| {
        let element = (first_element + row).min(head_dim - 1);
        states[[source, head, element, column]]
    });
    for start in (begin..end).step_by(CHUNK as usize) {
        let chunk = index_in(begin / CHUNK + segment + (start - begin) / CHUNK, chunks);
        let count = end - start;
        up_to.map_indexed(|_, _, i| kept[[chunk, head, 0, i]]);
        let whole = kept[[chunk, head, 0, CHUNK - 1]];

        state_left.copy_from(&state);
        vectors.load(c, [group, start, 0]);
        output.fill(0.0);
        matmul_nt(&mut output, &state_left, &vectors);
        output.map2_indexed(&up_to, |x, kept, _, i| select(i < count, x * kept, 0.0));
        // What other segments' rows hold does not count, not even if it is no number.
        inputs.load(x, [head, start, first_element]);
        inputs.map_indexed(|x, i, _| select(i < count, x, T::ZERO));
        shares.load(weights, [chunk, head, 0, 0]);
        matmul_tn(&mut output, &inputs, &shares);
        output.store(y, [chunk, head, first_element, 0]);

        vectors.load(b, [group, start, 0]);
        vectors.map_indexed(|b, i, _| {
            let faded = b.to_f32() * kept[[chunk, head, 1, i]];
            T::from_f32(select(i < count, faded, 0.0))
        });
        state.map(|x| x * whole);
        matmul_tn(&mut state, &inputs, &vectors);
    }
    state.store(states, [target, head, first_element, 0]);
}

/// Lengths of segments; each is a case.
const RUNS: [&[u64]; 4] = [&[0], &[1], &[16], &[5, 0, 35]];

#[test_kernel(scan_weights)]
fn scan_weights_match_f64(t: &mut Cases) {
    let size = t.constant("CHUNK") as u64;
    for (runs, heads, groups, limits) in [
        (RUNS[0], 1u64, 1u64, (0.0, f32::INFINITY)),
        (RUNS[1], 2, 1, (0.01, 0.1)),
        (RUNS[2], 4, 2, (0.0, f32::INFINITY)),
        (RUNS[3], 3, 3, (0.0, 0.5)),
    ] {
        let rows: u64 = runs.iter().sum();
        let square = [numbers(runs, size), heads, size, size];
        let kept = [numbers(runs, size), heads, 2, size];
        t.case(format!(
            "{runs:?}, {heads} heads in {groups} groups, {limits:?}"
        ))
        .input(
            "products",
            [square[0], groups, size, size],
            normal(0.0, 1.0),
        )
        .input("step", [rows, heads], normal(-2.0, 1.0))
        .input("decay_log", [heads], uniform(-1.0, 1.0))
        .input("skip", [heads], normal(0.0, 1.0))
        .input("step_bias", [heads], normal(0.0, 1.0))
        .input("starts", [runs.len() as u64 + 1], starts(runs))
        .output("weights", square)
        .output("kept", kept)
        .scalar("least", limits.0)
        .scalar("most", limits.1)
        .bound(Bound::relative(1e-5).absolute(1e-6))
        .expect(move |inputs, out| {
            let [size, heads, groups] = [size, heads, groups].map(|n| n as usize);
            let mut weights = vec![0.0; square.iter().product::<u64>() as usize];
            let mut all_kept = vec![0.0; kept.iter().product::<u64>() as usize];
            for chunk in chunks_of(runs, size as u64) {
                for head in 0..heads {
                    let time = |i: usize| {
                        let at = (chunk.first + i) * heads + head;
                        let raw = inputs["step"][at] + inputs["step_bias"][head];
                        let (least, most) = (f64::from(limits.0), f64::from(limits.1));
                        softplus_f64(raw).max(least).min(most)
                    };
                    let decay = |range: std::ops::Range<usize>| -> f64 {
                        let inside = range.start..range.end.min(chunk.count);
                        let all: f64 = inside.map(time).sum();
                        (-inputs["decay_log"][head].exp() * all).exp()
                    };
                    let cell = chunk.number * heads + head;
                    for i in 0..size {
                        all_kept[cell * 2 * size + i] = decay(0..i + 1);
                        if i >= chunk.count {
                            continue;
                        }
                        all_kept[(cell * 2 + 1) * size + i] = decay(i + 1..size) * time(i);
                        for j in 0..=i {
                            let group = chunk.number * groups + head / (heads / groups);
                            let product = inputs["products"][(group * size + i) * size + j];
                            let own = if i == j { inputs["skip"][head] } else { 0.0 };
                            weights[(cell * size + j) * size + i] =
                                decay(j + 1..i + 1) * time(j) * product + own;
                        }
                    }
                }
            }
            out.set("weights", weights);
            out.set("kept", all_kept);
            out.untouched("weights", unused(runs, size as u64, heads * size * size));
            out.untouched("kept", unused(runs, size as u64, heads * 2 * size));
        });
    }
}

#[test_kernel(scan_chunks)]
fn scan_chunks_match_f64(t: &mut Cases) {
    let (size, state_size) = (t.constant("CHUNK") as u64, t.constant("STATE") as u64);
    // The state and what is added to it are rounded to the type at each chunk.
    let rounding = match t.scalar("T") {
        Scalar::F16 => 2f64.powi(-11),
        Scalar::BF16 => 2f64.powi(-8),
        _ => 0.0,
    };
    for (runs, heads, groups, head_dim) in [
        (RUNS[0], 1u64, 1u64, 8u64),
        (RUNS[1], 2, 1, 24),
        (RUNS[2], 4, 2, 16),
        (RUNS[3], 3, 3, 40),
    ] {
        let rows: u64 = runs.iter().sum();
        let states = [slots(runs), heads, head_dim, state_size];
        let chunks = numbers(runs, size);
        let square = [chunks, heads, size, size];
        let allowed = 3e-5 + rounding * 4.0 * (state_size as f64).sqrt();
        t.case(format!(
            "{runs:?}, {heads} heads of {head_dim} in {groups} groups"
        ))
        .input("x", [heads, rows, head_dim], normal(0.0, 1.0))
        .input("b", [groups, rows, state_size], normal(0.0, 0.3))
        .input("c", [groups, rows, state_size], normal(0.0, 0.3))
        .input("weights", square, normal(0.0, 0.3))
        .input("kept", [chunks, heads, 2, size], uniform(0.2, 1.0))
        .input("starts", [runs.len() as u64 + 1], starts(runs))
        .input("from", [runs.len() as u64], source())
        .input("to", [runs.len() as u64], target())
        .inout("states", states, normal(0.0, 1.0))
        .output("y", [chunks, heads, head_dim, size])
        .bound(Bound::relative(2e-5).absolute(allowed))
        .expect(move |inputs, out| {
            let [size, width] = [size, state_size].map(|n| n as usize);
            let [heads, groups, head_dim] = [heads, groups, head_dim].map(|n| n as usize);
            let rows = rows as usize;
            let mut states = inputs["states"].to_vec();
            let mut y = vec![0.0; chunks as usize * heads * head_dim * size];
            for (segment, &run) in runs.iter().enumerate() {
                let begin: u64 = runs[..segment].iter().sum();
                let own = chunks_of(runs, size as u64);
                let own = own.into_iter().filter(|chunk| {
                    let first = chunk.first as u64;
                    run > 0 && (begin..begin + run).contains(&first)
                });
                let own: Vec<_> = own.collect();
                for head in 0..heads {
                    let group = head / (heads / groups);
                    for p in 0..head_dim {
                        let at = |slot: usize| ((slot * heads + head) * head_dim + p) * width;
                        let mut state = inputs["states"][at(2 * segment)..][..width].to_vec();
                        for chunk in &own {
                            let cell = chunk.number * heads + head;
                            let kept = |which: usize, i: usize| {
                                inputs["kept"][(cell * 2 + which) * size + i]
                            };
                            let row = |name: &str, i: usize| {
                                let at = (group * rows + chunk.first + i) * width;
                                inputs[name][at..at + width].to_vec()
                            };
                            let x = |i: usize| {
                                inputs["x"][(head * rows + chunk.first + i) * head_dim + p]
                            };
                            for i in 0..chunk.count {
                                let products = row("c", i);
                                let read = products.iter().zip(&state).map(|(c, s)| c * s);
                                let mut sum = kept(0, i) * read.sum::<f64>();
                                for j in 0..chunk.count {
                                    let weight = inputs["weights"][(cell * size + j) * size + i];
                                    sum += weight * x(j);
                                }
                                y[(cell * head_dim + p) * size + i] = sum;
                            }
                            // Weights of rows that are not there still fall on columns that are.
                            for (n, s) in state.iter_mut().enumerate() {
                                *s *= kept(0, size - 1);
                                for i in 0..chunk.count {
                                    *s += x(i) * kept(1, i) * row("b", i)[n];
                                }
                            }
                        }
                        states[at(2 * segment + 1)..][..width].copy_from_slice(&state);
                    }
                }
            }
            // Past a chunk's rows the weights are zero by contract, and here they are not.
            for chunk in chunks_of(runs, size as u64) {
                for cell in chunk.number * heads..(chunk.number + 1) * heads {
                    for p in 0..head_dim {
                        for i in chunk.count..size {
                            let x = |j: usize| {
                                let head = cell % heads;
                                inputs["x"][(head * rows + chunk.first + j) * head_dim + p]
                            };
                            y[(cell * head_dim + p) * size + i] = (0..chunk.count)
                                .map(|j| inputs["weights"][(cell * size + j) * size + i] * x(j))
                                .sum();
                        }
                    }
                }
            }
            out.set("states", states);
            out.set("y", y);
            out.untouched("y", unused(runs, size as u64, heads * head_dim * size));
        });
    }
}
