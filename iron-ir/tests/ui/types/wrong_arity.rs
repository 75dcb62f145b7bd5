use iron_ir::prelude::*;

#[device_fn]
fn product(a: f32, b: f32) -> f32 {
    a * b
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = product(x[0]);
}

fn main() {}
