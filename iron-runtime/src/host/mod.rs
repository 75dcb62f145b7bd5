//! The host backend: the author's own body as rustc compiled it, a workgroup's threads as
//! fibers. It runs kernels that are registered in this binary, and nothing made by a pass.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use iron_ir::contract::Feature;
use iron_ir::host::{HostArgument, HostBody, HostLaunch, HostTensor, run};
use iron_ir::kernel::Kernel;
use iron_ir::launch::{Argument, DeviceBuffer, LaunchLimits};
use iron_ir::registry::kernels;
use parking_lot::Mutex;

use crate::device::{Backend, Device, DeviceError, Graph, Pipeline, RecordedLaunch, admit};
use crate::identity::artifact_hash;
use crate::in_order::{self, ErrorWord, InOrder, Recording};
use crate::memory::{self, ProcessMemory};

/// The host device.
pub struct HostDevice {
    shared: Arc<Shared>,
}

struct Shared {
    subgroup_size: u32,
    /// Kernel and line of the first failed index check since the last synchronisation. Held
    /// while memory is accessed, so that launches and copies take turns.
    error_word: ErrorWord,
}

const LIMITS: LaunchLimits = LaunchLimits {
    max_grid: [(1 << 31) - 1; 3],
    max_workgroup: [1024; 3],
    max_threads: 1024,
    max_buffer_bytes: 1 << 40,
    max_resident: u64::MAX,
};

impl Default for HostDevice {
    fn default() -> Self {
        HostDevice::new()
    }
}

impl HostDevice {
    /// A device with subgroups of 8 lanes.
    pub fn new() -> HostDevice {
        HostDevice::with_subgroup_size(8)
    }

    /// A device with subgroups of this many lanes, brought to a power of two from 4 to 64.
    pub fn with_subgroup_size(lanes: u32) -> HostDevice {
        HostDevice {
            shared: Arc::new(Shared {
                subgroup_size: lanes.clamp(4, 64).next_power_of_two(),
                error_word: Mutex::new(None),
            }),
        }
    }
}

struct HostPipeline {
    kernel: Kernel,
    body: HostBody,
    artifact: String,
}

impl Pipeline for HostPipeline {
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

impl Device for HostDevice {
    fn backend(&self) -> Backend {
        Backend::Host
    }

    fn name(&self) -> String {
        format!(
            "rustc's own code, subgroups of {}",
            self.shared.subgroup_size
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
        self.shared.subgroup_size
    }

    fn has(&self, feature: Feature) -> bool {
        feature != Feature::DependentLaunch
    }

    fn alloc(&self, bytes: u64) -> Result<Arc<dyn DeviceBuffer>, DeviceError> {
        Ok(Arc::new(ProcessMemory::new("host", bytes)?))
    }

    fn upload(&self, to: &dyn DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        memory::upload("host", &self.shared.error_word, to, offset, bytes)
    }

    fn download(
        &self,
        from: &dyn DeviceBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        memory::download("host", &self.shared.error_word, from, offset, bytes)
    }

    fn pipeline(&self, kernel: &Kernel) -> Result<Arc<dyn Pipeline>, DeviceError> {
        admit(kernel, self)?;
        Ok(Arc::new(HostPipeline {
            body: body_of(kernel)?,
            artifact: artifact_hash(kernel, &["host", &self.driver()]),
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
        backend: "host",
        message,
    }
}

/// The author's body of a kernel, by its name and instance in the registry; the source file
/// decides between kernels of one name.
fn body_of(kernel: &Kernel) -> Result<HostBody, DeviceError> {
    let mut found: Vec<_> = kernels()
        .into_iter()
        .filter(|entry| entry.name == &*kernel.name)
        .filter_map(|entry| {
            let instance = entry
                .instances
                .iter()
                .find(|i| i.name == &*kernel.instance)?;
            Some((entry.file, instance.host))
        })
        .collect();
    if found.len() > 1 {
        found.retain(|(file, _)| kernel.files.iter().any(|f| &**f == *file));
    }
    match found[..] {
        [(_, body)] => Ok(body),
        [] => Err(DeviceError::Unsupported {
            kernel: kernel.full_name(),
            backend: "host",
            reason: "it runs the body that `#[kernel]` registered, and none is in this binary"
                .into(),
        }),
        _ => Err(usage(format!(
            "{} kernels are named `{}` in one file",
            found.len(),
            kernel.full_name()
        ))),
    }
}

impl InOrder for Shared {
    fn error_word(&self) -> &ErrorWord {
        &self.error_word
    }

    fn run(&self, recorded: &RecordedLaunch, groups: Option<&[u64]>) -> Result<(), DeviceError> {
        if recorded.checked.is_empty {
            return Ok(());
        }
        let pipeline = recorded.pipeline.as_any().downcast_ref::<HostPipeline>();
        let Some(pipeline) = pipeline else {
            return Err(usage("a pipeline of another device".into()));
        };
        let mut error_word = self.error_word.lock();
        let grid = recorded.checked.grid;
        let launch = HostLaunch {
            kernel: &pipeline.kernel,
            body: pipeline.body,
            grid,
            bindings: &recorded.checked.bindings,
            arguments: arguments_of(recorded)?,
            subgroup_size: self.subgroup_size,
        };
        let all: u64 = grid.iter().map(|&n| u64::from(n)).product();
        // SAFETY: the contract was checked when the launch was recorded, so every view lies in
        // its buffer and is aligned; `launch` holds no buffer's memory longer than `recorded`,
        // and the lock keeps others away.
        let report = unsafe {
            match groups {
                // Workgroups that meet at grid barriers run together.
                Some(groups) if !launch.kernel.contract.cooperative => {
                    run(&launch, groups.iter().copied())
                }
                _ => run(&launch, 0..all),
            }
        };
        let kernel = || pipeline.kernel.full_name();
        let report = report.map_err(|fault| DeviceError::Fault {
            kernel: kernel(),
            message: fault.message,
        })?;
        if let Some(line) = report.index_out_of_range {
            error_word.get_or_insert_with(|| (kernel(), line));
        }
        Ok(())
    }
}

fn arguments_of(recorded: &RecordedLaunch) -> Result<Vec<HostArgument>, DeviceError> {
    let argument = |argument: &Argument| match argument {
        Argument::Scalar(value) => Ok(HostArgument::Scalar(*value)),
        Argument::Tensor(view) => {
            let buffer = memory::own("host", &*view.buffer)?;
            let bytes = view.offset as usize * view.scalar.bytes() as usize;
            Ok(HostArgument::Tensor(HostTensor {
                // Of an empty view the offset may lie outside; its base is never used.
                base: buffer.base().wrapping_add(bytes),
                scalar: view.scalar,
                shape: view.shape.iter().map(|&n| n as u32).collect(),
                strides: view.strides.clone(),
            }))
        }
    };
    recorded.arguments.iter().map(argument).collect()
}
