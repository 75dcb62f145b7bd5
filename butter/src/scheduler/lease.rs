//! Leases of a model's sequences: what is taken is given back exactly once, and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::model::{Model, ModelError, SequenceId};

/// What is leased at this moment and was leased since the start.
#[derive(Default, Debug)]
pub struct LeaseCounters {
    /// Leases taken.
    pub taken: AtomicU64,
    /// Leases given back to the model.
    pub released: AtomicU64,
    /// Leases that were dropped without being given back: a bug.
    pub leaked: AtomicU64,
    /// Positions reserved by the leases that are out, in whole blocks.
    pub positions: AtomicU64,
}

impl LeaseCounters {
    /// Leases that are out.
    pub fn out(&self) -> u64 {
        self.taken.load(Relaxed) - self.released.load(Relaxed)
    }
}

/// An open sequence of a model. Whoever holds it must [`release`](Self::release) it: only the
/// model can take a sequence back, so dropping it counts as a leak.
#[derive(Debug)]
pub struct Lease {
    sequence: SequenceId,
    /// Positions reserved, in whole blocks.
    positions: usize,
    block: usize,
    counters: Arc<LeaseCounters>,
    released: bool,
}

impl Lease {
    /// Opens a sequence with room for `capacity` positions.
    pub fn take(
        model: &mut dyn Model,
        capacity: usize,
        block: usize,
        counters: &Arc<LeaseCounters>,
    ) -> Result<Lease, ModelError> {
        let sequence = model.open_sequence(capacity)?;
        let positions = whole_blocks(capacity, block);
        counters.taken.fetch_add(1, Relaxed);
        counters.positions.fetch_add(positions as u64, Relaxed);
        Ok(Lease {
            sequence,
            positions,
            block,
            counters: counters.clone(),
            released: false,
        })
    }

    /// The sequence.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Positions reserved, in whole blocks.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Changes what is reserved; on an error nothing has changed.
    pub fn resize(&mut self, model: &mut dyn Model, capacity: usize) -> Result<(), ModelError> {
        model.resize_sequence(self.sequence, capacity)?;
        let positions = whole_blocks(capacity, self.block);
        let counted = &self.counters.positions;
        counted.fetch_add(positions as u64, Relaxed);
        counted.fetch_sub(self.positions as u64, Relaxed);
        self.positions = positions;
        Ok(())
    }

    /// Gives the sequence back.
    pub fn release(mut self, model: &mut dyn Model) {
        model.close_sequence(self.sequence);
        self.released = true;
        self.counters.released.fetch_add(1, Relaxed);
        self.counters
            .positions
            .fetch_sub(self.positions as u64, Relaxed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.released {
            self.counters.leaked.fetch_add(1, Relaxed);
        }
    }
}

/// `positions` rounded up to blocks.
pub fn whole_blocks(positions: usize, block: usize) -> usize {
    positions.div_ceil(block.max(1)) * block.max(1)
}
