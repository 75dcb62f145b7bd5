//! Code of a run: the threads of a workgroup, four side by side, from one synchronisation point
//! to the next.
//!
//! While all four take the same way, a statement is emitted once for all. Where they part, each
//! goes its way alone, one after another, and they meet again behind the statement.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{self, InstBuilder};
use iron_ir::entity::{Handle, Value};
use iron_ir::kernel::{Block, Span};
use iron_ir::op::BinaryOp;
use iron_ir::{Scalar, Stmt, Type};

use super::emit::{CpuError, Emitter, LocalVars, LoopTargets, Mode, Rep};
use super::ops::{Calc, is_narrow};
use super::plan::{Line, Run, guard};
use super::uniformity::leaves;

impl<'k> Emitter<'k, '_> {
    /// Emits a run for every thread of the workgroup.
    pub(super) fn run(&mut self, run: &Run<'k>) -> Result<(), CpuError> {
        let threads = self.kernel.contract.threads();
        let side_by_side = self.plan.width == 4 && !run.one_at_a_time;
        let (mode, step) = if side_by_side {
            (Mode::Four, 4)
        } else {
            (Mode::One, 1)
        };
        let outer = (self.thread, self.return_to);
        self.mode = mode;
        if threads == step {
            self.thread = self.i32(0);
            let done = self.b.create_block();
            self.return_to = done;
            if self.run_body(run)? {
                self.b.ins().jump(done, &[]);
            }
            self.b.switch_to_block(done);
        } else {
            let head = self.b.create_block();
            let next = self.b.create_block();
            let done = self.b.create_block();
            self.b.append_block_param(head, I32);
            let zero = self.i32(0);
            self.b.ins().jump(head, &[zero.into()]);
            self.b.switch_to_block(head);
            self.thread = self.b.block_params(head)[0];
            self.return_to = next;
            if self.run_body(run)? {
                self.b.ins().jump(next, &[]);
            }
            self.b.switch_to_block(next);
            let thread = self.add_const(self.thread, i64::from(step));
            let end = self.i32(threads);
            let more = self.b.ins().icmp(IntCC::UnsignedLessThan, thread, end);
            self.b.ins().brif(more, head, &[thread.into()], done, &[]);
            self.b.switch_to_block(done);
        }
        self.mode = Mode::Group;
        (self.thread, self.return_to) = outer;
        Ok(())
    }

    fn run_body(&mut self, run: &Run<'k>) -> Result<bool, CpuError> {
        let mark = self.open();
        // Guards leave early, so that what lives on is stored at one exit.
        let exit = self.b.create_block();
        self.return_to = exit;
        for &value in &run.reloads {
            let area = self.layout.values[&value];
            let rep = self.reload(area, self.ty(value), self.plan.varying[value.index()])?;
            self.bind(value, rep);
        }
        self.locals.clear();
        for &local in &run.locals {
            let ty = self.kernel.locals[local].ty;
            let types = Self::slot_types(ty);
            let varying = self.mode == Mode::Four && self.plan.local_varying[local.index()];
            let vars = if !varying {
                LocalVars::Uniform(self.variables(&types))
            } else if Self::packs(ty) {
                LocalVars::Packed(self.variables(&[Self::packed_type(ty.scalar)])[0])
            } else {
                LocalVars::Lanes([0; 4].map(|_| self.variables(&types)))
            };
            self.locals.insert(local, vars);
            if let Some(&area) = self.layout.locals.get(&local) {
                let rep = self.reload(area, ty, varying)?;
                self.set_local(local, &rep);
            }
        }
        let lines: Vec<Line<'k>> = run
            .lines
            .iter()
            .copied()
            .filter(|line| !is_hoisted(run, line))
            .collect();
        if self.lines(&lines)? {
            // Operands of the exchange that follows: no thread has left by a guard.
            for (at, &value) in run.operands.iter().enumerate() {
                let rep = self.get(value)?;
                self.keep_operand(at, self.ty(value), &rep)?;
            }
            self.b.ins().jump(exit, &[]);
        }
        self.b.switch_to_block(exit);
        for &local in &run.locals {
            if let Some(&area) = self.layout.locals.get(&local) {
                let rep = match &self.locals[&local] {
                    LocalVars::Uniform(vars) => {
                        let vars = vars.clone();
                        Rep::Uniform(vars.iter().map(|v| self.b.use_var(*v)).collect())
                    }
                    LocalVars::Packed(var) => {
                        let var = *var;
                        Rep::Packed(self.b.use_var(var))
                    }
                    LocalVars::Lanes(lanes) => {
                        let lanes = lanes.clone();
                        Rep::Lanes(Box::new(
                            lanes.map(|vars| vars.iter().map(|v| self.b.use_var(*v)).collect()),
                        ))
                    }
                };
                self.keep(area, self.kernel.locals[local].ty, &rep);
            }
        }
        self.close(mark);
        Ok(true)
    }

    /// Leaves an operand of an exchange in scratch memory.
    fn keep_operand(&mut self, at: usize, ty: Type, rep: &Rep) -> Result<(), CpuError> {
        let area = if at == 0 {
            self.layout.exchange
        } else {
            self.layout.arguments
        };
        self.keep(area, ty, rep);
        Ok(())
    }

    /// Emits statements; whether control goes on behind them.
    pub(super) fn lines(&mut self, lines: &[Line<'k>]) -> Result<bool, CpuError> {
        for (at, line) in lines.iter().enumerate() {
            let (stmt, span) = *line;
            let locate = |mut error: CpuError| {
                if error.span.line == 0 {
                    error.span = *span;
                }
                error
            };
            if let Stmt::If { condition, .. } = stmt
                && self.mode == Mode::Four
                && let Some(before) = guard(stmt)
                && self.plan.varying[condition.index()]
            {
                // Threads that return skip the rest; those that stay run it as the other branch.
                return self
                    .branch(*condition, &before, &lines[at + 1..], *span)
                    .map_err(locate);
            }
            if !self.line(stmt, *span).map_err(locate)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn block(&mut self, block: &'k Block) -> Result<bool, CpuError> {
        let lines: Vec<Line<'k>> = block.0.iter().collect();
        self.lines(&lines)
    }

    fn line(&mut self, stmt: &'k Stmt, span: Span) -> Result<bool, CpuError> {
        match stmt {
            Stmt::Let(value) => {
                let rep = self.compute(*value)?;
                if self.plan.spilled.contains(value) {
                    self.keep(self.layout.values[value], self.ty(*value), &rep);
                }
                self.bind(*value, rep);
            }
            Stmt::Set(local, value) => {
                let rep = self.get(*value)?;
                self.set_local(*local, &rep);
            }
            Stmt::Store {
                place,
                indices,
                value,
            } => self.store(*place, indices, *value)?,
            Stmt::Atomic { result, .. } => {
                self.atomic(stmt)?;
                self.keep_result(*result)?;
            }
            Stmt::CheckIndex {
                result,
                index,
                bound,
            } => {
                self.check_index(*result, *index, *bound, span)?;
                self.keep_result(*result)?;
            }
            Stmt::If {
                condition,
                then_block,
                else_block,
            } => {
                let then_lines: Vec<Line<'k>> = then_block.0.iter().collect();
                let else_lines: Vec<Line<'k>> = else_block.0.iter().collect();
                return self.branch(*condition, &then_lines, &else_lines, span);
            }
            Stmt::For {
                index,
                start,
                end,
                step,
                body,
                ..
            } => {
                self.counted(*index, [*start, *end, *step], body)?;
            }
            Stmt::Loop { body } => {
                if self.mode == Mode::Four && self.parts(body) {
                    self.one_by_one(|this, _| this.endless(body))?;
                } else {
                    self.endless(body)?;
                }
            }
            Stmt::Break | Stmt::Continue => {
                let Some(targets) = self.loops.last().copied() else {
                    return Err(CpuError::no("loop around a `break`".into()));
                };
                let to = if matches!(stmt, Stmt::Break) {
                    targets.exit
                } else {
                    targets.next
                };
                self.b.ins().jump(to, &[]);
                return Ok(false);
            }
            Stmt::Return => {
                self.b.ins().jump(self.return_to, &[]);
                return Ok(false);
            }
            Stmt::Barrier(..) | Stmt::Subgroup { .. } | Stmt::Group { .. } => {
                return Err(CpuError::no("synchronisation within a run".into()));
            }
            Stmt::Tile(_) => return Err(CpuError::no("tile operation".into())),
            Stmt::Mma { .. } => return Err(CpuError::no("matrix product".into())),
            Stmt::Machine(_) | Stmt::Roles { .. } => {
                return Err(CpuError::no("operation of another machine".into()));
            }
        }
        Ok(true)
    }

    fn keep_result(&mut self, value: Value) -> Result<(), CpuError> {
        if self.plan.spilled.contains(&value) {
            let rep = self.get(value)?;
            self.keep(self.layout.values[&value], self.ty(value), &rep);
        }
        Ok(())
    }

    fn check_index(
        &mut self,
        result: Value,
        index: Value,
        bound: Value,
        span: Span,
    ) -> Result<(), CpuError> {
        let index_rep = self.get(index)?;
        let bound_rep = self.get(bound)?;
        let args = [(index_rep.clone(), Type::U32), (bound_rep, Type::U32)];
        let inside = self.apply(
            Calc::Compare(iron_ir::op::CompareOp::Lt, Scalar::U32),
            &args,
            Type::BOOL,
        )?;
        let zero = Rep::Uniform(vec![self.i32(0)]);
        let args = [
            (inside.clone(), Type::BOOL),
            (index_rep, Type::U32),
            (zero, Type::U32),
        ];
        let checked = self.apply(Calc::Select, &args, Type::U32)?;
        if let Some(word) = self.error_word {
            let all = match &inside {
                Rep::Uniform(slots) => slots[0],
                other => {
                    let mask = self.pack(other, Type::BOOL);
                    self.b.ins().vall_true(mask)
                }
            };
            let bad = self.b.create_block();
            let good = self.b.create_block();
            self.b.ins().brif(all, good, &[], bad, &[]);
            self.b.switch_to_block(bad);
            self.b.set_cold_block(bad);
            let none = self.i32(0);
            let code = self.i32(crate::error_code(span));
            // The first error stays.
            self.b
                .ins()
                .atomic_cas(Self::flags().with_aligned(), word, none, code);
            self.b.ins().jump(good, &[]);
            self.b.switch_to_block(good);
        }
        self.bind(result, checked);
        Ok(())
    }

    /// Emits a two-way branch; whether control goes on behind it.
    fn branch(
        &mut self,
        condition: Value,
        then_lines: &[Line<'k>],
        else_lines: &[Line<'k>],
        _span: Span,
    ) -> Result<bool, CpuError> {
        let rep = self.get(condition)?;
        let merge = self.b.create_block();
        let then_block = self.b.create_block();
        let else_block = self.b.create_block();
        let mut goes_on = false;
        if let Rep::Uniform(slots) = &rep {
            self.b
                .ins()
                .brif(slots[0], then_block, &[], else_block, &[]);
        } else {
            let mask = self.pack(&rep, Type::BOOL);
            let all = self.b.ins().vall_true(mask);
            let some = self.b.create_block();
            let mixed = self.b.create_block();
            self.b.ins().brif(all, then_block, &[], some, &[]);
            self.b.switch_to_block(some);
            let any = self.b.ins().vany_true(mask);
            self.b.ins().brif(any, mixed, &[], else_block, &[]);
            self.b.switch_to_block(mixed);
            self.b.set_cold_block(mixed);
            self.one_by_one(|this, lane| {
                let own = this.lane(Scalar::Bool, mask, lane);
                let ways = [this.b.create_block(), this.b.create_block()];
                let next = this.b.create_block();
                // Behind a guard stands the rest of the run: a thread that returns there ends.
                let outer = std::mem::replace(&mut this.return_to, next);
                this.b.ins().brif(own, ways[0], &[], ways[1], &[]);
                for (way, lines) in ways.into_iter().zip([then_lines, else_lines]) {
                    this.b.switch_to_block(way);
                    let mark = this.open();
                    if this.lines(lines)? {
                        this.b.ins().jump(next, &[]);
                    }
                    this.close(mark);
                }
                this.return_to = outer;
                this.b.switch_to_block(next);
                Ok(())
            })?;
            self.b.ins().jump(merge, &[]);
            goes_on = true;
        }
        for (block, lines) in [(then_block, then_lines), (else_block, else_lines)] {
            self.b.switch_to_block(block);
            let mark = self.open();
            if self.lines(lines)? {
                self.b.ins().jump(merge, &[]);
                goes_on = true;
            }
            self.close(mark);
        }
        self.b.switch_to_block(merge);
        if !goes_on {
            // Never reached; the block still needs an end, which what follows gives it.
            return Ok(self.unreachable());
        }
        Ok(true)
    }

    /// Ends a block that nothing reaches.
    fn unreachable(&mut self) -> bool {
        self.b.ins().jump(self.return_to, &[]);
        false
    }

    /// Emits code for each of the four threads, one after another.
    fn one_by_one(
        &mut self,
        mut emit: impl FnMut(&mut Self, u8) -> Result<(), CpuError>,
    ) -> Result<(), CpuError> {
        for lane in 0..4 {
            self.mode = Mode::Lane(lane);
            let mark = self.open();
            emit(self, lane)?;
            self.close(mark);
        }
        self.mode = Mode::Four;
        Ok(())
    }

    /// Whether threads may leave a turn of a loop at different places.
    fn parts(&self, body: &Block) -> bool {
        leaves(body, &|v| self.plan.varying[v.index()])
    }

    fn endless(&mut self, body: &'k Block) -> Result<(), CpuError> {
        let next = self.b.create_block();
        let exit = self.b.create_block();
        self.b.ins().jump(next, &[]);
        self.b.switch_to_block(next);
        self.loops.push(LoopTargets { next, exit });
        let mark = self.open();
        if self.block(body)? {
            self.b.ins().jump(next, &[]);
        }
        self.close(mark);
        self.loops.pop();
        self.b.switch_to_block(exit);
        Ok(())
    }

    /// `for index in (start..end).step_by(step)`.
    fn counted(
        &mut self,
        index: Value,
        bounds: [Value; 3],
        body: &'k Block,
    ) -> Result<(), CpuError> {
        let scalar = self.ty(index).scalar;
        let ty = self.ty(index);
        let [start, end, step] = bounds;
        let (start, end, step) = (self.get(start)?, self.get(end)?, self.get(step)?);
        if self.mode != Mode::Four {
            let bounds = [&start, &end, &step].map(|rep| self.slots_of(rep, ty, 0)[0]);
            return self.count_alone(index, scalar, bounds, body);
        }
        let Rep::Uniform(step_slots) = &step else {
            return self.one_by_one(|this, lane| {
                let bounds = [&start, &end, &step].map(|rep| this.slots_of(rep, ty, lane)[0]);
                this.count_alone(index, scalar, bounds, body)
            });
        };
        if self.parts(body) {
            return self.one_by_one(|this, lane| {
                let bounds = [&start, &end, &step].map(|rep| this.slots_of(rep, ty, lane)[0]);
                this.count_alone(index, scalar, bounds, body)
            });
        }
        let step = step_slots[0];
        match (&start, &end) {
            (Rep::Uniform(s), Rep::Uniform(e)) => {
                let bounds = [s[0], e[0], step];
                self.count_alone(index, scalar, bounds, body)
            }
            (
                Rep::Affine {
                    base,
                    stride,
                    align,
                },
                Rep::Uniform(e),
            ) if *stride >= 0 => {
                let step_align = self
                    .constant(step)
                    .map_or(1, |n| 1u32 << n.trailing_zeros().min(16));
                let form = (*stride, (*align).min(step_align));
                let last = 3 * *stride;
                self.count_together(index, scalar, *base, form, last, e[0], step, body)
            }
            (Rep::Uniform(s), _) => {
                // All start at one place and end at their own: together up to the least end.
                let ends = [0, 1, 2, 3].map(|lane| self.slots_of(&end, ty, lane)[0]);
                let mut least = ends[0];
                for other in &ends[1..] {
                    let args = [least, *other];
                    least = self.calc(Calc::Binary(BinaryOp::Min, scalar), false, &args)?;
                }
                self.count_apart(index, scalar, s[0], (0, 1), 0, least, step, ends, body)
            }
            _ => self.one_by_one(|this, lane| {
                let bounds = [&start, &end].map(|rep| this.slots_of(rep, ty, lane)[0]);
                this.count_alone(index, scalar, [bounds[0], bounds[1], step], body)
            }),
        }
    }

    fn less(&mut self, scalar: Scalar, a: ir::Value, b: ir::Value) -> ir::Value {
        let code = if scalar.is_signed() {
            IntCC::SignedLessThan
        } else {
            IntCC::UnsignedLessThan
        };
        self.b.ins().icmp(code, a, b)
    }

    /// A loop whose bounds all threads at work share.
    fn count_alone(
        &mut self,
        index: Value,
        scalar: Scalar,
        bounds: [ir::Value; 3],
        body: &'k Block,
    ) -> Result<(), CpuError> {
        self.count(index, scalar, bounds, |this| this.block(body))
    }

    /// A loop from a start to an end by a step. The body tells whether its end is reached.
    pub(super) fn count(
        &mut self,
        index: Value,
        scalar: Scalar,
        [start, end, step]: [ir::Value; 3],
        body: impl FnOnce(&mut Self) -> Result<bool, CpuError>,
    ) -> Result<(), CpuError> {
        let head = self.b.create_block();
        let next = self.b.create_block();
        let exit = self.b.create_block();
        let machine = self.b.func.dfg.value_type(start);
        self.b.append_block_param(head, machine);
        // Steps of one cannot jump over the end, so that the loop is left at its head: what a
        // turn leaves behind then has one user, the next turn, and the code generator makes
        // memory operands of the loads that went into it. It does so only for what is used once.
        let leaves_at_head = self.constant(step) == Some(1);
        if leaves_at_head {
            self.b.ins().jump(head, &[start.into()]);
        } else {
            let enters = self.less(scalar, start, end);
            self.b.ins().brif(enters, head, &[start.into()], exit, &[]);
        }
        self.b.switch_to_block(head);
        let i = self.b.block_params(head)[0];
        if leaves_at_head {
            let turn = self.b.create_block();
            // The turn is the second way out: Cranelift takes a loop as left, and moves nothing
            // out of it any more, once it has been at the first.
            let code = if scalar.is_signed() {
                IntCC::SignedGreaterThanOrEqual
            } else {
                IntCC::UnsignedGreaterThanOrEqual
            };
            let leaves = self.b.ins().icmp(code, i, end);
            self.b.ins().brif(leaves, exit, &[], turn, &[]);
            self.b.switch_to_block(turn);
        }
        self.loops.push(LoopTargets { next, exit });
        let mark = self.open();
        self.bind(index, Rep::Uniform(vec![i]));
        if body(self)? {
            self.b.ins().jump(next, &[]);
        }
        self.close(mark);
        self.loops.pop();
        self.b.switch_to_block(next);
        if leaves_at_head {
            let i = self.b.ins().iadd(i, step);
            self.b.ins().jump(head, &[i.into()]);
        } else {
            // What is left, unsigned, never wraps; the index itself might.
            let left = self.b.ins().isub(end, i);
            let more = self.b.ins().icmp(IntCC::UnsignedGreaterThan, left, step);
            let i = self.b.ins().iadd(i, step);
            self.b.ins().brif(more, head, &[i.into()], exit, &[]);
        }
        self.b.switch_to_block(exit);
        Ok(())
    }

    /// A loop whose start grows from thread to thread and whose end they share.
    fn count_together(
        &mut self,
        index: Value,
        scalar: Scalar,
        base: ir::Value,
        form: (i64, u32),
        last: i64,
        end: ir::Value,
        step: ir::Value,
        body: &'k Block,
    ) -> Result<(), CpuError> {
        self.count_apart(index, scalar, base, form, last, end, step, [end; 4], body)
    }

    /// Turns that all four threads take, then each thread's last turns alone. `last` is the
    /// fourth thread's distance from the first; `end` is where turns of all four end.
    fn count_apart(
        &mut self,
        index: Value,
        scalar: Scalar,
        base: ir::Value,
        (stride, align): (i64, u32),
        last: i64,
        end: ir::Value,
        step: ir::Value,
        ends: [ir::Value; 4],
        body: &'k Block,
    ) -> Result<(), CpuError> {
        let machine = self.b.func.dfg.value_type(base);
        let head = self.b.create_block();
        let turn = self.b.create_block();
        let next = self.b.create_block();
        let tail = self.b.create_block();
        let exit = self.b.create_block();
        self.b.append_block_param(head, machine);
        self.b.append_block_param(tail, machine);
        self.b.ins().jump(head, &[base.into()]);
        self.b.switch_to_block(head);
        let i = self.b.block_params(head)[0];
        let fourth = self.last_index(scalar, i, last);
        let wide_end = self.widen_index(scalar, end);
        let together = self.less(
            if scalar.is_signed() {
                Scalar::I64
            } else {
                Scalar::U64
            },
            fourth,
            wide_end,
        );
        self.b.ins().brif(together, turn, &[], tail, &[i.into()]);
        self.b.switch_to_block(turn);
        self.loops.push(LoopTargets { next, exit });
        let mark = self.open();
        let rep = if stride == 0 {
            Rep::Uniform(vec![i])
        } else {
            Rep::Affine {
                base: i,
                stride,
                align,
            }
        };
        self.bind(index, rep);
        if self.block(body)? {
            self.b.ins().jump(next, &[]);
        }
        self.close(mark);
        self.loops.pop();
        self.b.switch_to_block(next);
        // Where the first thread's next turn would pass the end, all are done.
        let left = self.b.ins().isub(end, i);
        let more = self.b.ins().icmp(IntCC::UnsignedGreaterThan, left, step);
        let i_next = self.b.ins().iadd(i, step);
        if ends.iter().all(|e| *e == end) {
            self.b.ins().brif(more, head, &[i_next.into()], exit, &[]);
        } else {
            // Some thread may end later than the others: its turns go on in the tail.
            self.b
                .ins()
                .brif(more, head, &[i_next.into()], tail, &[i_next.into()]);
        }
        self.b.switch_to_block(tail);
        let i = self.b.block_params(tail)[0];
        self.one_by_one(|this, lane| {
            let own = this.add_const(i, i64::from(lane) * stride);
            this.count_alone(index, scalar, [own, ends[usize::from(lane)], step], body)
        })?;
        self.b.ins().jump(exit, &[]);
        self.b.switch_to_block(exit);
        Ok(())
    }

    fn widen_index(&mut self, scalar: Scalar, x: ir::Value) -> ir::Value {
        if !is_narrow(scalar) {
            x
        } else if scalar.is_signed() {
            self.b.ins().sextend(I64, x)
        } else {
            self.b.ins().uextend(I64, x)
        }
    }

    fn last_index(&mut self, scalar: Scalar, x: ir::Value, last: i64) -> ir::Value {
        let x = self.widen_index(scalar, x);
        self.add_const(x, last)
    }
}

fn is_hoisted(run: &Run<'_>, line: &Line<'_>) -> bool {
    matches!(&line.0, Stmt::Let(value) if run.hoisted.contains(value))
}
