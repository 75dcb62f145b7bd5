//! Small float formats as integer and `f32` arithmetic, lane by lane on vectors.
//!
//! Decoding multiplies nothing that is subnormal in `f32`, and encoding adds a magic number
//! whose rounding step is the format's smallest subnormal, so the results are right on targets
//! that flush `f32` subnormals as well. `E8M0` codes 0 and 1 alone stand for values below the
//! smallest normal `f32` or at it.

use iron_ir::entity::Value;
use iron_ir::op::{BinaryOp, CompareOp, UnaryOp};
use iron_ir::{Const, Scalar, Type};

use crate::rewrite::Builder;

/// Layout of a small binary float: sign, exponent, mantissa.
#[derive(Clone, Copy)]
pub(super) struct Format {
    exponent: u32,
    mantissa: u32,
    /// Has infinities and many NaNs, as IEEE formats do; otherwise all ones is the only NaN.
    ieee: bool,
}

impl Format {
    /// The format of a scalar whose bits are sign, exponent and mantissa.
    pub(super) fn of(scalar: Scalar) -> Option<Format> {
        let (exponent, mantissa, ieee) = match scalar {
            Scalar::F16 => (5, 10, true),
            Scalar::F8E5M2 => (5, 2, true),
            Scalar::F8E4M3 => (4, 3, false),
            _ => return None,
        };
        Some(Format {
            exponent,
            mantissa,
            ieee,
        })
    }

    fn bias(self) -> u32 {
        (1 << (self.exponent - 1)) - 1
    }

    fn sign_shift(self) -> u32 {
        self.exponent + self.mantissa
    }

    fn magnitude_mask(self) -> u32 {
        (1 << self.sign_shift()) - 1
    }
}

/// `f32` of the bits in `bits` (`u32` lanes).
pub(super) fn decode(b: &mut Builder<'_>, bits: Value, format: Format) -> Value {
    let up = 23 - format.mantissa;
    let magnitude = b.with_int(BinaryOp::And, bits, i128::from(format.magnitude_mask()));
    let shifted = b.with_int(BinaryOp::Shl, magnitude, i128::from(up));
    let rebias = (127 - format.bias()) << 23;
    let normal = b.with_int(BinaryOp::Add, shifted, i128::from(rebias));
    let normal = b.bitcast(normal, Scalar::F32);
    let count = b.convert(magnitude, Scalar::F32);
    let step = exp2(1 - format.bias() as i32 - format.mantissa as i32);
    let step = splat_f32(b, b.ty(bits), step);
    let subnormal = b.mul(count, step);
    let first_normal = i128::from(1u32 << format.mantissa);
    let small = b.compare_int(CompareOp::Lt, magnitude, first_normal);
    let mut value = b.select(small, subnormal, normal);
    if format.ieee {
        let specials = ((1 << format.exponent) - 1) << format.mantissa;
        let special = b.compare_int(CompareOp::Ge, magnitude, i128::from(specials));
        let kept = b.with_int(BinaryOp::Or, shifted, 0x7f80_0000);
        let kept = b.bitcast(kept, Scalar::F32);
        value = b.select(special, kept, value);
    } else {
        let nan = b.compare_int(
            CompareOp::Eq,
            magnitude,
            i128::from(format.magnitude_mask()),
        );
        let quiet = splat_f32(b, b.ty(bits), f32::NAN);
        value = b.select(nan, quiet, value);
    }
    let sign = b.with_int(BinaryOp::Shr, bits, i128::from(format.sign_shift()));
    let sign = b.with_int(BinaryOp::Shl, sign, 31);
    let magnitude = b.bitcast(value, Scalar::U32);
    let signed = b.or(magnitude, sign);
    b.bitcast(signed, Scalar::F32)
}

/// Bits (`u32` lanes) of an `f32` rounded to nearest even; past the largest value comes
/// infinity, or NaN where the format has none.
pub(super) fn encode(b: &mut Builder<'_>, value: Value, format: Format) -> Value {
    let bits = b.bitcast(value, Scalar::U32);
    let magnitude = b.with_int(BinaryOp::And, bits, 0x7fff_ffff);
    let down = 23 - format.mantissa;
    // Normal results: add half a step less one, plus the lowest kept bit, then cut.
    let odd = b.with_int(BinaryOp::Shr, magnitude, i128::from(down));
    let odd = b.with_int(BinaryOp::And, odd, 1);
    let rebias = (127 - format.bias()) << 23;
    let half = (1u32 << (down - 1)) - 1;
    let rounded = b.with_int(
        BinaryOp::Add,
        magnitude,
        i128::from(half.wrapping_sub(rebias)),
    );
    let rounded = b.add(rounded, odd);
    let normal = b.with_int(BinaryOp::Shr, rounded, i128::from(down));
    // Subnormal results: the sum with the magic number rounds at the smallest subnormal.
    let step = 1 - format.bias() as i32 - format.mantissa as i32;
    let magic = exp2(step + 23);
    let absolute = b.bitcast(magnitude, Scalar::F32);
    let offset = splat_f32(b, b.ty(value), magic);
    let sum = b.add(absolute, offset);
    let sum = b.bitcast(sum, Scalar::U32);
    let subnormal = b.with_int(BinaryOp::Sub, sum, i128::from(magic.to_bits()));
    let smallest_normal = (128 - format.bias()) << 23;
    let small = b.compare_int(CompareOp::Lt, magnitude, i128::from(smallest_normal));
    let mut result = b.select(small, subnormal, normal);
    // Everything from the power of two past the range on, infinity and NaN among it.
    let top = if format.ieee {
        ((1 << format.exponent) - 1) - format.bias() + 127
    } else {
        (1 << format.exponent) - format.bias() + 127
    };
    let beyond = b.compare_int(CompareOp::Ge, magnitude, i128::from(top << 23));
    let ty = b.ty(bits);
    let nan = format.magnitude_mask()
        & !if format.ieee {
            (1 << (format.mantissa - 1)) - 1
        } else {
            0
        };
    let past = if format.ieee {
        let infinity = ((1u32 << format.exponent) - 1) << format.mantissa;
        let is_nan = b.compare_int(CompareOp::Gt, magnitude, 0x7f80_0000);
        let (nan, infinity) = (b.int(ty, i128::from(nan)), b.int(ty, i128::from(infinity)));
        b.select(is_nan, nan, infinity)
    } else {
        b.int(ty, i128::from(nan))
    };
    result = b.select(beyond, past, result);
    if !format.ieee {
        result = b.with_int(BinaryOp::Min, result, i128::from(nan));
    }
    let sign = b.with_int(BinaryOp::Shr, bits, 31);
    let sign = b.with_int(BinaryOp::Shl, sign, i128::from(format.sign_shift()));
    b.or(result, sign)
}

/// `f32` of `bf16` bits in `u32` lanes.
pub(super) fn decode_bf16(b: &mut Builder<'_>, bits: Value) -> Value {
    let up = b.with_int(BinaryOp::Shl, bits, 16);
    b.bitcast(up, Scalar::F32)
}

/// `bf16` bits in `u32` lanes of an `f32`, rounded to nearest even; NaN becomes the quiet one.
pub(super) fn encode_bf16(b: &mut Builder<'_>, value: Value) -> Value {
    let bits = b.bitcast(value, Scalar::U32);
    let upper = b.with_int(BinaryOp::Shr, bits, 16);
    let odd = b.with_int(BinaryOp::And, upper, 1);
    let rounded = b.with_int(BinaryOp::Add, bits, 0x7fff);
    let rounded = b.add(rounded, odd);
    let quiet = b.int(b.ty(bits), 0x7fc0_0000);
    let nan = b.unary(UnaryOp::IsNan, value);
    let chosen = b.select(nan, quiet, rounded);
    b.with_int(BinaryOp::Shr, chosen, 16)
}

/// `f32` of an `E8M0` code in `u32` lanes: `2^(code - 127)`, NaN for 255.
pub(super) fn decode_e8m0(b: &mut Builder<'_>, bits: Value) -> Value {
    let ty = b.ty(bits);
    let power = b.with_int(BinaryOp::Shl, bits, 23);
    let zero = b.compare_int(CompareOp::Eq, bits, 0);
    let smallest = b.int(ty, 0x0040_0000);
    let power = b.select(zero, smallest, power);
    let nan = b.compare_int(CompareOp::Eq, bits, 255);
    let quiet = b.int(ty, 0x7fc0_0000);
    let power = b.select(nan, quiet, power);
    b.bitcast(power, Scalar::F32)
}

/// `f32` of `E2M1` nibbles in `u32` lanes: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
pub(super) fn decode_e2m1(b: &mut Builder<'_>, nibble: Value) -> Value {
    let magnitude = b.with_int(BinaryOp::And, nibble, 7);
    let shifted = b.with_int(BinaryOp::Shl, magnitude, 22);
    let normal = b.with_int(BinaryOp::Add, shifted, i128::from(126u32 << 23));
    let normal = b.bitcast(normal, Scalar::F32);
    let count = b.convert(magnitude, Scalar::F32);
    let half = splat_f32(b, b.ty(nibble), 0.5);
    let subnormal = b.mul(count, half);
    let small = b.compare_int(CompareOp::Lt, magnitude, 2);
    let value = b.select(small, subnormal, normal);
    let sign = b.with_int(BinaryOp::Shr, nibble, 3);
    let sign = b.with_int(BinaryOp::Shl, sign, 31);
    let magnitude = b.bitcast(value, Scalar::U32);
    let signed = b.or(magnitude, sign);
    b.bitcast(signed, Scalar::F32)
}

/// The `f32` next to a wider number `value` that is odd where inexact: rounding it again to at
/// most 22 bits gives what rounding `value` once would have given.
pub(super) fn to_f32_odd(b: &mut Builder<'_>, value: Value) -> Value {
    let ty = b.ty(value);
    let (magnitude, sign) = match ty.scalar {
        Scalar::F64 => (b.unary(UnaryOp::Abs, value), None),
        scalar if scalar.is_signed() => {
            let unsigned = scalar.unsigned_of_width();
            let sign = b.bitcast(value, unsigned);
            let sign = b.with_int(BinaryOp::Shr, sign, i128::from(scalar.bits() - 1));
            let sign = b.convert(sign, Scalar::U32);
            let sign = b.with_int(BinaryOp::Shl, sign, 31);
            let magnitude = b.unary(UnaryOp::Abs, value);
            (b.bitcast(magnitude, unsigned), Some(sign))
        }
        _ => (value, None),
    };
    let nearest = b.convert(magnitude, Scalar::F32);
    let wide = b.ty(magnitude).scalar;
    let back = b.convert(nearest, wide);
    let bits = b.bitcast(nearest, Scalar::U32);
    let below = b.compare(CompareOp::Lt, back, magnitude);
    let above = b.compare(CompareOp::Gt, back, magnitude);
    let up = b.with_int(BinaryOp::Or, bits, 1);
    let lower = b.with_int(BinaryOp::Sub, bits, 1);
    let lower_odd = b.with_int(BinaryOp::Or, lower, 1);
    let even = b.with_int(BinaryOp::And, bits, 1);
    let even = b.compare_int(CompareOp::Eq, even, 0);
    let down = b.select(even, lower_odd, bits);
    let odd = b.select(below, up, bits);
    let odd = b.select(above, down, odd);
    // The sign goes in as a bit: compilers lose that of the least integer from a comparison.
    let odd = match sign {
        Some(sign) => b.or(odd, sign),
        None => odd,
    };
    let odd = b.bitcast(odd, Scalar::F32);
    match ty.scalar {
        Scalar::F64 => {
            let zero = b.splat_const(
                ty,
                Const {
                    scalar: Scalar::F64,
                    bits: 0,
                },
            );
            let negative = b.compare(CompareOp::Lt, value, zero);
            let minus = b.unary(UnaryOp::Neg, odd);
            let signed = b.select(negative, minus, odd);
            // Zeros keep their sign and NaN stays: the plain conversion is exact for both.
            let plain = b.convert(value, Scalar::F32);
            let exact = b.convert(plain, Scalar::F64);
            let same = b.compare(CompareOp::Eq, exact, value);
            let nan = b.unary(UnaryOp::IsNan, value);
            let plain_is_right = b.or(same, nan);
            b.select(plain_is_right, plain, signed)
        }
        _ => odd,
    }
}

fn exp2(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

fn splat_f32(b: &mut Builder<'_>, like: Type, value: f32) -> Value {
    let scalar = b.f32(value);
    b.splat(scalar, like.lanes)
}
