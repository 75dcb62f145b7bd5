use iron_ir::prelude::*;

#[device_fn]
fn factorial(a: f32) -> f32 {
    if a > 1.0 { a * factorial(a - 1.0) } else { 1.0 }
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = factorial(x[0]);
}

fn main() {}
