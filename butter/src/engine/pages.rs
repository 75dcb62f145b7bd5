//! Sequences and the pages of the key-value cache that they hold.

use std::collections::BTreeMap;
use std::ops::Range;

use super::model::StateUsage;
use super::state::MOST_SNAPSHOTS;
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
    /// Slots of states beside the two of each sequence.
    free_states: Vec<u32>,
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
    /// Slots of states that are its own.
    own: Vec<u32>,
    /// The states that are there, of growing lengths: the last is the committed one.
    states: Vec<State>,
    /// One past the last position ever written since the sequence was empty.
    written: usize,
}

/// A recurrent state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    /// Positions that went into it.
    length: usize,
    slot: u32,
}

/// Positions between states that are worth a slot of the pool.
const APART: usize = 32;

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
        let from = self.states.last().map_or(zero, |state| state.slot);
        (from, self.next_slot())
    }

    /// The slots whose state a step, or one after a truncation, may read.
    pub fn kept_slots(&self) -> impl Iterator<Item = u32> {
        self.states.iter().map(|state| state.slot)
    }

    /// The slot that the next step writes: a free one, else that of the state which goes first.
    fn next_slot(&self) -> u32 {
        let is_free = |slot: &&u32| self.states.iter().all(|state| state.slot != **slot);
        match self.own.iter().find(is_free) {
            Some(slot) => *slot,
            None => self.states[self.first_to_go().0].slot,
        }
    }

    /// The state without which those that stay lie closest together, and how far its neighbours
    /// are apart then. Never the committed one.
    fn first_to_go(&self) -> (usize, usize) {
        let gap = |i: usize| {
            let before = i
                .checked_sub(1)
                .map_or(0, |before| self.states[before].length);
            self.states[i + 1].length - before
        };
        let older = 0..self.states.len().saturating_sub(1);
        let (gap, index) = older.map(|i| (gap(i), i)).min().unwrap_or((0, 0));
        (index, gap)
    }

    /// Whether another slot would keep a state that is worth it.
    fn wants_slot(&self) -> bool {
        self.states.len() == self.own.len()
            && self.own.len() < 2 + MOST_SNAPSHOTS
            && self.first_to_go().1 >= APART
    }

    /// The positions that a ring of `ring` positions still holds.
    pub fn kept_of_ring(&self, ring: usize) -> Range<usize> {
        self.written.saturating_sub(ring)..self.length
    }

    /// A step up to `length` starts: what it overwrites is no longer there.
    pub fn begin(&mut self, length: usize) {
        if self.states.len() == self.own.len() {
            self.states.remove(self.first_to_go().0);
        }
        self.written = self.written.max(length);
    }

    /// Positions up to `end` are written by rows that do not join the sequence.
    pub fn overwrite(&mut self, end: usize) {
        self.written = self.written.max(end);
    }

    /// The step's rows join the sequence.
    pub fn commit(&mut self, length: usize) {
        let slot = self.next_slot();
        self.states.push(State { length, slot });
        self.length = length;
    }

    /// Forgets the positions from `length` on, and as many before as the layers cannot give
    /// back. Returns the length that is left.
    pub fn truncate(&mut self, length: usize, layers: Forgetting) -> usize {
        if length >= self.length {
            return self.length;
        }
        let mut kept = length;
        if layers.recurrent {
            let states = self.states.iter().rev();
            let last = states.map(|state| state.length).find(|at| *at <= length);
            kept = last.unwrap_or(0);
        }
        if let Some((window, ring)) = layers.ring
            && (kept + 1).saturating_sub(window) < self.written.saturating_sub(ring)
        {
            kept = 0;
        }
        self.states.retain(|state| state.length <= kept);
        self.length = kept;
        if kept == 0 {
            self.written = 0;
        }
        kept
    }
}

impl PageTable {
    /// A table of `blocks` blocks of `block_size` positions for `slots` sequences of at most
    /// `max_blocks` blocks each, with two slots of states each and `snapshots` for all.
    pub fn new(
        blocks: usize,
        block_size: usize,
        slots: usize,
        max_blocks: usize,
        snapshots: usize,
    ) -> PageTable {
        PageTable {
            block_size,
            max_blocks,
            blocks,
            free_blocks: (0..blocks as u32).rev().collect(),
            free_slots: (0..slots as u32).rev().collect(),
            free_states: (2 * slots as u32..(2 * slots + snapshots) as u32)
                .rev()
                .collect(),
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
                own: vec![2 * slot, 2 * slot + 1],
                states: Vec::new(),
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
        self.free_states.extend(&sequence.own[2..]);
        Some(sequence.slot)
    }

    /// Gives a sequence another slot for states where that keeps one which is worth it.
    pub fn reserve_state(&mut self, id: SequenceId) -> Result<(), ModelError> {
        let sequence = self
            .sequences
            .get_mut(&id)
            .ok_or(ModelError::UnknownSequence(id))?;
        if sequence.wants_slot() {
            sequence.own.extend(self.free_states.pop());
        }
        Ok(())
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
        let mut table = PageTable::new(100, 16, 1, 100, 0);
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

    // E09: what a step reads is what a step of that length wrote, whatever was cut or abandoned
    // between, and no state is in two places.
    #[test]
    fn a_slot_holds_the_state_that_it_is_said_to_hold() {
        let layers = Forgetting {
            ring: None,
            recurrent: true,
        };
        const ZERO: u32 = 2 * 3 + 7;
        let mut seed = 1u32;
        let mut below = |n: usize| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as usize % n
        };
        let mut table = PageTable::new(1000, 16, 3, 1000, 7);
        // What lies in each slot: whose state, and of which tokens.
        let mut slots: Vec<Option<(SequenceId, Vec<usize>)>> = vec![None; ZERO as usize];
        let mut open: Vec<(SequenceId, Vec<usize>)> = Vec::new();
        let mut most_kept = 0;
        for turn in 0..20_000 {
            if open.len() < 3 {
                open.push((table.open(4000).expect("room"), Vec::new()));
            }
            let chosen = below(open.len());
            let (id, tokens) = &mut open[chosen];
            match below(40) {
                0 => {
                    table.close(*id);
                    open.swap_remove(chosen);
                    continue;
                }
                1 | 2 => {
                    let length = below(tokens.len() + 1);
                    let wanted = table
                        .get(*id)
                        .expect("open")
                        .clone()
                        .truncate(length, layers);
                    let left = table.get_mut(*id).expect("open").truncate(length, layers);
                    assert!(left == wanted && left <= length);
                    tokens.truncate(left);
                }
                kind => {
                    let rows = if kind < 20 {
                        1 + below(3)
                    } else {
                        16 + below(60)
                    };
                    if tokens.len() + rows > 4000 {
                        continue;
                    }
                    table.reserve_state(*id).expect("open");
                    let sequence = table.get_mut(*id).expect("open");
                    let (from, to) = sequence.state_slots(ZERO);
                    sequence.begin(tokens.len() + rows);
                    assert_eq!(sequence.state_slots(ZERO), (from, to), "of a second part");
                    match from {
                        ZERO => assert!(tokens.is_empty()),
                        from => {
                            let found = slots[from as usize].as_ref();
                            assert_eq!(found, Some(&(*id, tokens.clone())), "turn {turn}");
                        }
                    }
                    let longer: Vec<usize> = tokens
                        .iter()
                        .copied()
                        .chain((0..rows).map(|i| turn * 100 + i))
                        .collect();
                    slots[to as usize] = Some((*id, longer.clone()));
                    // Every tenth step is abandoned.
                    if below(10) > 0 {
                        sequence.commit(longer.len());
                        *tokens = longer;
                    }
                    most_kept = most_kept.max(sequence.states.len());
                }
            }
        }
        assert_eq!(most_kept, 2 + 7, "one sequence had the whole pool");
        for (id, _) in open {
            table.close(id);
        }
        assert_eq!(table.free_states.len(), 7);
    }

    #[test]
    fn snapshots_spread_over_a_long_prompt() {
        let layers = Forgetting {
            ring: None,
            recurrent: true,
        };
        let mut table = PageTable::new(1000, 16, 1, 1000, 8);
        let id = table.open(4096).expect("room");
        for length in (64..=2048).step_by(64).chain(2049..2100) {
            table.reserve_state(id).expect("open");
            let sequence = table.get_mut(id).expect("open");
            sequence.begin(length);
            sequence.commit(length);
        }
        let sequence = table.get(id).expect("open");
        assert_eq!(sequence.states.len(), 2 + MOST_SNAPSHOTS);
        let mut worst = 0;
        for cut in 0..2099 {
            worst = worst.max(cut - sequence.clone().truncate(cut, layers));
        }
        assert!(worst <= 512, "{worst} positions are computed again");
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
        let mut table = PageTable::new(10, 16, 3, 8, 0);
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
