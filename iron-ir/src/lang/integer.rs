//! Integers of any width.

use std::ops::{
    BitAnd, BitAndAssign, BitOr, BitOrAssign, BitXor, BitXorAssign, Not, Rem, RemAssign, Shl, Shr,
};

use super::scalar::Number;

/// An integer type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no integer of the kernel language",
    label = "integers only"
)]
pub trait Int:
    Number
    + Eq
    + Rem<Output = Self>
    + RemAssign
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + BitAndAssign
    + BitOrAssign
    + BitXorAssign
    + Not<Output = Self>
    + Shl<Output = Self>
    + Shr<Output = Self>
    + Shl<u32, Output = Self>
    + Shr<u32, Output = Self>
{
    /// Sum modulo 2^width.
    #[must_use]
    fn wrapping_add(self, other: Self) -> Self;
    /// Difference modulo 2^width.
    #[must_use]
    fn wrapping_sub(self, other: Self) -> Self;
    /// Product modulo 2^width.
    #[must_use]
    fn wrapping_mul(self, other: Self) -> Self;
    /// Negation modulo 2^width.
    #[must_use]
    fn wrapping_neg(self) -> Self;
    /// Upper half of the double-width product.
    #[must_use]
    fn mul_high(self, other: Self) -> Self;
    /// Number of one bits.
    fn count_ones(self) -> u32;
    /// Number of leading zero bits; the width for 0.
    fn leading_zeros(self) -> u32;
    /// Number of trailing zero bits; the width for 0.
    fn trailing_zeros(self) -> u32;
    /// Bits in reverse order.
    #[must_use]
    fn reverse_bits(self) -> Self;
}

/// An integer whose four bytes are numbers themselves, the lowest first: `i32` (signed bytes) or
/// `u32` (bytes without sign).
pub trait FourBytes: Int {
    /// Sum of the four products of the bytes, each with the type's sign. It cannot overflow.
    #[must_use]
    fn dot4(self, other: Self) -> Self;
}

/// An integer whose bytes can be taken either way: `i32`.
pub trait MixedBytes: FourBytes {
    /// As [`FourBytes::dot4`], where the bytes of `self` have no sign and those of `other` are
    /// signed.
    #[must_use]
    fn dot4_mixed(self, other: Self) -> Self;
}

impl FourBytes for i32 {
    fn dot4(self, other: i32) -> i32 {
        let products = self.to_le_bytes().into_iter().zip(other.to_le_bytes());
        products
            .map(|(a, b)| i32::from(a as i8) * i32::from(b as i8))
            .sum()
    }
}

impl FourBytes for u32 {
    fn dot4(self, other: u32) -> u32 {
        let products = self.to_le_bytes().into_iter().zip(other.to_le_bytes());
        products.map(|(a, b)| u32::from(a) * u32::from(b)).sum()
    }
}

impl MixedBytes for i32 {
    fn dot4_mixed(self, other: i32) -> i32 {
        let products = self.to_le_bytes().into_iter().zip(other.to_le_bytes());
        products
            .map(|(a, b)| i32::from(a) * i32::from(b as i8))
            .sum()
    }
}

macro_rules! ints {
    ($($t:ty)*) => { $(
        impl Int for $t {
            fn wrapping_add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn wrapping_sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            fn wrapping_mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn wrapping_neg(self) -> Self {
                self.wrapping_neg()
            }
            fn mul_high(self, other: Self) -> Self {
                // The product of two 64-bit integers of either sign fits in 128 bits, but that
                // of two large `u64` is above `i128::MAX`: its bits are still right.
                ((self as i128).wrapping_mul(other as i128) >> <$t>::BITS) as $t
            }
            fn count_ones(self) -> u32 {
                self.count_ones()
            }
            fn leading_zeros(self) -> u32 {
                self.leading_zeros()
            }
            fn trailing_zeros(self) -> u32 {
                self.trailing_zeros()
            }
            fn reverse_bits(self) -> Self {
                self.reverse_bits()
            }
        }
    )* };
}

ints!(i8 i16 i32 i64 u8 u16 u32 u64 usize);

#[cfg(test)]
mod tests {
    use super::{FourBytes, Int, MixedBytes};

    #[test]
    fn dot_products_of_bytes() {
        assert_eq!((-1i32).dot4(-1), 4);
        assert_eq!(
            i32::from_le_bytes([0x80; 4]).dot4(i32::from_le_bytes([0x80; 4])),
            65_536
        );
        assert_eq!(u32::MAX.dot4(u32::MAX), 260_100);
        assert_eq!((-1i32).dot4_mixed(i32::from_le_bytes([0x80; 4])), -130_560);
        assert_eq!(0x0403_0201i32.dot4_mixed(0x0102_03ff), 4 + 6 + 6 - 1);
    }

    #[test]
    fn upper_half_of_products() {
        assert_eq!(u64::MAX.mul_high(u64::MAX), u64::MAX - 1);
        assert_eq!(i64::MIN.mul_high(i64::MIN), 1 << 62);
        assert_eq!((-1i32).mul_high(1), -1);
        assert_eq!(200u8.mul_high(200), 156);
    }
}
