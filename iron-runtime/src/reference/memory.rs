//! Memory of a launch: global buffers, shared and private arrays, with what was written and by
//! whom.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use iron_ir::Scalar;
use iron_ir::launch::DeviceBuffer;
use parking_lot::{Mutex, MutexGuard};

use super::program::Pc;

/// A buffer of the reference device.
pub(super) struct ReferenceBuffer {
    bytes: u64,
    contents: Mutex<Contents>,
}

/// Bytes, and for each whether it was ever written.
pub(super) struct Contents {
    pub bytes: Vec<u8>,
    pub written: Vec<bool>,
}

impl ReferenceBuffer {
    /// A buffer whose contents are undefined; reads give a fixed pattern and are reported.
    pub fn new(bytes: u64) -> Option<ReferenceBuffer> {
        let n = usize::try_from(bytes).ok()?;
        let mut data = Vec::new();
        let mut written = Vec::new();
        data.try_reserve_exact(n).ok()?;
        written.try_reserve_exact(n).ok()?;
        data.resize(n, 0xA5);
        written.resize(n, false);
        Some(ReferenceBuffer {
            bytes,
            contents: Mutex::new(Contents {
                bytes: data,
                written,
            }),
        })
    }

    /// Locks the contents.
    pub fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock()
    }
}

impl DeviceBuffer for ReferenceBuffer {
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The buffer, if it is one of this device.
pub(super) fn own(buffer: &Arc<dyn DeviceBuffer>) -> Option<&ReferenceBuffer> {
    buffer.as_any().downcast_ref()
}

/// One access to a cell. Group 0 is no access.
#[derive(Clone, Copy, Default)]
pub(super) struct Access {
    /// Linear index of the workgroup, from 1.
    pub group: u32,
    pub thread: u32,
    /// Barriers of the workgroup passed, of those that order this memory.
    pub epoch: u32,
    /// Barriers of the subgroup or workgroup passed, of those that order this memory.
    pub subgroup_epoch: u32,
    /// Instruction.
    pub site: Pc,
}

/// Threads from here on are tile operations: each is the workgroup as a whole, and no thread of it.
pub(super) const FIRST_TILE: u32 = 1 << 31;

/// Of workgroups, by [`Access::group`], the epoch before which what they did comes before what is
/// asked about.
pub(super) type Ordered = HashMap<u32, u32>;

/// Adds what another order has.
pub(super) fn join_orders(into: &mut Ordered, other: &Ordered) {
    for (&group, &epoch) in other {
        let known = into.entry(group).or_default();
        *known = epoch.max(*known);
    }
}

/// Who makes an access, and when.
#[derive(Clone, Copy)]
pub(super) struct Actor<'a> {
    pub access: Access,
    /// What other workgroups did before, by barriers of the device's memory.
    pub seen: Option<&'a Ordered>,
    /// Binary logarithm of the subgroup's width.
    pub lanes_log2: u32,
    /// The cell is of shared memory, which other workgroups never see.
    pub is_shared: bool,
}

/// Kind of an access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessKind {
    Read,
    Write,
    Atomic,
}

impl Access {
    fn subgroup(&self, me: &Actor<'_>) -> u32 {
        if self.thread < FIRST_TILE {
            self.thread >> me.lanes_log2
        } else {
            self.thread
        }
    }

    fn is_absent(&self, me: &Actor<'_>) -> bool {
        self.group == 0 || (me.is_shared && self.group != me.access.group)
    }

    /// A barrier, or the order of the thread itself, puts this access before `me`.
    fn is_before(&self, me: &Actor<'_>) -> bool {
        let now = &me.access;
        if self.group != now.group {
            let seen = me.seen.and_then(|seen| seen.get(&self.group));
            return seen.is_some_and(|epoch| self.epoch < *epoch);
        }
        self.thread == now.thread
            || self.epoch < now.epoch
            || (self.subgroup_epoch < now.subgroup_epoch && self.subgroup(me) == now.subgroup(me))
    }

    fn conflicts(&self, me: &Actor<'_>) -> bool {
        !self.is_absent(me) && !self.is_before(me)
    }
}

/// Two accesses that stand for any number of them: whoever conflicts with some access noted here
/// conflicts with one of the two.
///
/// An access stands for every earlier one of its thread, and for every one that a workgroup barrier
/// put before it. Of accesses between the same two workgroup barriers, two of different subgroups
/// conflict with whoever comes; within one subgroup, the latest two of different threads suffice.
/// Of workgroups that a barrier of the device's memory may put before others, the latest two stand:
/// one that comes later and is behind those, yet not behind an earlier one, is not found.
#[derive(Clone, Copy, Default)]
struct Accesses([Access; 2]);

impl Accesses {
    fn note(&mut self, me: &Actor<'_>) {
        let now = me.access;
        for old in &mut self.0 {
            let covered = match old.group == now.group {
                true => old.thread == now.thread || old.epoch < now.epoch,
                false => old.is_before(me),
            };
            if covered || old.is_absent(me) {
                *old = Access::default();
            }
        }
        let [a, b] = &mut self.0;
        if a.group == 0 {
            *a = now;
        } else if b.group == 0 {
            *b = now;
        } else if a.group == b.group && a.subgroup(me) == b.subgroup(me) {
            let older = if a.subgroup_epoch <= b.subgroup_epoch {
                a
            } else {
                b
            };
            *older = now;
        } else if me.seen.is_some() && a.group != now.group && b.group != now.group {
            (*a, *b) = (*b, now);
        }
    }

    fn conflict(&self, me: &Actor<'_>) -> Option<Access> {
        self.0.into_iter().find(|access| access.conflicts(me))
    }
}

/// The accesses to one cell that may still conflict with one to come.
#[derive(Clone, Copy, Default)]
pub(super) struct Shadow {
    /// A write that raced with nothing stands for all that was before it.
    write: Access,
    reads: Accesses,
    atomics: Accesses,
}

/// A conflicting access found.
pub(super) struct Race {
    pub kind: AccessKind,
    pub earlier: Access,
}

impl Shadow {
    /// Notes an access; the conflicting earlier one, if there is one.
    pub fn access(&mut self, kind: AccessKind, me: &Actor<'_>) -> Option<Race> {
        if self.write.conflicts(me) {
            let earlier = self.write;
            return Some(Race {
                kind: AccessKind::Write,
                earlier,
            });
        }
        let rivals = [
            (AccessKind::Read, &self.reads),
            (AccessKind::Atomic, &self.atomics),
        ];
        for (earlier_kind, accesses) in rivals {
            if kind != earlier_kind
                && let Some(earlier) = accesses.conflict(me)
            {
                return Some(Race {
                    kind: earlier_kind,
                    earlier,
                });
            }
        }
        match kind {
            AccessKind::Read => self.reads.note(me),
            AccessKind::Atomic => self.atomics.note(me),
            AccessKind::Write => {
                *self = Shadow {
                    write: me.access,
                    ..Shadow::default()
                };
            }
        }
        None
    }
}

/// Shadow cells of a range, made where they are first touched.
pub(super) struct Shadows {
    pages: Vec<Option<Box<[Shadow]>>>,
}

const PAGE: usize = 512;

impl Shadows {
    /// Untouched cells.
    pub fn new(cells: usize) -> Shadows {
        Shadows {
            pages: vec![None; cells.div_ceil(PAGE)],
        }
    }

    /// Nothing is watched.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// One cell.
    #[inline]
    pub fn cell(&mut self, at: usize) -> &mut Shadow {
        let page = self.pages[at / PAGE]
            .get_or_insert_with(|| vec![Shadow::default(); PAGE].into_boxed_slice());
        &mut page[at % PAGE]
    }

    /// Every cell untouched again.
    pub fn clear(&mut self) {
        self.pages.fill(None);
    }
}

/// A shared or private array: the bits of each element, whether it was written, and who touched
/// it (shared arrays).
pub(super) struct ArrayMemory {
    pub bits: Vec<u64>,
    pub written: Vec<bool>,
    pub shadows: Shadows,
    /// Of an array that is filled ahead of its use.
    batches: Option<Batches>,
}

/// What has been stored but cannot be read yet, of each thread.
struct Batches {
    /// Batches that each thread has ended.
    ended: Vec<usize>,
    /// Elements and their batch, counted as `ended` is.
    pending: Vec<Vec<(usize, usize)>>,
}

impl ArrayMemory {
    /// Undefined contents.
    pub fn new(elements: usize, shadowed: bool) -> ArrayMemory {
        ArrayMemory {
            bits: vec![0xA5A5_A5A5_A5A5_A5A5; elements],
            written: vec![false; elements],
            shadows: Shadows::new(if shadowed { elements } else { 0 }),
            batches: None,
        }
    }

    /// Each thread's array of `elements`, filled ahead of its use.
    pub fn ahead(elements: usize, threads: usize) -> ArrayMemory {
        ArrayMemory {
            batches: Some(Batches {
                ended: vec![0; threads],
                pending: vec![Vec::new(); threads],
            }),
            ..ArrayMemory::new(elements * threads, false)
        }
    }

    /// Notes that thread `t` wrote an element.
    pub fn note_write(&mut self, at: usize, t: usize) {
        self.written[at] = self.batches.is_none();
        if let Some(batches) = &mut self.batches {
            batches.pending[t].push((at, batches.ended[t]));
        }
    }

    /// Ends a batch of thread `t`.
    pub fn end_batch(&mut self, t: usize) {
        if let Some(batches) = &mut self.batches {
            batches.ended[t] += 1;
        }
    }

    /// What thread `t` wrote can be read, but for its `newest` batches and the one not ended.
    pub fn wait_batches(&mut self, t: usize, newest: usize) {
        if let Some(batches) = &mut self.batches {
            let arrived = batches.ended[t].saturating_sub(newest);
            let written = &mut self.written;
            // A cell that a later batch writes again is not to be read before that arrives.
            batches.pending[t].retain(|&(at, batch)| {
                written[at] = batch < arrived;
                batch >= arrived
            });
        }
    }

    /// Undefined again.
    pub fn forget(&mut self) {
        // The shadows tell workgroups apart.
        self.written.fill(false);
        if let Some(batches) = &mut self.batches {
            batches.pending.iter_mut().for_each(Vec::clear);
        }
    }
}

/// Reads an element of `bytes` bytes, zero-extended.
pub(super) fn read_bits(bytes: &[u8]) -> u64 {
    match bytes.len() {
        1 => u64::from(bytes[0]),
        2 => u64::from(u16::from_le_bytes([bytes[0], bytes[1]])),
        4 => u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        _ => {
            let mut word = [0u8; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        }
    }
}

/// A tensor parameter of a launch.
pub(super) struct TensorMemory {
    pub scalar: Scalar,
    /// Index into the launch's buffers.
    pub buffer: usize,
    /// First element.
    pub offset: u64,
    pub shape: Vec<u64>,
    pub strides: Vec<u64>,
    /// Elements from the first to past the last.
    pub span: u64,
    pub writable: bool,
}

/// A buffer of a launch.
pub(super) struct BufferMemory<'a> {
    pub contents: MutexGuard<'a, Contents>,
    /// One a granule of the range that the launch may touch; empty where nothing writes it.
    pub shadows: Shadows,
    /// First byte of the shadowed range.
    pub shadow_start: usize,
    /// Bytes of a granule: the smallest element among the parameters on this buffer.
    pub granule: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a barrier, or the thread's own order, puts one access before a later one.
    fn ordered(before: &Access, after: &Access, lanes: u32, is_shared: bool) -> bool {
        if before.group != after.group {
            return is_shared;
        }
        let same_subgroup = before.thread / lanes == after.thread / lanes;
        before.thread == after.thread
            || before.epoch < after.epoch
            || (same_subgroup && before.subgroup_epoch < after.subgroup_epoch)
    }

    /// Two accesses a kind stand for all of them: a race is found where, and only where, the whole
    /// history holds one.
    #[test]
    fn a_race_is_found_exactly_where_the_whole_history_has_one() {
        let mut state = 1u64;
        let mut draw = |n: u32| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as u32 % n
        };
        let (mut races, mut clean) = (0, 0);
        for round in 0..60_000 {
            let is_shared = round % 2 == 0;
            let lanes_log2 = 1 + draw(2);
            let mut cell = Shadow::default();
            let mut history: Vec<(AccessKind, Access)> = Vec::new();
            let mut now = Access {
                group: 1,
                ..Access::default()
            };
            let kinds = [
                AccessKind::Read,
                AccessKind::Read,
                AccessKind::Atomic,
                AccessKind::Write,
            ];
            for site in 0..24 {
                match draw(8) {
                    0 => now.subgroup_epoch += 1,
                    1 => {
                        now.epoch += 1;
                        now.subgroup_epoch += 1;
                    }
                    2 if draw(3) == 0 => now.group += 1,
                    _ => {}
                }
                now.thread = draw(6);
                now.site = site;
                let kind = kinds[draw(4) as usize];
                let actor = Actor {
                    access: now,
                    seen: None,
                    lanes_log2,
                    is_shared,
                };
                let conflict = history.iter().any(|(other, access)| {
                    let harmless = kind == *other && kind != AccessKind::Write;
                    !harmless && !ordered(access, &now, 1 << lanes_log2, is_shared)
                });
                let found = cell.access(kind, &actor);
                assert_eq!(found.is_some(), conflict, "round {round}, access {site}");
                let Some(race) = found else {
                    history.push((kind, now));
                    clean += 1;
                    continue;
                };
                let named = history.iter().find(|(_, a)| a.site == race.earlier.site);
                let named = named.expect("an access that was made");
                assert!(named.0 == race.kind);
                assert!(!ordered(&named.1, &now, 1 << lanes_log2, is_shared));
                races += 1;
                break;
            }
        }
        assert!(
            races > 20_000 && clean > 50_000,
            "{races} races, {clean} clean accesses"
        );
    }
}
