//! Addressing: logical tensor indices become one flat 64-bit offset in elements.
//!
//! Every index is widened before it is multiplied, so that no product of a row and a stride
//! wraps (K06). The part of the sum that does not depend on the last index is a value of its
//! own, which loop-invariant motion can hoist. A vector access to a tensor whose last dimension
//! is not contiguous becomes scalar accesses. Nothing is known afterwards of dimensions: bounds
//! must have been proven before.

use iron_ir::entity::{Param, Value};
use iron_ir::kernel::TensorLayout;
use iron_ir::op::BinaryOp;
use iron_ir::{Const, Kernel, Op, Place, Scalar, Stmt, Type};

use crate::rewrite::{Builder, rewrite};
use crate::{Legal, PassError};

/// See the module doc.
pub fn addressing(kernel: &mut Kernel, _: &Legal) -> Result<(), PassError> {
    rewrite(kernel, &mut |b, stmt| match stmt {
        Stmt::Let(value) => {
            let Op::Load {
                place: Place::Tensor(param),
                indices,
            } = &b.kernel.values[value].op
            else {
                return Some(stmt);
            };
            let (param, indices) = (*param, indices.clone());
            let ty = b.ty(value);
            let new = if ty.is_vector() && !contiguous(b.kernel, param) {
                let lanes = (0..ty.lanes)
                    .map(|lane| {
                        let offset = flat(b, param, &indices, lane);
                        b.load(Place::Flat(param), vec![offset], ty.scalar.x(1))
                    })
                    .collect();
                b.value(Op::Vector(lanes), ty)
            } else {
                let offset = flat(b, param, &indices, 0);
                b.load(Place::Flat(param), vec![offset], ty)
            };
            b.kernel.values[new].span = b.kernel.values[value].span;
            b.replace(value, new);
            None
        }
        Stmt::Store {
            place: Place::Tensor(param),
            indices,
            value,
        } => {
            let ty = b.ty(value);
            if ty.is_vector() && !contiguous(b.kernel, param) {
                for lane in 0..ty.lanes {
                    let offset = flat(b, param, &indices, lane);
                    let element = b.extract(value, lane);
                    b.store(Place::Flat(param), vec![offset], element);
                }
            } else {
                let offset = flat(b, param, &indices, 0);
                b.store(Place::Flat(param), vec![offset], value);
            }
            None
        }
        Stmt::Atomic {
            result,
            op,
            place: Place::Tensor(param),
            indices,
            value,
            compare,
        } => {
            let offset = flat(b, param, &indices, 0);
            let (place, indices) = (Place::Flat(param), vec![offset]);
            b.push(Stmt::Atomic {
                result,
                op,
                place,
                indices,
                value,
                compare,
            });
            None
        }
        other => Some(other),
    });
    Ok(())
}

fn contiguous(kernel: &Kernel, param: Param) -> bool {
    kernel
        .tensor(param)
        .is_some_and(|t| t.layout == TensorLayout::RowMajor)
}

/// The offset of an element, `lane` further in the last dimension.
pub(crate) fn flat(b: &mut Builder<'_>, param: Param, indices: &[Value], lane: u8) -> Value {
    let name = b.kernel.params[param].name.clone();
    let contiguous = contiguous(b.kernel, param);
    let Some((&last, leading)) = indices.split_last() else {
        return b.int(Type::U64, 0);
    };
    let mut base: Option<Value> = None;
    for (axis, &index) in leading.iter().enumerate() {
        if b.kernel.constant(index).is_some_and(|c| c.bits == 0) {
            continue;
        }
        let term = strided(b, param, axis, index);
        base = Some(match base {
            None => term,
            Some(sum) => b.add(sum, term),
        });
    }
    if let Some(base) = base {
        b.named(base, &format!("{name}_row"));
    }
    let last = match lane {
        0 => last,
        _ => b.with_int(BinaryOp::Add, last, i128::from(lane)),
    };
    let zero = b.kernel.constant(last).is_some_and(|c| c.bits == 0);
    match base {
        Some(base) if zero => base,
        _ => {
            let term = if contiguous {
                widen(b, last)
            } else {
                strided(b, param, leading.len(), last)
            };
            match base {
                None => term,
                Some(base) => b.add(base, term),
            }
        }
    }
}

fn strided(b: &mut Builder<'_>, param: Param, axis: usize, index: Value) -> Value {
    let wide = widen(b, index);
    let stride = b.value(Op::Stride(param, axis as u8), Type::U64);
    b.mul(wide, stride)
}

fn widen(b: &mut Builder<'_>, index: Value) -> Value {
    match b.kernel.constant(index) {
        Some(c) => b.constant(Const {
            scalar: Scalar::U64,
            bits: c.bits,
        }),
        None => b.convert(index, Scalar::U64),
    }
}
