//! Who owns which element, and where it lies.

use std::collections::{BTreeMap, HashMap};

use iron_ir::contract::{Expr, ExprOp};
use iron_ir::entity::{Array, Param, Tile, Value};
use iron_ir::kernel::Space;
use iron_ir::machine::PANEL;
use iron_ir::op::{BinaryOp, BuiltinOp, CompareOp, TileSpace, TileStmt, Unroll};
use iron_ir::{Const, Handle, Kernel, Op, Place, Scalar, Type};

use super::barriers::{Memory, Touched};
use super::fragment::{self, FRAGMENT_ROWS};
use super::plan::{Plan, rows_beyond};
use super::subgroup::Subgroups;
use super::turns::Turn;
use super::units::{self, Units};
use super::warpgroup::Ring;
use super::{is_shared, reduce};
use crate::Legal;
use crate::rewrite::Builder;

/// How an axis of a tile is spread over one axis of the thread grid: thread `t` owns blocks of
/// `block` consecutive elements, and its `l`-th element is
/// `(l / block) * threads * block + t * block + l % block`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Axis {
    /// Elements of the tile.
    pub len: u32,
    /// Threads along it.
    pub threads: u32,
    /// Elements of one thread.
    pub count: u32,
    /// Consecutive elements; a power of two.
    pub block: u32,
    /// Instead of blocks: rows after which fragments repeat ([`fragment`]). A thread is then
    /// known by its first row.
    pub fragments: Option<u32>,
}

impl Axis {
    fn new(len: u32, threads: u32, widest_block: u32) -> Axis {
        if len == 1 {
            return Axis {
                len,
                threads,
                count: 1,
                block: 1,
                fragments: None,
            };
        }
        let count = len.div_ceil(threads);
        let even = len.is_multiple_of(threads);
        let block = if even {
            (1 << count.trailing_zeros()).min(widest_block)
        } else {
            1
        };
        Axis {
            len,
            threads,
            count,
            block,
            fragments: None,
        }
    }

    /// The rows of a tile over that many warpgroups.
    fn of_fragments(len: u32, groups: u32) -> Axis {
        let threads = FRAGMENT_ROWS / 2 * groups;
        let stride = FRAGMENT_ROWS * groups;
        match len {
            1 => Axis::new(len, threads, 1),
            _ => Axis {
                len,
                threads,
                count: 2 * len.div_ceil(stride),
                block: 1,
                fragments: Some(stride),
            },
        }
    }

    /// Some threads own fewer elements than others.
    pub(super) fn partial(self) -> bool {
        match self.fragments {
            Some(stride) => !self.len.is_multiple_of(stride),
            None => self.len > 1 && self.count * self.threads != self.len,
        }
    }

    /// The position in the tile of a thread's element `l`.
    pub(super) fn position(self, b: &mut Builder<'_>, thread: Value, l: Value) -> Value {
        if self.len == 1 {
            return b.u32(0);
        }
        if let Some(stride) = self.fragments {
            let further = fragment::further_rows(b, l, stride);
            return plus(b, thread, further);
        }
        let base = times(b, thread, self.block);
        if self.block == self.count {
            return plus(b, base, l);
        }
        if self.block == 1 {
            let row = times(b, l, self.threads);
            return plus(b, row, base);
        }
        let shift = self.block.trailing_zeros();
        let block = b.with_int(BinaryOp::Shr, l, i128::from(shift));
        let block = times(b, block, self.threads * self.block);
        let within = b.with_int(BinaryOp::And, l, i128::from(self.block) - 1);
        let start = plus(b, block, base);
        plus(b, start, within)
    }
}

/// One element as a thread's loops see it.
#[derive(Clone, Copy)]
pub(super) struct Element {
    /// The thread's row and column counters.
    pub own: (Value, Value),
    /// Position in the tile; past its end where the axis is partial.
    pub at: (Value, Value),
}

/// The tiles of a kernel as arrays, and the thread grid.
pub(super) struct Tiles<'l> {
    pub legal: &'l Legal,
    /// Warpgroups that multiply, on that route.
    pub groups: Option<u32>,
    /// The subgroups that multiply fragments, on that route.
    pub subgroups: Option<Subgroups>,
    /// The stages of loaded tiles, on the route of warpgroups.
    pub rings: BTreeMap<Tile, Ring>,
    /// Whether a tensor can be accessed 16 bytes at a time, on either route.
    pub aligned: BTreeMap<Param, Value>,
    /// Whose turn a product belongs to, in a loop of warpgroups that take turns
    /// ([`turns`](super::turns)).
    pub turn: Option<Turn>,
    /// All threads of the workgroup that share the work.
    pub threads: u32,
    /// Rows and columns of the thread grid.
    pub grid: (u32, u32),
    /// The thread's row and column in it.
    pub thread: (Value, Value),
    /// False in threads beyond the grid, which repeat the work of others and write nothing.
    pub in_grid: Option<Value>,
    arrays: Vec<Array>,
    pitches: Vec<u32>,
    scratch: HashMap<Scalar, Array>,
}

impl<'l> Tiles<'l> {
    pub(super) fn new(b: &mut Builder<'_>, legal: &'l Legal, plan: Option<&Plan>) -> Self {
        let threads = b.kernel.contract.threads();
        if let Some(plan) = plan {
            return Tiles::of_warpgroups(b, legal, plan);
        }
        let used = 1 << threads.ilog2();
        let columns = (1u32 << (threads.ilog2().div_ceil(2))).min(16).min(used);
        let grid = (used / columns, columns);
        let index = b.builtin(BuiltinOp::LocalIndex, 0);
        let in_grid =
            (used < threads).then(|| b.compare_int(CompareOp::Lt, index, i128::from(used)));
        let within = match in_grid {
            Some(_) => b.with_int(BinaryOp::And, index, i128::from(used) - 1),
            None => index,
        };
        let shift = i128::from(columns.trailing_zeros());
        let row = b.with_int(BinaryOp::Shr, within, shift);
        let row = b.named(row, "thread_row");
        let column = b.with_int(BinaryOp::And, within, i128::from(columns) - 1);
        let column = b.named(column, "thread_column");
        let mut tiles = Tiles {
            in_grid,
            ..Tiles::of_grid(legal, threads, grid, (row, column))
        };
        tiles.place(b);
        tiles
    }

    /// Tiles of no route of their own, without arrays yet.
    fn of_grid(legal: &'l Legal, threads: u32, grid: (u32, u32), thread: (Value, Value)) -> Self {
        Tiles {
            legal,
            groups: None,
            subgroups: None,
            rings: BTreeMap::new(),
            aligned: BTreeMap::new(),
            turn: None,
            threads,
            grid,
            thread,
            in_grid: None,
            arrays: Vec::new(),
            pitches: Vec::new(),
            scratch: HashMap::new(),
        }
    }

    /// Tiles whose products warpgroups share out.
    fn of_warpgroups(b: &mut Builder<'_>, legal: &'l Legal, plan: &Plan) -> Self {
        let threads = plan.consumers();
        let index = b.builtin(BuiltinOp::LocalIndex, 0);
        let row = fragment::first_row(b, index);
        let row = b.named(row, "thread_row");
        let column = b.with_int(BinaryOp::And, index, 3);
        let column = b.named(column, "fragment_lane");
        let mut tiles = Tiles {
            groups: Some(plan.groups),
            ..Tiles::of_grid(legal, threads, (threads / 4, 4), (row, column))
        };
        tiles.declare(b, |_, kernel, tile| {
            let data = &kernel.tiles[tile];
            let stages = plan.stages.get(&tile).copied().unwrap_or(1);
            let beyond = rows_beyond(data.rows) * PANEL;
            (data.rows * data.columns * stages + beyond, data.columns)
        });
        // Signals lie behind the tiles, which must begin at multiples of the pattern.
        for tile in plan.stages.keys() {
            if let Some(ring) = Ring::new(b, plan, *tile) {
                tiles.rings.insert(*tile, ring);
            }
        }
        tiles
    }

    /// Tiles whose products subgroups share out.
    pub(super) fn of_subgroups(b: &mut Builder<'_>, legal: &'l Legal, units: Units) -> Self {
        let threads = b.kernel.contract.threads();
        let subgroups = Subgroups::new(b, units);
        let grid = subgroups.threads();
        let (row, column) = subgroups.thread(b);
        let row = b.named(row, "thread_row");
        let column = b.named(column, "thread_column");
        let mut tiles = Tiles {
            subgroups: Some(subgroups),
            ..Tiles::of_grid(legal, threads, grid, (row, column))
        };
        tiles.declare(b, |tiles, kernel, tile| {
            let (rows, columns) = tiles.held(kernel, tile);
            let pitch = units::pitch(columns, kernel.tiles[tile].scalar);
            (rows * pitch * tiles.stages(tile), pitch)
        });
        tiles
    }

    /// Stages of a shared tile of a loop that multiplies by slices.
    fn stages(&self, tile: Tile) -> u32 {
        (self.subgroups.as_ref()).map_or(1, |s| s.units.stages_of(tile))
    }

    /// Rows and columns of a shared tile that memory holds at a time.
    pub(super) fn held(&self, kernel: &Kernel, tile: Tile) -> (u32, u32) {
        match &self.subgroups {
            Some(subgroups) => subgroups.units.held(kernel, tile),
            None => (kernel.tiles[tile].rows, kernel.tiles[tile].columns),
        }
    }

    /// Steps of `k` that memory holds at a time of a tile of a loop that multiplies by slices.
    pub(super) fn slice(&self, tile: Tile) -> Option<u32> {
        let slices = &self.subgroups.as_ref()?.units.slices;
        slices.get(&tile).map(|(steps, _)| *steps)
    }

    /// Whether threads along a row of the grid have consecutive indices.
    pub(super) fn is_linear(&self) -> bool {
        (self.subgroups.as_ref()).is_none_or(|s| s.units.grid.1 == 1)
    }

    /// The element offset of a tile's stage at hand in its array.
    pub(super) fn stage_start(&self, b: &mut Builder<'_>, tile: Tile) -> Value {
        match self.rings.get(&tile) {
            Some(ring) => {
                let data = &b.kernel.tiles[tile];
                let elements = data.rows * data.columns;
                let stage = ring.stage(b);
                times(b, stage, elements)
            }
            None => b.u32(0),
        }
    }

    /// Makes an array of every tile.
    fn place(&mut self, b: &mut Builder<'_>) {
        let padded = |columns: u32, scalar: Scalar| match columns {
            0..=8 => columns,
            _ => columns + 16 / scalar.bytes().min(16),
        };
        let declared = b.kernel.shared_bytes();
        let bytes = |kernel: &Kernel, pad: bool| -> u64 {
            let shared = kernel
                .tiles
                .values()
                .filter(|t| t.space == TileSpace::Shared);
            let each = shared.map(|t| {
                let pitch = if pad {
                    padded(t.columns, t.scalar)
                } else {
                    t.columns
                };
                u64::from(t.rows) * u64::from(pitch) * u64::from(t.scalar.bytes())
            });
            declared + each.map(|n| n.next_multiple_of(16)).sum::<u64>()
        };
        let limit = self.legal.shared_bytes_limit;
        let pad = limit == 0 || bytes(b.kernel, true) <= limit;
        self.declare(b, |_, kernel, tile| {
            let data = &kernel.tiles[tile];
            let pitch = match pad {
                true => padded(data.columns, data.scalar),
                false => data.columns,
            };
            (data.rows * pitch, pitch)
        });
    }

    /// Declares the array of each tile; `shared` gives length and pitch of one in shared memory.
    fn declare(
        &mut self,
        b: &mut Builder<'_>,
        shared: impl Fn(&Self, &Kernel, Tile) -> (u32, u32),
    ) {
        for tile in b.kernel.tiles.handles().collect::<Vec<_>>() {
            let data = b.kernel.tiles[tile].clone();
            b.span = data.span;
            let (len, pitch, space) = match data.space {
                TileSpace::Shared => {
                    let (len, pitch) = shared(self, b.kernel, tile);
                    (len, pitch, Space::Shared)
                }
                TileSpace::Register => {
                    let (rows, columns) = self.axes(b.kernel, tile);
                    (rows.count * columns.count, columns.count, Space::Private)
                }
            };
            let array = b.array(&data.name, data.scalar, len, space);
            self.arrays.push(array);
            self.pitches.push(pitch);
        }
    }

    /// How rows and columns of a tile's elements are spread over the threads.
    pub(super) fn axes(&self, kernel: &Kernel, tile: Tile) -> (Axis, Axis) {
        let data = &kernel.tiles[tile];
        if let Some(groups) = self.groups {
            return (
                Axis::of_fragments(data.rows, groups),
                Axis::new(data.columns, self.grid.1, 2),
            );
        }
        if let Some(subgroups) = &self.subgroups {
            return (
                Axis::new(data.rows, self.grid.0, 1),
                Axis::new(data.columns, self.grid.1, subgroups.units.side_by_side()),
            );
        }
        (
            Axis::new(data.rows, self.grid.0, u32::MAX),
            Axis::new(data.columns, self.grid.1, 4),
        )
    }

    /// The array that holds a tile.
    pub(super) fn array(&self, tile: Tile) -> Array {
        self.arrays[tile.index()]
    }

    /// Elements from one row of a tile's array to the next.
    pub(super) fn pitch(&self, tile: Tile) -> u32 {
        self.pitches[tile.index()]
    }

    /// The scratch array of a type with at least `len` elements.
    pub(super) fn scratch(&mut self, b: &mut Builder<'_>, scalar: Scalar, len: u32) -> Array {
        let array = *self.scratch.entry(scalar).or_insert_with(|| {
            b.array(
                &format!("tile_scratch_{scalar}"),
                scalar,
                len,
                Space::Shared,
            )
        });
        let data = &mut b.kernel.arrays[array];
        data.len = data.len.max(len);
        array
    }

    /// The thread's loops over its elements of a tile.
    pub(super) fn each_owned(
        &self,
        b: &mut Builder<'_>,
        tile: Tile,
        body: impl FnOnce(&mut Builder<'_>, Element),
    ) {
        let (rows, columns) = self.axes(b.kernel, tile);
        let (thread_row, thread_column) = self.thread;
        counted(b, "i", rows.count, |b, i| {
            let row = rows.position(b, thread_row, i);
            counted(b, "j", columns.count, |b, j| {
                let column = columns.position(b, thread_column, j);
                body(
                    b,
                    Element {
                        own: (i, j),
                        at: (row, column),
                    },
                );
            });
        });
    }

    /// The workgroup's loop over all elements of a tile, each by one thread: row and column.
    /// Consecutive threads take consecutive elements of a row, or of a column where `by_column`.
    pub(super) fn each_shared(
        &self,
        b: &mut Builder<'_>,
        tile: Tile,
        by_column: bool,
        body: impl FnOnce(&mut Builder<'_>, Value, Value),
    ) {
        let data = &b.kernel.tiles[tile];
        let (rows, columns) = (data.rows, data.columns);
        let inner = if by_column { rows } else { columns };
        let total = rows * columns;
        let threads = self.threads;
        turns(b, total.div_ceil(threads), |b, turn| {
            let thread = b.builtin(BuiltinOp::LocalIndex, 0);
            let done = times(b, turn, threads);
            let index = plus(b, done, thread);
            let work = |b: &mut Builder<'_>| {
                let whole_lines = threads.is_multiple_of(inner);
                let from = if whole_lines { thread } else { index };
                let mut major = b.with_int(BinaryOp::Div, from, i128::from(inner));
                let minor = b.with_int(BinaryOp::Rem, from, i128::from(inner));
                if whole_lines {
                    // The column is the same in every turn.
                    let lines = times(b, turn, threads / inner);
                    major = plus(b, lines, major);
                }
                let (row, column) = if by_column {
                    (minor, major)
                } else {
                    (major, minor)
                };
                body(b, row, column);
            };
            if total.is_multiple_of(threads) {
                work(b);
            } else {
                let inside = b.compare_int(CompareOp::Lt, index, i128::from(total));
                b.if_then(inside, work);
            }
        });
    }

    /// Where an element of a shared tile lies.
    pub(super) fn shared_index(
        &self,
        b: &mut Builder<'_>,
        tile: Tile,
        row: Value,
        column: Value,
    ) -> Value {
        if self.groups.is_some() {
            let start = self.stage_start(b, tile);
            let rows = b.kernel.tiles[tile].rows;
            let within = fragment::swizzled(b, rows, row, column);
            return plus(b, start, within);
        }
        let start = times(b, row, self.pitch(tile));
        plus(b, start, column)
    }

    /// Reads the element of a tile that goes with an element of a tile that it is broadcast to.
    pub(super) fn read(&self, b: &mut Builder<'_>, tile: Tile, element: Element) -> Value {
        let ty = b.kernel.tiles[tile].scalar.x(1);
        let place = Place::Array(self.array(tile));
        let index = if is_shared(b.kernel, tile) {
            let (rows, columns) = self.axes(b.kernel, tile);
            let row = inside(b, rows, element.at.0);
            let column = inside(b, columns, element.at.1);
            self.shared_index(b, tile, row, column)
        } else {
            self.slot(b, tile, element)
        };
        b.load(place, vec![index], ty)
    }

    /// Writes an element of a tile; a shared one's inside of [`for_writing`](Self::for_writing).
    pub(super) fn write(&self, b: &mut Builder<'_>, tile: Tile, element: Element, value: Value) {
        let index = if is_shared(b.kernel, tile) {
            self.shared_index(b, tile, element.at.0, element.at.1)
        } else {
            self.slot(b, tile, element)
        };
        b.store(Place::Array(self.array(tile)), vec![index], value);
    }

    /// Runs `body`, which writes the element; for a shared tile in the thread alone that owns
    /// it, so that no other reads what it writes.
    pub(super) fn for_writing(
        &self,
        b: &mut Builder<'_>,
        tile: Tile,
        element: Element,
        body: impl FnOnce(&mut Builder<'_>),
    ) {
        if is_shared(b.kernel, tile) {
            self.if_owner(b, tile, element, Vec::new(), body);
        } else {
            body(b);
        }
    }

    /// Runs `body` in the one thread that owns the element, where `also` holds too.
    pub(super) fn if_owner(
        &self,
        b: &mut Builder<'_>,
        tile: Tile,
        element: Element,
        also: Vec<Value>,
        body: impl FnOnce(&mut Builder<'_>),
    ) {
        let (rows, columns) = self.axes(b.kernel, tile);
        let mut conditions = also;
        conditions.extend(self.in_grid);
        for (axis, thread, threads, at) in [
            (rows, self.thread.0, self.grid.0, element.at.0),
            (columns, self.thread.1, self.grid.1, element.at.1),
        ] {
            if axis.len == 1 && threads > 1 {
                conditions.push(b.compare_int(CompareOp::Eq, thread, 0));
            } else if axis.partial() {
                conditions.push(b.compare_int(CompareOp::Lt, at, i128::from(axis.len)));
            }
        }
        match all(b, conditions) {
            Some(condition) => b.if_then(condition, body),
            None => body(b),
        }
    }

    fn slot(&self, b: &mut Builder<'_>, tile: Tile, element: Element) -> Value {
        let (rows, columns) = self.axes(b.kernel, tile);
        match (rows.len, columns.len) {
            (1, 1) => b.u32(0),
            (_, 1) => element.own.0,
            (1, _) => element.own.1,
            _ => {
                let start = times(b, element.own.0, columns.count);
                plus(b, start, element.own.1)
            }
        }
    }

    /// What a statement does with shared memory.
    pub(super) fn touched(&self, kernel: &Kernel, stmt: &TileStmt) -> Touched {
        let mut touched = Touched::default();
        // Signals order copies and products; ordinary accesses need barriers.
        let by_signals = |t: &Tile| self.rings.get(t).is_some_and(|ring| !ring.ordinary);
        let shared =
            |t: &Tile| (is_shared(kernel, *t) && !by_signals(t)).then_some(Memory::Tile(*t));
        match stmt {
            TileStmt::Load { .. } if self.groups.is_some() => {}
            TileStmt::Fill { tile, .. } | TileStmt::Load { tile, .. } => {
                touched.writes.extend(shared(tile));
            }
            TileStmt::Store { tile, .. } => touched.reads.extend(shared(tile)),
            TileStmt::Copy { to, from } => {
                touched.writes.extend(shared(to));
                touched.reads.extend(shared(from));
            }
            TileStmt::Matmul { a, b, .. } => {
                touched.reads.extend([a, b].into_iter().filter_map(shared))
            }
            TileStmt::Map { to, from, .. } => {
                touched.writes.extend(shared(to));
                touched.reads.extend(from.iter().filter_map(shared));
            }
            TileStmt::ReduceRows { from, .. } | TileStmt::ReduceColumns { from, .. } => {
                let rows = matches!(stmt, TileStmt::ReduceRows { .. });
                if reduce::needs_scratch(self, kernel, *from, rows) {
                    touched.writes.push(Memory::Scratch);
                    touched.reads.push(Memory::Scratch);
                    touched.synchronises = true;
                }
            }
        }
        touched
    }
}

/// A loop of constant trip count that is to be unrolled; no loop for one turn.
pub(super) fn counted(
    b: &mut Builder<'_>,
    name: &str,
    count: u32,
    body: impl FnOnce(&mut Builder<'_>, Value),
) {
    let zero = b.u32(0);
    if count == 1 {
        return body(b, zero);
    }
    let (end, one) = (b.u32(count), b.u32(1));
    b.for_range(name, zero, end, one, Unroll::Full, body);
}

/// A loop over the turns in which a workgroup moves a tile; a few statements a turn, so that
/// unrolling is the target's choice.
fn turns(b: &mut Builder<'_>, count: u32, body: impl FnOnce(&mut Builder<'_>, Value)) {
    let (zero, one, end) = (b.u32(0), b.u32(1), b.u32(count));
    if count == 1 {
        return body(b, zero);
    }
    b.for_range("turn", zero, end, one, Unroll::Auto, body);
}

/// A position cut to the tile's last where it may lie past it.
pub(super) fn inside(b: &mut Builder<'_>, axis: Axis, at: Value) -> Value {
    if axis.partial() {
        b.with_int(BinaryOp::Min, at, i128::from(axis.len) - 1)
    } else {
        at
    }
}

/// Logical and of all; `None` of none.
pub(super) fn all(b: &mut Builder<'_>, conditions: Vec<Value>) -> Option<Value> {
    conditions.into_iter().reduce(|x, y| b.and(x, y))
}

/// `value * factor` in `u32`, folded where that is trivial.
pub(super) fn times(b: &mut Builder<'_>, value: Value, factor: u32) -> Value {
    match b.kernel.constant(value) {
        Some(c) => b.u32((c.bits as u32).wrapping_mul(factor)),
        None if factor == 1 => value,
        None => b.with_int(BinaryOp::Mul, value, i128::from(factor)),
    }
}

/// `a + b` in `u32`, folded where that is trivial.
pub(super) fn plus(b: &mut Builder<'_>, x: Value, y: Value) -> Value {
    match (
        b.kernel.constant(x).map(|c| c.bits),
        b.kernel.constant(y).map(|c| c.bits),
    ) {
        (Some(x), Some(y)) => b.u32((x as u32).wrapping_add(y as u32)),
        (Some(0), None) => y,
        (None, Some(0)) => x,
        _ => b.add(x, y),
    }
}

/// The extent of a tensor's axis as a value.
pub(super) fn extent(b: &mut Builder<'_>, param: Param, axis: usize) -> Value {
    let expr = b
        .kernel
        .tensor(param)
        .and_then(|t| t.shape.get(axis))
        .cloned();
    match expr {
        Some(expr) => expression(b, &expr),
        None => b.u32(0),
    }
}

fn expression(b: &mut Builder<'_>, expr: &Expr) -> Value {
    match expr {
        Expr::Const(c) => b.constant(Const::int(Scalar::U32, i128::from(*c))),
        Expr::Dim(dim) => b.value(Op::Dim(*dim), Type::U32),
        Expr::Scalar(param) => {
            let scalar = match b.kernel.params[*param].kind {
                iron_ir::kernel::ParamKind::Scalar(s) => s,
                iron_ir::kernel::ParamKind::Tensor(_) => Scalar::U32,
            };
            let value = b.value(Op::Scalar(*param), scalar.x(1));
            b.convert(value, Scalar::U32)
        }
        Expr::Binary(op, x, y) => {
            let (x, y) = (expression(b, x), expression(b, y));
            match op {
                ExprOp::Add => plus(b, x, y),
                ExprOp::Sub => b.binary(BinaryOp::Sub, x, y),
                ExprOp::Mul => b.mul(x, y),
                ExprOp::Div => b.binary(BinaryOp::Div, x, y),
                ExprOp::Rem => b.binary(BinaryOp::Rem, x, y),
                ExprOp::Min => b.binary(BinaryOp::Min, x, y),
                ExprOp::Max => b.binary(BinaryOp::Max, x, y),
                ExprOp::CeilDiv => {
                    // The sum could wrap; quotient and remainder cannot.
                    let quotient = b.binary(BinaryOp::Div, x, y);
                    let rest = b.binary(BinaryOp::Rem, x, y);
                    let more = b.compare_int(CompareOp::Ne, rest, 0);
                    let more = b.convert(more, Scalar::U32);
                    b.add(quotient, more)
                }
            }
        }
    }
}
