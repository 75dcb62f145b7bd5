//! Workgroups of which the last to arrive goes on with what all have left, in one launch.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, normal, values};

/// Whether this workgroup is the last of `count` that call this with counter `i`, the same in every
/// thread. What the others wrote before they called it is then there to read. The counter, 0 before
/// the first arrival, is 0 again for the next launch. In control flow that is the same for the
/// workgroup.
#[device_fn]
pub fn last_to_arrive(counters: &mut Tensor<u32, 1>, i: u32, count: u32) -> bool {
    barrier_device();
    let mut before = 0u32;
    if local_index() == 0 {
        before = counters.atomic_add(i, 1);
        if before + 1 == count {
            counters.atomic_store(i, 0);
        }
    }
    let is_last = workgroup_broadcast(before, 0) + 1 == count;
    if is_last {
        barrier_device();
    }
    is_last
}

/// Sum of an array in one launch: `y[0] = sum_i x[i]`. Each workgroup leaves the sum of its share in
/// `partial`, and the last to arrive adds those in the order of workgroups, so that the bits do not
/// depend on which it is. `arrived` is 0 before a launch and after it. Without workgroups nothing is
/// written.
#[kernel(grid = [groups], workgroup = 256, requires(n % 4 == 0), instances(T = [f32, bf16]))]
pub fn sum_in_one<T: Float>(
    x: &Tensor<T, (n,)>,
    partial: &mut Tensor<f32, (groups,)>,
    arrived: &mut Tensor<u32, { (1,) }>,
    y: &mut Tensor<f32, { (1,) }>,
) {
    let mut sum = splat4(0.0f32);
    for i in grid_strided(n / 4) {
        sum += x.load4(i).to_f32();
    }
    let sum = workgroup_sum(sum.sum());
    if local_index() == 0 {
        partial[group_id(0)] = sum;
    }
    if last_to_arrive(arrived, 0, groups) {
        let mut sum = 0.0f32;
        for group in strided(groups) {
            sum += partial[group];
        }
        let sum = workgroup_sum(sum);
        if local_index() == 0 {
            y[0] = sum;
        }
    }
}

#[test_kernel(sum_in_one)]
fn sum_in_one_matches_f64(t: &mut Cases) {
    // One workgroup, fewer elements than threads, more workgroups than threads.
    for (n, groups) in [(0, 1), (4, 3), (2052, 2), (8192, 5), (70_000, 300)] {
        t.case(format!("{n} by {groups}"))
            .input("x", [n], normal(0.5, 1.0))
            .output("partial", [groups])
            .inout("arrived", [1], values(vec![0.0]))
            .output("y", [1])
            .bound(Bound::relative(2e-5).absolute(1e-4))
            .expect(move |inputs, out| {
                let x = &inputs["x"];
                let of = |group: u64| -> f64 {
                    let shares = (group * 1024..n).step_by(1024 * groups as usize);
                    let share = |at: u64| {
                        x[at as usize..(at + 1024).min(n) as usize]
                            .iter()
                            .sum::<f64>()
                    };
                    shares.map(share).sum()
                };
                out.set("partial", (0..groups).map(of).collect());
                out.set_ints("arrived", vec![0]);
                out.set("y", vec![x.iter().sum()]);
            });
    }
}

#[bench_kernel(sum_in_one)]
fn sum_of_some_mebibytes(b: &mut Benches) {
    let bytes = u64::from(b.scalar("T").bytes());
    let n = (8 << 20) / bytes;
    b.bench("8 MiB by 528")
        .input("x", [n], normal(0.0, 1.0))
        .output("partial", [528])
        .inout("arrived", [1], values(vec![0.0]))
        .output("y", [1])
        .bytes(n * bytes);
}
