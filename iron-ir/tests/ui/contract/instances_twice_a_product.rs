use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 64, instances(T = [f32]), instances(T = [f16, f32]))]
fn wrong<T: Float>(y: &mut Tensor<T, (n,)>) {
    y[0] = T::ZERO;
}

fn main() {}
