use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let half = 0.5;
    let wide: f64 = half;
    y[0] = wide as f32;
}

fn main() {}
