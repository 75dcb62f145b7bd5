//! Loops that never end.

use iron_ir::prelude::*;
use iron_ir::testing::{Cases, values};

use super::{count, is_mended};

/// Counts down by two from an odd number, past zero.
#[kernel(grid = [1], workgroup = 4, instances(MENDED = [false, true]))]
pub fn past_zero<const MENDED: bool>(x: &Tensor<u32, { (4,) }>, y: &mut Tensor<u32, { (4,) }>) {
    let t = local_index();
    let mut left = x[t];
    let mut turns = 0u32;
    let step = if MENDED { 1 } else { 2 };
    while left != 0 {
        // fault: endless
        left = left.wrapping_sub(step);
        turns += 1;
    }
    y[t] = turns;
}

#[test_kernel(past_zero)]
fn past_zero_counts(t: &mut Cases) {
    t.case("odd")
        .input("x", [4], values(vec![7.0, 2.0, 4.0, 1.0]))
        .output("y", [4])
        .expect(|x, out| out.set("y", x["x"].to_vec()));
}

/// Waits for a flag that nobody raises.
#[kernel(grid = [1], workgroup = 4, instances(MENDED = [false, true]))]
pub fn waits_forever<const MENDED: bool>(flag: &mut Tensor<u32, { (1,) }>) {
    if MENDED && local_index() == 0 {
        flag.atomic_store(0, 1);
    }
    loop {
        // fault: endless
        if flag.atomic_load(0) == 1 {
            break;
        }
    }
}

#[test_kernel(waits_forever)]
fn waits_forever_ends(t: &mut Cases) {
    t.case("flag")
        .inout("flag", [1], values(vec![0.0]))
        .expect(|_, out| out.set("flag", vec![1.0]));
}

/// The outer loop forgets to move on; the inner one is sound.
#[kernel(grid = [1], workgroup = 4, instances(MENDED = [false, true]))]
pub fn forgets_to_move<const MENDED: bool>(
    x: &Tensor<f32, { (4, 4) }>,
    y: &mut Tensor<f32, { (4,) }>,
) {
    let t = local_index();
    let mut row = 0u32;
    let mut sum = 0.0f32;
    while row < 4 {
        // fault: endless
        for c in 0..4 {
            sum += x[[row, c]];
        }
        if MENDED || row > 4 {
            row += 1;
        }
    }
    y[t] = sum;
}

#[test_kernel(forgets_to_move)]
fn forgets_to_move_sums(t: &mut Cases) {
    t.case("4x4")
        .input("x", [4, 4], values(count(16)))
        .output("y", [4])
        .expect(|_, out| out.set("y", vec![120.0; 4]));
}

/// A step that an argument makes zero.
#[kernel(grid = [1], workgroup = 4, instances(MENDED = [false, true]))]
pub fn step_of_zero<const MENDED: bool>(
    x: &Tensor<f32, { (16,) }>,
    y: &mut Tensor<f32, { (4,) }>,
    step: usize,
) {
    let mut sum = 0.0f32;
    for i in (0..16u32).step_by(step) {
        // fault: zero-step
        sum += x[i];
    }
    y[local_index()] = sum;
}

#[test_kernel(step_of_zero)]
fn step_of_zero_sums(t: &mut Cases) {
    let step = if is_mended(t) { 1u64 } else { 0 };
    t.case(format!("step {step}"))
        .input("x", [16], values(count(16)))
        .output("y", [4])
        .scalar("step", step)
        .expect(|_, out| out.set("y", vec![120.0; 4]));
}
