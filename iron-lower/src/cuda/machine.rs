//! Warpgroup products, copies of tensor blocks and their signals (PTX ISA 8.0, sm_90a), as small
//! functions around one instruction each.

use iron_ir::kernel::Kernel;
use iron_ir::machine::{MachineOp, MachineStmt};
use iron_ir::op::Stmt;
use iron_ir::types::Scalar;

use crate::c::dialect::MachineNames;
use crate::c::fragments;
use crate::c::helpers::Helpers;

/// The struct that the runtime fills by `cuTensorMapEncodeTiled`.
const TENSOR_MAP: &str = "\
// A tensor's address, shape and strides as the copy engine wants them.
struct alignas(64) tensor_map {
    unsigned long long words[16];
};";

const SHARED_ADDRESS: &str = "\
__device__ inline unsigned int shared_address(const void* place) {
    return (unsigned int)__cvta_generic_to_shared(place);
}";

const SIGNAL_INIT: &str = "\
__device__ inline void signal_init(unsigned long long* signal, unsigned int arrivals) {
    asm volatile(\"mbarrier.init.shared::cta.b64 [%0], %1;\"
        :: \"r\"(shared_address(signal)), \"r\"(arrivals) : \"memory\");
}";

const SIGNAL_WAIT: &str = "\
__device__ inline void signal_wait(unsigned long long* signal, unsigned int phase) {
    unsigned int is_done;
    do {
        asm volatile(
            \"{ .reg .pred done;\"
            \" mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\"
            \" selp.u32 %0, 1, 0, done; }\"
            : \"=r\"(is_done) : \"r\"(shared_address(signal)), \"r\"(phase) : \"memory\");
    } while (is_done == 0u);
}";

const SIGNAL_ARRIVE: &str = "\
__device__ inline void signal_arrive(unsigned long long* signal) {
    asm volatile(\"mbarrier.arrive.shared::cta.b64 _, [%0];\"
        :: \"r\"(shared_address(signal)) : \"memory\");
}";

const SIGNAL_EXPECT: &str = "\
__device__ inline void signal_expect(unsigned long long* signal, unsigned int bytes) {
    asm volatile(\"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\"
        :: \"r\"(shared_address(signal)), \"r\"(bytes) : \"memory\");
}";

/// PTX ISA 7.0, sm_80.
const COPY_AHEAD: &str = "\
// Copies 16 bytes to shared memory; they arrive with their batch.
#ifndef IRON_COPIES_BY_HOST
__device__ inline void copy_ahead(void* to, const void* from) {
    asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16;\"
        :: \"r\"((unsigned int)__cvta_generic_to_shared(to)), \"l\"(from) : \"memory\");
}
#endif";

const END_BATCH: &str = "\
#ifndef IRON_COPIES_BY_HOST
__device__ inline void end_batch() {
    asm volatile(\"cp.async.commit_group;\" ::: \"memory\");
}
#endif";

const WAIT_BATCHES: &str = "\
// Waits for all batches of this thread but the newest.
#ifndef IRON_COPIES_BY_HOST
template <int newest>
__device__ inline void wait_batches() {
    asm volatile(\"cp.async.wait_group %0;\" :: \"n\"(newest) : \"memory\");
}
#endif";

const MATRIX_DESCRIPTOR: &str = "\
// A tile in panels of 128 bytes, swizzled; eight rows are 1024 bytes.
__device__ inline unsigned long long matrix_descriptor(const void* start, unsigned int panel) {
    const unsigned long long address = (shared_address(start) & 0x3ffffu) >> 4;
    const unsigned long long leading = panel >> 4 & 0x3fffu;
    return address | leading << 16 | 64ull << 32 | 1ull << 62;
}";

const COPY_CHUNK: &str = "\
// Copies 16 bytes to shared memory, zeros where none of them count; they arrive with their batch.
#ifndef IRON_COPIES_BY_HOST
__device__ inline void copy_chunk(void* to, const void* from, unsigned int bytes) {
    asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16, %2;\"
        :: \"r\"((unsigned int)__cvta_generic_to_shared(to)),
        \"l\"(__cvta_generic_to_global(from)), \"r\"(bytes) : \"memory\");
}
#endif";

const ROLE_BARRIER: &str = "\
// Joins the threads of one role.
__device__ inline void role_barrier(unsigned int role, unsigned int threads) {
    asm volatile(\"bar.sync %0, %1;\" :: \"r\"(role), \"r\"(threads) : \"memory\");
}";

/// Whether the kernel has tiles that lie in swizzled panels, and so needs shared memory that
/// begins at a multiple of the pattern.
pub(super) fn is_used(kernel: &Kernel) -> bool {
    let mut found = false;
    kernel.body.walk(&mut |stmt, _| {
        if let Stmt::Machine(machine) = stmt {
            let is_plain = machine.op.is_of_fragments() || machine.op.is_of_batches();
            found |= !is_plain && machine.op != MachineOp::IsAligned;
        }
    });
    found
}

/// Declares the type of tensor maps.
pub(super) fn declare_tensor_map(helpers: &mut Helpers) {
    helpers.require("tensor_map", || TENSOR_MAP.into());
}

/// A barrier of the threads of one role.
pub(super) fn role_barrier(helpers: &mut Helpers, role: u32, threads: u32) -> String {
    helpers.require("role_barrier", || ROLE_BARRIER.into());
    format!("role_barrier({role}u, {threads}u);")
}

/// One statement; for an operation with a result, the expression.
pub(super) fn statement(
    helpers: &mut Helpers,
    stmt: &MachineStmt,
    names: &MachineNames<'_>,
) -> Result<String, String> {
    let MachineNames {
        arrays, operands, ..
    } = names;
    let missing = || format!("`{}` without its parts", stmt.op.name());
    let array = |n: usize| arrays.get(n).copied().ok_or_else(missing);
    let operand = |n: usize| operands.get(n).map(String::as_str).ok_or_else(missing);
    let number = |n: usize| stmt.numbers.get(n).copied().ok_or_else(missing);
    let cell = |a: usize, at: usize| Ok::<_, String>(format!("&{}[{}]", array(a)?, operand(at)?));
    if stmt.op.signature().arrays > 0 && !stmt.op.is_of_batches() {
        helpers.require("shared_address", || SHARED_ADDRESS.into());
    }
    Ok(match stmt.op {
        MachineOp::CopyAhead => {
            helpers.require("copy_ahead", || COPY_AHEAD.into());
            let source = names.tensor.ok_or_else(missing)?;
            format!("copy_ahead({}, &{source}[{}]);", cell(0, 0)?, operand(1)?)
        }
        MachineOp::BatchEnd => {
            helpers.require("end_batch", || END_BATCH.into());
            "end_batch();".into()
        }
        MachineOp::BatchWait => {
            helpers.require("wait_batches", || WAIT_BATCHES.into());
            format!("wait_batches<{}>();", number(0)?)
        }
        MachineOp::SignalInit => {
            helpers.require("signal_init", || SIGNAL_INIT.into());
            format!("signal_init({}, {});", cell(0, 0)?, operand(1)?)
        }
        MachineOp::SignalFence => {
            "asm volatile(\"fence.mbarrier_init.release.cluster;\" ::: \"memory\");".into()
        }
        MachineOp::SignalWait => {
            helpers.require("signal_wait", || SIGNAL_WAIT.into());
            format!("signal_wait({}, {});", cell(0, 0)?, operand(1)?)
        }
        MachineOp::SignalArrive => {
            helpers.require("signal_arrive", || SIGNAL_ARRIVE.into());
            format!("signal_arrive({});", cell(0, 0)?)
        }
        MachineOp::SignalExpect => {
            helpers.require("signal_expect", || SIGNAL_EXPECT.into());
            format!("signal_expect({}, {}u);", cell(0, 0)?, number(0)?)
        }
        MachineOp::CopyPanel => {
            declare_tensor_map(helpers);
            let indices = operands.get(2..).unwrap_or_default();
            let rank = indices.len();
            helpers.require(&format!("copy_panel{rank}"), || copy_panel(rank));
            // The map counts dimensions from the innermost.
            let inner_first: Vec<&str> = indices.iter().rev().map(String::as_str).collect();
            format!(
                "copy_panel({}, &{}, {}, {});",
                cell(0, 0)?,
                names.tensor_map.ok_or_else(missing)?,
                cell(1, 1)?,
                inner_first.join(", ")
            )
        }
        MachineOp::IsAligned => fragments::is_aligned(stmt, names)?,
        MachineOp::CopyChunk => {
            helpers.require("copy_chunk", || COPY_CHUNK.into());
            let (tensor, from) = (names.tensor.ok_or_else(missing)?, operand(1)?);
            format!(
                "copy_chunk({}, {tensor} + ({from}), {});",
                cell(0, 0)?,
                operand(2)?
            )
        }
        MachineOp::SharedFence => {
            "asm volatile(\"fence.proxy.async.shared::cta;\" ::: \"memory\");".into()
        }
        MachineOp::ProductBegin => {
            "asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");".into()
        }
        MachineOp::Product => {
            helpers.require("matrix_descriptor", || MATRIX_DESCRIPTOR.into());
            let product = Product {
                columns: number(1)?,
                left: Left::Shared {
                    by_k: number(2)? == 1,
                },
                by_k: number(3)? == 1,
                scalar: names.scalar,
            };
            let name = product.name();
            helpers.require(&name, || product.helper(&name));
            format!(
                "{name}({}, matrix_descriptor({}, 16u), matrix_descriptor({}, {}u));",
                from(array(0)?, number(0)?),
                cell(1, 0)?,
                cell(2, 1)?,
                product.panel_bytes(number(4)?),
            )
        }
        MachineOp::ProductHeld => {
            helpers.require("matrix_descriptor", || MATRIX_DESCRIPTOR.into());
            let product = Product {
                columns: number(1)?,
                left: Left::Held,
                by_k: number(4)? == 1,
                scalar: names.scalar,
            };
            let name = product.name();
            helpers.require(&name, || product.helper(&name));
            format!(
                "{name}({}, {}, {}u, matrix_descriptor({}, {}u));",
                from(array(0)?, number(0)?),
                from(array(1)?, number(2)?),
                number(3)?,
                cell(2, 0)?,
                product.panel_bytes(number(5)?),
            )
        }
        MachineOp::ProductEnd => {
            helpers.require("product_end", || {
                "__device__ inline void product_end() {\n    \
                 asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");\n    \
                 asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n}"
                    .into()
            });
            "product_end();".into()
        }
        MachineOp::ProductLeave => {
            "asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");".into()
        }
        MachineOp::TurnWait | MachineOp::TurnGive => {
            let (name, instruction) = match stmt.op {
                MachineOp::TurnWait => ("turn_wait", "bar.sync"),
                _ => ("turn_give", "bar.arrive"),
            };
            // Barriers 1 and 2 are the roles'.
            helpers.require(name, || {
                format!(
                    "// Two warpgroups take turns: 256 threads wait or arrive at the barrier of one.\n\
                     __device__ inline void {name}(unsigned int group) {{\n    \
                     asm volatile(\"{instruction} %0, 256;\" :: \"r\"(group + 3u) : \"memory\");\n}}"
                )
            });
            format!("{name}({});", operand(0)?)
        }
        MachineOp::FragmentFill
        | MachineOp::FragmentProduct
        | MachineOp::FragmentStore
        | MachineOp::FragmentLoad => return Err(missing()),
        MachineOp::Registers => {
            let word = if number(1)? == 1 { "inc" } else { "dec" };
            format!(
                "asm volatile(\"setmaxnreg.{word}.sync.aligned.u32 {};\");",
                number(0)?
            )
        }
    })
}

/// The copy of one panel of a tensor of that rank; the innermost index comes first.
fn copy_panel(rank: usize) -> String {
    let indices: Vec<String> = (0..rank)
        .map(|n| format!("unsigned int index{n}"))
        .collect();
    let places: Vec<String> = (0..rank).map(|n| format!("%{}", n + 3)).collect();
    let inputs: Vec<String> = (0..rank).map(|n| format!("\"r\"(index{n})")).collect();
    format!(
        "__device__ inline void copy_panel(\n    \
         void* to, const tensor_map* map, unsigned long long* signal,\n    {}\n) {{\n    \
         asm volatile(\n        \
         \"cp.async.bulk.tensor.{rank}d.shared::cluster.global\"\n        \
         \".mbarrier::complete_tx::bytes [%0], [%1, {{{}}}], [%2];\"\n        \
         :: \"r\"(shared_address(to)), \"l\"(map), \"r\"(shared_address(signal)),\n        \
         {} : \"memory\");\n}}",
        indices.join(", "),
        places.join(", "),
        inputs.join(", ")
    )
}

/// An array from an element on.
fn from(array: &str, first: u32) -> String {
    match first {
        0 => array.to_owned(),
        first => format!("{array} + {first}"),
    }
}

/// Where the left side of a product is.
#[derive(Clone, Copy)]
enum Left {
    /// In shared memory, stored `k`-major or not.
    Shared { by_k: bool },
    /// In registers.
    Held,
}

/// One warpgroup product of 64 rows and 16 steps.
struct Product {
    columns: u32,
    left: Left,
    /// b is stored `k`-major.
    by_k: bool,
    scalar: Scalar,
}

impl Product {
    fn name(&self) -> String {
        let side = |by_k| if by_k { "k" } else { "mn" };
        let left = match self.left {
            Left::Shared { by_k } => side(by_k),
            Left::Held => "held",
        };
        format!(
            "product_m64n{}k16_{}_{left}_{}",
            self.columns,
            self.scalar,
            side(self.by_k)
        )
    }

    /// Bytes between panels of b, where they matter.
    fn panel_bytes(&self, elements: u32) -> u32 {
        match self.by_k {
            true => 16,
            false => elements * self.scalar.bytes(),
        }
    }

    /// The function. A thread's accumulators are two rows of `columns / 4`; the instruction
    /// wants them by blocks of eight columns, of each the two rows' pairs.
    fn helper(&self, name: &str) -> String {
        let count = self.columns / 2;
        let lines = |wide: usize, each: &dyn Fn(u32) -> String| {
            let all: Vec<String> = (0..count).map(each).collect();
            all.chunks(wide).map(|c| c.join(", ")).collect::<Vec<_>>()
        };
        let registers = lines(16, &|n| format!("%{n}")).join(", \"\n        \"");
        let sums = lines(4, &|n| {
            let (block, row, column) = (n / 4, n / 2 % 2, n % 2);
            format!("\"+f\"(d[{}])", row * self.columns / 4 + block * 2 + column)
        })
        .join(",\n        ");
        let ty = match self.scalar {
            Scalar::F16 => "f16",
            _ => "bf16",
        };
        let transposed = |by_k: bool| u32::from(!by_k);
        let columns = self.columns;
        let by_b = transposed(self.by_k);
        // Operands behind the accumulators, and the instruction's flags.
        let (parameters, operands, inputs) = match self.left {
            Left::Shared { by_k } => (
                "float* d, unsigned long long a, unsigned long long b".to_owned(),
                format!(
                    "%{count}, %{}, 1, 1, 1, {}, {by_b}",
                    count + 1,
                    transposed(by_k)
                ),
                "\"l\"(a), \"l\"(b)".to_owned(),
            ),
            Left::Held => (
                "float* d, const unsigned int* a, unsigned int row, unsigned long long b".into(),
                format!(
                    "{{%{count}, %{}, %{}, %{}}}, %{}, 1, 1, 1, {by_b}",
                    count + 1,
                    count + 2,
                    count + 3,
                    count + 4
                ),
                "\"r\"(a[0]), \"r\"(a[row]), \"r\"(a[1]), \"r\"(a[row + 1]), \"l\"(b)".into(),
            ),
        };
        format!(
            "// d += a * b for 64 rows, {columns} columns and 16 steps, d over 128 threads.\n\
             __device__ inline void {name}(\n    {parameters}\n) {{\n    \
             asm volatile(\n        \
             \"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{ty}.{ty} {{\"\n        \
             \"{registers}\"\n        \
             \"}}, {operands};\"\n        : {sums}\n        : {inputs});\n}}"
        )
    }
}
