use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let f: &dyn Fn(f32) -> f32 = &|v| v * 2.0;
    y[0] = f(x[0]);
}

fn main() {}
