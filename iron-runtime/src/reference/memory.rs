//! Memory of a launch: global buffers, shared and private arrays, with what was written and by
//! whom.

use std::any::Any;
use std::sync::Arc;

use iron_ir::Scalar;
use iron_ir::kernel::Span;
use iron_ir::launch::DeviceBuffer;
use parking_lot::{Mutex, MutexGuard};

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

/// Who makes an access, and when.
#[derive(Clone, Copy)]
pub(super) struct Actor {
    /// Linear index of the workgroup, from 1.
    pub group: u32,
    pub thread: u32,
    pub subgroup: u32,
    /// Barriers of the workgroup passed, of those that order this memory.
    pub epoch: u32,
    /// Barriers of the subgroup passed.
    pub subgroup_epoch: u32,
    pub span: Span,
}

/// Kind of an access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessKind {
    Read,
    Write,
    Atomic,
}

/// The last accesses of one kind to a cell.
#[derive(Clone, Copy, Default)]
struct Record {
    group: u32,
    thread: u32,
    epoch: u32,
    subgroup_epoch: u32,
    line: u32,
    column: u16,
    file: u16,
}

/// Several workgroups.
const MANY_GROUPS: u32 = u32::MAX;
/// Several threads of several subgroups.
const MANY: u32 = u32::MAX;
/// Several threads of the subgroup in the low bits.
const MANY_OF_SUBGROUP: u32 = 1 << 31;
/// A tile operation: the workgroup as a whole.
pub(super) const TILE: u32 = MANY_OF_SUBGROUP - 1;

/// The accesses to one cell since the last barrier.
#[derive(Clone, Copy, Default)]
pub(super) struct Shadow {
    read: Record,
    write: Record,
    atomic: Record,
}

/// A conflicting access found.
pub(super) struct Race {
    pub earlier: &'static str,
    pub who: String,
    pub span: Span,
}

impl Record {
    fn conflicts(&self, me: &Actor) -> bool {
        if self.group == 0 {
            return false;
        }
        if self.group != me.group {
            return true;
        }
        if self.epoch < me.epoch || self.thread == me.thread {
            return false;
        }
        let same_subgroup = self.thread != MANY
            && self.thread & MANY_OF_SUBGROUP != 0
            && self.thread & !MANY_OF_SUBGROUP == me.subgroup;
        !(same_subgroup && self.subgroup_epoch < me.subgroup_epoch)
    }

    fn note(&mut self, me: &Actor, lanes: u32) {
        let fresh = Record {
            group: me.group,
            thread: me.thread,
            epoch: me.epoch,
            subgroup_epoch: me.subgroup_epoch,
            line: me.span.line,
            column: me.span.column,
            file: me.span.file,
        };
        if self.group == 0 || (self.group == me.group && self.epoch < me.epoch) {
            *self = fresh;
        } else if self.group != me.group {
            *self = Record {
                group: MANY_GROUPS,
                thread: MANY,
                ..fresh
            };
        } else if self.thread != me.thread {
            let subgroup = if self.thread & MANY_OF_SUBGROUP == 0 {
                self.thread / lanes
            } else {
                self.thread & !MANY_OF_SUBGROUP
            };
            let thread = if subgroup == me.subgroup {
                MANY_OF_SUBGROUP | subgroup
            } else {
                MANY
            };
            *self = Record { thread, ..fresh };
        } else {
            *self = fresh;
        }
    }

    fn describe(&self, me: &Actor) -> String {
        if self.group == MANY_GROUPS {
            "threads of several workgroups".into()
        } else if self.group != me.group {
            format!("a thread of workgroup {} (linear)", self.group - 1)
        } else if self.thread == TILE {
            "a tile operation".into()
        } else if self.thread & MANY_OF_SUBGROUP != 0 {
            "several threads".into()
        } else {
            format!("thread {}", self.thread)
        }
    }
}

impl Shadow {
    /// Notes an access; the conflicting earlier one, if there is one. `lanes` is the subgroup
    /// width.
    pub fn access(&mut self, kind: AccessKind, me: &Actor, lanes: u32) -> Option<Race> {
        let rivals: [(&Record, &'static str); 3] = [
            (&self.write, "written"),
            (&self.read, "read"),
            (&self.atomic, "changed atomically"),
        ];
        for (record, earlier) in rivals {
            let rival = !matches!(
                (kind, earlier),
                (AccessKind::Read, "read") | (AccessKind::Atomic, "changed atomically")
            );
            // One thread's own subgroup needs its thread id spread to the subgroup's form.
            let record = &record.widened(me, lanes);
            if rival && record.conflicts(me) {
                let span = Span {
                    file: record.file,
                    line: record.line,
                    column: record.column,
                };
                return Some(Race {
                    earlier,
                    who: record.describe(me),
                    span,
                });
            }
        }
        match kind {
            AccessKind::Read => self.read.note(me, lanes),
            AccessKind::Write => self.write.note(me, lanes),
            AccessKind::Atomic => self.atomic.note(me, lanes),
        }
        None
    }
}

impl Record {
    /// The same record, its single thread named by its subgroup where a subgroup barrier may
    /// have ordered it.
    fn widened(&self, me: &Actor, lanes: u32) -> Record {
        let single = self.thread & MANY_OF_SUBGROUP == 0 && self.thread != TILE;
        let earlier = self.subgroup_epoch < me.subgroup_epoch;
        if single && earlier && self.thread != me.thread {
            Record {
                thread: MANY_OF_SUBGROUP | (self.thread / lanes),
                ..*self
            }
        } else {
            *self
        }
    }
}

/// A shared or private array: the bits of each element, whether it was written, and who touched
/// it (shared arrays).
pub(super) struct ArrayMemory {
    pub bits: Vec<u64>,
    pub written: Vec<bool>,
    pub shadow: Vec<Shadow>,
}

impl ArrayMemory {
    /// Undefined contents.
    pub fn new(elements: usize, shadowed: bool) -> ArrayMemory {
        ArrayMemory {
            bits: vec![0xA5A5_A5A5_A5A5_A5A5; elements],
            written: vec![false; elements],
            shadow: vec![Shadow::default(); if shadowed { elements } else { 0 }],
        }
    }

    /// Undefined again.
    pub fn forget(&mut self) {
        self.written.fill(false);
        self.shadow.fill(Shadow::default());
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
    pub shadow: Vec<Shadow>,
    /// First byte of the shadowed range.
    pub shadow_start: usize,
    /// Bytes of a granule: the smallest element among the parameters on this buffer.
    pub granule: usize,
}
