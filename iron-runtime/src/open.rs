//! Opening devices.

use std::sync::Arc;

use crate::device::{Backend, Device, DeviceError};

/// A device, or why it does not open.
pub type OpenResult = Result<Arc<dyn Device>, DeviceError>;

/// Opens the first device of a backend. Refuses where it is absent: there is no fallback.
pub fn open(backend: Backend) -> OpenResult {
    crate::launch::forget_dropped_devices();
    match backend {
        Backend::Host => Ok(Arc::new(crate::host::HostDevice::new())),
        Backend::Reference => Ok(Arc::new(crate::reference::ReferenceDevice::new())),
        Backend::Vulkan => Ok(crate::vulkan::VulkanDevice::open()?),

        Backend::Cuda => crate::cuda::open(),
        Backend::Hip => crate::hip::open(),
        Backend::Cpu => Ok(Arc::new(crate::cpu::CpuDevice::new()?)),
        Backend::Metal => crate::metal::open(),
        Backend::EmulatedCuda | Backend::EmulatedHip | Backend::EmulatedMsl => {
            crate::emulated::open(backend)
        }
    }
}

/// Every device that opens on this machine, with those that do not and why.
pub fn devices() -> Vec<(Backend, OpenResult)> {
    Backend::ALL
        .into_iter()
        .map(|backend| (backend, open(backend)))
        .collect()
}
