use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(x: &Tensor<f32, (n, n)>, h: &Tensor<f16, (n, n)>, y: &mut Tensor<f32, (n, n)>) {
    let mut a = shared_tile::<f32>(16, 16);
    let mut b = shared_tile::<f16>(16, 16);
    let mut c = reg_tile::<f32>(16, 16, 0.0);
    a.load(x, [0, 0]);
    b.load(h, [0, 0]);
    matmul(&mut c, &a, &b);
    c.store(y, [0, 0]);
}

fn main() {}
