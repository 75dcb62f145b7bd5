use iron_ir::prelude::*;

#[device_fn]
fn scaled(by: f32) -> impl Fn(f32) -> f32 {
    |a| a * by
}

fn main() {}
