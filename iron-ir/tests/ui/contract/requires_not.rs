use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 64, requires(!(n > 4)))]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = x[0];
}

fn main() {}
