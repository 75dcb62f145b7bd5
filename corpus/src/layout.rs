//! Moving data: transpose, strided copy and embedding gather.

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, ints, normal};

/// Side of the square that [`transpose`] moves through shared memory.
const TILE: u32 = 16;

/// Transpose: `y[c, r] = x[r, c]`, through shared memory so that both sides are read and
/// written along rows.
#[kernel(grid = [ceil_div(cols, 16), ceil_div(rows, 16)], workgroup = [16, 16], instances(T = [f32, f16, bf16]))]
pub fn transpose<T: Float>(x: &Tensor<T, (rows, cols)>, y: &mut Tensor<T, (cols, rows)>) {
    // One more column than needed: a column of the square then touches different banks.
    let mut square = shared::<T>(TILE * (TILE + 1));
    let (column, row) = (local_id(0), local_id(1));
    let from_row = group_id(1) * TILE + row;
    let from_column = group_id(0) * TILE + column;
    if from_row < rows && from_column < cols {
        square[row * (TILE + 1) + column] = x[[from_row, from_column]];
    }
    barrier();
    let to_row = group_id(0) * TILE + row;
    let to_column = group_id(1) * TILE + column;
    if to_row < cols && to_column < rows {
        y[[to_row, to_column]] = square[column * (TILE + 1) + row];
    }
}

/// Copy between views of any strides: `y[r, c] = x[r, c]`.
#[kernel(grid = [ceil_div(cols, 256), rows], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn copy_strided<T: Float>(
    x: &StridedTensor<T, (rows, cols)>,
    y: &mut StridedTensor<T, (rows, cols)>,
) {
    let (row, column) = (group_id(1), global_id(0));
    if column < cols {
        y[[row, column]] = x[[row, column]];
    }
}

/// Rows of a table: `y[r, :] = table[ids[r], :]`. An id past the table fails the launch's
/// request through the error word and reads row 0.
#[kernel(
    grid = [rows],
    workgroup = 256,
    dependent,
    instances(T = [f32, f16, bf16], U = [f32, f16, bf16])
)]
pub fn gather_rows<T: Float, U: Float>(
    table: &Tensor<T, (vocabulary, cols)>,
    ids: &Tensor<u32, (rows,)>,
    y: &mut Tensor<U, (rows, cols)>,
) {
    let row = group_id(0);
    let id = index_in(ids[row], vocabulary);
    for i in strided(cols) {
        y[[row, i]] = U::from_f32(table[[id, i]].to_f32());
    }
}

/// Chosen rows of a matrix: `y[r, :] = x[rows_of[r], :]`; used to keep the last row of each
/// sequence before the vocabulary projection.
#[kernel(grid = [rows], workgroup = 256, dependent, instances(T = [f32, f16, bf16]))]
pub fn select_rows<T: Float>(
    x: &Tensor<T, (all_rows, cols)>,
    rows_of: &Tensor<u32, (rows,)>,
    y: &mut Tensor<T, (rows, cols)>,
) {
    let row = group_id(0);
    let from = index_in(rows_of[row], all_rows);
    for i in strided(cols) {
        y[[row, i]] = x[[from, i]];
    }
}

const SHAPES: [(u64, u64); 5] = [(0, 3), (1, 1), (17, 33), (64, 16), (3, 300)];

#[test_kernel(transpose)]
fn transpose_is_exact(t: &mut Cases) {
    for (rows, cols) in SHAPES {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], normal(0.0, 1.0))
            .output("y", [cols, rows])
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let cell = |c: u64, r: u64| inputs["x"][(r * cols + c) as usize];
                let all = (0..cols).flat_map(|c| (0..rows).map(move |r| (c, r)));
                out.set("y", all.map(|(c, r)| cell(c, r)).collect());
            });
    }
}

#[test_kernel(copy_strided)]
fn copy_strided_is_exact(t: &mut Cases) {
    for (rows, cols) in SHAPES {
        t.case(format!("{rows}x{cols}"))
            .input("x", [rows, cols], normal(0.0, 1.0))
            .output("y", [rows, cols])
            .bound(Bound::exact())
            .expect(|inputs, out| out.set("y", inputs["x"].to_vec()));
    }
}

#[test_kernel(gather_rows)]
fn gather_rows_is_exact(t: &mut Cases) {
    for (vocabulary, rows, cols) in [(1, 1, 1), (50, 7, 300), (512, 0, 64), (512, 33, 64)] {
        t.case(format!("{rows} of {vocabulary}x{cols}"))
            .input("table", [vocabulary, cols], normal(0.0, 1.0))
            .input("ids", [rows], ints(0, vocabulary as i64))
            .output("y", [rows, cols])
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let row = |id: &i64| {
                    let start = *id as usize * cols as usize;
                    inputs["table"][start..start + cols as usize].to_vec()
                };
                out.set("y", inputs.ints("ids").iter().flat_map(row).collect());
            });
    }
}

#[test_kernel(select_rows)]
fn select_rows_is_exact(t: &mut Cases) {
    for (all_rows, rows, cols) in [(1, 1, 1), (50, 7, 300), (5, 0, 64)] {
        t.case(format!("{rows} of {all_rows}x{cols}"))
            .input("x", [all_rows, cols], normal(0.0, 1.0))
            .input("rows_of", [rows], ints(0, all_rows as i64))
            .output("y", [rows, cols])
            .bound(Bound::exact())
            .expect(move |inputs, out| {
                let row = |from: &i64| {
                    let start = *from as usize * cols as usize;
                    inputs["x"][start..start + cols as usize].to_vec()
                };
                out.set("y", inputs.ints("rows_of").iter().flat_map(row).collect());
            });
    }
}
