// What the kernels' text needs of HIP, for a clang without HIP's headers and libraries.
#pragma once
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
struct ThreadIndex { __declspec(property(get = at)) int x; __device__ static int at() { return __builtin_amdgcn_workitem_id_x(); } };
struct BlockIndex { __declspec(property(get = at)) int x; __device__ static int at() { return __builtin_amdgcn_workgroup_id_x(); } };
extern const __device__ ThreadIndex threadIdx;
extern const __device__ BlockIndex blockIdx;
__device__ __forceinline__ void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
template <class T> __device__ __forceinline__ T __shfl_xor(T value, int distance, int width) {
    static_assert(sizeof(T) == 4);
    const int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)), other = lane ^ distance;
    const int from = other < ((lane + width) & ~(width - 1)) ? other : lane;
    return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(from << 2, __builtin_bit_cast(int, value)));
}
#define ONE(name, of) \
    __device__ __forceinline__ float name##f(float x) { return of(x); } \
    __device__ __forceinline__ double name(double x) { return of(x); }
ONE(sqrt, __builtin_elementwise_sqrt)
ONE(floor, __builtin_elementwise_floor)
ONE(ceil, __builtin_elementwise_ceil)
ONE(trunc, __builtin_elementwise_trunc)
ONE(nearbyint, __builtin_elementwise_nearbyint)
ONE(fabs, __builtin_elementwise_abs)
ONE(exp, __builtin_elementwise_exp)
ONE(log, __builtin_elementwise_log)
ONE(sin, __builtin_elementwise_sin)
ONE(cos, __builtin_elementwise_cos)
__device__ __forceinline__ float powf(float x, float y) { return __builtin_elementwise_pow(x, y); }
