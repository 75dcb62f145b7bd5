#include <metal_stdlib>
using namespace metal;

struct ReduceParams {
    uint n;
};

float twice(float value) {
    return value + value;
}

[[max_total_threads_per_threadgroup(256)]]
kernel void reduce(
    device const float* x [[buffer(1)]],
    device float* out [[buffer(2)]],
    device atomic_uint* counter [[buffer(3)]],
    constant ReduceParams& params [[buffer(0)]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint subgroup [[simdgroup_index_in_threadgroup]],
    uint width [[threads_per_simdgroup]],
    uint3 group [[threadgroup_position_in_grid]]
) {
    threadgroup float partial[64];
    float sum = 0.0f;
    for (uint i = tid; i < params.n; i += 256u) {
        sum += x[i];
    }
    for (ushort step = 1; step < width; step <<= 1) {
        sum += simd_shuffle_xor(sum, step);
    }
    if (lane == 0u) {
        partial[subgroup] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float4 ones = float4(1.0f, 1.0f, partial[0], twice(1.0f));
    const ulong votes = static_cast<ulong>(simd_ballot(sum > 0.0f));
    if (tid == 0u) {
        out[group.x] = dot(ones, float4(partial[0])) + float(popcount(votes)) + as_type<float>(0x7f800000u);
        atomic_fetch_add_explicit(counter, 1u, memory_order_relaxed);
        atomic_fetch_max_explicit((device atomic_int*)(counter + 1), -1, memory_order_relaxed);
    }
}
