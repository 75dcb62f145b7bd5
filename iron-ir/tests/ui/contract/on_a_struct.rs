use iron_ir::prelude::*;

#[kernel(grid = [1], workgroup = 64)]
struct Wrong {
    a: f32,
}

fn main() {}
