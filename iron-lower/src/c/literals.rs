//! Literals that read back to the same bits. (K17)

use half::{bf16, f16};
use iron_ir::op::Const;
use iron_ir::types::Scalar;

use super::dialect::Dialect;
use super::expr::{Expr, Level};

/// The constant as an expression of its type, or of `int` for 8- and 16-bit integers, which
/// C++ promotes to `int` wherever they are used.
pub(crate) fn literal(dialect: &dyn Dialect, constant: Const) -> Expr {
    let bits = constant.bits;
    match constant.scalar {
        Scalar::Bool => Expr::primary(if bits & 1 == 1 { "true" } else { "false" }),
        Scalar::I8 => Expr::literal((bits as u8 as i8).to_string()),
        Scalar::I16 => Expr::literal((bits as u16 as i16).to_string()),
        Scalar::I32 => match bits as u32 as i32 {
            i32::MIN => Expr::new("-2147483647 - 1", Level::Additive),
            value => Expr::literal(value.to_string()),
        },
        Scalar::I64 => {
            let suffix = dialect.long_suffix();
            match bits as i64 {
                i64::MIN => Expr::new(
                    format!("-9223372036854775807{suffix} - 1{suffix}"),
                    Level::Additive,
                ),
                value => Expr::literal(format!("{value}{suffix}")),
            }
        }
        Scalar::U8 | Scalar::U16 => Expr::literal(bits.to_string()),
        Scalar::F8E4M3 | Scalar::F8E5M2 | Scalar::E8M0 | Scalar::F4E2M1x2 => {
            Expr::literal(bits.to_string())
        }
        Scalar::U32 | Scalar::Int4x8 => Expr::literal(format!("{}u", bits as u32)),
        Scalar::U64 => Expr::literal(format!("{bits}u{}", dialect.long_suffix())),
        Scalar::F16 => {
            let value = f16::from_bits(bits as u16);
            if value.is_finite() {
                dialect.half_literal(value.to_bits(), &decimal_f32(value.to_f32()))
            } else {
                dialect.half_bits(value.to_bits())
            }
        }
        Scalar::BF16 => {
            let value = bf16::from_bits(bits as u16);
            if value.is_finite() {
                dialect.bfloat_literal(value.to_bits(), &decimal_f32(value.to_f32()))
            } else {
                dialect.bfloat_bits(value.to_bits())
            }
        }
        Scalar::F32 => {
            let value = f32::from_bits(bits as u32);
            if value.is_finite() {
                Expr::literal(decimal_f32(value))
            } else {
                dialect.float_bits(bits as u32)
            }
        }
        Scalar::F64 => {
            let value = f64::from_bits(bits);
            if value.is_finite() {
                Expr::literal(format!("{value:?}"))
            } else {
                dialect.double_bits(bits)
            }
        }
    }
}

/// The shortest decimal that reads back to the same `f32`, with a radix point or exponent and
/// the suffix.
fn decimal_f32(value: f32) -> String {
    format!("{value:?}f")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Cuda;
    use crate::msl::Msl;

    fn float(value: f32) -> String {
        let constant = Const {
            scalar: Scalar::F32,
            bits: u64::from(value.to_bits()),
        };
        literal(&Cuda, constant).text
    }

    // K17
    #[test]
    fn floats_read_back_to_the_same_bits() {
        for value in [
            0.0f32,
            -0.0,
            1.0,
            0.1,
            16_777_217.0,
            f32::MAX,
            f32::MIN_POSITIVE,
            f32::from_bits(1),
            1e-45,
            1e16,
            -3.25e-7,
        ] {
            let text = float(value);
            assert!(text.contains(['.', 'e']), "`{text}` would be an integer");
            let parsed: f32 = text.strip_suffix('f').unwrap().parse().unwrap();
            assert_eq!(parsed.to_bits(), value.to_bits(), "{text}");
        }
    }

    #[test]
    fn special_values_are_bit_casts() {
        assert_eq!(float(f32::INFINITY), "__uint_as_float(0x7f800000u)");
        assert_eq!(float(f32::NEG_INFINITY), "__uint_as_float(0xff800000u)");
        assert_eq!(
            float(f32::from_bits(0x7fc0_0001)),
            "__uint_as_float(0x7fc00001u)"
        );
        let nan = Const {
            scalar: Scalar::F32,
            bits: 0x7fc0_0000,
        };
        assert_eq!(literal(&Msl, nan).text, "as_type<float>(0x7fc00000u)");
    }

    #[test]
    fn least_integers_are_not_a_sign_and_an_overflow() {
        let least = Const {
            scalar: Scalar::I32,
            bits: u64::from(i32::MIN as u32),
        };
        assert_eq!(literal(&Cuda, least).text, "-2147483647 - 1");
        let most = Const {
            scalar: Scalar::U64,
            bits: u64::MAX,
        };
        assert_eq!(literal(&Cuda, most).text, "18446744073709551615ull");
        assert_eq!(literal(&Msl, most).text, "18446744073709551615ul");
    }
}
