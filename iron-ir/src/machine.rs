//! Machine operations: what a target's own tile lowering makes of tile statements.
//!
//! But for [`MachineOp::BatchEnd`] and [`MachineOp::BatchWait`], which order nothing where stores are
//! done at once, they exist only in kernels that a pass has brought into a target's form, never in a
//! kernel as built, so the portable executions (`host`, `reference`, `cpu`, SPIR-V) have no meaning for
//! them: a lowering that meets one that its target lacks refuses the kernel. All of them are one
//! statement, [`MachineStmt`], whose parts [`MachineOp::signature`] counts.

use crate::entity::{Array, Param, Value};
use crate::kernel::{Kernel, Space};
use crate::op::Stmt;
use crate::types::{Scalar, Type};

/// Threads of a warpgroup, the unit that issues a warpgroup product.
pub const WARPGROUP: u32 = 128;

/// Rows, columns and steps of a fragment, the part of a tile that a subgroup multiplies at once.
pub const FRAGMENT: u32 = 16;

/// Columns of a panel of a swizzled tile in elements of 16 bits: 128 bytes, the widest pattern.
pub const PANEL: u32 = 64;

crate::op::operators! {
    /// What a machine statement does. A *signal* is a 64-bit cell of a shared array that counts
    /// arrivals and bytes and flips its phase bit when both are complete (PTX: `mbarrier`).
    MachineOp {
        /// Sets up a signal. Arrays: the signals. Operands: cell, arrivals of a phase.
        SignalInit = "signal_init",
        /// Makes signals that this thread set up visible to copies. Before a barrier.
        SignalFence = "signal_fence",
        /// Waits until the phase of a signal with that bit is complete. Arrays: the signals.
        /// Operands: cell, phase bit.
        SignalWait = "signal_wait",
        /// Arrives at a signal. Arrays: the signals. Operands: cell.
        SignalArrive = "signal_arrive",
        /// Arrives at a signal and makes its phase wait for bytes of copies. Arrays: the
        /// signals. Operands: cell. Numbers: bytes.
        SignalExpect = "signal_expect",
        /// Copies a block of a tensor's last two dimensions, one panel wide, into a panel of a
        /// swizzled tile; elements outside of the tensor become zero. One thread issues it.
        /// Arrays: the tile, the signals. Source: the tensor. Operands: element offset of the
        /// panel, cell of the signal, then one index a dimension. Numbers: rows.
        CopyPanel = "copy_panel",
        /// `bool`, the same in every thread: base address and strides of the tensor allow
        /// [`CopyPanel`](MachineOp::CopyPanel) and accesses of 16 bytes. Source: the tensor.
        IsAligned = "is_aligned",
        /// Makes this thread's ordinary writes to shared memory visible to products and copies.
        /// Before a barrier.
        SharedFence = "shared_fence",
        /// Begins a run of warpgroup products.
        ProductBegin = "product_begin",
        /// `d += a · b` over 16 steps of `k` for the 64 rows of this thread's warpgroup (PTX:
        /// `wgmma.mma_async … k16`), `d` in registers. Arrays: accumulator (private f32), a, b
        /// (swizzled tiles of one 16-bit float type). Operands: element offset of a's first row
        /// and step, of b's. Numbers: first element of the accumulator, columns, a is stored
        /// `k`-major (1) or row-major (0: `k` runs along rows of memory), the same of b,
        /// elements between panels of b.
        Product = "product",
        /// As [`Product`](MachineOp::Product), a held in registers in the accumulators' layout,
        /// two neighbouring elements a word. Arrays: accumulator, a (private u32), b. Operands:
        /// element offset of b's first row and step. Numbers: first element of the accumulator,
        /// columns, first word of a for this step, words from a thread's row to its next, b is
        /// stored `k`-major (1) or row-major (0), elements between panels of b.
        ProductHeld = "product_held",
        /// Ends the run and waits for its products, and those of runs that were left.
        ProductEnd = "product_end",
        /// Ends the run and leaves its products going on.
        ProductLeave = "product_leave",
        /// Waits for this warpgroup's turn, of two that take turns. Operands: its index.
        TurnWait = "turn_wait",
        /// Gives a warpgroup its turn, of two that take turns. Operands: its index.
        TurnGive = "turn_give",
        /// Sets fragments of sums to a number. A *fragment* is 16 by 16 elements that a subgroup
        /// holds together; which lane has which element is the target's affair, so all that can be
        /// done with one is here. A subgroup's fragments of a tile are one private array of `f32`,
        /// as many elements as a lane has, fragment after fragment, that nothing but these
        /// operations touches. Every thread of the subgroup is there, with the same operands.
        /// Arrays: sums. Numbers: fragments, bits of the number.
        FragmentFill = "fragment_fill",
        /// `d += a · b` for a grid of fragments and 16 steps of `k`. Arrays: sums (row after row
        /// of the grid), a, b (shared, of one 16-bit float type or its bits). Operands: element
        /// offset of a's first fragment, of b's. Numbers: rows and columns of the grid; whether
        /// the elements are `bf16` (1) or `f16` (0); then for a and for b three each: elements
        /// between lines of memory, elements between fragments of the grid, and whether the steps
        /// of `k` are neighbours in a line (1) or lines (0). Offsets and distances are multiples
        /// of 8 elements.
        FragmentProduct = "fragment_product",
        /// Writes a fragment to shared memory, row after row. Arrays: sums, memory (shared `f32`).
        /// Operands: element offset of the first. Numbers: fragment, elements between rows.
        FragmentStore = "fragment_store",
        /// Reads a fragment as [`FragmentStore`](MachineOp::FragmentStore) writes it.
        FragmentLoad = "fragment_load",
        /// Ends a batch of what is stored to an array ahead of its use. Arrays: that one.
        BatchEnd = "end_batch",
        /// Waits until this thread's batches have arrived but the newest. Arrays: that of the
        /// batches. Numbers: how many are the newest.
        BatchWait = "wait_batches",
        /// Begins to copy 16 bytes of a tensor to shared memory (PTX: `cp.async`); they have arrived
        /// when [`BatchWait`](MachineOp::BatchWait) has waited for this thread's batch. Arrays: the
        /// memory, of a 16-bit float type. Source: the tensor. Operands: element of the memory, flat
        /// offset in the tensor (`u64`), both multiples of 8.
        CopyAhead = "copy_ahead",
        /// As [`CopyAhead`](MachineOp::CopyAhead), of which those bytes count that one more operand
        /// says, 16 or none; the others become zero.
        CopyChunk = "copy_chunk",
        /// Raises (second number 1) or lowers (0) the registers of this warpgroup's threads.
        /// Numbers: registers, direction.
        Registers = "registers",
    }
}

/// How many parts each operation has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signature {
    /// A result of this type.
    pub result: Option<Type>,
    /// Arrays.
    pub arrays: usize,
    /// A tensor is named.
    pub source: bool,
    /// Operands, `u32` each but for the place in the tensor of [`MachineOp::CopyChunk`] and
    /// [`MachineOp::CopyAhead`]; [`MachineOp::CopyPanel`] has one more a dimension.
    pub operands: usize,
    /// Numbers.
    pub numbers: usize,
}

impl MachineOp {
    /// The parts of a statement of this operation.
    pub const fn signature(self) -> Signature {
        let (arrays, operands, numbers) = match self {
            MachineOp::SignalInit | MachineOp::SignalWait => (1, 2, 0),
            MachineOp::SignalArrive => (1, 1, 0),
            MachineOp::SignalExpect => (1, 1, 1),
            MachineOp::CopyPanel => (2, 2, 1),
            MachineOp::Product => (3, 2, 5),
            MachineOp::ProductHeld => (3, 1, 6),
            MachineOp::FragmentFill => (1, 0, 2),
            MachineOp::FragmentProduct => (3, 2, 9),
            MachineOp::FragmentStore | MachineOp::FragmentLoad => (2, 1, 2),
            MachineOp::CopyChunk => (1, 3, 0),
            MachineOp::Registers => (0, 0, 2),
            MachineOp::TurnWait | MachineOp::TurnGive => (0, 1, 0),
            MachineOp::BatchEnd => (1, 0, 0),
            MachineOp::BatchWait => (1, 0, 1),
            MachineOp::CopyAhead => (1, 2, 0),
            MachineOp::SignalFence
            | MachineOp::IsAligned
            | MachineOp::SharedFence
            | MachineOp::ProductBegin
            | MachineOp::ProductEnd
            | MachineOp::ProductLeave => (0, 0, 0),
        };
        Signature {
            result: match self {
                MachineOp::IsAligned => Some(Type::BOOL),
                _ => None,
            },
            arrays,
            source: matches!(
                self,
                MachineOp::CopyPanel
                    | MachineOp::CopyChunk
                    | MachineOp::CopyAhead
                    | MachineOp::IsAligned
            ),
            operands,
            numbers,
        }
    }
}

impl MachineOp {
    /// Whether it begins, ends or awaits what fills memory ahead of its use.
    pub const fn is_of_batches(self) -> bool {
        matches!(
            self,
            MachineOp::BatchEnd
                | MachineOp::BatchWait
                | MachineOp::CopyAhead
                | MachineOp::CopyChunk
        )
    }

    /// Whether kernels as built have it.
    pub const fn is_portable(self) -> bool {
        matches!(self, MachineOp::BatchEnd | MachineOp::BatchWait)
    }

    /// Whether it is about fragments.
    pub const fn is_of_fragments(self) -> bool {
        matches!(
            self,
            MachineOp::FragmentFill
                | MachineOp::FragmentProduct
                | MachineOp::FragmentStore
                | MachineOp::FragmentLoad
        )
    }
}

/// A machine operation with its parts.
#[derive(Clone, PartialEq, Debug)]
pub struct MachineStmt {
    /// What it does.
    pub op: MachineOp,
    /// What it defines.
    pub result: Option<Value>,
    /// See [`MachineOp`].
    pub arrays: Vec<Array>,
    /// See [`MachineOp`].
    pub source: Option<Param>,
    /// See [`MachineOp`].
    pub operands: Vec<Value>,
    /// See [`MachineOp`].
    pub numbers: Vec<u32>,
}

impl MachineStmt {
    /// A statement of arrays, operands and numbers.
    pub fn new(op: MachineOp, arrays: &[Array], operands: &[Value], numbers: &[u32]) -> Self {
        MachineStmt {
            op,
            result: None,
            arrays: arrays.to_vec(),
            source: None,
            operands: operands.to_vec(),
            numbers: numbers.to_vec(),
        }
    }
}

/// Why the parts of a statement do not fit its operation.
pub(crate) fn fault(kernel: &Kernel, stmt: &MachineStmt) -> Option<String> {
    let name = stmt.op.name();
    let expected = stmt.op.signature();
    let tensor = stmt.source.map(|param| {
        let data = kernel.params.get(param)?;
        match &data.kind {
            crate::kernel::ParamKind::Tensor(tensor) => Some(tensor),
            crate::kernel::ParamKind::Scalar(_) => None,
        }
    });
    if tensor.is_some() != expected.source || tensor == Some(None) {
        return Some(format!(
            "`{name}` names no tensor where it must, or one too many"
        ));
    }
    let rank = match (stmt.op, tensor.flatten()) {
        (MachineOp::CopyPanel, Some(tensor)) => tensor.shape.len(),
        _ => 0,
    };
    let found = (stmt.arrays.len(), stmt.operands.len(), stmt.numbers.len());
    let wanted = (expected.arrays, expected.operands + rank, expected.numbers);
    if found != wanted {
        return Some(format!(
            "`{name}` has {found:?} arrays, operands and numbers, not {wanted:?}"
        ));
    }
    if stmt.result.map(|v| kernel.ty(v)) != expected.result {
        return Some(format!("`{name}` has a result of another type"));
    }
    let is_wide =
        |n: usize| matches!(stmt.op, MachineOp::CopyChunk | MachineOp::CopyAhead) && n == 1;
    let mut operands = stmt.operands.iter().enumerate();
    if let Some((_, value)) = operands.find(|(n, v)| {
        let ty = kernel.ty(**v);
        ty != if is_wide(*n) { Type::U64 } else { Type::U32 }
    }) {
        return Some(format!("an operand of `{name}` is {}", kernel.ty(*value)));
    }
    let mut spaces = stmt.arrays.iter().map(|a| {
        let data = kernel.arrays.get(*a)?;
        Some((data.space, data.scalar))
    });
    let is_half =
        |a: Option<(Space, Scalar)>| matches!(a, Some((Space::Shared, Scalar::F16 | Scalar::BF16)));
    let is_signal = |a: Option<(Space, Scalar)>| a == Some((Space::Shared, Scalar::U64));
    let fits = match stmt.op {
        MachineOp::SignalInit
        | MachineOp::SignalWait
        | MachineOp::SignalArrive
        | MachineOp::SignalExpect => spaces.all(is_signal),
        MachineOp::CopyPanel => {
            spaces.next().is_some_and(is_half) && spaces.next().is_some_and(is_signal)
        }
        MachineOp::FragmentProduct => {
            let is_bits = |a| is_half(a) || a == Some((Space::Shared, Scalar::U16));
            spaces.next() == Some(Some((Space::Private, Scalar::F32))) && spaces.all(is_bits)
        }
        MachineOp::Product => {
            spaces.next() == Some(Some((Space::Private, Scalar::F32))) && spaces.all(is_half)
        }
        MachineOp::ProductHeld => {
            let [sum, a, b] = [spaces.next(), spaces.next(), spaces.next()].map(Option::flatten);
            sum == Some((Space::Private, Scalar::F32))
                && a == Some((Space::Private, Scalar::U32))
                && is_half(b)
        }
        MachineOp::BatchEnd | MachineOp::BatchWait => {
            spaces.all(|a| matches!(a, Some((Space::Ahead | Space::Shared, _))))
        }
        MachineOp::CopyAhead | MachineOp::CopyChunk => spaces.all(is_half),
        MachineOp::FragmentFill => spaces.all(|a| a == Some((Space::Private, Scalar::F32))),
        MachineOp::FragmentStore | MachineOp::FragmentLoad => {
            spaces.next() == Some(Some((Space::Private, Scalar::F32)))
                && spaces.next() == Some(Some((Space::Shared, Scalar::F32)))
        }
        MachineOp::SignalFence
        | MachineOp::IsAligned
        | MachineOp::SharedFence
        | MachineOp::ProductBegin
        | MachineOp::ProductEnd
        | MachineOp::ProductLeave
        | MachineOp::TurnWait
        | MachineOp::TurnGive
        | MachineOp::Registers => true,
    };
    (!fits).then(|| format!("an array of `{name}` has the wrong space or type"))
}

impl Kernel {
    /// The blocks of tensors that the body copies by [`MachineOp::CopyPanel`]: tensor and rows,
    /// each once.
    pub fn copied_panels(&self) -> Vec<(Param, u32)> {
        let mut found = Vec::new();
        self.body.walk(&mut |stmt, _| {
            if let Stmt::Machine(MachineStmt {
                op: MachineOp::CopyPanel,
                source: Some(source),
                numbers,
                ..
            }) = stmt
            {
                let panel = (*source, numbers.first().copied().unwrap_or(0));
                if !found.contains(&panel) {
                    found.push(panel);
                }
            }
        });
        found
    }

    /// Whether the body multiplies fragments of subgroups.
    pub fn multiplies_fragments(&self) -> bool {
        let mut found = false;
        self.body.walk(&mut |stmt, _| {
            if let Stmt::Machine(machine) = stmt {
                found |= machine.op.is_of_fragments();
            }
        });
        found
    }

    /// Whether the body asks which tensors are aligned.
    pub fn asks_alignment(&self) -> bool {
        let mut found = false;
        self.body.walk(&mut |stmt, _| {
            found |= matches!(
                stmt,
                Stmt::Machine(MachineStmt {
                    op: MachineOp::IsAligned,
                    ..
                })
            );
        });
        found
    }
}
