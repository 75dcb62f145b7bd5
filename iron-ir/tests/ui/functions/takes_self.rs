use iron_ir::prelude::*;

#[device_fn]
fn twice(self, a: f32) -> f32 {
    a * 2.0
}

fn main() {}
