//! Canonicalise and fold: constants are computed, trivial operations vanish, branches on
//! constants and loops of no or one turn are laid open.
//!
//! Folding uses [`iron_ir::fold`], the specification's own evaluator. Rules, all exact:
//!
//! - an operation on constants is a constant; so is a workgroup's size, and the id of the only
//!   thread along an axis;
//! - integers: `x + 0`, `x - 0`, `x * 1`, `x / 1`, `x | 0`, `x ^ 0`, `x & -1`, `x << 0`, `x >> 0`
//!   are `x`; `x * 0`, `x & 0`, `x % 1` are 0; `(x + a) + b` is `x + (a + b)`;
//! - `bool`: `x & true`, `x | false` are `x`; `x & false` is false, `x | true` true; `!!x` is `x`;
//! - `select` on a constant or with equal sides, conversions and bit casts to the own type, bit
//!   casts of bit casts, lanes of vectors whose parts are known, a vector of all lanes of another.
//!
//! No float identity is used: `x + 0.0` is not `x` for `-0.0`.

use iron_ir::entity::Value;
use iron_ir::fold;
use iron_ir::op::{BinaryOp, BuiltinOp, UnaryOp};
use iron_ir::{Block, Const, Kernel, Op, Scalar, Stmt};

use crate::rewrite::{Builder, rewrite};
use crate::{Legal, PassError};

/// See the module doc.
pub fn canonicalise(kernel: &mut Kernel, legal: &Legal) -> Result<(), PassError> {
    let workgroup = kernel.contract.workgroup;
    let threads = kernel.contract.threads();
    for (_, data) in kernel.values.iter_mut() {
        if let Op::Builtin(op, axis) = data.op {
            let size = workgroup.get(usize::from(axis)).copied().unwrap_or(1);
            let known = match op {
                BuiltinOp::GroupSize => Some(size),
                BuiltinOp::GroupThreads => Some(threads),
                BuiltinOp::SubgroupSize => legal.subgroup_size,
                BuiltinOp::LocalId => (size == 1).then_some(0),
                BuiltinOp::LocalIndex => (threads == 1).then_some(0),
                BuiltinOp::GroupId
                | BuiltinOp::GroupCount
                | BuiltinOp::GlobalId
                | BuiltinOp::SubgroupId
                | BuiltinOp::SubgroupCount
                | BuiltinOp::SubgroupLane => None,
            };
            if let Some(known) = known {
                data.op = Op::Const(Const::u32(known));
            }
        }
    }
    rewrite(kernel, &mut statement);
    Ok(())
}

fn statement(b: &mut Builder<'_>, stmt: Stmt) -> Option<Stmt> {
    match stmt {
        Stmt::Let(value) => {
            // A constant that the author named keeps its `Let`.
            if matches!(b.kernel.values[value].op, Op::Const(_)) {
                return Some(stmt);
            }
            match rule(b, value) {
                Some(new) => {
                    b.replace(value, new);
                    None
                }
                None => Some(stmt),
            }
        }
        Stmt::If {
            condition,
            then_block,
            else_block,
        } => match b.kernel.constant(condition) {
            Some(c) => {
                splice(b, if c.as_bool() { then_block } else { else_block });
                None
            }
            None => Some(Stmt::If {
                condition,
                then_block,
                else_block,
            }),
        },
        Stmt::For {
            index,
            start,
            end,
            step,
            unroll,
            body,
        } => {
            let bounds = trips(b, start, end, step);
            match bounds {
                Some(0) => None,
                Some(1) if !jumps(&body) => {
                    b.replace(index, start);
                    splice(b, body);
                    None
                }
                _ => Some(Stmt::For {
                    index,
                    start,
                    end,
                    step,
                    unroll,
                    body,
                }),
            }
        }
        Stmt::Loop { mut body } => {
            if !matches!(body.0.last(), Some((Stmt::Break, _))) {
                return Some(Stmt::Loop { body });
            }
            let last = body.0.pop();
            if jumps(&body) {
                body.0.extend(last);
                return Some(Stmt::Loop { body });
            }
            splice(b, body);
            None
        }
        other => Some(other),
    }
}

/// The statements of a block in place of the one that held it.
fn splice(b: &mut Builder<'_>, block: Block) {
    let block = b.rewrite_block(block, &mut statement);
    b.out.extend(block.0);
}

/// Turns of a loop with constant bounds.
pub(crate) fn trips(b: &Builder<'_>, start: Value, end: Value, step: Value) -> Option<u64> {
    let of = |v| b.kernel.constant(v).map(Const::as_int);
    let (start, end, step) = (of(start)?, of(end)?, of(step)?);
    if step <= 0 {
        return None;
    }
    let turns = if start >= end {
        0
    } else {
        (end - start + step - 1) / step
    };
    u64::try_from(turns).ok()
}

/// Whether a block has a `break` or `continue` of the loop around it.
pub(crate) fn jumps(block: &Block) -> bool {
    block.0.iter().any(|(stmt, _)| match stmt {
        Stmt::Break | Stmt::Continue => true,
        Stmt::For { .. } | Stmt::Loop { .. } => false,
        other => other.blocks().into_iter().any(jumps),
    })
}

/// What a computed value is instead.
fn rule(b: &mut Builder<'_>, value: Value) -> Option<Value> {
    let ty = b.ty(value);
    let op = b.kernel.values[value].op.clone();
    if let Some(folded) = folded(b, &op, ty.scalar).filter(|_| !ty.is_vector()) {
        return Some(b.constant(folded));
    }
    let constant = |b: &Builder<'_>, v: Value| scalar_constant(b, v);
    match op {
        Op::Unary(UnaryOp::Not, a) => match b.kernel.values[a].op {
            Op::Unary(UnaryOp::Not, inner) => Some(inner),
            _ => None,
        },
        Op::Binary(op, x, y) if ty.scalar.is_int() || ty.scalar == Scalar::Bool => {
            let (cx, cy) = (constant(b, x), constant(b, y));
            let zero = |c: Option<Const>| c.is_some_and(|c| c.bits == 0);
            let one = |c: Option<Const>| ty.scalar.is_int() && c.is_some_and(|c| c.bits == 1);
            let ones = |c: Option<Const>| c.is_some_and(|c| c.bits == fold::mask(ty.scalar));
            match op {
                BinaryOp::Add if zero(cy) => Some(x),
                BinaryOp::Add if zero(cx) => Some(y),
                BinaryOp::Add => {
                    let (Op::Binary(BinaryOp::Add, inner, a), Some(c)) =
                        (&b.kernel.values[x].op, cy)
                    else {
                        return None;
                    };
                    let inner = *inner;
                    let first = b.kernel.constant(*a)?;
                    let sum = b.constant(fold::binary(BinaryOp::Add, first, c));
                    let sum = b.splat(sum, ty.lanes);
                    Some(b.add(inner, sum))
                }
                BinaryOp::Sub | BinaryOp::Shl | BinaryOp::Shr if zero(cy) => Some(x),
                BinaryOp::Mul if one(cy) => Some(x),
                BinaryOp::Mul if one(cx) => Some(y),
                BinaryOp::Mul if zero(cx) => Some(x),
                BinaryOp::Mul if zero(cy) => Some(y),
                BinaryOp::Div if one(cy) => Some(x),
                BinaryOp::Rem if one(cy) => Some(b.int(ty, 0)),
                BinaryOp::And if zero(cx) || ones(cy) => Some(x),
                BinaryOp::And if zero(cy) || ones(cx) => Some(y),
                BinaryOp::Or if zero(cy) || ones(cx) => Some(x),
                BinaryOp::Or if zero(cx) || ones(cy) => Some(y),
                BinaryOp::Xor if zero(cy) => Some(x),
                BinaryOp::Xor if zero(cx) => Some(y),
                _ => None,
            }
        }
        Op::Select(_, x, y) if x == y => Some(x),
        Op::Select(c, x, y) => constant(b, c).map(|c| if c.as_bool() { x } else { y }),
        Op::Convert(a) if b.ty(a) == ty => Some(a),
        // Widened and narrowed back: the low bits never changed.
        Op::Convert(a) if ty.scalar.is_int() => match b.kernel.values[a].op {
            Op::Convert(inner) if b.ty(inner) == ty && keeps_bits(b.ty(a).scalar, ty.scalar) => {
                Some(inner)
            }
            _ => None,
        },
        Op::Bitcast(a) if b.ty(a) == ty => Some(a),
        Op::Bitcast(a) => match b.kernel.values[a].op {
            Op::Bitcast(inner) if b.ty(inner) == ty => Some(inner),
            _ => None,
        },
        Op::Extract(a, lane) => match &b.kernel.values[a].op {
            Op::Vector(parts) => parts.get(usize::from(lane)).copied(),
            Op::Splat(scalar) => Some(*scalar),
            Op::Insert(inner, at, scalar) => {
                let (inner, at, scalar) = (*inner, *at, *scalar);
                Some(if at == lane {
                    scalar
                } else {
                    b.extract(inner, lane)
                })
            }
            _ => None,
        },
        Op::Vector(parts) => {
            let Op::Extract(whole, 0) = b.kernel.values[*parts.first()?].op else {
                return None;
            };
            let all = parts.iter().enumerate().all(|(i, p)| {
                matches!(b.kernel.values[*p].op, Op::Extract(v, l) if v == whole && usize::from(l) == i)
            });
            (all && b.ty(whole) == ty).then_some(whole)
        }
        _ => None,
    }
}

/// The constant of a scalar, or the one in every lane of a splat.
/// Whether an integer of `narrow` comes back from `wide` unchanged.
fn keeps_bits(wide: Scalar, narrow: Scalar) -> bool {
    wide.is_int() && wide.bits() >= narrow.bits()
}

fn scalar_constant(b: &Builder<'_>, value: Value) -> Option<Const> {
    match b.kernel.values[value].op {
        Op::Const(c) => Some(c),
        Op::Splat(scalar) => b.kernel.constant(scalar),
        _ => None,
    }
}

fn folded(b: &Builder<'_>, op: &Op, scalar: Scalar) -> Option<Const> {
    let mut constants = [Const::zero(Scalar::U32); 3];
    let operands = iron_ir::kernel::operands(op);
    if operands.is_empty() || operands.len() > 3 {
        return None;
    }
    for (slot, value) in constants.iter_mut().zip(&operands) {
        *slot = b.kernel.constant(*value)?;
    }
    fold::eval(op, scalar, &constants[..operands.len()])
}
