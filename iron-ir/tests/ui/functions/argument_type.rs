use iron_ir::prelude::*;

#[device_fn]
fn twice(a: f32) -> f32 {
    a * 2.0
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = twice(n);
}

fn main() {}
