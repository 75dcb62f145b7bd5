//! The CPU backend: machine code made in the process, workgroups spread over a thread pool.
//!
//! A list of launches is played in one parallel region: whoever is free takes the next
//! workgroups of the launch at hand, and the next launch begins when all workgroups of this one
//! are done. A worker that wakes late finds its work taken and delays nobody.

mod player;

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iron_ir::contract::Feature;
use iron_ir::kernel::Kernel;
use iron_ir::launch::{DeviceBuffer, LaunchLimits};
use iron_ir::layout::{BlockLayout, FieldKind};
use iron_lower::cpu::Compiled;
use iron_lower::{Code, Profile};
use parking_lot::Mutex;

use crate::device::{Backend, Device, DeviceError, Graph, Pipeline, RecordedLaunch};
use crate::identity::artifact_hash;
use player::{Player, Ready};

/// The processor of this machine.
pub struct CpuDevice {
    profile: Profile,
    name: String,
    shared: Arc<Shared>,
    pipelines: Mutex<HashMap<String, Arc<CpuPipeline>>>,
}

/// What graphs need of the device.
struct Shared {
    player: Player,
    /// One thing at a time: a list of launches or a copy.
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Kernel and line of the first failed index check since the last synchronisation.
    out_of_range: Option<(String, u32)>,
}

struct CpuPipeline {
    kernel: Kernel,
    compiled: Compiled,
    layout: BlockLayout,
    limits: LaunchLimits,
    artifact: String,
}

impl Pipeline for CpuPipeline {
    fn kernel(&self) -> &Kernel {
        &self.kernel
    }
    fn limits(&self) -> LaunchLimits {
        self.limits
    }
    fn artifact(&self) -> &str {
        &self.artifact
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Memory of this process, aligned to 256 bytes.
struct CpuBuffer {
    address: *mut u8,
    bytes: u64,
    layout: std::alloc::Layout,
}

// SAFETY: the memory is plain bytes; the device's queue orders all access to it.
unsafe impl Send for CpuBuffer {}
// SAFETY: as above.
unsafe impl Sync for CpuBuffer {}

impl CpuBuffer {
    fn new(bytes: u64) -> Option<CpuBuffer> {
        // Vector loads of machine code stay within elements; the tail keeps the layout non-empty.
        let size = usize::try_from(bytes).ok()?.checked_add(64)?;
        let layout = std::alloc::Layout::from_size_align(size, 256).ok()?;
        // SAFETY: the layout has a size above zero.
        let address = unsafe { std::alloc::alloc_zeroed(layout) };
        (!address.is_null()).then_some(CpuBuffer {
            address,
            bytes,
            layout,
        })
    }
}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; launches hold their buffers while they run.
        unsafe { std::alloc::dealloc(self.address, self.layout) }
    }
}

impl DeviceBuffer for CpuBuffer {
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl CpuDevice {
    /// The processor, with one worker a hardware thread.
    pub fn new() -> Result<CpuDevice, DeviceError> {
        CpuDevice::with_threads(std::thread::available_parallelism().map_or(1, |n| n.get()))
    }

    /// The processor with that many workers, at least one.
    pub fn with_threads(threads: usize) -> Result<CpuDevice, DeviceError> {
        let missing = |reason: String| DeviceError::Missing {
            backend: "cpu",
            reason,
            looked_for: "the machine's own processor".into(),
        };
        let profile = iron_lower::profile::by_name("cpu")
            .ok_or_else(|| missing("this build has no profile for it".into()))?;
        let player = Player::new(threads.max(1)).map_err(|e| missing(e.to_string()))?;
        let name = format!("{} ({} threads)", processor_name(), threads.max(1));
        let shared = Arc::new(Shared {
            player,
            queue: Mutex::default(),
        });
        Ok(CpuDevice {
            profile,
            name,
            shared,
            pipelines: Mutex::default(),
        })
    }

    fn limits_of(&self) -> LaunchLimits {
        self.profile.limits.of_launch()
    }
}

/// The processor's name as the system tells it.
fn processor_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines()
        .find_map(|line| {
            line.strip_prefix("model name")?
                .split_once(':')
                .map(|(_, name)| name.trim().to_string())
        })
        .unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

fn usage(message: String) -> DeviceError {
    DeviceError::Usage {
        backend: "cpu",
        message,
    }
}

fn range_of(buffer: &dyn DeviceBuffer, offset: u64, bytes: usize) -> Result<*mut u8, DeviceError> {
    let Some(own) = buffer.as_any().downcast_ref::<CpuBuffer>() else {
        return Err(usage("a buffer of another device".into()));
    };
    if offset
        .checked_add(bytes as u64)
        .is_none_or(|end| end > own.bytes)
    {
        return Err(usage(format!(
            "a copy of {bytes} bytes at offset {offset} of a buffer of {} bytes",
            own.bytes
        )));
    }
    Ok(own.address.wrapping_add(offset as usize))
}

/// Fills the addresses in.
fn ready(launch: &RecordedLaunch) -> Result<Option<Ready>, DeviceError> {
    if launch.checked.is_empty {
        return Ok(None);
    }
    let Some(pipeline) = launch.pipeline.as_any().downcast_ref::<CpuPipeline>() else {
        return Err(usage("a pipeline of another device".into()));
    };
    let mut block = launch.checked.block.clone();
    let mut error_word = None;
    for field in &pipeline.layout.fields {
        let address = match field.kind {
            FieldKind::Address(param) => {
                let iron_ir::launch::Argument::Tensor(view) =
                    &launch.arguments[iron_ir::Handle::index(param)]
                else {
                    continue;
                };
                let Some(buffer) = view.buffer.as_any().downcast_ref::<CpuBuffer>() else {
                    return Err(usage(format!(
                        "`{}` is a buffer of another device",
                        pipeline.kernel.params[param].name
                    )));
                };
                let offset = view.offset as usize * view.scalar.bytes() as usize;
                buffer.address.wrapping_add(offset) as u64
            }
            FieldKind::ErrorWord => {
                let word = Box::new(std::sync::atomic::AtomicU32::new(0));
                let address = std::ptr::from_ref(&*word) as u64;
                error_word = Some(word);
                address
            }
            FieldKind::Stride(..)
            | FieldKind::Dim(_)
            | FieldKind::Scalar(_)
            | FieldKind::Aligned
            | FieldKind::TensorMap(..) => continue,
        };
        let at = field.offset as usize;
        block[at..at + 8].copy_from_slice(&address.to_le_bytes());
    }
    Ok(Some(Ready {
        entry: pipeline.compiled.entry(),
        scratch_bytes: pipeline.compiled.scratch_bytes(),
        block,
        grid: launch.checked.grid,
        error_word,
        pipeline: launch.pipeline.clone(),
    }))
}

impl Shared {
    fn run(&self, launches: &[Ready]) {
        let mut queue = self.queue.lock();
        self.player.play(launches);
        for launch in launches {
            let Some(word) = &launch.error_word else {
                continue;
            };
            let code = word.swap(0, std::sync::atomic::Ordering::Relaxed);
            if code != 0 {
                // The code is the line plus one, so that 0 means no error.
                queue
                    .out_of_range
                    .get_or_insert_with(|| (launch.pipeline.kernel().full_name(), code - 1));
            }
        }
    }
}

impl Device for CpuDevice {
    fn backend(&self) -> Backend {
        Backend::Cpu
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn driver(&self) -> String {
        concat!("iron ", env!("CARGO_PKG_VERSION"), ", cranelift 0.135").into()
    }

    fn limits(&self) -> LaunchLimits {
        self.limits_of()
    }

    fn max_shared_bytes(&self) -> u64 {
        self.profile.limits.shared_bytes
    }

    fn subgroup_size(&self) -> u32 {
        iron_lower::cpu::SUBGROUP_SIZE
    }

    fn has(&self, feature: Feature) -> bool {
        self.profile.features.contains(&feature)
    }

    fn alloc(&self, bytes: u64) -> Result<Arc<dyn DeviceBuffer>, DeviceError> {
        match CpuBuffer::new(bytes) {
            Some(buffer) => Ok(Arc::new(buffer)),
            None => Err(DeviceError::OutOfMemory {
                backend: "cpu",
                bytes,
            }),
        }
    }

    fn upload(&self, to: &dyn DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let at = range_of(to, offset, bytes.len())?;
        let _queue = self.shared.queue.lock();
        // SAFETY: the range lies within the buffer, and the queue's lock keeps launches out.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) }
        Ok(())
    }

    fn download(
        &self,
        from: &dyn DeviceBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let at = range_of(from, offset, bytes.len())?;
        let _queue = self.shared.queue.lock();
        // SAFETY: as for `upload`; the memory was zeroed when it was allocated.
        unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len()) }
        Ok(())
    }

    fn pipeline(&self, kernel: &Kernel) -> Result<Arc<dyn Pipeline>, DeviceError> {
        let artifact = artifact_hash(kernel, &["cpu", std::env::consts::ARCH, &self.driver()]);
        if let Some(found) = self.pipelines.lock().get(&artifact) {
            return Ok(found.clone());
        }
        let lowered = iron_lower::lower(kernel, &self.profile).map_err(|error| match error {
            iron_lower::LowerError::Unsupported(lack) => DeviceError::Unsupported {
                kernel: kernel.full_name(),
                backend: "cpu",
                reason: lack.lack.to_string(),
            },
            other => DeviceError::Compile {
                kernel: kernel.full_name(),
                backend: "cpu",
                message: other.to_string(),
            },
        })?;
        let Code::Machine(compiled) = lowered.code else {
            return Err(DeviceError::Compile {
                kernel: kernel.full_name(),
                backend: "cpu",
                message: "the profile made no machine code".into(),
            });
        };
        let pipeline = Arc::new(CpuPipeline {
            layout: BlockLayout::of(&lowered.kernel),
            kernel: lowered.kernel,
            compiled: *compiled,
            limits: self.limits_of(),
            artifact: artifact.clone(),
        });
        self.pipelines.lock().insert(artifact, pipeline.clone());
        Ok(pipeline)
    }

    fn submit(&self, launches: &[RecordedLaunch]) -> Result<(), DeviceError> {
        let mut list = Vec::with_capacity(launches.len());
        for launch in launches {
            list.extend(ready(launch)?);
        }
        self.shared.run(&list);
        Ok(())
    }

    fn record(&self, launches: &[RecordedLaunch]) -> Result<Box<dyn Graph>, DeviceError> {
        let mut list = Vec::with_capacity(launches.len());
        for launch in launches {
            list.extend(ready(launch)?);
        }
        Ok(Box::new(CpuGraph {
            shared: self.shared.clone(),
            ready: list,
            _buffers: launches.to_vec(),
        }))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        match self.shared.queue.lock().out_of_range.take() {
            Some((kernel, line)) => Err(DeviceError::IndexOutOfRange { kernel, line }),
            None => Ok(()),
        }
    }

    fn time(&self, launches: &[RecordedLaunch]) -> Result<Vec<Duration>, DeviceError> {
        launches
            .iter()
            .map(|launch| {
                let list: Vec<_> = ready(launch)?.into_iter().collect();
                let start = Instant::now();
                self.shared.run(&list);
                Ok(start.elapsed())
            })
            .collect()
    }
}

struct CpuGraph {
    shared: Arc<Shared>,
    ready: Vec<Ready>,
    /// Keeps the buffers whose addresses are in `ready`.
    _buffers: Vec<RecordedLaunch>,
}

impl Graph for CpuGraph {
    fn replay(&self) -> Result<(), DeviceError> {
        self.shared.run(&self.ready);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
