//! Bit operations and wide products. Vulkan's bit instructions take 32-bit operands, so other
//! widths are built from them.

use iron_ir::op::UnaryOp;
use iron_ir::types::{Scalar, Type};
use rspirv::spirv::{GlslStd450Op as Glsl, Op as Spv, Word};

use super::Emitter;
use crate::error::LowerError;

impl Emitter<'_> {
    /// Counts (`u32`) and reversal of one part.
    pub(super) fn bit_operation(
        &mut self,
        op: UnaryOp,
        id: Word,
        from: Type,
    ) -> Result<Word, LowerError> {
        let bits = from.scalar.bits();
        let word = from.with_scalar(Scalar::U32);
        let word_type = self.part_type(word);
        if bits == 64 {
            return Ok(self.bit_operation_64(op, id, from));
        }
        let wide = if bits == 32 {
            id
        } else {
            self.b.op(Spv::UConvert, word_type, &[id])
        };
        Ok(match op {
            UnaryOp::CountOnes => self.b.op(Spv::BitCount, word_type, &[wide]),
            UnaryOp::LeadingZeros => {
                let zeros = self.leading_zeros_32(wide, word);
                let extra = self.int_lanes(word, u64::from(32 - bits));
                self.b.op(Spv::ISub, word_type, &[zeros, extra])
            }
            UnaryOp::TrailingZeros => {
                let guarded = if bits == 32 {
                    wide
                } else {
                    let stop = self.int_lanes(word, 1 << bits);
                    self.b.op(Spv::BitwiseOr, word_type, &[wide, stop])
                };
                self.trailing_zeros_32(guarded, word)
            }
            UnaryOp::ReverseBits => {
                let reversed = self.b.op(Spv::BitReverse, word_type, &[wide]);
                if bits == 32 {
                    return Ok(reversed);
                }
                let shift = self.int_lanes(word, u64::from(32 - bits));
                let low = self
                    .b
                    .op(Spv::ShiftRightLogical, word_type, &[reversed, shift]);
                let part = self.part_type(from);
                self.b.op(Spv::UConvert, part, &[low])
            }
            _ => return self.not_legalised(format!("`{}` as a bit operation", op.name())),
        })
    }

    fn leading_zeros_32(&mut self, id: Word, word: Type) -> Word {
        // The most significant bit of 0 is -1, and 31 - -1 is 32.
        let word_type = self.part_type(word);
        let top = self.b.glsl(Glsl::FindUMsb, word_type, &[id]);
        let last = self.int_lanes(word, 31);
        self.b.op(Spv::ISub, word_type, &[last, top])
    }

    fn trailing_zeros_32(&mut self, id: Word, word: Type) -> Word {
        // The least significant bit of 0 is -1.
        let word_type = self.part_type(word);
        let bottom = self.b.glsl(Glsl::FindILsb, word_type, &[id]);
        let width = self.int_lanes(word, 32);
        self.b.glsl(Glsl::UMin, word_type, &[bottom, width])
    }

    fn bit_operation_64(&mut self, op: UnaryOp, id: Word, from: Type) -> Word {
        let wide = self.part_type(from);
        let word = from.with_scalar(Scalar::U32);
        let word_type = self.part_type(word);
        let bools = self.bool_type(from);
        let shift = self.int_lanes(from, 32);
        let low = self.b.op(Spv::UConvert, word_type, &[id]);
        let upper = self.b.op(Spv::ShiftRightLogical, wide, &[id, shift]);
        let high = self.b.op(Spv::UConvert, word_type, &[upper]);
        let zero = self.int_lanes(word, 0);
        let width = self.int_lanes(word, 32);
        match op {
            UnaryOp::LeadingZeros => {
                let (in_low, in_high) = (
                    self.leading_zeros_32(low, word),
                    self.leading_zeros_32(high, word),
                );
                let below = self.b.op(Spv::IAdd, word_type, &[in_low, width]);
                let empty = self.b.op(Spv::IEqual, bools, &[high, zero]);
                self.b.op(Spv::Select, word_type, &[empty, below, in_high])
            }
            UnaryOp::TrailingZeros => {
                let (in_low, in_high) = (
                    self.trailing_zeros_32(low, word),
                    self.trailing_zeros_32(high, word),
                );
                let above = self.b.op(Spv::IAdd, word_type, &[in_high, width]);
                let empty = self.b.op(Spv::IEqual, bools, &[low, zero]);
                self.b.op(Spv::Select, word_type, &[empty, above, in_low])
            }
            UnaryOp::ReverseBits => {
                let [new_high, new_low] = [low, high].map(|half| {
                    let reversed = self.b.op(Spv::BitReverse, word_type, &[half]);
                    self.b.op(Spv::UConvert, wide, &[reversed])
                });
                let upper = self.b.op(Spv::ShiftLeftLogical, wide, &[new_high, shift]);
                self.b.op(Spv::BitwiseOr, wide, &[upper, new_low])
            }
            _ => {
                let ones = [low, high].map(|half| self.b.op(Spv::BitCount, word_type, &[half]));
                self.b.op(Spv::IAdd, word_type, &ones)
            }
        }
    }

    /// The upper half of a product.
    pub(super) fn mul_high(&mut self, a: Word, b: Word, ty: Type) -> Word {
        if ty.scalar.bytes() == 8 {
            return self.mul_high_64(a, b, ty);
        }
        let signed = ty.scalar.is_signed();
        let wide = ty.with_scalar(if signed { Scalar::I64 } else { Scalar::U64 });
        let (wide_type, part) = (self.part_type(wide), self.part_type(ty));
        let widen = if signed { Spv::SConvert } else { Spv::UConvert };
        let [x, y] = [a, b].map(|id| self.b.op(widen, wide_type, &[id]));
        let product = self.b.op(Spv::IMul, wide_type, &[x, y]);
        let shift = self.int_lanes(wide, u64::from(ty.scalar.bits()));
        let high = self
            .b
            .op(Spv::ShiftRightLogical, wide_type, &[product, shift]);
        self.b.op(Spv::UConvert, part, &[high])
    }

    /// Schoolbook product of 32-bit halves; the signed form subtracts what the sign bits added.
    fn mul_high_64(&mut self, a: Word, b: Word, ty: Type) -> Word {
        let part = self.part_type(ty);
        let (mask, half) = (self.int_lanes(ty, 0xFFFF_FFFF), self.int_lanes(ty, 32));
        let [a0, b0] = [a, b].map(|id| self.b.op(Spv::BitwiseAnd, part, &[id, mask]));
        let [a1, b1] = [a, b].map(|id| self.b.op(Spv::ShiftRightLogical, part, &[id, half]));
        let low = self.b.op(Spv::IMul, part, &[a0, b0]);
        let cross = self.b.op(Spv::IMul, part, &[a1, b0]);
        let carry = self.b.op(Spv::ShiftRightLogical, part, &[low, half]);
        let middle = self.b.op(Spv::IAdd, part, &[cross, carry]);
        let middle_low = self.b.op(Spv::BitwiseAnd, part, &[middle, mask]);
        let middle_high = self.b.op(Spv::ShiftRightLogical, part, &[middle, half]);
        let other = self.b.op(Spv::IMul, part, &[a0, b1]);
        let other = self.b.op(Spv::IAdd, part, &[other, middle_low]);
        let other_high = self.b.op(Spv::ShiftRightLogical, part, &[other, half]);
        let top = self.b.op(Spv::IMul, part, &[a1, b1]);
        let top = self.b.op(Spv::IAdd, part, &[top, middle_high]);
        let mut high = self.b.op(Spv::IAdd, part, &[top, other_high]);
        if ty.scalar.is_signed() {
            let sign = self.int_lanes(ty, 63);
            for (x, y) in [(a, b), (b, a)] {
                let fill = self.b.op(Spv::ShiftRightArithmetic, part, &[x, sign]);
                let excess = self.b.op(Spv::BitwiseAnd, part, &[fill, y]);
                high = self.b.op(Spv::ISub, part, &[high, excess]);
            }
        }
        high
    }
}
