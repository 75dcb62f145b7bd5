//! Methods and functions of types.

use std::rc::Rc;

use crate::build::error::BuildFault;
use crate::build::tree;
use crate::build::value::{Element, RangeVal, Val};
use crate::entity::Value;
use crate::kernel::Space;
use crate::machine::{MachineOp, MachineStmt};
use crate::op::{BinaryOp, CompareOp, Op, Stmt, UnaryOp};
use crate::types::{Class, Scalar, Type};

use super::interpreter::{Builder, Eval};

/// Methods of one operand that are one operation.
fn unary_method(name: &str) -> Option<UnaryOp> {
    Some(match name {
        "abs" => UnaryOp::Abs,
        "sqrt" => UnaryOp::Sqrt,
        "rsqrt" => UnaryOp::Rsqrt,
        "exp" => UnaryOp::Exp,
        "exp2" => UnaryOp::Exp2,
        "ln" => UnaryOp::Log,
        "log2" => UnaryOp::Log2,
        "sin" => UnaryOp::Sin,
        "cos" => UnaryOp::Cos,
        "tanh" => UnaryOp::Tanh,
        "erf" => UnaryOp::Erf,
        "floor" => UnaryOp::Floor,
        "ceil" => UnaryOp::Ceil,
        "trunc" => UnaryOp::Trunc,
        "round_ties_even" => UnaryOp::RoundEven,
        "is_nan" => UnaryOp::IsNan,
        "is_finite" => UnaryOp::IsFinite,
        "wrapping_neg" => UnaryOp::Neg,
        "count_ones" => UnaryOp::CountOnes,
        "leading_zeros" => UnaryOp::LeadingZeros,
        "trailing_zeros" => UnaryOp::TrailingZeros,
        "reverse_bits" => UnaryOp::ReverseBits,
        _ => return None,
    })
}

/// A scalar in as many lanes as a value of `ty` has numbers.
fn unpacked(ty: Type, scalar: Scalar) -> Type {
    let numbers = match ty.scalar {
        Scalar::F4E2M1x2 => 2,
        Scalar::Int4x8 => 8,
        _ => 1,
    };
    scalar.x(ty.lanes * numbers)
}

/// Methods of two operands of one type that are one operation.
fn binary_method(name: &str) -> Option<BinaryOp> {
    Some(match name {
        "min" => BinaryOp::Min,
        "max" => BinaryOp::Max,
        "min_nan" => BinaryOp::MinNan,
        "max_nan" => BinaryOp::MaxNan,
        "powf" => BinaryOp::Pow,
        "wrapping_add" => BinaryOp::Add,
        "wrapping_sub" => BinaryOp::Sub,
        "wrapping_mul" => BinaryOp::Mul,
        "mul_high" => BinaryOp::MulHigh,
        "dot4" => BinaryOp::Dot4,
        "dot4_mixed" => BinaryOp::Dot4Mixed,
        _ => return None,
    })
}

/// The operation of a lane-wise reduction.
fn lane_reduction(name: &str) -> Option<BinaryOp> {
    Some(match name {
        "sum" => BinaryOp::Add,
        "max_lane" => BinaryOp::Max,
        "min_lane" => BinaryOp::Min,
        _ => return None,
    })
}

impl Builder {
    pub(super) fn method(
        &mut self,
        receiver: &tree::Expr,
        name: &str,
        types: &[tree::Ty],
        arguments: &[tree::Expr],
        whole: &tree::Expr,
    ) -> Eval<Val> {
        let place = self.expr(receiver)?.target();
        self.locate(&whole.at);
        match &place {
            Val::Tile(tile) => return self.tile_method(*tile, name, arguments, whole),
            Val::Range(range) if name == "step_by" => {
                let range = (**range).clone();
                return self.step_by(range, arguments, whole);
            }
            Val::Tensor(_) | Val::Row(..) | Val::Array(_) | Val::List(_) | Val::Repeat(..) => {
                return self.memory_method(place, name, arguments, whole);
            }
            _ => {}
        }
        let value = self.as_scalar(place)?;
        self.value_method(value, name, types, arguments, whole)
    }

    fn step_by(
        &mut self,
        mut range: RangeVal,
        arguments: &[tree::Expr],
        whole: &tree::Expr,
    ) -> Eval<Val> {
        let [step] = arguments else {
            return self.fail(BuildFault::Malformed);
        };
        let step = self.scalar_beside(step, Type::U64)?;
        self.locate(&whole.at);
        range.step = Some(match range.step {
            None => step,
            Some(old) => {
                let old = self.convert(old, Type::U64)?;
                self.binary(BinaryOp::Mul, old, step)?
            }
        });
        Ok(Val::Range(Box::new(range)))
    }

    fn memory_method(
        &mut self,
        base: Val,
        name: &str,
        arguments: &[tree::Expr],
        whole: &tree::Expr,
    ) -> Eval<Val> {
        match (name, arguments) {
            ("load2" | "load4" | "load8", [index]) => {
                let cell = self.vector_cell(base, index, lanes_of(name))?;
                self.locate(&whole.at);
                self.read(Val::Cell(cell))
            }
            ("store2" | "store4" | "store8", [index, value]) => {
                let cell = self.vector_cell(base, index, lanes_of(name))?;
                let value = self.scalar(value)?;
                self.locate(&whole.at);
                self.store(&Val::Cell(cell), Val::Scalar(value))?;
                Ok(Val::unit())
            }
            ("row" | "row_mut", [index]) => {
                let Val::Tensor(param) = base else {
                    return self.wrong_kind("a row", "a tensor", &base);
                };
                let leading = self.indices(index)?;
                Ok(Val::Row(param, leading))
            }
            ("fill", [value]) => self.fill_method(base, value, whole),
            ("map", [closure]) => self.map_method(base, closure, whole),
            ("dim", [axis]) => self.dim_method(base, axis),
            ("end_batch", []) => self.batch_method(&base, MachineOp::BatchEnd, &[], whole),
            ("wait_batches", [newest]) => {
                let newest = self.scalar_beside(newest, Type::U32)?;
                let known = self.known_int(newest).map(u32::try_from);
                let Some(Ok(newest)) = known else {
                    return self.fail(BuildFault::NotConstant {
                        what: "the number of batches still on their way".into(),
                    });
                };
                self.batch_method(&base, MachineOp::BatchWait, &[newest], whole)
            }
            ("len", []) => self.len_method(&base),
            _ if name.starts_with("atomic_") => self.atomic(base, name, arguments, whole),
            _ => self.wrong_kind(&format!("`{name}`"), "another receiver", &base),
        }
    }

    /// What an array that is filled ahead of its use does with batches.
    fn batch_method(
        &mut self,
        base: &Val,
        op: MachineOp,
        numbers: &[u32],
        whole: &tree::Expr,
    ) -> Eval<Val> {
        let what = format!("`{}`", op.name());
        let Val::Array(array) = base else {
            return self.wrong_kind(&what, "an array declared by `ahead`", base);
        };
        match &*array.element {
            Element::Leaf(storage, _) if self.kernel.arrays[*storage].space == Space::Ahead => {
                self.locate(&whole.at);
                let stmt = MachineStmt::new(op, &[*storage], &[], numbers);
                self.stmt(Stmt::Machine(stmt));
                Ok(Val::unit())
            }
            _ => self.wrong_kind(&what, "an array declared by `ahead`", base),
        }
    }

    /// `[T; N]::fill`.
    fn fill_method(&mut self, base: Val, value: &tree::Expr, whole: &tree::Expr) -> Eval<Val> {
        let Val::Array(array) = &base else {
            return self.wrong_kind("`fill`", "an array declared by `let mut`", &base);
        };
        let value = match &*array.element {
            Element::Leaf(_, ty) => Val::Scalar(self.scalar_beside(value, *ty)?),
            Element::Tuple(_) | Element::Struct(..) => self.rvalue(value)?,
        };
        self.locate(&whole.at);
        let count = array.dims.first().copied().unwrap_or(0);
        self.store(&base, Val::Repeat(Rc::new(value), count))?;
        Ok(Val::unit())
    }

    /// `[T; N]::map`, element by element.
    fn map_method(&mut self, base: Val, closure: &tree::Expr, whole: &tree::Expr) -> Eval<Val> {
        let closure = self.rvalue(closure)?.target();
        self.locate(&whole.at);
        let count = match &base {
            Val::Array(array) => array.dims.first().copied().unwrap_or(0),
            Val::List(items) => items.len() as u32,
            Val::Repeat(_, count) => *count,
            other => return self.wrong_kind("`map`", "an array", other),
        };
        let mut mapped = Vec::new();
        for i in 0..count {
            let item = match &base {
                Val::List(items) => items[i as usize].clone(),
                Val::Repeat(item, _) => (**item).clone(),
                Val::Array(array) => {
                    let index = self.const_u32(i);
                    let place = self.element(array, index)?;
                    self.read(place)?
                }
                other => return self.wrong_kind("`map`", "an array", other),
            };
            mapped.push(self.apply(&closure, vec![item])?);
        }
        Ok(Val::List(Rc::new(mapped)))
    }

    fn dim_method(&mut self, base: Val, axis: &tree::Expr) -> Eval<Val> {
        let Val::Tensor(param) = base else {
            return self.wrong_kind("`dim`", "a tensor", &base);
        };
        let axis = self.index_value(axis)?;
        let Some(axis) = self.known_int(axis) else {
            return self.fail(BuildFault::NotConstant {
                what: "the axis".into(),
            });
        };
        let shape = match self.kernel.tensor(param) {
            Some(tensor) => tensor.shape.clone(),
            None => return self.fail(BuildFault::Malformed),
        };
        match usize::try_from(axis).ok().and_then(|axis| shape.get(axis)) {
            Some(extent) => self.extent(extent).map(Val::Scalar),
            None => self.fail(BuildFault::OutOfRange {
                what: "the axis".into(),
                found: axis,
                allowed: format!("0 to {}", shape.len() as i128 - 1),
            }),
        }
    }

    fn len_method(&mut self, base: &Val) -> Eval<Val> {
        let (count, is_handle) = match base {
            Val::Array(array) => (array.dims.first().copied().unwrap_or(0), array.is_handle),
            Val::List(items) => (items.len() as u32, false),
            Val::Repeat(_, count) => (*count, false),
            Val::Row(param, leading) => {
                let last = self
                    .kernel
                    .tensor(*param)
                    .and_then(|t| t.shape.get(leading.len()).cloned());
                return match last {
                    Some(extent) => self.extent(&extent).map(Val::Scalar),
                    None => self.fail(BuildFault::Malformed),
                };
            }
            other => return self.wrong_kind("`len`", "an array", other),
        };
        // `len` of Rust's own arrays is `usize`.
        let scalar = if is_handle { Scalar::U32 } else { Scalar::U64 };
        Ok(Val::Scalar(self.const_bits(scalar, u64::from(count))))
    }

    fn value_method(
        &mut self,
        value: Value,
        name: &str,
        types: &[tree::Ty],
        arguments: &[tree::Expr],
        whole: &tree::Expr,
    ) -> Eval<Val> {
        let ty = self.ty(value);
        if name == "wrapping_neg" && ty.scalar.class() == Class::Unsigned {
            // Unsigned integers have no `neg`.
            let zero = self.const_bits(ty.scalar, 0);
            return self.binary(BinaryOp::Sub, zero, value).map(Val::Scalar);
        }
        if let Some(op) = unary_method(name) {
            return self.unary(op, value).map(Val::Scalar);
        }
        if let (Some(op), [other]) = (binary_method(name), arguments) {
            let other = self.scalar_beside(other, ty.scalar.x(1))?;
            self.locate(&whole.at);
            return self.binary(op, value, other).map(Val::Scalar);
        }
        if let Some(op) = lane_reduction(name) {
            let lanes = self.lanes(value);
            return self.pairs(op, lanes).map(Val::Scalar);
        }
        match (name, arguments) {
            ("to_f32", []) => self
                .convert(value, unpacked(ty, Scalar::F32))
                .map(Val::Scalar),
            ("to_i32", []) if ty.scalar == Scalar::Int4x8 => self
                .convert(value, unpacked(ty, Scalar::I32))
                .map(Val::Scalar),
            ("to", []) => {
                let [target] = types else {
                    return self.fail(BuildFault::Malformed);
                };
                let target = self.value_type(target)?;
                self.convert(value, ty.with_scalar(target.scalar))
                    .map(Val::Scalar)
            }
            ("bitcast", []) => {
                let [target] = types else {
                    return self.fail(BuildFault::Malformed);
                };
                let target = self.value_type(target)?;
                self.bitcast(value, target)
            }
            ("to_bits", []) => self.bitcast(value, ty.with_scalar(ty.scalar.unsigned_of_width())),
            ("mul_add", [a, b]) => {
                let a = self.scalar_beside(a, ty.scalar.x(1))?;
                let b = self.scalar_beside(b, ty.scalar.x(1))?;
                self.locate(&whole.at);
                self.fma(value, a, b).map(Val::Scalar)
            }
            ("clamp", [low, high]) => {
                let low = self.scalar_beside(low, ty.scalar.x(1))?;
                let high = self.scalar_beside(high, ty.scalar.x(1))?;
                self.locate(&whole.at);
                self.clamp(value, low, high)
            }
            ("dot", [other]) => {
                let other = self.scalar(other)?;
                self.locate(&whole.at);
                self.dot(value, other).map(Val::Scalar)
            }
            ("map", [closure]) => {
                let closure = self.rvalue(closure)?.target();
                self.locate(&whole.at);
                let mut mapped = Vec::new();
                for lane in self.lanes(value) {
                    let result = self.apply(&closure, vec![Val::Scalar(lane)])?;
                    mapped.push(self.as_scalar(result)?);
                }
                self.vector(mapped).map(Val::Scalar)
            }
            ("wrapping_shl" | "wrapping_shr", [count]) => {
                let count = self.scalar_beside(count, Type::U32)?;
                let op = if name == "wrapping_shl" {
                    BinaryOp::Shl
                } else {
                    BinaryOp::Shr
                };
                self.locate(&whole.at);
                self.binary(op, value, count).map(Val::Scalar)
            }
            ("div_ceil" | "abs_diff" | "saturating_sub", [other]) => {
                let other = self.scalar_beside(other, ty)?;
                self.locate(&whole.at);
                self.integer_method(name, value, other)
            }
            ("is_power_of_two", []) => {
                let ones = self.unary(UnaryOp::CountOnes, value)?;
                let one = self.const_u32(1);
                self.compare(CompareOp::Eq, ones, one).map(Val::Scalar)
            }
            ("pow", [exponent]) => {
                let exponent = self.scalar_beside(exponent, Type::U32)?;
                self.locate(&whole.at);
                self.integer_power(value, exponent)
            }
            _ => self.no_operation(&format!("`{name}`"), ty),
        }
    }

    fn bitcast(&mut self, value: Value, target: Type) -> Eval<Val> {
        let from = self.ty(value);
        // `v.bitcast::<u32>()` of a vector keeps its lanes.
        let to = if target.lanes == 1 && from.scalar.bytes() == target.scalar.bytes() {
            from.with_scalar(target.scalar)
        } else {
            target
        };
        if from == to {
            return Ok(Val::Scalar(value));
        }
        if from.bytes() != to.bytes() {
            return self.fail(BuildFault::Types {
                operation: "`bitcast`".into(),
                left: from,
                right: to,
            });
        }
        Ok(Val::Scalar(self.push(Op::Bitcast(value), to)))
    }

    fn clamp(&mut self, value: Value, low: Value, high: Value) -> Eval<Val> {
        if self.ty(value).scalar.is_float() {
            // Rust's float `clamp` keeps NaN; `max` and `min` of the language do not.
            let below = self.compare(CompareOp::Lt, value, low)?;
            let raised = self.select(below, low, value)?;
            let above = self.compare(CompareOp::Gt, raised, high)?;
            return self.select(above, high, raised).map(Val::Scalar);
        }
        let raised = self.binary(BinaryOp::Max, value, low)?;
        self.binary(BinaryOp::Min, raised, high).map(Val::Scalar)
    }

    fn dot(&mut self, a: Value, b: Value) -> Eval<Value> {
        let (left, right) = (self.ty(a), self.ty(b));
        if left != right || left.lanes == 1 {
            return self.fail(BuildFault::Types {
                operation: "`dot`".into(),
                left,
                right,
            });
        }
        let (a, b) = (self.lanes(a), self.lanes(b));
        let mut sum = None;
        for (x, y) in a.into_iter().zip(b) {
            sum = Some(match sum {
                None => self.binary(BinaryOp::Mul, x, y)?,
                Some(sum) => self.fma(x, y, sum)?,
            });
        }
        match sum {
            Some(sum) => Ok(sum),
            None => self.fail(BuildFault::Malformed),
        }
    }

    /// The adjacent-pair tree over lanes.
    fn pairs(&mut self, op: BinaryOp, mut items: Vec<Value>) -> Eval<Value> {
        while items.len() > 1 {
            let mut next = Vec::new();
            for pair in items.chunks(2) {
                next.push(match pair {
                    [a, b] => self.binary(op, *a, *b)?,
                    [a] => *a,
                    _ => continue,
                });
            }
            items = next;
        }
        match items.first() {
            Some(value) => Ok(*value),
            None => self.fail(BuildFault::Malformed),
        }
    }

    fn integer_method(&mut self, name: &str, value: Value, other: Value) -> Eval<Val> {
        let ty = self.ty(value);
        if !ty.scalar.is_int() || (name != "abs_diff" && ty.scalar.is_signed()) {
            return self.no_operation(&format!("`{name}`"), ty);
        }
        match name {
            "div_ceil" => {
                let quotient = self.binary(BinaryOp::Div, value, other)?;
                let rest = self.binary(BinaryOp::Rem, value, other)?;
                let (zero, one) = (self.const_bits(ty.scalar, 0), self.const_bits(ty.scalar, 1));
                let exact = self.compare(CompareOp::Eq, rest, zero)?;
                let more = self.select(exact, zero, one)?;
                self.binary(BinaryOp::Add, quotient, more).map(Val::Scalar)
            }
            "saturating_sub" => {
                let above = self.compare(CompareOp::Gt, value, other)?;
                let difference = self.binary(BinaryOp::Sub, value, other)?;
                let zero = self.const_bits(ty.scalar, 0);
                self.select(above, difference, zero).map(Val::Scalar)
            }
            _ => {
                let above = self.compare(CompareOp::Gt, value, other)?;
                let down = self.binary(BinaryOp::Sub, value, other)?;
                let up = self.binary(BinaryOp::Sub, other, value)?;
                let difference = self.select(above, down, up)?;
                let unsigned = ty.with_scalar(ty.scalar.unsigned_of_width());
                self.convert(difference, unsigned).map(Val::Scalar)
            }
        }
    }

    /// `x.pow(n)` for a constant `n`, by repeated squaring.
    fn integer_power(&mut self, value: Value, exponent: Value) -> Eval<Val> {
        let ty = self.ty(value);
        if !ty.scalar.is_int() {
            return self.no_operation("`pow`", ty);
        }
        let Some(mut exponent) = self.known_int(exponent) else {
            return self.fail(BuildFault::NotConstant {
                what: "the exponent of `pow`".into(),
            });
        };
        let mut result = self.const_bits(ty.scalar, 1);
        let mut square = value;
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = self.binary(BinaryOp::Mul, result, square)?;
            }
            exponent >>= 1;
            if exponent > 0 {
                square = self.binary(BinaryOp::Mul, square, square)?;
            }
        }
        Ok(Val::Scalar(result))
    }

    /// `T::from_f32(x)` and its like.
    pub(super) fn associated(
        &mut self,
        ty: &tree::Ty,
        name: &str,
        arguments: &[tree::Expr],
        whole: &tree::Expr,
    ) -> Eval<Val> {
        let to = self.value_type(ty)?;
        let [argument] = arguments else {
            return self.fail(BuildFault::Malformed);
        };
        let value = self.scalar(argument)?;
        self.locate(&whole.at);
        match name {
            "from_f32" => self.convert(value, to).map(Val::Scalar),
            "from_bits" => self.bitcast(value, to),
            "splat" => Ok(Val::Scalar(self.splat(value, to.lanes))),
            _ => self.fail(BuildFault::Malformed),
        }
    }

    /// A call of a closure that a statement's block contains, as tiles need it: the block that
    /// computes it and its result.
    pub(super) fn closure_block(
        &mut self,
        closure: &Val,
        arguments: Vec<Value>,
    ) -> Eval<(crate::kernel::Block, Value)> {
        let arguments: Vec<Val> = arguments.into_iter().map(Val::Scalar).collect();
        let (block, value) = self.in_block(|b| {
            let value = b.apply(closure, arguments)?;
            b.as_scalar(value)
        })?;
        match value {
            Some(value) => Ok((block, value)),
            None => self.fail(BuildFault::Malformed),
        }
    }

    /// A value as the expression of a shape gives it.
    pub(super) fn extent(&mut self, extent: &crate::contract::Expr) -> Eval<Value> {
        use crate::contract::{Expr, ExprOp};
        Ok(match extent {
            Expr::Const(value) => self.const_bits(Scalar::U32, *value as u64),
            Expr::Dim(dim) => self.dim_value(*dim),
            Expr::Scalar(param) => {
                let crate::kernel::ParamKind::Scalar(scalar) = self.kernel.params[*param].kind
                else {
                    return self.fail(BuildFault::Malformed);
                };
                let value = self.push(Op::Scalar(*param), scalar.x(1));
                self.convert(value, Type::U32)?
            }
            Expr::Binary(op, lhs, rhs) => {
                let (lhs, rhs) = (self.extent(lhs)?, self.extent(rhs)?);
                let op = match op {
                    ExprOp::Add => BinaryOp::Add,
                    ExprOp::Sub => BinaryOp::Sub,
                    ExprOp::Mul => BinaryOp::Mul,
                    ExprOp::Div => BinaryOp::Div,
                    ExprOp::Rem => BinaryOp::Rem,
                    ExprOp::Min => BinaryOp::Min,
                    ExprOp::Max => BinaryOp::Max,
                    ExprOp::CeilDiv => {
                        let value = self.integer_method("div_ceil", lhs, rhs)?;
                        return self.as_scalar(value);
                    }
                };
                self.binary(op, lhs, rhs)?
            }
        })
    }

    /// An error word entry: `index` where it is below `bound`, else 0.
    pub(super) fn check_index(&mut self, index: Value, bound: Value) -> Value {
        let result = self.result(Type::U32);
        self.stmt(Stmt::CheckIndex {
            result,
            index,
            bound,
        });
        result
    }
}

fn lanes_of(name: &str) -> u8 {
    match name.as_bytes().last() {
        Some(b'2') => 2,
        Some(b'8') => 8,
        _ => 4,
    }
}
