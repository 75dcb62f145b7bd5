//! Float formats from bits and to bits, rounding once to nearest, ties to even.

use crate::fold::mask;
use crate::op::Const;
use crate::types::Scalar;

/// The number that a float or packed float is, exact. `F4E2M1x2` gives its low nibble's number,
/// `Int4x8` its bits.
pub fn decode(a: Const) -> f64 {
    match a.scalar {
        Scalar::F64 => f64::from_bits(a.bits),
        Scalar::F32 => f64::from(f32::from_bits(a.bits as u32)),
        Scalar::BF16 => f64::from(f32::from_bits((a.bits as u32) << 16)),
        Scalar::F16 => decode_small(a.bits as u32, 5, 10, true),
        Scalar::F8E5M2 => decode_small(a.bits as u32, 5, 2, true),
        Scalar::F8E4M3 => decode_small(a.bits as u32, 4, 3, false),
        Scalar::E8M0 if a.bits == 255 => f64::NAN,
        Scalar::E8M0 => power(a.bits as i32 - 127),
        Scalar::F4E2M1x2 => decode_e2m1(a.bits as u8 & 15),
        _ => a.as_int() as f64,
    }
}

/// The number of an `E2M1` nibble.
pub fn decode_e2m1(nibble: u8) -> f64 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(nibble & 7)];
    if nibble & 8 != 0 {
        -magnitude
    } else {
        magnitude
    }
}

/// Rounds an `f32` to a float type.
pub fn encode_f32(scalar: Scalar, value: f32) -> Const {
    match scalar {
        Scalar::F32 => Const {
            scalar,
            bits: u64::from(value.to_bits()),
        },
        _ => encode_f64(scalar, f64::from(value)),
    }
}

/// Rounds an `f64` to a float or packed float type. A type without a rounding rule (`E8M0`,
/// `F4E2M1x2`, `Int4x8`, integers) gives zero bits.
pub fn encode_f64(scalar: Scalar, value: f64) -> Const {
    let bits = match scalar {
        Scalar::F64 => value.to_bits(),
        Scalar::F32 => u64::from((value as f32).to_bits()),
        Scalar::F16 => encode_small(value, 5, 10, true),
        Scalar::BF16 => encode_small(value, 8, 7, true),
        Scalar::F8E5M2 => encode_small(value, 5, 2, true),
        Scalar::F8E4M3 => encode_small(value, 4, 3, false),
        _ => 0,
    };
    Const {
        scalar,
        bits: bits & mask(scalar),
    }
}

/// Rounds an integer to a float or packed float type, once.
pub fn encode_int(scalar: Scalar, value: i128) -> Const {
    match scalar {
        Scalar::F64 => Const::f64(value as f64),
        Scalar::F32 => Const::f32(value as f32),
        _ => {
            // An f64 that is odd where inexact rounds again to what one rounding would give.
            let nearest = value as f64;
            let bits = nearest.to_bits();
            let difference = (nearest as i128) - value;
            let odd = match difference {
                0 => bits,
                _ if bits & 1 == 1 => bits,
                d if (d > 0) == (value > 0) => bits - 1,
                _ => bits + 1,
            };
            encode_f64(scalar, f64::from_bits(odd))
        }
    }
}

/// `2^exponent` for exponents of normal `f64`s.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

fn decode_small(bits: u32, exponent_bits: u32, mantissa_bits: u32, ieee: bool) -> f64 {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let sign = bits >> (exponent_bits + mantissa_bits) & 1;
    let exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    let mantissa = bits & ((1 << mantissa_bits) - 1);
    let top = exponent == (1 << exponent_bits) - 1;
    let all = mantissa == (1 << mantissa_bits) - 1;
    let magnitude = if top && ieee {
        if mantissa == 0 {
            f64::INFINITY
        } else {
            f64::NAN
        }
    } else if top && all {
        f64::NAN
    } else if exponent == 0 {
        f64::from(mantissa) * power(1 - bias - mantissa_bits as i32)
    } else {
        let whole = mantissa | 1 << mantissa_bits;
        f64::from(whole) * power(exponent as i32 - bias - mantissa_bits as i32)
    };
    if sign == 1 { -magnitude } else { magnitude }
}

/// Rounds to nearest even. Past the largest finite value comes infinity, or NaN (all ones) where
/// the format has no infinity.
fn encode_small(value: f64, exponent_bits: u32, mantissa_bits: u32, ieee: bool) -> u64 {
    let bias = (1i32 << (exponent_bits - 1)) - 1;
    let sign = u64::from(value.is_sign_negative()) << (exponent_bits + mantissa_bits);
    let infinity = ((1u64 << exponent_bits) - 1) << mantissa_bits;
    let all_ones = infinity | ((1 << mantissa_bits) - 1);
    if value.is_nan() {
        let quiet = if ieee {
            infinity | 1 << (mantissa_bits - 1)
        } else {
            all_ones
        };
        return sign | quiet;
    }
    let overflow = if ieee { infinity } else { all_ones };
    let magnitude = value.abs();
    if magnitude.is_infinite() {
        return sign | overflow;
    }
    // The step of the format at this magnitude; scaling by a power of two is exact, and the
    // quotient is below 2^(mantissa_bits + 2) unless it overflows anyway.
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    if exponent > bias + 1 {
        return sign | overflow;
    }
    let steps = (magnitude / power(exponent - mantissa_bits as i32)).round_ties_even() as u64;
    // A count that reaches the next power of two carries into the exponent by itself.
    let biased = (exponent + bias - 1) as u64;
    let bits = (biased << mantissa_bits) + steps;
    sign | bits.min(overflow)
}
