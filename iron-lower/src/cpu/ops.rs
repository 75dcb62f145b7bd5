//! Arithmetic on machine values: each operation is written once for a scalar and for four
//! 32-bit lanes side by side, which Cranelift's instructions both take.
//!
//! Integers of 8 and 16 bits are held in 32 bits, extended by their sign; so are the bits of
//! `f16`, `bf16` and packed types, extended by zeros. `bool` is 0 or 1 in 8 bits as a scalar,
//! and a mask of 32 bits as a lane.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F32X4, F64, I8, I8X16, I32, I32X4, I64};
use cranelift_codegen::ir::{self, InstBuilder, MemFlagsData};
use iron_ir::op::{BinaryOp, CompareOp, UnaryOp};
use iron_ir::{Class, Scalar};

use super::emit::{CpuError, Emitter};

/// An elementwise operation with the scalar types it works on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Calc {
    Unary(UnaryOp, Scalar),
    Binary(BinaryOp, Scalar),
    /// Shift by one count for all lanes; the second operand is a scalar `I32`.
    ShiftBy(BinaryOp, Scalar),
    Compare(CompareOp, Scalar),
    /// Condition, then, else; the condition is of the lanes.
    Select,
    Fma(Scalar),
    /// A product of four bytes and the third operand.
    DotSum(BinaryOp, Scalar),
    Convert(Scalar, Scalar),
}

/// Whether values of a type fit a lane of 32 bits.
pub(super) fn is_narrow(scalar: Scalar) -> bool {
    scalar.bytes() <= 4
}

/// The machine type of a scalar, or of four.
pub(super) fn machine_type(scalar: Scalar, x4: bool) -> ir::Type {
    match (scalar, x4) {
        (Scalar::F32, false) => F32,
        (Scalar::F32, true) => F32X4,
        (Scalar::F64, _) => F64,
        (Scalar::Bool, false) => I8,
        (Scalar::I64 | Scalar::U64, _) => I64,
        (_, false) => I32,
        (_, true) => I32X4,
    }
}

/// `f16` or `bf16`.
pub(super) fn half(scalar: Scalar) -> bool {
    matches!(scalar, Scalar::F16 | Scalar::BF16)
}

impl Calc {
    /// Whether four lanes side by side can be computed at once.
    pub fn is_vector(self) -> bool {
        match self {
            Calc::Unary(op, scalar) => match op {
                UnaryOp::Log
                | UnaryOp::Log2
                | UnaryOp::Sin
                | UnaryOp::Cos
                | UnaryOp::Tanh
                | UnaryOp::Erf
                | UnaryOp::CountOnes
                | UnaryOp::LeadingZeros
                | UnaryOp::TrailingZeros
                | UnaryOp::ReverseBits => false,
                _ => is_narrow(scalar),
            },
            Calc::Binary(op, scalar) => match op {
                BinaryOp::Div => scalar.is_float() && is_narrow(scalar),
                BinaryOp::Rem
                | BinaryOp::Shl
                | BinaryOp::Shr
                | BinaryOp::MulHigh
                | BinaryOp::Pow => false,
                _ => is_narrow(scalar),
            },
            Calc::ShiftBy(_, scalar)
            | Calc::Compare(_, scalar)
            | Calc::Fma(scalar)
            | Calc::DotSum(_, scalar) => is_narrow(scalar),
            Calc::Select => true,
            Calc::Convert(from, to) => {
                let float = |s| s == Scalar::F32 || half(s);
                let exact = from.bytes() <= 2 || !half(to) || float(from);
                is_narrow(from) && is_narrow(to) && exact
            }
        }
    }
}

impl Emitter<'_, '_> {
    pub(super) fn splat_const_i(&mut self, x4: bool, n: i64) -> ir::Value {
        let n = i64::from(n as i32);
        let c = self.b.ins().iconst(I32, n & 0xFFFF_FFFF);
        if x4 { self.b.ins().splat(I32X4, c) } else { c }
    }

    /// An integer constant of a scalar's machine type.
    pub(super) fn int(&mut self, scalar: Scalar, x4: bool, n: i64) -> ir::Value {
        match machine_type(scalar, x4) {
            I64 => self.b.ins().iconst(I64, n),
            I8 => self.b.ins().iconst(I8, n & 1),
            _ => self.splat_const_i(x4, n),
        }
    }

    /// A float constant.
    pub(super) fn float(&mut self, x4: bool, x: f32) -> ir::Value {
        let c = self.b.ins().f32const(x);
        if x4 { self.b.ins().splat(F32X4, c) } else { c }
    }

    pub(super) fn bits(&mut self, x4: bool, x: ir::Value) -> ir::Value {
        self.cast(if x4 { I32X4 } else { I32 }, x)
    }

    pub(super) fn unbits(&mut self, x4: bool, x: ir::Value) -> ir::Value {
        self.cast(if x4 { F32X4 } else { F32 }, x)
    }

    /// The same bits as another machine type.
    pub(super) fn cast(&mut self, ty: ir::Type, x: ir::Value) -> ir::Value {
        if self.b.func.dfg.value_type(x) == ty {
            return x;
        }
        let flags = MemFlagsData::new().with_endianness(ir::Endianness::Little);
        self.b.ins().bitcast(ty, flags, x)
    }

    pub(super) fn shl(&mut self, x: ir::Value, n: i64) -> ir::Value {
        let n = self.b.ins().iconst(I32, n);
        self.b.ins().ishl(x, n)
    }

    pub(super) fn shr(&mut self, x: ir::Value, n: i64) -> ir::Value {
        let n = self.b.ins().iconst(I32, n);
        self.b.ins().ushr(x, n)
    }

    pub(super) fn sar(&mut self, x: ir::Value, n: i64) -> ir::Value {
        let n = self.b.ins().iconst(I32, n);
        self.b.ins().sshr(x, n)
    }

    /// Brings an integer result back to its width.
    pub(super) fn wrap(&mut self, scalar: Scalar, x4: bool, x: ir::Value) -> ir::Value {
        if !is_narrow(scalar) || scalar.bytes() == 4 || scalar == Scalar::Bool {
            return x;
        }
        if scalar.is_signed() {
            let n = i64::from(32 - scalar.bits());
            let up = self.shl(x, n);
            self.sar(up, n)
        } else {
            let mask = self.int(Scalar::U32, x4, (1 << scalar.bits()) - 1);
            self.b.ins().band(x, mask)
        }
    }

    /// `condition ? a : b`; the condition is `I8`, or a mask of lanes.
    pub(super) fn choose(
        &mut self,
        x4: bool,
        c: ir::Value,
        a: ir::Value,
        b: ir::Value,
    ) -> ir::Value {
        if x4 {
            let ty = self.b.func.dfg.value_type(a);
            let c = self.cast(ty, c);
            self.b.ins().bitselect(c, a, b)
        } else {
            self.b.ins().select(c, a, b)
        }
    }

    /// Computes an operation on machine values.
    pub(super) fn calc(
        &mut self,
        calc: Calc,
        x4: bool,
        args: &[ir::Value],
    ) -> Result<ir::Value, CpuError> {
        match calc {
            Calc::Unary(op, scalar) if half(scalar) => {
                if matches!(op, UnaryOp::Neg | UnaryOp::Abs) {
                    let sign = self.int(
                        Scalar::U32,
                        x4,
                        if op == UnaryOp::Neg { 0x8000 } else { 0x7FFF },
                    );
                    return Ok(if op == UnaryOp::Neg {
                        self.b.ins().bxor(args[0], sign)
                    } else {
                        self.b.ins().band(args[0], sign)
                    });
                }
                let a = self.widen_half(scalar, x4, args[0]);
                let result = self.calc(Calc::Unary(op, Scalar::F32), x4, &[a])?;
                if matches!(op, UnaryOp::IsNan | UnaryOp::IsFinite) {
                    return Ok(result);
                }
                Ok(self.narrow_half(scalar, x4, result))
            }
            Calc::Binary(op, scalar) if half(scalar) => {
                let a = self.widen_half(scalar, x4, args[0]);
                let b = self.widen_half(scalar, x4, args[1]);
                let result = self.calc(Calc::Binary(op, Scalar::F32), x4, &[a, b])?;
                Ok(self.narrow_half(scalar, x4, result))
            }
            Calc::Compare(op, scalar) if half(scalar) => {
                let a = self.widen_half(scalar, x4, args[0]);
                let b = self.widen_half(scalar, x4, args[1]);
                self.calc(Calc::Compare(op, Scalar::F32), x4, &[a, b])
            }
            Calc::Fma(scalar) if half(scalar) => {
                let args: Vec<_> = args
                    .iter()
                    .map(|&x| self.widen_half(scalar, x4, x))
                    .collect();
                let result = self.calc(Calc::Fma(Scalar::F32), x4, &args)?;
                Ok(self.narrow_half(scalar, x4, result))
            }
            Calc::Unary(op, scalar) if scalar.is_float() => {
                self.float_unary(op, scalar, x4, args[0])
            }
            Calc::Unary(op, scalar) => self.int_unary(op, scalar, x4, args[0]),
            Calc::Binary(op, scalar) if scalar.is_float() => {
                self.float_binary(op, scalar, x4, args[0], args[1])
            }
            Calc::Binary(op, scalar) => self.int_binary(op, scalar, x4, args[0], args[1]),
            Calc::ShiftBy(op, scalar) => {
                let mask = self.b.ins().iconst(I32, i64::from(scalar.bits() - 1));
                let count = self.b.ins().band(args[1], mask);
                let x = match op {
                    BinaryOp::Shl => self.b.ins().ishl(args[0], count),
                    _ if scalar.is_signed() => self.b.ins().sshr(args[0], count),
                    _ => self.b.ins().ushr(args[0], count),
                };
                Ok(if op == BinaryOp::Shl {
                    self.wrap(scalar, x4, x)
                } else {
                    x
                })
            }
            Calc::Compare(op, scalar) => Ok(self.compare(op, scalar, args[0], args[1])),
            Calc::Select => Ok(self.choose(x4, args[0], args[1], args[2])),
            Calc::DotSum(op, scalar) => {
                let signed = [
                    op == BinaryOp::Dot4 && scalar.is_signed(),
                    scalar.is_signed(),
                ];
                Ok(self.dot4(x4, [args[0], args[1]], signed, Some(args[2])))
            }
            Calc::Fma(_) => Ok(self.b.ins().fma(args[0], args[1], args[2])),
            Calc::Convert(from, to) => self.convert(from, to, x4, args[0]),
        }
    }

    fn compare(&mut self, op: CompareOp, scalar: Scalar, a: ir::Value, b: ir::Value) -> ir::Value {
        if scalar.is_float() {
            let code = match op {
                CompareOp::Eq => FloatCC::Equal,
                CompareOp::Ne => FloatCC::NotEqual,
                CompareOp::Lt => FloatCC::LessThan,
                CompareOp::Le => FloatCC::LessThanOrEqual,
                CompareOp::Gt => FloatCC::GreaterThan,
                CompareOp::Ge => FloatCC::GreaterThanOrEqual,
            };
            return self.b.ins().fcmp(code, a, b);
        }
        let signed = scalar.is_signed();
        let code = match op {
            CompareOp::Eq => IntCC::Equal,
            CompareOp::Ne => IntCC::NotEqual,
            CompareOp::Lt if signed => IntCC::SignedLessThan,
            CompareOp::Le if signed => IntCC::SignedLessThanOrEqual,
            CompareOp::Gt if signed => IntCC::SignedGreaterThan,
            CompareOp::Ge if signed => IntCC::SignedGreaterThanOrEqual,
            CompareOp::Lt => IntCC::UnsignedLessThan,
            CompareOp::Le => IntCC::UnsignedLessThanOrEqual,
            CompareOp::Gt => IntCC::UnsignedGreaterThan,
            CompareOp::Ge => IntCC::UnsignedGreaterThanOrEqual,
        };
        self.b.ins().icmp(code, a, b)
    }

    fn float_unary(
        &mut self,
        op: UnaryOp,
        scalar: Scalar,
        x4: bool,
        a: ir::Value,
    ) -> Result<ir::Value, CpuError> {
        let wide = scalar == Scalar::F64;
        Ok(match op {
            UnaryOp::Neg => self.b.ins().fneg(a),
            UnaryOp::Abs => self.b.ins().fabs(a),
            UnaryOp::Sqrt => self.b.ins().sqrt(a),
            UnaryOp::Rsqrt => {
                let one = if wide {
                    self.b.ins().f64const(1.0)
                } else {
                    self.float(x4, 1.0)
                };
                let root = self.b.ins().sqrt(a);
                self.b.ins().fdiv(one, root)
            }
            UnaryOp::Floor => self.b.ins().floor(a),
            UnaryOp::Ceil => self.b.ins().ceil(a),
            UnaryOp::Trunc => self.b.ins().trunc(a),
            UnaryOp::RoundEven => self.b.ins().nearest(a),
            UnaryOp::IsNan => self.b.ins().fcmp(FloatCC::Unordered, a, a),
            UnaryOp::IsFinite => {
                let limit = if wide {
                    self.b.ins().f64const(f64::INFINITY)
                } else {
                    self.float(x4, f32::INFINITY)
                };
                let size = self.b.ins().fabs(a);
                self.b.ins().fcmp(FloatCC::LessThan, size, limit)
            }
            UnaryOp::Exp if !wide => self.exp(x4, a),
            UnaryOp::Exp2 if !wide => self.exp2(x4, a),
            UnaryOp::Exp
            | UnaryOp::Exp2
            | UnaryOp::Log
            | UnaryOp::Log2
            | UnaryOp::Sin
            | UnaryOp::Cos
            | UnaryOp::Tanh
            | UnaryOp::Erf => self.call_math(op.name(), scalar, &[a])?,
            UnaryOp::Not
            | UnaryOp::CountOnes
            | UnaryOp::LeadingZeros
            | UnaryOp::TrailingZeros
            | UnaryOp::ReverseBits => {
                return Err(CpuError::no(format!("`{}` of {scalar}", op.name())));
            }
        })
    }

    fn float_binary(
        &mut self,
        op: BinaryOp,
        scalar: Scalar,
        x4: bool,
        a: ir::Value,
        b: ir::Value,
    ) -> Result<ir::Value, CpuError> {
        Ok(match op {
            BinaryOp::Add => self.b.ins().fadd(a, b),
            BinaryOp::Sub => self.b.ins().fsub(a, b),
            BinaryOp::Mul => self.b.ins().fmul(a, b),
            BinaryOp::Div => self.b.ins().fdiv(a, b),
            BinaryOp::MinNan => self.b.ins().fmin(a, b),
            BinaryOp::MaxNan => self.b.ins().fmax(a, b),
            BinaryOp::Min | BinaryOp::Max => {
                let both = if op == BinaryOp::Min {
                    self.b.ins().fmin(a, b)
                } else {
                    self.b.ins().fmax(a, b)
                };
                let a_nan = self.b.ins().fcmp(FloatCC::Unordered, a, a);
                let b_nan = self.b.ins().fcmp(FloatCC::Unordered, b, b);
                let r = self.choose(x4, b_nan, a, both);
                self.choose(x4, a_nan, b, r)
            }
            BinaryOp::Pow => self.call_math("pow", scalar, &[a, b])?,
            _ => return Err(CpuError::no(format!("`{}` of {scalar}", op.name()))),
        })
    }

    fn int_unary(
        &mut self,
        op: UnaryOp,
        scalar: Scalar,
        x4: bool,
        a: ir::Value,
    ) -> Result<ir::Value, CpuError> {
        let wide = !is_narrow(scalar);
        Ok(match op {
            UnaryOp::Not if scalar == Scalar::Bool => {
                if x4 {
                    self.b.ins().bnot(a)
                } else {
                    let one = self.b.ins().iconst(I8, 1);
                    self.b.ins().bxor(a, one)
                }
            }
            UnaryOp::Neg => {
                let x = self.b.ins().ineg(a);
                self.wrap(scalar, x4, x)
            }
            UnaryOp::Not => {
                let x = self.b.ins().bnot(a);
                self.wrap(scalar, x4, x)
            }
            UnaryOp::Abs if scalar.is_signed() => {
                let x = self.b.ins().iabs(a);
                self.wrap(scalar, x4, x)
            }
            UnaryOp::Abs => a,
            UnaryOp::CountOnes => {
                let bits = self.unsigned(scalar, a);
                let n = self.b.ins().popcnt(bits);
                if wide {
                    self.b.ins().ireduce(I32, n)
                } else {
                    n
                }
            }
            UnaryOp::LeadingZeros => {
                let bits = self.unsigned(scalar, a);
                let n = self.b.ins().clz(bits);
                if wide {
                    self.b.ins().ireduce(I32, n)
                } else {
                    let spare = self.b.ins().iconst(I32, i64::from(32 - scalar.bits()));
                    self.b.ins().isub(n, spare)
                }
            }
            UnaryOp::TrailingZeros => {
                if wide {
                    let n = self.b.ins().ctz(a);
                    self.b.ins().ireduce(I32, n)
                } else if scalar.bits() == 32 {
                    self.b.ins().ctz(a)
                } else {
                    let stop = self.b.ins().iconst(I32, 1 << scalar.bits());
                    let bits = self.b.ins().bor(a, stop);
                    self.b.ins().ctz(bits)
                }
            }
            UnaryOp::ReverseBits => {
                let bits = self.b.ins().bitrev(a);
                if wide || scalar.bits() == 32 {
                    bits
                } else {
                    let n = i64::from(32 - scalar.bits());
                    if scalar.is_signed() {
                        self.sar(bits, n)
                    } else {
                        self.shr(bits, n)
                    }
                }
            }
            _ => return Err(CpuError::no(format!("`{}` of {scalar}", op.name()))),
        })
    }

    /// The bits of a narrow integer without its sign's extension.
    fn unsigned(&mut self, scalar: Scalar, a: ir::Value) -> ir::Value {
        if scalar.bytes() >= 4 {
            return a;
        }
        let mask = self.b.ins().iconst(I32, (1 << scalar.bits()) - 1);
        self.b.ins().band(a, mask)
    }

    /// [`BinaryOp::Dot4`] of operands whose bytes are signed or not: the tree of widening products
    /// and pairwise sums that Cranelift takes for `vpdpbusd` where the processor has it, for bytes
    /// without sign by signed ones and with the signed operand first.
    /// That instruction adds, so a product that nothing is added to takes a zero.
    fn dot4(
        &mut self,
        x4: bool,
        operands: [ir::Value; 2],
        signed: [bool; 2],
        term: Option<ir::Value>,
    ) -> ir::Value {
        let mut order = [(operands[0], signed[0]), (operands[1], signed[1])];
        if !signed[0] {
            order.swap(0, 1);
        }
        let bytes = order.map(|(x, signed)| {
            let x = if x4 {
                x
            } else {
                self.b.ins().scalar_to_vector(I32X4, x)
            };
            (self.cast(I8X16, x), signed)
        });
        let sums = [false, true].map(|high| {
            let [left, right] = bytes.map(|(x, signed)| match (high, signed) {
                (false, true) => self.b.ins().swiden_low(x),
                (false, false) => self.b.ins().uwiden_low(x),
                (true, true) => self.b.ins().swiden_high(x),
                (true, false) => self.b.ins().uwiden_high(x),
            });
            let products = self.b.ins().imul(left, right);
            // The product of two bytes without sign fills 16 bits.
            let [low, high] = if signed[0] || signed[1] {
                [
                    self.b.ins().swiden_low(products),
                    self.b.ins().swiden_high(products),
                ]
            } else {
                [
                    self.b.ins().uwiden_low(products),
                    self.b.ins().uwiden_high(products),
                ]
            };
            self.b.ins().iadd_pairwise(low, high)
        });
        let sum = self.b.ins().iadd_pairwise(sums[0], sums[1]);
        let sum = if x4 {
            sum
        } else {
            self.b.ins().extractlane(sum, 0)
        };
        match term {
            Some(term) => self.b.ins().iadd(sum, term),
            None if x4 => {
                let zero = self.splat_const_i(true, 0);
                self.b.ins().iadd(sum, zero)
            }
            None => sum,
        }
    }

    fn int_binary(
        &mut self,
        op: BinaryOp,
        scalar: Scalar,
        x4: bool,
        a: ir::Value,
        b: ir::Value,
    ) -> Result<ir::Value, CpuError> {
        if scalar.class() == Class::Packed {
            return Err(CpuError::no(format!("`{}` of {scalar}", op.name())));
        }
        let signed = scalar.is_signed();
        let x = match op {
            BinaryOp::Add => self.b.ins().iadd(a, b),
            BinaryOp::Sub => self.b.ins().isub(a, b),
            BinaryOp::Mul => self.b.ins().imul(a, b),
            BinaryOp::And => self.b.ins().band(a, b),
            BinaryOp::Or => self.b.ins().bor(a, b),
            BinaryOp::Xor => self.b.ins().bxor(a, b),
            BinaryOp::Min | BinaryOp::MinNan if signed => self.b.ins().smin(a, b),
            BinaryOp::Max | BinaryOp::MaxNan if signed => self.b.ins().smax(a, b),
            BinaryOp::Min | BinaryOp::MinNan => self.b.ins().umin(a, b),
            BinaryOp::Max | BinaryOp::MaxNan => self.b.ins().umax(a, b),
            BinaryOp::Shl | BinaryOp::Shr => {
                let width = self.int(scalar, x4, i64::from(scalar.bits() - 1));
                let count = self.b.ins().band(b, width);
                match op {
                    BinaryOp::Shl => self.b.ins().ishl(a, count),
                    _ if signed => self.b.ins().sshr(a, count),
                    _ => self.b.ins().ushr(a, count),
                }
            }
            BinaryOp::Div | BinaryOp::Rem => return Ok(self.divide(op, scalar, x4, a, b)),
            BinaryOp::Dot4 => self.dot4(x4, [a, b], [signed; 2], None),
            BinaryOp::Dot4Mixed => self.dot4(x4, [a, b], [false, true], None),
            BinaryOp::MulHigh if !is_narrow(scalar) => {
                if signed {
                    self.b.ins().smulhi(a, b)
                } else {
                    self.b.ins().umulhi(a, b)
                }
            }
            BinaryOp::MulHigh => {
                let (a, b) = if signed {
                    (self.b.ins().sextend(I64, a), self.b.ins().sextend(I64, b))
                } else {
                    (self.b.ins().uextend(I64, a), self.b.ins().uextend(I64, b))
                };
                let product = self.b.ins().imul(a, b);
                let high = self.shr(product, i64::from(scalar.bits()));
                self.b.ins().ireduce(I32, high)
            }
            BinaryOp::Pow => return Err(CpuError::no(format!("`pow` of {scalar}"))),
        };
        Ok(self.wrap(scalar, x4, x))
    }

    /// Quotient or remainder with the specification's answers at zero and at `MIN / -1`.
    fn divide(
        &mut self,
        op: BinaryOp,
        scalar: Scalar,
        x4: bool,
        a: ir::Value,
        b: ir::Value,
    ) -> ir::Value {
        let constant = self.constant(b);
        let known = constant.is_some_and(|n| n != 0 && n != -1);
        let signed = scalar.is_signed();
        let zero = self.int(scalar, x4, 0);
        let one = self.int(scalar, x4, 1);
        let ones = self.int(scalar, x4, -1);
        let ones = self.wrap(scalar, x4, ones);
        let is_zero = self.b.ins().icmp(IntCC::Equal, b, zero);
        let is_minus = self.b.ins().icmp(IntCC::Equal, b, ones);
        let mut divisor = b;
        if !known {
            divisor = self.b.ins().select(is_zero, one, divisor);
            if signed {
                divisor = self.b.ins().select(is_minus, one, divisor);
            }
        }
        let raw = match (op, signed) {
            (BinaryOp::Div, true) => self.b.ins().sdiv(a, divisor),
            (BinaryOp::Div, false) => self.b.ins().udiv(a, divisor),
            (_, true) => self.b.ins().srem(a, divisor),
            (_, false) => self.b.ins().urem(a, divisor),
        };
        if known {
            return self.wrap(scalar, x4, raw);
        }
        if op == BinaryOp::Rem {
            // A divisor of -1 was taken for 1, which has the same remainder.
            return self.b.ins().select(is_zero, a, raw);
        }
        let mut x = raw;
        if signed {
            let negated = self.b.ins().ineg(a);
            x = self.b.ins().select(is_minus, negated, x);
        }
        let x = self.wrap(scalar, x4, x);
        self.b.ins().select(is_zero, ones, x)
    }
}
