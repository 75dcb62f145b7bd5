//! CUDA: CUDA C++ texts through NVRTC and the driver API, both loaded at run time.
//!
//! | environment variable | meaning |
//! |---|---|
//! | `IRON_CUDA_DEVICE` | ordinal of the device; 0 otherwise |
//! | `IRON_CUDA_PROFILE` | `sm_80`: texts without what newer architectures alone have, compiled for the device |
//! | `CUDA_HOME`, `CUDA_PATH` | where to look for NVRTC beside the loader's own path |
//! | `IRON_CACHE_DIR` | folder of compiled binaries |
//!
//! Kernels are compiled for the device's own architecture, and binaries are kept on disk under
//! the hash of text, architecture, flags and compiler version. Launches hand the parameter block
//! over as one packed buffer; recorded lists become CUDA graphs.

mod libraries;

use std::sync::Arc;

use iron_lower::profile;

use crate::device::{Device, DeviceError};
use crate::gpu::compiler::Compiler;
use crate::gpu::device::{GpuDevice, Opening};
use crate::gpu::driver::Driver;
use crate::gpu::{Found, Vendor};

/// Names the device to open.
pub const DEVICE_VARIABLE: &str = "IRON_CUDA_DEVICE";

/// Names the profile that kernels are lowered for.
pub const PROFILE_VARIABLE: &str = "IRON_CUDA_PROFILE";

/// `CU_DEVICE_ATTRIBUTE_…` of `cuda.h`.
mod attribute {
    pub const MAX_THREADS: i32 = 1;
    pub const MAX_BLOCK: [i32; 3] = [2, 3, 4];
    pub const MAX_GRID: [i32; 3] = [5, 6, 7];
    pub const WARP_SIZE: i32 = 10;
    pub const MULTIPROCESSORS: i32 = 16;
    pub const MAJOR: i32 = 75;
    pub const MINOR: i32 = 76;
    pub const SHARED_OPT_IN: i32 = 97;
}

/// Opens the device that the environment names, else the first.
pub fn open() -> Result<Arc<dyn Device>, DeviceError> {
    let ordinal = crate::gpu::ordinal(Vendor::Cuda, DEVICE_VARIABLE)?;
    let driver = Driver::open(Vendor::Cuda, libraries::DRIVER)?;
    let compiler = Compiler::open(
        Vendor::Cuda,
        &libraries::nvrtc_candidates(),
        libraries::builtins_beside,
    )?;
    let opening = Opening {
        driver,
        compiler,
        ordinal,
        identify,
        flags,
        cache: "cubin",
    };
    Ok(Arc::new(GpuDevice::open(opening)?))
}

fn identify(driver: &Driver, device: i32) -> Result<Found, DeviceError> {
    let ask = |attribute| {
        let mut value = 0;
        // SAFETY: the value is valid for writes and the device exists.
        unsafe { driver.device_attribute(&mut value, attribute, device) }?;
        Ok::<u32, DeviceError>(u32::try_from(value).unwrap_or(0))
    };
    let (major, minor) = (ask(attribute::MAJOR)?, ask(attribute::MINOR)?);
    let (name, architecture) = target(major, minor).ok_or_else(|| DeviceError::Missing {
        backend: "cuda",
        reason: format!("the device has compute capability {major}.{minor}"),
        looked_for: "compute capability 8.0 or later".into(),
    })?;
    let (name, architecture) = match std::env::var(PROFILE_VARIABLE).as_deref() {
        Ok("") | Err(_) => (name, architecture),
        Ok("sm_80") => ("sm_80", format!("sm_{major}{minor}")),
        Ok(other) => {
            return Err(DeviceError::Usage {
                backend: "cuda",
                message: format!(
                    "{PROFILE_VARIABLE}={other} is not `sm_80`; leave it out for the device's own"
                ),
            });
        }
    };
    let mut profile = profile::by_name(name).ok_or_else(|| DeviceError::Usage {
        backend: "cuda",
        message: format!("there is no profile `{name}`"),
    })?;
    let limits = &mut profile.limits;
    limits.max_threads = ask(attribute::MAX_THREADS)?;
    limits.shared_bytes = u64::from(ask(attribute::SHARED_OPT_IN)?);
    for axis in 0..3 {
        limits.max_workgroup[axis] = ask(attribute::MAX_BLOCK[axis])?;
        limits.max_grid[axis] = u64::from(ask(attribute::MAX_GRID[axis])?);
    }
    profile.subgroup_size = Some(ask(attribute::WARP_SIZE)?);
    profile.legal.subgroup_size = profile.subgroup_size;
    profile.legal.shared_bytes_limit = profile.limits.shared_bytes;
    Ok(Found {
        profile,
        architecture,
        multiprocessors: ask(attribute::MULTIPROCESSORS)?,
    })
}

/// Profile and architecture of a compute capability. Architectures with features of their own
/// have an `a` from 9.0 on.
fn target(major: u32, minor: u32) -> Option<(&'static str, String)> {
    match major {
        0..=7 => None,
        8 => Some(("sm_80", format!("sm_{major}{minor}"))),
        9 => Some(("sm_90a", format!("sm_{major}{minor}a"))),
        _ => Some(("sm_100a", format!("sm_{major}{minor}a"))),
    }
}

fn flags(found: &Found) -> Vec<String> {
    let architecture = format!("--gpu-architecture={}", found.architecture);
    let fixed = iron_lower::cuda::COMPILE_FLAGS
        .iter()
        .map(|f| (*f).to_owned());
    std::iter::once(architecture).chain(fixed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_follow_the_compute_capability() {
        assert_eq!(target(7, 5), None);
        assert_eq!(target(8, 6), Some(("sm_80", "sm_86".into())));
        assert_eq!(target(9, 0), Some(("sm_90a", "sm_90a".into())));
        assert_eq!(target(12, 0), Some(("sm_100a", "sm_120a".into())));
    }

    #[test]
    fn a_missing_driver_is_named() {
        let error = Driver::open(Vendor::Cuda, &["libcuda-that-is-not-there.so"]).err();
        let text = error.expect("no such library").to_string();
        assert!(
            text.contains("cuda") && text.contains("libcuda-that-is-not-there.so"),
            "{text}"
        );
    }

    /// NVRTC needs no driver: where it is installed, texts compile on any machine.
    #[test]
    fn nvrtc_compiles_and_its_refusal_is_one_line() {
        let candidates = libraries::nvrtc_candidates();
        let compiler = match Compiler::open(Vendor::Cuda, &candidates, libraries::builtins_beside) {
            Ok(compiler) => compiler,
            Err(error) => {
                assert!(error.to_string().contains("libnvrtc"), "{error}");
                return;
            }
        };
        let flags: Vec<String> = vec!["--gpu-architecture=sm_90a".into()];
        let good = "extern \"C\" __global__ void k(float* y) { y[0] = 1.0f; }";
        let binary = compiler.compile("k", good, &flags).expect("compiles");
        assert_eq!(&binary[..4], b"\x7fELF");
        let error = compiler
            .compile("k", "not C++", &flags)
            .expect_err("refused")
            .to_string();
        assert!(error.contains("`k`") && !error.contains('\n'), "{error}");
    }
}
