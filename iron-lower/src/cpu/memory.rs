//! Loads, stores and atomics, and what threads leave in scratch memory.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32, F64, I8, I8X16, I16X8, I32, I32X4, I64, I64X2};
use cranelift_codegen::ir::{self, AtomicRmwOp, InstBuilder, MemFlagsData};
use iron_ir::entity::{Handle, Value};
use iron_ir::kernel::{ParamKind, Space, TensorLayout};
use iron_ir::op::{AtomicOp, BinaryOp};
use iron_ir::{Op, Place, Scalar, Stmt, Type};

use super::emit::{CpuError, Emitter, Mode, Rep, Slots};
use super::ops::{Calc, is_narrow};

/// Memory that never traps; vectors may lie at any multiple of their elements.
fn flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// Addresses of the threads at work.
enum Addresses {
    One(ir::Value),
    /// Bytes from thread to thread.
    Apart(ir::Value, i64),
    Each([ir::Value; 4]),
}

impl Emitter<'_, '_> {
    /// An index as 64 bits.
    fn wide(&mut self, value: Value) -> Result<Rep, CpuError> {
        let (rep, ty) = (self.get(value)?, self.ty(value));
        if !is_narrow(ty.scalar) {
            return Ok(rep);
        }
        Ok(match rep {
            Rep::Uniform(slots) => Rep::Uniform(vec![self.b.ins().uextend(I64, slots[0])]),
            Rep::Affine {
                base,
                stride,
                align,
            } => Rep::Affine {
                base: self.b.ins().uextend(I64, base),
                stride,
                align,
            },
            rep => {
                let lanes = [0, 1, 2, 3].map(|lane| {
                    let x = self.slots_of(&rep, ty, lane)[0];
                    vec![self.b.ins().uextend(I64, x)]
                });
                Rep::Lanes(Box::new(lanes))
            }
        })
    }

    fn combine(&mut self, op: BinaryOp, a: Rep, b: Rep) -> Result<Rep, CpuError> {
        if let Some(rep) = self.affine(op, &a, &b, Scalar::U64) {
            return Ok(rep);
        }
        self.apply(
            Calc::Binary(op, Scalar::U64),
            &[(a, Type::U64), (b, Type::U64)],
            Type::U64,
        )
    }

    /// An index as 64-bit terms and a constant; see [`Self::index_parts`].
    fn index_terms(&mut self, value: Value, depth: u32) -> Result<(Vec<Rep>, i64), CpuError> {
        let opens = !is_narrow(self.ty(value).scalar) || self.is_natural(value, 16);
        match self.kernel.values[value].op {
            Op::Binary(BinaryOp::Add, a, b) if depth > 0 && opens => {
                let (mut terms, m) = self.index_terms(a, depth - 1)?;
                let (more, n) = self.index_terms(b, depth - 1)?;
                terms.extend(more);
                Ok((terms, m.wrapping_add(n)))
            }
            _ => {
                let (part, n) = self.index_parts(value, depth)?;
                Ok((part.into_iter().collect(), n))
            }
        }
    }

    /// An index as a 64-bit part that varies and a constant, which the access's own offset takes.
    /// Sums and products of 32 bits are widened where nothing in them stands for a negative
    /// number: an index that is in bounds has then not wrapped.
    fn index_parts(&mut self, value: Value, depth: u32) -> Result<(Option<Rep>, i64), CpuError> {
        let kernel = self.kernel;
        let narrow = is_narrow(self.ty(value).scalar);
        let opens = depth > 0 && (!narrow || self.is_natural(value, 16));
        let constant = |v: Value| match kernel.constant(v) {
            Some(c) if c.bits < 1 << 31 => Some(c.bits as i64),
            _ => None,
        };
        match &kernel.values[value].op {
            Op::Const(_) if constant(value).is_some() => Ok((None, constant(value).unwrap_or(0))),
            Op::Convert(a) if !narrow && self.ty(*a).scalar == Scalar::U32 => {
                self.index_parts(*a, depth)
            }
            Op::Binary(BinaryOp::Add, a, b) if opens => {
                let (x, m) = self.index_parts(*a, depth - 1)?;
                let (y, n) = self.index_parts(*b, depth - 1)?;
                let sum = match (x, y) {
                    (Some(x), Some(y)) => Some(self.combine(BinaryOp::Add, x, y)?),
                    (x, y) => x.or(y),
                };
                Ok((sum, m.wrapping_add(n)))
            }
            Op::Binary(BinaryOp::Mul | BinaryOp::Shl, a, b) if opens => {
                let shift = matches!(kernel.values[value].op, Op::Binary(BinaryOp::Shl, ..));
                let (of, by) = match (constant(*a), constant(*b)) {
                    (_, Some(n)) if shift && n < 31 => (*a, 1i64 << n),
                    (_, Some(n)) if !shift => (*a, n),
                    (Some(n), None) if !shift => (*b, n),
                    _ => return Ok((Some(self.wide(value)?), 0)),
                };
                let (x, m) = self.index_parts(of, depth - 1)?;
                let factor = Rep::Uniform(vec![self.i64(by)]);
                let x = x
                    .map(|x| self.combine(BinaryOp::Mul, x, factor))
                    .transpose()?;
                Ok((x, m.wrapping_mul(by)))
            }
            _ => Ok((Some(self.wide(value)?), 0)),
        }
    }

    /// Whether a 32-bit value is surely no negative number in disguise, nor made from one.
    fn is_natural(&self, value: Value, depth: u32) -> bool {
        if depth == 0 || self.ty(value).scalar != Scalar::U32 {
            return false;
        }
        let natural = |v: &Value| self.is_natural(*v, depth - 1);
        match &self.kernel.values[value].op {
            Op::Const(c) => c.bits < 1 << 31,
            Op::Dim(_) | Op::Builtin(..) => true,
            // Loop indices and checked indices; both come from bounds.
            Op::Result => self.counters.contains(&value),
            Op::Binary(op, a, b) => match op {
                BinaryOp::Add | BinaryOp::Mul | BinaryOp::Shl | BinaryOp::Max => {
                    natural(a) && natural(b)
                }
                BinaryOp::Div | BinaryOp::Shr => natural(a),
                BinaryOp::Rem | BinaryOp::And | BinaryOp::Min => natural(a) || natural(b),
                _ => false,
            },
            Op::Select(_, a, b) => natural(a) && natural(b),
            Op::Convert(a) => matches!(self.ty(*a).scalar, Scalar::U8 | Scalar::U16 | Scalar::Bool),
            _ => false,
        }
    }

    /// Addresses of an access, and the bytes to add to each.
    fn addresses(&mut self, place: Place, indices: &[Value]) -> Result<(Addresses, i64), CpuError> {
        let kernel = self.kernel;
        let mut constant = 0;
        let (base, scalar, element) = match place {
            Place::Flat(param) | Place::Tensor(param) => {
                let ParamKind::Tensor(tensor) = &kernel.params[param].kind else {
                    return Err(CpuError::no("memory of a scalar".into()));
                };
                let Some(base) = self.bases[param.index()] else {
                    return Err(CpuError::no("base address".into()));
                };
                let mut element = Rep::Uniform(vec![self.i64(0)]);
                let mut base = base;
                if let Place::Flat(_) = place {
                    let (mut terms, n) = self.index_terms(indices[0], 12)?;
                    constant = n;
                    let last = terms.pop();
                    // Rows before columns: what a loop over the columns does not change is an
                    // address of its own, which is computed before the loop.
                    if terms
                        .iter()
                        .chain(&last)
                        .all(|t| matches!(t, Rep::Uniform(_)))
                    {
                        for term in terms.drain(..) {
                            let Rep::Uniform(slots) = term else { continue };
                            let size = i64::from(tensor.scalar.bytes());
                            let bytes = self.b.ins().imul_imm_s(slots[0], size);
                            base = self.b.ins().iadd(base, bytes);
                        }
                    }
                    element = last.unwrap_or(element);
                    for term in terms {
                        element = self.combine(BinaryOp::Add, term, element)?;
                    }
                } else {
                    for (axis, &index) in indices.iter().enumerate() {
                        let mut part = self.wide(index)?;
                        let unit =
                            tensor.layout == TensorLayout::RowMajor && axis + 1 == indices.len();
                        if !unit && let Some(&stride) = self.strides.get(&(param, axis as u8)) {
                            part = self.combine(BinaryOp::Mul, part, Rep::Uniform(vec![stride]))?;
                        }
                        element = self.combine(BinaryOp::Add, element, part)?;
                    }
                }
                (base, tensor.scalar, element)
            }
            Place::Array(array) => {
                let data = &kernel.arrays[array];
                let base =
                    self.add_const(self.scratch, i64::from(self.layout.arrays[array.index()]));
                let (part, n) = self.index_parts(indices[0], 12)?;
                constant = n;
                let mut element = match part {
                    Some(part) => part,
                    None => Rep::Uniform(vec![self.i64(0)]),
                };
                if data.space == Space::Private {
                    let transient = self.plan.transient_arrays.contains(&array);
                    let first = if transient {
                        self.i64(0)
                    } else {
                        self.b.ins().uextend(I64, self.thread)
                    };
                    let len = i64::from(data.len);
                    let first = self.b.ins().imul_imm_s(first, len);
                    let own = match self.mode {
                        Mode::Four => Rep::Affine {
                            base: first,
                            stride: len,
                            align: 1,
                        },
                        Mode::Lane(lane) => {
                            Rep::Uniform(vec![self.add_const(first, len * i64::from(lane))])
                        }
                        Mode::One | Mode::Group => Rep::Uniform(vec![first]),
                    };
                    element = self.combine(BinaryOp::Add, own, element)?;
                }
                (base, data.scalar, element)
            }
        };
        let size = i64::from(scalar.bytes());
        // An offset that does not fit an access's own is added to the base.
        let mut offset = constant.wrapping_mul(size);
        let mut base = base;
        if !(-(1 << 30)..1 << 30).contains(&offset) {
            base = self.add_const(base, offset);
            offset = 0;
        }
        let address = |this: &mut Self, x: ir::Value| {
            let bytes = this.b.ins().imul_imm_s(x, size);
            this.b.ins().iadd(base, bytes)
        };
        Ok(match element {
            Rep::Uniform(slots) => (Addresses::One(address(self, slots[0])), offset),
            Rep::Affine {
                base: first,
                stride,
                ..
            } => (
                Addresses::Apart(address(self, first), stride * size),
                offset,
            ),
            rep => {
                let each = [0, 1, 2, 3].map(|lane| {
                    let x = self.slots_of(&rep, Type::U64, lane)[0];
                    address(self, x)
                });
                (Addresses::Each(each), offset)
            }
        })
    }

    /// Emits a load.
    pub(super) fn load(
        &mut self,
        place: Place,
        indices: &[Value],
        ty: Type,
    ) -> Result<Rep, CpuError> {
        let (addresses, offset) = self.addresses(place, indices)?;
        Ok(match addresses {
            Addresses::One(at) => Rep::Uniform(self.load_slots(at, offset as i32, ty)),
            Addresses::Apart(at, step) if Self::packs(ty) && step == i64::from(ty.bytes()) => {
                Rep::Packed(self.load_slots(at, offset as i32, ty.scalar.x(4))[0])
            }
            Addresses::Apart(at, step) => Rep::Lanes(Box::new([0, 1, 2, 3].map(|lane| {
                let (at, offset) = self.apart(at, offset, lane * step);
                self.load_slots(at, offset, ty)
            }))),
            Addresses::Each(each) => Rep::Lanes(Box::new(
                each.map(|at| self.load_slots(at, offset as i32, ty)),
            )),
        })
    }

    /// An address and offset for one of four threads.
    fn apart(&mut self, at: ir::Value, offset: i64, step: i64) -> (ir::Value, i32) {
        match i32::try_from(offset + step) {
            Ok(offset) => (at, offset),
            Err(_) => (self.add_const(at, step), offset as i32),
        }
    }

    /// Emits a store.
    pub(super) fn store(
        &mut self,
        place: Place,
        indices: &[Value],
        value: Value,
    ) -> Result<(), CpuError> {
        let (rep, ty) = (self.get(value)?, self.ty(value));
        let (addresses, offset) = self.addresses(place, indices)?;
        match addresses {
            // One place for all: the last thread's value stays.
            Addresses::One(at) => {
                let slots = self.slots_of(&rep, ty, 3);
                self.store_slots(at, offset as i32, ty, &slots);
            }
            Addresses::Apart(at, step) if Self::packs(ty) && step == i64::from(ty.bytes()) => {
                let x4 = self.pack(&rep, ty);
                self.store_slots(at, offset as i32, ty.scalar.x(4), &[x4]);
            }
            Addresses::Apart(at, step) => {
                for lane in 0..4 {
                    let slots = self.slots_of(&rep, ty, lane);
                    let (at, offset) = self.apart(at, offset, i64::from(lane) * step);
                    self.store_slots(at, offset, ty, &slots);
                }
            }
            Addresses::Each(each) => {
                for (lane, at) in each.into_iter().enumerate() {
                    let slots = self.slots_of(&rep, ty, lane as u8);
                    self.store_slots(at, offset as i32, ty, &slots);
                }
            }
        }
        Ok(())
    }

    /// Four bytes of a word as four lanes, extended by zeros.
    pub(super) fn spread_bytes(&mut self, word: ir::Value) -> ir::Value {
        let x = self.b.ins().scalar_to_vector(I32X4, word);
        let x = self.cast(I8X16, x);
        let x = self.b.ins().uwiden_low(x);
        self.b.ins().uwiden_low(x)
    }

    /// Loads one thread's value.
    fn load_slots(&mut self, at: ir::Value, offset: i32, ty: Type) -> Slots {
        let size = ty.scalar.bytes() as i32;
        if Self::is_x4(ty) {
            return (0..i32::from(ty.lanes / 4))
                .map(|slot| self.load_four(at, offset + slot * 4 * size, ty.scalar))
                .collect();
        }
        (0..i32::from(ty.lanes))
            .map(|lane| self.load_one(at, offset + lane * size, ty.scalar))
            .collect()
    }

    fn load_one(&mut self, at: ir::Value, offset: i32, scalar: Scalar) -> ir::Value {
        match scalar {
            Scalar::F32 => self.b.ins().load(F32, flags(), at, offset),
            Scalar::F64 => self.b.ins().load(F64, flags(), at, offset),
            Scalar::I64 | Scalar::U64 => self.b.ins().load(I64, flags(), at, offset),
            Scalar::Bool => {
                let x = self.b.ins().load(I8, flags(), at, offset);
                let zero = self.b.ins().iconst(I8, 0);
                self.b.ins().icmp(IntCC::NotEqual, x, zero)
            }
            Scalar::I8 => self.b.ins().sload8(I32, flags(), at, offset),
            Scalar::I16 => self.b.ins().sload16(I32, flags(), at, offset),
            _ => match scalar.bytes() {
                1 => self.b.ins().uload8(I32, flags(), at, offset),
                2 => self.b.ins().uload16(I32, flags(), at, offset),
                _ => self.b.ins().load(I32, flags(), at, offset),
            },
        }
    }

    /// Loads four neighbours as lanes.
    fn load_four(&mut self, at: ir::Value, offset: i32, scalar: Scalar) -> ir::Value {
        match (scalar.bytes(), scalar) {
            (4, _) => self
                .b
                .ins()
                .load(Self::packed_type(scalar), flags(), at, offset),
            (2, Scalar::I16) => self.b.ins().sload16x4(flags(), at, offset),
            (2, _) => self.b.ins().uload16x4(flags(), at, offset),
            _ => {
                let word = self.b.ins().load(I32, flags(), at, offset);
                let x = self.spread_bytes(word);
                match scalar {
                    Scalar::I8 => {
                        let n = self.i32(24);
                        let up = self.b.ins().ishl(x, n);
                        self.b.ins().sshr(up, n)
                    }
                    Scalar::Bool => {
                        let zero = self.i32(0);
                        let zero = self.b.ins().splat(I32X4, zero);
                        self.b.ins().icmp(IntCC::NotEqual, x, zero)
                    }
                    _ => x,
                }
            }
        }
    }

    fn store_slots(&mut self, at: ir::Value, offset: i32, ty: Type, slots: &[ir::Value]) {
        let size = ty.scalar.bytes() as i32;
        for (slot, &x) in slots.iter().enumerate() {
            let slot = slot as i32;
            if Self::is_x4(ty) {
                self.store_four(at, offset + slot * 4 * size, ty.scalar, x);
            } else {
                let offset = offset + slot * size;
                match ty.scalar.bytes() {
                    1 if ty.scalar != Scalar::Bool => {
                        self.b.ins().istore8(flags(), x, at, offset);
                    }
                    2 => {
                        self.b.ins().istore16(flags(), x, at, offset);
                    }
                    _ => {
                        self.b.ins().store(flags(), x, at, offset);
                    }
                }
            }
        }
    }

    fn store_four(&mut self, at: ir::Value, offset: i32, scalar: Scalar, x: ir::Value) {
        if scalar.bytes() == 4 {
            self.b.ins().store(flags(), x, at, offset);
            return;
        }
        let x = if scalar == Scalar::Bool {
            let one = self.i32(1);
            let one = self.b.ins().splat(I32X4, one);
            self.b.ins().band(x, one)
        } else {
            x
        };
        let signed = scalar.is_signed();
        let words = if signed {
            self.b.ins().snarrow(x, x)
        } else {
            self.b.ins().unarrow(x, x)
        };
        if scalar.bytes() == 2 {
            let x = self.cast(I64X2, words);
            let x = self.b.ins().extractlane(x, 0);
            self.b.ins().store(flags(), x, at, offset);
            return;
        }
        let words = self.cast(I16X8, words);
        let bytes = if signed {
            self.b.ins().snarrow(words, words)
        } else {
            self.b.ins().unarrow(words, words)
        };
        let x = self.cast(I32X4, bytes);
        let x = self.b.ins().extractlane(x, 0);
        self.b.ins().store(flags(), x, at, offset);
    }

    /// Emits an atomic, thread after thread.
    pub(super) fn atomic(&mut self, stmt: &Stmt) -> Result<(), CpuError> {
        let Stmt::Atomic {
            result,
            op,
            place,
            indices,
            value,
            compare,
        } = stmt
        else {
            return Ok(());
        };
        let ty = self.ty(*result);
        let (addresses, offset) = self.addresses(*place, indices)?;
        let value = value.map(|v| self.get(v)).transpose()?;
        let compare = compare.map(|v| self.get(v)).transpose()?;
        let threads = if self.mode == Mode::Four { 4 } else { 1 };
        let mut lanes: [Slots; 4] = Default::default();
        for lane in 0..threads {
            let at = match &addresses {
                Addresses::One(at) => self.add_const(*at, offset),
                Addresses::Apart(at, step) => self.add_const(*at, offset + i64::from(lane) * step),
                Addresses::Each(each) => self.add_const(each[usize::from(lane)], offset),
            };
            let operand = value.as_ref().map(|rep| self.slots_of(rep, ty, lane)[0]);
            let expected = compare.as_ref().map(|rep| self.slots_of(rep, ty, lane)[0]);
            // One thread of the machine runs a workgroup, so that shared memory needs no lock.
            let shared = matches!(place, Place::Array(_));
            lanes[usize::from(lane)] =
                vec![self.atomic_one(*op, ty.scalar, at, operand, expected, shared)?];
        }
        let rep = if threads == 4 {
            Rep::Lanes(Box::new(lanes))
        } else {
            Rep::Uniform(std::mem::take(&mut lanes[0]))
        };
        self.bind(*result, rep);
        Ok(())
    }

    fn atomic_one(
        &mut self,
        op: AtomicOp,
        scalar: Scalar,
        at: ir::Value,
        operand: Option<ir::Value>,
        expected: Option<ir::Value>,
        shared: bool,
    ) -> Result<ir::Value, CpuError> {
        let missing = || CpuError::no(format!("atomic `{}` without its operand", op.name()));
        let ty = if is_narrow(scalar) { I32 } else { I64 };
        let machine = super::ops::machine_type(scalar, false);
        if op == AtomicOp::Load {
            let x = if shared {
                self.b.ins().load(ty, flags(), at, 0)
            } else {
                self.b.ins().atomic_load(ty, flags().with_aligned(), at)
            };
            return Ok(self.cast(machine, x));
        }
        let operand = operand.ok_or_else(missing)?;
        let combine = |this: &mut Self, old: ir::Value| -> Result<ir::Value, CpuError> {
            let op = match op {
                AtomicOp::Add => BinaryOp::Add,
                AtomicOp::Min => BinaryOp::Min,
                AtomicOp::Max => BinaryOp::Max,
                AtomicOp::And => BinaryOp::And,
                AtomicOp::Or => BinaryOp::Or,
                AtomicOp::Xor => BinaryOp::Xor,
                AtomicOp::Exchange | AtomicOp::Store => return Ok(operand),
                AtomicOp::CompareExchange => {
                    let expected = expected.ok_or_else(missing)?;
                    let (a, b) = (this.cast(ty, old), this.cast(ty, expected));
                    let same = this.b.ins().icmp(IntCC::Equal, a, b);
                    return Ok(this.b.ins().select(same, operand, old));
                }
                AtomicOp::Load => return Ok(old),
            };
            this.calc(Calc::Binary(op, scalar), false, &[old, operand])
        };
        if shared {
            let old = self.b.ins().load(machine, flags(), at, 0);
            let new = combine(self, old)?;
            self.b.ins().store(flags(), new, at, 0);
            return Ok(old);
        }
        let flags = flags().with_aligned();
        let bits = self.cast(ty, operand);
        let signed = scalar.is_signed();
        let rmw = match op {
            AtomicOp::Add if scalar.is_int() => Some(AtomicRmwOp::Add),
            AtomicOp::Min if signed => Some(AtomicRmwOp::Smin),
            AtomicOp::Max if signed => Some(AtomicRmwOp::Smax),
            AtomicOp::Min => Some(AtomicRmwOp::Umin),
            AtomicOp::Max => Some(AtomicRmwOp::Umax),
            AtomicOp::And => Some(AtomicRmwOp::And),
            AtomicOp::Or => Some(AtomicRmwOp::Or),
            AtomicOp::Xor => Some(AtomicRmwOp::Xor),
            AtomicOp::Exchange | AtomicOp::Store => Some(AtomicRmwOp::Xchg),
            AtomicOp::Add | AtomicOp::CompareExchange | AtomicOp::Load => None,
        };
        if let Some(rmw) = rmw {
            let old = self.b.ins().atomic_rmw(ty, flags, rmw, at, bits);
            return Ok(self.cast(machine, old));
        }
        if op == AtomicOp::CompareExchange {
            let expected = expected.ok_or_else(missing)?;
            let expected = self.cast(ty, expected);
            let old = self.b.ins().atomic_cas(flags, at, expected, bits);
            return Ok(self.cast(machine, old));
        }
        // A float sum: compare and exchange until nobody came between.
        let again = self.b.create_block();
        let done = self.b.create_block();
        self.b.append_block_param(again, ty);
        let first = self.b.ins().atomic_load(ty, flags, at);
        self.b.ins().jump(again, &[first.into()]);
        self.b.switch_to_block(again);
        let seen = self.b.block_params(again)[0];
        let old = self.cast(machine, seen);
        let new = combine(self, old)?;
        let new = self.cast(ty, new);
        let found = self.b.ins().atomic_cas(flags, at, seen, new);
        let same = self.b.ins().icmp(IntCC::Equal, found, seen);
        self.b.ins().brif(same, done, &[], again, &[found.into()]);
        self.b.switch_to_block(done);
        Ok(self.cast(machine, seen))
    }

    /// Address of a thread's place in an area of scratch memory.
    fn thread_address(&mut self, area: u32, thread: ir::Value, bytes: u32) -> ir::Value {
        let wide = self.b.ins().uextend(I64, thread);
        let at = self.b.ins().imul_imm_s(wide, i64::from(bytes));
        let at = self.b.ins().iadd(self.scratch, at);
        self.add_const(at, i64::from(area))
    }

    /// Loads the value that one thread left in an area of scratch memory.
    pub(super) fn load_threads(
        &mut self,
        area: u32,
        ty: Type,
        thread: ir::Value,
    ) -> Result<Slots, CpuError> {
        let threads = self.kernel.contract.threads();
        let mut offset = area;
        let mut slots = Vec::new();
        for machine in Self::slot_types(ty) {
            let bytes = machine.bytes().max(4);
            let at = self.thread_address(offset, thread, bytes);
            let memory = if machine == I8 { I32 } else { machine };
            let x = self.b.ins().load(memory, flags(), at, 0);
            slots.push(if machine == I8 {
                let zero = self.i32(0);
                self.b.ins().icmp(IntCC::NotEqual, x, zero)
            } else {
                x
            });
            offset += bytes * threads;
        }
        Ok(slots)
    }

    /// Loads what the threads at work left in an area of scratch memory.
    pub(super) fn reload(&mut self, area: u32, ty: Type, varying: bool) -> Result<Rep, CpuError> {
        if self.mode != Mode::Four || !varying {
            return Ok(Rep::Uniform(self.load_threads(area, ty, self.thread)?));
        }
        if Self::packs(ty) {
            let at = self.thread_address(area, self.thread, 4);
            return Ok(Rep::Packed(self.b.ins().load(
                Self::packed_type(ty.scalar),
                flags(),
                at,
                0,
            )));
        }
        let mut lanes: [Slots; 4] = Default::default();
        for (lane, out) in lanes.iter_mut().enumerate() {
            let thread = self.add_const(self.thread, lane as i64);
            *out = self.load_threads(area, ty, thread)?;
        }
        Ok(Rep::Lanes(Box::new(lanes)))
    }

    /// Leaves the value of the threads at work in an area of scratch memory.
    pub(super) fn keep(&mut self, area: u32, ty: Type, rep: &Rep) {
        let threads = self.kernel.contract.threads();
        if self.mode == Mode::Four && Self::packs(ty) {
            let x4 = self.pack(rep, ty);
            let at = self.thread_address(area, self.thread, 4);
            self.b.ins().store(flags(), x4, at, 0);
            return;
        }
        let lanes = if self.mode == Mode::Four { 4 } else { 1 };
        for lane in 0..lanes {
            let thread = self.add_const(self.thread, i64::from(lane));
            let mut offset = area;
            for x in self.slots_of(rep, ty, lane) {
                let machine = self.b.func.dfg.value_type(x);
                let x = if machine == I8 {
                    self.b.ins().bmask(I32, x)
                } else {
                    x
                };
                let bytes = machine.bytes().max(4);
                let at = self.thread_address(offset, thread, bytes);
                self.b.ins().store(flags(), x, at, 0);
                offset += bytes * threads;
            }
        }
    }

    /// Memory flags of this module's accesses, for those outside it.
    pub(super) fn flags() -> MemFlagsData {
        flags()
    }
}
