use iron_ir::prelude::*;

#[device_struct]
pub struct Scale {
    by: f32,
}

impl Scale {
    fn new(by: f32) -> Scale {
        Scale { by }
    }
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = Scale::new(x[0]).by;
}

fn main() {}
