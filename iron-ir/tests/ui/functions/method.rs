use iron_ir::prelude::*;

struct Scale;

impl Scale {
    #[device_fn]
    fn times(&self, a: f32) -> f32 {
        a * 2.0
    }
}

fn main() {}
