//! Tile statements, on small whole numbers and halves of them: their sums and products are exact
//! in every order, so that matrix units may do them.

use std::fmt::Write as _;

use iron_ir::{Scalar, Type};

use super::Writer;

/// Extents of the tensors that tiles are moved to and from; some tiles stand out of them.
const ROWS: u32 = 6;
const COLUMNS: u32 = 7;
/// Stores of a kernel, each to a tensor of its own, because nothing orders two of them.
const STORES: usize = 3;

/// The tiles of a kernel: shared `a` (m × k) and `b` (k × n), register `c` (m × n), `r` (m × 1)
/// and `d` (1 × n), shared `e` like `c`.
pub(super) struct Tiles {
    operand: Scalar,
    m: u32,
    n: u32,
    k: u32,
    transpose_a: bool,
    transpose_b: bool,
    stores: usize,
}

impl Tiles {
    pub(super) fn declare(&self, groups: u32, declare: &mut impl FnMut(&str, String)) {
        let Tiles {
            operand, m, n, k, ..
        } = *self;
        let pair = |flip: bool, a: u32, b: u32| if flip { (b, a) } else { (a, b) };
        let (a_rows, a_columns) = pair(self.transpose_a, m, k);
        let (b_rows, b_columns) = pair(self.transpose_b, k, n);
        for scalar in [operand, Scalar::F32] {
            let name = format!("@t_{scalar}");
            let shape = format!("[{ROWS}, {COLUMNS}]");
            if scalar == operand || operand != Scalar::F32 {
                declare(
                    &name,
                    format!("param {name}: tensor<{scalar}, {shape}, read, align 1>"),
                );
            }
        }
        for store in 0..self.stores {
            let name = format!("@u{store}_f32");
            declare(
                &name,
                format!(
                    "param {name}: tensor<f32, [{groups}, {ROWS}, {COLUMNS}], read_write, align 1>"
                ),
            );
        }
        for (name, space, scalar, rows, columns) in [
            ("!a", "shared", operand, a_rows, a_columns),
            ("!b", "shared", operand, b_rows, b_columns),
            ("!c", "register", Scalar::F32, m, n),
            ("!r", "register", Scalar::F32, m, 1),
            ("!d", "register", Scalar::F32, 1, n),
            ("!e", "shared", Scalar::F32, m, n),
        ] {
            declare(
                name,
                format!("tile {name}: {space} [{scalar}; {rows}, {columns}]"),
            );
        }
    }
}

impl Writer<'_> {
    /// A small whole number that every thread has.
    fn origin(&mut self) -> String {
        if self.pick(3) != 2 {
            return format!("{}u32", self.pick(7));
        }
        let value = self.uniform_value(Type::U32);
        self.divergent = false;
        self.define(Type::U32, &format!("and {value}, 3u32"))
    }

    pub(super) fn tile(&mut self) {
        if self.tiles.is_none() {
            if self.depth > 1 {
                // Tiles are filled before the first use, at the top.
                self.operation();
                return;
            }
            let sizes = [4, 2, 8, 1, 5, 3];
            self.tiles = Some(Tiles {
                operand: self.choose(&[Scalar::F32, Scalar::F16, Scalar::BF16]),
                m: self.choose(&sizes),
                n: self.choose(&sizes),
                k: self.choose(&sizes),
                transpose_a: self.pick(3) == 2,
                transpose_b: self.pick(3) == 2,
                stores: 0,
            });
            for tile in ["c", "r", "d", "e"] {
                self.line(&format!("tile_fill !{tile} = f32:0x3f800000"));
            }
            for tile in ["a", "b"] {
                self.load_tile(tile);
            }
        }
        match self.pick(10) {
            0 | 1 => {
                let flips = self.tiles.as_ref().map(|t| (t.transpose_a, t.transpose_b));
                let (a, b) = flips.unwrap_or_default();
                let word = |flip: bool| if flip { " transposed" } else { "" };
                self.line(&format!("matmul !c += !a{} * !b{}", word(a), word(b)));
            }
            2 | 3 => self.map_tile(),
            4 => {
                let op = self.choose(&["max", "sum", "min"]);
                self.line(&format!("reduce_rows.{op} !r = !c"));
            }
            5 => {
                let op = self.choose(&["max", "sum", "min"]);
                self.line(&format!("reduce_columns.{op} !d = !c"));
            }
            6 => {
                let tile = self.choose(&["a", "b"]);
                self.load_tile(tile);
            }
            7 => {
                self.line("tile_copy !e = !c");
                if self.pick(2) == 1 {
                    self.line("tile_copy !c = !e");
                }
            }
            8 => {
                let tile = self.choose(&["c", "e"]);
                let (row, column) = (self.origin(), self.origin());
                let flip = self.choose(&["", " transposed"]);
                self.line(&format!(
                    "tile_load !{tile} = @t_f32[{row}, {column}]{flip}"
                ));
            }
            _ => {
                let tile = self.choose(&["c", "r", "d", "e"]);
                self.store_tile(tile);
            }
        }
    }

    fn load_tile(&mut self, tile: &str) {
        let operand = self.tiles.as_ref().map_or(Scalar::F32, |t| t.operand);
        let (row, column) = (self.origin(), self.origin());
        let flip = self.choose(&["", " transposed"]);
        self.line(&format!(
            "tile_load !{tile} = @t_{operand}[{row}, {column}]{flip}"
        ));
    }

    fn map_tile(&mut self) {
        let (to, from) = match self.pick(4) {
            0 => ("c", vec!["c"]),
            1 => ("c", vec!["c", "r"]),
            2 => ("c", vec!["c", "d", "r"]),
            _ => ("r", vec!["r"]),
        };
        let mut bound = Vec::new();
        let mut sources = String::new();
        for tile in from {
            let name = self.name();
            let _ = write!(
                sources,
                "{}{name}: f32 = !{tile}",
                if bound.is_empty() { "" } else { ", " }
            );
            bound.push(name);
        }
        let (row, column) = (self.name(), self.name());
        self.line(&format!(
            "tile_map !{to} = ({sources}) at ({row}: u32, {column}: u32) {{"
        ));
        let mut value = bound[0].clone();
        for _ in 0..1 + self.pick(3) {
            let other = self.pick(bound.len());
            let other = bound[other].clone();
            let what = match self.pick(7) {
                0 => format!("add {value}, {other}"),
                1 => format!("sub {value}, {other}"),
                2 => format!("max {value}, {other}"),
                3 => format!("mul {value}, f32:0x3f000000"),
                4 => format!("neg {value}"),
                5 => {
                    let (below, place) = (self.name(), self.choose(&[&row, &column]).clone());
                    self.line(&format!("  {below}: bool = lt {place}, 2u32"));
                    format!("select {below}, {value}, {other}")
                }
                _ => {
                    let (place, of) = (self.name(), self.choose(&[&row, &column]).clone());
                    self.line(&format!("  {place}: f32 = convert {of}"));
                    format!("add {value}, {place}")
                }
            };
            value = self.name();
            self.line(&format!("  {value}: f32 = {what}"));
        }
        self.line(&format!("  yield {value}"));
        self.line("}");
    }

    fn store_tile(&mut self, tile: &str) {
        let stores = self.tiles.as_ref().map_or(STORES, |t| t.stores);
        // In a loop a store would be repeated with nothing to order its threads.
        if stores >= STORES || !self.loops.is_empty() {
            return;
        }
        let (row, column, group) = (self.origin(), self.origin(), self.group.clone());
        self.line(&format!(
            "tile_store @u{stores}_f32[{group}, {row}, {column}] = !{tile}"
        ));
        if let Some(tiles) = &mut self.tiles {
            tiles.stores += 1;
        }
    }

    /// Shows what the accumulator holds at the end.
    pub(super) fn store_tiles(&mut self) {
        if self.tiles.is_some() {
            self.store_tile("c");
        }
    }
}
