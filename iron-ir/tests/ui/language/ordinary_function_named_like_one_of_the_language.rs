use iron_ir::prelude::*;

fn rsqrt(a: f32) -> f32 {
    a * 2.0
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = rsqrt(x[0]);
}

fn main() {}
