//! AMD GPUs, by the HIP hardware tables. Wave64 on CDNA, wave32 on RDNA.

use iron_ir::contract::Feature;
use iron_passes::{Fragments, Legal};

use super::{Limits, Profile, Target};

const FEATURES: &[Feature] = &[
    Feature::F64,
    Feature::F16,
    Feature::BF16,
    Feature::Storage8,
    Feature::Storage16,
    Feature::Int64,
    Feature::Atomic64,
    Feature::AtomicF32Add,
    Feature::Subgroups,
    Feature::GridBarrier,
    Feature::DeviceBarrier,
];

/// MFMA of CDNA 2 takes subnormal numbers for zero ("MI200 MFMA behavior specifics" of MIOpen's
/// documents), which `f16` has from 6.1e-5 down, and `bf16` where `f32` has them.
const CDNA_2: Fragments = Fragments {
    f16: false,
    bf16: true,
};

pub(super) fn profiles() -> Vec<Profile> {
    vec![
        profile(
            "gfx942",
            "AMD CDNA 3 (MI300), 64 lanes",
            64,
            Fragments::BOTH,
        ),
        profile("gfx90a", "AMD CDNA 2 (MI200), 64 lanes", 64, CDNA_2),
        profile(
            "gfx1100",
            "AMD RDNA 3 (RX 7900), 32 lanes",
            32,
            Fragments::BOTH,
        ),
    ]
}

fn profile(
    name: &'static str,
    description: &'static str,
    wave: u32,
    fragments: Fragments,
) -> Profile {
    let shared_bytes = 64 << 10;
    Profile {
        target: Target::Hip,
        name,
        description,
        limits: Limits {
            max_threads: 1024,
            max_workgroup: [1024, 1024, 1024],
            // The dispatch packet counts threads, not workgroups, in 32 bits.
            max_grid: [(1 << 31) - 1, 65_535, 65_535],
            shared_bytes,
            buffer_slots: None,
            max_buffer_bytes: u64::MAX,
            parameter_bytes: 4096,
        },
        features: FEATURES,
        subgroup_size: Some(wave),
        legal: Legal {
            subgroup_size: Some(wave),
            shared_bytes_limit: shared_bytes,
            fragments: Some(fragments),
            ..super::C_FAMILY
        },
        spirv: None,
    }
}
