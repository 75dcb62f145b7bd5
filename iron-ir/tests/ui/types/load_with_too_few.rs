use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (rows, cols)>, y: &mut Tensor<f32, (rows,)>) {
    y[0] = x.load4(0).sum();
}

fn main() {}
