//! The reference backend: runs the IR lane by lane and checks every rule of the specification.
//!
//! A launch ends at its first fault, a [`Report`] with the rule, the author's place, the place that
//! explains it, workgroup, thread and values: as the message of [`DeviceError::Fault`], and as data
//! from [`ReferenceDevice::take_reports`]. `__iron_runner check` shows each once for all cases.
//!
//! | rule | a fault where | second place |
//! |---|---|---|
//! | `out-of-bounds` | an index is not below its dimension (each on its own: the next row is no answer), or an array's length | |
//! | `misaligned` | a vector access is at no multiple of its lanes | |
//! | `race` | two threads touch one cell of shared or global memory, one writes, not both are atomic, and no barrier that orders this memory joins them; workgroups are joined by the end of the launch, and by atomics between barriers of the device's memory | the other access |
//! | `uninitialised` | a cell of shared, private, tile, output or fresh memory, or a variable, is read before it is written | |
//! | `divergence` | a barrier, collective, subgroup or tile operation is not reached by all | the branch, loop or return |
//! | `not-uniform` | the source of a broadcast or the origin of a tile differs between threads | |
//! | `no-such-lane` | an exchange names a lane or thread that is not there | |
//! | `wrapped-index` | integer arithmetic lost bits, and the result addresses memory or bounds a loop | the use |
//! | `index-in` | the index given to `index_in` is not below its bound | |
//! | `endless`, `zero-step` | a workgroup spends [`ReferenceOptions::step_budget`]; a loop steps by nothing | |
//! | `non-finite` | with [`ReferenceOptions::finite`], a float that appeared out of finite operands is stored | the store |
//! | `read-only`, `grid-barrier` | a store through `&`; a grid barrier that not every workgroup reaches | |
//!
//! Races are found exactly, whatever order the interpreter chose, at any subgroup width from 4 to 64:
//! a workgroup barrier orders shared memory, and tensors only where it says so; a subgroup barrier
//! orders shared memory within the subgroup; collectives and tile operations order shared memory.
//! Atomics are relaxed and order nothing, so that a flag raised atomically does not publish a plain
//! write, but between two barriers of the device's memory: what a workgroup did before its own comes
//! before what another does behind one, where in between the one changed a cell atomically and the
//! other's atomic came later. Two writes of the same value are a race: nothing orders them, and a compiler may split,
//! widen or repeat them. Only what runs is seen: other data may take other paths.
//!
//! Kernels run as they were built: tile and group operations are executed whole, before any
//! pass. A kernel taken from the middle of the pipeline runs just as well.

mod access;
mod compute;
mod exact;
mod finite;
mod machine;
mod mask;
mod memory;
mod program;
mod report;
mod scalar;
mod tiles;

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use iron_ir::Stmt;
use iron_ir::contract::Feature;
use iron_ir::kernel::{Access, Kernel, ParamKind};
use iron_ir::launch::{Argument, DeviceBuffer, LaunchLimits, byte_range};
use parking_lot::Mutex;

use crate::device::{Backend, Device, DeviceError, Graph, Pipeline, RecordedLaunch};
use crate::identity::artifact_hash;
use crate::in_order::{self, ErrorWord, InOrder, Recording};
use machine::{Launch, Machine, Stop};
use memory::{BufferMemory, ReferenceBuffer, Shadows, TensorMemory, own};
use program::Program;
use report::Fault;

pub use report::{Related, Report, Rule};

/// How the reference runs.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceOptions {
    /// Lanes of a subgroup, 4 to 64.
    pub subgroup_size: u32,
    /// Statements that one workgroup may execute before it counts as endless.
    pub step_budget: u64,
    /// At most this many workgroups of a launch run, spread over the grid; the others do not.
    pub sampled_groups: Option<u64>,
    /// A float that is not finite, made of operands that were, is a fault where it is stored.
    pub finite: bool,
    /// Also takes kernels that the verifier refuses, to see what they do.
    pub unverified: bool,
}

impl Default for ReferenceOptions {
    fn default() -> Self {
        ReferenceOptions {
            subgroup_size: 32,
            step_budget: 1 << 26,
            sampled_groups: None,
            finite: false,
            unverified: false,
        }
    }
}

/// The reference device.
pub struct ReferenceDevice {
    options: ReferenceOptions,
    shared: Arc<Shared>,
}

/// What graphs need of the device.
struct Shared {
    options: ReferenceOptions,
    /// Kernel and line of the first failed index check since the last synchronisation.
    error_word: ErrorWord,
    /// Faults since they were last taken, the first [`MOST_REPORTS`].
    reports: Mutex<Vec<Report>>,
}

const MOST_REPORTS: usize = 256;

struct ReferencePipeline {
    kernel: Kernel,
    program: Program,
    artifact: String,
}

impl Pipeline for ReferencePipeline {
    fn kernel(&self) -> &Kernel {
        &self.kernel
    }
    fn limits(&self) -> LaunchLimits {
        in_order::limits_of(LIMITS, &self.kernel)
    }
    fn artifact(&self) -> &str {
        &self.artifact
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

const LIMITS: LaunchLimits = LaunchLimits {
    max_grid: [(1 << 31) - 1; 3],
    max_workgroup: [1024; 3],
    max_threads: 1024,
    max_buffer_bytes: 1 << 40,
    max_resident: u64::MAX,
};

impl Default for ReferenceDevice {
    fn default() -> Self {
        ReferenceDevice::new()
    }
}

impl ReferenceDevice {
    /// A device with the default options.
    pub fn new() -> ReferenceDevice {
        ReferenceDevice::with_options(ReferenceOptions::default())
    }

    /// A device with options of one's own; the subgroup width is brought into 4 to 64.
    pub fn with_options(mut options: ReferenceOptions) -> ReferenceDevice {
        options.subgroup_size = options.subgroup_size.clamp(4, 64).next_power_of_two();
        let shared = Arc::new(Shared {
            options,
            error_word: Mutex::new(None),
            reports: Mutex::default(),
        });
        ReferenceDevice { options, shared }
    }

    /// The options.
    pub fn options(&self) -> ReferenceOptions {
        self.options
    }

    /// Every fault since the last call: those that ended a launch, and failed `index_in` checks.
    pub fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut *self.shared.reports.lock())
    }

    /// Makes bytes of a buffer undefined, as they are before anything wrote them; what they hold
    /// stays, and a kernel that reads them has a fault.
    ///
    /// # Errors
    /// [`DeviceError::Usage`] for a buffer of another device and for a range past its end.
    pub fn undefine(
        &self,
        buffer: &dyn DeviceBuffer,
        offset: u64,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let (buffer, at) = range_of(buffer, offset, bytes)?;
        buffer.lock().written[at..at + bytes].fill(false);
        Ok(())
    }
}

impl Device for ReferenceDevice {
    fn backend(&self) -> Backend {
        Backend::Reference
    }

    fn name(&self) -> String {
        format!(
            "reference interpreter, subgroups of {}",
            self.options.subgroup_size
        )
    }

    fn driver(&self) -> String {
        concat!("iron ", env!("CARGO_PKG_VERSION")).into()
    }

    fn limits(&self) -> LaunchLimits {
        LIMITS
    }

    fn max_shared_bytes(&self) -> u64 {
        1 << 20
    }

    fn subgroup_size(&self) -> u32 {
        self.options.subgroup_size
    }

    fn has(&self, _: Feature) -> bool {
        true
    }

    fn alloc(&self, bytes: u64) -> Result<Arc<dyn DeviceBuffer>, DeviceError> {
        match ReferenceBuffer::new(bytes) {
            Some(buffer) => Ok(Arc::new(buffer)),
            None => Err(DeviceError::OutOfMemory {
                backend: "reference",
                bytes,
            }),
        }
    }

    fn upload(&self, to: &dyn DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let (buffer, at) = range_of(to, offset, bytes.len())?;
        let mut contents = buffer.lock();
        contents.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        contents.written[at..at + bytes.len()].fill(true);
        Ok(())
    }

    fn download(
        &self,
        from: &dyn DeviceBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let (buffer, at) = range_of(from, offset, bytes.len())?;
        bytes.copy_from_slice(&buffer.lock().bytes[at..at + bytes.len()]);
        Ok(())
    }

    fn pipeline(&self, kernel: &Kernel) -> Result<Arc<dyn Pipeline>, DeviceError> {
        let mut is_lowered = false;
        kernel.body.walk(&mut |stmt, _| {
            is_lowered |= match stmt {
                Stmt::Machine(machine) => !machine.op.is_portable(),
                other => matches!(other, Stmt::Roles { .. }),
            };
        });
        if is_lowered {
            return Err(DeviceError::Unsupported {
                kernel: kernel.full_name(),
                backend: "reference",
                reason: "it has operations of a target's tile lowering; give it as built".into(),
            });
        }
        if !self.options.unverified {
            crate::device::admit(kernel, self)?;
        }
        Ok(Arc::new(ReferencePipeline {
            program: Program::new(kernel),
            artifact: artifact_hash(kernel, &["reference", &self.driver()]),
            kernel: kernel.clone(),
        }))
    }

    fn submit(&self, launches: &[RecordedLaunch]) -> Result<(), DeviceError> {
        self.shared.run_all(launches)
    }

    fn submit_groups(&self, launch: &RecordedLaunch, groups: &[u64]) -> Result<(), DeviceError> {
        self.shared.run(launch, Some(groups))
    }

    fn record(&self, launches: &[RecordedLaunch]) -> Result<Box<dyn Graph>, DeviceError> {
        Ok(Recording::of(&self.shared, launches))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.shared.take_error()
    }

    fn time(&self, launches: &[RecordedLaunch]) -> Result<Vec<Duration>, DeviceError> {
        self.shared.time_all(launches)
    }
}

fn usage(message: String) -> DeviceError {
    DeviceError::Usage {
        backend: "reference",
        message,
    }
}

fn range_of(
    buffer: &dyn DeviceBuffer,
    offset: u64,
    bytes: usize,
) -> Result<(&ReferenceBuffer, usize), DeviceError> {
    let Some(own) = buffer.as_any().downcast_ref::<ReferenceBuffer>() else {
        return Err(usage("a buffer of another device".into()));
    };
    let end = offset.checked_add(bytes as u64);
    if end.is_none_or(|end| end > own.bytes()) {
        return Err(usage(format!(
            "a copy of {bytes} bytes at offset {offset} of a buffer of {} bytes",
            own.bytes()
        )));
    }
    Ok((own, offset as usize))
}

impl InOrder for Shared {
    fn error_word(&self) -> &ErrorWord {
        &self.error_word
    }

    /// Runs the listed workgroups, or those that the options choose.
    fn run(&self, recorded: &RecordedLaunch, groups: Option<&[u64]>) -> Result<(), DeviceError> {
        if recorded.checked.is_empty {
            return Ok(());
        }
        let Some(pipeline) = recorded
            .pipeline
            .as_any()
            .downcast_ref::<ReferencePipeline>()
        else {
            return Err(usage("a pipeline of another device".into()));
        };
        let kernel = &pipeline.kernel;
        let mut launch = self.prepare(pipeline, recorded)?;
        let result = self.run_groups(&mut launch, groups);
        if let Some((fault, group)) = launch.failed_index.take() {
            let line = fault.span.line;
            self.error_word
                .lock()
                .get_or_insert_with(|| (kernel.full_name(), line));
            self.note(fault.report(kernel, group));
        }
        result.map_err(|(group, fault)| {
            let report = fault.report(kernel, group);
            let message = report.to_string();
            self.note(report);
            DeviceError::Fault {
                kernel: kernel.full_name(),
                message,
            }
        })
    }
}

impl Shared {
    fn note(&self, report: Report) {
        let mut reports = self.reports.lock();
        if reports.len() < MOST_REPORTS {
            reports.push(report);
        }
    }

    fn run_groups<'a>(
        &self,
        launch: &mut Launch<'a>,
        groups: Option<&[u64]>,
    ) -> Result<(), ([u32; 3], Fault)> {
        let grid = launch.grid;
        let total: u64 = grid.iter().map(|&n| u64::from(n)).product();
        let place_of = |linear: u64| {
            let x = u64::from(grid[0]);
            let y = u64::from(grid[1]);
            [
                (linear % x) as u32,
                (linear / x % y) as u32,
                (linear / x / y) as u32,
            ]
        };
        if launch.program.grid_barrier.is_some() {
            let mut machines: Vec<Machine<'a>> = (0..total)
                .map(|linear| {
                    let mut machine = Machine::new(launch);
                    machine.start(place_of(linear), launch);
                    machine
                })
                .collect();
            loop {
                let mut waiting = None;
                let mut finished = None;
                for machine in &mut machines {
                    match machine
                        .run(launch)
                        .map_err(|fault| (machine.group, fault))?
                    {
                        Stop::GridBarrier => waiting = Some(machine.group),
                        Stop::Finished => finished = Some(machine.group),
                    }
                }
                let Some(group) = waiting else { return Ok(()) };
                if let Some(done) = finished {
                    let message = format!("a grid barrier that workgroup {done:?} never reaches");
                    let span = launch.program.grid_barrier.unwrap_or_default();
                    return Err((group, Fault::new(Rule::GridBarrier, span, message)));
                }
                for buffer in &mut launch.buffers {
                    buffer.shadows.clear();
                }
            }
        }
        let mut machine = Machine::new(launch);
        let chosen = self
            .options
            .sampled_groups
            .unwrap_or(total)
            .clamp(1, total.max(1));
        let spread = |i: u64| (u128::from(i) * u128::from(total) / u128::from(chosen)) as u64;
        let all: Vec<u64> = match groups {
            Some(groups) => groups.iter().copied().filter(|&g| g < total).collect(),
            None => (0..chosen.min(total)).map(spread).collect(),
        };
        for linear in all {
            let group = place_of(linear);
            machine.start(group, launch);
            machine.run(launch).map_err(|fault| (group, fault))?;
        }
        Ok(())
    }

    fn prepare<'a>(
        &self,
        pipeline: &'a ReferencePipeline,
        recorded: &'a RecordedLaunch,
    ) -> Result<Launch<'a>, DeviceError> {
        let kernel = &pipeline.kernel;
        let mut owners: Vec<&'a ReferenceBuffer> = Vec::new();
        let mut ranges: Vec<(u128, u128, usize, bool)> = Vec::new();
        let mut tensors = Vec::new();
        let mut scalars = Vec::new();
        for ((_, data), argument) in kernel.params.iter().zip(&recorded.arguments) {
            let (ParamKind::Tensor(tensor), Argument::Tensor(view)) = (&data.kind, argument) else {
                tensors.push(None);
                scalars.push(match argument {
                    Argument::Scalar(value) => value.bits,
                    Argument::Tensor(_) => 0,
                });
                continue;
            };
            let Some(buffer) = own(&view.buffer) else {
                return Err(usage(format!(
                    "`{}` is a buffer of another device",
                    data.name
                )));
            };
            let index = owners
                .iter()
                .position(|b| std::ptr::eq(*b, buffer))
                .unwrap_or_else(|| {
                    owners.push(buffer);
                    ranges.push((u128::MAX, 0, usize::MAX, false));
                    owners.len() - 1
                });
            let (start, end) = byte_range(view);
            let writable = tensor.access == Access::ReadWrite;
            let size = view.scalar.bytes() as usize;
            let range = &mut ranges[index];
            *range = (
                range.0.min(start),
                range.1.max(end),
                range.2.min(size),
                range.3 | writable,
            );
            tensors.push(Some(TensorMemory {
                scalar: view.scalar,
                buffer: index,
                offset: view.offset,
                shape: view.shape.clone(),
                strides: view.strides.clone(),
                span: ((end - start) / size as u128) as u64,
                writable,
            }));
            scalars.push(0);
        }
        let buffers = owners
            .iter()
            .zip(ranges)
            .map(|(owner, (start, end, granule, writable))| {
                // Views of one buffer may start between granules of each other.
                let start = start as usize / granule * granule;
                let cells = if writable {
                    (end as usize - start).div_ceil(granule)
                } else {
                    0
                };
                BufferMemory {
                    contents: owner.lock(),
                    shadows: Shadows::new(cells),
                    shadow_start: start,
                    granule,
                }
            })
            .collect();
        Ok(Launch {
            kernel,
            program: &pipeline.program,
            tensors,
            buffers,
            scalars,
            dims: recorded.checked.bindings.dims.clone(),
            grid: recorded.checked.grid,
            subgroup_size: self.options.subgroup_size,
            step_budget: self.options.step_budget,
            finite: self.options.finite,
            published: HashMap::new(),
            failed_index: None,
        })
    }
}

#[cfg(test)]
pub(crate) mod draft;
#[cfg(test)]
mod tests;
