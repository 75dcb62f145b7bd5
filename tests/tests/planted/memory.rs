//! Memory that nothing wrote.

use iron_ir::prelude::*;
use iron_ir::testing::{Cases, values};

use super::count;

/// Shared memory is not zero before it is written. // K29
#[kernel(grid = [1], workgroup = 16, instances(MENDED = [false, true]))]
pub fn assumed_zero<const MENDED: bool>(
    x: &Tensor<f32, { (16,) }>,
    y: &mut Tensor<f32, { (16,) }>,
) {
    let mut s = shared::<f32>(16);
    let t = local_index();
    if MENDED {
        s[t] = 0.0;
    }
    s[t] += x[t]; // fault: uninitialised
    y[t] = s[t];
}

#[test_kernel(assumed_zero)]
fn assumed_zero_copies(t: &mut Cases) {
    t.case("16")
        .input("x", [16], values(count(16)))
        .output("y", [16])
        .expect(|x, out| out.set("y", x["x"].to_vec()));
}

/// The neighbour's cell of shared memory, zeroed by nobody or by its owner. // K29
#[kernel(grid = [1], workgroup = 16, instances(MENDED = [false, true]))]
pub fn neighbour_unset<const MENDED: bool>(y: &mut Tensor<f32, { (16,) }>) {
    let mut s = shared::<f32>(17);
    let t = local_index();
    s[t] = 1.0;
    if MENDED && t == 0 {
        s[16] = 1.0;
    }
    barrier();
    y[t] = s[t + 1]; // fault: uninitialised
}

#[test_kernel(neighbour_unset)]
fn neighbour_unset_is_one(t: &mut Cases) {
    t.case("16")
        .output("y", [16])
        .expect(|_, out| out.set("y", vec![1.0; 16]));
}

/// The second of two batches, when only the first has been waited for.
#[kernel(grid = [1], workgroup = 16, instances(MENDED = [false, true]))]
pub fn unawaited_batch<const MENDED: bool>(
    x: &Tensor<f32, { (16,) }>,
    y: &mut Tensor<f32, { (16,) }>,
) {
    let mut a = ahead::<f32>(2);
    let t = local_index();
    a[0] = x[t];
    a.end_batch();
    a[1] = x[t];
    a.end_batch();
    a.wait_batches(1);
    let first = a[0];
    if MENDED {
        a.wait_batches(0);
    }
    y[t] = first + a[1]; // fault: uninitialised
}

#[test_kernel(unawaited_batch)]
fn unawaited_batch_doubles(t: &mut Cases) {
    t.case("16")
        .input("x", [16], values(count(16)))
        .output("y", [16])
        .expect(|inputs, out| out.set("y", inputs["x"].iter().map(|x| 2.0 * x).collect()));
}

/// The tail of the tile that a short row leaves. // K04
#[kernel(grid = [rows], workgroup = 16, instances(MENDED = [false, true]))]
pub fn unfilled_tail<const MENDED: bool>(
    x: &Tensor<f32, (rows, cols)>,
    y: &mut Tensor<f32, (rows,)>,
) {
    let mut s = shared::<f32>(16);
    let (row, t) = (group_id(0), local_index());
    if t < cols {
        s[t] = x[[row, t]];
    } else if MENDED {
        s[t] = 0.0;
    }
    barrier();
    if t == 0 {
        let mut sum = 0.0f32;
        for i in 0..16 {
            sum += s[i]; // fault: uninitialised
        }
        y[row] = sum;
    }
}

#[test_kernel(unfilled_tail)]
fn unfilled_tail_sums(t: &mut Cases) {
    for cols in [16, 11] {
        t.case(format!("3x{cols}"))
            .input("x", [3, cols], values(count(3 * cols)))
            .output("y", [3])
            .expect(move |x, out| {
                let rows = x["x"].chunks(cols as usize);
                out.set("y", rows.map(|row| row.iter().sum()).collect());
            });
    }
}

/// Private arrays are not zero either. // K29b
#[kernel(grid = [1], workgroup = 8, instances(MENDED = [false, true]))]
pub fn private_unset<const MENDED: bool>(x: &Tensor<f32, { (8,) }>, y: &mut Tensor<f32, { (8,) }>) {
    let mut sums = private::<f32>(4);
    let t = local_index();
    let first = if MENDED { 0 } else { 1 };
    for i in first..4 {
        sums[i] = x[t];
    }
    let mut total = 0.0f32;
    for i in 0..4 {
        total += sums[i]; // fault: uninitialised
    }
    y[t] = total;
}

#[test_kernel(private_unset)]
fn private_unset_sums(t: &mut Cases) {
    t.case("8")
        .input("x", [8], values(count(8)))
        .output("y", [8])
        .expect(|x, out| out.set("y", x["x"].iter().map(|v| 4.0 * v).collect()));
}

/// An output holds whatever was there. // K29b
#[kernel(grid = [2], workgroup = 8, instances(MENDED = [false, true]))]
pub fn output_before_write<const MENDED: bool>(
    x: &Tensor<f32, { (16,) }>,
    y: &mut Tensor<f32, { (16,) }>,
) {
    let i = global_id(0);
    if MENDED {
        y[i] = 0.0;
    }
    y[i] += x[i]; // fault: uninitialised
}

#[test_kernel(output_before_write)]
fn output_before_write_copies(t: &mut Cases) {
    t.case("16")
        .input("x", [16], values(count(16)))
        .output("y", [16])
        .expect(|x, out| out.set("y", x["x"].to_vec()));
}

/// A tile that one branch of the workgroup leaves out.
#[kernel(grid = [2], workgroup = 16, instances(MENDED = [false, true]))]
pub fn tile_unset<const MENDED: bool>(
    x: &Tensor<f32, { (16, 8) }>,
    y: &mut Tensor<f32, { (16, 8) }>,
) {
    let mut tile = shared_tile::<f32>(8, 8);
    let mut out = reg_tile::<f32>(8, 8, 0.0);
    if group_id(0) == 0 || MENDED {
        tile.load(x, [group_id(0) * 8, 0]);
    }
    out.copy_from(&tile); // fault: uninitialised
    out.store(y, [group_id(0) * 8, 0]);
}

#[test_kernel(tile_unset)]
fn tile_unset_copies(t: &mut Cases) {
    t.case("16x8")
        .input("x", [16, 8], values(count(128)))
        .output("y", [16, 8])
        .expect(|x, out| out.set("y", x["x"].to_vec()));
}
