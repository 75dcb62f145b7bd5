use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let [a, b] = [x[0], x[1]];
    y[0] = a + b;
}

fn main() {}
