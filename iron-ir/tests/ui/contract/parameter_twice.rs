use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 64)]
fn wrong(y: &mut Tensor<f32, (n,)>, y: f32) {
    y[0] = 1.0;
}

fn main() {}
