//! This machine's processor.

use iron_ir::contract::Feature;
use iron_passes::Legal;

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
    Feature::DeviceBarrier,
];

pub(super) fn profiles() -> Vec<Profile> {
    let shared_bytes = 64 << 10;
    vec![Profile {
        target: Target::Cpu,
        name: "cpu",
        description: "machine code of this processor, through Cranelift",
        limits: Limits {
            max_threads: 1024,
            max_workgroup: [1024, 1024, 1024],
            max_grid: [(1 << 31) - 1; 3],
            shared_bytes,
            buffer_slots: None,
            max_buffer_bytes: u64::MAX,
            parameter_bytes: 1 << 16,
        },
        features: FEATURES,
        subgroup_size: Some(8),
        legal: Legal {
            subgroup_size: Some(8),
            shared_bytes_limit: shared_bytes,
            has_bf16_memory: true,
            max_vector_bytes: 64,
            max_vector_lanes: 8,
            native_saturating_convert: true,
            native_ordered_minmax: true,
            native_total_division: true,
            native_collectives: true,
            has_dot4: true,
            has_dot4_mixed: true,
            has_erf: true,
            ..Legal::PORTABLE
        },
        spirv: None,
    }]
}
