//! Arithmetic whose answer the target leaves open or gives differently.
//!
//! - Integer `/` and `%` (K07, K08): guarded by selects, unless the divisor is a constant that
//!   needs no guard or a contract fact says that it is above zero.
//! - Shifts (K10): the count is masked to the width, unless it is a constant below it.
//! - Float to integer: clamped, NaN to 0, where the target's conversion does not saturate.
//! - `min` and `max` of floats (K11): comparisons and bit operations where the target's own do
//!   not order zeros or treat NaN otherwise.
//! - Products of four bytes: the bytes taken out one by one where the target has no such product.
//! - `erf` and `tanh`: polynomials where the target has none.

use iron_ir::contract::{CompareOp as FactOp, Expr};
use iron_ir::entity::Value;
use iron_ir::op::{BinaryOp, CompareOp, UnaryOp};
use iron_ir::{Const, Kernel, Op, Scalar, Stmt, Type};

use crate::Legal;
use crate::rewrite::{Builder, rewrite};

pub(super) fn arithmetic(kernel: &mut Kernel, legal: &Legal) {
    rewrite(kernel, &mut |b, stmt| {
        let Stmt::Let(value) = stmt else {
            return Some(stmt);
        };
        let ty = b.ty(value);
        let new = match b.kernel.values[value].op {
            Op::Binary(op, x, y) => match op {
                BinaryOp::Div if ty.scalar.is_int() && !legal.native_total_division => {
                    quotient(b, x, y)
                }
                BinaryOp::Rem if ty.scalar.is_int() && !legal.native_total_division => {
                    remainder(b, x, y)
                }
                BinaryOp::Shl | BinaryOp::Shr => shift(b, op, x, y),
                BinaryOp::Dot4 if !legal.has_dot4 => {
                    Some(dot4(b, x, y, [ty.scalar.is_signed(); 2]))
                }
                BinaryOp::Dot4Mixed if !legal.has_dot4_mixed => Some(dot4(b, x, y, [false, true])),
                BinaryOp::Min | BinaryOp::Max | BinaryOp::MinNan | BinaryOp::MaxNan
                    if ty.scalar.is_float() && !legal.native_ordered_minmax =>
                {
                    Some(extremum(b, op, x, y))
                }
                _ => None,
            },
            Op::Convert(source)
                if b.ty(source).scalar.is_float()
                    && ty.scalar.is_int()
                    && !legal.native_saturating_convert =>
            {
                Some(saturate(b, source, ty))
            }
            Op::Unary(UnaryOp::Erf, x) if !legal.has_erf => Some(erf(b, x)),
            Op::Unary(UnaryOp::Tanh, x) if !legal.has_tanh => Some(tanh(b, x)),
            _ => None,
        };
        let Some(new) = new else { return Some(stmt) };
        b.replace(value, new);
        None
    });
}

/// What is known of a divisor.
struct Divisor {
    may_be_zero: bool,
    may_be_minus_one: bool,
}

fn divisor(b: &Builder<'_>, value: Value) -> Divisor {
    let data = &b.kernel.values[value];
    let signed = data.ty.scalar.is_signed();
    let unknown = Divisor {
        may_be_zero: true,
        may_be_minus_one: signed,
    };
    match &data.op {
        Op::Const(c) => Divisor {
            may_be_zero: c.bits == 0,
            may_be_minus_one: signed && c.bits == ones(data.ty.scalar),
        },
        Op::Splat(scalar) => divisor(b, *scalar),
        Op::Builtin(op, _) => {
            use iron_ir::op::BuiltinOp;
            let count = matches!(
                op,
                BuiltinOp::GroupCount
                    | BuiltinOp::GroupSize
                    | BuiltinOp::GroupThreads
                    | BuiltinOp::SubgroupCount
                    | BuiltinOp::SubgroupSize
            );
            Divisor {
                may_be_zero: !count,
                ..unknown
            }
        }
        // Widened, a dimension or parameter is as far from zero as before.
        Op::Convert(source) if b.ty(*source).scalar.class() == iron_ir::Class::Unsigned => {
            let from = b.ty(*source).scalar;
            if from.bytes() < data.ty.scalar.bytes() {
                Divisor {
                    may_be_minus_one: false,
                    ..divisor(b, *source)
                }
            } else {
                unknown
            }
        }
        Op::Dim(_) | Op::Scalar(_) => {
            let expr = match data.op {
                Op::Dim(dim) => Expr::Dim(dim),
                Op::Scalar(param) => Expr::Scalar(param),
                _ => return unknown,
            };
            let positive = b
                .kernel
                .contract
                .requires
                .iter()
                .any(|fact| match &fact.rhs {
                    Expr::Const(c) if fact.lhs == expr => match fact.op {
                        FactOp::Gt => *c >= 0,
                        FactOp::Ge | FactOp::Eq => *c >= 1,
                        FactOp::Ne | FactOp::Lt | FactOp::Le => false,
                    },
                    _ => false,
                });
            if positive {
                Divisor {
                    may_be_zero: false,
                    may_be_minus_one: false,
                }
            } else {
                unknown
            }
        }
        _ => unknown,
    }
}

fn ones(scalar: Scalar) -> u64 {
    u64::MAX >> (64 - scalar.bits())
}

/// The divisor with 1 in place of what must not reach the division, and the two conditions.
fn guard(b: &mut Builder<'_>, y: Value) -> Option<(Value, Option<Value>, Option<Value>)> {
    let known = divisor(b, y);
    if !known.may_be_zero && !known.may_be_minus_one {
        return None;
    }
    let zero = known
        .may_be_zero
        .then(|| b.compare_int(CompareOp::Eq, y, 0));
    let minus = known
        .may_be_minus_one
        .then(|| b.compare_int(CompareOp::Eq, y, -1));
    let bad = match (zero, minus) {
        (Some(zero), Some(minus)) => b.or(zero, minus),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => return None,
    };
    let ty = b.ty(y);
    let one = b.int(ty, 1);
    let safe = b.select(bad, one, y);
    Some((safe, zero, minus))
}

fn quotient(b: &mut Builder<'_>, x: Value, y: Value) -> Option<Value> {
    let (safe, zero, minus) = guard(b, y)?;
    let mut result = b.binary(BinaryOp::Div, x, safe);
    if let Some(minus) = minus {
        let negated = b.unary(UnaryOp::Neg, x);
        result = b.select(minus, negated, result);
    }
    if let Some(zero) = zero {
        let ty = b.ty(x);
        let all = b.int(ty, -1);
        result = b.select(zero, all, result);
    }
    Some(result)
}

fn remainder(b: &mut Builder<'_>, x: Value, y: Value) -> Option<Value> {
    let (safe, zero, _) = guard(b, y)?;
    // `x % 1` is the 0 that `x % -1` has to be.
    let mut result = b.binary(BinaryOp::Rem, x, safe);
    if let Some(zero) = zero {
        result = b.select(zero, x, result);
    }
    Some(result)
}

fn shift(b: &mut Builder<'_>, op: BinaryOp, x: Value, count: Value) -> Option<Value> {
    let ty = b.ty(count);
    let width = u64::from(b.ty(x).scalar.bits());
    let mut scalar = count;
    if let Op::Splat(inner) = b.kernel.values[count].op {
        scalar = inner;
    }
    if let Some(c) = b.kernel.constant(scalar) {
        if c.bits < width {
            return None;
        }
        let masked = b.int(ty, i128::from(c.bits & (width - 1)));
        return Some(b.binary(op, x, masked));
    }
    if let Op::Binary(BinaryOp::And, _, mask) = b.kernel.values[count].op
        && b.kernel.constant(mask).is_some_and(|c| c.bits < width)
    {
        return None;
    }
    let masked = b.with_int(BinaryOp::And, count, i128::from(width) - 1);
    Some(b.binary(op, x, masked))
}

/// The sum of the products of four bytes, which are signed or not.
fn dot4(b: &mut Builder<'_>, x: Value, y: Value, signed: [bool; 2]) -> Value {
    let byte = |b: &mut Builder<'_>, x: Value, j: i128, signed: bool| {
        if signed {
            let raised = match j {
                3 => x,
                _ => b.with_int(BinaryOp::Shl, x, 24 - 8 * j),
            };
            b.with_int(BinaryOp::Shr, raised, 24)
        } else {
            let lowered = match j {
                0 => x,
                _ => b.with_int(BinaryOp::Shr, x, 8 * j),
            };
            b.with_int(BinaryOp::And, lowered, 255)
        }
    };
    let products = [0, 1, 2, 3].map(|j| {
        let (left, right) = (byte(b, x, j, signed[0]), byte(b, y, j, signed[1]));
        b.mul(left, right)
    });
    let [low, high] = [[0, 1], [2, 3]].map(|[i, j]| b.add(products[i], products[j]));
    b.add(low, high)
}

fn extremum(b: &mut Builder<'_>, op: BinaryOp, x: Value, y: Value) -> Value {
    let float = b.ty(x).scalar;
    let bits = float.unsigned_of_width();
    let minimum = matches!(op, BinaryOp::Min | BinaryOp::MinNan);
    let (x_bits, y_bits) = (b.bitcast(x, bits), b.bitcast(y, bits));
    // Equal floats differ in bits only as the two zeros do.
    let merged = b.binary(
        if minimum { BinaryOp::Or } else { BinaryOp::And },
        x_bits,
        y_bits,
    );
    let merged = b.bitcast(merged, float);
    let equal = b.compare(CompareOp::Eq, x, y);
    let better = b.compare(
        if minimum {
            CompareOp::Lt
        } else {
            CompareOp::Gt
        },
        x,
        y,
    );
    // NaN in `x` leaves `y`, NaN in `y` leaves `y` too.
    let strict = b.select(better, x, y);
    let ordered = b.select(equal, merged, strict);
    let keep_x = match op {
        BinaryOp::MinNan | BinaryOp::MaxNan => b.unary(UnaryOp::IsNan, x),
        _ => b.unary(UnaryOp::IsNan, y),
    };
    b.select(keep_x, x, ordered)
}

fn saturate(b: &mut Builder<'_>, source: Value, to: Type) -> Value {
    let float = b.ty(source);
    let bits = to.scalar.bits();
    let signed = to.scalar.is_signed();
    let power = if signed { bits - 1 } else { bits };
    let high = float_const(b, float, 2f64.powi(power as i32));
    let low_value = if signed {
        -2f64.powi(power as i32)
    } else {
        0.0
    };
    let low = float_const(b, float, low_value);
    let zero = float_const(b, float, 0.0);
    let from_low = b.compare(CompareOp::Ge, source, low);
    let below_high = b.compare(CompareOp::Lt, source, high);
    let inside = b.and(from_low, below_high);
    let safe = b.select(inside, source, zero);
    let converted = b.convert(safe, to.scalar);
    let max = b.int(to, if signed { (1i128 << power) - 1 } else { -1 });
    let over = b.compare(CompareOp::Ge, source, high);
    let mut result = b.select(over, max, converted);
    if signed {
        let min = b.int(to, -(1i128 << power));
        let under = b.compare(CompareOp::Lt, source, low);
        result = b.select(under, min, result);
    }
    result
}

fn float_const(b: &mut Builder<'_>, ty: Type, value: f64) -> Value {
    let bits = match ty.scalar {
        Scalar::F64 => value.to_bits(),
        _ => u64::from((value as f32).to_bits()),
    };
    b.splat_const(
        ty,
        Const {
            scalar: ty.scalar,
            bits,
        },
    )
}

/// Horner's scheme with fused steps, the highest power first.
fn polynomial(b: &mut Builder<'_>, x: Value, coefficients: &[f32]) -> Value {
    let ty = b.ty(x);
    let mut sum = float_const(b, ty, f64::from(coefficients[0]));
    for c in &coefficients[1..] {
        let c = float_const(b, ty, f64::from(*c));
        sum = b.fma(sum, x, c);
    }
    sum
}

fn copy_sign(b: &mut Builder<'_>, magnitude: Value, sign: Value) -> Value {
    let (m, s) = (
        b.bitcast(magnitude, Scalar::U32),
        b.bitcast(sign, Scalar::U32),
    );
    let s = b.with_int(BinaryOp::And, s, 0x8000_0000);
    let bits = b.or(m, s);
    b.bitcast(bits, Scalar::F32)
}

/// The error function of `f32` within 1 ULP of the exact one given an exact `exp` (N. Juffa's
/// two ranges: a polynomial in `x²`, and `1 - exp` of one in `|x|`).
fn erf(b: &mut Builder<'_>, x: Value) -> Value {
    let ty = b.ty(x);
    let magnitude = b.unary(UnaryOp::Abs, x);
    let square = b.mul(x, x);
    let high = polynomial(b, magnitude, &[-1.728_534_7e-5, 3.831_972e-4]);
    let low = polynomial(b, magnitude, &[-3.883_964_4e-3, 2.425_462_2e-2]);
    let mut tail = b.fma(high, square, low);
    for c in [-1.067_778_8e-1, -6.348_467e-1, -1.287_175_1e-1] {
        let c = float_const(b, ty, f64::from(c as f32));
        tail = b.fma(tail, magnitude, c);
    }
    let negated = b.unary(UnaryOp::Neg, magnitude);
    let tail = b.fma(tail, magnitude, negated);
    let tail = b.unary(UnaryOp::Exp, tail);
    let one = float_const(b, ty, 1.0);
    let tail = b.binary(BinaryOp::Sub, one, tail);
    let tail = copy_sign(b, tail, x);
    let middle = polynomial(
        b,
        square,
        &[
            -5.967_617e-4,
            4.991_194_2e-3,
            -2.676_813_5e-2,
            1.128_199_2e-1,
            -3.761_253_4e-1,
            1.283_791_7e-1,
        ],
    );
    let middle = b.fma(middle, x, x);
    let edge = float_const(b, ty, f64::from(0.927_734_4f32));
    let outer = b.compare(CompareOp::Gt, magnitude, edge);
    b.select(outer, tail, middle)
}

/// `tanh` of `f32` within 2 ULP given an exact `exp`: a polynomial near zero, `1 - 2 / (e^2x + 1)`
/// elsewhere.
fn tanh(b: &mut Builder<'_>, x: Value) -> Value {
    let ty = b.ty(x);
    let magnitude = b.unary(UnaryOp::Abs, x);
    let square = b.mul(x, x);
    let twice = b.add(magnitude, magnitude);
    let power = b.unary(UnaryOp::Exp, twice);
    let one = float_const(b, ty, 1.0);
    let sum = b.add(power, one);
    let two = float_const(b, ty, 2.0);
    let part = b.binary(BinaryOp::Div, two, sum);
    let outer = b.binary(BinaryOp::Sub, one, part);
    let outer = copy_sign(b, outer, x);
    // Taylor's series to x^17: below 0.55 the next term is under a tenth of an ULP.
    let mut coefficients = TANH_SERIES.map(|c| c as f32).to_vec();
    coefficients.push(0.0);
    let inner = polynomial(b, square, &coefficients);
    let inner = b.fma(inner, x, x);
    let edge = float_const(b, ty, 0.55);
    let far = b.compare(CompareOp::Gt, magnitude, edge);
    b.select(far, outer, inner)
}

/// Coefficients of x^17 down to x^3.
const TANH_SERIES: [f64; 8] = [
    6_404_582.0 / 10_854_718_875.0,
    -929_569.0 / 638_512_875.0,
    21_844.0 / 6_081_075.0,
    -1_382.0 / 155_925.0,
    62.0 / 2_835.0,
    -17.0 / 315.0,
    2.0 / 15.0,
    -1.0 / 3.0,
];
