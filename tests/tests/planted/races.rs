//! Two threads, one cell, nothing between.

use iron_ir::prelude::*;
use iron_ir::testing::{Cases, values};

use super::count;

/// A thread reads what another wrote, before a barrier. // K01
#[kernel(grid = [1], workgroup = 64, instances(MENDED = [false, true]))]
pub fn mirror<const MENDED: bool>(x: &Tensor<f32, { (64,) }>, y: &mut Tensor<f32, { (64,) }>) {
    let mut s = shared::<f32>(64);
    let t = local_index();
    s[t] = x[t]; // with
    if MENDED {
        barrier();
    }
    y[t] = s[63 - t]; // fault: race
}

#[test_kernel(mirror)]
fn mirror_reverses(t: &mut Cases) {
    t.case("64")
        .input("x", [64], values(count(64)))
        .output("y", [64])
        .expect(|x, out| out.set("y", x["x"].iter().rev().copied().collect()));
}

/// Two index expressions that meet in every cell but one.
#[kernel(grid = [1], workgroup = 32, instances(MENDED = [false, true]))]
pub fn shifted_store<const MENDED: bool>(y: &mut Tensor<u32, { (32,) }>) {
    let mut s = shared::<u32>(33);
    let t = local_index();
    s[t] = 0; // with
    if MENDED {
        barrier();
    }
    s[t + 1] = t + 1; // fault: race
    barrier();
    y[t] = s[t];
}

#[test_kernel(shifted_store)]
fn shifted_store_counts(t: &mut Cases) {
    t.case("32")
        .output("y", [32])
        .expect(|_, out| out.set("y", count(32)));
}

/// The second turn overwrites what slower threads still read.
#[kernel(grid = [1], workgroup = 32, instances(MENDED = [false, true]))]
pub fn second_turn<const MENDED: bool>(
    x: &Tensor<f32, { (4, 32) }>,
    y: &mut Tensor<f32, { (4, 32) }>,
) {
    let mut s = shared::<f32>(32);
    let t = local_index();
    for row in 0..4 {
        s[t] = x[[row, t]]; // fault: race
        barrier();
        y[[row, t]] = s[(t + 1) % 32]; // with
        if MENDED {
            barrier();
        }
    }
}

#[test_kernel(second_turn)]
fn second_turn_rotates(t: &mut Cases) {
    t.case("4x32")
        .input("x", [4, 32], values(count(128)))
        .output("y", [4, 32])
        .expect(|x, out| {
            let at = |i: usize| x["x"][i / 32 * 32 + (i + 1) % 32];
            out.set("y", (0..128).map(at).collect());
        });
}

/// Only part of the workgroup fills what all of it reads. // K04
#[kernel(grid = [1], workgroup = 64, instances(MENDED = [false, true]))]
pub fn partial_fill<const MENDED: bool>(
    x: &Tensor<f32, { (48,) }>,
    y: &mut Tensor<f32, { (64,) }>,
) {
    let mut s = shared::<f32>(48);
    let t = local_index();
    if t < 48 {
        s[t] = x[t]; // with
    }
    if MENDED {
        barrier();
    }
    y[t] = s[t % 48]; // fault: race
}

#[test_kernel(partial_fill)]
fn partial_fill_repeats(t: &mut Cases) {
    t.case("48 of 64")
        .input("x", [48], values(count(48)))
        .output("y", [64])
        .expect(|x, out| out.set("y", (0..64).map(|i| x["x"][i % 48]).collect()));
}

/// All write the same value: still unordered.
#[kernel(grid = [1], workgroup = 16, instances(MENDED = [false, true]))]
pub fn same_value<const MENDED: bool>(x: &Tensor<f32, { (16,) }>, y: &mut Tensor<u32, { (1,) }>) {
    let mut found = shared::<u32>(1);
    let t = local_index();
    if t == 0 {
        found[0] = 0;
    }
    barrier();
    if x[t] > 3.0 {
        if MENDED {
            found.atomic_store(0, 1);
        } else {
            found[0] = 1; // fault: race // with
        }
    }
    barrier();
    if t == 0 {
        y[0] = found[0];
    }
}

#[test_kernel(same_value)]
fn same_value_finds(t: &mut Cases) {
    t.case("16")
        .input("x", [16], values(count(16)))
        .output("y", [1])
        .expect(|_, out| out.set("y", vec![1.0]));
}

/// A plain read of a counter that others still change atomically.
#[kernel(grid = [1], workgroup = 32, instances(MENDED = [false, true]))]
pub fn early_count<const MENDED: bool>(x: &Tensor<u32, { (32,) }>, y: &mut Tensor<u32, { (32,) }>) {
    let mut n = shared::<u32>(1);
    let t = local_index();
    if t == 0 {
        n[0] = 0;
    }
    barrier();
    n.atomic_add(0, x[t]); // with
    if MENDED {
        barrier();
    }
    y[t] = n[0]; // fault: race
}

#[test_kernel(early_count)]
fn early_count_sums(t: &mut Cases) {
    t.case("32")
        .input("x", [32], values(count(32)))
        .output("y", [32])
        .expect(|_, out| out.set("y", vec![496.0; 32]));
}

/// One writer in eight lanes is one a subgroup only where subgroups have at most eight. // K27
#[kernel(grid = [1], workgroup = 64, instances(MENDED = [false, true]))]
pub fn eight_lanes<const MENDED: bool>(y: &mut Tensor<u32, { (64,) }>) {
    let mut s = shared::<u32>(16);
    let lane = subgroup_lane();
    let writes = if MENDED { lane == 0 } else { lane % 8 == 0 };
    if writes {
        s[subgroup_id()] = 7; // fault: race at 16, 32, 64 // with
    }
    barrier();
    y[local_index()] = s[subgroup_id()];
}

#[test_kernel(eight_lanes)]
fn eight_lanes_share(t: &mut Cases) {
    t.case("64")
        .output("y", [64])
        .expect(|_, out| out.set("y", vec![7.0; 64]));
}

/// A subgroup's barrier joins the whole workgroup only where the subgroup is that wide.
#[kernel(grid = [1], workgroup = 32, instances(MENDED = [false, true]))]
pub fn small_barrier<const MENDED: bool>(
    x: &Tensor<f32, { (32,) }>,
    y: &mut Tensor<f32, { (32,) }>,
) {
    let mut s = shared::<f32>(32);
    let t = local_index();
    s[t] = x[t]; // with
    if MENDED {
        barrier();
    } else {
        subgroup_barrier();
    }
    y[t] = s[31 - t]; // fault: race at 4, 8, 16
}

#[test_kernel(small_barrier)]
fn small_barrier_reverses(t: &mut Cases) {
    t.case("32")
        .input("x", [32], values(count(32)))
        .output("y", [32])
        .expect(|x, out| out.set("y", x["x"].iter().rev().copied().collect()));
}

/// Neighbours in a subgroup: its barrier is enough, and is needed.
#[kernel(grid = [1], workgroup = 64, instances(MENDED = [false, true]))]
pub fn subgroup_neighbours<const MENDED: bool>(
    x: &Tensor<f32, { (64,) }>,
    y: &mut Tensor<f32, { (64,) }>,
) {
    let mut s = shared::<f32>(64);
    let t = local_index();
    s[t] = x[t]; // with
    if MENDED {
        subgroup_barrier();
    }
    let other = s[t ^ 1]; // fault: race
    subgroup_barrier();
    s[t ^ 1] = other + 1.0;
    y[t] = s[t ^ 1];
}

#[test_kernel(subgroup_neighbours)]
fn subgroup_neighbours_swap(t: &mut Cases) {
    t.case("64")
        .input("x", [64], values(count(64)))
        .output("y", [64])
        .expect(|x, out| out.set("y", (0..64usize).map(|i| x["x"][i ^ 1] + 1.0).collect()));
}

/// The thread that writes has read the cell itself, and so have the others.
#[kernel(grid = [1], workgroup = 16, instances(MENDED = [false, true]))]
pub fn reads_then_owner<const MENDED: bool>(
    x: &Tensor<f32, { (16,) }>,
    y: &mut Tensor<f32, { (16,) }>,
) {
    let mut s = shared::<f32>(1);
    let t = local_index();
    if t == 0 {
        s[0] = x[0];
    }
    barrier();
    let first = s[0]; // with
    if MENDED {
        barrier();
    }
    if t == 0 {
        s[0] = first + 1.0; // fault: race
    }
    barrier();
    y[t] = s[0] + first;
}

#[test_kernel(reads_then_owner)]
fn reads_then_owner_counts(t: &mut Cases) {
    t.case("16")
        .input("x", [16], values(count(16)))
        .output("y", [16])
        .expect(|_, out| out.set("y", vec![1.0; 16]));
}

/// A barrier of shared memory does not order tensors.
#[kernel(grid = [1], workgroup = 32, instances(MENDED = [false, true]))]
pub fn wrong_memory<const MENDED: bool>(
    x: &Tensor<f32, { (32,) }>,
    y: &mut Tensor<f32, { (32,) }>,
    z: &mut Tensor<f32, { (32,) }>,
) {
    let t = local_index();
    y[t] = x[t]; // with
    if MENDED {
        barrier_global();
    } else {
        barrier();
    }
    z[t] = y[(t + 1) % 32]; // fault: race
}

#[test_kernel(wrong_memory)]
fn wrong_memory_rotates(t: &mut Cases) {
    t.case("32")
        .input("x", [32], values(count(32)))
        .output("y", [32])
        .output("z", [32])
        .expect(|x, out| {
            out.set("y", x["x"].to_vec());
            out.set("z", (0..32).map(|i| x["x"][(i + 1) % 32]).collect());
        });
}

/// Every workgroup stores its own sum into the one cell.
#[kernel(grid = [4], workgroup = 8, instances(MENDED = [false, true]))]
pub fn shared_total<const MENDED: bool>(x: &Tensor<u32, { (32,) }>, y: &mut Tensor<u32, { (1,) }>) {
    let sum = workgroup_sum(x[global_id(0)]);
    if local_index() == 0 {
        if MENDED {
            y.atomic_add(0, sum);
        } else {
            y[0] += sum; // fault: race // with
        }
    }
}

#[test_kernel(shared_total)]
fn shared_total_sums(t: &mut Cases) {
    t.case("4 groups")
        .input("x", [32], values(count(32)))
        .inout("y", [1], values(vec![0.0]))
        .expect(|_, out| out.set("y", vec![496.0]));
}

/// The last workgroup sums what the others left in front of a barrier of their own alone.
#[kernel(grid = [4], workgroup = 8, instances(MENDED = [false, true]))]
pub fn left_for_nobody<const MENDED: bool>(
    x: &Tensor<u32, { (32,) }>,
    left: &mut Tensor<u32, { (4,) }>,
    arrived: &mut Tensor<u32, { (1,) }>,
    y: &mut Tensor<u32, { (1,) }>,
) {
    let sum = workgroup_sum(x[global_id(0)]);
    if local_index() == 0 {
        left[group_id(0)] = sum; // with
    }
    if MENDED {
        barrier_device();
    } else {
        barrier_global();
    }
    let mut before = 0;
    if local_index() == 0 {
        before = arrived.atomic_add(0, 1);
    }
    if workgroup_broadcast(before, 0) == 3 {
        barrier_device();
        if local_index() == 0 {
            let mut total = 0;
            for group in 0..4u32 {
                total += left[group]; // fault: race
            }
            y[0] = total;
        }
    }
}

/// Four workgroups of eight numbers each.
fn sums_of_four(t: &mut Cases) {
    t.case("4 groups")
        .input("x", [32], values(count(32)))
        .output("left", [4])
        .inout("arrived", [1], values(vec![0.0]))
        .output("y", [1])
        .expect(|_, out| {
            out.set("left", vec![28.0, 92.0, 156.0, 220.0]);
            out.set("arrived", vec![4.0]);
            out.set("y", vec![496.0]);
        });
}

#[test_kernel(left_for_nobody)]
fn left_for_nobody_sums(t: &mut Cases) {
    sums_of_four(t);
}

/// The last workgroup sums what the others left, behind a barrier of its own alone.
#[kernel(grid = [4], workgroup = 8, instances(MENDED = [false, true]))]
pub fn seen_by_nobody<const MENDED: bool>(
    x: &Tensor<u32, { (32,) }>,
    left: &mut Tensor<u32, { (4,) }>,
    arrived: &mut Tensor<u32, { (1,) }>,
    y: &mut Tensor<u32, { (1,) }>,
) {
    let sum = workgroup_sum(x[global_id(0)]);
    if local_index() == 0 {
        left[group_id(0)] = sum; // with
    }
    barrier_device();
    let mut before = 0;
    if local_index() == 0 {
        before = arrived.atomic_add(0, 1);
    }
    if workgroup_broadcast(before, 0) == 3 {
        if MENDED {
            barrier_device();
        } else {
            barrier_global();
        }
        if local_index() == 0 {
            let mut total = 0;
            for group in 0..4u32 {
                total += left[group]; // fault: race
            }
            y[0] = total;
        }
    }
}

#[test_kernel(seen_by_nobody)]
fn seen_by_nobody_sums(t: &mut Cases) {
    sums_of_four(t);
}

/// The halo belongs to the next workgroup, which may already have written it.
#[kernel(grid = [4], workgroup = 8, instances(MENDED = [false, true]))]
pub fn halo<const MENDED: bool>(x: &Tensor<f32, { (33,) }>, y: &mut Tensor<f32, { (33,) }>) {
    let i = global_id(0);
    let next = if MENDED { x[i + 1] } else { y[i + 1] }; // with
    barrier_global();
    y[i] = x[i] + next; // fault: race
}

#[test_kernel(halo)]
fn halo_adds_the_next(t: &mut Cases) {
    t.case("33")
        .input("x", [33], values(count(33)))
        .inout("y", [33], values(count(33)))
        .expect(|x, out| {
            let mut sums: Vec<f64> = (0..32).map(|i| x["x"][i] + x["x"][i + 1]).collect();
            sums.push(32.0);
            out.set("y", sums);
        });
}

/// A plain read of a tensor's cell that other workgroups change atomically.
#[kernel(grid = [3], workgroup = 4, instances(MENDED = [false, true]))]
pub fn last_group<const MENDED: bool>(
    tickets: &mut Tensor<u32, { (1,) }>,
    y: &mut Tensor<u32, { (1,) }>,
) {
    if local_index() == 0 {
        tickets.atomic_add(0, 1); // with
        let seen = if MENDED {
            tickets.atomic_load(0)
        } else {
            tickets[0] // fault: race
        };
        y.atomic_max(0, seen);
    }
}

#[test_kernel(last_group)]
fn last_group_sees_all(t: &mut Cases) {
    t.case("3 groups")
        .inout("tickets", [1], values(vec![0.0]))
        .inout("y", [1], values(vec![0.0]))
        .expect(|_, out| {
            out.set("tickets", vec![3.0]);
            out.set("y", vec![3.0]);
        });
}

/// A tile that was stored is loaded by threads that did not store it.
#[kernel(grid = [1], workgroup = 16, instances(MENDED = [false, true]))]
pub fn tile_through_tensor<const MENDED: bool>(
    x: &Tensor<f32, { (8, 8) }>,
    y: &mut Tensor<f32, { (8, 8) }>,
    z: &mut Tensor<f32, { (8, 8) }>,
) {
    let mut one = shared_tile::<f32>(8, 8);
    let mut other = shared_tile::<f32>(8, 8);
    let mut sum = reg_tile::<f32>(8, 8, 0.0);
    one.load(x, [0, 0]);
    sum.copy_from(&one);
    sum.store(y, [0, 0]); // with
    if MENDED {
        barrier_global();
    }
    other.load_transposed(y, [0, 0]); // fault: race
    sum.copy_from(&other);
    sum.store(z, [0, 0]);
}

#[test_kernel(tile_through_tensor)]
fn tile_through_tensor_transposes(t: &mut Cases) {
    t.case("8x8")
        .input("x", [8, 8], values(count(64)))
        .output("y", [8, 8])
        .output("z", [8, 8])
        .expect(|x, out| {
            out.set("y", x["x"].to_vec());
            out.set("z", (0..64).map(|i| x["x"][i % 8 * 8 + i / 8]).collect());
        });
}
