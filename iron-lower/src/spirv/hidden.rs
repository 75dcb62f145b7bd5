//! Operands that a driver must not recognise as zero.
//!
//! Mesa's software driver computes `0 / x`, `x / 0`, `0 · x` and `0 + x` with a constant zero
//! without looking at the other operand, so that a sign, an infinity or a NaN is lost; a product
//! with a constant one leaves a signalling NaN as it is; and a choice between one and -0 is one
//! between one and +0. Where
//! [`SpirvOptions::drops_zero_operands`](crate::profile::SpirvOptions) says so, every operand that
//! its compiler could find to be a constant is joined by exclusive or with a zero that it cannot
//! see through. Results of such operations are never constants, nor is what memory holds.

use iron_ir::entity::Value;
use iron_ir::op::{BinaryOp, BuiltinOp};
use iron_ir::types::{Scalar, Type};
use iron_ir::{Op, Place};
use rspirv::spirv::{Op as Spv, Word};

use super::Emitter;
use super::value::is_ieee;

impl Emitter<'_> {
    /// Whether the driver's compiler may find the operand to be a constant zero.
    pub(super) fn needs_hiding(&self, value: Value, ty: Type) -> bool {
        if !self.options.drops_zero_operands || !is_ieee(ty.scalar) {
            return false;
        }
        match &self.kernel.values[value].op {
            Op::Const(constant) => {
                let number = constant.as_f64();
                number == 0.0 || number == 1.0 || number.is_nan()
            }
            Op::Load { place, .. } => {
                matches!(place, Place::Array(a) if self.kernel.arrays[*a].space
                    == iron_ir::kernel::Space::Private)
            }
            Op::Fma(..) => false,
            Op::Binary(op, ..) => !matches!(
                op,
                BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div
            ),
            _ => true,
        }
    }

    /// Whether a choice of this constant would lose its sign.
    pub(super) fn is_hidden_choice(&self, value: Value, ty: Type) -> bool {
        self.options.drops_zero_operands
            && is_ieee(ty.scalar)
            && self.kernel.constant(value).is_some_and(|constant| {
                let number = constant.as_f64();
                number == 0.0 && number.is_sign_negative()
            })
    }

    /// The operand, one part of it, as something that is no constant.
    pub(super) fn hide(&mut self, id: Word, ty: Type) -> Word {
        let bits = ty.with_scalar(ty.scalar.unsigned_of_width());
        let (part, bits_type) = (self.part_type(ty), self.part_type(bits));
        let zero = self.unseen_zero(bits);
        let word = self.b.op(Spv::Bitcast, bits_type, &[id]);
        let word = self.b.op(Spv::BitwiseXor, bits_type, &[word, zero]);
        self.b.op(Spv::Bitcast, part, &[word])
    }

    /// Zero in every lane of a part: the highest bit of the thread's index.
    fn unseen_zero(&mut self, ty: Type) -> Word {
        let u32_type = self.b.type_int(32);
        let index = self.interface.places[&(BuiltinOp::LocalIndex, 0)];
        let shift = self.b.constant_u32(31);
        let zero = self.b.op(Spv::ShiftRightLogical, u32_type, &[index, shift]);
        let scalar = self.scalar_type(ty.scalar);
        let zero = match ty.scalar {
            Scalar::U32 => zero,
            _ => self.b.op(Spv::UConvert, scalar, &[zero]),
        };
        let lanes = super::part_lanes(ty) as usize;
        if lanes == 1 {
            return zero;
        }
        let part = self.part_type(ty);
        self.b.op(Spv::CompositeConstruct, part, &vec![zero; lanes])
    }

    /// Whether the kernel has an operand to hide, which takes the thread's index.
    pub(super) fn hides_operands(&self) -> bool {
        self.kernel.values.values().any(|data| match &data.op {
            Op::Binary(_, a, b) => [a, b].into_iter().any(|v| self.needs_hiding(*v, data.ty)),
            Op::Fma(a, b, c) => [a, b, c]
                .into_iter()
                .any(|v| self.needs_hiding(*v, data.ty)),
            Op::Select(_, a, b) => [a, b]
                .into_iter()
                .any(|v| self.is_hidden_choice(*v, data.ty)),
            _ => false,
        })
    }
}
