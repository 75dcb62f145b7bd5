//! Vectors: the language's own types where it has them, small structs elsewhere.
//!
//! Eight- and sixteen-bit lanes that the language has no vector for travel as packed 32-bit
//! words, so that one wide load or store moves them; other absent vectors are structs of their
//! lanes. Operations that the language lacks are helper functions, lane by lane.

use iron_ir::types::{Class, Scalar, Type};

use super::dialect::Printed;
use super::expr::{Expr, Level};
use super::ops::{Ops, is_half};

/// How a vector type is made of the language's types.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The language's own, with members `x y z w`.
    Native,
    /// A struct with the member `words`: a `uint`, `uint2` or `uint4`.
    Words,
    /// A struct with one member a lane.
    Lanes,
}

const MEMBERS: [&str; 8] = ["x", "y", "z", "w", "s4", "s5", "s6", "s7"];

impl Ops<'_> {
    /// Spelling of a type, declared if it must be.
    pub fn type_name(&mut self, ty: Type) -> String {
        if ty.lanes == 1 {
            return self.scalar_type(ty.scalar).to_owned();
        }
        let name = self.dialect.vector_type(ty);
        let key = format!("struct {name}");
        match self.form(ty) {
            Form::Native => {}
            Form::Words => {
                let uint = self.dialect.scalar_type(Scalar::U32);
                let words = match ty.bytes() / 4 {
                    0 | 1 => uint.to_owned(),
                    count => self.dialect.vector_type(Scalar::U32.x(count as u8)),
                };
                // A vector below four bytes has one narrow word.
                let words = match ty.bytes() {
                    2 => self.dialect.scalar_type(Scalar::U16).to_owned(),
                    _ => words,
                };
                self.helpers.require(&key, || {
                    format!(
                        "// {} lanes of {}, lane 0 in the low bits.\nstruct {name} {{\n    {words} words;\n}};",
                        ty.lanes, ty.scalar
                    )
                });
            }
            Form::Lanes => {
                let scalar = self.dialect.scalar_type(ty.scalar);
                let members = MEMBERS[..usize::from(ty.lanes)].join(", ");
                self.helpers.require(&key, || {
                    format!("struct {name} {{\n    {scalar} {members};\n}};")
                });
            }
        }
        name
    }

    fn form(&self, ty: Type) -> Form {
        if self.dialect.has_vector(ty) {
            Form::Native
        } else if ty.scalar.bytes() <= 2 && ty.scalar != Scalar::Bool {
            Form::Words
        } else {
            Form::Lanes
        }
    }

    /// A vector of packed lanes as its words, or of them, where they are a vector of the language.
    pub fn words(&self, from: Type, to: Type, name: &str, x: &Expr) -> Option<Expr> {
        let of = |ty: Type| Scalar::U32.x((ty.bytes() / 4) as u8);
        let part = std::slice::from_ref(x);
        match (self.form(from), self.form(to)) {
            (Form::Words, Form::Native) if to == of(from) => {
                Some(Expr::primary(format!("{}.words", x.at(Level::Primary))).reading(part))
            }
            (Form::Native, Form::Words) if from == of(to) => {
                Some(Expr::primary(format!("{name}{{{}}}", x.text)).reading(part))
            }
            _ => None,
        }
    }

    /// One lane of a vector.
    pub fn lane(&mut self, ty: Type, vector: &Expr, lane: u8) -> Printed {
        if ty.lanes == 1 {
            return Ok(vector.clone());
        }
        if lane >= ty.lanes {
            return Err(format!("lane {lane} of {ty}"));
        }
        self.type_name(ty);
        let part = std::slice::from_ref(vector);
        let vector_text = vector.at(Level::Primary);
        if self.form(ty) != Form::Words {
            let member = MEMBERS[usize::from(lane)];
            return Ok(Expr::primary(format!("{vector_text}.{member}")).reading(part));
        }
        let name = self.type_name(ty);
        let key = format!("lane {name}");
        if self.helpers.is_new(&key) {
            let text = self.lane_helper(ty, &name)?;
            self.helpers.add(text);
        }
        Ok(Expr::call(
            "lane_at",
            &[vector.clone(), Expr::primary(lane.to_string())],
        ))
    }

    /// The function that takes a lane out of packed words. Its index is a constant wherever it
    /// is called, so that nothing but the right shift remains.
    fn lane_helper(&mut self, ty: Type, name: &str) -> Result<String, String> {
        let scalar = self.dialect.scalar_type(ty.scalar);
        let uint = self.dialect.scalar_type(Scalar::U32);
        let per_word = 4 / ty.scalar.bytes();
        let word = match ty.bytes() / 4 {
            0 | 1 => "v.words".to_owned(),
            2 => format!("index < {per_word} ? v.words.x : v.words.y"),
            _ => {
                let member = |n: u32| format!("v.words.{}", MEMBERS[n as usize]);
                let mut text = member(3);
                for n in (0..3).rev() {
                    text = format!("index < {} ? {} : {text}", (n + 1) * per_word, member(n));
                }
                text
            }
        };
        let word = Expr::new(word, Level::Conditional);
        let place = if ty.bytes() <= 4 {
            "index"
        } else {
            &format!("index % {per_word}")
        };
        let shift = Expr::new(
            format!("{place} * {}", ty.scalar.bits()),
            Level::Multiplicative,
        );
        let bits = Expr::infix(">>", Level::Shift, &Expr::primary("word"), &shift);
        let unsigned = ty.scalar.unsigned_of_width();
        let bits = self.dialect.cast(self.dialect.scalar_type(unsigned), &bits);
        let lane = self.bitcast(unsigned, ty.scalar, &bits)?;
        Ok(format!(
            "{}{scalar} lane_at({name} v, int index) {{\n    const {uint} word = {};\n    return {};\n}}",
            self.dialect.helper_prefix(),
            word.text,
            lane.text
        ))
    }

    /// A vector of lanes.
    pub fn make(&mut self, ty: Type, lanes: &[Expr]) -> Printed {
        let name = self.type_name(ty);
        match self.form(ty) {
            Form::Native => Ok(Expr::call(&self.dialect.vector_maker(ty), lanes)),
            Form::Lanes => {
                let texts: Vec<&str> = lanes.iter().map(|l| l.text.as_str()).collect();
                Ok(Expr::primary(format!("{name}{{{}}}", texts.join(", "))).reading(lanes))
            }
            Form::Words => {
                let maker = format!("make_{name}");
                if self.helpers.is_new(&maker) {
                    let text = self.words_maker(ty, &name, &maker)?;
                    self.helpers.add(text);
                }
                Ok(Expr::call(&maker, lanes))
            }
        }
    }

    fn words_maker(&mut self, ty: Type, name: &str, maker: &str) -> Result<String, String> {
        let scalar = self.dialect.scalar_type(ty.scalar);
        let uint = self.dialect.scalar_type(Scalar::U32);
        let unsigned = ty.scalar.unsigned_of_width();
        let parameters: Vec<String> = (0..ty.lanes).map(|i| format!("{scalar} l{i}")).collect();
        let mut words = Vec::new();
        let per_word = usize::from((4 / ty.scalar.bytes()) as u8);
        let indices: Vec<u8> = (0..ty.lanes).collect();
        for chunk in indices.chunks(per_word) {
            let mut parts = Vec::new();
            for (place, lane) in chunk.iter().enumerate() {
                let operand = Expr::primary(format!("l{lane}"));
                let bits = self.bitcast(ty.scalar, unsigned, &operand)?;
                // Zero-extended: the lane's own unsigned type first, where it is signed.
                let part = self.dialect.cast(uint, &bits.plain());
                let shift = place as u32 * ty.scalar.bits();
                parts.push(match shift {
                    0 => part.text,
                    n => Expr::infix("<<", Level::Shift, &part, &Expr::primary(n.to_string())).text,
                });
            }
            let joined: Vec<String> = parts
                .iter()
                .map(|p| {
                    if p.contains("<<") {
                        format!("({p})")
                    } else {
                        p.clone()
                    }
                })
                .collect();
            words.push(if joined.len() == 1 {
                joined[0].clone()
            } else {
                joined.join(" | ")
            });
        }
        let words = match words.len() {
            1 => words[0].clone(),
            n => {
                let vector = Scalar::U32.x(n as u8);
                format!(
                    "{}({})",
                    self.dialect.vector_maker(vector),
                    words.join(", ")
                )
            }
        };
        let words = match ty.bytes() {
            2 => format!("({})({words})", self.dialect.scalar_type(Scalar::U16)),
            _ => words,
        };
        Ok(format!(
            "{}{name} {maker}({}) {{\n    return {name}{{{words}}};\n}}",
            self.dialect.helper_prefix(),
            parameters.join(", ")
        ))
    }

    /// Every lane the scalar.
    pub fn splat(&mut self, ty: Type, scalar: &Expr) -> Printed {
        if self.form(ty) == Form::Native && self.dialect.has_vector_functions() {
            let name = self.type_name(ty);
            return Ok(Expr::call(&name, std::slice::from_ref(scalar)));
        }
        // A narrow integer arrives as the `int` that C promoted it to, which would not choose
        // between overloads.
        let name = if ty.scalar.is_int() && ty.scalar.bytes() < 4 {
            format!("splat{}_{}", ty.lanes, ty.scalar)
        } else {
            format!("splat{}", ty.lanes)
        };
        self.lanewise(
            &name,
            ty,
            &[ty.scalar.x(1)],
            std::slice::from_ref(scalar),
            |_, lanes| Ok(lanes[0].clone()),
        )
    }

    /// Whether an operation on this type is spelled as on a scalar.
    pub fn is_direct(&self, ty: Type, infix: bool) -> bool {
        if ty.lanes == 1 {
            return true;
        }
        if self.form(ty) != Form::Native || is_half(ty.scalar) {
            return false;
        }
        let class = ty.scalar.class();
        let plain = class == Class::Float || (class == Class::Unsigned && ty.scalar.bytes() >= 4);
        plain
            && (self.dialect.has_vector_functions()
                || (infix && self.dialect.has_vector_operators()))
    }

    /// A helper function that computes each lane of `result` by `lane` from those of the
    /// operands, and a call of it. Operands with one lane are given to every lane.
    pub fn lanewise(
        &mut self,
        name: &str,
        result: Type,
        types: &[Type],
        operands: &[Expr],
        mut lane: impl FnMut(&mut Self, &[Expr]) -> Printed,
    ) -> Printed {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        let name = format!("lanes_{name}");
        let spelled: Vec<String> = types.iter().map(|&ty| self.type_name(ty)).collect();
        let result_name = self.type_name(result);
        let key = format!("{name}({}) {result_name}", spelled.join(", "));
        if self.helpers.is_new(&key) {
            let mut lanes = Vec::new();
            for index in 0..result.lanes {
                let mut parts = Vec::new();
                for (&ty, parameter) in types.iter().zip(NAMES) {
                    parts.push(self.lane(ty, &Expr::primary(parameter), index)?);
                }
                lanes.push(lane(self, &parts)?);
            }
            let made = self.make(result, &lanes)?;
            let parameters: Vec<String> = spelled
                .iter()
                .zip(NAMES)
                .map(|(ty, name)| format!("{ty} {name}"))
                .collect();
            self.helpers.add(format!(
                "{}{result_name} {name}({}) {{\n    return {};\n}}",
                self.dialect.helper_prefix(),
                parameters.join(", "),
                made.text
            ));
        }
        Ok(Expr::call(&name, operands))
    }

    /// An infix operator between vectors that the language has without operators: defines the
    /// operator lane by lane.
    pub fn vector_operator(
        &mut self,
        symbol: &'static str,
        level: Level,
        ty: Type,
        a: &Expr,
        b: &Expr,
    ) -> Printed {
        let name = self.type_name(ty);
        let key = format!("operator {symbol} {name}");
        if self.helpers.is_new(&key) {
            let mut lanes = Vec::new();
            for index in 0..ty.lanes {
                let x = self.lane(ty, &Expr::primary("a"), index)?;
                let y = self.lane(ty, &Expr::primary("b"), index)?;
                lanes.push(Expr::infix(symbol, level, &x, &y));
            }
            let made = self.make(ty, &lanes)?;
            self.helpers.add(format!(
                "{}{name} operator{symbol}({name} a, {name} b) {{\n    return {};\n}}",
                self.dialect.helper_prefix(),
                made.text
            ));
        }
        Ok(Expr::infix(symbol, level, a, b))
    }
}
