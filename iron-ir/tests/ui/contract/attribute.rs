use iron_ir::prelude::*;

#[kernel(grid = [rows], workgruop = 64)]
fn misspelt(y: &mut Tensor<f32, (rows,)>) {
    y[0] = 1.0;
}

#[kernel(grid = [rows])]
fn no_workgroup(y: &mut Tensor<f32, (rows,)>) {
    y[0] = 1.0;
}

#[kernel(grid = [row], workgroup = 64)]
fn unknown_dimension(y: &mut Tensor<f32, (rows,)>) {
    y[0] = 1.0;
}

#[kernel(grid = [rows], workgroup = 64)]
fn no_instances<T: Float>(y: &mut Tensor<T, (rows,)>) {
    y[0] = T::ONE;
}

#[kernel(grid = [1], workgroup = 64, requires(rows))]
fn no_fact(y: &mut Tensor<f32, (rows,)>) -> f32 {
    y[0] = 1.0;
    1.0
}

#[kernel(grid = [1], workgroup = 64)]
fn no_tensor(y: &mut [f32], s: &f32, flag: bool) {
    y[0] = *s;
}

fn main() {}
