//! Every statement and expression of the language, built and verified.

use iron_ir::prelude::*;
use iron_ir::registry::kernels;

const LIMIT: u32 = 9;
const TABLE: [f32; 4] = [0.0, 0.5, 1.0, 2.0];

/// Running maximum and sum.
#[device_struct]
pub struct Online {
    m: f32,
    s: f32,
}

#[device_fn]
fn online<T: Float, F: Fn(f32) -> f32>(m: f32, x: T, f: F) -> (f32, f32) {
    let x = x.to_f32();
    if x > m {
        return (x, f(m - x));
    }
    (m, f(x - m))
}

#[device_fn]
fn step(state: Online, x: f32) -> Online {
    let m = state.m.max(x);
    Online {
        m,
        s: state.s * (state.m - m).exp() + (x - m).exp(),
    }
}

#[device_fn]
fn bump(place: &mut f32, by: f32) {
    *place += by;
}

#[device_fn]
fn row_sum<T: Float>(x: &Tensor<T, 2>, r: u32) -> f32 {
    let mut total = 0.0;
    for c in 0..x.dim(1) {
        total += x[[r, c]].to_f32();
    }
    total
}

#[device_fn]
fn first_above(x: &Tensor<f32, 2>, limit: f32) -> u32 {
    for r in 0..x.dim(0) {
        for c in 0..x.dim(1) {
            if x[[r, c]] > limit {
                return r * x.dim(1) + c;
            }
        }
    }
    u32::MAX
}

#[kernel(grid = [1], workgroup = 1, instances(T = [f32, f16]))]
fn helpers<T: Float>(
    x: &Tensor<T, (rows, cols)>,
    z: &Tensor<f32, (rows, cols)>,
    y: &mut Tensor<f32, (n,)>,
) {
    let bias = 0.5f32;
    let mut m = -1.0e30;
    let mut acc = 0.0;
    for i in 0..cols {
        let (nm, s) = online(m, x[[0, i]], |d| d.exp() + bias);
        m = nm;
        acc *= s;
    }
    y[0] = acc;
    let mut state = Online {
        m: f32::MIN,
        s: 0.0,
    };
    for i in 0..cols {
        state = step(state, z[[0, i]]);
        state.s *= 2.0;
    }
    let Online { m: top, s } = state;
    y[1] = top + s;
    bump(&mut acc, 3.0);
    bump(&mut y[2], acc);
    y[3] = row_sum(x, 0) + row_sum::<f32>(z, 1);
    y[4] = first_above(z, 0.5) as f32;
}

#[kernel(grid = [1], workgroup = 32)]
fn control(
    kind: u32,
    x: &Tensor<f32, (n,)>,
    y: &mut Tensor<f32, (n,)>,
    out: &mut Tensor<u32, (m,)>,
) {
    let i = global_id(0);
    let v = x[i];
    let r = match kind {
        0 => v,
        1 | 2 => {
            let e = (-v).exp();
            v / (1.0 + e)
        }
        k if k > 100 => return,
        3..=8 => {
            if v < 0.0 {
                0.0
            } else {
                v
            }
        }
        LIMIT => -v,
        _ => v.max(-1.0),
    };
    y[i] = r;
    let mut k = 0;
    let mut steps = 0;
    while k < n {
        if x[k] > 1.0 && x[k] < 9.0 {
            break;
        }
        k += 1;
        if k % 3 == 0 {
            continue;
        }
        steps += 3;
    }
    out[0] = k;
    out[1] = steps;
    let mut found = 0u32;
    'outer: for a in 0..10u32 {
        for b in (0..10u32).step_by(2) {
            if a * b == kind {
                found = a;
                break 'outer;
            }
            if b > a {
                continue 'outer;
            }
        }
        found += 1;
    }
    out[2] = found;
    let q = loop {
        found += 1;
        if found > 20 {
            break found * 2;
        }
    };
    out[3] = q;
    let t = 'block: {
        if kind == 3 {
            break 'block 1u32;
        }
        if kind == 4 {
            break 'block 2;
        }
        3
    };
    out[4] = t;
    for j in 0..=LIMIT {
        out[j] += 1;
    }
    let (mut lo, hi) = if kind > 2 { (1u32, 2u32) } else { (3, 4) };
    lo += hi;
    out[5] = lo;
    out[6] = if kind == 0 || x[kind] > 0.0 { 1 } else { 0 };
    let flags = (kind > 3) as u32 + (v > 0.0) as u32;
    out[7] = flags << 2 | 1;
}

#[kernel(grid = [1], workgroup = 32, instances(N = [4, 16]))]
fn arrays<const N: usize>(
    x: &Tensor<f32, (n,)>,
    y: &mut Tensor<f32, (n,)>,
    bins: &mut Tensor<u32, (n,)>,
) {
    let mut local = [0.0f32; N];
    for i in 0..n {
        local[i as usize % N] += x[i];
    }
    let copy = local;
    local[0] = 7.0;
    let mut pairs = [(0.0f32, 1u32); 3];
    pairs[1].1 += 4;
    pairs[2].0 = copy[1];
    let lut = TABLE[x[0] as usize & 3];
    let small = [1.0, 2.0, 3.0f32];
    let mut total = lut;
    for k in 0..N {
        total += local[k] * copy[k];
    }
    for k in unroll(0..3usize) {
        total += small[k] * pairs[k].0;
    }
    let mut grid = [[0u32; 4]; 4];
    for r in 0..4usize {
        for c in 0..4usize {
            grid[r][c] = (r * c) as u32;
        }
    }
    y[0] = total;
    bins[0] = grid[2][3] + pairs[1].1 + small.len() as u32;
}

#[kernel(grid = [1], workgroup = 64, instances(T = [f16, f32]))]
fn vectors<T: Float>(
    x: &Tensor<T, (rows, cols)>,
    y: &mut Tensor<T, (rows, cols)>,
    p: &Tensor<u32, (n,)>,
) {
    let row = x.row(group_id(0));
    let mut out = y.row_mut(group_id(0));
    for i in strided(cols / 4) {
        let v: F32x4 = row.load4(i).to();
        let mut w = v * 2.0 + splat4(v[0]);
        w += v;
        w[1] = v.sum();
        w[3] = w[1].max(v.max_lane());
        let r = w.map(|e| e.sqrt().min(3.0));
        out.store4(i, r.to::<T>());
    }
    let bits = f32::from_bits(p[0]).to_bits() ^ 0x8000_0000;
    let packed: u32 = vec4(bits as u8, 1, 2, 3).bitcast();
    out[0] = T::from_f32((packed & 0xff) as f32) + T::ZERO;
    let widest = u32::MAX as f32 - 0.5;
    out[1] = T::from_f32(widest.clamp(-1.0, 1.0));
}

#[kernel(grid = [ceil_div(m, 64), ceil_div(n, 64)], workgroup = 128, instances(T = [f16, bf16]))]
fn tiles<T: Float>(a: &Tensor<T, (m, k)>, b: &Tensor<T, (n, k)>, c: &mut Tensor<T, (m, n)>) {
    let mut left = shared_tile::<T>(64, 32);
    let mut right = shared_tile::<T>(64, 32);
    let mut acc = reg_tile::<f32>(64, 64, 0.0);
    let mut top = reg_tile::<f32>(64, 1, f32::MIN);
    let (r0, c0) = (group_id(0) * 64, group_id(1) * 64);
    for k0 in (0..k).step_by(32) {
        left.load(a, [r0, k0]);
        right.load(b, [c0, k0]);
        matmul_nt(&mut acc, &left, &right);
    }
    top.reduce_rows_max(&acc);
    acc.map2(&top, |x, m| (x - m).exp());
    acc.map_indexed(|x, r, c| if r0 + r > c0 + c { 0.0 } else { x });
    acc.store(c, [r0, c0]);
}

#[kernel(grid = [1], workgroup = [8, 8], in_place(y, x))]
fn collectives(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>, u: &mut Tensor<u32, (n,)>) {
    let i = local_index();
    let v = x[i];
    let total = workgroup_sum(v) + workgroup_max_nan(v) + subgroup_min(v);
    let before = workgroup_scan_sum_exclusive(1u32);
    let mask = subgroup_ballot(v > 0.0);
    let other = subgroup_shuffle_xor(v, 1);
    let any = workgroup_any(v.is_nan());
    barrier_global();
    y[i] = total + other + workgroup_broadcast(v, 0);
    u[i] = before + mask.count_ones() + any as u32 + index_in(i, 3);
    let old = u.atomic_compare_exchange(0, 1, 2);
    u.atomic_store(1, old);
}

#[test]
fn every_kernel_builds_and_verifies() {
    let mut count = 0;
    for entry in kernels() {
        for instance in entry.instances {
            let kernel = match (instance.build)() {
                Ok(kernel) => kernel,
                Err(error) => panic!("{error}"),
            };
            if std::env::var("SHOW").is_ok_and(|name| name == entry.name) {
                println!("{}", iron_ir::print::print(&kernel));
            }
            if let Err(errors) = iron_ir::verify::verify(&kernel) {
                panic!("{}\n{errors}", iron_ir::print::print(&kernel));
            }
            count += 1;
        }
    }
    assert_eq!(count, 10);
}
