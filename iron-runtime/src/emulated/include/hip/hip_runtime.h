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

// A wave runs in lock step: a fence of its memory is where its fibers meet.
inline void __builtin_amdgcn_fence(int, const char*, unsigned int line = __builtin_LINE()) {
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
