//! Loads, stores and atomics, with every check of the memory model.

use iron_ir::entity::{Handle, Param};
use iron_ir::kernel::{Space, Span};
use iron_ir::op::{AtomicOp, BinaryOp};
use iron_ir::{Scalar, Type};

use super::machine::{Launch, Machine};
use super::memory::{AccessKind, BufferMemory, FIRST_TILE, Race, TensorMemory, read_bits};
use super::program::{Address, Inst, Row};
use super::report::{Fault, Rule};
use super::scalar;

/// A range of elements found in bounds.
enum Location {
    /// First byte in a buffer, and the distance between elements.
    Global {
        buffer: usize,
        at: usize,
        step: usize,
    },
    /// First element of an array, and the distance between elements.
    Array {
        array: usize,
        at: usize,
        step: usize,
        shadowed: bool,
    },
}

impl<'a> Machine<'a> {
    /// Runs a load.
    pub(super) fn load(
        &mut self,
        launch: &mut Launch<'a>,
        dst: Row,
        ty: Type,
        address: &Address,
        span: Span,
    ) -> Result<(), Fault> {
        let w = self.threads as usize;
        let dst = self.at(dst);
        let mask = self.mask.clone();
        mask.try_for_each(|t| {
            let location = self.locate(launch, address, ty, t, span)?;
            for lane in 0..usize::from(ty.lanes) {
                let bits = self.read(
                    launch,
                    &location,
                    lane,
                    ty.scalar,
                    address,
                    t,
                    span,
                    AccessKind::Read,
                )?;
                self.regs[dst + lane * w + t] = bits;
            }
            Ok(())
        })
    }

    /// Runs a store.
    pub(super) fn store(
        &mut self,
        launch: &mut Launch<'a>,
        src: Row,
        ty: Type,
        address: &Address,
        span: Span,
    ) -> Result<(), Fault> {
        let w = self.threads as usize;
        let (src_row, src) = (src, self.at(src));
        let mask = self.mask.clone();
        mask.try_for_each(|t| {
            let location = self.locate(launch, address, ty, t, span)?;
            for lane in 0..usize::from(ty.lanes) {
                if self.finite {
                    let row = src_row + lane as Row;
                    self.check_finite(ty.scalar, row, t, || self.cell(address, t), span)?;
                }
                let bits = self.regs[src + lane * w + t];
                self.write(
                    launch,
                    &location,
                    lane,
                    ty.scalar,
                    bits,
                    address,
                    t,
                    span,
                    AccessKind::Write,
                )?;
            }
            Ok(())
        })
    }

    /// Runs an atomic.
    pub(super) fn atomic(
        &mut self,
        launch: &mut Launch<'a>,
        inst: &Inst,
        span: Span,
    ) -> Result<(), Fault> {
        let Inst::Atomic {
            op,
            scalar,
            dst,
            ref address,
            value,
            compare,
        } = *inst
        else {
            return Ok(());
        };
        let dst = self.at(dst);
        let value_row = value;
        let value = value.map(|v| self.at(v));
        let compare = compare.map(|v| self.at(v));
        let mask = self.mask.clone();
        mask.try_for_each(|t| {
            let location = self.locate(launch, address, scalar.x(1), t, span)?;
            if let Location::Global { buffer, at, .. } = location {
                self.meet(launch, op, (buffer, at));
            }
            let operand = value.map_or(0, |v| self.regs[v + t]);
            if let (true, Some(row)) = (self.finite, value_row) {
                self.check_finite(scalar, row, t, || self.cell(address, t), span)?;
            }
            if op == AtomicOp::Store {
                return self.write(
                    launch,
                    &location,
                    0,
                    scalar,
                    operand,
                    address,
                    t,
                    span,
                    AccessKind::Atomic,
                );
            }
            let old = self.read(
                launch,
                &location,
                0,
                scalar,
                address,
                t,
                span,
                AccessKind::Atomic,
            )?;
            let combine = |op| scalar::binary(op, scalar, old, operand);
            let new = match op {
                AtomicOp::Add => combine(BinaryOp::Add),
                AtomicOp::Min => combine(BinaryOp::Min),
                AtomicOp::Max => combine(BinaryOp::Max),
                AtomicOp::And => combine(BinaryOp::And),
                AtomicOp::Or => combine(BinaryOp::Or),
                AtomicOp::Xor => combine(BinaryOp::Xor),
                AtomicOp::Exchange | AtomicOp::Store => Some(operand),
                AtomicOp::CompareExchange => {
                    Some(if compare.map(|c| self.regs[c + t]) == Some(old) {
                        operand
                    } else {
                        old
                    })
                }
                AtomicOp::Load => Some(old),
            };
            let Some(new) = new else {
                let message = format!("there is no atomic `{}` of {scalar}", op.name());
                return Err(self.fault(Rule::NoOperation, span, t, message));
            };
            self.regs[dst + t] = old;
            if new != old {
                self.write(
                    launch,
                    &location,
                    0,
                    scalar,
                    new,
                    address,
                    t,
                    span,
                    AccessKind::Atomic,
                )?;
            }
            Ok(())
        })
    }

    /// Checks the indices of thread `t`.
    fn locate(
        &self,
        launch: &Launch<'a>,
        address: &Address,
        ty: Type,
        t: usize,
        span: Span,
    ) -> Result<Location, Fault> {
        let lanes = u64::from(ty.lanes);
        match address {
            Address::Array(array, index) => {
                let data = &self.kernel.arrays[*array];
                self.check_exact(*index, t, span)?;
                let index = self.regs[self.at(*index) + t];
                if index.saturating_add(lanes) > u64::from(data.len) {
                    let message = format!(
                        "index {index}{} of `{}`, which has {} elements",
                        vector(lanes),
                        data.name,
                        data.len
                    );
                    return Err(self.fault(Rule::OutOfBounds, span, t, message));
                }
                self.check_aligned(index, lanes, &data.name, t, span)?;
                let (at, step, shadowed) = match data.space {
                    Space::Shared => (index as usize, 1, true),
                    Space::Private | Space::Ahead => {
                        let w = self.threads as usize;
                        (index as usize * w + t, w, false)
                    }
                };
                Ok(Location::Array {
                    array: array.index(),
                    at,
                    step,
                    shadowed,
                })
            }
            Address::Tensor(param, indices) => {
                let tensor = self.tensor(launch, *param, span)?;
                let mut element = 0u64;
                let last = indices.len().saturating_sub(1);
                for (axis, &row) in indices.iter().enumerate() {
                    self.check_exact(row, t, span)?;
                    let index = self.regs[self.at(row) + t];
                    let extent = tensor.shape[axis];
                    let width = if axis == last { lanes } else { 1 };
                    if index.saturating_add(width) > extent {
                        let message = format!(
                            "index {index}{} of dimension {axis} of `{}`, which has extent {extent}",
                            vector(width),
                            self.kernel.params[*param].name
                        );
                        return Err(self.fault(Rule::OutOfBounds, span, t, message));
                    }
                    element += index * tensor.strides[axis];
                }
                if let Some(&row) = indices.last() {
                    let index = self.regs[self.at(row) + t];
                    self.check_aligned(index, lanes, &self.kernel.params[*param].name, t, span)?;
                }
                // The lanes are neighbours along the last dimension, whatever its stride is.
                let step = tensor.strides.last().copied().unwrap_or(1);
                Ok(global(tensor, element, step))
            }
            Address::Flat(param, row) => {
                let tensor = self.tensor(launch, *param, span)?;
                self.check_exact(*row, t, span)?;
                let element = self.regs[self.at(*row) + t];
                if element.saturating_add(lanes) > tensor.span {
                    let message = format!(
                        "element {element}{} of `{}`, whose view spans {} elements",
                        vector(lanes),
                        self.kernel.params[*param].name,
                        tensor.span
                    );
                    return Err(self.fault(Rule::OutOfBounds, span, t, message));
                }
                Ok(global(tensor, element, 1))
            }
        }
    }

    fn check_aligned(
        &self,
        index: u64,
        lanes: u64,
        name: &str,
        t: usize,
        span: Span,
    ) -> Result<(), Fault> {
        if index.is_multiple_of(lanes) {
            return Ok(());
        }
        let message =
            format!("index {index} of a vector access of `{name}` is not a multiple of {lanes}");
        Err(self.fault(Rule::Misaligned, span, t, message))
    }

    /// The tensor of a parameter.
    pub(super) fn tensor<'l>(
        &self,
        launch: &'l Launch<'a>,
        param: Param,
        span: Span,
    ) -> Result<&'l TensorMemory, Fault> {
        launch.tensors[param.index()].as_ref().ok_or_else(|| {
            let message = format!("`{}` is not a tensor", self.kernel.params[param].name);
            Fault::new(Rule::Malformed, span, message)
        })
    }

    fn read(
        &mut self,
        launch: &mut Launch<'a>,
        location: &Location,
        lane: usize,
        scalar: Scalar,
        address: &Address,
        t: usize,
        span: Span,
        kind: AccessKind,
    ) -> Result<u64, Fault> {
        match *location {
            Location::Global { buffer, at, step } => {
                let size = scalar.bytes() as usize;
                let at = at + lane * step;
                let race =
                    self.shadow_global(&mut launch.buffers[buffer], at, size, kind, t as u32);
                if let Some(race) = race {
                    return Err(self.race(race, kind, address, t, span));
                }
                let contents = &launch.buffers[buffer].contents;
                if contents.written[at..at + size].contains(&false) {
                    return Err(self.unwritten(address, lane, t, span));
                }
                Ok(read_bits(&contents.bytes[at..at + size]))
            }
            Location::Array {
                array,
                at,
                step,
                shadowed,
            } => {
                let at = at + lane * step;
                self.shadow_array(array, at, shadowed, kind, address, t, span)?;
                let memory = &self.arrays[array];
                if !memory.written[at] {
                    return Err(self.unwritten(address, lane, t, span));
                }
                Ok(memory.bits[at])
            }
        }
    }

    fn write(
        &mut self,
        launch: &mut Launch<'a>,
        location: &Location,
        lane: usize,
        scalar: Scalar,
        bits: u64,
        address: &Address,
        t: usize,
        span: Span,
        kind: AccessKind,
    ) -> Result<(), Fault> {
        match *location {
            Location::Global { buffer, at, step } => {
                if let Address::Tensor(param, _) | Address::Flat(param, _) = address
                    && !self.tensor(launch, *param, span)?.writable
                {
                    let message = format!(
                        "a store to `{}`, which is read-only",
                        self.kernel.params[*param].name
                    );
                    return Err(self.fault(Rule::ReadOnly, span, t, message));
                }
                let size = scalar.bytes() as usize;
                let at = at + lane * step;
                let race =
                    self.shadow_global(&mut launch.buffers[buffer], at, size, kind, t as u32);
                if let Some(race) = race {
                    return Err(self.race(race, kind, address, t, span));
                }
                let contents = &mut launch.buffers[buffer].contents;
                contents.bytes[at..at + size].copy_from_slice(&bits.to_le_bytes()[..size]);
                contents.written[at..at + size].fill(true);
            }
            Location::Array {
                array,
                at,
                step,
                shadowed,
            } => {
                let at = at + lane * step;
                self.shadow_array(array, at, shadowed, kind, address, t, span)?;
                self.arrays[array].bits[at] = bits;
                self.arrays[array].note_write(at, t);
            }
        }
        Ok(())
    }

    fn shadow_array(
        &mut self,
        array: usize,
        at: usize,
        shadowed: bool,
        kind: AccessKind,
        address: &Address,
        t: usize,
        span: Span,
    ) -> Result<(), Fault> {
        if !shadowed {
            return Ok(());
        }
        let actor = self.actor(t as u32);
        match self.arrays[array].shadows.cell(at).access(kind, &actor) {
            Some(race) => Err(self.race(race, kind, address, t, span)),
            None => Ok(()),
        }
    }

    /// Notes an access to global memory; the conflicting one, if there is one.
    fn shadow_global(
        &self,
        buffer: &mut BufferMemory<'_>,
        at: usize,
        size: usize,
        kind: AccessKind,
        t: u32,
    ) -> Option<Race> {
        if buffer.shadows.is_empty() {
            return None;
        }
        let actor = self.global_actor(t);
        let first = (at - buffer.shadow_start) / buffer.granule;
        let cells = size.div_ceil(buffer.granule);
        (first..first + cells).find_map(|at| buffer.shadows.cell(at).access(kind, &actor))
    }

    fn name(&self, address: &Address) -> &str {
        match address {
            Address::Tensor(param, _) | Address::Flat(param, _) => &self.kernel.params[*param].name,
            Address::Array(array, _) => &self.kernel.arrays[*array].name,
        }
    }

    /// `name[index]` of an access.
    fn cell(&self, address: &Address, t: usize) -> String {
        format!("{}[{}]", self.name(address), self.index_text(address, t))
    }

    fn index_text(&self, address: &Address, t: usize) -> String {
        let value = |row: Row| self.regs[self.at(row) + t].to_string();
        match address {
            Address::Tensor(_, rows) => rows
                .iter()
                .map(|&r| value(r))
                .collect::<Vec<_>>()
                .join(", "),
            Address::Flat(_, row) | Address::Array(_, row) => value(*row),
        }
    }

    fn race(&self, race: Race, kind: AccessKind, address: &Address, t: usize, span: Span) -> Fault {
        let cell = self.cell(address, t);
        let mut fault = self.race_on(&cell, "this thread", kind, &race, span);
        fault.thread = Some(t as u32);
        fault
    }

    fn race_on(&self, cell: &str, who: &str, kind: AccessKind, race: &Race, span: Span) -> Fault {
        let doing = match kind {
            AccessKind::Read => "reads",
            AccessKind::Write => "writes",
            AccessKind::Atomic => "atomically changes",
        };
        let done = match race.kind {
            AccessKind::Read => "read",
            AccessKind::Write => "wrote",
            AccessKind::Atomic => "atomically changed",
        };
        let earlier = &race.earlier;
        let is_mine = earlier.group == self.group_linear + 1;
        let thread = if earlier.thread < FIRST_TILE {
            format!("thread {}", earlier.thread)
        } else {
            "a tile operation".into()
        };
        let other = if is_mine {
            thread
        } else {
            let [x, y, z] = self.group_at(earlier.group - 1);
            format!("{thread} of workgroup {x}, {y}, {z}")
        };
        let between = if is_mine {
            "with no barrier between"
        } else {
            "and workgroups of one launch are in no order"
        };
        let message = format!("data race: {who} {doing} `{cell}`, which {other} {done}, {between}");
        let site = self.program.spans[earlier.site as usize];
        Fault::new(Rule::Race, span, message).with("the other access", site)
    }

    fn unwritten(&self, address: &Address, lane: usize, t: usize, span: Span) -> Fault {
        let at = if lane == 0 {
            String::new()
        } else {
            format!(" (lane {lane} of a vector)")
        };
        let message = format!(
            "`{}`{at} is read before anything wrote it{}",
            self.cell(address, t),
            match address {
                Address::Array(array, _) if self.kernel.arrays[*array].space == Space::Ahead => {
                    ", or before `wait_batches` has waited for its batch"
                }
                _ => "",
            }
        );
        self.fault(Rule::Uninitialised, span, t, message)
    }

    /// Reads an element of a tensor on behalf of a tile operation.
    pub(super) fn tile_read(
        &mut self,
        launch: &mut Launch<'a>,
        param: Param,
        indices: &[u64],
        span: Span,
    ) -> Result<u64, Fault> {
        let (buffer, at, scalar) = self.tile_element(launch, param, indices, span)?;
        let size = scalar.bytes() as usize;
        if let Some(race) = self.shadow_global(
            &mut launch.buffers[buffer],
            at,
            size,
            AccessKind::Read,
            self.tile_thread(),
        ) {
            return Err(self.tile_race(race, AccessKind::Read, param, indices, span));
        }
        let contents = &launch.buffers[buffer].contents;
        if contents.written[at..at + size].contains(&false) {
            let message = format!(
                "`{}{indices:?}` is read by a tile load before anything wrote it",
                self.kernel.params[param].name
            );
            return Err(Fault::new(Rule::Uninitialised, span, message));
        }
        Ok(read_bits(&contents.bytes[at..at + size]))
    }

    /// Writes an element of a tensor on behalf of a tile operation.
    pub(super) fn tile_write(
        &mut self,
        launch: &mut Launch<'a>,
        param: Param,
        indices: &[u64],
        bits: u64,
        span: Span,
    ) -> Result<(), Fault> {
        let (buffer, at, scalar) = self.tile_element(launch, param, indices, span)?;
        let size = scalar.bytes() as usize;
        if let Some(race) = self.shadow_global(
            &mut launch.buffers[buffer],
            at,
            size,
            AccessKind::Write,
            self.tile_thread(),
        ) {
            return Err(self.tile_race(race, AccessKind::Write, param, indices, span));
        }
        let contents = &mut launch.buffers[buffer].contents;
        contents.bytes[at..at + size].copy_from_slice(&bits.to_le_bytes()[..size]);
        contents.written[at..at + size].fill(true);
        Ok(())
    }

    fn tile_element(
        &self,
        launch: &Launch<'a>,
        param: Param,
        indices: &[u64],
        span: Span,
    ) -> Result<(usize, usize, Scalar), Fault> {
        let tensor = self.tensor(launch, param, span)?;
        let mut element = 0;
        for (axis, &index) in indices.iter().enumerate() {
            let extent = tensor.shape[axis];
            if index >= extent {
                let message = format!(
                    "index {index} of dimension {axis} of `{}`, which has extent {extent}",
                    self.kernel.params[param].name
                );
                return Err(Fault::new(Rule::OutOfBounds, span, message));
            }
            element += index * tensor.strides[axis];
        }
        let at = (tensor.offset + element) as usize * tensor.scalar.bytes() as usize;
        Ok((tensor.buffer, at, tensor.scalar))
    }

    fn tile_race(
        &self,
        race: Race,
        kind: AccessKind,
        param: Param,
        indices: &[u64],
        span: Span,
    ) -> Fault {
        let cell = format!("{}{indices:?}", self.kernel.params[param].name);
        self.race_on(&cell, "this tile operation", kind, &race, span)
    }
}

fn vector(lanes: u64) -> String {
    if lanes == 1 {
        String::new()
    } else {
        format!(" (and {} more of a vector)", lanes - 1)
    }
}

fn global(tensor: &TensorMemory, element: u64, step: u64) -> Location {
    let size = tensor.scalar.bytes() as usize;
    Location::Global {
        buffer: tensor.buffer,
        at: (tensor.offset + element) as usize * size,
        step: step as usize * size,
    }
}
