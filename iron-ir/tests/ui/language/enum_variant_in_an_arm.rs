use iron_ir::prelude::*;

#[derive(PartialEq)]
pub enum Mode {
    Fast,
    Exact,
}
use Mode::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = match n {
        Fast => 1.0,
        _ => x[0],
    };
}

fn main() {}
