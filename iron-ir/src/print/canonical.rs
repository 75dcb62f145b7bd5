//! The canonical numbering: values in the order in which the text names them.

use std::collections::HashMap;

use crate::entity::{Arena, Handle, Value};
use crate::kernel::{Block, Kernel, Span, ValueData};
use crate::op::{Op, Stmt, TileStmt};

/// The same kernel with its values renumbered in the order of their first appearance in the
/// text. Values that nothing reaches are gone; constants and other values that need no `Let` are
/// one value each where no `Let` of theirs is in scope. Parameters, dimensions, variables, arrays
/// and tiles keep their order.
pub fn canonical(kernel: &Kernel) -> Kernel {
    let mut out = Kernel {
        values: Arena::new(),
        ..kernel.clone()
    };
    let mut body = std::mem::take(&mut out.body);
    let mut numbering = Numbering {
        old: kernel,
        values: Arena::new(),
        map: vec![None; kernel.values.len()],
        visible: vec![false; kernel.values.len()],
        leaves: HashMap::new(),
    };
    numbering.block(&mut body);
    out.values = numbering.values;
    out.body = body;
    for (_, data) in out.locals.iter_mut() {
        data.name = clean(&data.name).into();
    }
    for (_, data) in out.arrays.iter_mut() {
        data.name = clean(&data.name).into();
    }
    for (_, data) in out.tiles.iter_mut() {
        data.name = clean(&data.name).into();
    }
    for (_, data) in out.params.iter_mut() {
        data.name = clean(&data.name).into();
    }
    for (_, name) in out.dims.iter_mut() {
        *name = clean(name).into();
    }
    out
}

/// The kernel with every span unknown, as text without spans gives it.
pub fn without_spans(kernel: &Kernel) -> Kernel {
    let mut kernel = kernel.clone();
    let none = Span::default();
    kernel.params.iter_mut().for_each(|(_, p)| p.span = none);
    kernel.locals.iter_mut().for_each(|(_, p)| p.span = none);
    kernel.arrays.iter_mut().for_each(|(_, p)| p.span = none);
    kernel.tiles.iter_mut().for_each(|(_, p)| p.span = none);
    kernel.values.iter_mut().for_each(|(_, p)| p.span = none);
    fn clear(block: &mut Block) {
        for (stmt, span) in &mut block.0 {
            *span = Span::default();
            stmt.blocks_mut().into_iter().for_each(clear);
        }
    }
    clear(&mut kernel.body);
    kernel
}

/// A name as the text can write it: letters, digits and underscores, not starting with a digit.
fn clean(name: &str) -> String {
    let mut out: String = name
        .chars()
        .map(|c| {
            if c.is_alphanumeric() || c == '_' {
                c
            } else {
                '_'
            }
        })
        .collect();
    if out.is_empty() || out.starts_with(|c: char| c.is_numeric()) {
        out.insert(0, '_');
    }
    out
}

#[derive(PartialEq, Eq, Hash)]
enum Leaf {
    Const(crate::Const),
    Scalar(crate::entity::Param),
    Dim(crate::entity::Dim),
    Stride(crate::entity::Param, u8),
    Builtin(crate::op::BuiltinOp, u8),
}

struct Numbering<'k> {
    old: &'k Kernel,
    values: Arena<Value, ValueData>,
    map: Vec<Option<Value>>,
    /// Old values whose definition is in scope.
    visible: Vec<bool>,
    leaves: HashMap<Leaf, Value>,
}

impl Numbering<'_> {
    fn block(&mut self, block: &mut Block) {
        let mut here = Vec::new();
        for (stmt, _) in &mut block.0 {
            self.statement(stmt, &mut here);
        }
        self.leave(here);
    }

    fn leave(&mut self, here: Vec<Value>) {
        for value in here {
            self.visible[value.index()] = false;
        }
    }

    /// In the order of the text: definitions, then operands, then blocks.
    fn statement(&mut self, stmt: &mut Stmt, here: &mut Vec<Value>) {
        match stmt {
            Stmt::Let(value) => {
                let old = *value;
                *value = self.define(old, here);
                let mut op = self.old.values[old].op.clone();
                // Its own name comes into scope after it, but a leaf has no operands.
                self.operands(&mut op);
                self.values[*value].op = op;
            }
            Stmt::Set(_, value) => self.used(value),
            Stmt::Store { indices, value, .. } => {
                indices.iter_mut().for_each(|v| self.used(v));
                self.used(value);
            }
            Stmt::Atomic {
                result,
                indices,
                value,
                compare,
                ..
            } => {
                *result = self.define(*result, here);
                indices
                    .iter_mut()
                    .chain(value)
                    .chain(compare)
                    .for_each(|v| self.used(v));
            }
            Stmt::Subgroup {
                result,
                value,
                argument,
                ..
            }
            | Stmt::Group {
                result,
                value,
                argument,
                ..
            } => {
                *result = self.define(*result, here);
                self.used(value);
                argument.iter_mut().for_each(|v| self.used(v));
            }
            Stmt::Machine(machine) => {
                if let Some(result) = &mut machine.result {
                    *result = self.define(*result, here);
                }
                machine.operands.iter_mut().for_each(|v| self.used(v));
            }
            Stmt::Roles {
                producer, consumer, ..
            } => {
                self.block(producer);
                self.block(consumer);
            }
            Stmt::Mma { result, a, b, sum } => {
                *result = self.define(*result, here);
                a.iter_mut().chain([b, sum]).for_each(|v| self.used(v));
            }
            Stmt::CheckIndex {
                result,
                index,
                bound,
            } => {
                *result = self.define(*result, here);
                self.used(index);
                self.used(bound);
            }
            Stmt::If {
                condition,
                then_block,
                else_block,
            } => {
                self.used(condition);
                self.block(then_block);
                self.block(else_block);
            }
            Stmt::For {
                index,
                start,
                end,
                step,
                body,
                ..
            } => {
                let mut inner = Vec::new();
                let old = *index;
                *index = self.define(old, &mut inner);
                self.visible[old.index()] = false;
                for value in [start, end, step] {
                    self.used(value);
                }
                self.visible[old.index()] = true;
                self.block(body);
                self.leave(inner);
            }
            Stmt::Loop { body } => self.block(body),
            Stmt::Barrier(..) | Stmt::Break | Stmt::Continue | Stmt::Return => {}
            Stmt::Tile(tile) => match tile {
                TileStmt::Fill { value, .. } => self.used(value),
                TileStmt::Load {
                    leading, origin, ..
                }
                | TileStmt::Store {
                    leading, origin, ..
                } => {
                    leading.iter_mut().chain(origin).for_each(|v| self.used(v));
                }
                TileStmt::Map {
                    elements,
                    row,
                    column,
                    body,
                    result,
                    ..
                } => {
                    let mut inner = Vec::new();
                    for value in elements.iter_mut().chain([row, column]) {
                        *value = self.define(*value, &mut inner);
                    }
                    for (stmt, _) in &mut body.0 {
                        self.statement(stmt, &mut inner);
                    }
                    self.used(result);
                    self.leave(inner);
                }
                TileStmt::Copy { .. }
                | TileStmt::Matmul { .. }
                | TileStmt::ReduceRows { .. }
                | TileStmt::ReduceColumns { .. } => {}
            },
        }
    }

    fn define(&mut self, old: Value, here: &mut Vec<Value>) -> Value {
        let mut data = self.old.values[old].clone();
        data.name = data.name.map(|n| clean(&n).into());
        let new = self.values.push(data);
        self.map[old.index()] = Some(new);
        self.visible[old.index()] = true;
        here.push(old);
        new
    }

    fn used(&mut self, value: &mut Value) {
        let old = *value;
        if self.visible[old.index()]
            && let Some(new) = self.map[old.index()]
        {
            *value = new;
            return;
        }
        let data = &self.old.values[old];
        let leaf = match data.op {
            Op::Const(c) => Leaf::Const(c),
            Op::Scalar(p) => Leaf::Scalar(p),
            Op::Dim(d) => Leaf::Dim(d),
            Op::Stride(p, axis) => Leaf::Stride(p, axis),
            Op::Builtin(op, axis) => Leaf::Builtin(op, axis),
            _ => {
                // No definition in scope: malformed, but printable.
                *value = match self.map[old.index()] {
                    Some(new) => new,
                    None => self.define(old, &mut Vec::new()),
                };
                return;
            }
        };
        let values = &mut self.values;
        *value = *self.leaves.entry(leaf).or_insert_with(|| {
            let (op, ty) = (data.op.clone(), data.ty);
            values.push(ValueData {
                op,
                ty,
                span: Span::default(),
                name: None,
            })
        });
    }

    fn operands(&mut self, op: &mut Op) {
        match op {
            Op::Const(_)
            | Op::Scalar(_)
            | Op::Dim(_)
            | Op::Stride(..)
            | Op::Builtin(..)
            | Op::Get(_)
            | Op::Result => {}
            Op::Unary(_, a)
            | Op::Convert(a)
            | Op::Bitcast(a)
            | Op::Splat(a)
            | Op::Extract(a, _) => self.used(a),
            Op::Binary(_, a, b) | Op::Compare(_, a, b) | Op::Insert(a, _, b) => {
                self.used(a);
                self.used(b);
            }
            Op::Select(a, b, c) | Op::Fma(a, b, c) => {
                for value in [a, b, c] {
                    self.used(value);
                }
            }
            Op::Vector(values)
            | Op::Load {
                indices: values, ..
            } => {
                values.iter_mut().for_each(|v| self.used(v));
            }
        }
    }
}
