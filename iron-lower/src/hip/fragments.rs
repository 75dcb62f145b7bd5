//! Fragments of a wave: MFMA on CDNA, WMMA on RDNA 3.
//!
//! Who has which element, of `d += a · b`, by AMD's instruction set documents (CDNA 3, "Matrix
//! Arithmetic Instructions"; RDNA 3, "Wave Matrix Multiply Accumulate") and its matrix instruction
//! calculator, for lane `l`:
//!
//! | | `v_mfma_f32_16x16x16_*`, 64 lanes | `v_wmma_f32_16x16x16_*`, 32 lanes |
//! |---|---|---|
//! | row of a, column of b | `l % 16` | `l % 16` |
//! | its steps of `k` | 4 from `4 (l / 16)` on | all 16: the wave's halves repeat each other |
//! | column of d | `l % 16` | `l % 16` |
//! | its rows of d | 4 from `4 (l / 16)` on | 8: every second from `l / 16` on |

use iron_ir::machine::FRAGMENT;
use iron_ir::types::Scalar;

use crate::c::fragments::{FragmentHelpers, product_of_grids};
use crate::c::helpers::Helpers;

/// The helpers.
pub(super) struct Wave {
    /// 64 or 32.
    pub lanes: u32,
}

const FILL: &str = "\
template <unsigned int count>
__device__ inline void fragment_fill(float* sums, float value) {
#pragma unroll
    for (unsigned int i = 0u; i < count; i++) {
        sums[i] = value;
    }
}";

/// Of 64 lanes.
const CDNA_PARTS: &str = "\
// A lane's four elements of 16 by 16 over a wave, of lines of memory or across them.
__device__ inline fragment_part fragment_of_lines(const short* first, unsigned int pitch) {
    const unsigned int lane = threadIdx.x % 64u;
    return *reinterpret_cast<const fragment_part*>(first + lane % 16u * pitch + lane / 16u * 4u);
}
__device__ inline fragment_part fragment_across_lines(const short* first, unsigned int pitch) {
    const unsigned int lane = threadIdx.x % 64u;
    const short* own = first + lane / 16u * 4u * pitch + lane % 16u;
    return fragment_part{own[0u], own[pitch], own[2u * pitch], own[3u * pitch]};
}";

/// Of 32 lanes.
const RDNA_PARTS: &str = "\
// A lane's row of 16 by 16 elements, of lines of memory or across them; 16 lanes repeat the others.
typedef short fragment_half __attribute__((ext_vector_type(8)));
__device__ inline fragment_part fragment_of_lines(const short* first, unsigned int pitch) {
    const short* own = first + threadIdx.x % 16u * pitch;
    const fragment_half low = *reinterpret_cast<const fragment_half*>(own);
    const fragment_half high = *reinterpret_cast<const fragment_half*>(own + 8u);
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
__device__ inline fragment_part fragment_across_lines(const short* first, unsigned int pitch) {
    const short* own = first + threadIdx.x % 16u;
    fragment_part part;
#pragma unroll
    for (unsigned int k = 0u; k < 16u; k++) {
        part[k] = own[k * pitch];
    }
    return part;
}";

impl Wave {
    fn is_cdna(&self) -> bool {
        self.lanes == 64
    }

    /// Elements of an operand that a lane has.
    fn part(&self) -> u32 {
        if self.is_cdna() { 4 } else { 16 }
    }

    /// Both directions, by the sides of the assignment.
    fn moves(&self, name: &str, sums: &str, memory: &str, to: &str, from: &str) -> String {
        let Wave { lanes } = self;
        let count = self.cells();
        let (first, next) = match self.is_cdna() {
            true => ("lane / 16u * 4u", ""),
            false => ("lane / 16u", "2u * "),
        };
        format!(
            "__device__ inline void {name}({sums} sums, {memory} first, unsigned int pitch) {{\n    \
             const unsigned int lane = threadIdx.x % {lanes}u;\n    \
             {memory} own = first + {first} * pitch + lane % 16u;\n\
             #pragma unroll\n    \
             for (unsigned int i = 0u; i < {count}u; i++) {{\n        \
             {} = {};\n    }}\n}}",
            to.replace("row", &format!("{next}i * pitch")),
            from.replace("row", &format!("{next}i * pitch")),
        )
    }

    /// The instruction's call.
    fn instruction(&self, scalar: Scalar) -> String {
        let operand = |name: &str| match scalar {
            Scalar::BF16 => name.to_owned(),
            _ => format!("__builtin_bit_cast(fragment_halves, {name})"),
        };
        let (a, b) = (operand("left[i]"), operand("right"));
        match (self.is_cdna(), scalar) {
            (true, Scalar::BF16) => {
                format!("__builtin_amdgcn_mfma_f32_16x16x16bf16_1k({a}, {b}, sum, 0, 0, 0)")
            }
            (true, _) => format!("__builtin_amdgcn_mfma_f32_16x16x16f16({a}, {b}, sum, 0, 0, 0)"),
            (false, Scalar::BF16) => {
                format!("__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32({a}, {b}, sum)")
            }
            (false, _) => format!("__builtin_amdgcn_wmma_f32_16x16x16_f16_w32({a}, {b}, sum)"),
        }
    }
}

impl FragmentHelpers for Wave {
    fn cells(&self) -> u32 {
        FRAGMENT * FRAGMENT / self.lanes
    }

    fn fill(&self) -> String {
        FILL.into()
    }

    fn store(&self) -> String {
        self.moves(
            "fragment_store",
            "const float*",
            "float*",
            "own[row]",
            "sums[i]",
        )
    }

    fn load(&self) -> String {
        self.moves(
            "fragment_load",
            "float*",
            "const float*",
            "sums[i]",
            "own[row]",
        )
    }

    fn product(&self, helpers: &mut Helpers, name: &str, scalar: Scalar, by_k: [bool; 2]) {
        let (part, own) = (self.part(), self.cells());
        helpers.require("fragment_types", || {
            format!(
                "// What a lane has of an operand, by its bits, and of the sums.\n\
                 typedef short fragment_part __attribute__((ext_vector_type({part})));\n\
                 typedef float fragment_sums __attribute__((ext_vector_type({own})));"
            )
        });
        helpers.require("fragment_parts", || match self.is_cdna() {
            true => CDNA_PARTS.into(),
            false => RDNA_PARTS.into(),
        });
        if scalar != Scalar::BF16 {
            helpers.require("fragment_halves", || {
                format!(
                    "#ifndef IRON_HALF_BY_HOST\n\
                     typedef _Float16 fragment_halves __attribute__((ext_vector_type({part})));\n\
                     #endif"
                )
            });
        }
        helpers.require(name, || {
            let step = format!(
                "            \
                 float* own = sums + (i * columns + j) * {own}u;\n            \
                 fragment_sums sum;\n\
                 #pragma unroll\n            \
                 for (unsigned int n = 0u; n < {own}u; n++) {{\n                \
                 sum[n] = own[n];\n            }}\n            \
                 sum = {};\n\
                 #pragma unroll\n            \
                 for (unsigned int n = 0u; n < {own}u; n++) {{\n                \
                 own[n] = sum[n];\n            }}\n",
                self.instruction(scalar)
            );
            product_of_grids(name, by_k, ["fragment_part", "short"], &step)
        });
    }
}
