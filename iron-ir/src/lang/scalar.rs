//! What a scalar type can do: [`Element`] lies in memory, [`Number`] has arithmetic, [`Float`]
//! has the mathematical functions.

use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use half::{bf16, f16};

use super::convert::{Convert, ConvertTarget};
use crate::build::KernelType;
use crate::op::Const;
use crate::types::Scalar;

/// A scalar type that tensors and arrays hold.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no element of tensors and arrays",
    label = "no element type",
    note = "elements are bool, integers, f16, bf16, f32, f64 and the packed types"
)]
pub trait Element: KernelType + Copy + 'static {
    /// The type in the IR.
    const SCALAR: Scalar;
    /// The bits, zero-extended.
    #[doc(hidden)]
    fn to_bits64(self) -> u64;
    /// The value of the low bits.
    #[doc(hidden)]
    fn from_bits64(bits: u64) -> Self;
    /// Whether the bytes at `address` are a value of this type.
    #[doc(hidden)]
    fn is_valid(_address: *const Self) -> bool {
        true
    }
}

macro_rules! elements {
    ($($t:ty: $bits:ty = $scalar:ident, $to:expr, $from:expr;)*) => { $(
        impl Element for $t {
            const SCALAR: Scalar = Scalar::$scalar;
            fn to_bits64(self) -> u64 {
                let to: fn($t) -> $bits = $to;
                u64::from(to(self))
            }
            fn from_bits64(bits: u64) -> Self {
                let from: fn($bits) -> $t = $from;
                from(bits as $bits)
            }
        }
    )* };
}
pub(crate) use elements;

elements! {
    i8: u8 = I8, |x| x as u8, |b| b as i8;
    i16: u16 = I16, |x| x as u16, |b| b as i16;
    i32: u32 = I32, |x| x as u32, |b| b as i32;
    i64: u64 = I64, |x| x as u64, |b| b as i64;
    u8: u8 = U8, |x| x, |b| b;
    u16: u16 = U16, |x| x, |b| b;
    u32: u32 = U32, |x| x, |b| b;
    u64: u64 = U64, |x| x, |b| b;
    usize: u64 = U64, |x| x as u64, |b| b as usize;
    f16: u16 = F16, f16::to_bits, f16::from_bits;
    bf16: u16 = BF16, bf16::to_bits, bf16::from_bits;
    f32: u32 = F32, f32::to_bits, f32::from_bits;
    f64: u64 = F64, f64::to_bits, f64::from_bits;
}

impl Element for bool {
    const SCALAR: Scalar = Scalar::Bool;
    fn to_bits64(self) -> u64 {
        u64::from(self)
    }
    fn from_bits64(bits: u64) -> Self {
        bits & 1 == 1
    }
    fn is_valid(address: *const Self) -> bool {
        // SAFETY: the caller has an address inside a tensor; any byte is a `u8`.
        unsafe { address.cast::<u8>().read() <= 1 }
    }
}

/// A type of scalar kernel arguments: `i32`, `u32`, `i64`, `u64`, `usize` or `f32`.
pub trait ScalarArgument: Element {
    /// The argument of these bits.
    fn from_const(bits: u64) -> Self {
        Self::from_bits64(bits)
    }
    /// The argument as launches carry it.
    fn to_const(self) -> Const {
        Const {
            scalar: Self::SCALAR,
            bits: self.to_bits64(),
        }
    }
}

impl ScalarArgument for i32 {}
impl ScalarArgument for u32 {}
impl ScalarArgument for i64 {}
impl ScalarArgument for u64 {}
impl ScalarArgument for usize {}
impl ScalarArgument for f32 {}

/// The smaller and the larger of two. Not in the prelude: concrete types have the methods
/// already, generic ones get them through [`Number`].
pub trait Ordered: Sized {
    /// The smaller. Floats: the number where one is NaN; `-0 < +0`.
    #[must_use]
    fn min(self, other: Self) -> Self;
    /// The larger. Floats: the number where one is NaN; `-0 < +0`.
    #[must_use]
    fn max(self, other: Self) -> Self;
}

/// An integer or a float.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no number of the kernel language",
    label = "integers and floats only"
)]
pub trait Number:
    Element
    + crate::build::KernelConst
    + Convert
    + ConvertTarget
    + Ordered
    + PartialEq
    + PartialOrd
    + Default
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + DivAssign
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The least finite value.
    const MIN: Self;
    /// The greatest finite value.
    const MAX: Self;
    /// Sum as the specification defines it: integers wrap.
    #[doc(hidden)]
    fn sum_of(self, other: Self) -> Self;
    /// Product as the specification defines it: integers wrap.
    #[doc(hidden)]
    fn product_of(self, other: Self) -> Self;
}

macro_rules! integer_numbers {
    ($($t:ty)*) => { $(
        impl Ordered for $t {
            fn min(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
            fn max(self, other: Self) -> Self {
                if other > self { other } else { self }
            }
        }
        impl Number for $t {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const MIN: Self = <$t>::MIN;
            const MAX: Self = <$t>::MAX;
            fn sum_of(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product_of(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
    )* };
}

integer_numbers!(i8 i16 i32 i64 u8 u16 u32 u64 usize);

/// `f16`, `bf16`, `f32` (and `f64` where the target has it). Functions of `f16` and `bf16` are
/// the `f32` function rounded once.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no float of the kernel language",
    label = "f16, bf16, f32 or f64 only"
)]
pub trait Float: Number + Neg<Output = Self> {
    /// The nearest value of this type.
    fn from_f32(value: f32) -> Self;
    /// Absolute value.
    #[must_use]
    fn abs(self) -> Self;
    /// Square root, correctly rounded.
    #[must_use]
    fn sqrt(self) -> Self;
    /// `1 / sqrt(self)`.
    #[must_use]
    fn rsqrt(self) -> Self;
    /// `e^self`.
    #[must_use]
    fn exp(self) -> Self;
    /// `2^self`.
    #[must_use]
    fn exp2(self) -> Self;
    /// Natural logarithm.
    #[must_use]
    fn ln(self) -> Self;
    /// Logarithm to base 2.
    #[must_use]
    fn log2(self) -> Self;
    /// Sine of radians.
    #[must_use]
    fn sin(self) -> Self;
    /// Cosine of radians.
    #[must_use]
    fn cos(self) -> Self;
    /// Hyperbolic tangent.
    #[must_use]
    fn tanh(self) -> Self;
    /// The error function.
    #[must_use]
    fn erf(self) -> Self;
    /// Towards minus infinity.
    #[must_use]
    fn floor(self) -> Self;
    /// Towards plus infinity.
    #[must_use]
    fn ceil(self) -> Self;
    /// Towards zero.
    #[must_use]
    fn trunc(self) -> Self;
    /// To nearest, ties to even.
    #[must_use]
    fn round_ties_even(self) -> Self;
    /// `self^exponent`.
    #[must_use]
    fn powf(self, exponent: Self) -> Self;
    /// `self * a + b`, rounded once.
    #[must_use]
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// The smaller; NaN where either is NaN; `-0 < +0`.
    #[must_use]
    fn min_nan(self, other: Self) -> Self;
    /// The larger; NaN where either is NaN; `-0 < +0`.
    #[must_use]
    fn max_nan(self, other: Self) -> Self;
    /// Neither a number nor infinite.
    fn is_nan(self) -> bool;
    /// Neither NaN nor infinite.
    fn is_finite(self) -> bool;
}

/// The smaller or larger of two floats where neither is NaN: zeros order by their sign.
macro_rules! pick {
    ($a:expr, $b:expr, $less:tt, $sign:ident) => {
        if $a $less $b || ($a == $b && $a.$sign()) { $a } else { $b }
    };
}

macro_rules! float_order {
    ($($t:ty)*) => { $(
        impl Ordered for $t {
            fn min(self, other: Self) -> Self {
                if self.is_nan() {
                    other
                } else if other.is_nan() {
                    self
                } else {
                    pick!(self, other, <, is_sign_negative)
                }
            }
            fn max(self, other: Self) -> Self {
                if self.is_nan() {
                    other
                } else if other.is_nan() {
                    self
                } else {
                    pick!(self, other, >, is_sign_positive)
                }
            }
        }
    )* };
}

float_order!(f16 bf16 f32 f64);

macro_rules! native_floats {
    ($($t:ty: $from:expr, $erf:expr;)*) => { $(
        impl Number for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const MIN: Self = <$t>::MIN;
            const MAX: Self = <$t>::MAX;
            fn sum_of(self, other: Self) -> Self {
                self + other
            }
            fn product_of(self, other: Self) -> Self {
                self * other
            }
        }
        impl Float for $t {
            fn from_f32(value: f32) -> Self {
                $from(value)
            }
            fn abs(self) -> Self {
                self.abs()
            }
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            fn rsqrt(self) -> Self {
                1.0 / self.sqrt()
            }
            fn exp(self) -> Self {
                self.exp()
            }
            fn exp2(self) -> Self {
                self.exp2()
            }
            fn ln(self) -> Self {
                self.ln()
            }
            fn log2(self) -> Self {
                self.log2()
            }
            fn sin(self) -> Self {
                self.sin()
            }
            fn cos(self) -> Self {
                self.cos()
            }
            fn tanh(self) -> Self {
                self.tanh()
            }
            fn erf(self) -> Self {
                $erf(self)
            }
            fn floor(self) -> Self {
                self.floor()
            }
            fn ceil(self) -> Self {
                self.ceil()
            }
            fn trunc(self) -> Self {
                self.trunc()
            }
            fn round_ties_even(self) -> Self {
                self.round_ties_even()
            }
            fn powf(self, exponent: Self) -> Self {
                self.powf(exponent)
            }
            fn mul_add(self, a: Self, b: Self) -> Self {
                self.mul_add(a, b)
            }
            fn min_nan(self, other: Self) -> Self {
                if self.is_nan() || other.is_nan() {
                    <$t>::NAN
                } else {
                    Ordered::min(self, other)
                }
            }
            fn max_nan(self, other: Self) -> Self {
                if self.is_nan() || other.is_nan() {
                    <$t>::NAN
                } else {
                    Ordered::max(self, other)
                }
            }
            fn is_nan(self) -> bool {
                self.is_nan()
            }
            fn is_finite(self) -> bool {
                self.is_finite()
            }
        }
    )* };
}

native_floats! {
    f32: (|x: f32| x), (|x: f32| super::math::erf_f64(f64::from(x)) as f32);
    f64: f64::from, super::math::erf_f64;
}

macro_rules! small_floats {
    ($($t:ty)*) => { $(
        impl Number for $t {
            const ZERO: Self = <$t>::ZERO;
            const ONE: Self = <$t>::ONE;
            const MIN: Self = <$t>::MIN;
            const MAX: Self = <$t>::MAX;
            fn sum_of(self, other: Self) -> Self {
                self + other
            }
            fn product_of(self, other: Self) -> Self {
                self * other
            }
        }
        impl Float for $t {
            fn from_f32(value: f32) -> Self {
                <$t>::from_f32(value)
            }
            fn abs(self) -> Self {
                <$t>::from_bits(self.to_bits() & 0x7fff)
            }
            fn sqrt(self) -> Self {
                Self::from_f32(self.to_f32().sqrt())
            }
            fn rsqrt(self) -> Self {
                Self::from_f32(self.to_f32().rsqrt())
            }
            fn exp(self) -> Self {
                Self::from_f32(self.to_f32().exp())
            }
            fn exp2(self) -> Self {
                Self::from_f32(self.to_f32().exp2())
            }
            fn ln(self) -> Self {
                Self::from_f32(self.to_f32().ln())
            }
            fn log2(self) -> Self {
                Self::from_f32(self.to_f32().log2())
            }
            fn sin(self) -> Self {
                Self::from_f32(self.to_f32().sin())
            }
            fn cos(self) -> Self {
                Self::from_f32(self.to_f32().cos())
            }
            fn tanh(self) -> Self {
                Self::from_f32(self.to_f32().tanh())
            }
            fn erf(self) -> Self {
                Self::from_f32(Float::erf(self.to_f32()))
            }
            fn floor(self) -> Self {
                Self::from_f32(self.to_f32().floor())
            }
            fn ceil(self) -> Self {
                Self::from_f32(self.to_f32().ceil())
            }
            fn trunc(self) -> Self {
                Self::from_f32(self.to_f32().trunc())
            }
            fn round_ties_even(self) -> Self {
                Self::from_f32(self.to_f32().round_ties_even())
            }
            fn powf(self, exponent: Self) -> Self {
                Self::from_f32(self.to_f32().powf(exponent.to_f32()))
            }
            fn mul_add(self, a: Self, b: Self) -> Self {
                Self::from_f32(self.to_f32().mul_add(a.to_f32(), b.to_f32()))
            }
            fn min_nan(self, other: Self) -> Self {
                Self::from_f32(self.to_f32().min_nan(other.to_f32()))
            }
            fn max_nan(self, other: Self) -> Self {
                Self::from_f32(self.to_f32().max_nan(other.to_f32()))
            }
            fn is_nan(self) -> bool {
                <$t>::is_nan(self)
            }
            fn is_finite(self) -> bool {
                <$t>::is_finite(self)
            }
        }
    )* };
}

small_floats!(f16 bf16);
