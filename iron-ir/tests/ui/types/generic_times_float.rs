use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64, instances(T = [f32, f16]))]
fn wrong<T: Float>(x: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>) {
    y[0] = x[0] * 2.0;
}

fn main() {}
