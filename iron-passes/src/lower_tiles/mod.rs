//! The portable lowering of tiles: shared arrays, private arrays and loops.
//!
//! A **shared tile** is a shared array of its rows, each padded by 16 bytes so that a column's
//! elements lie in different banks (no padding where it would not fit the target's shared
//! memory). A **register tile** is a private array in each thread. Threads form a grid of `TR`
//! rows and `TC` columns (powers of two, `TC` at most 16; thread `t` sits at `t / TC`,
//! `t % TC`), and along each axis a thread owns blocks of consecutive elements, blocks of all
//! threads side by side ([`layout::Axis`]). A tile of one column (row) is held by every thread
//! of the row (column) of the grid, so that it combines with wide tiles without communication.
//!
//! `matmul` goes through `k` in order, one `fma` a step. Reductions are the adjacent-pair tree
//! over the row or column ([`reduce`]). Barriers are inserted where a thread may read what
//! another wrote, or overwrite what another may still read, and nowhere else ([`barriers`]).

mod barriers;
mod layout;
mod matmul;
mod moves;
mod reduce;

use iron_ir::entity::Tile;
use iron_ir::op::{Stmt, TileSpace, TileStmt};
use iron_ir::{Block, Kernel};

use crate::rewrite::Builder;
use crate::{Legal, PassError};
use barriers::Pending;
use layout::Tiles;

/// See the module doc.
pub fn lower_tiles(kernel: &mut Kernel, legal: &Legal) -> Result<(), PassError> {
    if kernel.tiles.is_empty() {
        return Ok(());
    }
    let body = std::mem::take(&mut kernel.body);
    let mut b = Builder::new(kernel);
    let mut tiles = Tiles::new(&mut b, legal);
    let mut pending = Pending::default();
    let rest = block(&mut b, &mut tiles, &mut pending, body);
    let mut all = b.out;
    all.extend(rest.0);
    kernel.body = Block(all);
    Ok(())
}

fn block(
    b: &mut Builder<'_>,
    tiles: &mut Tiles<'_>,
    pending: &mut Pending,
    block_in: Block,
) -> Block {
    let outer = std::mem::take(&mut b.out);
    for (mut stmt, span) in block_in.0 {
        b.span = span;
        b.rename(&mut stmt);
        match stmt {
            Stmt::Tile(tile) => {
                let touched = tiles.touched(b.kernel, &tile);
                if pending.before(&touched) {
                    b.workgroup_barrier();
                }
                statement(b, tiles, tile);
                pending.after(&touched);
            }
            mut other => {
                pending.other(&other);
                let before = pending.clone();
                let repeats = matches!(other, Stmt::For { .. } | Stmt::Loop { .. });
                let mut after = before.clone();
                for nested in other.blocks_mut() {
                    *pending = before.clone();
                    if repeats {
                        nested.walk(&mut |stmt, _| {
                            if let Stmt::Tile(tile) = stmt {
                                pending.after(&tiles.touched(b.kernel, tile).across_turns());
                            }
                        });
                    }
                    let taken = std::mem::take(nested);
                    *nested = block(b, tiles, pending, taken);
                    after.join(pending);
                }
                *pending = after;
                b.span = span;
                b.push(other);
            }
        }
    }
    Block(std::mem::replace(&mut b.out, outer))
}

fn statement(b: &mut Builder<'_>, tiles: &mut Tiles<'_>, stmt: TileStmt) {
    match stmt {
        TileStmt::Fill { tile, value } => moves::fill(b, tiles, tile, value),
        TileStmt::Load {
            tile,
            source,
            leading,
            origin,
            transposed,
        } => {
            moves::load(b, tiles, tile, source, &leading, origin, transposed);
        }
        TileStmt::Store {
            tile,
            target,
            leading,
            origin,
        } => {
            moves::store(b, tiles, tile, target, &leading, origin);
        }
        TileStmt::Copy { to, from } => moves::copy(b, tiles, to, from),
        TileStmt::Matmul {
            accumulator,
            a,
            b: right,
            transpose_a,
            transpose_b,
        } => {
            matmul::matmul(
                b,
                tiles,
                accumulator,
                (a, transpose_a),
                (right, transpose_b),
            );
        }
        TileStmt::Map {
            to,
            from,
            elements,
            row,
            column,
            body,
            result,
        } => {
            moves::map(
                b,
                tiles,
                moves::Map {
                    to,
                    from,
                    elements,
                    row,
                    column,
                    body,
                    result,
                },
            );
        }
        TileStmt::ReduceRows { to, from, op } => reduce::reduce(b, tiles, to, from, op, true),
        TileStmt::ReduceColumns { to, from, op } => reduce::reduce(b, tiles, to, from, op, false),
    }
}

fn is_shared(kernel: &Kernel, tile: Tile) -> bool {
    kernel.tiles[tile].space == TileSpace::Shared
}
