use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(c: &Tensor<u32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = c.load4(0) * 2.0;
}

fn main() {}
