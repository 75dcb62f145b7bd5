//! Every name that the macro accepts has a meaning in the builder: each stands in a kernel here, which
//! rustc types on the executable types, the builder turns into IR, and the verifier accepts.

#[path = "../../iron-macros/src/names.rs"]
mod names;

use iron_ir::prelude::*;
use iron_ir::registry::kernels;
use iron_ir::verify::verify;

/// Places, barriers, collectives and ranges.
#[kernel(grid = [4], workgroup = [8, 8], cooperative)]
pub fn places_and_collectives(
    x: &Tensor<f32, (n,)>,
    y: &mut Tensor<f32, (n,)>,
    u: &mut Tensor<u32, (n,)>,
) {
    let place = group_id(0) + group_count(0) + local_id(1) + group_size(1) + global_id(0);
    let thread = local_index() + group_threads() + place;
    let lanes = subgroup_id() + subgroup_count() + subgroup_lane() + subgroup_size();
    let v = x[local_index()];
    barrier();
    barrier_global();
    barrier_device();
    subgroup_barrier();
    grid_barrier();
    launch_barrier();
    let mut sum = workgroup_sum(v) + workgroup_product(v) + workgroup_min(v) + workgroup_max(v);
    sum += workgroup_min_nan(v) + workgroup_max_nan(v) + workgroup_broadcast(v, 3);
    sum += workgroup_scan_sum(v) + workgroup_scan_sum_exclusive(v);
    sum += subgroup_sum(v) + subgroup_product(v) + subgroup_min(v) + subgroup_max(v);
    sum += subgroup_min_nan(v) + subgroup_max_nan(v) + subgroup_broadcast(v, 1);
    sum += subgroup_shuffle(v, 1) + subgroup_shuffle_xor(v, 1);
    sum += subgroup_shuffle_up(v, 1) + subgroup_shuffle_down(v, 1);
    let any = workgroup_any(v > 0.0) && workgroup_all(v > 1.0);
    let some = subgroup_any(v > 0.0);
    let all = subgroup_all(v > 1.0);
    let ballot = subgroup_ballot(v > 2.0).count_ones();
    for i in strided(n) {
        sum += x[index_in(i, n)];
    }
    for i in grid_strided(n) {
        sum += x[i];
    }
    for i in unroll(0..4u32) {
        sum += x[i];
    }
    for i in (0..n).step_by(4) {
        sum += x[i];
    }
    y[local_index()] = sum + select(any, 1.0, 2.0) + select(some && all, 1.0, 2.0);
    u[local_index()] = thread + lanes + ballot;
}

/// Functions of floats.
#[expect(
    unstable_name_collisions,
    reason = "std's unstable `erf` is another name's business"
)]
#[kernel(grid = [1], workgroup = 32)]
pub fn floats(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>, z: &mut Tensor<u32, (n,)>) {
    let i = local_index();
    let (a, b) = (x[i], x[i + 1]);
    let mut sum = rsqrt(a) + erf(a) + fma(a, b, 1.0) + a.rsqrt() + a.erf();
    sum += a.min(b) + a.max(b) + a.min_nan(b) + a.max_nan(b);
    sum += a.powf(b) + a.mul_add(b, 1.0) + a.clamp(-1.0, 1.0);
    sum += a.abs() + a.sqrt() + a.exp() + a.exp2() + a.ln() + a.log2() + a.sin() + a.cos();
    sum += a.tanh() + a.floor() + a.ceil() + a.trunc() + a.round_ties_even();
    sum += f32::from_bits(a.to_bits()) + a.to::<f16>().to_f32();
    let h = f16::from_f32(a);
    let four = splat4(h);
    sum += mma_16x8x16(four, four, four, splat4(a)).sum();
    y[i] = sum + h.to_f32();
    z[i] = a.bitcast::<u32>() + a.is_nan() as u32 + a.is_finite() as u32;
}

/// Functions of integers.
#[kernel(grid = [1], workgroup = 32)]
pub fn integers(x: &Tensor<u32, (n,)>, y: &mut Tensor<u32, (n,)>) {
    let i = local_index();
    let (a, b) = (x[i], x[i + 1]);
    let mut sum = a.wrapping_add(b) ^ a.wrapping_sub(b) ^ a.wrapping_mul(b) ^ a.wrapping_neg();
    sum ^= a.wrapping_shl(b) ^ a.wrapping_shr(b) ^ a.mul_high(b) ^ a.div_ceil(b);
    sum ^= a.abs_diff(b) ^ a.saturating_sub(b) ^ a.pow(3);
    sum ^= a.count_ones() ^ a.leading_zeros() ^ a.trailing_zeros() ^ a.reverse_bits();
    sum ^= a.dot4(b) ^ (a as i32).dot4_mixed(b as i32) as u32;
    y[i] = sum ^ a.is_power_of_two() as u32;
}

/// Arrays, rows, vector accesses and atomics.
#[kernel(grid = [1], workgroup = 32)]
pub fn memory(
    x: &Tensor<f32, (rows, cols)>,
    y: &mut Tensor<f32, (rows, cols)>,
    u: &mut Tensor<u32, (rows, cols)>,
) {
    let mut s = shared::<f32>(64);
    let mut p = private::<f32>(8);
    let mut a = ahead::<f32>(8);
    let i = local_index();
    s[i] = x[[0, i]];
    p[0] = s[i];
    let from = x.row(0);
    let mut to = y.row_mut(0);
    to.store2(i, from.load2(i));
    to.store4(i, from.load4(i));
    to.store8(i, from.load8(i));
    a.store8(0, from.load8(i));
    a.end_batch();
    a.wait_batches(0);
    u.atomic_add([0, 0], 1);
    u.atomic_min([0, 0], 1);
    u.atomic_max([0, 0], 1);
    u.atomic_and([0, 0], 1);
    u.atomic_or([0, 0], 1);
    u.atomic_xor([0, 0], 1);
    u.atomic_exchange([0, 0], 1);
    u.atomic_compare_exchange([0, 0], 1, 2);
    u.atomic_store([0, 0], 3);
    let old = u.atomic_load([0, 0]);
    let size = x.dim(0) + s.len() + p.len() + a.len();
    to[0] = p[0] + a[0] + (old + size) as f32;
}

/// Vectors.
#[kernel(grid = [1], workgroup = 32)]
pub fn vectors(x: &Tensor<f32, (n,)>, q: &Tensor<Int4x8, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let i = local_index();
    let v = x.load4(i) + splat4(1.0) + vec4(1.0, 2.0, 3.0, 4.0) + F32x4::splat(2.0);
    let pair = splat2(x[i]) + vec2(1.0, 2.0);
    let eight = splat8(x[i]) + vec8(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0);
    y[i] = v.dot(v.map(|e| e * 2.0)) + v.sum() + v.max_lane() + v.min_lane();
    y[i] += pair.sum() + eight.sum() + q[i].to_i32().sum() as f32;
}

/// Tiles.
#[kernel(grid = [1], workgroup = 32)]
pub fn tiles(
    a: &Tensor<f32, (rows, cols)>,
    b: &Tensor<f32, (rows, cols)>,
    y: &mut Tensor<f32, (rows, cols)>,
) {
    let mut left = shared_tile::<f32>(16, 16);
    let mut right = shared_tile::<f32>(16, 16);
    let mut sum = reg_tile::<f32>(16, 16, 0.0);
    let mut of_rows = reg_tile::<f32>(16, 1, 0.0);
    let mut of_columns = reg_tile::<f32>(1, 16, 0.0);
    left.load(a, [0, 0]);
    right.load_transposed(b, [0, 0]);
    sum.fill(0.0);
    matmul(&mut sum, &left, &right);
    matmul_nt(&mut sum, &left, &right);
    matmul_tn(&mut sum, &left, &right);
    of_rows.reduce_rows_max(&sum);
    sum.map2(&of_rows, |x, m| x - m);
    of_rows.reduce_rows_sum(&sum);
    of_columns.reduce_columns_max(&sum);
    sum.map3(&of_rows, &of_columns, |x, r, c| x * r + c);
    of_columns.reduce_columns_sum(&sum);
    sum.map(|x| x + 1.0);
    sum.map_indexed(|x, r, c| x + (r + c) as f32);
    sum.map2_indexed(&of_columns, |x, o, r, c| x + o + (r * c) as f32);
    left.copy_from(&sum);
    sum.store(y, [left.rows() - 16, left.columns() - 16]);
}

#[test]
fn every_name_that_the_macro_takes_builds() {
    let kernels = kernels()
        .into_iter()
        .filter(|k| k.module.contains("vocabulary"));
    let mut count = 0;
    for entry in kernels {
        for instance in entry.instances {
            count += 1;
            let kernel = match (instance.build)() {
                Ok(kernel) => kernel,
                Err(error) => panic!("{error}"),
            };
            if let Err(errors) = verify(&kernel) {
                panic!("{errors}");
            }
        }
    }
    assert_eq!(count, 6);
}

#[test]
fn every_name_that_the_macro_takes_stands_in_a_kernel_here() {
    let text = include_str!("vocabulary.rs");
    let text = &text[..text.find("#[test]").unwrap_or(text.len())];
    // A call: the name, perhaps with types, between what is no part of a name and its bracket.
    let called = |before: &str, name: &str| {
        text.match_indices(name).any(|(at, _)| {
            let after = &text[at + name.len()..];
            let here = text[..at].ends_with(before);
            let whole = !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            here && whole && (after.starts_with('(') || after.starts_with("::<"))
        })
    };
    let mut absent = Vec::new();
    for (lists, before) in [(names::FUNCTIONS, ""), (names::METHODS, ".")] {
        for entry in lists.iter().flat_map(|list| list.iter()) {
            assert!(names::find(lists, entry.name).is_some());
            if !called(before, entry.name) {
                absent.push(format!("{before}{}", entry.name));
            }
        }
    }
    for name in names::ASSOCIATED {
        if !called("::", name) {
            absent.push(format!("::{name}"));
        }
    }
    assert!(
        absent.is_empty(),
        "no kernel here calls {}",
        absent.join(", ")
    );
    let slots = names::find(names::METHODS, "exp").map(|e| e.literals == names::Literals::Slot);
    assert_eq!(slots, Some(true));
    let beside =
        names::find(names::FUNCTIONS, "shared").map(|e| e.literals == names::Literals::Beside);
    assert_eq!(beside, Some(true));
}

#[test]
fn the_page_of_the_language_has_every_name() {
    let page = include_str!("../../docs/language.md");
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let words: std::collections::BTreeSet<&str> = page.split(|c| !is_name(c)).collect();
    let lists = names::FUNCTIONS.iter().chain(names::METHODS);
    let taken = lists.flat_map(|list| list.iter().map(|entry| entry.name));
    let absent: Vec<&str> = taken
        .chain(names::ASSOCIATED.iter().copied())
        .filter(|name| !words.contains(name))
        .collect();
    assert!(
        absent.is_empty(),
        "docs/language.md does not name {absent:?}"
    );
}
