//! Apple GPUs, by the Metal Feature Set Tables (Apple7 and later) and the Metal Shading
//! Language Specification 3.1, which introduced `bfloat`.

use iron_ir::contract::Feature;
use iron_passes::{Fragments, Legal};

use super::{Limits, Profile, Target};

/// No `f64` in the language, no 64-bit atomics but min and max without result (which cannot
/// return the old value), no barrier over the grid, and no order between threadgroups: fences of
/// the whole device came with 3.2.
const FEATURES: &[Feature] = &[
    Feature::F16,
    Feature::BF16,
    Feature::Storage8,
    Feature::Storage16,
    Feature::Int64,
    Feature::AtomicF32Add,
    Feature::Subgroups,
];

/// Lanes of a SIMD-group of every GPU with matrices so far. The backend refuses a pipeline with
/// matrices whose `threadExecutionWidth` is another.
pub(crate) const APPLE_LANES: u32 = 32;

pub(super) fn profiles() -> Vec<Profile> {
    let shared_bytes = 32 << 10;
    vec![Profile {
        target: Target::Msl,
        name: "metal3.1",
        description: "Apple GPUs from Apple7 (M1), Metal 3.1",
        limits: Limits {
            max_threads: 1024,
            max_workgroup: [1024, 1024, 1024],
            max_grid: [u32::MAX as u64; 3],
            shared_bytes,
            buffer_slots: Some(31),
            // `maxBufferLength` of the smallest M1; the runtime knows the device's own.
            max_buffer_bytes: 4 << 30,
            parameter_bytes: 4096,
        },
        features: FEATURES,
        // 32 on every device so far, but the language makes it a query.
        subgroup_size: None,
        legal: Legal {
            has_erf: false,
            linear_subgroups: false,
            shared_bytes_limit: shared_bytes,
            // `simdgroup_matrix` is there from Apple7 on, of `bfloat` from Metal 3.1 on.
            fragments: Some(Fragments::BOTH),
            fragment_lanes: Some(APPLE_LANES),
            ..super::C_FAMILY
        },
        spirv: None,
    }]
}
