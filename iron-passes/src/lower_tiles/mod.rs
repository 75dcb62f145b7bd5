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
//!
//! A target with warpgroup products takes another route for kernels whose tiles fit
//! ([`plan`]): tiles are swizzled and register tiles are fragments ([`fragment`]), one warpgroup
//! copies while the others multiply ([`warpgroup`]), two of which may take turns at the matrix
//! unit ([`turns`]), and whole lines are stored ([`quads`]).
//!
//! A target whose subgroups multiply fragments takes a third where tiles fit ([`units`]): sums are
//! fragments ([`subgroup`]), and loops that only multiply go slice by slice, the next on its way
//! ([`staged`]).
//!
//! Everything else, maps and reductions of rows among it, is the same code over other axes.

mod barriers;
mod fragment;
mod layout;
mod matmul;
mod moves;
mod plan;
mod quads;
mod reduce;
mod staged;
mod subgroup;
#[cfg(test)]
mod tests;
mod turns;
mod units;
#[cfg(test)]
mod units_tests;
mod warpgroup;

use std::collections::BTreeSet;

use iron_ir::entity::{Param, Tile};
use iron_ir::machine::{MachineOp, MachineStmt, WARPGROUP};
use iron_ir::op::{BuiltinOp, Stmt, TileSpace, TileStmt};
use iron_ir::{Block, Const, Handle, Kernel, Op, Scalar, Type};

use crate::rewrite::Builder;
use crate::{Legal, PassError};
use barriers::Pending;
use layout::Tiles;
use plan::Plan;
use units::Units;

/// See the module doc.
pub fn lower_tiles(kernel: &mut Kernel, legal: &Legal) -> Result<(), PassError> {
    if kernel.tiles.is_empty() {
        return Ok(());
    }
    let plan = Plan::of(kernel, legal);
    let units = match plan {
        Some(_) => None,
        None => Units::of(kernel, legal),
    };
    for tile in plan.iter().flat_map(|p| &p.held) {
        kernel.tiles[*tile].space = TileSpace::Register;
    }
    let body = std::mem::take(&mut kernel.body);
    let mut b = Builder::new(kernel);
    let by_fragments = units.is_some();
    let mut tiles = match units {
        Some(units) => Tiles::of_subgroups(&mut b, legal, units),
        None => Tiles::new(&mut b, legal, plan.as_ref()),
    };
    match &plan {
        None if by_fragments => {
            let mut tensors = Vec::new();
            body.walk(&mut |stmt, _| {
                if let Stmt::Tile(
                    TileStmt::Load { source: param, .. } | TileStmt::Store { target: param, .. },
                ) = stmt
                    && !tensors.contains(param)
                {
                    tensors.push(*param);
                }
            });
            tensors.sort_by_key(|p| p.index());
            ask_alignment(&mut b, &mut tiles, &tensors);
            let rest = block(&mut b, &mut tiles, &mut Pending::default(), body);
            b.out.extend(rest.0);
        }
        None => {
            let rest = block(&mut b, &mut tiles, &mut Pending::default(), body);
            b.out.extend(rest.0);
        }
        Some(plan) => {
            warpgroup::divide(&mut b, &mut tiles, plan, body, |b, tiles, body| {
                block(b, tiles, &mut Pending::default(), body)
            });
        }
    }
    let all = std::mem::take(&mut b.out);
    kernel.body = Block(all);
    if let Some(plan) = plan {
        widen(kernel, &plan);
    }
    Ok(())
}

/// Asks which tensors can be accessed 16 bytes at a time.
fn ask_alignment(b: &mut Builder<'_>, tiles: &mut Tiles<'_>, tensors: &[Param]) {
    for param in tensors {
        let result = b.value(Op::Result, Type::BOOL);
        let name = format!("{}_is_aligned", b.kernel.params[*param].name);
        b.named(result, &name);
        b.push(Stmt::Machine(MachineStmt {
            result: Some(result),
            source: Some(*param),
            ..MachineStmt::new(MachineOp::IsAligned, &[], &[], &[])
        }));
        tiles.aligned.insert(*param, result);
    }
}

/// Adds the producer's threads to the workgroup. What the author asked of its size stays.
fn widen(kernel: &mut Kernel, plan: &Plan) {
    let consumers = Const::int(Scalar::U32, i128::from(plan.consumers()));
    for (_, data) in kernel.values.iter_mut() {
        match data.op {
            Op::Builtin(BuiltinOp::GroupThreads, _) | Op::Builtin(BuiltinOp::GroupSize, 0) => {
                data.op = Op::Const(consumers);
            }
            _ => {}
        }
    }
    kernel.contract.workgroup[0] = plan.consumers() + WARPGROUP;
}

fn block(
    b: &mut Builder<'_>,
    tiles: &mut Tiles<'_>,
    pending: &mut Pending,
    block_in: Block,
) -> Block {
    let outer = std::mem::take(&mut b.out);
    let own = (tiles.subgroups.as_ref()).map(|s| units::own_sums(&s.units, &block_in));
    for (mut stmt, span) in block_in.0 {
        b.span = span;
        b.rename(&mut stmt);
        let stmt = match multiplied_by_slices(b, tiles, stmt) {
            Ok(()) => continue,
            Err(stmt) => stmt,
        };
        match stmt {
            Stmt::Tile(tile) => {
                let touched = tiles.touched(b.kernel, &tile);
                if pending.before(&touched) {
                    if tiles.groups.is_some() {
                        warpgroup::machine(b, MachineOp::SharedFence, &[], &[], &[]);
                    }
                    b.workgroup_barrier();
                }
                statement(b, tiles, tile);
                pending.after(&touched);
            }
            mut other => {
                pending.other(&other);
                if has_tiles(&other) {
                    subgroup::settle(b, tiles, &BTreeSet::new());
                }
                let takes_turns = turns::fits(b.kernel, tiles, &other);
                if takes_turns {
                    turns::begin(b, tiles);
                }
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
                    if let Some(subgroups) = &mut tiles.subgroups {
                        subgroups.depth += 1;
                    }
                    *nested = block(b, tiles, pending, taken);
                    if let Some(subgroups) = &mut tiles.subgroups {
                        subgroups.depth -= 1;
                    }
                    after.join(pending);
                }
                *pending = after;
                b.span = span;
                b.push(other);
                if takes_turns {
                    turns::end(b, tiles);
                }
            }
        }
    }
    let is_nested = (tiles.subgroups.as_ref()).is_some_and(|s| s.depth > 0);
    if let Some(own) = own.filter(|_| is_nested) {
        subgroup::settle(b, tiles, &own);
    }
    Block(std::mem::replace(&mut b.out, outer))
}

fn has_tiles(stmt: &Stmt) -> bool {
    let mut found = false;
    for nested in stmt.blocks() {
        nested.walk(&mut |stmt, _| found |= matches!(stmt, Stmt::Tile(_)));
    }
    found
}

/// Emits a loop that subgroups multiply slice by slice; any other statement comes back.
fn multiplied_by_slices(
    b: &mut Builder<'_>,
    tiles: &mut Tiles<'_>,
    stmt: Stmt,
) -> Result<(), Stmt> {
    let Some(subgroups) = &tiles.subgroups else {
        return Err(stmt);
    };
    match stmt {
        Stmt::For {
            index,
            start,
            end,
            step,
            unroll,
            body,
        } => {
            let Some(turn) = units::turn(b.kernel, &subgroups.units.named, index, &body) else {
                return Err(Stmt::For {
                    index,
                    start,
                    end,
                    step,
                    unroll,
                    body,
                });
            };
            // Values from before the loop may have been replaced.
            let body = b.rewrite_block(body, &mut |_, stmt| Some(stmt));
            subgroup::settle(b, tiles, &BTreeSet::new());
            let all = staged::Loop {
                index,
                start,
                end,
                step,
                unroll,
                body,
            };
            staged::pipelined(b, tiles, all, &turn);
            Ok(())
        }
        other => Err(other),
    }
}

fn statement(b: &mut Builder<'_>, tiles: &mut Tiles<'_>, stmt: TileStmt) {
    if tiles.subgroups.is_some() && subgroup::statement(b, tiles, &stmt) {
        return;
    }
    match stmt {
        TileStmt::Fill { tile, value } => moves::fill(b, tiles, tile, value),
        TileStmt::Load {
            tile,
            source,
            leading,
            origin,
            transposed,
        } => match tiles.groups {
            Some(_) => warpgroup::acquire(b, tiles, tile),
            None if staged::loads(b.kernel, tiles, tile) => {
                staged::load(b, tiles, tile, (source, &leading, origin), transposed);
            }
            None => moves::load(b, tiles, tile, source, &leading, origin, transposed),
        },
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
            let (a, right) = ((a, transpose_a), (right, transpose_b));
            match tiles.groups {
                Some(groups) => warpgroup::product(b, tiles, groups, accumulator, a, right),
                None => matmul::matmul(b, tiles, accumulator, a, right),
            }
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
