//! The verifier. A kernel that passes makes no pass and no lowering panic.
//!
//! Checked:
//!
//! 1. **Handles**: every handle is of this kernel's arenas.
//! 2. **Definitions**: a value that needs a `Let` has exactly one, or exactly one effect
//!    statement that defines it ([`Op::Result`]); the definition stands before every use in the
//!    same or an enclosing block.
//! 3. **Types** of operands and result of every operation and statement; lane counts and lane
//!    numbers; constants within their type's bits (file `types`).
//! 4. **Places**: tensors are tensors, an index list has one `u32` a dimension (one `u64` where
//!    flat, one `u32` in an array); element types agree (a flat access may use another type of
//!    the same width); no store or atomic through a `Read` tensor; no vector access to a tensor
//!    whose last dimension may be strided, as built; atomics only on types that have them.
//! 5. **Structure**: `break` and `continue` inside a loop; a tile map's body has no store to
//!    shared or global memory, no barrier, collective, atomic, jump out or tile statement.
//! 6. **Tiles**: shapes, spaces and element types of every tile statement; none is empty.
//! 7. **Contract**: dimensions and parameters that expressions name; workgroup sizes above zero;
//!    grid barriers only in a `cooperative` kernel, behind the launch barrier of a `dependent` one.
//! 8. **Uniformity**: barriers, collectives, subgroup exchanges and tile statements stand in
//!    control flow that is uniform in the workgroup; broadcast sources and tile origins are
//!    uniform (file `uniformity`, whose head has the rules). Grid barriers stand in control flow
//!    that is uniform in the launch.
//!
//! Not checked, because it depends on the launch: bounds, races, initialisation of shared and
//! private memory, a zero step. The reference execution reports those.

mod error;
mod lint;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod tests;
mod types;
mod uniformity;

use crate::contract::Expr;
use crate::entity::{Handle, Param, Tile, Value};
use crate::kernel::{
    Access, Block, Kernel, ParamKind, Space, Span, TensorData, TensorLayout, operands,
};
use crate::op::{AtomicOp, Op, Place, Stmt, TileSpace, TileStmt};
use crate::types::{Scalar, Type};

pub use error::{Fault, Location, VerifyError, VerifyErrors};
pub use lint::{Lint, lint};
pub use uniformity::uniform_values;

/// Checks a kernel as built; see the module doc. All faults are reported, those of uniformity
/// only where there is no other.
pub fn verify(kernel: &Kernel) -> Result<(), VerifyErrors> {
    verify_lowered(kernel)?;
    let errors = uniformity::check(kernel);
    if errors.is_empty() {
        Ok(())
    } else {
        Err(VerifyErrors(errors))
    }
}

/// Checks everything but uniformity: for a kernel whose collectives are lowered. The result of
/// a reduction is uniform, but once it comes out of shared memory or of shuffles nothing in the
/// kernel says so, and a barrier in a branch on it would look divergent.
pub fn verify_lowered(kernel: &Kernel) -> Result<(), VerifyErrors> {
    let mut verifier = Verifier {
        kernel,
        errors: Vec::new(),
        visible: vec![false; kernel.values.len()],
        defined: vec![false; kernel.values.len()],
        checked: vec![false; kernel.values.len()],
        loops: 0,
        in_map: false,
    };
    verifier.contract();
    verifier.tables();
    if verifier.errors.is_empty() {
        verifier.block(&kernel.body);
    }
    if verifier.errors.is_empty() {
        Ok(())
    } else {
        Err(VerifyErrors(verifier.errors))
    }
}

struct Verifier<'k> {
    kernel: &'k Kernel,
    errors: Vec<VerifyError>,
    /// Defined before the statement at hand, in its block or an enclosing one.
    visible: Vec<bool>,
    defined: Vec<bool>,
    checked: Vec<bool>,
    loops: u32,
    in_map: bool,
}

impl Verifier<'_> {
    fn fault(&mut self, span: Span, fault: Fault) {
        self.errors.push(VerifyError::new(self.kernel, span, fault));
    }

    fn wrong(&mut self, span: Span, what: impl Into<String>) {
        self.fault(span, Fault::Malformed(what.into()));
    }

    fn contract(&mut self) {
        let contract = &self.kernel.contract;
        let span = Span::default();
        if contract.workgroup.contains(&0) {
            let [x, y, z] = contract.workgroup;
            self.wrong(
                span,
                format!("workgroup ({x}, {y}, {z}) has a size of zero"),
            );
        }
        let shapes = self.kernel.params.values().flat_map(|p| match &p.kind {
            ParamKind::Tensor(t) => t.shape.as_slice(),
            ParamKind::Scalar(_) => &[],
        });
        let facts = contract.requires.iter().flat_map(|f| [&f.lhs, &f.rhs]);
        let bad = contract
            .grid
            .iter()
            .chain(facts)
            .chain(shapes)
            .any(|e| !self.expr(e));
        if bad {
            self.wrong(
                span,
                "an expression of the contract names what is no dimension and no integer parameter",
            );
        }
    }

    fn expr(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Const(_) => true,
            Expr::Dim(dim) => self.kernel.dims.get(*dim).is_some(),
            Expr::Scalar(param) => self
                .kernel
                .params
                .get(*param)
                .is_some_and(|p| match p.kind {
                    ParamKind::Scalar(s) => s.is_int(),
                    ParamKind::Tensor(_) => false,
                }),
            Expr::Binary(_, a, b) => self.expr(a) && self.expr(b),
        }
    }

    /// Parameters, tiles, arrays and variables.
    fn tables(&mut self) {
        let kernel = self.kernel;
        for (_, param) in kernel.params.iter() {
            match &param.kind {
                ParamKind::Tensor(tensor) => {
                    if tensor.shape.is_empty() || tensor.shape.len() > 8 {
                        let rank = tensor.shape.len();
                        self.wrong(
                            param.span,
                            format!(
                                "tensor `{}` has rank {rank}, allowed are 1 to 8",
                                param.name
                            ),
                        );
                    }
                    if !matches!(tensor.align, 1 | 2 | 4 | 8) {
                        self.wrong(
                            param.span,
                            format!(
                                "tensor `{}` is aligned to {} elements, allowed are 1, 2, 4 and 8",
                                param.name, tensor.align
                            ),
                        );
                    }
                    if tensor
                        .may_alias
                        .iter()
                        .any(|p| kernel.params.get(*p).is_none())
                    {
                        self.wrong(
                            param.span,
                            format!("tensor `{}` may alias what is no parameter", param.name),
                        );
                    }
                }
                ParamKind::Scalar(s) => {
                    let allowed = matches!(
                        s,
                        Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::U64 | Scalar::F32
                    );
                    if !allowed {
                        self.wrong(
                            param.span,
                            format!(
                                "scalar `{}` is {s}, allowed are i32, u32, i64, u64 and f32",
                                param.name
                            ),
                        );
                    }
                }
            }
        }
        for tile in kernel.tiles.values() {
            if tile.rows == 0 || tile.columns == 0 || tile.scalar.class() == crate::Class::Packed {
                self.wrong(
                    tile.span,
                    format!(
                        "tile `{}` is {} × {} of {}",
                        tile.name, tile.rows, tile.columns, tile.scalar
                    ),
                );
            }
        }
        let mut ahead = kernel.arrays.values().filter(|a| a.space == Space::Ahead);
        if let (Some(_), Some(second)) = (ahead.next(), ahead.next()) {
            self.wrong(
                second.span,
                format!(
                    "array `{}` is the second that is filled ahead of its use; a thread's batches are \
                     those of one array",
                    second.name
                ),
            );
        }
        for array in kernel.arrays.values() {
            if array.len == 0 {
                self.wrong(
                    array.span,
                    format!("array `{}` has no elements", array.name),
                );
            }
        }
        for local in kernel.locals.values() {
            if !lanes_ok(local.ty) {
                self.wrong(
                    local.span,
                    format!("variable `{}` has {} lanes", local.name, local.ty.lanes),
                );
            }
        }
    }

    /// The type rule of a value that a statement computes or reads; values that nothing reaches
    /// are no part of the program.
    fn rule(&mut self, value: Value) {
        if std::mem::replace(&mut self.checked[value.index()], true) {
            return;
        }
        let data = &self.kernel.values[value];
        if !lanes_ok(data.ty) {
            self.wrong(
                data.span,
                format!(
                    "{value} has {} lanes, allowed are 1, 2, 4 and 8",
                    data.ty.lanes
                ),
            );
        } else if operands(&data.op)
            .iter()
            .any(|v| self.kernel.values.get(*v).is_none())
        {
            self.wrong(
                data.span,
                format!("{value} has an operand of another kernel"),
            );
        } else if let Err(what) = types::check(self.kernel, value) {
            self.wrong(data.span, what);
        }
    }

    fn block(&mut self, block: &Block) {
        let mut here = Vec::new();
        for (stmt, span) in &block.0 {
            self.statement(stmt, *span, &mut here);
        }
        for value in here {
            self.visible[Value::index(value)] = false;
        }
    }

    fn statement(&mut self, stmt: &Stmt, span: Span, here: &mut Vec<Value>) {
        let is_map = matches!(stmt, Stmt::Tile(TileStmt::Map { .. }));
        let uses = stmt.uses();
        let defines = stmt.defines();
        if uses
            .iter()
            .chain(&defines)
            .any(|v| self.kernel.values.get(*v).is_none())
        {
            return self.wrong(span, "a value of another kernel");
        }
        if !is_map {
            for value in uses {
                self.used(value, span);
            }
        }
        if let Stmt::Let(value) = stmt {
            let before = self.errors.len();
            self.rule(*value);
            if self.errors.len() > before {
                return;
            }
            for operand in operands(&self.kernel.values[*value].op) {
                self.used(operand, span);
            }
        }
        let before = self.errors.len();
        self.shape(stmt, span);
        if self.errors.len() > before {
            return;
        }
        // A loop's index and a map's elements are visible in the body alone.
        let mut inner = Vec::new();
        for value in defines {
            let scoped = matches!(stmt, Stmt::For { .. }) || is_map;
            self.define(stmt, value, span);
            if scoped {
                inner.push(value)
            } else {
                here.push(value)
            }
        }
        let in_loop = matches!(stmt, Stmt::For { .. } | Stmt::Loop { .. });
        let outer = (self.loops, self.in_map);
        if in_loop {
            self.loops += 1;
        }
        if let Stmt::Tile(TileStmt::Map { result, body, .. }) = stmt {
            (self.loops, self.in_map) = (0, true);
            let mut locals = Vec::new();
            for (stmt, span) in &body.0 {
                self.statement(stmt, *span, &mut locals);
            }
            self.used(*result, span);
            inner.extend(locals);
        } else {
            for nested in stmt.blocks() {
                self.block(nested);
            }
        }
        (self.loops, self.in_map) = outer;
        for value in inner {
            self.visible[Value::index(value)] = false;
        }
    }

    fn define(&mut self, stmt: &Stmt, value: Value, span: Span) {
        let is_result = matches!(self.kernel.values[value].op, Op::Result);
        if matches!(stmt, Stmt::Let(_)) == is_result {
            self.wrong(
                span,
                format!(
                    "{} is defined by the wrong kind of statement",
                    self.show(value)
                ),
            );
        }
        if std::mem::replace(&mut self.defined[value.index()], true) {
            self.fault(span, Fault::DefinedTwice(self.show(value)));
        }
        self.visible[value.index()] = true;
    }

    fn used(&mut self, value: Value, span: Span) {
        let leaf = matches!(
            self.kernel.values[value].op,
            Op::Const(_) | Op::Scalar(_) | Op::Dim(_) | Op::Stride(..) | Op::Builtin(..)
        );
        if leaf {
            self.rule(value);
        } else if !self.visible[value.index()] {
            self.fault(span, Fault::UsedBeforeDefinition(self.show(value)));
        }
    }

    fn show(&self, value: Value) -> String {
        match &self.kernel.values[value].name {
            Some(name) => format!("`{name}`"),
            None => value.to_string(),
        }
    }

    fn expect(&mut self, span: Span, value: Value, ty: Type, role: &str) {
        let found = self.kernel.ty(value);
        if found != ty {
            self.fault(
                span,
                Fault::Type {
                    role: role.into(),
                    expected: ty.to_string(),
                    found,
                },
            );
        }
    }

    /// Everything of one statement but definitions and nested blocks.
    fn shape(&mut self, stmt: &Stmt, span: Span) {
        if self.in_map && forbidden_in_map(self.kernel, stmt, self.loops > 0) {
            self.wrong(span, "the body of a tile map may hold no store to shared or global memory, barrier, collective, atomic, tile statement or `return`");
        }
        match stmt {
            Stmt::Let(value) => {
                if let Op::Load { place, indices } = &self.kernel.values[*value].op {
                    let ty = self.kernel.ty(*value);
                    self.access(span, *place, indices, ty, false);
                }
            }
            Stmt::Set(local, value) => match self.kernel.locals.get(*local) {
                Some(data) => self.expect(span, *value, data.ty, "assigned value"),
                None => self.wrong(span, "assignment to a variable of another kernel"),
            },
            Stmt::Store {
                place,
                indices,
                value,
            } => {
                let ty = self.kernel.ty(*value);
                self.access(span, *place, indices, ty, true);
            }
            Stmt::Atomic {
                result,
                op,
                place,
                indices,
                value,
                compare,
            } => {
                self.atomic(span, *result, *op, *place, indices, *value, *compare);
            }
            Stmt::Barrier(..) | Stmt::Loop { .. } => {}
            Stmt::Subgroup {
                result,
                op,
                reduce,
                value,
                argument,
            } => {
                if let Err(what) =
                    types::subgroup(self.kernel, *result, *op, *reduce, *value, *argument)
                {
                    self.wrong(span, what);
                }
            }
            Stmt::Group {
                result,
                op,
                reduce,
                value,
                argument,
            } => {
                if let Err(what) =
                    types::group(self.kernel, *result, *op, *reduce, *value, *argument)
                {
                    self.wrong(span, what);
                }
            }
            Stmt::Mma { result, a, b, sum } => {
                if let Err(what) = types::mma(self.kernel, *result, *a, *b, *sum) {
                    self.wrong(span, what);
                }
            }
            Stmt::CheckIndex {
                result,
                index,
                bound,
            } => {
                for (value, role) in [
                    (result, "checked index"),
                    (index, "index"),
                    (bound, "bound"),
                ] {
                    self.expect(span, *value, Type::U32, role);
                }
            }
            Stmt::If { condition, .. } => self.expect(span, *condition, Type::BOOL, "condition"),
            Stmt::For {
                index,
                start,
                end,
                step,
                ..
            } => {
                let ty = self.kernel.ty(*index);
                if !ty.scalar.is_int() || ty.is_vector() {
                    self.wrong(span, format!("the index of a loop is {ty}, not an integer"));
                }
                for (value, role) in [
                    (start, "loop start"),
                    (end, "loop end"),
                    (step, "loop step"),
                ] {
                    self.expect(span, *value, ty, role);
                }
            }
            Stmt::Break | Stmt::Continue => {
                if self.loops == 0 {
                    let word = if matches!(stmt, Stmt::Break) {
                        "break"
                    } else {
                        "continue"
                    };
                    self.fault(span, Fault::OutsideLoop(word));
                }
            }
            Stmt::Return => {}
            Stmt::Tile(tile) => self.tile(span, tile),
            Stmt::Machine(machine) => {
                if let Some(what) = crate::machine::fault(self.kernel, machine) {
                    self.wrong(span, what);
                }
            }
            Stmt::Roles { producers, .. } => {
                let threads = self.kernel.contract.threads();
                if *producers == 0 || *producers >= threads {
                    self.wrong(
                        span,
                        format!("{producers} of {threads} threads have a role of their own"),
                    );
                }
            }
        }
    }

    fn access(&mut self, span: Span, place: Place, indices: &[Value], ty: Type, writes: bool) {
        let (scalar, index, rank, name) = match place {
            Place::Array(array) => match self.kernel.arrays.get(array) {
                Some(data) => (data.scalar, Type::U32, 1, data.name.clone()),
                None => return self.wrong(span, "access to an array of another kernel"),
            },
            Place::Tensor(param) | Place::Flat(param) => {
                let Some(tensor) = self.tensor(param) else {
                    return self.wrong(span, "access to what is no tensor");
                };
                let name = self.kernel.params[param].name.clone();
                if writes && tensor.access == Access::Read {
                    let declared = self.kernel.params[param].span;
                    return self.fault(
                        span,
                        Fault::ReadOnly {
                            tensor: name.to_string(),
                            declared,
                        },
                    );
                }
                let tensor_place = matches!(place, Place::Tensor(_));
                if tensor_place
                    && ty.is_vector()
                    && ty.lanes > tensor.align
                    && tensor.layout == TensorLayout::RowMajor
                {
                    return self.wrong(
                        span,
                        format!(
                            "access of {} lanes to `{name}`, which is aligned to {} elements",
                            ty.lanes, tensor.align
                        ),
                    );
                }
                if tensor_place {
                    (tensor.scalar, Type::U32, tensor.shape.len(), name)
                } else {
                    (tensor.scalar, Type::U64, 1, name)
                }
            }
        };
        let same = match place {
            Place::Flat(_) => ty.scalar.bytes() == scalar.bytes(),
            Place::Tensor(_) | Place::Array(_) => ty.scalar == scalar,
        };
        if !same {
            self.fault(
                span,
                Fault::Type {
                    role: format!("element of `{name}`"),
                    expected: scalar.to_string(),
                    found: ty,
                },
            );
        }
        if indices.len() != rank {
            return self.wrong(
                span,
                format!("{} indices into `{name}` of rank {rank}", indices.len()),
            );
        }
        for value in indices {
            self.expect(span, *value, index, "index");
        }
    }

    fn tensor(&self, param: Param) -> Option<&TensorData> {
        match &self.kernel.params.get(param)?.kind {
            ParamKind::Tensor(tensor) => Some(tensor),
            ParamKind::Scalar(_) => None,
        }
    }

    fn atomic(
        &mut self,
        span: Span,
        result: Value,
        op: AtomicOp,
        place: Place,
        indices: &[Value],
        value: Option<Value>,
        compare: Option<Value>,
    ) {
        let ty = self.kernel.ty(result);
        self.access(span, place, indices, ty, op != AtomicOp::Load);
        if let Place::Array(array) = place
            && self
                .kernel
                .arrays
                .get(array)
                .is_some_and(|a| a.space != Space::Shared)
        {
            self.wrong(
                span,
                "atomic on a private array, which no other thread sees",
            );
        }
        let int = matches!(
            ty.scalar,
            Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::U64
        );
        let float = ty.scalar == Scalar::F32
            && matches!(
                op,
                AtomicOp::Add | AtomicOp::Exchange | AtomicOp::Load | AtomicOp::Store
            );
        if ty.is_vector() || !(int || float) {
            self.wrong(span, format!("no atomic `{}` on {ty}", op.name()));
        }
        let wants = (op != AtomicOp::Load, op == AtomicOp::CompareExchange);
        if wants != (value.is_some(), compare.is_some()) {
            self.wrong(
                span,
                format!("wrong number of operands of atomic `{}`", op.name()),
            );
        }
        for operand in value.into_iter().chain(compare) {
            self.expect(span, operand, ty, "atomic operand");
        }
    }

    fn tile(&mut self, span: Span, stmt: &TileStmt) {
        let named = match stmt {
            TileStmt::Fill { tile, .. }
            | TileStmt::Load { tile, .. }
            | TileStmt::Store { tile, .. } => vec![*tile],
            TileStmt::Copy { to, from }
            | TileStmt::ReduceRows { to, from, .. }
            | TileStmt::ReduceColumns { to, from, .. } => vec![*to, *from],
            TileStmt::Matmul {
                accumulator, a, b, ..
            } => vec![*accumulator, *a, *b],
            TileStmt::Map { to, from, .. } => from.iter().copied().chain([*to]).collect(),
        };
        if named.iter().any(|t| self.kernel.tiles.get(*t).is_none()) {
            return self.wrong(span, "a tile of another kernel");
        }
        if let Err(what) = types::tile(self.kernel, stmt) {
            self.wrong(span, what);
        }
        match stmt {
            TileStmt::Fill { tile, value } => {
                let ty = self.tile_type(*tile);
                self.expect(span, *value, ty, "fill");
            }
            TileStmt::Load {
                source: param,
                leading,
                origin,
                ..
            }
            | TileStmt::Store {
                target: param,
                leading,
                origin,
                ..
            } => {
                let Some(tensor) = self.tensor(*param) else {
                    return self.wrong(span, "a tile is moved to or from what is no tensor");
                };
                let (rank, access) = (tensor.shape.len(), tensor.access);
                if leading.len() + 2 != rank {
                    self.wrong(
                        span,
                        format!("{} indices for a tensor of rank {rank}", leading.len() + 2),
                    );
                }
                if matches!(stmt, TileStmt::Store { .. }) && access == Access::Read {
                    let data = &self.kernel.params[*param];
                    self.fault(
                        span,
                        Fault::ReadOnly {
                            tensor: data.name.to_string(),
                            declared: data.span,
                        },
                    );
                }
                for value in leading.iter().chain(origin) {
                    self.expect(span, *value, Type::U32, "tile index");
                }
            }
            TileStmt::Map {
                to,
                from,
                elements,
                row,
                column,
                result,
                ..
            } => {
                if elements.len() != from.len() {
                    return self.wrong(
                        span,
                        "a tile map binds another number of elements than it has sources",
                    );
                }
                for (element, tile) in elements.iter().zip(from) {
                    let ty = self.tile_type(*tile);
                    self.expect(span, *element, ty, "element of a tile map");
                }
                self.expect(span, *row, Type::U32, "row of a tile map");
                self.expect(span, *column, Type::U32, "column of a tile map");
                let ty = self.tile_type(*to);
                self.expect(span, *result, ty, "result of a tile map");
            }
            TileStmt::Copy { .. }
            | TileStmt::Matmul { .. }
            | TileStmt::ReduceRows { .. }
            | TileStmt::ReduceColumns { .. } => {}
        }
    }

    fn tile_type(&self, tile: Tile) -> Type {
        self.kernel.tiles[tile].scalar.x(1)
    }
}

fn lanes_ok(ty: Type) -> bool {
    matches!(ty.lanes, 1 | 2 | 4 | 8)
}

fn forbidden_in_map(kernel: &Kernel, stmt: &Stmt, in_loop: bool) -> bool {
    match stmt {
        Stmt::Store {
            place: Place::Array(array),
            ..
        } => kernel
            .arrays
            .get(*array)
            .is_none_or(|a| a.space == Space::Shared),
        Stmt::Store { .. }
        | Stmt::Atomic { .. }
        | Stmt::Barrier(..)
        | Stmt::Subgroup { .. }
        | Stmt::Group { .. }
        | Stmt::Mma { .. }
        | Stmt::Return
        | Stmt::Machine(_)
        | Stmt::Roles { .. }
        | Stmt::Tile(_) => true,
        Stmt::Break | Stmt::Continue => !in_loop,
        Stmt::Let(_)
        | Stmt::Set(..)
        | Stmt::CheckIndex { .. }
        | Stmt::If { .. }
        | Stmt::For { .. }
        | Stmt::Loop { .. } => false,
    }
}

/// A register tile of one column or one row stands for every column or row.
pub(crate) fn broadcasts(kernel: &Kernel, from: Tile, to: Tile) -> bool {
    let (f, t) = (&kernel.tiles[from], &kernel.tiles[to]);
    (f.rows == t.rows || f.rows == 1)
        && (f.columns == t.columns || f.columns == 1)
        && (f.space == TileSpace::Register
            || from == to
            || f.rows == t.rows && f.columns == t.columns)
}
