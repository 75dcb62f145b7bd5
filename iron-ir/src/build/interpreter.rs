//! The state of the interpreter and how it appends to the kernel.

use std::rc::Rc;
use std::sync::Arc;

use crate::build::error::{BuildError, BuildFault};
use crate::build::shape::TypeShape;
use crate::build::tree::{self, At, Tree, Ty};
use crate::build::unit::{Constant, Unit};
use crate::build::value::{Names, Val};
use crate::entity::{Dim, Handle, Value};
use crate::kernel::{Block, Kernel, Span};
use crate::op::{Const, Op, Stmt};
use crate::types::{Scalar, Type};

use super::control::Frame;

/// Why evaluation stopped.
pub(super) enum Stop {
    /// The rest of the block cannot be reached.
    Unreachable,
    /// The kernel cannot be built.
    Error(Box<BuildError>),
}

/// The result of evaluating something.
pub(super) type Eval<T> = Result<T, Stop>;

/// A function being interpreted: its tree and its tables.
pub(super) struct Context {
    pub(super) function: tree::Function,
    pub(super) types: Vec<TypeShape>,
    pub(super) callees: Vec<fn() -> Unit>,
    pub(super) consts: Vec<Constant>,
    pub(super) file: u16,
}

/// The interpreter.
pub(super) struct Builder {
    pub(super) kernel: Kernel,
    /// The block that statements are appended to.
    pub(super) block: Block,
    /// Runs before the body: constant tables.
    pub(super) prologue: Block,
    pub(super) tables: Vec<(Vec<Const>, Val)>,
    pub(super) frames: Vec<Frame>,
    pub(super) context: Rc<Context>,
    pub(super) names: Names,
    pub(super) span: Span,
    pub(super) depth: usize,
    /// One value a dimension.
    pub(super) dims: Vec<Value>,
}

/// Builds a kernel from its unit.
pub(super) fn build(unit: Unit, instance: &'static str) -> Result<Kernel, BuildError> {
    let mut kernel = Kernel {
        name: unit.source.name.into(),
        instance: instance.into(),
        ..Kernel::default()
    };
    let context = Rc::new(Context::of(unit, &mut kernel)?);
    let mut builder = Builder {
        kernel,
        block: Block::default(),
        prologue: Block::default(),
        tables: Vec::new(),
        frames: Vec::new(),
        context,
        names: Names::default(),
        span: Span::default(),
        depth: 0,
        dims: Vec::new(),
    };
    match builder.run() {
        Ok(()) | Err(Stop::Unreachable) => {}
        Err(Stop::Error(error)) => return Err(*error),
    }
    let mut body = std::mem::take(&mut builder.prologue);
    body.0.append(&mut builder.block.0);
    builder.kernel.body = body;
    Ok(builder.kernel)
}

impl Context {
    pub(super) fn of(unit: Unit, kernel: &mut Kernel) -> Result<Context, BuildError> {
        let mut bytes = unit.source.tree;
        let function = tree::Function::read(&mut bytes)
            .ok_or_else(|| BuildError::unlocated(BuildFault::Malformed))?;
        let file: Arc<str> = unit.source.file.into();
        let index = kernel
            .files
            .iter()
            .position(|known| *known == file)
            .unwrap_or_else(|| {
                kernel.files.push(file);
                kernel.files.len() - 1
            });
        Ok(Context {
            function,
            types: unit.types,
            callees: unit.callees,
            consts: unit.consts,
            file: index as u16,
        })
    }
}

impl Builder {
    fn run(&mut self) -> Eval<()> {
        let context = self.context.clone();
        let Some(header) = &context.function.header else {
            return self.fail(BuildFault::Malformed);
        };
        self.declare(&context.function, header)?;
        self.block(&context.function.body)?;
        Ok(())
    }

    /// Stops with an error at the current place.
    pub(super) fn fail<T>(&self, fault: BuildFault) -> Eval<T> {
        Err(Stop::Error(Box::new(BuildError {
            kernel: self.kernel.full_name(),
            file: self
                .kernel
                .files
                .get(usize::from(self.span.file))
                .map(|file| file.to_string())
                .unwrap_or_default(),
            line: self.span.line,
            column: u32::from(self.span.column),
            fault,
        })))
    }

    pub(super) fn wrong_kind<T>(
        &self,
        operation: &str,
        expected: &'static str,
        found: &Val,
    ) -> Eval<T> {
        self.fail(BuildFault::WrongKind {
            operation: operation.to_string(),
            expected,
            found: found.kind(),
        })
    }

    /// Moves the current place.
    pub(super) fn locate(&mut self, at: &At) {
        self.span = self.span_of(at);
    }

    pub(super) fn span_of(&self, at: &At) -> Span {
        Span {
            file: self.context.file,
            line: at.line,
            column: u16::try_from(at.column).unwrap_or(u16::MAX),
        }
    }

    /// A type of the current unit.
    pub(super) fn type_shape(&self, ty: &Ty) -> Eval<TypeShape> {
        match ty {
            Ty::Known { name } => {
                let name = if name == "usize" { "u64" } else { name };
                match Type::from_name(name) {
                    Some(ty) => Ok(TypeShape::Value(ty)),
                    None => self.fail(BuildFault::Malformed),
                }
            }
            Ty::Entry { index } => match self.context.types.get(*index as usize) {
                Some(shape) => Ok(*shape),
                None => self.fail(BuildFault::Malformed),
            },
        }
    }

    /// A type that must be a number's or a vector's.
    pub(super) fn value_type(&self, ty: &Ty) -> Eval<Type> {
        match self.type_shape(ty)? {
            TypeShape::Value(ty) => Ok(ty),
            TypeShape::Array(..)
            | TypeShape::Tuple(_)
            | TypeShape::Struct(..)
            | TypeShape::Opaque(_) => self.fail(BuildFault::WrongKind {
                operation: "this type".into(),
                expected: "a number or a vector",
                found: "another type",
            }),
        }
    }

    pub(super) fn ty(&self, value: Value) -> Type {
        self.kernel.values[value].ty
    }

    /// Appends a value; it is computed here unless it may be used anywhere.
    pub(super) fn push(&mut self, op: Op, ty: Type) -> Value {
        let anywhere = is_usable_anywhere(&op);
        let value = self.kernel.add_value(op, ty, self.span);
        if !anywhere {
            self.block.push(Stmt::Let(value), self.span);
        }
        value
    }

    /// A value that a statement, pushed by the caller, defines.
    pub(super) fn result(&mut self, ty: Type) -> Value {
        self.kernel.add_value(Op::Result, ty, self.span)
    }

    pub(super) fn stmt(&mut self, stmt: Stmt) {
        self.block.push(stmt, self.span);
    }

    /// A constant from its bits.
    pub(super) fn const_bits(&mut self, scalar: Scalar, bits: u64) -> Value {
        let width = scalar.bits();
        let mask = if width == 64 {
            u64::MAX
        } else {
            (1 << width) - 1
        };
        self.push(
            Op::Const(Const {
                scalar,
                bits: bits & mask,
            }),
            scalar.x(1),
        )
    }

    pub(super) fn const_u32(&mut self, value: u32) -> Value {
        self.const_bits(Scalar::U32, u64::from(value))
    }

    pub(super) fn const_bool(&mut self, value: bool) -> Value {
        self.const_bits(Scalar::Bool, u64::from(value))
    }

    /// The integer that a value is known to be.
    pub(super) fn known_int(&self, value: Value) -> Option<i128> {
        let constant = self.kernel.constant(value)?;
        int_of(constant)
    }

    pub(super) fn dim_value(&self, dim: Dim) -> Value {
        self.dims[dim.index()]
    }

    /// Runs `inside` with a fresh block and gives the block back; `None` where its end cannot
    /// be reached.
    pub(super) fn in_block<T>(
        &mut self,
        inside: impl FnOnce(&mut Self) -> Eval<T>,
    ) -> Result<(Block, Option<T>), Stop> {
        let outer = std::mem::take(&mut self.block);
        let names = self.names.clone();
        let result = inside(self);
        self.names = names;
        let block = std::mem::replace(&mut self.block, outer);
        match result {
            Ok(value) => Ok((block, Some(value))),
            Err(Stop::Unreachable) => Ok((block, None)),
            Err(stop) => Err(stop),
        }
    }

    /// Runs `inside` on an earlier block.
    pub(super) fn append_to<T>(
        &mut self,
        block: &mut Block,
        inside: impl FnOnce(&mut Self) -> Eval<T>,
    ) -> Eval<T> {
        std::mem::swap(&mut self.block, block);
        let result = inside(self);
        std::mem::swap(&mut self.block, block);
        result
    }
}

/// Operations whose value does not depend on where it is computed.
pub(super) fn is_usable_anywhere(op: &Op) -> bool {
    matches!(
        op,
        Op::Const(_) | Op::Scalar(_) | Op::Dim(_) | Op::Stride(..) | Op::Builtin(..) | Op::Result
    )
}

/// The integer or `bool` of a constant.
pub(super) fn int_of(constant: Const) -> Option<i128> {
    let Const { scalar, bits } = constant;
    if scalar.is_signed() {
        let unused = 64 - scalar.bits();
        Some(i128::from((bits << unused) as i64 >> unused))
    } else if scalar.is_int() || scalar == Scalar::Bool {
        Some(i128::from(bits))
    } else {
        None
    }
}
