//! Reductions of rows and columns: the adjacent-pair tree over the elements in order.
//!
//! The tree's lowest levels pair elements of one thread (a block), the next pair threads at
//! distance 1, 2, 4, … of the grid, the highest the blocks of a thread. Threads exchange by
//! shuffles where a subgroup holds them, else through scratch memory.

use iron_ir::Kernel;
use iron_ir::entity::{Tile, Value};
use iron_ir::op::{BinaryOp, CompareOp, ReduceOp};
use iron_ir::{Place, Type};

use super::layout::{Axis, Tiles, counted, plus, times};
use crate::rewrite::Builder;
use crate::trees::{absent, butterfly, combine, shuffle_width, shuffle_xor, tree};

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
        let fits =
            self.width * self.stride <= exchanged && tiles.in_grid.is_none() && tiles.is_linear();
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
            let partials: Vec<Value> = (0..blocks)
                .map(|block| in_thread(b, tiles, &plan, from, op, by_rows, i, block))
                .collect();
            let result = if matches!(op, ReduceOp::Max | ReduceOp::Min) {
                // No order changes the greatest or the least.
                let own = tree(b, op, partials);
                butterfly(b, op, own, width, plan.stride)
            } else if blocks.is_power_of_two() && by_rows {
                scattered(b, op, partials, tiles.thread.1, width)
            } else {
                let whole = partials
                    .into_iter()
                    .map(|partial| butterfly(b, op, partial, width, plan.stride))
                    .collect();
                tree(b, op, whole)
            };
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

/// A level of the tree: between threads, or between the values that a thread holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Threads(u32),
    Held,
}

/// The tree over `width` neighbouring threads and then over each thread's `values` (a power of
/// two of them), in fewer exchanges than one a value and level: of two values, a thread gives
/// one and keeps the other, so that the threads of a pair go on with different values, whose own
/// level is then between threads.
fn scattered(
    b: &mut Builder<'_>,
    op: ReduceOp,
    mut values: Vec<Value>,
    thread: Value,
    width: u32,
) -> Value {
    let mut levels: Vec<Level> = (0..width.trailing_zeros())
        .map(|bit| Level::Threads(1 << bit))
        .chain((0..values.len().trailing_zeros()).map(|_| Level::Held))
        .collect();
    for at in 0..levels.len() {
        let distance = match levels[at] {
            Level::Threads(distance) => distance,
            Level::Held => {
                values = values
                    .chunks(2)
                    .map(|pair| combine(b, op, pair[0], pair[pair.len() - 1]))
                    .collect();
                continue;
            }
        };
        if values.len() == 1 {
            let got = shuffle_xor(b, values[0], distance);
            values[0] = combine(b, op, values[0], got);
            continue;
        }
        let masked = b.with_int(BinaryOp::And, thread, i128::from(distance));
        let is_upper = b.compare_int(CompareOp::Ne, masked, 0);
        values = values
            .chunks(2)
            .map(|pair| {
                let (first, second) = (pair[0], pair[pair.len() - 1]);
                let given = b.select(is_upper, first, second);
                let kept = b.select(is_upper, second, first);
                let got = shuffle_xor(b, given, distance);
                combine(b, op, kept, got)
            })
            .collect();
        if let Some(next) = levels[at + 1..].iter_mut().find(|l| **l == Level::Held) {
            *next = Level::Threads(distance);
        }
    }
    values[0]
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
