//! Statements: structured control flow, variables and the order of effects.
//!
//! A block that ended (`break`, `continue`, `return`) leaves no open block, and what follows it
//! in the same sequence is not emitted. A merge block that nothing reaches ends in
//! `OpUnreachable`.

use iron_ir::Handle;
use iron_ir::entity::Value;
use iron_ir::kernel::{Block, Kernel, Span};
use iron_ir::layout::FieldKind;
use iron_ir::op::{AtomicOp, BinaryOp, Op, Stmt, Unroll};
use iron_ir::types::Type;
use rspirv::dr::Operand;
use rspirv::spirv::{Capability, GroupOperation, LoopControl, Op as Spv, Scope, StorageClass};

use super::{Emitter, Parts};
use crate::error::LowerError;

impl Emitter<'_> {
    /// A sequence of statements.
    pub(super) fn block(&mut self, block: &Block) -> Result<(), LowerError> {
        for (stmt, span) in &block.0 {
            if self.b.is_terminated() {
                break;
            }
            self.span = *span;
            self.mark(*span);
            self.statement(stmt)?;
        }
        Ok(())
    }

    fn mark(&mut self, span: Span) {
        let Some(&file) = self.files.get(usize::from(span.file)) else {
            return;
        };
        if span.line == 0 || self.marked == Some(span) {
            return;
        }
        self.marked = Some(span);
        self.b.line(file, span.line, u32::from(span.column));
    }

    fn begin(&mut self, label: u32) {
        self.marked = None;
        self.b.begin_block(label);
    }

    fn statement(&mut self, stmt: &Stmt) -> Result<(), LowerError> {
        match stmt {
            Stmt::Let(value) => self.let_value(*value),
            Stmt::Set(local, value) => {
                let parts = self.value(*value)?;
                let variables = self.local(*local);
                for (&variable, &id) in variables.ids().iter().zip(parts.ids()) {
                    self.b.effect(
                        Spv::Store,
                        vec![Operand::IdRef(variable), Operand::IdRef(id)],
                    );
                }
                Ok(())
            }
            Stmt::Store {
                place,
                indices,
                value,
            } => self.store(*place, indices, *value),
            Stmt::Atomic {
                result,
                op,
                place,
                indices,
                value,
                compare,
            } => self.atomic(*result, *op, *place, indices, *value, *compare),
            Stmt::Barrier(scope, memory) => self.barrier(*scope, *memory),
            Stmt::Subgroup {
                result,
                op,
                value,
                argument,
                ..
            } => self.subgroup(*result, *op, *value, *argument),
            Stmt::CheckIndex {
                result,
                index,
                bound,
            } => self.check_index(*result, *index, *bound),
            Stmt::If {
                condition,
                then_block,
                else_block,
            } => self.if_else(*condition, then_block, else_block),
            Stmt::For {
                index,
                start,
                end,
                step,
                unroll,
                body,
            } => self.for_loop(*index, [*start, *end, *step], *unroll, body),
            Stmt::Loop { body } => self.endless_loop(body),
            Stmt::Break => match self.loops.last() {
                Some(&(merge, _)) => {
                    self.b.branch(merge);
                    Ok(())
                }
                None => self.not_legalised("`break` outside of a loop"),
            },
            Stmt::Continue => match self.loops.last() {
                Some(&(_, next)) => {
                    self.b.branch(next);
                    Ok(())
                }
                None => self.not_legalised("`continue` outside of a loop"),
            },
            Stmt::Return => self.end_invocation(),
            Stmt::Group { op, .. } => {
                self.not_legalised(format!("the workgroup operation `{}`", op.name()))
            }
            Stmt::Tile(_) => self.not_legalised("a tile operation"),
            Stmt::Mma { .. } => self.not_legalised("a matrix product"),
            Stmt::Machine(machine) => self.machine(machine),
            Stmt::Roles { .. } => self.not_legalised("a division into roles"),
        }
    }

    fn let_value(&mut self, value: Value) -> Result<(), LowerError> {
        if self.values[value.index()].is_some() {
            return Ok(());
        }
        let data = &self.kernel.values[value];
        match &data.op {
            Op::Const(_) => {
                self.value(value)?;
                Ok(())
            }
            Op::Result => self.not_legalised(format!("a `let` of the result {value}")),
            op => {
                let parts = self.compute(value, op, data.ty)?;
                self.define(value, parts);
                Ok(())
            }
        }
    }

    fn if_else(
        &mut self,
        condition: Value,
        then_block: &Block,
        else_block: &Block,
    ) -> Result<(), LowerError> {
        let condition = self.single(condition)?;
        let (then_label, merge) = (self.b.id(), self.b.id());
        let else_label = if else_block.is_empty() {
            merge
        } else {
            self.b.id()
        };
        self.b.selection_merge(merge);
        self.b.branch_if(condition, then_label, else_label);
        self.begin(then_label);
        self.block(then_block)?;
        let mut reached = !self.b.is_terminated() || else_block.is_empty();
        self.b.branch(merge);
        if !else_block.is_empty() {
            self.begin(else_label);
            self.block(else_block)?;
            reached |= !self.b.is_terminated();
            self.b.branch(merge);
        }
        self.begin(merge);
        if !reached {
            self.b.unreachable();
        }
        Ok(())
    }

    fn endless_loop(&mut self, body: &Block) -> Result<(), LowerError> {
        let [header, start, next, merge] = self.loop_labels();
        self.b.branch(header);
        self.begin(header);
        self.count_turn();
        self.b.loop_merge(merge, next, LoopControl::NONE);
        self.b.branch(start);
        self.begin(start);
        self.loops.push((merge, next));
        self.block(body)?;
        self.loops.pop();
        self.b.branch(next);
        self.begin(next);
        self.b.branch(header);
        self.begin(merge);
        if !breaks(body) {
            self.b.unreachable();
        }
        Ok(())
    }

    /// The index is a variable that the continue target steps, so that `continue` reaches it.
    /// Where a step may pass the type's end, the wrapped index becomes `end`, which ends the loop.
    fn for_loop(
        &mut self,
        index: Value,
        [start, end, step]: [Value; 3],
        unroll: Unroll,
        body: &Block,
    ) -> Result<(), LowerError> {
        let ty = self.kernel.ty(index);
        let signed = ty.scalar.is_signed();
        let may_wrap = !self.step_stays_below(ty, end, step);
        let (first, last, distance) = (self.single(start)?, self.single(end)?, self.single(step)?);
        let int_type = self.part_type(ty);
        let bool_type = self.b.type_bool();
        let variable = self.b.function_variable(int_type);
        let name = self.kernel.values[index].name.clone();
        let name = name.as_deref().unwrap_or("index");
        self.b.name(variable, &format!("{name}_variable"));
        self.b.effect(
            Spv::Store,
            vec![Operand::IdRef(variable), Operand::IdRef(first)],
        );

        let [header, begin, next, merge] = self.loop_labels();
        self.b.branch(header);
        self.begin(header);
        self.count_turn();
        let current = self.b.op(Spv::Load, int_type, &[variable]);
        let less = if signed {
            Spv::SLessThan
        } else {
            Spv::ULessThan
        };
        let goes_on = self.b.op(less, bool_type, &[current, last]);
        let control = match unroll {
            Unroll::Auto => LoopControl::NONE,
            Unroll::Full => LoopControl::UNROLL,
            Unroll::Never => LoopControl::DONT_UNROLL,
        };
        self.b.loop_merge(merge, next, control);
        self.b.branch_if(goes_on, begin, merge);
        self.begin(begin);
        self.define(index, Parts::one(current));
        self.loops.push((merge, next));
        self.block(body)?;
        self.loops.pop();
        self.b.branch(next);
        self.begin(next);
        let mut stepped = self.b.op(Spv::IAdd, int_type, &[current, distance]);
        if may_wrap {
            let wrapped = self.b.op(less, bool_type, &[stepped, current]);
            stepped = self.b.op(Spv::Select, int_type, &[wrapped, last, stepped]);
        }
        self.b.effect(
            Spv::Store,
            vec![Operand::IdRef(variable), Operand::IdRef(stepped)],
        );
        self.b.branch(header);
        self.begin(merge);
        Ok(())
    }

    /// Starts counting loop turns, where the driver has a limit.
    pub(super) fn start_counting(&mut self) {
        if !super::counts_turns(self.kernel, &self.options) {
            return;
        }
        let u32_type = self.b.type_int(32);
        let turns = self.b.function_variable(u32_type);
        self.b.name(turns, "loop_turns");
        let zero = self.b.constant_u32(0);
        self.b.effect(
            Spv::Store,
            vec![Operand::IdRef(turns), Operand::IdRef(zero)],
        );
        self.turns = Some(turns);
    }

    /// Counts a turn of the subgroup, in the loop's header: the driver runs the lanes together,
    /// so one of them counts.
    pub(super) fn count_turn(&mut self) {
        let Some(turns) = self.turns else {
            return;
        };
        let (u32_type, bool_type) = (self.b.type_int(32), self.b.type_bool());
        self.b.capability(Capability::GroupNonUniform);
        let scope = self.b.constant_u32(Scope::Subgroup as u32);
        let counts = vec![Operand::IdScope(scope)];
        let counts = self.b.op_with(Spv::GroupNonUniformElect, bool_type, counts);
        let (zero, one) = (self.b.constant_u32(0), self.b.constant_u32(1));
        let turn = self.b.op(Spv::Select, u32_type, &[counts, one, zero]);
        let so_far = self.b.op(Spv::Load, u32_type, &[turns]);
        let more = self.b.op(Spv::IAdd, u32_type, &[so_far, turn]);
        self.b.effect(
            Spv::Store,
            vec![Operand::IdRef(turns), Operand::IdRef(more)],
        );
    }

    /// Ends the invocation, and reports that it reached the driver's limit of loop turns.
    pub(super) fn end_invocation(&mut self) -> Result<(), LowerError> {
        if let (Some(turns), Some(limit), false) =
            (self.turns, self.options.loop_turns, self.b.is_terminated())
        {
            let (u32_type, bool_type) = (self.b.type_int(32), self.b.type_bool());
            self.b.capability(Capability::GroupNonUniformArithmetic);
            let own = self.b.op(Spv::Load, u32_type, &[turns]);
            let scope = self.b.constant_u32(Scope::Subgroup as u32);
            let all = vec![
                Operand::IdScope(scope),
                Operand::GroupOperation(GroupOperation::Reduce),
                Operand::IdRef(own),
            ];
            let all = self.b.op_with(Spv::GroupNonUniformIAdd, u32_type, all);
            let limit = self.b.constant_u32(limit);
            let reached = self.b.op(Spv::UGreaterThanEqual, bool_type, &[all, limit]);
            let (report, merge) = (self.b.id(), self.b.id());
            self.b.selection_merge(merge);
            self.b.branch_if(reached, report, merge);
            self.begin(report);
            let word = self.report_word(true)?;
            let one = self.b.constant_u32(1);
            self.compare_exchange_word(word, one);
            self.b.branch(merge);
            self.begin(merge);
        }
        self.b.ret();
        Ok(())
    }

    fn loop_labels(&mut self) -> [u32; 4] {
        let n = self.n_loops;
        self.n_loops += 1;
        ["header", "body", "next", "end"].map(|part| {
            let id = self.b.id();
            self.b.name(id, &format!("loop{n}_{part}"));
            id
        })
    }

    /// Whether `index + step` cannot pass the type's end for any `index < end`.
    fn step_stays_below(&self, ty: Type, end: Value, step: Value) -> bool {
        let bits = ty.scalar.bits() - u32::from(ty.scalar.is_signed());
        let max = if bits == 64 {
            u64::MAX
        } else {
            (1 << bits) - 1
        };
        if self.upper_bound(step, 0) == Some(1) {
            return true;
        }
        match (self.upper_bound(end, 0), self.upper_bound(step, 0)) {
            (Some(end), Some(step)) => (end.saturating_sub(1))
                .checked_add(step)
                .is_some_and(|last| last <= max),
            _ => false,
        }
    }

    /// A bound that a value cannot pass, read as non-negative.
    fn upper_bound(&self, value: Value, depth: u32) -> Option<u64> {
        if depth > 6 {
            return None;
        }
        let data = &self.kernel.values[value];
        let bound = |v| self.upper_bound(v, depth + 1);
        match &data.op {
            Op::Const(c) => {
                let negative = c.scalar.is_signed() && c.bits >> (c.scalar.bits() - 1) & 1 == 1;
                (!negative).then_some(c.bits)
            }
            // The launch contract keeps every dimension below 2^31.
            Op::Dim(_) => Some((1 << 31) - 1),
            Op::Builtin(op, _) => {
                use iron_ir::op::BuiltinOp as B;
                match op {
                    B::GroupSize | B::LocalId | B::LocalIndex | B::GroupThreads => {
                        Some(u64::from(self.kernel.contract.threads()))
                    }
                    B::SubgroupId | B::SubgroupCount | B::SubgroupLane | B::SubgroupSize => {
                        Some(1024)
                    }
                    B::GroupId | B::GroupCount | B::GlobalId => None,
                }
            }
            Op::Convert(from) if self.kernel.ty(*from).scalar.is_int() => {
                let bound = bound(*from)?;
                let bits = data.ty.scalar.bits() - u32::from(data.ty.scalar.is_signed());
                (bits >= 64 || bound >> bits == 0).then_some(bound)
            }
            Op::Binary(BinaryOp::Div, a, b) if !data.ty.scalar.is_signed() => {
                let divisor = self.kernel.constant(*b).map_or(1, |c| c.bits.max(1));
                (self.kernel.constant(*b)?.bits != 0).then_some(bound(*a)? / divisor)
            }
            Op::Binary(BinaryOp::Shr, a, b) if !data.ty.scalar.is_signed() => {
                let count = self.kernel.constant(*b)?.bits;
                (count < u64::from(data.ty.scalar.bits())).then_some(bound(*a)? >> count)
            }
            Op::Binary(BinaryOp::Min, a, b) if !data.ty.scalar.is_signed() => {
                match (bound(*a), bound(*b)) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                }
            }
            Op::Binary(BinaryOp::And, a, b) if !data.ty.scalar.is_signed() => {
                match (bound(*a), bound(*b)) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                }
            }
            _ => None,
        }
    }

    /// Reads a variable.
    pub(super) fn get(&mut self, local: iron_ir::entity::Local, ty: Type) -> Parts {
        let part = self.part_type(ty);
        let variables = self.local(local);
        let ids: Vec<u32> = variables
            .ids()
            .iter()
            .map(|&v| self.b.op(Spv::Load, part, &[v]))
            .collect();
        Parts::from_slice(&ids)
    }

    /// `result = index` below the bound; else the error word takes the line, and 0.
    fn check_index(&mut self, result: Value, index: Value, bound: Value) -> Result<(), LowerError> {
        let (index, bound) = (self.single(index)?, self.single(bound)?);
        let (u32_type, bool_type) = (self.b.type_int(32), self.b.type_bool());
        let inside = self.b.op(Spv::ULessThan, bool_type, &[index, bound]);
        let outside = self.b.op(Spv::LogicalNot, bool_type, &[inside]);
        let (report, merge) = (self.b.id(), self.b.id());
        self.b.selection_merge(merge);
        self.b.branch_if(outside, report, merge);
        self.begin(report);
        let word = self.report_word(false)?;
        let code = self.b.constant_u32(crate::error_code(self.span));
        self.compare_exchange_word(word, code);
        self.b.branch(merge);
        self.begin(merge);
        let zero = self.b.constant_u32(0);
        let checked = self.b.op(Spv::Select, u32_type, &[inside, index, zero]);
        self.define(result, Parts::one(checked));
        Ok(())
    }

    /// The pointer to the error word, or to the loop word.
    fn report_word(&mut self, of_loops: bool) -> Result<u32, LowerError> {
        let u32_type = self.b.type_int(32);
        let uses = &self.interface;
        let buffer = if of_loops {
            uses.loop_buffer
        } else {
            uses.error_buffer
        };
        if let Some(buffer) = buffer {
            let pointer = self.b.type_pointer(StorageClass::StorageBuffer, u32_type);
            let zero = self.b.constant_u32(0);
            return Ok(self.b.op(Spv::AccessChain, pointer, &[buffer, zero, zero]));
        }
        let address = if of_loops {
            uses.loop_word
        } else {
            uses.fields.get(&FieldKind::ErrorWord).copied()
        };
        match address {
            Some(address) => {
                let class = StorageClass::PhysicalStorageBuffer;
                let pointer = self.b.type_pointer(class, u32_type);
                Ok(self.b.op(Spv::ConvertUToPtr, pointer, &[address]))
            }
            None => self.not_legalised("a report without its word"),
        }
    }
}

/// An upper bound of the turns that one invocation's loops take altogether; the largest number
/// where there is none.
pub(super) fn most_turns(kernel: &Kernel, block: &Block) -> u64 {
    block.0.iter().fold(0u64, |all, (stmt, _)| {
        let turns = match stmt {
            Stmt::If {
                then_block,
                else_block,
                ..
            } => most_turns(kernel, then_block).max(most_turns(kernel, else_block)),
            Stmt::For {
                start,
                end,
                step,
                body,
                ..
            } => {
                let constant = |v: Value| kernel.constant(v).map(|c| c.bits);
                let own = match (constant(*start), constant(*end), constant(*step)) {
                    (Some(start), Some(end), Some(step)) => {
                        end.saturating_sub(start).div_ceil(step.max(1))
                    }
                    _ => u64::MAX,
                };
                own.saturating_mul(most_turns(kernel, body).saturating_add(1))
            }
            // A single trip, as labelled breaks and early returns make them, has no back edge.
            Stmt::Loop { body } if matches!(body.0.last(), Some((Stmt::Break, _))) => {
                if continues(body) {
                    u64::MAX
                } else {
                    most_turns(kernel, body)
                }
            }
            Stmt::Loop { .. } => u64::MAX,
            // May be a compare-exchange loop.
            Stmt::Atomic {
                op: AtomicOp::Add,
                result,
                ..
            } if kernel.ty(*result).scalar.is_float() => 1024,
            _ => 0,
        };
        all.saturating_add(turns)
    })
}

/// Whether some `continue` of this block goes on with the loop that it is the body of.
fn continues(block: &Block) -> bool {
    block.0.iter().any(|(stmt, _)| match stmt {
        Stmt::Continue => true,
        Stmt::If {
            then_block,
            else_block,
            ..
        } => continues(then_block) || continues(else_block),
        _ => false,
    })
}

/// Whether some `break` of this block leaves the loop that it is the body of.
fn breaks(block: &Block) -> bool {
    block.0.iter().any(|(stmt, _)| match stmt {
        Stmt::Break => true,
        Stmt::If {
            then_block,
            else_block,
            ..
        } => breaks(then_block) || breaks(else_block),
        _ => false,
    })
}
