//! What every pass is written with: a walk that rewrites statements in order, and a builder
//! that emits new ones.

use iron_ir::entity::{Arena, Local, Value};
use iron_ir::kernel::{ArrayData, LocalData, Space};
use iron_ir::op::{BarrierMemory, BarrierScope, BinaryOp, BuiltinOp, CompareOp, UnaryOp, Unroll};
use iron_ir::{Block, Const, Handle, Kernel, Op, Place, Scalar, Span, Stmt, Type};
use rustc_hash::FxHashMap;

/// Walks the body in order. `visit` gets each statement with its operands already renamed and
/// either gives it back (its blocks are then walked) or has emitted what replaces it and gives
/// `None`.
pub(crate) fn rewrite(
    kernel: &mut Kernel,
    visit: &mut dyn FnMut(&mut Builder<'_>, Stmt) -> Option<Stmt>,
) {
    let body = std::mem::take(&mut kernel.body);
    let mut builder = Builder::new(kernel);
    let block = builder.rewrite_block(body, visit);
    kernel.body = block;
}

/// Emits statements at one place of a kernel.
pub(crate) struct Builder<'k> {
    /// The kernel, whose body is elsewhere while the builder works.
    pub kernel: &'k mut Kernel,
    /// Statements of the block being built.
    pub out: Vec<(Stmt, Span)>,
    /// Span of what is emitted.
    pub span: Span,
    renamed: Vec<Option<Value>>,
    constants: FxHashMap<Const, Value>,
}

impl<'k> Builder<'k> {
    pub(crate) fn new(kernel: &'k mut Kernel) -> Self {
        Builder {
            kernel,
            out: Vec::new(),
            span: Span::default(),
            renamed: Vec::new(),
            constants: FxHashMap::default(),
        }
    }

    /// Rewrites a block and what it nests; see [`rewrite`].
    pub(crate) fn rewrite_block(
        &mut self,
        block: Block,
        visit: &mut dyn FnMut(&mut Builder<'_>, Stmt) -> Option<Stmt>,
    ) -> Block {
        let outer = std::mem::take(&mut self.out);
        for (mut stmt, span) in block.0 {
            self.span = span;
            self.rename(&mut stmt);
            if let Some(mut stmt) = visit(self, stmt) {
                for nested in stmt.blocks_mut() {
                    let taken = std::mem::take(nested);
                    *nested = self.rewrite_block(taken, visit);
                }
                if let Stmt::Tile(iron_ir::op::TileStmt::Map { result, .. }) = &mut stmt {
                    *result = self.resolve(*result);
                }
                self.out.push((stmt, span));
                self.span = span;
            }
        }
        Block(std::mem::replace(&mut self.out, outer))
    }

    /// Statements that `emit` pushes, as a block of their own.
    pub(crate) fn nested(&mut self, emit: impl FnOnce(&mut Self)) -> Block {
        let outer = std::mem::take(&mut self.out);
        emit(self);
        Block(std::mem::replace(&mut self.out, outer))
    }

    /// From here on, uses of `old` read `new`. The author's name moves along.
    pub(crate) fn replace(&mut self, old: Value, new: Value) {
        if old == new {
            return;
        }
        if self.renamed.len() <= old.index() {
            self.renamed
                .resize(self.kernel.values.len().max(old.index() + 1), None);
        }
        self.renamed[old.index()] = Some(new);
        if self.kernel.values[new].name.is_none() && needs_let(&self.kernel.values[new].op) {
            self.kernel.values[new].name = self.kernel.values[old].name.clone();
        }
    }

    /// The value that now stands for `value`.
    pub(crate) fn resolve(&self, value: Value) -> Value {
        let mut value = value;
        while let Some(Some(next)) = self.renamed.get(value.index()) {
            value = *next;
        }
        value
    }

    /// Applies replacements to the operands of a statement and of the value it defines.
    pub(crate) fn rename(&mut self, stmt: &mut Stmt) {
        if self.renamed.is_empty() {
            return;
        }
        if let Stmt::Let(value) = stmt {
            let mut op = std::mem::replace(&mut self.kernel.values[*value].op, Op::Result);
            map_operands(&mut op, &mut |v| self.resolve(v));
            self.kernel.values[*value].op = op;
        } else {
            map_uses(stmt, &mut |v| self.resolve(v));
        }
    }

    /// Appends a statement.
    pub(crate) fn push(&mut self, stmt: Stmt) {
        self.out.push((stmt, self.span));
    }

    /// A value computed here.
    pub(crate) fn value(&mut self, op: Op, ty: Type) -> Value {
        if let Op::Const(c) = op {
            return self.constant(c);
        }
        let places = needs_let(&op) && !matches!(op, Op::Result);
        let value = self.kernel.add_value(op, ty, self.span);
        if places {
            self.push(Stmt::Let(value));
        }
        value
    }

    /// Gives a value a name where it has none.
    pub(crate) fn named(&mut self, value: Value, name: &str) -> Value {
        let data = &mut self.kernel.values[value];
        if data.name.is_none() && needs_let(&data.op) {
            data.name = Some(name.into());
        }
        value
    }

    pub(crate) fn ty(&self, value: Value) -> Type {
        self.kernel.values[value].ty
    }

    pub(crate) fn constant(&mut self, constant: Const) -> Value {
        if let Some(value) = self.constants.get(&constant) {
            return *value;
        }
        let ty = constant.scalar.x(1);
        let value = self
            .kernel
            .add_value(Op::Const(constant), ty, Span::default());
        self.constants.insert(constant, value);
        value
    }

    pub(crate) fn u32(&mut self, value: u32) -> Value {
        self.constant(Const {
            scalar: Scalar::U32,
            bits: u64::from(value),
        })
    }

    pub(crate) fn f32(&mut self, value: f32) -> Value {
        self.constant(Const {
            scalar: Scalar::F32,
            bits: u64::from(value.to_bits()),
        })
    }

    /// An integer constant (truncated to the width) in every lane.
    pub(crate) fn int(&mut self, ty: Type, value: i128) -> Value {
        let width = ty.scalar.bits();
        let mask = if width == 64 {
            u64::MAX
        } else {
            (1u64 << width) - 1
        };
        self.splat_const(
            ty,
            Const {
                scalar: ty.scalar,
                bits: value as u64 & mask,
            },
        )
    }

    /// A constant in every lane.
    pub(crate) fn splat_const(&mut self, ty: Type, constant: Const) -> Value {
        let scalar = self.constant(constant);
        self.splat(scalar, ty.lanes)
    }

    pub(crate) fn splat(&mut self, scalar: Value, lanes: u8) -> Value {
        let ty = self.ty(scalar);
        if lanes == 1 {
            scalar
        } else {
            self.value(Op::Splat(scalar), ty.scalar.x(lanes))
        }
    }

    pub(crate) fn builtin(&mut self, op: BuiltinOp, axis: u8) -> Value {
        self.value(Op::Builtin(op, axis), Type::U32)
    }

    pub(crate) fn unary(&mut self, op: UnaryOp, a: Value) -> Value {
        let ty = self.ty(a);
        let ty = match op {
            UnaryOp::IsNan | UnaryOp::IsFinite => ty.with_scalar(Scalar::Bool),
            UnaryOp::CountOnes | UnaryOp::LeadingZeros | UnaryOp::TrailingZeros => {
                ty.with_scalar(Scalar::U32)
            }
            _ => ty,
        };
        self.value(Op::Unary(op, a), ty)
    }

    pub(crate) fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let ty = self.ty(a);
        self.value(Op::Binary(op, a, b), ty)
    }

    pub(crate) fn add(&mut self, a: Value, b: Value) -> Value {
        self.binary(BinaryOp::Add, a, b)
    }

    pub(crate) fn mul(&mut self, a: Value, b: Value) -> Value {
        self.binary(BinaryOp::Mul, a, b)
    }

    pub(crate) fn and(&mut self, a: Value, b: Value) -> Value {
        self.binary(BinaryOp::And, a, b)
    }

    pub(crate) fn or(&mut self, a: Value, b: Value) -> Value {
        self.binary(BinaryOp::Or, a, b)
    }

    /// `a ∘ constant` for integers, the constant in every lane.
    pub(crate) fn with_int(&mut self, op: BinaryOp, a: Value, constant: i128) -> Value {
        let ty = self.ty(a);
        let b = self.int(ty, constant);
        self.binary(op, a, b)
    }

    pub(crate) fn compare(&mut self, op: CompareOp, a: Value, b: Value) -> Value {
        let ty = self.ty(a).with_scalar(Scalar::Bool);
        self.value(Op::Compare(op, a, b), ty)
    }

    /// A comparison with an integer constant.
    pub(crate) fn compare_int(&mut self, op: CompareOp, a: Value, constant: i128) -> Value {
        let ty = self.ty(a);
        let b = self.int(ty, constant);
        self.compare(op, a, b)
    }

    pub(crate) fn select(&mut self, condition: Value, a: Value, b: Value) -> Value {
        let ty = self.ty(a);
        self.value(Op::Select(condition, a, b), ty)
    }

    pub(crate) fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        let ty = self.ty(a);
        self.value(Op::Fma(a, b, c), ty)
    }

    /// Conversion of every lane; nothing where the type is already right.
    pub(crate) fn convert(&mut self, a: Value, scalar: Scalar) -> Value {
        let ty = self.ty(a);
        if ty.scalar == scalar {
            a
        } else {
            self.value(Op::Convert(a), ty.with_scalar(scalar))
        }
    }

    pub(crate) fn bitcast(&mut self, a: Value, scalar: Scalar) -> Value {
        let ty = self.ty(a);
        if ty.scalar == scalar {
            a
        } else {
            self.value(Op::Bitcast(a), ty.with_scalar(scalar))
        }
    }

    pub(crate) fn extract(&mut self, a: Value, lane: u8) -> Value {
        let ty = self.ty(a);
        if ty.lanes == 1 {
            a
        } else {
            self.value(Op::Extract(a, lane), ty.scalar.x(1))
        }
    }

    pub(crate) fn load(&mut self, place: Place, indices: Vec<Value>, ty: Type) -> Value {
        self.value(Op::Load { place, indices }, ty)
    }

    pub(crate) fn store(&mut self, place: Place, indices: Vec<Value>, value: Value) {
        self.push(Stmt::Store {
            place,
            indices,
            value,
        });
    }

    pub(crate) fn get(&mut self, local: Local) -> Value {
        let ty = self.kernel.locals[local].ty;
        self.value(Op::Get(local), ty)
    }

    pub(crate) fn local(&mut self, name: &str, ty: Type) -> Local {
        self.kernel.locals.push(LocalData {
            name: name.into(),
            ty,
            span: self.span,
        })
    }

    pub(crate) fn array(
        &mut self,
        name: &str,
        scalar: Scalar,
        len: u32,
        space: Space,
    ) -> iron_ir::entity::Array {
        let span = self.span;
        self.kernel.arrays.push(ArrayData {
            name: name.into(),
            scalar,
            len,
            space,
            span,
        })
    }

    pub(crate) fn workgroup_barrier(&mut self) {
        self.push(Stmt::Barrier(
            BarrierScope::Workgroup,
            BarrierMemory::Shared,
        ));
    }

    pub(crate) fn if_then(&mut self, condition: Value, then: impl FnOnce(&mut Self)) {
        let then_block = self.nested(then);
        self.push(Stmt::If {
            condition,
            then_block,
            else_block: Block::default(),
        });
    }

    /// `for name in start..end step` over `u32`.
    pub(crate) fn for_range(
        &mut self,
        name: &str,
        start: Value,
        end: Value,
        step: Value,
        unroll: Unroll,
        body: impl FnOnce(&mut Self, Value),
    ) {
        let ty = self.ty(start);
        let index = self.kernel.add_value(Op::Result, ty, self.span);
        self.kernel.values[index].name = Some(name.into());
        let body = self.nested(|b| body(b, index));
        self.push(Stmt::For {
            index,
            start,
            end,
            step,
            unroll,
            body,
        });
    }
}

/// Whether a value of this operation is computed where a `Let` stands; the others may be used
/// anywhere.
pub(crate) fn needs_let(op: &Op) -> bool {
    match op {
        Op::Const(_) | Op::Scalar(_) | Op::Dim(_) | Op::Stride(..) | Op::Builtin(..) => false,
        Op::Unary(..)
        | Op::Binary(..)
        | Op::Compare(..)
        | Op::Select(..)
        | Op::Fma(..)
        | Op::Convert(_)
        | Op::Bitcast(_)
        | Op::Splat(_)
        | Op::Vector(_)
        | Op::Extract(..)
        | Op::Insert(..)
        | Op::Get(_)
        | Op::Load { .. }
        | Op::Result => true,
    }
}

/// Replaces every operand of an operation.
pub(crate) fn map_operands(op: &mut Op, map: &mut dyn FnMut(Value) -> Value) {
    match op {
        Op::Const(_)
        | Op::Scalar(_)
        | Op::Dim(_)
        | Op::Stride(..)
        | Op::Builtin(..)
        | Op::Get(_)
        | Op::Result => {}
        Op::Unary(_, a) | Op::Convert(a) | Op::Bitcast(a) | Op::Splat(a) | Op::Extract(a, _) => {
            *a = map(*a);
        }
        Op::Binary(_, a, b) | Op::Compare(_, a, b) | Op::Insert(a, _, b) => {
            *a = map(*a);
            *b = map(*b);
        }
        Op::Select(a, b, c) | Op::Fma(a, b, c) => {
            *a = map(*a);
            *b = map(*b);
            *c = map(*c);
        }
        Op::Vector(values)
        | Op::Load {
            indices: values, ..
        } => {
            for value in values {
                *value = map(*value);
            }
        }
    }
}

/// Replaces every value that the statement itself reads, without those of nested blocks.
pub(crate) fn map_uses(stmt: &mut Stmt, map: &mut dyn FnMut(Value) -> Value) {
    use iron_ir::op::TileStmt;
    match stmt {
        Stmt::Machine(machine) => machine.operands.iter_mut().for_each(|v| *v = map(*v)),
        Stmt::Let(_)
        | Stmt::Loop { .. }
        | Stmt::Roles { .. }
        | Stmt::Break
        | Stmt::Continue
        | Stmt::Return
        | Stmt::Barrier(..) => {}
        Stmt::Set(_, value) => *value = map(*value),
        Stmt::Store { indices, value, .. } => {
            indices.iter_mut().for_each(|v| *v = map(*v));
            *value = map(*value);
        }
        Stmt::Atomic {
            indices,
            value,
            compare,
            ..
        } => {
            indices
                .iter_mut()
                .chain(value)
                .chain(compare)
                .for_each(|v| *v = map(*v));
        }
        Stmt::Subgroup {
            value, argument, ..
        }
        | Stmt::Group {
            value, argument, ..
        } => {
            *value = map(*value);
            argument.iter_mut().for_each(|v| *v = map(*v));
        }
        Stmt::Mma { a, b, sum, .. } => {
            a.iter_mut().chain([b, sum]).for_each(|v| *v = map(*v));
        }
        Stmt::CheckIndex { index, bound, .. } => {
            *index = map(*index);
            *bound = map(*bound);
        }
        Stmt::If { condition, .. } => *condition = map(*condition),
        Stmt::For {
            start, end, step, ..
        } => {
            *start = map(*start);
            *end = map(*end);
            *step = map(*step);
        }
        Stmt::Tile(tile) => match tile {
            TileStmt::Fill { value, .. } => *value = map(*value),
            TileStmt::Load {
                leading, origin, ..
            }
            | TileStmt::Store {
                leading, origin, ..
            } => {
                leading.iter_mut().chain(origin).for_each(|v| *v = map(*v));
            }
            TileStmt::Map { result, .. } => *result = map(*result),
            TileStmt::Copy { .. }
            | TileStmt::Matmul { .. }
            | TileStmt::ReduceRows { .. }
            | TileStmt::ReduceColumns { .. } => {}
        },
    }
}

/// Drops the entries that `keep` refuses from an arena whose other handles are renumbered by the
/// result: old position to new handle.
pub(crate) fn compact<H: Handle, T: Clone>(
    arena: &mut Arena<H, T>,
    keep: &[bool],
) -> Vec<Option<H>> {
    let mut kept = Arena::new();
    let map = arena
        .values()
        .zip(keep)
        .map(|(item, keep)| keep.then(|| kept.push(item.clone())))
        .collect();
    *arena = kept;
    map
}

/// Replaces every value that the statement defines.
pub(crate) fn map_definitions(stmt: &mut Stmt, map: &mut dyn FnMut(Value) -> Value) {
    use iron_ir::op::TileStmt;
    match stmt {
        Stmt::Let(result)
        | Stmt::Atomic { result, .. }
        | Stmt::Subgroup { result, .. }
        | Stmt::Group { result, .. }
        | Stmt::Mma { result, .. }
        | Stmt::CheckIndex { result, .. }
        | Stmt::For { index: result, .. } => *result = map(*result),
        Stmt::Tile(TileStmt::Map {
            elements,
            row,
            column,
            ..
        }) => {
            elements
                .iter_mut()
                .chain([row, column])
                .for_each(|v| *v = map(*v));
        }
        Stmt::Machine(machine) => machine.result.iter_mut().for_each(|v| *v = map(*v)),
        Stmt::Roles { .. }
        | Stmt::Tile(_)
        | Stmt::Set(..)
        | Stmt::Store { .. }
        | Stmt::Barrier(..)
        | Stmt::If { .. }
        | Stmt::Loop { .. }
        | Stmt::Break
        | Stmt::Continue
        | Stmt::Return => {}
    }
}

/// Replaces every tile that the statement names.
pub(crate) fn map_tiles(
    stmt: &mut iron_ir::op::TileStmt,
    map: &mut dyn FnMut(iron_ir::entity::Tile) -> iron_ir::entity::Tile,
) {
    use iron_ir::op::TileStmt;
    match stmt {
        TileStmt::Fill { tile, .. }
        | TileStmt::Load { tile, .. }
        | TileStmt::Store { tile, .. } => {
            *tile = map(*tile);
        }
        TileStmt::Copy { to, from }
        | TileStmt::ReduceRows { to, from, .. }
        | TileStmt::ReduceColumns { to, from, .. } => {
            *to = map(*to);
            *from = map(*from);
        }
        TileStmt::Matmul {
            accumulator, a, b, ..
        } => {
            for tile in [accumulator, a, b] {
                *tile = map(*tile);
            }
        }
        TileStmt::Map { to, from, .. } => {
            *to = map(*to);
            from.iter_mut().for_each(|t| *t = map(*t));
        }
    }
}
