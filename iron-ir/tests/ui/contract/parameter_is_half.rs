use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 64)]
fn wrong(y: &mut Tensor<f16, (n,)>, a: f16) {
    y[0] = a;
}

fn main() {}
