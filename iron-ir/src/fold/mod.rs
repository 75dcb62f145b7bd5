//! One scalar evaluator with the specification's semantics, used by constant folding and by the
//! reference interpreter.
//!
//! Nothing here traps or panics, whatever the operands: division by zero, `MIN / -1`, shifts
//! past the width and conversions out of range have the answers of the crate doc. An operation
//! that the verifier would refuse for its type gives zero.
//!
//! `f16` and `bf16` operands are widened to `f32`, computed there and rounded once.
//! Transcendental functions are computed in `f64` and rounded, so they are within a hair of
//! correctly rounded; targets have their own stated bounds.

pub mod float;
mod special;
#[cfg(test)]
mod tests;

use crate::op::{BinaryOp, CompareOp, Const, Op, ReduceOp, UnaryOp};
use crate::types::{Class, Scalar};
use float::{decode, encode_f32, encode_f64, encode_int};

impl Const {
    /// An integer, truncated to the type's width, or a truth value.
    pub const fn int(scalar: Scalar, value: i128) -> Const {
        Const {
            scalar,
            bits: value as u64 & mask(scalar),
        }
    }

    /// A `u32`.
    pub const fn u32(value: u32) -> Const {
        Const {
            scalar: Scalar::U32,
            bits: value as u64,
        }
    }

    /// A `u64`.
    pub const fn u64(value: u64) -> Const {
        Const {
            scalar: Scalar::U64,
            bits: value,
        }
    }

    /// A truth value.
    pub const fn bool(value: bool) -> Const {
        Const {
            scalar: Scalar::Bool,
            bits: value as u64,
        }
    }

    /// An `f32`.
    pub const fn f32(value: f32) -> Const {
        Const {
            scalar: Scalar::F32,
            bits: value.to_bits() as u64,
        }
    }

    /// An `f64`.
    pub const fn f64(value: f64) -> Const {
        Const {
            scalar: Scalar::F64,
            bits: value.to_bits(),
        }
    }

    /// Zero, `false`, `+0.0`, or packed zero bits.
    pub const fn zero(scalar: Scalar) -> Const {
        Const { scalar, bits: 0 }
    }

    /// One of a number type.
    pub fn one(scalar: Scalar) -> Const {
        if scalar.is_float() {
            encode_f64(scalar, 1.0)
        } else {
            Const::int(scalar, 1)
        }
    }

    /// A float rounded to nearest even to a float type.
    pub fn float(scalar: Scalar, value: f64) -> Const {
        encode_f64(scalar, value)
    }

    /// The integer (or 0 or 1 of a truth value); of other types the bits.
    pub const fn as_int(self) -> i128 {
        if self.scalar.is_signed() {
            let unused = 64 - self.scalar.bits();
            (((self.bits << unused) as i64) >> unused) as i128
        } else {
            self.bits as i128
        }
    }

    /// The number that a float, integer or decodable packed value is.
    pub fn as_f64(self) -> f64 {
        match self.scalar.class() {
            Class::Float | Class::Packed => decode(self),
            Class::Bool | Class::Signed | Class::Unsigned => self.as_int() as f64,
        }
    }

    /// A truth value.
    pub const fn as_bool(self) -> bool {
        self.bits & 1 != 0
    }

    /// The same bits as another type.
    pub const fn bitcast(self, scalar: Scalar) -> Const {
        Const {
            scalar,
            bits: self.bits & mask(scalar),
        }
    }
}

/// The bits of a scalar's width.
pub const fn mask(scalar: Scalar) -> u64 {
    match scalar {
        Scalar::Bool => 1,
        other => u64::MAX >> (64 - other.bits()),
    }
}

/// The value of a scalar operation whose operands are `args`, of type `ty`; `None` for what is
/// no pure scalar operation (leaves, loads, vectors) or where the number of operands is wrong.
pub fn eval(op: &Op, ty: Scalar, args: &[Const]) -> Option<Const> {
    Some(match (op, args) {
        (Op::Const(c), []) => *c,
        (Op::Unary(op, _), [a]) => unary(*op, *a),
        (Op::Binary(op, ..), [a, b]) => binary(*op, *a, *b),
        (Op::Compare(op, ..), [a, b]) => Const::bool(compare(*op, *a, *b)),
        (Op::Select(..), [c, a, b]) => {
            if c.as_bool() {
                *a
            } else {
                *b
            }
        }
        (Op::Fma(..), [a, b, c]) => fma(*a, *b, *c),
        (Op::Convert(_), [a]) => convert(*a, ty),
        (Op::Bitcast(_), [a]) => a.bitcast(ty),
        _ => return None,
    })
}

/// See [`UnaryOp`].
pub fn unary(op: UnaryOp, a: Const) -> Const {
    let scalar = a.scalar;
    let sign = 1u64 << (scalar.bits() - 1);
    match scalar.class() {
        Class::Float => match op {
            UnaryOp::Neg => Const {
                scalar,
                bits: a.bits ^ sign,
            },
            UnaryOp::Abs => Const {
                scalar,
                bits: a.bits & !sign,
            },
            UnaryOp::IsNan => Const::bool(decode(a).is_nan()),
            UnaryOp::IsFinite => Const::bool(decode(a).is_finite()),
            _ => float_function(op, a),
        },
        Class::Signed | Class::Unsigned => {
            let x = a.as_int();
            let unused = 64 - scalar.bits();
            match op {
                UnaryOp::Neg => Const::int(scalar, -x),
                UnaryOp::Not => Const::int(scalar, !x),
                UnaryOp::Abs => Const::int(scalar, x.abs()),
                UnaryOp::CountOnes => Const::u32(a.bits.count_ones()),
                UnaryOp::LeadingZeros => Const::u32(a.bits.leading_zeros() - unused),
                UnaryOp::TrailingZeros => Const::u32(a.bits.trailing_zeros().min(scalar.bits())),
                UnaryOp::ReverseBits => Const {
                    scalar,
                    bits: a.bits.reverse_bits() >> unused,
                },
                _ => Const::zero(scalar),
            }
        }
        Class::Bool => match op {
            UnaryOp::Not => Const::bool(!a.as_bool()),
            _ => Const::zero(scalar),
        },
        Class::Packed => Const::zero(scalar),
    }
}

fn float_function(op: UnaryOp, a: Const) -> Const {
    let x = decode(a);
    // Exact in f64 and rounded once to the type: for f16 and bf16 the same as through f32.
    let y = match op {
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => 1.0 / x.sqrt(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Exp2 => x.exp2(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Log2 => x.log2(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Erf => special::erf(x),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Trunc => x.trunc(),
        UnaryOp::RoundEven => x.round_ties_even(),
        UnaryOp::Neg
        | UnaryOp::Not
        | UnaryOp::Abs
        | UnaryOp::IsNan
        | UnaryOp::IsFinite
        | UnaryOp::CountOnes
        | UnaryOp::LeadingZeros
        | UnaryOp::TrailingZeros
        | UnaryOp::ReverseBits => return Const::zero(a.scalar),
    };
    through_f32(a.scalar, y)
}

/// Rounds to `f32`, then to the narrower type, as half arithmetic is defined.
fn through_f32(scalar: Scalar, value: f64) -> Const {
    match scalar {
        Scalar::F16 | Scalar::BF16 => encode_f32(scalar, value as f32),
        _ => encode_f64(scalar, value),
    }
}

/// See [`BinaryOp`].
pub fn binary(op: BinaryOp, a: Const, b: Const) -> Const {
    let scalar = a.scalar;
    match scalar.class() {
        Class::Float => float_binary(op, a, b),
        Class::Signed | Class::Unsigned => {
            let (x, y) = (a.as_int(), b.as_int());
            let count = (b.bits & u64::from(scalar.bits() - 1)) as u32;
            let value = match op {
                BinaryOp::Add => x + y,
                BinaryOp::Sub => x - y,
                BinaryOp::Mul => x.wrapping_mul(y),
                BinaryOp::Div => x.checked_div(y).unwrap_or(-1),
                BinaryOp::Rem => x.checked_rem(y).unwrap_or(x),
                BinaryOp::And => x & y,
                BinaryOp::Or => x | y,
                BinaryOp::Xor => x ^ y,
                BinaryOp::Shl => x << count,
                BinaryOp::Shr => x >> count,
                BinaryOp::Min => x.min(y),
                BinaryOp::Max => x.max(y),
                BinaryOp::MulHigh if scalar.is_signed() => (x * y) >> scalar.bits(),
                BinaryOp::MulHigh => ((x as u128 * y as u128) >> scalar.bits()) as i128,
                BinaryOp::Dot4 => dot4(a.bits, b.bits, [scalar.is_signed(); 2]),
                BinaryOp::Dot4Mixed => dot4(a.bits, b.bits, [false, true]),
                BinaryOp::MinNan | BinaryOp::MaxNan | BinaryOp::Pow => 0,
            };
            Const::int(scalar, value)
        }
        Class::Bool => Const::bool(match op {
            BinaryOp::And => a.as_bool() & b.as_bool(),
            BinaryOp::Or => a.as_bool() | b.as_bool(),
            BinaryOp::Xor => a.as_bool() ^ b.as_bool(),
            _ => false,
        }),
        Class::Packed => Const::zero(scalar),
    }
}

/// Sum of the products of the lowest four bytes of each, which are signed or not.
fn dot4(a: u64, b: u64, signed: [bool; 2]) -> i128 {
    let byte = |bits: u64, j: u32, signed: bool| match (bits >> (8 * j)) as u8 {
        byte if signed => i128::from(byte as i8),
        byte => i128::from(byte),
    };
    (0..4)
        .map(|j| byte(a, j, signed[0]) * byte(b, j, signed[1]))
        .sum()
}

fn float_binary(op: BinaryOp, a: Const, b: Const) -> Const {
    let scalar = a.scalar;
    let single = |f: fn(f32, f32) -> f32| encode_f32(scalar, f(decode(a) as f32, decode(b) as f32));
    let double = |f: fn(f64, f64) -> f64| encode_f64(scalar, f(decode(a), decode(b)));
    let basic = |narrow: fn(f32, f32) -> f32, wide: fn(f64, f64) -> f64| match scalar {
        Scalar::F64 => double(wide),
        _ => single(narrow),
    };
    match op {
        BinaryOp::Add => basic(|x, y| x + y, |x, y| x + y),
        BinaryOp::Sub => basic(|x, y| x - y, |x, y| x - y),
        BinaryOp::Mul => basic(|x, y| x * y, |x, y| x * y),
        BinaryOp::Div => basic(|x, y| x / y, |x, y| x / y),
        BinaryOp::Pow => through_f32(scalar, decode(a).powf(decode(b))),
        BinaryOp::Min => extremum(a, b, true, false),
        BinaryOp::Max => extremum(a, b, false, false),
        BinaryOp::MinNan => extremum(a, b, true, true),
        BinaryOp::MaxNan => extremum(a, b, false, true),
        BinaryOp::Rem
        | BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::Shl
        | BinaryOp::Shr
        | BinaryOp::MulHigh
        | BinaryOp::Dot4
        | BinaryOp::Dot4Mixed => Const::zero(scalar),
    }
}

fn extremum(a: Const, b: Const, minimum: bool, propagate: bool) -> Const {
    let (x, y) = (decode(a), decode(b));
    let nan = encode_f64(a.scalar, f64::NAN);
    match (x.is_nan(), y.is_nan()) {
        (true, true) => nan,
        (true, false) => {
            if propagate {
                nan
            } else {
                b
            }
        }
        (false, true) => {
            if propagate {
                nan
            } else {
                a
            }
        }
        (false, false) => {
            // `total_cmp` orders -0 before +0.
            let first_is_less = x.total_cmp(&y).is_le();
            if first_is_less == minimum { a } else { b }
        }
    }
}

/// `a * b + c`, rounded once (to `f32`, then to the type, for `f16` and `bf16`).
pub fn fma(a: Const, b: Const, c: Const) -> Const {
    let (x, y, z) = (decode(a), decode(b), decode(c));
    match a.scalar {
        Scalar::F64 => Const::f64(x.mul_add(y, z)),
        scalar => encode_f32(scalar, (x as f32).mul_add(y as f32, z as f32)),
    }
}

/// See [`CompareOp`].
pub fn compare(op: CompareOp, a: Const, b: Const) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = if a.scalar.is_float() {
        decode(a).partial_cmp(&decode(b))
    } else {
        Some(a.as_int().cmp(&b.as_int()))
    };
    match op {
        CompareOp::Eq => order == Some(Equal),
        CompareOp::Ne => order != Some(Equal),
        CompareOp::Lt => order == Some(Less),
        CompareOp::Le => matches!(order, Some(Less | Equal)),
        CompareOp::Gt => order == Some(Greater),
        CompareOp::Ge => matches!(order, Some(Greater | Equal)),
    }
}

/// Numeric conversion of one scalar; see the crate doc. `F4E2M1x2` and `Int4x8` hold several
/// numbers: see [`unpack`].
pub fn convert(a: Const, to: Scalar) -> Const {
    if a.scalar == to {
        return a;
    }
    match (a.scalar.class(), to.class()) {
        (Class::Bool | Class::Signed | Class::Unsigned, Class::Signed | Class::Unsigned) => {
            Const::int(to, a.as_int())
        }
        (Class::Bool | Class::Signed | Class::Unsigned, Class::Float | Class::Packed) => {
            encode_int(to, a.as_int())
        }
        (Class::Float | Class::Packed, Class::Signed | Class::Unsigned) => {
            let x = decode(a);
            let (low, high) = range(to);
            if x.is_nan() {
                Const::zero(to)
            } else {
                // `as` saturates at i128's range, far outside of every type's.
                Const::int(to, (x.trunc() as i128).clamp(low, high))
            }
        }
        (Class::Float | Class::Packed, Class::Float | Class::Packed) => encode_f64(to, decode(a)),
        (_, Class::Bool) => Const::bool(match a.scalar.class() {
            Class::Float | Class::Packed => decode(a) != 0.0,
            Class::Bool | Class::Signed | Class::Unsigned => a.bits != 0,
        }),
    }
}

/// The numbers in a packed value, each converted to `to`: two of an `F4E2M1x2` byte (low nibble
/// first), eight of an `Int4x8` word (two's complement nibbles, low first), one of any other.
pub fn unpack(a: Const, to: Scalar) -> Vec<Const> {
    match a.scalar {
        Scalar::F4E2M1x2 => [0, 4]
            .into_iter()
            .map(|shift| encode_f64(to, float::decode_e2m1((a.bits >> shift) as u8 & 15)))
            .collect(),
        Scalar::Int4x8 => (0..8)
            .map(|i| {
                let nibble = ((a.bits >> (4 * i)) & 15) as i128;
                convert(
                    Const::int(Scalar::I32, if nibble < 8 { nibble } else { nibble - 16 }),
                    to,
                )
            })
            .collect(),
        _ => vec![convert(a, to)],
    }
}

/// Smallest and largest value of an integer type.
pub const fn range(scalar: Scalar) -> (i128, i128) {
    let bits = scalar.bits();
    if scalar.is_signed() {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    }
}

/// The binary operator that a reduction repeats.
pub const fn reduce_binary(op: ReduceOp) -> BinaryOp {
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

/// The element that stands for an absent one beside others: combined with it each element stays
/// what it is, to the bit.
pub fn reduce_absent(op: ReduceOp, scalar: Scalar) -> Const {
    match op {
        // `-0 + +0` is `+0`.
        ReduceOp::Sum if scalar.is_float() => encode_f64(scalar, -0.0),
        // The number wins over NaN, so all of NaN stay NaN.
        ReduceOp::Min | ReduceOp::Max if scalar.is_float() => encode_f64(scalar, f64::NAN),
        _ => reduce_identity(op, scalar),
    }
}

/// The reduction of no element: what an exclusive scan gives the first thread.
pub fn reduce_identity(op: ReduceOp, scalar: Scalar) -> Const {
    let float = scalar.is_float();
    match op {
        ReduceOp::Sum | ReduceOp::Or => Const::zero(scalar),
        ReduceOp::Product => Const::one(scalar),
        ReduceOp::And => Const {
            scalar,
            bits: mask(scalar),
        },
        ReduceOp::Min | ReduceOp::MinNan if float => encode_f64(scalar, f64::INFINITY),
        ReduceOp::Max | ReduceOp::MaxNan if float => encode_f64(scalar, f64::NEG_INFINITY),
        ReduceOp::Min | ReduceOp::MinNan => Const::int(scalar, range(scalar).1),
        ReduceOp::Max | ReduceOp::MaxNan => Const::int(scalar, range(scalar).0),
    }
}

/// The adjacent-pair tree over elements in order: the one result of every reduction, of a
/// workgroup, a subgroup, or a tile's row or column. An element without a partner stays as it
/// is. Nothing of no elements.
pub fn tree_reduce(op: ReduceOp, elements: &[Const]) -> Option<Const> {
    let mut elements = elements.to_vec();
    while elements.len() > 1 {
        elements = elements
            .chunks(2)
            .map(|pair| match *pair {
                [left, right] => binary(reduce_binary(op), left, right),
                _ => pair[0],
            })
            .collect();
    }
    elements.first().copied()
}

/// The scan of a workgroup over elements in order of the thread index (Sklansky's): at distance
/// `d = 1, 2, 4, …` element `i` with bit `d` set becomes `e[(i & !(2d - 1)) + d - 1] ∘ e[i]`.
/// Exclusive: the inclusive result of the element before, the identity for the first.
pub fn tree_scan(op: ReduceOp, elements: &[Const], exclusive: bool) -> Vec<Const> {
    let mut elements = elements.to_vec();
    let mut distance = 1;
    while distance < elements.len() {
        for i in 0..elements.len() {
            if i & distance != 0 {
                let left = elements[(i & !(2 * distance - 1)) + distance - 1];
                elements[i] = binary(reduce_binary(op), left, elements[i]);
            }
        }
        distance *= 2;
    }
    if exclusive && !elements.is_empty() {
        let identity = reduce_identity(op, elements[0].scalar);
        elements.rotate_right(1);
        elements[0] = identity;
    }
    elements
}
