use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
fn wrong(c: &mut Tensor<u8, (n,)>) {
    c.atomic_add(0, 1);
}

fn main() {}
