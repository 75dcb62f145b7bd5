use iron_ir::prelude::*;

macro_rules! double {
    ($a:expr) => { $a * 2.0 };
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = double!(x[0]);
}

fn main() {}
