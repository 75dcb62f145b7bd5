//! Targets as data: limits, features and what the passes must legalise, one file a target.

mod cpu;
mod cuda;
mod hip;
mod msl;
mod needs;
mod spirv;

use std::fmt;

use iron_ir::contract::Feature;
use iron_ir::kernel::Kernel;
use iron_ir::launch::LaunchLimits;
use iron_ir::layout::BlockLayout;
use iron_passes::{Legal, Regroup, TileRoute};

use crate::error::{Lack, Unsupported};

pub(crate) use msl::APPLE_LANES;
pub use needs::{Need, needs};
pub use spirv::SpirvOptions;

/// The language or machine that a kernel is lowered to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Target {
    /// Metal Shading Language.
    Msl,
    /// CUDA C++.
    Cuda,
    /// HIP C++.
    Hip,
    /// SPIR-V for Vulkan.
    SpirV,
    /// Machine code of this processor.
    Cpu,
}

impl Target {
    /// Every target.
    pub const ALL: [Target; 5] = [
        Target::Msl,
        Target::Cuda,
        Target::Hip,
        Target::SpirV,
        Target::Cpu,
    ];

    /// The targets that a kernel has a source or module for, which any machine can make.
    pub const TEXTS: [Target; 4] = [Target::Msl, Target::Cuda, Target::Hip, Target::SpirV];

    /// The name on command lines and in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Msl => "msl",
            Target::Cuda => "cuda",
            Target::Hip => "hip",
            Target::SpirV => "spirv",
            Target::Cpu => "cpu",
        }
    }

    /// The target of that name.
    pub fn from_name(name: &str) -> Option<Target> {
        Target::ALL.into_iter().find(|t| t.name() == name)
    }

    /// The extension of its artifact's file.
    pub const fn extension(self) -> &'static str {
        match self {
            Target::Msl => "metal",
            Target::Cuda => "cu",
            Target::Hip => "hip",
            Target::SpirV => "spv",
            Target::Cpu => "o",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a target allows every kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Threads of a workgroup.
    pub max_threads: u32,
    /// Threads of a workgroup along each axis.
    pub max_workgroup: [u32; 3],
    /// Workgroups along each axis.
    pub max_grid: [u64; 3],
    /// Bytes of shared memory of a workgroup.
    pub shared_bytes: u64,
    /// Buffer slots of an entry point, where buffers are bound to slots.
    pub buffer_slots: Option<u32>,
    /// Bytes of one tensor's extent.
    pub max_buffer_bytes: u64,
    /// Bytes of the parameter block.
    pub parameter_bytes: u32,
}

impl Limits {
    /// What a launch is checked against.
    pub fn of_launch(&self) -> LaunchLimits {
        LaunchLimits {
            max_grid: self.max_grid,
            max_workgroup: self.max_workgroup,
            max_threads: self.max_threads,
            max_buffer_bytes: self.max_buffer_bytes,
            max_resident: u64::MAX,
        }
    }
}

/// A target with its version or architecture: what a lowering knows of where the code will run.
#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    /// Target.
    pub target: Target,
    /// `sm_90a`, `gfx942`, `metal3.1`, `vulkan1.3`, `cpu`; unique among all profiles.
    pub name: &'static str,
    /// One line for tables and messages.
    pub description: &'static str,
    /// Limits.
    pub limits: Limits,
    /// Features that every device of the profile has.
    pub features: &'static [Feature],
    /// Lanes of a subgroup where every device of the profile has the same.
    pub subgroup_size: Option<u32>,
    /// What the passes must legalise.
    pub legal: Legal,
    /// Module options of SPIR-V profiles.
    pub spirv: Option<SpirvOptions>,
}

/// Every profile, in the order of tables.
pub fn all() -> Vec<Profile> {
    [
        msl::profiles(),
        cuda::profiles(),
        hip::profiles(),
        spirv::profiles(),
        cpu::profiles(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The profile of that name; a target's own name gives its first profile.
pub fn by_name(name: &str) -> Option<Profile> {
    let all = all();
    let exact = all.iter().position(|p| p.name == name);
    let index = exact.or_else(|| all.iter().position(|p| p.target.name() == name))?;
    all.into_iter().nth(index)
}

/// The profiles of one target; the first is the one that goldens and quick builds use.
pub fn of(target: Target) -> Vec<Profile> {
    all().into_iter().filter(|p| p.target == target).collect()
}

impl Profile {
    /// Whether every device of the profile has the feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    /// Whether the kernel fits limits and features. Works on a kernel as built and on one after
    /// the passes; shared memory of tiles and collectives is known only after them.
    pub fn check(&self, kernel: &Kernel) -> Result<(), Unsupported> {
        let refuse = |lack| {
            Err(Unsupported {
                kernel: kernel.full_name(),
                profile: self.name.into(),
                lack,
            })
        };
        for Need { feature, span } in needs(kernel) {
            if !self.has(feature) {
                return refuse(Lack::Feature {
                    feature,
                    line: span.line,
                });
            }
        }
        for (axis, &needed) in kernel.contract.workgroup.iter().enumerate() {
            let limit = self.limits.max_workgroup[axis];
            if needed > limit {
                return refuse(Lack::WorkgroupAxis {
                    axis,
                    needed,
                    limit,
                });
            }
        }
        let threads: u64 = kernel
            .contract
            .workgroup
            .iter()
            .map(|&n| u64::from(n))
            .product();
        if threads > u64::from(self.limits.max_threads) {
            return refuse(Lack::Threads {
                needed: threads,
                limit: self.limits.max_threads,
            });
        }
        let needed = kernel.shared_bytes();
        if needed > self.limits.shared_bytes {
            return refuse(Lack::SharedBytes {
                needed,
                limit: self.limits.shared_bytes,
                arrays: kernel.shared_arrays(),
            });
        }
        if let Some(limit) = self.limits.buffer_slots {
            let tensors = kernel.tensor_slots().count() as u32;
            let needed = tensors + extra_buffer_slots(kernel);
            if needed > limit {
                let param = kernel.tensor_slots().find(|&(slot, _)| slot == limit);
                let param = param.or_else(|| kernel.tensor_slots().last());
                let data = param.map(|(_, p)| &kernel.params[p]);
                return refuse(Lack::BufferSlots {
                    needed,
                    limit,
                    param: data.map_or(String::new(), |d| d.name.to_string()),
                    line: data.map_or(0, |d| d.span.line),
                });
            }
        }
        let needed = BlockLayout::of(kernel).bytes;
        if needed > self.limits.parameter_bytes {
            return refuse(Lack::ParameterBytes {
                needed,
                limit: self.limits.parameter_bytes,
            });
        }
        Ok(())
    }
}

/// Slots that follow the tensors where buffers are bound to slots: the parameter block, where it
/// has more than addresses, and the error word.
pub fn extra_buffer_slots(kernel: &Kernel) -> u32 {
    u32::from(has_block_buffer(kernel)) + u32::from(kernel.checks_indices())
}

/// Whether the parameter block holds strides, dimensions or scalars.
pub fn has_block_buffer(kernel: &Kernel) -> bool {
    use iron_ir::layout::FieldKind;
    BlockLayout::of(kernel).fields.iter().any(|f| match f.kind {
        FieldKind::Stride(..)
        | FieldKind::Dim(_)
        | FieldKind::Scalar(_)
        | FieldKind::Aligned
        | FieldKind::TensorMap(..) => true,
        FieldKind::Address(_) | FieldKind::ErrorWord => false,
    })
}

/// What the C-family lowerings ask of the passes. Saturating conversions, ordered minima and
/// total division are helper functions of the text where the language has no such function,
/// because a call reads better than the comparisons it stands for; unrolling is the vendor's
/// compiler's, by a pragma.
const C_FAMILY: Legal = Legal {
    has_f16_arith: false,
    has_f16_memory: true,
    has_bf16_memory: true,
    max_vector_bytes: 16,
    max_vector_lanes: 8,
    subgroup_size: None,
    linear_subgroups: true,
    native_saturating_convert: true,
    native_ordered_minmax: true,
    native_total_division: true,
    native_regroup: Regroup::Words,
    has_erf: true,
    has_tanh: true,
    has_dot4: false,
    has_dot4_mixed: false,
    native_collectives: false,
    shared_bytes_limit: 0,
    tile_route: TileRoute::Loops,
    fragments: None,
    fragment_lanes: None,
    has_chunk_copies: false,
    has_mma: false,
    has_int64: true,
    has_dependent_launch: false,
    expand_unrolled_loops: false,
    auto_unroll_statements: 0,
};
