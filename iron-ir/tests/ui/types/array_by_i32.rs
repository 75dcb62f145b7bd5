use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let a = [1.0, 2.0, 3.0];
    let i: i32 = 2;
    y[0] = a[i];
}

fn main() {}
