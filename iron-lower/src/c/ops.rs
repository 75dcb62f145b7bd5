//! Scalar operations as C++ expressions with the IR's meaning.
//!
//! C++ differs from the IR in four ways, all answered here: signed overflow is undefined
//! (computed in unsigned and cast back), integers narrower than `int` are promoted (cast back),
//! division by zero and `MIN / -1` are undefined (a helper unless the divisor is a safe
//! constant), and conversions from float are undefined out of range (a saturating helper).

use iron_ir::op::{BinaryOp, CompareOp, Const, UnaryOp};
use iron_ir::types::{Class, Scalar};

use super::dialect::{Dialect, Printed};
use super::expr::{Expr, Level};
use super::helpers::Helpers;
use super::literals::literal;

/// Prints operations, collecting the helpers that they need.
pub(crate) struct Ops<'a> {
    /// Language.
    pub dialect: &'a dyn Dialect,
    /// Helpers so far.
    pub helpers: Helpers,
    /// Transcendental functions may use fast forms.
    pub approximate: bool,
}

impl Ops<'_> {
    /// Spelling of a scalar type, declaring it where the language lacks it.
    pub fn scalar_type(&mut self, scalar: Scalar) -> &'static str {
        self.dialect.scalar_type(scalar)
    }

    /// A constant.
    pub fn constant(&mut self, scalar: Scalar, bits: u64) -> Expr {
        literal(self.dialect, Const { scalar, bits })
    }

    /// A unary operation.
    pub fn unary(&mut self, op: UnaryOp, scalar: Scalar, a: &Expr) -> Printed {
        if is_half(scalar) {
            let float = self.dialect.half_to_float(self, scalar, a);
            let result = self.unary(op, Scalar::F32, &float)?;
            return Ok(match op {
                UnaryOp::IsNan | UnaryOp::IsFinite => result,
                _ => self.dialect.float_to_half(self, scalar, &result),
            });
        }
        match (op, scalar.class()) {
            (UnaryOp::Neg, Class::Float) => Ok(Expr::prefix('-', a)),
            (UnaryOp::Neg, Class::Signed | Class::Unsigned) => {
                let zero = self.constant(scalar, 0);
                self.binary(BinaryOp::Sub, scalar, &zero, a)
            }
            (UnaryOp::Not, Class::Bool) => Ok(Expr::prefix('!', a)),
            (UnaryOp::Not, Class::Signed | Class::Unsigned) => {
                Ok(self.narrowed(scalar, Expr::prefix('~', a)))
            }
            (UnaryOp::Abs, Class::Unsigned) => Ok(a.clone()),
            (UnaryOp::Abs, Class::Signed) => Ok(self.wrapping_abs(scalar, a)),
            (UnaryOp::IsNan, Class::Float) => Ok(Expr::call("isnan", std::slice::from_ref(a))),
            (UnaryOp::IsFinite, Class::Float) => {
                Ok(Expr::call("isfinite", std::slice::from_ref(a)))
            }
            (UnaryOp::Exp2, Class::Float)
                if self.approximate
                    && scalar == Scalar::F32
                    && self.dialect.fast_exp2().is_some() =>
            {
                let text = self.dialect.fast_exp2().unwrap_or_default();
                self.helpers.require("fast_exp2", || text.into());
                Ok(Expr::call("fast_exp2", std::slice::from_ref(a)))
            }
            (
                UnaryOp::Abs
                | UnaryOp::Sqrt
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
                | UnaryOp::RoundEven,
                Class::Float,
            ) => match self.dialect.float_function(op, scalar, self.approximate) {
                Some(name) => Ok(Expr::call(&name, std::slice::from_ref(a))),
                None => Err(format!("`{}` of {scalar}", op.name())),
            },
            (
                UnaryOp::CountOnes
                | UnaryOp::LeadingZeros
                | UnaryOp::TrailingZeros
                | UnaryOp::ReverseBits,
                Class::Signed | Class::Unsigned,
            ) => Ok(self.bits(op, scalar, a)),
            (op, _) => Err(format!("`{}` of {scalar}", op.name())),
        }
    }

    /// A binary operation. `divisor` is the right side where it is a constant.
    pub fn binary_with(
        &mut self,
        op: BinaryOp,
        scalar: Scalar,
        a: &Expr,
        b: &Expr,
        right: Option<Const>,
    ) -> Printed {
        let is_division = matches!(op, BinaryOp::Div | BinaryOp::Rem) && scalar.is_int();
        if is_division && !right.is_some_and(|c| is_safe_divisor(c, scalar)) {
            return Ok(self.total_division(op, scalar, a, b));
        }
        self.binary(op, scalar, a, b)
    }

    /// A binary operation; a division has a safe divisor, a shift a count below the width.
    pub fn binary(&mut self, op: BinaryOp, scalar: Scalar, a: &Expr, b: &Expr) -> Printed {
        if is_half(scalar) {
            let (x, y) = (
                self.dialect.half_to_float(self, scalar, a),
                self.dialect.half_to_float(self, scalar, b),
            );
            let result = self.binary(op, Scalar::F32, &x, &y)?;
            return Ok(self.dialect.float_to_half(self, scalar, &result));
        }
        let class = scalar.class();
        let both = || [a.clone(), b.clone()];
        let is_int = scalar.is_int();
        Ok(match op {
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul if class == Class::Float => {
                let (text, level) = arithmetic(op);
                Expr::infix(text, level, a, b)
            }
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul if is_int => {
                self.wrapping(op, scalar, a, b)
            }
            BinaryOp::Div if class == Class::Float => Expr::infix("/", Level::Multiplicative, a, b),
            BinaryOp::Div | BinaryOp::Rem if is_int => {
                let text = if op == BinaryOp::Div { "/" } else { "%" };
                let (a, b) = self.without_widening(scalar, Level::Multiplicative, a, b);
                let expr = Expr::infix(text, Level::Multiplicative, &a, &b);
                self.narrowed(scalar, expr)
            }
            BinaryOp::And if class == Class::Bool => Expr::infix("&&", Level::And, a, b),
            BinaryOp::Or if class == Class::Bool => Expr::infix("||", Level::Or, a, b),
            BinaryOp::Xor if class == Class::Bool => Expr::infix("!=", Level::Equality, a, b),
            BinaryOp::And if is_int => Expr::infix("&", Level::BitAnd, a, b),
            BinaryOp::Or if is_int => Expr::infix("|", Level::BitOr, a, b),
            BinaryOp::Xor if is_int => Expr::infix("^", Level::BitXor, a, b),
            BinaryOp::Shl if is_int => match (scalar.class(), scalar.bytes()) {
                (Class::Unsigned, 4 | 8) => Expr::infix("<<", Level::Shift, a, b),
                _ => {
                    let wide = if scalar.bytes() == 8 {
                        Scalar::U64
                    } else {
                        Scalar::U32
                    };
                    let left = self.as_unsigned(wide, a);
                    let shifted = Expr::infix("<<", Level::Shift, &left, b).plain();
                    self.dialect
                        .cast(self.dialect.scalar_type(scalar), &shifted)
                }
            },
            BinaryOp::Shr if is_int => Expr::infix(">>", Level::Shift, a, b),
            BinaryOp::Min | BinaryOp::Max if is_int => {
                let name = if op == BinaryOp::Min { "min" } else { "max" };
                if scalar.bytes() >= 4 {
                    Expr::call(name, &both())
                } else {
                    let int = self.dialect.scalar_type(Scalar::I32);
                    let (a, b) = (self.dialect.cast(int, a), self.dialect.cast(int, b));
                    let result = Expr::call(name, &[a, b]);
                    self.dialect.cast(self.dialect.scalar_type(scalar), &result)
                }
            }
            BinaryOp::Min | BinaryOp::Max if class == Class::Float => {
                let is_max = op == BinaryOp::Max;
                match self.dialect.ordered_minmax(is_max, scalar) {
                    Some(name) => Expr::call(&name, &both()),
                    None => self.number_minmax(is_max, scalar, &both()),
                }
            }
            BinaryOp::MinNan | BinaryOp::MaxNan if class == Class::Float => {
                self.nan_minmax(op == BinaryOp::MaxNan, scalar, &both())?
            }
            BinaryOp::MulHigh if is_int => {
                if scalar.bytes() >= 4 {
                    Expr::call(self.dialect.mul_high(scalar), &both())
                } else {
                    let wide = if scalar.is_signed() {
                        Scalar::I32
                    } else {
                        Scalar::U32
                    };
                    let wide = self.dialect.scalar_type(wide);
                    let (a, b) = (self.dialect.cast(wide, a), self.dialect.cast(wide, b));
                    let product = Expr::infix("*", Level::Multiplicative, &a, &b);
                    let bits = Expr::primary(scalar.bits().to_string());
                    let high = Expr::infix(">>", Level::Shift, &product, &bits);
                    self.dialect.cast(self.dialect.scalar_type(scalar), &high)
                }
            }
            BinaryOp::Dot4 if is_int && self.dialect.dot4().is_some() => {
                let name = self.dialect.dot4().unwrap_or_default();
                let zero = Expr::primary(if scalar.is_signed() { "0" } else { "0u" });
                Expr::call(name, &[a.clone(), b.clone(), zero])
            }
            BinaryOp::Pow if class == Class::Float => {
                Expr::call(&self.dialect.pow(scalar, self.approximate), &both())
            }
            op => return Err(format!("`{}` of {scalar}", op.name())),
        })
    }

    /// A comparison.
    pub fn compare(&mut self, op: CompareOp, scalar: Scalar, a: &Expr, b: &Expr) -> Printed {
        if scalar.class() == Class::Packed {
            return Err(format!("comparison of {scalar}"));
        }
        let (mut a, mut b) = self.without_widening(scalar, Level::Relational, a, b);
        if is_half(scalar) {
            a = self.dialect.half_to_float(self, scalar, &a);
            b = self.dialect.half_to_float(self, scalar, &b);
        }
        let (text, level) = match op {
            CompareOp::Eq => ("==", Level::Equality),
            CompareOp::Ne => ("!=", Level::Equality),
            CompareOp::Lt => ("<", Level::Relational),
            CompareOp::Le => ("<=", Level::Relational),
            CompareOp::Gt => (">", Level::Relational),
            CompareOp::Ge => (">=", Level::Relational),
        };
        Ok(Expr::infix(text, level, &a, &b).plain())
    }

    /// `a * b + c`, rounded once.
    pub fn fma(&mut self, scalar: Scalar, a: &Expr, b: &Expr, c: &Expr) -> Printed {
        if is_half(scalar) {
            // Arithmetic of halves is that of f32, rounded once more.
            let parts = [a, b, c].map(|x| self.dialect.half_to_float(self, scalar, x));
            let fused = Expr::call(&self.dialect.fma(Scalar::F32), &parts);
            return Ok(self.dialect.float_to_half(self, scalar, &fused));
        }
        match scalar.class() {
            Class::Float => Ok(Expr::call(
                &self.dialect.fma(scalar),
                &[a.clone(), b.clone(), c.clone()],
            )),
            Class::Signed | Class::Unsigned => {
                let product = self.binary(BinaryOp::Mul, scalar, a, b)?;
                self.binary(BinaryOp::Add, scalar, &product, c)
            }
            Class::Bool | Class::Packed => Err(format!("`fma` of {scalar}")),
        }
    }

    /// The operand as an unsigned integer of type `unsigned`, without casts that cancel.
    pub fn as_unsigned(&mut self, unsigned: Scalar, a: &Expr) -> Expr {
        if let Some(inner) = &a.unsigned {
            return (**inner).clone().plain();
        }
        let digits = a.text.trim_end_matches('l');
        if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
            let suffix = if unsigned == Scalar::U64 {
                self.dialect.long_suffix()
            } else {
                ""
            };
            return Expr::primary(format!("{digits}u{suffix}"));
        }
        self.dialect.cast(self.dialect.scalar_type(unsigned), a)
    }

    /// Wrapping sum, difference or product of integers.
    fn wrapping(&mut self, op: BinaryOp, scalar: Scalar, a: &Expr, b: &Expr) -> Expr {
        let (text, level) = arithmetic(op);
        match (scalar.class(), scalar.bytes()) {
            (Class::Unsigned, 4 | 8) => {
                let (a, b) = self.without_widening(scalar, level, a, b);
                Expr::infix(text, level, &a, &b)
            }
            (_, 4 | 8) => {
                let unsigned = scalar.unsigned_of_width();
                let (x, y) = (self.as_unsigned(unsigned, a), self.as_unsigned(unsigned, b));
                let inner = Expr::infix(text, level, &x, &y).plain();
                let mut outer = self.dialect.cast(self.dialect.scalar_type(scalar), &inner);
                outer.unsigned = Some(Box::new(inner));
                outer
            }
            _ => {
                // 65535 * 65535 overflows the int that both sides are promoted to.
                let left = if op == BinaryOp::Mul && scalar == Scalar::U16 {
                    self.dialect.cast(self.dialect.scalar_type(Scalar::U32), a)
                } else {
                    a.clone()
                };
                let inner = Expr::infix(text, level, &left, b).plain();
                self.dialect.cast(self.dialect.scalar_type(scalar), &inner)
            }
        }
    }

    /// Both sides of a 64-bit operation, without the widening of one that the other's width
    /// implies. Kept where both are widened, and where a factor is more than a name, so that a
    /// reader sees in which width a product is taken. (K06)
    fn without_widening(
        &mut self,
        scalar: Scalar,
        level: Level,
        a: &Expr,
        b: &Expr,
    ) -> (Expr, Expr) {
        if scalar != Scalar::U64 {
            return (a.clone(), b.clone());
        }
        let needed = if level == Level::Additive {
            Level::Multiplicative
        } else {
            Level::Primary
        };
        let narrow = |e: &Expr| match &e.narrow {
            Some(inner) if inner.level >= needed => {
                Some((**inner).clone().reading(std::slice::from_ref(e)))
            }
            _ => None,
        };
        match (narrow(a), narrow(b)) {
            (Some(x), None) if b.narrow.is_none() => (x, b.clone()),
            (_, Some(y)) => (a.clone(), y),
            _ => (a.clone(), b.clone()),
        }
    }

    /// Casts the `int` of a promoted operation back to a narrow type.
    fn narrowed(&mut self, scalar: Scalar, expr: Expr) -> Expr {
        if scalar.bytes() >= 4 {
            return expr;
        }
        self.dialect
            .cast(self.dialect.scalar_type(scalar), &expr.plain())
    }

    fn helper(&mut self, key: &str, head: &str, body: &str) {
        let prefix = self.dialect.helper_prefix();
        self.helpers
            .require(key, || format!("{prefix}{head} {{\n{body}}}"));
    }

    fn wrapping_abs(&mut self, scalar: Scalar, a: &Expr) -> Expr {
        let ty = self.dialect.scalar_type(scalar);
        let x = Expr::primary("x");
        let zero = self.constant(scalar, 0);
        let negated = self.wrapping(BinaryOp::Sub, scalar, &zero, &x);
        self.helper(
            &format!("wrapping_abs {scalar}"),
            &format!("{ty} wrapping_abs({ty} x)"),
            &format!("    return x < 0 ? {} : x;\n", negated.text),
        );
        Expr::call("wrapping_abs", std::slice::from_ref(a))
    }

    fn total_division(&mut self, op: BinaryOp, scalar: Scalar, a: &Expr, b: &Expr) -> Expr {
        let ty = self.dialect.scalar_type(scalar);
        let is_div = op == BinaryOp::Div;
        let name = if is_div {
            "total_divide"
        } else {
            "total_remainder"
        };
        let (x, y) = (Expr::primary("a"), Expr::primary("b"));
        let symbol = if is_div { "/" } else { "%" };
        let plain = Expr::infix(symbol, Level::Multiplicative, &x, &y);
        let plain = self.narrowed(scalar, plain);
        let by_zero = match is_div {
            true => self.constant(scalar, u64::MAX >> (64 - scalar.bits())).text,
            false => "a".into(),
        };
        let body = if scalar.is_signed() {
            let zero = self.constant(scalar, 0);
            let by_minus_one = match is_div {
                true => self.wrapping(BinaryOp::Sub, scalar, &zero, &x).text,
                false => zero.text,
            };
            format!(
                "    return b == 0 ? {by_zero} : b == -1 ? {by_minus_one} : {};\n",
                plain.text
            )
        } else {
            format!("    return b == 0 ? {by_zero} : {};\n", plain.text)
        };
        self.helper(
            &format!("{name} {scalar}"),
            &format!("{ty} {name}({ty} a, {ty} b)"),
            &body,
        );
        Expr::call(name, &[a.clone(), b.clone()])
    }

    fn number_minmax(&mut self, is_max: bool, scalar: Scalar, both: &[Expr]) -> Expr {
        let ty = self.dialect.scalar_type(scalar);
        let (name, than, sign) = if is_max {
            ("max_number", '>', "!signbit(a)")
        } else {
            ("min_number", '<', "signbit(a)")
        };
        self.helper(
            &format!("{name} {scalar}"),
            &format!("{ty} {name}({ty} a, {ty} b)"),
            &format!(
                "    // The number where one side is NaN; -0 < +0.\n    \
                 return a {than} b || (a == b && {sign}) || isnan(b) ? a : b;\n"
            ),
        );
        Expr::call(name, both)
    }

    fn nan_minmax(&mut self, is_max: bool, scalar: Scalar, both: &[Expr]) -> Printed {
        let ty = self.dialect.scalar_type(scalar);
        let name = if is_max { "max_nan" } else { "min_nan" };
        let op = if is_max { BinaryOp::Max } else { BinaryOp::Min };
        let number = self.binary(op, scalar, &Expr::primary("a"), &Expr::primary("b"))?;
        self.helper(
            &format!("{name} {scalar}"),
            &format!("{ty} {name}({ty} a, {ty} b)"),
            &format!(
                "    return isnan(a) || isnan(b) ? a + b : {};\n",
                number.text
            ),
        );
        Ok(Expr::call(name, both))
    }

    fn bits(&mut self, op: UnaryOp, scalar: Scalar, a: &Expr) -> Expr {
        let wide = scalar.bytes() == 8;
        let unsigned = if wide { Scalar::U64 } else { Scalar::U32 };
        let bits = scalar.bits();
        let mut operand = match scalar {
            Scalar::U32 | Scalar::U64 => a.clone(),
            Scalar::U8 | Scalar::U16 => self.dialect.cast(self.dialect.scalar_type(unsigned), a),
            // A narrow signed value must not extend its sign.
            _ => {
                let same = self.as_unsigned(scalar.unsigned_of_width(), a);
                match bits {
                    8 | 16 => self.dialect.cast(self.dialect.scalar_type(unsigned), &same),
                    _ => same,
                }
            }
        };
        let spare = Expr::primary(format!("{}u", 32 - bits.min(32)));
        if op == UnaryOp::TrailingZeros && bits < 32 {
            let guard = Expr::primary(format!("0x{:x}u", 1u32 << bits));
            operand = Expr::infix("|", Level::BitOr, &operand, &guard);
        }
        let result = self.dialect.bit_function(op, wide, &operand.plain());
        match op {
            UnaryOp::LeadingZeros if bits < 32 => {
                Expr::infix("-", Level::Additive, &result, &spare)
            }
            UnaryOp::ReverseBits if bits < 32 => {
                let shifted = Expr::infix(">>", Level::Shift, &result, &spare);
                self.dialect
                    .cast(self.dialect.scalar_type(scalar), &shifted)
            }
            UnaryOp::ReverseBits if scalar.is_signed() => {
                self.dialect.cast(self.dialect.scalar_type(scalar), &result)
            }
            _ => result,
        }
    }
}

/// `f16` or `bf16`.
pub(crate) fn is_half(scalar: Scalar) -> bool {
    matches!(scalar, Scalar::F16 | Scalar::BF16)
}

fn arithmetic(op: BinaryOp) -> (&'static str, Level) {
    match op {
        BinaryOp::Sub => ("-", Level::Additive),
        BinaryOp::Mul => ("*", Level::Multiplicative),
        _ => ("+", Level::Additive),
    }
}

/// Neither 0 nor, for signed integers, -1.
fn is_safe_divisor(divisor: Const, scalar: Scalar) -> bool {
    let all_ones = u64::MAX >> (64 - scalar.bits());
    divisor.bits != 0 && !(scalar.is_signed() && divisor.bits == all_ones)
}

impl Ops<'_> {
    /// A shift count modulo the width.
    pub fn mask(&mut self, scalar: Scalar, count: &Expr) -> Printed {
        let mask = self.constant(Scalar::I32, u64::from(scalar.bits() - 1));
        Ok(Expr::infix("&", Level::BitAnd, count, &mask).plain())
    }
}
