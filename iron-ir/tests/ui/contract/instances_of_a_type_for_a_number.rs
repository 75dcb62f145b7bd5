use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 64, instances(N = [f32]))]
fn wrong<const N: u32>(y: &mut Tensor<f32, (n,)>) {
    y[0] = N as f32;
}

fn main() {}
