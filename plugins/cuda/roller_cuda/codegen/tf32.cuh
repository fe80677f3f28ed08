// tf32: values rounded to the nearest, away from zero in the middle, with zeros in the bits below; a warp's products of them.
#ifndef ROLLER_EMULATED
__device__ __forceinline__ unsigned roller_tf32(float value) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return rounded;
}
__device__ __forceinline__ unsigned roller_tf32(unsigned bits) { return roller_tf32(__uint_as_float(bits)); }
__device__ __forceinline__ float roller_tf32_value(float value) { return __uint_as_float(roller_tf32(value)); }
__device__ __forceinline__ void roller_mma_m16n8k8_tf32(float *d0, float *d1, float *d2, float *d3, const unsigned *a, const unsigned *b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(*d0), "+f"(*d1), "+f"(*d2), "+f"(*d3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
