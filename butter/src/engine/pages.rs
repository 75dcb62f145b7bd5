//! Sequences and the pages of the key-value cache that they hold.

use std::collections::BTreeMap;

use crate::model::{ModelError, SequenceId};

/// Which blocks of the cache each open sequence holds. All blocks of a sequence are reserved
/// when it opens and released exactly once, when it closes.
#[derive(Debug)]
pub struct PageTable {
    block_size: usize,
    max_blocks: usize,
    free_blocks: Vec<u32>,
    free_slots: Vec<u32>,
    sequences: BTreeMap<SequenceId, Sequence>,
    next_id: u32,
}

/// An open sequence.
#[derive(Debug)]
pub struct Sequence {
    /// Row of the block table.
    pub slot: u32,
    /// Blocks in order of position.
    pub blocks: Vec<u32>,
    /// Positions whose keys and values are there.
    pub length: usize,
    /// Positions reserved.
    pub capacity: usize,
}

impl PageTable {
    /// A table of `blocks` blocks of `block_size` positions for `slots` sequences of at most
    /// `max_blocks` blocks each.
    pub fn new(blocks: usize, block_size: usize, slots: usize, max_blocks: usize) -> PageTable {
        PageTable {
            block_size,
            max_blocks,
            free_blocks: (0..blocks as u32).rev().collect(),
            free_slots: (0..slots as u32).rev().collect(),
            sequences: BTreeMap::new(),
            next_id: 0,
        }
    }

    /// Opens a sequence and reserves its blocks.
    pub fn open(&mut self, capacity: usize) -> Result<SequenceId, ModelError> {
        let needed = capacity.div_ceil(self.block_size);
        if needed > self.max_blocks || needed > self.free_blocks.len() {
            let positions = self.free_blocks.len().min(self.max_blocks) * self.block_size;
            return Err(ModelError::Device(format!(
                "a sequence of {capacity} positions does not fit the cache: {positions} are free"
            )));
        }
        let Some(slot) = self.free_slots.pop() else {
            let open = self.sequences.len();
            return Err(ModelError::Device(format!(
                "{open} sequences are open, no more fit"
            )));
        };
        let blocks = self.free_blocks.split_off(self.free_blocks.len() - needed);
        let id = SequenceId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        self.sequences.insert(
            id,
            Sequence {
                slot,
                blocks,
                length: 0,
                capacity,
            },
        );
        Ok(id)
    }

    /// Closes a sequence and frees its blocks; gives its slot back. `None` if it is not open.
    pub fn close(&mut self, id: SequenceId) -> Option<u32> {
        let sequence = self.sequences.remove(&id)?;
        self.free_blocks.extend(sequence.blocks);
        self.free_slots.push(sequence.slot);
        Some(sequence.slot)
    }

    /// An open sequence.
    pub fn get(&self, id: SequenceId) -> Result<&Sequence, ModelError> {
        self.sequences
            .get(&id)
            .ok_or(ModelError::UnknownSequence(id))
    }

    /// An open sequence, to be changed.
    pub fn get_mut(&mut self, id: SequenceId) -> Result<&mut Sequence, ModelError> {
        self.sequences
            .get_mut(&id)
            .ok_or(ModelError::UnknownSequence(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_comes_back_exactly_once() {
        let mut table = PageTable::new(10, 16, 3, 8);
        let a = table.open(33).unwrap();
        let b = table.open(100).unwrap();
        assert_eq!(table.free_blocks.len(), 0);
        assert!(table.open(1).is_err(), "no block is left");
        assert!(table.close(a).is_some());
        assert!(table.close(a).is_none(), "closed already");
        assert_eq!(table.free_blocks.len(), 3);
        let c = table.open(48).unwrap();
        assert_ne!(a, c);
        table.close(b);
        table.close(c);
        let mut blocks = table.free_blocks.clone();
        blocks.sort_unstable();
        assert_eq!(blocks, (0..10).collect::<Vec<u32>>());
    }
}
