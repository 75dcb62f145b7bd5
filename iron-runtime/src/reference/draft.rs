//! Kernels written by hand, statement by statement, for tests.

use iron_ir::contract::Expr;
use iron_ir::entity::{Array, Param, Value};
use iron_ir::kernel::{
    Access, ArrayData, Block, Kernel, ParamData, ParamKind, Space, Span, TensorData, TensorLayout,
};
use iron_ir::op::{BarrierMemory, BarrierScope, BinaryOp, BuiltinOp, CompareOp};
use iron_ir::{Const, Op, Place, Scalar, Stmt, Type};

/// A kernel under construction; statements get the line of their position.
pub(crate) struct Draft {
    pub kernel: Kernel,
    blocks: Vec<Block>,
    line: u32,
}

impl Draft {
    pub fn new(name: &str, workgroup: u32, groups: i64) -> Draft {
        let mut kernel = Kernel {
            name: name.into(),
            files: vec!["kernel.rs".into()],
            ..Kernel::default()
        };
        kernel.contract.workgroup = [workgroup, 1, 1];
        kernel.contract.grid[0] = Expr::Const(groups);
        Draft {
            kernel,
            blocks: vec![Block::default()],
            line: 1,
        }
    }

    fn span(&self) -> Span {
        Span {
            file: 0,
            line: self.line,
            column: 5,
        }
    }

    pub fn tensor(
        &mut self,
        name: &str,
        scalar: Scalar,
        shape: Vec<Expr>,
        access: Access,
    ) -> Param {
        let tensor = TensorData {
            scalar,
            shape,
            access,
            layout: TensorLayout::RowMajor,
            align: 1,
            may_alias: Vec::new(),
        };
        let span = self.span();
        self.kernel.params.push(ParamData {
            name: name.into(),
            kind: ParamKind::Tensor(tensor),
            span,
        })
    }

    /// Allows vector accesses of that many lanes.
    pub fn align(&mut self, param: Param, lanes: u8) {
        if let ParamKind::Tensor(tensor) = &mut self.kernel.params[param].kind {
            tensor.align = lanes;
        }
    }

    pub fn dim(&mut self, name: &str) -> Expr {
        Expr::Dim(self.kernel.dims.push(name.into()))
    }

    pub fn array(&mut self, name: &str, scalar: Scalar, len: u32, space: Space) -> Array {
        let span = self.span();
        self.kernel.arrays.push(ArrayData {
            name: name.into(),
            scalar,
            len,
            space,
            span,
        })
    }

    pub fn free(&mut self, op: Op, ty: Type) -> Value {
        let span = self.span();
        self.kernel.add_value(op, ty, span)
    }

    pub fn u32(&mut self, n: u32) -> Value {
        self.free(
            Op::Const(Const {
                scalar: Scalar::U32,
                bits: n.into(),
            }),
            Type::U32,
        )
    }

    pub fn thread(&mut self) -> Value {
        self.free(Op::Builtin(BuiltinOp::LocalIndex, 0), Type::U32)
    }

    pub fn stmt(&mut self, stmt: Stmt) {
        self.line += 1;
        let span = self.span();
        self.blocks.last_mut().unwrap().push(stmt, span);
    }

    pub fn value(&mut self, op: Op, ty: Type) -> Value {
        self.line += 1;
        let value = self.free(op, ty);
        let span = self.span();
        self.blocks.last_mut().unwrap().push(Stmt::Let(value), span);
        value
    }

    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let ty = self.kernel.ty(a);
        self.value(Op::Binary(op, a, b), ty)
    }

    pub fn less(&mut self, a: Value, b: Value) -> Value {
        self.value(Op::Compare(CompareOp::Lt, a, b), Type::BOOL)
    }

    pub fn load(&mut self, place: Place, indices: &[Value], ty: Type) -> Value {
        self.value(
            Op::Load {
                place,
                indices: indices.to_vec(),
            },
            ty,
        )
    }

    pub fn store(&mut self, place: Place, indices: &[Value], value: Value) {
        self.stmt(Stmt::Store {
            place,
            indices: indices.to_vec(),
            value,
        });
    }

    pub fn block(&mut self, build: impl FnOnce(&mut Draft)) -> Block {
        self.blocks.push(Block::default());
        build(self);
        self.blocks.pop().unwrap()
    }

    pub fn when(&mut self, condition: Value, then: impl FnOnce(&mut Draft)) {
        let then_block = self.block(then);
        self.stmt(Stmt::If {
            condition,
            then_block,
            else_block: Block::default(),
        });
    }

    pub fn barrier(&mut self) {
        self.stmt(Stmt::Barrier(
            BarrierScope::Workgroup,
            BarrierMemory::Shared,
        ));
    }

    pub fn local(&mut self, name: &str, ty: Type) -> iron_ir::entity::Local {
        let span = self.span();
        self.kernel.locals.push(iron_ir::kernel::LocalData {
            name: name.into(),
            ty,
            span,
        })
    }

    pub fn finish(mut self) -> Kernel {
        self.kernel.body = self.blocks.pop().unwrap();
        self.kernel
    }
}
