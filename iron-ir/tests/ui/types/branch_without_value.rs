use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let a = if n > 1 { x[0] } else { y[0] = 1.0; };
    y[0] = a;
}

fn main() {}
