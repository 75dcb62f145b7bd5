//! A compiled kernel, and how it is queued.

use std::any::Any;
use std::ffi::{CString, c_void};
use std::sync::Arc;

use iron_ir::entity::Handle as _;
use iron_ir::kernel::Kernel;
use iron_ir::launch::{Argument, LaunchLimits, TensorArg};
use iron_ir::layout::{BlockLayout, FieldKind};

use super::device::Stream;
use super::driver::{
    COOPERATIVE, Handle, LaunchAttribute, LaunchConfig, PROGRAMMATIC_SERIALIZATION,
};
use super::memory::GpuBuffer;
use super::{Vendor, tensor_map};
use crate::alignment;
use crate::device::{DeviceError, Pipeline, RecordedLaunch};

/// `CU_FUNC_ATTRIBUTE_…`, the same numbers as HIP's.
const MAX_THREADS: i32 = 0;
const LOCAL_BYTES: i32 = 3;
const REGISTERS: i32 = 4;
const MAX_DYNAMIC_SHARED: i32 = 8;

/// A compiled kernel of one device.
pub(crate) struct GpuPipeline {
    stream: Arc<Stream>,
    kernel: Kernel,
    layout: BlockLayout,
    limits: LaunchLimits,
    artifact: String,
    module: Handle,
    function: Handle,
    dynamic_shared: u32,
    error_word: Option<u64>,
    /// Registers and bytes of spilled or local memory of a thread.
    pub resources: (i32, i32),
}

// SAFETY: the handles are used under the device's context, which every call makes current; the
// driver's functions are callable from any thread.
unsafe impl Send for GpuPipeline {}
// SAFETY: as above; nothing of it changes.
unsafe impl Sync for GpuPipeline {}

/// What a pipeline is made of.
pub(crate) struct Parts<'a> {
    pub kernel: Kernel,
    pub entry: String,
    pub binary: &'a [u8],
    pub artifact: String,
    pub dynamic_shared: u32,
    pub limits: LaunchLimits,
    pub multiprocessors: u32,
}

impl GpuPipeline {
    /// Loads a binary.
    pub fn load(stream: &Arc<Stream>, parts: Parts<'_>) -> Result<GpuPipeline, DeviceError> {
        let driver = &stream.driver;
        stream.enter()?;
        let name = CString::new(parts.entry).map_err(|_| DeviceError::Usage {
            backend: driver.vendor.name(),
            message: "the entry point's name has a NUL".into(),
        })?;
        let layout = BlockLayout::of(&parts.kernel);
        let mut pipeline = GpuPipeline {
            stream: stream.clone(),
            layout,
            limits: parts.limits,
            artifact: parts.artifact,
            module: std::ptr::null_mut(),
            function: std::ptr::null_mut(),
            dynamic_shared: parts.dynamic_shared,
            error_word: None,
            resources: (0, 0),
            kernel: parts.kernel,
        };
        // SAFETY: the image is a whole binary of the compiler, the handles are valid for writes,
        // and the name ends with NUL.
        unsafe {
            driver.module_load(&mut pipeline.module, parts.binary.as_ptr().cast())?;
            driver.module_function(&mut pipeline.function, pipeline.module, name.as_ptr())?;
        }
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: the function is of a loaded module; the value is valid for writes.
            unsafe { driver.function_attribute(&mut value, which, pipeline.function) }?;
            Ok::<i32, DeviceError>(value)
        };
        let threads = attribute(MAX_THREADS)?;
        let resources = (attribute(REGISTERS)?, attribute(LOCAL_BYTES)?);
        pipeline.limits.max_threads = pipeline
            .limits
            .max_threads
            .min(u32::try_from(threads).unwrap_or(u32::MAX));
        pipeline.resources = resources;
        if pipeline.dynamic_shared > 0 {
            let Some(set) = driver.set_function_attribute else {
                return Err(DeviceError::Unsupported {
                    kernel: pipeline.kernel.full_name(),
                    backend: driver.vendor.name(),
                    reason: format!(
                        "it needs {} bytes of shared memory, which this driver cannot opt into",
                        pipeline.dynamic_shared
                    ),
                });
            };
            let bytes = i32::try_from(pipeline.dynamic_shared).unwrap_or(i32::MAX);
            // SAFETY: the function is of a loaded module.
            let status = unsafe { set(pipeline.function, MAX_DYNAMIC_SHARED, bytes) };
            driver.check("cuFuncSetAttribute", status)?;
        }
        if pipeline.kernel.contract.cooperative {
            let mut each = 0;
            let threads = i32::try_from(pipeline.kernel.contract.threads()).unwrap_or(i32::MAX);
            let shared = pipeline.dynamic_shared as usize;
            // SAFETY: the function is of a loaded module; the count is valid for writes.
            unsafe { driver.occupancy(&mut each, pipeline.function, threads, shared) }?;
            pipeline.limits.max_resident =
                u64::try_from(each).unwrap_or(0) * u64::from(parts.multiprocessors);
        }
        if pipeline.kernel.checks_indices() {
            pipeline.error_word = Some(stream.error_word(pipeline.kernel.full_name())?);
        }
        Ok(pipeline)
    }

    /// Queues one launch of this pipeline.
    pub fn queue(&self, launch: &RecordedLaunch, on: Handle) -> Result<(), DeviceError> {
        if launch.checked.is_empty {
            return Ok(());
        }
        let driver = &self.stream.driver;
        let mut block = launch.checked.block.clone();
        self.write_addresses(&mut block, &launch.arguments)?;
        self.write_tensor_maps(&mut block, &launch.arguments)?;
        if self.error_word.is_some() {
            self.stream.errors.lock().is_pending = true;
        }
        let [gx, gy, gz] = launch.checked.grid;
        let [bx, by, bz] = self.kernel.contract.workgroup;
        let (function, shared) = (self.function, self.dynamic_shared);
        let mut pointers: Vec<*mut c_void> = self
            .layout
            .fields
            .iter()
            .map(|field| block[field.offset as usize..].as_mut_ptr().cast())
            .collect();
        // Drivers refuse or misread a packed list with parameters at multiples of 64 bytes, which
        // tensor maps are, and refuse one in a cooperative launch that they record in a graph
        // (both seen with 580.159).
        let has_maps = self
            .layout
            .fields
            .iter()
            .any(|f| matches!(f.kind, FieldKind::TensorMap(..)));
        let mut bytes = self.layout.packed_bytes() as usize;
        let end = match driver.vendor {
            Vendor::Cuda => 0,
            Vendor::Hip => 3,
        };
        // `…_LAUNCH_PARAM_BUFFER_POINTER`, `…_BUFFER_SIZE`, `…_END`.
        let mut extra: [*mut c_void; 5] = [
            std::ptr::without_provenance_mut(1),
            block.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(2),
            std::ptr::from_mut(&mut bytes).cast(),
            std::ptr::without_provenance_mut(end),
        ];
        let contract = &self.kernel.contract;
        let (listed, packed) = if has_maps || contract.cooperative {
            (pointers.as_mut_ptr(), std::ptr::null_mut())
        } else {
            (std::ptr::null_mut(), extra.as_mut_ptr())
        };
        let attributes: Vec<LaunchAttribute> = [
            (contract.cooperative, COOPERATIVE),
            (contract.dependent, PROGRAMMATIC_SERIALIZATION),
        ]
        .into_iter()
        .filter(|(is_asked, _)| *is_asked)
        .map(|(_, id)| LaunchAttribute::set(id))
        .collect();
        if let (false, Some(launch_with)) = (attributes.is_empty(), driver.launch_with) {
            let config = LaunchConfig {
                grid: [gx, gy, gz],
                block: [bx, by, bz],
                shared,
                stream: on,
                attributes: attributes.as_ptr(),
                count: attributes.len() as u32,
            };
            // SAFETY: as below; configuration and attributes outlive the call.
            let status = unsafe { launch_with(&config, function, listed, packed) };
            return driver.check("cuLaunchKernelEx", status);
        }
        if contract.cooperative {
            // SAFETY: one pointer a parameter of the entry point, each to a value of its type;
            // the driver copies them before it returns.
            return unsafe {
                driver.launch_cooperative(
                    function,
                    gx,
                    gy,
                    gz,
                    bx,
                    by,
                    bz,
                    shared,
                    on,
                    pointers.as_mut_ptr(),
                )
            };
        }
        // SAFETY: either one pointer a parameter of the entry point, each to a value of its type,
        // or the packed block, laid out as its parameter list; the driver copies them before it
        // returns.
        unsafe { driver.launch(function, gx, gy, gz, bx, by, bz, shared, on, listed, packed) }
    }

    fn write_addresses(&self, block: &mut [u8], arguments: &[Argument]) -> Result<(), DeviceError> {
        for field in &self.layout.fields {
            let address = match field.kind {
                FieldKind::Address(param) => match arguments.get(param.index()) {
                    Some(Argument::Tensor(view)) => self.address(view)?,
                    Some(Argument::Scalar(_)) | None => 0,
                },
                FieldKind::ErrorWord => self.error_word.unwrap_or(0),
                FieldKind::Stride(..)
                | FieldKind::Dim(_)
                | FieldKind::Scalar(_)
                | FieldKind::Aligned
                | FieldKind::TensorMap(..) => continue,
            };
            let at = field.offset as usize;
            if let Some(place) = block.get_mut(at..at + 8) {
                place.copy_from_slice(&address.to_le_bytes());
            }
        }
        Ok(())
    }

    /// Encodes the tensor maps, and says which tensors can be accessed 16 bytes at a time. One
    /// that has no map counts as one that cannot.
    fn write_tensor_maps(
        &self,
        block: &mut [u8],
        arguments: &[Argument],
    ) -> Result<(), DeviceError> {
        let Some(word) = self.layout.field(FieldKind::Aligned) else {
            return Ok(());
        };
        let mut aligned = alignment::aligned(arguments, |view| self.address(view))?;
        for field in &self.layout.fields {
            let FieldKind::TensorMap(param, rows) = field.kind else {
                continue;
            };
            let Some(Argument::Tensor(view)) = arguments.get(param.index()) else {
                continue;
            };
            let map = match aligned >> param.index() & 1 {
                1 => tensor_map::encode(&self.stream.driver, view, self.address(view)?, rows),
                _ => None,
            };
            let at = field.offset as usize;
            match (map, block.get_mut(at..at + 128)) {
                (Some(map), Some(place)) => place.copy_from_slice(&map),
                _ => aligned &= !(1 << param.index()),
            }
        }
        let at = word.offset as usize;
        if let Some(place) = block.get_mut(at..at + 4) {
            place.copy_from_slice(&aligned.to_le_bytes());
        }
        Ok(())
    }

    fn address(&self, view: &TensorArg) -> Result<u64, DeviceError> {
        let buffer = self.stream.own(&*view.buffer)?;
        Ok(buffer.address + view.offset * u64::from(view.scalar.bytes()))
    }

    /// Whether it belongs to that device.
    pub fn is_of(&self, stream: &Arc<Stream>) -> bool {
        Arc::ptr_eq(&self.stream, stream)
    }
}

impl Pipeline for GpuPipeline {
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

impl Drop for GpuPipeline {
    fn drop(&mut self) {
        if self.module.is_null() || self.stream.enter().is_err() {
            return;
        }
        // Launches of it may still be queued.
        // SAFETY: the stream and module are alive, and the module is unloaded once.
        unsafe {
            let _ = self.stream.driver.stream_synchronize(self.stream.handle);
            let _ = self.stream.driver.module_unload(self.module);
        }
    }
}

/// The buffer as this backend's, for copies.
pub(crate) fn range<'b>(
    stream: &Arc<Stream>,
    buffer: &'b dyn iron_ir::launch::DeviceBuffer,
    offset: u64,
    bytes: u64,
) -> Result<&'b GpuBuffer, DeviceError> {
    use iron_ir::launch::DeviceBuffer as _;
    let own = stream.own(buffer)?;
    match offset.checked_add(bytes) {
        Some(end) if end <= own.bytes() => Ok(own),
        _ => Err(DeviceError::Usage {
            backend: stream.driver.vendor.name(),
            message: format!(
                "{bytes} bytes at {offset} reach past the end of a buffer of {} bytes",
                own.bytes()
            ),
        }),
    }
}
