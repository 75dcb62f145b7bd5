//! Tensors, rows and arrays: cells, vector accesses and atomics.

use crate::build::error::BuildFault;
use crate::build::tree;
use crate::build::value::{Cell, Element, Val};
use crate::entity::{Param, Value};
use crate::kernel::ParamKind;
use crate::op::{AtomicOp, Op, Place, Stmt};
use crate::types::{Scalar, Type};

use super::interpreter::{Builder, Eval};

impl Builder {
    /// A cell of a tensor, `lanes` elements wide; the last index counts vectors.
    pub(super) fn tensor_cell(
        &mut self,
        param: Param,
        leading: Vec<Value>,
        indices: Vec<Value>,
        lanes: u8,
    ) -> Eval<Cell> {
        let mut all = leading;
        all.extend(indices);
        let ParamKind::Tensor(tensor) = &mut self.kernel.params[param].kind else {
            return self.fail(BuildFault::Malformed);
        };
        if tensor.shape.len() != all.len() {
            let fault = BuildFault::OutOfRange {
                what: "the number of indices".into(),
                found: all.len() as i128,
                allowed: tensor.shape.len().to_string(),
            };
            return self.fail(fault);
        }
        tensor.align = tensor.align.max(lanes);
        let ty = tensor.scalar.x(lanes);
        if let Some(last) = all.last_mut() {
            let index = *last;
            let scaled = self.scaled(index, lanes)?;
            *last = scaled;
        }
        Ok(Cell {
            place: Place::Tensor(param),
            indices: all,
            ty,
        })
    }

    /// The cell that `load4(index)` reads and `store4(index, v)` writes.
    pub(super) fn vector_cell(&mut self, base: Val, index: &tree::Expr, lanes: u8) -> Eval<Cell> {
        match base {
            Val::Tensor(param) => {
                let indices = self.indices(index)?;
                self.tensor_cell(param, Vec::new(), indices, lanes)
            }
            Val::Row(param, leading) => {
                let indices = self.indices(index)?;
                self.tensor_cell(param, leading, indices, lanes)
            }
            Val::Array(array) => {
                let (Element::Leaf(storage, ty), [_]) = (&*array.element, &*array.dims) else {
                    return self.wrong_kind(
                        "a vector access",
                        "an array of numbers",
                        &Val::Array(array),
                    );
                };
                if ty.lanes != 1 || array.offset.is_some() {
                    return self.wrong_kind(
                        "a vector access",
                        "an array of numbers",
                        &Val::Array(array),
                    );
                }
                let (storage, ty) = (*storage, ty.scalar.x(lanes));
                let index = self.index_value(index)?;
                let index = self.scaled(index, lanes)?;
                Ok(Cell {
                    place: Place::Array(storage),
                    indices: vec![index],
                    ty,
                })
            }
            other => self.wrong_kind("a vector access", "a tensor, a row or an array", &other),
        }
    }

    /// The cell that `x.atomic_add(index, …)` works on.
    fn atomic_cell(&mut self, base: Val, index: &tree::Expr) -> Eval<Cell> {
        match base {
            Val::Tensor(param) => {
                let indices = self.indices(index)?;
                self.tensor_cell(param, Vec::new(), indices, 1)
            }
            Val::Row(param, leading) => {
                let indices = self.indices(index)?;
                self.tensor_cell(param, leading, indices, 1)
            }
            Val::Array(array) => {
                let index = self.index_value(index)?;
                match self.element(&array, index)? {
                    Val::Cell(cell) => Ok(cell),
                    other => self.wrong_kind("an atomic", "an array of integers", &other),
                }
            }
            other => self.wrong_kind("an atomic", "a tensor or a shared array", &other),
        }
    }

    pub(super) fn atomic(
        &mut self,
        base: Val,
        name: &str,
        arguments: &[tree::Expr],
        whole: &tree::Expr,
    ) -> Eval<Val> {
        let op = match name {
            "atomic_add" => AtomicOp::Add,
            "atomic_min" => AtomicOp::Min,
            "atomic_max" => AtomicOp::Max,
            "atomic_and" => AtomicOp::And,
            "atomic_or" => AtomicOp::Or,
            "atomic_xor" => AtomicOp::Xor,
            "atomic_exchange" => AtomicOp::Exchange,
            "atomic_compare_exchange" => AtomicOp::CompareExchange,
            "atomic_load" => AtomicOp::Load,
            "atomic_store" => AtomicOp::Store,
            _ => return self.fail(BuildFault::Malformed),
        };
        let Some((index, operands)) = arguments.split_first() else {
            return self.fail(BuildFault::Malformed);
        };
        let Cell { place, indices, ty } = self.atomic_cell(base, index)?;
        let is_float_op = matches!(
            op,
            AtomicOp::Add | AtomicOp::Exchange | AtomicOp::Load | AtomicOp::Store
        );
        let allowed = match ty.scalar {
            Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::U64 => true,
            Scalar::F32 => is_float_op,
            _ => false,
        };
        if !allowed {
            return self.no_operation(&format!("`{name}`"), ty);
        }
        let mut values = Vec::new();
        for operand in operands {
            values.push(self.scalar_beside(operand, ty)?);
        }
        let (compare, value) = match (op, values.as_slice()) {
            (AtomicOp::Load, []) => (None, None),
            (AtomicOp::CompareExchange, [expected, new]) => (Some(*expected), Some(*new)),
            (_, [value]) => (None, Some(*value)),
            _ => return self.fail(BuildFault::Malformed),
        };
        self.locate(&whole.at);
        let result = self.result(ty);
        self.stmt(Stmt::Atomic {
            result,
            op,
            place,
            indices,
            value,
            compare,
        });
        Ok(if op == AtomicOp::Store {
            Val::unit()
        } else {
            Val::Scalar(result)
        })
    }

    /// One lane of a vector, by a constant index.
    pub(super) fn lane(&mut self, vector: Val, index: Value) -> Eval<Val> {
        let Some(known) = self.known_int(index) else {
            return self.fail(BuildFault::NotConstant {
                what: "the lane of a vector".into(),
            });
        };
        let ty = match &vector {
            Val::Scalar(value) => self.ty(*value),
            place => self.place_type(place)?,
        };
        if ty.lanes == 1 {
            return self.wrong_kind("indexing", "a tensor, an array or a vector", &vector);
        }
        if known >= i128::from(ty.lanes) {
            return self.fail(BuildFault::OutOfRange {
                what: "the lane".into(),
                found: known,
                allowed: format!("0 to {}", ty.lanes - 1),
            });
        }
        let lane = known as u8;
        Ok(match vector {
            Val::Scalar(value) => Val::Scalar(self.push(Op::Extract(value, lane), ty.scalar.x(1))),
            place => Val::Lane(Box::new(place), lane),
        })
    }

    /// Every lane of a vector, in order.
    pub(super) fn lanes(&mut self, vector: Value) -> Vec<Value> {
        let ty = self.ty(vector);
        if ty.lanes == 1 {
            return vec![vector];
        }
        (0..ty.lanes)
            .map(|lane| self.push(Op::Extract(vector, lane), ty.scalar.x(1)))
            .collect()
    }

    /// A vector of scalars of one type.
    pub(super) fn vector(&mut self, parts: Vec<Value>) -> Eval<Value> {
        let Some(&first) = parts.first() else {
            return self.fail(BuildFault::Malformed);
        };
        let ty = self.ty(first);
        for &part in &parts {
            if self.ty(part) != ty {
                let right = self.ty(part);
                return self.fail(BuildFault::Types {
                    operation: "a vector".into(),
                    left: ty,
                    right,
                });
            }
        }
        let lanes = parts.len() as u8;
        Ok(self.push(
            Op::Vector(parts),
            Type {
                scalar: ty.scalar,
                lanes,
            },
        ))
    }
}
