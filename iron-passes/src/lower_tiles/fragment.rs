//! The layout algebra of matrix units: who holds which element, and where a shared tile's
//! elements lie.
//!
//! An **accumulator fragment** of a warpgroup (PTX ISA, `wgmma` register fragment of matrix D)
//! gives thread `t` of 128 the rows `16 * (t / 32) + t % 32 / 4` and that plus 8, and of each
//! block of eight columns the two from `2 * (t % 4)` on. Warpgroups are stacked: with `g` of
//! them, the fragments of a tile repeat every `64 * g` rows.
//!
//! A **swizzled tile** of 16-bit elements is a row of panels 64 columns (128 bytes) wide, each
//! with all rows of the tile; the eight 16-byte chunks of a panel's row are permuted by the
//! row's lowest three bits, so that eight rows of one chunk lie in different banks (PTX ISA,
//! "128-byte swizzle mode").

use iron_ir::entity::Value;
use iron_ir::machine::PANEL;
use iron_ir::op::BinaryOp;

use super::layout::{plus, times};
use crate::rewrite::Builder;

/// Elements of a chunk, the unit of the permutation: 16 bytes.
const CHUNK: u32 = 8;

/// Rows of a warpgroup's fragment.
pub(super) const FRAGMENT_ROWS: u32 = 64;

/// Columns that four threads of a fragment hold side by side.
pub(super) const FRAGMENT_COLUMNS: u32 = 8;

/// Element offset of a place in a swizzled tile of that many rows, in the arithmetic of `ops`.
fn swizzle<T: Copy>(
    rows: u32,
    row: T,
    column: T,
    mut op: impl FnMut(BinaryOp, T, u32) -> T,
    mut pair: impl FnMut(BinaryOp, T, T) -> T,
) -> T {
    let panel = op(BinaryOp::Shr, column, PANEL.trailing_zeros());
    let panel_start = op(BinaryOp::Mul, panel, rows * PANEL);
    let row_start = op(BinaryOp::Mul, row, PANEL);
    let chunk = op(BinaryOp::Shr, column, CHUNK.trailing_zeros());
    let permuted = pair(BinaryOp::Xor, chunk, row);
    let permuted = op(BinaryOp::And, permuted, PANEL / CHUNK - 1);
    let chunk_start = op(BinaryOp::Shl, permuted, CHUNK.trailing_zeros());
    let within = op(BinaryOp::And, column, CHUNK - 1);
    let start = pair(BinaryOp::Add, panel_start, row_start);
    let place = pair(BinaryOp::Add, chunk_start, within);
    pair(BinaryOp::Add, start, place)
}

/// Element offset of a place in a swizzled tile of that many rows.
pub(super) fn swizzled(b: &mut Builder<'_>, rows: u32, row: Value, column: Value) -> Value {
    let cell = std::cell::RefCell::new(b);
    swizzle(
        rows,
        row,
        column,
        |op, x, by| cell.borrow_mut().with_int(op, x, i128::from(by)),
        |op, x, y| cell.borrow_mut().binary(op, x, y),
    )
}

/// The row of a thread's first element, from its index in the workgroup.
pub(super) fn first_row(b: &mut Builder<'_>, thread: Value) -> Value {
    let warp = b.with_int(BinaryOp::Shr, thread, 5);
    let start = times(b, warp, 16);
    let lane = b.with_int(BinaryOp::And, thread, 31);
    let within = b.with_int(BinaryOp::Shr, lane, 2);
    plus(b, start, within)
}

/// Rows from a thread's first element to its `l`-th, where fragments repeat every `stride` rows.
pub(super) fn further_rows(b: &mut Builder<'_>, l: Value, stride: u32) -> Value {
    let half = b.with_int(BinaryOp::And, l, 1);
    let half = times(b, half, 8);
    let fragment = b.with_int(BinaryOp::Shr, l, 1);
    let fragment = times(b, fragment, stride);
    plus(b, fragment, half)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn at(rows: u32, row: u32, column: u32) -> u32 {
        let apply = |op, x: u32, y: u32| match op {
            BinaryOp::Shr => x >> y,
            BinaryOp::Shl => x << y,
            BinaryOp::And => x & y,
            BinaryOp::Xor => x ^ y,
            BinaryOp::Mul => x * y,
            BinaryOp::Add => x + y,
            other => panic!("no {other:?} in an address"),
        };
        swizzle(rows, row, column, apply, apply)
    }

    /// Row and columns of element `slot` (fragment row `i`, column `l`) of a thread.
    fn held(thread: u32, i: u32, l: u32, groups: u32) -> (u32, u32) {
        let row = thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8 + i / 2 * 64 * groups;
        (row, l / 2 * FRAGMENT_COLUMNS + thread % 4 * 2 + l % 2)
    }

    #[test]
    fn every_element_of_a_tile_is_held_once() {
        for (groups, rows, columns) in [(1, 64, 8), (2, 128, 256), (2, 256, 64), (3, 192, 32)] {
            let mut seen = HashSet::new();
            for thread in 0..128 * groups {
                for i in 0..rows / (32 * groups) {
                    for l in 0..columns / 4 {
                        let (row, column) = held(thread, i, l, groups);
                        assert!(row < rows && column < columns);
                        assert!(seen.insert((row, column)), "{row} {column} twice");
                    }
                }
            }
            assert_eq!(seen.len() as u32, rows * columns);
        }
    }

    #[test]
    fn a_swizzled_tile_has_a_place_for_each_element() {
        for (rows, columns) in [(8, 64), (128, 64), (64, 256)] {
            let places: HashSet<u32> = (0..rows)
                .flat_map(|r| (0..columns).map(move |c| at(rows, r, c)))
                .collect();
            assert_eq!(places.len() as u32, rows * columns);
            assert_eq!(places.iter().max(), Some(&(rows * columns - 1)));
        }
    }

    /// The most different 4-byte words that the accesses have in one of the 32 banks.
    fn worst_bank(elements: impl Iterator<Item = u32>) -> usize {
        let words: HashSet<u32> = elements.map(|e| e / 2).collect();
        (0..32)
            .map(|bank| words.iter().filter(|w| **w % 32 == bank).count())
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn no_access_of_a_warp_has_a_bank_conflict() {
        for warp in 0..4 {
            for (i, l) in (0..2).flat_map(|i| (0..16).map(move |l| (i, l))) {
                let fragment = (0..32).map(|lane| {
                    let (row, column) = held(warp * 32 + lane, i, l, 1);
                    at(64, row, column)
                });
                assert_eq!(worst_bank(fragment), 1, "fragment element {i} {l}");
            }
        }
        for start in (0..64 * 64).step_by(32) {
            let line = (start..start + 32).map(|e| at(64, e / 64, e % 64));
            assert_eq!(worst_bank(line), 1, "row-wise from {start}");
        }
        // The matrix unit reads eight rows of one chunk at a time.
        for chunk in 0..8 {
            let column = (0..8).flat_map(|r| (0..8).map(move |c| at(64, r, chunk * 8 + c)));
            assert_eq!(worst_bank(column), 1, "chunk {chunk}");
        }
    }

    /// A product step of 16 columns begins 32 bytes further, a block of eight rows 1024 bytes:
    /// what the matrix descriptor says. Steps do not change the permutation's bits.
    #[test]
    fn descriptor_strides_match_the_layout() {
        for row in (0..64).step_by(8) {
            assert_eq!(at(64, row, 0) * 2, row / 8 * 1024);
        }
        for panel in 0..3 {
            assert_eq!(at(64, 0, panel * 64), panel * 64 * 64);
        }
        for step in 0..4 {
            assert_eq!(at(64, 0, step * 16), step * 16);
        }
    }
}
