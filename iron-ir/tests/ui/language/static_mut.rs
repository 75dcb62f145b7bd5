use iron_ir::prelude::*;

static mut COUNTER: u32 = 0;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    COUNTER += 1;
    y[0] = x[0];
}

fn main() {}
