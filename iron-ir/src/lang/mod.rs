//! The executable types and functions of the kernel language, re-exported by [`crate::prelude`].
//!
//! A kernel's body is type-checked by rustc over these, and runs natively over them on the
//! `host` backend. Numbers follow the specification in the crate doc where Rust leaves a choice
//! to us; native operators of Rust's own integers and floats are Rust's (an overflow or a
//! division by zero in a build that checks them is a fault of the launch).
//!
//! Indices of tensors and arrays are `u32` or `usize`; an unsuffixed literal is an `i32`, which
//! is accepted where it is not negative.

mod arrays;
mod atomic;
mod convert;
mod group;
mod integer;
mod math;
mod packed;
mod places;
mod scalar;
mod shapes;
mod tensor;
mod tile;
mod vector;

pub use arrays::{Ahead, Length, Private, Shared, ahead, private, shared};
pub use atomic::{Atomic, AtomicInt};
pub use convert::{Bitcast, Convert, ConvertTarget};
pub use group::*;
pub use half::{bf16, f16};
pub use integer::{FourBytes, Int, MixedBytes};
pub use math::{ceil_div, erf, fma, rsqrt, select};
pub use packed::{E8M0, F4E2M1x2, F8E4M3, F8E5M2, Int4x8};
pub use places::*;
pub use scalar::{Element, Float, Number, ScalarArgument};
pub use tensor::{Row, RowIndex, RowMut, StridedTensor, Tensor, TensorIndex};
pub use tile::{
    RegTile, SharedTile, TileSource, TileTensor, TileTensorMut, matmul, matmul_nt, matmul_tn,
    reg_tile, shared_tile,
};
pub use vector::{Vector, splat2, splat4, splat8, vec2, vec4, vec8};

pub(crate) use tensor::TensorNames;

/// Two `f32`.
pub type F32x2 = Vector<f32, 2>;
/// Four `f32`.
pub type F32x4 = Vector<f32, 4>;
/// Eight `f32`.
pub type F32x8 = Vector<f32, 8>;
/// Two `f16`.
pub type F16x2 = Vector<f16, 2>;
/// Four `f16`.
pub type F16x4 = Vector<f16, 4>;
/// Eight `f16`.
pub type F16x8 = Vector<f16, 8>;
/// Two `bf16`.
pub type BF16x2 = Vector<bf16, 2>;
/// Four `bf16`.
pub type BF16x4 = Vector<bf16, 4>;
/// Eight `bf16`.
pub type BF16x8 = Vector<bf16, 8>;
/// Two `u32`.
pub type U32x2 = Vector<u32, 2>;
/// Four `u32`.
pub type U32x4 = Vector<u32, 4>;
/// Eight `u32`.
pub type U32x8 = Vector<u32, 8>;
/// Two `i32`.
pub type I32x2 = Vector<i32, 2>;
/// Four `i32`.
pub type I32x4 = Vector<i32, 4>;
/// Eight `i32`.
pub type I32x8 = Vector<i32, 8>;
/// Two `u8`.
pub type U8x2 = Vector<u8, 2>;
/// Four `u8`.
pub type U8x4 = Vector<u8, 4>;
/// Eight `u8`.
pub type U8x8 = Vector<u8, 8>;
/// Two `i8`.
pub type I8x2 = Vector<i8, 2>;
/// Four `i8`.
pub type I8x4 = Vector<i8, 4>;
/// Eight `i8`.
pub type I8x8 = Vector<i8, 8>;
/// Two `u16`.
pub type U16x2 = Vector<u16, 2>;
/// Four `u16`.
pub type U16x4 = Vector<u16, 4>;
/// Eight `u16`.
pub type U16x8 = Vector<u16, 8>;
