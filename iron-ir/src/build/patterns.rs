//! Tests of patterns, and the constants that rustc evaluated.

use std::rc::Rc;

use crate::build::error::BuildFault;
use crate::build::shape::TypeShape;
use crate::build::tree::Pattern;
use crate::build::value::Val;
use crate::entity::Value;
use crate::op::{CompareOp, Const, Op};
use crate::types::Scalar;

use super::interpreter::{Builder, Eval};

impl Builder {
    /// Whether a value matches a pattern; `None` where it always does.
    pub(super) fn test(&mut self, pattern: &Pattern, value: &Val) -> Eval<Option<Value>> {
        match pattern {
            Pattern::Name { .. } | Pattern::Wild {} => Ok(None),
            Pattern::Tuple { items } => {
                let mut all = None;
                for (i, item) in items.iter().enumerate() {
                    let part = self.field(value.clone().target(), &i.to_string())?;
                    let test = self.test(item, &part)?;
                    all = self.joined_test("&", all, test)?;
                }
                Ok(all)
            }
            Pattern::Struct { fields } => {
                let mut all = None;
                for field in fields {
                    let part = self.field(value.clone().target(), &field.name)?;
                    let test = self.test(&field.pattern, &part)?;
                    all = self.joined_test("&", all, test)?;
                }
                Ok(all)
            }
            Pattern::Or { cases } => {
                let mut any = None;
                for case in cases {
                    match self.test(case, value)? {
                        None => return Ok(None),
                        test => any = self.joined_test("|", any, test)?,
                    }
                }
                Ok(any)
            }
            Pattern::Int { .. } | Pattern::Bool { .. } | Pattern::Const { .. } => {
                let value = self.as_scalar(value.clone())?;
                let wanted = self.pattern_constant(pattern, self.ty(value).scalar)?;
                self.compare(CompareOp::Eq, value, wanted).map(Some)
            }
            Pattern::Range {
                start,
                end,
                inclusive,
            } => {
                let value = self.as_scalar(value.clone())?;
                let scalar = self.ty(value).scalar;
                let mut test = None;
                if let Some(start) = start {
                    let bound = self.pattern_constant(start, scalar)?;
                    test = Some(self.compare(CompareOp::Ge, value, bound)?);
                }
                if let Some(end) = end {
                    let bound = self.pattern_constant(end, scalar)?;
                    let op = if *inclusive {
                        CompareOp::Le
                    } else {
                        CompareOp::Lt
                    };
                    let below = self.compare(op, value, bound)?;
                    test = self.joined_test("&", test, Some(below))?;
                }
                Ok(test)
            }
        }
    }

    fn joined_test(&mut self, op: &str, a: Option<Value>, b: Option<Value>) -> Eval<Option<Value>> {
        match (a, b) {
            (Some(a), Some(b)) => self.binary_token(op, a, b).map(Some),
            (test, None) | (None, test) => Ok(test),
        }
    }

    fn pattern_constant(&mut self, pattern: &Pattern, scalar: Scalar) -> Eval<Value> {
        match pattern {
            Pattern::Int { digits, negative } => {
                let value = self.constant_of(digits, scalar)?;
                if *negative {
                    self.unary(crate::op::UnaryOp::Neg, value)
                } else {
                    Ok(value)
                }
            }
            Pattern::Bool { value } => Ok(self.const_bool(*value)),
            Pattern::Const { index } => {
                let value = self.constant(*index)?;
                self.as_scalar(value)
            }
            _ => self.fail(BuildFault::Malformed),
        }
    }

    /// A constant that rustc evaluated.
    pub(super) fn constant(&mut self, index: u32) -> Eval<Val> {
        let context = self.context.clone();
        let Some(constant) = context.consts.get(index as usize) else {
            return self.fail(BuildFault::Malformed);
        };
        let mut values = constant.values.iter().copied();
        self.constant_val(&constant.shape, &mut values)
    }

    fn constant_val(
        &mut self,
        shape: &TypeShape,
        values: &mut dyn Iterator<Item = Const>,
    ) -> Eval<Val> {
        Ok(match shape {
            TypeShape::Value(ty) => {
                let mut lanes = Vec::new();
                for _ in 0..ty.lanes {
                    let Some(value) = values.next() else {
                        return self.fail(BuildFault::Malformed);
                    };
                    lanes.push(self.const_bits(value.scalar, value.bits));
                }
                match lanes.as_slice() {
                    [single] => Val::Scalar(*single),
                    _ => Val::Scalar(self.push(Op::Vector(lanes), *ty)),
                }
            }
            TypeShape::Array(item, count) => {
                let items = (0..*count)
                    .map(|_| self.constant_val(item, values))
                    .collect::<Eval<Vec<_>>>()?;
                Val::List(Rc::new(items))
            }
            TypeShape::Tuple(items) => Val::Tuple(
                items
                    .iter()
                    .map(|item| self.constant_val(item, values))
                    .collect::<Eval<_>>()?,
            ),
            TypeShape::Struct(name, fields) => {
                let mut parts: Vec<(Rc<str>, Val)> = fields
                    .iter()
                    .map(|(key, shape)| Ok(((*key).into(), self.constant_val(shape, values)?)))
                    .collect::<Eval<_>>()?;
                parts.sort_by(|a, b| a.0.cmp(&b.0));
                Val::Struct((*name).into(), parts)
            }
            TypeShape::Opaque(_) => return self.fail(BuildFault::Malformed),
        })
    }

    /// The length of `[x; N]`.
    pub(super) fn const_count(&mut self, index: u32) -> Eval<u32> {
        let value = self.constant(index)?;
        let value = self.as_scalar(value)?;
        self.known_count(value, "the length of this array")
    }

    /// A constant from 1 to 2^24.
    pub(super) fn known_count(&self, value: Value, what: &str) -> Eval<u32> {
        match self.known_int(value) {
            None => self.fail(BuildFault::NotConstant {
                what: what.to_string(),
            }),
            Some(found) if (1..=1 << 24).contains(&found) => Ok(found as u32),
            Some(found) => self.fail(BuildFault::OutOfRange {
                what: what.to_string(),
                found,
                allowed: "1 to 16777216".into(),
            }),
        }
    }
}
