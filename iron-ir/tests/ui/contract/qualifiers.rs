use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
async fn first(y: &mut Tensor<f32, (n,)>) {
    y[0] = 1.0;
}

#[kernel(grid = [1], workgroup = 64)]
unsafe fn second(y: &mut Tensor<f32, (n,)>) {
    y[0] = 1.0;
}

#[kernel(grid = [1], workgroup = 64)]
extern "C" fn third(y: &mut Tensor<f32, (n,)>) {
    y[0] = 1.0;
}

#[kernel(grid = [1], workgroup = 64)]
const fn fourth(y: &mut Tensor<f32, (n,)>) {
    y[0] = 1.0;
}

fn main() {}
