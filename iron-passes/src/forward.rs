//! Forwarding of variables: a read of a variable whose last assignment is known is the assigned
//! value.
//!
//! Known means: assigned in the same or an enclosing block, with no statement since that may
//! assign it. A loop may assign whatever its body assigns before its first turn (K38: a variable
//! stays one whatever its initialiser folded to), a branch whatever either side assigns.

use std::collections::HashMap;

use iron_ir::entity::{Local, Value};
use iron_ir::{Block, Kernel, Op, Stmt};

use crate::rewrite::Builder;
use crate::{Legal, PassError};

/// See the module doc.
pub fn forward(kernel: &mut Kernel, _: &Legal) -> Result<(), PassError> {
    if kernel.locals.is_empty() {
        return Ok(());
    }
    let body = std::mem::take(&mut kernel.body);
    let mut b = Builder::new(kernel);
    let body = block(&mut b, body, &mut HashMap::new());
    kernel.body = body;
    Ok(())
}

type Known = HashMap<Local, Value>;

fn block(b: &mut Builder<'_>, block_in: Block, known: &mut Known) -> Block {
    let outer = std::mem::take(&mut b.out);
    for (mut stmt, span) in block_in.0 {
        b.span = span;
        b.rename(&mut stmt);
        match stmt {
            Stmt::Let(value) => {
                if let Op::Get(local) = b.kernel.values[value].op {
                    if let Some(assigned) = known.get(&local) {
                        b.replace(value, *assigned);
                        continue;
                    }
                    known.insert(local, value);
                }
                b.push(stmt);
            }
            Stmt::Set(local, value) => {
                if known.insert(local, value) != Some(value) {
                    b.push(stmt);
                }
            }
            mut other => {
                let mut assigned = Vec::new();
                for nested in other.blocks() {
                    nested.walk(&mut |stmt, _| {
                        if let Stmt::Set(local, _) = stmt {
                            assigned.push(*local);
                        }
                    });
                }
                if matches!(other, Stmt::For { .. } | Stmt::Loop { .. } | Stmt::Tile(_)) {
                    known.retain(|local, _| !assigned.contains(local));
                }
                for nested in other.blocks_mut() {
                    let taken = std::mem::take(nested);
                    *nested = block(b, taken, &mut known.clone());
                }
                known.retain(|local, _| !assigned.contains(local));
                if let Stmt::Tile(iron_ir::op::TileStmt::Map { result, .. }) = &mut other {
                    *result = b.resolve(*result);
                }
                b.span = span;
                b.push(other);
            }
        }
    }
    Block(std::mem::replace(&mut b.out, outer))
}
