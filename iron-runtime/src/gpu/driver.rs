//! The driver's functions, by both vendors' names.

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;

use libloading::Library;

use super::Vendor;
use crate::device::DeviceError;

/// 0 is success in both APIs.
pub(crate) type Status = i32;

/// Out of memory, in both APIs.
pub(crate) const OUT_OF_MEMORY: Status = 2;

/// An opaque handle of the driver.
pub(crate) type Handle = *mut c_void;

macro_rules! table {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $ty:ty),*) = $cuda:literal, $hip:literal;)*) => {
        struct Functions { $($name: unsafe extern "C" fn($($ty),*) -> Status,)* }

        impl Functions {
            fn load(library: &Library, vendor: Vendor) -> Result<Functions, String> {
                Ok(Functions { $($name: symbol(library, match vendor {
                    Vendor::Cuda => $cuda,
                    Vendor::Hip => $hip,
                })?,)* })
            }
        }

        impl Driver {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// As the vendor's documentation of the function says: handles are alive, and
                /// pointers valid for what the function reads and writes.
                pub unsafe fn $name(&self, $($argument: $ty),*) -> Result<(), DeviceError> {
                    // SAFETY: the signature is that of the vendor's header; the caller vouches
                    // for the arguments.
                    let status = unsafe { (self.functions.$name)($($argument),*) };
                    self.check(match self.vendor { Vendor::Cuda => $cuda, Vendor::Hip => $hip }, status)
                }
            )*
        }
    };
}

table! {
    /// Starts the driver.
    init(flags: u32) = "cuInit", "hipInit";
    /// The driver's version.
    driver_version(version: *mut i32) = "cuDriverGetVersion", "hipDriverGetVersion";
    /// Devices of this machine.
    device_count(count: *mut i32) = "cuDeviceGetCount", "hipGetDeviceCount";
    /// A device by ordinal.
    device_get(device: *mut i32, ordinal: i32) = "cuDeviceGet", "hipDeviceGet";
    /// A device's name.
    device_name(name: *mut c_char, length: i32, device: i32) = "cuDeviceGetName", "hipDeviceGetName";
    /// One attribute of a device.
    device_attribute(value: *mut i32, attribute: i32, device: i32) = "cuDeviceGetAttribute", "hipDeviceGetAttribute";
    /// Bytes of a device's memory.
    device_memory(bytes: *mut usize, device: i32) = "cuDeviceTotalMem_v2", "hipDeviceTotalMem";
    /// The device's primary context.
    context_retain(context: *mut Handle, device: i32) = "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain";
    /// Makes a context this thread's.
    context_set(context: Handle) = "cuCtxSetCurrent", "hipCtxSetCurrent";
    /// Allocates device memory.
    alloc(address: *mut u64, bytes: usize) = "cuMemAlloc_v2", "hipMalloc";
    /// Frees device memory once queued work is done.
    free(address: u64) = "cuMemFree_v2", "hipFree";
    /// Allocates page-locked host memory.
    host_alloc(pointer: *mut *mut c_void, bytes: usize, flags: u32) = "cuMemHostAlloc", "hipHostMalloc";
    /// Frees page-locked host memory.
    host_free(pointer: *mut c_void) = "cuMemFreeHost", "hipHostFree";
    /// Queues a copy to the device.
    upload(to: u64, from: *const c_void, bytes: usize, stream: Handle) = "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync";
    /// Queues a copy to the host.
    download(to: *mut c_void, from: u64, bytes: usize, stream: Handle) = "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync";
    /// Queues a fill.
    fill(to: u64, byte: u8, bytes: usize, stream: Handle) = "cuMemsetD8Async", "hipMemsetD8Async";
    /// Makes a stream.
    stream_create(stream: *mut Handle, flags: u32) = "cuStreamCreate", "hipStreamCreateWithFlags";
    /// Waits for a stream.
    stream_synchronize(stream: Handle) = "cuStreamSynchronize", "hipStreamSynchronize";
    /// Makes an event.
    event_create(event: *mut Handle, flags: u32) = "cuEventCreate", "hipEventCreateWithFlags";
    /// Queues an event.
    event_record(event: Handle, stream: Handle) = "cuEventRecord", "hipEventRecord";
    /// Milliseconds between two events that have happened.
    event_elapsed(milliseconds: *mut f32, start: Handle, end: Handle) = "cuEventElapsedTime", "hipEventElapsedTime";
    /// Drops an event.
    event_destroy(event: Handle) = "cuEventDestroy_v2", "hipEventDestroy";
    /// Loads a binary.
    module_load(module: *mut Handle, image: *const c_void) = "cuModuleLoadData", "hipModuleLoadData";
    /// Unloads a binary.
    module_unload(module: Handle) = "cuModuleUnload", "hipModuleUnload";
    /// An entry point of a binary.
    module_function(function: *mut Handle, module: Handle, name: *const c_char) = "cuModuleGetFunction", "hipModuleGetFunction";
    /// One attribute of an entry point.
    function_attribute(value: *mut i32, attribute: i32, function: Handle) = "cuFuncGetAttribute", "hipFuncGetAttribute";
    /// Queues a launch.
    launch(function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void) = "cuLaunchKernel", "hipModuleLaunchKernel";
    /// Queues a launch whose workgroups are all resident.
    launch_cooperative(function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle, parameters: *mut *mut c_void) = "cuLaunchCooperativeKernel", "hipModuleLaunchCooperativeKernel";
    /// Workgroups of so many threads that a multiprocessor runs at once.
    occupancy(count: *mut i32, function: Handle, threads: i32, shared: usize) = "cuOccupancyMaxActiveBlocksPerMultiprocessor", "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor";
    /// Begins to record what is queued on a stream.
    capture_begin(stream: Handle, mode: i32) = "cuStreamBeginCapture_v2", "hipStreamBeginCapture";
    /// Ends the recording.
    capture_end(stream: Handle, graph: *mut Handle) = "cuStreamEndCapture", "hipStreamEndCapture";
    /// Makes a graph that can be launched.
    graph_instantiate(executable: *mut Handle, graph: Handle, flags: u64) = "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags";
    /// Queues a graph.
    graph_launch(executable: Handle, stream: Handle) = "cuGraphLaunch", "hipGraphLaunch";
    /// Drops a launchable graph.
    graph_executable_destroy(executable: Handle) = "cuGraphExecDestroy", "hipGraphExecDestroy";
    /// Drops a graph.
    graph_destroy(graph: Handle) = "cuGraphDestroy", "hipGraphDestroy";
}

/// The driver library.
pub(crate) struct Driver {
    pub vendor: Vendor,
    functions: Functions,
    text: ErrorText,
    /// `cuFuncSetAttribute`, which only NVIDIA needs.
    pub set_function_attribute: Option<unsafe extern "C" fn(Handle, i32, i32) -> Status>,
    /// `cuLaunchKernelEx`, for launches with attributes.
    pub launch_with: Option<
        unsafe extern "C" fn(
            *const LaunchConfig,
            Handle,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> Status,
    >,
    /// `cuTensorMapEncodeTiled`, of drivers that know compute capability 9.0.
    pub encode_tensor_map: Option<EncodeTensorMap>,
    /// `hipGetDeviceProperties` by its newest name.
    properties: Option<unsafe extern "C" fn(*mut c_void, i32) -> Status>,
    // Keeps the functions valid; dropped last.
    _library: Library,
}

/// `cuTensorMapEncodeTiled`: map, element type, rank, address, extents, strides in bytes, box,
/// element strides, interleaving, swizzle, promotion, fill.
pub(crate) type EncodeTensorMap = unsafe extern "C" fn(
    *mut [u8; 128],
    i32,
    u32,
    u64,
    *const u64,
    *const u64,
    *const u32,
    *const u32,
    i32,
    i32,
    i32,
    i32,
) -> Status;

/// The one pair of functions whose signatures differ.
enum ErrorText {
    /// `cuGetErrorString`.
    Out(unsafe extern "C" fn(Status, *mut *const c_char) -> Status),
    /// `hipGetErrorString`.
    Returned(unsafe extern "C" fn(Status) -> *const c_char),
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub count: u32,
}

/// `CUlaunchAttribute`.
#[repr(C, align(8))]
pub(crate) struct LaunchAttribute {
    pub id: i32,
    pub padding: [u8; 4],
    pub value: [u32; 16],
}

impl LaunchAttribute {
    /// An attribute that is on.
    pub fn set(id: i32) -> LaunchAttribute {
        let mut value = [0u32; 16];
        value[0] = 1;
        LaunchAttribute {
            id,
            padding: [0; 4],
            value,
        }
    }
}

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
pub(crate) const COOPERATIVE: i32 = 2;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
pub(crate) const PROGRAMMATIC_SERIALIZATION: i32 = 6;

impl Driver {
    /// Loads the first of the named libraries that is there.
    pub fn open(vendor: Vendor, names: &[&str]) -> Result<Driver, DeviceError> {
        let missing = |reason: String| DeviceError::Missing {
            backend: vendor.name(),
            reason,
            looked_for: names.join(", "),
        };
        let paths: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
        let library = open_first(&paths).map_err(|_| missing("no driver library".into()))?;
        let functions = Functions::load(&library, vendor).map_err(missing)?;
        let text = match vendor {
            Vendor::Cuda => ErrorText::Out(symbol(&library, "cuGetErrorString").map_err(missing)?),
            Vendor::Hip => {
                ErrorText::Returned(symbol(&library, "hipGetErrorString").map_err(missing)?)
            }
        };
        Ok(Driver {
            vendor,
            functions,
            text,
            set_function_attribute: symbol(&library, "cuFuncSetAttribute").ok(),
            launch_with: symbol(&library, "cuLaunchKernelEx").ok(),
            encode_tensor_map: symbol(&library, "cuTensorMapEncodeTiled").ok(),
            properties: symbol(&library, "hipGetDevicePropertiesR0600")
                .or_else(|_| symbol(&library, "hipGetDeviceProperties"))
                .ok(),
            _library: library,
        })
    }

    /// A status as a result.
    pub fn check(&self, call: &'static str, status: Status) -> Result<(), DeviceError> {
        if status == 0 {
            return Ok(());
        }
        Err(DeviceError::Driver {
            backend: self.vendor.name(),
            call,
            message: format!("{} (status {status})", self.message(status)),
        })
    }

    /// Allocates, with the status apart: running out of memory is an answer, not a failure.
    pub fn try_alloc(&self, bytes: usize) -> Result<u64, Status> {
        let mut address = 0u64;
        // SAFETY: the address is valid for writes; the context is current.
        match unsafe { (self.functions.alloc)(&mut address, bytes) } {
            0 => Ok(address),
            status => Err(status),
        }
    }

    /// The bytes of HIP's property structure, which `bytes` must exceed.
    pub fn properties(&self, device: i32, bytes: usize) -> Result<Vec<u8>, DeviceError> {
        let Some(function) = self.properties else {
            return Err(DeviceError::Missing {
                backend: self.vendor.name(),
                reason: "the library has no device properties".into(),
                looked_for: "hipGetDeviceProperties".into(),
            });
        };
        let mut properties = vec![0u64; bytes.div_ceil(8)];
        // SAFETY: the structure of every version is smaller than the buffer, which is aligned as
        // its widest members.
        let status = unsafe { function(properties.as_mut_ptr().cast(), device) };
        self.check("hipGetDeviceProperties", status)?;
        Ok(properties
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect())
    }

    fn message(&self, status: Status) -> String {
        let text = match self.text {
            ErrorText::Out(function) => {
                let mut text = std::ptr::null();
                // SAFETY: the pointer is valid for writes; the driver keeps the string.
                unsafe { function(status, &mut text) };
                text
            }
            // SAFETY: the driver keeps the string.
            ErrorText::Returned(function) => unsafe { function(status) },
        };
        if text.is_null() {
            return "unknown error".into();
        }
        // SAFETY: a string of the driver, which ends with NUL and lives as long as the library.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

/// The first of the libraries that opens, or why the last one does not.
pub(crate) fn open_first(paths: &[PathBuf]) -> Result<Library, String> {
    let mut reason = "nothing was looked for".to_owned();
    for path in paths {
        // SAFETY: vendors' libraries, whose initialisers only set up themselves.
        match unsafe { Library::new(path) } {
            Ok(library) => return Ok(library),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}

/// A function of a library.
pub(crate) fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    // SAFETY: the caller gives the signature of the vendor's header.
    match unsafe { library.get::<F>(name.as_bytes()) } {
        Ok(function) => Ok(*function),
        Err(_) => Err(format!("the library has no `{name}`; it is too old")),
    }
}
