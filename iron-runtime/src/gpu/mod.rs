//! What CUDA and HIP share: one device over one table of driver functions.
//!
//! HIP's module API mirrors CUDA's driver API call by call, and hipRTC mirrors NVRTC, so both
//! backends are this code with two columns of names ([`driver`], [`compiler`]): what runs on one
//! vendor's hardware is evidence for the other's logic. The tables load at run time over
//! `libloading`; nothing of either vendor is needed to build. The binding crates are not used:
//! `cudarc` covers one column, `hip-rs` links ROCm at build time and wraps no module launch.

pub(crate) mod compiler;
pub(crate) mod device;
pub(crate) mod driver;
pub(crate) mod errors;
pub(crate) mod memory;
pub(crate) mod pipeline;
mod tensor_map;

use iron_lower::{LowerError, Profile};

use crate::device::{Backend, DeviceError};

/// One of the two columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vendor {
    /// NVIDIA: `libcuda`, NVRTC.
    Cuda,
    /// AMD: `libamdhip64`, hipRTC.
    Hip,
}

impl Vendor {
    pub fn backend(self) -> Backend {
        match self {
            Vendor::Cuda => Backend::Cuda,
            Vendor::Hip => Backend::Hip,
        }
    }

    pub fn name(self) -> &'static str {
        self.backend().name()
    }
}

/// A device as its vendor's module found it.
pub(crate) struct Found {
    /// What kernels are lowered for, with this device's limits.
    pub profile: Profile,
    /// The compiler's architecture: `sm_90a`, `gfx942:sramecc+:xnack-`.
    pub architecture: String,
    /// Multiprocessors, or compute units.
    pub multiprocessors: u32,
}

/// A refused lowering in the runtime's words.
pub(crate) fn failed_lowering(
    backend: &'static str,
    kernel: &str,
    error: LowerError,
) -> DeviceError {
    match error {
        LowerError::Unsupported(lack) => DeviceError::Unsupported {
            kernel: kernel.to_owned(),
            backend,
            reason: lack.lack.to_string(),
        },
        other => DeviceError::Compile {
            kernel: kernel.to_owned(),
            backend,
            message: other.to_string(),
        },
    }
}

/// The ordinal that an environment variable names, 0 where it is not set.
pub(crate) fn ordinal(vendor: Vendor, variable: &'static str) -> Result<i32, DeviceError> {
    match std::env::var(variable) {
        Ok(text) if !text.is_empty() => {
            text.parse()
                .ok()
                .filter(|n| *n >= 0)
                .ok_or_else(|| DeviceError::Usage {
                    backend: vendor.name(),
                    message: format!("{variable}={text} is not the ordinal of a device"),
                })
        }
        Ok(_) | Err(_) => Ok(0),
    }
}
