use iron_ir::prelude::*;

#[device_fn(inline)]
fn twice(a: f32) -> f32 {
    a * 2.0
}

fn main() {}
