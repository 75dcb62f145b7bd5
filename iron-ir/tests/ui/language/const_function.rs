use iron_ir::prelude::*;

const fn lanes() -> u32 {
    4
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = x[lanes()];
}

fn main() {}
