use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 64, instances(T = [f32]))]
fn wrong<T: Float, const N: u32>(y: &mut Tensor<T, (n,)>) {
    y[0] = T::from_f32(N as f32);
}

fn main() {}
