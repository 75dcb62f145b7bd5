//! Operations that every thread must reach together, where only some do. The verifier refuses them,
//! so that no backend runs them; the twins are kernels of their own. // K02

use iron_ir::prelude::*;
use iron_ir::testing::{Cases, values};

use super::count;

/// Threads past the end have left.
#[kernel(grid = [ceil_div(n, 16)], workgroup = 16)]
pub fn barrier_after_return(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let mut s = shared::<f32>(16);
    let (i, t) = (global_id(0), local_index());
    if i >= n {
        // with
        return;
    }
    s[t] = x[i];
    barrier(); // fault: divergence
    y[i] = s[t];
}

/// Threads past the end stay, and do nothing.
#[kernel(grid = [ceil_div(n, 16)], workgroup = 16)]
pub fn barrier_after_return_mended(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let mut s = shared::<f32>(16);
    let (i, t) = (global_id(0), local_index());
    if i < n {
        s[t] = x[i];
    }
    barrier();
    if i < n {
        y[i] = s[t];
    }
}

#[test_kernel(barrier_after_return_mended)]
fn barrier_after_return_copies(t: &mut Cases) {
    t.case("20")
        .input("x", [20], values(count(20)))
        .output("y", [20])
        .expect(|x, out| out.set("y", x["x"].to_vec()));
}

/// A barrier for every second lane.
#[kernel(grid = [1], workgroup = 16)]
pub fn barrier_of_some(y: &mut Tensor<u32, { (16,) }>) {
    let t = local_index();
    if t % 2 == 0 {
        // with
        barrier(); // fault: divergence
    }
    y[t] = t;
}

/// An exchange in which only the first lanes take part.
#[kernel(grid = [1], workgroup = 32)]
pub fn divergent_shuffle(x: &Tensor<f32, { (32,) }>, y: &mut Tensor<f32, { (32,) }>) {
    let t = local_index();
    let mut v = x[t];
    if v > 3.0 {
        // with
        v = subgroup_shuffle_xor(v, 1); // fault: divergence
    }
    y[t] = v;
}

/// All exchange, and some take the result.
#[kernel(grid = [1], workgroup = 32)]
pub fn divergent_shuffle_mended(x: &Tensor<f32, { (32,) }>, y: &mut Tensor<f32, { (32,) }>) {
    let t = local_index();
    let mut v = x[t];
    let other = subgroup_shuffle_xor(v, 1);
    if v > 3.0 {
        v = other;
    }
    y[t] = v;
}

#[test_kernel(divergent_shuffle_mended)]
fn divergent_shuffle_swaps(t: &mut Cases) {
    t.case("32")
        .input("x", [32], values(count(32)))
        .output("y", [32])
        .expect(|x, out| {
            let at = |i: usize| if i > 3 { x["x"][i ^ 1] } else { x["x"][i] };
            out.set("y", (0..32).map(at).collect());
        });
}

/// A sum over the workgroup in a loop of which every thread has another number of turns.
#[kernel(grid = [1], workgroup = 8)]
pub fn turns_differ(x: &Tensor<f32, { (8,) }>, y: &mut Tensor<f32, { (8,) }>) {
    let t = local_index();
    let mut sum = 0.0f32;
    for i in 0..t {
        // with
        sum += workgroup_sum(x[i]); // fault: divergence
    }
    y[t] = sum;
}

/// A broadcast from a thread on which the threads do not agree.
#[kernel(grid = [1], workgroup = 8)]
pub fn source_differs(x: &Tensor<f32, { (8,) }>, y: &mut Tensor<f32, { (8,) }>) {
    let t = local_index();
    y[t] = workgroup_broadcast(x[t], 7 - t); // fault: not-uniform
}
