//! Indices outside.

use iron_ir::prelude::*;
use iron_ir::testing::{Cases, values};

use super::count;

/// The last workgroup is cut, and nothing says so.
#[kernel(grid = [ceil_div(n, 16)], workgroup = 16, instances(MENDED = [false, true]))]
pub fn unguarded_tail<const MENDED: bool>(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let i = global_id(0);
    if MENDED && i >= n {
        return;
    }
    y[i] = x[i]; // fault: out-of-bounds
}

#[test_kernel(unguarded_tail)]
fn unguarded_tail_copies(t: &mut Cases) {
    for n in [16, 20] {
        t.case(format!("{n}"))
            .input("x", [n], values(count(n)))
            .output("y", [n])
            .expect(|x, out| out.set("y", x["x"].to_vec()));
    }
}

/// Past the row's end, and inside of the buffer: the next row answers.
#[kernel(grid = [4], workgroup = 8, instances(MENDED = [false, true]))]
pub fn next_row<const MENDED: bool>(x: &Tensor<f32, { (5, 8) }>, y: &mut Tensor<f32, { (4, 8) }>) {
    let (row, t) = (group_id(0), local_index());
    let shifted = if MENDED { (t + 1) % 8 } else { t + 1 };
    y[[row, t]] = x[[row, shifted]]; // fault: out-of-bounds
}

#[test_kernel(next_row)]
fn next_row_rotates(t: &mut Cases) {
    t.case("5x8")
        .input("x", [5, 8], values(count(40)))
        .output("y", [4, 8])
        .expect(|x, out| {
            let at = |i: usize| x["x"][i / 8 * 8 + (i + 1) % 8];
            out.set("y", (0..32).map(at).collect());
        });
}

/// A shared array that is too short for its stride.
#[kernel(grid = [1], workgroup = 32, instances(MENDED = [false, true]))]
pub fn short_array<const MENDED: bool>(x: &Tensor<f32, { (32,) }>, y: &mut Tensor<f32, { (32,) }>) {
    let mut s = shared::<f32>(48);
    let t = local_index();
    let stride = if MENDED { 1 } else { 2 };
    s[t * stride] = x[t]; // fault: out-of-bounds
    barrier();
    y[t] = s[t * stride];
}

#[test_kernel(short_array)]
fn short_array_copies(t: &mut Cases) {
    t.case("32")
        .input("x", [32], values(count(32)))
        .output("y", [32])
        .expect(|x, out| out.set("y", x["x"].to_vec()));
}

/// A bin that the data chooses, past the thread's own bins.
#[kernel(grid = [1], workgroup = 8, instances(MENDED = [false, true]))]
pub fn private_bins<const MENDED: bool>(x: &Tensor<u32, { (8,) }>, y: &mut Tensor<u32, { (8,) }>) {
    let mut bins = [0u32; 4];
    let t = local_index();
    let bin = if MENDED { x[t].min(3) } else { x[t] };
    bins[bin as usize] = 1; // fault: out-of-bounds
    y[t] = bins[3];
}

#[test_kernel(private_bins)]
fn private_bins_count(t: &mut Cases) {
    t.case("8")
        .input("x", [8], values(count(8)))
        .output("y", [8])
        .expect(|x, out| {
            let last = |&v: &f64| f64::from(u8::from(v >= 3.0));
            out.set("y", x["x"].iter().map(last).collect());
        });
}

/// The last vector is not whole.
#[kernel(grid = [1], workgroup = 8, instances(MENDED = [false, true]))]
pub fn vector_tail<const MENDED: bool>(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, { (8,) }>) {
    let t = local_index();
    if MENDED && t * 4 + 4 > n {
        y[t] = 0.0;
    } else {
        y[t] = x.load4(t).sum(); // fault: out-of-bounds
    }
}

#[test_kernel(vector_tail)]
fn vector_tail_sums(t: &mut Cases) {
    t.case("30 elements")
        .input("x", [30], values(count(30)))
        .output("y", [8])
        .expect(|x, out| {
            let sum = |i: usize| x["x"].get(4 * i..4 * i + 4).map_or(0.0, |v| v.iter().sum());
            out.set("y", (0..8).map(sum).collect());
        });
}

/// A lane that narrow subgroups do not have. // K27
#[kernel(grid = [1], workgroup = 64, instances(MENDED = [false, true]))]
pub fn lane_fifteen<const MENDED: bool>(
    x: &Tensor<f32, { (64,) }>,
    y: &mut Tensor<f32, { (64,) }>,
) {
    let t = local_index();
    let lane = if MENDED { subgroup_size() - 1 } else { 15 };
    let last = subgroup_shuffle(x[t], lane); // fault: no-such-lane at 4, 8
    y[t] = last * 0.0;
}

#[test_kernel(lane_fifteen)]
fn lane_fifteen_is_taken(t: &mut Cases) {
    t.case("64")
        .input("x", [64], values(count(64)))
        .output("y", [64])
        .expect(|_, out| out.set("y", vec![0.0; 64]));
}

/// A token that the table does not have.
#[kernel(grid = [1], workgroup = 4, instances(MENDED = [false, true]))]
pub fn unknown_token<const MENDED: bool>(
    table: &Tensor<f32, (vocabulary,)>,
    tokens: &Tensor<u32, { (4,) }>,
    y: &mut Tensor<f32, { (4,) }>,
) {
    let t = local_index();
    let bound = if MENDED { tokens[t] + 1 } else { vocabulary };
    let token = index_in(tokens[t], bound); // fault: index-in
    y[t] = if token < vocabulary {
        table[token]
    } else {
        0.0
    };
}

#[test_kernel(unknown_token)]
fn unknown_token_reads(t: &mut Cases) {
    t.case("token 9 of 6")
        .input("table", [6], values(count(6)))
        .input("tokens", [4], values(vec![0.0, 5.0, 9.0, 1.0]))
        .output("y", [4])
        .expect(|_, out| out.set("y", vec![0.0, 5.0, 0.0, 1.0]));
}
