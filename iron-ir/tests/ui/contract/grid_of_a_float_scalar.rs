use iron_ir::prelude::*;

#[kernel(grid = [s], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>, s: f32) {
    y[0] = x[0];
}

fn main() {}
