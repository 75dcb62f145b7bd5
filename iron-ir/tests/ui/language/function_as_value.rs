use iron_ir::prelude::*;

#[device_fn]
fn relu(x: f32) -> f32 {
    x.max(0.0)
}

#[device_fn]
fn twice<F: Fn(f32) -> f32>(x: f32, f: F) -> f32 {
    f(f(x))
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = twice(x[0], relu);
}

fn main() {}
