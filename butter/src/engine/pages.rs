//! Sequences and the pages of the key-value cache that they hold.

use std::collections::BTreeMap;
use std::ops::Range;

use super::model::StateUsage;
use crate::model::{ModelError, SequenceId};

/// Which blocks of the cache each open sequence holds. All blocks of a sequence are reserved
/// when it opens and released exactly once, when it closes.
#[derive(Debug)]
pub struct PageTable {
    block_size: usize,
    max_blocks: usize,
    blocks: usize,
    free_blocks: Vec<u32>,
    free_slots: Vec<u32>,
    sequences: BTreeMap<SequenceId, Sequence>,
    next_id: u32,
}

/// An open sequence.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Row of the block table.
    pub slot: u32,
    /// Blocks in order of position.
    pub blocks: Vec<u32>,
    /// Positions whose keys and values are there.
    pub length: usize,
    /// Positions reserved.
    pub capacity: usize,
    /// Which of its two state slots holds the committed state: 0 or 1.
    version: u32,
    /// The length whose state the other slot still holds.
    previous: Option<usize>,
    /// One past the last position ever written since the sequence was empty.
    written: usize,
}

/// What a model's layers can forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forgetting {
    /// The widest window of a layer that keeps no more, and the positions that its ring holds.
    pub ring: Option<(usize, usize)>,
    /// Whether a layer keeps a state, which has no positions.
    pub recurrent: bool,
}

impl Sequence {
    /// The slots of state that a step reads and writes; `zero` is the one for beginnings.
    pub fn state_slots(&self, zero: u32) -> (u32, u32) {
        let committed = 2 * self.slot + self.version;
        let from = if self.length == 0 { zero } else { committed };
        (from, 2 * self.slot + (1 - self.version))
    }

    /// The slots whose state a step, or one after a truncation, may read.
    pub fn kept_slots(&self) -> impl Iterator<Item = u32> {
        let committed = (self.length > 0).then_some(2 * self.slot + self.version);
        let previous = self.previous.map(|_| 2 * self.slot + (1 - self.version));
        committed.into_iter().chain(previous)
    }

    /// The positions that a ring of `ring` positions still holds.
    pub fn kept_of_ring(&self, ring: usize) -> Range<usize> {
        self.written.saturating_sub(ring)..self.length
    }

    /// A step up to `length` starts: what it overwrites is no longer there.
    pub fn begin(&mut self, length: usize) {
        self.previous = None;
        self.written = self.written.max(length);
    }

    /// The step's rows join the sequence.
    pub fn commit(&mut self, length: usize) {
        self.previous = Some(self.length);
        self.version = 1 - self.version;
        self.length = length;
    }

    /// Forgets the positions from `length` on, and as many before as the layers cannot give
    /// back. Returns the length that is left.
    pub fn truncate(&mut self, length: usize, layers: Forgetting) -> usize {
        if length >= self.length {
            return self.length;
        }
        let mut kept = length;
        if layers.recurrent && kept > 0 {
            // The states that are there: the committed one, and the one before its step.
            kept = match self.previous {
                Some(previous) if previous <= length => previous,
                _ => 0,
            };
            self.version = 1 - self.version;
        }
        if let Some((window, ring)) = layers.ring
            && (kept + 1).saturating_sub(window) < self.written.saturating_sub(ring)
        {
            kept = 0;
        }
        self.previous = None;
        self.length = kept;
        if kept == 0 {
            self.written = 0;
        }
        kept
    }
}

impl PageTable {
    /// A table of `blocks` blocks of `block_size` positions for `slots` sequences of at most
    /// `max_blocks` blocks each.
    pub fn new(blocks: usize, block_size: usize, slots: usize, max_blocks: usize) -> PageTable {
        PageTable {
            block_size,
            max_blocks,
            blocks,
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
        // Ids come round; one that is open is not given again.
        while self.sequences.contains_key(&SequenceId(self.next_id)) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = SequenceId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        self.sequences.insert(
            id,
            Sequence {
                slot,
                blocks,
                length: 0,
                capacity,
                version: 0,
                previous: None,
                written: 0,
            },
        );
        Ok(id)
    }

    /// Positions of all blocks.
    pub fn positions(&self) -> usize {
        self.blocks * self.block_size
    }

    /// Reserves blocks for a sequence up to `capacity`, or frees those past it. What the sequence
    /// holds stays; on an error nothing has changed.
    pub fn resize(&mut self, id: SequenceId, capacity: usize) -> Result<(), ModelError> {
        let needed = capacity.div_ceil(self.block_size);
        let sequence = self
            .sequences
            .get_mut(&id)
            .ok_or(ModelError::UnknownSequence(id))?;
        let held = sequence.blocks.len();
        if capacity < sequence.length {
            return Err(ModelError::Capacity {
                sequence: id,
                needed: sequence.length,
                capacity,
            });
        }
        if needed > self.max_blocks || needed.saturating_sub(held) > self.free_blocks.len() {
            let positions = (held + self.free_blocks.len()).min(self.max_blocks) * self.block_size;
            return Err(ModelError::Device(format!(
                "{id} cannot grow to {capacity} positions: the cache has room for {positions}"
            )));
        }
        if needed >= held {
            let from = self.free_blocks.len() - (needed - held);
            sequence.blocks.extend(self.free_blocks.split_off(from));
        } else {
            self.free_blocks.extend(sequence.blocks.split_off(needed));
        }
        sequence.capacity = capacity;
        Ok(())
    }

    /// Closes a sequence and frees its blocks; gives its slot back. `None` if it is not open.
    pub fn close(&mut self, id: SequenceId) -> Option<u32> {
        let sequence = self.sequences.remove(&id)?;
        self.free_blocks.extend(sequence.blocks);
        self.free_slots.push(sequence.slot);
        Some(sequence.slot)
    }

    /// How much is taken.
    pub fn usage(&self) -> StateUsage {
        StateUsage {
            sequences: self.sequences.len(),
            free_sequences: self.free_slots.len(),
            blocks: self.sequences.values().map(|s| s.blocks.len()).sum(),
            free_blocks: self.free_blocks.len(),
        }
    }

    /// All open sequences.
    pub fn open_sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.values()
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

    fn sequence(steps: &[usize]) -> Sequence {
        let mut table = PageTable::new(100, 16, 1, 100);
        let id = table.open(1000).unwrap();
        let mut sequence = table.sequences.remove(&id).unwrap();
        for &length in steps {
            sequence.begin(length);
            sequence.commit(length);
        }
        sequence
    }

    // E13: a ring of 12 positions for a window of 4.
    #[test]
    fn a_ring_gives_back_only_what_it_still_holds() {
        let layers = Forgetting {
            ring: Some((4, 12)),
            recurrent: false,
        };
        for (length, kept) in [(20, 20), (19, 19), (11, 11), (10, 0), (3, 0)] {
            // Positions 8..20 are held, and the row at `length` sees three before it.
            assert_eq!(sequence(&[20]).truncate(length, layers), kept, "{length}");
        }
        assert_eq!(
            sequence(&[12]).truncate(3, layers),
            3,
            "nothing was overwritten"
        );
    }

    // E06, E09: an abandoned step leaves the committed state; one step back is there, no more.
    #[test]
    fn a_state_gives_back_its_last_step_or_everything() {
        let layers = Forgetting {
            ring: None,
            recurrent: true,
        };
        let committed = sequence(&[5, 9]);
        let (from, to) = committed.state_slots(7);
        assert_ne!(from, to);
        let mut back = sequence(&[5, 9]);
        assert_eq!(sequence(&[5, 9]).truncate(7, layers), 5);
        assert_eq!(back.truncate(5, layers), 5);
        assert_eq!(back.state_slots(7), (to, from));
        assert_eq!(back.truncate(3, layers), 0);
        assert_eq!(back.state_slots(7).0, 7, "a beginning reads the zero state");
        let mut abandoned = sequence(&[5, 9]);
        abandoned.begin(12);
        assert_eq!(abandoned.state_slots(7), (from, to));
        assert_eq!(abandoned.truncate(5, layers), 0, "its slot was written");
    }

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
        let d = table.open(40).unwrap();
        let kept = table.get(d).unwrap().blocks.clone();
        assert!(table.resize(d, 8 * 16 + 1).is_err(), "longer than any");
        table.resize(d, 100).unwrap();
        assert_eq!(table.get(d).unwrap().blocks[..3], kept[..]);
        assert_eq!(table.free_blocks.len(), 3);
        table.get_mut(d).unwrap().commit(20);
        assert!(table.resize(d, 19).is_err(), "20 positions are held");
        table.resize(d, 20).unwrap();
        assert_eq!(table.get(d).unwrap().blocks[..], kept[..2]);
        table.close(d);
        let mut blocks = table.free_blocks.clone();
        blocks.sort_unstable();
        assert_eq!(blocks, (0..10).collect::<Vec<u32>>());
    }
}
