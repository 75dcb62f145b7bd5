//! Tiles by warpgroup products (NVIDIA, compute capability 9.0): copies by one warpgroup,
//! products by the others.
//!
//! The workgroup gets one more warpgroup, the **producer**. Both roles run the author's control
//! flow; the producer only loads tiles, the consumers do everything else. A tile that is loaded
//! from a tensor is a **ring** of stages with two signals a stage: `full` completes when a copy
//! has arrived, `empty` when every consumer has left the stage. A load is, for the producer,
//! *wait for `empty`, copy*; for a consumer, *leave the stage held, wait for `full` of the next*.
//! One thread issues all copies. Where a tensor's address or strides are no multiples of 16
//! bytes, the producer's threads load element by element into the same places instead.

use iron_ir::entity::{Array, Local, Tile, Value};
use iron_ir::kernel::{Block, Space};
use iron_ir::machine::{MachineOp, MachineStmt, PANEL, WARPGROUP};
use iron_ir::op::{BinaryOp, BuiltinOp, CompareOp, Stmt, TileStmt, Unroll};
use iron_ir::{Const, Op, Place, Scalar, Type};

use super::fragment::swizzled;
use super::is_shared;
use super::layout::{Tiles, all, counted, plus, times};
use super::moves::Block2;
use super::plan::Plan;
use super::turns::Turn;
use crate::rewrite::Builder;
use crate::unroll::copy_block;

/// The stages of one loaded tile.
pub(super) struct Ring {
    pub(super) stages: u32,
    full: Array,
    empty: Array,
    /// The stage at hand, and the bit of its phase.
    stage: Local,
    phase: Local,
    /// The consumer holds a stage.
    held: Local,
    /// Threads access it by ordinary reads and writes too.
    pub(super) ordinary: bool,
}

impl Ring {
    pub(super) fn new(b: &mut Builder<'_>, plan: &Plan, tile: Tile) -> Option<Ring> {
        let stages = *plan.stages.get(&tile)?;
        let name = b.kernel.tiles[tile].name.clone();
        let signals = |b: &mut Builder<'_>, what| {
            b.array(
                &format!("{name}_{what}"),
                Scalar::U64,
                stages,
                Space::Shared,
            )
        };
        let (full, empty) = (signals(b, "full"), signals(b, "empty"));
        Some(Ring {
            stages,
            full,
            empty,
            stage: b.local(&format!("{name}_stage"), Type::U32),
            phase: b.local(&format!("{name}_phase"), Type::U32),
            held: b.local(&format!("{name}_held"), Type::BOOL),
            ordinary: plan.ordinary.contains(&tile),
        })
    }

    /// The stage at hand.
    pub(super) fn stage(&self, b: &mut Builder<'_>) -> Value {
        if self.stages == 1 {
            return b.u32(0);
        }
        b.get(self.stage)
    }

    /// Each role begins before the first stage.
    fn start(&self, b: &mut Builder<'_>) {
        let (last, one) = (b.u32(self.stages - 1), b.u32(1));
        b.push(Stmt::Set(self.stage, last));
        b.push(Stmt::Set(self.phase, one));
        let none = b.constant(Const::bool(false));
        b.push(Stmt::Set(self.held, none));
    }

    fn advance(&self, b: &mut Builder<'_>) {
        let stage = b.get(self.stage);
        let next = b.with_int(BinaryOp::Add, stage, 1);
        let wraps = b.compare_int(CompareOp::Eq, next, i128::from(self.stages));
        let zero = b.u32(0);
        let next = b.value(Op::Select(wraps, zero, next), Type::U32);
        b.push(Stmt::Set(self.stage, next));
        let phase = b.get(self.phase);
        let flip = b.convert(wraps, Scalar::U32);
        let phase = b.binary(BinaryOp::Xor, phase, flip);
        b.push(Stmt::Set(self.phase, phase));
    }

    /// Waits until consumers have left the stage at hand, and gives it.
    fn await_empty(&self, b: &mut Builder<'_>) -> Value {
        let stage = self.stage(b);
        let phase = b.get(self.phase);
        let before = b.with_int(BinaryOp::Xor, phase, 1);
        machine(
            b,
            MachineOp::SignalWait,
            &[self.empty],
            &[stage, before],
            &[],
        );
        stage
    }

    /// A consumer leaves the stage it holds and waits for the next.
    fn acquire(&self, b: &mut Builder<'_>) {
        let held = b.get(self.held);
        b.if_then(held, |b| {
            if self.ordinary {
                machine(b, MachineOp::SharedFence, &[], &[], &[]);
                b.workgroup_barrier();
            }
            let thread = b.builtin(BuiltinOp::LocalIndex, 0);
            let within = b.with_int(BinaryOp::And, thread, i128::from(WARPGROUP) - 1);
            let first = b.compare_int(CompareOp::Eq, within, 0);
            b.if_then(first, |b| {
                let stage = self.stage(b);
                machine(b, MachineOp::SignalArrive, &[self.empty], &[stage], &[]);
            });
        });
        let yes = b.constant(Const::bool(true));
        b.push(Stmt::Set(self.held, yes));
        self.advance(b);
        let stage = self.stage(b);
        let phase = b.get(self.phase);
        machine(b, MachineOp::SignalWait, &[self.full], &[stage, phase], &[]);
    }
}

/// Rewrites the whole body; `consume` makes the consumers' part of it.
pub(super) fn divide(
    b: &mut Builder<'_>,
    tiles: &mut Tiles<'_>,
    plan: &Plan,
    body: Block,
    consume: impl FnOnce(&mut Builder<'_>, &mut Tiles<'_>, Block) -> Block,
) {
    super::ask_alignment(b, tiles, &plan.tensors.iter().copied().collect::<Vec<_>>());
    let thread = b.builtin(BuiltinOp::LocalIndex, 0);
    let is_first = b.compare_int(CompareOp::Eq, thread, 0);
    let loaded: Vec<Tile> = plan.stages.keys().copied().collect();
    b.if_then(is_first, |b| {
        for ring in loaded.iter().filter_map(|t| tiles.rings.get(t)) {
            for stage in 0..ring.stages {
                let (cell, one, groups) = (b.u32(stage), b.u32(1), b.u32(plan.groups));
                machine(b, MachineOp::SignalInit, &[ring.full], &[cell, one], &[]);
                machine(
                    b,
                    MachineOp::SignalInit,
                    &[ring.empty],
                    &[cell, groups],
                    &[],
                );
            }
        }
        machine(b, MachineOp::SignalFence, &[], &[], &[]);
    });
    b.workgroup_barrier();
    let begin = |b: &mut Builder<'_>, tiles: &Tiles<'_>, raises: bool| {
        if let Some((fewer, more)) = plan.registers {
            let count = if raises { more } else { fewer };
            let numbers = [count, u32::from(raises)];
            machine(b, MachineOp::Registers, &[], &[], &numbers);
        }
        for ring in loaded.iter().filter_map(|t| tiles.rings.get(t)) {
            ring.start(b);
        }
    };
    let by_copies = copy_block(b, &body, &mut Vec::new());
    let by_elements = copy_block(b, &body, &mut Vec::new());
    let producer = b.nested(|b| {
        begin(b, tiles, false);
        let aligned = plan
            .sources
            .iter()
            .filter_map(|p| tiles.aligned.get(p).copied());
        let Some(all) = all(b, aligned.collect()) else {
            return;
        };
        let first = b.compare_int(CompareOp::Eq, thread, i128::from(tiles.threads));
        let then_block = b.nested(|b| {
            let then_block = produce(b, tiles, by_copies, copy_panels);
            b.push(Stmt::If {
                condition: first,
                then_block,
                else_block: Block::default(),
            });
        });
        let else_block = produce(b, tiles, by_elements, copy_elements);
        b.push(Stmt::If {
            condition: all,
            then_block,
            else_block,
        });
    });
    let mut consumer = b.nested(|b| begin(b, tiles, true));
    consumer.0.extend(consume(b, tiles, body).0);
    b.span = iron_ir::Span::default();
    b.push(Stmt::Roles {
        producers: WARPGROUP,
        producer,
        consumer,
    });
}

/// The consumers' part of a load.
pub(super) fn acquire(b: &mut Builder<'_>, tiles: &Tiles<'_>, tile: Tile) {
    if let Some(ring) = tiles.rings.get(&tile) {
        ring.acquire(b);
    }
}

/// How the producer fills a stage.
type Fill = fn(&mut Builder<'_>, &Tiles<'_>, &Ring, Tile, &Block2<'_>);

/// The author's control flow with nothing but loads of tiles.
fn produce(b: &mut Builder<'_>, tiles: &Tiles<'_>, block: Block, fill: Fill) -> Block {
    let outer = std::mem::take(&mut b.out);
    for (mut stmt, span) in block.0 {
        b.span = span;
        b.rename(&mut stmt);
        match stmt {
            Stmt::Tile(TileStmt::Load {
                tile,
                source,
                leading,
                origin,
                ..
            }) => {
                if let Some(ring) = tiles.rings.get(&tile) {
                    ring.advance(b);
                    let from = Block2 {
                        param: source,
                        leading: &leading,
                        origin,
                    };
                    fill(b, tiles, ring, tile, &from);
                }
            }
            Stmt::Tile(_) => {}
            mut other => {
                for nested in other.blocks_mut() {
                    let taken = std::mem::take(nested);
                    *nested = produce(b, tiles, taken, fill);
                }
                b.span = span;
                b.push(other);
            }
        }
    }
    Block(std::mem::replace(&mut b.out, outer))
}

/// Fills the stage at hand by copies of panels, in one thread.
fn copy_panels(b: &mut Builder<'_>, tiles: &Tiles<'_>, ring: &Ring, tile: Tile, from: &Block2<'_>) {
    let data = b.kernel.tiles[tile].clone();
    let stage = ring.await_empty(b);
    let bytes = data.rows * data.columns * data.scalar.bytes();
    machine(b, MachineOp::SignalExpect, &[ring.full], &[stage], &[bytes]);
    let start = tiles.stage_start(b, tile);
    for panel in 0..data.columns / PANEL {
        let skip = b.u32(panel * data.rows * PANEL);
        let to = plus(b, start, skip);
        let across = b.u32(panel * PANEL);
        let column = plus(b, from.origin[1], across);
        let mut operands = vec![to, stage];
        operands.extend(from.leading);
        operands.extend([from.origin[0], column]);
        let arrays = [tiles.array(tile), ring.full];
        let copy = MachineStmt::new(MachineOp::CopyPanel, &arrays, &operands, &[data.rows]);
        b.push(Stmt::Machine(MachineStmt {
            source: Some(from.param),
            ..copy
        }));
    }
}

/// Fills the stage at hand element by element, in all threads of the producer.
fn copy_elements(
    b: &mut Builder<'_>,
    tiles: &Tiles<'_>,
    ring: &Ring,
    tile: Tile,
    from: &Block2<'_>,
) {
    let data = b.kernel.tiles[tile].clone();
    let stage = ring.await_empty(b);
    let start = tiles.stage_start(b, tile);
    let element = b.local(&format!("{}_element", data.name), data.scalar.x(1));
    let thread = b.builtin(BuiltinOp::LocalIndex, 0);
    let own = b.with_int(BinaryOp::Sub, thread, i128::from(tiles.threads));
    let (end, step) = (b.u32(data.rows * data.columns), b.u32(WARPGROUP));
    b.for_range("index", own, end, step, Unroll::Never, |b, index| {
        let row = b.with_int(BinaryOp::Div, index, i128::from(data.columns));
        let column = b.with_int(BinaryOp::Rem, index, i128::from(data.columns));
        let value = from.element(b, element, data.scalar, row, column);
        let at = swizzled(b, data.rows, row, column);
        let at = plus(b, start, at);
        b.store(Place::Array(tiles.array(tile)), vec![at], value);
    });
    machine(b, MachineOp::SharedFence, &[], &[], &[]);
    b.workgroup_barrier();
    let first = b.compare_int(CompareOp::Eq, own, 0);
    b.if_then(first, |b| {
        machine(b, MachineOp::SignalArrive, &[ring.full], &[stage], &[]);
    });
}

/// `accumulator += a · b` by warpgroup products; each flag says that the tile is read transposed.
pub(super) fn product(
    b: &mut Builder<'_>,
    tiles: &mut Tiles<'_>,
    groups: u32,
    accumulator: Tile,
    a: (Tile, bool),
    right: (Tile, bool),
) {
    let sum = b.kernel.tiles[accumulator].clone();
    let (left, other) = (b.kernel.tiles[a.0].clone(), b.kernel.tiles[right.0].clone());
    let depth = if a.1 { left.rows } else { left.columns };
    let (_, columns) = tiles.axes(b.kernel, accumulator);
    let mut arrays = [accumulator, a.0, right.0].map(|t| tiles.array(t));
    let (_, held) = tiles.axes(b.kernel, a.0);
    let is_held = !is_shared(b.kernel, a.0);
    if is_held {
        arrays[1] = packed(b, tiles, a.0);
    }
    let group = own_group(b);
    if tiles.turn == Some(Turn::Second) {
        machine(b, MachineOp::TurnWait, &[], &[group], &[]);
    }
    machine(b, MachineOp::ProductBegin, &[], &[], &[]);
    let (a_start, b_start) = (tiles.stage_start(b, a.0), tiles.stage_start(b, right.0));
    for fragment in 0..sum.rows.div_ceil(64 * groups) {
        // Offset of the group's 64 rows: whole rows of a panel, or a panel where transposed.
        let rows = if a.1 { left.rows * PANEL } else { 64 * PANEL };
        let own = times(b, group, rows);
        let skip = b.u32(fragment * groups * rows);
        let own = plus(b, own, skip);
        let own = plus(b, a_start, own);
        for step in 0..depth / 16 {
            let along = |stored_by_k: bool, tile_rows: u32| match stored_by_k {
                true => step * 16 / PANEL * tile_rows * PANEL + step * 16 % PANEL,
                false => step * 16 * PANEL,
            };
            let (by_k_a, by_k_b) = (!a.1, right.1);
            let skip = b.u32(along(by_k_b, other.rows));
            let b_at = plus(b, b_start, skip);
            if is_held {
                let numbers = [
                    fragment * 2 * columns.count,
                    sum.columns,
                    (fragment * 2 * held.count + step * 4) / 2,
                    held.count / 2,
                    u32::from(by_k_b),
                    other.rows * PANEL,
                ];
                machine(b, MachineOp::ProductHeld, &arrays, &[b_at], &numbers);
                continue;
            }
            let skip = b.u32(along(by_k_a, left.rows));
            let a_at = plus(b, own, skip);
            let numbers = [
                fragment * 2 * columns.count,
                sum.columns,
                u32::from(by_k_a),
                u32::from(by_k_b),
                other.rows * PANEL,
            ];
            machine(b, MachineOp::Product, &arrays, &[a_at, b_at], &numbers);
        }
    }
    let end = match tiles.turn {
        Some(Turn::Second) => MachineOp::ProductLeave,
        Some(Turn::First) => {
            let other = b.with_int(BinaryOp::Xor, group, 1);
            machine(b, MachineOp::TurnGive, &[], &[other], &[]);
            tiles.turn = Some(Turn::Second);
            MachineOp::ProductEnd
        }
        None => MachineOp::ProductEnd,
    };
    machine(b, end, &[], &[], &[]);
}

/// The index of this thread's warpgroup.
pub(super) fn own_group(b: &mut Builder<'_>) -> Value {
    let thread = b.builtin(BuiltinOp::LocalIndex, 0);
    let bits = WARPGROUP.trailing_zeros();
    b.with_int(BinaryOp::Shr, thread, i128::from(bits))
}

/// The elements of a held tile, two a word. Before the run of products, which must find its
/// registers settled.
fn packed(b: &mut Builder<'_>, tiles: &Tiles<'_>, tile: Tile) -> Array {
    let data = b.kernel.tiles[tile].clone();
    let from = tiles.array(tile);
    let count = b.kernel.arrays[from].len / 2;
    let words = b.array(
        &format!("{}_words", data.name),
        Scalar::U32,
        count,
        Space::Private,
    );
    counted(b, "n", count, |b, n| {
        let first = times(b, n, 2);
        let pair = [0, 1].map(|skip| {
            let skip = b.u32(skip);
            let at = plus(b, first, skip);
            b.load(Place::Array(from), vec![at], data.scalar.x(1))
        });
        let pair = b.value(Op::Vector(pair.to_vec()), data.scalar.x(2));
        let word = b.value(Op::Bitcast(pair), Type::U32);
        b.store(Place::Array(words), vec![n], word);
    });
    words
}

/// Appends a machine statement without result or tensor.
pub(super) fn machine(
    b: &mut Builder<'_>,
    op: MachineOp,
    arrays: &[Array],
    operands: &[Value],
    numbers: &[u32],
) {
    b.push(Stmt::Machine(MachineStmt::new(
        op, arrays, operands, numbers,
    )));
}
