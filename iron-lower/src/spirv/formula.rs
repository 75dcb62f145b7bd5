//! Short names for the arithmetic of one `f32` part (a scalar or a vector), in which formulas
//! are written. No operation is contracted.

use iron_ir::types::{Scalar, Type};
use rspirv::spirv::{GlslStd450Op as Glsl, Op as Spv, Word};

use super::Emitter;

/// Writes a formula.
pub(super) struct Formula<'e, 'k> {
    emitter: &'e mut Emitter<'k>,
    ty: Type,
    float: Word,
    word: Word,
    long: Word,
    bools: Word,
}

impl<'e, 'k> Formula<'e, 'k> {
    pub fn new(emitter: &'e mut Emitter<'k>, ty: Type) -> Formula<'e, 'k> {
        let float = emitter.part_type(ty);
        let word = emitter.part_type(ty.with_scalar(Scalar::U32));
        let long = emitter.part_type(ty.with_scalar(Scalar::U64));
        let bools = emitter.bool_type(ty);
        Formula {
            emitter,
            ty,
            float,
            word,
            long,
            bools,
        }
    }

    /// A float constant in every lane.
    pub fn c(&mut self, value: f32) -> Word {
        self.emitter
            .constant_lanes(self.ty, u64::from(value.to_bits()))
    }

    /// A 32-bit constant in every lane.
    pub fn int(&mut self, value: u32) -> Word {
        let ty = self.ty.with_scalar(Scalar::U32);
        self.emitter.int_lanes(ty, u64::from(value))
    }

    /// A 64-bit constant in every lane.
    pub fn long(&mut self, value: u64) -> Word {
        let ty = self.ty.with_scalar(Scalar::U64);
        self.emitter.int_lanes(ty, value)
    }

    pub fn add(&mut self, a: Word, b: Word) -> Word {
        self.emitter.strict(Spv::FAdd, self.float, &[a, b])
    }

    pub fn sub(&mut self, a: Word, b: Word) -> Word {
        self.emitter.strict(Spv::FSub, self.float, &[a, b])
    }

    pub fn mul(&mut self, a: Word, b: Word) -> Word {
        self.emitter.strict(Spv::FMul, self.float, &[a, b])
    }

    pub fn div(&mut self, a: Word, b: Word) -> Word {
        self.emitter.strict(Spv::FDiv, self.float, &[a, b])
    }

    /// By its bits: drivers flush subnormals in their instruction.
    pub fn abs(&mut self, a: Word) -> Word {
        self.cut(a, 0x7FFF_FFFF)
    }

    /// The same bits, as a comparison that no driver flushes.
    pub fn same_bits(&mut self, a: Word, b: Word) -> Word {
        let [a, b] = [a, b].map(|v| self.bits_of(v));
        self.icompare(Spv::IEqual, a, b)
    }

    /// Zero of either sign, which no subnormal is.
    pub fn is_zero(&mut self, a: Word) -> Word {
        let magnitude = self.abs(a);
        let bits = self.bits_of(magnitude);
        let zero = self.int(0);
        self.icompare(Spv::IEqual, bits, zero)
    }

    /// `a * b + c` in one rounding where the driver's `fma` does that, else in two.
    pub fn mul_add(&mut self, a: Word, b: Word, c: Word) -> Word {
        if self.emitter.options.fused_multiply_add {
            return self.emitter.b.glsl(Glsl::Fma, self.float, &[a, b, c]);
        }
        let product = self.mul(a, b);
        self.add(product, c)
    }

    /// The integer nearest to `a * b`, even where two are, as a float and in the low 22 bits of a
    /// word; for products below 2^21. A sum with 1.5 · 2^23 rounds it, which takes no conversion:
    /// those run at a fraction of the rate of sums.
    pub fn nearest(&mut self, a: Word, b: Word) -> (Word, Word) {
        let magic = self.c(12_582_912.0);
        let sum = self.mul_add(a, b, magic);
        let nearest = self.sub(sum, magic);
        (nearest, self.bits_of(sum))
    }

    /// Whether [`driver_exp2`](Formula::driver_exp2) is accurate.
    pub fn has_accurate_exp2(&self) -> bool {
        let options = &self.emitter.options;
        options.accurate_exp2 && options.fused_multiply_add
    }

    /// The driver's `2^a`.
    pub fn driver_exp2(&mut self, a: Word) -> Word {
        self.emitter.b.glsl(Glsl::Exp2, self.float, &[a])
    }

    /// `a` within 0 and 1; anything of NaN.
    pub fn saturate(&mut self, a: Word) -> Word {
        let (zero, one) = (self.c(0.0), self.c(1.0));
        self.emitter
            .b
            .glsl(Glsl::FClamp, self.float, &[a, zero, one])
    }

    pub fn trunc(&mut self, a: Word) -> Word {
        self.emitter.b.glsl(Glsl::Trunc, self.float, &[a])
    }

    /// Horner's rule with [`mul_add`](Formula::mul_add), highest coefficient first.
    pub fn fused_polynomial(&mut self, x: Word, coefficients: &[f32]) -> Word {
        let mut sum = None;
        for &coefficient in coefficients {
            let coefficient = self.c(coefficient);
            sum = Some(match sum {
                None => coefficient,
                Some(sum) => self.mul_add(sum, x, coefficient),
            });
        }
        sum.unwrap_or(x)
    }

    /// Horner's rule, highest coefficient first.
    pub fn polynomial(&mut self, x: Word, coefficients: &[f32]) -> Word {
        let mut sum = None;
        for &coefficient in coefficients {
            let coefficient = self.c(coefficient);
            sum = Some(match sum {
                None => coefficient,
                Some(sum) => {
                    let product = self.mul(sum, x);
                    self.add(product, coefficient)
                }
            });
        }
        sum.unwrap_or(x)
    }

    pub fn less(&mut self, a: Word, b: Word) -> Word {
        self.emitter.b.op(Spv::FOrdLessThan, self.bools, &[a, b])
    }

    pub fn equal(&mut self, a: Word, b: Word) -> Word {
        self.emitter.b.op(Spv::FOrdEqual, self.bools, &[a, b])
    }

    /// Either is NaN.
    pub fn unordered(&mut self, a: Word, b: Word) -> Word {
        let [a, b] = [a, b].map(|v| {
            let magnitude = self.abs(v);
            let bits = self.bits_of(magnitude);
            let infinity = self.int(0x7F80_0000);
            self.icompare(Spv::UGreaterThan, bits, infinity)
        });
        self.emitter.b.op(Spv::Select, self.bools, &[a, a, b])
    }

    /// `b` where not `a`.
    pub fn select_bool(&mut self, not: Word, b: Word) -> Word {
        let not = self.emitter.b.op(Spv::LogicalNot, self.bools, &[not]);
        self.both(not, b)
    }

    /// Both, as a selection: naga has no logical operators of vectors.
    pub fn both(&mut self, a: Word, b: Word) -> Word {
        self.emitter.b.op(Spv::Select, self.bools, &[a, b, a])
    }

    pub fn select(&mut self, condition: Word, a: Word, b: Word) -> Word {
        self.emitter
            .b
            .op(Spv::Select, self.float, &[condition, a, b])
    }

    pub fn select_int(&mut self, condition: Word, a: Word, b: Word) -> Word {
        self.emitter
            .b
            .op(Spv::Select, self.word, &[condition, a, b])
    }

    /// A 32-bit integer operation.
    pub fn i(&mut self, op: Spv, a: Word, b: Word) -> Word {
        self.emitter.b.op(op, self.word, &[a, b])
    }

    /// A 64-bit integer operation.
    pub fn l(&mut self, op: Spv, a: Word, b: Word) -> Word {
        self.emitter.b.op(op, self.long, &[a, b])
    }

    pub fn icompare(&mut self, op: Spv, a: Word, b: Word) -> Word {
        self.emitter.b.op(op, self.bools, &[a, b])
    }

    pub fn bits_of(&mut self, a: Word) -> Word {
        self.emitter.b.op(Spv::Bitcast, self.word, &[a])
    }

    pub fn float_of(&mut self, bits: Word) -> Word {
        self.emitter.b.op(Spv::Bitcast, self.float, &[bits])
    }

    pub fn float_from_int(&mut self, a: Word) -> Word {
        self.emitter.b.op(Spv::ConvertSToF, self.float, &[a])
    }

    pub fn float_from_long(&mut self, a: Word) -> Word {
        self.emitter.b.op(Spv::ConvertSToF, self.float, &[a])
    }

    pub fn widen(&mut self, a: Word) -> Word {
        self.emitter.b.op(Spv::UConvert, self.long, &[a])
    }

    pub fn narrow(&mut self, a: Word) -> Word {
        self.emitter.b.op(Spv::UConvert, self.word, &[a])
    }

    /// The float with only the bits of a mask.
    pub fn cut(&mut self, a: Word, mask: u32) -> Word {
        let bits = self.bits_of(a);
        let mask = self.int(mask);
        let bits = self.i(Spv::BitwiseAnd, bits, mask);
        self.float_of(bits)
    }

    /// A number that is not negative, with the sign of another.
    pub fn with_sign(&mut self, a: Word, sign: Word) -> Word {
        let (bits, sign) = (self.bits_of(a), self.bits_of(sign));
        let top = self.int(0x8000_0000);
        let sign = self.i(Spv::BitwiseAnd, sign, top);
        let bits = self.i(Spv::BitwiseOr, bits, sign);
        self.float_of(bits)
    }
}
