use iron_ir::prelude::*;

#[device_struct]
pub struct Scale {
    by: f32,
}

impl Scale {
    fn times(self, a: f32) -> f32 {
        self.by * a
    }
}

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    y[0] = Scale { by: 2.0 }.times(x[0]);
}

fn main() {}
