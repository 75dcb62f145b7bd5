use iron_ir::prelude::*;

#[device_struct]
pub struct Pair {
    a: f32,
    #[cfg(debug_assertions)]
    b: f32,
}

fn main() {}
