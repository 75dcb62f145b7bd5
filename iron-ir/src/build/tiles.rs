//! Tiles: opaque blocks of rows and columns.

use crate::build::error::BuildFault;
use crate::build::tree;
use crate::build::value::Val;
use crate::entity::{Param, Tile, Value};
use crate::kernel::TileData;
use crate::op::{ReduceOp, Stmt, TileSpace, TileStmt};
use crate::types::Type;

use super::interpreter::{Builder, Eval};

impl Builder {
    pub(super) fn new_tile(
        &mut self,
        types: &[tree::Ty],
        rows: &tree::Expr,
        columns: &tree::Expr,
        space: TileSpace,
    ) -> Eval<Tile> {
        let [ty] = types else {
            return self.fail(BuildFault::Malformed);
        };
        let scalar = self.value_type(ty)?.scalar;
        let rows = self.scalar_beside(rows, Type::U32)?;
        let rows = self.known_count(rows, "the rows of this tile")?;
        let columns = self.scalar_beside(columns, Type::U32)?;
        let columns = self.known_count(columns, "the columns of this tile")?;
        let span = self.span;
        let tile = TileData {
            name: "".into(),
            scalar,
            rows,
            columns,
            space,
            span,
        };
        Ok(self.kernel.tiles.push(tile))
    }

    pub(super) fn name_tile(&mut self, tile: Tile, name: &str) {
        let data = &mut self.kernel.tiles[tile];
        if data.name.is_empty() {
            data.name = name.into();
        }
    }

    pub(super) fn fill_tile(&mut self, tile: Tile, value: Value) -> Eval<()> {
        self.stmt(Stmt::Tile(TileStmt::Fill { tile, value }));
        Ok(())
    }

    fn tile_of(&mut self, expr: &tree::Expr) -> Eval<Tile> {
        match self.rvalue(expr)?.target() {
            Val::Tile(tile) => Ok(tile),
            other => self.wrong_kind("this operation", "a tile", &other),
        }
    }

    fn tensor_of(&mut self, expr: &tree::Expr) -> Eval<Param> {
        match self.rvalue(expr)?.target() {
            Val::Tensor(param) => Ok(param),
            other => self.wrong_kind("this operation", "a tensor", &other),
        }
    }

    pub(super) fn matmul(
        &mut self,
        name: &str,
        accumulator: &tree::Expr,
        a: &tree::Expr,
        b: &tree::Expr,
        whole: &tree::Expr,
    ) -> Eval<Val> {
        let accumulator = self.tile_of(accumulator)?;
        let (a, b) = (self.tile_of(a)?, self.tile_of(b)?);
        self.locate(&whole.at);
        let (transpose_a, transpose_b) = (name == "matmul_tn", name == "matmul_nt");
        let extents = |tile: Tile, transposed: bool| {
            let data = &self.kernel.tiles[tile];
            if transposed {
                (data.columns, data.rows)
            } else {
                (data.rows, data.columns)
            }
        };
        let ((m, k), (other_k, n)) = (extents(a, transpose_a), extents(b, transpose_b));
        let (rows, columns) = extents(accumulator, false);
        for (what, found, expected) in [
            ("the rows of the second factor", other_k, k),
            ("the rows of the accumulator", rows, m),
            ("the columns of the accumulator", columns, n),
        ] {
            if found != expected {
                return self.fail(BuildFault::OutOfRange {
                    what: what.into(),
                    found: i128::from(found),
                    allowed: expected.to_string(),
                });
            }
        }
        self.stmt(Stmt::Tile(TileStmt::Matmul {
            accumulator,
            a,
            b,
            transpose_a,
            transpose_b,
        }));
        Ok(Val::unit())
    }

    pub(super) fn tile_method(
        &mut self,
        tile: Tile,
        name: &str,
        arguments: &[tree::Expr],
        whole: &tree::Expr,
    ) -> Eval<Val> {
        match (name, arguments) {
            ("fill", [value]) => {
                let ty = self.kernel.tiles[tile].scalar.x(1);
                let value = self.scalar_beside(value, ty)?;
                self.locate(&whole.at);
                self.fill_tile(tile, value)?;
            }
            ("load" | "load_transposed" | "store", [tensor, index]) => {
                let param = self.tensor_of(tensor)?;
                let mut leading = self.indices(index)?;
                self.locate(&whole.at);
                let rank = self
                    .kernel
                    .tensor(param)
                    .map_or(0, |tensor| tensor.shape.len());
                let (Some(column), Some(row)) = (leading.pop(), leading.pop()) else {
                    return self.rank_fault(leading.len(), rank);
                };
                if leading.len() + 2 != rank {
                    return self.rank_fault(leading.len() + 2, rank);
                }
                let origin = [row, column];
                self.stmt(Stmt::Tile(match name {
                    "store" => TileStmt::Store {
                        tile,
                        target: param,
                        leading,
                        origin,
                    },
                    _ => TileStmt::Load {
                        tile,
                        source: param,
                        leading,
                        origin,
                        transposed: name == "load_transposed",
                    },
                }));
            }
            ("copy_from", [from]) => {
                let from = self.tile_of(from)?;
                self.locate(&whole.at);
                self.stmt(Stmt::Tile(TileStmt::Copy { to: tile, from }));
            }
            ("map" | "map_indexed", [closure]) => {
                self.map_tile(tile, &[], closure, name == "map_indexed", whole)?;
            }
            ("map2" | "map2_indexed", [other, closure]) => {
                self.map_tile(
                    tile,
                    std::slice::from_ref(other),
                    closure,
                    name == "map2_indexed",
                    whole,
                )?;
            }
            ("map3", [p, q, closure]) => {
                self.map_tile(tile, &[p.clone(), q.clone()], closure, false, whole)?;
            }
            (
                "reduce_rows_max" | "reduce_rows_sum" | "reduce_columns_max" | "reduce_columns_sum",
                [from],
            ) => {
                let from = self.tile_of(from)?;
                self.locate(&whole.at);
                let op = if name.ends_with("max") {
                    ReduceOp::Max
                } else {
                    ReduceOp::Sum
                };
                self.stmt(Stmt::Tile(if name.starts_with("reduce_rows") {
                    TileStmt::ReduceRows { to: tile, from, op }
                } else {
                    TileStmt::ReduceColumns { to: tile, from, op }
                }));
            }
            ("rows" | "columns", []) => {
                let data = &self.kernel.tiles[tile];
                let count = if name == "rows" {
                    data.rows
                } else {
                    data.columns
                };
                return Ok(Val::Scalar(self.const_u32(count)));
            }
            _ => {
                return self.wrong_kind(&format!("`{name}`"), "another receiver", &Val::Tile(tile));
            }
        }
        Ok(Val::unit())
    }

    fn rank_fault<T>(&self, found: usize, rank: usize) -> Eval<T> {
        self.fail(BuildFault::OutOfRange {
            what: "the number of indices".into(),
            found: found as i128,
            allowed: rank.to_string(),
        })
    }

    fn map_tile(
        &mut self,
        to: Tile,
        others: &[tree::Expr],
        closure: &tree::Expr,
        indexed: bool,
        whole: &tree::Expr,
    ) -> Eval<()> {
        let mut from = vec![to];
        for other in others {
            from.push(self.tile_of(other)?);
        }
        let closure = self.rvalue(closure)?.target();
        self.locate(&whole.at);
        let elements: Vec<Value> = from
            .iter()
            .map(|&tile| {
                let scalar = self.kernel.tiles[tile].scalar;
                self.result(scalar.x(1))
            })
            .collect();
        let (row, column) = (self.result(Type::U32), self.result(Type::U32));
        let mut arguments = elements.clone();
        if indexed {
            arguments.extend([row, column]);
        }
        if let Val::Closure(closure) = &closure {
            for (parameter, &value) in closure.parameters.iter().zip(&arguments) {
                if let tree::Pattern::Name { name, .. } = parameter {
                    self.kernel.values[value].name = Some(name.as_str().into());
                }
            }
        }
        let (body, result) = self.closure_block(&closure, arguments)?;
        self.locate(&whole.at);
        self.stmt(Stmt::Tile(TileStmt::Map {
            to,
            from,
            elements,
            row,
            column,
            body,
            result,
        }));
        Ok(())
    }
}
