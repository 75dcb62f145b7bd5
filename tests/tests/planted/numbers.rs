//! Floats that stop being finite: faults under `--finite` only.

use iron_ir::prelude::*;
use iron_ir::testing::{Cases, values};

/// A row of which every score is masked: minus infinity less minus infinity. // K13
#[kernel(grid = [1], workgroup = 4, instances(MENDED = [false, true]))]
pub fn masked_row<const MENDED: bool>(x: &Tensor<f32, { (4,) }>, y: &mut Tensor<f32, { (4,) }>) {
    let t = local_index();
    let score = if x[t] > 100.0 {
        x[t]
    } else {
        f32::NEG_INFINITY
    };
    let largest = workgroup_max(score);
    let shift = if MENDED && largest == f32::NEG_INFINITY {
        0.0
    } else {
        largest
    };
    let shifted = score - shift; // fault: non-finite
    y[t] = shifted.exp(); // with
}

#[test_kernel(masked_row)]
fn masked_row_is_zero(t: &mut Cases) {
    t.case("all masked")
        .input("x", [4], values(vec![1.0, 2.0, 3.0, 4.0]))
        .output("y", [4])
        .expect(|_, out| out.set("y", vec![0.0; 4]));
}

/// A sum that f16 cannot hold.
#[kernel(grid = [1], workgroup = 4, instances(MENDED = [false, true]))]
pub fn narrow_store<const MENDED: bool>(x: &Tensor<f16, { (4,) }>, y: &mut Tensor<f16, { (4,) }>) {
    let t = local_index();
    let sum = workgroup_sum(x[t].to_f32());
    let sum = if MENDED { sum * 0.25 } else { sum };
    let narrow = sum.to::<f16>(); // fault: non-finite
    y[t] = narrow; // with
}

#[test_kernel(narrow_store)]
fn narrow_store_holds(t: &mut Cases) {
    t.case("4 × 60000")
        .input("x", [4], values(vec![60_000.0; 4]))
        .output("y", [4])
        .expect(|_, out| out.set("y", vec![60_000.0; 4]));
}

/// A quotient by zero that a selection drops in one twin and stores in the other.
#[kernel(grid = [1], workgroup = 4, instances(MENDED = [false, true]))]
pub fn quotient<const MENDED: bool>(x: &Tensor<f32, { (4,) }>, y: &mut Tensor<f32, { (4,) }>) {
    let t = local_index();
    let inverse = 1.0 / x[t]; // fault: non-finite
    let kept = select(x[t] == 0.0, 0.0, inverse);
    y[t] = if MENDED { kept } else { inverse }; // with
}

#[test_kernel(quotient)]
fn quotient_of_zero_is_zero(t: &mut Cases) {
    t.case("a zero")
        .input("x", [4], values(vec![1.0, 2.0, 0.0, 4.0]))
        .output("y", [4])
        .expect(|_, out| out.set("y", vec![1.0, 0.5, 0.0, 0.25]));
}

/// An infinity that went in is none.
#[kernel(grid = [1], workgroup = 4)]
pub fn went_in(x: &Tensor<f32, { (4,) }>, y: &mut Tensor<f32, { (4,) }>) {
    let t = local_index();
    y[t] = x[t] * 2.0 - x[t];
}

#[test_kernel(went_in)]
fn went_in_stays(t: &mut Cases) {
    t.case("an infinity")
        .input("x", [4], values(vec![1.0, f64::INFINITY, 2.0, 3.0]))
        .output("y", [4])
        .expect(|_, out| out.set("y", vec![1.0, f64::NAN, 2.0, 3.0]));
}
