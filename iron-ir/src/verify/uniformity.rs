//! Uniformity: which values are the same in every thread of a workgroup, and which control flow
//! every thread of a workgroup takes together.
//!
//! Uniform are constants, parameters, dimensions, workgroup ids and sizes; a thread's own id
//! along an axis of one thread; loads from tensors that are `Read` and alias nothing, at uniform
//! indices; reductions and broadcasts of a workgroup; and what is computed from uniform values.
//! A variable or private array is uniform where every assignment to it is of a uniform value (at
//! a uniform index) in uniform control flow. Loads from `ReadWrite` tensors and shared arrays,
//! atomics, scans and all results of subgroup operations are not.
//!
//! Control flow diverges inside a branch on a value that is not uniform and in a loop with such
//! bounds. A `break` in divergent control flow makes the rest of its loop's body divergent, and
//! all of the body if the loop can go round again; a `continue` the rest of the body; after the
//! loop threads are together again. A `return` in divergent control flow makes everything after
//! it divergent, and enclosing loops entirely.
//!
//! A kernel with grid barriers is looked at once more, for all threads of the launch: there
//! workgroup ids and what workgroup operations give are not uniform.
//!
//! Assignments make this a fixed point: variables only ever turn from uniform to divergent, and
//! the walk repeats until none turns.

use super::error::{Fault, VerifyError};
use crate::entity::{Handle, Value};
use crate::kernel::{Access, Block, Kernel, Space, Span, TensorData, operands};
use crate::machine::MachineOp;
use crate::op::{BarrierScope, BuiltinOp, GroupOp, Op, Place, Stmt, TileStmt};

/// The faults of a kernel whose definitions and types are right.
pub(super) fn check(kernel: &Kernel) -> Vec<VerifyError> {
    let mut grid_barriers = Vec::new();
    kernel.body.walk(&mut |stmt, span| {
        if matches!(stmt, Stmt::Barrier(BarrierScope::Grid, _)) {
            grid_barriers.push(span);
        }
    });
    let mut errors = Vec::new();
    if let (Some(&span), Some(lack)) = (grid_barriers.first(), licence_lack(kernel)) {
        errors.push(VerifyError::new(
            kernel,
            span,
            Fault::Malformed(lack.into()),
        ));
    }
    for over_grid in [false, true]
        .into_iter()
        .take(1 + grid_barriers.len().min(1))
    {
        let mut analysis = Analysis::new(kernel, over_grid);
        analysis.settle();
        analysis.report = true;
        analysis.walk();
        errors.append(&mut analysis.errors);
    }
    errors
}

/// What a kernel with grid barriers lacks of what makes workgroups that wait for each other safe:
/// all are resident, and none of them is of the launch before, which counts its arrivals in the
/// same place.
fn licence_lack(kernel: &Kernel) -> Option<&'static str> {
    if !kernel.contract.cooperative {
        return Some("a grid barrier needs a kernel declared `cooperative`");
    }
    let first = |scope: BarrierScope| {
        let is = move |stmt: &Stmt| matches!(stmt, Stmt::Barrier(found, _) if *found == scope);
        kernel.body.0.iter().position(|(stmt, _)| {
            let mut found = is(stmt);
            for block in stmt.blocks() {
                block.walk(&mut |stmt, _| found |= is(stmt));
            }
            found
        })
    };
    let launch = first(BarrierScope::Launch).filter(|_| kernel.contract.dependent);
    let is_early = launch.is_some_and(|launch| first(BarrierScope::Grid) <= Some(launch));
    is_early.then_some("a grid barrier stands before the kernel's launch barrier; put it behind")
}

/// For each value, whether it is the same in every thread of the workgroup that computes it.
/// The kernel must have been verified.
pub fn uniform_values(kernel: &Kernel) -> Vec<bool> {
    let mut analysis = Analysis::new(kernel, false);
    analysis.settle();
    analysis.values.iter().map(|d| !d).collect()
}

/// Why control flow is divergent.
#[derive(Clone, Copy)]
struct Cause {
    what: &'static str,
    span: Span,
}

struct Analysis<'k> {
    kernel: &'k Kernel,
    /// Uniform is what is the same in every thread of the launch, not of a workgroup.
    over_grid: bool,
    /// Divergent values, variables and private arrays.
    values: Vec<bool>,
    locals: Vec<bool>,
    arrays: Vec<bool>,
    changed: bool,
    /// Control flow of the statement at hand.
    control: Option<Cause>,
    /// A thread may have returned.
    returned: Option<Cause>,
    loops: Vec<Loop>,
    /// Within a role, whose threads the lowering has told apart.
    in_role: bool,
    report: bool,
    errors: Vec<VerifyError>,
}

#[derive(Default)]
struct Loop {
    broken: Option<Cause>,
    continued: Option<Cause>,
}

impl<'k> Analysis<'k> {
    fn new(kernel: &'k Kernel, over_grid: bool) -> Self {
        let mut values = vec![false; kernel.values.len()];
        for (value, data) in kernel.values.iter() {
            if let Op::Builtin(op, axis) = data.op {
                values[value.index()] = divergent_builtin(kernel, op, axis, over_grid);
            }
        }
        Analysis {
            kernel,
            over_grid,
            values,
            locals: vec![false; kernel.locals.len()],
            arrays: vec![false; kernel.arrays.len()],
            changed: false,
            control: None,
            returned: None,
            loops: Vec::new(),
            in_role: false,
            report: false,
            errors: Vec::new(),
        }
    }

    fn settle(&mut self) {
        loop {
            self.changed = false;
            self.walk();
            if !self.changed {
                return;
            }
        }
    }

    fn walk(&mut self) {
        self.control = None;
        self.returned = None;
        self.loops.clear();
        self.block(&self.kernel.body);
    }

    fn block(&mut self, block: &Block) {
        let outer = self.control;
        for (stmt, span) in &block.0 {
            self.statement(stmt, *span);
            let jumped = self.loops.last().and_then(|l| l.broken.or(l.continued));
            self.control = outer.or(jumped).or(self.returned);
        }
        self.control = outer;
    }

    fn statement(&mut self, stmt: &Stmt, span: Span) {
        match stmt {
            Stmt::Let(value) => {
                let divergent = self.computed(*value);
                self.mark(*value, divergent);
            }
            Stmt::Set(local, value) => {
                let divergent = self.is(*value) || self.control.is_some();
                if divergent && !self.locals[local.index()] {
                    self.locals[local.index()] = true;
                    self.changed = true;
                }
            }
            Stmt::Store {
                place: Place::Array(array),
                indices,
                value,
            } => {
                let any = indices.iter().chain([value]).any(|v| self.is(*v));
                if (any || self.control.is_some()) && !self.arrays[array.index()] {
                    self.arrays[array.index()] = true;
                    self.changed = true;
                }
            }
            Stmt::Store { .. } => {}
            Stmt::Atomic { result, .. } => self.mark(*result, true),
            // The one thread that copies waits for the launches before by itself.
            Stmt::Barrier(BarrierScope::Launch, _) if self.in_role => {}
            Stmt::Barrier(BarrierScope::Grid, _) if self.over_grid => self.grid_barrier(span),
            Stmt::Barrier(scope, _) => {
                self.collective(span, || format!("the {} barrier", scope_name(*scope)));
            }
            Stmt::Subgroup { result, op, .. } => {
                self.collective(span, || format!("subgroup `{}`", op.name()));
                self.mark(*result, true);
            }
            Stmt::Group {
                result,
                op,
                argument,
                ..
            } => {
                self.collective(span, || format!("workgroup `{}`", op.name()));
                if let Some(argument) = argument {
                    self.uniform(
                        span,
                        *argument,
                        "the thread that a workgroup broadcast reads",
                    );
                }
                let scan = matches!(op, GroupOp::ScanInclusive | GroupOp::ScanExclusive);
                self.mark(*result, scan || self.over_grid);
            }
            Stmt::Mma { result, .. } => {
                self.collective(span, || "this matrix product".to_string());
                self.mark(*result, true);
            }
            Stmt::CheckIndex {
                result,
                index,
                bound,
            } => {
                let divergent = self.is(*index) || self.is(*bound);
                self.mark(*result, divergent);
            }
            Stmt::If {
                condition,
                then_block,
                else_block,
            } => {
                let outer = self.control;
                if self.is(*condition) {
                    let span = self.span_of(*condition, span);
                    self.control = outer.or(Some(Cause {
                        what: "this condition",
                        span,
                    }));
                }
                self.block(then_block);
                self.block(else_block);
                self.control = outer;
            }
            Stmt::For {
                index,
                start,
                end,
                step,
                body,
                ..
            } => {
                let differs = [start, end, step].into_iter().any(|v| self.is(*v));
                self.mark(*index, differs);
                let cause = differs.then_some(Cause {
                    what: "the number of turns of this loop",
                    span,
                });
                self.repeated(body, cause, true);
            }
            Stmt::Loop { body } => self.repeated(body, None, repeats(body)),
            Stmt::Break => {
                let cause = self.control;
                if let Some(innermost) = self.loops.last_mut() {
                    innermost.broken = innermost.broken.or(cause);
                }
            }
            Stmt::Continue => {
                let cause = self.control;
                if let Some(innermost) = self.loops.last_mut() {
                    innermost.continued = innermost.continued.or(cause);
                }
            }
            Stmt::Return => self.returned = self.returned.or(self.control),
            Stmt::Tile(tile) => self.tile(tile, span),
            Stmt::Machine(machine) => {
                if let Some(result) = machine.result {
                    self.mark(result, self.over_grid);
                }
                // Products are the whole warpgroup's, the others one thread's or each thread's.
                if matches!(machine.op, MachineOp::Product | MachineOp::ProductHeld)
                    || machine.op.is_of_fragments()
                {
                    self.collective(span, || "this product".to_string());
                }
            }
            Stmt::Roles {
                producer, consumer, ..
            } => {
                self.collective(span, || "this division into roles".to_string());
                self.in_role = true;
                self.block(producer);
                self.block(consumer);
                self.in_role = false;
            }
        }
    }

    /// A loop's body. Where threads can be in different turns, they are so from its first
    /// statement on.
    fn repeated(&mut self, body: &Block, cause: Option<Cause>, again: bool) {
        let outer = self.control;
        let entered = outer.or(cause);
        let reporting = std::mem::replace(&mut self.report, false);
        self.control = entered;
        self.loops.push(Loop::default());
        self.block(body);
        let first = self.loops.pop().unwrap_or_default();
        self.report = reporting;
        let around = if again {
            first.broken.or(self.returned)
        } else {
            None
        };
        if reporting || around.is_some() {
            self.control = entered.or(around);
            self.loops.push(Loop::default());
            self.block(body);
            self.loops.pop();
        }
        self.control = outer;
    }

    fn tile(&mut self, stmt: &TileStmt, span: Span) {
        self.collective(span, || "this tile operation".to_string());
        match stmt {
            TileStmt::Fill { value, .. } => {
                self.uniform(span, *value, "the value that fills a tile")
            }
            TileStmt::Load {
                leading, origin, ..
            }
            | TileStmt::Store {
                leading, origin, ..
            } => {
                for value in leading.iter().chain(origin) {
                    self.uniform(span, *value, "the index of a tile in its tensor");
                }
            }
            TileStmt::Map {
                elements,
                row,
                column,
                body,
                ..
            } => {
                for value in elements.iter().chain([row, column]) {
                    self.mark(*value, true);
                }
                let outer = std::mem::take(&mut self.loops);
                let control = self.control;
                // Each thread runs the body once for each of its elements.
                self.control = control.or(Some(Cause {
                    what: "the number of elements",
                    span,
                }));
                self.block(body);
                self.control = control;
                self.loops = outer;
            }
            TileStmt::Copy { .. }
            | TileStmt::Matmul { .. }
            | TileStmt::ReduceRows { .. }
            | TileStmt::ReduceColumns { .. } => {}
        }
    }

    fn computed(&self, value: Value) -> bool {
        let data = &self.kernel.values[value];
        match &data.op {
            Op::Builtin(..) => self.is(value),
            Op::Get(local) => self.locals[local.index()],
            Op::Load { place, indices } => {
                let memory = match place {
                    Place::Tensor(param) | Place::Flat(param) => !self
                        .kernel
                        .tensor(*param)
                        .is_some_and(|t| constant_tensor(self.kernel, *param, t)),
                    Place::Array(array) => {
                        self.arrays[array.index()]
                            || self.kernel.arrays[*array].space == Space::Shared
                    }
                };
                memory || indices.iter().any(|v| self.is(*v))
            }
            op => operands(op).iter().any(|v| self.is(*v)),
        }
    }

    fn is(&self, value: Value) -> bool {
        self.values[value.index()]
    }

    fn mark(&mut self, value: Value, divergent: bool) {
        if divergent && !self.values[value.index()] {
            self.values[value.index()] = true;
            self.changed = true;
        }
    }

    fn span_of(&self, value: Value, statement: Span) -> Span {
        let span = self.kernel.values[value].span;
        if span.line == 0 { statement } else { span }
    }

    fn collective(&mut self, span: Span, operation: impl FnOnce() -> String) {
        let Some(cause) = self.control.filter(|_| self.report && !self.over_grid) else {
            return;
        };
        let fault = Fault::Divergent {
            operation: operation(),
            cause: cause.what,
            condition: cause.span,
        };
        self.errors.push(VerifyError::new(self.kernel, span, fault));
    }

    fn grid_barrier(&mut self, span: Span) {
        let Some(cause) = self.control.filter(|_| self.report) else {
            return;
        };
        let fault = Fault::DivergentGrid {
            cause: cause.what,
            condition: cause.span,
        };
        self.errors.push(VerifyError::new(self.kernel, span, fault));
    }

    fn uniform(&mut self, span: Span, value: Value, role: &str) {
        if self.report && !self.over_grid && self.is(value) {
            let fault = Fault::NotUniform { role: role.into() };
            self.errors.push(VerifyError::new(self.kernel, span, fault));
        }
    }
}

fn scope_name(scope: BarrierScope) -> &'static str {
    scope.name()
}

/// Whether a loop can go round again: not where its last statement leaves it and nothing
/// continues.
fn repeats(body: &Block) -> bool {
    let ends = matches!(body.0.last(), Some((Stmt::Break | Stmt::Return, _)));
    !ends || continues(body)
}

fn continues(block: &Block) -> bool {
    block.0.iter().any(|(stmt, _)| match stmt {
        Stmt::Continue => true,
        Stmt::For { .. } | Stmt::Loop { .. } => false,
        other => other.blocks().into_iter().any(continues),
    })
}

/// Read-only, and not the memory of a tensor that the kernel may write.
fn constant_tensor(kernel: &Kernel, param: crate::entity::Param, tensor: &TensorData) -> bool {
    tensor.access == Access::Read
        && tensor.may_alias.is_empty()
        && !kernel.params.handles().any(|other| {
            other != param
                && kernel
                    .tensor(other)
                    .is_some_and(|t| t.may_alias.contains(&param))
        })
}

fn divergent_builtin(kernel: &Kernel, op: BuiltinOp, axis: u8, over_grid: bool) -> bool {
    let size = kernel
        .contract
        .workgroup
        .get(usize::from(axis))
        .copied()
        .unwrap_or(0);
    match op {
        BuiltinOp::GroupId | BuiltinOp::GlobalId if over_grid => true,
        BuiltinOp::GroupId
        | BuiltinOp::GroupCount
        | BuiltinOp::GroupSize
        | BuiltinOp::GroupThreads
        | BuiltinOp::SubgroupCount
        | BuiltinOp::SubgroupSize => false,
        BuiltinOp::LocalId | BuiltinOp::GlobalId => size != 1,
        BuiltinOp::LocalIndex | BuiltinOp::SubgroupId | BuiltinOp::SubgroupLane => {
            kernel.contract.threads() != 1
        }
    }
}
