//! Code of values.

use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{self, InstBuilder};
use iron_ir::entity::{Handle, Local, Value};
use iron_ir::op::{BinaryOp, BuiltinOp};
use iron_ir::{Const, Op, Scalar, Type};

use super::emit::{CpuError, Emitter, LocalVars, Mode, Rep, Slots};
use super::ops::{Calc, is_narrow};
use super::support::SUBGROUP_SIZE;

impl Emitter<'_, '_> {
    /// Emits the code of a value.
    pub(super) fn compute(&mut self, value: Value) -> Result<Rep, CpuError> {
        let kernel = self.kernel;
        let data = &kernel.values[value];
        let ty = data.ty;
        match &data.op {
            Op::Const(c) => Ok(Rep::Uniform(vec![self.constant_value(*c)])),
            Op::Scalar(param) => match self.scalars[param.index()] {
                Some(x) => Ok(Rep::Uniform(vec![x])),
                None => Err(CpuError::no("scalar of that parameter".into())),
            },
            Op::Dim(dim) => Ok(Rep::Uniform(vec![self.dims[dim.index()]])),
            Op::Stride(param, axis) => {
                let stride = match self.strides.get(&(*param, *axis)) {
                    Some(stride) => *stride,
                    None => self.i64(1),
                };
                Ok(Rep::Uniform(vec![stride]))
            }
            Op::Builtin(op, axis) => Ok(self.builtin(*op, usize::from(*axis).min(2))),
            Op::Unary(op, a) => {
                let a = (self.get(*a)?, self.ty(*a));
                self.apply(Calc::Unary(*op, a.1.scalar), &[a], ty)
            }
            Op::Binary(op, a, b) => self.binary(*op, *a, *b, ty),
            Op::Compare(op, a, b) => {
                let scalar = self.ty(*a).scalar;
                let args = [(self.get(*a)?, self.ty(*a)), (self.get(*b)?, self.ty(*b))];
                self.apply(Calc::Compare(*op, scalar), &args, ty)
            }
            Op::Select(c, a, b) => {
                let args = [
                    (self.get(*c)?, self.ty(*c)),
                    (self.get(*a)?, self.ty(*a)),
                    (self.get(*b)?, self.ty(*b)),
                ];
                self.apply(Calc::Select, &args, ty)
            }
            Op::Fma(a, b, c) => {
                let args = [
                    (self.get(*a)?, self.ty(*a)),
                    (self.get(*b)?, self.ty(*b)),
                    (self.get(*c)?, self.ty(*c)),
                ];
                self.apply(Calc::Fma(ty.scalar), &args, ty)
            }
            Op::Convert(a) => self.conversion(*a, ty),
            Op::Bitcast(a) => self.bitcast(*a, ty),
            Op::Splat(a) => {
                let (rep, from) = (self.get(*a)?, self.ty(*a));
                self.per_thread(&[(rep, from)], |this, slots| {
                    let x = slots[0][0];
                    Ok(if Self::is_x4(ty) {
                        let x4 = this.splat(ty.scalar, x);
                        vec![x4; usize::from(ty.lanes / 4)]
                    } else {
                        vec![x; usize::from(ty.lanes)]
                    })
                })
            }
            Op::Vector(parts) => self.vector(parts, ty),
            Op::Extract(a, lane) => self.extract(*a, *lane),
            Op::Insert(a, lane, b) => {
                let args = [(self.get(*a)?, self.ty(*a)), (self.get(*b)?, self.ty(*b))];
                let lane = *lane;
                self.per_thread(&args, |this, slots| {
                    let mut parts: Vec<_> = (0..ty.lanes)
                        .map(|i| this.component(ty, &slots[0], i))
                        .collect();
                    if let Some(part) = parts.get_mut(usize::from(lane)) {
                        *part = slots[1][0];
                    }
                    Ok(this.compose(ty, &parts))
                })
            }
            Op::Get(local) => Ok(self.local(*local)),
            Op::Load { place, indices } => self.load(*place, indices, ty),
            Op::Result => Err(CpuError::no(format!("definition of {value}"))),
        }
    }

    /// Computes thread by thread what has no side-by-side form.
    fn per_thread(
        &mut self,
        args: &[(Rep, Type)],
        mut f: impl FnMut(&mut Self, &[Slots]) -> Result<Slots, CpuError>,
    ) -> Result<Rep, CpuError> {
        if args.iter().all(|(rep, _)| matches!(rep, Rep::Uniform(_))) {
            let slots: Vec<Slots> = args
                .iter()
                .map(|(rep, ty)| self.slots_of(rep, *ty, 0))
                .collect();
            return Ok(Rep::Uniform(f(self, &slots)?));
        }
        let mut lanes: [Slots; 4] = Default::default();
        for (lane, out) in lanes.iter_mut().enumerate() {
            let slots: Vec<Slots> = args
                .iter()
                .map(|(rep, ty)| self.slots_of(rep, *ty, lane as u8))
                .collect();
            *out = f(self, &slots)?;
        }
        Ok(Rep::Lanes(Box::new(lanes)))
    }

    fn constant_value(&mut self, c: Const) -> ir::Value {
        match c.scalar {
            Scalar::F32 => self.b.ins().f32const(f32::from_bits(c.bits as u32)),
            Scalar::F64 => self.b.ins().f64const(f64::from_bits(c.bits)),
            Scalar::Bool => self.b.ins().iconst(ir::types::I8, (c.bits & 1) as i64),
            Scalar::I64 | Scalar::U64 => self.i64(c.bits as i64),
            Scalar::I8 => self.i32(i32::from(c.bits as u8 as i8) as u32),
            Scalar::I16 => self.i32(i32::from(c.bits as u16 as i16) as u32),
            _ => self.i32(c.bits as u32),
        }
    }

    fn builtin(&mut self, op: BuiltinOp, axis: usize) -> Rep {
        let size = self.kernel.contract.workgroup;
        let threads = self.kernel.contract.threads();
        let uniform = |x| Rep::Uniform(vec![x]);
        match op {
            BuiltinOp::GroupId => uniform(self.group_id[axis]),
            BuiltinOp::GroupCount => uniform(self.group_count[axis]),
            BuiltinOp::GroupSize => uniform(self.i32(size[axis])),
            BuiltinOp::GroupThreads => uniform(self.i32(threads)),
            BuiltinOp::SubgroupSize => uniform(self.i32(SUBGROUP_SIZE)),
            BuiltinOp::SubgroupCount => uniform(self.i32(threads.div_ceil(SUBGROUP_SIZE))),
            BuiltinOp::LocalIndex => self.linear(),
            BuiltinOp::SubgroupId => self.part(SUBGROUP_SIZE, BinaryOp::Div),
            BuiltinOp::SubgroupLane => self.part(SUBGROUP_SIZE, BinaryOp::Rem),
            BuiltinOp::LocalId => self.local_id(axis),
            BuiltinOp::GlobalId => {
                let local = self.local_id(axis);
                let first = self
                    .b
                    .ins()
                    .imul_imm_s(self.group_id[axis], i64::from(size[axis]));
                match local {
                    Rep::Uniform(slots) => uniform(self.b.ins().iadd(first, slots[0])),
                    Rep::Affine {
                        base,
                        stride,
                        align,
                    } => {
                        let align = align.min(1 << size[axis].trailing_zeros().min(16));
                        Rep::Affine {
                            base: self.b.ins().iadd(first, base),
                            stride,
                            align,
                        }
                    }
                    Rep::Packed(x4) => {
                        let first = self.splat(Scalar::U32, first);
                        Rep::Packed(self.b.ins().iadd(first, x4))
                    }
                    Rep::Lanes(lanes) => Rep::Lanes(Box::new(
                        (*lanes).map(|slots| vec![self.b.ins().iadd(first, slots[0])]),
                    )),
                }
            }
        }
    }

    /// The thread's linear index.
    fn linear(&mut self) -> Rep {
        match self.mode {
            Mode::Four => Rep::Affine {
                base: self.thread,
                stride: 1,
                align: 4,
            },
            Mode::Lane(lane) => Rep::Uniform(vec![self.add_const(self.thread, i64::from(lane))]),
            Mode::One | Mode::Group => Rep::Uniform(vec![self.thread]),
        }
    }

    /// Quotient or remainder of the linear index by a constant.
    fn part(&mut self, unit: u32, op: BinaryOp) -> Rep {
        let linear = self.linear();
        self.part_of(&linear, unit, op)
    }

    fn part_of(&mut self, rep: &Rep, unit: u32, op: BinaryOp) -> Rep {
        if unit == 1 {
            return match op {
                BinaryOp::Div => rep.clone(),
                _ => Rep::Uniform(vec![self.i32(0)]),
            };
        }
        let divisor = self.i32(unit);
        if let Some(rep) = self.affine(op, rep, &Rep::Uniform(vec![divisor]), Scalar::U32) {
            return rep;
        }
        let one = |this: &mut Self, x: ir::Value| {
            let divisor = this.i32(unit);
            if op == BinaryOp::Div {
                this.b.ins().udiv(x, divisor)
            } else {
                this.b.ins().urem(x, divisor)
            }
        };
        match rep {
            Rep::Uniform(slots) => Rep::Uniform(vec![one(self, slots[0])]),
            // Four neighbours that start at a multiple of four share the quotient of a multiple
            // of four.
            Rep::Affine {
                base,
                stride: 1,
                align,
            } if *align >= 4 && unit.is_multiple_of(4) => {
                let x = one(self, *base);
                match op {
                    BinaryOp::Div => Rep::Uniform(vec![x]),
                    _ => Rep::Affine {
                        base: x,
                        stride: 1,
                        align: 4,
                    },
                }
            }
            other => {
                let mut lanes: [Slots; 4] = Default::default();
                for (lane, out) in lanes.iter_mut().enumerate() {
                    let x = self.slots_of(other, Type::U32, lane as u8)[0];
                    *out = vec![one(self, x)];
                }
                Rep::Lanes(Box::new(lanes))
            }
        }
    }

    fn local_id(&mut self, axis: usize) -> Rep {
        let [x, y, z] = self.kernel.contract.workgroup;
        let size = [x, y, z];
        if size[axis] == 1 {
            return Rep::Uniform(vec![self.i32(0)]);
        }
        let linear = self.linear();
        let below: u32 = size[..axis].iter().product();
        let above: u32 = size[axis + 1..].iter().product();
        let quotient = self.part_of(&linear, below, BinaryOp::Div);
        if above == 1 {
            quotient
        } else {
            self.part_of(&quotient, size[axis], BinaryOp::Rem)
        }
    }

    /// A sum with a product of four bytes, as the one operation that processors have; `None` where
    /// there is no such product or its operands are out of reach.
    fn dot_sum(&mut self, terms: [Value; 2], ty: Type) -> Result<Option<Rep>, CpuError> {
        for (term, other) in [(terms[0], terms[1]), (terms[1], terms[0])] {
            if let Op::Binary(op @ (BinaryOp::Dot4 | BinaryOp::Dot4Mixed), a, b) =
                self.kernel.values[term].op
                && [a, b].iter().all(|v| self.env[v.index()].is_some())
            {
                let args = [
                    (self.get(a)?, self.ty(a)),
                    (self.get(b)?, self.ty(b)),
                    (self.get(other)?, ty),
                ];
                return self.apply(Calc::DotSum(op, ty.scalar), &args, ty).map(Some);
            }
        }
        Ok(None)
    }

    fn binary(&mut self, op: BinaryOp, a: Value, b: Value, ty: Type) -> Result<Rep, CpuError> {
        let scalar = self.ty(a).scalar;
        if op == BinaryOp::Add
            && let Some(rep) = self.dot_sum([a, b], ty)?
        {
            return Ok(rep);
        }
        let (x, y) = (self.get(a)?, self.get(b)?);
        let has_affine = matches!(x, Rep::Affine { .. }) || matches!(y, Rep::Affine { .. });
        if has_affine && let Some(rep) = self.affine(op, &x, &y, scalar) {
            return Ok(rep);
        }
        let types = [self.ty(a), self.ty(b)];
        // A count or divisor that all lanes share.
        let shared = match (&self.kernel.values[b].op, &y) {
            (Op::Splat(inner), _) => Some(*inner),
            (_, Rep::Uniform(_)) if types[1].lanes == 1 => Some(b),
            _ => None,
        };
        if let Some(shared) = shared {
            let rep = self.get(shared)?;
            if let Rep::Uniform(slots) = &rep
                && is_narrow(scalar)
                && scalar.is_int()
            {
                let count = slots[0];
                let power = self
                    .constant(count)
                    .filter(|n| *n > 0 && n & (n - 1) == 0 && !scalar.is_signed())
                    .map(|n| n.trailing_zeros());
                let by = |this: &mut Self, op, count| {
                    let args = [
                        (x.clone(), types[0]),
                        (Rep::Uniform(vec![count]), Type::U32),
                    ];
                    this.apply(Calc::ShiftBy(op, scalar), &args, ty)
                };
                match (op, power) {
                    (BinaryOp::Shl | BinaryOp::Shr, _) => return by(self, op, count),
                    (BinaryOp::Div, Some(n)) => {
                        let n = self.i32(n);
                        return by(self, BinaryOp::Shr, n);
                    }
                    (BinaryOp::Rem, Some(n)) => {
                        let mask = self.i32((1u32 << n) - 1);
                        let mask = if Self::is_x4(ty) {
                            vec![self.splat(Scalar::U32, mask); usize::from(ty.lanes / 4)]
                        } else {
                            vec![mask; usize::from(ty.lanes)]
                        };
                        let args = [(x, types[0]), (Rep::Uniform(mask), types[1])];
                        return self.apply(Calc::Binary(BinaryOp::And, scalar), &args, ty);
                    }
                    _ => {}
                }
            }
        }
        self.apply(
            Calc::Binary(op, scalar),
            &[(x, types[0]), (y, types[1])],
            ty,
        )
    }

    fn conversion(&mut self, a: Value, ty: Type) -> Result<Rep, CpuError> {
        let (rep, from) = (self.get(a)?, self.ty(a));
        if let Rep::Affine {
            base,
            stride,
            align,
        } = rep
            && from.scalar.is_int()
            && ty.scalar.is_int()
            && ty.scalar.bytes() >= 4
        {
            let base = match (is_narrow(from.scalar), is_narrow(ty.scalar)) {
                (true, false) if from.scalar.is_signed() => self.b.ins().sextend(I64, base),
                (true, false) => self.b.ins().uextend(I64, base),
                (false, true) => self.b.ins().ireduce(I32, base),
                _ => base,
            };
            return Ok(Rep::Affine {
                base,
                stride,
                align,
            });
        }
        if from.lanes != ty.lanes {
            return Err(CpuError::no(format!("conversion of {from} to {ty}")));
        }
        self.apply(Calc::Convert(from.scalar, ty.scalar), &[(rep, from)], ty)
    }

    fn bitcast(&mut self, a: Value, ty: Type) -> Result<Rep, CpuError> {
        let (rep, from) = (self.get(a)?, self.ty(a));
        if let Rep::Affine { .. } = rep
            && from.scalar.is_int()
            && ty.scalar.is_int()
        {
            return Ok(rep);
        }
        if Self::packs(from) && Self::packs(ty) && !matches!(rep, Rep::Uniform(_) | Rep::Lanes(_)) {
            let x4 = self.pack(&rep, from);
            let x4 = self.cast(Self::packed_type(ty.scalar), x4);
            return Ok(Rep::Packed(self.resign(from.scalar, ty.scalar, true, x4)));
        }
        self.per_thread(&[(rep, from)], |this, slots| {
            this.bitcast_slots(&slots[0], from, ty)
        })
    }

    /// Extends narrow bits by the sign that their new type has.
    fn resign(&mut self, from: Scalar, to: Scalar, x4: bool, x: ir::Value) -> ir::Value {
        let narrow = to.bytes() < 4 && to.is_int() && from.is_signed() != to.is_signed();
        let cleared = from.bytes() < 4 && from.is_signed() && !to.is_signed();
        if !narrow && !cleared {
            return x;
        }
        let shift = self.i32(32 - to.bits());
        let up = self.b.ins().ishl(x, shift);
        let _ = x4;
        if to.is_signed() {
            self.b.ins().sshr(up, shift)
        } else {
            self.b.ins().ushr(up, shift)
        }
    }

    fn bitcast_slots(
        &mut self,
        slots: &[ir::Value],
        from: Type,
        ty: Type,
    ) -> Result<Slots, CpuError> {
        if from.lanes == ty.lanes {
            let targets = Self::slot_types(ty);
            return Ok(slots
                .iter()
                .zip(targets)
                .map(|(&x, target)| {
                    let x = self.cast(target, x);
                    if is_narrow(ty.scalar) {
                        self.resign(from.scalar, ty.scalar, Self::is_x4(ty), x)
                    } else {
                        x
                    }
                })
                .collect());
        }
        if from.bytes() == 4 && from.lanes == 1 && ty.lanes == 4 {
            let word = self.cast(I32, slots[0]);
            let x4 = self.spread_bytes(word);
            return Ok(vec![self.resign(Scalar::U8, ty.scalar, true, x4)]);
        }
        // Piece by piece through 64 bits.
        let mut parts = Vec::new();
        for lane in 0..from.lanes {
            let x = self.component(from, slots, lane);
            let x = if is_narrow(from.scalar) {
                self.cast(I32, x)
            } else {
                self.cast(I64, x)
            };
            let x = if is_narrow(from.scalar) {
                self.b.ins().uextend(I64, x)
            } else {
                x
            };
            parts.push(if from.scalar.bytes() < 4 {
                let mask = self.i64((1 << from.scalar.bits()) - 1);
                self.b.ins().band(x, mask)
            } else {
                x
            });
        }
        let (from_bits, to_bits) = (from.scalar.bits(), ty.scalar.bits());
        let mut out = Vec::new();
        for lane in 0..u32::from(ty.lanes) {
            let x = if to_bits <= from_bits {
                let at = lane * to_bits;
                let shift = self.i32(at % from_bits);
                self.b.ins().ushr(parts[(at / from_bits) as usize], shift)
            } else {
                let n = to_bits / from_bits;
                let mut x = self.i64(0);
                for i in 0..n {
                    let shift = self.i32(i * from_bits);
                    let moved = self.b.ins().ishl(parts[(lane * n + i) as usize], shift);
                    x = self.b.ins().bor(x, moved);
                }
                x
            };
            let target = super::ops::machine_type(ty.scalar, false);
            out.push(if to_bits == 64 {
                self.cast(target, x)
            } else {
                let x = self.b.ins().ireduce(I32, x);
                let x = if to_bits < 32 {
                    let shift = self.i32(32 - to_bits);
                    let up = self.b.ins().ishl(x, shift);
                    if ty.scalar.is_signed() {
                        self.b.ins().sshr(up, shift)
                    } else {
                        self.b.ins().ushr(up, shift)
                    }
                } else {
                    x
                };
                self.cast(target, x)
            });
        }
        Ok(self.compose(ty, &out))
    }

    fn vector(&mut self, parts: &[Value], ty: Type) -> Result<Rep, CpuError> {
        let mut args = Vec::with_capacity(parts.len());
        for &part in parts {
            args.push((self.get(part)?, self.ty(part)));
        }
        let uniform = args.iter().all(|(rep, _)| matches!(rep, Rep::Uniform(_)));
        if !uniform && Self::is_x4(ty) && ty.scalar != Scalar::Bool {
            let mut lanes: [Slots; 4] = Default::default();
            for four in args.chunks_exact(4) {
                let rows = [0, 1, 2, 3].map(|i| {
                    let (rep, ty) = &four[i];
                    self.pack(rep, *ty)
                });
                for (lane, x) in self.transpose(rows).into_iter().enumerate() {
                    lanes[lane].push(x);
                }
            }
            return Ok(Rep::Lanes(Box::new(lanes)));
        }
        self.per_thread(&args, |this, slots| {
            let parts: Vec<_> = slots.iter().map(|s| s[0]).collect();
            Ok(this.compose(ty, &parts))
        })
    }

    fn extract(&mut self, a: Value, lane: u8) -> Result<Rep, CpuError> {
        let (rep, from) = (self.get(a)?, self.ty(a));
        if let Rep::Lanes(lanes) = &rep
            && Self::is_x4(from)
            && from.scalar != Scalar::Bool
        {
            if let Some(columns) = self.columns.get(&a) {
                return Ok(Rep::Packed(columns[usize::from(lane)]));
            }
            let mut columns = Vec::new();
            for slot in 0..usize::from(from.lanes / 4) {
                let rows = [0, 1, 2, 3].map(|l: usize| lanes[l][slot]);
                columns.extend(self.transpose(rows));
            }
            let x = columns[usize::from(lane)];
            // Bound anew, so that the columns are forgotten with the block they stand in.
            self.bind(a, rep);
            self.columns.insert(a, columns);
            return Ok(Rep::Packed(x));
        }
        self.per_thread(&[(rep, from)], |this, slots| {
            Ok(vec![this.component(from, &slots[0], lane)])
        })
    }

    /// Reads a variable.
    fn local(&mut self, local: Local) -> Rep {
        let ty = self.kernel.locals[local].ty;
        let Some(vars) = self.locals.get(&local).cloned() else {
            // Never written in this run: any value does.
            let types = Self::slot_types(ty);
            let vars = self.variables(&types);
            return Rep::Uniform(vars.iter().map(|v| self.b.use_var(*v)).collect());
        };
        let mut read = |vars: &[cranelift_frontend::Variable]| -> Slots {
            vars.iter().map(|v| self.b.use_var(*v)).collect()
        };
        match (&vars, self.mode) {
            (LocalVars::Uniform(vars), _) => Rep::Uniform(read(vars)),
            (LocalVars::Packed(var), Mode::Lane(lane)) => {
                let x4 = self.b.use_var(*var);
                Rep::Uniform(vec![self.lane(ty.scalar, x4, lane)])
            }
            (LocalVars::Packed(var), _) => Rep::Packed(self.b.use_var(*var)),
            (LocalVars::Lanes(lanes), Mode::Lane(lane)) => {
                Rep::Uniform(read(&lanes[usize::from(lane)]))
            }
            (LocalVars::Lanes(lanes), _) => {
                Rep::Lanes(Box::new([0, 1, 2, 3].map(|l: usize| read(&lanes[l]))))
            }
        }
    }

    /// Writes a variable.
    pub(super) fn set_local(&mut self, local: Local, rep: &Rep) {
        let ty = self.kernel.locals[local].ty;
        let Some(vars) = self.locals.get(&local).cloned() else {
            return;
        };
        match (&vars, self.mode) {
            (LocalVars::Uniform(vars), _) => {
                let slots = self.slots_of(rep, ty, 0);
                for (var, x) in vars.iter().zip(slots) {
                    self.b.def_var(*var, x);
                }
            }
            (LocalVars::Packed(var), Mode::Lane(lane)) => {
                let x = self.slots_of(rep, ty, 0)[0];
                let x = if ty.scalar == Scalar::Bool {
                    self.b.ins().bmask(I32, x)
                } else {
                    x
                };
                let old = self.b.use_var(*var);
                let x4 = self.b.ins().insertlane(old, x, lane);
                self.b.def_var(*var, x4);
            }
            (LocalVars::Packed(var), _) => {
                let x4 = self.pack(rep, ty);
                self.b.def_var(*var, x4);
            }
            (LocalVars::Lanes(lanes), mode) => {
                for (at, vars) in lanes.iter().enumerate() {
                    let own = match mode {
                        Mode::Lane(lane) => usize::from(lane) == at,
                        _ => true,
                    };
                    if own {
                        let slots = self.slots_of(rep, ty, at as u8);
                        for (var, x) in vars.iter().zip(slots) {
                            self.b.def_var(*var, x);
                        }
                    }
                }
            }
        }
    }
}
