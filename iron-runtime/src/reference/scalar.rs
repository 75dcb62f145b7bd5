//! Scalar arithmetic on bits, zero-extended to 64.

use half::{bf16, f16};
use iron_ir::op::{BinaryOp, CompareOp, ReduceOp, UnaryOp};
use iron_ir::{Class, Const, Scalar, Type, fold};

fn f32_of(scalar: Scalar, bits: u64) -> f32 {
    match scalar {
        Scalar::F16 => f16::from_bits(bits as u16).to_f32(),
        Scalar::BF16 => bf16::from_bits(bits as u16).to_f32(),
        _ => f32::from_bits(bits as u32),
    }
}

fn of_f32(scalar: Scalar, x: f32) -> u64 {
    match scalar {
        Scalar::F16 => u64::from(f16::from_f32(x).to_bits()),
        Scalar::BF16 => u64::from(bf16::from_f32(x).to_bits()),
        _ => u64::from(x.to_bits()),
    }
}

fn mask(scalar: Scalar, bits: u64) -> u64 {
    match scalar {
        Scalar::Bool => bits & 1,
        _ if scalar.bits() == 64 => bits,
        _ => bits & ((1 << scalar.bits()) - 1),
    }
}

fn signed(scalar: Scalar, bits: u64) -> i64 {
    let shift = 64 - scalar.bits();
    ((bits << shift) as i64) >> shift
}

fn integer(scalar: Scalar, bits: u64) -> i128 {
    if scalar.is_signed() {
        i128::from(signed(scalar, bits))
    } else {
        i128::from(bits)
    }
}

/// A binary operation; `None` where the type has no such operation.
pub(super) fn binary(op: BinaryOp, scalar: Scalar, a: u64, b: u64) -> Option<u64> {
    if scalar == Scalar::F64 {
        let (x, y) = (f64::from_bits(a), f64::from_bits(b));
        return Some(
            match op {
                BinaryOp::Add => x + y,
                BinaryOp::Sub => x - y,
                BinaryOp::Mul => x * y,
                BinaryOp::Div => x / y,
                BinaryOp::Pow => x.powf(y),
                BinaryOp::Min | BinaryOp::Max if x.is_nan() => y,
                BinaryOp::Min | BinaryOp::Max if y.is_nan() => x,
                BinaryOp::MinNan | BinaryOp::MaxNan if x.is_nan() || y.is_nan() => f64::NAN,
                BinaryOp::Min | BinaryOp::MinNan => {
                    if x.total_cmp(&y).is_le() {
                        x
                    } else {
                        y
                    }
                }
                BinaryOp::Max | BinaryOp::MaxNan => {
                    if x.total_cmp(&y).is_ge() {
                        x
                    } else {
                        y
                    }
                }
                _ => return None,
            }
            .to_bits(),
        );
    }
    if scalar.is_float() {
        let (x, y) = (f32_of(scalar, a), f32_of(scalar, b));
        let r = match op {
            BinaryOp::Add => x + y,
            BinaryOp::Sub => x - y,
            BinaryOp::Mul => x * y,
            BinaryOp::Div => x / y,
            BinaryOp::Pow => x.powf(y),
            BinaryOp::Min | BinaryOp::Max if x.is_nan() => y,
            BinaryOp::Min | BinaryOp::Max if y.is_nan() => x,
            BinaryOp::MinNan | BinaryOp::MaxNan if x.is_nan() || y.is_nan() => f32::NAN,
            BinaryOp::Min | BinaryOp::MinNan => {
                if x.total_cmp(&y).is_le() {
                    x
                } else {
                    y
                }
            }
            BinaryOp::Max | BinaryOp::MaxNan => {
                if x.total_cmp(&y).is_ge() {
                    x
                } else {
                    y
                }
            }
            _ => return None,
        };
        return Some(of_f32(scalar, r));
    }
    if scalar.class() == Class::Packed {
        return None;
    }
    let (x, y) = (integer(scalar, a), integer(scalar, b));
    let width = if scalar == Scalar::Bool {
        1
    } else {
        scalar.bits()
    };
    let count = (b % u64::from(width)) as u32;
    Some(mask(
        scalar,
        match op {
            BinaryOp::Add => a.wrapping_add(b),
            BinaryOp::Sub => a.wrapping_sub(b),
            BinaryOp::Mul => a.wrapping_mul(b),
            BinaryOp::Div => {
                if y == 0 {
                    u64::MAX
                } else {
                    (x / y) as u64
                }
            }
            BinaryOp::Rem => {
                if y == 0 {
                    a
                } else {
                    (x % y) as u64
                }
            }
            BinaryOp::And => a & b,
            BinaryOp::Or => a | b,
            BinaryOp::Xor => a ^ b,
            BinaryOp::Shl => a << count,
            BinaryOp::Shr => (x >> count) as u64,
            BinaryOp::Min => x.min(y) as u64,
            BinaryOp::Max => x.max(y) as u64,
            BinaryOp::MulHigh => {
                if scalar.is_signed() {
                    ((x * y) >> width) as u64
                } else {
                    ((x as u128 * y as u128) >> width) as u64
                }
            }
            BinaryOp::MinNan | BinaryOp::MaxNan | BinaryOp::Pow => return None,
        },
    ))
}

/// A unary operation; `None` where the type has no such operation.
pub(super) fn unary(op: UnaryOp, scalar: Scalar, a: u64) -> Option<u64> {
    if scalar.is_float() {
        let sign = 1u64 << (scalar.bits() - 1);
        match op {
            UnaryOp::Neg => return Some(a ^ sign),
            UnaryOp::Abs => return Some(a & !sign),
            _ => {}
        }
        let wide = scalar == Scalar::F64;
        let x = if wide {
            f64::from_bits(a)
        } else {
            f64::from(f32_of(scalar, a))
        };
        let f = x as f32;
        let both = |d: f64, s: f32| if wide { d.to_bits() } else { of_f32(scalar, s) };
        return Some(match op {
            UnaryOp::Sqrt => both(x.sqrt(), f.sqrt()),
            UnaryOp::Rsqrt => both(1.0 / x.sqrt(), 1.0 / f.sqrt()),
            UnaryOp::Exp => both(x.exp(), f.exp()),
            UnaryOp::Exp2 => both(x.exp2(), f.exp2()),
            UnaryOp::Log => both(x.ln(), f.ln()),
            UnaryOp::Log2 => both(x.log2(), f.log2()),
            UnaryOp::Sin => both(x.sin(), f.sin()),
            UnaryOp::Cos => both(x.cos(), f.cos()),
            UnaryOp::Tanh => both(x.tanh(), f.tanh()),
            UnaryOp::Floor => both(x.floor(), f.floor()),
            UnaryOp::Ceil => both(x.ceil(), f.ceil()),
            UnaryOp::Trunc => both(x.trunc(), f.trunc()),
            UnaryOp::RoundEven => both(x.round_ties_even(), f.round_ties_even()),
            UnaryOp::IsNan => u64::from(x.is_nan()),
            UnaryOp::IsFinite => u64::from(x.is_finite()),
            _ => return None,
        });
    }
    if scalar == Scalar::Bool {
        return (op == UnaryOp::Not).then_some(a ^ 1);
    }
    if !scalar.is_int() {
        return None;
    }
    let spare = 64 - scalar.bits();
    Some(match op {
        UnaryOp::Neg => mask(scalar, a.wrapping_neg()),
        UnaryOp::Not => mask(scalar, !a),
        UnaryOp::Abs => mask(scalar, integer(scalar, a).unsigned_abs() as u64),
        UnaryOp::CountOnes => u64::from(a.count_ones()),
        UnaryOp::LeadingZeros => u64::from(a.leading_zeros() - spare),
        UnaryOp::TrailingZeros => u64::from(a.trailing_zeros().min(scalar.bits())),
        UnaryOp::ReverseBits => a.reverse_bits() >> spare,
        _ => return None,
    })
}

/// A comparison; `None` where the type has none.
pub(super) fn compare(op: CompareOp, scalar: Scalar, a: u64, b: u64) -> Option<bool> {
    use std::cmp::Ordering;
    let order = if scalar == Scalar::F64 {
        f64::from_bits(a).partial_cmp(&f64::from_bits(b))
    } else if scalar.is_float() {
        f32_of(scalar, a).partial_cmp(&f32_of(scalar, b))
    } else if scalar.class() == Class::Packed {
        return None;
    } else {
        Some(integer(scalar, a).cmp(&integer(scalar, b)))
    };
    Some(match op {
        CompareOp::Eq => order == Some(Ordering::Equal),
        CompareOp::Ne => order != Some(Ordering::Equal),
        CompareOp::Lt => order == Some(Ordering::Less),
        CompareOp::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        CompareOp::Gt => order == Some(Ordering::Greater),
        CompareOp::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    })
}

/// `a * b + c`, rounded once.
pub(super) fn fma(scalar: Scalar, a: u64, b: u64, c: u64) -> Option<u64> {
    match scalar {
        Scalar::F32 => {
            let f = |x: u64| f32::from_bits(x as u32);
            Some(u64::from(f(a).mul_add(f(b), f(c)).to_bits()))
        }
        Scalar::F64 => Some(
            f64::from_bits(a)
                .mul_add(f64::from_bits(b), f64::from_bits(c))
                .to_bits(),
        ),
        Scalar::F16 | Scalar::BF16 => {
            let f = |x| f32_of(scalar, x);
            Some(of_f32(scalar, f(a).mul_add(f(b), f(c))))
        }
        _ => None,
    }
}

/// A numeric conversion of one element; `None` where there is no such pair.
pub(super) fn convert(from: Scalar, to: Scalar, a: u64) -> Option<u64> {
    if from == to {
        return Some(a);
    }
    let half = matches!(to, Scalar::F16 | Scalar::BF16);
    if from.class() == Class::Packed || to.class() == Class::Packed || (half && !from.is_float()) {
        let value = Const {
            scalar: from,
            bits: a,
        };
        return Some(fold::convert(value, to).bits);
    }
    if from.is_float() {
        let x = if from == Scalar::F64 {
            f64::from_bits(a)
        } else {
            f64::from(f32_of(from, a))
        };
        return Some(match to {
            Scalar::F64 => x.to_bits(),
            Scalar::F32 => u64::from((x as f32).to_bits()),
            Scalar::F16 => u64::from(f16::from_f64(x).to_bits()),
            Scalar::BF16 => u64::from(bf16::from_f64(x).to_bits()),
            Scalar::I8 => (x as i8) as u8 as u64,
            Scalar::I16 => (x as i16) as u16 as u64,
            Scalar::I32 => (x as i32) as u32 as u64,
            Scalar::I64 => (x as i64) as u64,
            Scalar::U8 => (x as u8).into(),
            Scalar::U16 => (x as u16).into(),
            Scalar::U32 => (x as u32).into(),
            Scalar::U64 => x as u64,
            _ => u64::from(x != 0.0),
        });
    }
    let x = integer(from, a);
    Some(match to {
        Scalar::F64 => (x as f64).to_bits(),
        Scalar::F32 => u64::from((x as f32).to_bits()),
        Scalar::F16 => u64::from(f16::from_f64(x as f64).to_bits()),
        Scalar::BF16 => u64::from(bf16::from_f64(x as f64).to_bits()),
        Scalar::Bool => u64::from(x != 0),
        _ => mask(to, x as u64),
    })
}

/// A conversion of a whole value, lanes in and out.
pub(super) fn convert_lanes(from: Type, to: Type, input: &[u64]) -> Option<Vec<u64>> {
    if matches!(from.scalar, Scalar::F4E2M1x2 | Scalar::Int4x8) {
        let packed = input.iter().map(|&bits| Const {
            scalar: from.scalar,
            bits,
        });
        let numbers = packed.flat_map(|value| fold::unpack(value, to.scalar));
        return Some(numbers.map(|c| c.bits).collect());
    }
    input
        .iter()
        .map(|&a| convert(from.scalar, to.scalar, a))
        .collect()
}

/// The binary operation of a reduction.
pub(super) fn reduce_op(op: ReduceOp) -> BinaryOp {
    match op {
        ReduceOp::Sum => BinaryOp::Add,
        ReduceOp::Product => BinaryOp::Mul,
        ReduceOp::Min => BinaryOp::Min,
        ReduceOp::Max => BinaryOp::Max,
        ReduceOp::MinNan => BinaryOp::MinNan,
        ReduceOp::MaxNan => BinaryOp::MaxNan,
        ReduceOp::And => BinaryOp::And,
        ReduceOp::Or => BinaryOp::Or,
    }
}

/// The identity of a reduction.
pub(super) fn identity(op: ReduceOp, scalar: Scalar) -> u64 {
    let ones = mask(scalar, u64::MAX);
    match op {
        ReduceOp::Sum | ReduceOp::Or => 0,
        ReduceOp::And => ones,
        ReduceOp::Product => convert(Scalar::U32, scalar, 1).unwrap_or(1),
        ReduceOp::Min | ReduceOp::MinNan => match scalar {
            _ if scalar.is_float() => {
                convert(Scalar::F64, scalar, f64::INFINITY.to_bits()).unwrap_or(0)
            }
            _ if scalar.is_signed() => ones >> 1,
            _ => ones,
        },
        ReduceOp::Max | ReduceOp::MaxNan => match scalar {
            _ if scalar.is_float() => {
                convert(Scalar::F64, scalar, f64::NEG_INFINITY.to_bits()).unwrap_or(0)
            }
            _ if scalar.is_signed() => (ones >> 1) + 1,
            _ => 0,
        },
    }
}

/// The adjacent-pair tree over `values`; absent elements are the identity.
pub(super) fn tree(op: ReduceOp, scalar: Scalar, values: &mut [u64]) -> Option<u64> {
    let identity = identity(op, scalar);
    let n = values.len();
    let mut distance = 1;
    while distance < n {
        for i in (0..n).step_by(2 * distance) {
            let other = values.get(i + distance).copied().unwrap_or(identity);
            values[i] = binary(reduce_op(op), scalar, values[i], other)?;
        }
        distance *= 2;
    }
    Some(values.first().copied().unwrap_or(identity))
}
