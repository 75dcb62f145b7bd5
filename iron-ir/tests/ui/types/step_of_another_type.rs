use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    for i in (0..n).step_by(2u32) {
        y[i] = x[i];
    }
}

fn main() {}
