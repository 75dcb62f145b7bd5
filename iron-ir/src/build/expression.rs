//! Evaluates statements and expressions.

use std::rc::Rc;

use crate::build::error::BuildFault;
use crate::build::tree::{self, ExprKind, LiteralTy};
use crate::build::value::{Cell, ClosureVal, RangeVal, Val};
use crate::entity::Value;
use crate::op::{CompareOp, Op, Stmt, UnaryOp};
use crate::types::{Scalar, Type};

use super::control::Exit;
use super::interpreter::{Builder, Eval};

impl Builder {
    /// A block in a scope of its own.
    pub(super) fn block(&mut self, block: &tree::Block) -> Eval<Val> {
        let names = self.names.clone();
        let result = self.statements(block);
        self.names = names;
        result
    }

    fn statements(&mut self, block: &tree::Block) -> Eval<Val> {
        for stmt in &block.stmts {
            self.statement(stmt)?;
        }
        match &block.value {
            Some(value) => self.rvalue(value),
            None => Ok(Val::unit()),
        }
    }

    fn statement(&mut self, stmt: &tree::Stmt) -> Eval<()> {
        match stmt {
            tree::Stmt::Let { pattern, value, at } => {
                let first = self.kernel.values.len();
                let is_place = matches!(
                    &*value.kind,
                    ExprKind::Name { .. } | ExprKind::Field { .. } | ExprKind::Index { .. }
                );
                let hint = match pattern {
                    tree::Pattern::Name { name, .. } => Some(name.as_str()),
                    _ => None,
                };
                let mut value = self.hinted(value, hint)?;
                self.locate(at);
                if is_place {
                    value = self.copied(value)?;
                }
                self.bind(pattern, value, Some(first))
            }
            tree::Stmt::Expr { value } => self.expr(value).map(|_| ()),
        }
    }

    /// The body of an inlined function. `if … { return a; } rest` at its end is
    /// `if … { a } else { rest }`, which needs no exit.
    pub(super) fn function_body(&mut self, block: &tree::Block, name: &str) -> Eval<Val> {
        let names = self.names.clone();
        let result = self.function_end(&block.stmts, block.value.as_ref(), name);
        self.names = names;
        result
    }

    fn function_end(
        &mut self,
        stmts: &[tree::Stmt],
        value: Option<&tree::Expr>,
        name: &str,
    ) -> Eval<Val> {
        for (index, stmt) in stmts.iter().enumerate() {
            let tree::Stmt::Expr { value: expr } = stmt else {
                self.statement(stmt)?;
                continue;
            };
            match &*expr.kind {
                ExprKind::Return { value: Some(value) } => return self.rvalue(value),
                ExprKind::If {
                    condition,
                    then_block,
                    else_value: None,
                } if ends_with_return(then_block) => {
                    let condition = self.scalar(condition)?;
                    self.locate(&expr.at);
                    return self.branch(
                        condition,
                        Some(name),
                        &mut |b| b.function_body(then_block, name),
                        &mut |b| b.function_end(&stmts[index + 1..], value, name),
                    );
                }
                _ => self.statement(stmt)?,
            }
        }
        match value {
            Some(value) => match &*value.kind {
                ExprKind::Return { value: Some(value) } => self.rvalue(value),
                _ => self.hinted(value, Some(name)),
            },
            None => Ok(Val::unit()),
        }
    }

    /// The value of an expression; `hint` names the variable that joins its branches.
    fn hinted(&mut self, expr: &tree::Expr, hint: Option<&str>) -> Eval<Val> {
        match &*expr.kind {
            ExprKind::If {
                condition,
                then_block,
                else_value,
            } => {
                self.locate(&expr.at);
                self.if_expr(condition, then_block, else_value.as_ref(), hint)
            }
            ExprKind::Match { scrutinee, arms } => {
                self.locate(&expr.at);
                self.match_expr(scrutinee, arms, hint)
            }
            _ => self.rvalue(expr),
        }
    }

    /// The value of an expression: places are read, references stay references.
    pub(super) fn rvalue(&mut self, expr: &tree::Expr) -> Eval<Val> {
        let value = self.expr(expr)?;
        self.read(value)
    }

    /// The number or vector that an expression is.
    pub(super) fn scalar(&mut self, expr: &tree::Expr) -> Eval<Value> {
        let value = self.rvalue(expr)?;
        self.as_scalar(value)
    }

    /// As [`scalar`](Builder::scalar), where a literal has the given type.
    pub(super) fn scalar_beside(&mut self, expr: &tree::Expr, beside: Type) -> Eval<Value> {
        match self.literal(expr, beside.scalar)? {
            Some(value) => Ok(value),
            None => self.scalar(expr),
        }
    }

    /// The constant that a bare literal is, as `scalar`.
    fn literal(&mut self, expr: &tree::Expr, scalar: Scalar) -> Eval<Option<Value>> {
        match &*expr.kind {
            ExprKind::Int {
                digits,
                ty: LiteralTy::Beside {},
            }
            | ExprKind::Float {
                digits,
                ty: LiteralTy::Beside {},
            } => {
                self.locate(&expr.at);
                self.constant_of(digits, scalar).map(Some)
            }
            ExprKind::Neg { operand } => match self.literal(operand, scalar)? {
                Some(value) => self.unary(UnaryOp::Neg, value).map(Some),
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    fn literal_with(&mut self, digits: &str, ty: &LiteralTy, default: Scalar) -> Eval<Val> {
        let scalar = match ty {
            LiteralTy::Given { ty } => self.value_type(ty)?.scalar,
            LiteralTy::Beside {} => default,
        };
        self.constant_of(digits, scalar).map(Val::Scalar)
    }

    /// Evaluates an expression; names, fields and elements stay places.
    pub(super) fn expr(&mut self, expr: &tree::Expr) -> Eval<Val> {
        self.locate(&expr.at);
        match &*expr.kind {
            ExprKind::Int { digits, ty } => self.literal_with(digits, ty, Scalar::I32),
            ExprKind::Float { digits, ty } => self.literal_with(digits, ty, Scalar::F32),
            ExprKind::Bool { value } => Ok(Val::Scalar(self.const_bool(*value))),
            ExprKind::Name { name } => match self.names.get(name) {
                Some(value) => Ok(value.clone()),
                None => self.fail(BuildFault::Malformed),
            },
            ExprKind::Const { index } => self.constant(*index),
            ExprKind::Binary { op, lhs, rhs } => self.binary_expr(op, lhs, rhs, expr),
            ExprKind::Lazy { is_or, lhs, rhs } => self.lazy(*is_or, lhs, rhs),
            ExprKind::Neg { operand } => {
                let value = self.scalar(operand)?;
                self.locate(&expr.at);
                self.unary(UnaryOp::Neg, value).map(Val::Scalar)
            }
            ExprKind::Not { operand } => {
                let value = self.scalar(operand)?;
                self.locate(&expr.at);
                self.unary(UnaryOp::Not, value).map(Val::Scalar)
            }
            ExprKind::Deref { operand } => Ok(self.expr(operand)?.target()),
            ExprKind::Reference { operand, .. } => {
                let place = self.expr(operand)?;
                Ok(match place {
                    Val::Reference(_) => place,
                    other => Val::Reference(Box::new(other)),
                })
            }
            ExprKind::Cast { operand, ty } => self.cast_expr(operand, ty),
            ExprKind::Assign { place, value } => self.assign(place, value, expr),
            ExprKind::AssignOp { op, place, value } => self.assign_op(op, place, value, expr),
            ExprKind::Index { base, index } => self.index_expr(base, index, expr),
            ExprKind::Field { base, name } => {
                let base = self.expr(base)?.target();
                self.field(base, name)
            }
            ExprKind::Tuple { items } => {
                let items = items
                    .iter()
                    .map(|item| self.rvalue(item))
                    .collect::<Eval<_>>()?;
                Ok(Val::Tuple(items))
            }
            ExprKind::List { items } => {
                let items = items
                    .iter()
                    .map(|item| self.rvalue(item))
                    .collect::<Eval<_>>()?;
                Ok(Val::List(Rc::new(items)))
            }
            ExprKind::Repeat { value, count } => {
                let value = self.rvalue(value)?;
                let count = self.const_count(*count)?;
                Ok(Val::Repeat(Rc::new(value), count))
            }
            ExprKind::Struct { name, fields, rest } => {
                self.struct_expr(name, fields, rest.as_ref())
            }
            ExprKind::Block { block, label } => match label {
                None => self.block(block),
                Some(label) => self.labelled_block(label, block),
            },
            ExprKind::If {
                condition,
                then_block,
                else_value,
            } => self.if_expr(condition, then_block, else_value.as_ref(), None),
            ExprKind::Match { scrutinee, arms } => self.match_expr(scrutinee, arms, None),
            ExprKind::While {
                label,
                condition,
                body,
            } => self.while_loop(label.as_deref(), condition, body),
            ExprKind::Loop { label, body } => self.loop_expr(label.as_deref(), body),
            ExprKind::For {
                label,
                pattern,
                iterator,
                body,
            } => self.for_loop(label.as_deref(), pattern, iterator, body),
            ExprKind::Break { label, value } => {
                let value = value.as_ref().map(|value| self.rvalue(value)).transpose()?;
                self.locate(&expr.at);
                self.exit(Exit::Break, label.as_deref(), value)
            }
            ExprKind::Continue { label } => self.exit(Exit::Continue, label.as_deref(), None),
            ExprKind::Return { value } => {
                let value = match value {
                    Some(value) => self.rvalue(value)?,
                    None => Val::unit(),
                };
                self.locate(&expr.at);
                self.return_value(value)
            }
            ExprKind::Range {
                start,
                end,
                inclusive,
            } => {
                let (start, end) = self.operands(start, end)?;
                Ok(Val::Range(Box::new(RangeVal {
                    start,
                    end,
                    step: None,
                    inclusive: *inclusive,
                    unroll: false,
                })))
            }
            ExprKind::Closure { parameters, body } => Ok(Val::Closure(Rc::new(ClosureVal {
                parameters: parameters.clone(),
                body: body.clone(),
                context: self.context.clone(),
                names: self.names.clone(),
            }))),
            ExprKind::Apply { name, arguments } => {
                let callee = match self.names.get(name) {
                    Some(value) => value.clone().target(),
                    None => return self.fail(BuildFault::Malformed),
                };
                let arguments = self.arguments(arguments)?;
                self.locate(&expr.at);
                self.apply(&callee, arguments)
            }
            ExprKind::Call {
                callee, arguments, ..
            } => {
                let arguments = self.arguments(arguments)?;
                self.locate(&expr.at);
                self.call(*callee, arguments)
            }
            ExprKind::Intrinsic {
                name,
                types,
                arguments,
            } => self.intrinsic(name, types, arguments, expr),
            ExprKind::Associated {
                ty,
                name,
                arguments,
            } => self.associated(ty, name, arguments, expr),
            ExprKind::Method {
                receiver,
                name,
                types,
                arguments,
            } => self.method(receiver, name, types, arguments, expr),
        }
    }

    fn arguments(&mut self, arguments: &[tree::Expr]) -> Eval<Vec<Val>> {
        arguments
            .iter()
            .map(|argument| self.rvalue(argument))
            .collect()
    }

    /// Two operands of one type; a bare literal takes the other's.
    pub(super) fn operands(&mut self, lhs: &tree::Expr, rhs: &tree::Expr) -> Eval<(Value, Value)> {
        if is_beside(lhs) && !is_beside(rhs) {
            let right = self.scalar(rhs)?;
            let left = self.scalar_beside(lhs, self.ty(right))?;
            return Ok((left, right));
        }
        let left = self.scalar(lhs)?;
        let right = self.scalar_beside(rhs, self.ty(left))?;
        Ok((left, right))
    }

    fn binary_expr(
        &mut self,
        op: &str,
        lhs: &tree::Expr,
        rhs: &tree::Expr,
        whole: &tree::Expr,
    ) -> Eval<Val> {
        if matches!(op, "<<" | ">>") {
            let left = self.scalar(lhs)?;
            let right = self.scalar_beside(rhs, Type::U32)?;
            self.locate(&whole.at);
            return self.binary_token(op, left, right).map(Val::Scalar);
        }
        let (left, right) = self.operands(lhs, rhs)?;
        self.locate(&whole.at);
        let compare = match op {
            "==" => Some(CompareOp::Eq),
            "!=" => Some(CompareOp::Ne),
            "<" => Some(CompareOp::Lt),
            "<=" => Some(CompareOp::Le),
            ">" => Some(CompareOp::Gt),
            ">=" => Some(CompareOp::Ge),
            _ => None,
        };
        match compare {
            Some(compare) => self.compare(compare, left, right).map(Val::Scalar),
            None => self.binary_token(op, left, right).map(Val::Scalar),
        }
    }

    /// `a && b`, `a || b`: the right side is evaluated only where it decides.
    fn lazy(&mut self, is_or: bool, lhs: &tree::Expr, rhs: &tree::Expr) -> Eval<Val> {
        let left = self.scalar(lhs)?;
        self.lazily(is_or, left, &mut |b| b.scalar(rhs))
            .map(Val::Scalar)
    }

    /// As `&&` and `||`, over a left side that has a value.
    pub(super) fn lazily(
        &mut self,
        is_or: bool,
        left: Value,
        right: &mut dyn FnMut(&mut Self) -> Eval<Value>,
    ) -> Eval<Value> {
        let (block, value) = self.in_block(|b| right(b))?;
        // A right side without loads or effects may be evaluated always.
        if let Some(value) = value
            && block.0.len() <= 4
            && block.0.iter().all(|(stmt, _)| {
                matches!(stmt, Stmt::Let(v)
                if !matches!(self.kernel.values[*v].op, Op::Load { .. }))
            })
        {
            self.block.0.extend(block.0);
            let op = if is_or {
                crate::op::BinaryOp::Or
            } else {
                crate::op::BinaryOp::And
            };
            return Ok(self.push(Op::Binary(op, left, value), Type::BOOL));
        }
        let joined = self.new_local("both", Type::BOOL);
        let decided = self.const_bool(is_or);
        let mut evaluated = block;
        if let Some(value) = value {
            evaluated.push(Stmt::Set(joined, value), self.span);
        }
        let mut skipped = crate::kernel::Block::default();
        skipped.push(Stmt::Set(joined, decided), self.span);
        let (then_block, else_block) = if is_or {
            (skipped, evaluated)
        } else {
            (evaluated, skipped)
        };
        self.stmt(Stmt::If {
            condition: left,
            then_block,
            else_block,
        });
        Ok(self.push(Op::Get(joined), Type::BOOL))
    }

    fn cast_expr(&mut self, operand: &tree::Expr, ty: &tree::Ty) -> Eval<Val> {
        let to = self.value_type(ty)?;
        // rustc types a literal under `as` by the target where the kinds agree, and else by
        // its default, `i32` or `f64`; such a constant is converted here and now.
        if let Some((number, is_float)) = bare_number(operand) {
            if is_float == to.scalar.is_float() || (!is_float && to.scalar.is_int()) {
                return self.scalar_beside(operand, to).map(Val::Scalar);
            }
            self.locate(&operand.at);
            return self.constant_from_f64(number, to.scalar).map(Val::Scalar);
        }
        let value = self.scalar(operand)?;
        self.convert(value, to).map(Val::Scalar)
    }

    fn assign(&mut self, place: &tree::Expr, value: &tree::Expr, whole: &tree::Expr) -> Eval<Val> {
        // `_ = x` has no place.
        let is_literal = is_beside(value);
        let assigned = if is_literal {
            None
        } else {
            Some(self.rvalue(value)?)
        };
        let place = self.expr(place)?.target();
        let assigned = match assigned {
            Some(value) => value,
            None => {
                let ty = self.place_type(&place)?;
                Val::Scalar(self.scalar_beside(value, ty)?)
            }
        };
        self.locate(&whole.at);
        self.store(&place, assigned)?;
        Ok(Val::unit())
    }

    fn assign_op(
        &mut self,
        op: &str,
        place: &tree::Expr,
        value: &tree::Expr,
        whole: &tree::Expr,
    ) -> Eval<Val> {
        let is_literal = is_beside(value);
        let operand = if is_literal {
            None
        } else {
            Some(self.scalar(value)?)
        };
        let place = self.expr(place)?.target();
        let ty = self.place_type(&place)?;
        let operand = match operand {
            Some(value) => value,
            None if matches!(op, "<<" | ">>") => self.scalar_beside(value, Type::U32)?,
            None => self.scalar_beside(value, ty)?,
        };
        self.locate(&whole.at);
        let old = self.read(place.clone())?;
        let old = self.as_scalar(old)?;
        let new = self.binary_token(op, old, operand)?;
        self.store(&place, Val::Scalar(new))?;
        Ok(Val::unit())
    }

    fn struct_expr(
        &mut self,
        name: &str,
        fields: &[tree::FieldValue],
        rest: Option<&tree::Expr>,
    ) -> Eval<Val> {
        let mut values: Vec<(Rc<str>, Val)> = Vec::new();
        for field in fields {
            let value = self.rvalue(&field.value)?;
            values.push((field.name.as_str().into(), value));
        }
        if let Some(rest) = rest {
            let rest = self.rvalue(rest)?;
            let Val::Struct(_, others) = rest.target() else {
                return self.fail(BuildFault::Malformed);
            };
            for (key, value) in others {
                if values.iter().all(|(known, _)| *known != key) {
                    values.push((key, value));
                }
            }
        }
        // One order for every expression of the type, so that branches join field by field.
        values.sort_by(|a, b| a.0.cmp(&b.0));
        let name = name.rsplit("::").next().unwrap_or(name).trim();
        Ok(Val::Struct(name.into(), values))
    }

    /// A field of a struct or a tuple; of a vector, nothing.
    pub(super) fn field(&mut self, base: Val, name: &str) -> Eval<Val> {
        let found = match &base {
            Val::Tuple(items) => name
                .parse::<usize>()
                .ok()
                .and_then(|i| items.get(i))
                .cloned(),
            Val::Struct(_, fields) => fields
                .iter()
                .find(|(key, _)| &**key == name)
                .map(|(_, value)| value.clone()),
            _ => None,
        };
        match found {
            Some(value) => Ok(value),
            None => self.wrong_kind(&format!("the field `{name}`"), "a struct or a tuple", &base),
        }
    }

    fn index_expr(
        &mut self,
        base: &tree::Expr,
        index: &tree::Expr,
        whole: &tree::Expr,
    ) -> Eval<Val> {
        let base = self.expr(base)?.target();
        match base {
            Val::Tensor(param) => {
                let indices = self.indices(index)?;
                self.locate(&whole.at);
                self.tensor_cell(param, Vec::new(), indices, 1)
                    .map(Val::Cell)
            }
            Val::Row(param, leading) => {
                let indices = self.indices(index)?;
                self.locate(&whole.at);
                self.tensor_cell(param, leading, indices, 1).map(Val::Cell)
            }
            Val::Array(array) => {
                let index = self.index_value(index)?;
                self.locate(&whole.at);
                self.element(&array, index)
            }
            Val::List(items) => {
                let index = self.index_value(index)?;
                self.locate(&whole.at);
                self.list_element(items, index)
            }
            Val::Repeat(value, count) => {
                let index = self.index_value(index)?;
                if let Some(known) = self.known_int(index)
                    && known >= i128::from(count)
                {
                    return self.fail(BuildFault::OutOfRange {
                        what: "this index".into(),
                        found: known,
                        allowed: format!("0 to {}", i128::from(count) - 1),
                    });
                }
                Ok((*value).clone())
            }
            Val::Scalar(_) | Val::Local(_) | Val::Lane(..) | Val::Cell(Cell { .. }) => {
                let index = self.index_value(index)?;
                self.locate(&whole.at);
                self.lane(base, index)
            }
            other => self.wrong_kind("indexing", "a tensor, an array or a vector", &other),
        }
    }

    /// The indices that an index expression gives: one, or one an element of `[r, c]`.
    pub(super) fn indices(&mut self, index: &tree::Expr) -> Eval<Vec<Value>> {
        if let ExprKind::List { items } = &*index.kind {
            return items.iter().map(|item| self.index_value(item)).collect();
        }
        if is_beside(index) {
            return Ok(vec![self.index_value(index)?]);
        }
        let value = self.rvalue(index)?;
        match value.target() {
            Val::List(items) => items
                .iter()
                .map(|item| {
                    let value = self.as_scalar(item.clone())?;
                    self.index_u32(value)
                })
                .collect(),
            Val::Array(array) => {
                let count = array.dims.first().copied().unwrap_or(0);
                (0..count)
                    .map(|i| {
                        let index = self.const_u32(i);
                        let place = self.element(&array, index)?;
                        let value = self.read(place)?;
                        let value = self.as_scalar(value)?;
                        self.index_u32(value)
                    })
                    .collect()
            }
            other => {
                let value = self.as_scalar(other)?;
                Ok(vec![self.index_u32(value)?])
            }
        }
    }

    /// One index, as `u32`.
    pub(super) fn index_value(&mut self, index: &tree::Expr) -> Eval<Value> {
        let value = self.scalar_beside(index, Type::U32)?;
        self.index_u32(value)
    }
}

/// Whether the last statement of a block returns a value.
fn ends_with_return(block: &tree::Block) -> bool {
    let last = match (&block.value, block.stmts.last()) {
        (Some(value), _) => value,
        (None, Some(tree::Stmt::Expr { value })) => value,
        _ => return false,
    };
    matches!(&*last.kind, ExprKind::Return { value: Some(_) })
}

/// A literal whose type is its neighbour's.
pub(super) fn is_beside(expr: &tree::Expr) -> bool {
    match &*expr.kind {
        ExprKind::Int {
            ty: LiteralTy::Beside {},
            ..
        }
        | ExprKind::Float {
            ty: LiteralTy::Beside {},
            ..
        } => true,
        ExprKind::Neg { operand } => is_beside(operand),
        _ => false,
    }
}

/// The number that a bare literal is, and whether it is written as a float.
fn bare_number(expr: &tree::Expr) -> Option<(f64, bool)> {
    match &*expr.kind {
        ExprKind::Int {
            digits,
            ty: LiteralTy::Beside {},
        } => Some((digits.parse().ok()?, false)),
        ExprKind::Float {
            digits,
            ty: LiteralTy::Beside {},
        } => Some((digits.parse().ok()?, true)),
        ExprKind::Neg { operand } => bare_number(operand).map(|(value, float)| (-value, float)),
        _ => None,
    }
}
