//! The activation arena of a step: tensors with known lifetimes packed into one buffer.
//!
//! A step's launches are numbered; a tensor lives from the launch that first writes it to the
//! last that reads it. Two tensors share bytes only if no launch sees both.

/// Bytes that every tensor's start is a multiple of.
const ALIGNMENT: u64 = 256;

/// A tensor of the arena, by its order of declaration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot(usize);

/// Declares tensors, then places them.
#[derive(Default, Debug)]
pub struct ArenaPlan {
    tensors: Vec<Lifetime>,
}

#[derive(Clone, Copy, Debug)]
struct Lifetime {
    bytes: u64,
    first: usize,
    last: usize,
}

/// Where each tensor lies.
#[derive(Debug)]
pub struct ArenaLayout {
    offsets: Vec<u64>,
    /// Size of the whole arena.
    pub bytes: u64,
}

impl ArenaPlan {
    /// Declares a tensor that lives from launch `first` to launch `last`, both included.
    pub fn declare(&mut self, bytes: u64, first: usize, last: usize) -> Slot {
        self.tensors.push(Lifetime {
            bytes,
            first,
            last: last.max(first),
        });
        Slot(self.tensors.len() - 1)
    }

    /// Places every tensor at the lowest offset that is free during its life, large ones first.
    pub fn place(&self) -> ArenaLayout {
        let mut order: Vec<usize> = (0..self.tensors.len()).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(self.tensors[i].bytes), i));
        let mut offsets = vec![0; self.tensors.len()];
        let mut placed: Vec<usize> = Vec::new();
        let mut end = 0;
        for i in order {
            let tensor = self.tensors[i];
            let mut taken: Vec<(u64, u64)> = placed
                .iter()
                .filter(|&&j| {
                    let other = self.tensors[j];
                    tensor.first <= other.last && other.first <= tensor.last
                })
                .map(|&j| (offsets[j], offsets[j] + self.tensors[j].bytes))
                .collect();
            taken.sort_unstable();
            let mut at = 0u64;
            for (start, stop) in taken {
                if at + tensor.bytes <= start {
                    break;
                }
                at = at.max(stop.next_multiple_of(ALIGNMENT));
            }
            offsets[i] = at;
            end = end.max(at + tensor.bytes);
            placed.push(i);
        }
        ArenaLayout {
            offsets,
            bytes: end.next_multiple_of(ALIGNMENT),
        }
    }
}

impl ArenaLayout {
    /// Byte offset of a tensor.
    pub fn offset(&self, slot: Slot) -> u64 {
        self.offsets[slot.0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tensors_alive_together_never_share_bytes(
            tensors in prop::collection::vec((0u64..5000, 0usize..20, 0usize..6), 1..40)
        ) {
            let mut plan = ArenaPlan::default();
            let slots: Vec<_> = tensors
                .iter()
                .map(|&(bytes, first, length)| plan.declare(bytes, first, first + length))
                .collect();
            let layout = plan.place();
            for (i, &(bytes, first, length)) in tensors.iter().enumerate() {
                let start = layout.offset(slots[i]);
                prop_assert!(start + bytes <= layout.bytes);
                prop_assert_eq!(start % ALIGNMENT, 0);
                for (j, &(other_bytes, other_first, other_length)) in tensors.iter().enumerate().skip(i + 1) {
                    let together = first <= other_first + other_length && other_first <= first + length;
                    let other = layout.offset(slots[j]);
                    prop_assert!(!together || start + bytes <= other || other + other_bytes <= start);
                }
            }
        }
    }
}
