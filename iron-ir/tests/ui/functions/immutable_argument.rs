use iron_ir::prelude::*;

#[device_fn]
fn bump(place: &mut f32) {
    *place += 1.0;
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let a = x[0];
    bump(&mut a);
    y[0] = a;
}

fn main() {}
