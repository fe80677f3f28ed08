// What a warp does together: small matrices from shared memory into registers, and their products.
#ifndef ROLLER_EMULATED
#define ROLLER_LDMATRIX(name, kind, operands, ...) \
    __device__ __forceinline__ void name(unsigned *to, const void *from) { \
        const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(from)); \
        asm volatile("ldmatrix.sync.aligned.m8n8." kind ".b16 " operands ";" : __VA_ARGS__ : "r"(place) : "memory"); \
    }
#define ROLLER_LDMATRIX_EACH(suffix, kind) \
    ROLLER_LDMATRIX(roller_ldmatrix_x1##suffix, "x1" kind, "{%0}, [%1]", "=r"(to[0])) \
    ROLLER_LDMATRIX(roller_ldmatrix_x2##suffix, "x2" kind, "{%0, %1}, [%2]", "=r"(to[0]), "=r"(to[1])) \
    ROLLER_LDMATRIX(roller_ldmatrix_x4##suffix, "x4" kind, "{%0, %1, %2, %3}, [%4]", "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]))
ROLLER_LDMATRIX_EACH(, ".shared")
ROLLER_LDMATRIX_EACH(_trans, ".trans.shared")
#define ROLLER_MMA(name, types) \
    __device__ __forceinline__ void name(float *d0, float *d1, float *d2, float *d3, const unsigned *a, const unsigned *b) { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col." types " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                     : "+f"(*d0), "+f"(*d1), "+f"(*d2), "+f"(*d3) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
__device__ __forceinline__ void roller_mma_m16n8k32_s8(int *d0, int *d1, int *d2, int *d3, const unsigned *a, const unsigned *b) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(*d0), "+r"(*d1), "+r"(*d2), "+r"(*d3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
ROLLER_MMA(roller_mma_m16n8k16_f16, "f32.f16.f16.f32")
ROLLER_MMA(roller_mma_m16n8k16_bf16, "f32.bf16.bf16.f32")
#endif
