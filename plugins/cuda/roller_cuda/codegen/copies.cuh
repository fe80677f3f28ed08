// Copies into shared memory that run by themselves; where `inside` is 0 they write zeros.
#ifndef ROLLER_EMULATED
#define ROLLER_COPY_ASYNC(size, kind) \
    __device__ __forceinline__ void roller_copy_async_##size(void *to, const void *from, int inside) { \
        const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to)); \
        asm volatile("cp.async." kind ".shared.global [%0], [%1], " #size ", %2;" \
                     : : "r"(place), "l"(from), "r"(inside ? size : 0) : "memory"); \
    }
ROLLER_COPY_ASYNC(4, "ca")
ROLLER_COPY_ASYNC(8, "ca")
ROLLER_COPY_ASYNC(16, "cg")
__device__ __forceinline__ void roller_copies_close() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int open> __device__ __forceinline__ void roller_copies_wait() {
    asm volatile("cp.async.wait_group %0;" : : "n"(open) : "memory");
}
#endif
