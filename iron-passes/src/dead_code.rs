//! Dead code: values that nothing reads, variables that nothing gets, arrays that nothing loads,
//! and statements after a jump.
//!
//! Loads of undefined behaviour are none: an unused load may go. Atomics, barriers, collectives
//! and index checks stay. Loops stay unless they hold nothing, because they might not end.

use iron_ir::entity::Value;
use iron_ir::kernel::operands;
use iron_ir::op::TileStmt;
use iron_ir::{Block, Handle, Kernel, Op, Place, Stmt};

use crate::rewrite::{compact, map_operands};
use crate::{Legal, PassError};

/// See the module doc.
pub fn dead_code(kernel: &mut Kernel, _: &Legal) -> Result<(), PassError> {
    let mut body = std::mem::take(&mut kernel.body);
    drop_after_jumps(&mut body);
    loop {
        let live = Live::of(kernel, &body);
        if !sweep(&mut body, &live) {
            drop_unused_tables(kernel, &mut body, &live);
            break;
        }
    }
    kernel.body = body;
    Ok(())
}

struct Live {
    values: Vec<bool>,
    /// Read by a `Get` that is live.
    locals: Vec<bool>,
    /// Loaded, or touched by an atomic.
    arrays: Vec<bool>,
}

impl Live {
    fn of(kernel: &Kernel, body: &Block) -> Live {
        let mut live = Live {
            values: vec![false; kernel.values.len()],
            locals: vec![false; kernel.locals.len()],
            arrays: vec![false; kernel.arrays.len()],
        };
        let mut pending: Vec<Value> = Vec::new();
        let mut sets: Vec<(usize, Value)> = Vec::new();
        let mut array_stores: Vec<(usize, Vec<Value>)> = Vec::new();
        body.walk(&mut |stmt, _| match stmt {
            Stmt::Set(local, value) => sets.push((local.index(), *value)),
            Stmt::Store {
                place: Place::Array(array),
                indices,
                value,
            } => {
                let mut used = indices.clone();
                used.push(*value);
                array_stores.push((array.index(), used));
            }
            Stmt::Atomic { place, .. } => {
                if let Place::Array(array) = place {
                    live.arrays[array.index()] = true;
                }
                pending.extend(stmt.uses());
            }
            Stmt::Machine(machine) => {
                for array in &machine.arrays {
                    live.arrays[array.index()] = true;
                }
                pending.extend(stmt.uses());
            }
            other => pending.extend(other.uses()),
        });
        loop {
            while let Some(value) = pending.pop() {
                if std::mem::replace(&mut live.values[value.index()], true) {
                    continue;
                }
                match &kernel.values[value].op {
                    Op::Get(local) => live.locals[local.index()] = true,
                    Op::Load {
                        place: Place::Array(array),
                        ..
                    } => {
                        live.arrays[array.index()] = true;
                    }
                    _ => {}
                }
                pending.extend(operands(&kernel.values[value].op));
            }
            sets.retain(|(local, value)| {
                let used = live.locals[*local];
                if used {
                    pending.push(*value);
                }
                !used
            });
            array_stores.retain(|(array, used)| {
                let kept = live.arrays[*array];
                if kept {
                    pending.extend(used);
                }
                !kept
            });
            if pending.is_empty() {
                return live;
            }
        }
    }
}

/// Drops what is dead; true where something went that may make more dead.
fn sweep(block: &mut Block, live: &Live) -> bool {
    let mut changed = false;
    block.0.retain_mut(|(stmt, _)| {
        for nested in stmt.blocks_mut() {
            changed |= sweep(nested, live);
        }
        let keep = match stmt {
            Stmt::Let(value) => live.values[value.index()],
            Stmt::Set(local, _) => live.locals[local.index()],
            Stmt::Store {
                place: Place::Array(array),
                ..
            } => live.arrays[array.index()],
            Stmt::If {
                then_block,
                else_block,
                ..
            } => !(then_block.is_empty() && else_block.is_empty()),
            Stmt::For { body, .. } => !body.is_empty(),
            _ => true,
        };
        if !keep && matches!(stmt, Stmt::If { .. } | Stmt::For { .. }) {
            changed = true;
        }
        keep
    });
    changed
}

/// Statements after a `break`, `continue` or `return` of the same block never run.
fn drop_after_jumps(block: &mut Block) {
    let jump = |stmt: &Stmt| matches!(stmt, Stmt::Break | Stmt::Continue | Stmt::Return);
    if let Some(at) = block.0.iter().position(|(stmt, _)| jump(stmt)) {
        block.0.truncate(at + 1);
    }
    for (stmt, _) in &mut block.0 {
        let is_loop = matches!(stmt, Stmt::For { .. } | Stmt::Loop { .. });
        for nested in stmt.blocks_mut() {
            drop_after_jumps(nested);
            if is_loop && matches!(nested.0.last(), Some((Stmt::Continue, _))) {
                nested.0.pop();
            }
        }
    }
}

fn drop_unused_tables(kernel: &mut Kernel, body: &mut Block, live: &Live) {
    let mut tiles = vec![false; kernel.tiles.len()];
    let mut arrays = live.arrays.clone();
    body.walk(&mut |stmt, _| match stmt {
        Stmt::Store {
            place: Place::Array(array),
            ..
        } => arrays[array.index()] = true,
        Stmt::Tile(tile) => match tile {
            TileStmt::Fill { tile, .. }
            | TileStmt::Load { tile, .. }
            | TileStmt::Store { tile, .. } => {
                tiles[tile.index()] = true;
            }
            TileStmt::Copy { to, from }
            | TileStmt::ReduceRows { to, from, .. }
            | TileStmt::ReduceColumns { to, from, .. } => {
                tiles[to.index()] = true;
                tiles[from.index()] = true;
            }
            TileStmt::Matmul {
                accumulator, a, b, ..
            } => {
                for tile in [accumulator, a, b] {
                    tiles[tile.index()] = true;
                }
            }
            TileStmt::Map { to, from, .. } => {
                for tile in from.iter().chain([to]) {
                    tiles[tile.index()] = true;
                }
            }
        },
        _ => {}
    });
    // Values keep their handles' order; the dead ones go, so that later walks are short.
    let mut keep = live.values.clone();
    body.walk(&mut |stmt, _| {
        for value in stmt.defines() {
            keep[value.index()] = true;
        }
    });
    let values = compact(&mut kernel.values, &keep);
    let locals = compact(&mut kernel.locals, &live.locals);
    let arrays = compact(&mut kernel.arrays, &arrays);
    let tiles = compact(&mut kernel.tiles, &tiles);
    let value = |v: Value| values[v.index()].unwrap_or(v);
    for (_, data) in kernel.values.iter_mut() {
        map_operands(&mut data.op, &mut |v| value(v));
        match &mut data.op {
            Op::Get(local) => *local = locals[local.index()].unwrap_or(*local),
            Op::Load {
                place: Place::Array(array),
                ..
            } => {
                *array = arrays[array.index()].unwrap_or(*array);
            }
            _ => {}
        }
    }
    body.walk_mut(&mut |stmt, _| {
        crate::rewrite::map_uses(stmt, &mut |v| value(v));
        crate::rewrite::map_definitions(stmt, &mut |v| value(v));
        match stmt {
            Stmt::Set(local, _) => *local = locals[local.index()].unwrap_or(*local),
            Stmt::Store {
                place: Place::Array(array),
                ..
            }
            | Stmt::Atomic {
                place: Place::Array(array),
                ..
            } => {
                *array = arrays[array.index()].unwrap_or(*array);
            }
            Stmt::Machine(machine) => {
                for array in &mut machine.arrays {
                    *array = arrays[array.index()].unwrap_or(*array);
                }
            }
            Stmt::Tile(tile) => {
                crate::rewrite::map_tiles(tile, &mut |t| tiles[t.index()].unwrap_or(t));
            }
            _ => {}
        }
    });
}
