use iron_ir::prelude::*;
use iron_ir::testing::Benches;

#[kernel(grid = [1], workgroup = 64)]
fn fill(y: &mut Tensor<f32, (n,)>) {
    y[0] = 1.0;
}

#[test_kernel(fill)]
fn fills(_b: &mut Benches) {}

fn main() {}
