//! The device, its buffers and its pipelines, on macOS.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use iron_ir::Scalar;
use iron_ir::contract::Feature;
use iron_ir::entity::Handle as _;
use iron_ir::kernel::Kernel;
use iron_ir::launch::{Argument, DeviceBuffer, LaunchLimits};
use iron_ir::layout::BlockLayout;
use iron_lower::profile::{self, has_block_buffer};
use iron_lower::{Code, Profile};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSString};
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineState,
    MTLCreateSystemDefaultDevice, MTLDevice, MTLLanguageVersion, MTLLibrary, MTLMathMode,
    MTLResourceOptions, MTLSize,
};
use parking_lot::Mutex;

use crate::alignment;
use crate::device::{Backend, Device, DeviceError, Graph, Pipeline, RecordedLaunch};
use crate::gpu::errors::{ErrorWords, WORDS};
use crate::gpu::failed_lowering;
use crate::identity::artifact_hash;

const BACKEND: &str = Backend::Metal.name();

type Object<T> = Retained<ProtocolObject<T>>;

/// Opens the system's default device.
pub fn open() -> Result<Arc<dyn Device>, DeviceError> {
    let missing = |reason: &str| DeviceError::Missing {
        backend: BACKEND,
        reason: reason.into(),
        looked_for: "the system's default Metal device".into(),
    };
    let device = MTLCreateSystemDefaultDevice().ok_or_else(|| missing("no Metal device"))?;
    let queue = device
        .newCommandQueue()
        .ok_or_else(|| missing("no command queue"))?;
    let mut profile = profile::by_name("metal3.1").ok_or_else(|| missing("no profile"))?;
    let threads = device.maxThreadsPerThreadgroup();
    profile.limits.max_workgroup = [threads.width, threads.height, threads.depth].map(|n| n as u32);
    profile.limits.max_threads = threads.width as u32;
    profile.limits.shared_bytes = device.maxThreadgroupMemoryLength() as u64;
    profile.limits.max_buffer_bytes = device.maxBufferLength() as u64;
    let bytes = 4 * WORDS;
    let words = device
        .newBufferWithLength_options(bytes, MTLResourceOptions::StorageModeShared)
        .ok_or(DeviceError::OutOfMemory {
            backend: BACKEND,
            bytes: bytes as u64,
        })?;
    // SAFETY: the buffer has that many bytes and no work uses it yet.
    unsafe { words.contents().cast::<u8>().write_bytes(0, bytes) };
    Ok(Arc::new(MetalDevice {
        shared: Arc::new(Shared {
            device,
            queue,
            words,
            errors: Mutex::default(),
            last: Mutex::default(),
        }),
        profile,
        pipelines: Mutex::default(),
    }))
}

/// What buffers, pipelines and recorded lists hold beside the device.
struct Shared {
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    words: Object<dyn MTLBuffer>,
    errors: Mutex<ErrorWords>,
    /// The last command buffer committed; one queue runs them in order.
    last: Mutex<Option<Object<dyn MTLCommandBuffer>>>,
}

// SAFETY: Apple documents devices, command queues, buffers, pipeline states and committed command
// buffers as usable from any thread; encoders never leave the function that makes them.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

struct MetalDevice {
    shared: Arc<Shared>,
    profile: Profile,
    pipelines: Mutex<HashMap<String, Arc<MetalPipeline>>>,
}

struct MetalBuffer {
    shared: Arc<Shared>,
    buffer: Object<dyn MTLBuffer>,
    bytes: u64,
}

// SAFETY: see `Shared`.
unsafe impl Send for MetalBuffer {}
// SAFETY: see `Shared`; contents are touched only after queued work is done.
unsafe impl Sync for MetalBuffer {}

impl DeviceBuffer for MetalBuffer {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct MetalPipeline {
    shared: Arc<Shared>,
    kernel: Kernel,
    layout: BlockLayout,
    state: Object<dyn MTLComputePipelineState>,
    limits: LaunchLimits,
    artifact: String,
    error_word: Option<usize>,
}

// SAFETY: see `Shared`.
unsafe impl Send for MetalPipeline {}
// SAFETY: see `Shared`.
unsafe impl Sync for MetalPipeline {}

impl Pipeline for MetalPipeline {
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

impl MetalPipeline {
    /// Binds the arguments and queues the launch: tensors in slot order, then the parameter
    /// block where it holds more than addresses, then the error word.
    fn encode(
        &self,
        encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>,
        launch: &RecordedLaunch,
    ) -> Result<(), DeviceError> {
        if launch.checked.is_empty {
            return Ok(());
        }
        encoder.setComputePipelineState(&self.state);
        let mut slot = 0;
        for (_, param) in self.kernel.tensor_slots() {
            let Some(Argument::Tensor(view)) = launch.arguments.get(param.index()) else {
                return Err(usage(
                    "an argument is not the tensor that was recorded".into(),
                ));
            };
            let own = self.shared.own(&*view.buffer)?;
            let offset = view.offset * u64::from(view.scalar.bytes());
            // SAFETY: the buffer lives as long as the launch, and the contract keeps the view
            // inside it.
            unsafe {
                encoder.setBuffer_offset_atIndex(Some(&own.buffer), offset as usize, slot);
            }
            slot += 1;
        }
        if has_block_buffer(&self.kernel) {
            let mut block = launch.checked.block.clone();
            // Buffers begin at pages, so what a view adds decides.
            alignment::write(&mut block, &self.layout, &launch.arguments, |view| {
                Ok(view.offset * u64::from(view.scalar.bytes()))
            })?;
            let bytes = NonNull::from(block.as_slice()).cast::<c_void>();
            // SAFETY: Metal copies the bytes before it returns.
            unsafe { encoder.setBytes_length_atIndex(bytes, block.len(), slot) };
            slot += 1;
        }
        if let Some(word) = self.error_word {
            self.shared.errors.lock().is_pending = true;
            // SAFETY: the words live as long as the device, and the index is below their count.
            unsafe {
                encoder.setBuffer_offset_atIndex(Some(&self.shared.words), 4 * word, slot);
            }
        }
        let [x, y, z] = launch.checked.grid.map(|n| n as usize);
        let [width, height, depth] = self.kernel.contract.workgroup.map(|n| n as usize);
        encoder.dispatchThreadgroups_threadsPerThreadgroup(
            MTLSize {
                width: x,
                height: y,
                depth: z,
            },
            MTLSize {
                width,
                height,
                depth,
            },
        );
        Ok(())
    }
}

impl Shared {
    fn own<'b>(&self, buffer: &'b dyn DeviceBuffer) -> Result<&'b MetalBuffer, DeviceError> {
        buffer
            .as_any()
            .downcast_ref::<MetalBuffer>()
            .filter(|b| std::ptr::eq(Arc::as_ptr(&b.shared), self))
            .ok_or_else(|| usage("the buffer belongs to another device".into()))
    }

    fn range<'b>(
        &self,
        buffer: &'b dyn DeviceBuffer,
        offset: u64,
        bytes: usize,
    ) -> Result<&'b MetalBuffer, DeviceError> {
        let own = self.own(buffer)?;
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= own.bytes => Ok(own),
            _ => Err(usage(format!(
                "{bytes} bytes at {offset} reach past the end of a buffer of {} bytes",
                own.bytes
            ))),
        }
    }

    /// Queues launches as one command buffer.
    fn submit(
        &self,
        launches: &[RecordedLaunch],
    ) -> Result<Object<dyn MTLCommandBuffer>, DeviceError> {
        let commands = self
            .queue
            .commandBuffer()
            .ok_or_else(|| call("commandBuffer", None))?;
        let encoder = commands
            .computeCommandEncoder()
            .ok_or_else(|| call("computeCommandEncoder", None))?;
        let mut encoded = Ok(());
        for launch in launches {
            encoded = match launch.pipeline.as_any().downcast_ref::<MetalPipeline>() {
                Some(pipeline) if std::ptr::eq(Arc::as_ptr(&pipeline.shared), self) => {
                    pipeline.encode(&encoder, launch)
                }
                _ => Err(usage("the pipeline belongs to another device".into())),
            };
            if encoded.is_err() {
                break;
            }
        }
        // An encoder must end before its command buffer is dropped.
        encoder.endEncoding();
        encoded?;
        commands.commit();
        *self.last.lock() = Some(commands.clone());
        Ok(commands)
    }

    /// Waits for all committed work.
    fn wait(&self) -> Result<(), DeviceError> {
        let last = self.last.lock().take();
        let Some(commands) = last else { return Ok(()) };
        commands.waitUntilCompleted();
        match commands.status() {
            MTLCommandBufferStatus::Completed => Ok(()),
            _ => Err(call("command buffer", commands.error().as_deref())),
        }
    }
}

impl MetalDevice {
    fn compile(&self, kernel: &Kernel, artifact: String) -> Result<MetalPipeline, DeviceError> {
        let name = kernel.full_name();
        let refuse = |message: String| DeviceError::Compile {
            kernel: name.clone(),
            backend: BACKEND,
            message,
        };
        let lowered = iron_lower::lower(kernel, &self.profile)
            .map_err(|error| failed_lowering(BACKEND, &name, error))?;
        let Code::Text(text) = &lowered.code else {
            return Err(refuse("the lowering made no text".into()));
        };
        let options = MTLCompileOptions::new();
        options.setMathMode(MTLMathMode::Safe);
        options.setLanguageVersion(MTLLanguageVersion::Version3_1);
        let device = &self.shared.device;
        let library = device
            .newLibraryWithSource_options_error(&NSString::from_str(text), Some(&options))
            .map_err(|error| refuse(first_line(&error)).with_place(&lowered.places))?;
        let entry = iron_lower::msl::entry_point(&lowered.kernel);
        let function = library
            .newFunctionWithName(&NSString::from_str(&entry))
            .ok_or_else(|| refuse(format!("the library has no function `{entry}`")))?;
        let state = device
            .newComputePipelineStateWithFunction_error(&function)
            .map_err(|error| refuse(first_line(&error)))?;
        // Tiles are divided among SIMD-groups of the profile's width.
        let (lanes, width) = (
            self.profile.legal.fragment_lanes,
            state.threadExecutionWidth(),
        );
        if lowered.kernel.multiplies_fragments() && lanes.is_some_and(|n| n as usize != width) {
            return Err(refuse(format!(
                "its matrices are for SIMD-groups of {} lanes, and this device has {width}",
                lanes.unwrap_or_default()
            )));
        }
        let mut limits = self.limits();
        limits.max_threads = limits
            .max_threads
            .min(state.maxTotalThreadsPerThreadgroup() as u32);
        let error_word = match lowered.kernel.checks_indices() {
            true => {
                let word = self.shared.errors.lock().take(name.clone());
                Some(word.ok_or_else(|| {
                    usage(format!("more than {WORDS} kernels with checked indices"))
                })?)
            }
            false => None,
        };
        Ok(MetalPipeline {
            shared: self.shared.clone(),
            layout: BlockLayout::of(&lowered.kernel),
            kernel: lowered.kernel,
            state,
            limits,
            artifact,
            error_word,
        })
    }
}

impl Device for MetalDevice {
    fn backend(&self) -> Backend {
        Backend::Metal
    }

    fn name(&self) -> String {
        self.shared.device.name().to_string()
    }

    fn driver(&self) -> String {
        let version = objc2_foundation::NSProcessInfo::processInfo().operatingSystemVersionString();
        format!("macOS {version}, Metal 3.1")
    }

    fn limits(&self) -> LaunchLimits {
        self.profile.limits.of_launch()
    }

    fn max_shared_bytes(&self) -> u64 {
        self.profile.limits.shared_bytes
    }

    fn subgroup_size(&self) -> u32 {
        // Of every GPU that Metal 3 supports; a pipeline's own is `threadExecutionWidth`.
        32
    }

    fn has(&self, feature: Feature) -> bool {
        self.profile.has(feature)
    }

    fn has_matrix_units(&self, scalar: Scalar) -> bool {
        self.profile.legal.multiplies(scalar)
    }

    fn alloc(&self, bytes: u64) -> Result<Arc<dyn DeviceBuffer>, DeviceError> {
        let out_of_memory = DeviceError::OutOfMemory {
            backend: BACKEND,
            bytes,
        };
        if bytes > self.profile.limits.max_buffer_bytes {
            return Err(out_of_memory);
        }
        let buffer = self
            .shared
            .device
            .newBufferWithLength_options(
                (bytes as usize).max(16),
                MTLResourceOptions::StorageModeShared,
            )
            .ok_or(out_of_memory)?;
        Ok(Arc::new(MetalBuffer {
            shared: self.shared.clone(),
            buffer,
            bytes,
        }))
    }

    fn upload(&self, to: &dyn DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let own = self.shared.range(to, offset, bytes.len())?;
        self.shared.wait()?;
        let contents = own.buffer.contents().cast::<u8>();
        // SAFETY: the range is inside the buffer, whose queued work is done, and the source is
        // host memory of its own.
        unsafe {
            contents
                .add(offset as usize)
                .copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
        }
        Ok(())
    }

    fn download(
        &self,
        from: &dyn DeviceBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let own = self.shared.range(from, offset, bytes.len())?;
        self.shared.wait()?;
        let contents = own.buffer.contents().cast::<u8>();
        let length = bytes.len();
        // SAFETY: as in `upload`, the other way.
        unsafe {
            contents
                .add(offset as usize)
                .copy_to_nonoverlapping(NonNull::from(bytes).cast(), length);
        }
        Ok(())
    }

    fn pipeline(&self, kernel: &Kernel) -> Result<Arc<dyn Pipeline>, DeviceError> {
        let identity = artifact_hash(kernel, &[self.profile.name, &self.name(), &self.driver()]);
        if let Some(known) = self.pipelines.lock().get(&identity) {
            return Ok(known.clone());
        }
        let made = Arc::new(self.compile(kernel, identity.clone())?);
        Ok(self
            .pipelines
            .lock()
            .entry(identity)
            .or_insert(made)
            .clone())
    }

    fn submit(&self, launches: &[RecordedLaunch]) -> Result<(), DeviceError> {
        self.shared.submit(launches).map(drop)
    }

    fn record(&self, launches: &[RecordedLaunch]) -> Result<Box<dyn Graph>, DeviceError> {
        Ok(Box::new(MetalList {
            shared: self.shared.clone(),
            launches: launches.to_vec(),
        }))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.shared.wait()?;
        let mut errors = self.shared.errors.lock();
        if !std::mem::take(&mut errors.is_pending) {
            return Ok(());
        }
        let contents = self.shared.words.contents().cast::<u32>();
        // SAFETY: the words are that many and no work uses them after the wait.
        let words = unsafe { std::slice::from_raw_parts_mut(contents.as_ptr(), WORDS) };
        let Some((kernel, line)) = errors.first(words) else {
            return Ok(());
        };
        words.fill(0);
        Err(DeviceError::IndexOutOfRange { kernel, line })
    }

    fn time(&self, launches: &[RecordedLaunch]) -> Result<Vec<Duration>, DeviceError> {
        launches
            .iter()
            .map(|launch| {
                let commands = self.shared.submit(std::slice::from_ref(launch))?;
                self.shared.wait()?;
                let seconds = commands.GPUEndTime() - commands.GPUStartTime();
                Ok(Duration::from_secs_f64(seconds.max(0.0)))
            })
            .collect()
    }
}

/// A recorded list, encoded again at each replay.
struct MetalList {
    shared: Arc<Shared>,
    launches: Vec<RecordedLaunch>,
}

impl Graph for MetalList {
    fn replay(&self) -> Result<(), DeviceError> {
        self.shared.submit(&self.launches).map(drop)
    }
}

fn usage(message: String) -> DeviceError {
    DeviceError::Usage {
        backend: BACKEND,
        message,
    }
}

fn call(call: &'static str, error: Option<&NSError>) -> DeviceError {
    let message = error.map_or_else(|| "no object was returned".into(), first_line);
    DeviceError::Driver {
        backend: BACKEND,
        call,
        message,
    }
}

/// The first line that says what is wrong: Apple's compiler begins with a title.
fn first_line(error: &NSError) -> String {
    let text = error.localizedDescription().to_string();
    let line = text
        .lines()
        .find(|l| l.contains("error:"))
        .or_else(|| text.lines().next());
    line.unwrap_or_default().trim().to_owned()
}
