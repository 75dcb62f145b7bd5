//! Reductions of rows and columns: the adjacent-pair tree over the elements in order.
//!
//! The tree's lowest levels pair elements of one thread (a block), the next pair threads at
//! distance 1, 2, 4, … of the grid, the highest the blocks of a thread. Threads exchange by
//! shuffles where a subgroup holds them, else through scratch memory.

use iron_ir::Kernel;
use iron_ir::entity::{Tile, Value};
use iron_ir::op::{CompareOp, ReduceOp};
use iron_ir::{Place, Type};

use super::layout::{Axis, Tiles, counted, plus, times};
use crate::rewrite::Builder;
use crate::trees::{absent, butterfly, shuffle_width, tree};

/// How a reduction is split into levels.
struct Plan {
    /// The axis that is reduced and the one that stays.
    along: Axis,
    across: Axis,
    /// Threads that the middle levels join.
    width: u32,
    /// Blocks of a thread.
    blocks: u32,
    /// Distance in threads between neighbours of the grid along the axis.
    stride: u32,
}

impl Plan {
    fn new(tiles: &Tiles<'_>, kernel: &Kernel, from: Tile, by_rows: bool) -> Plan {
        let (rows, columns) = tiles.axes(kernel, from);
        let (along, across) = if by_rows {
            (columns, rows)
        } else {
            (rows, columns)
        };
        let padded = along.len.next_power_of_two();
        let width = if along.len == 1 {
            1
        } else {
            along.threads.min(padded / along.block)
        };
        let stride = if by_rows { 1 } else { tiles.grid.1 };
        Plan {
            along,
            across,
            width,
            blocks: along.count / along.block,
            stride,
        }
    }

    fn by_shuffles(&self, tiles: &Tiles<'_>) -> bool {
        let exchanged = shuffle_width(tiles.legal, tiles.threads).unwrap_or(1);
        // Threads past the width hold nothing, but need the result, which no exchange within
        // their own group brings.
        let all_hold = self.along.len == 1 || self.width == self.along.threads;
        let fits = self.width * self.stride <= exchanged && tiles.in_grid.is_none();
        all_hold && (self.width == 1 || fits)
    }
}

/// Whether the reduction goes through scratch memory.
pub(super) fn needs_scratch(tiles: &Tiles<'_>, kernel: &Kernel, from: Tile, by_rows: bool) -> bool {
    !Plan::new(tiles, kernel, from, by_rows).by_shuffles(tiles)
}

/// Reduces rows (or columns) of `from` into `to`.
pub(super) fn reduce(
    b: &mut Builder<'_>,
    tiles: &mut Tiles<'_>,
    to: Tile,
    from: Tile,
    op: ReduceOp,
    by_rows: bool,
) {
    let plan = Plan::new(tiles, b.kernel, from, by_rows);
    let ty = b.kernel.tiles[from].scalar.x(1);
    let target = Place::Array(tiles.array(to));
    let Plan {
        across,
        width,
        blocks,
        ..
    } = plan;
    if plan.by_shuffles(tiles) {
        return counted(b, "i", across.count, |b, i| {
            let partials = (0..blocks)
                .map(|block| {
                    let partial = in_thread(b, tiles, &plan, from, op, by_rows, i, block);
                    butterfly(b, op, partial, width, plan.stride)
                })
                .collect();
            let result = tree(b, op, partials);
            b.store(target, vec![i], result);
        });
    }
    let lines = across.count * if across.len == 1 { 1 } else { across.threads };
    let scratch = Place::Array(tiles.scratch(b, ty.scalar, blocks * lines * width));
    let (mine, line_thread) = if by_rows {
        (tiles.thread.1, tiles.thread.0)
    } else {
        tiles.thread
    };
    // Threads past the width hold nothing; those of another grid column (row) hold the same
    // values where the line is not spread.
    let mut writers = Vec::new();
    writers.extend(tiles.in_grid);
    if width < plan.along.threads {
        writers.push(b.compare_int(CompareOp::Lt, mine, i128::from(width)));
    }
    let spread = if by_rows { tiles.grid.0 } else { tiles.grid.1 };
    if across.len == 1 && spread > 1 {
        writers.push(b.compare_int(CompareOp::Eq, line_thread, 0));
    }
    let writer = super::layout::all(b, writers);
    let line_start = |b: &mut Builder<'_>, i: Value, block: u32| {
        let line = across.position(b, line_thread, i);
        let start = times(b, line, width);
        let skip = b.u32(block * lines * width);
        plus(b, start, skip)
    };
    counted(b, "i", across.count, |b, i| {
        for block in 0..blocks {
            let partial = in_thread(b, tiles, &plan, from, op, by_rows, i, block);
            let put = |b: &mut Builder<'_>| {
                let start = line_start(b, i, block);
                let index = plus(b, start, mine);
                b.store(scratch, vec![index], partial);
            };
            match writer {
                Some(writer) => b.if_then(writer, put),
                None => put(b),
            }
        }
    });
    b.workgroup_barrier();
    counted(b, "i", across.count, |b, i| {
        let partials = (0..blocks)
            .map(|block| {
                let start = line_start(b, i, block);
                let elements = (0..width)
                    .map(|thread| {
                        let offset = b.u32(thread);
                        let index = plus(b, start, offset);
                        b.load(scratch, vec![index], ty)
                    })
                    .collect();
                tree(b, op, elements)
            })
            .collect();
        let result = tree(b, op, partials);
        b.store(target, vec![i], result);
    });
}

/// The tree over one block of a thread's own elements; absent ones are the identity.
fn in_thread(
    b: &mut Builder<'_>,
    tiles: &Tiles<'_>,
    plan: &Plan,
    from: Tile,
    op: ReduceOp,
    by_rows: bool,
    line: Value,
    block: u32,
) -> Value {
    let ty: Type = b.kernel.tiles[from].scalar.x(1);
    let place = Place::Array(tiles.array(from));
    let along = plan.along;
    let thread = if by_rows {
        tiles.thread.1
    } else {
        tiles.thread.0
    };
    let elements = (0..along.block)
        .map(|within| {
            let own = block * along.block + within;
            let slot = if by_rows {
                let start = times(b, line, along.count);
                let offset = b.u32(own);
                plus(b, start, offset)
            } else {
                let start = b.u32(own * plan.across.count);
                plus(b, start, line)
            };
            let loaded = b.load(place, vec![slot], ty);
            if !along.partial() {
                return loaded;
            }
            let own = b.u32(own);
            let at = along.position(b, thread, own);
            let present = b.compare_int(CompareOp::Lt, at, i128::from(along.len));
            let absent = absent(b, op, ty);
            b.select(present, loaded, absent)
        })
        .collect();
    tree(b, op, elements)
}
