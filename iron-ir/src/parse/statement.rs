//! Statements and operations.

use super::lexer::Token;
use super::{Parsed, Parser, base};
use crate::entity::{Tile, Value};
use crate::kernel::{Block, Span};
use crate::machine::{MachineOp, MachineStmt};
use crate::op::{
    AtomicOp, BarrierMemory, BarrierScope, BinaryOp, BuiltinOp, CompareOp, Const, GroupOp, Op,
    Place, ReduceOp, Stmt, SubgroupOp, TileStmt, UnaryOp, Unroll,
};
use crate::print::has_axis;
use crate::types::{Scalar, Type};

impl Parser {
    fn block(&mut self) -> Parsed<Block> {
        self.mark("{")?;
        self.block_rest()
    }

    /// Statements up to the closing brace.
    pub(super) fn block_rest(&mut self) -> Parsed<Block> {
        let mut block = Block::default();
        while !self.eat("}") {
            let (stmt, span) = self.statement()?;
            block.push(stmt, span);
        }
        Ok(block)
    }

    fn statement(&mut self) -> Parsed<(Stmt, Span)> {
        match self.peek().clone() {
            Token::Name('%', _) => self.defining(),
            Token::Name('$', _) => {
                let key = self.name('$')?;
                let Some(local) = self.locals.get(&key).copied() else {
                    return self.fail(format!("there is no variable `${key}`"));
                };
                self.mark("=")?;
                let value = self.value()?;
                Ok((Stmt::Set(local, value), self.span()))
            }
            Token::Word(word) => {
                self.at += 1;
                self.effect(&word)
            }
            _ => self.expected("a statement or `}`"),
        }
    }

    fn effect(&mut self, word: &str) -> Parsed<(Stmt, Span)> {
        let stmt = match word {
            "store" => {
                let (place, indices) = self.cell()?;
                self.mark("=")?;
                let value = self.value()?;
                Stmt::Store {
                    place,
                    indices,
                    value,
                }
            }
            "barrier" => {
                let scope = self.any_word("a barrier's scope")?;
                let memory = self.any_word("a barrier's memory")?;
                match (
                    BarrierScope::from_name(&scope),
                    BarrierMemory::from_name(&memory),
                ) {
                    (Some(scope), Some(memory)) => Stmt::Barrier(scope, memory),
                    _ => return self.fail(format!("there is no barrier `{scope} {memory}`")),
                }
            }
            "if" => {
                let condition = self.value()?;
                let span = self.span();
                let then_block = self.block()?;
                let else_block = if self.eat_word("else") {
                    self.block()?
                } else {
                    Block::default()
                };
                return Ok((
                    Stmt::If {
                        condition,
                        then_block,
                        else_block,
                    },
                    span,
                ));
            }
            "for" => return self.for_loop(),
            "loop" => {
                let span = self.span();
                return Ok((
                    Stmt::Loop {
                        body: self.block()?,
                    },
                    span,
                ));
            }
            "roles" => {
                let producers = self.integer()?;
                let span = self.span();
                let producer = self.block()?;
                self.word("else")?;
                let consumer = self.block()?;
                return Ok((
                    Stmt::Roles {
                        producers,
                        producer,
                        consumer,
                    },
                    span,
                ));
            }
            "machine" => Stmt::Machine(self.machine(None)?),
            "break" => Stmt::Break,
            "continue" => Stmt::Continue,
            "return" => Stmt::Return,
            "tile_map" => return self.tile_map(),
            other => Stmt::Tile(self.tile_statement(other)?),
        };
        Ok((stmt, self.span()))
    }

    fn machine(&mut self, result: Option<Value>) -> Parsed<MachineStmt> {
        let name = self.any_word("a machine operation")?;
        let Some(op) = MachineOp::from_name(&name) else {
            return self.fail(format!("there is no machine operation `{name}`"));
        };
        let mut stmt = MachineStmt::new(op, &[], &[], &[]);
        stmt.result = result;
        while !self.eat("(") {
            match self.peek().clone() {
                Token::Name('&', key) => {
                    self.at += 1;
                    match self.arrays.get(&key) {
                        Some(array) => stmt.arrays.push(*array),
                        None => return self.fail(format!("there is no array `&{key}`")),
                    }
                }
                Token::Name('@', key) => {
                    self.at += 1;
                    match self.params.get(&key) {
                        Some(param) => stmt.source = Some(*param),
                        None => return self.fail(format!("there is no parameter `@{key}`")),
                    }
                }
                _ => return self.expected("an array, a tensor or `(`"),
            }
        }
        while !self.eat(")") {
            if !stmt.operands.is_empty() {
                self.mark(",")?;
            }
            stmt.operands.push(self.value()?);
        }
        while let Token::Number(_) = self.peek() {
            stmt.numbers.push(self.integer()?);
        }
        Ok(stmt)
    }

    fn for_loop(&mut self) -> Parsed<(Stmt, Span)> {
        let (index, own) = self.definition()?;
        self.word("in")?;
        let start = self.value()?;
        self.mark("..")?;
        let end = self.value()?;
        let step = if self.eat_word("step") {
            self.value()?
        } else {
            let scalar = self.kernel.ty(index).scalar;
            self.leaf(Op::Const(Const::one(scalar)), scalar.x(1))
        };
        let unroll = if self.eat_word("unroll") {
            Unroll::Full
        } else if self.eat_word("never_unroll") {
            Unroll::Never
        } else {
            Unroll::Auto
        };
        let span = self.span();
        self.kernel.values[index].span = own.unwrap_or(span);
        let body = self.block()?;
        Ok((
            Stmt::For {
                index,
                start,
                end,
                step,
                unroll,
                body,
            },
            span,
        ))
    }

    fn tile_map(&mut self) -> Parsed<(Stmt, Span)> {
        let to = self.tile_name()?;
        self.mark("=")?;
        self.mark("(")?;
        let (mut elements, mut from, mut own) = (Vec::new(), Vec::new(), Vec::new());
        while !self.eat(")") {
            if !elements.is_empty() {
                self.mark(",")?;
            }
            let (element, span) = self.definition()?;
            self.mark("=")?;
            from.push(self.tile_name()?);
            elements.push(element);
            own.push((element, span));
        }
        self.word("at")?;
        self.mark("(")?;
        let (row, row_span) = self.definition()?;
        self.mark(",")?;
        let (column, column_span) = self.definition()?;
        own.extend([(row, row_span), (column, column_span)]);
        self.mark(")")?;
        let span = self.span();
        for (value, own) in own {
            self.kernel.values[value].span = own.unwrap_or(span);
        }
        self.mark("{")?;
        let mut body = Block::default();
        while !self.eat_word("yield") {
            let (stmt, span) = self.statement()?;
            body.push(stmt, span);
        }
        let result = self.value()?;
        self.mark("}")?;
        let map = TileStmt::Map {
            to,
            from,
            elements,
            row,
            column,
            body,
            result,
        };
        Ok((Stmt::Tile(map), span))
    }

    fn tile_statement(&mut self, word: &str) -> Parsed<TileStmt> {
        Ok(match word {
            "tile_fill" => {
                let tile = self.tile_name()?;
                self.mark("=")?;
                let value = self.value()?;
                TileStmt::Fill { tile, value }
            }
            "tile_load" => {
                let tile = self.tile_name()?;
                self.mark("=")?;
                let (source, leading, origin) = self.block_of_tensor()?;
                let transposed = self.eat_word("transposed");
                TileStmt::Load {
                    tile,
                    source,
                    leading,
                    origin,
                    transposed,
                }
            }
            "tile_store" => {
                let (target, leading, origin) = self.block_of_tensor()?;
                self.mark("=")?;
                let tile = self.tile_name()?;
                TileStmt::Store {
                    tile,
                    target,
                    leading,
                    origin,
                }
            }
            "tile_copy" => {
                let to = self.tile_name()?;
                self.mark("=")?;
                let from = self.tile_name()?;
                TileStmt::Copy { to, from }
            }
            "matmul" => {
                let accumulator = self.tile_name()?;
                self.mark("+=")?;
                let a = self.tile_name()?;
                let transpose_a = self.eat_word("transposed");
                self.mark("*")?;
                let b = self.tile_name()?;
                let transpose_b = self.eat_word("transposed");
                TileStmt::Matmul {
                    accumulator,
                    a,
                    b,
                    transpose_a,
                    transpose_b,
                }
            }
            "reduce_rows" | "reduce_columns" => {
                self.mark(".")?;
                let op = self.reduce_op()?;
                let to = self.tile_name()?;
                self.mark("=")?;
                let from = self.tile_name()?;
                if word == "reduce_rows" {
                    TileStmt::ReduceRows { to, from, op }
                } else {
                    TileStmt::ReduceColumns { to, from, op }
                }
            }
            _ => return self.fail(format!("there is no statement `{word}`")),
        })
    }

    fn block_of_tensor(&mut self) -> Parsed<(crate::entity::Param, Vec<Value>, [Value; 2])> {
        let (place, mut leading) = self.cell()?;
        let Place::Tensor(param) = place else {
            return self.fail("a tile is moved to or from a tensor");
        };
        match (leading.pop(), leading.pop()) {
            (Some(column), Some(row)) => Ok((param, leading, [row, column])),
            _ => self.fail("a tile's place has at least a row and a column"),
        }
    }

    fn defining(&mut self) -> Parsed<(Stmt, Span)> {
        let (value, own) = self.definition()?;
        self.mark("=")?;
        let stmt = self.defined_by(value)?;
        let span = self.span();
        self.kernel.values[value].span = own.unwrap_or(span);
        Ok((stmt, span))
    }

    fn defined_by(&mut self, result: Value) -> Parsed<Stmt> {
        if self.eat_word("atomic") {
            let name = self.any_word("an atomic operator")?;
            let Some(op) = AtomicOp::from_name(&name) else {
                return self.fail(format!("there is no atomic `{name}`"));
            };
            let (place, indices) = self.cell()?;
            let value = if self.eat(",") {
                Some(self.value()?)
            } else {
                None
            };
            let compare = if self.eat(",") {
                Some(self.value()?)
            } else {
                None
            };
            return Ok(Stmt::Atomic {
                result,
                op,
                place,
                indices,
                value,
                compare,
            });
        }
        if self.eat_word("subgroup") {
            let name = self.any_word("a subgroup operator")?;
            let Some(op) = SubgroupOp::from_name(&name) else {
                return self.fail(format!("there is no subgroup `{name}`"));
            };
            let reduce = if self.eat(".") {
                Some(self.reduce_op()?)
            } else {
                None
            };
            let value = self.value()?;
            let argument = if self.eat(",") {
                Some(self.value()?)
            } else {
                None
            };
            return Ok(Stmt::Subgroup {
                result,
                op,
                reduce,
                value,
                argument,
            });
        }
        if self.eat_word("group") {
            let name = self.any_word("a collective")?;
            let Some(op) = GroupOp::from_name(&name) else {
                return self.fail(format!("there is no collective `{name}`"));
            };
            let reduce = if self.eat(".") {
                Some(self.reduce_op()?)
            } else {
                None
            };
            let value = self.value()?;
            let argument = if self.eat(",") {
                Some(self.value()?)
            } else {
                None
            };
            return Ok(Stmt::Group {
                result,
                op,
                reduce,
                value,
                argument,
            });
        }
        if self.eat_word("machine") {
            return Ok(Stmt::Machine(self.machine(Some(result))?));
        }
        if self.eat_word("mma") {
            let mut next = || -> Parsed<Value> {
                let value = self.value()?;
                self.mark(",")?;
                Ok(value)
            };
            let (a, b) = ([next()?, next()?], next()?);
            let sum = self.value()?;
            return Ok(Stmt::Mma { result, a, b, sum });
        }
        if self.eat_word("check_index") {
            let index = self.value()?;
            self.mark(",")?;
            let bound = self.value()?;
            return Ok(Stmt::CheckIndex {
                result,
                index,
                bound,
            });
        }
        let op = self.op(self.kernel.ty(result))?;
        self.kernel.values[result].op = op;
        Ok(Stmt::Let(result))
    }

    /// `%name: type` and the value's own span, where it has one.
    fn definition(&mut self) -> Parsed<(Value, Option<Span>)> {
        let key = self.name('%')?;
        self.mark(":")?;
        let ty = self.ty()?;
        let own = matches!(self.peek(), Token::Span(..)).then(|| self.span());
        let value = self.kernel.add_value(Op::Result, ty, Span::default());
        if !key.starts_with(|c: char| c.is_ascii_digit()) {
            self.kernel.values[value].name = Some(base(&key).into());
        }
        if self.values.insert(key.clone(), value).is_some() {
            return self.fail(format!("`%{key}` is defined twice"));
        }
        Ok((value, own))
    }

    fn op(&mut self, ty: Type) -> Parsed<Op> {
        if let Token::Name('$', _) = self.peek() {
            let key = self.name('$')?;
            return match self.locals.get(&key) {
                Some(local) => Ok(Op::Get(*local)),
                None => self.fail(format!("there is no variable `${key}`")),
            };
        }
        let word = match self.peek().clone() {
            Token::Word(word) => word,
            _ => String::new(),
        };
        let is_leaf = word.is_empty()
            || word == "true"
            || word == "false"
            || word == "stride"
            || BuiltinOp::from_name(&word).is_some()
            || Scalar::from_name(&word).is_some();
        if is_leaf {
            return Ok(self.leaf_op()?.0);
        }
        self.at += 1;
        if let Some(op) = UnaryOp::from_name(&word) {
            return Ok(Op::Unary(op, self.value()?));
        }
        let pair = |p: &mut Self| -> Parsed<(Value, Value)> {
            let a = p.value()?;
            p.mark(",")?;
            Ok((a, p.value()?))
        };
        if let Some(op) = BinaryOp::from_name(&word) {
            let (a, b) = pair(self)?;
            return Ok(Op::Binary(op, a, b));
        }
        if let Some(op) = CompareOp::from_name(&word) {
            let (a, b) = pair(self)?;
            return Ok(Op::Compare(op, a, b));
        }
        Ok(match word.as_str() {
            "select" | "fma" => {
                let (a, b) = pair(self)?;
                self.mark(",")?;
                let c = self.value()?;
                if word == "fma" {
                    Op::Fma(a, b, c)
                } else {
                    Op::Select(a, b, c)
                }
            }
            "convert" => Op::Convert(self.value()?),
            "bitcast" => Op::Bitcast(self.value()?),
            "splat" => Op::Splat(self.value()?),
            "vector" => {
                let mut parts = vec![self.value()?];
                for _ in 1..ty.lanes {
                    self.mark(",")?;
                    parts.push(self.value()?);
                }
                Op::Vector(parts)
            }
            "extract" => {
                let a = self.value()?;
                self.mark(",")?;
                Op::Extract(a, self.integer()?)
            }
            "insert" => {
                let a = self.value()?;
                self.mark(",")?;
                let lane = self.integer()?;
                self.mark(",")?;
                Op::Insert(a, lane, self.value()?)
            }
            "load" => {
                let (place, indices) = self.cell()?;
                Op::Load { place, indices }
            }
            _ => return self.fail(format!("there is no operation `{word}`")),
        })
    }

    fn cell(&mut self) -> Parsed<(Place, Vec<Value>)> {
        let place = match self.peek().clone() {
            Token::Name('@', key) => {
                self.at += 1;
                match self.params.get(&key) {
                    Some(param) => Place::Tensor(*param),
                    None => return self.fail(format!("there is no parameter `@{key}`")),
                }
            }
            Token::Name('&', key) => {
                self.at += 1;
                match self.arrays.get(&key) {
                    Some(array) => Place::Array(*array),
                    None => return self.fail(format!("there is no array `&{key}`")),
                }
            }
            _ => return self.expected("a tensor or an array"),
        };
        self.mark("[")?;
        let place = match place {
            Place::Tensor(param) if self.eat_word("flat") => Place::Flat(param),
            other => other,
        };
        let mut indices = Vec::new();
        while !self.eat("]") {
            if !indices.is_empty() {
                self.mark(",")?;
            }
            indices.push(self.value()?);
        }
        Ok((place, indices))
    }

    fn value(&mut self) -> Parsed<Value> {
        if let Token::Name('%', key) = self.peek().clone() {
            self.at += 1;
            return match self.values.get(&key) {
                Some(value) => Ok(*value),
                None => self.fail(format!("`%{key}` is not defined before this")),
            };
        }
        let (op, ty) = self.leaf_op()?;
        Ok(self.leaf(op, ty))
    }

    /// The one value of a constant, parameter, dimension, stride or builtin.
    fn leaf(&mut self, op: Op, ty: Type) -> Value {
        let kernel = &mut self.kernel;
        *self
            .leaves
            .entry(format!("{op:?}"))
            .or_insert_with(|| kernel.add_value(op, ty, Span::default()))
    }

    fn leaf_op(&mut self) -> Parsed<(Op, Type)> {
        match self.peek().clone() {
            Token::Number(text) => {
                self.at += 1;
                let c = self.number(&text)?;
                Ok((Op::Const(c), c.scalar.x(1)))
            }
            Token::Name('#', key) => {
                self.at += 1;
                match self.dims.get(&key) {
                    Some(dim) => Ok((Op::Dim(*dim), Type::U32)),
                    None => self.fail(format!("there is no dimension `#{key}`")),
                }
            }
            Token::Name('@', key) => {
                self.at += 1;
                let Some(param) = self.params.get(&key).copied() else {
                    return self.fail(format!("there is no parameter `@{key}`"));
                };
                match &self.kernel.params[param].kind {
                    crate::kernel::ParamKind::Scalar(s) => Ok((Op::Scalar(param), s.x(1))),
                    crate::kernel::ParamKind::Tensor(_) => {
                        self.fail(format!("`@{key}` is a tensor, no value"))
                    }
                }
            }
            Token::Word(word) => {
                self.at += 1;
                if word == "true" || word == "false" {
                    return Ok((Op::Const(Const::bool(word == "true")), Type::BOOL));
                }
                if word == "stride" {
                    self.mark("(")?;
                    let key = self.name('@')?;
                    let Some(param) = self.params.get(&key).copied() else {
                        return self.fail(format!("there is no parameter `@{key}`"));
                    };
                    self.mark(",")?;
                    let axis = self.integer()?;
                    self.mark(")")?;
                    return Ok((Op::Stride(param, axis), Type::U64));
                }
                if let Some(op) = BuiltinOp::from_name(&word) {
                    let axis = if self.eat(".") {
                        self.integer()?
                    } else if has_axis(op) {
                        return self.fail(format!("`{word}` needs an axis, as in `{word}.0`"));
                    } else {
                        0
                    };
                    return Ok((Op::Builtin(op, axis), Type::U32));
                }
                if let Some(scalar) = Scalar::from_name(&word) {
                    self.mark(":")?;
                    return self.bits(scalar);
                }
                self.fail(format!("there is no value `{word}`"))
            }
            _ => self.expected("a value"),
        }
    }

    /// A constant by its bits in hexadecimal.
    fn bits(&mut self, scalar: Scalar) -> Parsed<(Op, Type)> {
        if let Token::Number(text) = self.peek().clone()
            && let Some(hex) = text.strip_prefix("0x")
            && let Ok(bits) = u64::from_str_radix(hex, 16)
            && bits & !crate::fold::mask(scalar) == 0
        {
            self.at += 1;
            return Ok((Op::Const(Const { scalar, bits }), scalar.x(1)));
        }
        self.expected(&format!("hexadecimal bits of {scalar}"))
    }

    fn reduce_op(&mut self) -> Parsed<ReduceOp> {
        let name = self.any_word("a reduction operator")?;
        match ReduceOp::from_name(&name) {
            Some(op) => Ok(op),
            None => self.fail(format!("there is no reduction `{name}`")),
        }
    }

    fn tile_name(&mut self) -> Parsed<Tile> {
        let key = self.name('!')?;
        match self.tiles.get(&key) {
            Some(tile) => Ok(*tile),
            None => self.fail(format!("there is no tile `!{key}`")),
        }
    }
}
