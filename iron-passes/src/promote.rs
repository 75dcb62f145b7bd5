//! Promotion: a private array whose every index is a constant becomes variables.
//!
//! Where some accesses are vectors, the variables are vectors of the widest access, and narrower
//! accesses take or set lanes. Arrays of more than [`MOST_VARIABLES`] elements stay.

use std::collections::HashMap;

use iron_ir::entity::{Array, Local, Value};
use iron_ir::kernel::Space;
use iron_ir::{Block, Const, Kernel, Op, Place, Stmt, Type};

use crate::rewrite::{Builder, rewrite};
use crate::{Legal, PassError};

/// Elements of the largest array that is promoted.
const MOST_VARIABLES: u32 = 256;

/// See the module doc.
pub fn promote(kernel: &mut Kernel, legal: &Legal) -> Result<(), PassError> {
    if !legal.expand_unrolled_loops {
        return Ok(());
    }
    let lanes = candidates(kernel);
    if lanes.is_empty() {
        return Ok(());
    }
    let mut b = Builder::new(kernel);
    let mut variables: HashMap<Array, Vec<Local>> = HashMap::new();
    let mut sorted: Vec<_> = lanes.iter().map(|(a, l)| (*a, *l)).collect();
    sorted.sort_unstable();
    for (array, lanes) in sorted {
        let data = b.kernel.arrays[array].clone();
        let ty = data.scalar.x(lanes);
        b.span = data.span;
        let count = data.len / u32::from(lanes);
        let locals: Vec<Local> = (0..count)
            .map(|i| b.local(&format!("{}_{i}", data.name), ty))
            .collect();
        if lanes > 1 {
            // Setting one lane reads the others.
            let zero = b.splat_const(ty, Const::zero(data.scalar));
            for local in &locals {
                b.push(Stmt::Set(*local, zero));
            }
        }
        variables.insert(array, locals);
    }
    let mut start = std::mem::take(&mut b.out);
    rewrite(kernel, &mut |b, stmt| match stmt {
        Stmt::Let(value) => {
            let Op::Load {
                place: Place::Array(array),
                indices,
            } = &b.kernel.values[value].op
            else {
                return Some(stmt);
            };
            let (Some(locals), Some(at)) = (variables.get(array), index(b.kernel, indices)) else {
                return Some(stmt);
            };
            let ty = b.ty(value);
            let (local, lane) = place(b.kernel, locals, at);
            let whole = b.get(local);
            let new = if b.ty(whole) == ty {
                whole
            } else {
                let lanes: Vec<Value> = (0..ty.lanes).map(|l| b.extract(whole, lane + l)).collect();
                match lanes.as_slice() {
                    [one] => *one,
                    _ => b.value(Op::Vector(lanes), ty),
                }
            };
            b.replace(value, new);
            None
        }
        Stmt::Store {
            place: Place::Array(array),
            ref indices,
            value,
        } => {
            let (Some(locals), Some(at)) = (variables.get(&array), index(b.kernel, indices)) else {
                return Some(stmt);
            };
            let (local, lane) = place(b.kernel, locals, at);
            let ty = b.kernel.locals[local].ty;
            let from = b.ty(value);
            let mut whole = value;
            if from != ty {
                whole = b.get(local);
                for l in 0..from.lanes {
                    let element = b.extract(value, l);
                    whole = b.value(Op::Insert(whole, lane + l, element), ty);
                }
            }
            b.push(Stmt::Set(local, whole));
            None
        }
        other => Some(other),
    });
    start.append(&mut kernel.body.0);
    kernel.body = Block(start);
    Ok(())
}

/// The private arrays that can go, with the lanes of their variables.
fn candidates(kernel: &Kernel) -> HashMap<Array, u8> {
    let mut lanes: HashMap<Array, u8> = kernel
        .arrays
        .iter()
        .filter(|(_, a)| a.space == Space::Private && a.len <= MOST_VARIABLES)
        .map(|(array, _)| (array, 1))
        .collect();
    let mut accesses: Vec<(Array, Option<u64>, Type)> = Vec::new();
    kernel.body.walk(&mut |stmt, _| match stmt {
        Stmt::Let(value) => {
            if let Op::Load {
                place: Place::Array(array),
                indices,
            } = &kernel.values[*value].op
            {
                accesses.push((*array, index(kernel, indices), kernel.ty(*value)));
            }
        }
        Stmt::Store {
            place: Place::Array(array),
            indices,
            value,
        } => {
            accesses.push((*array, index(kernel, indices), kernel.ty(*value)));
        }
        Stmt::Machine(machine) => {
            for array in &machine.arrays {
                lanes.remove(array);
            }
        }
        _ => {}
    });
    for (array, _, ty) in &accesses {
        if let Some(widest) = lanes.get_mut(array) {
            *widest = (*widest).max(ty.lanes);
        }
    }
    for (array, at, ty) in accesses {
        let data = &kernel.arrays[array];
        let fits = at.is_some_and(|at| {
            at % u64::from(ty.lanes) == 0 && at + u64::from(ty.lanes) <= u64::from(data.len)
        });
        let whole = lanes
            .get(&array)
            .is_some_and(|l| data.len.is_multiple_of(u32::from(*l)));
        if !fits || !whole {
            lanes.remove(&array);
        }
    }
    lanes
}

fn index(kernel: &Kernel, indices: &[Value]) -> Option<u64> {
    kernel.constant(*indices.first()?).map(|c| c.bits)
}

/// The variable that holds an element, and its lane there.
fn place(kernel: &Kernel, locals: &[Local], at: u64) -> (Local, u8) {
    let lanes = u64::from(kernel.locals[locals[0]].ty.lanes);
    (locals[(at / lanes) as usize], (at % lanes) as u8)
}
