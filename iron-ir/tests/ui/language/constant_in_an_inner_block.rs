use iron_ir::prelude::*;

const SCALE: f32 = 0.5;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let mut a = x[0] * SCALE;
    if n > 4 {
        const SCALE: f32 = 2.0;
        a *= SCALE;
    }
    y[0] = a;
}

fn main() {}
