use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64, instances(T = [f32, f16]))]
fn wrong<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = x[0];
}

fn main() {}
