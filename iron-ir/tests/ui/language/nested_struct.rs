use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    struct Pair(f32, f32);
    y[0] = Pair(x[0], 1.0).0;
}

fn main() {}
