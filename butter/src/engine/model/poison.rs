//! Instruments of tests: what of the state is in use, and poison for what is not.

use std::ops::Range;

use iron_runtime::Tensor;

use super::super::matrix::failed;
use super::super::state::BLOCK_SIZE;
use super::super::step::HeldState;
use super::DeviceModel;
use crate::model::ModelError;

/// How much of a model's state is taken. All counts are back where they began when every
/// sequence is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateUsage {
    /// Open sequences.
    pub sequences: usize,
    /// Sequences that may still be opened.
    pub free_sequences: usize,
    /// Blocks of the cache that sequences hold.
    pub blocks: usize,
    /// Blocks of the cache that are free.
    pub free_blocks: usize,
}

impl DeviceModel {
    /// How much of the state is taken.
    pub fn state_usage(&self) -> StateUsage {
        self.pages.usage()
    }

    /// Fills with NaN whatever no committed state needs: free blocks, positions past a
    /// sequence's length (rejected rows among them), positions that windows have moved past,
    /// and state slots that neither hold a committed state nor one that can still be given
    /// back. An answer that changes had read what it must not. For tests.
    pub fn poison_unused_state(&self) -> Result<(), ModelError> {
        let ring_blocks = self.cache.ring_blocks;
        let ring = ring_blocks * BLOCK_SIZE;
        let mut full = vec![[false; BLOCK_SIZE]; self.cache.blocks];
        let mut window = vec![[false; BLOCK_SIZE]; self.cache.window_blocks()];
        let mut slots = vec![false; self.cache.state_slots()];
        slots[self.zero_slot as usize] = true;
        for sequence in self.pages.open_sequences() {
            for position in 0..sequence.length {
                full[sequence.blocks[position / BLOCK_SIZE] as usize][position % BLOCK_SIZE] = true;
            }
            for position in sequence.kept_of_ring(ring) {
                let block = sequence.slot as usize * ring_blocks + position % ring / BLOCK_SIZE;
                window[block][position % BLOCK_SIZE] = true;
            }
            for slot in sequence.kept_slots() {
                slots[slot as usize] = true;
            }
        }
        for held in self.graph.held_states() {
            match held {
                HeldState::Cache { tensors, windowed } => {
                    let kept = if windowed { &window } else { &full };
                    for tensor in tensors {
                        poison_cache(tensor, kept)?;
                    }
                }
                HeldState::Slots(tensor) => {
                    for (slot, _) in slots.iter().enumerate().filter(|(_, kept)| !**kept) {
                        poison(tensor, 0, slot..slot + 1)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// `[blocks, heads, positions, …]`, where `kept` says which positions of a block stay.
fn poison_cache(tensor: &Tensor, kept: &[[bool; BLOCK_SIZE]]) -> Result<(), ModelError> {
    for (block, kept) in kept.iter().enumerate() {
        if kept.iter().all(|kept| !kept) {
            poison(tensor, 0, block..block + 1)?;
            continue;
        }
        if kept.iter().all(|kept| *kept) {
            continue;
        }
        let block = block as u64;
        let block = failed(tensor.slice(0, block..block + 1))?;
        for head in 0..tensor.shape()[1] {
            let head = failed(block.slice(1, head..head + 1))?;
            for (position, _) in kept.iter().enumerate().filter(|(_, kept)| !**kept) {
                poison(&head, 2, position..position + 1)?;
            }
        }
    }
    Ok(())
}

/// All bits set is NaN in every float type.
fn poison(tensor: &Tensor, axis: usize, range: Range<usize>) -> Result<(), ModelError> {
    let part = failed(tensor.slice(axis, range.start as u64..range.end as u64))?;
    let bytes = part.elements() * u64::from(part.scalar().bytes());
    failed(part.write_bytes(&vec![0xff; bytes as usize]))
}
