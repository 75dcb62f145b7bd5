use iron_ir::prelude::*;

#[device_fn]
fn twice<F: Fn(f32) -> f32>(a: f32, f: F) -> f32 {
    f(f(a))
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = twice(x[0], |a: f32| a > 0.0);
}

fn main() {}
