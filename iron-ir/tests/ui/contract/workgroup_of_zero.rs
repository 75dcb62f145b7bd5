use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 0)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = x[0];
}

fn main() {}
