use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let mut f = |a: f32| a * 2.0;
    f = |a: f32| a * 3.0;
    y[0] = f(x[0]);
}

fn main() {}
