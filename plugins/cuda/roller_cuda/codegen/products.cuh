// Products that no sum takes in before they are rounded: the compiler makes no multiply-add of them.
#ifndef ROLLER_EMULATED
__device__ __forceinline__ float roller_product_float32(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double roller_product_float64(double a, double b) { return __dmul_rn(a, b); }
#else
template <class T> inline T roller_product(T a, T b) {
    volatile T product = a * b;
    return product;
}
inline float roller_product_float32(float a, float b) { return roller_product(a, b); }
inline double roller_product_float64(double a, double b) { return roller_product(a, b); }
#endif
__device__ __forceinline__ float2 roller_product_float32x2(float2 a, float2 b) {
    float2 r;
    r.x = roller_product_float32(a.x, b.x);
    r.y = roller_product_float32(a.y, b.y);
    return r;
}
__device__ __forceinline__ float4 roller_product_float32x4(float4 a, float4 b) {
    float4 r;
    r.x = roller_product_float32(a.x, b.x);
    r.y = roller_product_float32(a.y, b.y);
    r.z = roller_product_float32(a.z, b.z);
    r.w = roller_product_float32(a.w, b.w);
    return r;
}
