//! Arrays that are filled ahead of their use: shared memory and asynchronous copies where the
//! target has them, private arrays whose batches arrive at once elsewhere.
//!
//! A thread's elements stay its own: vector `v` of thread `t` is vector `v * threads + t` of the
//! shared array, so that neighbours lie side by side.

use iron_ir::entity::{Array, Param, Value};
use iron_ir::kernel::{Access, Space, TensorLayout};
use iron_ir::machine::{MachineOp, MachineStmt};
use iron_ir::op::{BinaryOp, BuiltinOp};
use iron_ir::{Kernel, Op, Place, Scalar, Stmt, Type};

use crate::addressing::flat;
use crate::rewrite::{Builder, rewrite};
use crate::{Legal, PassError};

/// Elements of a copy, 16 bytes.
const LANES: u8 = 8;

/// See the module doc.
pub fn copies_ahead(kernel: &mut Kernel, legal: &Legal) -> Result<(), PassError> {
    let is_ahead = |(_, data): &(Array, &iron_ir::kernel::ArrayData)| data.space == Space::Ahead;
    let Some(array) = kernel.arrays.iter().find(is_ahead).map(|found| found.0) else {
        return Ok(());
    };
    let threads = kernel.contract.threads();
    let data = &mut kernel.arrays[array];
    let is_half = matches!(data.scalar, Scalar::F16 | Scalar::BF16);
    let whole = data.len.is_multiple_of(u32::from(LANES));
    let shared = data.len.checked_mul(threads);
    match shared.filter(|_| legal.has_chunk_copies && is_half && whole) {
        Some(shared) => {
            data.space = Space::Shared;
            data.len = shared;
            rewrite(kernel, &mut |b, stmt| to_shared(b, array, stmt));
        }
        None => {
            data.space = Space::Private;
            rewrite(kernel, &mut |_, stmt| match stmt {
                Stmt::Machine(machine) if machine.op.is_of_batches() => None,
                other => Some(other),
            });
        }
    }
    Ok(())
}

/// An access to the array as one to its part of shared memory; a store of what was loaded from a
/// tensor as a copy.
fn to_shared(b: &mut Builder<'_>, array: Array, stmt: Stmt) -> Option<Stmt> {
    let place = Place::Array(array);
    match stmt {
        Stmt::Let(value) => {
            let index = match &b.kernel.values[value].op {
                Op::Load {
                    place: from,
                    indices,
                } if *from == place => indices[0],
                _ => return Some(stmt),
            };
            let index = of_thread(b, index);
            let ty = b.ty(value);
            let new = b.load(place, vec![index], ty);
            b.kernel.values[new].span = b.kernel.values[value].span;
            b.replace(value, new);
            None
        }
        Stmt::Store {
            place: to,
            indices,
            value,
        } if to == place => {
            let index = of_thread(b, indices[0]);
            match loaded(b, value) {
                Some((param, from)) => {
                    let offset = flat(b, param, &from, 0);
                    b.push(Stmt::Machine(MachineStmt {
                        source: Some(param),
                        ..MachineStmt::new(MachineOp::CopyAhead, &[array], &[index, offset], &[])
                    }));
                }
                None => b.store(place, vec![index], value),
            }
            None
        }
        other => Some(other),
    }
}

/// The element of shared memory that is a thread's element `index`.
fn of_thread(b: &mut Builder<'_>, index: Value) -> Value {
    let lanes = i128::from(LANES);
    let threads = i128::from(b.kernel.contract.threads());
    let vector = b.with_int(BinaryOp::Div, index, lanes);
    let lane = b.with_int(BinaryOp::Rem, index, lanes);
    let first = b.with_int(BinaryOp::Mul, vector, threads);
    let thread = b.builtin(BuiltinOp::LocalIndex, 0);
    let vector = b.add(first, thread);
    let first = b.with_int(BinaryOp::Mul, vector, lanes);
    b.add(first, lane)
}

/// The tensor and indices of a value that was loaded from a tensor that nothing writes, by a
/// vector of 16 bytes.
fn loaded(b: &Builder<'_>, value: Value) -> Option<(Param, Vec<Value>)> {
    let Op::Load {
        place: Place::Tensor(param),
        indices,
    } = &b.kernel.values[value].op
    else {
        return None;
    };
    let tensor = b.kernel.tensor(*param)?;
    let is_read = tensor.access == Access::Read && tensor.layout == TensorLayout::RowMajor;
    let ty: Type = b.ty(value);
    let fits = ty.lanes == LANES && matches!(ty.scalar, Scalar::F16 | Scalar::BF16);
    (is_read && fits).then(|| (*param, indices.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use iron_ir::parse::parse;
    use iron_ir::verify::verify;

    #[test]
    fn what_is_loaded_for_later_is_copied_where_the_target_copies_and_private_elsewhere() {
        for has in [true, false] {
            let mut kernel = parse(KERNEL).expect("parses");
            verify(&kernel).expect("verifies");
            let legal = Legal {
                has_chunk_copies: has,
                ..Legal::PORTABLE
            };
            copies_ahead(&mut kernel, &legal).expect("runs");
            verify(&kernel).expect("still verifies");
            let mut found = Vec::new();
            kernel.body.walk(&mut |stmt, _| match stmt {
                Stmt::Machine(machine) => found.push(machine.op.name()),
                Stmt::Store {
                    place: Place::Array(_),
                    ..
                } => found.push("store"),
                _ => {}
            });
            let data = kernel.arrays.values().next().expect("an array");
            match has {
                true => {
                    assert_eq!(found, ["copy_ahead", "store", "end_batch", "wait_batches"]);
                    assert_eq!((data.space, data.len), (Space::Shared, 64 * 16));
                }
                false => {
                    assert_eq!(found, ["store", "store"]);
                    assert_eq!((data.space, data.len), (Space::Private, 16));
                }
            }
        }
    }

    const KERNEL: &str = "kernel @k grid(1, 1, 1) workgroup(64, 1, 1) {
  dim #n
  param @w: tensor<bf16, [#n], read, align 8>
  ahead &weights: [bf16; 16]

  %a: bf16x8 = load @w[0u32]
  store &weights[0u32] = %a
  store &weights[8u32] = bf16:0x3f80
  machine end_batch &weights()
  machine wait_batches &weights() 0
  %b: bf16x8 = load &weights[0u32]
}
";
}
