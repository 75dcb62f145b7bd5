use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = (if n > 1 { |a: f32| a } else { |a: f32| -a })(x[0]);
}

fn main() {}
