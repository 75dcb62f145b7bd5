//! Modules of small kernels, checked by `spirv-val` where it is installed.

use std::process::Command;
use std::sync::Arc;

use iron_ir::entity::{Local, Param, Value};
use iron_ir::kernel::{
    Access, ArrayData, Block, Kernel, LocalData, ParamData, ParamKind, Space, Span, TensorData,
    TensorLayout,
};
use iron_ir::op::{
    AtomicOp, BarrierMemory, BarrierScope, BinaryOp, BuiltinOp, CompareOp, Const, Op, Place, Stmt,
    SubgroupOp, UnaryOp, Unroll,
};
use iron_ir::types::{Scalar, Type};
use iron_ir::{Expr, ExprOp};

use super::{disassemble, emit};
use crate::profile::{self, Profile};

/// Writes small kernels by hand.
pub(super) struct Sketch {
    kernel: Kernel,
    blocks: Vec<Block>,
    line: u32,
}

impl Sketch {
    fn new(name: &str, workgroup: u32) -> Sketch {
        let mut kernel = Kernel { name: name.into(), ..Kernel::default() };
        kernel.files.push("kernels/sketch.rs".into());
        kernel.contract.workgroup = [workgroup, 1, 1];
        Sketch { kernel, blocks: vec![Block::default()], line: 0 }
    }

    /// A tensor of one dimension `n`.
    fn tensor(&mut self, name: &str, scalar: Scalar, access: Access) -> Param {
        let dim = self.kernel.dim_named("n").unwrap_or_else(|| self.kernel.dims.push("n".into()));
        let data = TensorData {
            scalar,
            shape: vec![Expr::Dim(dim)],
            access,
            layout: TensorLayout::RowMajor,
            align: 1,
            may_alias: Vec::new(),
        };
        let kind = ParamKind::Tensor(data);
        self.kernel.params.push(ParamData { name: name.into(), kind, span: Span::default() })
    }

    fn scalar(&mut self, name: &str, scalar: Scalar) -> Value {
        let kind = ParamKind::Scalar(scalar);
        let param =
            self.kernel.params.push(ParamData { name: name.into(), kind, span: Span::default() });
        self.value(Op::Scalar(param), scalar.x(1))
    }

    fn value(&mut self, op: Op, ty: Type) -> Value {
        self.kernel.add_value(op, ty, Span::default())
    }

    fn n(&mut self) -> Value {
        let dim = self.kernel.dim_named("n").unwrap_or_else(|| self.kernel.dims.push("n".into()));
        self.value(Op::Dim(dim), Type::U32)
    }

    fn constant(&mut self, scalar: Scalar, bits: u64) -> Value {
        self.value(Op::Const(Const { scalar, bits }), scalar.x(1))
    }

    fn u32(&mut self, value: u32) -> Value {
        self.constant(Scalar::U32, u64::from(value))
    }

    fn f32(&mut self, value: f32) -> Value {
        self.constant(Scalar::F32, u64::from(value.to_bits()))
    }

    fn builtin(&mut self, op: BuiltinOp) -> Value {
        self.value(Op::Builtin(op, 0), Type::U32)
    }

    fn push(&mut self, stmt: Stmt) {
        self.line += 1;
        let span = Span { file: 0, line: self.line, column: 1 };
        if let Some(block) = self.blocks.last_mut() {
            block.push(stmt, span);
        }
    }

    fn compute(&mut self, op: Op, ty: Type) -> Value {
        let value = self.value(op, ty);
        self.push(Stmt::Let(value));
        value
    }

    fn named(&mut self, name: &str, op: Op, ty: Type) -> Value {
        let value = self.compute(op, ty);
        self.kernel.values[value].name = Some(name.into());
        value
    }

    fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let ty = self.kernel.ty(a);
        self.compute(Op::Binary(op, a, b), ty)
    }

    fn compare(&mut self, op: CompareOp, a: Value, b: Value) -> Value {
        let ty = self.kernel.ty(a).with_scalar(Scalar::Bool);
        self.compute(Op::Compare(op, a, b), ty)
    }

    fn load(&mut self, param: Param, index: Value, ty: Type) -> Value {
        let index = self.compute(Op::Convert(index), Type::U64);
        self.compute(Op::Load { place: Place::Flat(param), indices: vec![index] }, ty)
    }

    fn store(&mut self, param: Param, index: Value, value: Value) {
        let index = self.compute(Op::Convert(index), Type::U64);
        self.push(Stmt::Store { place: Place::Flat(param), indices: vec![index], value });
    }

    fn local(&mut self, name: &str, ty: Type) -> Local {
        self.kernel.locals.push(LocalData { name: name.into(), ty, span: Span::default() })
    }

    fn get(&mut self, local: Local) -> Value {
        let ty = self.kernel.locals[local].ty;
        self.compute(Op::Get(local), ty)
    }

    fn nest(&mut self, body: impl FnOnce(&mut Sketch)) -> Block {
        self.blocks.push(Block::default());
        body(self);
        self.blocks.pop().unwrap_or_default()
    }

    fn if_else(
        &mut self,
        condition: Value,
        then_body: impl FnOnce(&mut Sketch),
        else_body: impl FnOnce(&mut Sketch),
    ) {
        let then_block = self.nest(then_body);
        let else_block = self.nest(else_body);
        self.push(Stmt::If { condition, then_block, else_block });
    }

    fn for_range(&mut self, range: [Value; 3], body: impl FnOnce(&mut Sketch, Value)) {
        let ty = self.kernel.ty(range[0]);
        let index = self.value(Op::Result, ty);
        let body = self.nest(|s| body(s, index));
        let [start, end, step] = range;
        self.push(Stmt::For { index, start, end, step, unroll: Unroll::Auto, body });
    }

    fn finish(mut self) -> Kernel {
        if let Some(dim) = self.kernel.dim_named("n") {
            let threads = i64::from(self.kernel.contract.threads());
            self.kernel.contract.grid[0] =
                Expr::binary(ExprOp::CeilDiv, Expr::Dim(dim), Expr::Const(threads));
        }
        self.kernel.body = self.blocks.pop().unwrap_or_default();
        self.kernel
    }
}

/// `y = a * x + y` on as many elements as there are.
pub(super) fn axpy(scalar: Scalar) -> Kernel {
    let mut s = Sketch::new("axpy", 64);
    s.kernel.doc = "Adds a multiple: `y = a * x + y`.".into();
    s.kernel.instance = Arc::from(scalar.name());
    let a = s.scalar("a", Scalar::F32);
    let x = s.tensor("x", scalar, Access::Read);
    let y = s.tensor("y", scalar, Access::ReadWrite);
    let i = s.builtin(BuiltinOp::GlobalId);
    let n = s.n();
    let inside = s.compare(CompareOp::Lt, i, n);
    s.if_else(
        inside,
        |s| {
            let [vx, vy] = [x, y].map(|p| {
                let v = s.load(p, i, scalar.x(1));
                if scalar == Scalar::F32 { v } else { s.compute(Op::Convert(v), Type::F32) }
            });
            let product = s.binary(BinaryOp::Mul, a, vx);
            let mut sum = s.named("sum", Op::Binary(BinaryOp::Add, product, vy), Type::F32);
            if scalar != Scalar::F32 {
                sum = s.compute(Op::Convert(sum), scalar.x(1));
            }
            s.store(y, i, sum);
        },
        |_| {},
    );
    s.finish()
}

fn profiles() -> Vec<Profile> {
    profile::of(profile::Target::SpirV)
}

/// Emits for every SPIR-V profile and runs the validator.
fn validate(kernel: &Kernel) -> Vec<String> {
    profiles()
        .iter()
        .map(|profile| {
            let words = emit(kernel, profile).expect("the kernel lowers");
            let text = disassemble(&words);
            if let Err(message) = spirv_val(&words) {
                panic!("{} for {}: {message}\n{text}", kernel.full_name(), profile.name);
            }
            text
        })
        .collect()
}

/// The validator's verdict; a machine without it accepts.
fn spirv_val(words: &[u32]) -> Result<(), String> {
    use std::io::Write;
    use std::process::Stdio;
    let child = Command::new("spirv-val")
        .args(["--target-env", "vulkan1.3", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: spirv-val is not installed");
        return Ok(());
    };
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    if let Some(mut input) = child.stdin.take() {
        input.write_all(&bytes).expect("the validator reads");
    }
    let output = child.wait_with_output().expect("the validator ends");
    if output.status.success() {
        return Ok(());
    }
    let all = [output.stdout, output.stderr].concat();
    Err(String::from_utf8_lossy(&all).into_owned())
}

#[test]
fn axpy_is_valid_and_readable() {
    let texts = validate(&axpy(Scalar::F32));
    assert!(texts[0].contains("; kernel axpy-f32, profile vulkan1.3"), "{}", texts[0]);
    assert!(texts[0].contains("%sum = OpFAdd %f32"), "{}", texts[0]);
    assert!(texts[0].contains("; NoContraction"), "{}", texts[0]);
    validate(&axpy(Scalar::F16));
}

#[test]
fn the_validator_is_asked() {
    let mut words = emit(&axpy(Scalar::F32), &profiles()[0]).expect("the kernel lowers");
    if Command::new("spirv-val").arg("--version").output().is_ok() {
        let last = words.len() - 1;
        words.truncate(last);
        assert!(spirv_val(&words).is_err());
    }
}

/// A loop with `continue`, `break` in a branch, an inner endless loop and an early return.
#[test]
fn control_flow_is_structured() {
    let mut s = Sketch::new("flow", 32);
    let y = s.tensor("y", Scalar::U32, Access::ReadWrite);
    let total = s.local("total", Type::U32);
    let (zero, one, three) = (s.u32(0), s.u32(1), s.u32(3));
    let n = s.n();
    let i = s.builtin(BuiltinOp::GlobalId);
    let outside = s.compare(CompareOp::Ge, i, n);
    s.if_else(outside, |s| s.push(Stmt::Return), |_| {});
    s.push(Stmt::Set(total, zero));
    let end = s.load(y, i, Type::U32);
    s.for_range([zero, end, three], |s, index| {
        let rest = s.binary(BinaryOp::And, index, one);
        let odd = s.compare(CompareOp::Eq, rest, one);
        s.if_else(odd, |s| s.push(Stmt::Continue), |_| {});
        let sum = s.get(total);
        let sum = s.binary(BinaryOp::Add, sum, index);
        s.push(Stmt::Set(total, sum));
        let large = s.compare(CompareOp::Gt, sum, n);
        s.if_else(large, |s| s.push(Stmt::Break), |s| s.push(Stmt::Continue));
        s.push(Stmt::Set(total, zero));
    });
    let body = s.nest(|s| {
        let sum = s.get(total);
        let small = s.compare(CompareOp::Lt, sum, three);
        s.if_else(small, |s| s.push(Stmt::Break), |_| {});
        let body = s.nest(|s| s.push(Stmt::Break));
        s.push(Stmt::Loop { body });
        let sum = s.binary(BinaryOp::Sub, sum, three);
        s.push(Stmt::Set(total, sum));
    });
    s.push(Stmt::Loop { body });
    let sum = s.get(total);
    s.store(y, i, sum);
    let texts = validate(&s.finish());
    // The end is not bounded, so a wrapped index must end the loop.
    assert!(texts[0].contains("OpSelect %u32"), "{}", texts[0]);
}
