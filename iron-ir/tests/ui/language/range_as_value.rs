use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let all = 0..n;
    for i in all {
        y[i] = x[i];
    }
}

fn main() {}
