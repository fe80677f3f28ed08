// Tensor cores of compute capability 7.0: what a lane of a quad pair reads, and four products of a depth of 4.
#ifndef ROLLER_EMULATED
#define ROLLER_QUADS(name, kinds) \
    __device__ __forceinline__ void name(float *d0, float *d1, float *d4, float *d5, float *d2, float *d3, float *d6, float *d7, \
                                         const unsigned *a, const unsigned *b) { \
        _Pragma("unroll") for (int step = 0; step < 4; ++step) \
            asm volatile("mma.sync.aligned.m8n8k4." kinds ".f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, " \
                         "{%0, %1, %2, %3, %4, %5, %6, %7};" \
                         : "+f"(*d0), "+f"(*d1), "+f"(*d2), "+f"(*d3), "+f"(*d4), "+f"(*d5), "+f"(*d6), "+f"(*d7) \
                         : "r"(a[2 * step]), "r"(a[2 * step + 1]), "r"(b[2 * step]), "r"(b[2 * step + 1])); \
    }
ROLLER_QUADS(roller_mma_quads_row_col, "row.col")
ROLLER_QUADS(roller_mma_quads_row_row, "row.row")
ROLLER_QUADS(roller_mma_quads_col_col, "col.col")
ROLLER_QUADS(roller_mma_quads_col_row, "col.row")
#endif
__device__ __forceinline__ void roller_quads_rows(unsigned *to, const void *from) {
    const uint4 *pieces = static_cast<const uint4 *>(from);
    const uint4 near = pieces[0], far = pieces[1];
    to[0] = near.x, to[1] = near.y, to[2] = near.z, to[3] = near.w;
    to[4] = far.x, to[5] = far.y, to[6] = far.z, to[7] = far.w;
}
template <int apart> __device__ __forceinline__ void roller_quads_across(unsigned *to, const half *from) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        const uint2 piece = *reinterpret_cast<const uint2 *>(from + step * apart);
        to[2 * step] = piece.x, to[2 * step + 1] = piece.y;
    }
}
