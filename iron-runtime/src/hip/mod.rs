//! HIP: HIP C++ texts through hipRTC and HIP's module API, both loaded at run time.
//!
//! | environment variable | meaning |
//! |---|---|
//! | `IRON_HIP_DEVICE` | ordinal of the device; 0 otherwise |
//! | `ROCM_PATH` | where to look for the libraries beside the loader's own path |
//! | `IRON_CACHE_DIR` | folder of compiled binaries |
//!
//! The code is that of CUDA with AMD's names; see `gpu` for why no binding crate serves. **Nobody has run
//! this backend on an AMD GPU yet**: its texts are compiled by clang for every profile, and the
//! logic runs on NVIDIA's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use iron_lower::{Profile, Target, profile};

use crate::device::{Device, DeviceError};
use crate::gpu::compiler::Compiler;
use crate::gpu::device::{GpuDevice, Opening};
use crate::gpu::driver::Driver;
use crate::gpu::{Found, Vendor};

/// Names the device to open.
pub const DEVICE_VARIABLE: &str = "IRON_HIP_DEVICE";

const DRIVER: &[&str] = &[
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so.5",
    "libamdhip64.so",
    "/opt/rocm/lib/libamdhip64.so",
];

const COMPILER: &[&str] = &[
    "libhiprtc.so.7",
    "libhiprtc.so.6",
    "libhiprtc.so.5",
    "libhiprtc.so",
];

/// `hipDeviceAttributeWarpSize` of ROCm 5 and later.
const WARP_SIZE: i32 = 87;
/// `hipDeviceAttributeMultiprocessorCount` of the same.
const MULTIPROCESSORS: i32 = 63;

/// Bytes that hold `hipDeviceProp_t` of every version so far, with room.
const PROPERTIES_BYTES: usize = 16 << 10;

/// Opens the device that the environment names, else the first.
pub fn open() -> Result<Arc<dyn Device>, DeviceError> {
    let ordinal = crate::gpu::ordinal(Vendor::Hip, DEVICE_VARIABLE)?;
    let driver = Driver::open(Vendor::Hip, DRIVER)?;
    let compiler = Compiler::open(Vendor::Hip, &hiprtc_candidates(), |_| None)?;
    let opening = Opening {
        driver,
        compiler,
        ordinal,
        identify,
        flags,
        cache: "hsaco",
    };
    Ok(Arc::new(GpuDevice::open(opening)?))
}

fn hiprtc_candidates() -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::new()];
    if let Some(home) = std::env::var_os("ROCM_PATH").filter(|v| !v.is_empty()) {
        folders.push(Path::new(&home).join("lib"));
    }
    folders.push("/opt/rocm/lib".into());
    folders
        .iter()
        .flat_map(|folder| COMPILER.iter().map(move |name| folder.join(name)))
        .collect()
}

fn identify(driver: &Driver, device: i32) -> Result<Found, DeviceError> {
    let architecture = architecture(driver, device)?;
    let ask = |attribute| {
        let mut value = 0;
        // SAFETY: the value is valid for writes and the device exists.
        unsafe { driver.device_attribute(&mut value, attribute, device) }?;
        Ok::<i32, DeviceError>(value)
    };
    let lanes = ask(WARP_SIZE)?;
    let base = architecture.split(':').next().unwrap_or_default();
    let profile = profile_of(base, lanes).ok_or_else(|| DeviceError::Usage {
        backend: "hip",
        message: format!("there is no profile for {base}"),
    })?;
    if profile.subgroup_size != u32::try_from(lanes).ok() {
        return Err(DeviceError::Usage {
            backend: "hip",
            message: format!(
                "{architecture} reports waves of {lanes} lanes, its profile `{}` has {:?}",
                profile.name, profile.subgroup_size
            ),
        });
    }
    Ok(Found {
        profile,
        architecture,
        multiprocessors: u32::try_from(ask(MULTIPROCESSORS)?).unwrap_or(0),
    })
}

/// The profile of an architecture: its own, or one of its width, without the matrix instructions,
/// which RDNA 3.5 shares with RDNA 3 and other architectures need not have.
fn profile_of(base: &str, lanes: i32) -> Option<Profile> {
    let known = profile::by_name(base).filter(|p| p.target == Target::Hip);
    known.or_else(|| {
        let nearest = if lanes == 64 { "gfx90a" } else { "gfx1100" };
        let mut profile = profile::by_name(nearest)?;
        if !base.starts_with("gfx11") {
            profile.legal.fragments = None;
        }
        Some(profile)
    })
}

/// `gcnArchName` of the device's properties. The structure differs between versions of ROCm, so
/// the name is searched for: it is the one string in it that begins with `gfx`.
fn architecture(driver: &Driver, device: i32) -> Result<String, DeviceError> {
    let properties = driver.properties(device, PROPERTIES_BYTES)?;
    architecture_in(&properties).ok_or_else(|| DeviceError::Missing {
        backend: "hip",
        reason: "the device's properties name no architecture".into(),
        looked_for: "a name like gfx942".into(),
    })
}

fn architecture_in(properties: &[u8]) -> Option<String> {
    let at = properties
        .windows(5)
        .position(|w| w[0] == 0 && &w[1..4] == b"gfx" && w[4].is_ascii_digit())?;
    let text: Vec<u8> = properties[at + 1..]
        .iter()
        .copied()
        .take_while(|&b| b != 0)
        .collect();
    String::from_utf8(text).ok()
}

fn flags(found: &Found) -> Vec<String> {
    let architecture = format!("--offload-arch={}", found.architecture);
    let fixed = iron_lower::hip::COMPILE_FLAGS
        .iter()
        .map(|f| (*f).to_owned());
    std::iter::once(architecture).chain(fixed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_architecture_is_found_behind_the_name() {
        let mut properties = vec![0u8; 2000];
        properties[..16].copy_from_slice(b"AMD gfx9 Board\0\0");
        properties[1160..1182].copy_from_slice(b"gfx942:sramecc+:xnack-");
        assert_eq!(
            architecture_in(&properties).as_deref(),
            Some("gfx942:sramecc+:xnack-")
        );
        assert_eq!(architecture_in(&[0; 64]), None);
    }

    #[test]
    fn an_architecture_without_a_profile_keeps_no_matrix_instructions_but_of_its_family() {
        let of = |base, lanes| profile_of(base, lanes).expect("some profile");
        for (base, lanes, name, multiplies) in [
            ("gfx942", 64, "gfx942", true),
            ("gfx1151", 32, "gfx1100", true),
            ("gfx1030", 32, "gfx1100", false),
            ("gfx1201", 32, "gfx1100", false),
            ("gfx906", 64, "gfx90a", false),
        ] {
            let found = of(base, lanes);
            assert_eq!(found.name, name, "{base}");
            let has = found.legal.multiplies(iron_ir::Scalar::BF16);
            assert_eq!(has, multiplies, "{base}");
        }
        let subnormal = of("gfx90a", 64).legal;
        assert!(!subnormal.multiplies(iron_ir::Scalar::F16));
    }

    #[test]
    fn a_missing_driver_is_named() {
        let error = Driver::open(Vendor::Hip, &["libamdhip64-that-is-not-there.so"]).err();
        let text = error.expect("no such library").to_string();
        assert!(
            text.contains("hip") && text.contains("libamdhip64-that-is-not"),
            "{text}"
        );
    }
}
