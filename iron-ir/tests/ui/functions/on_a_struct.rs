use iron_ir::prelude::*;

#[device_fn]
struct Pair {
    a: f32,
}

fn main() {}
