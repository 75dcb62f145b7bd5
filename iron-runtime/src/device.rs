//! The one backend trait: a [`Device`] allocates memory, compiles kernels and plays recorded
//! launches. Object-safe, one object a device.

use std::sync::Arc;
use std::time::Duration;

use iron_ir::Scalar;
use iron_ir::contract::Feature;
use iron_ir::kernel::Kernel;
use iron_ir::launch::{
    Argument, CheckedLaunch, ContractError, DeviceBuffer, LaunchLimits, TensorArg, check,
};
use iron_ir::verify::verify;
use iron_lower::Lack;

/// What runs a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Backend {
    /// The author's body as rustc compiled it.
    Host,
    /// The IR, lane by lane, every rule checked.
    Reference,
    /// Machine code made in the process.
    Cpu,
    /// The SPIR-V module.
    Vulkan,
    /// CUDA C++ through NVRTC.
    Cuda,
    /// HIP C++ through hipRTC.
    Hip,
    /// MSL through the Metal framework.
    Metal,
    /// The generated CUDA C++, compiled for this machine's processor.
    EmulatedCuda,
    /// The generated HIP C++, compiled for this machine's processor.
    EmulatedHip,
    /// The generated MSL, compiled for this machine's processor.
    EmulatedMsl,
}

impl Backend {
    /// Every backend.
    pub const ALL: [Backend; 10] = [
        Backend::Host,
        Backend::Reference,
        Backend::Cpu,
        Backend::Vulkan,
        Backend::Cuda,
        Backend::Hip,
        Backend::Metal,
        Backend::EmulatedCuda,
        Backend::EmulatedHip,
        Backend::EmulatedMsl,
    ];

    /// The name on command lines and in receipts.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Host => "host",
            Backend::Reference => "reference",
            Backend::Cpu => "cpu",
            Backend::Vulkan => "vulkan",
            Backend::Cuda => "cuda",
            Backend::Hip => "hip",
            Backend::Metal => "metal",
            Backend::EmulatedCuda => "emulated-cuda",
            Backend::EmulatedHip => "emulated-hip",
            Backend::EmulatedMsl => "emulated-msl",
        }
    }

    /// The backend of that name.
    pub fn from_name(name: &str) -> Option<Backend> {
        Backend::ALL.into_iter().find(|b| b.name() == name)
    }

    /// The word that receipts use for its results.
    pub const fn label(self) -> &'static str {
        match self {
            Backend::Host => "host",
            Backend::Reference => "reference",
            Backend::Cpu | Backend::Vulkan | Backend::Cuda | Backend::Hip | Backend::Metal => {
                "native"
            }
            Backend::EmulatedCuda | Backend::EmulatedHip | Backend::EmulatedMsl => "emulated",
        }
    }
}

/// What the passes do first for other backends, for those that run none: refuses a kernel that the
/// verifier refuses, with its first fault, and one that is too large for the device.
pub(crate) fn admit(kernel: &Kernel, device: &dyn Device) -> Result<(), DeviceError> {
    let backend = device.backend().name();
    verify(kernel).map_err(|errors| DeviceError::Compile {
        kernel: kernel.full_name(),
        backend,
        message: errors
            .0
            .first()
            .map_or_else(String::new, ToString::to_string),
    })?;
    let limits = device.limits();
    let workgroup = kernel.contract.workgroup;
    let threads: u64 = workgroup.iter().map(|&n| u64::from(n)).product();
    let too_long = (0..3).find(|&axis| workgroup[axis] > limits.max_workgroup[axis]);
    let shared = kernel.shared_bytes();
    let lack = if let Some(axis) = too_long {
        Lack::WorkgroupAxis {
            axis,
            needed: workgroup[axis],
            limit: limits.max_workgroup[axis],
        }
    } else if threads > u64::from(limits.max_threads) {
        Lack::Threads {
            needed: threads,
            limit: limits.max_threads,
        }
    } else if shared > device.max_shared_bytes() {
        Lack::SharedBytes {
            needed: shared,
            limit: device.max_shared_bytes(),
            arrays: kernel.shared_arrays(),
        }
    } else {
        return Ok(());
    };
    Err(DeviceError::Unsupported {
        kernel: kernel.full_name(),
        backend,
        reason: lack.to_string(),
    })
}

/// A compiled kernel of one device.
pub trait Pipeline: Send + Sync {
    /// The kernel after the passes, with its contract.
    fn kernel(&self) -> &Kernel;
    /// Limits of this pipeline on its device.
    fn limits(&self) -> LaunchLimits;
    /// Hash of the artifact's whole identity, in hexadecimal.
    fn artifact(&self) -> &str;
    /// For the backend, which takes only its own.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A launch whose contract was checked when it was recorded.
#[derive(Clone)]
pub struct RecordedLaunch {
    /// Compiled kernel.
    pub pipeline: Arc<dyn Pipeline>,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
    /// Grid, bindings and parameter block (addresses are the player's to fill).
    pub checked: CheckedLaunch,
}

impl RecordedLaunch {
    /// Checks the contract and records.
    pub fn new(
        pipeline: Arc<dyn Pipeline>,
        arguments: Vec<Argument>,
    ) -> Result<RecordedLaunch, ContractError> {
        let checked = check(pipeline.kernel(), &arguments, &pipeline.limits())?;
        Ok(RecordedLaunch {
            pipeline,
            arguments,
            checked,
        })
    }

    /// The tensor arguments in order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorArg> {
        self.arguments.iter().filter_map(|a| match a {
            Argument::Tensor(view) => Some(view),
            Argument::Scalar(_) => None,
        })
    }
}

/// A recorded sequence that replays without further checks: a CUDA graph, a Vulkan command
/// buffer, or the list itself.
pub trait Graph: Send + Sync {
    /// Queues the whole sequence.
    fn replay(&self) -> Result<(), DeviceError>;
}

/// A device of one backend. Work is queued in order on one stream.
pub trait Device: Send + Sync {
    /// Which backend.
    fn backend(&self) -> Backend;
    /// The device's own name: `NVIDIA H200`, `llvmpipe (LLVM 15.0.6, 256 bits)`.
    fn name(&self) -> String;
    /// Driver or compiler versions that identify its artifacts.
    fn driver(&self) -> String;
    /// Limits of the device.
    fn limits(&self) -> LaunchLimits;
    /// Bytes of shared memory a workgroup may have.
    fn max_shared_bytes(&self) -> u64;
    /// Lanes of a subgroup.
    fn subgroup_size(&self) -> u32;
    /// Whether a feature is there.
    fn has(&self, feature: Feature) -> bool;
    /// Whether products of tiles of that type go through matrix units here.
    fn has_matrix_units(&self, _scalar: Scalar) -> bool {
        false
    }
    /// Allocates memory; its contents are undefined. Zero bytes are allowed.
    fn alloc(&self, bytes: u64) -> Result<Arc<dyn DeviceBuffer>, DeviceError>;
    /// Copies in, ordered after queued work.
    fn upload(&self, to: &dyn DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;
    /// Copies out, after all queued work.
    fn download(
        &self,
        from: &dyn DeviceBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError>;
    /// Compiles many kernels at once, where that is cheaper than one by one. A kernel that cannot
    /// be compiled is left to [`pipeline`](Device::pipeline), which says why.
    fn prepare(&self, kernels: &[&Kernel]) {
        let _ = kernels;
    }
    /// Compiles a kernel (as the author's build made it, before passes), or finds it in the cache.
    fn pipeline(&self, kernel: &Kernel) -> Result<Arc<dyn Pipeline>, DeviceError>;
    /// Queues launches in order. Each sees all writes of those before it.
    fn submit(&self, launches: &[RecordedLaunch]) -> Result<(), DeviceError>;
    /// Runs only the workgroups with these linear indices (x fastest) of one launch, for slow
    /// backends that check samples of a large launch.
    fn submit_groups(&self, launch: &RecordedLaunch, groups: &[u64]) -> Result<(), DeviceError> {
        let _ = groups;
        Err(DeviceError::Unsupported {
            kernel: launch.pipeline.kernel().full_name(),
            backend: self.backend().name(),
            reason: "it runs whole launches only".into(),
        })
    }
    /// Records launches for replay.
    fn record(&self, launches: &[RecordedLaunch]) -> Result<Box<dyn Graph>, DeviceError>;
    /// Waits for all queued work. Reports a tripped error word ([`DeviceError::IndexOutOfRange`]).
    fn synchronize(&self) -> Result<(), DeviceError>;
    /// Device time of each launch, run one after the other, where the device can tell.
    fn time(&self, launches: &[RecordedLaunch]) -> Result<Vec<Duration>, DeviceError>;
}

/// What can go wrong on a device. Messages are one line.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The backend's driver or library is not on this machine.
    #[error("backend `{backend}` is not available: {reason} (looked for {looked_for})")]
    Missing {
        /// Backend.
        backend: &'static str,
        /// What happened.
        reason: String,
        /// Library or device that was looked for.
        looked_for: String,
    },
    /// The device lacks a feature that the kernel needs.
    #[error("kernel `{kernel}` is unsupported on `{backend}`: {reason}")]
    Unsupported {
        /// Kernel.
        kernel: String,
        /// Backend.
        backend: &'static str,
        /// Feature or limit with both values.
        reason: String,
    },
    /// A pass, a lowering or the vendor's compiler refused the kernel.
    #[error("kernel `{kernel}` does not compile for `{backend}`: {message}")]
    Compile {
        /// Kernel.
        kernel: String,
        /// Backend.
        backend: &'static str,
        /// First line of the reason, with the author's line where known.
        message: String,
    },
    /// The contract refuses the launch.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// Out of memory.
    #[error("backend `{backend}`: out of memory allocating {bytes} bytes")]
    OutOfMemory {
        /// Backend.
        backend: &'static str,
        /// Asked for.
        bytes: u64,
    },
    /// A data-dependent index was out of range in some launch since the last synchronisation.
    #[error("a data-dependent index was out of range in kernel `{kernel}` (line {line})")]
    IndexOutOfRange {
        /// Kernel.
        kernel: String,
        /// The author's line, 0 where unknown.
        line: u32,
    },
    /// The execution found a fault in the kernel (reference, host and emulated backends).
    #[error("kernel `{kernel}`: {message}")]
    Fault {
        /// Kernel.
        kernel: String,
        /// What, where and the values at hand.
        message: String,
    },
    /// A buffer or pipeline of another device was handed in, or a range past a buffer's end.
    #[error("backend `{backend}`: {message}")]
    Usage {
        /// Backend.
        backend: &'static str,
        /// What and both values.
        message: String,
    },
    /// The driver reported an error.
    #[error("backend `{backend}`: {call} failed: {message}")]
    Driver {
        /// Backend.
        backend: &'static str,
        /// The driver's function.
        call: &'static str,
        /// Its message.
        message: String,
    },
}

impl DeviceError {
    /// Adds the author's place to a compiler's message that names a line of the text.
    pub(crate) fn with_place(self, places: &iron_lower::Places) -> DeviceError {
        match self {
            DeviceError::Compile {
                kernel,
                backend,
                message,
            } => DeviceError::Compile {
                kernel,
                backend,
                message: places.explain(&message),
            },
            other => other,
        }
    }
}
