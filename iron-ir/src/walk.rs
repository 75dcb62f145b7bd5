//! Walking the statement tree.

use smallvec::smallvec;

use crate::kernel::{Block, Span, Values};
use crate::op::{Stmt, TileStmt};

impl Block {
    /// Calls `visit` on every statement, outer before inner, in order.
    pub fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Stmt, Span)) {
        for (stmt, span) in &self.0 {
            visit(stmt, *span);
            for block in stmt.blocks() {
                block.walk(visit);
            }
        }
    }

    /// Calls `visit` on every statement, outer before inner, in order.
    pub fn walk_mut(&mut self, visit: &mut dyn FnMut(&mut Stmt, Span)) {
        for (stmt, span) in &mut self.0 {
            visit(stmt, *span);
            for block in stmt.blocks_mut() {
                block.walk_mut(visit);
            }
        }
    }
}

impl Stmt {
    /// The blocks nested in this statement, in order.
    pub fn blocks(&self) -> Vec<&Block> {
        match self {
            Stmt::If {
                then_block,
                else_block,
                ..
            } => vec![then_block, else_block],
            Stmt::Roles {
                producer, consumer, ..
            } => vec![producer, consumer],
            Stmt::For { body, .. } | Stmt::Loop { body } => vec![body],
            Stmt::Tile(tile) => match tile {
                TileStmt::Map { body, .. } => vec![body],
                TileStmt::Fill { .. }
                | TileStmt::Load { .. }
                | TileStmt::Store { .. }
                | TileStmt::Copy { .. }
                | TileStmt::Matmul { .. }
                | TileStmt::ReduceRows { .. }
                | TileStmt::ReduceColumns { .. } => Vec::new(),
            },
            Stmt::Machine(_)
            | Stmt::Let(_)
            | Stmt::Set(..)
            | Stmt::Store { .. }
            | Stmt::Atomic { .. }
            | Stmt::Barrier(..)
            | Stmt::Subgroup { .. }
            | Stmt::Group { .. }
            | Stmt::Mma { .. }
            | Stmt::CheckIndex { .. }
            | Stmt::Break
            | Stmt::Continue
            | Stmt::Return => Vec::new(),
        }
    }

    /// The blocks nested in this statement, in order.
    pub fn blocks_mut(&mut self) -> Vec<&mut Block> {
        match self {
            Stmt::If {
                then_block,
                else_block,
                ..
            } => vec![then_block, else_block],
            Stmt::Roles {
                producer, consumer, ..
            } => vec![producer, consumer],
            Stmt::For { body, .. } | Stmt::Loop { body } => vec![body],
            Stmt::Tile(tile) => match tile {
                TileStmt::Map { body, .. } => vec![body],
                TileStmt::Fill { .. }
                | TileStmt::Load { .. }
                | TileStmt::Store { .. }
                | TileStmt::Copy { .. }
                | TileStmt::Matmul { .. }
                | TileStmt::ReduceRows { .. }
                | TileStmt::ReduceColumns { .. } => Vec::new(),
            },
            Stmt::Machine(_)
            | Stmt::Let(_)
            | Stmt::Set(..)
            | Stmt::Store { .. }
            | Stmt::Atomic { .. }
            | Stmt::Barrier(..)
            | Stmt::Subgroup { .. }
            | Stmt::Group { .. }
            | Stmt::Mma { .. }
            | Stmt::CheckIndex { .. }
            | Stmt::Break
            | Stmt::Continue
            | Stmt::Return => Vec::new(),
        }
    }

    /// Values that this statement itself reads, without those of nested blocks. A `Let` reads
    /// its value's operands, which the value holds.
    pub fn uses(&self) -> Values {
        match self {
            Stmt::Let(_)
            | Stmt::Loop { .. }
            | Stmt::Roles { .. }
            | Stmt::Break
            | Stmt::Continue
            | Stmt::Return => Values::new(),
            Stmt::Machine(machine) => Values::from_slice(&machine.operands),
            Stmt::Barrier(..) => Values::new(),
            Stmt::Set(_, value) => smallvec![*value],
            Stmt::Store { indices, value, .. } => indices.iter().copied().chain([*value]).collect(),
            Stmt::Atomic {
                indices,
                value,
                compare,
                ..
            } => indices
                .iter()
                .copied()
                .chain(*value)
                .chain(*compare)
                .collect(),
            Stmt::Subgroup {
                value, argument, ..
            }
            | Stmt::Group {
                value, argument, ..
            } => [*value].into_iter().chain(*argument).collect(),
            Stmt::Mma { a, b, sum, .. } => smallvec![a[0], a[1], *b, *sum],
            Stmt::CheckIndex { index, bound, .. } => smallvec![*index, *bound],
            Stmt::If { condition, .. } => smallvec![*condition],
            Stmt::For {
                start, end, step, ..
            } => smallvec![*start, *end, *step],
            Stmt::Tile(tile) => match tile {
                TileStmt::Fill { value, .. } => smallvec![*value],
                TileStmt::Load {
                    leading, origin, ..
                }
                | TileStmt::Store {
                    leading, origin, ..
                } => leading.iter().chain(origin).copied().collect(),
                TileStmt::Map { result, .. } => smallvec![*result],
                TileStmt::Copy { .. }
                | TileStmt::Matmul { .. }
                | TileStmt::ReduceRows { .. }
                | TileStmt::ReduceColumns { .. } => Values::new(),
            },
        }
    }

    /// Values that this statement defines.
    pub fn defines(&self) -> Values {
        match self {
            Stmt::Let(value) => smallvec![*value],
            Stmt::Atomic { result, .. }
            | Stmt::Subgroup { result, .. }
            | Stmt::Group { result, .. }
            | Stmt::Mma { result, .. }
            | Stmt::CheckIndex { result, .. } => smallvec![*result],
            Stmt::For { index, .. } => smallvec![*index],
            Stmt::Machine(machine) => machine.result.into_iter().collect(),
            Stmt::Tile(tile) => match tile {
                TileStmt::Map {
                    elements,
                    row,
                    column,
                    ..
                } => elements.iter().copied().chain([*row, *column]).collect(),
                TileStmt::Fill { .. }
                | TileStmt::Load { .. }
                | TileStmt::Store { .. }
                | TileStmt::Copy { .. }
                | TileStmt::Matmul { .. }
                | TileStmt::ReduceRows { .. }
                | TileStmt::ReduceColumns { .. } => Values::new(),
            },
            Stmt::Set(..)
            | Stmt::Store { .. }
            | Stmt::Barrier(..)
            | Stmt::If { .. }
            | Stmt::Loop { .. }
            | Stmt::Roles { .. }
            | Stmt::Break
            | Stmt::Continue
            | Stmt::Return => Values::new(),
        }
    }
}
