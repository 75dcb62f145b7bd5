//! Tile operations, as the author wrote them: whole tiles at once.

use iron_ir::Scalar;
use iron_ir::entity::{Handle, Param, Tile, Value};
use iron_ir::kernel::Span;
use iron_ir::op::TileStmt;

use super::machine::{Frame, Launch, Machine};
use super::mask::Mask;
use super::program::Inst;
use super::report::{Fault, Rule};
use super::scalar;

/// Leading indices (with room for the last two), extents of the last two dimensions, origin.
type Corner = (Vec<u64>, [u64; 2], [u64; 2]);

impl<'a> Machine<'a> {
    /// Runs a tile operation other than a map.
    pub(super) fn tile(
        &mut self,
        launch: &mut Launch<'a>,
        stmt: &TileStmt,
        span: Span,
    ) -> Result<(), Fault> {
        match stmt {
            TileStmt::Fill { tile, value } => {
                let bits = self.uniform(*value, span)?;
                let tile = &mut self.tiles[tile.index()];
                tile.bits.fill(bits);
                tile.written = true;
            }
            TileStmt::Load {
                tile,
                source,
                leading,
                origin,
                transposed,
            } => {
                let (mut indices, extents, origin) =
                    self.corner(launch, *source, leading, origin, span)?;
                let from = self.tensor(launch, *source, span)?.scalar;
                let (rows, columns, to) = self.tile_shape(*tile);
                let axes = indices.len() - 2;
                for r in 0..rows {
                    for c in 0..columns {
                        let (dr, dc) = if *transposed { (c, r) } else { (r, c) };
                        indices[axes] = origin[0] + u64::from(dr);
                        indices[axes + 1] = origin[1] + u64::from(dc);
                        let inside = indices[axes] < extents[0] && indices[axes + 1] < extents[1];
                        let bits = if inside {
                            let bits = self.tile_read(launch, *source, &indices, span)?;
                            self.rounded(from, to, bits, span)?
                        } else {
                            0
                        };
                        self.tiles[tile.index()].bits[(r * columns + c) as usize] = bits;
                    }
                }
                self.tiles[tile.index()].written = true;
            }
            TileStmt::Store {
                tile,
                target,
                leading,
                origin,
            } => {
                self.written(*tile, span)?;
                let (mut indices, extents, origin) =
                    self.corner(launch, *target, leading, origin, span)?;
                let to = self.tensor(launch, *target, span)?.scalar;
                let (rows, columns, from) = self.tile_shape(*tile);
                let axes = indices.len() - 2;
                for r in 0..rows {
                    for c in 0..columns {
                        indices[axes] = origin[0] + u64::from(r);
                        indices[axes + 1] = origin[1] + u64::from(c);
                        if indices[axes] < extents[0] && indices[axes + 1] < extents[1] {
                            let bits = self.tiles[tile.index()].bits[(r * columns + c) as usize];
                            let bits = self.rounded_store(from, to, bits, span)?;
                            self.tile_write(launch, *target, &indices, bits, span)?;
                        }
                    }
                }
            }
            TileStmt::Copy { to, from } => {
                self.written(*from, span)?;
                let finite = self.finite && self.tile_is_finite(*from);
                let (source, target) = (self.tile_shape(*from).2, self.tile_shape(*to).2);
                for i in 0..self.tiles[from.index()].bits.len() {
                    let bits =
                        self.rounded(source, target, self.tiles[from.index()].bits[i], span)?;
                    self.tiles[to.index()].bits[i] = bits;
                }
                self.tiles[to.index()].written = true;
                self.check_tile_finite(*to, finite, "copy", span)?;
            }
            TileStmt::Matmul {
                accumulator,
                a,
                b,
                transpose_a,
                transpose_b,
            } => {
                for tile in [*accumulator, *a, *b] {
                    self.written(tile, span)?;
                }
                let finite = self.finite
                    && [*accumulator, *a, *b]
                        .iter()
                        .all(|t| self.tile_is_finite(*t));
                self.matmul(*accumulator, (*a, *transpose_a), (*b, *transpose_b), span)?;
                self.check_tile_finite(*accumulator, finite, "matrix product", span)?;
            }
            TileStmt::Map { .. } => {}
            TileStmt::ReduceRows { to, from, op } => {
                self.written(*from, span)?;
                let finite = self.finite && self.tile_is_finite(*from);
                let (rows, columns, kind) = self.tile_shape(*from);
                for r in 0..rows {
                    let first = (r * columns) as usize;
                    let values =
                        self.tiles[from.index()].bits[first..first + columns as usize].to_vec();
                    self.tiles[to.index()].bits[r as usize] =
                        scalar::tree(*op, kind, &values).unwrap_or(0);
                }
                self.tiles[to.index()].written = true;
                self.check_tile_finite(*to, finite, "reduction", span)?;
            }
            TileStmt::ReduceColumns { to, from, op } => {
                self.written(*from, span)?;
                let finite = self.finite && self.tile_is_finite(*from);
                let (rows, columns, kind) = self.tile_shape(*from);
                for c in 0..columns {
                    let bits = &self.tiles[from.index()].bits;
                    let values: Vec<u64> = (0..rows)
                        .map(|r| bits[(r * columns + c) as usize])
                        .collect();
                    self.tiles[to.index()].bits[c as usize] =
                        scalar::tree(*op, kind, &values).unwrap_or(0);
                }
                self.tiles[to.index()].written = true;
                self.check_tile_finite(*to, finite, "reduction", span)?;
            }
        }
        Ok(())
    }

    fn matmul(
        &mut self,
        accumulator: Tile,
        (a, transpose_a): (Tile, bool),
        (b, transpose_b): (Tile, bool),
        span: Span,
    ) -> Result<(), Fault> {
        let (m, n, _) = self.tile_shape(accumulator);
        let (rows, columns, _) = self.tile_shape(a);
        let k = if transpose_a { rows } else { columns };
        let left = self.floats(a, span)?;
        let right = self.floats(b, span)?;
        let columns_of = |tile: Tile| self.tiles[tile.index()].columns as usize;
        let (a_columns, b_columns) = (columns_of(a), columns_of(b));
        let (m, n, k) = (m as usize, n as usize, k as usize);
        let out = &mut self.tiles[accumulator.index()].bits;
        for r in 0..m {
            for c in 0..n {
                let mut sum = f32::from_bits(out[r * n + c] as u32);
                for i in 0..k {
                    let x = if transpose_a {
                        left[i * a_columns + r]
                    } else {
                        left[r * a_columns + i]
                    };
                    let y = if transpose_b {
                        right[c * b_columns + i]
                    } else {
                        right[i * b_columns + c]
                    };
                    sum = x.mul_add(y, sum);
                }
                out[r * n + c] = u64::from(sum.to_bits());
            }
        }
        Ok(())
    }

    /// The elements of a tile as `f32`.
    fn floats(&self, tile: Tile, span: Span) -> Result<Vec<f32>, Fault> {
        let scalar = self.tile_shape(tile).2;
        self.tiles[tile.index()]
            .bits
            .iter()
            .map(|&bits| {
                Ok(f32::from_bits(
                    self.rounded(scalar, Scalar::F32, bits, span)? as u32,
                ))
            })
            .collect()
    }

    fn tile_shape(&self, tile: Tile) -> (u32, u32, Scalar) {
        let tile = &self.tiles[tile.index()];
        (tile.rows, tile.columns, tile.scalar)
    }

    fn written(&self, tile: Tile, span: Span) -> Result<(), Fault> {
        if self.tiles[tile.index()].written {
            return Ok(());
        }
        let message = format!(
            "tile `{}` is read before it is written",
            self.kernel.tiles[tile].name
        );
        Err(Fault::new(Rule::Uninitialised, span, message))
    }

    /// As [`Machine::rounded`], on the way to a tensor.
    fn rounded_store(&self, from: Scalar, to: Scalar, bits: u64, span: Span) -> Result<u64, Fault> {
        let rounded = self.rounded(from, to, bits, span)?;
        if self.finite {
            self.check_rounding([(from, bits), (to, rounded)], span)?;
        }
        Ok(rounded)
    }

    fn rounded(&self, from: Scalar, to: Scalar, bits: u64, span: Span) -> Result<u64, Fault> {
        scalar::convert(from, to, bits).ok_or_else(|| {
            let message = format!("there is no conversion of {from} to {to}");
            Fault::new(Rule::NoOperation, span, message)
        })
    }

    /// The value, which every thread must agree on.
    fn uniform(&self, value: Value, span: Span) -> Result<u64, Fault> {
        let at = self.at(self.program.row(value));
        let first = self.regs[at];
        for t in 0..self.threads as usize {
            self.check_exact(self.program.row(value), t, span)?;
        }
        for t in 1..self.threads as usize {
            let other = self.regs[at + t];
            if other != first {
                let name = self.kernel.values[value]
                    .name
                    .as_deref()
                    .unwrap_or("an operand");
                let message = format!(
                    "{name} of a tile operation must be uniform: it is {first:#x} in thread 0 and {other:#x} here"
                );
                return Err(self.fault(Rule::NotUniform, span, t, message));
            }
        }
        Ok(first)
    }

    /// Where in its tensor a tile begins.
    fn corner(
        &self,
        launch: &Launch<'a>,
        param: Param,
        leading: &[Value],
        origin: &[Value; 2],
        span: Span,
    ) -> Result<Corner, Fault> {
        let mut indices = Vec::with_capacity(leading.len() + 2);
        for &value in leading {
            indices.push(self.uniform(value, span)?);
        }
        let origin = [
            self.uniform(origin[0], span)?,
            self.uniform(origin[1], span)?,
        ];
        indices.extend(origin);
        let shape = &self.tensor(launch, param, span)?.shape;
        let &[.., rows, columns] = shape.as_slice() else {
            let message = format!(
                "`{}` has no rows and columns",
                self.kernel.params[param].name
            );
            return Err(Fault::new(Rule::Malformed, span, message));
        };
        if shape.len() != indices.len() {
            let message = format!(
                "{} indices for `{}`, which has rank {}",
                indices.len(),
                self.kernel.params[param].name,
                shape.len()
            );
            return Err(Fault::new(Rule::Malformed, span, message));
        }
        Ok((indices, [rows, columns], origin))
    }

    /// Runs a map: elements are handed out to the threads in chunks of one workgroup.
    pub(super) fn map(&mut self, inst: &Inst, span: Span) -> Result<(), Fault> {
        match inst {
            Inst::Map {
                to,
                from,
                elements,
                row,
                column,
                captured,
                end,
            } => {
                if self.mask.is_empty() {
                    self.jump(*end);
                    return Ok(());
                }
                let first = match self.frames.last() {
                    Some(Frame::Map { first, at, .. }) if *at == self.pc() => *first,
                    _ => {
                        self.require_all(span, "tile operation")?;
                        for &source in from {
                            self.written(source, span)?;
                        }
                        self.captured_uniform(captured, span)?;
                        self.join_workgroup();
                        let outer = self.mask.clone();
                        self.frames.push(Frame::Map {
                            outer,
                            first: 0,
                            at: self.pc(),
                        });
                        0
                    }
                };
                let (rows, columns, _) = self.tile_shape(*to);
                let n = (rows * columns - first).min(self.threads);
                self.mask = Mask::first(self.threads, n);
                for t in 0..n {
                    let (r, c) = ((first + t) / columns, (first + t) % columns);
                    for (&source, &dst) in from.iter().zip(elements) {
                        let source = &self.tiles[source.index()];
                        let sr = if source.rows == 1 { 0 } else { r };
                        let sc = if source.columns == 1 { 0 } else { c };
                        let bits = source.bits[(sr * source.columns + sc) as usize];
                        let at = self.at(dst);
                        self.regs[at + t as usize] = bits;
                    }
                    let (row, column) = (self.at(*row), self.at(*column));
                    self.regs[row + t as usize] = u64::from(r);
                    self.regs[column + t as usize] = u64::from(c);
                }
            }
            Inst::MapNext { to, result, begin } => {
                let at = self.at(*result);
                let n = self.mask.count();
                if self.finite {
                    let data = &self.kernel.tiles[*to];
                    let into = || format!("an element of `{}`", data.name);
                    for t in 0..n as usize {
                        self.check_finite(data.scalar, *result, t, into, span)?;
                    }
                }
                let Some(Frame::Map { first, .. }) = self.frames.last_mut() else {
                    return Ok(());
                };
                let tile = &mut self.tiles[to.index()];
                let start = *first as usize;
                tile.bits[start..start + n as usize]
                    .copy_from_slice(&self.regs[at..at + n as usize]);
                *first += n;
                if (*first as usize) < tile.bits.len() {
                    self.jump(*begin);
                } else {
                    tile.written = true;
                    if let Some(Frame::Map { outer, .. }) = self.frames.pop() {
                        self.mask = outer;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn captured_uniform(&self, captured: &[(u32, u8)], span: Span) -> Result<(), Fault> {
        for &(row, lanes) in captured {
            for lane in 0..u32::from(lanes) {
                let at = self.at(row + lane);
                let values = &self.regs[at..at + self.threads as usize];
                if let Some(t) = values.iter().position(|&x| x != values[0]) {
                    let message = format!(
                        "a tile map reads a value that differs between threads: {:#x} in thread 0, {:#x} here",
                        values[0], values[t]
                    );
                    return Err(self.fault(Rule::NotUniform, span, t, message));
                }
            }
        }
        Ok(())
    }
}
