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
    use super::Int;

    #[test]
    fn upper_half_of_products() {
        assert_eq!(u64::MAX.mul_high(u64::MAX), u64::MAX - 1);
        assert_eq!(i64::MIN.mul_high(i64::MIN), 1 << 62);
        assert_eq!((-1i32).mul_high(1), -1);
        assert_eq!(200u8.mul_high(200), 156);
    }
}
