use iron_ir::prelude::*;

#[device_fn]
fn first(x: &Tensor<f32, 1>) {
    let unit = 1.0;
    x[0] = unit;
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    first(x);
    y[0] = 1.0;
}

fn main() {}
