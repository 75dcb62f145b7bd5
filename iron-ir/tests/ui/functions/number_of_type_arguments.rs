use iron_ir::prelude::*;

#[device_fn]
fn scaled<const BY: u32>(a: u32) -> u32 {
    a * BY
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(y: &mut Tensor<u32, (n,)>) {
    y[0] = scaled::<2, 3>(n);
}

fn main() {}
