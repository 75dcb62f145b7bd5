//! Scratch memory of a workgroup: shared arrays, private arrays, and what lives across
//! synchronisation points, thread by thread.

use std::collections::HashMap;

use iron_ir::entity::{Local, Value};
use iron_ir::kernel::{Kernel, Space};
use iron_ir::{Handle, Type};

use super::emit::Emitter;
use super::plan::Plan;

/// Where everything lies, in bytes from the start.
pub(super) struct Scratch {
    pub arrays: Vec<u32>,
    pub values: HashMap<Value, u32>,
    pub locals: HashMap<Local, u32>,
    /// Operands of a collective: one slot a thread, padded to a power of two.
    pub exchange: u32,
    /// Arguments of an exchange, and the record handed to its function.
    pub arguments: u32,
    /// Where the function of an exchange works: 8 bytes a thread.
    pub work: u32,
    pub work_arguments: u32,
    pub record: u32,
    pub bytes: u32,
}

/// Bytes that one thread's value takes: 4 for scalars of at most 32 bits, 8 for wide ones, 16
/// for four lanes.
pub(super) fn thread_bytes(ty: Type) -> u32 {
    Emitter::slot_types(ty)
        .iter()
        .map(|t| t.bytes().max(4))
        .sum()
}

impl Scratch {
    /// Lays out a kernel's scratch memory; `None` where it passes 2 GiB.
    pub fn new(kernel: &Kernel, plan: &Plan<'_>) -> Option<Scratch> {
        let threads = u64::from(kernel.contract.threads());
        let mut end = 0u64;
        let mut place = |bytes: u64| {
            let at = end.next_multiple_of(64);
            end = at + bytes;
            u32::try_from(at).ok()
        };
        let mut arrays = Vec::new();
        for (array, data) in kernel.arrays.iter() {
            let bytes = u64::from(data.len) * u64::from(data.scalar.bytes());
            let copies = match data.space {
                Space::Shared => 1,
                Space::Private if plan.transient_arrays.contains(&array) => u64::from(plan.width),
                Space::Private | Space::Ahead => threads,
            };
            // A full vector may be read at the end.
            arrays.push(place(bytes * copies + 16)?);
        }
        let mut values = HashMap::new();
        let mut spilled: Vec<_> = plan.spilled.iter().copied().collect();
        spilled.sort_unstable_by_key(|v| v.index());
        for value in spilled {
            values.insert(
                value,
                place(threads * u64::from(thread_bytes(kernel.ty(value))))?,
            );
        }
        let mut locals = HashMap::new();
        let mut stored: Vec<_> = plan.stored_locals.iter().copied().collect();
        stored.sort_unstable();
        for local in stored {
            let ty = kernel.locals[local].ty;
            locals.insert(local, place(threads * u64::from(thread_bytes(ty)))?);
        }
        let slots = threads.next_power_of_two().max(4) * 8 * 8;
        let exchange = place(slots)?;
        let arguments = place(slots)?;
        let work = place(threads * 8)?;
        let work_arguments = place(threads * 8)?;
        let record = place(64)?;
        let bytes = u32::try_from(end.next_multiple_of(64)).ok()?;
        (bytes < 1 << 31).then_some(Scratch {
            arrays,
            values,
            locals,
            exchange,
            arguments,
            work,
            work_arguments,
            record,
            bytes,
        })
    }
}
