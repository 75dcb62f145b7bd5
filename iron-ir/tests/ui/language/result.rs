use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n,)>, y: &mut Tensor<f32, (n,)>) {
    let a: f32 = {
        let r: Result<f32, ()> = Ok(x[0]);
        r.unwrap_or(0.0)
    };
    y[0] = a;
}

fn main() {}
