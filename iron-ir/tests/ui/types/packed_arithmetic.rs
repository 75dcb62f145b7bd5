use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<F8E4M3, (n,)>, y: &mut Tensor<F8E4M3, (n,)>) {
    y[0] = x[0] + x[1];
}

fn main() {}
