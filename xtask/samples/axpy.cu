struct half {
    unsigned short bits;
};

__device__ inline float half_to_float(half x) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
    return result;
}

__device__ inline half float_to_half(float x) {
    half result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
}

extern "C" __global__ void __launch_bounds__(256) axpy(
    const half* __restrict__ x,
    half* __restrict__ y,
    unsigned long long x_stride,
    unsigned int n,
    float a
) {
    const unsigned int i = blockIdx.x * 256u + threadIdx.x;
    if (i < n) {
        const float product = fmaf(a, half_to_float(x[(unsigned long long)i * x_stride]), half_to_float(y[i]));
        y[i] = float_to_half(product);
    }
}
