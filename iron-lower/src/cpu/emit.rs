//! The state of code generation, and values as threads side by side hold them.

use std::collections::{HashMap, HashSet};

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32, F32X4, F64, I8, I8X16, I32, I32X4, I64};
use cranelift_codegen::ir::{self, AbiParam, FuncRef, InstBuilder, Signature};
use cranelift_frontend::{FunctionBuilder, Variable};
use cranelift_jit::JITModule;
use cranelift_module::{Linkage, Module};
use iron_ir::entity::{Handle, Local, Param, Value};
use iron_ir::kernel::{Kernel, Span};
use iron_ir::op::BinaryOp;
use iron_ir::{Op, Scalar, Type};

use super::layout::Scratch;
use super::ops::{Calc, is_narrow, machine_type};
use super::plan::Plan;

/// Why a kernel cannot be compiled.
#[derive(Debug)]
pub(super) struct CpuError {
    pub message: String,
    pub span: Span,
}

impl CpuError {
    /// There is no such operation.
    pub fn no(what: String) -> CpuError {
        CpuError {
            message: format!("there is no {what} in machine code"),
            span: Span::default(),
        }
    }
}

/// The machine values of one thread's value: one for each scalar lane, or one for every four
/// lanes of 32 bits.
pub(super) type Slots = Vec<ir::Value>;

/// A value as the threads at work hold it.
#[derive(Clone, Debug)]
pub(super) enum Rep {
    /// The same in all of them; or the one thread's at work.
    Uniform(Slots),
    /// An integer that grows by a constant from thread to thread; `align` divides the base.
    Affine {
        base: ir::Value,
        stride: i64,
        align: u32,
    },
    /// Four threads' scalars of at most 32 bits, side by side.
    Packed(ir::Value),
    /// Each thread's own.
    Lanes(Box<[Slots; 4]>),
}

/// Which threads the code at hand runs for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// The workgroup as a whole.
    Group,
    /// Four threads side by side.
    Four,
    /// One of four.
    Lane(u8),
    /// One thread alone.
    One,
}

/// A variable within a run.
#[derive(Clone)]
pub(super) enum LocalVars {
    Uniform(Vec<Variable>),
    Packed(Variable),
    Lanes([Vec<Variable>; 4]),
}

/// Jump targets of a loop.
#[derive(Clone, Copy)]
pub(super) struct LoopTargets {
    pub next: ir::Block,
    pub exit: ir::Block,
}

/// Code generation of one kernel.
pub(super) struct Emitter<'k, 'f> {
    pub kernel: &'k Kernel,
    pub plan: &'f Plan<'k>,
    pub b: FunctionBuilder<'f>,
    pub module: &'f mut JITModule,
    pub functions: HashMap<String, FuncRef>,
    pub layout: &'f Scratch,
    /// Address of the scratch memory.
    pub scratch: ir::Value,
    pub scalars: Vec<Option<ir::Value>>,
    pub bases: Vec<Option<ir::Value>>,
    pub strides: HashMap<(Param, u8), ir::Value>,
    pub dims: Vec<ir::Value>,
    pub error_word: Option<ir::Value>,
    pub group_id: [ir::Value; 3],
    pub group_count: [ir::Value; 3],
    pub mode: Mode,
    /// The first thread at work, `I32`.
    pub thread: ir::Value,
    /// Loop indices and checked indices: never negative numbers in disguise.
    pub counters: HashSet<Value>,
    pub env: Vec<Option<Rep>>,
    /// Transposed vectors: for each of four lanes, four threads' scalars.
    pub columns: HashMap<Value, Vec<ir::Value>>,
    pub journal: Vec<(Value, Option<Rep>)>,
    pub locals: HashMap<Local, LocalVars>,
    pub loops: Vec<LoopTargets>,
    /// Where a return goes.
    pub return_to: ir::Block,
}

impl<'k> Emitter<'k, '_> {
    /// Type of a value.
    pub fn ty(&self, value: Value) -> Type {
        self.kernel.ty(value)
    }

    /// Binds a value until the scope ends.
    pub fn bind(&mut self, value: Value, rep: Rep) {
        let old = self.env[value.index()].replace(rep);
        self.journal.push((value, old));
    }

    /// Marks a scope.
    pub fn open(&self) -> usize {
        self.journal.len()
    }

    /// Forgets what was bound since the mark.
    pub fn close(&mut self, mark: usize) {
        while self.journal.len() > mark {
            if let Some((value, old)) = self.journal.pop() {
                self.env[value.index()] = old;
                self.columns.remove(&value);
            }
        }
    }

    /// The constant that a machine value is.
    pub fn constant(&self, value: ir::Value) -> Option<i64> {
        let inst = self.b.func.dfg.value_def(value).inst()?;
        match self.b.func.dfg.insts[inst] {
            ir::InstructionData::UnaryImm {
                opcode: ir::Opcode::Iconst,
                imm,
            } => {
                let narrow = self.b.func.dfg.value_type(value) == I32;
                Some(if narrow {
                    i64::from(imm.bits() as i32)
                } else {
                    imm.bits()
                })
            }
            _ => None,
        }
    }

    /// An `I32` constant.
    pub fn i32(&mut self, n: u32) -> ir::Value {
        self.b.ins().iconst(I32, i64::from(n))
    }

    /// An `I64` constant.
    pub fn i64(&mut self, n: i64) -> ir::Value {
        self.b.ins().iconst(I64, n)
    }

    /// Whether four threads' values of a type lie side by side in one register.
    pub fn packs(ty: Type) -> bool {
        ty.lanes == 1 && is_narrow(ty.scalar)
    }

    /// Whether one thread's value of a type is held four lanes to a register.
    pub fn is_x4(ty: Type) -> bool {
        ty.lanes >= 4 && is_narrow(ty.scalar)
    }

    /// Machine types of one thread's value.
    pub fn slot_types(ty: Type) -> Vec<ir::Type> {
        if Self::is_x4(ty) {
            vec![
                machine_type(
                    if ty.scalar == Scalar::Bool {
                        Scalar::U32
                    } else {
                        ty.scalar
                    },
                    true
                );
                usize::from(ty.lanes / 4)
            ]
        } else {
            vec![machine_type(ty.scalar, false); usize::from(ty.lanes)]
        }
    }

    /// Machine type of four threads' values.
    pub fn packed_type(scalar: Scalar) -> ir::Type {
        if scalar == Scalar::F32 { F32X4 } else { I32X4 }
    }

    /// A vector of constants.
    fn vector_of(&mut self, numbers: [u32; 4]) -> ir::Value {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let constant = self.b.func.dfg.constants.insert(bytes.into());
        self.b.ins().vconst(I32X4, constant)
    }

    /// A lane of a register as a scalar of the type.
    pub fn lane(&mut self, scalar: Scalar, x4: ir::Value, lane: u8) -> ir::Value {
        let x = self.b.ins().extractlane(x4, lane);
        if scalar == Scalar::Bool {
            let zero = self.i32(0);
            return self.b.ins().icmp(IntCC::NotEqual, x, zero);
        }
        x
    }

    /// A scalar in every lane.
    pub fn splat(&mut self, scalar: Scalar, x: ir::Value) -> ir::Value {
        let x = self.lane_form(scalar, x);
        self.b.ins().splat(Self::packed_type(scalar), x)
    }

    /// A scalar as a lane holds it.
    fn lane_form(&mut self, scalar: Scalar, x: ir::Value) -> ir::Value {
        if scalar == Scalar::Bool {
            self.b.ins().bmask(I32, x)
        } else {
            x
        }
    }

    /// Four scalars in one register.
    pub fn gather(&mut self, scalar: Scalar, parts: [ir::Value; 4]) -> ir::Value {
        if parts[1..].iter().all(|p| *p == parts[0]) {
            return self.splat(scalar, parts[0]);
        }
        let parts = parts.map(|x| self.lane_form(scalar, x));
        let mut x4 = self
            .b
            .ins()
            .scalar_to_vector(Self::packed_type(scalar), parts[0]);
        for (lane, part) in parts.iter().enumerate().skip(1) {
            x4 = self.b.ins().insertlane(x4, *part, lane as u8);
        }
        x4
    }

    /// A scalar lane of one thread's value.
    pub fn component(&mut self, ty: Type, slots: &[ir::Value], lane: u8) -> ir::Value {
        if Self::is_x4(ty) {
            self.lane(ty.scalar, slots[usize::from(lane / 4)], lane % 4)
        } else {
            slots[usize::from(lane)]
        }
    }

    /// One thread's value from scalar lanes.
    pub fn compose(&mut self, ty: Type, parts: &[ir::Value]) -> Slots {
        if Self::is_x4(ty) {
            parts
                .chunks_exact(4)
                .map(|p| self.gather(ty.scalar, [p[0], p[1], p[2], p[3]]))
                .collect()
        } else {
            parts.to_vec()
        }
    }

    /// One of four threads' values.
    pub fn slots_of(&mut self, rep: &Rep, ty: Type, lane: u8) -> Slots {
        match rep {
            Rep::Uniform(slots) => slots.clone(),
            Rep::Affine { base, stride, .. } => {
                let step = i64::from(lane) * stride;
                vec![self.add_const(*base, step)]
            }
            Rep::Packed(x4) => vec![self.lane(ty.scalar, *x4, lane)],
            Rep::Lanes(lanes) => lanes[usize::from(lane)].clone(),
        }
    }

    /// Adds a constant.
    pub fn add_const(&mut self, x: ir::Value, n: i64) -> ir::Value {
        if n == 0 {
            return x;
        }
        let ty = self.b.func.dfg.value_type(x);
        let n = if ty == I32 { i64::from(n as u32) } else { n };
        let n = self.b.ins().iconst(ty, n);
        self.b.ins().iadd(x, n)
    }

    /// Four threads' scalars side by side.
    pub fn pack(&mut self, rep: &Rep, ty: Type) -> ir::Value {
        match rep {
            Rep::Uniform(slots) => self.splat(ty.scalar, slots[0]),
            Rep::Affine { base, stride, .. } => {
                let base = self.b.ins().splat(I32X4, *base);
                let s = *stride as u32;
                let steps = self.vector_of([0, s, s.wrapping_mul(2), s.wrapping_mul(3)]);
                self.b.ins().iadd(base, steps)
            }
            Rep::Packed(x4) => *x4,
            Rep::Lanes(lanes) => {
                let parts = [lanes[0][0], lanes[1][0], lanes[2][0], lanes[3][0]];
                self.gather(ty.scalar, parts)
            }
        }
    }

    /// The value as the threads at work hold it.
    pub fn get(&mut self, value: Value) -> Result<Rep, CpuError> {
        if let Some(rep) = &self.env[value.index()] {
            let rep = rep.clone();
            return Ok(match (self.mode, &rep) {
                (_, Rep::Uniform(_)) | (Mode::Four, _) => rep,
                (Mode::Lane(lane), _) => {
                    Rep::Uniform(self.slots_of(&rep, self.kernel.ty(value), lane))
                }
                (Mode::Group | Mode::One, _) => {
                    Rep::Uniform(self.slots_of(&rep, self.kernel.ty(value), 0))
                }
            });
        }
        if self.mode == Mode::Group && self.plan.spilled.contains(&value) {
            // The workgroup as a whole goes by its first thread.
            let zero = self.i32(0);
            let slots =
                self.load_threads(self.layout.values[&value], self.kernel.ty(value), zero)?;
            return Ok(Rep::Uniform(slots));
        }
        let op = &self.kernel.values[value].op;
        if matches!(op, Op::Get(_) | Op::Load { .. } | Op::Result) {
            return Err(CpuError {
                message: format!("value {value} is read where it is not defined"),
                span: self.kernel.values[value].span,
            });
        }
        let rep = self.compute(value)?;
        self.bind(value, rep.clone());
        Ok(rep)
    }

    /// The one scalar of a value that all threads at work share.
    pub fn scalar(&mut self, value: Value) -> Result<ir::Value, CpuError> {
        let rep = self.get(value)?;
        Ok(self.slots_of(&rep, self.kernel.ty(value), 0)[0])
    }

    /// Applies an operation to values of the types.
    pub fn apply(&mut self, calc: Calc, args: &[(Rep, Type)], ty: Type) -> Result<Rep, CpuError> {
        if args.iter().all(|(rep, _)| matches!(rep, Rep::Uniform(_))) {
            let slots: Vec<Slots> = args
                .iter()
                .map(|(rep, _)| match rep {
                    Rep::Uniform(slots) => slots.clone(),
                    _ => Vec::new(),
                })
                .collect();
            let types: Vec<Type> = args.iter().map(|(_, ty)| *ty).collect();
            return Ok(Rep::Uniform(self.apply_slots(calc, &slots, &types, ty)?));
        }
        if Self::packs(ty) && args.iter().all(|(_, ty)| Self::packs(*ty)) && calc.is_vector() {
            let mut packed = Vec::with_capacity(args.len());
            for (at, (rep, ty)) in args.iter().enumerate() {
                packed.push(match (calc, at, rep) {
                    (Calc::ShiftBy(..), 1, Rep::Uniform(slots)) => slots[0],
                    _ => self.pack(rep, *ty),
                });
            }
            return Ok(Rep::Packed(self.calc(calc, true, &packed)?));
        }
        let types: Vec<Type> = args.iter().map(|(_, ty)| *ty).collect();
        let mut lanes: [Slots; 4] = Default::default();
        for (lane, out) in lanes.iter_mut().enumerate() {
            let slots: Vec<Slots> = args
                .iter()
                .map(|(rep, ty)| self.slots_of(rep, *ty, lane as u8))
                .collect();
            *out = self.apply_slots(calc, &slots, &types, ty)?;
        }
        Ok(Rep::Lanes(Box::new(lanes)))
    }

    /// Applies an operation to one thread's values.
    pub fn apply_slots(
        &mut self,
        calc: Calc,
        args: &[Slots],
        types: &[Type],
        ty: Type,
    ) -> Result<Slots, CpuError> {
        if ty.lanes == 1 {
            let args: Vec<_> = args.iter().map(|s| s[0]).collect();
            return Ok(vec![self.calc(calc, false, &args)?]);
        }
        let whole = Self::is_x4(ty)
            && calc.is_vector()
            && types.iter().enumerate().all(|(at, t)| {
                Self::is_x4(*t) || matches!((calc, at), (Calc::Select, 0) | (Calc::ShiftBy(..), 1))
            });
        if whole {
            let mut out = Vec::with_capacity(usize::from(ty.lanes / 4));
            for slot in 0..usize::from(ty.lanes / 4) {
                let mut parts = Vec::with_capacity(args.len());
                for (slots, t) in args.iter().zip(types) {
                    parts.push(if Self::is_x4(*t) {
                        slots[slot]
                    } else {
                        slots[0]
                    });
                }
                let scalar_select = matches!(calc, Calc::Select) && !Self::is_x4(types[0]);
                out.push(if scalar_select {
                    self.b.ins().select(parts[0], parts[1], parts[2])
                } else {
                    self.calc(calc, true, &parts)?
                });
            }
            return Ok(out);
        }
        let mut parts = Vec::with_capacity(usize::from(ty.lanes));
        for lane in 0..ty.lanes {
            let mut scalars = Vec::with_capacity(args.len());
            for (slots, t) in args.iter().zip(types) {
                scalars.push(self.component(*t, slots, if t.lanes == 1 { 0 } else { lane }));
            }
            parts.push(self.calc(calc, false, &scalars)?);
        }
        Ok(self.compose(ty, &parts))
    }

    /// Integer arithmetic that keeps the form `base + thread · stride`.
    pub fn affine(&mut self, op: BinaryOp, a: &Rep, b: &Rep, scalar: Scalar) -> Option<Rep> {
        if !scalar.is_int() || scalar.bytes() < 4 || self.mode != Mode::Four {
            return None;
        }
        let constant = |this: &Self, rep: &Rep| match rep {
            Rep::Uniform(slots) => this.constant(slots[0]),
            _ => None,
        };
        let align_of = |n: i64| {
            if n == 0 {
                1 << 16
            } else {
                1u32 << n.trailing_zeros().min(16)
            }
        };
        let uniform_align = |this: &Self, rep: &Rep| constant(this, rep).map_or(1, align_of);
        match (op, a, b) {
            (
                BinaryOp::Add,
                Rep::Affine {
                    base,
                    stride,
                    align,
                },
                Rep::Uniform(u),
            )
            | (
                BinaryOp::Add,
                Rep::Uniform(u),
                Rep::Affine {
                    base,
                    stride,
                    align,
                },
            ) => {
                let other = uniform_align(self, &Rep::Uniform(u.clone()));
                let base = self.b.ins().iadd(*base, u[0]);
                Some(Rep::Affine {
                    base,
                    stride: *stride,
                    align: (*align).min(other),
                })
            }
            (
                BinaryOp::Add,
                Rep::Affine {
                    base,
                    stride,
                    align,
                },
                Rep::Affine {
                    base: base2,
                    stride: stride2,
                    align: align2,
                },
            ) => {
                let base = self.b.ins().iadd(*base, *base2);
                Some(Rep::Affine {
                    base,
                    stride: stride + stride2,
                    align: (*align).min(*align2),
                })
            }
            (
                BinaryOp::Sub,
                Rep::Affine {
                    base,
                    stride,
                    align,
                },
                Rep::Uniform(u),
            ) => {
                let other = uniform_align(self, b);
                let base = self.b.ins().isub(*base, u[0]);
                Some(Rep::Affine {
                    base,
                    stride: *stride,
                    align: (*align).min(other),
                })
            }
            (
                BinaryOp::Mul,
                Rep::Affine {
                    base,
                    stride,
                    align,
                },
                u @ Rep::Uniform(v),
            )
            | (
                BinaryOp::Mul,
                u @ Rep::Uniform(v),
                Rep::Affine {
                    base,
                    stride,
                    align,
                },
            ) => {
                let n = constant(self, u)?;
                let base = self.b.ins().imul(*base, v[0]);
                let align = align.saturating_mul(align_of(n)).min(1 << 16);
                Some(Rep::Affine {
                    base,
                    stride: stride * n,
                    align,
                })
            }
            (
                BinaryOp::Shl,
                Rep::Affine {
                    base,
                    stride,
                    align,
                },
                u @ Rep::Uniform(v),
            ) => {
                let n = constant(self, u)?;
                if !(0..16).contains(&n) {
                    return None;
                }
                let base = self.b.ins().ishl(*base, v[0]);
                Some(Rep::Affine {
                    base,
                    stride: stride << n,
                    align: (align << n).min(1 << 16),
                })
            }
            (
                BinaryOp::Div | BinaryOp::Rem | BinaryOp::Shr | BinaryOp::And,
                Rep::Affine {
                    base,
                    stride,
                    align,
                },
                u,
            ) if !scalar.is_signed() => {
                let n = constant(self, u)?;
                let unit = match op {
                    BinaryOp::Shr if (0..16).contains(&n) => 1i64 << n,
                    BinaryOp::And => n + 1,
                    BinaryOp::Div | BinaryOp::Rem => n,
                    _ => return None,
                };
                // The four threads stay within one unit.
                let fits = unit > 0
                    && unit & (unit - 1) == 0
                    && *stride >= 0
                    && i64::from((*align).min(unit as u32)) > 3 * stride;
                if !fits {
                    return None;
                }
                let ty = self.b.func.dfg.value_type(*base);
                if matches!(op, BinaryOp::Div | BinaryOp::Shr) {
                    let count = self.b.ins().iconst(I32, i64::from(unit.trailing_zeros()));
                    Some(Rep::Uniform(vec![self.b.ins().ushr(*base, count)]))
                } else {
                    let mask = self.b.ins().iconst(ty, unit - 1);
                    let base = self.b.ins().band(*base, mask);
                    Some(Rep::Affine {
                        base,
                        stride: *stride,
                        align: *align,
                    })
                }
            }
            _ => None,
        }
    }

    /// Bytes of two registers picked by constant positions.
    fn shuffle_words(&mut self, a: ir::Value, b: ir::Value, words: [u8; 4]) -> ir::Value {
        let ty = self.b.func.dfg.value_type(a);
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|w| (0..4).map(move |i| w * 4 + i))
            .collect();
        let mask = self.b.func.dfg.immediates.push(bytes.into());
        let (a, b) = (self.cast(I8X16, a), self.cast(I8X16, b));
        let x = self.b.ins().shuffle(a, b, mask);
        self.cast(ty, x)
    }

    /// Pairs of neighbours apart: the even words of `a` and `b`, and the odd ones.
    pub fn unzip(&mut self, a: ir::Value, b: ir::Value) -> [ir::Value; 2] {
        [
            self.shuffle_words(a, b, [0, 2, 4, 6]),
            self.shuffle_words(a, b, [1, 3, 5, 7]),
        ]
    }

    /// Rows become columns.
    pub fn transpose(&mut self, rows: [ir::Value; 4]) -> [ir::Value; 4] {
        let t0 = self.shuffle_words(rows[0], rows[1], [0, 4, 1, 5]);
        let t1 = self.shuffle_words(rows[0], rows[1], [2, 6, 3, 7]);
        let t2 = self.shuffle_words(rows[2], rows[3], [0, 4, 1, 5]);
        let t3 = self.shuffle_words(rows[2], rows[3], [2, 6, 3, 7]);
        [
            self.shuffle_words(t0, t2, [0, 1, 4, 5]),
            self.shuffle_words(t0, t2, [2, 3, 6, 7]),
            self.shuffle_words(t1, t3, [0, 1, 4, 5]),
            self.shuffle_words(t1, t3, [2, 3, 6, 7]),
        ]
    }

    /// Calls a function of `support`.
    pub fn call_math(
        &mut self,
        name: &str,
        scalar: Scalar,
        args: &[ir::Value],
    ) -> Result<ir::Value, CpuError> {
        let conversion = name.contains("_to_");
        let symbol = if conversion {
            name.to_string()
        } else {
            format!("{name}_{}", scalar.name())
        };
        let input = match name.split('_').next() {
            Some("i64" | "u64") => I64,
            _ if scalar == Scalar::F64 => F64,
            _ => F32,
        };
        let output = if conversion { I32 } else { input };
        let function = self.function(&symbol, &vec![input; args.len()], &[output])?;
        let call = self.b.ins().call(function, args);
        Ok(self.b.inst_results(call)[0])
    }

    /// A function of `support`, declared once.
    pub fn function(
        &mut self,
        symbol: &str,
        inputs: &[ir::Type],
        outputs: &[ir::Type],
    ) -> Result<FuncRef, CpuError> {
        if let Some(function) = self.functions.get(symbol) {
            return Ok(*function);
        }
        let mut signature = Signature::new(self.module.target_config().default_call_conv);
        signature
            .params
            .extend(inputs.iter().map(|&ty| AbiParam::new(ty)));
        signature
            .returns
            .extend(outputs.iter().map(|&ty| AbiParam::new(ty)));
        let id = self
            .module
            .declare_function(symbol, Linkage::Import, &signature)
            .map_err(|e| CpuError {
                message: e.to_string(),
                span: Span::default(),
            })?;
        let function = self.module.declare_func_in_func(id, self.b.func);
        self.functions.insert(symbol.to_string(), function);
        Ok(function)
    }

    /// `bool` as a machine condition.
    pub fn truth(&mut self, value: Value) -> Result<ir::Value, CpuError> {
        self.scalar(value)
    }

    /// A fresh variable of each machine type, zero at first.
    pub fn variables(&mut self, types: &[ir::Type]) -> Vec<Variable> {
        types
            .iter()
            .map(|&ty| {
                let variable = self.b.declare_var(ty);
                let zero = self.zero(ty);
                self.b.def_var(variable, zero);
                variable
            })
            .collect()
    }

    fn zero(&mut self, ty: ir::Type) -> ir::Value {
        match ty {
            F32 => self.b.ins().f32const(0.0),
            F64 => self.b.ins().f64const(0.0),
            F32X4 => {
                let zero = self.b.ins().f32const(0.0);
                self.b.ins().splat(F32X4, zero)
            }
            I32X4 => {
                let zero = self.i32(0);
                self.b.ins().splat(I32X4, zero)
            }
            I8 => self.b.ins().iconst(I8, 0),
            other => self.b.ins().iconst(other, 0),
        }
    }
}
