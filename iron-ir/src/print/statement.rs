//! Statements and operations as text.

use super::{Printer, constant};
use crate::entity::{Handle, Value};
use crate::kernel::{Block, Span};
use crate::machine::MachineStmt;
use crate::op::{BuiltinOp, Op, Place, Stmt, TileStmt, Unroll};

impl Printer<'_> {
    pub(super) fn statements(&mut self, block: &Block) {
        let mut here = Vec::new();
        for (stmt, span) in &block.0 {
            self.indent();
            self.statement(stmt, *span, &mut here);
        }
        for value in here {
            self.visible[Value::index(value)] = false;
        }
    }

    fn indent(&mut self) {
        for _ in 0..self.depth {
            self.write("  ");
        }
    }

    fn braces(&mut self, block: &Block) {
        self.write("{\n");
        self.depth += 1;
        self.statements(block);
        self.depth -= 1;
        self.indent();
        self.write("}");
    }

    fn statement(&mut self, stmt: &Stmt, span: Span, here: &mut Vec<Value>) {
        match stmt {
            Stmt::Let(value) => {
                self.definition(*value, span, here);
                self.write(" = ");
                self.op(*value);
            }
            Stmt::Set(local, value) => {
                self.local(*local);
                self.write(" = ");
                self.value(*value);
            }
            Stmt::Store {
                place,
                indices,
                value,
            } => {
                self.write("store ");
                self.cell(*place, indices);
                self.write(" = ");
                self.value(*value);
            }
            Stmt::Atomic {
                result,
                op,
                place,
                indices,
                value,
                compare,
            } => {
                self.definition(*result, span, here);
                self.write(" = atomic ");
                self.write(op.name());
                self.write(" ");
                self.cell(*place, indices);
                for operand in value.iter().chain(compare) {
                    self.write(", ");
                    self.value(*operand);
                }
            }
            Stmt::Barrier(scope, memory) => {
                self.write(&format!("barrier {} {}", scope.name(), memory.name()));
            }
            Stmt::Subgroup {
                result,
                op,
                reduce,
                value,
                argument,
            } => {
                self.definition(*result, span, here);
                let dot = reduce.map_or(String::new(), |r| format!(".{}", r.name()));
                self.write(&format!(" = subgroup {}{dot} ", op.name()));
                self.list([*value].into_iter().chain(*argument));
            }
            Stmt::Group {
                result,
                op,
                reduce,
                value,
                argument,
            } => {
                self.definition(*result, span, here);
                let dot = reduce.map_or(String::new(), |r| format!(".{}", r.name()));
                self.write(&format!(" = group {}{dot} ", op.name()));
                self.list([*value].into_iter().chain(*argument));
            }
            Stmt::Mma { result, a, b, sum } => {
                self.definition(*result, span, here);
                self.write(" = mma ");
                self.list([a[0], a[1], *b, *sum]);
            }
            Stmt::CheckIndex {
                result,
                index,
                bound,
            } => {
                self.definition(*result, span, here);
                self.write(" = check_index ");
                self.list([*index, *bound]);
            }
            Stmt::If {
                condition,
                then_block,
                else_block,
            } => {
                self.write("if ");
                self.value(*condition);
                self.statement_span(span);
                self.write(" ");
                self.braces(then_block);
                if !else_block.is_empty() {
                    self.write(" else ");
                    self.braces(else_block);
                }
                return self.write("\n");
            }
            Stmt::For {
                index,
                start,
                end,
                step,
                unroll,
                body,
            } => {
                self.write("for ");
                let mut inner = Vec::new();
                self.definition(*index, span, &mut inner);
                self.write(" in ");
                self.visible[index.index()] = false;
                self.value(*start);
                self.write(" .. ");
                self.value(*end);
                if self.kernel.constant(*step).is_none_or(|c| c.bits != 1) {
                    self.write(" step ");
                    self.value(*step);
                }
                self.write(match unroll {
                    Unroll::Auto => "",
                    Unroll::Full => " unroll",
                    Unroll::Never => " never_unroll",
                });
                self.statement_span(span);
                self.write(" ");
                self.visible[index.index()] = true;
                self.braces(body);
                self.visible[index.index()] = false;
                return self.write("\n");
            }
            Stmt::Loop { body } => {
                self.write("loop");
                self.statement_span(span);
                self.write(" ");
                self.braces(body);
                return self.write("\n");
            }
            Stmt::Break => self.write("break"),
            Stmt::Continue => self.write("continue"),
            Stmt::Return => self.write("return"),
            Stmt::Machine(machine) => {
                if let Some(result) = machine.result {
                    self.definition(result, span, here);
                    self.write(" = ");
                }
                self.machine(machine);
            }
            Stmt::Roles {
                producers,
                producer,
                consumer,
            } => {
                self.write(&format!("roles {producers}"));
                self.statement_span(span);
                self.write(" ");
                self.braces(producer);
                self.write(" else ");
                self.braces(consumer);
                return self.write("\n");
            }
            Stmt::Tile(tile) => {
                self.tile_statement(tile, span);
                if matches!(tile, TileStmt::Map { .. }) {
                    return self.write("\n");
                }
            }
        }
        self.statement_span(span);
        self.write("\n");
    }

    fn statement_span(&mut self, span: Span) {
        if span != Span::default() {
            self.span(span);
        }
    }

    fn machine(&mut self, stmt: &MachineStmt) {
        self.write(&format!("machine {}", stmt.op.name()));
        for array in &stmt.arrays {
            self.write(" ");
            self.array(*array);
        }
        if let Some(source) = stmt.source {
            self.write(" ");
            self.param(source);
        }
        self.write("(");
        self.list(stmt.operands.iter().copied());
        self.write(")");
        for number in &stmt.numbers {
            self.write(&format!(" {number}"));
        }
    }

    fn tile_statement(&mut self, stmt: &TileStmt, span: Span) {
        match stmt {
            TileStmt::Fill { tile, value } => {
                self.write("tile_fill ");
                self.tile(*tile);
                self.write(" = ");
                self.value(*value);
            }
            TileStmt::Load {
                tile,
                source,
                leading,
                origin,
                transposed,
            } => {
                self.write("tile_load ");
                self.tile(*tile);
                self.write(" = ");
                self.param(*source);
                self.write("[");
                self.list(leading.iter().chain(origin).copied());
                self.write(if *transposed { "] transposed" } else { "]" });
            }
            TileStmt::Store {
                tile,
                target,
                leading,
                origin,
            } => {
                self.write("tile_store ");
                self.param(*target);
                self.write("[");
                self.list(leading.iter().chain(origin).copied());
                self.write("] = ");
                self.tile(*tile);
            }
            TileStmt::Copy { to, from } => {
                self.write("tile_copy ");
                self.tile(*to);
                self.write(" = ");
                self.tile(*from);
            }
            TileStmt::Matmul {
                accumulator,
                a,
                b,
                transpose_a,
                transpose_b,
            } => {
                self.write("matmul ");
                self.tile(*accumulator);
                self.write(" += ");
                self.tile(*a);
                self.write(if *transpose_a {
                    " transposed * "
                } else {
                    " * "
                });
                self.tile(*b);
                self.write(if *transpose_b { " transposed" } else { "" });
            }
            TileStmt::Map {
                to,
                from,
                elements,
                row,
                column,
                body,
                result,
            } => {
                self.write("tile_map ");
                self.tile(*to);
                self.write(" = (");
                let mut inner = Vec::new();
                for (i, (element, tile)) in elements.iter().zip(from).enumerate() {
                    self.write(if i > 0 { ", " } else { "" });
                    self.definition(*element, span, &mut inner);
                    self.write(" = ");
                    self.tile(*tile);
                }
                self.write(") at (");
                self.definition(*row, span, &mut inner);
                self.write(", ");
                self.definition(*column, span, &mut inner);
                self.write(")");
                self.statement_span(span);
                self.write(" {\n");
                self.depth += 1;
                for (stmt, span) in &body.0 {
                    self.indent();
                    self.statement(stmt, *span, &mut inner);
                }
                self.indent();
                self.write("yield ");
                self.value(*result);
                self.write("\n");
                self.depth -= 1;
                self.indent();
                self.write("}");
                for value in inner {
                    self.visible[Value::index(value)] = false;
                }
            }
            TileStmt::ReduceRows { to, from, op } | TileStmt::ReduceColumns { to, from, op } => {
                let rows = matches!(stmt, TileStmt::ReduceRows { .. });
                let word = if rows {
                    "reduce_rows"
                } else {
                    "reduce_columns"
                };
                self.write(&format!("{word}.{} ", op.name()));
                self.tile(*to);
                self.write(" = ");
                self.tile(*from);
            }
        }
    }

    /// `%name: type`, with the value's span where it is not the statement's.
    fn definition(&mut self, value: Value, span: Span, here: &mut Vec<Value>) {
        let data = &self.kernel.values[value];
        let (ty, own) = (data.ty, data.span);
        self.value_name(value);
        self.write(&format!(": {ty}"));
        if own != span {
            self.span(own);
        }
        if let Some(visible) = self.visible.get_mut(value.index()) {
            *visible = true;
        }
        here.push(value);
    }

    fn cell(&mut self, place: Place, indices: &[Value]) {
        match place {
            Place::Tensor(param) => {
                self.param(param);
                self.write("[");
            }
            Place::Flat(param) => {
                self.param(param);
                self.write("[flat ");
            }
            Place::Array(array) => {
                self.array(array);
                self.write("[");
            }
        }
        self.list(indices.iter().copied());
        self.write("]");
    }

    fn list(&mut self, values: impl IntoIterator<Item = Value>) {
        for (i, value) in values.into_iter().enumerate() {
            self.write(if i > 0 { ", " } else { "" });
            self.value(value);
        }
    }

    /// A use: the name where a definition is in scope, else what the value is.
    fn value(&mut self, value: Value) {
        if self.visible.get(value.index()).copied().unwrap_or(false) || !self.leaf(value) {
            self.value_name(value);
        }
    }

    /// Writes a constant, parameter, dimension, stride or builtin; false for everything else.
    fn leaf(&mut self, value: Value) -> bool {
        let Some(data) = self.kernel.values.get(value) else {
            return false;
        };
        match data.op {
            Op::Const(c) => self.write(&constant(c)),
            Op::Scalar(param) => self.param(param),
            Op::Dim(dim) => self.dim(dim),
            Op::Stride(param, axis) => {
                self.write("stride(");
                self.param(param);
                self.write(&format!(", {axis})"));
            }
            Op::Builtin(op, axis) => {
                self.write(op.name());
                if axis > 0 || has_axis(op) {
                    self.write(&format!(".{axis}"));
                }
            }
            _ => return false,
        }
        true
    }

    fn op(&mut self, value: Value) {
        let kernel = self.kernel;
        let named = |p: &mut Self, name: &str, operands: &[Value]| {
            p.write(name);
            p.write(" ");
            p.list(operands.iter().copied());
        };
        match &kernel.values[value].op {
            Op::Const(_) | Op::Scalar(_) | Op::Dim(_) | Op::Stride(..) | Op::Builtin(..) => {
                self.leaf(value);
            }
            Op::Unary(op, a) => named(self, op.name(), &[*a]),
            Op::Binary(op, a, b) => named(self, op.name(), &[*a, *b]),
            Op::Compare(op, a, b) => named(self, op.name(), &[*a, *b]),
            Op::Select(a, b, c) => named(self, "select", &[*a, *b, *c]),
            Op::Fma(a, b, c) => named(self, "fma", &[*a, *b, *c]),
            Op::Convert(a) => named(self, "convert", &[*a]),
            Op::Bitcast(a) => named(self, "bitcast", &[*a]),
            Op::Splat(a) => named(self, "splat", &[*a]),
            Op::Vector(parts) => named(self, "vector", parts),
            Op::Extract(a, lane) => {
                named(self, "extract", &[*a]);
                self.write(&format!(", {lane}"));
            }
            Op::Insert(a, lane, b) => {
                named(self, "insert", &[*a]);
                self.write(&format!(", {lane}, "));
                self.value(*b);
            }
            Op::Get(local) => self.local(*local),
            Op::Load { place, indices } => {
                self.write("load ");
                self.cell(*place, indices);
            }
            Op::Result => self.write("result"),
        }
    }
}

/// Builtins that ask for an axis.
pub(crate) fn has_axis(op: BuiltinOp) -> bool {
    match op {
        BuiltinOp::GroupId
        | BuiltinOp::GroupCount
        | BuiltinOp::LocalId
        | BuiltinOp::GroupSize
        | BuiltinOp::GlobalId => true,
        BuiltinOp::LocalIndex
        | BuiltinOp::GroupThreads
        | BuiltinOp::SubgroupId
        | BuiltinOp::SubgroupCount
        | BuiltinOp::SubgroupLane
        | BuiltinOp::SubgroupSize => false,
    }
}
