//! The number formats of tensors by plain arithmetic in `f64`: scaling by powers of two and
//! rounding whole numbers. Slow, and independent of every other conversion in the project.

use crate::types::Scalar;

/// A float format: precision with the hidden bit, least exponent of a normal number, greatest
/// finite value, exponent bits, whether it has infinities.
struct FloatFormat {
    precision: i32,
    least_exponent: i32,
    greatest: f64,
    infinite: bool,
}

fn float_format(scalar: Scalar) -> Option<FloatFormat> {
    let (precision, least_exponent, greatest, infinite) = match scalar {
        Scalar::F16 => (11, -14, 65504.0, true),
        Scalar::BF16 => (8, -126, 255.0 * 2f64.powi(120), true),
        Scalar::F32 => (24, -126, f64::from(f32::MAX), true),
        Scalar::F8E4M3 => (4, -6, 448.0, false),
        Scalar::F8E5M2 => (3, -14, 57344.0, true),
        _ => return None,
    };
    Some(FloatFormat {
        precision,
        least_exponent,
        greatest,
        infinite,
    })
}

/// `2^exponent` by its bits, which `powi` would reach by multiplying.
fn two_to(exponent: i32) -> f64 {
    debug_assert!(
        (-1022..=1023).contains(&exponent),
        "2^{exponent} is no normal number"
    );
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// The exponent of the leading bit of a finite value above zero.
fn exponent_of(x: f64) -> i32 {
    match (x.to_bits() >> 52) as i32 {
        0 => exponent_of(x * two_to(64)) - 64,
        field => field - 1023,
    }
}

/// The distance between neighbours of the format around `x`.
fn quantum(format: &FloatFormat, x: f64) -> f64 {
    let exponent = if x == 0.0 || x.abs() < two_to(format.least_exponent) {
        format.least_exponent
    } else {
        exponent_of(x.abs())
    };
    two_to(exponent + 1 - format.precision)
}

/// The distance between neighbours of the type around `x`: an ULP. 1 for integers; the spacing
/// of `f64` for `f64`; 0 where `x` is not finite.
pub fn ulp_of(scalar: Scalar, x: f64) -> f64 {
    if !x.is_finite() {
        return 0.0;
    }
    match (scalar, float_format(scalar)) {
        (Scalar::F64, _) => x.abs().next_up() - x.abs(),
        (_, Some(format)) => quantum(&format, x.abs().min(format.greatest)),
        (_, None) => 1.0,
    }
}

/// The bits of the value of this type that is nearest to `x`, ties to even. Integers truncate
/// towards zero and saturate; a NaN gives 0 there. Packed pairs and eights take `x` as bits.
pub fn round_to(scalar: Scalar, x: f64) -> u64 {
    let width_mask = u64::MAX >> (64 - scalar.bits());
    match scalar {
        Scalar::Bool => return u64::from(x != 0.0),
        Scalar::I8 => return x as i8 as u64 & width_mask,
        Scalar::I16 => return x as i16 as u64 & width_mask,
        Scalar::I32 => return x as i32 as u64 & width_mask,
        Scalar::I64 => return x as i64 as u64,
        Scalar::U8 => return x as u8 as u64,
        Scalar::U16 => return x as u16 as u64,
        Scalar::U32 => return x as u32 as u64,
        Scalar::U64 => return x as u64,
        Scalar::F64 => return x.to_bits(),
        Scalar::E8M0 => {
            return if x > 0.0 && x.is_finite() {
                let low = exponent_of(x);
                let up = x > 1.5 * two_to(low);
                (low + i32::from(up) + 127).clamp(0, 254) as u64
            } else {
                255
            };
        }
        Scalar::F4E2M1x2 | Scalar::Int4x8 => return x as u64 & width_mask,
        Scalar::F16 | Scalar::BF16 | Scalar::F32 | Scalar::F8E4M3 | Scalar::F8E5M2 => {}
    }
    let Some(format) = float_format(scalar) else {
        return 0;
    };
    let mantissa_bits = format.precision - 1;
    let exponent_bits = scalar.bits() as i32 - format.precision;
    let sign = u64::from(x.is_sign_negative()) << (scalar.bits() - 1);
    let all_ones = ((1u64 << exponent_bits) - 1) << mantissa_bits;
    let nan = if format.infinite {
        all_ones | 1 << (mantissa_bits - 1)
    } else {
        all_ones | 7
    };
    if x.is_nan() {
        return sign | nan;
    }
    let magnitude = x.abs();
    let step = if magnitude.is_finite() {
        quantum(&format, magnitude)
    } else {
        1.0
    };
    let rounded = (magnitude / step).round_ties_even() * step;
    if rounded > format.greatest {
        return sign | if format.infinite { all_ones } else { nan };
    }
    if rounded == 0.0 {
        return sign;
    }
    let least = two_to(format.least_exponent);
    if rounded < least {
        return sign | (rounded / least * two_to(mantissa_bits)) as u64;
    }
    let exponent = exponent_of(rounded);
    let fraction = rounded / two_to(exponent) - 1.0;
    let field = (exponent - format.least_exponent + 1) as u64;
    sign | field << mantissa_bits | (fraction * two_to(mantissa_bits)) as u64
}

/// The value of the bits. Packed pairs and eights give their bits as a number.
pub fn value_of(scalar: Scalar, bits: u64) -> f64 {
    match scalar {
        Scalar::Bool | Scalar::U8 | Scalar::U16 | Scalar::U32 | Scalar::U64 => return bits as f64,
        Scalar::F4E2M1x2 | Scalar::Int4x8 => return bits as f64,
        Scalar::I8 => return f64::from(bits as i8),
        Scalar::I16 => return f64::from(bits as i16),
        Scalar::I32 => return f64::from(bits as i32),
        Scalar::I64 => return bits as i64 as f64,
        Scalar::F64 => return f64::from_bits(bits),
        Scalar::E8M0 if bits == 255 => return f64::NAN,
        Scalar::E8M0 => return two_to(bits as i32 - 127),
        Scalar::F16 | Scalar::BF16 | Scalar::F32 | Scalar::F8E4M3 | Scalar::F8E5M2 => {}
    }
    let Some(format) = float_format(scalar) else {
        return 0.0;
    };
    let mantissa_bits = format.precision - 1;
    let exponent_bits = scalar.bits() as i32 - format.precision;
    let sign = if bits >> (scalar.bits() - 1) & 1 == 1 {
        -1.0
    } else {
        1.0
    };
    let field = (bits >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
    let mantissa = bits & ((1 << mantissa_bits) - 1);
    let fraction = mantissa as f64 / two_to(mantissa_bits);
    let last = (1 << exponent_bits) - 1;
    if field == last && format.infinite {
        return if mantissa == 0 {
            sign * f64::INFINITY
        } else {
            f64::NAN
        };
    }
    if field == last && mantissa == 7 && !format.infinite {
        return f64::NAN;
    }
    let exponent = (field - 1).max(0) + format.least_exponent;
    let hidden = if field == 0 { 0.0 } else { 1.0 };
    sign * (hidden + fraction) * two_to(exponent)
}

/// Whether the bits are a NaN of the type.
pub fn is_nan(scalar: Scalar, bits: u64) -> bool {
    let may = scalar.is_float() || matches!(scalar, Scalar::F8E4M3 | Scalar::F8E5M2 | Scalar::E8M0);
    may && value_of(scalar, bits).is_nan()
}

/// What outputs hold before a launch: a NaN with an unusual payload, or an unlikely integer.
pub fn poison_bits(scalar: Scalar) -> u64 {
    match scalar {
        Scalar::Bool => 0xd5,
        Scalar::I8 | Scalar::U8 | Scalar::F4E2M1x2 => 0xd5,
        Scalar::I16 | Scalar::U16 => 0xd5c7,
        Scalar::I32 | Scalar::U32 | Scalar::Int4x8 => 0xd5c7_b3a9,
        Scalar::I64 | Scalar::U64 => 0xd5c7_b3a9_9d8b_7561,
        Scalar::F16 => 0x7f5b,
        Scalar::BF16 => 0x7fd5,
        Scalar::F32 => 0x7fd5_c7b3,
        Scalar::F64 => 0x7ffd_5c7b_3a99_d8b7,
        Scalar::F8E4M3 | Scalar::F8E5M2 => 0xff,
        Scalar::E8M0 => 0xff,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_codes_survive_and_round_as_ieee_says() {
        for scalar in [Scalar::F16, Scalar::BF16, Scalar::F8E4M3, Scalar::F8E5M2] {
            for bits in 0..1u64 << scalar.bits() {
                let value = value_of(scalar, bits);
                if value.is_nan() {
                    assert!(is_nan(scalar, round_to(scalar, value)));
                } else {
                    assert_eq!(round_to(scalar, value), bits, "{scalar} {bits:#x}");
                }
            }
        }
        // Ties to even, and the thresholds of overflow.
        assert_eq!(round_to(Scalar::F16, 2049.0), round_to(Scalar::F16, 2048.0));
        assert_eq!(round_to(Scalar::F16, 2051.0), round_to(Scalar::F16, 2052.0));
        assert_eq!(round_to(Scalar::F16, 65519.999), 0x7bff);
        assert_eq!(round_to(Scalar::F16, 65520.0), 0x7c00);
        assert_eq!(round_to(Scalar::F8E4M3, 464.0), 0x7e);
        assert!(is_nan(Scalar::F8E4M3, round_to(Scalar::F8E4M3, 464.1)));
        assert_eq!(round_to(Scalar::F16, 2f64.powi(-25)), 0);
        assert_eq!(round_to(Scalar::F16, 2f64.powi(-25) * 1.001), 1);
    }

    #[test]
    fn f32_agrees_with_the_hardware() {
        let mut x = 1e-46f64;
        while x < 1e39 {
            for y in [x, -x, x * (1.0 + 2f64.powi(-24))] {
                assert_eq!(
                    round_to(Scalar::F32, y),
                    u64::from((y as f32).to_bits()),
                    "{y}"
                );
                let bits = u64::from((y as f32).to_bits());
                assert_eq!(value_of(Scalar::F32, bits), f64::from(y as f32));
            }
            x *= 1.372;
        }
        assert_eq!(ulp_of(Scalar::F32, 1.5), f64::from(f32::EPSILON));
        assert_eq!(ulp_of(Scalar::BF16, 1.0), 2f64.powi(-7));
    }
}
