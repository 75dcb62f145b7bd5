use iron_ir::prelude::*;

fn strided(n: u32) -> std::ops::Range<u32> {
    0..n
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    for i in strided(n) {
        y[i] = x[i];
    }
}

fn main() {}
