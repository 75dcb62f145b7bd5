//! Which values are the same in all threads of a workgroup, or in those side by side.

use iron_ir::entity::{Handle, Value};
use iron_ir::kernel::{Access, Block, Kernel, ParamKind, Space, operands};
use iron_ir::op::{BuiltinOp, GroupOp};
use iron_ir::{Op, Place, Stmt};

use super::plan::{escapes, returns, synchronises};

/// Whether a builtin differs between the threads of a workgroup.
fn of_thread(op: BuiltinOp) -> bool {
    match op {
        BuiltinOp::LocalId
        | BuiltinOp::GlobalId
        | BuiltinOp::LocalIndex
        | BuiltinOp::SubgroupId
        | BuiltinOp::SubgroupLane => true,
        BuiltinOp::GroupId
        | BuiltinOp::GroupCount
        | BuiltinOp::GroupSize
        | BuiltinOp::GroupThreads
        | BuiltinOp::SubgroupCount
        | BuiltinOp::SubgroupSize => false,
    }
}

/// Whether nothing writes what a load of this place reads.
fn is_constant_memory(kernel: &Kernel, place: Place) -> bool {
    match place {
        Place::Tensor(param) | Place::Flat(param) => {
            kernel
                .tensor(param)
                .is_some_and(|t| t.access == Access::Read && t.may_alias.is_empty())
                && kernel.params.values().all(|p| match &p.kind {
                    ParamKind::Tensor(t) => !t.may_alias.contains(&param),
                    ParamKind::Scalar(_) => true,
                })
        }
        Place::Array(_) => false,
    }
}

/// Values that are the same in every thread of a workgroup, whatever the order of threads.
pub(super) fn uniform(kernel: &Kernel) -> Vec<bool> {
    let mut uniform = vec![false; kernel.values.len()];
    for (value, data) in kernel.values.iter() {
        uniform[value.index()] = match data.op {
            Op::Const(_) | Op::Scalar(_) | Op::Dim(_) | Op::Stride(..) => true,
            Op::Builtin(op, _) => !of_thread(op),
            _ => false,
        };
    }
    fn walk(kernel: &Kernel, block: &Block, uniform: &mut Vec<bool>) {
        for (stmt, _) in &block.0 {
            match stmt {
                Stmt::Let(value) => {
                    let op = &kernel.values[*value].op;
                    let pure = match op {
                        Op::Get(_) | Op::Result => false,
                        Op::Builtin(op, _) => !of_thread(*op),
                        Op::Load { place, .. } => is_constant_memory(kernel, *place),
                        _ => true,
                    };
                    uniform[value.index()] =
                        pure && operands(op).iter().all(|v| uniform[v.index()]);
                }
                Stmt::Group {
                    result,
                    op: GroupOp::Reduce | GroupOp::Broadcast,
                    ..
                } => {
                    uniform[result.index()] = true;
                }
                // The verifier holds that such a loop is uniform.
                Stmt::For { index, .. } if synchronises(stmt) => {
                    uniform[index.index()] = true;
                }
                _ => {}
            }
            for block in stmt.blocks() {
                walk(kernel, block, uniform);
            }
        }
    }
    walk(kernel, &kernel.body, &mut uniform);
    uniform
}

/// Values and variables that may differ among threads that run side by side.
pub(super) fn variance(kernel: &Kernel) -> (Vec<bool>, Vec<bool>) {
    let mut varying = vec![false; kernel.values.len()];
    let mut local_varying = vec![false; kernel.locals.len()];
    for (value, data) in kernel.values.iter() {
        if let Op::Builtin(op, _) = data.op {
            // Subgroups are of 8 threads, so that 4 side by side are of one.
            varying[value.index()] = of_thread(op) && op != BuiltinOp::SubgroupId;
        }
    }
    struct Walk<'a> {
        kernel: &'a Kernel,
        varying: &'a mut Vec<bool>,
        locals: &'a mut Vec<bool>,
        changed: bool,
    }
    impl Walk<'_> {
        fn mark(&mut self, value: Value, is: bool) {
            if is && !self.varying[value.index()] {
                self.varying[value.index()] = true;
                self.changed = true;
            }
        }
        fn any(&self, values: &[Value]) -> bool {
            values.iter().any(|v| self.varying[v.index()])
        }
        /// Returns whether threads may have left one another: some broke, continued or returned.
        fn block(&mut self, block: &Block, divergent: bool) {
            let mut divergent = divergent;
            for (stmt, _) in &block.0 {
                self.stmt(stmt, divergent);
                // After a divergent escape, the rest of the block runs in some threads only.
                if let Stmt::If { condition, .. } = stmt {
                    divergent |= escapes(stmt) && self.any(&[*condition]);
                } else if stmt
                    .blocks()
                    .iter()
                    .any(|b| b.0.iter().any(|(s, _)| returns(s)))
                {
                    divergent = true;
                }
            }
        }
        fn stmt(&mut self, stmt: &Stmt, divergent: bool) {
            match stmt {
                Stmt::Let(value) => {
                    let op = &self.kernel.values[*value].op;
                    let is = match op {
                        Op::Get(local) => self.locals[local.index()],
                        Op::Load {
                            place: Place::Array(a),
                            indices,
                        } => self.kernel.arrays[*a].space == Space::Private || self.any(indices),
                        Op::Builtin(..) => self.varying[value.index()],
                        other => self.any(&operands(other)),
                    };
                    self.mark(*value, is);
                }
                Stmt::Set(local, value) => {
                    if (divergent || self.any(&[*value])) && !self.locals[local.index()] {
                        self.locals[local.index()] = true;
                        self.changed = true;
                    }
                }
                Stmt::Atomic { result, .. } => self.mark(*result, true),
                Stmt::CheckIndex {
                    result,
                    index,
                    bound,
                } => {
                    let is = self.any(&[*index, *bound]);
                    self.mark(*result, is);
                }
                Stmt::Subgroup { result, .. } => self.mark(*result, true),
                Stmt::Group { result, op, .. } => {
                    self.mark(
                        *result,
                        matches!(op, GroupOp::ScanInclusive | GroupOp::ScanExclusive),
                    );
                }
                Stmt::If {
                    condition,
                    then_block,
                    else_block,
                } => {
                    let inner = divergent || self.any(&[*condition]);
                    self.block(then_block, inner);
                    self.block(else_block, inner);
                }
                Stmt::For {
                    index,
                    start,
                    end,
                    step,
                    body,
                    ..
                } => {
                    let joined = synchronises(stmt);
                    let is = !joined && self.any(&[*start, *step]);
                    self.mark(*index, is);
                    let trips = !joined && self.any(&[*start, *end, *step]);
                    let leaves = self.leaves(body);
                    self.block(body, divergent || trips || leaves);
                }
                Stmt::Loop { body } => {
                    let leaves = self.leaves(body);
                    self.block(body, divergent || leaves);
                }
                Stmt::Mma { .. }
                | Stmt::Machine(_)
                | Stmt::Roles { .. }
                | Stmt::Store { .. }
                | Stmt::Barrier(..)
                | Stmt::Break
                | Stmt::Continue
                | Stmt::Return
                | Stmt::Tile(_) => {}
            }
        }
        /// Whether threads may leave a loop's turn at different places.
        fn leaves(&self, body: &Block) -> bool {
            leaves(body, &|v| self.varying[v.index()])
        }
    }
    loop {
        let mut walk = Walk {
            kernel,
            varying: &mut varying,
            locals: &mut local_varying,
            changed: false,
        };
        walk.block(&kernel.body, false);
        if !walk.changed {
            return (varying, local_varying);
        }
    }
}

/// Whether a loop body holds a break or continue of its own loop, or a return, under a
/// condition that differs between threads.
pub(super) fn leaves(body: &Block, varying: &dyn Fn(Value) -> bool) -> bool {
    fn inner(block: &Block, own: bool, divergent: bool, varying: &dyn Fn(Value) -> bool) -> bool {
        block.0.iter().any(|(stmt, _)| match stmt {
            Stmt::Return => divergent,
            Stmt::Break | Stmt::Continue => own && divergent,
            Stmt::If {
                condition,
                then_block,
                else_block,
            } => {
                let divergent = divergent || varying(*condition);
                inner(then_block, own, divergent, varying)
                    || inner(else_block, own, divergent, varying)
            }
            Stmt::For {
                start,
                end,
                step,
                body,
                ..
            } => {
                let divergent = divergent || [start, end, step].into_iter().any(|&v| varying(v));
                inner(body, false, divergent, varying)
            }
            Stmt::Loop { body } => inner(body, false, divergent, varying),
            _ => false,
        })
    }
    inner(body, true, false, varying)
}
