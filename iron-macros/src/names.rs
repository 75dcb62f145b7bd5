//! The names of the kernel language: free functions, methods and functions of types.
//!
//! The lists decide what the macro accepts; `iron-ir::build` gives each name its meaning, and a
//! name that it does not know is an error when the kernel is built.

/// A name and how the untyped literals among its arguments get their types.
pub struct Entry {
    /// The name.
    pub name: &'static str,
    /// Where literals without a suffix get their types.
    pub literals: Literals,
}

/// Where the literals among a call's arguments get their types.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Literals {
    /// The builder knows what the position needs: an index, an axis, the receiver's type.
    Beside,
    /// From rustc's inference.
    Slot,
}

macro_rules! entries {
    ($literals:ident: $($name:ident)*) => {
        &[$(Entry { name: stringify!($name), literals: Literals::$literals }),*]
    };
}

/// Free functions.
pub const FUNCTIONS: &[&[Entry]] = &[
    entries![Beside:
        group_id group_count local_id group_size global_id local_index group_threads
        subgroup_id subgroup_count subgroup_lane subgroup_size
        barrier barrier_global barrier_device subgroup_barrier grid_barrier launch_barrier
        strided grid_strided unroll index_in
        shared private ahead shared_tile reg_tile matmul matmul_nt matmul_tn],
    entries![Slot:
        workgroup_sum workgroup_product workgroup_min workgroup_max workgroup_min_nan
        workgroup_max_nan workgroup_any workgroup_all workgroup_broadcast
        workgroup_scan_sum workgroup_scan_sum_exclusive
        subgroup_sum subgroup_product subgroup_min subgroup_max subgroup_min_nan
        subgroup_max_nan subgroup_any subgroup_all subgroup_ballot subgroup_broadcast
        subgroup_shuffle subgroup_shuffle_xor subgroup_shuffle_up subgroup_shuffle_down
        rsqrt erf fma select mma_16x8x16 splat2 splat4 splat8 vec2 vec4 vec8],
];

/// Methods.
pub const METHODS: &[&[Entry]] = &[
    entries![Beside:
        min max min_nan max_nan powf mul_add clamp
        wrapping_add wrapping_sub wrapping_mul wrapping_shl wrapping_shr
        mul_high dot4 dot4_mixed div_ceil abs_diff saturating_sub pow
        dim row row_mut load2 load4 load8 store2 store4 store8
        atomic_add atomic_min atomic_max atomic_and atomic_or atomic_xor atomic_exchange
        atomic_compare_exchange atomic_load atomic_store
        fill load load_transposed store step_by end_batch wait_batches],
    entries![Slot:
        abs sqrt exp exp2 ln log2 sin cos tanh floor ceil trunc round_ties_even
        is_nan is_finite rsqrt erf
        wrapping_neg count_ones leading_zeros trailing_zeros reverse_bits is_power_of_two
        to_f32 to_i32 to bitcast to_bits
        dot sum max_lane min_lane map len rows columns
        copy_from map_indexed map2 map2_indexed map3
        reduce_rows_max reduce_rows_sum reduce_columns_max reduce_columns_sum],
];

/// Functions of types: `T::from_f32(x)`.
pub const ASSOCIATED: &[&str] = &["from_f32", "from_bits", "splat"];

/// The entry of a name.
pub fn find(lists: &'static [&'static [Entry]], name: &str) -> Option<&'static Entry> {
    lists
        .iter()
        .flat_map(|list| list.iter())
        .find(|entry| entry.name == name)
}
