//! Sequences whose request has ended, kept for requests that begin with the same tokens.

use super::lease::Lease;
use crate::model::Model;

/// Shortest start that is worth taking a kept sequence for.
const SHORTEST: usize = 16;

/// Which starts of a prompt may come from a kept sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefixReuse {
    /// None: every prompt is computed.
    Off,
    /// Up to a multiple of the prefill chunk that was computed in the same chunks, so that the
    /// answer has the same bits as after a cold start.
    Exact,
    /// Up to any position that every layer of the model can give back: the answers of a talk are
    /// not computed again. Rounding may differ from a cold start, because an answer was computed
    /// row by row.
    Any,
}

/// A kept sequence.
#[derive(Debug)]
struct Kept {
    lease: Lease,
    /// The tokens whose state it holds.
    tokens: Vec<u32>,
    /// How many of them a cold start computes in the same chunks.
    aligned: usize,
    /// Tenant: only requests with the same salt may see it.
    salt: u64,
    /// The request that was preempted and will want all of it.
    owner: Option<u64>,
    /// Turn of the last use.
    used: u64,
}

/// The kept sequences, the least recently used of which goes first.
#[derive(Default, Debug)]
pub struct PrefixCache {
    kept: Vec<Kept>,
    clock: u64,
}

/// What a request wants of the cache.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its tokens; the last is not taken, because its logits are wanted.
    pub tokens: &'a [u32],
    /// Its tenant.
    pub salt: u64,
    /// Its number.
    pub request: u64,
    /// Which starts may be reused.
    pub reuse: PrefixReuse,
    /// Rows of a prefill chunk.
    pub chunk: usize,
}

/// A sequence on the way to the cache.
#[derive(Debug)]
pub struct Parked {
    /// Its lease.
    pub lease: Lease,
    /// The tokens whose state it holds.
    pub tokens: Vec<u32>,
    /// How many of them a cold start computes in the same chunks.
    pub aligned: usize,
    /// Its tenant.
    pub salt: u64,
    /// The preempted request that it belongs to.
    pub owner: Option<u64>,
}

impl PrefixCache {
    /// Sequences kept.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Positions that the kept sequences reserve.
    pub fn positions(&self) -> usize {
        self.kept.iter().map(|kept| kept.lease.positions()).sum()
    }

    /// Keeps a sequence.
    pub fn park(&mut self, parked: Parked) {
        self.clock += 1;
        self.kept.push(Kept {
            lease: parked.lease,
            tokens: parked.tokens,
            aligned: parked.aligned,
            salt: parked.salt,
            owner: parked.owner,
            used: self.clock,
        });
    }

    /// Gives the least recently used sequence back to the model; false if none is kept.
    pub fn evict(&mut self, model: &mut dyn Model) -> bool {
        let oldest = (0..self.kept.len()).min_by_key(|&i| self.kept[i].used);
        match oldest {
            Some(index) => {
                self.kept.swap_remove(index).lease.release(model);
                true
            }
            None => false,
        }
    }

    /// Gives all sequences back.
    pub fn clear(&mut self, model: &mut dyn Model) {
        while self.evict(model) {}
    }

    /// Takes the sequence that spares most of a request's tokens, cut to what is reused, and
    /// the number of tokens that it holds. `None` if no sequence spares enough.
    pub fn take(&mut self, wanted: Wanted<'_>, model: &mut dyn Model) -> Option<(Lease, usize)> {
        let best = (0..self.kept.len())
            .map(|index| (self.reusable(index, wanted, model), index))
            // Of equals the one that loses least.
            .max_by_key(|&(length, index)| (length, usize::MAX - self.kept[index].tokens.len()));
        let (length, index) = best.filter(|&(length, _)| length >= SHORTEST.min(wanted.chunk))?;
        let kept = self.kept.swap_remove(index);
        match model.truncate_sequence(kept.lease.sequence(), length) {
            Ok(left) if left == length => Some((kept.lease, length)),
            // The model said otherwise before: what it holds now is not known.
            _ => {
                kept.lease.release(model);
                None
            }
        }
    }

    fn reusable(&self, index: usize, wanted: Wanted<'_>, model: &dyn Model) -> usize {
        let kept = &self.kept[index];
        let last = wanted.tokens.len().saturating_sub(1);
        let common = kept
            .tokens
            .iter()
            .zip(&wanted.tokens[..last])
            .take_while(|(held, token)| held == token)
            .count();
        if kept.salt != wanted.salt {
            return 0;
        }
        if kept.owner == Some(wanted.request) {
            return if common == kept.tokens.len() {
                common
            } else {
                0
            };
        }
        let chunk = wanted.chunk.max(1);
        let length = match wanted.reuse {
            PrefixReuse::Off => return 0,
            PrefixReuse::Any => common,
            PrefixReuse::Exact => common.min(kept.aligned) / chunk * chunk,
        };
        let left = model.reusable_length(kept.lease.sequence(), length);
        if wanted.reuse == PrefixReuse::Exact && left % chunk != 0 {
            return 0;
        }
        left
    }
}
