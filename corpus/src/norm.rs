//! Normalisations of rows, with f32 sums.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, ints, normal, uniform, values};

/// Vectors of 8 that a thread keeps between its two passes over a row: rows up to 4,096 columns
/// are read once.
const KEPT: u32 = 2;

/// The vector of a row that a thread keeps at `j`; the last of the row past its end, because loads
/// behind conditions wait for each other.
#[device_fn]
fn kept_at(j: u32, vectors: u32) -> u32 {
    (j * 256 + local_index()).min(vectors - 1)
}

/// Loads a thread's [`KEPT`] vectors of the weights.
#[device_fn]
fn load_weights<T: Float>(w: &Tensor<T, 1>, weights: &mut Private<T>) {
    for j in unroll(0..KEPT) {
        weights.store8(j, w.load8(kept_at(j, w.dim(0) / 8)));
    }
}

/// `y[row, :] = x[row, :] * scale * w`, the first [`KEPT`] vectors of a thread by `kept` and
/// `weights`.
#[device_fn]
fn store_scaled<T: Float, K: Fn(u32) -> F32x8>(
    kept: K,
    weights: &Private<T>,
    x: &Tensor<T, 2>,
    w: &Tensor<T, 1>,
    y: &mut Tensor<T, 2>,
    row: u32,
    scale: f32,
) {
    let vectors = w.dim(0) / 8;
    for j in unroll(0..KEPT) {
        let i = j * 256 + local_index();
        if i < vectors {
            let v = kept(j) * scale * weights.load8(j).to_f32();
            y.store8([row, i], v.to::<T>());
        }
    }
    for i in (KEPT * 256 + local_index()..vectors).step_by(256) {
        let v = x.load8([row, i]).to_f32() * scale * w.load8(i).to_f32();
        y.store8([row, i], v.to::<T>());
    }
}

/// Root-mean-square norm of each row:
/// `y[r, :] = x[r, :] * w / sqrt(mean(x[r, :]^2) + eps)`.
#[kernel(
    grid = [rows],
    workgroup = 256,
    requires(cols % 8 == 0),
    dependent,
    instances(T = [f32, f16, bf16])
)]
pub fn rms_norm<T: Float>(
    x: &Tensor<T, (rows, cols)>,
    w: &Tensor<T, (cols,)>,
    y: &mut Tensor<T, (rows, cols)>,
    eps: f32,
) {
    let row = group_id(0);
    let vectors = cols / 8;
    if vectors == 0 {
        return;
    }
    let mut weights = private::<T>(8 * KEPT);
    let mut kept = private::<f32>(8 * KEPT);
    load_weights(w, &mut weights);
    launch_barrier();
    for j in unroll(0..KEPT) {
        kept.store8(j, x.load8([row, kept_at(j, vectors)]).to_f32());
    }
    let mut sum = 0.0f32;
    for j in unroll(0..KEPT) {
        if j * 256 + local_index() < vectors {
            let v = kept.load8(j);
            sum += v.dot(v);
        }
    }
    for i in (KEPT * 256 + local_index()..vectors).step_by(256) {
        let v = x.load8([row, i]).to_f32();
        sum += v.dot(v);
    }
    let scale = rsqrt(workgroup_sum(sum) / cols as f32 + eps);
    store_scaled(|j| kept.load8(j), &weights, x, w, y, row, scale);
}

/// Residual sum and its root-mean-square norm:
/// `h[r, :] += x[r, :]`, then `y[r, :] = h[r, :] * w / sqrt(mean(h[r, :]^2) + eps)`.
/// The sum is rounded to the tensor's type before it is normalised.
#[kernel(
    grid = [rows],
    workgroup = 256,
    requires(cols % 8 == 0),
    dependent,
    instances(T = [f32, f16, bf16])
)]
pub fn add_rms_norm<T: Float>(
    x: &Tensor<T, (rows, cols)>,
    w: &Tensor<T, (cols,)>,
    h: &mut Tensor<T, (rows, cols)>,
    y: &mut Tensor<T, (rows, cols)>,
    eps: f32,
) {
    add_and_norm(h, w, y, eps, |i| x.load8([group_id(0), i]));
}

/// Residual sum of the parts of a product, and its root-mean-square norm: with `x` the sum of
/// `parts` in their order, rounded to the tensors' type, as [`add_rms_norm`].
#[kernel(
    grid = [rows],
    workgroup = 256,
    requires(cols % 8 == 0, splits > 0),
    dependent,
    instances(T = [f32, f16, bf16])
)]
pub fn join_rms_norm<T: Float>(
    parts: &Tensor<f32, (splits, rows, cols)>,
    w: &Tensor<T, (cols,)>,
    h: &mut Tensor<T, (rows, cols)>,
    y: &mut Tensor<T, (rows, cols)>,
    eps: f32,
) {
    add_and_norm(h, w, y, eps, |i| {
        let mut sum = parts.load8([0, group_id(0), i]);
        for part in 1..splits {
            sum += parts.load8([part, group_id(0), i]);
        }
        sum.to::<T>()
    });
}

/// `h += x`, rounded, and the norm of that, of the workgroup's row; `x` gives eights.
#[device_fn]
fn add_and_norm<T: Float, X: Fn(u32) -> Vector<T, 8>>(
    h: &mut Tensor<T, 2>,
    w: &Tensor<T, 1>,
    y: &mut Tensor<T, 2>,
    eps: f32,
    x: X,
) {
    let row = group_id(0);
    let vectors = w.dim(0) / 8;
    if vectors == 0 {
        return;
    }
    let mut weights = private::<T>(8 * KEPT);
    let mut kept = private::<T>(8 * KEPT);
    let mut added = private::<T>(8 * KEPT);
    load_weights(w, &mut weights);
    launch_barrier();
    for j in unroll(0..KEPT) {
        let i = j * 256 + local_index();
        // Each thread its own alone: others' are being written.
        if i < vectors {
            kept.store8(j, h.load8([row, i]));
        }
        if j * 256 < vectors {
            added.store8(j, x(i.min(vectors - 1)));
        }
    }
    let mut sum = 0.0f32;
    for j in unroll(0..KEPT) {
        let i = j * 256 + local_index();
        if i < vectors {
            let total = (kept.load8(j).to_f32() + added.load8(j).to_f32()).to::<T>();
            h.store8([row, i], total);
            kept.store8(j, total);
            let v = total.to_f32();
            sum += v.dot(v);
        }
    }
    for i in (KEPT * 256 + local_index()..vectors).step_by(256) {
        let total = (h.load8([row, i]).to_f32() + x(i).to_f32()).to::<T>();
        h.store8([row, i], total);
        let v = total.to_f32();
        sum += v.dot(v);
    }
    let scale = rsqrt(workgroup_sum(sum) / w.dim(0) as f32 + eps);
    store_scaled(|j| kept.load8(j).to_f32(), &weights, h, w, y, row, scale);
}

/// Layer norm of each row:
/// `y[r, :] = (x[r, :] - mean) / sqrt(variance + eps) * w + b`, variance over the row,
/// by two passes.
#[kernel(grid = [rows], workgroup = 256, requires(cols > 0, cols % 8 == 0), instances(T = [f32, f16, bf16]))]
pub fn layer_norm<T: Float>(
    x: &Tensor<T, (rows, cols)>,
    w: &Tensor<T, (cols,)>,
    b: &Tensor<T, (cols,)>,
    y: &mut Tensor<T, (rows, cols)>,
    eps: f32,
) {
    let row = group_id(0);
    let mut sum = 0.0f32;
    for i in strided(cols / 8) {
        sum += x.load8([row, i]).to_f32().sum();
    }
    let mean = workgroup_sum(sum) / cols as f32;
    let mut squares = 0.0f32;
    for i in strided(cols / 8) {
        let centred = x.load8([row, i]).to_f32() - mean;
        squares += centred.dot(centred);
    }
    let scale = rsqrt(workgroup_sum(squares) / cols as f32 + eps);
    for i in strided(cols / 8) {
        let scaled = (x.load8([row, i]).to_f32() - mean) * scale;
        let v = scaled.mul_add(w.load8(i).to_f32(), b.load8(i).to_f32());
        y.store8([row, i], v.to::<T>());
    }
}

/// One row's `x * w / sqrt(mean(x^2) + eps)`.
fn rms_norm_row(x: &[f64], w: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    x.iter()
        .zip(w)
        .map(|(v, w)| v / (mean + eps).sqrt() * w)
        .collect()
}

#[test_kernel(rms_norm)]
fn rms_norm_matches_f64(t: &mut Cases) {
    for (rows, cols) in [
        (0, 64),
        (1, 8),
        (3, 64),
        (5, 576),
        (2, 1032),
        (37, 4096),
        (2, 4104),
    ] {
        let case = t.case(format!("{rows}x{cols}"));
        let case = if rows > 8 { case.production() } else { case };
        case.input("x", [rows, cols], normal(0.0, 1.0))
            .input("w", [cols], uniform(0.5, 1.5))
            .output("y", [rows, cols])
            .scalar("eps", 1e-5f32)
            .bound(Bound::relative(2e-6).absolute(1e-7))
            .expect(move |inputs, out| {
                let rows = inputs["x"].chunks(cols as usize);
                let eps = f64::from(1e-5f32);
                out.set(
                    "y",
                    rows.flat_map(|x| rms_norm_row(x, &inputs["w"], eps))
                        .collect(),
                );
            });
    }
}

// K18: a row of equal large numbers must not overflow a narrow accumulator.
#[test_kernel(rms_norm)]
fn rms_norm_of_large_values_is_one(t: &mut Cases) {
    t.case("row of 300".to_string())
        .input("x", [1, 4096], values(vec![300.0; 4096]))
        .input("w", [4096], values(vec![1.0; 4096]))
        .output("y", [1, 4096])
        .scalar("eps", 0.0f32)
        .bound(Bound::relative(2e-6))
        .expect(|_, out| out.set("y", vec![1.0; 4096]));
}

#[test_kernel(add_rms_norm)]
fn add_rms_norm_matches_f64(t: &mut Cases) {
    for (rows, cols) in [(0, 8), (1, 8), (3, 576), (2, 1032)] {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], normal(0.0, 1.0))
            .input("w", [cols], uniform(0.5, 1.5))
            .inout("h", [rows, cols], normal(0.0, 1.0))
            .output("y", [rows, cols])
            .scalar("eps", 1e-5f32)
            .bound(Bound::relative(2e-6).absolute(1e-6))
            .expect(move |inputs, out| {
                let sums: Vec<f64> = inputs["x"]
                    .iter()
                    .zip(&inputs["h"])
                    .map(|(x, h)| x + h)
                    .collect();
                let rounded = out.rounded("h", &sums);
                let eps = f64::from(1e-5f32);
                let rows = rounded.chunks(cols as usize);
                out.set(
                    "y",
                    rows.flat_map(|x| rms_norm_row(x, &inputs["w"], eps))
                        .collect(),
                );
                out.set("h", sums);
            });
    }
}

#[test_kernel(join_rms_norm)]
fn join_rms_norm_matches_f64(t: &mut Cases) {
    for (splits, rows, cols) in [(1, 0, 8), (1, 1, 8), (4, 3, 576), (2, 2, 4104)] {
        t.case(format!("{splits} parts of {rows}x{cols}"))
            // Sums that are exact before they are rounded, in any order.
            .input("parts", [splits, rows, cols], ints(-90, 91))
            .input("w", [cols], uniform(0.5, 1.5))
            .inout("h", [rows, cols], normal(0.0, 1.0))
            .output("y", [rows, cols])
            .scalar("eps", 1e-5f32)
            .bound(Bound::relative(2e-6).absolute(1e-6))
            .expect(move |inputs, out| {
                let size = (rows * cols) as usize;
                let sums = |i: usize| inputs["parts"].iter().skip(i).step_by(size.max(1)).sum();
                let sums: Vec<f64> = (0..size).map(sums).collect();
                let joined = out.rounded("h", &sums);
                let pairs = joined.iter().zip(&inputs["h"]);
                let sums: Vec<f64> = pairs.map(|(x, h)| x + h).collect();
                let rounded = out.rounded("h", &sums);
                let eps = f64::from(1e-5f32);
                let rows = rounded.chunks(cols as usize);
                let norms = rows.flat_map(|x| rms_norm_row(x, &inputs["w"], eps));
                out.set("y", norms.collect());
                out.set("h", sums);
            });
    }
}

#[test_kernel(layer_norm)]
fn layer_norm_matches_f64(t: &mut Cases) {
    for (rows, cols) in [(0, 8), (1, 8), (3, 72), (2, 1000)] {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], normal(1.0, 2.0))
            .input("w", [cols], uniform(0.5, 1.5))
            .input("b", [cols], normal(0.0, 1.0))
            .output("y", [rows, cols])
            .scalar("eps", 1e-5f32)
            .bound(Bound::relative(4e-6).absolute(4e-6))
            .expect(move |inputs, out| {
                let norm = |x: &[f64]| -> Vec<f64> {
                    let n = x.len() as f64;
                    let mean = x.iter().sum::<f64>() / n;
                    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
                    let scale = 1.0 / (variance + f64::from(1e-5f32)).sqrt();
                    let affine = inputs["w"].iter().zip(&inputs["b"]);
                    x.iter()
                        .zip(affine)
                        .map(|(v, (w, b))| (v - mean) * scale * w + b)
                        .collect()
                };
                out.set(
                    "y",
                    inputs["x"].chunks(cols as usize).flat_map(norm).collect(),
                );
            });
    }
}

#[bench_kernel(rms_norm)]
fn rms_norm_rows(b: &mut Benches) {
    let bytes = u64::from(b.scalar("T").bytes());
    for (rows, cols) in [(1, 576), (4096, 4096)] {
        b.bench(format!("{rows}x{cols}"))
            .input("x", [rows, cols], normal(0.0, 1.0))
            .input("w", [cols], uniform(0.5, 1.5))
            .output("y", [rows, cols])
            .scalar("eps", 1e-5f32)
            .bytes((2 * rows + 1) * cols * bytes);
    }
}

#[bench_kernel(add_rms_norm)]
fn add_rms_norm_rows(b: &mut Benches) {
    let bytes = u64::from(b.scalar("T").bytes());
    let (rows, cols) = (4096, 4096);
    b.bench(format!("{rows}x{cols}"))
        .input("x", [rows, cols], normal(0.0, 1.0))
        .input("w", [cols], uniform(0.5, 1.5))
        .inout("h", [rows, cols], normal(0.0, 1.0))
        .output("y", [rows, cols])
        .scalar("eps", 1e-5f32)
        .bytes((4 * rows + 1) * cols * bytes);
}
