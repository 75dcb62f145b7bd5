//! Two warpgroups that take turns at the matrix unit (Shah et al., FlashAttention-3, 2024).
//!
//! A loop that multiplies, works on the result in registers and multiplies again keeps the matrix
//! unit idle half of the time if both warpgroups do the same at once. In turns, one's second
//! product and the first of its next turn of the loop run while the other works in registers:
//!
//! ```text
//! group 1 waits           before the loop
//! each group: first product, gives the other its turn; registers; waits for its own turn, second
//!             product, which it leaves going on
//! group 0 gives           behind the loop
//! ```
//!
//! A group gives once for every wait of the other, however often the loop turns. The second
//! product is waited for with the first of the next turn, or behind the loop.

use iron_ir::Kernel;
use iron_ir::entity::Tile;
use iron_ir::kernel::Block;
use iron_ir::machine::MachineOp;
use iron_ir::op::{CompareOp, Stmt, TileStmt};

use super::is_shared;
use super::layout::Tiles;
use super::warpgroup::{machine, own_group};
use crate::rewrite::Builder;

/// Which product of a turn of the loop comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// The one before the work in registers.
    First,
    /// The one behind it.
    Second,
}

/// Whether warpgroups take turns in a loop: two of them, and a loop whose body loads tiles that
/// signals order, multiplies, maps, and multiplies once more as the last that it does with tiles.
pub(super) fn fits(kernel: &Kernel, tiles: &Tiles<'_>, stmt: &Stmt) -> bool {
    let Stmt::For { body, .. } = stmt else {
        return false;
    };
    tiles.groups == Some(2) && tiles.turn.is_none() && two_products(kernel, tiles, body).is_some()
}

fn two_products(kernel: &Kernel, tiles: &Tiles<'_>, body: &Block) -> Option<()> {
    let by_signals = |tile: &Tile| tiles.rings.get(tile).is_some_and(|ring| !ring.ordinary);
    let mut statements = body.0.iter().map(|(stmt, _)| stmt);
    // Up to the first product nothing may wait for the other warpgroup or touch what the product
    // that was left goes on with.
    let first = loop {
        match statements.next()? {
            Stmt::Tile(TileStmt::Load { tile, .. }) if by_signals(tile) => {}
            Stmt::Tile(TileStmt::Fill { tile, .. }) if !is_shared(kernel, *tile) => {}
            Stmt::Tile(TileStmt::Matmul {
                accumulator, a, b, ..
            }) if by_signals(a) && by_signals(b) => break *accumulator,
            Stmt::Let(_) | Stmt::Set(..) | Stmt::CheckIndex { .. } => {}
            _ => return None,
        }
    };
    let filled_is_first = body.0.iter().all(|(stmt, _)| match stmt {
        Stmt::Tile(TileStmt::Fill { tile, .. }) => *tile == first,
        _ => true,
    });
    let rest: Vec<&Stmt> = statements.collect();
    let last = rest.iter().rposition(|stmt| touches_tiles(stmt))?;
    let works = rest[..last]
        .iter()
        .any(|s| matches!(s, Stmt::Tile(TileStmt::Map { .. })));
    let one_more = products(rest[last], first) == Some(1);
    let none_before = rest[..last].iter().all(|s| products(s, first) == Some(0));
    (filled_is_first && works && one_more && none_before).then_some(())
}

fn touches_tiles(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::Tile(_))
        || (stmt.blocks().iter()).any(|b| b.0.iter().any(|(s, _)| touches_tiles(s)))
}

/// How many products a statement has whichever way it goes, the last things it does with tiles
/// and none into `not`; `None` where that differs, or where it may leave the loop.
fn products(stmt: &Stmt, not: Tile) -> Option<u32> {
    let of_block = |block: &Block| {
        let mut count = 0;
        for (stmt, _) in &block.0 {
            if count > 0 && touches_tiles(stmt) {
                return None;
            }
            count += products(stmt, not)?;
        }
        Some(count)
    };
    match stmt {
        Stmt::Tile(TileStmt::Matmul { accumulator, .. }) => (*accumulator != not).then_some(1),
        Stmt::Tile(_) | Stmt::Let(_) | Stmt::Set(..) | Stmt::CheckIndex { .. } => Some(0),
        Stmt::If {
            then_block,
            else_block,
            ..
        } => {
            let count = of_block(then_block)?;
            (of_block(else_block)? == count).then_some(count)
        }
        _ => None,
    }
}

/// Before the loop: the second warpgroup waits for the first.
pub(super) fn begin(b: &mut Builder<'_>, tiles: &mut Tiles<'_>) {
    tiles.turn = Some(Turn::First);
    let group = own_group(b);
    let is_second = b.compare_int(CompareOp::Eq, group, 1);
    b.if_then(is_second, |b| {
        machine(b, MachineOp::TurnWait, &[], &[group], &[]);
    });
}

/// Behind the loop: the product that was left ends, and the second warpgroup has its last turn.
pub(super) fn end(b: &mut Builder<'_>, tiles: &mut Tiles<'_>) {
    tiles.turn = None;
    machine(b, MachineOp::ProductEnd, &[], &[], &[]);
    let group = own_group(b);
    let is_first = b.compare_int(CompareOp::Eq, group, 0);
    b.if_then(is_first, |b| {
        let second = b.u32(1);
        machine(b, MachineOp::TurnGive, &[], &[second], &[]);
    });
}
