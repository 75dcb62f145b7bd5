use iron_ir::prelude::*;

#[device_fn]
fn first(x: &Tensor<f32, 2>) -> f32 {
    x[[0, 0]]
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = first(x);
}

fn main() {}
