use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let scale = x[0];
    let f = move |v: f32| v * scale;
    y[0] = f(2.0);
}

fn main() {}
