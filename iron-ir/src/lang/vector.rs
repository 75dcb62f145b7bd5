//! Vectors of 2, 4 or 8 lanes.

use std::ops::{
    Add, AddAssign, BitAnd, BitOr, BitXor, Div, DivAssign, Index, IndexMut, Mul, MulAssign, Neg,
    Rem, Shl, Shr, Sub, SubAssign,
};

use super::convert::{Convert, ConvertTarget};
use super::integer::{FourBytes, Int, MixedBytes};
use super::scalar::{Element, Float, Number};

/// `N` lanes of `T`, where `N` is 2, 4 or 8. Lane 0 is first in memory.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Vector<T, const N: usize>([T; N]);

/// Every lane `x`.
pub fn splat2<T: Element>(x: T) -> Vector<T, 2> {
    Vector([x; 2])
}

/// Every lane `x`.
pub fn splat4<T: Element>(x: T) -> Vector<T, 4> {
    Vector([x; 4])
}

/// Every lane `x`.
pub fn splat8<T: Element>(x: T) -> Vector<T, 8> {
    Vector([x; 8])
}

/// The vector of these lanes.
pub fn vec2<T: Element>(a: T, b: T) -> Vector<T, 2> {
    Vector([a, b])
}

/// The vector of these lanes.
pub fn vec4<T: Element>(a: T, b: T, c: T, d: T) -> Vector<T, 4> {
    Vector([a, b, c, d])
}

/// The vector of these lanes.
pub fn vec8<T: Element>(a: T, b: T, c: T, d: T, e: T, f: T, g: T, h: T) -> Vector<T, 8> {
    Vector([a, b, c, d, e, f, g, h])
}

impl<T: Copy, const N: usize> Vector<T, N> {
    /// The vector of these lanes.
    pub const fn new(lanes: [T; N]) -> Self {
        const {
            assert!(N == 2 || N == 4 || N == 8, "vectors have 2, 4 or 8 lanes");
        }
        Vector(lanes)
    }

    /// The value in every lane.
    pub const fn splat(value: T) -> Self {
        Vector([value; N])
    }

    /// The lanes.
    pub const fn to_array(self) -> [T; N] {
        self.0
    }

    /// `f` of each lane.
    #[must_use]
    pub fn map<U: Copy>(self, f: impl FnMut(T) -> U) -> Vector<U, N> {
        Vector(self.0.map(f))
    }

    fn zip<U: Copy, V: Copy>(self, other: Vector<U, N>, f: impl Fn(T, U) -> V) -> Vector<V, N> {
        Vector(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl<T: Convert, const N: usize> Vector<T, N> {
    /// Each lane converted, as [`Convert::to`].
    #[must_use]
    pub fn to<U: ConvertTarget>(self) -> Vector<U, N> {
        self.map(T::to)
    }
    /// Each lane converted to `f32`.
    pub fn to_f32(self) -> Vector<f32, N> {
        self.map(T::to_f32)
    }
}

impl<T: FourBytes, const N: usize> Vector<T, N> {
    /// Of each lane, as [`FourBytes::dot4`].
    #[must_use]
    pub fn dot4(self, other: Self) -> Self {
        self.zip(other, T::dot4)
    }
}

impl<T: MixedBytes, const N: usize> Vector<T, N> {
    /// Of each lane, as [`MixedBytes::dot4_mixed`].
    #[must_use]
    pub fn dot4_mixed(self, other: Self) -> Self {
        self.zip(other, T::dot4_mixed)
    }
}

impl<T: Number, const N: usize> Vector<T, N> {
    /// The smaller of each lane, as the scalar's `min`.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| a.min(b))
    }
    /// The larger of each lane, as the scalar's `max`.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| a.max(b))
    }
    /// Sum of the lanes by the adjacent-pair tree: `(a0 + a1) + (a2 + a3)`.
    pub fn sum(self) -> T {
        self.tree(T::sum_of)
    }
    /// Largest lane.
    pub fn max_lane(self) -> T {
        self.tree(|a, b| a.max(b))
    }
    /// Smallest lane.
    pub fn min_lane(self) -> T {
        self.tree(|a, b| a.min(b))
    }

    fn tree(self, f: impl Fn(T, T) -> T) -> T {
        let mut lanes = self.0;
        let mut distance = 1;
        while distance < N {
            for i in (0..N).step_by(2 * distance) {
                lanes[i] = f(lanes[i], lanes[i + distance]);
            }
            distance *= 2;
        }
        lanes[0]
    }
}

macro_rules! lanewise {
    ($($name:ident: $doc:literal;)*) => {
        impl<T: Float, const N: usize> Vector<T, N> {
            $(
                #[doc = $doc]
                #[must_use]
                pub fn $name(self) -> Self {
                    self.map(T::$name)
                }
            )*
            /// `self * a + b` of each lane, rounded once.
            #[must_use]
            pub fn mul_add(self, a: Self, b: Self) -> Self {
                Vector(std::array::from_fn(|i| self.0[i].mul_add(a.0[i], b.0[i])))
            }
            /// The smaller of each lane; NaN where either is NaN.
            #[must_use]
            pub fn min_nan(self, other: Self) -> Self {
                self.zip(other, T::min_nan)
            }
            /// The larger of each lane; NaN where either is NaN.
            #[must_use]
            pub fn max_nan(self, other: Self) -> Self {
                self.zip(other, T::max_nan)
            }
            /// Scalar product as a chain of fused multiply-adds, lane 0 first:
            /// `fma(a3, b3, fma(a2, b2, fma(a1, b1, a0 * b0)))`.
            pub fn dot(self, other: Self) -> T {
                let first = self.0[0] * other.0[0];
                (1..N).fold(first, |sum, i| self.0[i].mul_add(other.0[i], sum))
            }
        }
    };
}

lanewise! {
    abs: "Absolute value of each lane.";
    sqrt: "Square root of each lane.";
    rsqrt: "`1 / sqrt` of each lane.";
    exp: "`e^x` of each lane.";
    exp2: "`2^x` of each lane.";
    ln: "Natural logarithm of each lane.";
    log2: "Logarithm to base 2 of each lane.";
    sin: "Sine of each lane.";
    cos: "Cosine of each lane.";
    tanh: "Hyperbolic tangent of each lane.";
    erf: "Error function of each lane.";
    floor: "Each lane towards minus infinity.";
    ceil: "Each lane towards plus infinity.";
    trunc: "Each lane towards zero.";
    round_ties_even: "Each lane to nearest, ties to even.";
}

macro_rules! operators {
    ($($bound:ident: $op:ident $method:ident;)*) => { $(
        impl<T: $bound, const N: usize> $op for Vector<T, N> {
            type Output = Self;
            #[track_caller]
            fn $method(self, other: Self) -> Self {
                self.zip(other, |a, b| a.$method(b))
            }
        }
        impl<T: $bound, const N: usize> $op<T> for Vector<T, N> {
            type Output = Self;
            #[track_caller]
            fn $method(self, other: T) -> Self {
                self.map(|a| a.$method(other))
            }
        }
    )* };
}

operators! {
    Number: Add add;
    Number: Sub sub;
    Number: Mul mul;
    Number: Div div;
    Int: Rem rem;
    Int: BitAnd bitand;
    Int: BitOr bitor;
    Int: BitXor bitxor;
}

macro_rules! lane_shifts {
    ($($op:ident $method:ident;)*) => { $(
        impl<T: Int, const N: usize> $op for Vector<T, N> {
            type Output = Self;
            #[track_caller]
            fn $method(self, counts: Self) -> Self {
                self.zip(counts, |a, b| a.$method(b))
            }
        }
    )* };
}

lane_shifts! {
    Shl shl;
    Shr shr;
}

macro_rules! assignments {
    ($($op:ident $method:ident $plain:ident;)*) => { $(
        impl<T: Number, const N: usize> $op for Vector<T, N> {
            #[track_caller]
            fn $method(&mut self, other: Self) {
                *self = self.$plain(other);
            }
        }
        impl<T: Number, const N: usize> $op<T> for Vector<T, N> {
            #[track_caller]
            fn $method(&mut self, other: T) {
                *self = self.$plain(other);
            }
        }
    )* };
}

assignments! {
    AddAssign add_assign add;
    SubAssign sub_assign sub;
    MulAssign mul_assign mul;
    DivAssign div_assign div;
}

impl<T: Int, const N: usize> Shl<u32> for Vector<T, N> {
    type Output = Self;
    #[track_caller]
    fn shl(self, count: u32) -> Self {
        self.map(|a| a << count)
    }
}

impl<T: Int, const N: usize> Shr<u32> for Vector<T, N> {
    type Output = Self;
    #[track_caller]
    fn shr(self, count: u32) -> Self {
        self.map(|a| a >> count)
    }
}

impl<T: Number + Neg<Output = T>, const N: usize> Neg for Vector<T, N> {
    type Output = Self;
    #[track_caller]
    fn neg(self) -> Self {
        self.map(|a| -a)
    }
}

impl<T, const N: usize> Index<usize> for Vector<T, N> {
    type Output = T;
    #[track_caller]
    fn index(&self, lane: usize) -> &T {
        &self.0[lane]
    }
}

impl<T, const N: usize> IndexMut<usize> for Vector<T, N> {
    #[track_caller]
    fn index_mut(&mut self, lane: usize) -> &mut T {
        &mut self.0[lane]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_sums() {
        let small = f32::EPSILON / 2.0;
        assert_eq!(vec4(1.0, small, small, small).sum(), 1.0 + f32::EPSILON);
        assert_eq!(vec8(1, 2, 3, 4, 5, 6, 7, 8u32).sum(), 36);
        assert_eq!(
            (vec2(1.0f32, 2.0) * 2.0 + vec2(1.0, 1.0)).to_array(),
            [3.0, 5.0]
        );
        let a = vec2(1.0f32 + f32::EPSILON, 1.0);
        assert_eq!(a.dot(a), a[0] * a[0] + 1.0);
    }
}
