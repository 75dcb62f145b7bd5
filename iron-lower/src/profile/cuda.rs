//! NVIDIA GPUs, by the CUDA C++ Programming Guide, "Compute Capabilities".

use iron_ir::contract::Feature;
use iron_passes::{Fragments, Legal, Regroup, TileRoute};

use super::{Limits, Profile, Target};

/// Every feature of the IR exists from compute capability 8.0 up but for the last.
const FEATURES_80: &[Feature] = &[
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

/// Programmatic dependent launch begins with compute capability 9.0.
const FEATURES_90: &[Feature] = &Feature::ALL;

pub(super) fn profiles() -> Vec<Profile> {
    vec![
        profile(
            "sm_90a",
            "NVIDIA Hopper (H100, H200)",
            227 << 10,
            FEATURES_90,
        ),
        profile(
            "sm_80",
            "NVIDIA Ampere (A100) and later",
            163 << 10,
            FEATURES_80,
        ),
        profile("sm_100a", "NVIDIA Blackwell (B200)", 227 << 10, FEATURES_90),
    ]
}

fn profile(
    name: &'static str,
    description: &'static str,
    shared_bytes: u64,
    features: &'static [Feature],
) -> Profile {
    Profile {
        target: Target::Cuda,
        name,
        description,
        limits: Limits {
            max_threads: 1024,
            max_workgroup: [1024, 1024, 64],
            max_grid: [(1 << 31) - 1, 65_535, 65_535],
            // Above 48 KiB the array is dynamic and the launcher opts in.
            shared_bytes,
            buffer_slots: None,
            max_buffer_bytes: u64::MAX,
            parameter_bytes: 4096,
        },
        features,
        subgroup_size: Some(32),
        legal: Legal {
            subgroup_size: Some(32),
            shared_bytes_limit: shared_bytes,
            has_dot4: true,
            has_mma: true,
            tile_route: match name {
                "sm_90a" => TileRoute::Warpgroup,
                _ => TileRoute::Loops,
            },
            // Its texts were measured as they are.
            native_regroup: match name {
                "sm_90a" => Regroup::No,
                _ => Regroup::Words,
            },
            // The architecture of warpgroups keeps its loops for what does not fit them.
            fragments: (name != "sm_90a").then_some(Fragments::BOTH),
            has_chunk_copies: true,
            has_dependent_launch: features.contains(&Feature::DependentLaunch),
            ..super::C_FAMILY
        },
        spirv: None,
    }
}
