// Compilers are known to drop the wait that a barrier's fence stands for (at the start of a loop, for what its last round wrote):
// the one that is written out they do not touch. Fences of local memory alone let loads from global memory stay under way.
__device__ __forceinline__ void roller_barrier() {
#if __clang_major__ >= 20
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
#else
    asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory");
    __syncthreads();
#endif
}
