use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let s = shared::<f32>(64);
    s[0] = x[0];
    barrier();
    y[0] = s[0];
}

fn main() {}
