// Metal's names over clang's C++ for OpenCL, so that generated MSL can be type-checked with real
// address spaces where Apple's compiler does not exist:
//
//   clang++ -x clcpp -cl-std=clc++2021 -cl-no-stdinc -cl-single-precision-constant
//           --target=x86_64 -fsyntax-only -isystem headers/msl kernel.metal
//
// `device`, `threadgroup`, `constant` and `thread` become clang's address spaces: a pointer of one
// space where another is wanted, a store through `const`, a wrong argument type, a wrong number of
// vector components and an unknown function are rejected. Declared is what the Metal Shading
// Language specification 3.1 gives compute kernels; what it does not have (double, 64-bit SIMD-group
// operations, 64-bit atomic arithmetic) is not declared here either.
//
// What this cannot see: Apple's limits, attributes and code generation. Acceptance here is not
// acceptance by Apple's compiler.
#pragma once
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

#define device __global
#define threadgroup __local
#define thread __private
#define constant __constant

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef __bf16 bfloat;

#define MSL_VECTORS(T)                                \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
MSL_VECTORS(char)
MSL_VECTORS(uchar)
MSL_VECTORS(short)
MSL_VECTORS(ushort)
MSL_VECTORS(int)
MSL_VECTORS(uint)
MSL_VECTORS(long)
MSL_VECTORS(ulong)
MSL_VECTORS(half)
MSL_VECTORS(bfloat)
MSL_VECTORS(float)

namespace msl_check {
template <class T>
struct vector_traits {
  typedef T element;
  static constexpr int width = 1;
};
template <class T, int N>
struct vector_traits<T __attribute__((ext_vector_type(N)))> {
  typedef T element;
  static constexpr int width = N;
};

template <bool B, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  typedef T type;
};

// OpenCL compares vectors into integers; Metal into these.
template <int N>
struct bool_vector {
  bool x, y, z, w;
  bool_vector() = default;
  bool_vector(bool);
  template <class V, class = typename enable_if<(vector_traits<V>::width == N)>::type>
  bool_vector(V comparison);
  bool& operator[](int);
  bool_vector operator!() const;
  bool_vector operator&&(bool_vector) const;
  bool_vector operator||(bool_vector) const;
};
template <int N>
struct vector_traits<bool_vector<N>> {
  typedef bool element;
  static constexpr int width = N;
};

// Metal builds a vector from one scalar, or from parts whose components add up.
template <class V, class... Parts>
V construct(Parts... parts) {
  constexpr int given = (0 + ... + vector_traits<Parts>::width);
  static_assert(sizeof...(Parts) == 0 || given == vector_traits<V>::width || (sizeof...(Parts) == 1 && given == 1),
                "a vector needs one scalar or exactly its number of components");
  V value;
  return value;
}

template <class A, class B>
struct same {
  static constexpr bool value = false;
};
template <class A>
struct same<A, A> {
  static constexpr bool value = true;
};
}  // namespace msl_check

typedef msl_check::bool_vector<2> bool2;
typedef msl_check::bool_vector<3> bool3;
typedef msl_check::bool_vector<4> bool4;

// Clang reads `float4(a, b, c, d)` as a cast of four things to one, so the call form is a macro; a
// type name that no parenthesis follows is left alone.
#define bool2(...) ::msl_check::construct<bool2>(__VA_ARGS__)
#define bool3(...) ::msl_check::construct<bool3>(__VA_ARGS__)
#define bool4(...) ::msl_check::construct<bool4>(__VA_ARGS__)
#define char2(...) ::msl_check::construct<char2>(__VA_ARGS__)
#define char3(...) ::msl_check::construct<char3>(__VA_ARGS__)
#define char4(...) ::msl_check::construct<char4>(__VA_ARGS__)
#define uchar2(...) ::msl_check::construct<uchar2>(__VA_ARGS__)
#define uchar3(...) ::msl_check::construct<uchar3>(__VA_ARGS__)
#define uchar4(...) ::msl_check::construct<uchar4>(__VA_ARGS__)
#define short2(...) ::msl_check::construct<short2>(__VA_ARGS__)
#define short3(...) ::msl_check::construct<short3>(__VA_ARGS__)
#define short4(...) ::msl_check::construct<short4>(__VA_ARGS__)
#define ushort2(...) ::msl_check::construct<ushort2>(__VA_ARGS__)
#define ushort3(...) ::msl_check::construct<ushort3>(__VA_ARGS__)
#define ushort4(...) ::msl_check::construct<ushort4>(__VA_ARGS__)
#define int2(...) ::msl_check::construct<int2>(__VA_ARGS__)
#define int3(...) ::msl_check::construct<int3>(__VA_ARGS__)
#define int4(...) ::msl_check::construct<int4>(__VA_ARGS__)
#define uint2(...) ::msl_check::construct<uint2>(__VA_ARGS__)
#define uint3(...) ::msl_check::construct<uint3>(__VA_ARGS__)
#define uint4(...) ::msl_check::construct<uint4>(__VA_ARGS__)
#define long2(...) ::msl_check::construct<long2>(__VA_ARGS__)
#define long3(...) ::msl_check::construct<long3>(__VA_ARGS__)
#define long4(...) ::msl_check::construct<long4>(__VA_ARGS__)
#define ulong2(...) ::msl_check::construct<ulong2>(__VA_ARGS__)
#define ulong3(...) ::msl_check::construct<ulong3>(__VA_ARGS__)
#define ulong4(...) ::msl_check::construct<ulong4>(__VA_ARGS__)
#define half2(...) ::msl_check::construct<half2>(__VA_ARGS__)
#define half3(...) ::msl_check::construct<half3>(__VA_ARGS__)
#define half4(...) ::msl_check::construct<half4>(__VA_ARGS__)
#define bfloat2(...) ::msl_check::construct<bfloat2>(__VA_ARGS__)
#define bfloat3(...) ::msl_check::construct<bfloat3>(__VA_ARGS__)
#define bfloat4(...) ::msl_check::construct<bfloat4>(__VA_ARGS__)
#define float2(...) ::msl_check::construct<float2>(__VA_ARGS__)
#define float3(...) ::msl_check::construct<float3>(__VA_ARGS__)
#define float4(...) ::msl_check::construct<float4>(__VA_ARGS__)

#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define HALF_MAX 65504.0h
#define INT_MAX 0x7fffffff
#define INT_MIN (-0x7fffffff - 1)
#define UINT_MAX 0xffffffffu
#define LONG_MAX 0x7fffffffffffffffl
#define LONG_MIN (-0x7fffffffffffffffl - 1l)
#define ULONG_MAX 0xfffffffffffffffful
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define M_PI_F 3.14159274f
#define M_E_F 2.71828175f
#define M_SQRT1_2_F 0.707106769f
#define M_LOG2E_F 1.44269502f
#define M_LN2_F 0.693147182f
#define M_2_SQRTPI_F 1.12837923f

template <class To, class From>
To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs two types of one size");
  return __builtin_bit_cast(To, from);
}

namespace metal {

// --- Each declaration for the types that Metal has it for ------------------------------------

#define MSL_EACH_WIDTH(DO, T) DO(T) DO(T##2) DO(T##3) DO(T##4)
#define MSL_FLOATS(DO) MSL_EACH_WIDTH(DO, half) MSL_EACH_WIDTH(DO, float)
#define MSL_SMALL_INTEGERS(DO)                                                          \
  MSL_EACH_WIDTH(DO, char) MSL_EACH_WIDTH(DO, uchar) MSL_EACH_WIDTH(DO, short)          \
  MSL_EACH_WIDTH(DO, ushort) MSL_EACH_WIDTH(DO, int) MSL_EACH_WIDTH(DO, uint)
#define MSL_INTEGERS(DO) MSL_SMALL_INTEGERS(DO) MSL_EACH_WIDTH(DO, long) MSL_EACH_WIDTH(DO, ulong)
#define MSL_BFLOATS(DO) MSL_EACH_WIDTH(DO, bfloat)

// --- <metal_math>, <metal_common> -------------------------------------------------------------

#define MSL_MATH_1(T)                                                                         \
  T acos(T); T acosh(T); T asin(T); T asinh(T); T atan(T); T atanh(T); T ceil(T); T cos(T);   \
  T cosh(T); T cospi(T); T exp(T); T exp2(T); T exp10(T); T fabs(T); T floor(T); T fract(T);  \
  T log(T); T log2(T); T log10(T); T rint(T); T round(T); T rsqrt(T); T sign(T); T sin(T);    \
  T sinh(T); T sinpi(T); T sqrt(T); T tan(T); T tanh(T); T tanpi(T); T trunc(T); T saturate(T);
#define MSL_MATH_2(T)                                                                         \
  T atan2(T, T); T copysign(T, T); T fdim(T, T); T fmax(T, T); T fmin(T, T); T fmod(T, T);    \
  T pow(T, T); T powr(T, T); T nextafter(T, T); T step(T, T);
#define MSL_MATH_3(T) T fma(T, T, T); T mix(T, T, T); T smoothstep(T, T, T); T fmax3(T, T, T); T fmin3(T, T, T);
#define MSL_MATH(T) MSL_MATH_1(T) MSL_MATH_2(T) MSL_MATH_3(T)
MSL_FLOATS(MSL_MATH)
namespace precise {
MSL_FLOATS(MSL_MATH)
}
namespace fast {
MSL_FLOATS(MSL_MATH)
}

#define MSL_MIN_MAX(T) T min(T, T); T max(T, T); T abs(T); T clamp(T, T, T); T min3(T, T, T); T max3(T, T, T);
MSL_FLOATS(MSL_MIN_MAX)
MSL_INTEGERS(MSL_MIN_MAX)
MSL_BFLOATS(MSL_MIN_MAX)

#define MSL_CLASSIFY(T, B, I)                                                         \
  B isnan(T); B isinf(T); B isfinite(T); B isnormal(T); B signbit(T); I ilogb(T);     \
  T ldexp(T, I); T frexp(T, thread I&); T modf(T, thread T&); T select(T, T, B);
#define MSL_CLASSIFY_WIDTHS(T) \
  MSL_CLASSIFY(T, bool, int) MSL_CLASSIFY(T##2, bool2, int2) MSL_CLASSIFY(T##3, bool3, int3) MSL_CLASSIFY(T##4, bool4, int4)
MSL_CLASSIFY_WIDTHS(half)
MSL_CLASSIFY_WIDTHS(float)

#define MSL_SELECT(T) T select(T, T, bool); T##2 select(T##2, T##2, bool2); T##3 select(T##3, T##3, bool3); T##4 select(T##4, T##4, bool4);
MSL_SELECT(bool)
MSL_SELECT(char)
MSL_SELECT(uchar)
MSL_SELECT(short)
MSL_SELECT(ushort)
MSL_SELECT(int)
MSL_SELECT(uint)
MSL_SELECT(long)
MSL_SELECT(ulong)
MSL_SELECT(bfloat)

#define MSL_GEOMETRIC(T)                                                                    \
  T dot(T##2, T##2); T dot(T##3, T##3); T dot(T##4, T##4); T length(T##2); T length(T##3);  \
  T length(T##4); T##2 normalize(T##2); T##3 normalize(T##3); T##4 normalize(T##4);         \
  T distance(T##2, T##2); T distance(T##3, T##3); T distance(T##4, T##4); T##3 cross(T##3, T##3);
MSL_GEOMETRIC(half)
MSL_GEOMETRIC(float)

// --- <metal_integer>, <metal_relational> ------------------------------------------------------

#define MSL_INTEGER(T)                                                                     \
  T addsat(T, T); T subsat(T, T); T absdiff_of_same(T, T); T hadd(T, T); T rhadd(T, T);    \
  T mulhi(T, T); T madhi(T, T, T); T madsat(T, T, T); T popcount(T); T clz(T); T ctz(T);   \
  T rotate(T, T); T reverse_bits(T); T extract_bits(T, uint, uint); T insert_bits(T, T, uint, uint);
MSL_INTEGERS(MSL_INTEGER)
#define MSL_MUL24(T) T mul24(T, T); T mad24(T, T, T);
MSL_EACH_WIDTH(MSL_MUL24, int)
MSL_EACH_WIDTH(MSL_MUL24, uint)
bool all(bool2);
bool all(bool3);
bool all(bool4);
bool any(bool2);
bool any(bool3);
bool any(bool4);

// --- <metal_pack> -----------------------------------------------------------------------------

float4 unpack_unorm4x8_to_float(uint);
float4 unpack_snorm4x8_to_float(uint);
uint pack_float_to_unorm4x8(float4);
uint pack_float_to_snorm4x8(float4);

// --- <metal_limits>, <metal_type_traits>, <metal_array> ---------------------------------------

template <class T>
struct numeric_limits {
  static constexpr T min();
  static constexpr T max();
  static constexpr T lowest();
  static constexpr T epsilon();
  static constexpr T infinity();
  static constexpr T quiet_NaN();
};
template <class A, class B>
constexpr constant bool is_same_v = msl_check::same<A, B>::value;
template <bool B, class T = void>
using enable_if_t = typename msl_check::enable_if<B, T>::type;
template <class T, size_t N>
struct array {
  T elements[N];
  thread T& operator[](size_t index) thread;
  const device T& operator[](size_t index) const device;
  device T& operator[](size_t index) device;
  threadgroup T& operator[](size_t index) threadgroup;
  const constant T& operator[](size_t index) const constant;
};

// --- <metal_compute>: barriers ----------------------------------------------------------------

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4, mem_device_and_threadgroup = 3 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
enum memory_order { memory_order_relaxed, memory_order_acquire, memory_order_release, memory_order_acq_rel, memory_order_seq_cst };
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
void threadgroup_barrier(mem_flags);
void threadgroup_barrier(mem_flags, thread_scope);
void simdgroup_barrier(mem_flags);
void atomic_thread_fence(mem_flags, memory_order);
void atomic_thread_fence(mem_flags, memory_order, thread_scope);

// --- <metal_atomic> ---------------------------------------------------------------------------

template <class T>
struct atomic {
  T private_value;
};
#define MSL_ATOMIC_COMMON(A, T, SPACE)                                             \
  void atomic_store_explicit(volatile SPACE A*, T, memory_order);                  \
  T atomic_load_explicit(const volatile SPACE A*, memory_order);                   \
  T atomic_exchange_explicit(volatile SPACE A*, T, memory_order);                  \
  bool atomic_compare_exchange_weak_explicit(volatile SPACE A*, thread T*, T, memory_order, memory_order);
#define MSL_ATOMIC_ADD(A, T, SPACE)                             \
  T atomic_fetch_add_explicit(volatile SPACE A*, T, memory_order); \
  T atomic_fetch_sub_explicit(volatile SPACE A*, T, memory_order);
#define MSL_ATOMIC_INTEGER(A, T, SPACE)                            \
  MSL_ATOMIC_COMMON(A, T, SPACE)                                   \
  MSL_ATOMIC_ADD(A, T, SPACE)                                      \
  T atomic_fetch_and_explicit(volatile SPACE A*, T, memory_order); \
  T atomic_fetch_or_explicit(volatile SPACE A*, T, memory_order);  \
  T atomic_fetch_xor_explicit(volatile SPACE A*, T, memory_order); \
  T atomic_fetch_min_explicit(volatile SPACE A*, T, memory_order); \
  T atomic_fetch_max_explicit(volatile SPACE A*, T, memory_order);
// Clang wants the pointee of a kernel parameter complete.
template struct atomic<int>;
template struct atomic<uint>;
template struct atomic<bool>;
template struct atomic<ulong>;
template struct atomic<float>;
typedef atomic<int> msl_atomic_int;
typedef atomic<uint> msl_atomic_uint;
typedef atomic<bool> msl_atomic_bool;
typedef atomic<ulong> msl_atomic_ulong;
typedef atomic<float> msl_atomic_float;
MSL_ATOMIC_INTEGER(msl_atomic_int, int, device)
MSL_ATOMIC_INTEGER(msl_atomic_int, int, threadgroup)
MSL_ATOMIC_INTEGER(msl_atomic_uint, uint, device)
MSL_ATOMIC_INTEGER(msl_atomic_uint, uint, threadgroup)
MSL_ATOMIC_COMMON(msl_atomic_bool, bool, device)
MSL_ATOMIC_COMMON(msl_atomic_bool, bool, threadgroup)
MSL_ATOMIC_COMMON(msl_atomic_float, float, device)
// Float addition in device memory only; 64-bit words have minimum and maximum only, without a result.
MSL_ATOMIC_ADD(msl_atomic_float, float, device)
void atomic_min_explicit(volatile device msl_atomic_ulong*, ulong, memory_order);
void atomic_max_explicit(volatile device msl_atomic_ulong*, ulong, memory_order);

// --- <metal_simdgroup>: no bool and no 64-bit type --------------------------------------------

#define MSL_SIMD_MOVE(T)                                                                      \
  T simd_broadcast(T, ushort); T simd_broadcast_first(T); T simd_shuffle(T, ushort);          \
  T simd_shuffle_xor(T, ushort); T simd_shuffle_up(T, ushort); T simd_shuffle_down(T, ushort); \
  T simd_shuffle_rotate_up(T, ushort); T simd_shuffle_rotate_down(T, ushort);                 \
  T quad_broadcast(T, ushort); T quad_shuffle(T, ushort); T quad_shuffle_xor(T, ushort);
#define MSL_SIMD_REDUCE(T)                                                                    \
  T simd_sum(T); T simd_product(T); T simd_min(T); T simd_max(T);                             \
  T simd_prefix_inclusive_sum(T); T simd_prefix_exclusive_sum(T);                             \
  T simd_prefix_inclusive_product(T); T simd_prefix_exclusive_product(T);
#define MSL_SIMD_BITS(T) T simd_and(T); T simd_or(T); T simd_xor(T);
MSL_FLOATS(MSL_SIMD_MOVE)
MSL_FLOATS(MSL_SIMD_REDUCE)
MSL_BFLOATS(MSL_SIMD_MOVE)
MSL_BFLOATS(MSL_SIMD_REDUCE)
MSL_SMALL_INTEGERS(MSL_SIMD_MOVE)
MSL_SMALL_INTEGERS(MSL_SIMD_REDUCE)
MSL_SMALL_INTEGERS(MSL_SIMD_BITS)
bool simd_all(bool);
bool simd_any(bool);
bool simd_is_first();
struct simd_vote {
  typedef ulong vote_t;
  explicit constexpr simd_vote(vote_t = 0);
  explicit operator vote_t() const;
  bool all() const;
  bool any() const;
};
simd_vote simd_ballot(bool);
simd_vote simd_active_threads_mask();

}  // namespace metal

// Clang predeclares OpenCL's atomic types under Metal's names.
#define atomic_int msl_atomic_int
#define atomic_uint msl_atomic_uint
#define atomic_bool msl_atomic_bool
#define atomic_ulong msl_atomic_ulong
#define atomic_float msl_atomic_float

// Plain names in Metal, keywords in OpenCL.
#define local msl_name_local
#define global msl_name_global
#define generic msl_name_generic
#define pipe msl_name_pipe
#define read_only msl_name_read_only
#define write_only msl_name_write_only
#define read_write msl_name_read_write

// Metal has none of these.
#pragma clang poison double long_long goto try catch throw dynamic_cast typeid new delete
