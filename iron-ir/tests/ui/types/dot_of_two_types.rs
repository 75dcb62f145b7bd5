use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, c: &Tensor<u32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = x.load4(0).dot(c.load4(0));
}

fn main() {}
