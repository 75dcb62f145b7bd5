use iron_ir::prelude::*;

#[device_struct]
pub struct Pair {
    a: f32,
    b: f32,
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let p = Pair { a: x[0] };
    y[0] = p.a;
}

fn main() {}
