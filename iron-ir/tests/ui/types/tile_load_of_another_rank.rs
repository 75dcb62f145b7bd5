use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n, m)>, y: &mut Tensor<f32, (n,)>) {
    let mut a = shared_tile::<f32>(16, 16);
    a.load(x, [0]);
    y[0] = 1.0;
}

fn main() {}
