use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 64)]
fn wrong(y: &mut Tensor<f32, (n,)>, n: u32) {
    y[0] = n as f32;
}

fn main() {}
