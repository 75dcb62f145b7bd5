//! Fragments of a SIMD-group as matrices of 8 by 8 (Metal Shading Language Specification 3.1,
//! "SIMD-group Matrix Data Types" and "SIMD-group Matrix Functions").
//!
//! A fragment is four matrices, row after row. Which lane has which element is the language's
//! secret.

use iron_ir::machine::FRAGMENT;
use iron_ir::types::Scalar;

use crate::c::dialect::ArrayDeclaration;
use crate::c::fragments::FragmentHelpers;
use crate::c::helpers::Helpers;
use crate::profile::APPLE_LANES;

/// Rows and columns of a matrix.
const SIDE: u32 = 8;

/// Matrices of a fragment.
const MATRICES: u32 = (FRAGMENT / SIDE) * (FRAGMENT / SIDE);

/// The helpers.
pub(super) struct SimdGroup;

const FILL: &str = "\
template <uint count>
inline void fragment_fill(thread simdgroup_float8x8* sums, float value) {
#pragma unroll
    for (uint i = 0u; i < count; i++) {
        sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(value);
    }
}";

/// Both directions.
fn moves(name: &str, sums: &str, memory: &str, call: &str) -> String {
    format!(
        "inline void {name}(thread {sums}* sums, threadgroup {memory}* first, uint pitch) {{\n    \
         {call}(sums[0], first, pitch);\n    \
         {call}(sums[1], first + 8u, pitch);\n    \
         {call}(sums[2], first + 8u * pitch, pitch);\n    \
         {call}(sums[3], first + 8u * pitch + 8u, pitch);\n}}"
    )
}

/// Declares an array of sums, which counts elements of a lane.
pub(super) fn array(declaration: &ArrayDeclaration<'_>) -> String {
    let own = SIDE * SIDE / APPLE_LANES;
    format!(
        "simdgroup_float8x8 {}[{}];",
        declaration.name,
        declaration.len / own
    )
}

impl FragmentHelpers for SimdGroup {
    fn cells(&self) -> u32 {
        MATRICES
    }

    fn fill(&self) -> String {
        FILL.into()
    }

    fn store(&self) -> String {
        let sums = "const simdgroup_float8x8";
        moves("fragment_store", sums, "float", "simdgroup_store")
    }

    fn load(&self) -> String {
        let sums = "simdgroup_float8x8";
        moves("fragment_load", sums, "const float", "simdgroup_load")
    }

    fn product(&self, helpers: &mut Helpers, name: &str, scalar: Scalar, by_k: [bool; 2]) {
        let ty = match scalar {
            Scalar::BF16 => "bfloat",
            _ => "half",
        };
        // Where a matrix begins, and whether memory holds it transposed: rows of a are lines along
        // `k`, rows of b lines across.
        let [a, b] = ["a", "b"].map(|side| (side, by_k[usize::from(side == "b")]));
        let place = |(side, by_k): (&str, bool), n: &str| {
            let fragment = format!("{side} + {n} / 2u * {side}_skip");
            match by_k {
                true => format!("{fragment} + {n} % 2u * 8u * {side}_pitch + k"),
                false => format!("{fragment} + {n} % 2u * 8u + k * {side}_pitch"),
            }
        };
        let (left, right) = (place(a, "i"), place(b, "j"));
        let (left_transposed, right_transposed) = (!by_k[0], by_k[1]);
        helpers.require(name, || {
            format!(
                "// Adds a grid of fragments times a grid of fragments, 16 steps; `skip` from one to the next.\n\
                 template <uint rows, uint columns>\n\
                 inline void {name}(\n    \
                 thread simdgroup_float8x8* sums, threadgroup const {ty}* a, uint a_pitch, uint a_skip,\n    \
                 threadgroup const {ty}* b, uint b_pitch, uint b_skip\n) {{\n\
                 #pragma unroll\n    \
                 for (uint k = 0u; k < 16u; k += 8u) {{\n        \
                 simdgroup_{ty}8x8 left[2u * rows];\n\
                 #pragma unroll\n        \
                 for (uint i = 0u; i < 2u * rows; i++) {{\n            \
                 simdgroup_load(left[i], {left}, a_pitch, ulong2(0), {left_transposed});\n        }}\n\
                 #pragma unroll\n        \
                 for (uint j = 0u; j < 2u * columns; j++) {{\n            \
                 simdgroup_{ty}8x8 right;\n            \
                 simdgroup_load(right, {right}, b_pitch, ulong2(0), {right_transposed});\n\
                 #pragma unroll\n            \
                 for (uint i = 0u; i < 2u * rows; i++) {{\n                \
                 const uint n = (i / 2u * columns + j / 2u) * 4u + i % 2u * 2u + j % 2u;\n                \
                 simdgroup_multiply_accumulate(sums[n], left[i], right, sums[n]);\n            \
                 }}\n        }}\n    }}\n}}"
            )
        });
    }
}
