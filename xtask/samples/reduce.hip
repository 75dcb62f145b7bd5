#ifndef __HIPCC_RTC__
#include <hip/hip_runtime.h>
#endif

extern "C" __global__ void __launch_bounds__(256) reduce(
    const float* __restrict__ x,
    float* __restrict__ out,
    unsigned int* __restrict__ counter,
    unsigned int n
) {
    __shared__ float partial[64];
    float sum = 0.0f;
    for (unsigned int i = threadIdx.x; i < n; i += 256u) {
        sum += x[i];
    }
    for (int step = 1; step < warpSize; step <<= 1) {
        sum += __shfl_xor(sum, step);
    }
    if (threadIdx.x % warpSize == 0u) {
        partial[threadIdx.x / warpSize] = sum;
    }
    __syncthreads();
    const unsigned long long votes = __ballot(sum > 0.0f);
    if (threadIdx.x == 0u) {
        out[blockIdx.x] = partial[0] + (float)__popcll(votes);
        atomicAdd(counter, 1u);
    }
}
