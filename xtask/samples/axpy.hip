#ifndef __HIPCC_RTC__
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#endif
#include <hip/hip_bf16.h>

extern "C" __global__ void __launch_bounds__(256) axpy(
    const __half* __restrict__ x,
    __hip_bfloat16* __restrict__ y,
    unsigned long long x_stride,
    unsigned int n,
    float a
) {
    const unsigned int i = blockIdx.x * 256u + threadIdx.x;
    if (i < n) {
        const float product = fmaf(a, __half2float(x[(unsigned long long)i * x_stride]), __bfloat162float(y[i]));
        y[i] = __float2bfloat16(product);
    }
}
