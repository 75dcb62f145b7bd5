//! Packed storage types: bits that are loaded, stored and decoded, and have no arithmetic.

use super::scalar::{Element, elements};
use super::vector::Vector;
use crate::types::Scalar;

macro_rules! packed {
    ($($(#[$doc:meta])* $name:ident($bits:ty);)*) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $name($bits);

        impl $name {
            /// The value of these bits.
            pub const fn from_bits(bits: $bits) -> $name {
                $name(bits)
            }
            /// The bits.
            pub const fn to_bits(self) -> $bits {
                self.0
            }
        }
    )* };
}

packed! {
    /// OCP 8-bit float with 4 exponent and 3 mantissa bits: up to 448, NaN, no infinity.
    F8E4M3(u8);
    /// OCP 8-bit float with 5 exponent and 2 mantissa bits: up to 57344, infinities, NaN.
    F8E5M2(u8);
    /// OCP power of two: `2^(bits - 127)`, 255 is NaN.
    E8M0(u8);
    /// Two OCP 4-bit floats (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), low nibble first.
    F4E2M1x2(u8);
    /// Eight 4-bit two's complement integers, low nibble first.
    Int4x8(u32);
}

elements! {
    F8E4M3: u8 = F8E4M3, F8E4M3::to_bits, F8E4M3::from_bits;
    F8E5M2: u8 = F8E5M2, F8E5M2::to_bits, F8E5M2::from_bits;
    E8M0: u8 = E8M0, E8M0::to_bits, E8M0::from_bits;
    F4E2M1x2: u8 = F4E2M1x2, F4E2M1x2::to_bits, F4E2M1x2::from_bits;
    Int4x8: u32 = Int4x8, Int4x8::to_bits, Int4x8::from_bits;
}

impl F8E4M3 {
    /// The nearest value, ties to even; beyond 464 NaN.
    pub fn from_f32(value: f32) -> F8E4M3 {
        F8E4M3(Format::E4M3.encode(f64::from(value)) as u8)
    }
}

impl F8E5M2 {
    /// The nearest value, ties to even; beyond 61440 infinity.
    pub fn from_f32(value: f32) -> F8E5M2 {
        F8E5M2(Format::E5M2.encode(f64::from(value)) as u8)
    }
}

impl F4E2M1x2 {
    /// The two floats, low nibble first.
    pub fn to_f32(self) -> Vector<f32, 2> {
        const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let decode = |nibble: u8| {
            let value = VALUES[usize::from(nibble & 7)];
            if nibble & 8 == 0 { value } else { -value }
        };
        Vector::new([decode(self.0 & 15), decode(self.0 >> 4)])
    }
}

impl Int4x8 {
    /// The eight integers, -8 to 7, low nibble first.
    pub fn to_i32(self) -> Vector<i32, 8> {
        Vector::new(std::array::from_fn(|i| {
            (self.0 as i32) << (28 - 4 * i) >> 28
        }))
    }
    /// The eight integers as floats, low nibble first.
    pub fn to_f32(self) -> Vector<f32, 8> {
        self.to_i32().map(|i| i as f32)
    }
}

/// `2^exponent` of a normal `f64` by its bits, which `powi` would reach by multiplying.
pub(crate) fn two_to(exponent: i32) -> f64 {
    debug_assert!(
        (-1022..=1023).contains(&exponent),
        "2^{exponent} is no normal number"
    );
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// A binary floating-point format of at most 16 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// All exponents but the all-ones mantissa are finite, as in E4M3.
    finite_only: bool,
}

impl Format {
    pub const F16: Format = Format::new(5, 10, false);
    pub const BF16: Format = Format::new(8, 7, false);
    pub const E4M3: Format = Format::new(4, 3, true);
    pub const E5M2: Format = Format::new(5, 2, false);

    const fn new(exponent_bits: u32, mantissa_bits: u32, finite_only: bool) -> Format {
        Format {
            exponent_bits,
            mantissa_bits,
            finite_only,
        }
    }

    const fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// The value of the bits; exact.
    pub fn decode(self, bits: u32) -> f64 {
        let sign = bits >> (self.exponent_bits + self.mantissa_bits) & 1;
        let exponent = bits >> self.mantissa_bits & ((1 << self.exponent_bits) - 1);
        let mantissa = bits & ((1 << self.mantissa_bits) - 1);
        let last = (1 << self.exponent_bits) - 1;
        let magnitude = if exponent == last && (!self.finite_only || mantissa == 7) {
            match mantissa {
                0 => f64::INFINITY,
                _ => f64::NAN,
            }
        } else {
            let hidden = u32::from(exponent != 0) << self.mantissa_bits;
            let power = exponent.max(1) as i32 - self.bias() - self.mantissa_bits as i32;
            f64::from(mantissa + hidden) * two_to(power)
        };
        if sign == 1 { -magnitude } else { magnitude }
    }

    /// The bits of the nearest value, ties to even.
    pub fn encode(self, value: f64) -> u32 {
        let bits = value.to_bits();
        let sign = ((bits >> 63) as u32) << (self.exponent_bits + self.mantissa_bits);
        let last = ((1 << self.exponent_bits) - 1) << self.mantissa_bits;
        let nan = if self.finite_only {
            last | 7
        } else {
            last | 1 << (self.mantissa_bits - 1)
        };
        if value.is_nan() {
            return sign | nan;
        }
        let overflow = if self.finite_only { nan } else { last };
        if value.is_infinite() {
            return sign | overflow;
        }
        let exponent = (bits >> 52 & 0x7ff) as i32 - 1023 + self.bias();
        let mantissa = bits & ((1 << 52) - 1) | 1 << 52;
        // Bits of the mantissa to drop: more for subnormals of the format.
        let drop = 52 - self.mantissa_bits as i32 + (1 - exponent).max(0);
        if drop > 54 || value == 0.0 {
            return sign;
        }
        let kept = mantissa >> drop;
        let rest = mantissa & ((1 << drop) - 1);
        let half = 1u64 << (drop - 1);
        let up = rest > half || rest == half && kept & 1 == 1;
        // The hidden bit adds one to the exponent field, and so does a carry.
        let field = ((exponent - 1).max(0) as u64) << self.mantissa_bits;
        let magnitude = field + kept + u64::from(up);
        sign | if magnitude >= u64::from(overflow) {
            overflow
        } else {
            magnitude as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives() {
        for format in [Format::E4M3, Format::E5M2] {
            for bits in 0..=255u32 {
                let value = format.decode(bits);
                if value.is_nan() {
                    assert!(format.decode(format.encode(value)).is_nan());
                } else {
                    assert_eq!(format.encode(value), bits);
                }
            }
        }
        assert_eq!(
            F8E4M3::from_bits(0x7e).to_bits(),
            F8E4M3::from_f32(463.9).to_bits()
        );
        assert_eq!(F8E5M2::from_f32(61440.0).to_bits(), 0x7c);
        assert_eq!(F4E2M1x2::from_bits(0xf1).to_f32().to_array(), [0.5, -6.0]);
        assert_eq!(
            Int4x8::from_bits(0x8000_00f7).to_i32().to_array(),
            [7, -1, 0, 0, 0, 0, 0, -8]
        );
    }
}
