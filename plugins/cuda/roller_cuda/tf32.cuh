// Values rounded to tf32, to the nearest and away from zero in the middle; the bits below are zero.
#ifndef ROLLER_EMULATED
__device__ __forceinline__ unsigned roller_tf32(float value) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
    return rounded;
}
__device__ __forceinline__ unsigned roller_tf32(unsigned bits) { return roller_tf32(__uint_as_float(bits)); }
__device__ __forceinline__ float roller_tf32_value(float value) { return __uint_as_float(roller_tf32(value)); }
#endif
