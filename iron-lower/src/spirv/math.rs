//! Transcendental functions and the fused multiply-add.
//!
//! Vulkan's own bounds are loose (`exp` 3 + 2·|x| ULP, `sin` an absolute 2⁻¹¹, `tanh` whatever
//! its formula gives), and drivers flush subnormal results. So `f32` functions are computed here
//! from multiplications, additions and integer operations, in the same order on every driver; `exp`
//! and `exp2` fuse them where the driver's `fma` rounds once, and `exp` leaves the fraction to the
//! driver's `Exp2` where that is known to be accurate (1.77 ULP on NVIDIA's). `f16` goes through
//! `f32`. With the contract's `approximate`, the driver's instruction is used where there is one.
//!
//! Largest errors in ULP of the `f32` result, over all arguments, on a driver whose division is
//! correctly rounded (Vulkan allows 2.5 ULP, which adds at most 2 to `tanh`):
//!
//! Drivers may still flush subnormals in `sqrt`, `rsqrt`, `fma` and comparisons: NVIDIA's does,
//! where its `denorm_preserve` is absent for 32 bits; Mesa's software driver keeps them.
//!
//! | exp | exp2 | log | log2 | sin, cos | tanh | erf | pow | rsqrt (the driver's) |
//! |---|---|---|---|---|---|---|---|---|
//! | 1.02 | 1.25 | 1 | 1 | 2.5 | 1.5 | 1.5 | 6 | 2 |

use iron_ir::contract::Feature;
use iron_ir::op::UnaryOp;
use iron_ir::types::{Scalar, Type};
use rspirv::spirv::{GlslStd450Op as Glsl, Op as Spv, Word};

use super::Emitter;
use super::formula::Formula;
use crate::error::{Lack, LowerError, Unsupported};

impl Emitter<'_> {
    pub(super) fn transcendental(
        &mut self,
        op: UnaryOp,
        id: Word,
        ty: Type,
    ) -> Result<Word, LowerError> {
        let part = self.part_type(ty);
        let (native, wants_native) = match op {
            UnaryOp::Rsqrt => (Some(Glsl::InverseSqrt), true),
            UnaryOp::Exp => (Some(Glsl::Exp), false),
            UnaryOp::Exp2 => (Some(Glsl::Exp2), false),
            UnaryOp::Log => (Some(Glsl::Log), false),
            UnaryOp::Log2 => (Some(Glsl::Log2), false),
            UnaryOp::Sin => (Some(Glsl::Sin), false),
            UnaryOp::Cos => (Some(Glsl::Cos), false),
            UnaryOp::Tanh => (Some(Glsl::Tanh), false),
            UnaryOp::Erf => (None, false),
            _ => return self.not_legalised(format!("`{}` of {ty}", op.name())),
        };
        if ty.scalar == Scalar::F64 && op != UnaryOp::Rsqrt {
            // GLSL.std.450 has no double-precision transcendental function.
            return self.not_legalised(format!("`{}` of {ty}", op.name()));
        }
        match native {
            Some(glsl) if wants_native || self.kernel.contract.permissions.approximate => {
                Ok(self.b.glsl(glsl, part, &[id]))
            }
            _ => self.in_single(ty, &[id], |f, ids| match op {
                UnaryOp::Exp => f.exp(ids[0]),
                UnaryOp::Exp2 => f.exp2(ids[0]),
                UnaryOp::Log => f.log(ids[0]),
                UnaryOp::Log2 => f.log2(ids[0]),
                UnaryOp::Sin => f.sin_cos(ids[0], 0),
                UnaryOp::Cos => f.sin_cos(ids[0], 1),
                UnaryOp::Tanh => f.tanh(ids[0]),
                _ => f.erf(ids[0]),
            }),
        }
    }

    pub(super) fn pow(&mut self, a: Word, b: Word, ty: Type) -> Result<Word, LowerError> {
        if ty.scalar == Scalar::F64 {
            return self.not_legalised(format!("`pow` of {ty}"));
        }
        self.in_single(ty, &[a, b], |f, ids| f.pow(ids[0], ids[1]))
    }

    /// Computes in `f32`.
    fn in_single(
        &mut self,
        ty: Type,
        ids: &[Word],
        compute: impl FnOnce(&mut Formula<'_, '_>, &[Word]) -> Word,
    ) -> Result<Word, LowerError> {
        let single = ty.with_scalar(Scalar::F32);
        let narrow = ty.scalar != Scalar::F32;
        let (part, wide) = (self.part_type(ty), self.part_type(single));
        let operands: Vec<Word> = ids
            .iter()
            .map(|&id| {
                if narrow {
                    self.b.op(Spv::FConvert, wide, &[id])
                } else {
                    id
                }
            })
            .collect();
        let result = compute(&mut Formula::new(self, single), &operands);
        Ok(if narrow {
            self.b.op(Spv::FConvert, part, &[result])
        } else {
            result
        })
    }

    /// `a * b + c`, rounded once.
    pub(super) fn fma(&mut self, ty: Type, [a, b, c]: [Word; 3]) -> Result<Word, LowerError> {
        let part = self.part_type(ty);
        let native = self.options.fused_multiply_add
            || ty.scalar != Scalar::F32
            || !self.profile.has(Feature::F64);
        if ty.scalar == Scalar::F64 && !self.options.fused_multiply_add {
            // No wider type holds the product, and a product and a sum round twice.
            return Err(LowerError::Unsupported(Unsupported {
                kernel: self.kernel.full_name(),
                profile: self.profile.name.into(),
                lack: Lack::Operation {
                    what: "`fma` of f64 that rounds once",
                },
            }));
        }
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
}

/// 2/π in 32-bit words below the binary point, shifted down by two bits. The leading word is the
/// empty one above.
const TWO_OVER_PI: [u32; 8] = [
    0,
    0x28BE_60DB,
    0x9391_054A,
    0x7F09_D5F4,
    0x7D4D_3770,
    0x36D8_A566,
    0x4F10_E410,
    0x7F94_58EA,
];

impl Formula<'_, '_> {
    /// `2^n · p` for an integer `n` in -250..=250, the word of [`nearest`](Formula::nearest), in two
    /// steps so that a subnormal result is rounded once.
    fn scale(&mut self, p: Word, n: Word) -> Word {
        let (one, shift, bias) = (self.int(1), self.int(23), self.int(127 << 23));
        let half = self.i(Spv::ShiftRightLogical, n, one);
        let rest = self.i(Spv::ISub, n, half);
        // Of either word the bits above the exponent's eight are shifted out.
        let [a, b] = [half, rest].map(|k| {
            let exponent = self.i(Spv::ShiftLeftLogical, k, shift);
            let bits = self.i(Spv::IAdd, exponent, bias);
            self.float_of(bits)
        });
        let once = self.mul(p, a);
        self.mul(once, b)
    }

    fn clamp(&mut self, x: Word, low: f32, high: f32) -> Word {
        // Comparisons with NaN are false, so it stays.
        let (low, high) = (self.c(low), self.c(high));
        let below = self.less(x, low);
        let x = self.select(below, low, x);
        let above = self.less(high, x);
        self.select(above, high, x)
    }

    /// e^x: x = n·ln 2 + r, with ln 2 in two parts of which the first has 9 bits.
    pub(super) fn exp(&mut self, x: Word) -> Word {
        if self.has_accurate_exp2() {
            return self.exp_by_driver(x);
        }
        let x = self.clamp(x, -105.0, 89.5);
        let log2_e = self.c(std::f32::consts::LOG2_E);
        let (n, word) = self.nearest(x, log2_e);
        let (high, low) = (self.c(-0.693_359_4), self.c(2.121_944_4e-4));
        let r = self.mul_add(n, high, x);
        let r = self.mul_add(n, low, r);
        let q = self.fused_polynomial(
            r,
            &[
                1.987_569_1e-4,
                1.398_2e-3,
                8.333_452e-3,
                4.166_579_6e-2,
                1.666_666_5e-1,
                5e-1,
            ],
        );
        let square = self.mul(r, r);
        let q = self.mul_add(q, square, r);
        let one = self.c(1.0);
        let p = self.add(q, one);
        self.scale(p, word)
    }

    /// e^x by the driver's power of two: with an integer n near x·log2(e), but from -126 to 126,
    /// 2^n · 2^f, where f takes up what those bounds leave. A sum with 1.5 · 2^23 rounds to n;
    /// 127 more make its low bits those of 2^n's exponent.
    fn exp_by_driver(&mut self, x: Word) -> Word {
        const STEPS: f32 = 252.0;
        const MAGIC: f32 = 12_582_912.0;
        let (each, half) = (self.c(std::f32::consts::LOG2_E / STEPS), self.c(0.5));
        let place = self.mul_add(x, each, half);
        let place = self.saturate(place);
        let (steps, first, back) = (self.c(STEPS), self.c(MAGIC + 1.0), self.c(MAGIC + 127.0));
        let sum = self.mul_add(place, steps, first);
        let minus_n = self.sub(back, sum);
        let (high, low) = (self.c(std::f32::consts::LOG2_E), self.c(1.925_963e-8));
        let f = self.mul_add(x, high, minus_n);
        let f = self.mul_add(x, low, f);
        let p = self.driver_exp2(f);
        let (bits, shift) = (self.bits_of(sum), self.int(23));
        let power = self.i(Spv::ShiftLeftLogical, bits, shift);
        let power = self.float_of(power);
        self.mul(p, power)
    }

    /// 2^x.
    pub(super) fn exp2(&mut self, x: Word) -> Word {
        let x = self.clamp(x, -151.0, 129.0);
        let one = self.c(1.0);
        let (n, word) = self.nearest(x, one);
        let r = self.sub(x, n);
        let p = self.exp2_fraction(r);
        self.scale(p, word)
    }

    /// 2^r for |r| ≤ 1/2 and a little more.
    fn exp2_fraction(&mut self, r: Word) -> Word {
        let q = self.fused_polynomial(
            r,
            &[
                1.535_336_2e-4,
                1.339_887_4e-3,
                9.618_437e-3,
                5.550_332_5e-2,
                2.402_264_8e-1,
                6.931_472e-1,
            ],
        );
        let one = self.c(1.0);
        self.mul_add(q, r, one)
    }

    /// x = 2^k · (1 + f) with 1 + f in √½..√2, and what both logarithms need of f:
    /// (k, f, f²/2, s·(f²/2 + R)).
    fn log_parts(&mut self, x: Word) -> [Word; 4] {
        let tiny = self.int(0x0080_0000);
        let bits = self.bits_of(x);
        let subnormal = self.icompare(Spv::ULessThan, bits, tiny);
        let (up, one) = (self.c(8_388_608.0), self.c(1.0));
        let factor = self.select(subnormal, up, one);
        let x = self.mul(x, factor);
        let bits = self.bits_of(x);
        let (offset, root) = (self.int(0x3F80_0000 - 0x3F35_04F3), self.int(0x3F35_04F3));
        let (shift, bias, mask) = (self.int(23), self.int(127), self.int(0x007F_FFFF));
        let moved = self.i(Spv::IAdd, bits, offset);
        let exponent = self.i(Spv::ShiftRightArithmetic, moved, shift);
        let k = self.i(Spv::ISub, exponent, bias);
        let k = self.float_from_int(k);
        let (shifted, zero) = (self.c(23.0), self.c(0.0));
        let less = self.select(subnormal, shifted, zero);
        let k = self.sub(k, less);
        let mantissa = self.i(Spv::BitwiseAnd, moved, mask);
        let mantissa = self.i(Spv::IAdd, mantissa, root);
        let m = self.float_of(mantissa);
        let f = self.sub(m, one);
        let two = self.c(2.0);
        let divisor = self.add(two, f);
        let s = self.div(f, divisor);
        let z = self.mul(s, s);
        let r = self.polynomial(z, &[0.242_790_79, 0.284_987_87, 0.400_009_72, 0.666_666_6]);
        let r = self.mul(r, z);
        let half = self.c(0.5);
        let square = self.mul(f, f);
        let half_square = self.mul(half, square);
        let sum = self.add(half_square, r);
        let tail = self.mul(s, sum);
        [k, f, half_square, tail]
    }

    /// Zero gives -infinity, below zero and NaN give NaN, infinity stays.
    fn log_special(&mut self, x: Word, result: Word) -> Word {
        let (infinity, lowest) = (self.c(f32::INFINITY), self.c(f32::NEG_INFINITY));
        let nan = self.c(f32::NAN);
        // As integers, numbers from +0 to infinity are the lowest.
        let (bits, largest) = (self.bits_of(x), self.int(0x7F80_0000));
        let is_other = self.icompare(Spv::UGreaterThan, bits, largest);
        let result = self.select(is_other, nan, result);
        let is_infinite = self.icompare(Spv::IEqual, bits, largest);
        let result = self.select(is_infinite, infinity, result);
        let is_zero = self.is_zero(x);
        self.select(is_zero, lowest, result)
    }

    /// ln x.
    pub(super) fn log(&mut self, x: Word) -> Word {
        let [k, f, half_square, tail] = self.log_parts(x);
        let (high, low) = (self.c(6.931_381e-1), self.c(9.058_001e-6));
        let k_low = self.mul(k, low);
        let sum = self.add(tail, k_low);
        let sum = self.sub(sum, half_square);
        let sum = self.add(sum, f);
        let k_high = self.mul(k, high);
        let sum = self.add(sum, k_high);
        self.log_special(x, sum)
    }

    /// log2 of a positive number as a sum: an exact head (k and 24 bits), and a tail.
    fn log2_sum(&mut self, x: Word) -> [Word; 3] {
        let [k, f, half_square, tail] = self.log_parts(x);
        // The head of 12 bits times a constant of 12 bits is exact.
        let head = self.sub(f, half_square);
        let head = self.cut(head, 0xFFFF_F000);
        let rest = self.sub(f, head);
        let rest = self.sub(rest, half_square);
        let rest = self.add(rest, tail);
        let (high, low) = (
            self.c(f32::from_bits(0x3FB8_B000)),
            self.c(f32::from_bits(0xB938_9AD4)),
        );
        let both = self.add(rest, head);
        let both_low = self.mul(both, low);
        let rest_high = self.mul(rest, high);
        let end = self.add(both_low, rest_high);
        let middle = self.mul(head, high);
        [k, middle, end]
    }

    /// log2 x.
    pub(super) fn log2(&mut self, x: Word) -> Word {
        let [k, middle, end] = self.log2_sum(x);
        let sum = self.add(end, middle);
        let sum = self.add(sum, k);
        self.log_special(x, sum)
    }

    /// sin x (`quarter` 0) or cos x (`quarter` 1): the remainder of x by π/2 from the bits of
    /// 2/π that count at x's exponent (Payne and Hanek), so every argument is reduced exactly.
    pub(super) fn sin_cos(&mut self, x: Word, quarter: u32) -> Word {
        let magnitude = self.abs(x);
        let bits = self.bits_of(magnitude);
        let (shift, eight) = (self.int(23), self.int(8));
        let exponent = self.i(Spv::ShiftRightLogical, bits, shift);
        let bias = self.int(126);
        let zero = self.int(0);
        let small = self.icompare(Spv::ULessThan, exponent, bias);
        let above = self.i(Spv::ISub, exponent, bias);
        let above = self.select_int(small, zero, above);
        let mantissa = self.i(Spv::ShiftLeftLogical, bits, eight);
        let top = self.int(0x8000_0000);
        let mantissa = self.i(Spv::BitwiseOr, mantissa, top);
        let (five, low_bits, width) = (self.int(5), self.int(31), self.int(32));
        let index = self.i(Spv::ShiftRightLogical, above, five);
        let e = self.i(Spv::BitwiseAnd, above, low_bits);
        let chosen: Vec<Word> = (1..5)
            .map(|i| {
                let i = self.int(i);
                self.icompare(Spv::IEqual, index, i)
            })
            .collect();
        let words = [0, 1, 2, 3].map(|offset| {
            let mut word = self.int(TWO_OVER_PI[offset]);
            for (i, &is_chosen) in chosen.iter().enumerate() {
                let other = self.int(TWO_OVER_PI[offset + i + 1]);
                word = self.select_int(is_chosen, other, word);
            }
            word
        });
        let is_aligned = self.icompare(Spv::IEqual, e, zero);
        let back = self.i(Spv::ISub, width, e);
        let back = self.i(Spv::BitwiseAnd, back, low_bits);
        let [high, middle, low] = [0, 1, 2].map(|i| {
            let left = self.i(Spv::ShiftLeftLogical, words[i], e);
            let right = self.i(Spv::ShiftRightLogical, words[i + 1], back);
            let both = self.i(Spv::BitwiseOr, left, right);
            self.select_int(is_aligned, words[i], both)
        });
        // The product modulo 2^64: the quadrant in its two highest bits, then the fraction.
        let m = self.widen(mantissa);
        let thirty_two = self.long(32);
        let [high, middle, low] = [high, middle, low].map(|word| {
            let word = self.widen(word);
            self.l(Spv::IMul, m, word)
        });
        let carried = self.l(Spv::ShiftRightLogical, low, thirty_two);
        let product = self.l(Spv::IAdd, middle, carried);
        let high = self.l(Spv::ShiftLeftLogical, high, thirty_two);
        let product = self.l(Spv::IAdd, product, high);
        // To the nearest multiple of π/2.
        let half = self.long(1 << 61);
        let rounded = self.l(Spv::IAdd, product, half);
        let sixty_two = self.long(62);
        let quadrant = self.l(Spv::ShiftRightLogical, rounded, sixty_two);
        let whole = self.l(Spv::ShiftLeftLogical, quadrant, sixty_two);
        let fraction = self.l(Spv::ISub, product, whole);
        let fraction = self.float_from_long(fraction);
        let unit = self.c(f32::from_bits(0x20C9_0FDB));
        let r = self.mul(fraction, unit);
        let quadrant = self.narrow(quadrant);
        let needs_none = {
            let limit = self.c(std::f32::consts::FRAC_PI_4);
            self.less(magnitude, limit)
        };
        let r = self.select(needs_none, magnitude, r);
        let quadrant = self.select_int(needs_none, zero, quadrant);
        let added = self.int(quarter);
        let quadrant = self.i(Spv::IAdd, quadrant, added);

        let z = self.mul(r, r);
        let sine = self.polynomial(z, &[-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]);
        let sine = self.mul(sine, z);
        let sine = self.mul(sine, r);
        let sine = self.add(sine, r);
        let cosine = self.polynomial(z, &[2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]);
        let cosine = self.mul(cosine, z);
        let cosine = self.mul(cosine, z);
        let (half, one) = (self.c(0.5), self.c(1.0));
        let half_z = self.mul(half, z);
        let near_one = self.sub(one, half_z);
        let lost = self.sub(one, near_one);
        let lost = self.sub(lost, half_z);
        let cosine = self.add(cosine, lost);
        let cosine = self.add(cosine, near_one);

        let (first, second) = (self.int(1), self.int(2));
        let odd = self.i(Spv::BitwiseAnd, quadrant, first);
        let odd = self.icompare(Spv::INotEqual, odd, zero);
        let value = self.select(odd, cosine, sine);
        let flips = self.i(Spv::BitwiseAnd, quadrant, second);
        let thirty = self.int(30);
        let mut sign = self.i(Spv::ShiftLeftLogical, flips, thirty);
        if quarter == 0 {
            // The sine is odd; the cosine does not see the sign.
            let all = self.bits_of(x);
            let own = self.i(Spv::BitwiseAnd, all, top);
            sign = self.i(Spv::BitwiseXor, sign, own);
        }
        let bits = self.bits_of(value);
        let bits = self.i(Spv::BitwiseXor, bits, sign);
        let value = self.float_of(bits);
        let (infinity, nan) = (self.c(f32::INFINITY), self.c(f32::NAN));
        let is_finite = self.less(magnitude, infinity);
        self.select(is_finite, value, nan)
    }

    /// tanh x.
    pub(super) fn tanh(&mut self, x: Word) -> Word {
        let magnitude = self.abs(x);
        let z = self.mul(x, x);
        let q = self.polynomial(
            z,
            &[
                -5.704_988_7e-3,
                2.063_909e-2,
                -5.373_971_6e-2,
                1.333_144_2e-1,
                -3.333_328e-1,
            ],
        );
        let q = self.mul(q, z);
        let q = self.mul(q, x);
        let near = self.add(q, x);
        let doubled = self.add(magnitude, magnitude);
        let e = self.exp(doubled);
        let (one, two) = (self.c(1.0), self.c(2.0));
        let divisor = self.add(e, one);
        let gap = self.div(two, divisor);
        let far = self.sub(one, gap);
        let limit = self.c(0.625);
        let is_near = self.less(magnitude, limit);
        let either = self.select(is_near, near, far);
        self.with_sign(either, x)
    }

    /// The error function: a polynomial in x² below 0.93, above it 1 - e^p of a polynomial.
    pub(super) fn erf(&mut self, x: Word) -> Word {
        let all = self.abs(x);
        let t = self.clamp(all, 0.0, 4.0);
        let s = self.mul(t, t);
        let near = self.polynomial(
            s,
            &[
                -5.967_617e-4,
                4.991_194e-3,
                -2.676_813_5e-2,
                1.128_199_2e-1,
                -3.761_253_4e-1,
                1.283_791_7e-1,
            ],
        );
        let near = self.mul(near, x);
        let near = self.add(near, x);
        let p = self.polynomial(
            t,
            &[
                -1.728_534_7e-5,
                3.831_971_3e-4,
                -3.883_964_4e-3,
                2.425_462_2e-2,
                -1.067_778_8e-1,
                -6.348_467e-1,
                -1.287_175_1e-1,
            ],
        );
        let p = self.mul(p, t);
        let p = self.sub(p, t);
        let e = self.exp(p);
        let one = self.c(1.0);
        let far = self.sub(one, e);
        let far = self.with_sign(far, x);
        let limit = self.c(0.927_734_4);
        let is_near = self.less(all, limit);
        self.select(is_near, near, far)
    }

    /// x^y as 2^(y · log2 |x|) with the logarithm and the product in two parts.
    pub(super) fn pow(&mut self, x: Word, y: Word) -> Word {
        let (zero, one, infinity) = (self.c(0.0), self.c(1.0), self.c(f32::INFINITY));
        let magnitude = self.abs(x);
        let [k, middle, end] = self.log2_sum(magnitude);
        // k is an integer and the middle below ½, so their sum's error is exact.
        let head = self.add(k, middle);
        let lost = self.sub(head, k);
        let lost = self.sub(middle, lost);
        let tail = self.add(lost, end);
        let log = self.add(head, tail);
        let taken = self.sub(log, head);
        let log_low = self.sub(tail, taken);
        // The product of y and the logarithm's head, with its error (Dekker).
        let y = self.clamp(y, -1.0e30, 1.0e30);
        let product = self.mul(y, log);
        let [y_high, log_high] = [y, log].map(|v| self.cut(v, 0xFFFF_F000));
        let (y_rest, log_rest) = (self.sub(y, y_high), self.sub(log, log_high));
        let exact = self.mul(y_high, log_high);
        let error = self.sub(exact, product);
        let part = self.mul(y_high, log_rest);
        let error = self.add(error, part);
        let part = self.mul(y_rest, log_high);
        let error = self.add(error, part);
        let part = self.mul(y_rest, log_rest);
        let error = self.add(error, part);
        let part = self.mul(y, log_low);
        let error = self.add(error, part);
        let bounded = self.clamp(product, -250.0, 250.0);
        let is_bounded = self.equal(bounded, product);
        let error = self.select(is_bounded, error, zero);
        let (n, word) = self.nearest(bounded, one);
        let r = self.sub(bounded, n);
        let r = self.add(r, error);
        let p = self.exp2_fraction(r);
        let mut result = self.scale(p, word);

        let y_positive = self.less(zero, y);
        // Of 0 and of infinity.
        let at_zero = self.select(y_positive, zero, infinity);
        let at_infinity = self.select(y_positive, infinity, zero);
        let is_zero = self.is_zero(x);
        result = self.select(is_zero, at_zero, result);
        let is_infinite = self.equal(magnitude, infinity);
        result = self.select(is_infinite, at_infinity, result);
        // Below zero: the sign of an odd power, NaN where the power is no integer.
        let top = self.int(0x8000_0000);
        let none = self.int(0);
        let bits = self.bits_of(x);
        let own = self.i(Spv::BitwiseAnd, bits, top);
        let is_negative = self.icompare(Spv::INotEqual, own, none);
        let whole = self.trunc(y);
        let is_whole = self.same_bits(whole, y);
        let half = self.c(0.5);
        let halved = self.mul(y, half);
        let whole_half = self.trunc(halved);
        let is_even = self.same_bits(whole_half, halved);
        let negated = self.with_sign(result, x);
        let signed = self.select(is_even, result, negated);
        let nan = self.c(f32::NAN);
        let is_finite = self.less(magnitude, infinity);
        let zero_or_less = self.is_zero(x);
        let proper = self.select_bool(zero_or_less, is_finite);
        let no_integer = self.select(proper, nan, result);
        let of_negative = self.select(is_whole, signed, no_integer);
        result = self.select(is_negative, of_negative, result);
        // NaN of either, then the powers that are 1 even of NaN.
        let unordered = self.unordered(x, y);
        result = self.select(unordered, nan, result);
        let minus_one = self.c(-1.0);
        let is_minus_one = self.equal(x, minus_one);
        let y_limit = self.c(1.0e30);
        let y_size = self.abs(y);
        let y_huge = self.equal(y_size, y_limit);
        let one_anyway = self.both(is_minus_one, y_huge);
        result = self.select(one_anyway, one, result);
        let x_is_one = self.equal(x, one);
        let y_is_zero = self.is_zero(y);
        result = self.select(x_is_one, one, result);
        self.select(y_is_zero, one, result)
    }
}
