use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let mut v = Vec::new();
    v.push(x[0]);
    y[0] = v[0];
}

fn main() {}
