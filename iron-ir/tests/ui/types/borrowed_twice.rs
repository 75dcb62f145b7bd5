use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(y: &mut Tensor<f32, (rows, cols)>) {
    let a = y.row_mut(0);
    let b = y.row_mut(1);
    a[0] = 1.0;
    b[0] = 2.0;
}

fn main() {}
