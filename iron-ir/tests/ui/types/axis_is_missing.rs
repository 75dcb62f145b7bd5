use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[global_id()] = x[0];
}

fn main() {}
