use iron_ir::prelude::*;

use iron_ir::launch::AsTensorArg;

#[kernel(grid = [1], workgroup = 64)]
fn fill(y: &mut Tensor<f32, (n,)>, a: f32) {
    y[0] = a;
}

fn run(y: &mut dyn AsTensorArg) {
    fill::launch(fill::Args { y });
}

fn main() {}
