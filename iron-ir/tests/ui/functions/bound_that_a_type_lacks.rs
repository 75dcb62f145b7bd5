use iron_ir::prelude::*;

#[device_fn]
fn doubled<T: Float>(a: T) -> T {
    a + a
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(y: &mut Tensor<u32, (n,)>) {
    y[0] = doubled(n);
}

fn main() {}
