//! One long row over the whole grid in one launch: workgroups that wait for each other.

use iron_ir::prelude::*;
use iron_ir::testing::{Benches, Bound, Cases, normal};

/// Most workgroups of [`softmax_row`].
pub const MOST_GROUPS: u32 = 1024;

/// Softmax of one row: `y[i] = e^(x[i] - m) / sum_j e^(x[j] - m)`, where `m` is the largest. Each
/// workgroup leaves the largest of its share and its sum in `partial`, waits for the others, and
/// joins what all have left. A row without workgroups is not computed.
#[kernel(
    grid = [groups],
    workgroup = 256,
    requires(groups <= MOST_GROUPS),
    cooperative,
    instances(T = [f32, bf16])
)]
pub fn softmax_row<T: Float>(
    x: &Tensor<T, (cols,)>,
    partial: &mut Tensor<f32, { (groups, 2) }>,
    y: &mut Tensor<T, (cols,)>,
) {
    let mut largest = f32::NEG_INFINITY;
    for i in grid_strided(cols) {
        largest = largest.max(x[i].to_f32());
    }
    let largest = workgroup_max(largest);
    let mut sum = 0.0f32;
    for i in grid_strided(cols) {
        sum += (x[i].to_f32() - largest).exp();
    }
    let sum = workgroup_sum(sum);
    if local_index() == 0 {
        partial[[group_id(0), 0]] = largest;
        partial[[group_id(0), 1]] = sum;
    }
    grid_barrier();
    let mut largest = f32::NEG_INFINITY;
    for group in strided(groups) {
        largest = largest.max(partial[[group, 0]]);
    }
    let largest = workgroup_max(largest);
    let mut sum = 0.0f32;
    for group in strided(groups) {
        // A workgroup without elements left a sum of 0.
        if partial[[group, 1]] > 0.0 {
            sum += partial[[group, 1]] * (partial[[group, 0]] - largest).exp();
        }
    }
    let sum = workgroup_sum(sum);
    for i in grid_strided(cols) {
        y[i] = T::from_f32((x[i].to_f32() - largest).exp() / sum);
    }
}

/// Columns and workgroups.
const ROWS: [(u64, u64); 4] = [(1, 1), (5, 3), (2049, 4), (151_936, 32)];

#[test_kernel(softmax_row)]
fn softmax_row_matches_f64(t: &mut Cases) {
    for (cols, groups) in ROWS {
        let mut case = t.case(format!("{cols} by {groups}"));
        if cols > 100_000 {
            case = case.production();
        }
        case.input("x", [cols], normal(0.0, 2.0))
            .output("partial", [groups, 2])
            .output("y", [cols])
            .bound(Bound::relative(2e-5).absolute(1e-9))
            .expect(move |inputs, out| {
                let x = &inputs["x"];
                let own = |group: u64| {
                    let first = group * 256;
                    let blocks = (first..cols).step_by(256 * groups as usize);
                    blocks.flat_map(|at| &x[at as usize..(at + 256).min(cols) as usize])
                };
                let mut partial = Vec::new();
                for group in 0..groups {
                    let largest = own(group).fold(f64::NEG_INFINITY, |m, v| m.max(*v));
                    partial.push(largest);
                    partial.push(own(group).map(|v| (v - largest).exp()).sum());
                }
                let largest = x.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
                let sum: f64 = x.iter().map(|v| (v - largest).exp()).sum();
                out.set("partial", partial);
                out.set("y", x.iter().map(|v| (v - largest).exp() / sum).collect());
            });
    }
}

#[bench_kernel(softmax_row)]
fn softmax_of_a_vocabulary(b: &mut Benches) {
    let bytes = u64::from(b.scalar("T").bytes());
    b.bench("151936 by 128")
        .input("x", [151_936], normal(0.0, 2.0))
        .output("partial", [128, 2])
        .output("y", [151_936])
        .bytes(2 * 151_936 * bytes);
}
