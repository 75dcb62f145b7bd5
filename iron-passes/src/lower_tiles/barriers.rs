//! Where barriers must stand between tile statements.

use std::collections::HashMap;

use iron_ir::entity::Tile;
use iron_ir::op::{BarrierScope, Stmt};

/// Memory of the workgroup that a tile statement uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Memory {
    /// A shared tile.
    Tile(Tile),
    /// The scratch of reductions.
    Scratch,
}

/// What a tile statement does with shared memory.
#[derive(Clone, Default, Debug)]
pub(super) struct Touched {
    pub reads: Vec<Memory>,
    pub writes: Vec<Memory>,
    /// The statement has a barrier of its own between its writes and its reads.
    pub synchronises: bool,
}

impl Touched {
    /// What an earlier turn of a loop may have left behind, with no barrier since.
    pub(super) fn across_turns(mut self) -> Touched {
        self.synchronises = false;
        self
    }
}

/// Accesses since the last barrier.
#[derive(Clone, Default, Debug)]
pub(super) struct Pending {
    /// Read, written.
    memory: HashMap<Memory, (bool, bool)>,
}

impl Pending {
    /// Whether a barrier must stand before a statement that does this; if so, it is assumed.
    pub(super) fn before(&mut self, touched: &Touched) -> bool {
        let of = |m: &Memory| self.memory.get(m).copied().unwrap_or_default();
        let conflict = touched
            .reads
            .iter()
            .any(|m| of(m).1 && !touched.writes_scratch(m))
            || touched.writes.iter().any(|m| of(m) != (false, false));
        if conflict {
            self.memory.clear();
        }
        conflict
    }

    /// Notes what the statement did.
    pub(super) fn after(&mut self, touched: &Touched) {
        if touched.synchronises {
            self.memory.clear();
        } else {
            for memory in &touched.writes {
                self.memory.entry(*memory).or_default().1 = true;
            }
        }
        for memory in &touched.reads {
            self.memory.entry(*memory).or_default().0 = true;
        }
    }

    /// A statement that is not about tiles.
    pub(super) fn other(&mut self, stmt: &Stmt) {
        if let Stmt::Barrier(BarrierScope::Workgroup | BarrierScope::Grid, _) = stmt {
            self.memory.clear();
        }
    }

    /// Accesses of either.
    pub(super) fn join(&mut self, other: &Pending) {
        for (memory, (read, written)) in &other.memory {
            let entry = self.memory.entry(*memory).or_default();
            entry.0 |= read;
            entry.1 |= written;
        }
    }
}

impl Touched {
    /// Scratch is read after the statement's own barrier.
    fn writes_scratch(&self, memory: &Memory) -> bool {
        self.synchronises && *memory == Memory::Scratch
    }
}
