//! Products by fragments that subgroups hold ([`units`](super::units)).
//!
//! The sums of a tile live in fragments, whose elements nobody can name. What products, constant
//! fills and stores do not do goes over the tile's elements: they reach a lane's private array,
//! and return from it, through 16 by 16 elements of scratch memory of the subgroup. Where a tile
//! is up to date is known at every statement; between blocks it is in fragments.

use std::collections::{BTreeMap, BTreeSet};

use iron_ir::entity::{Array, Tile, Value};
use iron_ir::kernel::{Space, TensorLayout};
use iron_ir::machine::{FRAGMENT, MachineOp};
use iron_ir::op::Unroll;
use iron_ir::op::{BarrierMemory, BarrierScope, BinaryOp, BuiltinOp, CompareOp, Stmt, TileStmt};
use iron_ir::{Place, Scalar, Type};

use super::layout::{Tiles, all, extent, plus, times};
use super::moves::Block2;
use super::units::{SCRATCH_PITCH, Units};
use super::warpgroup::machine;
use crate::addressing::flat;
use crate::rewrite::Builder;

/// Most steps of 16 that are written out.
const WRITTEN_OUT: u32 = 4;

/// Where a tile's sums are up to date.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Fragments,
    Elements,
    Both,
}

/// A tile of sums.
struct Sums {
    fragments: Array,
    /// Rows and columns of the subgroup's grid of fragments.
    grid: (u32, u32),
    form: Form,
}

/// What the route keeps.
pub(super) struct Subgroups {
    pub units: Units,
    /// The subgroup's row and column in the grid of subgroups.
    place: (Value, Value),
    lane: Value,
    /// The first element of the subgroup's scratch memory.
    scratch_start: Value,
    scratch: Array,
    sums: BTreeMap<Tile, Sums>,
    /// Blocks around the statement at hand.
    pub depth: u32,
}

impl Subgroups {
    pub(super) fn new(b: &mut Builder<'_>, units: Units) -> Subgroups {
        let id = b.builtin(BuiltinOp::SubgroupId, 0);
        let lane = b.builtin(BuiltinOp::SubgroupLane, 0);
        let across = i128::from(units.grid.1);
        let row = b.with_int(BinaryOp::Div, id, across);
        let row = b.named(row, "subgroup_row");
        let column = b.with_int(BinaryOp::Rem, id, across);
        let column = b.named(column, "subgroup_column");
        let each = FRAGMENT * SCRATCH_PITCH;
        let scratch_start = times(b, id, each);
        let subgroups = units.grid.0 * units.grid.1;
        let scratch = b.array(
            "fragment_elements",
            Scalar::F32,
            subgroups * each,
            Space::Shared,
        );
        let sums = units.sums.iter().map(|tile| {
            let grid = units.fragments(b.kernel, *tile);
            let name = format!("{}_fragments", b.kernel.tiles[*tile].name);
            let len = units.elements(b.kernel, *tile);
            let fragments = b.array(&name, Scalar::F32, len, Space::Private);
            let sums = Sums {
                fragments,
                grid,
                form: Form::Fragments,
            };
            (*tile, sums)
        });
        let sums = sums.collect();
        Subgroups {
            units,
            place: (row, column),
            lane,
            scratch_start,
            scratch,
            sums,
            depth: 0,
        }
    }

    /// The thread's row and column among those that share tiles out.
    pub(super) fn thread(&self, b: &mut Builder<'_>) -> (Value, Value) {
        let across = FRAGMENT / self.units.side_by_side();
        let rows = times(b, self.place.0, FRAGMENT);
        let own = b.with_int(BinaryOp::Div, self.lane, i128::from(across));
        let row = plus(b, rows, own);
        let columns = times(b, self.place.1, across);
        let own = b.with_int(BinaryOp::Rem, self.lane, i128::from(across));
        let column = plus(b, columns, own);
        (row, column)
    }

    /// Rows and columns of the grid of threads.
    pub(super) fn threads(&self) -> (u32, u32) {
        let across = FRAGMENT / self.units.side_by_side();
        (self.units.grid.0 * FRAGMENT, self.units.grid.1 * across)
    }

    /// Row and first column, in a fragment, of the lane's elements.
    fn own(&self, b: &mut Builder<'_>) -> (Value, Value) {
        let count = self.units.side_by_side();
        let across = i128::from(FRAGMENT / count);
        let row = b.with_int(BinaryOp::Div, self.lane, across);
        let column = b.with_int(BinaryOp::Rem, self.lane, across);
        (row, times(b, column, count))
    }

    /// The element of scratch memory where the lane's begin.
    fn own_scratch(&self, b: &mut Builder<'_>) -> Value {
        let (row, column) = self.own(b);
        let row = times(b, row, SCRATCH_PITCH);
        let within = plus(b, row, column);
        plus(b, self.scratch_start, within)
    }

    fn to_scratch(&self, b: &mut Builder<'_>, fragments: Array, which: u32) {
        let numbers = [which, SCRATCH_PITCH];
        let arrays = [fragments, self.scratch];
        machine(
            b,
            MachineOp::FragmentStore,
            &arrays,
            &[self.scratch_start],
            &numbers,
        );
        subgroup_barrier(b);
    }
}

fn subgroup_barrier(b: &mut Builder<'_>) {
    b.push(Stmt::Barrier(BarrierScope::Subgroup, BarrierMemory::Shared));
}

/// Before a statement: brings what it reads to where it reads it, and notes where what it writes
/// is afterwards. Whether the statement is done.
pub(super) fn statement(b: &mut Builder<'_>, tiles: &mut Tiles<'_>, stmt: &TileStmt) -> bool {
    let is_sum = |tiles: &Tiles<'_>, tile: &Tile| tiles.sums(*tile).is_some();
    match stmt {
        TileStmt::Fill { tile, value } if is_sum(tiles, tile) => {
            let Some(constant) = b.kernel.constant(*value) else {
                set_form(tiles, *tile, Form::Elements);
                return false;
            };
            if let Some(sums) = tiles.sums(*tile) {
                let numbers = [sums.grid.0 * sums.grid.1, constant.bits as u32];
                machine(b, MachineOp::FragmentFill, &[sums.fragments], &[], &numbers);
            }
            set_form(tiles, *tile, Form::Fragments);
            true
        }
        TileStmt::Fill { .. } => false,
        TileStmt::Load { tile, .. } => {
            set_form(tiles, *tile, Form::Elements);
            false
        }
        TileStmt::Store {
            tile,
            target,
            leading,
            origin,
        } if is_sum(tiles, tile) => {
            to_fragments(b, tiles, *tile);
            let target = Block2 {
                param: *target,
                leading,
                origin: *origin,
            };
            store(b, tiles, *tile, &target);
            true
        }
        TileStmt::Store { .. } => false,
        TileStmt::Copy { to, from } => {
            to_elements(b, tiles, *from);
            set_form(tiles, *to, Form::Elements);
            false
        }
        TileStmt::Matmul {
            accumulator,
            a,
            b: right,
            transpose_a,
            transpose_b,
        } => {
            to_fragments(b, tiles, *accumulator);
            let operands = [(*a, *transpose_a), (*right, *transpose_b)];
            product(b, tiles, *accumulator, operands, None);
            set_form(tiles, *accumulator, Form::Fragments);
            true
        }
        TileStmt::Map { to, from, .. } => {
            for tile in from {
                to_elements(b, tiles, *tile);
            }
            set_form(tiles, *to, Form::Elements);
            false
        }
        TileStmt::ReduceRows { to, from, .. } | TileStmt::ReduceColumns { to, from, .. } => {
            to_elements(b, tiles, *from);
            set_form(tiles, *to, Form::Elements);
            false
        }
    }
}

/// Brings all sums into fragments, but for those that nobody reads.
pub(super) fn settle(b: &mut Builder<'_>, tiles: &mut Tiles<'_>, dead: &BTreeSet<Tile>) {
    let Some(subgroups) = &tiles.subgroups else {
        return;
    };
    let all: Vec<Tile> = subgroups.sums.keys().copied().collect();
    for tile in all {
        if !dead.contains(&tile) {
            to_fragments(b, tiles, tile);
        }
        set_form(tiles, tile, Form::Fragments);
    }
}

fn set_form(tiles: &mut Tiles<'_>, tile: Tile, form: Form) {
    let subgroups = tiles.subgroups.as_mut();
    if let Some(sums) = subgroups.and_then(|s| s.sums.get_mut(&tile)) {
        sums.form = form;
    }
}

impl Tiles<'_> {
    fn sums(&self, tile: Tile) -> Option<&Sums> {
        self.subgroups.as_ref()?.sums.get(&tile)
    }
}

/// For each of the lane's fragments of a tile: which, and its first element in the lane's array.
fn places(sums: &Sums, side_by_side: u32) -> Vec<(u32, u32)> {
    let count = sums.grid.0 * sums.grid.1;
    (0..count).map(|n| (n, n * side_by_side)).collect()
}

fn to_elements(b: &mut Builder<'_>, tiles: &mut Tiles<'_>, tile: Tile) {
    let (Some(subgroups), Some(sums)) = (&tiles.subgroups, tiles.sums(tile)) else {
        return;
    };
    if sums.form != Form::Fragments {
        return;
    }
    let count = subgroups.units.side_by_side();
    let ty = Scalar::F32.x(count as u8);
    let elements = Place::Array(tiles.array(tile));
    for (which, first) in places(sums, count) {
        subgroups.to_scratch(b, sums.fragments, which);
        let at = subgroups.own_scratch(b);
        let own = b.load(Place::Array(subgroups.scratch), vec![at], ty);
        let first = b.u32(first);
        b.store(elements, vec![first], own);
        subgroup_barrier(b);
    }
    set_form(tiles, tile, Form::Both);
}

fn to_fragments(b: &mut Builder<'_>, tiles: &mut Tiles<'_>, tile: Tile) {
    let (Some(subgroups), Some(sums)) = (&tiles.subgroups, tiles.sums(tile)) else {
        return;
    };
    if sums.form != Form::Elements {
        return;
    }
    let count = subgroups.units.side_by_side();
    let ty = Scalar::F32.x(count as u8);
    let elements = Place::Array(tiles.array(tile));
    for (which, first) in places(sums, count) {
        let first = b.u32(first);
        let own = b.load(elements, vec![first], ty);
        let at = subgroups.own_scratch(b);
        b.store(Place::Array(subgroups.scratch), vec![at], own);
        subgroup_barrier(b);
        machine(
            b,
            MachineOp::FragmentLoad,
            &[sums.fragments, subgroups.scratch],
            &[subgroups.scratch_start],
            &[which, SCRATCH_PITCH],
        );
        subgroup_barrier(b);
    }
    set_form(tiles, tile, Form::Both);
}

/// `accumulator += a · b` of what memory holds of the tiles, in a stage where it has several; each
/// flag says that the tile is read transposed.
pub(super) fn product(
    b: &mut Builder<'_>,
    tiles: &Tiles<'_>,
    accumulator: Tile,
    operands: [(Tile, bool); 2],
    stage: Option<Value>,
) {
    let (Some(subgroups), Some(sums)) = (&tiles.subgroups, tiles.sums(accumulator)) else {
        return;
    };
    let (rows, columns) = sums.grid;
    let is_bf16 = b.kernel.tiles[operands[0].0].scalar == Scalar::BF16;
    let mut numbers = vec![rows, columns, u32::from(is_bf16)];
    let mut starts = Vec::new();
    let mut steps = 0;
    let own = [subgroups.place.0, subgroups.place.1];
    let across = [subgroups.units.grid.0, subgroups.units.grid.1];
    for (side, (tile, transposed)) in operands.into_iter().enumerate() {
        // Lines of memory run along `k`: rows of a, columns of b.
        let by_k = transposed != (side == 0);
        let pitch = tiles.pitch(tile);
        let held = tiles.held(b.kernel, tile);
        steps = if by_k { held.1 } else { held.0 } / FRAGMENT;
        let distance = if by_k { FRAGMENT * pitch } else { FRAGMENT };
        numbers.extend([pitch, across[side] * distance, u32::from(by_k)]);
        let mut start = times(b, own[side], distance);
        if let Some(stage) = stage {
            let first = times(b, stage, held.0 * pitch);
            start = plus(b, first, start);
        }
        starts.push((start, FRAGMENT * if by_k { 1 } else { pitch }));
    }
    let arrays = [sums.fragments]
        .into_iter()
        .chain(operands.iter().map(|(tile, _)| tiles.array(*tile)));
    let arrays: Vec<Array> = arrays.collect();
    let step = |b: &mut Builder<'_>, step: Value| {
        let at: Vec<Value> = (starts.iter())
            .map(|(start, each)| {
                let skip = times(b, step, *each);
                plus(b, *start, skip)
            })
            .collect();
        machine(b, MachineOp::FragmentProduct, &arrays, &at, &numbers);
    };
    if steps <= WRITTEN_OUT {
        for n in 0..steps {
            let n = b.u32(n);
            step(b, n);
        }
    } else {
        let (zero, one, end) = (b.u32(0), b.u32(1), b.u32(steps));
        b.for_range("step", zero, end, one, Unroll::Never, step);
    }
}

/// Stores a tile of sums, fragment by fragment through scratch memory: neighbouring elements of a
/// lane at once where the tensor allows it.
fn store(b: &mut Builder<'_>, tiles: &Tiles<'_>, tile: Tile, target: &Block2<'_>) {
    let (Some(subgroups), Some(sums)) = (&tiles.subgroups, tiles.sums(tile)) else {
        return;
    };
    let Some(tensor) = b.kernel.tensor(target.param) else {
        return;
    };
    let (to, is_row_major) = (tensor.scalar, tensor.layout == TensorLayout::RowMajor);
    let count = subgroups.units.side_by_side();
    let rank = target.leading.len();
    let limits = [rank, rank + 1].map(|axis| extent(b, target.param, axis));
    let aligned = tiles.aligned.get(&target.param).copied();
    let whole = aligned.filter(|_| is_row_major).and_then(|aligned| {
        let whole = [target.origin[1], limits[1]].map(|at| {
            let within = b.with_int(BinaryOp::And, at, i128::from(count) - 1);
            b.compare_int(CompareOp::Eq, within, 0)
        });
        all(b, vec![aligned, whole[0], whole[1]])
    });
    let own = subgroups.own(b);
    let scratch = Place::Array(subgroups.scratch);
    let (grid, place) = (subgroups.units.grid, subgroups.place);
    for which in 0..sums.grid.0 * sums.grid.1 {
        subgroups.to_scratch(b, sums.fragments, which);
        let at = subgroups.own_scratch(b);
        let [row, column] = [
            (which / sums.grid.1, grid.0, place.0, own.0, 0),
            (which % sums.grid.1, grid.1, place.1, own.1, 1),
        ]
        .map(|(n, subgroups, place, own, axis)| {
            let fragment = b.u32(n * subgroups * FRAGMENT);
            let skip = times(b, place, FRAGMENT);
            let first = plus(b, fragment, skip);
            let within = plus(b, first, own);
            plus(b, target.origin[axis], within)
        });
        let is_row = b.compare(CompareOp::Lt, row, limits[0]);
        let at_once = |b: &mut Builder<'_>| {
            let is_column = b.compare(CompareOp::Lt, column, limits[1]);
            let inside = b.and(is_row, is_column);
            b.if_then(inside, |b| {
                let elements = b.load(scratch, vec![at], Scalar::F32.x(count as u8));
                let elements = b.convert(elements, to);
                let mut indices = target.leading.to_vec();
                indices.extend([row, column]);
                let offset = flat(b, target.param, &indices, 0);
                b.store(Place::Flat(target.param), vec![offset], elements);
            });
        };
        let one_by_one = |b: &mut Builder<'_>| {
            let (zero, one, end) = (b.u32(0), b.u32(1), b.u32(count));
            b.for_range("element", zero, end, one, Unroll::Never, |b, n| {
                let column = plus(b, column, n);
                let is_column = b.compare(CompareOp::Lt, column, limits[1]);
                let inside = b.and(is_row, is_column);
                b.if_then(inside, |b| {
                    let from = plus(b, at, n);
                    let element = b.load(scratch, vec![from], Type::F32);
                    let element = b.convert(element, to);
                    let mut indices = target.leading.to_vec();
                    indices.extend([row, column]);
                    b.store(Place::Tensor(target.param), indices, element);
                });
            });
        };
        match whole {
            None => one_by_one(b),
            Some(condition) => {
                let then_block = b.nested(at_once);
                let else_block = b.nested(one_by_one);
                b.push(Stmt::If {
                    condition,
                    then_block,
                    else_block,
                });
            }
        }
        subgroup_barrier(b);
    }
}
