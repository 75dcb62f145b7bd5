use iron_ir::prelude::*;

#[device_fn]
fn select(a: f32) -> f32 {
    a
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = select(x[0]);
}

fn main() {}
