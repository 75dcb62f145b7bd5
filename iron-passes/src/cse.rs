//! Common subexpressions: an operation whose operands were used by the same operation before, in
//! the same or an enclosing block, is that one's value.
//!
//! Reads of variables are left alone, and loads are merged only where no store can lie between:
//! from tensors that the kernel reads, that alias nothing it writes (K35). Everything else that
//! is read may have changed.

use iron_ir::entity::{Param, Value};
use iron_ir::kernel::Access;
use iron_ir::op::BinaryOp;
use iron_ir::{Block, Handle, Kernel, Op, Place, Stmt, Type};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use crate::rewrite::{Builder, needs_let};
use crate::{Legal, PassError};

/// See the module doc.
pub fn cse(kernel: &mut Kernel, _: &Legal) -> Result<(), PassError> {
    let body = std::mem::take(&mut kernel.body);
    let mut leaves: FxHashMap<Key, u64> = FxHashMap::default();
    let classes = kernel
        .values
        .iter()
        .map(|(value, data)| {
            let own = Value::index(value) as u64;
            match leaf_key(&data.op) {
                Some(key) => *leaves.entry(key).or_insert(own),
                None => own,
            }
        })
        .collect::<Vec<u64>>();
    let mut b = Builder::new(kernel);
    let body = block(&mut b, body, &classes, &mut FxHashMap::default());
    kernel.body = body;
    Ok(())
}

/// Operation, operands and type; operands by class, so that equal constants are equal.
type Key = (u16, SmallVec<[u64; 4]>, Type);

fn block(
    b: &mut Builder<'_>,
    block_in: Block,
    classes: &[u64],
    known: &mut FxHashMap<Key, Value>,
) -> Block {
    let outer = std::mem::take(&mut b.out);
    let mut here = Vec::new();
    for (mut stmt, span) in block_in.0 {
        b.span = span;
        b.rename(&mut stmt);
        if let Stmt::Let(value) = stmt
            && let Some(key) = key(b, classes, value)
        {
            if let Some(earlier) = known.get(&key) {
                b.replace(value, *earlier);
                continue;
            }
            known.insert(key.clone(), value);
            here.push(key);
        }
        for nested in stmt.blocks_mut() {
            let taken = std::mem::take(nested);
            *nested = block(b, taken, classes, known);
        }
        if let Stmt::Tile(iron_ir::op::TileStmt::Map { result, .. }) = &mut stmt {
            *result = b.resolve(*result);
        }
        b.span = span;
        b.push(stmt);
    }
    for key in here {
        known.remove(&key);
    }
    Block(std::mem::replace(&mut b.out, outer))
}

fn leaf_key(op: &Op) -> Option<Key> {
    let parts = match op {
        Op::Const(c) => (0, smallvec![c.scalar as u64, c.bits]),
        Op::Scalar(p) => (1, smallvec![p.index() as u64]),
        Op::Dim(d) => (2, smallvec![d.index() as u64]),
        Op::Stride(p, axis) => (3, smallvec![p.index() as u64, u64::from(*axis)]),
        Op::Builtin(op, axis) => (4, smallvec![*op as u64, u64::from(*axis)]),
        _ => return None,
    };
    Some((parts.0, parts.1, Type::U32))
}

fn key(b: &Builder<'_>, classes: &[u64], value: Value) -> Option<Key> {
    let data = &b.kernel.values[value];
    if !needs_let(&data.op) {
        return None;
    }
    // Values made by this pass have no class of their own; there are none.
    let class = |v: &Value| classes.get(v.index()).copied().unwrap_or(v.index() as u64);
    let (tag, operands) = match &data.op {
        Op::Unary(op, a) => (*op as u64 + 1000, smallvec![class(a)]),
        Op::Binary(op, x, y) => {
            let mut pair = [class(x), class(y)];
            if commutes(*op) {
                pair.sort_unstable();
            }
            (*op as u64 + 2000, SmallVec::from_slice(&pair))
        }
        Op::Compare(op, x, y) => (*op as u64 + 3000, smallvec![class(x), class(y)]),
        Op::Select(x, y, z) => (4000, smallvec![class(x), class(y), class(z)]),
        Op::Fma(x, y, z) => (4001, smallvec![class(x), class(y), class(z)]),
        Op::Convert(a) => (4002, smallvec![class(a)]),
        Op::Bitcast(a) => (4003, smallvec![class(a)]),
        Op::Splat(a) => (4004, smallvec![class(a)]),
        Op::Vector(parts) => (4005, parts.iter().map(class).collect()),
        Op::Extract(a, lane) => (4006, smallvec![class(a), u64::from(*lane)]),
        Op::Insert(a, lane, x) => (4007, smallvec![class(a), u64::from(*lane), class(x)]),
        Op::Load { place, indices } => {
            let (Place::Tensor(param) | Place::Flat(param)) = place else {
                return None;
            };
            if !never_written(b.kernel, *param) {
                return None;
            }
            let mut parts: SmallVec<[u64; 4]> = smallvec![param.index() as u64];
            parts.extend(indices.iter().map(class));
            (
                if matches!(place, Place::Flat(_)) {
                    4008
                } else {
                    4009
                },
                parts,
            )
        }
        Op::Get(_)
        | Op::Result
        | Op::Const(_)
        | Op::Scalar(_)
        | Op::Dim(_)
        | Op::Stride(..)
        | Op::Builtin(..) => return None,
    };
    Some((tag as u16, operands, data.ty))
}

fn commutes(op: BinaryOp) -> bool {
    matches!(
        op,
        BinaryOp::Add
            | BinaryOp::Mul
            | BinaryOp::And
            | BinaryOp::Or
            | BinaryOp::Xor
            | BinaryOp::MulHigh
            | BinaryOp::Dot4
    )
}

/// A tensor that no store of the kernel can reach.
fn never_written(kernel: &Kernel, param: Param) -> bool {
    let Some(tensor) = kernel.tensor(param) else {
        return false;
    };
    tensor.access == Access::Read
        && tensor.may_alias.is_empty()
        && !kernel.params.handles().any(|other| {
            kernel
                .tensor(other)
                .is_some_and(|t| t.may_alias.contains(&param))
        })
}
