use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, c: &Tensor<u32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    c.atomic_add(0, 1);
    y[0] = x[0];
}

fn main() {}
