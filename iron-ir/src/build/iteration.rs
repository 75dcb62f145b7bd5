//! `for` over ranges: exclusive and inclusive, with steps, strided over threads, unrolled.

use crate::build::error::BuildFault;
use crate::build::tree;
use crate::build::value::{RangeVal, Val};
use crate::entity::Value;
use crate::op::{BinaryOp, CompareOp, Stmt, Unroll};
use crate::types::{Scalar, Type};

use super::control::{Frame, FrameKind};
use super::interpreter::{Builder, Eval, Stop};

/// Turns above which an unrolled loop is refused.
const MAX_TURNS: i128 = 4096;

impl Builder {
    pub(super) fn for_loop(
        &mut self,
        label: Option<&str>,
        pattern: &tree::Pattern,
        iterator: &tree::Expr,
        body: &tree::Block,
    ) -> Eval<Val> {
        let span = self.span;
        let range = match self.rvalue(iterator)?.target() {
            Val::Range(range) => *range,
            other => return self.wrong_kind("`for`", "a range", &other),
        };
        self.span = span;
        if range.unroll {
            return self.unrolled(label, pattern, &range, body);
        }
        let ty = self.ty(range.start);
        let counted = self.counted(&range)?;
        let frame = Frame::new(FrameKind::Loop, label);
        let index = self.result(self.ty(counted.start));
        self.in_loop(
            frame,
            |b| {
                b.span = span;
                let value = b.convert(index, ty)?;
                let named = if value == index { index } else { value };
                if let tree::Pattern::Name { name, .. } = pattern {
                    b.kernel.values[named].name = Some(name.as_str().into());
                }
                b.bind(pattern, Val::Scalar(named), None)?;
                b.block(body).map(|_| ())
            },
            |body| Stmt::For {
                index,
                start: counted.start,
                end: counted.end,
                step: counted.step,
                unroll: Unroll::Auto,
                body,
            },
        )?;
        Ok(Val::unit())
    }

    /// The loop of the IR that a range is: exclusive, with a step of the index's type. Where
    /// the author's type cannot hold the exclusive end or the step, a wider one counts.
    fn counted(&mut self, range: &RangeVal) -> Eval<Counted> {
        let ty = self.ty(range.start);
        let RangeVal {
            mut start,
            mut end,
            step,
            inclusive,
            ..
        } = *range;
        let wide = if ty.scalar.is_signed() {
            Scalar::I64
        } else {
            Scalar::U64
        };
        let known_end = self.known_int(end);
        let largest = largest_int(ty.scalar);
        let known_step = step.and_then(|step| self.known_int(step));
        let step_fits = match (step, known_step) {
            (None, _) => true,
            (Some(_), Some(known)) => known <= largest,
            (Some(step), None) => self.ty(step) == ty,
        };
        let end_fits = !inclusive || known_end.is_some_and(|end| end < largest);
        let mut counter = ty;
        if !(step_fits && end_fits) && ty.bytes() < 8 {
            counter = wide.x(1);
            start = self.convert(start, counter)?;
            end = self.convert(end, counter)?;
        }
        if inclusive {
            let one = self.const_bits(counter.scalar, 1);
            if end_fits || counter != ty {
                end = self.binary(BinaryOp::Add, end, one)?;
            } else {
                end = self.end_of_widest(start, end, one)?;
            }
        }
        let step = match step {
            None => self.const_bits(counter.scalar, 1),
            Some(step) if counter.scalar.is_signed() && counter.bytes() == 8 => {
                // A step past i64::MAX ends the loop after its first turn either way.
                let most = self.const_bits(Scalar::U64, i64::MAX as u64);
                let step = self.convert(step, Type::U64)?;
                let step = self.binary(BinaryOp::Min, step, most)?;
                self.convert(step, counter)?
            }
            Some(step) => self.convert(step, counter)?,
        };
        Ok(Counted { start, end, step })
    }

    /// The exclusive end of `start..=end` in the widest type: `MAX` itself is left out, which
    /// is the one turn that 64 bits cannot count.
    fn end_of_widest(&mut self, start: Value, end: Value, one: Value) -> Eval<Value> {
        let scalar = self.ty(end).scalar;
        let most = self.const_bits(scalar, largest_int(scalar) as u64);
        let is_most = self.compare(CompareOp::Eq, end, most)?;
        let next = self.binary(BinaryOp::Add, end, one)?;
        let next = self.select(is_most, most, next)?;
        let some = self.compare(CompareOp::Le, start, end)?;
        self.select(some, next, start)
    }

    /// `for i in unroll(a..b)`: the body is evaluated once a turn, with a constant index.
    fn unrolled(
        &mut self,
        label: Option<&str>,
        pattern: &tree::Pattern,
        range: &RangeVal,
        body: &tree::Block,
    ) -> Eval<Val> {
        let scalar = self.ty(range.start).scalar;
        let bound = |b: &Self, value: Value, what: &str| match b.known_int(value) {
            Some(known) => Ok(known),
            None => b.fail(BuildFault::NotConstant {
                what: what.to_string(),
            }),
        };
        let start = bound(self, range.start, "the start of an unrolled range")?;
        let mut end = bound(self, range.end, "the end of an unrolled range")?;
        if range.inclusive {
            end += 1;
        }
        let step = match range.step {
            Some(step) => bound(self, step, "the step of an unrolled range")?,
            None => 1,
        };
        if step <= 0 || end - start > MAX_TURNS * step {
            return self.fail(BuildFault::OutOfRange {
                what: "the number of turns of an unrolled loop".into(),
                found: if step <= 0 { 0 } else { (end - start) / step },
                allowed: format!("0 to {MAX_TURNS}, with a step above 0"),
            });
        }
        let frame = Frame::new(FrameKind::Unrolled, label);
        self.leavable(
            frame,
            |b| {
                let mut index = start;
                while index < end {
                    let turn = Frame::new(FrameKind::Turn, label);
                    let result = b.leavable(
                        turn,
                        |b| {
                            let value = b.const_bits(scalar, index as u64);
                            let names = b.names.clone();
                            b.bind(pattern, Val::Scalar(value), None)?;
                            let result = b.block(body);
                            b.names = names;
                            result
                        },
                        "turn",
                    );
                    match result {
                        Ok(_) => {}
                        Err(Stop::Unreachable) => return Err(Stop::Unreachable),
                        Err(stop) => return Err(stop),
                    }
                    index += step;
                }
                Ok(Val::unit())
            },
            "unrolled",
        )
    }

    /// `strided(n)`, `grid_strided(n)`: a range over threads.
    pub(super) fn thread_range(&mut self, start: Value, end: Value, step: Value) -> Val {
        Val::Range(Box::new(RangeVal {
            start,
            end,
            step: Some(step),
            inclusive: false,
            unroll: false,
        }))
    }
}

struct Counted {
    start: Value,
    end: Value,
    step: Value,
}

fn largest_int(scalar: Scalar) -> i128 {
    let bits = scalar.bits() - u32::from(scalar.is_signed());
    (1i128 << bits) - 1
}
