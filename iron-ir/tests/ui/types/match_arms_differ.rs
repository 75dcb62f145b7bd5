use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let r = match n {
        0 => x[0],
        1 => 7u32,
        _ => x[1],
    };
    y[0] = r;
}

fn main() {}
