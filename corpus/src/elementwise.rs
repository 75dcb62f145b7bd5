//! Element-wise kernels over flat tensors: sums, products, activations, casts and fills.
//!
//! All take any length; the grid covers it in workgroups of 256 threads, 16 bytes a thread in most.
//! Float arithmetic is f32, rounded once where it is stored.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, normal, uniform};

/// Scaled sum: `y[i] += alpha * x[i]`.
#[kernel(grid = [ceil_div(n, 256)], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn axpy<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>, alpha: f32) {
    let i = global_id(0);
    if i >= n {
        return;
    }
    y[i] = T::from_f32(fma(alpha, x[i].to_f32(), y[i].to_f32()));
}

/// Threads of a workgroup of the kernels below.
const THREADS: u32 = 256;

/// How a type lies in memory: a thread of the kernels below moves 16 bytes of it.
pub(crate) struct Layout<T>(std::marker::PhantomData<T>);

impl<T: Element> Layout<T> {
    /// Whether 16 bytes are four elements, not eight.
    pub(crate) const IS_WIDE: bool = size_of::<T>() == 4;
    /// Elements of 16 bytes.
    pub(crate) const VECTOR: u32 = if Self::IS_WIDE { 4 } else { 8 };
    /// Elements of a workgroup.
    const GROUP: u32 = Self::VECTOR * THREADS;
}

/// The four elements of `x` at `i`, twice: what is computed of the second half is for nothing, and
/// compilers leave it out.
#[device_fn]
fn load_four<T: Float>(x: &Tensor<T, 1>, i: u32) -> F32x8 {
    let a = x.load4(i).to_f32();
    vec8(a[0], a[1], a[2], a[3], a[0], a[1], a[2], a[3])
}

/// Stores the first half.
#[device_fn]
fn store_four<U: Float>(y: &mut Tensor<U, 1>, i: u32, v: F32x8) {
    y.store4(i, vec4(v[0], v[1], v[2], v[3]).to::<U>());
}

/// `y[i] = f(x[i])` for the elements of this thread; the last, incomplete ones one by one.
#[device_fn]
fn map_elements<T: Float, U: Float, F: Fn(F32x8) -> F32x8>(
    x: &Tensor<T, 1>,
    y: &mut Tensor<U, 1>,
    f: F,
) {
    let (i, n) = (global_id(0), x.dim(0));
    let vectors = n / Layout::<T>::VECTOR;
    if i < vectors {
        if Layout::<T>::IS_WIDE {
            store_four(y, i, f(load_four(x, i)));
        } else {
            y.store8(i, f(x.load8(i).to_f32()).to::<U>());
        }
    } else if i == vectors {
        for j in Layout::<T>::VECTOR * i..n {
            y[j] = U::from_f32(f(splat8(x[j].to_f32()))[0]);
        }
    }
}

/// `y[i] = f(a[i], b[i])` for the elements of this thread; the last, incomplete ones one by one.
#[device_fn]
fn zip_elements<T: Float, F: Fn(F32x8, F32x8) -> F32x8>(
    a: &Tensor<T, 1>,
    b: &Tensor<T, 1>,
    y: &mut Tensor<T, 1>,
    f: F,
) {
    let (i, n) = (global_id(0), a.dim(0));
    let vectors = n / Layout::<T>::VECTOR;
    if i < vectors {
        if Layout::<T>::IS_WIDE {
            store_four(y, i, f(load_four(a, i), load_four(b, i)));
        } else {
            y.store8(i, f(a.load8(i).to_f32(), b.load8(i).to_f32()).to::<T>());
        }
    } else if i == vectors {
        for j in Layout::<T>::VECTOR * i..n {
            let lanes = f(splat8(a[j].to_f32()), splat8(b[j].to_f32()));
            y[j] = T::from_f32(lanes[0]);
        }
    }
}

/// Sum: `y[i] = a[i] + b[i]`.
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16]))]
pub fn add<T: Float>(a: &Tensor<T, (n,)>, b: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>) {
    zip_elements(a, b, y, |a, b| a + b);
}

/// Product: `y[i] = a[i] * b[i]`.
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16]))]
pub fn multiply<T: Float>(a: &Tensor<T, (n,)>, b: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>) {
    zip_elements(a, b, y, |a, b| a * b);
}

/// Scaling: `y[i] = factor * x[i]`.
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16]))]
pub fn scale<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>, factor: f32) {
    map_elements(x, y, |x| x * factor);
}

/// `x * sigmoid(x)`.
#[device_fn]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// Gated activation of Llama's feed-forward block: `y[i] = silu(gate[i]) * up[i]`.
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16]))]
pub fn silu_mul<T: Float>(gate: &Tensor<T, (n,)>, up: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>) {
    zip_elements(gate, up, y, |gate, up| gate.map(|x| silu(x)) * up);
}

/// `x` under the tanh approximation of GELU (Hendrycks and Gimpel, 2016).
#[device_fn]
fn gelu_by_tanh(x: f32) -> f32 {
    let inner = 0.797_884_6 * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

/// Gated activation of Gemma's feed-forward block: `y[i] = gelu(gate[i]) * up[i]`, GELU by its
/// tanh approximation.
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16]))]
pub fn gelu_tanh_mul<T: Float>(
    gate: &Tensor<T, (n,)>,
    up: &Tensor<T, (n,)>,
    y: &mut Tensor<T, (n,)>,
) {
    zip_elements(gate, up, y, |gate, up| gate.map(|x| gelu_by_tanh(x)) * up);
}

/// Squared rectifier: `y[i] = max(x[i], 0)^2`.
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16]))]
pub fn relu_squared<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>) {
    map_elements(x, y, |x| {
        x.map(|v| select(v < 0.0, 0.0, v) * select(v < 0.0, 0.0, v))
    });
}

/// Clamped SwiGLU of GPT-OSS: with `g = min(gate[i], limit)` and `u` the `up[i]` between `-limit`
/// and `limit`, `y[i] = (u + 1) * g * sigmoid(alpha * g)`. NaN stays.
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16]))]
pub fn clamped_swiglu<T: Float>(
    gate: &Tensor<T, (n,)>,
    up: &Tensor<T, (n,)>,
    y: &mut Tensor<T, (n,)>,
    limit: f32,
    alpha: f32,
) {
    zip_elements(gate, up, y, |gate, up| {
        let g = gate.map(|v| select(v > limit, limit, v));
        let u = up.map(|v| select(v > limit, limit, select(v < -limit, -limit, v)));
        (u + 1.0) * (g / g.map(|v| 1.0 + (-alpha * v).exp()))
    });
}

/// Sigmoid gate: `y[i] = x[i] / (1 + exp(-gate[i]))`.
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16]))]
pub fn sigmoid_mul<T: Float>(x: &Tensor<T, (n,)>, gate: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>) {
    zip_elements(x, gate, y, |x, gate| x / gate.map(|v| 1.0 + (-v).exp()));
}

/// Soft cap: `y[i] = cap * tanh(x[i] / cap)`.
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16]))]
pub fn soft_cap<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>, cap: f32) {
    map_elements(x, y, |x| x.map(|v| cap * (v / cap).tanh()));
}

/// A vector added to each row: `y[r, c] = x[r, c] + b[c]`, the bias of a projection.
#[kernel(grid = [ceil_div(cols, 256), rows], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn add_bias<T: Float>(
    x: &Tensor<T, (rows, cols)>,
    b: &Tensor<T, (cols,)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let (column, row) = (global_id(0), group_id(1));
    if column < cols {
        y[[row, column]] = x[[row, column]] + b[column];
    }
}

/// GELU by its tanh approximation:
/// `y = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))` (Hendrycks and Gimpel, 2016).
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16]))]
pub fn gelu_tanh<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>) {
    map_elements(x, y, |x| x.map(|v| gelu_by_tanh(v)));
}

/// Exact GELU: `y = 0.5 * x * (1 + erf(x / sqrt(2)))`.
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16]))]
pub fn gelu_erf<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>) {
    map_elements(x, y, |x| x.map(|v| 0.5 * v * (1.0 + erf(v * 0.707_106_77))));
}

/// Conversion between float types, to nearest even: `y[i] = x[i]`.
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16], U = [f32, f16, bf16]))]
pub fn cast<T: Float, U: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<U, (n,)>) {
    map_elements(x, y, |x| x);
}

/// Constant: `y[i] = value`.
#[kernel(grid = [ceil_div(n, Layout::<T>::GROUP)], workgroup = THREADS, instances(T = [f32, f16, bf16]))]
pub fn fill<T: Float>(y: &mut Tensor<T, (n,)>, value: f32) {
    let i = global_id(0);
    let vectors = n / Layout::<T>::VECTOR;
    if i < vectors {
        if Layout::<T>::IS_WIDE {
            store_four(y, i, splat8(value));
        } else {
            y.store8(i, splat8(value).to::<T>());
        }
    } else if i == vectors {
        for j in Layout::<T>::VECTOR * i..n {
            y[j] = T::from_f32(value);
        }
    }
}

/// Lengths that meet the edges of a workgroup, and nothing.
const LENGTHS: [u64; 6] = [0, 1, 255, 257, 2048, 5003];

#[test_kernel(axpy)]
fn axpy_matches_f64(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .input("x", [n], normal(0.0, 1.0))
            .inout("y", [n], normal(0.0, 1.0))
            .scalar("alpha", 0.75f32)
            .bound(Bound::relative(2e-7).absolute(2e-7))
            .expect(|inputs, out| {
                let sums = inputs["x"]
                    .iter()
                    .zip(&inputs["y"])
                    .map(|(x, y)| 0.75 * x + y);
                out.set("y", sums.collect());
            });
    }
}

#[test_kernel(add)]
fn add_matches_f64(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .input("a", [n], normal(0.0, 1.0))
            .input("b", [n], normal(0.0, 1.0))
            .output("y", [n])
            .bound(Bound::relative(1e-7))
            .expect(|inputs, out| {
                let sums = inputs["a"].iter().zip(&inputs["b"]).map(|(a, b)| a + b);
                out.set("y", sums.collect());
            });
    }
}

#[test_kernel(multiply)]
fn multiply_matches_f64(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .input("a", [n], normal(0.0, 1.0))
            .input("b", [n], normal(0.0, 1.0))
            .output("y", [n])
            .bound(Bound::relative(1e-7))
            .expect(|inputs, out| {
                let products = inputs["a"].iter().zip(&inputs["b"]).map(|(a, b)| a * b);
                out.set("y", products.collect());
            });
    }
}

#[test_kernel(scale)]
fn scale_matches_f64(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .input("x", [n], normal(0.0, 1.0))
            .output("y", [n])
            .scalar("factor", -1.5f32)
            .bound(Bound::relative(1e-7))
            .expect(|inputs, out| {
                out.set("y", inputs["x"].iter().map(|x| -1.5 * x).collect());
            });
    }
}

#[test_kernel(silu_mul)]
fn silu_mul_matches_f64(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .input("gate", [n], normal(0.0, 3.0))
            .input("up", [n], normal(0.0, 1.0))
            .output("y", [n])
            .bound(Bound::relative(2e-6).absolute(1e-7))
            .expect(|inputs, out| {
                let pairs = inputs["gate"].iter().zip(&inputs["up"]);
                out.set(
                    "y",
                    pairs.map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect(),
                );
            });
    }
}

/// The tanh approximation of GELU in f64.
fn gelu_tanh_f64(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

#[test_kernel(gelu_tanh)]
fn gelu_tanh_matches_f64(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .input("x", [n], normal(0.0, 2.0))
            .output("y", [n])
            .bound(Bound::relative(4e-6).absolute(1e-6))
            .expect(|inputs, out| {
                out.set("y", inputs["x"].iter().map(|x| gelu_tanh_f64(*x)).collect());
            });
    }
}

#[test_kernel(gelu_tanh_mul)]
fn gelu_tanh_mul_matches_f64(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .input("gate", [n], normal(0.0, 2.0))
            .input("up", [n], normal(0.0, 1.0))
            .output("y", [n])
            .bound(Bound::relative(4e-6).absolute(2e-6))
            .expect(|inputs, out| {
                let pairs = inputs["gate"].iter().zip(&inputs["up"]);
                out.set("y", pairs.map(|(g, u)| gelu_tanh_f64(*g) * u).collect());
            });
    }
}

#[test_kernel(relu_squared)]
fn relu_squared_matches_f64(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .input("x", [n], normal(0.0, 2.0))
            .output("y", [n])
            .bound(Bound::relative(1e-7))
            .expect(|inputs, out| {
                out.set(
                    "y",
                    inputs["x"].iter().map(|x| x.max(0.0).powi(2)).collect(),
                );
            });
    }
}

#[test_kernel(clamped_swiglu)]
fn clamped_swiglu_matches_f64(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            // Both sides of both limits.
            .input("gate", [n], normal(0.0, 6.0))
            .input("up", [n], normal(0.0, 6.0))
            .output("y", [n])
            .scalar("limit", 7.0f32)
            .scalar("alpha", 1.702f32)
            .bound(Bound::relative(8e-6).absolute(1e-6))
            .expect(|inputs, out| {
                let alpha = f64::from(1.702f32);
                let one = |(gate, up): (&f64, &f64)| {
                    let gate = gate.min(7.0);
                    (up.clamp(-7.0, 7.0) + 1.0) * gate / (1.0 + (-alpha * gate).exp())
                };
                let pairs = inputs["gate"].iter().zip(&inputs["up"]);
                out.set("y", pairs.map(one).collect());
            });
    }
}

#[test_kernel(sigmoid_mul)]
fn sigmoid_mul_matches_f64(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .input("x", [n], normal(0.0, 1.0))
            .input("gate", [n], normal(0.0, 30.0))
            .output("y", [n])
            .bound(Bound::relative(4e-6).absolute(1e-7))
            .expect(|inputs, out| {
                let pairs = inputs["x"].iter().zip(&inputs["gate"]);
                out.set("y", pairs.map(|(x, g)| x / (1.0 + (-g).exp())).collect());
            });
    }
}

#[test_kernel(soft_cap)]
fn soft_cap_matches_f64(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .input("x", [n], normal(0.0, 60.0))
            .output("y", [n])
            .scalar("cap", 30.0f32)
            .bound(Bound::relative(4e-6).absolute(2e-6))
            .expect(|inputs, out| {
                let capped = |x: &f64| 30.0 * (x / 30.0).tanh();
                out.set("y", inputs["x"].iter().map(capped).collect());
            });
    }
}

#[test_kernel(add_bias)]
fn add_bias_matches_f64(t: &mut Cases) {
    for (rows, cols) in [(0, 5), (1, 1), (3, 255), (2, 257)] {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], normal(0.0, 1.0))
            .input("b", [cols], normal(0.0, 1.0))
            .output("y", [rows, cols])
            .bound(Bound::relative(1e-7))
            .expect(move |inputs, out| {
                let row = |x: &[f64]| -> Vec<f64> {
                    x.iter().zip(&inputs["b"]).map(|(x, b)| x + b).collect()
                };
                out.set(
                    "y",
                    inputs["x"].chunks(cols as usize).flat_map(row).collect(),
                );
            });
    }
}

/// The error function by its Maclaurin series and, far out, its continued fraction.
fn erf_f64(x: f64) -> f64 {
    if x.abs() < 3.0 {
        let (mut sum, mut term) = (x, x);
        for n in 1..120 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let a = x.abs();
    let fraction = (1..60).rev().fold(0.0, |f, k| f64::from(k) / 2.0 / (a + f));
    let tail = (-a * a).exp() / ((a + fraction) * std::f64::consts::PI.sqrt());
    (1.0 - tail).copysign(x)
}

#[test_kernel(gelu_erf)]
fn gelu_erf_matches_f64(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .input("x", [n], normal(0.0, 2.0))
            .output("y", [n])
            .bound(Bound::relative(4e-6).absolute(1e-6))
            .expect(|inputs, out| {
                let gelu = |x: &f64| 0.5 * x * (1.0 + erf_f64(x / 2f64.sqrt()));
                out.set("y", inputs["x"].iter().map(gelu).collect());
            });
    }
}

#[test_kernel(cast)]
fn cast_rounds_to_nearest_even(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .input("x", [n], uniform(-1e4, 1e4))
            .output("y", [n])
            .bound(Bound::exact())
            .expect(|inputs, out| out.set("y", inputs["x"].to_vec()));
    }
}

#[test_kernel(fill)]
fn fill_writes_every_element(t: &mut Cases) {
    for n in LENGTHS {
        t.case(format!("{n}"))
            .output("y", [n])
            .scalar("value", 0.1f32)
            .bound(Bound::exact())
            .expect(move |_, out| out.set("y", vec![f64::from(0.1f32); n as usize]));
    }
}

#[bench_kernel(scale)]
fn scale_streams(b: &mut Benches) {
    let n = 64 << 20;
    let bytes = u64::from(b.scalar("T").bytes());
    b.bench(format!("{n}"))
        .input("x", [n], normal(0.0, 1.0))
        .output("y", [n])
        .scalar("factor", 1.0f32)
        .bytes(2 * n * bytes);
}

#[bench_kernel(silu_mul)]
fn silu_mul_of_8b(b: &mut Benches) {
    let bytes = u64::from(b.scalar("T").bytes());
    for n in [12288, 4096 * 12288] {
        b.bench(format!("{n}"))
            .input("gate", [n], normal(0.0, 1.0))
            .input("up", [n], normal(0.0, 1.0))
            .output("y", [n])
            .bytes(3 * n * bytes);
    }
}
