//! Loop-invariant motion: operations whose operands do not change in a loop move before it.
//!
//! Every operation of the IR is total, so computing one that the loop might not have reached is
//! harmless; out of a branch inside of the loop only cheap integer arithmetic moves. Loads stay:
//! before the loop they might be out of bounds. A read of a variable moves where the loop does
//! not assign it.

use iron_ir::entity::{Local, Value};
use iron_ir::kernel::operands;
use iron_ir::op::BinaryOp;
use iron_ir::{Block, Handle, Kernel, Op, Span, Stmt};

use crate::rewrite::needs_let;
use crate::{Legal, PassError};

/// See the module doc.
pub fn licm(kernel: &mut Kernel, _: &Legal) -> Result<(), PassError> {
    let mut body = std::mem::take(&mut kernel.body);
    hoist(kernel, &mut body);
    kernel.body = body;
    Ok(())
}

/// Inner loops first, so that what leaves one can leave the next.
fn hoist(kernel: &Kernel, block: &mut Block) {
    let mut out = Vec::with_capacity(block.0.len());
    for (mut stmt, span) in std::mem::take(&mut block.0) {
        for nested in stmt.blocks_mut() {
            hoist(kernel, nested);
        }
        if let Stmt::For { body, .. } | Stmt::Loop { body } = &mut stmt {
            let mut motion = Motion {
                kernel,
                inside: vec![false; kernel.values.len()],
                assigned: vec![false; kernel.locals.len()],
                moved: Vec::new(),
            };
            body.walk(&mut |stmt, _| {
                for value in stmt.defines() {
                    motion.inside[value.index()] = true;
                }
                if let Stmt::Set(local, _) = stmt {
                    motion.assigned[Local::index(*local)] = true;
                }
            });
            if let Stmt::For { index, .. } = &stmt {
                motion.inside[index.index()] = true;
            }
            if let Stmt::For { body, .. } | Stmt::Loop { body } = &mut stmt {
                motion.leave(body, false);
            }
            out.append(&mut motion.moved);
        }
        out.push((stmt, span));
    }
    block.0 = out;
}

struct Motion<'k> {
    kernel: &'k Kernel,
    /// Values that the loop computes.
    inside: Vec<bool>,
    assigned: Vec<bool>,
    moved: Vec<(Stmt, Span)>,
}

impl Motion<'_> {
    fn leave(&mut self, block: &mut Block, in_branch: bool) {
        let mut kept = Vec::with_capacity(block.0.len());
        for (mut stmt, span) in std::mem::take(&mut block.0) {
            if let Stmt::Let(value) = stmt
                && self.can_leave(value, in_branch)
            {
                self.inside[value.index()] = false;
                self.moved.push((stmt, span));
                continue;
            }
            if let Stmt::If {
                then_block,
                else_block,
                ..
            } = &mut stmt
            {
                self.leave(then_block, true);
                self.leave(else_block, true);
            }
            kept.push((stmt, span));
        }
        block.0 = kept;
    }

    fn can_leave(&self, value: Value, in_branch: bool) -> bool {
        let data = &self.kernel.values[value];
        let movable = match &data.op {
            Op::Get(local) => !in_branch && !self.assigned[local.index()],
            Op::Load { .. } | Op::Result => false,
            Op::Binary(BinaryOp::Div | BinaryOp::Rem | BinaryOp::Pow, ..) => !in_branch,
            Op::Unary(..) | Op::Select(..) | Op::Fma(..) => !in_branch,
            _ => !in_branch || data.ty.scalar.is_int(),
        };
        movable
            && operands(&data.op)
                .iter()
                .all(|v| !self.inside[v.index()] || !needs_let(&self.kernel.values[*v].op))
    }
}
