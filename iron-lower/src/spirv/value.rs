//! Pure operations on values.

use iron_ir::entity::Value;
use iron_ir::op::{BinaryOp, CompareOp, Op, UnaryOp};
use iron_ir::types::{Class, Scalar, Type};
use rspirv::dr::Operand;
use rspirv::spirv::{Decoration, GlslStd450Op as Glsl, Op as Spv, Word};

use super::{Emitter, Parts, n_parts, part_lanes};
use crate::error::LowerError;

impl Emitter<'_> {
    /// Computes an operation where its `let` stands.
    pub(super) fn compute(&mut self, value: Value, op: &Op, ty: Type) -> Result<Parts, LowerError> {
        match op {
            Op::Unary(op, a) => self.unary(*op, *a, ty),
            Op::Binary(op, a, b) => self.binary(*op, *a, *b, ty),
            Op::Compare(op, a, b) => self.compare(*op, *a, *b, ty),
            Op::Select(c, a, b) => self.select(*c, *a, *b, ty),
            Op::Fma(a, b, c) => {
                let operands = [self.value(*a)?, self.value(*b)?, self.value(*c)?];
                let hidden = [a, b, c].map(|v| self.needs_hiding(*v, ty));
                self.parts(ty, &operands, |e, ids| {
                    let mut ids = [ids[0], ids[1], ids[2]];
                    for (id, _) in ids.iter_mut().zip(hidden).filter(|(_, hidden)| *hidden) {
                        *id = e.hide(*id, ty);
                    }
                    e.fma(ty, ids)
                })
            }
            Op::Convert(a) => {
                let from = self.kernel.ty(*a);
                let parts = self.value(*a)?;
                let rounded = from.scalar == Scalar::F16
                    && ty.scalar == Scalar::F32
                    && matches!(self.kernel.values[*a].op, Op::Convert(_));
                self.parts(ty, &[parts], |e, ids| {
                    if rounded {
                        Ok(e.widen_rounded_half(ids[0], from, ty))
                    } else {
                        e.convert(ids[0], from, ty)
                    }
                })
            }
            Op::Bitcast(a) => {
                let parts = self.value(*a)?;
                self.bitcast(parts, self.kernel.ty(*a), ty)
            }
            Op::Splat(a) => {
                let id = self.single(*a)?;
                Ok(self.gather(ty, &vec![id; usize::from(ty.lanes)]))
            }
            Op::Vector(lanes) => {
                let ids = lanes
                    .iter()
                    .map(|&v| self.single(v))
                    .collect::<Result<Vec<_>, _>>()?;
                if ids.len() != usize::from(ty.lanes) {
                    return self.not_legalised(format!("a {ty} of {} scalars", ids.len()));
                }
                Ok(self.gather(ty, &ids))
            }
            Op::Extract(a, lane) => {
                let from = self.kernel.ty(*a);
                let parts = self.value(*a)?;
                if from.lanes == 1 {
                    return Ok(parts);
                }
                let lane = u32::from(*lane).min(u32::from(from.lanes) - 1);
                let scalar = self.scalar_type(from.scalar);
                let part = parts.ids[(lane / part_lanes(from)) as usize];
                Ok(Parts::one(self.b.extract(
                    scalar,
                    part,
                    lane % part_lanes(from),
                )))
            }
            Op::Insert(a, lane, scalar) => {
                let mut parts = self.value(*a)?;
                let scalar = self.single(*scalar)?;
                let lane = u32::from(*lane).min(u32::from(ty.lanes) - 1);
                let half = (lane / part_lanes(ty)) as usize;
                let part = self.part_type(ty);
                let operands = vec![
                    Operand::IdRef(scalar),
                    Operand::IdRef(parts.ids[half]),
                    Operand::LiteralBit32(lane % part_lanes(ty)),
                ];
                parts.ids[half] = self.b.op_with(Spv::CompositeInsert, part, operands);
                Ok(parts)
            }
            Op::Get(local) => Ok(self.get(*local, ty)),
            Op::Load { place, indices } => self.load(*place, indices, ty),
            Op::Const(_)
            | Op::Scalar(_)
            | Op::Dim(_)
            | Op::Stride(..)
            | Op::Builtin(..)
            | Op::Result => self.not_legalised(format!("a `let` of {value} without operands")),
        }
    }

    /// Applies `f` to each part of operands of one shape. `ty` is the result's.
    pub(super) fn parts(
        &mut self,
        ty: Type,
        operands: &[Parts],
        mut f: impl FnMut(&mut Self, &[Word]) -> Result<Word, LowerError>,
    ) -> Result<Parts, LowerError> {
        let mut ids = Vec::new();
        for part in 0..n_parts(ty) {
            let each: Vec<Word> = operands.iter().map(|o| o.ids[part.min(o.n - 1)]).collect();
            ids.push(f(self, &each)?);
        }
        Ok(Parts::from_slice(&ids))
    }

    /// A float operation that must not be merged with its neighbours.
    pub(super) fn exact(&mut self, op: Spv, ty: Word, operands: &[Word]) -> Word {
        let id = self.b.op(op, ty, operands);
        if !self.kernel.contract.permissions.contract {
            self.b.decorate(id, Decoration::NoContraction, &[]);
        }
        id
    }

    fn unary(&mut self, op: UnaryOp, a: Value, ty: Type) -> Result<Parts, LowerError> {
        let from = self.kernel.ty(a);
        let parts = self.value(a)?;
        self.parts(ty, &[parts], |e, ids| e.unary_part(op, ids[0], from, ty))
    }

    fn unary_part(
        &mut self,
        op: UnaryOp,
        id: Word,
        from: Type,
        ty: Type,
    ) -> Result<Word, LowerError> {
        let class = from.scalar.class();
        let part = self.part_type(ty);
        let bad = |e: &Self| e.not_legalised(format!("`{}` of {from}", op.name()));
        match (op, class) {
            (UnaryOp::Neg, Class::Float) if is_ieee(from.scalar) => {
                Ok(self.b.op(Spv::FNegate, part, &[id]))
            }
            (UnaryOp::Neg, Class::Signed | Class::Unsigned) => {
                let zero = self.int_lanes(from, 0);
                Ok(self.b.op(Spv::ISub, part, &[zero, id]))
            }
            (UnaryOp::Not, Class::Bool) => Ok(self.b.op(Spv::LogicalNot, part, &[id])),
            (UnaryOp::Not, Class::Signed | Class::Unsigned) => Ok(self.b.op(Spv::Not, part, &[id])),
            (UnaryOp::Abs, Class::Float) if is_ieee(from.scalar) => {
                // By its bits: drivers flush subnormals in their instruction.
                let int = from.with_scalar(from.scalar.unsigned_of_width());
                let int_type = self.part_type(int);
                let mask = self.int_lanes(int, (1u64 << (from.scalar.bits() - 1)) - 1);
                let bits = self.b.op(Spv::Bitcast, int_type, &[id]);
                let bits = self.b.op(Spv::BitwiseAnd, int_type, &[bits, mask]);
                Ok(self.b.op(Spv::Bitcast, part, &[bits]))
            }
            (UnaryOp::Abs, Class::Unsigned) => Ok(id),
            (UnaryOp::Abs, Class::Signed) => {
                let zero = self.int_lanes(from, 0);
                let negated = self.b.op(Spv::ISub, part, &[zero, id]);
                let bools = self.bool_type(from);
                let negative = self.b.op(Spv::SLessThan, bools, &[id, zero]);
                Ok(self.b.op(Spv::Select, part, &[negative, negated, id]))
            }
            (UnaryOp::IsNan, Class::Float) => Ok(self.is_nan(id, from)),
            (UnaryOp::IsFinite, Class::Float) => Ok(self.magnitude_test(id, from, Spv::ULessThan)),
            (
                UnaryOp::CountOnes
                | UnaryOp::LeadingZeros
                | UnaryOp::TrailingZeros
                | UnaryOp::ReverseBits,
                Class::Signed | Class::Unsigned,
            ) => self.bit_operation(op, id, from),
            (UnaryOp::Floor, Class::Float) => Ok(self.b.glsl(Glsl::Floor, part, &[id])),
            (UnaryOp::Ceil, Class::Float) => Ok(self.b.glsl(Glsl::Ceil, part, &[id])),
            (UnaryOp::Trunc, Class::Float) => Ok(self.b.glsl(Glsl::Trunc, part, &[id])),
            (UnaryOp::RoundEven, Class::Float) => Ok(self.b.glsl(Glsl::RoundEven, part, &[id])),
            (UnaryOp::Sqrt, Class::Float) => Ok(self.b.glsl(Glsl::Sqrt, part, &[id])),
            (
                UnaryOp::Rsqrt
                | UnaryOp::Exp
                | UnaryOp::Exp2
                | UnaryOp::Log
                | UnaryOp::Log2
                | UnaryOp::Sin
                | UnaryOp::Cos
                | UnaryOp::Tanh
                | UnaryOp::Erf,
                Class::Float,
            ) if is_ieee(from.scalar) => self.transcendental(op, id, from),
            _ => bad(self),
        }
    }

    /// Compares the bits without the sign with those of infinity, which no fast mode undoes.
    fn magnitude_test(&mut self, id: Word, ty: Type, compare: Spv) -> Word {
        let int = ty.with_scalar(ty.scalar.unsigned_of_width());
        let infinity: u64 = match ty.scalar {
            Scalar::F16 => 0x7C00,
            Scalar::BF16 => 0x7F80,
            Scalar::F64 => 0x7FF0_0000_0000_0000,
            _ => 0x7F80_0000,
        };
        let mask = (1u64 << (ty.scalar.bits() - 1)) - 1;
        let int_type = self.part_type(int);
        let bits = if is_ieee(ty.scalar) {
            self.b.op(Spv::Bitcast, int_type, &[id])
        } else {
            id
        };
        let (mask, infinity) = (self.int_lanes(int, mask), self.int_lanes(int, infinity));
        let magnitude = self.b.op(Spv::BitwiseAnd, int_type, &[bits, mask]);
        let bools = self.bool_type(ty);
        self.b.op(compare, bools, &[magnitude, infinity])
    }

    /// `bool` in the shape of a part.
    pub(super) fn bool_type(&mut self, ty: Type) -> Word {
        self.part_type(ty.with_scalar(Scalar::Bool))
    }

    fn binary(&mut self, op: BinaryOp, a: Value, b: Value, ty: Type) -> Result<Parts, LowerError> {
        let operands = [self.value(a)?, self.value(b)?];
        let hidden = match op {
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div => {
                [a, b].map(|v| self.needs_hiding(v, ty))
            }
            _ => [false; 2],
        };
        self.parts(ty, &operands, |e, ids| {
            let mut ids = [ids[0], ids[1]];
            for (id, _) in ids.iter_mut().zip(hidden).filter(|(_, hidden)| *hidden) {
                *id = e.hide(*id, ty);
            }
            e.binary_part(op, ids[0], ids[1], ty)
        })
    }

    pub(super) fn binary_part(
        &mut self,
        op: BinaryOp,
        a: Word,
        b: Word,
        ty: Type,
    ) -> Result<Word, LowerError> {
        use BinaryOp as B;
        let part = self.part_type(ty);
        let class = ty.scalar.class();
        let spv = match class {
            Class::Float if !is_ieee(ty.scalar) => None,
            Class::Float => match op {
                B::Add => return Ok(self.exact(Spv::FAdd, part, &[a, b])),
                B::Sub => return Ok(self.exact(Spv::FSub, part, &[a, b])),
                B::Mul => return Ok(self.exact(Spv::FMul, part, &[a, b])),
                B::Div => return Ok(self.exact(Spv::FDiv, part, &[a, b])),
                B::Min | B::Max | B::MinNan | B::MaxNan => {
                    return Ok(self.float_extreme(op, a, b, ty));
                }
                B::Pow => return self.pow(a, b, ty),
                B::Rem | B::And | B::Or | B::Xor | B::Shl | B::Shr | B::MulHigh => None,
                B::Dot4 | B::Dot4Mixed => None,
            },
            // naga has no logical operators of vectors.
            Class::Bool if ty.lanes > 1 && op == B::And => {
                return Ok(self.b.op(Spv::Select, part, &[a, b, a]));
            }
            Class::Bool if ty.lanes > 1 && op == B::Or => {
                return Ok(self.b.op(Spv::Select, part, &[a, a, b]));
            }
            Class::Bool => match op {
                B::And => Some(Spv::LogicalAnd),
                B::Or => Some(Spv::LogicalOr),
                B::Xor => Some(Spv::LogicalNotEqual),
                _ => None,
            },
            Class::Signed | Class::Unsigned => {
                let signed = class == Class::Signed;
                match op {
                    B::Add => Some(Spv::IAdd),
                    B::Sub => Some(Spv::ISub),
                    B::Mul => Some(Spv::IMul),
                    B::Div if signed => Some(Spv::SDiv),
                    B::Div => Some(Spv::UDiv),
                    B::Rem if signed => {
                        // Vulkan leaves OpSRem undefined for negative operands.
                        let quotient = self.b.op(Spv::SDiv, part, &[a, b]);
                        let product = self.b.op(Spv::IMul, part, &[quotient, b]);
                        return Ok(self.b.op(Spv::ISub, part, &[a, product]));
                    }
                    B::Rem => Some(Spv::UMod),
                    B::And => Some(Spv::BitwiseAnd),
                    B::Or => Some(Spv::BitwiseOr),
                    B::Xor => Some(Spv::BitwiseXor),
                    B::Shl => Some(Spv::ShiftLeftLogical),
                    B::Shr if signed => Some(Spv::ShiftRightArithmetic),
                    B::Shr => Some(Spv::ShiftRightLogical),
                    B::Min | B::Max => {
                        let less = if signed {
                            Spv::SLessThan
                        } else {
                            Spv::ULessThan
                        };
                        let bools = self.bool_type(ty);
                        let smaller = self.b.op(less, bools, &[a, b]);
                        let (x, y) = if op == B::Min { (a, b) } else { (b, a) };
                        return Ok(self.b.op(Spv::Select, part, &[smaller, x, y]));
                    }
                    B::MulHigh => return Ok(self.mul_high(a, b, ty)),
                    B::MinNan | B::MaxNan | B::Pow | B::Dot4 | B::Dot4Mixed => None,
                }
            }
            Class::Packed => None,
        };
        match spv {
            Some(spv) => Ok(self.b.op(spv, part, &[a, b])),
            None => self.not_legalised(format!("`{}` of {ty}", op.name())),
        }
    }

    /// Minimum and maximum with the specification's zeros and NaN, from comparisons; with the
    /// contract's `approximate` those of numbers are the driver's, which may take subnormals and
    /// zeros as equal.
    ///
    /// Floats are in the order of their bits as signed integers, two negative ones in its reverse,
    /// which puts -0 below +0.
    fn float_extreme(&mut self, op: BinaryOp, a: Word, b: Word, ty: Type) -> Word {
        let part = self.part_type(ty);
        let minimum = matches!(op, BinaryOp::Min | BinaryOp::MinNan);
        let numbers = matches!(op, BinaryOp::Min | BinaryOp::Max);
        if numbers && self.kernel.contract.permissions.approximate {
            let glsl = if minimum { Glsl::NMin } else { Glsl::NMax };
            return self.b.glsl(glsl, part, &[a, b]);
        }
        let bools = self.bool_type(ty);
        let int = ty.with_scalar(ty.scalar.unsigned_of_width());
        let int_type = self.part_type(int);
        let [x, y] = [a, b].map(|id| self.b.op(Spv::Bitcast, int_type, &[id]));
        let zero = self.int_lanes(int, 0);
        let below = self.b.op(Spv::SLessThan, bools, &[x, y]);
        let signs = self.b.op(Spv::BitwiseAnd, int_type, &[x, y]);
        let negative = self.b.op(Spv::SLessThan, bools, &[signs, zero]);
        // As a selection: naga has no logical operators of vectors.
        let above = self.b.op(Spv::LogicalNot, bools, &[below]);
        let less = self.b.op(Spv::Select, bools, &[negative, above, below]);
        let (first, second) = if minimum { (a, b) } else { (b, a) };
        let ordered = self.b.op(Spv::Select, part, &[less, first, second]);
        let [a_is_nan, b_is_nan] = [a, b].map(|id| self.is_nan(id, ty));
        let (if_a, if_b) = if numbers { (b, a) } else { (a, b) };
        let with_b = self.b.op(Spv::Select, part, &[b_is_nan, if_b, ordered]);
        self.b.op(Spv::Select, part, &[a_is_nan, if_a, with_b])
    }

    /// Whether lanes are NaN, by the driver's test where it promises to keep NaN.
    fn is_nan(&mut self, id: Word, ty: Type) -> Word {
        if !is_ieee(ty.scalar) || self.options.signed_zero_inf_nan & ty.scalar.bits() == 0 {
            return self.magnitude_test(id, ty, Spv::UGreaterThan);
        }
        let bools = self.bool_type(ty);
        self.b.op(Spv::IsNan, bools, &[id])
    }

    fn compare(
        &mut self,
        op: CompareOp,
        a: Value,
        b: Value,
        ty: Type,
    ) -> Result<Parts, LowerError> {
        use CompareOp as C;
        let from = self.kernel.ty(a);
        let spv = match from.scalar.class() {
            Class::Float if is_ieee(from.scalar) => match op {
                C::Eq => Spv::FOrdEqual,
                C::Ne => Spv::FUnordNotEqual,
                C::Lt => Spv::FOrdLessThan,
                C::Le => Spv::FOrdLessThanEqual,
                C::Gt => Spv::FOrdGreaterThan,
                C::Ge => Spv::FOrdGreaterThanEqual,
            },
            Class::Signed => match op {
                C::Eq => Spv::IEqual,
                C::Ne => Spv::INotEqual,
                C::Lt => Spv::SLessThan,
                C::Le => Spv::SLessThanEqual,
                C::Gt => Spv::SGreaterThan,
                C::Ge => Spv::SGreaterThanEqual,
            },
            Class::Unsigned => match op {
                C::Eq => Spv::IEqual,
                C::Ne => Spv::INotEqual,
                C::Lt => Spv::ULessThan,
                C::Le => Spv::ULessThanEqual,
                C::Gt => Spv::UGreaterThan,
                C::Ge => Spv::UGreaterThanEqual,
            },
            Class::Bool => match op {
                C::Eq => Spv::LogicalEqual,
                C::Ne => Spv::LogicalNotEqual,
                C::Lt | C::Le | C::Gt | C::Ge => {
                    return self.not_legalised(format!("`{}` of bool", op.name()));
                }
            },
            Class::Float | Class::Packed => {
                return self.not_legalised(format!("`{}` of {from}", op.name()));
            }
        };
        let operands = [self.value(a)?, self.value(b)?];
        let part = self.part_type(ty);
        self.parts(ty, &operands, |e, ids| Ok(e.b.op(spv, part, ids)))
    }

    fn select(
        &mut self,
        condition: Value,
        a: Value,
        b: Value,
        ty: Type,
    ) -> Result<Parts, LowerError> {
        let broadcast = self.kernel.ty(condition).lanes == 1 && ty.lanes > 1;
        let mut mask = self.value(condition)?;
        if broadcast {
            let bools = self.bool_type(ty);
            let lanes = vec![mask.ids[0]; part_lanes(ty) as usize];
            mask = Parts::one(self.b.op(Spv::CompositeConstruct, bools, &lanes));
        }
        let operands = [mask, self.value(a)?, self.value(b)?];
        let part = self.part_type(ty);
        let hidden = [a, b].map(|v| self.is_hidden_choice(v, ty));
        self.parts(ty, &operands, |e, ids| {
            let mut ids = [ids[0], ids[1], ids[2]];
            for (id, _) in ids[1..].iter_mut().zip(hidden).filter(|(_, h)| *h) {
                *id = e.hide(*id, ty);
            }
            Ok(e.b.op(Spv::Select, part, &ids))
        })
    }

    /// A numeric conversion of one part.
    fn convert(&mut self, id: Word, from: Type, to: Type) -> Result<Word, LowerError> {
        let part = self.part_type(to);
        let (source, target) = (from.scalar.class(), to.scalar.class());
        let ieee = |s: Scalar| s.class() != Class::Float || is_ieee(s);
        if from.scalar == to.scalar {
            return Ok(id);
        }
        if !ieee(from.scalar) || !ieee(to.scalar) {
            return self.not_legalised(format!("a conversion of {from} to {to}"));
        }
        let int = |c| matches!(c, Class::Signed | Class::Unsigned);
        Ok(match (source, target) {
            (Class::Bool, c) if int(c) => self.bool_to_int(id, from, to.scalar),
            (Class::Bool, Class::Float) => {
                let (one, zero) = (self.float_lanes(to, 1.0), self.float_lanes(to, 0.0));
                self.b.op(Spv::Select, part, &[id, one, zero])
            }
            (c, Class::Bool) if int(c) => {
                let zero = self.int_lanes(from, 0);
                self.b.op(Spv::INotEqual, part, &[id, zero])
            }
            (c, d) if int(c) && int(d) => {
                // Both sides are the same SPIR-V type where the widths agree.
                if from.scalar.bytes() == to.scalar.bytes() {
                    id
                } else if c == Class::Signed {
                    self.b.op(Spv::SConvert, part, &[id])
                } else {
                    self.b.op(Spv::UConvert, part, &[id])
                }
            }
            (Class::Signed, Class::Float) => self.b.op(Spv::ConvertSToF, part, &[id]),
            (Class::Unsigned, Class::Float) => self.b.op(Spv::ConvertUToF, part, &[id]),
            (Class::Float, Class::Signed) => self.b.op(Spv::ConvertFToS, part, &[id]),
            (Class::Float, Class::Unsigned) => self.b.op(Spv::ConvertFToU, part, &[id]),
            (Class::Float, Class::Float) => self.b.op(Spv::FConvert, part, &[id]),
            _ => return self.not_legalised(format!("a conversion of {from} to {to}")),
        })
    }

    /// Widens an `f16` that was rounded just before, by its bits: NVIDIA's driver drops the
    /// rounding of `f32 -> f16 -> f32` conversions, `NoContraction` or not.
    fn widen_rounded_half(&mut self, id: Word, from: Type, to: Type) -> Word {
        let (short, word) = (from.with_scalar(Scalar::U16), from.with_scalar(Scalar::U32));
        let (short_type, word_type, float_type) = (
            self.part_type(short),
            self.part_type(word),
            self.part_type(to),
        );
        let bool_type = self.part_type(from.with_scalar(Scalar::Bool));
        let bits = self.b.op(Spv::Bitcast, short_type, &[id]);
        let bits = self.b.op(Spv::UConvert, word_type, &[bits]);
        let mask = self.int_lanes(word, 0x7fff);
        let magnitude = self.b.op(Spv::BitwiseAnd, word_type, &[bits, mask]);
        let sign_mask = self.int_lanes(word, 0x8000);
        let sign = self.b.op(Spv::BitwiseAnd, word_type, &[bits, sign_mask]);
        let sixteen = self.int_lanes(word, 16);
        let sign = self
            .b
            .op(Spv::ShiftLeftLogical, word_type, &[sign, sixteen]);
        let thirteen = self.int_lanes(word, 13);
        let shifted = self
            .b
            .op(Spv::ShiftLeftLogical, word_type, &[magnitude, thirteen]);
        let rebias = self.int_lanes(word, 112 << 23);
        let normal = self.b.op(Spv::IAdd, word_type, &[shifted, rebias]);
        let top = self.int_lanes(word, 0x7f80_0000);
        let infinite = self.b.op(Spv::BitwiseOr, word_type, &[shifted, top]);
        // A subnormal half is a whole number of 2^-24, which f32 holds as a normal number.
        let count = self.b.op(Spv::ConvertUToF, float_type, &[magnitude]);
        let unit = self.float_lanes(to, 2f64.powi(-24));
        let small = self.b.op(Spv::FMul, float_type, &[count, unit]);
        let small = self.b.op(Spv::Bitcast, word_type, &[small]);
        let first_normal = self.int_lanes(word, 0x0400);
        let first_infinite = self.int_lanes(word, 0x7c00);
        let is_small = self
            .b
            .op(Spv::ULessThan, bool_type, &[magnitude, first_normal]);
        let is_infinite = self.b.op(
            Spv::UGreaterThanEqual,
            bool_type,
            &[magnitude, first_infinite],
        );
        let wide = self
            .b
            .op(Spv::Select, word_type, &[is_infinite, infinite, normal]);
        let wide = self.b.op(Spv::Select, word_type, &[is_small, small, wide]);
        let wide = self.b.op(Spv::BitwiseOr, word_type, &[wide, sign]);
        self.b.op(Spv::Bitcast, float_type, &[wide])
    }

    /// The same bits as another type of the same size.
    pub(super) fn bitcast(
        &mut self,
        parts: Parts,
        from: Type,
        to: Type,
    ) -> Result<Parts, LowerError> {
        if from.bytes() != to.bytes() {
            return self.not_legalised(format!("a bit cast of {from} to {to}"));
        }
        let is_plain = ![from.scalar, to.scalar].contains(&Scalar::Bool);
        if is_plain
            && let Some(&(source, ty)) = self.casts.get(&parts.ids[0])
            && n_parts(ty) == n_parts(to)
            && self.part_type(ty) == self.part_type(to)
        {
            return Ok(source);
        }
        let cast = self.new_bitcast(parts, from, to)?;
        if is_plain {
            self.casts.insert(cast.ids[0], (parts, from));
        }
        Ok(cast)
    }

    fn new_bitcast(&mut self, parts: Parts, from: Type, to: Type) -> Result<Parts, LowerError> {
        if from.scalar == Scalar::Bool || to.scalar == Scalar::Bool {
            let scalars = self.scatter(from, parts);
            let memory = self.scalar_type(from.scalar);
            let cast: Vec<Word> = scalars
                .iter()
                .map(|&s| self.read_as(s, memory, to.scalar))
                .collect();
            if from.scalar.bytes() != to.scalar.bytes() {
                return self.not_legalised(format!("a bit cast of {from} to {to}"));
            }
            return Ok(self.gather(to, &cast));
        }
        let (source, target) = (self.part_type(from), self.part_type(to));
        if parts.n == n_parts(to) {
            if source == target {
                return Ok(parts);
            }
            return self.parts(to, &[parts], |e, ids| Ok(e.b.op(Spv::Bitcast, target, ids)));
        }
        // Between one part and two: through 32-bit words.
        let words = Scalar::U32.x((from.bytes() / 4) as u8);
        let word = self.b.type_int(32);
        let per_part = u32::from(words.lanes) / parts.n as u32;
        let vector = self.b.type_vector(word, per_part);
        let mut all = Vec::new();
        for &id in parts.ids() {
            let id = if source == vector {
                id
            } else {
                self.b.op(Spv::Bitcast, vector, &[id])
            };
            for lane in 0..per_part {
                all.push(if per_part == 1 {
                    id
                } else {
                    self.b.extract(word, id, lane)
                });
            }
        }
        let per_part = all.len() / n_parts(to);
        let vector = self.b.type_vector(word, per_part as u32);
        let mut ids = Vec::new();
        for chunk in all.chunks(per_part) {
            let id = match chunk {
                [id] => *id,
                _ => self.b.op(Spv::CompositeConstruct, vector, chunk),
            };
            ids.push(if target == vector {
                id
            } else {
                self.b.op(Spv::Bitcast, target, &[id])
            });
        }
        Ok(Parts::from_slice(&ids))
    }
}

/// A float with arithmetic in SPIR-V.
pub(super) fn is_ieee(scalar: Scalar) -> bool {
    matches!(scalar, Scalar::F16 | Scalar::F32 | Scalar::F64)
}
