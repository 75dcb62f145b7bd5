use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    'rows: for i in 0..n {
        if x[i] > 1.0 {
            break 'cols;
        }
        y[i] = x[i];
    }
}

fn main() {}
