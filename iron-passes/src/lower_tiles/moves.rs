//! Fill, load, store, copy and map.

use iron_ir::Block;
use iron_ir::entity::{Local, Param, Tile, Value};
use iron_ir::op::{CompareOp, Stmt};
use iron_ir::{Op, Place, Scalar, Type};

use super::is_shared;
use super::layout::{Tiles, all, extent, plus};
use super::quads;
use crate::rewrite::Builder;

pub(super) fn fill(b: &mut Builder<'_>, tiles: &Tiles<'_>, tile: Tile, value: Value) {
    if is_shared(b.kernel, tile) {
        tiles.each_shared(b, tile, false, |b, row, column| {
            let index = tiles.shared_index(b, tile, row, column);
            b.store(Place::Array(tiles.array(tile)), vec![index], value);
        });
    } else {
        tiles.each_owned(b, tile, |b, element| tiles.write(b, tile, element, value));
    }
}

pub(super) fn load(
    b: &mut Builder<'_>,
    tiles: &Tiles<'_>,
    tile: Tile,
    source: Param,
    leading: &[Value],
    origin: [Value; 2],
    transposed: bool,
) {
    let source = Block2 {
        param: source,
        leading,
        origin,
    };
    let name = b.kernel.tiles[tile].name.to_string();
    let scalar = b.kernel.tiles[tile].scalar;
    let local = b.local(&format!("{name}_element"), scalar.x(1));
    let element_of = |b: &mut Builder<'_>, row: Value, column: Value| {
        let (row, column) = if transposed {
            (column, row)
        } else {
            (row, column)
        };
        source.element(b, local, scalar, row, column)
    };
    if is_shared(b.kernel, tile) {
        tiles.each_shared(b, tile, transposed, |b, row, column| {
            let value = element_of(b, row, column);
            let index = tiles.shared_index(b, tile, row, column);
            b.store(Place::Array(tiles.array(tile)), vec![index], value);
        });
    } else {
        tiles.each_owned(b, tile, |b, element| {
            let value = element_of(b, element.at.0, element.at.1);
            tiles.write(b, tile, element, value);
        });
    }
}

pub(super) fn store(
    b: &mut Builder<'_>,
    tiles: &Tiles<'_>,
    tile: Tile,
    target: Param,
    leading: &[Value],
    origin: [Value; 2],
) {
    let target = Block2 {
        param: target,
        leading,
        origin,
    };
    let place = Place::Tensor(target.param);
    let own = b.kernel.tiles[tile].scalar;
    let to = b.kernel.tensor(target.param).map_or(own, |t| t.scalar);
    if is_shared(b.kernel, tile) {
        tiles.each_shared(b, tile, false, |b, row, column| {
            let (indices, inside) = target.cell(b, row, column);
            b.if_then(inside, |b| {
                let index = tiles.shared_index(b, tile, row, column);
                let value = b.load(Place::Array(tiles.array(tile)), vec![index], own.x(1));
                let value = b.convert(value, to);
                b.store(place, indices, value);
            });
        });
    } else {
        let by_element = |b: &mut Builder<'_>| {
            tiles.each_owned(b, tile, |b, element| {
                let (indices, inside) = target.cell(b, element.at.0, element.at.1);
                tiles.if_owner(b, tile, element, vec![inside], |b| {
                    let value = tiles.read(b, tile, element);
                    let value = b.convert(value, to);
                    b.store(place, indices, value);
                });
            });
        };
        match quads::condition(b, tiles, tile, &target) {
            None => by_element(b),
            Some(condition) => {
                let then_block = b.nested(|b| quads::store(b, tiles, tile, &target));
                let else_block = b.nested(by_element);
                b.push(Stmt::If {
                    condition,
                    then_block,
                    else_block,
                });
            }
        }
    }
}

pub(super) fn copy(b: &mut Builder<'_>, tiles: &Tiles<'_>, to: Tile, from: Tile) {
    let (inner, outer) = (b.kernel.tiles[from].scalar, b.kernel.tiles[to].scalar);
    if is_shared(b.kernel, to) && is_shared(b.kernel, from) {
        tiles.each_shared(b, to, false, |b, row, column| {
            let index = tiles.shared_index(b, from, row, column);
            let value = b.load(Place::Array(tiles.array(from)), vec![index], inner.x(1));
            let value = b.convert(value, outer);
            let index = tiles.shared_index(b, to, row, column);
            b.store(Place::Array(tiles.array(to)), vec![index], value);
        });
    } else {
        tiles.each_owned(b, to, |b, element| {
            tiles.for_writing(b, to, element, |b| {
                let value = tiles.read(b, from, element);
                let value = b.convert(value, outer);
                tiles.write(b, to, element, value);
            });
        });
    }
}

/// The parts of an element-wise map.
pub(super) struct Map {
    pub to: Tile,
    pub from: Vec<Tile>,
    pub elements: Vec<Value>,
    pub row: Value,
    pub column: Value,
    pub body: Block,
    pub result: Value,
}

pub(super) fn map(b: &mut Builder<'_>, tiles: &Tiles<'_>, map: Map) {
    let Map {
        to,
        from,
        elements,
        row,
        column,
        body,
        result,
    } = map;
    tiles.each_owned(b, to, |b, element| {
        b.replace(row, element.at.0);
        b.replace(column, element.at.1);
        tiles.for_writing(b, to, element, |b| {
            for (value, tile) in elements.iter().zip(&from) {
                let read = tiles.read(b, *tile, element);
                b.replace(*value, read);
            }
            let body = b.rewrite_block(body, &mut |_, stmt| Some(stmt));
            b.out.extend(body.0);
            let result = b.resolve(result);
            tiles.write(b, to, element, result);
        });
    });
}

/// A block of the last two dimensions of a tensor.
pub(super) struct Block2<'a> {
    pub param: Param,
    pub leading: &'a [Value],
    pub origin: [Value; 2],
}

impl Block2<'_> {
    /// The element at a position in the block as `scalar`, zero where the tensor lacks it;
    /// through a variable.
    pub(super) fn element(
        &self,
        b: &mut Builder<'_>,
        local: Local,
        scalar: Scalar,
        row: Value,
        column: Value,
    ) -> Value {
        let (indices, inside) = self.cell(b, row, column);
        let zero = b.splat_const(scalar.x(1), iron_ir::Const::zero(scalar));
        b.push(Stmt::Set(local, zero));
        let from = b.kernel.tensor(self.param).map_or(scalar, |t| t.scalar);
        b.if_then(inside, |b| {
            let loaded = b.load(Place::Tensor(self.param), indices, from.x(1));
            let loaded = b.convert(loaded, scalar);
            b.push(Stmt::Set(local, loaded));
        });
        b.get(local)
    }

    /// The indices of the element at a position in the block, and whether the tensor has it.
    fn cell(&self, b: &mut Builder<'_>, row: Value, column: Value) -> (Vec<Value>, Value) {
        let rank = self.leading.len() + 2;
        let mut indices = self.leading.to_vec();
        let mut inside = Vec::new();
        for (axis, (origin, at)) in self.origin.into_iter().zip([row, column]).enumerate() {
            let index = plus(b, origin, at);
            let limit = extent(b, self.param, rank - 2 + axis);
            inside.push(b.compare(CompareOp::Lt, index, limit));
            indices.push(index);
        }
        let inside = all(b, inside)
            .unwrap_or_else(|| b.value(Op::Const(iron_ir::Const::bool(true)), Type::BOOL));
        (indices, inside)
    }
}
