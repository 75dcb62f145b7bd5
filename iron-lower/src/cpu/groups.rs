//! Code of the workgroup as a whole: uniform values, uniform branches and loops, and exchanges
//! between threads through scratch memory.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{self, InstBuilder};
use iron_ir::op::{BinaryOp, GroupOp, ReduceOp};
use iron_ir::{Handle, Scalar, Stmt, Type};

use super::emit::{CpuError, Emitter, LoopTargets, Mode, Rep};
use super::ops::{Calc, is_narrow, machine_type};
use super::plan::{Line, Node};
use super::support::{Kind, absent, encode};

impl<'k> Emitter<'k, '_> {
    /// Emits steps; whether control goes on behind them.
    pub(super) fn nodes(&mut self, nodes: &[Node<'k>]) -> Result<bool, CpuError> {
        for node in nodes {
            match node {
                Node::Hoisted(values) => {
                    for &value in values {
                        let rep = self.compute(value)?;
                        self.bind(value, rep);
                    }
                }
                Node::Run(run) => self.run(run)?,
                Node::Exchange(line) => self.exchange(line)?,
                Node::If {
                    condition,
                    then_nodes,
                    else_nodes,
                } => {
                    let condition = self.truth(*condition)?;
                    let blocks = [self.b.create_block(), self.b.create_block()];
                    let merge = self.b.create_block();
                    self.b.ins().brif(condition, blocks[0], &[], blocks[1], &[]);
                    let mut goes_on = false;
                    for (block, nodes) in blocks.into_iter().zip([then_nodes, else_nodes]) {
                        self.b.switch_to_block(block);
                        let mark = self.open();
                        if self.nodes(nodes)? {
                            self.b.ins().jump(merge, &[]);
                            goes_on = true;
                        }
                        self.close(mark);
                    }
                    self.b.switch_to_block(merge);
                    if !goes_on {
                        self.b.ins().jump(self.return_to, &[]);
                        return Ok(false);
                    }
                }
                Node::For {
                    index,
                    start,
                    end,
                    step,
                    body,
                } => {
                    let scalar = self.ty(*index).scalar;
                    let bounds = [
                        self.scalar(*start)?,
                        self.scalar(*end)?,
                        self.scalar(*step)?,
                    ];
                    self.count(*index, scalar, bounds, |this| this.nodes(body))?;
                }
                Node::Loop(body) => {
                    let next = self.b.create_block();
                    let exit = self.b.create_block();
                    self.b.ins().jump(next, &[]);
                    self.b.switch_to_block(next);
                    self.loops.push(LoopTargets { next, exit });
                    let mark = self.open();
                    if self.nodes(body)? {
                        self.b.ins().jump(next, &[]);
                    }
                    self.close(mark);
                    self.loops.pop();
                    self.b.switch_to_block(exit);
                }
                Node::Break | Node::Continue => {
                    let Some(targets) = self.loops.last().copied() else {
                        return Err(CpuError::no("loop around a `break`".into()));
                    };
                    let to = if matches!(node, Node::Break) {
                        targets.exit
                    } else {
                        targets.next
                    };
                    self.b.ins().jump(to, &[]);
                    return Ok(false);
                }
                Node::Return => {
                    self.b.ins().jump(self.return_to, &[]);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn exchange(&mut self, line: &Line<'k>) -> Result<(), CpuError> {
        let (stmt, span) = *line;
        let (result, value, argument, kind) = match stmt {
            Stmt::Group {
                result,
                op,
                reduce,
                value,
                argument,
            } => (
                *result,
                *value,
                *argument,
                Kind::Group(*op, reduce.unwrap_or(ReduceOp::Sum)),
            ),
            Stmt::Subgroup {
                result,
                op,
                reduce,
                value,
                argument,
            } => (
                *result,
                *value,
                *argument,
                Kind::Subgroup(*op, reduce.unwrap_or(ReduceOp::Sum)),
            ),
            _ => return Ok(()),
        };
        let ty = self.ty(value);
        if let Kind::Group(GroupOp::Reduce, reduce) = kind
            && Self::packs(ty)
            && !matches!(ty.scalar, Scalar::F16 | Scalar::BF16)
        {
            let x = self.reduce_words(reduce, ty.scalar).map_err(|mut e| {
                e.span = *span;
                e
            })?;
            self.bind(result, Rep::Uniform(vec![x]));
            return Ok(());
        }
        if let (Kind::Group(GroupOp::Broadcast, _), Some(argument)) = (kind, argument) {
            let zero = self.i32(0);
            let types = self.ty(argument);
            let thread = self.load_threads(self.layout.arguments, types, zero)?[0];
            let slots = self.load_threads(self.layout.exchange, ty, thread)?;
            self.bind(result, Rep::Uniform(slots));
            return Ok(());
        }
        self.exchange_by_call(result, ty, argument.map(|v| self.ty(v)), kind)
    }

    /// The adjacent-pair tree over one word a thread: neighbours are added four pairs at once,
    /// and each level leaves half as many words.
    fn reduce_words(&mut self, reduce: ReduceOp, scalar: Scalar) -> Result<ir::Value, CpuError> {
        let op = match reduce {
            ReduceOp::Sum => BinaryOp::Add,
            ReduceOp::Product => BinaryOp::Mul,
            ReduceOp::Min => BinaryOp::Min,
            ReduceOp::Max => BinaryOp::Max,
            ReduceOp::MinNan => BinaryOp::MinNan,
            ReduceOp::MaxNan => BinaryOp::MaxNan,
            ReduceOp::And => BinaryOp::And,
            ReduceOp::Or => BinaryOp::Or,
        };
        let calc = Calc::Binary(op, scalar);
        let threads = self.kernel.contract.threads();
        let flags = Self::flags();
        let area = self.add_const(self.scratch, i64::from(self.layout.exchange));
        let packed = Self::packed_type(scalar);
        // Absent threads hold what changes nothing.
        let width = threads.next_power_of_two();
        if width > threads {
            let absent = self.absent(reduce, scalar);
            for t in threads..width {
                self.b.ins().store(flags, absent, area, (t * 4) as i32);
            }
        }
        let mut n = width;
        while n > 32 {
            // Level by level in a loop: 8 words become 4.
            let head = self.b.create_block();
            let done = self.b.create_block();
            self.b.append_block_param(head, I64);
            let zero = self.i64(0);
            self.b.ins().jump(head, &[zero.into()]);
            self.b.switch_to_block(head);
            let at = self.b.block_params(head)[0];
            let twice = self.b.ins().iadd(at, at);
            let from = self.b.ins().iadd(area, twice);
            let a = self.b.ins().load(packed, flags, from, 0);
            let b = self.b.ins().load(packed, flags, from, 16);
            let [even, odd] = self.unzip(a, b);
            let x = self.calc(calc, true, &[even, odd])?;
            let to = self.b.ins().iadd(area, at);
            self.b.ins().store(flags, x, to, 0);
            let at = self.add_const(at, 16);
            let end = self.i64(i64::from(n / 2 * 4));
            let more = self.b.ins().icmp(IntCC::UnsignedLessThan, at, end);
            self.b.ins().brif(more, head, &[at.into()], done, &[]);
            self.b.switch_to_block(done);
            n /= 2;
        }
        if n < 4 {
            let word = if scalar == Scalar::F32 {
                ir::types::F32
            } else {
                I32
            };
            let a = self.b.ins().load(word, flags, area, 0);
            let a = self.as_scalar(scalar, a);
            if n == 1 {
                return Ok(a);
            }
            let b = self.b.ins().load(word, flags, area, 4);
            let b = self.as_scalar(scalar, b);
            return self.calc(calc, false, &[a, b]);
        }
        let mut words: Vec<ir::Value> = (0..n / 4)
            .map(|i| self.b.ins().load(packed, flags, area, (i * 16) as i32))
            .collect();
        while words.len() > 1 {
            let mut half = Vec::with_capacity(words.len() / 2);
            for pair in words.chunks_exact(2) {
                let [even, odd] = self.unzip(pair[0], pair[1]);
                half.push(self.calc(calc, true, &[even, odd])?);
            }
            words = half;
        }
        let e = [0, 1, 2, 3].map(|lane| self.lane(scalar, words[0], lane));
        let low = self.calc(calc, false, &[e[0], e[1]])?;
        let high = self.calc(calc, false, &[e[2], e[3]])?;
        self.calc(calc, false, &[low, high])
    }

    /// A word as threads keep it, as a scalar.
    fn as_scalar(&mut self, scalar: Scalar, word: ir::Value) -> ir::Value {
        if scalar == Scalar::Bool {
            let zero = self.i32(0);
            return self.b.ins().icmp(IntCC::NotEqual, word, zero);
        }
        word
    }

    fn absent(&mut self, reduce: ReduceOp, scalar: Scalar) -> ir::Value {
        let bits = absent(reduce, scalar);
        match scalar {
            Scalar::F32 => self.b.ins().f32const(f32::from_bits(bits as u32)),
            Scalar::Bool => self.i32(if bits == 1 { u32::MAX } else { 0 }),
            Scalar::I8 => self.i32(i32::from(bits as u8 as i8) as u32),
            Scalar::I16 => self.i32(i32::from(bits as u16 as i16) as u32),
            _ => self.i32(bits as u32),
        }
    }

    /// Hands an exchange to its function: operands spread to 64 bits, one scalar lane at a time.
    fn exchange_by_call(
        &mut self,
        result: iron_ir::entity::Value,
        ty: Type,
        argument: Option<Type>,
        kind: Kind,
    ) -> Result<(), CpuError> {
        let threads = self.kernel.contract.threads();
        let flags = Self::flags();
        let function = self.function("iron_exchange", &[I64], &[])?;
        // The function works behind the operands' own area, which is sized for it.
        let out_ty = self.ty(result);
        let values = self.add_const(self.scratch, i64::from(self.layout.work));
        let arguments = self.add_const(self.scratch, i64::from(self.layout.work_arguments));
        let record = self.add_const(self.scratch, i64::from(self.layout.record));
        let code = self.i32(encode(kind, ty.scalar));
        let n = self.i32(threads);
        self.b.ins().store(flags, values, record, 0);
        self.b.ins().store(flags, arguments, record, 8);
        self.b.ins().store(flags, n, record, 16);
        self.b.ins().store(flags, code, record, 20);
        for lane in 0..ty.lanes {
            // In: one word of 64 bits a thread.
            let (area, argument_area) = (self.layout.exchange, self.layout.arguments);
            self.each_thread(threads, |this, thread| {
                let slots = this.load_threads(area, ty, thread)?;
                let x = this.component(ty, &slots, lane);
                let x = this.as_word(ty.scalar, x);
                this.store_word(values, thread, x);
                if let Some(argument) = argument {
                    let x = this.load_threads(argument_area, argument, thread)?[0];
                    let x = this.as_word(argument.scalar, x);
                    this.store_word(arguments, thread, x);
                }
                Ok(())
            })?;
            self.b.ins().call(function, &[record]);
            // Out: each thread's own, or the first one's where all share it.
            if let Some(&home) = self.layout.values.get(&result) {
                let whole = out_ty.lanes == 1;
                self.each_thread(threads, |this, thread| {
                    let x = this.load_word(values, thread);
                    let x = this.word_to(out_ty.scalar, x);
                    let outer = std::mem::replace(&mut this.thread, thread);
                    let outer_mode = std::mem::replace(&mut this.mode, Mode::One);
                    if whole {
                        this.keep(home, out_ty, &Rep::Uniform(vec![x]));
                    } else {
                        let slots = this.load_threads(home, out_ty, thread)?;
                        let mut parts: Vec<_> = (0..out_ty.lanes)
                            .map(|i| this.component(out_ty, &slots, i))
                            .collect();
                        parts[usize::from(lane)] = x;
                        let slots = this.compose(out_ty, &parts);
                        this.keep(home, out_ty, &Rep::Uniform(slots));
                    }
                    this.thread = outer;
                    this.mode = outer_mode;
                    Ok(())
                })?;
            }
        }
        if self.plan.uniform[result.index()] {
            if ty.lanes > 1 {
                return Err(CpuError::no(format!("collective of {ty}")));
            }
            let zero = self.i32(0);
            let x = self.load_word(values, zero);
            let x = self.word_to(out_ty.scalar, x);
            self.bind(result, Rep::Uniform(vec![x]));
        }
        Ok(())
    }

    fn each_thread(
        &mut self,
        threads: u32,
        mut emit: impl FnMut(&mut Self, ir::Value) -> Result<(), CpuError>,
    ) -> Result<(), CpuError> {
        let head = self.b.create_block();
        let done = self.b.create_block();
        self.b.append_block_param(head, I32);
        let zero = self.i32(0);
        self.b.ins().jump(head, &[zero.into()]);
        self.b.switch_to_block(head);
        let thread = self.b.block_params(head)[0];
        emit(self, thread)?;
        let thread = self.add_const(thread, 1);
        let end = self.i32(threads);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, thread, end);
        self.b.ins().brif(more, head, &[thread.into()], done, &[]);
        self.b.switch_to_block(done);
        Ok(())
    }

    /// A scalar as 64 bits, extended by zeros from its own width.
    fn as_word(&mut self, scalar: Scalar, x: ir::Value) -> ir::Value {
        if !is_narrow(scalar) {
            return self.cast(I64, x);
        }
        if scalar == Scalar::Bool {
            return self.b.ins().uextend(I64, x);
        }
        let x = self.cast(I32, x);
        let x = self.b.ins().uextend(I64, x);
        if scalar.bytes() == 4 {
            return x;
        }
        let mask = self.i64((1 << scalar.bits()) - 1);
        self.b.ins().band(x, mask)
    }

    fn word_to(&mut self, scalar: Scalar, x: ir::Value) -> ir::Value {
        if !is_narrow(scalar) {
            return self.cast(machine_type(scalar, false), x);
        }
        if scalar == Scalar::Bool {
            let zero = self.i64(0);
            return self.b.ins().icmp(IntCC::NotEqual, x, zero);
        }
        let x = self.b.ins().ireduce(I32, x);
        let x = if scalar.is_signed() && scalar.bytes() < 4 {
            let n = self.i32(32 - scalar.bits());
            let up = self.b.ins().ishl(x, n);
            self.b.ins().sshr(up, n)
        } else {
            x
        };
        self.cast(machine_type(scalar, false), x)
    }

    fn word_address(&mut self, area: ir::Value, thread: ir::Value) -> ir::Value {
        let wide = self.b.ins().uextend(I64, thread);
        let bytes = self.b.ins().imul_imm_s(wide, 8);
        self.b.ins().iadd(area, bytes)
    }

    fn store_word(&mut self, area: ir::Value, thread: ir::Value, x: ir::Value) {
        let at = self.word_address(area, thread);
        self.b.ins().store(Self::flags(), x, at, 0);
    }

    fn load_word(&mut self, area: ir::Value, thread: ir::Value) -> ir::Value {
        let at = self.word_address(area, thread);
        self.b.ins().load(I64, Self::flags(), at, 0)
    }
}
