//! How the builder sees the types of the language.

use super::*;
use crate::build::{KernelConst, KernelType, TypeShape};
use crate::op::Const;
use crate::types::Scalar;

impl<T: Element, const N: usize> KernelType for Vector<T, N> {
    const SHAPE: TypeShape = TypeShape::Value(T::SCALAR.x(N as u8));
}

macro_rules! packed_shapes {
    ($($name:ident)*) => { $(
        impl KernelType for $name {
            const SHAPE: TypeShape = TypeShape::Value(Scalar::$name.x(1));
        }
        impl KernelConst for $name {
            fn constants(&self, out: &mut Vec<Const>) {
                out.push(Const {
                    scalar: Scalar::$name,
                    bits: u64::from(self.to_bits()),
                });
            }
        }
    )* };
}

packed_shapes!(F8E4M3 F8E5M2 E8M0 F4E2M1x2 Int4x8);

macro_rules! opaque_shapes {
    ($([$($generics:tt)*] $name:ty = $text:literal;)*) => { $(
        impl<$($generics)*> KernelType for $name {
            const SHAPE: TypeShape = TypeShape::Opaque($text);
        }
    )* };
}

opaque_shapes! {
    [T, const R: usize] Tensor<T, R> = "Tensor";
    [T, const R: usize] StridedTensor<T, R> = "StridedTensor";
    [T] Row<'_, T> = "Row";
    [T] RowMut<'_, T> = "RowMut";
    [T] Shared<T> = "Shared";
    [T] Private<T> = "Private";
    [T] Ahead<T> = "Ahead";
    [T] SharedTile<T> = "SharedTile";
    [T] RegTile<T> = "RegTile";
}
