//! Statements.

use iron_ir::entity::{Handle, Local, Value};
use iron_ir::kernel::{Block, Span};
use iron_ir::layout::FieldKind;
use iron_ir::machine::MachineStmt;
use iron_ir::op::{AtomicOp, BarrierScope, BuiltinOp, CompareOp, Op, Place, Stmt, Unroll};
use iron_ir::types::Scalar;

use super::analysis::{Effects, upper_bound};
use super::dialect::{MachineNames, Role};
use super::expr::{Expr, Level};
use super::printer::{Fault, Printer, wrap};

/// Characters of a delayed expression beyond which it gets a name.
const LONGEST_DELAYED: usize = 80;

impl Printer<'_> {
    /// Prints a block's statements.
    pub fn block(&mut self, block: &Block) -> Result<(), Fault> {
        for (index, (stmt, span)) in block.0.iter().enumerate() {
            self.span = *span;
            for local in self.declarations.before(block, index).to_vec() {
                self.declare(local, stmt);
            }
            if let Stmt::Let(value) = stmt
                && let Op::Get(local) = self.kernel.values[*value].op
                && self.kernel.values[*value].name.is_none()
                && !is_set_after(block, index, local)
            {
                // The variable keeps the value for as long as the value can be used.
                self.value_names[value.index()] = Some(self.local_names[local.index()].clone());
                continue;
            }
            self.stmt(stmt, *span)?;
        }
        Ok(())
    }

    /// A block between braces, on lines of its own.
    fn nested(&mut self, block: &Block) -> Result<(), Fault> {
        let names = self.namer.open();
        self.indent += 1;
        let result = self.block(block);
        self.indent -= 1;
        self.namer.close(names);
        result
    }

    fn stmt(&mut self, stmt: &Stmt, span: Span) -> Result<(), Fault> {
        match stmt {
            Stmt::Let(value) => self.let_value(*value),
            Stmt::Set(local, value) => self.set(*local, *value),
            Stmt::Store {
                place,
                indices,
                value,
            } => {
                let ty = self.kernel.ty(*value);
                let cell = self.access(*place, indices, ty)?;
                let value = self.read(*value)?;
                self.flush_memory();
                self.statement(&format!("{} = {};", cell.text, value.text));
                Ok(())
            }
            Stmt::Atomic {
                result,
                op,
                place,
                indices,
                value,
                compare,
            } => {
                let scalar = self.kernel.ty(*result).scalar;
                let cell = self.access(*place, indices, scalar.x(1))?;
                let value = value.map(|v| self.read(v)).transpose()?;
                let compare = compare.map(|v| self.read(v)).transpose()?;
                self.flush_memory();
                let memory = self.memory(*place);
                let dialect = self.dialect;
                let call = dialect.atomic(
                    &mut self.ops,
                    *op,
                    scalar,
                    memory,
                    &cell,
                    value.as_ref(),
                    compare.as_ref(),
                )?;
                if *op == AtomicOp::Store || self.uses.count(*result) == 0 {
                    self.statement(&format!("{};", call.text));
                } else {
                    self.define(*result, "old", &call);
                }
                Ok(())
            }
            Stmt::Barrier(scope, memory) => {
                self.flush_memory();
                let dialect = self.dialect;
                if let (BarrierScope::Workgroup, Some(role)) = (scope, self.role) {
                    let line = dialect.role_barrier(&mut self.ops, role)?;
                    self.statement(&line);
                    return Ok(());
                }
                let context = super::dialect::Context {
                    kernel: self.kernel,
                    profile: self.profile,
                    entry: &self.entry,
                    field_names: &self.field_names,
                    param_names: &self.param_names,
                    dialect,
                };
                let line = dialect.barrier(&mut self.ops, &context, *scope, *memory)?;
                self.statement(&line);
                Ok(())
            }
            Stmt::Subgroup {
                result,
                op,
                reduce,
                value,
                argument,
            } => {
                let mut call = self.subgroup(*op, *reduce, *value, *argument)?;
                self.flush(|reads| reads.memory || reads.lanes);
                call.reads.lanes = true;
                let is_unnamed = self.kernel.values[*result].name.is_none();
                if is_unnamed && self.uses.count(*result) == 1 && call.text.len() <= LONGEST_DELAYED
                {
                    self.pending.push((*result, call));
                } else {
                    self.define(*result, op.name(), &call);
                }
                Ok(())
            }
            Stmt::CheckIndex {
                result,
                index,
                bound,
            } => {
                let (index, bound) = (self.read(*index)?, self.read(*bound)?);
                let text = self.dialect.check_index_helper();
                self.ops.helpers.require("check_index", || text);
                let code = Expr::primary(format!("{}u", crate::error_code(span)));
                let word = Expr::primary("error_word");
                let call = Expr::call("check_index", &[word, index, bound, code]);
                self.define(*result, "index", &call);
                Ok(())
            }
            Stmt::If {
                condition,
                then_block,
                else_block,
            } => self.if_statement(stmt, *condition, then_block, else_block),
            Stmt::For {
                index,
                start,
                end,
                step,
                unroll,
                body,
            } => self.for_statement(*index, [*start, *end, *step], *unroll, body),
            Stmt::Loop { body } => self.loop_statement(body),
            Stmt::Break => {
                self.statement("break;");
                Ok(())
            }
            Stmt::Continue => {
                self.statement("continue;");
                Ok(())
            }
            Stmt::Return => {
                self.statement("return;");
                Ok(())
            }
            Stmt::Group { op, .. } => Err(Fault::new(format!("a workgroup `{}`", op.name()))),
            Stmt::Tile(_) => Err(Fault::new("a tile operation".into())),
            Stmt::Mma { result, a, b, sum } => self.mma(*result, [a[0], a[1], *b, *sum]),
            Stmt::Machine(machine) => self.machine(machine),
            Stmt::Roles {
                producers,
                producer,
                consumer,
            } => self.roles(*producers, producer, consumer),
        }
    }

    fn mma(&mut self, result: Value, operands: [Value; 4]) -> Result<(), Fault> {
        let scalar = self.kernel.ty(operands[2]).scalar;
        let mut read = Vec::new();
        for operand in operands {
            let ty = self.kernel.ty(operand);
            self.ops.type_name(ty);
            read.push(self.read(operand)?);
        }
        // The threads of a product meet, so it keeps its place among what they do together.
        self.flush(|reads| reads.memory || reads.lanes);
        let call = self.dialect.mma(&mut self.ops, scalar, &read)?;
        self.define(result, "sums", &call);
        Ok(())
    }

    fn machine(&mut self, stmt: &MachineStmt) -> Result<(), Fault> {
        let mut operands = Vec::new();
        for operand in &stmt.operands {
            operands.push(self.read(*operand)?.text);
        }
        self.flush_memory();
        let rows = stmt.numbers.first().copied().unwrap_or(0);
        let field = |kind: FieldKind| {
            let at = self.layout.fields.iter().position(|f| f.kind == kind)?;
            self.field_names.get(at).map(String::as_str)
        };
        let names = MachineNames {
            arrays: stmt
                .arrays
                .iter()
                .map(|a| self.array_names[a.index()].as_str())
                .collect(),
            scalar: stmt
                .arrays
                .last()
                .map_or(Scalar::F32, |a| self.kernel.arrays[*a].scalar),
            operands,
            tensor: stmt
                .source
                .map(|param| self.param_names[param.index()].as_str()),
            tensor_map: stmt
                .source
                .and_then(|param| field(FieldKind::TensorMap(param, rows))),
            lanes: self.profile.subgroup_size,
            aligned: field(FieldKind::Aligned).map(|name| self.dialect.block_field(name)),
        };
        let line = self.dialect.machine(&mut self.ops, stmt, &names)?;
        match stmt.result {
            Some(result) => self.define(result, stmt.op.name(), &Expr::new(line, Level::Equality)),
            None => self.statement(&line),
        }
        Ok(())
    }

    fn roles(&mut self, producers: u32, producer: &Block, consumer: &Block) -> Result<(), Fault> {
        self.flush_memory();
        let consumers = self.kernel.contract.threads() - producers;
        let thread = self
            .dialect
            .builtin(&self.context(), BuiltinOp::LocalIndex, 0);
        let thread = thread.at(Level::Relational);
        self.statement(&format!("if ({thread} >= {consumers}u) {{"));
        for (number, threads, block) in [(2, producers, producer), (1, consumers, consumer)] {
            self.role = Some(Role { number, threads });
            self.nested(block)?;
            self.role = None;
            self.statement(if number == 2 { "} else {" } else { "}" });
        }
        Ok(())
    }

    /// Computes a value: delayed to its use, or named.
    fn let_value(&mut self, value: Value) -> Result<(), Fault> {
        let count = self.uses.count(value);
        if count == 0 || self.value_names[value.index()].is_some() {
            return Ok(());
        }
        let data = &self.kernel.values[value];
        let is_free = matches!(
            data.op,
            Op::Const(_) | Op::Scalar(_) | Op::Dim(_) | Op::Stride(..) | Op::Builtin(..)
        );
        let has_name = data.name.is_some();
        if is_free && !has_name {
            return Ok(());
        }
        let expr = self.compute(value)?;
        let is_lane = matches!(data.op, Op::Extract(..))
            && expr.level == Level::Primary
            && expr.reads == Default::default()
            && expr.text.len() <= 24;
        let is_widened_name = expr
            .narrow
            .as_ref()
            .is_some_and(|e| e.level == Level::Primary && expr.reads == Default::default());
        if !has_name && is_widened_name {
            self.widened.insert(value, expr);
        } else if !has_name && is_lane {
            self.value_names[value.index()] = Some(expr.text);
        } else if !has_name && count == 1 && expr.text.len() <= LONGEST_DELAYED {
            self.pending.push((value, expr));
        } else {
            let stem = self.stem(value);
            self.define(value, &stem, &expr);
        }
        Ok(())
    }

    /// Declares a constant for a value.
    fn define(&mut self, value: Value, stem: &str, expr: &Expr) {
        let data = &self.kernel.values[value];
        let wanted = data.name.as_deref().unwrap_or(stem).to_owned();
        let name = self.namer.name(&wanted);
        let ty = self.ops.type_name(data.ty);
        self.statement(&format!("const {ty} {name} = {};", expr.text));
        self.value_names[value.index()] = Some(name);
    }

    /// A name for a value that the author gave none.
    fn stem(&self, value: Value) -> String {
        use iron_ir::op::BinaryOp;
        let data = &self.kernel.values[value];
        match &data.op {
            Op::Load {
                place: Place::Flat(p) | Place::Tensor(p),
                ..
            } => {
                format!("{}_value", self.kernel.params[*p].name)
            }
            Op::Load {
                place: Place::Array(a),
                ..
            } => {
                format!("{}_value", self.kernel.arrays[*a].name)
            }
            Op::Get(local) => format!("{}_before", self.kernel.locals[*local].name),
            Op::Compare(..) => "is_true".into(),
            Op::Binary(..) | Op::Convert(_) if data.ty == iron_ir::Type::U64 => "offset".into(),
            Op::Binary(_, a, b) | Op::Select(_, a, b)
                if [a, b].iter().any(|v| self.is_exchange(**v)) =>
            {
                "partial".into()
            }
            Op::Binary(BinaryOp::Add, ..) => "sum".into(),
            Op::Binary(BinaryOp::Sub, ..) => "difference".into(),
            Op::Binary(BinaryOp::Mul, ..) => "product".into(),
            Op::Binary(BinaryOp::Div, ..) => "quotient".into(),
            Op::Binary(BinaryOp::Rem, ..) => "remainder".into(),
            Op::Convert(inner) | Op::Bitcast(inner) => match &self.kernel.values[*inner].name {
                Some(name) => name.to_string(),
                None if matches!(self.kernel.values[*inner].op, Op::Load { .. }) => {
                    self.stem(*inner)
                }
                None => "converted".into(),
            },
            Op::Extract(inner, lane) => {
                let of = self.kernel.values[*inner]
                    .name
                    .as_deref()
                    .unwrap_or("element");
                format!("{of}_{lane}")
            }
            Op::Select(..) => "chosen".into(),
            Op::Vector(_) | Op::Splat(_) | Op::Insert(..) => "lanes".into(),
            _ => "value".into(),
        }
    }

    /// Whether the value came from another lane.
    fn is_exchange(&self, value: Value) -> bool {
        self.kernel.values[value].op == Op::Result && self.kernel.values[value].name.is_none()
    }

    fn declare(&mut self, local: Local, before: &Stmt) {
        let data = &self.kernel.locals[local];
        let name = self.namer.name(&data.name);
        self.local_names[local.index()] = name.clone();
        if matches!(before, Stmt::Set(set, _) if *set == local) {
            return;
        }
        let ty = self.ops.type_name(data.ty);
        self.is_declared[local.index()] = true;
        self.statement(&format!("{ty} {name};"));
    }

    fn set(&mut self, local: Local, value: Value) -> Result<(), Fault> {
        let expr = self.read(value)?;
        self.flush(|reads| reads.locals.contains(&local));
        let name = self.local_names[local.index()].clone();
        let ty = self.kernel.locals[local].ty;
        if !self.is_declared[local.index()] {
            self.is_declared[local.index()] = true;
            let ty = self.ops.type_name(ty);
            self.statement(&format!("{ty} {name} = {};", expr.text));
            return Ok(());
        }
        let has_compound = ty.lanes == 1 && ty.scalar != Scalar::Bool;
        match &expr.compound {
            Some(compound) if compound.0 == local && has_compound && is_compound(compound.1) => {
                let (_, operator, right) = &**compound;
                self.statement(&format!("{name} {operator}= {};", right.text));
            }
            _ => self.statement(&format!("{name} = {};", expr.text)),
        }
        Ok(())
    }

    fn if_statement(
        &mut self,
        stmt: &Stmt,
        condition: Value,
        then_block: &Block,
        else_block: &Block,
    ) -> Result<(), Fault> {
        let expr = self.read(condition)?;
        let opposite = self.opposite(condition, &expr);
        let (condition, opposite, then_block, else_block) = if then_block.is_empty() {
            (opposite, expr.text, else_block, then_block)
        } else {
            (expr.text, opposite, then_block, else_block)
        };
        self.flush_before(stmt);
        if let ([(jump, _)], true) = (then_block.0.as_slice(), else_block.is_empty()) {
            let word = match jump {
                Stmt::Return => Some("return"),
                Stmt::Break => Some("break"),
                Stmt::Continue => Some("continue"),
                _ => None,
            };
            if let Some(word) = word {
                if word == "break" {
                    self.guards.push((self.out.len(), opposite));
                }
                self.statement(&format!("if ({condition}) {word};"));
                return Ok(());
            }
        }
        self.statement(&format!("if ({condition}) {{"));
        self.branches(then_block, else_block)
    }

    fn branches(&mut self, then_block: &Block, else_block: &Block) -> Result<(), Fault> {
        self.nested(then_block)?;
        if else_block.is_empty() {
            self.statement("}");
            return Ok(());
        }
        // `else if`, where the else block is one `if` whose condition needs no statement.
        if let [
            (
                Stmt::If {
                    condition,
                    then_block,
                    else_block: last,
                },
                _,
            ),
        ] = else_block.0.as_slice()
            && self.declarations.before(else_block, 0).is_empty()
            && !then_block.is_empty()
        {
            let condition = self.read(*condition)?;
            self.statement(&format!("}} else if ({}) {{", condition.text));
            return self.branches(then_block, last);
        }
        self.statement("} else {");
        self.nested(else_block)?;
        self.statement("}");
        Ok(())
    }

    /// The text of a condition's opposite. A comparison of floats is false beside a NaN, so its
    /// opposite is no comparison.
    fn opposite(&self, value: Value, expr: &Expr) -> String {
        if let Op::Compare(op, a, _) = &self.kernel.values[value].op
            && expr.level < Level::Unary
            && (!self.kernel.ty(*a).scalar.is_float()
                || matches!(op, CompareOp::Eq | CompareOp::Ne))
        {
            let (from, to) = match op {
                CompareOp::Eq => (" == ", " != "),
                CompareOp::Ne => (" != ", " == "),
                CompareOp::Lt => (" < ", " >= "),
                CompareOp::Le => (" <= ", " > "),
                CompareOp::Gt => (" > ", " <= "),
                CompareOp::Ge => (" >= ", " < "),
            };
            if expr.text.matches(from).count() == 1 {
                return expr.text.replacen(from, to, 1);
            }
        }
        match expr.text.strip_prefix('!') {
            Some(inner) if expr.level == Level::Unary => inner.to_owned(),
            _ => Expr::prefix('!', expr).text,
        }
    }

    fn for_statement(
        &mut self,
        index: Value,
        [start, end, step]: [Value; 3],
        unroll: Unroll,
        body: &Block,
    ) -> Result<(), Fault> {
        let ty = self.kernel.ty(index);
        let scalar = ty.scalar;
        let mut bounds = Vec::new();
        for (value, stem) in [(start, "start"), (end, "end"), (step, "step")] {
            let expr = self.read(value)?;
            // End and step are read in every turn; the IR reads them once.
            let is_stable = expr.reads == Default::default() && expr.level == Level::Primary;
            let is_short = expr.reads == Default::default() && expr.text.len() <= 32;
            if stem == "start" || is_stable || is_short || self.kernel.constant(value).is_some() {
                bounds.push(expr);
            } else {
                let name = self.namer.name(stem);
                let ty = self.ops.type_name(ty);
                self.statement(&format!("const {ty} {name} = {};", expr.text));
                bounds.push(Expr::primary(name));
            }
        }
        self.flush(|_| true);
        let [start_expr, end_expr, step_expr] = bounds.as_slice() else {
            return Err(Fault::new("a loop without bounds".into()));
        };
        let names = self.namer.open();
        let wanted = self.kernel.values[index]
            .name
            .as_deref()
            .unwrap_or("i")
            .to_owned();
        let name = self.namer.name(&wanted);
        self.value_names[index.index()] = Some(name.clone());
        let i = Expr::primary(name.clone());
        let is_one = self.kernel.constant(step).is_some_and(|c| c.bits == 1);
        let test = self.ops.compare(CompareOp::Lt, scalar, &i, end_expr)?;
        let advance = if is_one {
            format!("{name}++")
        } else if self.never_wraps(end, step, scalar) {
            format!("{name} += {}", step_expr.text)
        } else {
            let unsigned = scalar.unsigned_of_width();
            let (x, e) = (
                self.ops.as_unsigned(unsigned, &i),
                self.ops.as_unsigned(unsigned, end_expr),
            );
            let s = self.ops.as_unsigned(unsigned, step_expr);
            let (x, e, s) = if scalar.is_signed() {
                (x, e, s)
            } else {
                (i.clone(), end_expr.clone(), step_expr.clone())
            };
            let rest = Expr::infix("-", Level::Additive, &e, &x);
            let goes_on = Expr::infix(">", Level::Relational, &rest, &s);
            let next = Expr::infix("+", Level::Additive, &i, step_expr);
            let chosen = Expr::conditional(&goes_on, &next, end_expr);
            format!("{name} = {}", chosen.text)
        };
        match unroll {
            Unroll::Auto => {}
            Unroll::Full => self.statement("#pragma unroll"),
            Unroll::Never => self.statement("#pragma unroll 1"),
        }
        let spelled = self.ops.type_name(ty);
        self.statement(&format!(
            "for ({spelled} {name} = {}; {}; {advance}) {{",
            start_expr.text, test.text
        ));
        self.nested(body)?;
        self.namer.close(names);
        self.statement("}");
        Ok(())
    }

    /// Whether `index + step` stays in the type for every index below `end`.
    fn never_wraps(&self, end: Value, step: Value, scalar: Scalar) -> bool {
        let most = match scalar.is_signed() {
            true => u128::from((1u64 << (scalar.bits() - 1)) - 1),
            false => u128::from(u64::MAX >> (64 - scalar.bits())),
        };
        match (
            upper_bound(self.kernel, end, 8),
            upper_bound(self.kernel, step, 8),
        ) {
            (Some(end), Some(step)) => end.saturating_sub(1) + step <= most,
            _ => false,
        }
    }

    fn loop_statement(&mut self, body: &Block) -> Result<(), Fault> {
        self.flush(|_| true);
        let start = self.out.len();
        self.statement("while (true) {");
        let inner = self.out.len();
        self.guards.retain(|(at, _)| *at < inner);
        self.nested(body)?;
        // `while (true) { if (done) break; …` reads better as `while (!done) { …`.
        if let Some(at) = self.guards.iter().position(|(at, _)| *at == inner) {
            let (_, condition) = self.guards.swap_remove(at);
            let length = self.out[inner..].find('\n').map_or(0, |n| n + 1);
            let kept = inner + length;
            let rest = self.out[kept..].to_owned();
            self.out.truncate(start);
            let first = self.marks.partition_point(|(at, _)| *at < kept);
            let marks = self.marks.split_off(first);
            // The condition has the place of the test that it was.
            let test = self.marks.last().map_or(self.span, |(_, span)| *span);
            self.marks.retain(|(at, _)| *at < start);
            self.marks.push((start, test));
            wrap(
                &format!("while ({condition}) {{"),
                self.indent,
                &mut self.out,
            );
            let moved = self.out.len();
            self.marks.push((moved, test));
            let shifted = marks
                .into_iter()
                .map(|(at, span)| (at - kept + moved, span));
            self.marks.extend(shifted);
            self.out.push_str(&rest);
        }
        self.statement("}");
        Ok(())
    }

    /// Names every delayed value that reads memory.
    fn flush_memory(&mut self) {
        self.flush(|reads| reads.memory || reads.lanes);
    }

    /// Names delayed values that must not wait beyond a statement with nested blocks.
    fn flush_before(&mut self, stmt: &Stmt) {
        let effects = Effects::of(stmt);
        self.flush(|reads| {
            effects.has_loop
                || reads.lanes
                || (effects.memory && reads.memory)
                || reads.locals.iter().any(|l| effects.locals.contains(l))
        });
    }

    /// Names those of the values that wait for an exchange between lanes.
    pub fn name_exchanges(&mut self, values: &[Value]) {
        for &value in values {
            let waiting = self
                .pending
                .iter()
                .position(|(v, e)| *v == value && e.reads.lanes);
            if let Some(at) = waiting {
                let (value, expr) = self.pending.remove(at);
                let stem = self.stem(value);
                self.define(value, &stem, &expr);
            }
        }
    }

    fn flush(&mut self, must: impl Fn(&super::expr::Reads) -> bool) {
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|(_, e)| must(&e.reads));
        self.pending = later;
        for (value, expr) in now {
            let stem = self.stem(value);
            self.define(value, &stem, &expr);
        }
    }
}

/// Whether a later statement of the block sets the variable.
fn is_set_after(block: &Block, index: usize, local: Local) -> bool {
    block.0[index + 1..]
        .iter()
        .any(|(stmt, _)| Effects::of(stmt).locals.contains(&local))
}

/// Operators with a compound assignment.
fn is_compound(operator: &str) -> bool {
    matches!(
        operator,
        "+" | "-" | "*" | "/" | "%" | "&" | "|" | "^" | "<<" | ">>"
    )
}
