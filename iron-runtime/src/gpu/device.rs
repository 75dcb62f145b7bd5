//! The device: one stream, one compiler, pipelines by identity.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::time::Duration;

use iron_ir::Scalar;
use iron_ir::contract::Feature;
use iron_ir::kernel::Kernel;
use iron_ir::launch::{DeviceBuffer, LaunchLimits};
use iron_lower::{Code, Profile};
use parking_lot::Mutex;

use super::compiler::Compiler;
use super::driver::{Driver, Handle};
use super::errors::{ErrorWords, WORDS};
use super::memory::{FreeList, GpuBuffer};
use super::pipeline::{GpuPipeline, Parts, range};
use super::{Found, Vendor, failed_lowering};
use crate::cache::{ArtifactCache, artifact_key};
use crate::device::{Backend, Device, DeviceError, Graph, Pipeline, RecordedLaunch};
use crate::identity::artifact_hash;

/// Bytes of the page-locked buffer that small downloads go through.
const STAGING_BYTES: usize = 1 << 20;

/// `CU_STREAM_NON_BLOCKING`, `hipStreamNonBlocking`.
const NON_BLOCKING: u32 = 1;

/// Captures concern this thread's calls only: `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const THREAD_LOCAL_CAPTURE: i32 = 1;

/// A context with the stream that all work goes through, and what lives as long.
pub(crate) struct Stream {
    pub driver: Driver,
    context: Handle,
    pub handle: Handle,
    /// Where graphs are captured, so that work may be queued meanwhile.
    capture: Mutex<Capture>,
    /// Bytes of the device's memory.
    pub memory: u64,
    pub free: Mutex<FreeList>,
    pub errors: Mutex<ErrorWords>,
    error_words: u64,
    staging: Mutex<Staging>,
}

struct Capture(Handle);
struct Staging(*mut c_void);

// SAFETY: the driver's functions are callable from any thread once the context is current, which
// `enter` sees to; the staging buffer and the capture stream are used under their locks.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Makes the device's context this thread's.
    pub fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained for as long as the stream lives.
        unsafe { self.driver.context_set(self.context) }
    }

    /// A buffer as one of this device's.
    pub fn own<'b>(&self, buffer: &'b dyn DeviceBuffer) -> Result<&'b GpuBuffer, DeviceError> {
        buffer
            .as_any()
            .downcast_ref::<GpuBuffer>()
            .filter(|b| std::ptr::eq(Arc::as_ptr(&b.stream), self))
            .ok_or_else(|| DeviceError::Usage {
                backend: self.driver.vendor.name(),
                message: "the buffer belongs to another device".into(),
            })
    }

    /// The address of a new error word.
    pub fn error_word(&self, kernel: String) -> Result<u64, DeviceError> {
        match self.errors.lock().take(kernel) {
            Some(index) => Ok(self.error_words + 4 * index as u64),
            None => Err(DeviceError::Usage {
                backend: self.driver.vendor.name(),
                message: format!("more than {WORDS} kernels with checked indices"),
            }),
        }
    }

    fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream is alive.
        unsafe { self.driver.stream_synchronize(self.handle) }
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if bytes.len() > STAGING_BYTES {
            // SAFETY: the range is inside a buffer, and `bytes` lives until the wait.
            unsafe {
                self.driver.download(
                    bytes.as_mut_ptr().cast(),
                    address,
                    bytes.len(),
                    self.handle,
                )?;
            }
            return self.wait();
        }
        let staging = self.staging.lock();
        // SAFETY: the range is inside a buffer, and the staging buffer holds that many bytes.
        unsafe {
            self.driver
                .download(staging.0, address, bytes.len(), self.handle)?
        };
        self.wait()?;
        // SAFETY: the copy into the staging buffer is done, and nobody else holds its lock.
        let copied = unsafe { std::slice::from_raw_parts(staging.0.cast::<u8>(), bytes.len()) };
        bytes.copy_from_slice(copied);
        Ok(())
    }
}

/// A device of either vendor.
pub(crate) struct GpuDevice {
    stream: Arc<Stream>,
    compiler: Compiler,
    cache: ArtifactCache,
    flags: Vec<String>,
    profile: Profile,
    architecture: String,
    multiprocessors: u32,
    name: String,
    driver_version: i32,
    pipelines: Mutex<HashMap<String, Arc<GpuPipeline>>>,
}

/// What a vendor's module gives to open a device.
pub(crate) struct Opening {
    pub driver: Driver,
    pub compiler: Compiler,
    pub ordinal: i32,
    /// Looks at the device: profile with its limits, architecture.
    pub identify: fn(&Driver, i32) -> Result<Found, DeviceError>,
    pub flags: fn(&Found) -> Vec<String>,
    pub cache: &'static str,
}

impl GpuDevice {
    /// Opens a device.
    pub fn open(opening: Opening) -> Result<GpuDevice, DeviceError> {
        let driver = opening.driver;
        let vendor = driver.vendor;
        let missing = |reason: String| DeviceError::Missing {
            backend: vendor.name(),
            reason,
            looked_for: format!("device {}", opening.ordinal),
        };
        let (mut count, mut device, mut version) = (0, 0, 0);
        let mut name = [0u8; 256];
        let mut memory = 0usize;
        // SAFETY: every pointer is valid for writes of its type; the name's length is given.
        unsafe {
            driver.init(0).map_err(|error| missing(error.to_string()))?;
            driver.device_count(&mut count)?;
            if opening.ordinal >= count {
                return Err(missing(format!("this machine has {count} devices")));
            }
            driver.device_get(&mut device, opening.ordinal)?;
            driver.device_name(name.as_mut_ptr().cast(), 255, device)?;
            driver.device_memory(&mut memory, device)?;
            driver.driver_version(&mut version)?;
        }
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let found = (opening.identify)(&driver, device)?;
        let mut stream = Stream {
            driver,
            context: std::ptr::null_mut(),
            handle: std::ptr::null_mut(),
            capture: Mutex::new(Capture(std::ptr::null_mut())),
            memory: memory as u64,
            free: Mutex::default(),
            errors: Mutex::default(),
            error_words: 0,
            staging: Mutex::new(Staging(std::ptr::null_mut())),
        };
        let driver = &stream.driver;
        let mut staging = std::ptr::null_mut();
        // SAFETY: handles and pointers are valid for writes; the context is current from
        // `context_set` on.
        unsafe {
            driver.context_retain(&mut stream.context, device)?;
            driver.context_set(stream.context)?;
            driver.stream_create(&mut stream.handle, NON_BLOCKING)?;
            driver.stream_create(&mut stream.capture.get_mut().0, NON_BLOCKING)?;
            driver.alloc(&mut stream.error_words, 4 * WORDS)?;
            driver.fill(stream.error_words, 0, 4 * WORDS, stream.handle)?;
            driver.host_alloc(&mut staging, STAGING_BYTES, 0)?;
        }
        stream.staging.get_mut().0 = staging;
        Ok(GpuDevice {
            flags: (opening.flags)(&found),
            profile: found.profile,
            architecture: found.architecture,
            multiprocessors: found.multiprocessors,
            compiler: opening.compiler,
            cache: ArtifactCache::open(opening.cache),
            name,
            driver_version: version,
            pipelines: Mutex::default(),
            stream: Arc::new(stream),
        })
    }

    fn vendor(&self) -> Vendor {
        self.stream.driver.vendor
    }

    fn compile(&self, kernel: &Kernel) -> Result<GpuPipeline, DeviceError> {
        let backend = self.vendor().name();
        let lowered = iron_lower::lower(kernel, &self.profile)
            .map_err(|error| failed_lowering(backend, &kernel.full_name(), error))?;
        let Code::Text(text) = &lowered.code else {
            return Err(DeviceError::Compile {
                kernel: kernel.full_name(),
                backend,
                message: "the lowering made no text".into(),
            });
        };
        let flags = self.flags.join(" ");
        let key = artifact_key(&[
            text.as_bytes(),
            self.architecture.as_bytes(),
            flags.as_bytes(),
            self.compiler.version().as_bytes(),
        ]);
        let binary = match self.cache.get(&key) {
            Some(binary) => binary,
            None => {
                let binary = self
                    .compiler
                    .compile(&kernel.full_name(), text, &self.flags)
                    .map_err(|error| error.with_place(&lowered.places))?;
                self.cache.put(&key, &binary);
                binary
            }
        };
        let (entry, dynamic_shared) = match self.vendor() {
            Vendor::Cuda => (
                iron_lower::cuda::entry_point(&lowered.kernel),
                iron_lower::cuda::dynamic_shared_bytes(&lowered.kernel),
            ),
            Vendor::Hip => (iron_lower::hip::entry_point(&lowered.kernel), 0),
        };
        let parts = Parts {
            kernel: lowered.kernel,
            entry,
            binary: &binary,
            artifact: key,
            dynamic_shared,
            limits: self.limits(),
            multiprocessors: self.multiprocessors,
        };
        let pipeline = GpuPipeline::load(&self.stream, parts)?;
        let (registers, local_bytes) = pipeline.resources;
        tracing::debug!(kernel = %kernel.full_name(), registers, local_bytes, "compiled");
        Ok(pipeline)
    }

    fn queue(&self, launches: &[RecordedLaunch], on: Handle) -> Result<(), DeviceError> {
        for launch in launches {
            self.own(launch)?.queue(launch, on)?;
        }
        Ok(())
    }

    fn own<'l>(&self, launch: &'l RecordedLaunch) -> Result<&'l GpuPipeline, DeviceError> {
        launch
            .pipeline
            .as_any()
            .downcast_ref::<GpuPipeline>()
            .filter(|p| p.is_of(&self.stream))
            .ok_or_else(|| DeviceError::Usage {
                backend: self.vendor().name(),
                message: "the pipeline belongs to another device".into(),
            })
    }
}

impl Device for GpuDevice {
    fn backend(&self) -> Backend {
        self.vendor().backend()
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn driver(&self) -> String {
        let version = self.driver_version;
        let driver = match self.vendor() {
            Vendor::Cuda => format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
            Vendor::Hip => format!("HIP {version}"),
        };
        format!(
            "{driver}, {}, {}",
            self.compiler.version(),
            self.architecture
        )
    }

    fn limits(&self) -> LaunchLimits {
        LaunchLimits {
            max_grid: self.profile.limits.max_grid,
            max_workgroup: self.profile.limits.max_workgroup,
            max_threads: self.profile.limits.max_threads,
            max_buffer_bytes: self.stream.memory,
            max_resident: u64::MAX,
        }
    }

    fn max_shared_bytes(&self) -> u64 {
        self.profile.limits.shared_bytes
    }

    fn subgroup_size(&self) -> u32 {
        self.profile.subgroup_size.unwrap_or(32)
    }

    fn has(&self, feature: Feature) -> bool {
        self.profile.has(feature)
    }

    fn has_matrix_units(&self, scalar: Scalar) -> bool {
        self.profile.legal.multiplies(scalar)
    }

    fn alloc(&self, bytes: u64) -> Result<Arc<dyn DeviceBuffer>, DeviceError> {
        Ok(Arc::new(GpuBuffer::new(&self.stream, bytes)?))
    }

    fn upload(&self, to: &dyn DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let buffer = range(&self.stream, to, offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.stream.enter()?;
        // SAFETY: the range is inside the buffer. The driver has read pageable memory when it
        // returns.
        unsafe {
            self.stream.driver.upload(
                buffer.address + offset,
                bytes.as_ptr().cast(),
                bytes.len(),
                self.stream.handle,
            )
        }
    }

    fn download(
        &self,
        from: &dyn DeviceBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let buffer = range(&self.stream, from, offset, bytes.len() as u64)?;
        self.stream.enter()?;
        if bytes.is_empty() {
            return self.stream.wait();
        }
        self.stream.read(buffer.address + offset, bytes)
    }

    fn pipeline(&self, kernel: &Kernel) -> Result<Arc<dyn Pipeline>, DeviceError> {
        let identity = artifact_hash(kernel, &[self.profile.name, &self.architecture]);
        if let Some(known) = self.pipelines.lock().get(&identity) {
            return Ok(known.clone());
        }
        let made = Arc::new(self.compile(kernel)?);
        let mut pipelines = self.pipelines.lock();
        Ok(pipelines.entry(identity).or_insert(made).clone())
    }

    fn submit(&self, launches: &[RecordedLaunch]) -> Result<(), DeviceError> {
        self.stream.enter()?;
        self.queue(launches, self.stream.handle)
    }

    fn record(&self, launches: &[RecordedLaunch]) -> Result<Box<dyn Graph>, DeviceError> {
        for launch in launches {
            self.own(launch)?;
        }
        self.stream.enter()?;
        let driver = &self.stream.driver;
        let capture = self.stream.capture.lock();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture stream is alive and idle outside this lock. A capture that began
        // is ended whatever happened between, so that the stream stays usable.
        let queued = unsafe {
            driver.capture_begin(capture.0, THREAD_LOCAL_CAPTURE)?;
            let queued = self.queue(launches, capture.0);
            let ended = driver.capture_end(capture.0, &mut graph);
            queued.and(ended)
        };
        drop(capture);
        let mut recorded = GpuGraph {
            stream: self.stream.clone(),
            executable: std::ptr::null_mut(),
            checks: launches
                .iter()
                .any(|l| l.pipeline.kernel().checks_indices()),
            _launches: launches.to_vec(),
        };
        // SAFETY: the graph came out of the capture and is destroyed once.
        unsafe {
            let made = match queued {
                Ok(()) => driver.graph_instantiate(&mut recorded.executable, graph, 0),
                Err(error) => Err(error),
            };
            if !graph.is_null() {
                let _ = driver.graph_destroy(graph);
            }
            made?;
        }
        Ok(Box::new(recorded))
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.stream.enter()?;
        self.stream.wait()?;
        let mut errors = self.stream.errors.lock();
        if !std::mem::take(&mut errors.is_pending) {
            return Ok(());
        }
        let mut bytes = vec![0u8; 4 * errors.count()];
        self.stream.read(self.stream.error_words, &mut bytes)?;
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let Some((kernel, line)) = errors.first(&words) else {
            return Ok(());
        };
        // SAFETY: the words are an allocation of that size.
        unsafe {
            self.stream
                .driver
                .fill(self.stream.error_words, 0, 4 * WORDS, self.stream.handle)?;
        }
        self.stream.wait()?;
        Err(DeviceError::IndexOutOfRange { kernel, line })
    }

    fn time(&self, launches: &[RecordedLaunch]) -> Result<Vec<Duration>, DeviceError> {
        self.stream.enter()?;
        let stream = &self.stream;
        let mut events = Vec::with_capacity(launches.len() + 1);
        for _ in 0..=launches.len() {
            events.push(Event::new(stream)?);
        }
        // SAFETY: events and stream are alive.
        unsafe {
            stream
                .driver
                .event_record(events[0].handle, stream.handle)?
        };
        for (launch, event) in launches.iter().zip(&events[1..]) {
            self.own(launch)?.queue(launch, stream.handle)?;
            // SAFETY: as above.
            unsafe { stream.driver.event_record(event.handle, stream.handle)? };
        }
        stream.wait()?;
        events
            .windows(2)
            .map(|pair| {
                let mut milliseconds = 0f32;
                // SAFETY: both events have happened.
                unsafe {
                    stream.driver.event_elapsed(
                        &mut milliseconds,
                        pair[0].handle,
                        pair[1].handle,
                    )?;
                }
                Ok(Duration::from_secs_f64(
                    f64::from(milliseconds.max(0.0)) / 1e3,
                ))
            })
            .collect()
    }
}

/// A captured graph, which keeps alive what it bakes in.
struct GpuGraph {
    stream: Arc<Stream>,
    executable: Handle,
    checks: bool,
    _launches: Vec<RecordedLaunch>,
}

// SAFETY: as for the stream; launching a graph is callable from any thread.
unsafe impl Send for GpuGraph {}
// SAFETY: as above; the driver orders launches of one executable on one stream.
unsafe impl Sync for GpuGraph {}

impl Graph for GpuGraph {
    fn replay(&self) -> Result<(), DeviceError> {
        self.stream.enter()?;
        if self.checks {
            self.stream.errors.lock().is_pending = true;
        }
        // SAFETY: graph and stream are alive, and the launches hold what the graph uses.
        unsafe {
            self.stream
                .driver
                .graph_launch(self.executable, self.stream.handle)
        }
    }
}

impl Drop for GpuGraph {
    fn drop(&mut self) {
        if self.executable.is_null() || self.stream.enter().is_err() {
            return;
        }
        // SAFETY: no launch of it is under way after the wait, and it is destroyed once.
        unsafe {
            let _ = self.stream.driver.stream_synchronize(self.stream.handle);
            let _ = self.stream.driver.graph_executable_destroy(self.executable);
        }
    }
}

/// An event that is dropped whatever happens.
struct Event {
    stream: Arc<Stream>,
    handle: Handle,
}

impl Event {
    fn new(stream: &Arc<Stream>) -> Result<Event, DeviceError> {
        let mut event = Event {
            stream: stream.clone(),
            handle: std::ptr::null_mut(),
        };
        // SAFETY: the handle is valid for writes.
        unsafe { stream.driver.event_create(&mut event.handle, 0)? };
        Ok(event)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: made by the driver, destroyed once.
            let _ = unsafe { self.stream.driver.event_destroy(self.handle) };
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.is_null() || self.enter().is_err() {
            return;
        }
        self.release_free_blocks();
        let staging = self.staging.get_mut().0;
        // SAFETY: each was made by the driver and is given back once; the primary context stays
        // with the process, which others may share.
        unsafe {
            if self.error_words != 0 {
                let _ = self.driver.free(self.error_words);
            }
            if !staging.is_null() {
                let _ = self.driver.host_free(staging);
            }
        }
    }
}
