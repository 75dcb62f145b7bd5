use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 64)]
fn wrong(y: &mut Tensor<f32, (n,)>, (a, b): (f32, f32)) {
    y[0] = a + b;
}

fn main() {}
