use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(y: &mut Tensor<f32, (n,)>, a: f32) {
    a = 2.0;
    y[0] = a;
}

fn main() {}
