// What CUDA C++ and HIP C++ share: qualifiers, places, vector types, mathematics, intrinsics and
// atomics, by the CUDA C++ Programming Guide and the HIP reference. Only what generated texts use
// is here: anything else is a compile error, never a guess.
#pragma once
#include "core.h"

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (iron_emulated::self().local_id)
#define blockIdx (iron_emulated::group().id)
#define gridDim (iron_emulated::group().count)
#define blockDim (iron_emulated::group().size)

// --- Vector types: aligned to their size, up to 16 bytes

#define IRON_VECTORS(name, T)                                                               \
  struct __attribute__((aligned(sizeof(T) * 2))) name##2 { T x, y; };                       \
  inline name##2 make_##name##2(T x, T y) { return name##2{x, y}; }
#define IRON_VECTORS_2_AND_4(name, T)                                                       \
  IRON_VECTORS(name, T)                                                                     \
  struct __attribute__((aligned(sizeof(T) * 4))) name##4 { T x, y, z, w; };                 \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4{x, y, z, w}; }
IRON_VECTORS_2_AND_4(char, signed char)
IRON_VECTORS_2_AND_4(uchar, unsigned char)
IRON_VECTORS_2_AND_4(short, short)
IRON_VECTORS_2_AND_4(ushort, unsigned short)
IRON_VECTORS_2_AND_4(int, int)
IRON_VECTORS_2_AND_4(uint, unsigned int)
IRON_VECTORS_2_AND_4(float, float)
IRON_VECTORS(longlong, long long)
IRON_VECTORS(ulonglong, unsigned long long)
IRON_VECTORS(double, double)

// --- Mathematics

inline bool isnan(float x) { return iron_emulated::is_nan(x); }
inline bool isnan(double x) { return iron_emulated::is_nan(x); }
inline bool isfinite(float x) { return iron_emulated::is_finite(x); }
inline bool isfinite(double x) { return iron_emulated::is_finite(x); }
inline bool signbit(float x) { return iron_emulated::is_negative(x); }
inline bool signbit(double x) { return iron_emulated::is_negative(x); }

#define IRON_BUILTIN(name)                                       \
  inline float name##f(float x) { return __builtin_##name##f(x); } \
  inline double name(double x) { return __builtin_##name(x); }
IRON_BUILTIN(fabs)
IRON_BUILTIN(sqrt)
IRON_BUILTIN(floor)
IRON_BUILTIN(ceil)
IRON_BUILTIN(trunc)
IRON_BUILTIN(rint)
inline float rsqrtf(float x) { return iron_emulated::reciprocal_root(x); }
inline double rsqrt(double x) { return iron_emulated::reciprocal_root(x); }

// The fast forms, whose errors the vendors bound in absolute terms, are the exact ones here.
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __powf(float x, float y) { return powf(x, y); }

#define IRON_MIN_MAX(T)                              \
  inline T min(T a, T b) { return b < a ? b : a; }   \
  inline T max(T a, T b) { return a < b ? b : a; }
IRON_MIN_MAX(int)
IRON_MIN_MAX(unsigned int)
IRON_MIN_MAX(long long)
IRON_MIN_MAX(unsigned long long)

// --- Integer intrinsics

inline int __popc(unsigned int x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return iron_emulated::count_leading((unsigned int)x); }
inline int __clzll(long long x) { return iron_emulated::count_leading((unsigned long long)x); }
inline unsigned int __brev(unsigned int x) { return __builtin_bitreverse32(x); }
inline unsigned long long __brevll(unsigned long long x) { return __builtin_bitreverse64(x); }
inline int __dp4a(int a, int b, int c) {
  for (int j = 0; j < 32; j += 8) c += (signed char)(a >> j) * (signed char)(b >> j);
  return c;
}
inline unsigned int __dp4a(unsigned int a, unsigned int b, unsigned int c) {
  for (int j = 0; j < 32; j += 8) c += (a >> j & 255) * (b >> j & 255);
  return c;
}
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned int __umulhi(unsigned int a, unsigned int b) {
  return (unsigned int)((unsigned long long)a * b >> 32);
}
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}

// --- Bit casts

inline unsigned int __float_as_uint(float x) { return iron_emulated::bits_as<unsigned int>(x); }
inline int __float_as_int(float x) { return iron_emulated::bits_as<int>(x); }
inline float __uint_as_float(unsigned int x) { return iron_emulated::bits_as<float>(x); }
inline float __int_as_float(int x) { return iron_emulated::bits_as<float>(x); }
inline long long __double_as_longlong(double x) { return iron_emulated::bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return iron_emulated::bits_as<double>(x); }

// --- Barriers

inline void __syncthreads(unsigned int line = __builtin_LINE()) { iron_emulated::barrier(line); }
inline void __threadfence() {}

// --- Atomics

#define IRON_ATOMIC(name, T, result)                                                   \
  inline T name(T* cell, T value, unsigned int line = __builtin_LINE()) {              \
    return iron_emulated::atomic(cell, line, [value](T old) -> T { return result; });  \
  }
#define IRON_ATOMIC_CAS(T)                                                                          \
  inline T atomicCAS(T* cell, T compare, T value, unsigned int line = __builtin_LINE()) {           \
    return iron_emulated::atomic(cell, line, [=](T old) -> T { return old == compare ? value : old; }); \
  }
#define IRON_ATOMIC_ORDER(T)                          \
  IRON_ATOMIC(atomicMin, T, value < old ? value : old) \
  IRON_ATOMIC(atomicMax, T, old < value ? value : old)
#define IRON_ATOMIC_BITS(T)              \
  IRON_ATOMIC(atomicAnd, T, old & value) \
  IRON_ATOMIC(atomicOr, T, old | value)  \
  IRON_ATOMIC(atomicXor, T, old ^ value) \
  IRON_ATOMIC(atomicExch, T, value)      \
  IRON_ATOMIC_CAS(T)
IRON_ATOMIC(atomicAdd, int, (int)((unsigned int)old + (unsigned int)value))
IRON_ATOMIC(atomicAdd, unsigned int, old + value)
IRON_ATOMIC(atomicAdd, unsigned long long, old + value)
IRON_ATOMIC(atomicAdd, float, old + value)
IRON_ATOMIC(atomicExch, float, value)
#define IRON_ARRIVALS_BY_HOST
inline unsigned int arrivals_now(unsigned int* counter, unsigned int line = __builtin_LINE()) {
  return iron_emulated::atomic(counter, line, [](unsigned int old) { return old; });
}
IRON_ATOMIC_ORDER(int)
IRON_ATOMIC_ORDER(unsigned int)
IRON_ATOMIC_ORDER(long long)
IRON_ATOMIC_ORDER(unsigned long long)
IRON_ATOMIC_BITS(int)
IRON_ATOMIC_BITS(unsigned int)
IRON_ATOMIC_BITS(unsigned long long)
