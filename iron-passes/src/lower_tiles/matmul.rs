//! The product of two shared tiles, added to a register tile.

use iron_ir::entity::{Tile, Value};
use iron_ir::kernel::Space;
use iron_ir::op::Unroll;
use iron_ir::{Op, Place, Scalar, Type};

use super::layout::{Axis, Tiles, counted, inside, plus, times};
use crate::rewrite::Builder;

/// `accumulator += a · b`, `k` ascending, one fused multiply-add a step. Each flag says that the
/// tile is read transposed.
pub(super) fn matmul(
    b: &mut Builder<'_>,
    tiles: &mut Tiles<'_>,
    accumulator: Tile,
    a: (Tile, bool),
    right: (Tile, bool),
) {
    let (rows, columns) = tiles.axes(b.kernel, accumulator);
    let depth = {
        let data = &b.kernel.tiles[a.0];
        if a.1 { data.rows } else { data.columns }
    };
    // Four columns at once where a thread owns them side by side and they lie side by side.
    let lanes = if !right.1 && columns.block == 4 { 4 } else { 1 };
    let steps = columns.count / lanes;
    let ty = Scalar::F32.x(lanes as u8);
    let name = format!("{}_row", b.kernel.tiles[right.0].name);
    let operand = (steps > 1).then(|| b.array(&name, Scalar::F32, columns.count, Space::Private));
    let accumulators = Place::Array(tiles.array(accumulator));
    let (zero, one, end) = (b.u32(0), b.u32(1), b.u32(depth));
    let (thread_row, thread_column) = tiles.thread;
    b.for_range("k", zero, end, one, Unroll::Auto, |b, k| {
        // The thread's columns of row `k` of the right side, once for all of its rows.
        let mut only = None;
        counted(b, "j", steps, |b, j| {
            let first = times(b, j, lanes);
            let column = columns.position(b, thread_column, first);
            let column = inside(b, columns, column);
            let value = element(b, tiles, right, k, column, ty);
            match operand {
                Some(array) => b.store(Place::Array(array), vec![first], value),
                None => only = Some(value),
            }
        });
        counted(b, "i", rows.count, |b, i| {
            let row = Axis::position(rows, b, thread_row, i);
            let row = inside(b, rows, row);
            let left = element(b, tiles, a, row, k, Type::F32);
            let left = b.splat(left, lanes as u8);
            counted(b, "j", steps, |b, j| {
                let first = times(b, j, lanes);
                let value = match (operand, only) {
                    (Some(array), _) => b.load(Place::Array(array), vec![first], ty),
                    (None, Some(value)) => value,
                    (None, None) => left,
                };
                let start = times(b, i, columns.count);
                let slot = plus(b, start, first);
                let sum = b.load(accumulators, vec![slot], ty);
                let sum = b.value(Op::Fma(left, value, sum), ty);
                b.store(accumulators, vec![slot], sum);
            });
        });
    });
}

/// An element (or several of a row) of an operand, as `f32`; of the transposed tile where so
/// flagged.
fn element(
    b: &mut Builder<'_>,
    tiles: &Tiles<'_>,
    (tile, transposed): (Tile, bool),
    row: Value,
    column: Value,
    ty: Type,
) -> Value {
    let (row, column) = if transposed {
        (column, row)
    } else {
        (row, column)
    };
    let index = tiles.shared_index(b, tile, row, column);
    let scalar = b.kernel.tiles[tile].scalar;
    let loaded = b.load(
        Place::Array(tiles.array(tile)),
        vec![index],
        ty.with_scalar(scalar),
    );
    b.convert(loaded, Scalar::F32)
}
