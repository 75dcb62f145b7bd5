//! A kernel flattened for interpretation: every value has rows of a register file (one row a
//! vector lane, one column a thread), and structured statements become jumps.

use std::collections::HashSet;

use iron_ir::entity::{Array, Dim, Local, Param, Tile, Value};
use iron_ir::kernel::{Block, Kernel, Span, operands};
use iron_ir::machine::{MachineOp, MachineStmt};
use iron_ir::op::{
    AtomicOp, BarrierMemory, BarrierScope, BinaryOp, BuiltinOp, CompareOp, GroupOp, ReduceOp,
    SubgroupOp, TileStmt, UnaryOp,
};
use iron_ir::{Class, Handle, Op, Place, Scalar, Stmt, Type};

use super::exact::Reaching;

/// A row of the register file.
pub(super) type Row = u32;

/// Position of an instruction.
pub(super) type Pc = u32;

/// Where a launch-wide or thread-wide constant comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    Const(u64),
    Scalar(Param),
    Dim(Dim),
    Stride(Param, u8),
    Builtin(BuiltinOp, u8),
}

/// Memory of an access.
#[derive(Clone, Debug)]
pub(super) enum Address {
    Tensor(Param, Vec<Row>),
    Flat(Param, Row),
    Array(Array, Row),
}

/// One instruction.
#[derive(Clone, Debug)]
pub(super) enum Inst {
    Unary {
        op: UnaryOp,
        scalar: Scalar,
        dst: Row,
        a: Row,
        lanes: u8,
    },
    /// `signed_constants`: which operands are constants that stand for negative numbers.
    Binary {
        op: BinaryOp,
        scalar: Scalar,
        dst: Row,
        a: Row,
        b: Row,
        lanes: u8,
        signed_constants: [bool; 2],
    },
    Compare {
        op: CompareOp,
        scalar: Scalar,
        dst: Row,
        a: Row,
        b: Row,
        lanes: u8,
    },
    Select {
        dst: Row,
        condition: Row,
        condition_lanes: u8,
        a: Row,
        b: Row,
        lanes: u8,
    },
    Fma {
        scalar: Scalar,
        dst: Row,
        a: Row,
        b: Row,
        c: Row,
        lanes: u8,
    },
    Convert {
        from: Type,
        to: Type,
        dst: Row,
        a: Row,
    },
    Bitcast {
        from: Type,
        to: Type,
        dst: Row,
        a: Row,
    },
    /// Row by row.
    Copy {
        dst: Row,
        sources: Vec<Row>,
    },
    Get {
        local: Local,
        dst: Row,
        lanes: u8,
    },
    Set {
        local: Local,
        src: Row,
        lanes: u8,
    },
    Load {
        dst: Row,
        ty: Type,
        address: Address,
    },
    Store {
        src: Row,
        ty: Type,
        address: Address,
    },
    Atomic {
        op: AtomicOp,
        scalar: Scalar,
        dst: Row,
        address: Address,
        value: Option<Row>,
        compare: Option<Row>,
    },
    Barrier(BarrierScope, BarrierMemory),
    /// Of the array of that index.
    EndBatch(usize),
    /// And how many batches are the newest.
    WaitBatches(usize, usize),
    Subgroup {
        op: SubgroupOp,
        reduce: ReduceOp,
        scalar: Scalar,
        dst: Row,
        a: Row,
        lanes: u8,
        argument: Option<Row>,
    },
    Group {
        op: GroupOp,
        reduce: ReduceOp,
        scalar: Scalar,
        dst: Row,
        a: Row,
        lanes: u8,
        argument: Option<Row>,
    },
    CheckIndex {
        dst: Row,
        index: Row,
        bound: Row,
    },
    If {
        condition: Row,
        otherwise: Pc,
    },
    Else {
        end: Pc,
    },
    EndIf,
    For {
        scalar: Scalar,
        index: Row,
        start: Row,
        end: Row,
        step: Row,
        exit: Pc,
    },
    ForNext {
        scalar: Scalar,
        index: Row,
        end: Row,
        step: Row,
        body: Pc,
    },
    Loop {
        exit: Pc,
    },
    LoopNext {
        body: Pc,
    },
    Break,
    Continue,
    Return,
    /// Rows of the two parts of `a`, of `b` and of what is added to.
    Mma {
        scalar: Scalar,
        dst: Row,
        a: [Row; 2],
        b: Row,
        sum: Row,
    },
    Tile(TileStmt),
    Map {
        to: Tile,
        from: Vec<Tile>,
        elements: Vec<Row>,
        row: Row,
        column: Row,
        captured: Vec<(Row, u8)>,
        end: Pc,
    },
    MapNext {
        to: Tile,
        result: Row,
        begin: Pc,
    },
}

/// A kernel in flat form.
pub(super) struct Program {
    pub code: Vec<Inst>,
    pub spans: Vec<Span>,
    /// Instructions whose result can reach an index ([`super::exact`]).
    pub followed: Vec<bool>,
    /// Rows of the register file.
    pub rows: u32,
    /// First row of each value.
    pub row_of: Vec<Row>,
    /// Rows that are constant for a thread.
    pub sources: Vec<(Row, Source)>,
    /// First row of each variable in the variables' file.
    pub local_rows: Vec<Row>,
    /// Rows of the variables' file.
    pub n_local_rows: u32,
    /// The first barrier that joins the whole grid.
    pub grid_barrier: Option<Span>,
    /// Whether barriers order the device's memory.
    pub orders_device: bool,
}

impl Program {
    /// Flattens a kernel.
    pub fn new(kernel: &Kernel) -> Program {
        let mut rows = 0;
        let mut row_of = Vec::with_capacity(kernel.values.len());
        let mut sources = Vec::new();
        for (_, data) in kernel.values.iter() {
            let source = match data.op {
                Op::Const(c) => Some(Source::Const(c.bits)),
                Op::Scalar(p) => Some(Source::Scalar(p)),
                Op::Dim(d) => Some(Source::Dim(d)),
                Op::Stride(p, axis) => Some(Source::Stride(p, axis)),
                Op::Builtin(op, axis) => Some(Source::Builtin(op, axis)),
                _ => None,
            };
            sources.extend(source.map(|s| (rows, s)));
            row_of.push(rows);
            rows += u32::from(data.ty.lanes);
        }
        let mut n_local_rows = 0;
        let mut local_rows = Vec::with_capacity(kernel.locals.len());
        for local in kernel.locals.values() {
            local_rows.push(n_local_rows);
            n_local_rows += u32::from(local.ty.lanes);
        }
        let mut flattener = Flattener {
            kernel,
            program: Program {
                code: Vec::new(),
                spans: Vec::new(),
                followed: Vec::new(),
                rows,
                row_of,
                sources,
                local_rows,
                n_local_rows,
                grid_barrier: None,
                orders_device: false,
            },
            reaching: Reaching::of(kernel),
        };
        flattener.block(&kernel.body);
        flattener.emit(Inst::Return, Span::default());
        flattener.program
    }

    /// First row of a value.
    pub fn row(&self, value: Value) -> Row {
        self.row_of[value.index()]
    }
}

struct Flattener<'k> {
    kernel: &'k Kernel,
    program: Program,
    reaching: Reaching,
}

impl Flattener<'_> {
    fn emit(&mut self, inst: Inst, span: Span) -> Pc {
        self.program.code.push(inst);
        self.program.spans.push(span);
        self.program.followed.push(false);
        self.program.code.len() as Pc - 1
    }

    /// Marks the last instruction.
    fn follow(&mut self, is_followed: bool) {
        if let Some(last) = self.program.followed.last_mut() {
            *last = is_followed;
        }
    }

    fn here(&self) -> Pc {
        self.program.code.len() as Pc
    }

    fn row(&self, value: Value) -> Row {
        self.program.row(value)
    }

    fn address(&self, place: Place, indices: &[Value]) -> Address {
        let rows: Vec<Row> = indices.iter().map(|&i| self.row(i)).collect();
        let first = rows.first().copied().unwrap_or(0);
        match place {
            Place::Tensor(param) => Address::Tensor(param, rows),
            Place::Flat(param) => Address::Flat(param, first),
            Place::Array(array) => Address::Array(array, first),
        }
    }

    fn block(&mut self, block: &Block) {
        for (stmt, span) in &block.0 {
            self.stmt(stmt, *span);
        }
    }

    fn stmt(&mut self, stmt: &Stmt, span: Span) {
        match stmt {
            Stmt::Let(value) => self.compute(*value, span),
            Stmt::Set(local, value) => {
                let lanes = self.kernel.locals[*local].ty.lanes;
                let src = self.row(*value);
                self.emit(
                    Inst::Set {
                        local: *local,
                        src,
                        lanes,
                    },
                    span,
                );
                self.follow(self.reaching.locals.contains(local));
            }
            Stmt::Store {
                place,
                indices,
                value,
            } => {
                let address = self.address(*place, indices);
                let (src, ty) = (self.row(*value), self.kernel.ty(*value));
                self.emit(Inst::Store { src, ty, address }, span);
            }
            Stmt::Atomic {
                result,
                op,
                place,
                indices,
                value,
                compare,
            } => {
                let inst = Inst::Atomic {
                    op: *op,
                    scalar: self.kernel.ty(*result).scalar,
                    dst: self.row(*result),
                    address: self.address(*place, indices),
                    value: value.map(|v| self.row(v)),
                    compare: compare.map(|v| self.row(v)),
                };
                self.emit(inst, span);
            }
            // Launches run one after the other here.
            Stmt::Barrier(BarrierScope::Launch, _) => {}
            Stmt::Barrier(scope, memory) => {
                if *scope == BarrierScope::Grid {
                    self.program.grid_barrier.get_or_insert(span);
                }
                self.program.orders_device |= *memory == BarrierMemory::Device;
                self.emit(Inst::Barrier(*scope, *memory), span);
            }
            Stmt::Subgroup {
                result,
                op,
                reduce,
                value,
                argument,
            } => {
                let ty = self.kernel.ty(*value);
                let inst = Inst::Subgroup {
                    op: *op,
                    reduce: reduce.unwrap_or(ReduceOp::Sum),
                    scalar: ty.scalar,
                    dst: self.row(*result),
                    a: self.row(*value),
                    lanes: ty.lanes,
                    argument: argument.map(|v| self.row(v)),
                };
                self.emit(inst, span);
            }
            Stmt::Group {
                result,
                op,
                reduce,
                value,
                argument,
            } => {
                let ty = self.kernel.ty(*value);
                let inst = Inst::Group {
                    op: *op,
                    reduce: reduce.unwrap_or(ReduceOp::Sum),
                    scalar: ty.scalar,
                    dst: self.row(*result),
                    a: self.row(*value),
                    lanes: ty.lanes,
                    argument: argument.map(|v| self.row(v)),
                };
                self.emit(inst, span);
            }
            Stmt::Mma { result, a, b, sum } => {
                let inst = Inst::Mma {
                    scalar: self.kernel.ty(*b).scalar,
                    dst: self.row(*result),
                    a: a.map(|v| self.row(v)),
                    b: self.row(*b),
                    sum: self.row(*sum),
                };
                self.emit(inst, span);
            }
            Stmt::CheckIndex {
                result,
                index,
                bound,
            } => {
                let inst = Inst::CheckIndex {
                    dst: self.row(*result),
                    index: self.row(*index),
                    bound: self.row(*bound),
                };
                self.emit(inst, span);
                self.follow(true);
            }
            Stmt::If {
                condition,
                then_block,
                else_block,
            } => {
                let condition = self.row(*condition);
                let at = self.emit(
                    Inst::If {
                        condition,
                        otherwise: 0,
                    },
                    span,
                );
                self.block(then_block);
                let middle = self.emit(Inst::Else { end: 0 }, span);
                self.block(else_block);
                let end = self.emit(Inst::EndIf, span);
                self.program.code[at as usize] = Inst::If {
                    condition,
                    otherwise: middle,
                };
                self.program.code[middle as usize] = Inst::Else { end };
            }
            Stmt::For {
                index,
                start,
                end,
                step,
                body,
                ..
            } => {
                let scalar = self.kernel.ty(*index).scalar;
                let (index, start) = (self.row(*index), self.row(*start));
                let (end, step) = (self.row(*end), self.row(*step));
                let at = self.emit(Inst::LoopNext { body: 0 }, span);
                self.block(body);
                self.emit(
                    Inst::ForNext {
                        scalar,
                        index,
                        end,
                        step,
                        body: at + 1,
                    },
                    span,
                );
                let exit = self.here();
                self.program.code[at as usize] = Inst::For {
                    scalar,
                    index,
                    start,
                    end,
                    step,
                    exit,
                };
            }
            Stmt::Loop { body } => {
                let at = self.emit(Inst::Loop { exit: 0 }, span);
                self.block(body);
                self.emit(Inst::LoopNext { body: at + 1 }, span);
                let exit = self.here();
                self.program.code[at as usize] = Inst::Loop { exit };
            }
            Stmt::Break => {
                self.emit(Inst::Break, span);
            }
            Stmt::Continue => {
                self.emit(Inst::Continue, span);
            }
            Stmt::Return => {
                self.emit(Inst::Return, span);
            }
            Stmt::Tile(TileStmt::Map {
                to,
                from,
                elements,
                row,
                column,
                body,
                result,
            }) => {
                let at = self.emit(Inst::EndIf, span);
                self.block(body);
                let next = Inst::MapNext {
                    to: *to,
                    result: self.row(*result),
                    begin: at,
                };
                self.emit(next, span);
                let captured = captured(self.kernel, body, *result, elements, [*row, *column]);
                let end = self.here();
                self.program.code[at as usize] = Inst::Map {
                    to: *to,
                    from: from.clone(),
                    elements: elements.iter().map(|&v| self.row(v)).collect(),
                    row: self.row(*row),
                    column: self.row(*column),
                    captured: captured
                        .into_iter()
                        .map(|v| (self.row(v), self.kernel.ty(v).lanes))
                        .collect(),
                    end,
                };
            }
            Stmt::Tile(tile) => {
                self.emit(Inst::Tile(tile.clone()), span);
            }
            Stmt::Machine(MachineStmt {
                op: MachineOp::BatchEnd,
                arrays,
                ..
            }) => {
                self.emit(Inst::EndBatch(arrays[0].index()), span);
            }
            Stmt::Machine(MachineStmt {
                op: MachineOp::BatchWait,
                arrays,
                numbers,
                ..
            }) => {
                let newest = numbers[0] as usize;
                self.emit(Inst::WaitBatches(arrays[0].index(), newest), span);
            }
            // Refused by `pipeline`, which takes kernels as built.
            Stmt::Machine(_) | Stmt::Roles { .. } => {}
        }
    }

    fn compute(&mut self, value: Value, stmt_span: Span) {
        let data = &self.kernel.values[value];
        let span = if data.span.line == 0 {
            stmt_span
        } else {
            data.span
        };
        let (dst, ty) = (self.row(value), data.ty);
        let lanes = ty.lanes;
        let ty_of = |v: &Value| self.kernel.ty(*v);
        let rows_of = |v: Value| {
            let first = self.row(v);
            first..first + u32::from(self.kernel.ty(v).lanes)
        };
        let inst = match &data.op {
            Op::Const(_)
            | Op::Scalar(_)
            | Op::Dim(_)
            | Op::Stride(..)
            | Op::Builtin(..)
            | Op::Result => return,
            Op::Unary(op, a) => Inst::Unary {
                op: *op,
                scalar: ty_of(a).scalar,
                dst,
                a: self.row(*a),
                lanes,
            },
            Op::Binary(op, a, b) => Inst::Binary {
                op: *op,
                scalar: ty_of(a).scalar,
                dst,
                a: self.row(*a),
                b: self.row(*b),
                lanes,
                signed_constants: [a, b].map(|v| self.is_negative(*op, *v)),
            },
            Op::Compare(op, a, b) => Inst::Compare {
                op: *op,
                scalar: ty_of(a).scalar,
                dst,
                a: self.row(*a),
                b: self.row(*b),
                lanes,
            },
            Op::Select(c, a, b) => Inst::Select {
                dst,
                condition: self.row(*c),
                condition_lanes: ty_of(c).lanes,
                a: self.row(*a),
                b: self.row(*b),
                lanes,
            },
            Op::Fma(a, b, c) => Inst::Fma {
                scalar: ty.scalar,
                dst,
                a: self.row(*a),
                b: self.row(*b),
                c: self.row(*c),
                lanes,
            },
            Op::Convert(a) => Inst::Convert {
                from: ty_of(a),
                to: ty,
                dst,
                a: self.row(*a),
            },
            Op::Bitcast(a) => Inst::Bitcast {
                from: ty_of(a),
                to: ty,
                dst,
                a: self.row(*a),
            },
            Op::Splat(a) => Inst::Copy {
                dst,
                sources: vec![self.row(*a); usize::from(lanes)],
            },
            Op::Vector(parts) => Inst::Copy {
                dst,
                sources: parts.iter().map(|&p| self.row(p)).collect(),
            },
            Op::Extract(a, lane) => Inst::Copy {
                dst,
                sources: vec![self.row(*a) + u32::from(*lane)],
            },
            Op::Insert(a, lane, b) => {
                let mut sources: Vec<Row> = rows_of(*a).collect();
                if let Some(source) = sources.get_mut(usize::from(*lane)) {
                    *source = self.row(*b);
                }
                Inst::Copy { dst, sources }
            }
            Op::Get(local) => Inst::Get {
                local: *local,
                dst,
                lanes,
            },
            Op::Load { place, indices } => Inst::Load {
                dst,
                ty,
                address: self.address(*place, indices),
            },
        };
        self.emit(inst, span);
        self.follow(self.reaching.values.contains(&value));
    }

    /// A constant in the upper half of an unsigned type, added or multiplied.
    fn is_negative(&self, op: BinaryOp, value: Value) -> bool {
        let unsigned = self.kernel.ty(value).scalar.class() == Class::Unsigned;
        let constant = self.kernel.constant(value);
        matches!(op, BinaryOp::Add | BinaryOp::Mul)
            && unsigned
            && constant.is_some_and(|c| c.bits >> (c.scalar.bits() - 1) == 1)
    }
}

/// Values that a map's body reads from outside and that must be uniform.
fn captured(
    kernel: &Kernel,
    body: &Block,
    result: Value,
    elements: &[Value],
    position: [Value; 2],
) -> Vec<Value> {
    let mut inside: HashSet<Value> = elements.iter().copied().chain(position).collect();
    let mut read: Vec<Value> = vec![result];
    body.walk(&mut |stmt, _| {
        inside.extend(stmt.defines());
        read.extend(stmt.uses());
        if let Stmt::Let(value) = stmt {
            read.extend(operands(&kernel.values[*value].op));
        }
    });
    let mut captured: Vec<Value> = read.into_iter().filter(|v| !inside.contains(v)).collect();
    captured.sort_unstable();
    captured.dedup();
    captured
}
