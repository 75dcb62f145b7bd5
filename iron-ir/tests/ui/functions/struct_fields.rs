use iron_ir::prelude::*;

#[device_struct]
pub struct Named {
    name: String,
    scale: f32,
}

fn main() {}
