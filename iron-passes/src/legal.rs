//! What a target takes as it is: plain data that the profiles hold and the passes read.

use iron_ir::Scalar;

/// How a target multiplies tiles.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TileRoute {
    /// Shared arrays and loops of fused multiply-adds.
    Loops,
    /// Warpgroup products fed by copies of tensor blocks (NVIDIA, compute capability 9.0), for
    /// kernels whose tiles fit; the others go as on targets without.
    Warpgroup,
}

/// The types of which subgroups multiply fragments of 16 by 16 with sums in `f32`
/// ([`MachineOp::FragmentProduct`](iron_ir::machine::MachineOp::FragmentProduct)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fragments {
    /// `f16`.
    pub f16: bool,
    /// `bf16`.
    pub bf16: bool,
}

impl Fragments {
    /// Both types.
    pub const BOTH: Fragments = Fragments {
        f16: true,
        bf16: true,
    };

    /// Whether elements of that type are multiplied.
    pub const fn has(self, scalar: Scalar) -> bool {
        match scalar {
            Scalar::F16 => self.f16,
            Scalar::BF16 => self.bf16,
            _ => false,
        }
    }
}

/// What a target can do; whatever it cannot is rewritten by the passes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Legal {
    /// `f16` sum, difference, product, comparison, minimum and maximum in one instruction.
    pub has_f16_arith: bool,
    /// The type `f16` and its conversions from and to `f32`. Without it, `f16` values are `u16`
    /// bits and conversions are integer arithmetic.
    pub has_f16_memory: bool,
    /// The type `bf16` and its conversions from and to `f32`. Without it, `bf16` values are
    /// `u16` bits.
    pub has_bf16_memory: bool,
    /// Largest vector in bytes.
    pub max_vector_bytes: u32,
    /// Largest vector in lanes: 1 (no vectors), 2, 4 or 8.
    pub max_vector_lanes: u8,
    /// Lanes of a subgroup, where every device of the profile has the same.
    pub subgroup_size: Option<u32>,
    /// Lane `l` of subgroup `s` is the thread of linear index `s * subgroup_size + l`, and
    /// shuffles exist: collectives may go through them.
    pub linear_subgroups: bool,
    /// Conversion of floats to integers saturates and takes NaN to 0.
    pub native_saturating_convert: bool,
    /// `min` and `max` of floats order zeros and treat NaN as the specification says.
    pub native_ordered_minmax: bool,
    /// Integer division and remainder give the specification's answers for every divisor.
    pub native_total_division: bool,
    /// Which bit casts may change the number of lanes.
    pub native_regroup: Regroup,
    /// `erf` of `f32`.
    pub has_erf: bool,
    /// `tanh` of `f32`, within the specification's bound.
    pub has_tanh: bool,
    /// [`BinaryOp::Dot4`](iron_ir::op::BinaryOp::Dot4) in one instruction.
    pub has_dot4: bool,
    /// [`BinaryOp::Dot4Mixed`](iron_ir::op::BinaryOp::Dot4Mixed) in one instruction.
    pub has_dot4_mixed: bool,
    /// Collectives of a workgroup and reductions of a subgroup are the lowering's own.
    pub native_collectives: bool,
    /// Bytes of shared memory of a workgroup. Informs tactics; the profile's check enforces it.
    pub shared_bytes_limit: u64,
    /// How tiles are multiplied.
    pub tile_route: TileRoute,
    /// Matrix units that a subgroup feeds; tiles that fit go through them.
    pub fragments: Option<Fragments>,
    /// Lanes of a subgroup that does so, where [`subgroup_size`](Legal::subgroup_size) leaves them
    /// open.
    pub fragment_lanes: Option<u32>,
    /// Chunks of 16 bytes go from tensors to shared memory by themselves, through no register
    /// ([`MachineOp::CopyAhead`](iron_ir::machine::MachineOp::CopyAhead),
    /// [`MachineOp::CopyChunk`](iron_ir::machine::MachineOp::CopyChunk)).
    pub has_chunk_copies: bool,
    /// The matrix product of 32 threads ([`Stmt::Mma`](iron_ir::Stmt::Mma)), which are a subgroup.
    pub has_mma: bool,
    /// 64-bit integers.
    pub has_int64: bool,
    /// A launch may start before the one before it ends.
    pub has_dependent_launch: bool,
    /// Fully unrolled loops are copied out in the IR, and private arrays with only constant
    /// indices become variables. Without it the loops stay, marked, for the vendor's compiler.
    pub expand_unrolled_loops: bool,
    /// Loops of constant trip count are unrolled up to that many statements.
    pub auto_unroll_statements: u32,
}

/// Bit casts that change the number of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Regroup {
    /// None.
    No,
    /// Eight lanes of 16 bits to four words, and back, which cost nothing.
    Words,
    /// All.
    All,
}

impl Legal {
    /// Nothing but what every target has.
    pub const PORTABLE: Legal = Legal {
        has_f16_arith: false,
        has_f16_memory: true,
        has_bf16_memory: false,
        max_vector_bytes: 16,
        max_vector_lanes: 4,
        subgroup_size: None,
        linear_subgroups: false,
        native_saturating_convert: false,
        native_ordered_minmax: false,
        native_total_division: false,
        native_regroup: Regroup::No,
        has_erf: false,
        has_tanh: true,
        has_dot4: false,
        has_dot4_mixed: false,
        native_collectives: false,
        shared_bytes_limit: 32 * 1024,
        tile_route: TileRoute::Loops,
        fragments: None,
        fragment_lanes: None,
        has_chunk_copies: false,
        has_mma: false,
        has_int64: true,
        has_dependent_launch: false,
        expand_unrolled_loops: true,
        auto_unroll_statements: 16,
    };

    /// The type that holds a scalar in memory and in values after the passes: packed types and
    /// half types that the target lacks are unsigned integers of their width. Loads and stores of
    /// a tensor or array of `scalar` are in this type; `bool` lives in memory as `u8`.
    pub const fn memory_scalar(&self, scalar: Scalar) -> Scalar {
        match scalar {
            Scalar::Bool => Scalar::U8,
            other => self.value_scalar(other),
        }
    }

    /// As [`memory_scalar`](Legal::memory_scalar), for values: `bool` stays.
    pub const fn value_scalar(&self, scalar: Scalar) -> Scalar {
        match scalar {
            Scalar::F16 if !self.has_f16_memory => Scalar::U16,
            Scalar::BF16 if !self.has_bf16_memory => Scalar::U16,
            Scalar::F8E4M3 | Scalar::F8E5M2 | Scalar::E8M0 | Scalar::F4E2M1x2 => Scalar::U8,
            Scalar::Int4x8 => Scalar::U32,
            other => other,
        }
    }
}

impl Legal {
    /// Whether tiles of that type that fit go through matrix units.
    pub const fn multiplies(&self, scalar: Scalar) -> bool {
        let by_warpgroups = matches!(self.tile_route, TileRoute::Warpgroup)
            && matches!(scalar, Scalar::F16 | Scalar::BF16);
        match self.fragments {
            Some(fragments) => by_warpgroups || fragments.has(scalar),
            None => by_warpgroups,
        }
    }
}

impl Default for Legal {
    fn default() -> Self {
        Legal::PORTABLE
    }
}
