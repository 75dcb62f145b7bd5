// Stands for HIP's header of this name, so that generated HIP C++ runs on the CPU as it is.
#pragma once
#include "../nvidia_amd.h"

// clang's `_Float16` is a type of the compiler on some machines only.
namespace iron_emulated {
struct Half {
  unsigned short bits;
  Half() = default;
  explicit Half(float x) : bits(half_of(x)) {}
  explicit operator float() const { return half_value(bits); }
};
}  // namespace iron_emulated
#define _Float16 iron_emulated::Half

// `HIP_vector_type` has the operators of its lanes.
#define IRON_OPERATOR_2(V, op) \
  inline V operator op(V a, V b) { return V{a.x op b.x, a.y op b.y}; }
#define IRON_OPERATOR_4(V, op) \
  inline V operator op(V a, V b) { return V{a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w}; }
#define IRON_OPERATORS(WIDTH, V) WIDTH(V, +) WIDTH(V, -) WIDTH(V, *) WIDTH(V, /)
IRON_OPERATORS(IRON_OPERATOR_2, float2)
IRON_OPERATORS(IRON_OPERATOR_4, float4)
IRON_OPERATORS(IRON_OPERATOR_2, uint2)
IRON_OPERATORS(IRON_OPERATOR_4, uint4)
IRON_OPERATORS(IRON_OPERATOR_2, ulonglong2)
IRON_OPERATORS(IRON_OPERATOR_2, double2)
inline float2 operator-(float2 a) { return float2{-a.x, -a.y}; }
inline float4 operator-(float4 a) { return float4{-a.x, -a.y, -a.z, -a.w}; }
inline double2 operator-(double2 a) { return double2{-a.x, -a.y}; }

// A wave runs in lock step; its fibers meet.
#define IRON_SUBGROUP_BARRIER_BY_HOST
inline void subgroup_barrier(unsigned int line = __builtin_LINE()) {
  iron_emulated::subgroup_barrier(iron_emulated::all_lanes, line);
}

template <class T>
inline T __shfl(T value, int lane, unsigned int line = __builtin_LINE()) {
  const unsigned int source = (unsigned int)lane % iron_emulated::group().subgroup_size;
  return iron_emulated::shuffle(value, source, iron_emulated::all_lanes, line);
}
template <class T>
inline T __shfl_xor(T value, int bits, unsigned int line = __builtin_LINE()) {
  return iron_emulated::shuffle(value, iron_emulated::lane_xor((unsigned int)bits), iron_emulated::all_lanes, line);
}
template <class T>
inline T __shfl_up(T value, unsigned int distance, unsigned int line = __builtin_LINE()) {
  return iron_emulated::shuffle(value, iron_emulated::lane_up(distance), iron_emulated::all_lanes, line);
}
template <class T>
inline T __shfl_down(T value, unsigned int distance, unsigned int line = __builtin_LINE()) {
  return iron_emulated::shuffle(value, iron_emulated::lane_down(distance), iron_emulated::all_lanes, line);
}
inline int __any(int value, unsigned int line = __builtin_LINE()) {
  return iron_emulated::ballot(value != 0, iron_emulated::all_lanes, line) != 0;
}
inline int __all(int value, unsigned int line = __builtin_LINE()) {
  return iron_emulated::ballot(value == 0, iron_emulated::all_lanes, line) == 0;
}
inline unsigned long long __ballot(int value, unsigned int line = __builtin_LINE()) {
  return iron_emulated::ballot(value != 0, iron_emulated::all_lanes, line);
}

// --- Matrix instructions, by the layouts of AMD's instruction set documents, with sums in order.
// Operands are vectors of bits, those of halves too.

#define IRON_HALF_BY_HOST
#define fragment_halves fragment_part
typedef short iron_short4 __attribute__((ext_vector_type(4)));
typedef short iron_short16 __attribute__((ext_vector_type(16)));
typedef float iron_float4 __attribute__((ext_vector_type(4)));
typedef float iron_float8 __attribute__((ext_vector_type(8)));

namespace iron_emulated {
template <int N>
struct Operands {
  float a[N], b[N];
};
template <int N, class V, class F>
inline Operands<N> operands(V a, V b, F value) {
  Operands<N> own;
  for (int i = 0; i < N; i++) own.a[i] = value((unsigned short)a[i]), own.b[i] = value((unsigned short)b[i]);
  return own;
}

// CDNA: 64 lanes in four groups of 16. Group `g` gives steps `4 g` to `4 g + 3` of row (column)
// `lane % 16`, and has rows `4 g` to `4 g + 3` of column `lane % 16` of the sums.
inline iron_float4 mfma(const Operands<4>& own, iron_float4 sum, unsigned int line) {
  need_lanes(64u, line);
  const Operands<4>* const all = all_of_subgroup(own, line);
  const unsigned int group = self().lane / 16u, column = self().lane % 16u;
  for (unsigned int i = 0; i < 4u; i++)
    for (unsigned int k = 0; k < 16u; k++)
      sum[i] = fmaf(all[k / 4u * 16u + 4u * group + i].a[k % 4u], all[k / 4u * 16u + column].b[k % 4u], sum[i]);
  return sum;
}

// RDNA 3: 32 lanes. Lanes 16 to 31 repeat lanes 0 to 15, each a row of `a` and a column of `b`; the
// sums' rows go to the lower and the upper lanes in turn.
inline iron_float8 wmma(const Operands<16>& own, iron_float8 sum, unsigned int line) {
  need_lanes(32u, line);
  const Operands<16>* const all = all_of_subgroup(own, line);
  const unsigned int lane = self().lane;
  for (int k = 0; k < 16; k++)
    if (float_bits(own.a[k]) != float_bits(all[lane ^ 16u].a[k]) || float_bits(own.b[k]) != float_bits(all[lane ^ 16u].b[k]))
      state.fault(state.executor, line, "the halves of a wave give WMMA different operands");
  for (unsigned int i = 0; i < 8u; i++)
    for (unsigned int k = 0; k < 16u; k++)
      sum[i] = fmaf(all[2u * i + lane / 16u].a[k], all[lane % 16u].b[k], sum[i]);
  return sum;
}
}  // namespace iron_emulated

#define IRON_MFMA(name, value)                                                                           \
  __attribute__((noinline)) inline iron_float4 name(iron_short4 a, iron_short4 b, iron_float4 sum,       \
                                                    int broadcast, int from, int pattern,                \
                                                    unsigned int line = __builtin_LINE()) {              \
    if (broadcast | from | pattern)                                                                      \
      iron_emulated::state.fault(iron_emulated::state.executor, line, "MFMA with a broadcast");          \
    return iron_emulated::mfma(iron_emulated::operands<4>(a, b, iron_emulated::value), sum, line);       \
  }
#define IRON_WMMA(name, value)                                                                           \
  __attribute__((noinline)) inline iron_float8 name(iron_short16 a, iron_short16 b, iron_float8 sum,     \
                                                    unsigned int line = __builtin_LINE()) {              \
    return iron_emulated::wmma(iron_emulated::operands<16>(a, b, iron_emulated::value), sum, line);      \
  }
IRON_MFMA(__builtin_amdgcn_mfma_f32_16x16x16bf16_1k, bfloat_value)
IRON_MFMA(__builtin_amdgcn_mfma_f32_16x16x16f16, half_value)
IRON_WMMA(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32, bfloat_value)
IRON_WMMA(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32, half_value)
