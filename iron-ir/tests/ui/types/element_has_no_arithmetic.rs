use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64, instances(T = [f32, f16]))]
fn wrong<T: Element>(x: &Tensor<T, (n,)>, y: &mut Tensor<T, (n,)>) {
    y[0] = x[0] + x[1];
}

fn main() {}
