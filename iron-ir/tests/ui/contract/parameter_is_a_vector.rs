use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 64)]
fn wrong(y: &mut Tensor<f32, (n,)>, v: F32x4) {
    y[0] = v[0];
}

fn main() {}
