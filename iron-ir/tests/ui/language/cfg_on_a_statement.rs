use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let mut a = x[0];
    #[cfg(debug_assertions)]
    {
        a *= 2.0;
    }
    y[0] = a;
}

fn main() {}
