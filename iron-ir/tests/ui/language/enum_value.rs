use iron_ir::prelude::*;

pub enum Mode {
    Fast,
    Exact,
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let mode = Mode::Fast;
    y[0] = x[0];
}

fn main() {}
