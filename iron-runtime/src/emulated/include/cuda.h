// Stands for NVRTC's built-in declarations, so that generated CUDA C++ runs on the CPU as it is.
#pragma once
#include "nvidia_amd.h"

// The text's own halves are PTX.
#define IRON_HALF_BY_HOST
#define IRON_EXP2_BY_HOST
#define IRON_FENCE_BY_HOST
struct half {
  unsigned short bits;
};
inline float half_to_float(half x) { return iron_emulated::half_value(x.bits); }
inline half float_to_half(float x) { return half{iron_emulated::half_of(x)}; }
struct bfloat {
  unsigned short bits;
};
inline float bfloat_to_float(bfloat x) { return iron_emulated::bfloat_value(x.bits); }
inline bfloat float_to_bfloat(float x) { return bfloat{iron_emulated::bfloat_of(x)}; }

// PTX `min` and `max`: the number beside a NaN, and +0 above -0.
#define IRON_PTX_MIN_MAX(T, min_name, max_name)                                               \
  inline T min_name(T a, T b) {                                                               \
    if (isnan(a)) return b;                                                                   \
    return isnan(b) || a < b || (a == b && signbit(a)) ? a : b;                               \
  }                                                                                           \
  inline T max_name(T a, T b) {                                                               \
    if (isnan(a)) return b;                                                                   \
    return isnan(b) || a > b || (a == b && !signbit(a)) ? a : b;                              \
  }
IRON_PTX_MIN_MAX(float, fminf, fmaxf)
IRON_PTX_MIN_MAX(double, fmin, fmax)

// PTX `cvt.rzi`: clamps, and a NaN gives 0.
inline int __float2int_rz(float x) {
  if (isnan(x)) return 0;
  if (x <= -0x1p31f) return -0x7fffffff - 1;
  return x >= 0x1p31f ? 0x7fffffff : (int)x;
}
inline unsigned int __float2uint_rz(float x) {
  if (isnan(x) || x <= 0.0f) return 0;
  return x >= 0x1p32f ? 0xffffffffu : (unsigned int)x;
}

inline void __syncwarp(unsigned int lanes = 0xffffffffu, unsigned int line = __builtin_LINE()) {
  // The default names lanes that a smaller workgroup lacks.
  iron_emulated::subgroup_barrier(lanes == 0xffffffffu ? iron_emulated::all_lanes : lanes, line);
}

template <class T>
inline T __shfl_sync(unsigned int lanes, T value, int lane, unsigned int line = __builtin_LINE()) {
  return iron_emulated::shuffle(value, (unsigned int)lane % 32u, lanes, line);
}
template <class T>
inline T __shfl_xor_sync(unsigned int lanes, T value, int bits, unsigned int line = __builtin_LINE()) {
  return iron_emulated::shuffle(value, iron_emulated::lane_xor((unsigned int)bits), lanes, line);
}
template <class T>
inline T __shfl_up_sync(unsigned int lanes, T value, unsigned int distance, unsigned int line = __builtin_LINE()) {
  return iron_emulated::shuffle(value, iron_emulated::lane_up(distance), lanes, line);
}
template <class T>
inline T __shfl_down_sync(unsigned int lanes, T value, unsigned int distance, unsigned int line = __builtin_LINE()) {
  return iron_emulated::shuffle(value, iron_emulated::lane_down(distance), lanes, line);
}
inline int __any_sync(unsigned int lanes, int value, unsigned int line = __builtin_LINE()) {
  return iron_emulated::ballot(value != 0, lanes, line) != 0;
}
inline int __all_sync(unsigned int lanes, int value, unsigned int line = __builtin_LINE()) {
  return iron_emulated::ballot(value == 0, lanes, line) == 0;
}
inline unsigned int __ballot_sync(unsigned int lanes, int value, unsigned int line = __builtin_LINE()) {
  return (unsigned int)iron_emulated::ballot(value != 0, lanes, line);
}

// PTX `mma.m16n8k16`, with the sums in order.
#define IRON_MMA_BY_HOST
namespace iron_emulated {
struct MmaWords {
  uint2 low, high, b;
};
template <class Value>
inline float4 mma(uint2 low, uint2 high, uint2 b, float4 sum, unsigned int line, Value value) {
  const unsigned int own = threadIdx.x % 32u, row = own / 4u, pair = own % 4u;
  const MmaWords* const all = all_of_subgroup(MmaWords{low, high, b}, line);
  const auto four = [&](uint2 words, float* out) {
    const unsigned long long bits = (unsigned long long)words.y << 32 | words.x;
    for (int i = 0; i < 4; i++) out[i] = value((unsigned short)(bits >> (16 * i)));
  };
  float* const sums[4] = {&sum.x, &sum.y, &sum.z, &sum.w};
  for (unsigned int quarter = 0; quarter < 4u; quarter++) {
    float rows[2][4], columns[2][4];
    four(all[4u * row + quarter].low, rows[0]);
    four(all[4u * row + quarter].high, rows[1]);
    for (unsigned int c = 0; c < 2u; c++) four(all[4u * (2u * pair + c) + quarter].b, columns[c]);
    for (int i = 0; i < 4; i++)
      for (int k = 0; k < 4; k++) *sums[i] = fmaf(rows[i / 2][k], columns[i % 2][k], *sums[i]);
  }
  return sum;
}
}  // namespace iron_emulated
inline float4 mma_16x8x16_bf16(uint2 low, uint2 high, uint2 b, float4 sum, unsigned int line = __builtin_LINE()) {
  return iron_emulated::mma(low, high, b, sum, line, [](unsigned short x) { return iron_emulated::bfloat_value(x); });
}
inline float4 mma_16x8x16_f16(uint2 low, uint2 high, uint2 b, float4 sum, unsigned int line = __builtin_LINE()) {
  return iron_emulated::mma(low, high, b, sum, line, [](unsigned short x) { return iron_emulated::half_value(x); });
}

// PTX `ldmatrix`: 16 by 16 elements of 16 bits, of lines of memory or across them.
#define IRON_FRAGMENT_BY_HOST
namespace iron_emulated {
inline uint4 fragment(const unsigned short* first, unsigned int row_pitch, unsigned int column_pitch) {
  const unsigned int own = threadIdx.x % 32u, row = own / 4u, column = own % 4u * 2u;
  const auto pair = [&](unsigned int r, unsigned int c) {
    const unsigned short* at = first + (row + r) * row_pitch + (column + c) * column_pitch;
    return (unsigned int)at[0] | (unsigned int)at[column_pitch] << 16;
  };
  return make_uint4(pair(0, 0), pair(8, 0), pair(0, 8), pair(8, 8));
}
}  // namespace iron_emulated
inline uint4 fragment_of_lines(const unsigned short* first, unsigned int pitch) {
  return iron_emulated::fragment(first, pitch, 1u);
}
inline uint4 fragment_across_lines(const unsigned short* first, unsigned int pitch) {
  return iron_emulated::fragment(first, 1u, pitch);
}

// PTX `cp.async`: a copy happens when its batch is waited for, and no sooner, so that a wait that
// comes late is seen. What it will overwrite is poison until then.
#define IRON_COPIES_BY_HOST
namespace iron_emulated {
struct Copy {
  void* to;
  const void* from;
  unsigned int bytes, batch;
};
struct Copies {
  const void* workgroup;
  unsigned int count, ended;
  Copy going_on[128];
};
inline Copies copies[1024];
inline Copies& own_copies(unsigned int line) {
  Copies& own = copies[self().local_index];
  if (own_flag() == 0) own.workgroup = group().exchange, own.count = own.ended = 0, own_flag() = 1;
  if (own.workgroup != group().exchange)
    state.fault(state.executor, line, "copies of workgroups that run at once, which the emulation lacks");
  return own;
}
}  // namespace iron_emulated
inline void copy_chunk(void* to, const void* from, unsigned int bytes, unsigned int line = __builtin_LINE()) {
  iron_emulated::Copies& own = iron_emulated::own_copies(line);
  if (own.count == 128 || (bytes != 0 && bytes != 16) || ((unsigned long long)to | (unsigned long long)from) % 16)
    iron_emulated::state.fault(iron_emulated::state.executor, line, "a copy that is no chunk, or one too many");
  for (int i = 0; i < 16; i++) ((unsigned char*)to)[i] = 0xff;
  own.going_on[own.count++] = {to, from, bytes, own.ended};
}
inline void copy_ahead(void* to, const void* from, unsigned int line = __builtin_LINE()) {
  copy_chunk(to, from, 16, line);
}
inline void end_batch(unsigned int line = __builtin_LINE()) { iron_emulated::own_copies(line).ended++; }
template <unsigned int newest>
inline void wait_batches(unsigned int line = __builtin_LINE()) {
  iron_emulated::Copies& own = iron_emulated::own_copies(line);
  unsigned int left = 0;
  for (unsigned int n = 0; n < own.count; n++) {
    const iron_emulated::Copy copy = own.going_on[n];
    if (copy.batch + newest >= own.ended) {
      own.going_on[left++] = copy;
      continue;
    }
    for (unsigned int i = 0; i < 16; i++)
      ((unsigned char*)copy.to)[i] = i < copy.bytes ? ((const unsigned char*)copy.from)[i] : 0;
  }
  own.count = left;
}

// `asm volatile(…)`: the texts' only statements of this form are `griddepcontrol`, which orders
// launches. Launches run one after the other here, so it does nothing. Any other instruction is
// refused before a text is compiled.
#define volatile(...) ("")
