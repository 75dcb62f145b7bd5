//! Vectors wider than the target's become several of the widest that it has.
//!
//! Every lane-wise operation is done in pieces of the narrowest of its operands' and result's
//! widths; pieces are cut out of and joined into vectors only where the widths differ, as in a
//! conversion of eight `f16` to eight `f32`.

use std::collections::HashMap;

use iron_ir::entity::{Local, Value};
use iron_ir::kernel::operands;
use iron_ir::op::BinaryOp;
use iron_ir::{Kernel, Op, Stmt, Type};

use crate::Legal;
use crate::rewrite::{Builder, map_operands, rewrite};

pub(super) fn split(kernel: &mut Kernel, legal: &Legal) {
    let wide = |ty: Type| ty.lanes > width(legal, ty);
    let any =
        kernel.values.values().any(|v| wide(v.ty)) || kernel.locals.values().any(|l| wide(l.ty));
    if !any {
        return;
    }
    let mut pieces = Pieces {
        legal,
        values: HashMap::new(),
        locals: HashMap::new(),
    };
    rewrite(kernel, &mut |b, stmt| pieces.statement(b, stmt));
}

/// Lanes of the widest vector of that scalar.
fn width(legal: &Legal, ty: Type) -> u8 {
    let by_bytes = (legal.max_vector_bytes / ty.scalar.bytes()).clamp(1, 8) as u8;
    let lanes = by_bytes.min(legal.max_vector_lanes).max(1);
    1 << lanes.ilog2()
}

struct Pieces<'a> {
    legal: &'a Legal,
    /// Values too wide: their pieces, each of the widest legal type.
    values: HashMap<Value, Vec<Value>>,
    locals: HashMap<Local, Vec<Local>>,
}

impl Pieces<'_> {
    fn is_wide(&self, ty: Type) -> bool {
        ty.lanes > width(self.legal, ty)
    }

    fn statement(&mut self, b: &mut Builder<'_>, stmt: Stmt) -> Option<Stmt> {
        match stmt {
            Stmt::Let(value) => self.computed(b, value),
            Stmt::Set(local, value) if self.is_wide(b.ty(value)) => {
                let parts = self.local(b, local);
                let step = width(self.legal, b.ty(value));
                for (i, part) in parts.into_iter().enumerate() {
                    let piece = self.piece(b, value, i as u8 * step, step);
                    b.push(Stmt::Set(part, piece));
                }
                None
            }
            Stmt::Store {
                place,
                indices,
                value,
            } if self.is_wide(b.ty(value)) => {
                let ty = b.ty(value);
                let step = width(self.legal, ty);
                for first in (0..ty.lanes).step_by(usize::from(step)) {
                    let piece = self.piece(b, value, first, step);
                    let indices = further(b, &indices, first);
                    b.store(place, indices, piece);
                }
                None
            }
            other => Some(other),
        }
    }

    fn computed(&mut self, b: &mut Builder<'_>, value: Value) -> Option<Stmt> {
        let keep = Some(Stmt::Let(value));
        let ty = b.ty(value);
        let op = b.kernel.values[value].op.clone();
        let wide_operand = operands(&op).into_iter().any(|v| self.is_wide(b.ty(v)));
        if !self.is_wide(ty) && !wide_operand {
            return keep;
        }
        let full = width(self.legal, ty);
        match op {
            Op::Extract(vector, lane) => {
                let new = self.piece(b, vector, lane, 1);
                b.replace(value, new);
            }
            Op::Vector(lanes) => {
                let parts = lanes
                    .chunks(usize::from(full))
                    .map(|c| join(b, c))
                    .collect();
                self.define(b, value, parts);
            }
            Op::Insert(vector, lane, scalar) => {
                let parts = (0..ty.lanes)
                    .step_by(usize::from(full))
                    .map(|first| {
                        let part = self.piece(b, vector, first, full);
                        if !(first..first + full).contains(&lane) {
                            part
                        } else if full == 1 {
                            scalar
                        } else {
                            let part_ty = b.ty(part);
                            b.value(Op::Insert(part, lane - first, scalar), part_ty)
                        }
                    })
                    .collect();
                self.define(b, value, parts);
            }
            Op::Splat(scalar) => {
                let part = b.splat(scalar, full);
                let parts = vec![part; usize::from(ty.lanes / full)];
                self.define(b, value, parts);
            }
            Op::Get(local) => {
                let parts = self.local(b, local).into_iter().map(|l| b.get(l)).collect();
                self.define(b, value, parts);
            }
            Op::Load { place, indices } => {
                let parts = (0..ty.lanes)
                    .step_by(usize::from(full))
                    .map(|first| {
                        let indices = further(b, &indices, first);
                        b.load(place, indices, ty.scalar.x(full))
                    })
                    .collect();
                self.define(b, value, parts);
            }
            op => {
                // Lane-wise, in pieces of the narrowest width.
                let step = operands(&op)
                    .into_iter()
                    .map(|v| b.ty(v))
                    .filter(|t| t.lanes > 1)
                    .map(|t| width(self.legal, t))
                    .fold(full, u8::min);
                let pieces: Vec<Value> = (0..ty.lanes)
                    .step_by(usize::from(step))
                    .map(|first| {
                        let mut op = op.clone();
                        map_operands(&mut op, &mut |v| match b.ty(v).lanes {
                            1 => v,
                            _ => self.piece(b, v, first, step),
                        });
                        b.value(op, ty.scalar.x(step))
                    })
                    .collect();
                let each = usize::from(full.min(ty.lanes) / step);
                let parts = pieces
                    .chunks(each)
                    .map(|chunk| match chunk {
                        [one] => *one,
                        _ => {
                            let lanes: Vec<Value> = chunk
                                .iter()
                                .flat_map(|&p| (0..step).map(move |l| (p, l)))
                                .map(|(p, l)| b.extract(p, l))
                                .collect();
                            join(b, &lanes)
                        }
                    })
                    .collect();
                self.define(b, value, parts);
            }
        }
        None
    }

    fn define(&mut self, b: &mut Builder<'_>, value: Value, parts: Vec<Value>) {
        if let Some(name) = b.kernel.values[value].name.clone() {
            for (i, &part) in parts.iter().enumerate() {
                if parts.len() > 1 {
                    b.named(part, &format!("{name}_{i}"));
                }
            }
        }
        match parts.as_slice() {
            [one] => b.replace(value, *one),
            _ => {
                self.values.insert(value, parts);
            }
        }
    }

    /// Lanes `first..first + count` of a vector.
    fn piece(&mut self, b: &mut Builder<'_>, value: Value, first: u8, count: u8) -> Value {
        let value = b.resolve(value);
        let ty = b.ty(value);
        let step = width(self.legal, ty);
        if let Some(parts) = self.values.get(&value)
            && first.is_multiple_of(step)
            && count == step
        {
            return parts[usize::from(first / step)];
        }
        if !self.values.contains_key(&value) && count == ty.lanes {
            return value;
        }
        let lanes: Vec<Value> = (first..first + count)
            .map(|lane| match self.values.get(&value) {
                Some(parts) => {
                    let part = parts[usize::from(lane / step)];
                    b.extract(part, lane % step)
                }
                None => b.extract(value, lane),
            })
            .collect();
        join(b, &lanes)
    }

    fn local(&mut self, b: &mut Builder<'_>, local: Local) -> Vec<Local> {
        if let Some(parts) = self.locals.get(&local) {
            return parts.clone();
        }
        let data = b.kernel.locals[local].clone();
        let step = width(self.legal, data.ty);
        let parts: Vec<Local> = (0..data.ty.lanes / step)
            .map(|i| b.local(&format!("{}_{i}", data.name), data.ty.scalar.x(step)))
            .collect();
        self.locals.insert(local, parts.clone());
        parts
    }
}

/// One vector of scalars; the scalar itself where it is alone.
fn join(b: &mut Builder<'_>, lanes: &[Value]) -> Value {
    match lanes {
        [one] => *one,
        _ => {
            let ty = b.ty(lanes[0]).scalar.x(lanes.len() as u8);
            b.value(Op::Vector(lanes.to_vec()), ty)
        }
    }
}

/// The indices of an element `by` further in the last dimension.
fn further(b: &mut Builder<'_>, indices: &[Value], by: u8) -> Vec<Value> {
    let mut indices = indices.to_vec();
    if let Some(last) = indices.last_mut()
        && by > 0
    {
        *last = b.with_int(BinaryOp::Add, *last, i128::from(by));
    }
    indices
}
