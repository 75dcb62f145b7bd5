//! Rows of a table of 8-bit floats with one scale.

use iron_ir::prelude::*;
use iron_ir::testing::{Bound, Cases, bits, bytes, ints, values};

/// Rows of a table: `y[r, :] = table[ids[r], :] * scale`, each code decoded, multiplied in f32 and
/// rounded to `T`. The codes are those of OCP's E4M3: no infinity, `7f` and `ff` are NaN. An id past
/// the table fails the launch's request through the error word and reads row 0.
#[kernel(grid = [rows], workgroup = 256, instances(T = [f32, f16, bf16]))]
pub fn gather_rows_f8<T: Float>(
    table: &Tensor<F8E4M3, (vocabulary, cols)>,
    ids: &Tensor<u32, (rows,)>,
    y: &mut Tensor<T, (rows, cols)>,
    scale: f32,
) {
    let row = group_id(0);
    let id = index_in(ids[row], vocabulary);
    for i in strided(cols) {
        y[[row, i]] = T::from_f32(table[[id, i]].to_f32() * scale);
    }
}

/// Codes and what they stand for.
const LANDMARKS: [(u64, f64); 8] = [
    (0x00, 0.0),
    (0x01, 0.001953125),
    (0x38, 1.0),
    (0x40, 2.0),
    (0x7e, 448.0),
    (0x80, -0.0),
    (0xb8, -1.0),
    (0xfe, -448.0),
];

#[test_kernel(gather_rows_f8)]
fn gather_rows_f8_decodes_and_then_scales(t: &mut Cases) {
    let cols = 160u64;
    // Each row begins with another landmark.
    let at = move |row: usize, col: usize| LANDMARKS[(row + col) % LANDMARKS.len()];
    let vocabulary = 9u64;
    let table = move || {
        let cells = (0..vocabulary as usize).flat_map(|r| (0..cols as usize).map(move |c| (r, c)));
        cells.map(|(r, c)| at(r, c).0).collect()
    };
    // In order, repeated, and backwards; the scales keep every product exact in every type.
    let orders: [&[usize]; 4] = [&[], &[0, 1, 2, 8], &[3, 3, 3], &[8, 5, 0, 5, 8, 1]];
    for (ids, scale) in orders.into_iter().zip([1.0f32, 0.5, 3.0, -2.0]) {
        t.case(format!("rows {ids:?}, scale {scale}"))
            .input("table", [vocabulary, cols], bits(table()))
            .input(
                "ids",
                [ids.len() as u64],
                values(ids.iter().map(|&id| id as f64).collect()),
            )
            .output("y", [ids.len() as u64, cols])
            .scalar("scale", scale)
            .bound(Bound::exact())
            .expect(move |_, out| {
                let row = |id: usize| (0..cols as usize).map(move |col| at(id, col).1);
                let all = ids.iter().flat_map(|&id| row(id));
                out.set("y", all.map(|value| value * f64::from(scale)).collect());
            });
    }
    // Every code, the two NaNs among them.
    t.case("all codes")
        .input("table", [2, 256], bits((0..512).map(|i| i % 256).collect()))
        .input("ids", [1], ints(1, 2))
        .output("y", [1, 256])
        .scalar("scale", 1.0f32)
        .bound(Bound::exact())
        .expect(|inputs, out| out.set("y", inputs["table"][256..].to_vec()));
    t.case("a table of production size")
        .production()
        .input("table", [4096, cols], bytes())
        .input("ids", [512], ints(0, 4096))
        .output("y", [512, cols])
        .scalar("scale", 0.37f32)
        .bound(Bound::relative(2e-7).absolute(1e-10))
        .expect(move |inputs, out| {
            let row = |id: &i64| {
                let first = *id as usize * cols as usize;
                inputs["table"][first..first + cols as usize].to_vec()
            };
            let all = inputs.ints("ids").iter().flat_map(row);
            out.set("y", all.map(|value| value * f64::from(0.37f32)).collect());
        });
}
