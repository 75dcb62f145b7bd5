//! Vulkan: SPIR-V modules on any driver of Vulkan 1.3, Mesa's software driver included.
//!
//! | environment variable | meaning |
//! |---|---|
//! | `IRON_VULKAN_DEVICE` | the device, by index or part of its name; otherwise a discrete GPU before an integrated one before a software driver |
//! | `IRON_VULKAN_PROFILE` | `descriptor` binds tensors as storage buffers; otherwise kernels take device addresses |
//! | `IRON_VULKAN_VALIDATION` | `1` runs under the validation layer; see [`VulkanDevice::validation_messages`] |
//! | `IRON_CACHE_DIR` | folder of the driver's pipeline cache |
//!
//! Work is queued in order on one queue, with a memory barrier before every submission, and before
//! every launch that writes what a launch since the last barrier reads or writes, or reads what one
//! writes. A timeline semaphore counts submissions; what a submission uses is held until its value is reached, so
//! buffers and pipelines may be dropped at any time. Uploads and downloads wait for the last
//! submission that uses the buffer, where memory is shared with the host, and are copies in the
//! queue otherwise.

mod bfloat;
mod encode;
mod instance;
mod memory;
mod pipeline;
mod probe;
mod queue;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ash::vk;
use iron_ir::Scalar;
use iron_ir::contract::Feature;
use iron_ir::kernel::Kernel;
use iron_ir::launch::{DeviceBuffer, LaunchLimits};
use iron_lower::profile::SpirvOptions;
use iron_lower::{Code, LowerError, Profile};
use parking_lot::Mutex;

use crate::device::{Backend, Device, DeviceError, Graph, Pipeline, RecordedLaunch};
use instance::{Context, PROFILE_VARIABLE};
use memory::{Pool, Use, VulkanBuffer};
use pipeline::{DiskCache, VulkanPipeline};
use queue::{Commands, Keep, Queue, Tripped};

const BACKEND: &str = Backend::Vulkan.name();

/// Bytes of one staging copy.
const STAGING_BYTES: u64 = 16 << 20;

/// A Vulkan device.
pub struct VulkanDevice {
    shared: Arc<Shared>,
    profile: Profile,
    options: SpirvOptions,
    /// In workgroups of one dimension, lanes are consecutive threads.
    has_linear_subgroups: bool,
    pipelines: Mutex<HashMap<String, Arc<VulkanPipeline>>>,
    cache: DiskCache,
}

/// What graphs hold beside the device.
struct Shared {
    queue: Queue,
    pool: Arc<Pool>,
    context: Arc<Context>,
}

impl VulkanDevice {
    /// Opens the device that the environment names, else the most capable one.
    pub fn open() -> Result<Arc<VulkanDevice>, DeviceError> {
        let descriptors = match std::env::var(PROFILE_VARIABLE).as_deref() {
            Ok("descriptor") => true,
            Ok("address" | "") | Err(_) => false,
            Ok(other) => {
                return Err(DeviceError::Usage {
                    backend: BACKEND,
                    message: format!(
                        "{PROFILE_VARIABLE}={other} is neither `address` nor `descriptor`"
                    ),
                });
            }
        };
        VulkanDevice::open_with(descriptors)
    }

    /// Opens the device with tensors bound by descriptor, or reached by address.
    pub fn open_with(descriptors: bool) -> Result<Arc<VulkanDevice>, DeviceError> {
        let context = Arc::new(Context::open()?);
        let pool = Pool::new(context.clone())?;
        let queue = Queue::new(context.clone())?;
        let cache = DiskCache::open(context.clone())?;
        let (profile, options) = device_profile(&context, descriptors)?;
        let shared = Arc::new(Shared {
            queue,
            pool,
            context,
        });
        let mut device = VulkanDevice {
            shared,
            profile,
            options,
            has_linear_subgroups: false,
            pipelines: Mutex::default(),
            cache,
        };
        device.options.fused_multiply_add = probe::fuses_multiply_add(&device)?;
        device.has_linear_subgroups =
            device.has(Feature::Subgroups) && probe::has_linear_subgroups(&device)?;
        device.options.drops_zero_operands = probe::drops_zero_operands(&device)?;
        device.options.loop_turns = probe::loop_turns(&device)?;
        device.profile.spirv = Some(device.options);
        Ok(Arc::new(device))
    }

    /// The profile that kernels are lowered for: the device's limits and features.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What the validation layer said so far; empty without it.
    pub fn validation_messages(&self) -> Vec<String> {
        self.shared.context.messages()
    }

    fn compile(&self, kernel: &Kernel) -> Result<VulkanPipeline, DeviceError> {
        let info = &self.shared.context.info;
        let identity = format!("{:?} linear {}", self.profile, self.has_linear_subgroups);
        let artifact = crate::identity::artifact_hash(
            kernel,
            &[
                "spirv",
                &identity,
                &info.name,
                &info.driver,
                env!("CARGO_PKG_VERSION"),
            ],
        );
        let mut profile = self.profile.clone();
        profile.legal.linear_subgroups = self.has_linear_subgroups;
        let lowered =
            iron_lower::lower(kernel, &profile).map_err(|error| failed_lowering(kernel, error))?;
        let Code::SpirV(words) = &lowered.code else {
            return Err(DeviceError::Compile {
                kernel: kernel.full_name(),
                backend: BACKEND,
                message: "the lowering made no module".into(),
            });
        };
        let kernel = lowered.kernel.clone();
        self.compile_module(kernel, words, artifact)
    }

    /// Compiles a module of a kernel that went through the passes.
    fn compile_module(
        &self,
        kernel: Kernel,
        words: &[u32],
        artifact: String,
    ) -> Result<VulkanPipeline, DeviceError> {
        VulkanPipeline::new(
            self.shared.context.clone(),
            &self.cache,
            kernel,
            words,
            &self.profile,
            &self.options,
            self.limits(),
            artifact,
        )
    }

    fn buffer<'b>(
        &self,
        buffer: &'b dyn DeviceBuffer,
        offset: u64,
        bytes: u64,
    ) -> Result<&'b VulkanBuffer, DeviceError> {
        let own = self.shared.own(buffer)?;
        match offset.checked_add(bytes) {
            Some(end) if end <= own.bytes() => Ok(own),
            _ => Err(DeviceError::Usage {
                backend: BACKEND,
                message: format!(
                    "{bytes} bytes at {offset} reach past the end of a buffer of {} bytes",
                    own.bytes()
                ),
            }),
        }
    }

    fn cut_loops(&self, kernel: String) -> DeviceError {
        DeviceError::Unsupported {
            kernel,
            backend: BACKEND,
            reason: format!(
                "driver `{}` ends the loops of an invocation after {} turns, and a launch reached \
                 that: its results are wrong",
                self.shared.context.info.name,
                self.options.loop_turns.unwrap_or(0)
            ),
        }
    }

    /// Copies through the queue in pieces of the staging size.
    fn staged(
        &self,
        buffer: &VulkanBuffer,
        offset: u64,
        length: u64,
        mut piece: impl FnMut(&memory::Allocation, u64, u64, bool),
        to_device: bool,
    ) -> Result<(), DeviceError> {
        let queue = &self.shared.queue;
        let mut at = 0;
        while at < length {
            let bytes = (length - at).min(STAGING_BYTES);
            let staging = Arc::new(self.shared.pool.allocate(bytes, Use::Host)?);
            if to_device {
                piece(&staging, at, bytes, true);
            }
            let commands = queue.commands()?;
            commands.begin(false)?;
            let (host, device) = (staging.offset, buffer.allocation.offset + offset + at);
            let (from, to) = (staging.buffer, buffer.allocation.buffer);
            let ((from, to), (source, target)) = if to_device {
                ((from, to), (host, device))
            } else {
                ((to, from), (device, host))
            };
            let copy = vk::BufferCopy {
                src_offset: source,
                dst_offset: target,
                size: bytes,
            };
            // SAFETY: both ranges were checked against their buffers.
            unsafe {
                self.shared
                    .context
                    .device
                    .cmd_copy_buffer(commands.buffer, from, to, &[copy]);
            }
            commands.end()?;
            let mut keep = Keep::default();
            keep.allocations.push(staging.clone());
            keep.allocations.push(buffer.allocation.clone());
            let value = queue.submit(commands, keep)?;
            buffer.used_by(value);
            if !to_device {
                queue.wait(value)?;
                piece(&staging, at, bytes, false);
            }
            at += bytes;
        }
        Ok(())
    }
}

impl Shared {
    fn own<'b>(&self, buffer: &'b dyn DeviceBuffer) -> Result<&'b VulkanBuffer, DeviceError> {
        buffer
            .as_any()
            .downcast_ref::<VulkanBuffer>()
            .filter(|b| b.is_of(&self.pool))
            .ok_or_else(|| DeviceError::Usage {
                backend: BACKEND,
                message: "the buffer belongs to another device".into(),
            })
    }
}

impl Device for VulkanDevice {
    fn backend(&self) -> Backend {
        Backend::Vulkan
    }

    fn name(&self) -> String {
        self.shared.context.info.name.clone()
    }

    fn driver(&self) -> String {
        self.shared.context.info.driver.clone()
    }

    fn limits(&self) -> LaunchLimits {
        self.profile.limits.of_launch()
    }

    fn max_shared_bytes(&self) -> u64 {
        self.profile.limits.shared_bytes
    }

    fn subgroup_size(&self) -> u32 {
        self.shared.context.info.subgroup_size
    }

    fn has(&self, feature: Feature) -> bool {
        self.profile.has(feature)
    }

    fn has_matrix_units(&self, scalar: Scalar) -> bool {
        self.profile.legal.multiplies(scalar)
    }

    fn alloc(&self, bytes: u64) -> Result<Arc<dyn DeviceBuffer>, DeviceError> {
        let allocation = Arc::new(self.shared.pool.allocate(bytes, Use::Device)?);
        Ok(Arc::new(VulkanBuffer {
            allocation,
            last_use: Default::default(),
        }))
    }

    fn upload(&self, to: &dyn DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let buffer = self.buffer(to, offset, bytes.len() as u64)?;
        if buffer.allocation.mapped().is_some() {
            self.shared
                .queue
                .wait(buffer.last_use.load(Ordering::Acquire))?;
            buffer.allocation.write(offset, bytes);
            return Ok(());
        }
        let piece = |staging: &memory::Allocation, at: u64, length: u64, _| {
            staging.write(0, &bytes[at as usize..(at + length) as usize]);
        };
        self.staged(buffer, offset, bytes.len() as u64, piece, true)
    }

    fn download(
        &self,
        from: &dyn DeviceBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let buffer = self.buffer(from, offset, bytes.len() as u64)?;
        if buffer.allocation.mapped().is_some() {
            self.shared
                .queue
                .wait(buffer.last_use.load(Ordering::Acquire))?;
            buffer.allocation.read(offset, bytes);
            return match self.shared.queue.cut_loops() {
                Some(kernel) => Err(self.cut_loops(kernel)),
                None => Ok(()),
            };
        }
        let length = bytes.len() as u64;
        let piece = |staging: &memory::Allocation, at: u64, length: u64, _| {
            staging.read(0, &mut bytes[at as usize..(at + length) as usize]);
        };
        self.staged(buffer, offset, length, piece, false)
    }

    fn pipeline(&self, kernel: &Kernel) -> Result<Arc<dyn Pipeline>, DeviceError> {
        let key = crate::identity::artifact_hash(kernel, &[]);
        if let Some(found) = self.pipelines.lock().get(&key) {
            return Ok(found.clone());
        }
        let made = Arc::new(self.compile(kernel)?);
        Ok(self.pipelines.lock().entry(key).or_insert(made).clone())
    }

    fn submit(&self, launches: &[RecordedLaunch]) -> Result<(), DeviceError> {
        if launches.iter().all(|l| l.checked.is_empty) {
            return Ok(());
        }
        let commands = self.shared.queue.commands()?;
        commands.begin(false)?;
        let keep = encode::launches(&self.shared, &commands, launches, None)?;
        commands.end()?;
        self.shared.queue.submit(commands, keep)?;
        Ok(())
    }

    fn record(&self, launches: &[RecordedLaunch]) -> Result<Box<dyn Graph>, DeviceError> {
        let commands = Commands::new(self.shared.context.clone())?;
        commands.begin(true)?;
        let keep = encode::launches(&self.shared, &commands, launches, None)?;
        commands.end()?;
        let graph = Arc::new(keep);
        Ok(Box::new(VulkanGraph {
            keep: graph,
            commands,
            shared: self.shared.clone(),
        }))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.shared.queue.wait_all()?;
        match self.shared.queue.take_error() {
            // The word holds the line plus one.
            Some(Tripped::Index { kernel, code }) => Err(DeviceError::IndexOutOfRange {
                kernel,
                line: code.saturating_sub(1),
            }),
            Some(Tripped::Loops { kernel }) => Err(self.cut_loops(kernel)),
            None => Ok(()),
        }
    }

    fn time(&self, launches: &[RecordedLaunch]) -> Result<Vec<Duration>, DeviceError> {
        encode::time(&self.shared, launches)
    }
}

/// A recorded command buffer.
struct VulkanGraph {
    keep: Arc<Keep>,
    commands: Commands,
    shared: Arc<Shared>,
}

impl Graph for VulkanGraph {
    fn replay(&self) -> Result<(), DeviceError> {
        let keep = Keep {
            graph: Some(self.keep.clone()),
            ..Keep::default()
        };
        self.shared
            .queue
            .enqueue(self.commands.buffer, None, keep)?;
        Ok(())
    }
}

impl Drop for VulkanGraph {
    fn drop(&mut self) {
        // The command buffer must not be pending when its pool goes.
        let _ = self.shared.queue.wait_all();
    }
}

/// The profile of a device: a listed one with the device's own limits and features.
fn device_profile(
    context: &Context,
    descriptors: bool,
) -> Result<(Profile, SpirvOptions), DeviceError> {
    let name = if descriptors {
        "spirv-descriptor"
    } else {
        "vulkan1.3"
    };
    let listed = iron_lower::profile::by_name(name).and_then(|p| Some((p.spirv?, p)));
    let Some((mut options, mut profile)) = listed else {
        return Err(DeviceError::Missing {
            backend: BACKEND,
            reason: "the lowering lists no such profile".into(),
            looked_for: name.into(),
        });
    };
    let info = &context.info;
    let limits = &info.limits;
    options.push_constant_bytes = limits.max_push_constants_size.min(256);
    options.signed_zero_inf_nan = info.signed_zero_inf_nan;
    options.denorm_preserve = info.denorm_preserve;
    options.round_to_even = info.round_to_even;
    options.atomic_float_add = info.atomic_float_add;
    // Measured, see docs/receipts/h200-semantics.md.
    options.accurate_exp2 = info.driver_id == vk::DriverId::NVIDIA_PROPRIETARY;
    let grid = limits.max_compute_work_group_count.map(u64::from);
    profile.limits.max_grid = grid;
    profile.limits.max_workgroup = limits.max_compute_work_group_size;
    profile.limits.max_threads = limits.max_compute_work_group_invocations;
    profile.limits.shared_bytes = u64::from(limits.max_compute_shared_memory_size);
    profile.limits.max_buffer_bytes = if descriptors {
        u64::from(limits.max_storage_buffer_range)
    } else {
        info.max_allocation
    };
    profile.subgroup_size = Some(info.subgroup_size);
    profile.legal.subgroup_size = Some(info.subgroup_size);
    profile.legal.has_f16_memory = info.float16;
    profile.legal.shared_bytes_limit = profile.limits.shared_bytes;
    profile.features = features(context);
    // Fragments are of whole subgroups, and their memory is the Vulkan memory model's.
    let has_subgroups = profile.has(Feature::Subgroups) && info.has_full_subgroups;
    profile.legal.fragments = info.matrices.filter(|_| has_subgroups && !descriptors);
    profile.spirv = Some(options);
    Ok((profile, options))
}

/// The features of a device, interned: profiles hold static lists.
fn features(context: &Context) -> &'static [Feature] {
    static KNOWN: Mutex<Vec<&'static [Feature]>> = Mutex::new(Vec::new());
    let info = &context.info;
    let found: Vec<Feature> = Feature::ALL
        .into_iter()
        .filter(|feature| match feature {
            Feature::F64 => info.float64,
            // Without arithmetic on `f16`, its bits are 16-bit integers.
            Feature::F16 => info.float16 || info.storage16,
            Feature::BF16 | Feature::Storage16 => info.storage16,
            Feature::Storage8 => info.storage8,
            Feature::Int64 => true,
            Feature::Atomic64 => info.atomic64,
            // A compare-exchange loop serves where the instruction is absent.
            Feature::AtomicF32Add => true,
            Feature::Subgroups => info.subgroups,
            // The memory model's device scope is among what every device here must have.
            Feature::DeviceBarrier => true,
            Feature::GridBarrier | Feature::DependentLaunch => false,
        })
        .collect();
    let mut known = KNOWN.lock();
    if let Some(list) = known.iter().find(|list| ***list == found[..]) {
        return list;
    }
    let list: &'static [Feature] = found.leak();
    known.push(list);
    list
}

fn failed_lowering(kernel: &Kernel, error: LowerError) -> DeviceError {
    match error {
        LowerError::Unsupported(unsupported) => DeviceError::Unsupported {
            kernel: kernel.full_name(),
            backend: BACKEND,
            reason: unsupported.lack.to_string(),
        },
        other => DeviceError::Compile {
            kernel: kernel.full_name(),
            backend: BACKEND,
            message: other.to_string(),
        },
    }
}

fn failed(call: &'static str, error: vk::Result) -> DeviceError {
    DeviceError::Driver {
        backend: BACKEND,
        call,
        message: error.to_string(),
    }
}
