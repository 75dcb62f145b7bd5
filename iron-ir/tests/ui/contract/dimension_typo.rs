use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (rows, cols)>, y: &mut Tensor<f32, (rows,)>) {
    y[row] = x[[0, 0]];
}

fn main() {}
