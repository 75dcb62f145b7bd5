use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let mut sum = 0.0;
    for v in [1.0, 2.0] {
        sum += v;
    }
    y[0] = sum + x[0];
}

fn main() {}
