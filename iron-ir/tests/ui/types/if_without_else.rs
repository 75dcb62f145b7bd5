use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>, a: f32) {
    let r = if a > 0.0 { a };
    y[0] = r;
}

fn main() {}
