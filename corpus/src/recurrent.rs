//! Layers with a state instead of a cache: short convolutions, gated delta nets, state-space
//! models.
//!
//! The rows of a step are runs (*segments*) of consecutive positions of one sequence each:
//! segment `s` holds the rows `starts[s]..starts[s + 1]`. It continues the state in slot
//! `from[s]` and leaves its own in slot `to[s]`, another one, so that the step can be abandoned.
//! One row is the step of decoding, many are a chunk of a prompt; both run the same recurrence in
//! the same order, so that an answer does not depend on the chunks. States are f32.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, Generator, Inputs, ints, normal, uniform};

use crate::elementwise::silu;

/// `ln(1 + e^x)`, to a few ULP for small `e^x` too.
#[device_fn]
pub(crate) fn softplus(x: f32) -> f32 {
    let e = x.exp();
    let middle = (1.0 + e).ln();
    select(x > 20.0, x, select(x < -8.0, e - 0.5 * e * e, middle))
}

/// Depthwise causal convolution, with SiLU where `activated != 0`:
/// `y[r, c] = silu(bias[c] + sum_j w[c, j] * x[r - (width - 1) + j, c])`, where the rows before
/// a segment's first are the `width - 1` that its history holds, the oldest first.
#[kernel(
    grid = [ceil_div(channels, 256), rows],
    workgroup = 256,
    requires(held + 1 == width),
    instances(T = [f32, f16, bf16])
)]
pub fn causal_conv<T: Float>(
    x: &Tensor<T, (rows, channels)>,
    w: &Tensor<T, (channels, width)>,
    bias: &Tensor<T, (channels,)>,
    history: &Tensor<T, (slots, held, channels)>,
    segment_of: &Tensor<u32, (rows,)>,
    starts: &Tensor<u32, { (segments + 1,) }>,
    from: &Tensor<u32, (segments,)>,
    y: &mut Tensor<T, (rows, channels)>,
    activated: u32,
) {
    let (channel, row) = (global_id(0), group_id(1));
    if channel >= channels {
        return;
    }
    let segment = index_in(segment_of[row], segments);
    let slot = index_in(from[segment], slots);
    let offset = row - starts[segment];
    let mut sum = bias[channel].to_f32();
    for j in 0..width {
        let back = width - 1 - j;
        let value = if back <= offset {
            x[[row - back, channel]].to_f32()
        } else {
            history[[slot, held + offset - back, channel]].to_f32()
        };
        sum = fma(w[[channel, j]].to_f32(), value, sum);
    }
    y[[row, channel]] = T::from_f32(select(activated != 0, silu(sum), sum));
}

/// The history after each segment: its last `held` rows, older ones from the history before.
#[kernel(
    grid = [ceil_div(channels, 256), segments],
    workgroup = 256,
    instances(T = [f32, f16, bf16])
)]
pub fn conv_history<T: Float>(
    x: &Tensor<T, (rows, channels)>,
    starts: &Tensor<u32, { (segments + 1,) }>,
    from: &Tensor<u32, (segments,)>,
    to: &Tensor<u32, (segments,)>,
    history: &mut Tensor<T, (slots, held, channels)>,
) {
    let (channel, segment) = (global_id(0), group_id(1));
    if channel >= channels {
        return;
    }
    let (start, end) = (starts[segment], starts[segment + 1]);
    let source = index_in(from[segment], slots);
    let target = index_in(to[segment], slots);
    for i in 0..held {
        // Place in the old history followed by the segment's rows.
        let place = end - start + i;
        if place >= held {
            history[[target, i, channel]] = x[[index_in(start + place - held, rows), channel]];
        } else {
            history[[target, i, channel]] = history[[source, place, channel]];
        }
    }
}

/// Heads scaled to length `factor`: `y = x * factor / sqrt(sum(x^2) + eps)`.
#[kernel(grid = [heads, rows], workgroup = 32, requires(size % 4 == 0), instances(T = [f32, f16, bf16]))]
pub fn normalise_heads<T: Float>(
    x: &Tensor<T, (rows, heads, size)>,
    y: &mut Tensor<T, (rows, heads, size)>,
    eps: f32,
    factor: f32,
) {
    let (head, row) = (group_id(0), group_id(1));
    let mut sum = 0.0f32;
    for i in strided(size / 4) {
        let v = x.load4([row, head, i]).to_f32();
        sum += v.dot(v);
    }
    let scale = rsqrt(workgroup_sum(sum) + eps) * factor;
    for i in strided(size / 4) {
        let v = x.load4([row, head, i]).to_f32() * scale;
        y.store4([row, head, i], v.to::<T>());
    }
}

/// Gates of a gated delta net:
/// `decay[r, h] = exp(-exp(decay_log[h]) * softplus(alpha[r, h] + step_bias[h]))` and
/// `strength[r, h] = sigmoid(beta[r, h])`.
#[kernel(grid = [rows], workgroup = 64, instances(T = [f32, f16, bf16]))]
pub fn delta_gates<T: Float>(
    alpha: &Tensor<T, (rows, heads)>,
    beta: &Tensor<T, (rows, heads)>,
    decay_log: &Tensor<f32, (heads,)>,
    step_bias: &Tensor<f32, (heads,)>,
    decay: &mut Tensor<f32, (rows, heads)>,
    strength: &mut Tensor<f32, (rows, heads)>,
) {
    let row = group_id(0);
    for head in strided(heads) {
        let step = softplus(alpha[[row, head]].to_f32() + step_bias[head]);
        decay[[row, head]] = (-(decay_log[head].exp()) * step).exp();
        strength[[row, head]] = 1.0 / (1.0 + (-beta[[row, head]].to_f32()).exp());
    }
}

/// Sum over the `LANES` consecutive threads that share something, 1 or 4: no subgroup is
/// narrower.
#[device_fn]
fn lanes_sum<const LANES: u32>(x: f32) -> f32 {
    if LANES == 1 {
        x
    } else {
        let pair = x + subgroup_shuffle_xor(x, 1);
        pair + subgroup_shuffle_xor(pair, 2)
    }
}

/// Gated delta rule (Yang et al., 2024), row after row of each segment, for each value head with
/// the key head `value_head / (value_heads / key_heads)`:
/// `S <- decay * S`, then `S <- S + k (strength * (v - Sᵀ k))ᵀ`, then `y = Sᵀ q`.
/// A state is stored a row a value element: `states[slot, head, j, i] = S[i, j]`. `LANES` threads
/// share a row of it: 1 suits a CPU, 4 a GPU.
#[kernel(
    grid = [ceil_div(value_dim, 32), value_heads, segments],
    workgroup = 32 * LANES,
    requires(value_heads % key_heads == 0),
    instances(T = [f32, f16, bf16], KEY_DIM = [32, 64, 128, 256], LANES = [1]),
    instances(T = [f32, f16, bf16], KEY_DIM = [128], LANES = [4])
)]
pub fn gated_delta<T: Float, const KEY_DIM: u32, const LANES: u32>(
    q: &Tensor<T, (rows, key_heads, KEY_DIM)>,
    k: &Tensor<T, (rows, key_heads, KEY_DIM)>,
    v: &Tensor<T, (rows, value_heads, value_dim)>,
    decay: &Tensor<f32, (rows, value_heads)>,
    strength: &Tensor<f32, (rows, value_heads)>,
    starts: &Tensor<u32, { (segments + 1,) }>,
    from: &Tensor<u32, (segments,)>,
    to: &Tensor<u32, (segments,)>,
    states: &mut Tensor<f32, (slots, value_heads, value_dim, KEY_DIM)>,
    y: &mut Tensor<T, (rows, value_heads, value_dim)>,
) {
    let (head, segment) = (group_id(1), group_id(2));
    let lane = local_index() % LANES;
    let own_column = group_id(0) * 32 + local_index() / LANES;
    // Threads past the last column do its work again and write nothing: a subgroup sums together.
    let column = own_column.min(value_dim - 1);
    let key_head = head / (value_heads / key_heads);
    let source = index_in(from[segment], slots);
    let target = index_in(to[segment], slots);
    let mut state = private::<f32>(KEY_DIM / LANES);
    for i in 0..KEY_DIM / LANES / 4 {
        state.store4(i, states.load4([source, head, column, i * LANES + lane]));
    }
    for row in starts[segment]..starts[segment + 1] {
        let kept = decay[[row, head]];
        let mut recalled = splat4(0.0f32);
        for i in 0..KEY_DIM / LANES / 4 {
            let s = state.load4(i) * kept;
            state.store4(i, s);
            let key = k.load4([row, key_head, i * LANES + lane]).to_f32();
            recalled = key.mul_add(s, recalled);
        }
        let recalled = lanes_sum::<LANES>(recalled.sum());
        let wanted = v[[row, head, column]].to_f32();
        let change = splat4((wanted - recalled) * strength[[row, head]]);
        let mut output = splat4(0.0f32);
        for i in 0..KEY_DIM / LANES / 4 {
            let key = k.load4([row, key_head, i * LANES + lane]).to_f32();
            let s = key.mul_add(change, state.load4(i));
            state.store4(i, s);
            let query = q.load4([row, key_head, i * LANES + lane]).to_f32();
            output = query.mul_add(s, output);
        }
        let output = lanes_sum::<LANES>(output.sum());
        if lane == 0 && own_column < value_dim {
            y[[row, head, column]] = T::from_f32(output);
        }
    }
    if own_column < value_dim {
        for i in 0..KEY_DIM / LANES / 4 {
            states.store4([target, head, column, i * LANES + lane], state.load4(i));
        }
    }
}

/// State-space model with a scalar decay a head (Mamba-2; Dao and Gu, 2024), row after row of
/// each segment. With `t = min(max(softplus(step[r, h] + step_bias[h]), least), most)`:
/// `S <- exp(-exp(decay_log[h]) * t) * S + t * x bᵀ`, then `y = S c + skip[h] * x`, where `b` and
/// `c` are those of group `h / (heads / groups)`. `states[slot, head, p, n] = S[p, n]`.
#[kernel(
    grid = [ceil_div(head_dim, 32), heads, segments],
    workgroup = 32,
    requires(heads % groups == 0),
    instances(T = [f32, f16, bf16], STATE = [16, 32, 64, 128, 256])
)]
pub fn state_space<T: Float, const STATE: u32>(
    x: &Tensor<T, (rows, heads, head_dim)>,
    b: &Tensor<T, (rows, groups, STATE)>,
    c: &Tensor<T, (rows, groups, STATE)>,
    step: &Tensor<T, (rows, heads)>,
    decay_log: &Tensor<f32, (heads,)>,
    skip: &Tensor<f32, (heads,)>,
    step_bias: &Tensor<f32, (heads,)>,
    starts: &Tensor<u32, { (segments + 1,) }>,
    from: &Tensor<u32, (segments,)>,
    to: &Tensor<u32, (segments,)>,
    states: &mut Tensor<f32, (slots, heads, head_dim, STATE)>,
    y: &mut Tensor<T, (rows, heads, head_dim)>,
    least: f32,
    most: f32,
) {
    let (element, head, segment) = (global_id(0), group_id(1), group_id(2));
    if element >= head_dim {
        return;
    }
    let group = head / (heads / groups);
    let source = index_in(from[segment], slots);
    let target = index_in(to[segment], slots);
    let rate = -(decay_log[head].exp());
    let mut state = private::<f32>(STATE);
    for i in 0..STATE / 4 {
        state.store4(i, states.load4([source, head, element, i]));
    }
    for row in starts[segment]..starts[segment + 1] {
        let raw = step[[row, head]].to_f32() + step_bias[head];
        let time = softplus(raw).max(least).min(most);
        let kept = (rate * time).exp();
        let input = x[[row, head, element]].to_f32();
        let change = splat4(time * input);
        let mut output = splat4(0.0f32);
        for i in 0..STATE / 4 {
            let added = b.load4([row, group, i]).to_f32() * change;
            let s = state.load4(i).mul_add(splat4(kept), added);
            state.store4(i, s);
            output = c.load4([row, group, i]).to_f32().mul_add(s, output);
        }
        y[[row, head, element]] = T::from_f32(fma(skip[head], input, output.sum()));
    }
    for i in 0..STATE / 4 {
        states.store4([target, head, element, i], state.load4(i));
    }
}

/// Lengths of segments; each is a case.
const RUNS: [&[u64]; 4] = [&[1], &[1, 1, 1], &[5], &[7, 1, 2]];

/// Starts of segments of the lengths given.
pub(crate) fn starts(runs: &'static [u64]) -> impl Into<Generator> {
    ints(0, 1).map(move |i, _| runs[..i].iter().sum::<u64>() as i64)
}

/// Slots: segment `s` continues `2 s` and leaves `2 s + 1`.
pub(crate) fn slots(runs: &'static [u64]) -> u64 {
    2 * runs.len() as u64 + 1
}

pub(crate) fn source() -> impl Into<Generator> {
    ints(0, 1).map(|s, _| 2 * s as i64)
}

pub(crate) fn target() -> impl Into<Generator> {
    ints(0, 1).map(|s, _| 2 * s as i64 + 1)
}

/// The segment of each row.
fn segment_of(runs: &'static [u64]) -> impl Into<Generator> {
    ints(0, 1).map(move |row, _| {
        let ends = runs.iter().scan(0, |end, run| {
            *end += run;
            Some(*end)
        });
        ends.take_while(|end| *end <= row as u64).count() as i64
    })
}

/// A segment's history and then its rows, one channel.
fn continued(
    inputs: &Inputs,
    runs: &[u64],
    segment: usize,
    held: usize,
    channels: usize,
    channel: usize,
) -> Vec<f64> {
    let first: u64 = runs[..segment].iter().sum();
    let old = (0..held).map(|i| inputs["history"][(2 * segment * held + i) * channels + channel]);
    let new =
        (first..first + runs[segment]).map(|row| inputs["x"][row as usize * channels + channel]);
    old.chain(new).collect()
}

#[test_kernel(causal_conv)]
fn causal_conv_matches_f64(t: &mut Cases) {
    for (runs, channels, width, activated) in [
        (RUNS[0], 1, 1, 1),
        (RUNS[1], 300, 4, 1),
        (RUNS[2], 33, 4, 1),
        (RUNS[3], 64, 3, 0),
    ] {
        let rows: u64 = runs.iter().sum();
        let held = width - 1;
        t.case(format!(
            "{runs:?} of {channels}, width {width}, activated {activated}"
        ))
        .input("x", [rows, channels], normal(0.0, 1.0))
        .input("w", [channels, width], normal(0.0, 0.5))
        .input("bias", [channels], normal(0.0, 0.5))
        .input("history", [slots(runs), held, channels], normal(0.0, 1.0))
        .input("segment_of", [rows], segment_of(runs))
        .input("starts", [runs.len() as u64 + 1], starts(runs))
        .input("from", [runs.len() as u64], source())
        .output("y", [rows, channels])
        .scalar("activated", activated)
        .bound(Bound::relative(4e-6).absolute(1e-6))
        .expect(move |inputs, out| {
            let (channels, width) = (channels as usize, width as usize);
            let mut y = vec![0.0; rows as usize * channels];
            let mut first = 0;
            for (segment, run) in runs.iter().enumerate() {
                for channel in 0..channels {
                    let x = continued(inputs, runs, segment, width - 1, channels, channel);
                    for (i, window) in x.windows(width).enumerate() {
                        let w = &inputs["w"][channel * width..][..width];
                        let products = window.iter().zip(w).map(|(x, w)| x * w);
                        let sum = inputs["bias"][channel] + products.sum::<f64>();
                        y[(first + i) * channels + channel] = match activated {
                            0 => sum,
                            _ => sum / (1.0 + (-sum).exp()),
                        };
                    }
                }
                first += *run as usize;
            }
            out.set("y", y);
        });
    }
}

// E09: the history after a chunk shorter than it holds keeps what was there.
#[test_kernel(conv_history)]
fn conv_history_keeps_the_last_rows(t: &mut Cases) {
    for (runs, channels, held) in [(RUNS[0], 1, 1), (RUNS[1], 300, 3), (RUNS[3], 33, 3)] {
        let rows: u64 = runs.iter().sum();
        t.case(format!("{runs:?} of {channels}, {held} held"))
            .input("x", [rows, channels], normal(0.0, 1.0))
            .input("starts", [runs.len() as u64 + 1], starts(runs))
            .input("from", [runs.len() as u64], source())
            .input("to", [runs.len() as u64], target())
            .inout("history", [slots(runs), held, channels], normal(0.0, 1.0))
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let (channels, held) = (channels as usize, held as usize);
                let mut history = inputs["history"].to_vec();
                for segment in 0..runs.len() {
                    for channel in 0..channels {
                        let x = continued(inputs, runs, segment, held, channels, channel);
                        for (i, value) in x[x.len() - held..].iter().enumerate() {
                            let target = (2 * segment + 1) * held + i;
                            history[target * channels + channel] = *value;
                        }
                    }
                }
                out.set("history", history);
            });
    }
}

#[test_kernel(normalise_heads)]
fn normalise_heads_matches_f64(t: &mut Cases) {
    for (rows, heads, size) in [(0, 1, 4), (1, 1, 4), (3, 2, 128), (2, 5, 36)] {
        t.case(format!("{rows}x{heads}x{size}"))
            .input("x", [rows, heads, size], normal(0.0, 1.0))
            .output("y", [rows, heads, size])
            .scalar("eps", 1e-6f32)
            .scalar("factor", 0.25f32)
            .bound(Bound::relative(2e-6).absolute(1e-7))
            .expect(move |inputs, out| {
                let scaled = |head: &[f64]| -> Vec<f64> {
                    let length =
                        (head.iter().map(|x| x * x).sum::<f64>() + f64::from(1e-6f32)).sqrt();
                    head.iter().map(|x| x * 0.25 / length).collect()
                };
                out.set(
                    "y",
                    inputs["x"].chunks(size as usize).flat_map(scaled).collect(),
                );
            });
    }
}

pub(crate) fn softplus_f64(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[test_kernel(delta_gates)]
fn delta_gates_match_f64(t: &mut Cases) {
    for (rows, heads) in [(0, 1), (1, 1), (5, 32), (2, 100)] {
        t.case(format!("{rows}x{heads}"))
            .input("alpha", [rows, heads], normal(0.0, 12.0))
            .input("beta", [rows, heads], normal(0.0, 4.0))
            .input("decay_log", [heads], uniform(-2.0, 2.0))
            .input("step_bias", [heads], normal(0.0, 1.0))
            .output("decay", [rows, heads])
            .output("strength", [rows, heads])
            // A large time step makes the exponent's own rounding the answer's.
            .bound(Bound::relative(5e-5).absolute(1e-7))
            .expect(move |inputs, out| {
                let cells = inputs["alpha"].iter().enumerate();
                let decay = |(i, alpha): (usize, &f64)| {
                    let head = i % heads as usize;
                    let step = softplus_f64(alpha + inputs["step_bias"][head]);
                    (-inputs["decay_log"][head].exp() * step).exp()
                };
                out.set("decay", cells.map(decay).collect());
                let strength = inputs["beta"].iter().map(|b| 1.0 / (1.0 + (-b).exp()));
                out.set("strength", strength.collect());
            });
    }
}

/// The gated delta rule in f64, as it is written. Tensors are those of [`gated_delta`].
pub(crate) struct Rule<'a> {
    pub q: &'a [f64],
    pub k: &'a [f64],
    pub v: &'a [f64],
    pub decay: &'a [f64],
    pub strength: &'a [f64],
    pub states: &'a [f64],
    pub runs: &'a [u64],
    /// Of keys, of values.
    pub heads: [usize; 2],
    /// Elements of a key, of a value.
    pub sizes: [usize; 2],
}

impl Rule<'_> {
    /// The states and the rows' outputs.
    pub fn run(&self) -> (Vec<f64>, Vec<f64>) {
        let ([key_heads, value_heads], [size, value_dim]) = (self.heads, self.sizes);
        let rows = self.runs.iter().sum::<u64>() as usize;
        let mut states = self.states.to_vec();
        let mut y = vec![0.0; rows * value_heads * value_dim];
        for head in 0..value_heads {
            let key_head = head / (value_heads / key_heads);
            let mut row = 0;
            for (segment, run) in self.runs.iter().enumerate() {
                let at =
                    |slot: usize, j: usize| ((slot * value_heads + head) * value_dim + j) * size;
                let mut s: Vec<Vec<f64>> = (0..value_dim)
                    .map(|j| self.states[at(2 * segment, j)..][..size].to_vec())
                    .collect();
                for _ in 0..*run {
                    let cell = row * value_heads + head;
                    let key = (row * key_heads + key_head) * size;
                    let (q, k) = (&self.q[key..][..size], &self.k[key..][..size]);
                    for (j, column) in s.iter_mut().enumerate() {
                        column.iter_mut().for_each(|s| *s *= self.decay[cell]);
                        let dot = |a: &[f64], b: &[f64]| -> f64 {
                            a.iter().zip(b).map(|(a, b)| a * b).sum()
                        };
                        let error = self.v[cell * value_dim + j] - dot(column, k);
                        for (s, k) in column.iter_mut().zip(k) {
                            *s += k * error * self.strength[cell];
                        }
                        y[cell * value_dim + j] = dot(column, q);
                    }
                    row += 1;
                }
                for (j, column) in s.iter().enumerate() {
                    states[at(2 * segment + 1, j)..][..size].copy_from_slice(column);
                }
            }
        }
        (states, y)
    }
}

#[test_kernel(gated_delta)]
fn gated_delta_matches_f64(t: &mut Cases) {
    let size = t.constant("KEY_DIM") as u64;
    for (runs, key_heads, value_heads, value_dim) in [
        (RUNS[0], 1, 1, 1),
        (RUNS[1], 1, 2, 33),
        (RUNS[2], 2, 2, 32),
        (RUNS[3], 1, 3, 40),
    ] {
        let rows: u64 = runs.iter().sum();
        let deviation = 1.0 / (size as f64).sqrt();
        let state = [slots(runs), value_heads, value_dim, size];
        t.case(format!(
            "{runs:?}, {value_heads}/{key_heads} heads of {value_dim}"
        ))
        .input("q", [rows, key_heads, size], normal(0.0, deviation))
        .input("k", [rows, key_heads, size], normal(0.0, deviation))
        .input("v", [rows, value_heads, value_dim], normal(0.0, 1.0))
        .input("decay", [rows, value_heads], uniform(0.5, 1.0))
        .input("strength", [rows, value_heads], uniform(0.0, 1.0))
        .input("starts", [runs.len() as u64 + 1], starts(runs))
        .input("from", [runs.len() as u64], source())
        .input("to", [runs.len() as u64], target())
        .inout("states", state, normal(0.0, 1.0))
        .output("y", [rows, value_heads, value_dim])
        .bound(Bound::relative(2e-5).absolute(2e-5))
        .expect(move |inputs, out| {
            let (states, y) = Rule {
                q: &inputs["q"],
                k: &inputs["k"],
                v: &inputs["v"],
                decay: &inputs["decay"],
                strength: &inputs["strength"],
                states: &inputs["states"],
                runs,
                heads: [key_heads, value_heads].map(|n| n as usize),
                sizes: [size, value_dim].map(|n| n as usize),
            }
            .run();
            out.set("states", states);
            out.set("y", y);
        });
    }
}

/// Value heads, of 16 key heads, and sequences of one row each.
#[bench_kernel(gated_delta)]
fn gated_delta_of_a_token(b: &mut Benches) {
    let size = b.constant("KEY_DIM") as u64;
    let (key_heads, value_heads, value_dim) = (16, 48, 128);
    for rows in [1, 16] {
        let state = value_heads * value_dim * size;
        b.bench(format!(
            "{rows} rows, {value_heads}/{key_heads} heads of {value_dim}"
        ))
        .input("q", [rows, key_heads, size], normal(0.0, 0.1))
        .input("k", [rows, key_heads, size], normal(0.0, 0.1))
        .input("v", [rows, value_heads, value_dim], normal(0.0, 1.0))
        .input("decay", [rows, value_heads], uniform(0.5, 1.0))
        .input("strength", [rows, value_heads], uniform(0.0, 1.0))
        .input("starts", [rows + 1], ints(0, 1).map(|i, _| i as i64))
        .input("from", [rows], source())
        .input("to", [rows], target())
        .inout(
            "states",
            [2 * rows, value_heads, value_dim, size],
            normal(0.0, 1.0),
        )
        .output("y", [rows, value_heads, value_dim])
        .bytes(2 * 4 * rows * state);
    }
}

/// One segment, for [`crate::delta`] to be compared with.
#[bench_kernel(gated_delta)]
fn gated_delta_of_a_prompt(b: &mut Benches) {
    let size = b.constant("KEY_DIM") as u64;
    let (rows, key_heads, value_dim) = (2048, 16, 128);
    for value_heads in [32, 48] {
        let state = value_heads * value_dim * size;
        b.bench(format!(
            "{rows} rows, {value_heads}/{key_heads} heads of {value_dim}"
        ))
        .input("q", [rows, key_heads, size], normal(0.0, 0.1))
        .input("k", [rows, key_heads, size], normal(0.0, 0.1))
        .input("v", [rows, value_heads, value_dim], normal(0.0, 1.0))
        .input("decay", [rows, value_heads], uniform(0.5, 1.0))
        .input("strength", [rows, value_heads], uniform(0.0, 1.0))
        .input("starts", [2], starts(&[2048]))
        .input("from", [1], source())
        .input("to", [1], target())
        .inout(
            "states",
            [2, value_heads, value_dim, size],
            normal(0.0, 1.0),
        )
        .output("y", [rows, value_heads, value_dim])
        .bytes(2 * 4 * state)
        .flops(8 * rows * state);
    }
}

#[test_kernel(state_space)]
fn state_space_matches_f64(t: &mut Cases) {
    let size = t.constant("STATE") as u64;
    for (runs, heads, groups, head_dim, limits) in [
        (RUNS[0], 1, 1, 1, (0.0, f32::INFINITY)),
        (RUNS[1], 2, 1, 33, (0.01, 0.1)),
        (RUNS[2], 4, 2, 32, (0.0, f32::INFINITY)),
        (RUNS[3], 3, 3, 40, (0.0, 0.5)),
    ] {
        let rows: u64 = runs.iter().sum();
        let state = [slots(runs), heads, head_dim, size];
        t.case(format!(
            "{runs:?}, {heads} heads of {head_dim} in {groups} groups, {limits:?}"
        ))
        .input("x", [rows, heads, head_dim], normal(0.0, 1.0))
        .input("b", [rows, groups, size], normal(0.0, 0.3))
        .input("c", [rows, groups, size], normal(0.0, 0.3))
        .input("step", [rows, heads], normal(-2.0, 1.0))
        .input("decay_log", [heads], uniform(-1.0, 1.0))
        .input("skip", [heads], normal(0.0, 1.0))
        .input("step_bias", [heads], normal(0.0, 1.0))
        .input("starts", [runs.len() as u64 + 1], starts(runs))
        .input("from", [runs.len() as u64], source())
        .input("to", [runs.len() as u64], target())
        .inout("states", state, normal(0.0, 1.0))
        .output("y", [rows, heads, head_dim])
        .scalar("least", limits.0)
        .scalar("most", limits.1)
        .bound(Bound::relative(2e-5).absolute(2e-5))
        .expect(move |inputs, out| {
            let [size, head_dim] = [size, head_dim].map(|n| n as usize);
            let [heads, groups] = [heads, groups].map(|n| n as usize);
            let mut states = inputs["states"].to_vec();
            let mut y = vec![0.0; rows as usize * heads * head_dim];
            for head in 0..heads {
                let mut row = 0;
                for (segment, run) in runs.iter().enumerate() {
                    let at = |slot: usize, p: usize| ((slot * heads + head) * head_dim + p) * size;
                    for _ in 0..*run {
                        let cell = row * heads + head;
                        let raw = inputs["step"][cell] + inputs["step_bias"][head];
                        let (least, most) = (f64::from(limits.0), f64::from(limits.1));
                        let time = softplus_f64(raw).max(least).min(most);
                        let kept = (-inputs["decay_log"][head].exp() * time).exp();
                        let group = (row * groups + head / (heads / groups)) * size;
                        let first = row as u64 == runs[..segment].iter().sum::<u64>();
                        for p in 0..head_dim {
                            let x = inputs["x"][cell * head_dim + p];
                            let mut sum = inputs["skip"][head] * x;
                            for n in 0..size {
                                let old = if first {
                                    inputs["states"][at(2 * segment, p) + n]
                                } else {
                                    states[at(2 * segment + 1, p) + n]
                                };
                                let new = kept * old + time * x * inputs["b"][group + n];
                                states[at(2 * segment + 1, p) + n] = new;
                                sum += new * inputs["c"][group + n];
                            }
                            y[cell * head_dim + p] = sum;
                        }
                        row += 1;
                    }
                }
            }
            out.set("states", states);
            out.set("y", y);
        });
    }
}
