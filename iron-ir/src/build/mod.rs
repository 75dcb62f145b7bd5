//! The builder: turns the syntax tree that `#[kernel]` encodes into a [`crate::Kernel`].

mod shape;
mod slot;

pub use shape::{KernelConst, KernelType, LiteralType, TypeShape};
pub use slot::Slot;
