use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 64)]
fn wrong(y: &mut Tensor<f32, (n,)>, mut a: f32) {
    a += 1.0; y[0] = a;
}

fn main() {}
