//! Transcendental functions and the fused multiply-add.

use iron_ir::contract::Feature;
use iron_ir::op::UnaryOp;
use iron_ir::types::{Scalar, Type};
use rspirv::spirv::{GlslStd450Op as Glsl, Op as Spv, Word};

use super::Emitter;
use crate::error::LowerError;

impl Emitter<'_> {
    /// `a * b + c`, rounded once.
    pub(super) fn fma(&mut self, ty: Type, [a, b, c]: [Word; 3]) -> Result<Word, LowerError> {
        let part = self.part_type(ty);
        let native = self.options.fused_multiply_add
            || self.kernel.contract.permissions.contract
            || ty.scalar != Scalar::F32
            || !self.profile.has(Feature::F64);
        if native {
            return Ok(self.b.glsl(Glsl::Fma, part, &[a, b, c]));
        }
        Ok(self.fma_in_double(ty, [a, b, c]))
    }

    /// The product of two `f32` is exact in `f64`. Its sum with the third is rounded to odd,
    /// which leaves the rounding to `f32` the only one that counts.
    fn fma_in_double(&mut self, ty: Type, operands: [Word; 3]) -> Word {
        let (double, long) = (ty.with_scalar(Scalar::F64), ty.with_scalar(Scalar::U64));
        let (part, wide, bits_type) = (
            self.part_type(ty),
            self.part_type(double),
            self.part_type(long),
        );
        let bools = self.bool_type(ty);
        let [a, b, c] = operands.map(|id| self.b.op(Spv::FConvert, wide, &[id]));
        let product = self.strict(Spv::FMul, wide, &[a, b]);
        let sum = self.strict(Spv::FAdd, wide, &[product, c]);
        // The error of the sum, exactly (Knuth).
        let c_part = self.strict(Spv::FSub, wide, &[sum, product]);
        let product_part = self.strict(Spv::FSub, wide, &[sum, c_part]);
        let product_error = self.strict(Spv::FSub, wide, &[product, product_part]);
        let c_error = self.strict(Spv::FSub, wide, &[c, c_part]);
        let error = self.strict(Spv::FAdd, wide, &[product_error, c_error]);
        let zero = self.float_lanes(double, 0.0);
        let inexact = self.b.op(Spv::FOrdNotEqual, bools, &[error, zero]);
        let bits = self.b.op(Spv::Bitcast, bits_type, &[sum]);
        let (one, nothing) = (self.int_lanes(long, 1), self.int_lanes(long, 0));
        let last = self.b.op(Spv::BitwiseAnd, bits_type, &[bits, one]);
        let even = self.b.op(Spv::IEqual, bools, &[last, nothing]);
        let moves = self.b.op(Spv::LogicalAnd, bools, &[inexact, even]);
        let error_positive = self.b.op(Spv::FOrdGreaterThan, bools, &[error, zero]);
        let sum_positive = self.b.op(Spv::FOrdGreaterThan, bools, &[sum, zero]);
        let outwards = self
            .b
            .op(Spv::LogicalEqual, bools, &[error_positive, sum_positive]);
        let up = self.b.op(Spv::IAdd, bits_type, &[bits, one]);
        let down = self.b.op(Spv::ISub, bits_type, &[bits, one]);
        let neighbour = self.b.op(Spv::Select, bits_type, &[outwards, up, down]);
        let odd = self.b.op(Spv::Select, bits_type, &[moves, neighbour, bits]);
        let odd = self.b.op(Spv::Bitcast, wide, &[odd]);
        self.b.op(Spv::FConvert, part, &[odd])
    }

    /// An operation that no permission lets the driver merge.
    pub(super) fn strict(&mut self, op: Spv, ty: Word, operands: &[Word]) -> Word {
        let id = self.b.op(op, ty, operands);
        self.b
            .decorate(id, rspirv::spirv::Decoration::NoContraction, &[]);
        id
    }

    pub(super) fn transcendental(
        &mut self,
        op: UnaryOp,
        id: Word,
        ty: Type,
    ) -> Result<Word, LowerError> {
        let part = self.part_type(ty);
        let glsl = match op {
            UnaryOp::Rsqrt => Glsl::InverseSqrt,
            UnaryOp::Exp => Glsl::Exp,
            UnaryOp::Exp2 => Glsl::Exp2,
            UnaryOp::Log => Glsl::Log,
            UnaryOp::Log2 => Glsl::Log2,
            UnaryOp::Sin => Glsl::Sin,
            UnaryOp::Cos => Glsl::Cos,
            UnaryOp::Tanh => Glsl::Tanh,
            _ => return self.not_legalised(format!("`{}` of {ty}", op.name())),
        };
        Ok(self.b.glsl(glsl, part, &[id]))
    }

    pub(super) fn pow(&mut self, a: Word, b: Word, ty: Type) -> Result<Word, LowerError> {
        let part = self.part_type(ty);
        Ok(self.b.glsl(Glsl::Pow, part, &[a, b]))
    }
}
