use iron_ir::prelude::*;

struct Layer;

impl Layer {
    #[kernel(grid = [1], workgroup = 64)]
    fn wrong(&self, y: &mut Tensor<f32, (n,)>) {
        y[0] = 1.0;
    }
}

fn main() {}
