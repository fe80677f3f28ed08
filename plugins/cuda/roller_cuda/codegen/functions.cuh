// Elementary functions by the GPU's own: MUFU computes 2^x, 1/x and 1/sqrt(x) approximately, with the errors that PTX documents
// (2^-22, 1 ulp, 2^-22.9). Only functions may be approximate: what is written as a division or a square root is correctly rounded.
#ifndef ROLLER_EMULATED
__device__ __forceinline__ float roller_ex2(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ float roller_rcp(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ float roller_fn_exp(float x) { return expf(x); }
__device__ __forceinline__ float roller_fn_tanh(float x) { return tanhf(x); }
__device__ __forceinline__ float roller_fn_rsqrt(float x) { return rsqrtf(x); }
#endif

__device__ __forceinline__ float roller_fn_sigmoid(float x) { return roller_rcp(1.0f + roller_fn_exp(-x)); }

// Below 1 x P(x^2), minimax of erf(x) / x; from there on 1 - 2^Q(|x|), minimax of log2 erfc(x) weighted by erfc, whose leading term
// takes it to 1 for all that is larger. Within 2 ulp of erf with every error of 2^x that PTX allows; no division.
__device__ __forceinline__ float roller_fn_erf(float x) {
    const float a = fabsf(x), s = x * x;
    float p = fmaf(-0.00056601566f, s, 0.00492479f);
    p = fmaf(p, s, -0.026717708f);
    p = fmaf(p, s, 0.112804115f);
    p = fmaf(p, s, -0.37612355f);
    p = fmaf(p, s, 0.12837912f);
    float q = fmaf(-0.0016597093f, a, 0.02132033f);
    q = fmaf(q, a, -0.12787212f);
    q = fmaf(q, a, -0.9442279f);
    q = fmaf(q, a, -1.612123f);
    q = fmaf(q, a, -0.0038544317f);
    const float far = copysignf(1.0f - roller_ex2(q), x);
    return a < 1.0f ? fmaf(p, x, x) : far;
}
