use iron_ir::prelude::*;

#[device_struct(packed)]
pub struct Pair {
    a: f32,
}

fn main() {}
