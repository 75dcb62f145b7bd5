//! What products of few rows share: weights on their way before the barrier between launches, sums
//! in the order of [`matvec`](crate::matmul::matvec) and of [`rms_norm`](crate::norm::rms_norm).

use iron_ir::prelude::*;

/// Most subgroups of a workgroup whose sums are kept apart.
pub(crate) const SUBGROUPS: u32 = 32;
/// Threads of [`rms_norm`](crate::norm::rms_norm), whose order of sums is kept.
pub(crate) const NORM_THREADS: u32 = 256;

/// The first vectors of each output's row of weights, into `early`.
#[device_fn]
pub(crate) fn load_early<
    T: Float,
    const LANES: u32,
    const EARLY: u32,
    const OUTPUTS: u32,
    R: Fn(u32) -> u32,
>(
    w: &Tensor<T, 2>,
    early: &mut Private<T>,
    row_of: R,
) {
    let last = w.dim(1) / 8 - 1;
    for o in unroll(0..OUTPUTS) {
        for j in unroll(0..EARLY) {
            let i = (j * LANES + local_index()).min(last);
            early.store8(o * EARLY + j, w.load8([row_of(o), i]));
        }
    }
}

/// Dot products of each output's row of weights with the vectors of 8 that `x` gives by index,
/// and `early_x` by number among the thread's early ones: eight interleaved chains a thread in
/// ascending order, then the adjacent-pair tree over the threads, whose last levels [`total`]
/// takes. Ends with a barrier.
#[device_fn]
pub(crate) fn sum_products<
    T: Float,
    const LANES: u32,
    const EARLY: u32,
    const OUTPUTS: u32,
    R: Fn(u32) -> u32,
    E: Fn(u32) -> F32x8,
    X: Fn(u32) -> F32x8,
>(
    w: &Tensor<T, 2>,
    early: &Private<T>,
    parts: &mut Shared<f32>,
    row_of: R,
    early_x: E,
    x: X,
) {
    let vectors = w.dim(1) / 8;
    let mut sums = private::<f32>(OUTPUTS);
    let mut chains = private::<f32>(8 * OUTPUTS);
    for o in unroll(0..OUTPUTS) {
        chains.store8(o, splat8(0.0f32));
    }
    for j in unroll(0..EARLY) {
        if j * LANES + local_index() < vectors {
            let inputs = early_x(j);
            for o in unroll(0..OUTPUTS) {
                let weights = early.load8(o * EARLY + j).to_f32();
                chains.store8(o, weights.mul_add(inputs, chains.load8(o)));
            }
        }
    }
    for i in (EARLY * LANES + local_index()..vectors).step_by(LANES as usize) {
        let inputs = x(i);
        for o in unroll(0..OUTPUTS) {
            let weights = w.load8([row_of(o), i]).to_f32();
            chains.store8(o, weights.mul_add(inputs, chains.load8(o)));
        }
    }
    for o in unroll(0..OUTPUTS) {
        sums[o] = chains.load8(o).sum();
    }
    gather_sums::<OUTPUTS>(&sums, parts, 0);
}

/// The threads' sums of each output, by subgroups, from output `first` of `parts` on. Ends with a
/// barrier.
#[device_fn]
pub(crate) fn gather_sums<const OUTPUTS: u32>(
    sums: &Private<f32>,
    parts: &mut Shared<f32>,
    first: u32,
) {
    if subgroup_count() <= SUBGROUPS {
        for o in unroll(0..OUTPUTS) {
            let sum = subgroup_sum(sums[o]);
            if subgroup_lane() == 0 {
                parts[(first + o) * SUBGROUPS + subgroup_id()] = sum;
            }
        }
    } else {
        for o in unroll(0..OUTPUTS) {
            let sum = workgroup_sum(sums[o]);
            if local_index() == 0 {
                parts[(first + o) * SUBGROUPS] = sum;
            }
        }
    }
    barrier();
}

/// The sums of a tile whose weights are held, of rows whose every vector is: output by output,
/// so that what takes registers is the weights.
#[device_fn]
pub(crate) fn sum_held<T: Float, const LANES: u32, const EARLY: u32, const OUTPUTS: u32>(
    early: &Private<T>,
    inputs: &Private<T>,
    vectors: u32,
    sums: &mut Private<f32>,
) {
    if vectors == EARLY * LANES {
        for o in unroll(0..OUTPUTS) {
            let mut chains = splat8(0.0f32);
            for j in unroll(0..EARLY) {
                let weights = early.load8(o * EARLY + j).to_f32();
                chains = weights.mul_add(inputs.load8(j).to_f32(), chains);
            }
            sums[o] = chains.sum();
        }
    } else {
        for o in unroll(0..OUTPUTS) {
            let mut chains = splat8(0.0f32);
            for j in unroll(0..EARLY) {
                let weights = early.load8(o * EARLY + j).to_f32();
                let next = weights.mul_add(inputs.load8(j).to_f32(), chains);
                chains = select(j * LANES + local_index() < vectors, next, chains);
            }
            sums[o] = chains.sum();
        }
    }
}

/// Zeroes the parts of sums that no subgroup will write, of `outputs` outputs. Ends with a barrier.
#[device_fn]
pub(crate) fn clear(parts: &mut Shared<f32>, outputs: u32) {
    for i in strided(outputs * SUBGROUPS) {
        parts[i] = 0.0;
    }
    barrier();
}

/// An output's sum: the last levels of the tree, over the subgroups.
#[device_fn]
pub(crate) fn total(parts: &Shared<f32>, o: u32) -> f32 {
    let vectors = o * (SUBGROUPS / 8);
    let low = parts.load8(vectors).sum() + parts.load8(vectors + 1).sum();
    let high = parts.load8(vectors + 2).sum() + parts.load8(vectors + 3).sum();
    low + high
}

/// The thread's first vectors of a row, into `early`.
#[device_fn]
pub(crate) fn load_row<T: Float, const LANES: u32, const EARLY: u32, X: Fn(u32) -> Vector<T, 8>>(
    vectors: u32,
    early: &mut Private<T>,
    x: X,
) {
    for j in unroll(0..EARLY) {
        early.store8(j, x((j * LANES + local_index()).min(vectors - 1)));
    }
}

/// `1 / sqrt(mean(h[row, :]^2) + eps)`.
#[device_fn]
pub(crate) fn norm_scale<T: Float, const LANES: u32>(h: &Tensor<T, 2>, row: u32, eps: f32) -> f32 {
    let vectors = h.dim(1) / 8;
    let shares = NORM_THREADS / LANES;
    // A thread stands for neighbours of the norm's threads, so that the tree is the same.
    let mut squares = private::<f32>(8);
    squares.store8(0u32, splat8(0.0f32));
    for share in unroll(0..NORM_THREADS / LANES) {
        let mut sum = 0.0f32;
        for i in (local_index() * shares + share..vectors).step_by(NORM_THREADS as usize) {
            let v = h.load8([row, i]).to_f32();
            sum += v.dot(v);
        }
        squares[share] = sum;
    }
    let sum = workgroup_sum(squares.load8(0u32).sum());
    rsqrt(sum / h.dim(1) as f32 + eps)
}

/// Normalises a row that the threads hold, `vectors` of it, in place, as [`norm_scale`] and
/// [`normed8`] do: the order of sums is the norm's, whose threads each have one vector where
/// `LANES` is less than theirs.
#[device_fn]
pub(crate) fn norm_held<T: Float, const LANES: u32, const EARLY: u32>(
    inputs: &mut Private<T>,
    norms: &Private<T>,
    vectors: u32,
    eps: f32,
) {
    let mut sum = 0.0f32;
    for j in unroll(0..EARLY) {
        let v = inputs.load8(j).to_f32();
        let next = sum + v.dot(v);
        sum = select(j * LANES + local_index() < vectors, next, sum);
    }
    let scale = rsqrt(workgroup_sum(sum) / (8 * vectors) as f32 + eps);
    for j in unroll(0..EARLY) {
        let held = inputs.load8(j).to_f32() * scale * norms.load8(j).to_f32();
        inputs.store8(j, held.to::<T>());
    }
}

/// Eight elements of a normalised row, rounded.
#[device_fn]
pub(crate) fn normed8<T: Float>(h: Vector<T, 8>, norm: Vector<T, 8>, scale: f32) -> F32x8 {
    (h.to_f32() * scale * norm.to_f32()).to::<T>().to_f32()
}
