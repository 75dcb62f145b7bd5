//! Loads of shared tiles 16 bytes at a time, and loops that multiply one slice of their tiles
//! while the next is on its way.
//!
//! ```text
//! fetch the first slice into registers
//! each turn of the author's loop, each slice of it:
//!     barrier; registers to shared memory; barrier
//!     fetch the next slice, the first of the next turn behind the last; multiply
//! ```
//!
//! The loop exists three times. Where every tile of every turn lies within its tensor, offsets are
//! sums of what threads have in common and one value of each thread's own. Where some do not, a
//! chunk outside of the tensor is read from within, so that no access waits for a branch, and
//! replaced by zeros on its way to shared memory, so that nothing waits for it before. What is
//! fetched past the loop's end is zeros or some part of the tensor, and unused. Where a tensor's
//! address or strides, or a tile's place in it, allow no accesses of 16 bytes, each slice is read
//! element by element when its turn comes.

mod copies;

use iron_ir::entity::{Local, Param, Tile, Value};
use iron_ir::kernel::{Block, Kernel, TensorLayout};
use iron_ir::op::{BinaryOp, BuiltinOp, CompareOp, Stmt, TileSpace, TileStmt, Unroll};
use iron_ir::{Op, Place, Scalar, Type};

use super::layout::{Tiles, all, extent, plus, times};
use super::moves::Block2;
use super::subgroup;
use super::units::{CHUNK, Turn};
use crate::addressing::flat;
use crate::rewrite::Builder;
use crate::unroll::copy_block;

/// A part of a tensor on its way to a shared tile.
struct Part<'a> {
    tile: Tile,
    from: Block2<'a>,
    transposed: bool,
    /// What memory holds at a time.
    rows: u32,
    columns: u32,
}

impl<'a> Part<'a> {
    fn new(b: &Builder<'_>, tiles: &Tiles<'_>, tile: Tile, from: Block2<'a>) -> Part<'a> {
        let (rows, columns) = tiles.held(b.kernel, tile);
        Part {
            tile,
            from,
            transposed: false,
            rows,
            columns,
        }
    }

    fn scalar(&self, b: &Builder<'_>) -> Scalar {
        b.kernel.tiles[self.tile].scalar
    }

    /// Chunks of a thread.
    fn turns(&self, tiles: &Tiles<'_>) -> u32 {
        (self.rows * self.columns / CHUNK).div_ceil(tiles.threads)
    }

    /// Uniform: whether every chunk is within or outside of the tensor and aligned. `None` where
    /// that can never be.
    fn condition(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>) -> Option<Value> {
        let aligned = tiles.aligned.get(&self.from.param).copied()?;
        let tensor = b.kernel.tensor(self.from.param)?;
        let fits = !self.transposed
            && tensor.layout == TensorLayout::RowMajor
            && tensor.scalar == self.scalar(b);
        if !fits {
            return None;
        }
        let limit = extent(b, self.from.param, self.from.leading.len() + 1);
        let whole = [self.from.origin[1], limit].map(|at| {
            let within = b.with_int(BinaryOp::And, at, i128::from(CHUNK) - 1);
            b.compare_int(CompareOp::Eq, within, 0)
        });
        all(b, vec![aligned, whole[0], whole[1]])
    }

    /// Row and first column of the chunk that a thread has in a turn, and whether there is one
    /// where some threads have none.
    fn chunk(
        &self,
        b: &mut Builder<'_>,
        tiles: &Tiles<'_>,
        turn: Value,
    ) -> ([Value; 2], Option<Value>) {
        let across = self.columns / CHUNK;
        let total = self.rows * across;
        let thread = b.builtin(BuiltinOp::LocalIndex, 0);
        let done = times(b, turn, tiles.threads);
        let index = plus(b, done, thread);
        let whole_lines = tiles.threads.is_multiple_of(across);
        let within = if whole_lines { thread } else { index };
        let mut row = b.with_int(BinaryOp::Div, within, i128::from(across));
        let column = b.with_int(BinaryOp::Rem, within, i128::from(across));
        if whole_lines {
            // The column is the same in every turn.
            let lines = times(b, turn, tiles.threads / across);
            row = plus(b, lines, row);
        }
        let column = times(b, column, CHUNK);
        let is_there = (!total.is_multiple_of(tiles.threads))
            .then(|| b.compare_int(CompareOp::Lt, index, i128::from(total)));
        ([row, column], is_there)
    }

    /// Reads a chunk at once into a variable of four words: zeros outside of the tensor.
    fn read_chunk(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>, turn: Value, to: Local) {
        let ([row, column], is_there) = self.chunk(b, tiles, turn);
        let row = plus(b, self.from.origin[0], row);
        let column = plus(b, self.from.origin[1], column);
        let rank = self.from.leading.len();
        let (below, before) = (
            extent(b, self.from.param, rank),
            extent(b, self.from.param, rank + 1),
        );
        let mut inside: Vec<Value> = is_there.into_iter().collect();
        inside.push(b.compare(CompareOp::Lt, row, below));
        inside.push(b.compare(CompareOp::Lt, column, before));
        let zero = b.splat_const(WORDS, iron_ir::Const::zero(Scalar::U32));
        b.push(Stmt::Set(to, zero));
        let ty = self.scalar(b).x(CHUNK as u8);
        if let Some(inside) = all(b, inside) {
            b.if_then(inside, |b| {
                let mut indices = self.from.leading.to_vec();
                indices.extend([row, column]);
                let offset = flat(b, self.from.param, &indices, 0);
                let loaded = b.load(Place::Flat(self.from.param), vec![offset], ty);
                let words = b.value(Op::Bitcast(loaded), WORDS);
                b.push(Stmt::Set(to, words));
            });
        }
    }

    /// The indices of a chunk's first element, and for each of the last two whether the tensor has
    /// it.
    fn at(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>, turn: Value) -> ([Value; 2], [Value; 2]) {
        let (chunk, _) = self.chunk(b, tiles, turn);
        let rank = self.from.leading.len();
        let at = [0, 1].map(|axis| plus(b, self.from.origin[axis], chunk[axis]));
        let is_inside = [0, 1].map(|axis| {
            let limit = extent(b, self.from.param, rank + axis);
            b.compare(CompareOp::Lt, at[axis], limit)
        });
        (at, is_inside)
    }

    /// Reads a chunk at once, without a branch, from a tensor that is not empty: four words, any
    /// of the tensor's where it lies outside. Nothing here waits for them.
    fn read_any(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>, turn: Value) -> Value {
        let (at, is_inside) = self.at(b, tiles, turn);
        let zero = b.u32(0);
        let mut indices = self.from.leading.to_vec();
        indices.extend([0, 1].map(|axis| b.select(is_inside[axis], at[axis], zero)));
        let offset = flat(b, self.from.param, &indices, 0);
        let ty = self.scalar(b).x(CHUNK as u8);
        let loaded = b.load(Place::Flat(self.from.param), vec![offset], ty);
        b.value(Op::Bitcast(loaded), WORDS)
    }

    /// A chunk that was read so: zeros outside of the tensor.
    fn or_zeros(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>, turn: Value, words: Value) -> Value {
        let (_, is_inside) = self.at(b, tiles, turn);
        let is_inside = b.and(is_inside[0], is_inside[1]);
        let zero = b.splat_const(WORDS, iron_ir::Const::zero(Scalar::U32));
        b.value(Op::Select(is_inside, words, zero), WORDS)
    }

    /// Whether each of a thread's chunks lies the same number of whole lines behind the one before.
    fn is_regular(&self, tiles: &Tiles<'_>) -> bool {
        let across = self.columns / CHUNK;
        tiles.threads.is_multiple_of(across) && (self.rows * across).is_multiple_of(tiles.threads)
    }

    /// The offset of an element of the tensor's first block.
    fn offset(&self, b: &mut Builder<'_>, at: [Value; 2]) -> Value {
        let zero = b.u32(0);
        let mut indices = vec![zero; self.from.leading.len()];
        indices.extend(at);
        flat(b, self.from.param, &indices, 0)
    }

    /// What the loop need not compute again of a tile whose chunks are regular.
    fn steady(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>) -> Steady {
        let zero = b.u32(0);
        let (chunk, _) = self.chunk(b, tiles, zero);
        let own = self.offset(b, chunk);
        let lines = tiles.threads / (self.columns / CHUNK);
        let lines = (0..self.turns(tiles)).map(|turn| {
            let line = b.u32(turn * lines);
            self.offset(b, [line, zero])
        });
        Steady {
            lines: lines.collect(),
            own,
        }
    }

    /// Reads a thread's chunk of a tile that lies within its tensor.
    fn read_within(&self, b: &mut Builder<'_>, steady: &Steady, turn: usize) -> Value {
        let mut indices = self.from.leading.to_vec();
        indices.extend(self.from.origin);
        let origin = flat(b, self.from.param, &indices, 0);
        let ty = self.scalar(b).x(CHUNK as u8);
        // What all threads have in common first.
        let line = b.add(origin, steady.lines[turn]);
        let offset = b.add(line, steady.own);
        let loaded = b.load(Place::Flat(self.from.param), vec![offset], ty);
        b.value(Op::Bitcast(loaded), WORDS)
    }

    /// Uniform: whether all of the tile lies within the tensor.
    fn is_within(&self, b: &mut Builder<'_>) -> Option<Value> {
        let data = &b.kernel.tiles[self.tile];
        let size = [data.rows, data.columns];
        let rank = self.from.leading.len();
        let mut conditions = Vec::new();
        for axis in 0..2 {
            let limit = extent(b, self.from.param, rank + axis);
            let size = i128::from(size[axis]);
            conditions.push(b.compare_int(CompareOp::Ge, limit, size));
            let most = b.with_int(BinaryOp::Sub, limit, size);
            conditions.push(b.compare(CompareOp::Le, self.from.origin[axis], most));
        }
        all(b, conditions)
    }

    /// Writes a chunk of four words to its place in the tile.
    fn write_chunk(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>, turn: Value, words: Value) {
        let ([row, column], is_there) = self.chunk(b, tiles, turn);
        let ty = self.scalar(b).x(CHUNK as u8);
        let write = |b: &mut Builder<'_>| {
            let chunk = b.value(Op::Bitcast(words), ty);
            let at = tiles.shared_index(b, self.tile, row, column);
            b.store(Place::Array(tiles.array(self.tile)), vec![at], chunk);
        };
        match is_there {
            Some(is_there) => b.if_then(is_there, write),
            None => write(b),
        }
    }

    /// Reads the part in the calling threads' turn, chunk by chunk.
    fn copy_chunks(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>) {
        let name = format!("{}_chunk", b.kernel.tiles[self.tile].name);
        let chunk = b.local(&name, WORDS);
        each(b, self.turns(tiles), Unroll::Auto, |b, turn| {
            self.read_chunk(b, tiles, turn, chunk);
            let words = b.get(chunk);
            self.write_chunk(b, tiles, turn, words);
        });
    }

    /// As [`copy_chunks`](Part::copy_chunks), element by element, whatever the tensor is.
    fn copy_elements(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>) {
        let scalar = self.scalar(b);
        let name = format!("{}_element", b.kernel.tiles[self.tile].name);
        let local = b.local(&name, scalar.x(1));
        each(b, self.turns(tiles), Unroll::Never, |b, turn| {
            let ([row, column], is_there) = self.chunk(b, tiles, turn);
            let copy = |b: &mut Builder<'_>| {
                let elements = (0..CHUNK)
                    .map(|lane| {
                        let lane = b.u32(lane);
                        let column = plus(b, column, lane);
                        let (row, column) = match self.transposed {
                            true => (column, row),
                            false => (row, column),
                        };
                        self.from.element(b, local, scalar, row, column)
                    })
                    .collect();
                let chunk = b.value(Op::Vector(elements), scalar.x(CHUNK as u8));
                let at = tiles.shared_index(b, self.tile, row, column);
                b.store(Place::Array(tiles.array(self.tile)), vec![at], chunk);
            };
            match is_there {
                Some(is_there) => b.if_then(is_there, copy),
                None => copy(b),
            }
        });
    }
}

/// Parts of the offsets of a thread's chunks of a tile.
struct Steady {
    /// Each chunk's lines behind the first, the same in all threads.
    lines: Vec<Value>,
    /// The thread's first chunk.
    own: Value,
}

/// Four words, a chunk's bits.
const WORDS: Type = Scalar::U32.x(4);

/// Whether a tile is loaded by chunks.
pub(super) fn loads(kernel: &Kernel, tiles: &Tiles<'_>, tile: Tile) -> bool {
    let data = &kernel.tiles[tile];
    tiles.subgroups.is_some()
        && data.space == TileSpace::Shared
        && data.scalar.bytes() == 2
        && data.columns.is_multiple_of(CHUNK)
}

/// Loads a whole shared tile, whose columns are whole chunks.
pub(super) fn load(
    b: &mut Builder<'_>,
    tiles: &Tiles<'_>,
    tile: Tile,
    (source, leading, origin): (Param, &[Value], [Value; 2]),
    transposed: bool,
) {
    let from = Block2 {
        param: source,
        leading,
        origin,
    };
    let part = Part {
        transposed,
        ..Part::new(b, tiles, tile, from)
    };
    match part.condition(b, tiles) {
        None => part.copy_elements(b, tiles),
        Some(condition) => {
            let then_block = b.nested(|b| part.copy_chunks(b, tiles));
            let else_block = b.nested(|b| part.copy_elements(b, tiles));
            b.push(Stmt::If {
                condition,
                then_block,
                else_block,
            });
        }
    }
}

/// A tile that a turn loads.
struct Load {
    tile: Tile,
    /// The steps of `k` are its rows.
    by_rows: bool,
    source: Param,
    leading: Vec<Value>,
    origin: [Value; 2],
}

impl Load {
    fn part(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>, skip: Value) -> Part<'_> {
        let mut origin = self.origin;
        let axis = usize::from(!self.by_rows);
        origin[axis] = plus(b, origin[axis], skip);
        let from = Block2 {
            param: self.source,
            leading: &self.leading,
            origin,
        };
        Part::new(b, tiles, self.tile, from)
    }
}

/// The author's loop over a turn: its variable, bounds, body and how it is to be unrolled.
pub(super) struct Loop {
    pub index: Value,
    pub start: Value,
    pub end: Value,
    pub step: Value,
    pub unroll: Unroll,
    pub body: Block,
}

/// Most slices of a turn that are written out.
const WRITTEN_OUT: u32 = 4;

/// A loop over a turn on its way to slices.
struct Pipeline<'a> {
    all: Loop,
    turn: &'a Turn,
    /// Steps of a slice.
    slice: u32,
    products: Vec<TileStmt>,
}

/// Emits the loop. See the module doc.
pub(super) fn pipelined(b: &mut Builder<'_>, tiles: &mut Tiles<'_>, all: Loop, turn: &Turn) {
    let products = (all.body.0.iter()).filter_map(|(stmt, _)| match stmt {
        Stmt::Tile(product @ TileStmt::Matmul { .. }) => Some(product.clone()),
        _ => None,
    });
    let slice = turn.loads.first().and_then(|(tile, _)| tiles.slice(*tile));
    let pipeline = Pipeline {
        products: products.collect(),
        slice: slice.unwrap_or(turn.depth),
        all,
        turn,
    };
    let stages = (tiles.subgroups.as_ref()).map_or(1, |s| s.units.stages);
    if stages > 1 {
        return pipeline
            .where_aligned(b, tiles, |b| copies::pipelined(b, tiles, &pipeline, stages));
    }
    match pipeline.condition(b, tiles) {
        None => pipeline.by_elements(b, tiles),
        Some(condition) => {
            let then_block = b.nested(|b| match pipeline.is_within(b, tiles) {
                None => pipeline.by_chunks(b, tiles, None),
                Some((condition, last)) => {
                    let then_block = b.nested(|b| pipeline.by_chunks(b, tiles, Some(last)));
                    let else_block = b.nested(|b| pipeline.by_chunks(b, tiles, None));
                    b.push(Stmt::If {
                        condition,
                        then_block,
                        else_block,
                    });
                }
            });
            let else_block = b.nested(|b| pipeline.by_elements(b, tiles));
            b.push(Stmt::If {
                condition,
                then_block,
                else_block,
            });
        }
    }
}

impl Pipeline<'_> {
    /// Uniform: whether in every turn every chunk is within or outside of its tensor and aligned,
    /// and there is something to read.
    fn condition(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>) -> Option<Value> {
        let zero = b.u32(0);
        let mut conditions = Vec::new();
        let step = b.convert(self.all.step, Scalar::U32);
        let step = b.with_int(BinaryOp::And, step, i128::from(CHUNK) - 1);
        conditions.push(b.compare_int(CompareOp::Eq, step, 0));
        for load in self.loads_at(b, self.all.start) {
            let part = load.part(b, tiles, zero);
            conditions.push(part.condition(b, tiles)?);
            let rank = load.leading.len();
            for axis in [rank, rank + 1] {
                let limit = extent(b, load.source, axis);
                conditions.push(b.compare_int(CompareOp::Gt, limit, 0));
            }
        }
        all(b, conditions)
    }

    /// Uniform: whether all that the loop reads lies within the tensors; and its last turn. `None`
    /// where that cannot be told from two turns, or a thread's chunks are not regular.
    fn is_within(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>) -> Option<(Value, Value)> {
        if !self.turn.is_straight {
            return None;
        }
        let (start, end, step) = (self.all.start, self.all.end, self.all.step);
        let mut conditions = vec![b.compare(CompareOp::Lt, start, end)];
        let span = b.with_int(BinaryOp::Sub, end, 1);
        let span = b.binary(BinaryOp::Sub, span, start);
        let past = b.binary(BinaryOp::Rem, span, step);
        let whole = b.binary(BinaryOp::Sub, span, past);
        let last = b.add(start, whole);
        let zero = b.u32(0);
        for k in [start, last] {
            for load in self.loads_at(b, k) {
                let part = load.part(b, tiles, zero);
                if !part.is_regular(tiles) {
                    return None;
                }
                conditions.push(part.is_within(b)?);
            }
        }
        Some((all(b, conditions)?, last))
    }

    /// The loop with the next slice on its way; with its last turn where all that it reads lies
    /// within the tensors.
    fn by_chunks(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>, last: Option<Value>) {
        let held: Vec<Vec<Local>> = (self.turn.loads.iter())
            .map(|(tile, _)| {
                let name = b.kernel.tiles[*tile].name.clone();
                let (rows, columns) = tiles.held(b.kernel, *tile);
                let count = (rows * columns / CHUNK).div_ceil(tiles.threads);
                (0..count)
                    .map(|n| b.local(&format!("{name}_next_{n}"), WORDS))
                    .collect()
            })
            .collect();
        let zero = b.u32(0);
        let steady: Vec<Steady> = match last {
            None => Vec::new(),
            Some(_) => (self.loads_at(b, self.all.start).iter())
                .map(|load| load.part(b, tiles, zero).steady(b, tiles))
                .collect(),
        };
        let fetch = |b: &mut Builder<'_>, mut k: Value, skip: Value| {
            if let Some(last) = last {
                let is_turn = b.compare(CompareOp::Le, k, last);
                k = b.select(is_turn, k, last);
            }
            for (n, (load, held)) in self.loads_at(b, k).iter().zip(&held).enumerate() {
                let part = load.part(b, tiles, skip);
                for (turn, chunk) in held.iter().enumerate() {
                    let words = match steady.get(n) {
                        Some(steady) => part.read_within(b, steady, turn),
                        None => {
                            let turn = b.u32(turn as u32);
                            part.read_any(b, tiles, turn)
                        }
                    };
                    b.push(Stmt::Set(*chunk, words));
                }
            }
        };
        fetch(b, self.all.start, zero);
        self.each_slice(b, tiles, |b, slice| {
            b.workgroup_barrier();
            for (load, held) in slice.loads.iter().zip(&held) {
                let part = load.part(b, tiles, slice.skip);
                for (turn, chunk) in held.iter().enumerate() {
                    let turn = b.u32(turn as u32);
                    let words = b.get(*chunk);
                    let words = match last {
                        None => part.or_zeros(b, tiles, turn, words),
                        Some(_) => words,
                    };
                    part.write_chunk(b, tiles, turn, words);
                }
            }
            b.workgroup_barrier();
            fetch(b, slice.next.0, slice.next.1);
        });
    }

    /// The loop as `then` makes it where chunks are aligned, element by element elsewhere.
    fn where_aligned(
        &self,
        b: &mut Builder<'_>,
        tiles: &Tiles<'_>,
        then: impl FnOnce(&mut Builder<'_>),
    ) {
        let Some(condition) = self.condition(b, tiles) else {
            return self.by_elements(b, tiles);
        };
        let then_block = b.nested(then);
        let else_block = b.nested(|b| self.by_elements(b, tiles));
        b.push(Stmt::If {
            condition,
            then_block,
            else_block,
        });
    }

    /// The loop with every slice read when its turn comes.
    fn by_elements(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>) {
        self.each_slice(b, tiles, |b, slice| {
            b.workgroup_barrier();
            for load in slice.loads {
                load.part(b, tiles, slice.skip).copy_elements(b, tiles);
            }
            b.workgroup_barrier();
        });
    }

    /// The author's loop, slice by slice: `bring` has the slice in memory, then it is multiplied.
    fn each_slice(
        &self,
        b: &mut Builder<'_>,
        tiles: &Tiles<'_>,
        bring: impl Fn(&mut Builder<'_>, Slice<'_>),
    ) {
        let Loop {
            index,
            start,
            end,
            step,
            unroll,
            ..
        } = self.all;
        let unroll = match unroll {
            Unroll::Full => Unroll::Full,
            Unroll::Auto | Unroll::Never => Unroll::Never,
        };
        let name = b.kernel.values[index].name.clone();
        b.for_range(
            name.as_deref().unwrap_or("k"),
            start,
            end,
            step,
            unroll,
            |b, k| {
                let loads = self.loads_at(b, k);
                let next_turn = b.add(k, step);
                let multiply = |b: &mut Builder<'_>, skip: Value, next: (Value, Value)| {
                    let slice = Slice {
                        loads: &loads,
                        skip,
                        next,
                    };
                    bring(b, slice);
                    self.multiply(b, tiles, None);
                };
                let zero = b.u32(0);
                let count = self.turn.depth / self.slice;
                if count <= WRITTEN_OUT {
                    for n in 0..count {
                        let (skip, after) = (b.u32(n * self.slice), b.u32((n + 1) * self.slice));
                        let is_last = n + 1 == count;
                        let next = if is_last {
                            (next_turn, zero)
                        } else {
                            (k, after)
                        };
                        multiply(b, skip, next);
                    }
                    return;
                }
                let (depth, each) = (b.u32(self.turn.depth), b.u32(self.slice));
                b.for_range("slice", zero, depth, each, Unroll::Never, |b, skip| {
                    let after = b.with_int(BinaryOp::Add, skip, i128::from(self.slice));
                    let is_last = b.compare_int(CompareOp::Ge, after, i128::from(self.turn.depth));
                    let next = b.select(is_last, next_turn, k);
                    let skip_next = b.select(is_last, zero, after);
                    multiply(b, skip, (next, skip_next));
                });
            },
        );
    }

    /// Multiplies the slice that memory holds, in a stage where it has several.
    fn multiply(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>, stage: Option<Value>) {
        for product in &self.products {
            if let TileStmt::Matmul {
                accumulator,
                a,
                b: right,
                transpose_a,
                transpose_b,
            } = product
            {
                let operands = [(*a, *transpose_a), (*right, *transpose_b)];
                subgroup::product(b, tiles, *accumulator, operands, stage);
            }
        }
    }

    /// The loads of the loop's body in the turn of `k`, whose values are computed here.
    fn loads_at(&self, b: &mut Builder<'_>, k: Value) -> Vec<Load> {
        let copy = copy_block(b, &self.all.body, &mut vec![(self.all.index, k)]);
        let mut loads = Vec::new();
        for (stmt, span) in copy.0 {
            b.span = span;
            match stmt {
                Stmt::Let(_) => b.push(stmt),
                Stmt::Tile(TileStmt::Load {
                    tile,
                    source,
                    leading,
                    origin,
                    ..
                }) => loads.push(Load {
                    tile,
                    by_rows: self.turn.loads.contains(&(tile, true)),
                    source,
                    leading,
                    origin,
                }),
                _ => {}
            }
        }
        loads
    }
}

/// A slice at hand.
struct Slice<'a> {
    loads: &'a [Load],
    /// Steps of the turn before it.
    skip: Value,
    /// Turn and steps before it of the next slice.
    next: (Value, Value),
}

fn each(
    b: &mut Builder<'_>,
    count: u32,
    unroll: Unroll,
    body: impl FnOnce(&mut Builder<'_>, Value),
) {
    let (zero, one, end) = (b.u32(0), b.u32(1), b.u32(count));
    if count == 1 {
        return body(b, zero);
    }
    b.for_range("turn", zero, end, one, unroll, body);
}
