// What the three emulated dialects share: the border to the executor, exchanges between threads,
// 16-bit floats, and arithmetic that the vendors define and C++ does not.
//
// A workgroup's threads are fibers of one thread of the system; the executor (executor.rs) runs
// one until it waits, so nothing here is atomic. No other header is included: the
// mathematics comes from the system's library by its C names.
#pragma once

extern "C" {
void* memcpy(void*, const void*, __SIZE_TYPE__);
float expf(float), exp2f(float), logf(float), log2f(float), sinf(float), cosf(float);
float tanhf(float), erff(float), powf(float, float), fmaf(float, float, float);
double exp(double), exp2(double), log(double), log2(double), sin(double), cos(double);
double tanh(double), erf(double), pow(double, double), fma(double, double, double);
}

namespace iron_emulated {

struct Triple {
  unsigned int x, y, z;
};

// `Thread` of executor.rs.
struct Thread {
  Triple local_id;
  unsigned int local_index, subgroup, lane;
};

// `Workgroup` of executor.rs.
struct Workgroup {
  Triple id, count, size;
  unsigned int subgroup_size, subgroup_count;
  unsigned char* exchange;
};

// Bytes that a lane gives to an operation of a whole subgroup, at most; as in executor.rs.
constexpr unsigned int exchange_bytes = 128;

// `Kind` of executor.rs: what a thread waits for.
enum Kind : unsigned int { kind_barrier = 0, kind_subgroup_barrier = 1, kind_shuffle = 2, kind_ballot = 3 };

// `State` of executor.rs, which fills it in.
struct State {
  void* executor;
  unsigned long long (*meet)(void* executor, unsigned int kind, unsigned int line, unsigned long long operand,
                             unsigned int argument, unsigned long long lanes);
  void (*pause)(void* executor, unsigned int line);
  void (*fault)(void* executor, unsigned int line, const char* message);
  const Thread* running;
  const Workgroup* workgroup;
};
extern State state;
static_assert(sizeof(Thread) == 24 && sizeof(Workgroup) == 56 && sizeof(State) == 48, "as in executor.rs");

inline const Thread& self() { return *state.running; }
inline const Workgroup& group() { return *state.workgroup; }

// Lanes of an exchange that every lane of the subgroup takes part in.
constexpr unsigned long long all_lanes = ~0ull;

// Waits until every thread of the workgroup is here.
inline void barrier(unsigned int line) { state.meet(state.executor, kind_barrier, line, 0, 0, all_lanes); }

inline void subgroup_barrier(unsigned long long lanes, unsigned int line) {
  state.meet(state.executor, kind_subgroup_barrier, line, 0, 0, lanes);
}

// The value of lane `source`; poison where that lane takes no part.
template <class T>
inline T shuffle(T value, unsigned int source, unsigned long long lanes, unsigned int line) {
  static_assert(sizeof(T) <= 8, "an exchange carries at most eight bytes");
  unsigned long long bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = state.meet(state.executor, kind_shuffle, line, bits, source, lanes);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

// One bit a lane that takes part, lane 0 in the lowest.
inline unsigned long long ballot(bool value, unsigned long long lanes, unsigned int line) {
  return state.meet(state.executor, kind_ballot, line, value, 0, lanes);
}

// What every lane of the subgroup gave, by lane. The lanes meet once: the next such call has other
// memory, and whoever is in the one after it has seen all of them leave this one.
template <class T>
inline const T* all_of_subgroup(const T& own, unsigned int line) {
  static_assert(sizeof(T) <= exchange_bytes, "an operation of a subgroup takes more than fits");
  const unsigned int lanes = group().subgroup_size, first = self().local_index - self().lane;
  unsigned char* const turns = group().exchange + 2u * exchange_bytes * lanes * group().subgroup_count;
  const unsigned int turn = turns[self().local_index]++ & 1u;
  T* const all = (T*)(group().exchange + exchange_bytes * (2u * first + turn * lanes));
  all[self().lane] = own;
  subgroup_barrier(all_lanes, line);
  return all;
}

// A byte of the running thread's, zero when its workgroup begins.
inline unsigned char& own_flag() {
  const unsigned int lanes = group().subgroup_size * group().subgroup_count;
  return group().exchange[(2u * exchange_bytes + 1u) * lanes + self().local_index];
}

// Ends the launch where a text asks what only subgroups of another width can do.
inline void need_lanes(unsigned int lanes, unsigned int line) {
  if (group().subgroup_size != lanes)
    state.fault(state.executor, line, "a matrix operation of subgroups of another width");
}

// The lane that a relative shuffle reads: the own one where the other is past an end.
inline unsigned int lane_up(unsigned int distance) {
  return distance > self().lane ? self().lane : self().lane - distance;
}
inline unsigned int lane_down(unsigned int distance) {
  return distance >= group().subgroup_size - self().lane ? self().lane : self().lane + distance;
}
inline unsigned int lane_xor(unsigned int bits) {
  const unsigned int other = self().lane ^ bits;
  return other < group().subgroup_size ? other : self().lane;
}

// --- Read-modify-write: whole, because another fiber runs only where this one waits. A loop of
// them may wait for another thread, so that every so many let the others run.

inline void count_atomic(unsigned int line) {
  static unsigned int count = 0;
  if (++count % 1024 == 0) state.pause(state.executor, line);
}

template <class T, class F>
inline T atomic(T* cell, unsigned int line, F&& change) {
  count_atomic(line);
  // Volatile, because the compiler must not carry a cell over a turn of another thread, which it
  // may where the text calls the pointer `__restrict__`.
  volatile T* const now = cell;
  const T old = *now;
  *now = change(old);
  return old;
}

// --- Bits

template <class To, class From>
inline To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  return __builtin_bit_cast(To, from);
}

inline unsigned int float_bits(float x) { return bits_as<unsigned int>(x); }

inline int count_leading(unsigned int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int count_leading(unsigned long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
inline int count_trailing(unsigned int x) { return x == 0 ? 32 : __builtin_ctz(x); }
inline int count_trailing(unsigned long long x) { return x == 0 ? 64 : __builtin_ctzll(x); }

// --- 16-bit floats, by their bits: IEEE 754 binary16, and the upper half of binary32

inline float half_value(unsigned short half) {
  const unsigned int sign = (half & 0x8000u) << 16;
  const unsigned int exponent = half >> 10 & 31u;
  const unsigned int mantissa = half & 0x3ffu;
  if (exponent == 31) return bits_as<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return bits_as<float>(sign | (exponent + 112u) << 23 | mantissa << 13);
  const float magnitude = (float)mantissa * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

// To nearest even.
inline unsigned short half_of(float x) {
  const unsigned int bits = float_bits(x);
  const unsigned int sign = bits >> 16 & 0x8000u;
  const unsigned int magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u | (magnitude >> 13 & 0x3ffu);
  // 65520 and above round to infinity.
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  if (magnitude >= 0x38800000u) {
    const unsigned int rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return sign | (rounded - (112u << 23)) >> 13;
  }
  // In 0.5 + x the last bit counts 2^-24, the unit of subnormal halves.
  return sign | (float_bits(bits_as<float>(magnitude) + 0.5f) - float_bits(0.5f));
}

inline float bfloat_value(unsigned short bits) { return bits_as<float>((unsigned int)bits << 16); }

// To nearest even.
inline unsigned short bfloat_of(float x) {
  const unsigned int bits = float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

// --- Numbers

inline bool is_nan(float x) { return (float_bits(x) & 0x7fffffffu) > 0x7f800000u; }
inline bool is_nan(double x) { return (bits_as<unsigned long long>(x) & ~(1ull << 63)) > 0x7ff0000000000000ull; }
inline bool is_finite(float x) { return (float_bits(x) & 0x7f800000u) != 0x7f800000u; }
inline bool is_finite(double x) {
  return (bits_as<unsigned long long>(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
}
inline bool is_negative(float x) { return float_bits(x) >> 31; }
inline bool is_negative(double x) { return bits_as<unsigned long long>(x) >> 63; }

inline float reciprocal_root(float x) { return (float)(1.0 / __builtin_sqrt((double)x)); }
inline double reciprocal_root(double x) { return 1.0 / __builtin_sqrt(x); }

// --- The call of an entry point whose argument list is the parameter block, field by field in
// natural alignment (`BlockLayout` of iron-ir).

template <class T, T... I>
struct Sequence {};

template <class... A, int... I>
inline void call_fields(void (*entry)(A...), const unsigned char* block, Sequence<int, I...>) {
  constexpr __SIZE_TYPE__ sizes[] = {sizeof(A)..., 0};
  struct Offsets {
    __SIZE_TYPE__ at[sizeof...(A) + 1] = {};
    constexpr Offsets(const __SIZE_TYPE__* sizes) {
      __SIZE_TYPE__ end = 0;
      for (__SIZE_TYPE__ i = 0; i < sizeof...(A); i++) {
        end = (end + sizes[i] - 1) / sizes[i] * sizes[i];
        at[i] = end;
        end += sizes[i];
      }
    }
  };
  constexpr Offsets offsets(sizes);
  entry(*(const A*)(block + offsets.at[I])...);
}

template <class... A>
inline void call(void (*entry)(A...), const unsigned char* block) {
  call_fields(entry, block, __make_integer_seq<Sequence, int, sizeof...(A)>());
}

// Arguments of an entry point whose parameters are bound one by one: whatever pointer, or
// reference to the block, it declares.
struct Pointer {
  void* address;
  template <class T>
  operator T*() const {
    return (T*)address;
  }
};
inline Pointer pointer_at(const unsigned char* block, unsigned int slot) {
  return Pointer{((void* const*)block)[slot]};
}
struct Block {
  const unsigned char* bytes;
  template <class T>
  operator const T&() const {
    return *(const T*)bytes;
  }
};

}  // namespace iron_emulated

// What a unit exports: its state, and for each text a function that runs one thread and one that
// tells where the workgroup's memory is.
#define IRON_EXPORTED extern "C" __attribute__((visibility("default")))
#define IRON_UNIT                                \
  iron_emulated::State iron_emulated::state;     \
  IRON_EXPORTED void* iron_state() { return &iron_emulated::state; }
// Shared memory of one text: a section of its own, which the executor fills with poison before
// each workgroup. `used` keeps the compiler from reasoning about who else writes it.
#define IRON_SHARED(text) __attribute__((section("iron_memory_" #text), used))
#define IRON_SHARED_RANGE(text)                                                              \
  extern "C" __attribute__((visibility("hidden"))) char __start_iron_memory_##text[];        \
  extern "C" __attribute__((visibility("hidden"))) char __stop_iron_memory_##text[];         \
  IRON_EXPORTED void iron_shared_##text(void** start, unsigned long long* bytes) {           \
    *start = __start_iron_memory_##text;                                                     \
    *bytes = (unsigned long long)(__stop_iron_memory_##text - __start_iron_memory_##text);   \
  }
#define IRON_ENTRY(text, ...) \
  IRON_EXPORTED void iron_entry_##text(const unsigned char* block) { __VA_ARGS__; }
