//! A kernel: parameters, variables, arrays, values and a body of structured statements.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::contract::Contract;
use crate::entity::{Arena, Array, Dim, Local, Param, Tile, Value};
use crate::op::{Const, Op, Stmt, TileSpace};
use crate::types::{Scalar, Type};

/// A place in the author's source. Line 0 means unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    /// Index into [`Kernel::files`].
    pub file: u16,
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u16,
}

/// A sequence of statements.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Block(pub Vec<(Stmt, Span)>);

impl Block {
    /// Appends a statement.
    pub fn push(&mut self, stmt: Stmt, span: Span) {
        self.0.push((stmt, span));
    }

    /// No statements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Everything known of a value.
#[derive(Clone, PartialEq, Debug)]
pub struct ValueData {
    /// What computes it.
    pub op: Op,
    /// Its type.
    pub ty: Type,
    /// Where the author wrote it.
    pub span: Span,
    /// The author's name for it, from a `let`.
    pub name: Option<Arc<str>>,
}

/// What a thread may do with a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// `&`: reads.
    Read,
    /// `&mut`: reads and writes.
    ReadWrite,
}

/// How a tensor lies in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TensorLayout {
    /// The last dimension has stride 1; the others have any stride.
    RowMajor,
    /// Every dimension has any stride.
    Strided,
}

/// A parameter.
#[derive(Clone, PartialEq, Debug)]
pub struct ParamData {
    /// The author's name.
    pub name: Arc<str>,
    /// Tensor or scalar.
    pub kind: ParamKind,
    /// Where the author wrote it.
    pub span: Span,
}

/// The kind of a parameter.
#[derive(Clone, PartialEq, Debug)]
pub enum ParamKind {
    /// A tensor view.
    Tensor(TensorData),
    /// A scalar by value: `i32`, `u32`, `i64`, `u64` or `f32`.
    Scalar(Scalar),
}

/// A tensor parameter.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorData {
    /// Element type.
    pub scalar: Scalar,
    /// Extent of each dimension.
    pub shape: Vec<crate::contract::Expr>,
    /// Access.
    pub access: Access,
    /// Layout.
    pub layout: TensorLayout,
    /// Elements that the base address, and every stride of a dimension but the last, are a
    /// multiple of: the widest vector access made. Set by the builder.
    pub align: u8,
    /// Parameters that may be the very same view (in-place), by the contract.
    pub may_alias: Vec<Param>,
}

/// A mutable variable of one thread.
#[derive(Clone, PartialEq, Debug)]
pub struct LocalData {
    /// The author's name.
    pub name: Arc<str>,
    /// Type.
    pub ty: Type,
    /// Declaration.
    pub span: Span,
}

/// Where an array lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Space {
    /// One for the workgroup; undefined until written.
    Shared,
    /// One for each thread; undefined until written.
    Private,
    /// As [`Private`](Space::Private), but what is stored can be read only after the wait for its
    /// batch ([`MachineOp::BatchWait`](crate::machine::MachineOp::BatchWait)). A kernel has one at
    /// most, and none after the passes.
    Ahead,
}

/// A fixed array.
#[derive(Clone, PartialEq, Debug)]
pub struct ArrayData {
    /// The author's name.
    pub name: Arc<str>,
    /// Element type.
    pub scalar: Scalar,
    /// Elements.
    pub len: u32,
    /// Space.
    pub space: Space,
    /// Declaration.
    pub span: Span,
}

/// A tile.
#[derive(Clone, PartialEq, Debug)]
pub struct TileData {
    /// The author's name.
    pub name: Arc<str>,
    /// Element type.
    pub scalar: Scalar,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Space.
    pub space: TileSpace,
    /// Declaration.
    pub span: Span,
}

/// Licences that the author gave to the optimiser.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FloatPermissions {
    /// `a * b + c` may become one fused multiply-add.
    pub contract: bool,
    /// Transcendental functions, `min` and `max` may use the target's fast forms (the crate doc).
    pub approximate: bool,
}

/// A kernel.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Kernel {
    /// The author's name.
    pub name: Arc<str>,
    /// The instance: `f32`, `f16-HEAD_DIM=64`; empty for a kernel without parameters.
    pub instance: Arc<str>,
    /// First paragraph of the author's doc comment.
    pub doc: Arc<str>,
    /// Source files that spans index.
    pub files: Vec<Arc<str>>,
    /// Parameters in the author's order.
    pub params: Arena<Param, ParamData>,
    /// Named dimensions, in order of first appearance.
    pub dims: Arena<Dim, Arc<str>>,
    /// Variables.
    pub locals: Arena<Local, LocalData>,
    /// Shared and private arrays.
    pub arrays: Arena<Array, ArrayData>,
    /// Tiles.
    pub tiles: Arena<Tile, TileData>,
    /// Values.
    pub values: Arena<Value, ValueData>,
    /// Statements.
    pub body: Block,
    /// Grid, workgroup, facts, licences.
    pub contract: Contract,
}

impl Kernel {
    /// Type of a value.
    pub fn ty(&self, value: Value) -> Type {
        self.values[value].ty
    }

    /// The constant that a value is, if it is one.
    pub fn constant(&self, value: Value) -> Option<Const> {
        match self.values[value].op {
            Op::Const(c) => Some(c),
            _ => None,
        }
    }

    /// The tensor of a parameter, if it is one.
    pub fn tensor(&self, param: Param) -> Option<&TensorData> {
        match &self.params[param].kind {
            ParamKind::Tensor(tensor) => Some(tensor),
            ParamKind::Scalar(_) => None,
        }
    }

    /// Appends a value.
    pub fn add_value(&mut self, op: Op, ty: Type, span: Span) -> Value {
        self.values.push(ValueData {
            op,
            ty,
            span,
            name: None,
        })
    }

    /// Name and instance: `rms_norm-f16`, or the name alone.
    pub fn full_name(&self) -> String {
        if self.instance.is_empty() {
            self.name.to_string()
        } else {
            format!("{}-{}", self.name, self.instance)
        }
    }

    /// The entry point's name in generated text: letters, digits and underscores.
    pub fn entry_point(&self) -> String {
        self.full_name()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect()
    }

    /// Each shared array with its bytes: `` `a` 4096, `b` 128 ``.
    pub fn shared_arrays(&self) -> String {
        let shared = self.arrays.values().filter(|a| a.space == Space::Shared);
        let each = shared.map(|a| {
            let bytes = u64::from(a.len) * u64::from(a.scalar.bytes());
            format!("`{}` {bytes}", a.name)
        });
        each.collect::<Vec<_>>().join(", ")
    }

    /// Bytes of shared memory of the declared arrays, each aligned to 16.
    pub fn shared_bytes(&self) -> u64 {
        self.arrays
            .values()
            .filter(|a| a.space == Space::Shared)
            .map(|a| (u64::from(a.len) * u64::from(a.scalar.bytes())).next_multiple_of(16))
            .sum()
    }
}

/// A few values.
pub type Values = SmallVec<[Value; 4]>;

/// Values that an operation reads, in order.
pub fn operands(op: &Op) -> Values {
    match op {
        Op::Const(_)
        | Op::Scalar(_)
        | Op::Dim(_)
        | Op::Stride(..)
        | Op::Builtin(..)
        | Op::Get(_)
        | Op::Result => Values::new(),
        Op::Unary(_, a) | Op::Convert(a) | Op::Bitcast(a) | Op::Splat(a) | Op::Extract(a, _) => {
            smallvec![*a]
        }
        Op::Binary(_, a, b) | Op::Compare(_, a, b) | Op::Insert(a, _, b) => smallvec![*a, *b],
        Op::Select(a, b, c) | Op::Fma(a, b, c) => smallvec![*a, *b, *c],
        Op::Vector(parts) => Values::from_slice(parts),
        Op::Load { indices, .. } => Values::from_slice(indices),
    }
}
