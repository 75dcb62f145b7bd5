//! Unrolling: loops of constant bounds are copied out, turn by turn.
//!
//! A loop marked for full unrolling is copied out where the target wants that of the passes
//! ([`Legal::expand_unrolled_loops`]), an unmarked one only while its copies are few statements.
//! A loop with a `break` or `continue` of its own stays a loop, and so does one whose copies
//! would be more than [`MOST_STATEMENTS`].
//!
//! Where the target's own compiler unrolls, an unmarked loop of up to [`KEPT_TURNS`] turns that
//! touches a private array is marked for it: only an array whose every index is a constant lies
//! in registers.

use iron_ir::entity::Value;
use iron_ir::kernel::Space;
use iron_ir::op::Unroll;
use iron_ir::{Block, Const, Kernel, Op, Place, Stmt};

use crate::canonicalise::{jumps, trips};
use crate::rewrite::{Builder, map_definitions, map_operands, rewrite};
use crate::{Legal, PassError};

/// Statements of all copies of one loop.
const MOST_STATEMENTS: u64 = 16_384;

/// Turns of the longest loop over a private array that is marked.
const KEPT_TURNS: u64 = 64;

/// See the module doc.
pub fn unroll(kernel: &mut Kernel, legal: &Legal) -> Result<(), PassError> {
    rewrite(kernel, &mut |b, stmt| expand(b, legal, stmt));
    Ok(())
}

fn expand(b: &mut Builder<'_>, legal: &Legal, stmt: Stmt) -> Option<Stmt> {
    let Stmt::For {
        index,
        start,
        end,
        step,
        unroll,
        body,
    } = stmt
    else {
        return Some(stmt);
    };
    let turns = trips(b, start, end, step);
    let size = statements(&body);
    let budget = match unroll {
        Unroll::Full if legal.expand_unrolled_loops => MOST_STATEMENTS,
        Unroll::Auto if legal.expand_unrolled_loops => u64::from(legal.auto_unroll_statements),
        Unroll::Full | Unroll::Auto | Unroll::Never => 0,
    };
    let keeps = !legal.expand_unrolled_loops
        && unroll == Unroll::Auto
        && turns.is_some_and(|turns| turns <= KEPT_TURNS)
        && touches_private(b.kernel, &body);
    let unroll = if keeps { Unroll::Full } else { unroll };
    let first = b.kernel.constant(start);
    let distance = b.kernel.constant(step);
    let (Some(turns), Some(first), Some(distance)) = (turns, first, distance) else {
        return Some(Stmt::For {
            index,
            start,
            end,
            step,
            unroll,
            body,
        });
    };
    if turns.saturating_mul(size) > budget || jumps(&body) {
        return Some(Stmt::For {
            index,
            start,
            end,
            step,
            unroll,
            body,
        });
    }
    for turn in 0..turns {
        let at = first.as_int() + distance.as_int() * i128::from(turn);
        let at = b.constant(Const::int(first.scalar, at));
        let copy = copy_block(b, &body, &mut vec![(index, at)]);
        let copy = b.rewrite_block(copy, &mut |b, stmt| expand(b, legal, stmt));
        b.out.extend(copy.0);
    }
    None
}

/// Whether a private array is read or written in the block.
fn touches_private(kernel: &Kernel, block: &Block) -> bool {
    let private = |place: &Place| match place {
        Place::Array(array) => kernel.arrays[*array].space == Space::Private,
        Place::Tensor(_) | Place::Flat(_) => false,
    };
    let mut found = false;
    block.walk(&mut |stmt, _| {
        found |= match stmt {
            Stmt::Store { place, .. } => private(place),
            Stmt::Let(value) => {
                matches!(&kernel.values[*value].op, Op::Load { place, .. } if private(place))
            }
            _ => false,
        };
    });
    found
}

fn statements(block: &Block) -> u64 {
    let mut count = 0;
    block.walk(&mut |_, _| count += 1);
    count
}

/// The block with a new value for each that it defines.
pub(crate) fn copy_block(
    b: &mut Builder<'_>,
    block: &Block,
    renamed: &mut Vec<(Value, Value)>,
) -> Block {
    let mut copy = block.clone();
    let mut map = std::collections::HashMap::new();
    map.extend(renamed.drain(..));
    copy.walk_mut(&mut |stmt, _| {
        map_definitions(stmt, &mut |old| {
            let data = b.kernel.values[old].clone();
            let new = b.kernel.values.push(data);
            map.insert(old, new);
            new
        });
    });
    let look = |v: Value| map.get(&v).copied().unwrap_or(v);
    copy.walk_mut(&mut |stmt, _| {
        crate::rewrite::map_uses(stmt, &mut |v| look(v));
        if let Stmt::Let(value) = stmt {
            let mut op = b.kernel.values[*value].op.clone();
            map_operands(&mut op, &mut |v| look(v));
            b.kernel.values[*value].op = op;
        }
    });
    copy
}
