//! The emulated texts: the *generated* CUDA C++, HIP C++ and MSL itself, compiled by clang++ for
//! this machine's processor over a header that stands for the vendor's, and run.
//!
//! It shows that a text means what its kernel means. It shows nothing of a GPU: not the vendor's
//! compiler, nor its memory model, nor its speed; receipts say `emulated`, and the backends'
//! names are never the target's alone.
//!
//! | environment variable | meaning |
//! |---|---|
//! | `IRON_CLANG` | the compiler; `clang++-19` to `-22` and `clang++` otherwise |
//! | `IRON_EMULATED_CUDA`, `IRON_EMULATED_HIP`, `IRON_EMULATED_MSL` | the profile that kernels are lowered for, such as `gfx1100`; otherwise `sm_80`, `gfx942` and `metal3.1` |
//! | `IRON_CACHE_DIR` | folder of compiled texts |
//!
//! A workgroup's threads are fibers of one system thread, workgroups run one after the other, and
//! shared memory is poisoned before each. What a text asks of other threads goes through the
//! executor: barriers, shuffles and votes are exact at any subgroup width, and threads that
//! wait for each other at different places are a fault with both lines.

mod compiler;
mod executor;
mod library;
mod unit;

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use iron_ir::contract::Feature;
use iron_ir::kernel::Kernel;
use iron_ir::launch::{Argument, DeviceBuffer, LaunchLimits};
use iron_ir::layout::{BlockLayout, FieldKind};
use iron_lower::{LowerError, Profile, Target, profile};
use parking_lot::Mutex;

use crate::device::{Backend, Device, DeviceError, Graph, Pipeline, RecordedLaunch};
use crate::identity::artifact_hash;
use crate::in_order::{self, ErrorWord, InOrder, Recording};
use crate::memory::{self, ProcessMemory};
use compiler::Compiler;
use executor::Launch;
use library::Program;
use unit::Text;

pub use compiler::CLANG_VARIABLE;

/// Lanes of a subgroup where the profile leaves them open: those of every Apple GPU so far.
const OPEN_SUBGROUP: u32 = 32;

/// The emulation of one target.
pub struct EmulatedDevice {
    backend: Backend,
    profile: Profile,
    subgroup_size: u32,
    compiler: Compiler,
    pipelines: Mutex<HashMap<String, Arc<EmulatedPipeline>>>,
    shared: Arc<Shared>,
}

/// What graphs need of the device.
struct Shared {
    backend: &'static str,
    subgroup_size: u32,
    /// Kernel and line of the first failed index check since the last synchronisation. Held
    /// while memory is accessed, so that launches and copies take turns.
    error_word: ErrorWord,
}

struct EmulatedPipeline {
    kernel: Kernel,
    layout: BlockLayout,
    limits: LaunchLimits,
    artifact: String,
    program: Program,
    private_bytes: usize,
}

impl Pipeline for EmulatedPipeline {
    fn kernel(&self) -> &Kernel {
        &self.kernel
    }
    fn limits(&self) -> LaunchLimits {
        in_order::limits_of(self.limits, &self.kernel)
    }
    fn artifact(&self) -> &str {
        &self.artifact
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The target that a backend emulates, and the variable that names its profile.
fn target_of(backend: Backend) -> Option<(Target, &'static str)> {
    match backend {
        Backend::EmulatedCuda => Some((Target::Cuda, "IRON_EMULATED_CUDA")),
        Backend::EmulatedHip => Some((Target::Hip, "IRON_EMULATED_HIP")),
        Backend::EmulatedMsl => Some((Target::Msl, "IRON_EMULATED_MSL")),
        Backend::Host
        | Backend::Reference
        | Backend::Cpu
        | Backend::Vulkan
        | Backend::Cuda
        | Backend::Hip
        | Backend::Metal => None,
    }
}

/// Opens the emulation with the profile that the environment names, else the target's default.
pub fn open(backend: Backend) -> Result<Arc<dyn Device>, DeviceError> {
    let named = target_of(backend)
        .and_then(|(_, variable)| std::env::var(variable).ok())
        .filter(|name| !name.is_empty());
    Ok(Arc::new(EmulatedDevice::open(backend, named.as_deref())?))
}

impl EmulatedDevice {
    /// The emulation with a profile of the target by name, or its default: the first, but for CUDA
    /// one whose texts use no instruction of one architecture alone.
    pub fn open(backend: Backend, name: Option<&str>) -> Result<EmulatedDevice, DeviceError> {
        let usage = |message| DeviceError::Usage {
            backend: backend.name(),
            message,
        };
        let (target, _) =
            target_of(backend).ok_or_else(|| usage("it emulates no target".to_owned()))?;
        let of_target = profile::of(target);
        let known = || of_target.iter().map(|p| p.name).collect::<Vec<_>>();
        let default = (target == Target::Cuda).then_some("sm_80");
        let profile = match name.or(default) {
            None => of_target.first(),
            Some(name) => of_target.iter().find(|p| p.name == name),
        };
        let profile = profile.cloned().ok_or_else(|| {
            let name = name.unwrap_or_default();
            usage(format!(
                "{target} has no profile `{name}`; it has {}",
                known().join(", ")
            ))
        })?;
        let compiler = Compiler::find().map_err(|looked_for| DeviceError::Missing {
            backend: backend.name(),
            reason: "no clang++ of this machine was found".into(),
            looked_for,
        })?;
        let subgroup_size = profile.subgroup_size.unwrap_or(OPEN_SUBGROUP);
        Ok(EmulatedDevice {
            backend,
            subgroup_size,
            compiler,
            pipelines: Mutex::default(),
            shared: Arc::new(Shared {
                backend: backend.name(),
                subgroup_size,
                error_word: Mutex::default(),
            }),
            profile,
        })
    }

    /// The same device with subgroups of that many lanes, where the profile leaves them open.
    pub fn with_subgroup_size(mut self, lanes: u32) -> Result<EmulatedDevice, DeviceError> {
        let is_width = lanes.is_power_of_two() && (4..=64).contains(&lanes);
        if !is_width || self.profile.subgroup_size.is_some_and(|n| n != lanes) {
            return Err(self.usage(format!(
                "profile `{}` has no subgroups of {lanes} lanes",
                self.profile.name
            )));
        }
        self.subgroup_size = lanes;
        self.shared = Arc::new(Shared {
            backend: self.shared.backend,
            subgroup_size: lanes,
            error_word: Mutex::default(),
        });
        Ok(self)
    }

    fn usage(&self, message: String) -> DeviceError {
        DeviceError::Usage {
            backend: self.backend.name(),
            message,
        }
    }

    /// The text of a kernel for this device's profile.
    fn text(&self, kernel: &Kernel) -> Result<Text, DeviceError> {
        let name = || kernel.full_name();
        let backend = self.backend.name();
        let text = Text::of(kernel, &self.profile).map_err(|error| match error {
            LowerError::Unsupported(lack) => DeviceError::Unsupported {
                kernel: name(),
                backend,
                reason: lack.lack.to_string(),
            },
            other => DeviceError::Compile {
                kernel: name(),
                backend,
                message: other.to_string(),
            },
        })?;
        match text.foreign_instruction() {
            None => Ok(text),
            Some(instruction) => Err(DeviceError::Unsupported {
                kernel: name(),
                backend,
                reason: format!(
                    "the text for {} has the instruction `{instruction}`, which the emulation lacks",
                    self.profile.name
                ),
            }),
        }
    }

    /// The pipeline of a text.
    fn pipeline_of(&self, text: Text) -> Result<EmulatedPipeline, DeviceError> {
        let program = self.compiler.program(&text).map_err(|message| {
            let error = DeviceError::Compile {
                kernel: text.kernel.full_name(),
                backend: self.backend.name(),
                message,
            };
            error.with_place(&text.places)
        })?;
        Ok(EmulatedPipeline {
            layout: BlockLayout::of(&text.kernel),
            limits: self.limits(),
            artifact: self.compiler.key(&text),
            private_bytes: text.private_bytes(),
            program,
            kernel: text.kernel,
        })
    }
}

impl Device for EmulatedDevice {
    fn backend(&self) -> Backend {
        self.backend
    }

    fn name(&self) -> String {
        format!(
            "{} text for {}, subgroups of {}, on this processor",
            self.profile.target.name().to_uppercase(),
            self.profile.name,
            self.subgroup_size
        )
    }

    fn driver(&self) -> String {
        self.compiler.version().to_owned()
    }

    fn limits(&self) -> LaunchLimits {
        self.profile.limits.of_launch()
    }

    fn max_shared_bytes(&self) -> u64 {
        self.profile.limits.shared_bytes
    }

    fn subgroup_size(&self) -> u32 {
        self.subgroup_size
    }

    fn has(&self, feature: Feature) -> bool {
        self.profile.has(feature)
    }

    fn alloc(&self, bytes: u64) -> Result<Arc<dyn DeviceBuffer>, DeviceError> {
        Ok(Arc::new(ProcessMemory::new(self.backend.name(), bytes)?))
    }

    fn upload(&self, to: &dyn DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        memory::upload(
            self.backend.name(),
            &self.shared.error_word,
            to,
            offset,
            bytes,
        )
    }

    fn download(
        &self,
        from: &dyn DeviceBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        memory::download(
            self.backend.name(),
            &self.shared.error_word,
            from,
            offset,
            bytes,
        )
    }

    fn prepare(&self, kernels: &[&Kernel]) {
        let texts: Vec<Text> = kernels.iter().filter_map(|k| self.text(k).ok()).collect();
        self.compiler.prepare(&texts);
    }

    fn pipeline(&self, kernel: &Kernel) -> Result<Arc<dyn Pipeline>, DeviceError> {
        let identity = artifact_hash(kernel, &[self.profile.name]);
        if let Some(known) = self.pipelines.lock().get(&identity) {
            return Ok(known.clone());
        }
        let made = Arc::new(self.pipeline_of(self.text(kernel)?)?);
        let mut pipelines = self.pipelines.lock();
        Ok(pipelines.entry(identity).or_insert(made).clone())
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

impl InOrder for Shared {
    fn error_word(&self) -> &ErrorWord {
        &self.error_word
    }

    fn run(&self, recorded: &RecordedLaunch, groups: Option<&[u64]>) -> Result<(), DeviceError> {
        if recorded.checked.is_empty {
            return Ok(());
        }
        let pipeline = recorded.pipeline.as_any();
        let Some(pipeline) = pipeline.downcast_ref::<EmulatedPipeline>() else {
            return Err(DeviceError::Usage {
                backend: self.backend,
                message: "a pipeline of another device".into(),
            });
        };
        let mut out_of_range = self.error_word.lock();
        let error_word = AtomicU32::new(0);
        let block = self.block(pipeline, recorded, &error_word)?;
        let kernel = &pipeline.kernel;
        let launch = Launch {
            program: &pipeline.program,
            block: &block,
            grid: recorded.checked.grid,
            workgroup: kernel.contract.workgroup,
            subgroup_size: self.subgroup_size,
            cooperative: kernel.contract.cooperative,
            private_bytes: pipeline.private_bytes,
        };
        let all: u64 = launch.grid.iter().map(|&n| u64::from(n)).product();
        // SAFETY: the contract was checked when the launch was recorded, so every view lies in
        // its buffer; the block has the kernel's layout, and the lock keeps others away.
        let result = unsafe {
            match groups {
                // Workgroups that meet at grid barriers run together.
                Some(groups) if !launch.cooperative => {
                    executor::run(&launch, groups.iter().copied())
                }
                _ => executor::run(&launch, 0..all),
            }
        };
        result.map_err(|message| DeviceError::Fault {
            kernel: kernel.full_name(),
            message,
        })?;
        // The code is the line plus one, so that 0 means no error.
        if let Some(line) = error_word.load(Ordering::Relaxed).checked_sub(1) {
            out_of_range.get_or_insert_with(|| (kernel.full_name(), line));
        }
        Ok(())
    }
}

impl Shared {
    /// The parameter block with its addresses, in whole words.
    fn block(
        &self,
        pipeline: &EmulatedPipeline,
        recorded: &RecordedLaunch,
        error_word: &AtomicU32,
    ) -> Result<Vec<u64>, DeviceError> {
        let mut bytes = recorded.checked.block.clone();
        for field in &pipeline.layout.fields {
            let address = match field.kind {
                FieldKind::Address(param) => {
                    match recorded.arguments.get(iron_ir::Handle::index(param)) {
                        Some(Argument::Tensor(view)) => {
                            let buffer = memory::own(self.backend, &*view.buffer)?;
                            let offset = view.offset as usize * view.scalar.bytes() as usize;
                            // Of an empty view the offset may lie outside; its base is never used.
                            buffer.base().wrapping_add(offset) as u64
                        }
                        Some(Argument::Scalar(_)) | None => 0,
                    }
                }
                FieldKind::ErrorWord => std::ptr::from_ref(error_word) as u64,
                FieldKind::Stride(..)
                | FieldKind::Dim(_)
                | FieldKind::Scalar(_)
                | FieldKind::Aligned
                | FieldKind::TensorMap(..) => continue,
            };
            let at = field.offset as usize;
            if let Some(place) = bytes.get_mut(at..at + 8) {
                place.copy_from_slice(&address.to_le_bytes());
            }
        }
        crate::alignment::write(&mut bytes, &pipeline.layout, &recorded.arguments, |view| {
            let offset = view.offset as usize * view.scalar.bytes() as usize;
            let base = memory::own(self.backend, &*view.buffer)?.base();
            Ok(base.wrapping_add(offset) as u64)
        })?;
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let word = |b: &[u8]| u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        Ok(bytes.chunks_exact(8).map(word).collect())
    }
}

#[cfg(test)]
mod fragment_tests;
#[cfg(test)]
mod tests;
