use iron_ir::prelude::*;

#[device_fn]
unsafe fn first(a: f32) -> f32 {
    a
}

#[device_fn]
async fn second(a: f32) -> f32 {
    a
}

#[device_fn]
extern "C" fn third(a: f32) -> f32 {
    a
}

#[device_fn]
const fn fourth(a: f32) -> f32 {
    a
}

fn main() {}
