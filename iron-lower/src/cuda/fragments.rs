//! Fragments of a warp: `ldmatrix` and `mma.sync` (PTX ISA 7.0, sm_80).
//!
//! A fragment of sums is two results of `mma.m16n8k16` side by side, four elements a lane each:
//! lane `l` has columns `2 (l % 4)` and the next of rows `l / 4` and `l / 4 + 8`.

use iron_ir::machine::FRAGMENT;
use iron_ir::types::Scalar;

use super::mma_helper;
use crate::c::fragments::{FragmentHelpers, product_of_grids};
use crate::c::helpers::Helpers;

/// Elements of a fragment that a lane has.
const OWN: u32 = FRAGMENT * FRAGMENT / 32;

const FILL: &str = "\
template <unsigned int count>
__device__ inline void fragment_fill(float* sums, float value) {
#pragma unroll
    for (unsigned int i = 0u; i < count; i++) {
        sums[i] = value;
    }
}";

/// Both directions, by the order of the assignment's sides.
fn moves(name: &str, sums: &str, place: &str, assign: &dyn Fn(&str, &str) -> String) -> String {
    let mut lines = String::new();
    for (n, (row, column)) in [(0, 0), (8, 0), (0, 8), (8, 8)].into_iter().enumerate() {
        for pair in 0..2 {
            let of_memory = match row {
                0 => format!("own[{}u]", column + pair),
                _ => format!("own[8u * pitch + {}u]", column + pair),
            };
            let of_sums = format!("sums[{}]", 2 * n + pair);
            lines.push_str(&format!("    {}\n", assign(&of_memory, &of_sums)));
        }
    }
    format!(
        "__device__ inline void {name}({sums}, {place}, unsigned int pitch) {{\n    \
         const unsigned int lane = threadIdx.x % 32u;\n    \
         {} own = first + lane / 4u * pitch + lane % 4u * 2u;\n{lines}}}",
        place.trim_end_matches(" first")
    )
}

/// Of 16 by 16 elements of 16 bits: rows 0 to 7 and 8 to 15 of columns 0 to 7, then of columns
/// 8 to 15.
const OPERANDS: &str = "\
// 16 by 16 elements over a warp, of lines of memory or across them.
#ifndef IRON_FRAGMENT_BY_HOST
__device__ inline unsigned int fragment_line(const unsigned short* first, unsigned int pitch) {
    const unsigned int lane = threadIdx.x % 32u;
    const void* own = first + lane % 16u * pitch + lane / 16u * 8u;
    return (unsigned int)__cvta_generic_to_shared(own);
}
__device__ inline uint4 fragment_of_lines(const unsigned short* first, unsigned int pitch) {
    unsigned int x, y, z, w;
    asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\"
        : \"=r\"(x), \"=r\"(y), \"=r\"(z), \"=r\"(w) : \"r\"(fragment_line(first, pitch)) : \"memory\");
    return make_uint4(x, y, z, w);
}
__device__ inline uint4 fragment_across_lines(const unsigned short* first, unsigned int pitch) {
    unsigned int x, y, z, w;
    asm volatile(\"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\"
        : \"=r\"(x), \"=r\"(y), \"=r\"(z), \"=r\"(w) : \"r\"(fragment_line(first, pitch)) : \"memory\");
    return make_uint4(x, z, y, w);
}
#endif";

/// The helpers.
pub(super) struct Warp;

impl FragmentHelpers for Warp {
    fn cells(&self) -> u32 {
        OWN
    }

    fn fill(&self) -> String {
        FILL.into()
    }

    fn store(&self) -> String {
        let assign = |memory: &str, sums: &str| format!("{memory} = {sums};");
        let (sums, first) = ("const float* sums", "float* first");
        moves("fragment_store", sums, first, &assign)
    }

    fn load(&self) -> String {
        let assign = |memory: &str, sums: &str| format!("{sums} = {memory};");
        let (sums, first) = ("float* sums", "const float* first");
        moves("fragment_load", sums, first, &assign)
    }

    fn product(&self, helpers: &mut Helpers, name: &str, scalar: Scalar, by_k: [bool; 2]) {
        let ty = match scalar {
            Scalar::BF16 => "bf16",
            _ => "f16",
        };
        let mma = format!("mma_16x8x16_{ty}");
        helpers.require(&mma, || mma_helper(&mma, ty));
        helpers.require("fragment_operands", || OPERANDS.into());
        helpers.require(name, || product_helper(name, &mma, by_k));
    }
}

/// Products of a grid of fragments and 16 steps.
fn product_helper(name: &str, mma: &str, by_k: [bool; 2]) -> String {
    let step = format!(
        "            \
         float* sum = sums + (i * columns + j) * {OWN}u;\n            \
         const uint2 upper = make_uint2(left[i].x, left[i].z);\n            \
         const uint2 lower = make_uint2(left[i].y, left[i].w);\n            \
         const float4 first = {mma}(upper, lower, make_uint2(right.x, right.z),\n                \
         make_float4(sum[0], sum[1], sum[2], sum[3]));\n            \
         const float4 second = {mma}(upper, lower, make_uint2(right.y, right.w),\n                \
         make_float4(sum[4], sum[5], sum[6], sum[7]));\n            \
         sum[0] = first.x, sum[1] = first.y, sum[2] = first.z, sum[3] = first.w;\n            \
         sum[4] = second.x, sum[5] = second.y, sum[6] = second.z, sum[7] = second.w;\n"
    );
    product_of_grids(name, by_k, ["uint4", "unsigned short"], &step)
}
