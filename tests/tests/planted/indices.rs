//! Index arithmetic that loses bits, and launches that break the contract.

use iron_ir::prelude::*;
use iron_ir::testing::{Cases, values};

use super::{count, is_mended};

/// Row by stride in 32 bits: 65,536 × 65,536 is 0, and the access lands in bounds. // K06
#[kernel(grid = [1], workgroup = 16, instances(MENDED = [false, true]))]
pub fn row_by_stride<const MENDED: bool>(
    x: &Tensor<f32, { (16,) }>,
    y: &mut Tensor<f32, { (16,) }>,
    row: u32,
    stride: u32,
) {
    let t = local_index();
    if MENDED {
        let at = row as u64 * stride as u64 + t as u64;
        y[t] = if at < 16 { x[at as u32] } else { 0.0 };
    } else {
        y[t] = x[row * stride + t]; // fault: wrapped-index // with
    }
}

#[test_kernel(row_by_stride)]
fn row_by_stride_is_outside(t: &mut Cases) {
    t.case("row 65536")
        .input("x", [16], values(count(16)))
        .output("y", [16])
        .scalar("row", 65_536u32)
        .scalar("stride", 65_536u32)
        .expect(|_, out| out.set("y", vec![0.0; 16]));
}

/// A 64-bit offset, cut to 32 bits.
#[kernel(grid = [1], workgroup = 16, instances(MENDED = [false, true]))]
pub fn cut_offset<const MENDED: bool>(
    x: &Tensor<f32, { (16,) }>,
    y: &mut Tensor<f32, { (16,) }>,
    base: u64,
) {
    let t = local_index();
    let at = base + t as u64;
    if MENDED && at >= 16 {
        y[t] = 0.0;
        return;
    }
    let narrow = at as u32; // fault: wrapped-index
    y[t] = x[narrow]; // with
}

#[test_kernel(cut_offset)]
fn cut_offset_is_outside(t: &mut Cases) {
    t.case("4 GiB")
        .input("x", [16], values(count(16)))
        .output("y", [16])
        .scalar("base", 1u64 << 32)
        .expect(|_, out| out.set("y", vec![0.0; 16]));
}

/// The element before the first. // K06b
#[kernel(grid = [1], workgroup = 16, instances(MENDED = [false, true]))]
pub fn before_the_first<const MENDED: bool>(
    x: &Tensor<f32, { (16,) }>,
    y: &mut Tensor<f32, { (16,) }>,
) {
    let t = local_index();
    let from = if MENDED { t.max(1) } else { t };
    let before = from - 1; // fault: wrapped-index
    y[t] = x[before]; // with
}

#[test_kernel(before_the_first)]
fn before_the_first_repeats(t: &mut Cases) {
    t.case("16")
        .input("x", [16], values(count(16)))
        .output("y", [16])
        .expect(|x, out| out.set("y", (0..16usize).map(|i| x["x"][i.max(1) - 1]).collect()));
}

/// A position that a loop carries past 32 bits, back to where it began.
#[kernel(grid = [1], workgroup = 16, instances(MENDED = [false, true]))]
pub fn carried_offset<const MENDED: bool>(
    x: &Tensor<f32, { (32,) }>,
    y: &mut Tensor<f32, { (16,) }>,
) {
    let t = local_index();
    let mut at = t;
    let step = if MENDED { 4 } else { 1 << 30 };
    for _ in 0..4 {
        at += step; // fault: wrapped-index
    }
    y[t] = x[at]; // with
}

#[test_kernel(carried_offset)]
fn carried_offset_moves_on(t: &mut Cases) {
    t.case("32")
        .input("x", [32], values(count(32)))
        .output("y", [16])
        .expect(|x, out| out.set("y", x["x"][16..].to_vec()));
}

/// The end of a loop, below zero. // K06b
#[kernel(grid = [1], workgroup = 4, instances(MENDED = [false, true]))]
pub fn end_below_zero<const MENDED: bool>(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, { (4,) }>) {
    let mut sum = 0.0f32;
    let end = if MENDED { n.saturating_sub(8) } else { n - 8 }; // fault: wrapped-index
    for i in 0..end {
        // with
        sum += x[i];
    }
    y[local_index()] = sum;
}

#[test_kernel(end_below_zero)]
fn end_below_zero_sums_nothing(t: &mut Cases) {
    t.case("4 elements")
        .input("x", [4], values(count(4)))
        .output("y", [4])
        .expect(|_, out| out.set("y", vec![0.0; 4]));
}

/// Wrapping that is undone before the access, and a hash, are no faults: this one has a race.
#[kernel(grid = [1], workgroup = 16, instances(MENDED = [false, true]))]
pub fn wrapping_on_purpose<const MENDED: bool>(
    x: &Tensor<f32, { (16,) }>,
    y: &mut Tensor<f32, { (16,) }>,
) {
    let t = local_index();
    let same = t.wrapping_sub(5).wrapping_add(5);
    let hash = t.wrapping_mul(2_654_435_761) >> 28;
    let clamped = t.wrapping_sub(1).min(15);
    y[if MENDED { same } else { same / 2 }] = x[same] + 0.0 * (x[hash] + x[clamped]); // fault: race // with
}

#[test_kernel(wrapping_on_purpose)]
fn wrapping_on_purpose_copies(t: &mut Cases) {
    t.case("16")
        .input("x", [16], values(count(16)))
        .output("y", [16])
        .expect(|x, out| out.set("y", x["x"].to_vec()));
}

/// A fact that the launch breaks.
#[rustfmt::skip]
#[kernel(grid = [1], workgroup = 4, requires(n % 4 == 0), instances(MENDED = [false, true]))]
pub fn false_fact<const MENDED: bool>(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) { // fault: contract
    for i in strided(n) {
        y[i] = x[i];
    }
}

#[test_kernel(false_fact)]
fn false_fact_copies(t: &mut Cases) {
    let n = if is_mended(t) { 8 } else { 6 };
    t.case(format!("{n}"))
        .input("x", [n], values(count(n)))
        .output("y", [n])
        .expect(|x, out| out.set("y", x["x"].to_vec()));
}
