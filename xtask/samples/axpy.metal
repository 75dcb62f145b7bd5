#include <metal_stdlib>
using namespace metal;

struct AxpyParams {
    device const half* x;
    device bfloat* y;
    ulong x_stride;
    uint n;
    float a;
};

[[max_total_threads_per_threadgroup(256)]]
kernel void axpy(
    constant AxpyParams& params [[buffer(0)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 local [[thread_position_in_threadgroup]]
) {
    const uint i = group.x * 256u + local.x;
    if (i < params.n) {
        const float product = fma(params.a, float(params.x[ulong(i) * params.x_stride]), float(params.y[i]));
        params.y[i] = bfloat(product);
    }
}
