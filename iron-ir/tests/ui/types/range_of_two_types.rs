use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    for i in 0u64..n {
        y[0] = i as f32;
    }
}

fn main() {}
