use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let v = vec![1.0, 2.0];
    y[0] = x[0];
}

fn main() {}
