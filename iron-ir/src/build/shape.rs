//! What the builder knows of a Rust type: [`KernelType`] maps it to a [`TypeShape`].

use crate::op::Const;
use crate::types::{Scalar, Type};

/// The structure of a kernel value's type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum TypeShape {
    /// A scalar or a vector.
    Value(Type),
    /// A fixed array.
    Array(&'static TypeShape, usize),
    /// A tuple; the empty one is the unit type.
    Tuple(&'static [TypeShape]),
    /// A `#[device_struct]`: its name and its fields in order.
    Struct(&'static str, &'static [(&'static str, TypeShape)]),
    /// A handle that is no value: a tensor, a shared array, a tile, an iterator.
    Opaque(&'static str),
}

/// A type that kernels may hold.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used in a kernel",
    label = "not a kernel type",
    note = "kernel values are numbers, bool, vectors, arrays, tuples and `#[device_struct]`s"
)]
pub trait KernelType {
    /// Its structure.
    const SHAPE: TypeShape;
}

/// A type whose values may be constants of a kernel.
#[diagnostic::on_unimplemented(
    message = "a constant of type `{Self}` cannot be used in a kernel",
    label = "not a type of kernel constants",
    note = "constants are numbers, bool and arrays or tuples of them"
)]
pub trait KernelConst: KernelType {
    /// Appends the scalars of the value in order.
    fn constants(&self, out: &mut Vec<Const>);
}

/// A type that an unsuffixed literal may have. `f64` is not among them: a literal is never
/// `f64` unless its suffix or its neighbour says so.
#[diagnostic::on_unimplemented(
    message = "this literal has type `{Self}`, which a kernel's literal has only with a suffix",
    label = "write the suffix, for example `1.0f64`"
)]
pub trait LiteralType: KernelType {}

impl TypeShape {
    /// The unit type.
    pub const UNIT: TypeShape = TypeShape::Tuple(&[]);

    /// The scalar of a scalar type. In a `const` context, another shape is a compile error.
    pub const fn scalar(self) -> Scalar {
        match self {
            TypeShape::Value(Type { scalar, lanes: 1 }) => scalar,
            TypeShape::Value(_)
            | TypeShape::Array(..)
            | TypeShape::Tuple(_)
            | TypeShape::Struct(..)
            | TypeShape::Opaque(_) => panic!("a scalar type is needed here"),
        }
    }
}

macro_rules! primitives {
    ($($ty:ty = $scalar:ident, $bits:expr;)*) => { $(
        impl KernelType for $ty {
            const SHAPE: TypeShape = TypeShape::Value(Scalar::$scalar.x(1));
        }
        impl KernelConst for $ty {
            fn constants(&self, out: &mut Vec<Const>) {
                let bits: fn($ty) -> u64 = $bits;
                out.push(Const { scalar: Scalar::$scalar, bits: bits(*self) });
            }
        }
    )* };
}

primitives! {
    bool = Bool, u64::from;
    i8 = I8, |v| u64::from(v as u8);
    i16 = I16, |v| u64::from(v as u16);
    i32 = I32, |v| u64::from(v as u32);
    i64 = I64, |v| v as u64;
    u8 = U8, u64::from;
    u16 = U16, u64::from;
    u32 = U32, u64::from;
    u64 = U64, |v| v;
    usize = U64, |v| v as u64;
    f32 = F32, |v| u64::from(v.to_bits());
    f64 = F64, f64::to_bits;
    half::f16 = F16, |v| u64::from(v.to_bits());
    half::bf16 = BF16, |v| u64::from(v.to_bits());
}

macro_rules! literals {
    ($($ty:ty)*) => { $( impl LiteralType for $ty {} )* };
}

literals! { i8 i16 i32 i64 u8 u16 u32 u64 usize f32 }

impl<T: KernelType, const N: usize> KernelType for [T; N] {
    const SHAPE: TypeShape = TypeShape::Array(&T::SHAPE, N);
}

impl<T: KernelConst, const N: usize> KernelConst for [T; N] {
    fn constants(&self, out: &mut Vec<Const>) {
        for item in self {
            item.constants(out);
        }
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),*))*) => { $(
        impl<$($name: KernelType),*> KernelType for ($($name,)*) {
            const SHAPE: TypeShape = TypeShape::Tuple(&[$($name::SHAPE),*]);
        }
        impl<$($name: KernelConst),*> KernelConst for ($($name,)*) {
            #[allow(unused_variables, reason = "the unit type has no scalars")]
            fn constants(&self, out: &mut Vec<Const>) {
                $(self.$index.constants(out);)*
            }
        }
    )* };
}

tuples! {
    ()
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}
