use iron_ir::prelude::*;

#[device_fn]
fn twice(a: f32) -> u32 {
    a * 2.0
}

fn main() {}
