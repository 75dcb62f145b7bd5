use iron_ir::prelude::*;

#[device_fn]
fn positive(a: f32) -> f32 {
    if a > 0.0 {
        return a;
    }
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = positive(x[0]);
}

fn main() {}
