use iron_ir::prelude::*;

#[allow(non_upper_case_globals)]
const limit: u32 = 4;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = match n {
        limit => 1.0,
        _ => x[0],
    };
}

fn main() {}
