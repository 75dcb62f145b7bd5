//! Typed operations: result types from operand types, splats and folding of integers.

use crate::build::error::BuildFault;
use crate::entity::Value;
use crate::op::{BinaryOp, CompareOp, Const, Op, UnaryOp};
use crate::types::{Class, Scalar, Type};

use super::interpreter::{Builder, Eval, int_of};

impl Builder {
    /// The constant that digits are, rounded once to a float type.
    pub(super) fn constant_of(&mut self, digits: &str, scalar: Scalar) -> Eval<Value> {
        let bits = match scalar.class() {
            Class::Float => match scalar {
                Scalar::F32 => digits.parse::<f32>().ok().map(|v| u64::from(v.to_bits())),
                _ => match digits.parse::<f64>() {
                    Ok(value) => return self.constant_from_f64(value, scalar),
                    Err(_) => None,
                },
            },
            Class::Signed | Class::Unsigned => digits.parse::<u64>().ok(),
            Class::Bool | Class::Packed => None,
        };
        match bits {
            Some(bits) => Ok(self.const_bits(scalar, bits)),
            None => self.fail(BuildFault::Malformed),
        }
    }

    /// A constant converted as `as` converts.
    pub(super) fn constant_from_f64(&mut self, value: f64, scalar: Scalar) -> Eval<Value> {
        let bits = match scalar {
            Scalar::F64 => value.to_bits(),
            Scalar::F32 => u64::from((value as f32).to_bits()),
            Scalar::F16 => u64::from(half::f16::from_f64(value).to_bits()),
            Scalar::BF16 => u64::from(half::bf16::from_f64(value).to_bits()),
            Scalar::I8 => value as i8 as u64,
            Scalar::I16 => value as i16 as u64,
            Scalar::I32 => value as i32 as u64,
            Scalar::I64 => value as i64 as u64,
            Scalar::U8 => u64::from(value as u8),
            Scalar::U16 => u64::from(value as u16),
            Scalar::U32 => u64::from(value as u32),
            Scalar::U64 => value as u64,
            Scalar::Bool
            | Scalar::F8E4M3
            | Scalar::F8E5M2
            | Scalar::E8M0
            | Scalar::F4E2M1x2
            | Scalar::Int4x8 => {
                return self.no_operation("a literal", scalar.x(1));
            }
        };
        Ok(self.const_bits(scalar, bits))
    }

    pub(super) fn no_operation<T>(&self, operation: &str, ty: Type) -> Eval<T> {
        self.fail(BuildFault::NoOperation {
            operation: operation.to_string(),
            ty,
        })
    }

    /// An operator by its token.
    pub(super) fn binary_token(&mut self, token: &str, left: Value, right: Value) -> Eval<Value> {
        let op = match token {
            "+" => BinaryOp::Add,
            "-" => BinaryOp::Sub,
            "*" => BinaryOp::Mul,
            "/" => BinaryOp::Div,
            "%" => BinaryOp::Rem,
            "&" => BinaryOp::And,
            "|" => BinaryOp::Or,
            "^" => BinaryOp::Xor,
            "<<" => BinaryOp::Shl,
            ">>" => BinaryOp::Shr,
            _ => return self.fail(BuildFault::Malformed),
        };
        self.binary(op, left, right)
    }

    /// A binary operation; a scalar beside a vector is splat.
    pub(super) fn binary(&mut self, op: BinaryOp, left: Value, right: Value) -> Eval<Value> {
        let (left, mut right) = self.same_lanes(left, right);
        let ty = self.ty(left);
        if matches!(op, BinaryOp::Shl | BinaryOp::Shr) && self.ty(right).scalar != ty.scalar {
            // Counts count modulo the width, so narrowing them loses nothing.
            right = self.convert(right, ty)?;
        }
        if self.ty(right) != ty {
            let right = self.ty(right);
            return self.fail(BuildFault::Types {
                operation: op.name().into(),
                left: ty,
                right,
            });
        }
        let allowed = match op {
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div => {
                ty.scalar.is_int() || ty.scalar.is_float()
            }
            BinaryOp::Min | BinaryOp::Max => ty.scalar.is_int() || ty.scalar.is_float(),
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => {
                ty.scalar.is_int() || ty.scalar == Scalar::Bool
            }
            BinaryOp::Rem | BinaryOp::Shl | BinaryOp::Shr | BinaryOp::MulHigh => ty.scalar.is_int(),
            BinaryOp::Dot4 => matches!(ty.scalar, Scalar::I32 | Scalar::U32),
            BinaryOp::Dot4Mixed => ty.scalar == Scalar::I32,
            BinaryOp::MinNan | BinaryOp::MaxNan | BinaryOp::Pow => ty.scalar.is_float(),
        };
        if !allowed {
            return self.no_operation(&format!("`{}`", op.name()), ty);
        }
        if let Some(folded) = self.folded(op, left, right) {
            return Ok(folded);
        }
        Ok(self.push(Op::Binary(op, left, right), ty))
    }

    /// Integer constants are folded, because lengths, lanes and unrolled loops need them.
    fn folded(&mut self, op: BinaryOp, left: Value, right: Value) -> Option<Value> {
        let scalar = self.kernel.constant(left)?.scalar;
        let (a, b) = (self.known_int(left)?, self.known_int(right)?);
        if scalar == Scalar::Bool {
            return None;
        }
        let value = match op {
            BinaryOp::Add => a + b,
            BinaryOp::Sub => a - b,
            BinaryOp::Mul => a.checked_mul(b)?,
            BinaryOp::Div if b != 0 => a / b,
            BinaryOp::Rem if b != 0 => a % b,
            BinaryOp::And => a & b,
            BinaryOp::Or => a | b,
            BinaryOp::Xor => a ^ b,
            BinaryOp::Shl if (0..64).contains(&b) && b < i128::from(scalar.bits()) => a << b,
            BinaryOp::Shr if (0..64).contains(&b) && b < i128::from(scalar.bits()) => a >> b,
            BinaryOp::Min => a.min(b),
            BinaryOp::Max => a.max(b),
            _ => return None,
        };
        Some(self.const_bits(scalar, value as u64))
    }

    /// Splats the scalar of a scalar and a vector.
    pub(super) fn same_lanes(&mut self, left: Value, right: Value) -> (Value, Value) {
        let (a, b) = (self.ty(left), self.ty(right));
        match (a.lanes, b.lanes) {
            (1, lanes) if lanes > 1 => (self.splat(left, lanes), right),
            (lanes, 1) if lanes > 1 => (left, self.splat(right, lanes)),
            _ => (left, right),
        }
    }

    pub(super) fn splat(&mut self, value: Value, lanes: u8) -> Value {
        let ty = self.ty(value);
        if lanes == 1 || ty.lanes == lanes {
            return value;
        }
        self.push(Op::Splat(value), ty.scalar.x(lanes))
    }

    pub(super) fn compare(&mut self, op: CompareOp, left: Value, right: Value) -> Eval<Value> {
        let (left, right) = self.same_lanes(left, right);
        let (a, b) = (self.ty(left), self.ty(right));
        if a != b {
            return self.fail(BuildFault::Types {
                operation: "a comparison".into(),
                left: a,
                right: b,
            });
        }
        if a.scalar.class() == Class::Packed {
            return self.no_operation("a comparison", a);
        }
        if let (Some(x), Some(y)) = (self.known_int(left), self.known_int(right)) {
            let holds = match op {
                CompareOp::Eq => x == y,
                CompareOp::Ne => x != y,
                CompareOp::Lt => x < y,
                CompareOp::Le => x <= y,
                CompareOp::Gt => x > y,
                CompareOp::Ge => x >= y,
            };
            return Ok(self.const_bool(holds));
        }
        Ok(self.push(Op::Compare(op, left, right), Scalar::Bool.x(a.lanes)))
    }

    pub(super) fn unary(&mut self, op: UnaryOp, value: Value) -> Eval<Value> {
        let ty = self.ty(value);
        let (is_int, is_float) = (ty.scalar.is_int(), ty.scalar.is_float());
        let (allowed, result) = match op {
            UnaryOp::Neg => (is_int || is_float, ty),
            UnaryOp::Abs => (ty.scalar.is_signed() || is_float, ty),
            UnaryOp::Not => (is_int || ty.scalar == Scalar::Bool, ty),
            UnaryOp::Sqrt
            | UnaryOp::Rsqrt
            | UnaryOp::Exp
            | UnaryOp::Exp2
            | UnaryOp::Log
            | UnaryOp::Log2
            | UnaryOp::Sin
            | UnaryOp::Cos
            | UnaryOp::Tanh
            | UnaryOp::Erf
            | UnaryOp::Floor
            | UnaryOp::Ceil
            | UnaryOp::Trunc
            | UnaryOp::RoundEven => (is_float, ty),
            UnaryOp::IsNan | UnaryOp::IsFinite => (is_float, Scalar::Bool.x(ty.lanes)),
            UnaryOp::CountOnes | UnaryOp::LeadingZeros | UnaryOp::TrailingZeros => {
                (is_int, Scalar::U32.x(ty.lanes))
            }
            UnaryOp::ReverseBits => (is_int, ty),
        };
        if !allowed {
            return self.no_operation(&format!("`{}`", op.name()), ty);
        }
        if op == UnaryOp::Neg
            && let Some(constant) = self.kernel.constant(value)
        {
            return Ok(self.negated(constant));
        }
        Ok(self.push(Op::Unary(op, value), result))
    }

    fn negated(&mut self, constant: Const) -> Value {
        let Const { scalar, bits } = constant;
        let bits = match int_of(constant) {
            Some(value) => value.wrapping_neg() as u64,
            None => bits ^ 1 << (scalar.bits() - 1),
        };
        self.const_bits(scalar, bits)
    }

    /// `as`, `to`: the numeric conversion.
    pub(super) fn convert(&mut self, value: Value, to: Type) -> Eval<Value> {
        let from = self.ty(value);
        if from == to {
            return Ok(value);
        }
        if let Some(known) = self.known_int(value)
            && to.scalar.is_int()
            && to.lanes == 1
        {
            return Ok(self.const_bits(to.scalar, known as u64));
        }
        Ok(self.push(Op::Convert(value), to))
    }

    /// An index as `u32`; a wider one is narrowed by a conversion that checkers look at.
    pub(super) fn index_u32(&mut self, value: Value) -> Eval<Value> {
        if !self.ty(value).scalar.is_int() || self.ty(value).lanes != 1 {
            return self.no_operation("an index", self.ty(value));
        }
        if let Some(known) = self.known_int(value)
            && !(0..=i128::from(u32::MAX)).contains(&known)
        {
            return self.fail(BuildFault::OutOfRange {
                what: "this index".into(),
                found: known,
                allowed: "0 to 4294967295".into(),
            });
        }
        self.convert(value, Type::U32)
    }

    pub(super) fn fma(&mut self, a: Value, b: Value, c: Value) -> Eval<Value> {
        let (a, b) = self.same_lanes(a, b);
        let (a, c) = self.same_lanes(a, c);
        let (b, c) = self.same_lanes(b, c);
        let ty = self.ty(a);
        if !ty.scalar.is_float() {
            return self.no_operation("`fma`", ty);
        }
        for other in [b, c] {
            if self.ty(other) != ty {
                let right = self.ty(other);
                return self.fail(BuildFault::Types {
                    operation: "`fma`".into(),
                    left: ty,
                    right,
                });
            }
        }
        Ok(self.push(Op::Fma(a, b, c), ty))
    }

    pub(super) fn select(&mut self, condition: Value, a: Value, b: Value) -> Eval<Value> {
        let (a, b) = self.same_lanes(a, b);
        let ty = self.ty(a);
        if self.ty(b) != ty {
            let right = self.ty(b);
            return self.fail(BuildFault::Types {
                operation: "`select`".into(),
                left: ty,
                right,
            });
        }
        Ok(self.push(Op::Select(condition, a, b), ty))
    }
}
