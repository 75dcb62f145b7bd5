//! Storing a register tile of fragments in lines of 16 bytes.
//!
//! Four neighbouring threads (a quad) hold two columns each of an eight-column block. Over four
//! blocks they exchange, so that each thread ends with all eight columns of one block, and
//! stores them at once: a 4 × 4 transposition of 32-bit words in two steps of two exchanges.

use iron_ir::entity::{Tile, Value};
use iron_ir::kernel::TensorLayout;
use iron_ir::op::{BinaryOp, CompareOp};
use iron_ir::{Op, Place, Scalar, Type};

use super::layout::{Tiles, all, counted, extent, plus, times};
use super::moves::Block2;
use crate::addressing::flat;
use crate::rewrite::Builder;
use crate::trees::shuffle_xor;

/// Columns that a quad exchanges at a time.
const COLUMNS: u32 = 32;

/// Where the tile can be stored in lines if `condition` holds, the condition: that the tensor is
/// aligned, and that the tile's columns lie within it. Uniform.
pub(super) fn condition(
    b: &mut Builder<'_>,
    tiles: &Tiles<'_>,
    tile: Tile,
    target: &Block2<'_>,
) -> Option<Value> {
    let columns = b.kernel.tiles[tile].columns;
    let tensor = b.kernel.tensor(target.param)?;
    let fits = matches!(tensor.scalar, Scalar::F16 | Scalar::BF16)
        && tensor.layout == TensorLayout::RowMajor
        && columns.is_multiple_of(COLUMNS);
    let aligned = tiles.aligned.get(&target.param).copied().filter(|_| fits)?;
    let rank = target.leading.len() + 2;
    let first = target.origin[1];
    let limit = extent(b, target.param, rank - 1);
    // `first + columns <= limit`, which cannot wrap.
    let left = b.binary(BinaryOp::Sub, limit, first);
    let starts = b.compare(CompareOp::Le, first, limit);
    let holds = b.compare_int(CompareOp::Ge, left, i128::from(columns));
    let within = b.with_int(BinaryOp::And, first, 7);
    let even = b.compare_int(CompareOp::Eq, within, 0);
    all(b, vec![aligned, starts, holds, even])
}

/// Stores the tile under [`condition`].
pub(super) fn store(b: &mut Builder<'_>, tiles: &Tiles<'_>, tile: Tile, target: &Block2<'_>) {
    let (rows, columns) = tiles.axes(b.kernel, tile);
    let to = b
        .kernel
        .tensor(target.param)
        .map_or(Scalar::BF16, |t| t.scalar);
    let array = Place::Array(tiles.array(tile));
    let (thread_row, quad_lane) = tiles.thread;
    let bit = |b: &mut Builder<'_>, mask| {
        let masked = b.with_int(BinaryOp::And, quad_lane, mask);
        b.compare_int(CompareOp::Ne, masked, 0)
    };
    let (is_odd, is_upper) = (bit(b, 1), bit(b, 2));
    counted(b, "i", rows.count, |b, i| {
        let own = rows.position(b, thread_row, i);
        let row = plus(b, target.origin[0], own);
        let limit = extent(b, target.param, target.leading.len());
        let mut inside = b.compare(CompareOp::Lt, row, limit);
        if rows.partial() {
            let is_own = b.compare_int(CompareOp::Lt, own, i128::from(rows.len));
            inside = b.and(inside, is_own);
        }
        counted(b, "j", columns.len / COLUMNS, |b, j| {
            let line = times(b, i, columns.count);
            let first = times(b, j, COLUMNS / 4);
            let first = plus(b, line, first);
            let mut words = [0, 2, 4, 6].map(|skip| {
                let pair = [skip, skip + 1].map(|slot| {
                    let slot = b.u32(slot);
                    let slot = plus(b, first, slot);
                    let element = b.load(array, vec![slot], Type::F32);
                    b.convert(element, to)
                });
                let pair = b.value(Op::Vector(pair.to_vec()), to.x(2));
                b.value(Op::Bitcast(pair), Type::U32)
            });
            exchange(b, is_odd, 1, &mut words, [(0, 1), (2, 3)]);
            exchange(b, is_upper, 2, &mut words, [(0, 2), (1, 3)]);
            let lanes = b.value(Op::Vector(words.to_vec()), Scalar::U32.x(4));
            let lanes = b.value(Op::Bitcast(lanes), to.x(8));
            let block = times(b, j, COLUMNS);
            let own = times(b, quad_lane, 8);
            let column = plus(b, block, own);
            let column = plus(b, target.origin[1], column);
            b.if_then(inside, |b| {
                let mut indices = target.leading.to_vec();
                indices.extend([row, column]);
                let offset = flat(b, target.param, &indices, 0);
                b.store(Place::Flat(target.param), vec![offset], lanes);
            });
        });
    });
}

/// Exchanges at one distance: of each pair, a thread on the lower side keeps the first word and
/// gets the partner's first as its second; on the upper side the other way round.
fn exchange(
    b: &mut Builder<'_>,
    is_upper: Value,
    distance: u32,
    words: &mut [Value; 4],
    pairs: [(usize, usize); 2],
) {
    for (low, high) in pairs {
        let (first, second) = (words[low], words[high]);
        let given = b.value(Op::Select(is_upper, first, second), Type::U32);
        let got = shuffle_xor(b, given, distance);
        words[low] = b.value(Op::Select(is_upper, got, first), Type::U32);
        words[high] = b.value(Op::Select(is_upper, second, got), Type::U32);
    }
}
