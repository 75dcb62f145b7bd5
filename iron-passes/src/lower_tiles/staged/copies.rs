//! Loops that multiply one slice of their tiles while copies bring the next ones to shared memory
//! by themselves (PTX: `cp.async`), through no register.
//!
//! ```text
//! barrier; begin the copies of the first slices, each to a stage of its own
//! each slice:
//!     wait for this thread's copies of it; barrier
//!     begin those of the slice that is `stages - 1` ahead, to the stage that was read last; multiply
//! ```
//!
//! Behind the barrier a slice is there for all threads, and all are done with the one before.
//! Chunks outside of the tensor are zeros; nothing reads what is copied past the loop's end.

use iron_ir::Scalar;
use iron_ir::entity::Value;
use iron_ir::machine::{MachineOp, MachineStmt};
use iron_ir::op::{BinaryOp, CompareOp, Stmt, Unroll};
use iron_ir::types::Type;

use super::super::layout::{Tiles, plus, times};
use super::super::units::Turn;
use super::super::warpgroup::machine;
use super::{Part, Pipeline, WRITTEN_OUT};
use crate::addressing::flat;
use crate::rewrite::Builder;

/// Bytes of a chunk.
const CHUNK_BYTES: u32 = 16;

/// The loop with that many stages, two at least.
pub(super) fn pipelined(
    b: &mut Builder<'_>,
    tiles: &Tiles<'_>,
    pipeline: &Pipeline<'_>,
    stages: u32,
) {
    let ahead = stages - 1;
    let Pipeline {
        all, turn, slice, ..
    } = pipeline;
    let count = turn.depth / slice;
    // Others may still read what an earlier loop left.
    b.workgroup_barrier();
    let stage = b.local("stage", Type::U32);
    let last = b.u32(ahead);
    b.push(Stmt::Set(stage, last));
    for n in 0..ahead {
        let at = pipeline.slice_at(b, all.start, n);
        let to = b.u32(n);
        begin(b, tiles, pipeline, at, to);
    }
    let unroll = match all.unroll {
        Unroll::Full => Unroll::Full,
        Unroll::Auto | Unroll::Never => Unroll::Never,
    };
    let name = b.kernel.values[all.index].name.clone();
    let name = name.as_deref().unwrap_or("k");
    let step = |b: &mut Builder<'_>, next: (Value, Value)| {
        wait(b, tiles, turn, ahead - 1);
        b.workgroup_barrier();
        let free = b.get(stage);
        let one = b.u32(1);
        let behind = b.add(free, one);
        let is_past = b.compare_int(CompareOp::Eq, behind, i128::from(stages));
        let zero = b.u32(0);
        let at = b.select(is_past, zero, behind);
        b.push(Stmt::Set(stage, at));
        begin(b, tiles, pipeline, next, free);
        pipeline.multiply(b, tiles, Some(at));
    };
    b.for_range(name, all.start, all.end, all.step, unroll, |b, k| {
        if count <= WRITTEN_OUT {
            for n in 0..count {
                let next = pipeline.slice_at(b, k, n + ahead);
                step(b, next);
            }
            return;
        }
        let next_turn = b.add(k, all.step);
        let (zero, depth, each) = (b.u32(0), b.u32(turn.depth), b.u32(*slice));
        b.for_range("slice", zero, depth, each, Unroll::Never, |b, skip| {
            let further = b.with_int(BinaryOp::Add, skip, i128::from(ahead * slice));
            let is_next = b.compare_int(CompareOp::Ge, further, i128::from(turn.depth));
            let within = b.with_int(BinaryOp::Sub, further, i128::from(turn.depth));
            let k = b.select(is_next, next_turn, k);
            let skip = b.select(is_next, within, further);
            step(b, (k, skip));
        });
    });
    wait(b, tiles, turn, 0);
}

/// Waits for this thread's copies of all slices but the newest.
fn wait(b: &mut Builder<'_>, tiles: &Tiles<'_>, turn: &Turn, newest: u32) {
    let arrays = turn.loads.first().map(|(tile, _)| tiles.array(*tile));
    machine(b, MachineOp::BatchWait, arrays.as_slice(), &[], &[newest]);
}

impl Pipeline<'_> {
    /// Turn and steps before it of the `n`-th slice behind the beginning of the turn of `k`.
    fn slice_at(&self, b: &mut Builder<'_>, k: Value, n: u32) -> (Value, Value) {
        let count = self.turn.depth / self.slice;
        let turns = (0..n / count).fold(k, |k, _| b.add(k, self.all.step));
        (turns, b.u32(n % count * self.slice))
    }
}

/// Begins the copies of a slice to a stage.
fn begin(
    b: &mut Builder<'_>,
    tiles: &Tiles<'_>,
    pipeline: &Pipeline<'_>,
    (k, skip): (Value, Value),
    stage: Value,
) {
    let loads = pipeline.loads_at(b, k);
    for load in &loads {
        let part = load.part(b, tiles, skip);
        for turn in 0..part.turns(tiles) {
            let turn = b.u32(turn);
            part.begin_chunk(b, tiles, turn, stage);
        }
    }
    let arrays = loads.first().map(|load| tiles.array(load.tile));
    machine(b, MachineOp::BatchEnd, arrays.as_slice(), &[], &[]);
}

impl Part<'_> {
    /// Begins the copy of a chunk to its place in a stage of the tile.
    fn begin_chunk(&self, b: &mut Builder<'_>, tiles: &Tiles<'_>, turn: Value, stage: Value) {
        let ([row, column], is_there) = self.chunk(b, tiles, turn);
        let (at, is_inside) = self.at(b, tiles, turn);
        let copy = |b: &mut Builder<'_>| {
            let zero = b.u32(0);
            let mut indices = self.from.leading.to_vec();
            indices.extend([0, 1].map(|axis| b.select(is_inside[axis], at[axis], zero)));
            let from = flat(b, self.from.param, &indices, 0);
            let from = b.convert(from, Scalar::U64);
            let is_inside = b.and(is_inside[0], is_inside[1]);
            let whole = b.u32(CHUNK_BYTES);
            let bytes = b.select(is_inside, whole, zero);
            let first = times(b, stage, self.rows * tiles.pitch(self.tile));
            let within = tiles.shared_index(b, self.tile, row, column);
            let to = plus(b, first, within);
            b.push(Stmt::Machine(MachineStmt {
                source: Some(self.from.param),
                ..MachineStmt::new(
                    MachineOp::CopyChunk,
                    &[tiles.array(self.tile)],
                    &[to, from, bytes],
                    &[],
                )
            }));
        };
        match is_there {
            Some(is_there) => b.if_then(is_there, copy),
            None => copy(b),
        }
    }
}
