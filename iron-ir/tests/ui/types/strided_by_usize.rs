use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let end: usize = 4;
    for i in strided(end) {
        y[i] = x[i];
    }
}

fn main() {}
