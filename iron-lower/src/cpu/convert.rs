//! Conversions between scalars, and the exponential functions.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F64, I32, I64};
use cranelift_codegen::ir::{self, InstBuilder};
use iron_ir::{Class, Scalar};

use super::emit::{CpuError, Emitter};
use super::ops::{half, is_narrow, machine_type};

impl Emitter<'_, '_> {
    /// `e^a` as `2^n · p(r)`: `n` whole and `r` what is left of `a` after `n` times `ln 2`, which
    /// is taken in two parts. The error is below 2 ULP.
    pub(super) fn exp(&mut self, x4: bool, a: ir::Value) -> ir::Value {
        // Beyond these, results are infinite or zero, as they are at them.
        let a = self.clamp(x4, a, -104.0, 89.0);
        let log2e = self.float(x4, std::f32::consts::LOG2_E);
        let turns = self.b.ins().fmul(a, log2e);
        let (n, whole) = self.nearest_whole(x4, turns);
        let minus = self.b.ins().fneg(n);
        let high = self.float(x4, 0.693_145_75);
        let low = self.float(x4, 1.428_606_8e-6);
        let r = self.b.ins().fma(minus, high, a);
        let r = self.b.ins().fma(minus, low, r);
        let p = self.exp_polynomial(x4, r);
        self.scale(x4, p, whole)
    }

    pub(super) fn exp2(&mut self, x4: bool, a: ir::Value) -> ir::Value {
        let a = self.clamp(x4, a, -151.0, 129.0);
        let (n, whole) = self.nearest_whole(x4, a);
        let fraction = self.b.ins().fsub(a, n);
        let ln2 = self.float(x4, std::f32::consts::LN_2);
        let r = self.b.ins().fmul(fraction, ln2);
        let p = self.exp_polynomial(x4, r);
        self.scale(x4, p, whole)
    }

    /// Brings a number into a range; NaN stays.
    fn clamp(&mut self, x4: bool, a: ir::Value, low: f32, high: f32) -> ir::Value {
        let low = self.float(x4, low);
        let high = self.float(x4, high);
        let is_low = self.b.ins().fcmp(FloatCC::LessThan, a, low);
        let is_high = self.b.ins().fcmp(FloatCC::GreaterThan, a, high);
        let a = self.choose(x4, is_low, low, a);
        self.choose(x4, is_high, high, a)
    }

    /// The nearest whole number below 2^22 in size, as a float and as an integer: adding 1.5 · 2^23
    /// leaves it in the low bits.
    fn nearest_whole(&mut self, x4: bool, a: ir::Value) -> (ir::Value, ir::Value) {
        let magic = self.float(x4, 12_582_912.0);
        let shifted = self.b.ins().fadd(a, magic);
        let n = self.b.ins().fsub(shifted, magic);
        let bits = self.bits(x4, shifted);
        let magic_bits = self.int(Scalar::U32, x4, 0x4B40_0000);
        (n, self.b.ins().isub(bits, magic_bits))
    }

    /// `e^r` for `|r| <= ln 2 / 2`, by Taylor's polynomial of degree 7 with rounded fusions.
    fn exp_polynomial(&mut self, x4: bool, r: ir::Value) -> ir::Value {
        let coefficients = [
            1.0 / 5040.0,
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5,
            1.0,
            1.0,
        ];
        let mut p = self.float(x4, coefficients[0]);
        for c in &coefficients[1..] {
            let c = self.float(x4, *c);
            p = self.b.ins().fma(p, r, c);
        }
        p
    }

    /// `p · 2^n` for whole `n` within ±160, in two steps so that neither power leaves the range.
    fn scale(&mut self, x4: bool, p: ir::Value, n: ir::Value) -> ir::Value {
        let first = self.sar(n, 1);
        let second = self.b.ins().isub(n, first);
        let bias = self.int(Scalar::U32, x4, 127);
        let mut p = p;
        for part in [first, second] {
            let exponent = self.b.ins().iadd(part, bias);
            let bits = self.shl(exponent, 23);
            let power = self.unbits(x4, bits);
            p = self.b.ins().fmul(p, power);
        }
        p
    }

    /// The bits of `f16` or `bf16` as `f32`.
    pub(super) fn widen_half(&mut self, scalar: Scalar, x4: bool, a: ir::Value) -> ir::Value {
        if scalar == Scalar::BF16 {
            let bits = self.shl(a, 16);
            return self.unbits(x4, bits);
        }
        let magnitude_mask = self.int(Scalar::U32, x4, 0x7FFF);
        let sign_mask = self.int(Scalar::U32, x4, 0x8000);
        let magnitude = self.b.ins().band(a, magnitude_mask);
        let sign = self.b.ins().band(a, sign_mask);
        let sign = self.shl(sign, 16);
        let moved = self.shl(magnitude, 13);
        let small = self.unbits(x4, moved);
        // 2^112: the difference of the exponents' biases; exact for subnormals too.
        let bias = self.float(x4, f32::from_bits(0x7780_0000));
        let value = self.b.ins().fmul(small, bias);
        let value = self.bits(x4, value);
        let top = self.int(Scalar::U32, x4, 0x7C00 - 1);
        let special = self.b.ins().icmp(IntCC::SignedGreaterThan, magnitude, top);
        let exponent = self.int(Scalar::U32, x4, 0x7F80_0000);
        let widened = self.b.ins().bor(moved, exponent);
        let value = self.choose(x4, special, widened, value);
        let value = self.b.ins().bor(value, sign);
        self.unbits(x4, value)
    }

    /// `f32` rounded to nearest even to the bits of `f16` or `bf16`.
    pub(super) fn narrow_half(&mut self, scalar: Scalar, x4: bool, a: ir::Value) -> ir::Value {
        let u = self.bits(x4, a);
        let nan = self.b.ins().fcmp(FloatCC::Unordered, a, a);
        let one = self.int(Scalar::U32, x4, 1);
        if scalar == Scalar::BF16 {
            let odd = self.shr(u, 16);
            let odd = self.b.ins().band(odd, one);
            let half_way = self.int(Scalar::U32, x4, 0x7FFF);
            let rounded = self.b.ins().iadd(u, half_way);
            let rounded = self.b.ins().iadd(rounded, odd);
            let rounded = self.shr(rounded, 16);
            let quiet = self.shr(u, 16);
            let bit = self.int(Scalar::U32, x4, 0x40);
            let quiet = self.b.ins().bor(quiet, bit);
            return self.choose(x4, nan, quiet, rounded);
        }
        let sign = self.shr(u, 16);
        let sign_mask = self.int(Scalar::U32, x4, 0x8000);
        let sign = self.b.ins().band(sign, sign_mask);
        let magnitude_mask = self.int(Scalar::U32, x4, 0x7FFF_FFFF);
        let magnitude = self.b.ins().band(u, magnitude_mask);
        // Normal results: round the 13 lowest bits away.
        let odd = self.shr(magnitude, 13);
        let odd = self.b.ins().band(odd, one);
        let bias = self.int(Scalar::U32, x4, i64::from(0xC800_0FFFu32 as i32));
        let normal = self.b.ins().iadd(magnitude, bias);
        let normal = self.b.ins().iadd(normal, odd);
        let normal = self.shr(normal, 13);
        // Subnormal results: adding one half lines up the bits that stay.
        let half = self.float(x4, 0.5);
        let half_bits = self.bits(x4, half);
        let size = self.unbits(x4, magnitude);
        let lined = self.b.ins().fadd(size, half);
        let lined = self.bits(x4, lined);
        let subnormal = self.b.ins().isub(lined, half_bits);
        let least = self.int(Scalar::U32, x4, 0x3880_0000);
        let is_small = self.b.ins().icmp(IntCC::SignedLessThan, magnitude, least);
        let value = self.choose(x4, is_small, subnormal, normal);
        let limit = self.int(Scalar::U32, x4, 0x4780_0000 - 1);
        let is_large = self
            .b
            .ins()
            .icmp(IntCC::SignedGreaterThan, magnitude, limit);
        let infinity = self.int(Scalar::U32, x4, 0x7C00);
        let value = self.choose(x4, is_large, infinity, value);
        let quiet = self.int(Scalar::U32, x4, 0x7E00);
        let value = self.choose(x4, nan, quiet, value);
        self.b.ins().bor(value, sign)
    }

    pub(super) fn convert(
        &mut self,
        from: Scalar,
        to: Scalar,
        x4: bool,
        a: ir::Value,
    ) -> Result<ir::Value, CpuError> {
        if from == to {
            return Ok(a);
        }
        if from.class() == Class::Packed || to.class() == Class::Packed {
            return Err(CpuError::no(format!("conversion of {from} to {to}")));
        }
        if half(from) {
            let wide = self.widen_half(from, x4, a);
            return self.convert(Scalar::F32, to, x4, wide);
        }
        if from == Scalar::Bool {
            let one = self.int(Scalar::U32, x4, 1);
            let n = if x4 {
                self.b.ins().band(a, one)
            } else {
                self.b.ins().uextend(I32, a)
            };
            return self.convert(Scalar::U8, to, x4, n);
        }
        if to == Scalar::Bool {
            return Ok(if from.is_float() {
                let zero = if from == Scalar::F64 {
                    self.b.ins().f64const(0.0)
                } else {
                    self.float(x4, 0.0)
                };
                self.b.ins().fcmp(FloatCC::NotEqual, a, zero)
            } else {
                let zero = self.int(from, x4, 0);
                self.b.ins().icmp(IntCC::NotEqual, a, zero)
            });
        }
        match (from.is_float(), to.is_float()) {
            (true, true) => Ok(match (from, to) {
                (Scalar::F32, Scalar::F64) => self.b.ins().fpromote(F64, a),
                (Scalar::F64, Scalar::F32) => self.b.ins().fdemote(F32, a),
                (Scalar::F32, _) => self.narrow_half(to, x4, a),
                _ => self.call_math(
                    if to == Scalar::F16 {
                        "f64_to_f16"
                    } else {
                        "f64_to_bf16"
                    },
                    from,
                    &[a],
                )?,
            }),
            (true, false) => {
                let wide = !is_narrow(to);
                let ty = if wide {
                    I64
                } else {
                    machine_type(Scalar::U32, x4)
                };
                if to.is_signed() {
                    let x = self.b.ins().fcvt_to_sint_sat(ty, a);
                    if to.bytes() >= 4 {
                        return Ok(x);
                    }
                    let low = self.int(Scalar::I32, x4, -(1 << (to.bits() - 1)));
                    let high = self.int(Scalar::I32, x4, (1 << (to.bits() - 1)) - 1);
                    let x = self.b.ins().smax(x, low);
                    Ok(self.b.ins().smin(x, high))
                } else {
                    let x = self.b.ins().fcvt_to_uint_sat(ty, a);
                    if to.bytes() >= 4 {
                        return Ok(x);
                    }
                    let high = self.int(Scalar::U32, x4, (1 << to.bits()) - 1);
                    Ok(self.b.ins().umin(x, high))
                }
            }
            (false, true) => {
                if half(to) && from.bytes() <= 2 {
                    let wide = self.convert(from, Scalar::F32, x4, a)?;
                    return Ok(self.narrow_half(to, x4, wide));
                }
                if half(to) {
                    // Rounding twice would be wrong; these go through a function.
                    let wide = match (from.bytes(), from.is_signed()) {
                        (8, _) => a,
                        (_, true) => self.b.ins().sextend(I64, a),
                        (_, false) => self.b.ins().uextend(I64, a),
                    };
                    let signed = from.is_signed() || from.bytes() < 8;
                    let name = match (to, signed) {
                        (Scalar::F16, true) => "i64_to_f16",
                        (Scalar::F16, false) => "u64_to_f16",
                        (_, true) => "i64_to_bf16",
                        (_, false) => "u64_to_bf16",
                    };
                    return self.call_math(name, Scalar::I64, &[wide]);
                }
                let ty = machine_type(to, x4);
                if from.is_signed() || from.bytes() <= 2 {
                    Ok(self.b.ins().fcvt_from_sint(ty, a))
                } else if from == Scalar::U32 && !x4 {
                    let wide = self.b.ins().uextend(I64, a);
                    Ok(self.b.ins().fcvt_from_sint(ty, wide))
                } else {
                    Ok(self.b.ins().fcvt_from_uint(ty, a))
                }
            }
            (false, false) => Ok(match (is_narrow(from), is_narrow(to)) {
                (true, false) if from.is_signed() => self.b.ins().sextend(I64, a),
                (true, false) => self.b.ins().uextend(I64, a),
                (false, true) => {
                    let x = self.b.ins().ireduce(I32, a);
                    self.wrap(to, x4, x)
                }
                (true, true) => self.wrap(to, x4, a),
                (false, false) => a,
            }),
        }
    }
}
