use iron_ir::prelude::*;

#[kernel(grid = [n], workgroup = 64)]
fn wrong(y: &mut Tensor<f32, (n,)>, f: impl Fn(f32) -> f32) {
    y[0] = f(1.0);
}

fn main() {}
