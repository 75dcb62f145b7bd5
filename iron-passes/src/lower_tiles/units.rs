//! Whether a kernel's tiles fit fragments of subgroups, and who multiplies what.
//!
//! The subgroups of a workgroup form a grid. A register tile that products add to is cut into
//! fragments of 16 by 16, which the grid shares out in turn along each axis: subgroup `(r, c)` of
//! `R × C` has the fragments `(r + i R, c + j C)`. Its other register tiles, and the elements of a
//! fragment that went through memory, are spread to match ([`layout`](super::layout)): lane `l`
//! has, of each fragment, `256 / lanes` neighbouring elements of row `l / (lanes / 16)`.
//!
//! A loop that does nothing but load shared tiles and multiply them is a **turn** ([`turn`]): its
//! tiles are kept in slices of a few steps of `k`, and the next slice is on its way from the
//! tensors while one is multiplied ([`staged`](super::staged)).

use std::collections::{BTreeMap, BTreeSet};

use iron_ir::Scalar;
use iron_ir::entity::{Tile, Value};
use iron_ir::kernel::{Access, Block, Kernel, TensorLayout, operands};
use iron_ir::machine::FRAGMENT;
use iron_ir::op::{BinaryOp, Op, Stmt, TileSpace, TileStmt};

use crate::Legal;
use crate::legal::Fragments;
use crate::rewrite::map_tiles;

/// Elements of 16 bytes, the unit of copies.
pub(super) const CHUNK: u32 = 8;

/// Elements between rows of a fragment in scratch memory.
pub(super) const SCRATCH_PITCH: u32 = FRAGMENT + 4;

/// Steps of `k` of a slice, the best first.
const SLICES: [u32; 3] = [64, 32, 16];

/// Steps of `k` and stages of slices that copies bring, the best first.
const STAGED: [(u32, u32); 3] = [(32, 4), (32, 3), (16, 3)];

/// Registers of a thread that sums, and slices on their way, may take.
const MOST_REGISTERS: u32 = 160;

/// Bytes left for the scratch memory of reductions, where there are any.
const REDUCTION_BYTES: u64 = 4096;

/// How a kernel's tiles become products of fragments.
pub(super) struct Units {
    /// Lanes of a subgroup.
    pub lanes: u32,
    /// Rows and columns of the grid of subgroups.
    pub grid: (u32, u32),
    /// Register tiles that products add to.
    pub sums: BTreeSet<Tile>,
    /// Steps of `k` that memory holds of a tile at a time, for the tiles of turns, and whether
    /// they are its rows.
    pub slices: BTreeMap<Tile, (u32, bool)>,
    /// Slices that memory holds of the tiles of turns: more than one where copies bring them.
    pub stages: u32,
    /// How often statements name each tile.
    pub named: BTreeMap<Tile, u32>,
}

impl Units {
    /// How a kernel whose tiles fit is divided, on a target that has such products.
    pub fn of(kernel: &Kernel, legal: &Legal) -> Option<Units> {
        let fragments = legal.fragments?;
        let lanes = legal.subgroup_size.or(legal.fragment_lanes);
        let lanes = lanes.filter(|n| [32, 64].contains(n))?;
        let [threads, 1, 1] = kernel.contract.workgroup else {
            return None;
        };
        if !threads.is_multiple_of(lanes) || kernel.params.len() > 32 {
            return None;
        }
        let mut units = Units {
            lanes,
            grid: (0, 0),
            sums: BTreeSet::new(),
            slices: BTreeMap::new(),
            stages: 1,
            named: BTreeMap::new(),
        };
        let (mut fits, mut reduces) = (true, false);
        kernel.body.walk(&mut |stmt, _| {
            let Stmt::Tile(tile) = stmt else { return };
            for named in names(tile) {
                *units.named.entry(named).or_default() += 1;
            }
            match tile {
                TileStmt::Matmul { accumulator, .. } => {
                    fits &= product_fits(kernel, tile, fragments);
                    units.sums.insert(*accumulator);
                }
                TileStmt::ReduceRows { .. } | TileStmt::ReduceColumns { .. } => reduces = true,
                _ => {}
            }
        });
        if !fits || units.sums.is_empty() {
            return None;
        }
        units.grid = units.best_grid(kernel, threads / lanes, reduces)?;
        let mut turns = Vec::new();
        find_turns(kernel, &units, &kernel.body, &mut turns);
        let sums: u32 = units.sums.iter().map(|t| units.elements(kernel, *t)).sum();
        let reserved = if reduces { REDUCTION_BYTES } else { 0 };
        // Two workgroups share a multiprocessor's memory.
        let staged = STAGED.map(|(slice, stages)| (slice, stages, legal.shared_bytes_limit / 2));
        let staged = (staged.into_iter()).filter(|_| legal.has_chunk_copies && !turns.is_empty());
        let plain = SLICES.map(|slice| (slice, 1, legal.shared_bytes_limit));
        let slice = staged.chain(plain).find(|&(slice, stages, limit)| {
            units.slices.clear();
            units.stages = stages;
            let mut most = 0;
            for turn in &turns {
                let steps = slice.min(1 << turn.depth.trailing_zeros());
                let elements: u32 = (turn.loads.iter())
                    .map(|(t, _)| {
                        kernel.tiles[*t].rows * kernel.tiles[*t].columns / turn.depth * steps
                    })
                    .sum();
                if stages == 1 {
                    most = most.max(elements.div_ceil(2 * threads));
                }
                let loads = turn.loads.iter();
                (units.slices).extend(loads.map(|(t, by_rows)| (*t, (steps, *by_rows))));
            }
            let bytes = units.shared_bytes(kernel, threads) + reserved;
            bytes <= limit && sums + most <= MOST_REGISTERS
        });
        slice.map(|_| units)
    }

    /// The division of subgroups that reads least; along rows alone where rows are reduced, which
    /// then stay within a subgroup.
    fn best_grid(&self, kernel: &Kernel, subgroups: u32, reduces: bool) -> Option<(u32, u32)> {
        let read = |(rows, columns): (u32, u32)| -> Option<u32> {
            let each = self.sums.iter().map(|t| {
                let data = &kernel.tiles[*t];
                let whole = data.rows.is_multiple_of(FRAGMENT * rows)
                    && data.columns.is_multiple_of(FRAGMENT * columns);
                whole.then_some(data.rows / rows + data.columns / columns)
            });
            each.sum()
        };
        let all = (1..=subgroups)
            .filter(|n| subgroups.is_multiple_of(*n))
            .map(|n| (n, subgroups / n))
            .filter_map(|grid| Some((reduces && grid.1 > 1, read(grid)?, grid)));
        all.min().map(|(_, _, grid)| grid)
    }

    /// Rows and columns of a subgroup's grid of fragments of a tile.
    pub fn fragments(&self, kernel: &Kernel, tile: Tile) -> (u32, u32) {
        let data = &kernel.tiles[tile];
        (
            data.rows / (FRAGMENT * self.grid.0),
            data.columns / (FRAGMENT * self.grid.1),
        )
    }

    /// Elements that a lane has of a tile of sums.
    pub fn elements(&self, kernel: &Kernel, tile: Tile) -> u32 {
        let (rows, columns) = self.fragments(kernel, tile);
        rows * columns * FRAGMENT * FRAGMENT / self.lanes
    }

    /// Neighbouring elements of a fragment that a lane has.
    pub fn side_by_side(&self) -> u32 {
        FRAGMENT * FRAGMENT / self.lanes
    }

    /// Rows and columns of a shared tile that memory holds at a time.
    pub fn held(&self, kernel: &Kernel, tile: Tile) -> (u32, u32) {
        let data = &kernel.tiles[tile];
        match self.slices.get(&tile) {
            Some((steps, true)) => (*steps, data.columns),
            Some((steps, false)) => (data.rows, *steps),
            None => (data.rows, data.columns),
        }
    }

    /// Slices that memory holds of a tile.
    pub fn stages_of(&self, tile: Tile) -> u32 {
        if self.slices.contains_key(&tile) {
            self.stages
        } else {
            1
        }
    }

    fn shared_bytes(&self, kernel: &Kernel, threads: u32) -> u64 {
        let shared = (kernel.tiles.iter()).filter(|(_, t)| t.space == TileSpace::Shared);
        let tiles = shared.map(|(tile, data)| {
            let (rows, columns) = self.held(kernel, tile);
            let bytes = rows * pitch(columns, data.scalar) * data.scalar.bytes();
            let bytes = bytes * self.stages_of(tile);
            u64::from(bytes.next_multiple_of(16))
        });
        let scratch = threads / self.lanes * FRAGMENT * SCRATCH_PITCH * 4;
        kernel.shared_bytes() + tiles.sum::<u64>() + u64::from(scratch)
    }
}

/// Elements between rows of a shared tile: 16 bytes more than it has, so that the rows of a
/// fragment begin in different banks.
pub(super) fn pitch(columns: u32, scalar: Scalar) -> u32 {
    match columns {
        0..=8 => columns,
        _ => columns + 16 / scalar.bytes().min(16),
    }
}

/// The tiles that a statement names.
pub(super) fn names(stmt: &TileStmt) -> Vec<Tile> {
    let mut found = Vec::new();
    map_tiles(&mut stmt.clone(), &mut |tile| {
        found.push(tile);
        tile
    });
    found
}

fn product_fits(kernel: &Kernel, stmt: &TileStmt, fragments: Fragments) -> bool {
    let TileStmt::Matmul {
        accumulator,
        a,
        b,
        transpose_a,
        ..
    } = stmt
    else {
        return false;
    };
    let [sum, a, b] = [accumulator, a, b].map(|t| &kernel.tiles[*t]);
    let depth = if *transpose_a { a.rows } else { a.columns };
    let is_shared = |t: &iron_ir::kernel::TileData| t.space == TileSpace::Shared;
    sum.scalar == Scalar::F32
        && a.scalar == b.scalar
        && fragments.has(a.scalar)
        && is_shared(a)
        && is_shared(b)
        && depth.is_multiple_of(FRAGMENT)
        && sum.rows.is_multiple_of(FRAGMENT)
        && sum.columns.is_multiple_of(FRAGMENT)
}

fn find_turns(kernel: &Kernel, units: &Units, block: &Block, found: &mut Vec<Turn>) {
    for (stmt, _) in &block.0 {
        if let Stmt::For { index, body, .. } = stmt
            && let Some(turn) = turn(kernel, &units.named, *index, body)
        {
            found.push(turn);
            continue;
        }
        for nested in stmt.blocks() {
            find_turns(kernel, units, nested, found);
        }
    }
}

/// A loop's body that loads tiles and multiplies them.
pub(super) struct Turn {
    /// Loaded tiles, and whether their rows are steps of `k`.
    pub loads: Vec<(Tile, bool)>,
    /// Steps of `k` of each tile.
    pub depth: u32,
    /// Each load's place is the loop's variable plus what the loop does not change, or that alone:
    /// those of the first and the last turn enclose the others.
    pub is_straight: bool,
}

/// The turn that a loop's body is: values, then loads of tiles that nothing else names, then
/// products of them.
pub(super) fn turn(
    kernel: &Kernel,
    named: &BTreeMap<Tile, u32>,
    index: Value,
    body: &Block,
) -> Option<Turn> {
    let mut loads: Vec<(Tile, u32)> = Vec::new();
    let mut by_rows: BTreeMap<Tile, (bool, u32)> = BTreeMap::new();
    let mut products = 0;
    let mut is_straight = true;
    for (stmt, _) in &body.0 {
        match stmt {
            Stmt::Let(value) => {
                let op = &kernel.values[*value].op;
                if matches!(op, Op::Load { .. } | Op::Get(_) | Op::Result) {
                    return None;
                }
            }
            Stmt::Tile(TileStmt::Load {
                tile,
                source,
                origin,
                transposed: false,
                ..
            }) if products == 0 => {
                let (tensor, data) = (kernel.tensor(*source)?, &kernel.tiles[*tile]);
                let copies = tensor.layout == TensorLayout::RowMajor
                    && tensor.scalar == data.scalar
                    && tensor.access == Access::Read
                    && tensor.may_alias.is_empty()
                    && data.space == TileSpace::Shared
                    && data.columns.is_multiple_of(CHUNK)
                    && moves_along(kernel, origin[1], index).is_some();
                if !copies || loads.iter().any(|(t, _)| t == tile) {
                    return None;
                }
                is_straight &= moves_along(kernel, origin[0], index).is_some();
                loads.push((*tile, 1));
            }
            Stmt::Tile(TileStmt::Matmul {
                a,
                b,
                transpose_a,
                transpose_b,
                ..
            }) => {
                products += 1;
                for (operand, rows) in [(a, *transpose_a), (b, !*transpose_b)] {
                    let data = &kernel.tiles[*operand];
                    let depth = if rows { data.rows } else { data.columns };
                    let known = *by_rows.entry(*operand).or_insert((rows, depth));
                    let (_, count) = loads.iter_mut().find(|(t, _)| t == operand)?;
                    if known != (rows, depth) {
                        return None;
                    }
                    *count += 1;
                }
            }
            // What is left of a barrier that the target does without.
            Stmt::If {
                then_block,
                else_block,
                ..
            } if then_block.is_empty() && else_block.is_empty() => {}
            _ => return None,
        }
    }
    let depth = by_rows.values().next()?.1;
    let whole = loads
        .iter()
        .all(|(tile, count)| named.get(tile) == Some(count));
    if !whole || by_rows.len() != loads.len() || by_rows.values().any(|(_, d)| *d != depth) {
        return None;
    }
    let loads = loads.iter().map(|(tile, _)| (*tile, by_rows[tile].0));
    Some(Turn {
        loads: loads.collect(),
        depth,
        is_straight,
    })
}

/// Whether a value is the loop's variable plus what the loop does not change (true), or is not
/// changed (false); `None` where it is something else.
fn moves_along(kernel: &Kernel, value: Value, index: Value) -> Option<bool> {
    if value == index {
        return Some(true);
    }
    let op = &kernel.values[value].op;
    match op {
        Op::Binary(BinaryOp::Add, x, y) => {
            let sides = [x, y].map(|v| moves_along(kernel, *v, index));
            match sides {
                [Some(true), Some(true)] | [None, _] | [_, None] => None,
                [Some(x), Some(y)] => Some(x || y),
            }
        }
        op => {
            let still = |v: Value| moves_along(kernel, v, index) == Some(false);
            operands(op).into_iter().all(still).then_some(false)
        }
    }
}

/// The sums that a block alone names, and sets before it reads them: they are worth nothing at
/// its end.
pub(super) fn own_sums(units: &Units, block: &Block) -> BTreeSet<Tile> {
    let mut count: BTreeMap<Tile, u32> = BTreeMap::new();
    block.walk(&mut |stmt, _| {
        if let Stmt::Tile(tile) = stmt {
            for named in names(tile) {
                *count.entry(named).or_default() += 1;
            }
        }
    });
    let is_set_first = |tile: Tile| {
        for (stmt, _) in &block.0 {
            let mut names_it = false;
            match stmt {
                Stmt::Tile(TileStmt::Fill { tile: filled, .. }) if *filled == tile => return true,
                Stmt::Tile(stmt) => names_it = names(stmt).contains(&tile),
                other => {
                    for nested in other.blocks() {
                        nested.walk(&mut |stmt, _| {
                            if let Stmt::Tile(stmt) = stmt {
                                names_it |= names(stmt).contains(&tile);
                            }
                        });
                    }
                }
            }
            if names_it {
                return false;
            }
        }
        false
    };
    let all = units.sums.iter().copied();
    all.filter(|tile| count.get(tile) == units.named.get(tile) && is_set_first(*tile))
        .collect()
}
