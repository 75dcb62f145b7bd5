//! One workgroup: its register file, control stack and memory, and the loop that runs it.
//!
//! All threads of a workgroup step through the program together under a mask, statement by
//! statement. Order within a region between barriers is thus one of those that the memory model
//! allows; the shadow of each cell finds the regions whose result depends on it.

use std::collections::HashMap;

use iron_ir::Scalar;
use iron_ir::entity::Handle;
use iron_ir::kernel::{Kernel, Space, Span};
use iron_ir::op::{AtomicOp, BarrierMemory, BarrierScope, BinaryOp, BuiltinOp};

use super::exact::WrappedValues;
use super::finite::Origins;
use super::mask::Mask;
use super::memory::{
    Access, Actor, ArrayMemory, BufferMemory, FIRST_TILE, Ordered, TensorMemory, join_orders,
};
use super::program::{Inst, Pc, Program, Row, Source};
use super::report::{Fault, Rule};
use super::scalar;

/// What a launch hands to every workgroup.
pub(super) struct Launch<'a> {
    pub kernel: &'a Kernel,
    pub program: &'a Program,
    pub tensors: Vec<Option<TensorMemory>>,
    pub buffers: Vec<BufferMemory<'a>>,
    /// Bits of scalar parameters, by parameter.
    pub scalars: Vec<u64>,
    pub dims: Vec<u32>,
    pub grid: [u32; 3],
    pub subgroup_size: u32,
    pub step_budget: u64,
    /// Values that stop being finite are faults.
    pub finite: bool,
    /// Of cells of global memory, by buffer and first byte, what whoever sees their value comes
    /// behind.
    pub published: HashMap<(usize, usize), Ordered>,
    /// The first failed index check, and its workgroup.
    pub failed_index: Option<(Fault, [u32; 3])>,
}

/// Why a workgroup stopped.
#[derive(PartialEq, Eq)]
pub(super) enum Stop {
    /// Every thread has ended.
    Finished,
    /// All threads are at a grid barrier.
    GridBarrier,
}

pub(super) enum Frame {
    /// `otherwise` waits while `then` runs; those that got through `then` wait in `joined`.
    If {
        otherwise: Mask,
        joined: Mask,
        entered: u32,
        span: Span,
    },
    Loop {
        broken: Mask,
        continued: Mask,
        entered: u32,
        /// Steps before it.
        since: u64,
        span: Span,
    },
    /// `first` is the first element of the chunk at work, `at` the map's instruction.
    Map { outer: Mask, first: u32, at: Pc },
}

pub(super) struct TileMemory {
    pub scalar: Scalar,
    pub rows: u32,
    pub columns: u32,
    pub bits: Vec<u64>,
    pub written: bool,
}

/// One workgroup.
pub(super) struct Machine<'a> {
    pub program: &'a Program,
    pub kernel: &'a Kernel,
    pub threads: u32,
    pub subgroup_size: u32,
    pub grid: [u32; 3],
    pub group: [u32; 3],
    pub group_linear: u32,
    pub regs: Vec<u64>,
    pub locals: Vec<u64>,
    pub locals_set: Vec<bool>,
    pub arrays: Vec<ArrayMemory>,
    pub tiles: Vec<TileMemory>,
    pub mask: Mask,
    pub frames: Vec<Frame>,
    pub returned: Option<Span>,
    /// Values that stop being finite are faults.
    pub finite: bool,
    pub wrapped: WrappedValues,
    pub origins: Origins,
    pc: Pc,
    shared: Epoch,
    global: Epoch,
    device: DeviceOrder,
    tile_operations: u32,
    steps: u64,
}

/// What barriers of the device's memory order.
#[derive(Default)]
struct DeviceOrder {
    /// What other workgroups did before.
    seen: Ordered,
    /// What atomics saw since the last such barrier, behind which it is [`Self::seen`].
    met: Ordered,
    /// What was before the last such barrier: that of others, and of the workgroup itself.
    left: Ordered,
}

/// Barriers passed that order one kind of memory.
#[derive(Clone, Copy, Default)]
struct Epoch {
    workgroup: u32,
    /// Those of subgroups, and of the workgroup too.
    subgroup: u32,
}

impl Epoch {
    fn pass(&mut self, scope: BarrierScope) {
        self.subgroup += 1;
        match scope {
            BarrierScope::Subgroup | BarrierScope::Launch => {}
            BarrierScope::Workgroup | BarrierScope::Grid => self.workgroup += 1,
        }
    }
}

impl<'a> Machine<'a> {
    /// A machine for workgroups of this launch.
    pub fn new(launch: &Launch<'a>) -> Machine<'a> {
        let (kernel, program) = (launch.kernel, launch.program);
        let threads = kernel.contract.threads();
        let w = threads as usize;
        let arrays = kernel
            .arrays
            .values()
            .map(|array| match array.space {
                Space::Shared => ArrayMemory::new(array.len as usize, true),
                Space::Private => ArrayMemory::new(array.len as usize * w, false),
                Space::Ahead => ArrayMemory::ahead(array.len as usize, w),
            })
            .collect();
        let tiles = kernel
            .tiles
            .values()
            .map(|tile| TileMemory {
                scalar: tile.scalar,
                rows: tile.rows,
                columns: tile.columns,
                bits: vec![0; tile.rows as usize * tile.columns as usize],
                written: false,
            })
            .collect();
        let mut machine = Machine {
            program,
            kernel,
            threads,
            subgroup_size: launch.subgroup_size,
            grid: launch.grid,
            group: [0; 3],
            group_linear: 0,
            regs: vec![0; program.rows as usize * w],
            locals: vec![0; program.n_local_rows as usize * w],
            locals_set: vec![false; program.n_local_rows as usize * w],
            arrays,
            tiles,
            mask: Mask::empty(threads),
            frames: Vec::new(),
            returned: None,
            finite: launch.finite,
            wrapped: WrappedValues::default(),
            origins: Origins::default(),
            pc: 0,
            shared: Epoch::default(),
            global: Epoch::default(),
            device: DeviceOrder::default(),
            tile_operations: 0,
            steps: 0,
        };
        for &(row, source) in &program.sources {
            let bits = match source {
                Source::Const(bits) => bits,
                Source::Scalar(param) => launch.scalars[param.index()],
                Source::Dim(dim) => u64::from(launch.dims[dim.index()]),
                Source::Stride(param, axis) => launch.tensors[param.index()]
                    .as_ref()
                    .and_then(|t| t.strides.get(usize::from(axis)).copied())
                    .unwrap_or(0),
                Source::Builtin(..) => continue,
            };
            machine.regs[row as usize * w..][..w].fill(bits);
        }
        machine
    }

    /// Goes to the start of a workgroup.
    pub fn start(&mut self, group: [u32; 3], launch: &Launch<'a>) {
        let grid = launch.grid;
        self.group = group;
        self.group_linear = group[0] + grid[0] * (group[1] + grid[1] * group[2]);
        let w = self.threads as usize;
        let size = self.kernel.contract.workgroup;
        let lanes = self.subgroup_size;
        for &(row, source) in &self.program.sources {
            let Source::Builtin(op, axis) = source else {
                continue;
            };
            let axis = usize::from(axis.min(2));
            let first = row as usize * w;
            for t in 0..self.threads {
                let local = [t % size[0], t / size[0] % size[1], t / size[0] / size[1]];
                let value = match op {
                    BuiltinOp::GroupId => group[axis],
                    BuiltinOp::GroupCount => grid[axis],
                    BuiltinOp::LocalId => local[axis],
                    BuiltinOp::GroupSize => size[axis],
                    BuiltinOp::GlobalId => group[axis]
                        .wrapping_mul(size[axis])
                        .wrapping_add(local[axis]),
                    BuiltinOp::LocalIndex => t,
                    BuiltinOp::GroupThreads => self.threads,
                    BuiltinOp::SubgroupId => t / lanes,
                    BuiltinOp::SubgroupCount => self.threads.div_ceil(lanes),
                    BuiltinOp::SubgroupLane => t % lanes,
                    BuiltinOp::SubgroupSize => lanes,
                };
                self.regs[first + t as usize] = u64::from(value);
            }
        }
        self.locals_set.fill(false);
        self.arrays.iter_mut().for_each(ArrayMemory::forget);
        self.tiles.iter_mut().for_each(|t| t.written = false);
        self.mask = Mask::first(self.threads, self.threads);
        self.frames.clear();
        self.returned = None;
        self.wrapped.clear();
        self.device = DeviceOrder::default();
        self.start_tracing();
        self.pc = 0;
        self.steps = 0;
    }

    /// First register of a row.
    pub fn at(&self, row: Row) -> usize {
        row as usize * self.threads as usize
    }

    /// The instruction after the one at work.
    pub fn pc(&self) -> Pc {
        self.pc
    }

    /// Goes on elsewhere.
    pub fn jump(&mut self, to: Pc) {
        self.pc = to;
    }

    /// A fault at an instruction.
    pub fn fault(&self, rule: Rule, span: Span, thread: usize, message: String) -> Fault {
        Fault {
            thread: Some(thread as u32),
            ..Fault::new(rule, span, message)
        }
    }

    /// Runs until the workgroup ends or waits.
    pub fn run(&mut self, launch: &mut Launch<'a>) -> Result<Stop, Fault> {
        let program = self.program;
        loop {
            let pc = self.pc as usize;
            let Some(inst) = program.code.get(pc) else {
                return Ok(Stop::Finished);
            };
            let span = program.spans[pc];
            self.pc += 1;
            self.steps += 1;
            if self.steps > launch.step_budget {
                return Err(self.endless(launch.step_budget, span));
            }
            match inst {
                Inst::Unary { .. }
                | Inst::Binary { .. }
                | Inst::Compare { .. }
                | Inst::Select { .. }
                | Inst::Fma { .. }
                | Inst::Convert { .. }
                | Inst::Bitcast { .. }
                | Inst::Copy { .. } => self.compute(inst, span)?,
                Inst::Get { local, dst, lanes } => self.get(*local, *dst, *lanes, span)?,
                Inst::Set { local, src, lanes } => self.set(*local, *src, *lanes),
                Inst::Load { dst, ty, address } => self.load(launch, *dst, *ty, address, span)?,
                Inst::Store { src, ty, address } => self.store(launch, *src, *ty, address, span)?,
                Inst::Atomic { .. } => self.atomic(launch, inst, span)?,
                Inst::Barrier(scope, memory) => {
                    if self.mask.is_empty() {
                        continue;
                    }
                    self.require_all(span, "barrier")?;
                    self.shared.pass(*scope);
                    match memory {
                        BarrierMemory::Shared => {}
                        BarrierMemory::SharedAndGlobal => self.global.pass(*scope),
                        BarrierMemory::Device => {
                            self.global.pass(*scope);
                            self.order_device();
                        }
                    }
                    if *scope == BarrierScope::Grid {
                        return Ok(Stop::GridBarrier);
                    }
                }
                Inst::EndBatch(array) => {
                    let memory = &mut self.arrays[*array];
                    self.mask.for_each(|t| memory.end_batch(t));
                }
                Inst::WaitBatches(array, newest) => {
                    let memory = &mut self.arrays[*array];
                    self.mask.for_each(|t| memory.wait_batches(t, *newest));
                }
                Inst::Subgroup { .. } => {
                    if !self.mask.is_empty() {
                        self.require_all(span, "subgroup operation")?;
                        self.subgroup(inst, span)?;
                    }
                }
                Inst::Group { .. } => {
                    if !self.mask.is_empty() {
                        self.require_all(span, "workgroup operation")?;
                        self.group(inst, span)?;
                        self.join_workgroup();
                    }
                }
                Inst::Mma { .. } => {
                    if !self.mask.is_empty() {
                        self.require_all(span, "matrix product")?;
                        self.mma(inst, span)?;
                        self.join_workgroup();
                    }
                }
                Inst::CheckIndex { dst, index, bound } => {
                    let (d, i, b) = (self.at(*dst), self.at(*index), self.at(*bound));
                    let regs = &mut self.regs;
                    let mut failed = None;
                    self.mask.for_each(|t| {
                        let (index, bound) = (regs[i + t], regs[b + t]);
                        regs[d + t] = if index < bound { index } else { 0 };
                        if index >= bound && failed.is_none() {
                            failed = Some((t, index, bound));
                        }
                    });
                    if let (None, Some((t, index, bound))) = (&launch.failed_index, failed) {
                        let message =
                            format!("data-dependent index {index} is not below its bound {bound}");
                        let fault = self.fault(Rule::IndexIn, span, t, message);
                        launch.failed_index = Some((fault, self.group));
                    }
                }
                Inst::Tile(stmt) => {
                    if !self.mask.is_empty() {
                        self.require_all(span, "tile operation")?;
                        self.tile_operations += 1;
                        self.tile(launch, stmt, span)?;
                        self.join_workgroup();
                    }
                }
                Inst::Map { .. } | Inst::MapNext { .. } => self.map(inst, span)?,
                _ => self.control(inst, span)?,
            }
            if program.followed[pc] {
                self.follow(inst, span)?;
            }
            if self.finite {
                self.trace(inst, pc as Pc);
            }
        }
    }

    /// The budget is spent: in the innermost loop that took at least half of it.
    fn endless(&self, budget: u64, span: Span) -> Fault {
        let mut loops = self.frames.iter().rev().filter_map(|frame| match frame {
            Frame::Loop { since, span, .. } => Some((*since, *span)),
            Frame::If { .. } | Frame::Map { .. } => None,
        });
        let at = loops.find(|(since, _)| *since <= budget / 2);
        let thread = (0..self.threads).find(|&t| self.mask.contains(t));
        let threads = self.mask.count();
        let message = format!(
            "the step budget of {budget} statements a workgroup is spent: the {} may never end \
             ({threads} of {} threads are in it)",
            if at.is_some() { "loop" } else { "kernel" },
            self.threads
        );
        Fault {
            thread,
            ..Fault::new(Rule::Endless, at.map_or(span, |(_, span)| span), message)
        }
    }

    /// Marks that every earlier access of the workgroup to shared memory is ordered before every
    /// later one.
    pub(super) fn join_workgroup(&mut self) {
        self.shared.pass(BarrierScope::Workgroup);
    }

    /// Passes a barrier of the device's memory.
    fn order_device(&mut self) {
        let DeviceOrder { seen, met, left } = &mut self.device;
        join_orders(seen, met);
        met.clear();
        left.clone_from(seen);
        left.insert(self.group_linear + 1, self.global.workgroup);
    }

    /// Notes an atomic on a cell of global memory, which takes and gives what barriers of the
    /// device's memory order.
    pub(super) fn meet(&mut self, launch: &mut Launch<'a>, op: AtomicOp, cell: (usize, usize)) {
        if !self.program.orders_device {
            return;
        }
        let published = launch.published.entry(cell).or_default();
        // What was there before is not seen by who sees a store.
        match op {
            AtomicOp::Store => published.clear(),
            _ => join_orders(&mut self.device.met, published),
        }
        if op != AtomicOp::Load {
            join_orders(published, &self.device.left);
        }
    }

    /// The thread id of the tile operation at work; another for each.
    pub(super) fn tile_thread(&self) -> u32 {
        FIRST_TILE + self.tile_operations
    }

    /// Who thread `t` is to the shadow of shared memory.
    pub fn actor(&self, t: u32) -> Actor<'static> {
        self.actor_at(t, self.shared, None)
    }

    /// Who thread `t` is to the shadow of global memory.
    pub fn global_actor(&self, t: u32) -> Actor<'_> {
        let orders = self.program.orders_device;
        let seen = orders.then_some(&self.device.seen);
        Actor {
            is_shared: false,
            ..self.actor_at(t, self.global, seen)
        }
    }

    fn actor_at<'s>(&self, t: u32, epoch: Epoch, seen: Option<&'s Ordered>) -> Actor<'s> {
        Actor {
            access: Access {
                group: self.group_linear + 1,
                thread: t,
                epoch: epoch.workgroup,
                subgroup_epoch: epoch.subgroup,
                site: self.pc - 1,
            },
            seen,
            lanes_log2: self.subgroup_size.trailing_zeros(),
            is_shared: true,
        }
    }

    /// The place of a workgroup in the grid.
    pub(super) fn group_at(&self, linear: u32) -> [u32; 3] {
        let [x, y, _] = self.grid.map(|n| n.max(1));
        [linear % x, linear / x % y, linear / x / y]
    }

    /// Every thread of the workgroup must be here.
    pub(super) fn require_all(&self, span: Span, what: &str) -> Result<(), Fault> {
        if self.mask.is_full() {
            return Ok(());
        }
        let mut before = self.threads;
        let mut cause = self.returned.map(|span| (span, "the return of others"));
        for frame in &self.frames {
            let (entered, at, why) = match frame {
                Frame::If { entered, span, .. } => (*entered, *span, "the branch"),
                Frame::Loop { entered, span, .. } => (*entered, *span, "the loop"),
                Frame::Map { .. } => continue,
            };
            if entered < before {
                break;
            }
            before = entered;
            cause = Some((at, why));
        }
        let absent = self.mask.first_absent().unwrap_or(0);
        let message = format!(
            "{what} in divergent control flow: {} of {} threads are here, thread {absent} is not",
            self.mask.count(),
            self.threads
        );
        let fault = Fault::new(Rule::Divergence, span, message);
        Err(match cause {
            Some((at, what)) => fault.with(what, at),
            None => fault,
        })
    }

    fn control(&mut self, inst: &Inst, span: Span) -> Result<(), Fault> {
        match inst {
            Inst::If {
                condition,
                otherwise,
            } => {
                let c = self.at(*condition);
                let entered = self.mask.count();
                let regs = &self.regs;
                let rest = self.mask.split(|t| regs[c + t] & 1 == 1);
                let joined = Mask::empty(self.threads);
                self.frames.push(Frame::If {
                    otherwise: rest,
                    joined,
                    entered,
                    span,
                });
                if self.mask.is_empty() {
                    self.pc = *otherwise;
                }
            }
            Inst::Else { end } => {
                if let Some(Frame::If {
                    otherwise, joined, ..
                }) = self.frames.last_mut()
                {
                    *joined = std::mem::replace(&mut self.mask, otherwise.take());
                }
                if self.mask.is_empty() {
                    self.pc = *end;
                }
            }
            Inst::EndIf => {
                if let Some(Frame::If { joined, .. }) = self.frames.pop() {
                    self.mask.join(&joined);
                }
            }
            Inst::For {
                scalar,
                index,
                start,
                end,
                step,
                exit,
            } => {
                self.check_bounds([*start, *end, *step], span)?;
                let (i, s) = (self.at(*index), self.at(*start));
                let (e, p) = (self.at(*end), self.at(*step));
                let regs = &mut self.regs;
                let mut zero_step = None;
                self.mask.for_each(|t| {
                    regs[i + t] = regs[s + t];
                    if ordered(*scalar, regs[p + t]) <= 0 && zero_step.is_none() {
                        zero_step = Some((t, ordered(*scalar, regs[p + t])));
                    }
                });
                if let Some((t, step)) = zero_step {
                    let message = format!("a loop step of {step}; it must be above zero");
                    return Err(self.fault(Rule::ZeroStep, span, t, message));
                }
                let entered = self.mask.count();
                let regs = &self.regs;
                let done = self
                    .mask
                    .split(|t| ordered(*scalar, regs[i + t]) < ordered(*scalar, regs[e + t]));
                self.enter_loop(done, entered, span, *exit);
            }
            Inst::ForNext {
                scalar,
                index,
                end,
                step,
                body,
            } => {
                let (i, e, p) = (self.at(*index), self.at(*end), self.at(*step));
                let Some(Frame::Loop {
                    broken, continued, ..
                }) = self.frames.last_mut()
                else {
                    return Ok(());
                };
                self.mask.join(&continued.take());
                let regs = &mut self.regs;
                let done = self.mask.split(|t| {
                    let next = ordered(*scalar, regs[i + t]) + ordered(*scalar, regs[p + t]);
                    let goes_on = next < ordered(*scalar, regs[e + t]);
                    if goes_on {
                        regs[i + t] =
                            scalar::binary(BinaryOp::Add, *scalar, regs[i + t], regs[p + t])
                                .unwrap_or(0);
                    }
                    goes_on
                });
                broken.join(&done);
                self.next_turn(*body);
            }
            Inst::Loop { exit } => {
                let entered = self.mask.count();
                let none = Mask::empty(self.threads);
                self.enter_loop(none, entered, span, *exit);
            }
            Inst::LoopNext { body } => {
                if let Some(Frame::Loop { continued, .. }) = self.frames.last_mut() {
                    self.mask.join(&continued.take());
                }
                self.next_turn(*body);
            }
            Inst::Break | Inst::Continue => {
                let leaving = self.mask.take();
                let innermost = self.frames.iter_mut().rev().find_map(|frame| match frame {
                    Frame::Loop {
                        broken, continued, ..
                    } => Some((broken, continued)),
                    Frame::If { .. } | Frame::Map { .. } => None,
                });
                if let Some((broken, continued)) = innermost {
                    let to = if matches!(inst, Inst::Break) {
                        broken
                    } else {
                        continued
                    };
                    to.join(&leaving);
                }
            }
            Inst::Return => {
                let leaving = self.mask.take();
                if !leaving.is_empty() {
                    self.returned = Some(span);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn enter_loop(&mut self, done: Mask, entered: u32, span: Span, exit: Pc) {
        if self.mask.is_empty() {
            self.mask = done;
            self.pc = exit;
            return;
        }
        let continued = Mask::empty(self.threads);
        self.frames.push(Frame::Loop {
            broken: done,
            continued,
            entered,
            since: self.steps,
            span,
        });
    }

    fn next_turn(&mut self, body: Pc) {
        if !self.mask.is_empty() {
            self.pc = body;
        } else if let Some(Frame::Loop { broken, .. }) = self.frames.pop() {
            self.mask = broken;
        }
    }
}

/// An integer as its type orders it.
pub(super) fn ordered(scalar: Scalar, bits: u64) -> i128 {
    if scalar.is_signed() {
        let shift = 64 - scalar.bits();
        i128::from(((bits << shift) as i64) >> shift)
    } else {
        i128::from(bits)
    }
}
