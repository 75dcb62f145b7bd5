//! Vulkan devices, by what Vulkan 1.3 and its feature bits promise.
//!
//! Four profiles: device addresses for real drivers, the same with matrix units, a small one that
//! matches Mesa's software driver, and descriptors for drivers without device addresses and for
//! readers that know only storage buffers. Neither of the latter two is ever chosen silently.

use iron_ir::contract::Feature;
use iron_passes::{Fragments, Legal, Regroup};

use super::{Limits, Profile, Target};

/// Options of a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpirvOptions {
    /// Tensors are reached by 64-bit device addresses from the parameter block; otherwise they
    /// are storage buffers of set 0, one binding a tensor.
    pub device_addresses: bool,
    /// Bytes of push constants; a larger parameter block is reached through one address, or one
    /// more binding.
    pub push_constant_bytes: u32,
    /// Float widths (16, 32, 64, or-ed) whose signed zeros, infinities and NaN the driver keeps.
    pub signed_zero_inf_nan: u32,
    /// Float widths whose subnormals the driver keeps.
    pub denorm_preserve: u32,
    /// Float widths that the driver rounds to nearest even.
    pub round_to_even: u32,
    /// The driver's `fma` is known to round once; otherwise it is computed in `f64` where the
    /// profile has it.
    pub fused_multiply_add: bool,
    /// The driver adds `f32` to memory atomically; otherwise a compare-exchange loop does.
    pub atomic_float_add: bool,
    /// The driver silently ends the loops of an invocation after that many turns altogether, as
    /// Mesa's software driver does. Kernels then count, and report that they reached it.
    pub loop_turns: Option<u32>,
    /// The driver computes float operations on a constant zero without looking at the other
    /// operand, as Mesa's software driver does. Operands that it could find to be one are then
    /// hidden from it.
    pub drops_zero_operands: bool,
    /// The driver's `Exp2` of `f32` was measured over all exponents and stays within two units in
    /// the last place or so, which Vulkan does not promise: `exp` then leaves a fraction to it.
    pub accurate_exp2: bool,
}

impl SpirvOptions {
    /// What every desktop driver of Vulkan 1.3 does, with device addresses.
    pub const DEVICE_ADDRESSES: SpirvOptions = SpirvOptions {
        device_addresses: true,
        push_constant_bytes: 128,
        signed_zero_inf_nan: 32,
        denorm_preserve: 0,
        round_to_even: 0,
        fused_multiply_add: true,
        atomic_float_add: false,
        loop_turns: None,
        drops_zero_operands: false,
        accurate_exp2: false,
    };

    /// Storage buffers, and no execution mode that naga does not read.
    pub const DESCRIPTORS: SpirvOptions = SpirvOptions {
        device_addresses: false,
        signed_zero_inf_nan: 0,
        ..SpirvOptions::DEVICE_ADDRESSES
    };
}

const FEATURES: &[Feature] = &[
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

/// What naga and drivers without device addresses take: without the Vulkan memory model, no order
/// between workgroups.
const DESCRIPTOR_FEATURES: &[Feature] = &[
    Feature::F16,
    Feature::BF16,
    Feature::Storage16,
    Feature::Int64,
    Feature::Subgroups,
];

pub(super) fn profiles() -> Vec<Profile> {
    let device = SpirvOptions::DEVICE_ADDRESSES;
    let bound = SpirvOptions::DESCRIPTORS;
    let mut matrices = profile(
        "vulkan1.3-matrix",
        "Vulkan 1.3 with cooperative matrices of f16 and bf16, and 32-lane subgroups (NVIDIA)",
        FEATURES,
        Some(32),
        u64::MAX,
        device,
    );
    matrices.legal.fragments = Some(Fragments::BOTH);
    matrices.legal.linear_subgroups = true;
    matrices.limits.shared_bytes = 48 << 10;
    matrices.legal.shared_bytes_limit = matrices.limits.shared_bytes;
    vec![
        profile(
            "vulkan1.3",
            "Vulkan 1.3 with device addresses",
            FEATURES,
            None,
            u64::MAX,
            device,
        ),
        profile(
            "spirv-small",
            "Vulkan 1.3 with 8-lane subgroups and 128 MiB buffers (Mesa's software driver)",
            FEATURES,
            Some(8),
            128 << 20,
            device,
        ),
        profile(
            "spirv-descriptor",
            "Vulkan 1.3 with storage buffers bound by descriptor",
            DESCRIPTOR_FEATURES,
            None,
            128 << 20,
            bound,
        ),
        matrices,
    ]
}

fn profile(
    name: &'static str,
    description: &'static str,
    features: &'static [Feature],
    subgroup_size: Option<u32>,
    max_buffer_bytes: u64,
    options: SpirvOptions,
) -> Profile {
    let shared_bytes = 32 << 10;
    Profile {
        target: Target::SpirV,
        name,
        description,
        limits: Limits {
            max_threads: 1024,
            max_workgroup: [1024, 1024, 64],
            max_grid: [65_535; 3],
            shared_bytes,
            buffer_slots: None,
            max_buffer_bytes,
            parameter_bytes: 1 << 16,
        },
        features,
        subgroup_size,
        legal: Legal {
            subgroup_size,
            shared_bytes_limit: shared_bytes,
            // Eight lanes are two vectors of four, and one access where the elements are narrow.
            max_vector_lanes: 8,
            max_vector_bytes: 64,
            // naga, which reads what has no device addresses, has no such cast.
            native_regroup: match options.device_addresses {
                true => Regroup::All,
                false => Regroup::No,
            },
            has_erf: true,
            ..Legal::PORTABLE
        },
        spirv: Some(options),
    }
}
