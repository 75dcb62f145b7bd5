//! Numeric conversions and bit casts of scalars.

use iron_ir::types::{Class, Scalar};

use super::dialect::Printed;
use super::expr::{Expr, Level};
use super::ops::{Ops, is_half};

impl Ops<'_> {
    /// A numeric conversion.
    pub fn convert(&mut self, from: Scalar, to: Scalar, a: &Expr) -> Printed {
        if from == to {
            return Ok(a.clone());
        }
        let ty = self.dialect.scalar_type(to);
        Ok(match (from.class(), to.class()) {
            (Class::Packed, _) | (_, Class::Packed) => {
                return Err(format!("conversion from {from} to {to}"));
            }
            (Class::Float, Class::Bool) => {
                let zero = Expr::primary("0.0f");
                let a = self.as_f32(from, a);
                Expr::infix("!=", Level::Equality, &a, &zero).plain()
            }
            (_, Class::Bool) => Expr::infix("!=", Level::Equality, a, &Expr::primary("0")).plain(),
            (Class::Bool, Class::Float) if is_half(to) => {
                let float = self.convert(Scalar::Bool, Scalar::F32, a)?;
                self.dialect.float_to_half(self, to, &float)
            }
            (Class::Bool, Class::Float) => {
                let (one, zero) = if to == Scalar::F64 {
                    ("1.0", "0.0")
                } else {
                    ("1.0f", "0.0f")
                };
                Expr::conditional(a, &Expr::primary(one), &Expr::primary(zero))
            }
            (Class::Bool, _) => self.dialect.cast(ty, a),
            (Class::Signed | Class::Unsigned, Class::Signed | Class::Unsigned) => {
                self.int_to_int(from, to, a)
            }
            (Class::Signed | Class::Unsigned, Class::Float) => match to {
                Scalar::F16 => {
                    // Integers above 65504 round to infinity either way, others are exact in f32.
                    let float = self.dialect.cast(self.dialect.scalar_type(Scalar::F32), a);
                    self.dialect.float_to_half(self, to, &float)
                }
                Scalar::BF16 => {
                    let float = if from.bytes() <= 2 {
                        self.dialect.cast(self.dialect.scalar_type(Scalar::F32), a)
                    } else {
                        self.round_int_to_odd(from, a)
                    };
                    self.dialect.float_to_half(self, to, &float)
                }
                _ => self.dialect.cast(ty, &a.clone().plain()),
            },
            (Class::Float, Class::Signed | Class::Unsigned) => {
                let (source, a) = match from {
                    Scalar::F64 => (Scalar::F64, a.clone()),
                    _ => (Scalar::F32, self.as_f32(from, a)),
                };
                self.saturate(source, to, &a)
            }
            (Class::Float, Class::Float) => match (from, to) {
                (Scalar::F64, Scalar::F16 | Scalar::BF16) => {
                    let float = self.round_double_to_odd(a);
                    self.dialect.float_to_half(self, to, &float)
                }
                (_, Scalar::F16 | Scalar::BF16) => {
                    let float = self.as_f32(from, a);
                    self.dialect.float_to_half(self, to, &float)
                }
                (Scalar::F16 | Scalar::BF16, Scalar::F32) => self.as_f32(from, a),
                (Scalar::F16 | Scalar::BF16, _) => {
                    let float = self.as_f32(from, a);
                    self.dialect.cast(ty, &float)
                }
                _ => self.dialect.cast(ty, a),
            },
        })
    }

    /// The same bits as another scalar of the same size.
    pub fn bitcast(&mut self, from: Scalar, to: Scalar, a: &Expr) -> Printed {
        if from.bytes() != to.bytes() {
            return Err(format!("bit cast from {from} to {to}"));
        }
        if from == to {
            return Ok(a.clone());
        }
        let (from_half, to_half) = (is_half(from), is_half(to));
        if from_half || to_half {
            let bits = if from_half {
                self.dialect.bits_of_half(self, from, a)
            } else if matches!(from, Scalar::U16) {
                a.clone()
            } else {
                self.dialect.cast(self.dialect.scalar_type(Scalar::U16), a)
            };
            return Ok(if to_half {
                self.dialect.half_of_bits(self, to, &bits)
            } else if to == Scalar::U16 {
                bits
            } else {
                self.dialect.cast(self.dialect.scalar_type(to), &bits)
            });
        }
        if from.is_float() || to.is_float() {
            return Ok(self.dialect.bit_cast(from, to, a));
        }
        if from.is_int() && to.is_int() {
            return Ok(self.int_to_int(from, to, a));
        }
        // Packed types and bool are unsigned integers in the text.
        Ok(
            if self.dialect.scalar_type(from) == self.dialect.scalar_type(to) {
                a.clone()
            } else {
                self.dialect.cast(self.dialect.scalar_type(to), a)
            },
        )
    }

    /// A float of at most 32 bits as `f32`.
    fn as_f32(&mut self, from: Scalar, a: &Expr) -> Expr {
        if is_half(from) {
            self.dialect.half_to_float(self, from, a)
        } else {
            a.clone()
        }
    }

    fn int_to_int(&mut self, from: Scalar, to: Scalar, a: &Expr) -> Expr {
        let ty = self.dialect.scalar_type(to);
        if let Some(inner) = a
            .unsigned
            .as_ref()
            .filter(|_| to == from.unsigned_of_width())
        {
            return (**inner).clone();
        }
        let mut result = self.dialect.cast(ty, &a.clone().plain());
        if from.class() == Class::Unsigned && to == Scalar::U64 {
            result.narrow = Some(Box::new(a.clone().plain()));
        }
        if from == to.unsigned_of_width() && to.bytes() >= 4 {
            result.unsigned = Some(Box::new(a.clone().plain()));
        }
        result
    }

    fn saturate(&mut self, from: Scalar, to: Scalar, a: &Expr) -> Expr {
        if let Some(name) = self.dialect.saturating(from, to) {
            return Expr::call(name, std::slice::from_ref(a));
        }
        let name = format!("saturate_{to}");
        let (source, ty) = (self.dialect.scalar_type(from), self.dialect.scalar_type(to));
        let bits = to.bits();
        let (least, most) = match to.is_signed() {
            true => (1u64 << (bits - 1), (1u64 << (bits - 1)) - 1),
            false => (0, u64::MAX >> (64 - bits)),
        };
        let suffix = if from == Scalar::F32 { "f" } else { "" };
        let low = if to.is_signed() {
            -(2f64.powi(bits as i32 - 1))
        } else {
            0.0
        };
        let high = 2f64.powi(bits as i32 - i32::from(to.is_signed()));
        let (least, most) = (self.constant(to, least), self.constant(to, most));
        let inside = self.dialect.cast(ty, &Expr::primary("x"));
        let text = format!(
            "{}{ty} {name}({source} x) {{\n    \
             if (isnan(x)) return 0;\n    \
             if (x <= {low:?}{suffix}) return {};\n    \
             return x >= {high:?}{suffix} ? {} : {};\n}}",
            self.dialect.helper_prefix(),
            least.text,
            most.at(Level::Or),
            inside.text,
        );
        self.helpers.require(&format!("{name} {from}"), || text);
        Expr::call(&name, std::slice::from_ref(a))
    }

    /// An integer as an `f32` of 24 significant bits whose last bit is set where bits were lost,
    /// so that rounding it to fewer bits is the only rounding. (K15)
    fn round_int_to_odd(&mut self, from: Scalar, a: &Expr) -> Expr {
        let ulong = self.dialect.scalar_type(Scalar::U64);
        let long = self.dialect.scalar_type(Scalar::I64);
        let l = self.dialect.long_suffix();
        let prefix = self.dialect.helper_prefix();
        self.helpers.require("round_to_odd u64", || {
            format!(
                "{prefix}float round_to_odd({ulong} x) {{\n    \
                 // Lost bits leave their mark in the lowest bit kept.\n    \
                 int shift = 0;\n    \
                 while (x >> shift >= 16777216u{l}) shift += 1;\n    \
                 const {ulong} kept = x >> shift << shift;\n    \
                 return (float)(kept | (kept != x ? 1u{l} << shift : 0u{l}));\n}}"
            )
        });
        if from.is_signed() {
            self.helpers.require("round_to_odd i64", || {
                format!(
                    "{prefix}float round_to_odd({long} x) {{\n    \
                     return x < 0 ? -round_to_odd(0u{l} - ({ulong})x) : round_to_odd(({ulong})x);\n}}"
                )
            });
        }
        let wide = if from.is_signed() {
            Scalar::I64
        } else {
            Scalar::U64
        };
        let operand = if from == wide {
            a.clone()
        } else {
            self.dialect
                .cast(self.dialect.scalar_type(wide), &a.clone().plain())
        };
        Expr::call("round_to_odd", &[operand])
    }

    /// An `f64` as an `f32` rounded to odd.
    fn round_double_to_odd(&mut self, a: &Expr) -> Expr {
        let uint = self.dialect.scalar_type(Scalar::U32);
        let bits = self
            .dialect
            .bit_cast(Scalar::F32, Scalar::U32, &Expr::primary("nearest"));
        let back = self
            .dialect
            .bit_cast(Scalar::U32, Scalar::F32, &Expr::primary("bits"));
        let prefix = self.dialect.helper_prefix();
        self.helpers.require("round_to_odd f64", || {
            format!(
                "{prefix}float round_to_odd(double x) {{\n    \
                 const float nearest = (float)x;\n    \
                 {uint} bits = {};\n    \
                 if (isnan(x) || (double)nearest == x || (bits & 1u) != 0u) return nearest;\n    \
                 bits += fabs((double)nearest) < fabs(x) ? 1u : 0xffffffffu;\n    \
                 return {};\n}}",
                bits.text, back.text
            )
        });
        Expr::call("round_to_odd", std::slice::from_ref(a))
    }
}
