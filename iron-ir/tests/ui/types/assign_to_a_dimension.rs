use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(y: &mut Tensor<f32, (n,)>) {
    n = 2;
    y[0] = 1.0;
}

fn main() {}
