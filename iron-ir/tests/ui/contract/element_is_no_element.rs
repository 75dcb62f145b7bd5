use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 64)]
fn wrong(x: &Tensor<String, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = 1.0;
}

fn main() {}
