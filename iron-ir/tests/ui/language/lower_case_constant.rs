use iron_ir::prelude::*;

#[allow(non_upper_case_globals)]
const half: f32 = 0.5;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = x[0] * half;
}

fn main() {}
