//! Small kernels by hand, for the tests of the lowering and of the backend that runs it.
#![allow(
    dead_code,
    reason = "each of the two crates that include it uses a part"
)]
#![allow(missing_docs, reason = "test code")]

use std::sync::Arc;

use iron_ir::entity::{Array, Local, Param, Value};
use iron_ir::kernel::{
    Access, ArrayData, Block, Kernel, LocalData, ParamData, ParamKind, Space, Span, TensorData,
    TensorLayout,
};
use iron_ir::op::{BinaryOp, BuiltinOp, CompareOp, Const, Op, Place, Stmt, UnaryOp, Unroll};
use iron_ir::types::{Scalar, Type};
use iron_ir::{Expr, ExprOp};

/// Writes small kernels by hand.
pub struct Sketch {
    pub kernel: Kernel,
    blocks: Vec<Block>,
    line: u32,
}

impl Sketch {
    pub fn new(name: &str, workgroup: u32) -> Sketch {
        let mut kernel = Kernel {
            name: name.into(),
            ..Kernel::default()
        };
        kernel.files.push("kernels/sketch.rs".into());
        kernel.contract.workgroup = [workgroup, 1, 1];
        Sketch {
            kernel,
            blocks: vec![Block::default()],
            line: 0,
        }
    }

    /// A tensor of one dimension `n`.
    pub fn tensor(&mut self, name: &str, scalar: Scalar, access: Access) -> Param {
        let dim = self
            .kernel
            .dim_named("n")
            .unwrap_or_else(|| self.kernel.dims.push("n".into()));
        let data = TensorData {
            scalar,
            shape: vec![Expr::Dim(dim)],
            access,
            layout: TensorLayout::RowMajor,
            align: 1,
            may_alias: Vec::new(),
        };
        let kind = ParamKind::Tensor(data);
        self.kernel.params.push(ParamData {
            name: name.into(),
            kind,
            span: Span::default(),
        })
    }

    pub fn scalar(&mut self, name: &str, scalar: Scalar) -> Value {
        let kind = ParamKind::Scalar(scalar);
        let param = self.kernel.params.push(ParamData {
            name: name.into(),
            kind,
            span: Span::default(),
        });
        self.value(Op::Scalar(param), scalar.x(1))
    }

    pub fn value(&mut self, op: Op, ty: Type) -> Value {
        self.kernel.add_value(op, ty, Span::default())
    }

    pub fn n(&mut self) -> Value {
        let dim = self
            .kernel
            .dim_named("n")
            .unwrap_or_else(|| self.kernel.dims.push("n".into()));
        self.value(Op::Dim(dim), Type::U32)
    }

    pub fn constant(&mut self, scalar: Scalar, bits: u64) -> Value {
        self.value(Op::Const(Const { scalar, bits }), scalar.x(1))
    }

    pub fn u32(&mut self, value: u32) -> Value {
        self.constant(Scalar::U32, u64::from(value))
    }

    pub fn f32(&mut self, value: f32) -> Value {
        self.constant(Scalar::F32, u64::from(value.to_bits()))
    }

    pub fn builtin(&mut self, op: BuiltinOp) -> Value {
        self.value(Op::Builtin(op, 0), Type::U32)
    }

    pub fn push(&mut self, stmt: Stmt) {
        self.line += 1;
        let span = Span {
            file: 0,
            line: self.line,
            column: 1,
        };
        if let Some(block) = self.blocks.last_mut() {
            block.push(stmt, span);
        }
    }

    pub fn compute(&mut self, op: Op, ty: Type) -> Value {
        let value = self.value(op, ty);
        self.push(Stmt::Let(value));
        value
    }

    pub fn named(&mut self, name: &str, op: Op, ty: Type) -> Value {
        let value = self.compute(op, ty);
        self.kernel.values[value].name = Some(name.into());
        value
    }

    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let ty = self.kernel.ty(a);
        self.compute(Op::Binary(op, a, b), ty)
    }

    pub fn compare(&mut self, op: CompareOp, a: Value, b: Value) -> Value {
        let ty = self.kernel.ty(a).with_scalar(Scalar::Bool);
        self.compute(Op::Compare(op, a, b), ty)
    }

    pub fn load(&mut self, param: Param, index: Value, ty: Type) -> Value {
        let index = self.compute(Op::Convert(index), Type::U64);
        self.compute(
            Op::Load {
                place: Place::Flat(param),
                indices: vec![index],
            },
            ty,
        )
    }

    pub fn store(&mut self, param: Param, index: Value, value: Value) {
        let index = self.compute(Op::Convert(index), Type::U64);
        self.push(Stmt::Store {
            place: Place::Flat(param),
            indices: vec![index],
            value,
        });
    }

    pub fn unary(&mut self, op: UnaryOp, a: Value) -> Value {
        let ty = self.kernel.ty(a);
        let ty = match op {
            UnaryOp::IsNan | UnaryOp::IsFinite => ty.with_scalar(Scalar::Bool),
            UnaryOp::CountOnes | UnaryOp::LeadingZeros | UnaryOp::TrailingZeros => {
                ty.with_scalar(Scalar::U32)
            }
            _ => ty,
        };
        self.compute(Op::Unary(op, a), ty)
    }

    pub fn array(&mut self, name: &str, scalar: Scalar, len: u32, space: Space) -> Array {
        let span = Span::default();
        self.kernel.arrays.push(ArrayData {
            name: name.into(),
            scalar,
            len,
            space,
            span,
        })
    }

    pub fn load_array(&mut self, array: Array, index: Value, ty: Type) -> Value {
        self.compute(
            Op::Load {
                place: Place::Array(array),
                indices: vec![index],
            },
            ty,
        )
    }

    pub fn store_array(&mut self, array: Array, index: Value, value: Value) {
        self.push(Stmt::Store {
            place: Place::Array(array),
            indices: vec![index],
            value,
        });
    }

    /// A result of an effect statement, which `make` completes.
    pub fn effect(&mut self, ty: Type, make: impl FnOnce(Value) -> Stmt) -> Value {
        let result = self.value(Op::Result, ty);
        self.push(make(result));
        result
    }

    pub fn local(&mut self, name: &str, ty: Type) -> Local {
        self.kernel.locals.push(LocalData {
            name: name.into(),
            ty,
            span: Span::default(),
        })
    }

    pub fn get(&mut self, local: Local) -> Value {
        let ty = self.kernel.locals[local].ty;
        self.compute(Op::Get(local), ty)
    }

    pub fn nest(&mut self, body: impl FnOnce(&mut Sketch)) -> Block {
        self.blocks.push(Block::default());
        body(self);
        self.blocks.pop().unwrap_or_default()
    }

    pub fn if_else(
        &mut self,
        condition: Value,
        then_body: impl FnOnce(&mut Sketch),
        else_body: impl FnOnce(&mut Sketch),
    ) {
        let then_block = self.nest(then_body);
        let else_block = self.nest(else_body);
        self.push(Stmt::If {
            condition,
            then_block,
            else_block,
        });
    }

    pub fn for_range(&mut self, range: [Value; 3], body: impl FnOnce(&mut Sketch, Value)) {
        let ty = self.kernel.ty(range[0]);
        let index = self.value(Op::Result, ty);
        let body = self.nest(|s| body(s, index));
        let [start, end, step] = range;
        self.push(Stmt::For {
            index,
            start,
            end,
            step,
            unroll: Unroll::Auto,
            body,
        });
    }

    pub fn finish(mut self) -> Kernel {
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
pub fn axpy(scalar: Scalar) -> Kernel {
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
                if scalar == Scalar::F32 {
                    v
                } else {
                    s.compute(Op::Convert(v), Type::F32)
                }
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
