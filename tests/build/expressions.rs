//! Expressions of a generated kernel.

use super::Ty::{self, Bool, F16, F32, I16, I32, I64, U8, U32, U64};
use super::{NUMBERS, Writer};

impl Writer {
    pub(super) fn variable(&mut self, ty: Ty) -> Option<String> {
        let fitting: Vec<String> = self
            .variables
            .iter()
            .filter(|v| v.ty == ty)
            .map(|v| v.name.clone())
            .collect();
        if fitting.is_empty() {
            return None;
        }
        let index = self.pick(fitting.len());
        Some(fitting[index].clone())
    }

    pub(super) fn leaf(&mut self, ty: Ty) -> String {
        if self.pick(4) != 3
            && let Some(name) = self.variable(ty)
        {
            return name;
        }
        match ty {
            Bool => self.choose(&["true", "false", "(k > 3)"]).into(),
            F32 => self
                .choose(&[
                    "0.0f32",
                    "1.5f32",
                    "-2.25f32",
                    "1e10f32",
                    "f32::INFINITY",
                    "f32::MAX",
                    "-0.0f32",
                    "f32::NAN",
                    "1e-40f32",
                    "f32::EPSILON",
                ])
                .into(),
            F16 => self
                .choose(&[
                    "f16::from_f32(0.5)",
                    "f16::from_f32(1000.0)",
                    "f16::ONE",
                    "f16::MAX",
                    "f16::from_f32(-0.1)",
                ])
                .into(),
            U32 => {
                let place = self.choose(&[
                    "3u32",
                    "0u32",
                    "u32::MAX",
                    "local_index()",
                    "group_id(0)",
                    "0x8000_0000u32",
                    "17u32",
                    "group_threads()",
                ]);
                place.into()
            }
            _ => {
                let unit = ty.name();
                let plain = format!("{}{unit}", self.choose(&[0, 1, 2, 5, 9, 100]));
                match self.pick(4) {
                    0 => format!("{unit}::MAX"),
                    1 => format!("{unit}::MIN"),
                    _ => plain,
                }
            }
        }
    }

    pub(super) fn expr(&mut self, ty: Ty, depth: usize) -> String {
        if depth == 0 {
            return self.leaf(ty);
        }
        let d = depth - 1;
        // What every type has.
        match self.pick(16) {
            0 => {
                let (c, a, b) = (self.expr(Bool, d), self.expr(ty, d), self.expr(ty, d));
                return format!("(if {c} {{ {a} }} else {{ {b} }})");
            }
            1 => {
                let (c, a, b) = (self.expr(Bool, d), self.expr(ty, d), self.expr(ty, d));
                return format!("select({c}, {a}, {b})");
            }
            2 => {
                let (a, inner) = (self.expr(ty, d), self.name("z"));
                let b = self.expr(ty, d);
                let joined = match ty {
                    Bool => format!("{inner} ^ {b}"),
                    F32 | F16 => format!("{inner} + {b}"),
                    _ => format!("{inner}.wrapping_add({b})"),
                };
                return format!("{{ let {inner} = {a}; {joined} }}");
            }
            3 => {
                let scrutinee = self.expr(U32, d);
                let arms: Vec<String> = (0..3).map(|_| self.expr(ty, d)).collect();
                return format!(
                    "(match {scrutinee} & 7 {{ 0 | 5 => {}, 1..=3 => {}, _ => {} }})",
                    arms[0], arms[1], arms[2]
                );
            }
            4 => return self.leaf(ty),
            _ => {}
        }
        match ty {
            Bool => self.truth(d),
            F32 => self.single(d),
            F16 => self.half(d),
            _ => self.integer(ty, d),
        }
    }

    pub(super) fn truth(&mut self, d: usize) -> String {
        match self.pick(6) {
            0..=2 => {
                let of = self.choose(&[U32, I32, F32, I64, U8, F16]);
                let (a, b) = (self.expr(of, d), self.expr(of, d));
                let op = self.choose(&["<", "<=", ">", ">=", "==", "!="]);
                format!("({a} {op} {b})")
            }
            3 => {
                let (a, b) = (self.expr(Bool, d), self.expr(Bool, d));
                let op = self.choose(&["&&", "||", "&", "|", "^"]);
                format!("({a} {op} {b})")
            }
            4 => format!("!{}", self.expr(Bool, d)),
            _ => {
                let a = self.expr(F32, d);
                format!("({a}).{}()", self.choose(&["is_nan", "is_finite"]))
            }
        }
    }

    pub(super) fn single(&mut self, d: usize) -> String {
        match self.pick(9) {
            0..=2 => {
                let (a, b) = (self.expr(F32, d), self.expr(F32, d));
                let op = self.choose(&["+", "-", "*", "/"]);
                format!("({a} {op} {b})")
            }
            3 => {
                let (a, b, c) = (self.expr(F32, d), self.expr(F32, d), self.expr(F32, d));
                let form = self.pick(2);
                if form == 0 {
                    format!("fma({a}, {b}, {c})")
                } else {
                    format!("({a}).mul_add({b}, {c})")
                }
            }
            4 => {
                let a = self.expr(F32, d);
                let op = self.choose(&["abs", "sqrt", "floor", "ceil", "trunc", "round_ties_even"]);
                format!("({a}).{op}()")
            }
            5 => {
                let (a, b) = (self.expr(F32, d), self.expr(F32, d));
                format!(
                    "({a}).{}({b})",
                    self.choose(&["min", "max", "min_nan", "max_nan"])
                )
            }
            6 => {
                let from = self.choose(&NUMBERS);
                format!("({} as f32)", self.expr(from, d))
            }
            7 => {
                let (a, b) = (self.expr(F16, d), self.expr(F32, d));
                if self.pick(2) == 0 {
                    format!("mixed({a}, {b})")
                } else {
                    format!("({a}).to_f32()")
                }
            }
            _ => match self.pairs.last().cloned() {
                Some(pair) => format!("{pair}.b"),
                None => format!("-({})", self.expr(F32, d)),
            },
        }
    }

    pub(super) fn half(&mut self, d: usize) -> String {
        let (a, b) = (self.expr(F16, d), self.expr(F16, d));
        match self.pick(5) {
            0..=2 => format!("({a} {} {b})", self.choose(&["+", "-", "*"])),
            3 => format!("f16::from_f32({})", self.expr(F32, d)),
            _ => format!("({a}).{}({b})", self.choose(&["min", "max"])),
        }
    }

    pub(super) fn integer(&mut self, ty: Ty, d: usize) -> String {
        let unit = ty.name();
        match self.pick(15) {
            0..=3 => {
                let (a, b) = (self.expr(ty, d), self.expr(ty, d));
                let op = self.choose(&["+", "-", "*", "&", "|", "^"]);
                format!("({a} {op} {b})")
            }
            4 => {
                let a = self.expr(ty, d);
                // A literal without a suffix takes the type of what is beside it.
                format!("({a} {} {})", self.choose(&["+", "^", "*"]), self.pick(100))
            }
            5 => {
                let (a, b) = (self.expr(ty, d), self.expr(ty, d));
                format!("({a} {} (({b} & 7) + 1))", self.choose(&["/", "%"]))
            }
            6 => {
                let (a, b) = (self.expr(ty, d), self.expr(ty, d));
                format!("({a} {} ({b} & 7))", self.choose(&["<<", ">>"]))
            }
            7 => {
                let (a, b) = (self.expr(ty, d), self.expr(ty, d));
                let op = self.choose(&["min", "max", "wrapping_sub", "wrapping_mul", "mul_high"]);
                format!("({a}).{op}({b})")
            }
            8 => {
                let from = self.choose(&[U32, I32, U64, I64, U8, I16, F32, Bool]);
                if from == ty {
                    return self.leaf(ty);
                }
                format!("({} as {unit})", self.expr(from, d))
            }
            9 => {
                let a = self.expr(ty, d);
                if ty.is_signed() && self.pick(2) == 0 {
                    format!("(-({a}))")
                } else {
                    format!("(!({a}))")
                }
            }
            10 => format!("({}).reverse_bits()", self.expr(ty, d)),
            11 if ty == U32 => {
                let of = self.choose(&NUMBERS);
                let op = self.choose(&["count_ones", "leading_zeros", "trailing_zeros"]);
                format!("({}).{op}()", self.expr(of, d))
            }
            12 if ty == U32 => match (self.pick(5), self.closures.last().cloned()) {
                (0, Some(closure)) => format!("{closure}({})", self.expr(U32, d)),
                (1, Some(closure)) => format!("apply({}, {closure})", self.expr(U32, d)),
                (2, _) => {
                    let (a, b) = (self.expr(U32, d), self.expr(U32, d));
                    format!("{{ let (p, q) = both({a}, {b}); p ^ (q << 1) }}")
                }
                (3, _) => {
                    let (a, b) = (self.expr(U32, d), self.expr(U32, d));
                    format!("{{ let mut p = {a}; bumped(&mut p, {b}); p }}")
                }
                _ => format!("apply({}, |p| p.wrapping_mul(5))", self.expr(U32, d)),
            },
            12 if ty == I32 => {
                format!("clipped({}, {})", self.expr(I32, d), self.expr(I32, d))
            }
            13 if ty == U32 => match self.arrays.last().cloned() {
                Some(array) => format!("{array}[({} & 3) as usize]", self.expr(U32, d)),
                None => format!("xu[({}) % n]", self.expr(U32, d)),
            },
            14 if ty == U32 => match self.pairs.last().cloned() {
                Some(pair) => format!("{pair}.a"),
                None => self.leaf(ty),
            },
            _ => self.leaf(ty),
        }
    }
}
