use iron_ir::prelude::*;

#[device_struct]
pub enum Mode {
    Fast,
    Exact,
}

fn main() {}
