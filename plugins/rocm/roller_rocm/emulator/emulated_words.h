// Vector instructions on words: 32-bit and 64-bit integers, single and double precision.
#pragma once
#include "emulated_operands.h"

namespace waves {

inline float flushed(float x) { return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.0f, x) : x; }
template <class T> inline T least(T a, T b) { return a < b ? a : b; }
template <class T> inline T most(T a, T b) { return a < b ? b : a; }
// Of numbers and NaNs the numbers win.
template <class T> inline T least_real(T a, T b) { return a != a ? b : b != b ? a : a < b || (a == b && std::signbit(a)) ? a : b; }
template <class T> inline T most_real(T a, T b) { return a != a ? b : b != b ? a : a > b || (a == b && !std::signbit(a)) ? a : b; }
template <class T> inline T middle(T a, T b, T c) { return most(least(a, b), least(most(a, b), c)); }
template <class T> inline T middle_real(T a, T b, T c) {
    if (a != a || b != b || c != c) return least_real(least_real(a, b), c);
    return most_real(least_real(a, b), least_real(most_real(a, b), c));
}
template <class T> inline u32 wide24(T a) { return a & 0xffffff; }
inline i32 narrow24(i32 a) { return static_cast<i32>(static_cast<u32>(a) << 8) >> 8; }
inline u32 field(u32 x, u32 at, u32 size) { return size & 31 ? x >> (at & 31) & ((1u << (size & 31)) - 1) : 0; }
inline i32 signed_field(i32 x, u32 at, u32 size) {
    at &= 31, size &= 31;
    if (!size) return 0;
    if (at + size >= 32) return x >> at;
    return static_cast<i32>(static_cast<u32>(x) << (32 - at - size)) >> (32 - size);
}
inline u32 reversed(u32 x) {
    u32 r = 0;
    for (int k = 0; k < 32; k++) r |= (x >> k & 1) << (31 - k);
    return r;
}
inline u32 permuted(u32 a, u32 b, u32 order) {
    const u64 both = u64(a) << 32 | b;
    u32 r = 0;
    for (int k = 0; k < 4; k++) {
        const u32 which = order >> 8 * k & 255;
        u32 byte = which < 8 ? both >> 8 * which & 255 : which < 12 ? (both >> (16 * (which - 8) + 15) & 1 ? 255 : 0) : which == 12 ? 0 : 255;
        r |= byte << 8 * k;
    }
    return r;
}
// To a whole number: what does not fit becomes the nearest that does, NaN zero.
template <class To, class From> inline To whole(From x) {
    if (x != x) return 0;
    const double d = static_cast<double>(x), low = static_cast<double>(std::numeric_limits<To>::min());
    const double high = static_cast<double>(std::numeric_limits<To>::max());
    return d <= low ? std::numeric_limits<To>::min() : d >= high ? std::numeric_limits<To>::max() : static_cast<To>(d);
}
inline float turns(double x, bool cosine) {
    const double part = 2 * 3.14159265358979323846 * (x - std::floor(x));
    return static_cast<float>(cosine ? std::cos(part) : std::sin(part));
}
template <class T> inline T mantissa(T x) {
    int e;
    return std::isfinite(x) ? std::frexp(x, &e) : x;
}
template <class T> inline i32 exponent(T x) {
    int e = 0;
    if (std::isfinite(x) && x != 0) std::frexp(x, &e);
    return e;
}

inline void add_whole(Table &t) {
    t["v_mov_b32"] = t["v_accvgpr_read_b32"] = t["v_accvgpr_write_b32"] = t["v_accvgpr_mov_b32"] = alike1<u32>([](u32 a) { return a; });
    t["v_not_b32"] = alike1<u32>([](u32 a) { return ~a; });
    t["v_bfrev_b32"] = alike1<u32>([](u32 a) { return reversed(a); });
    t["v_ffbh_u32"] = t["v_clz_i32_u32"] = alike1<u32>([](u32 a) { return a ? u32(__builtin_clz(a)) : ~0u; });
    t["v_ffbh_i32"] = t["v_cls_i32"] = alike1<u32>([](u32 a) { return like_sign(a); });
    t["v_ffbl_b32"] = t["v_ctz_i32_b32"] = alike1<u32>([](u32 a) { return a ? u32(__builtin_ctz(a)) : ~0u; });
    t["v_bcnt_u32_b32"] = alike2<u32>([](u32 a, u32 b) { return u32(__builtin_popcount(a)) + b; });
    t["v_mov_b64"] = alike1<u64>([](u64 a) { return a; });
    t["v_add_u32"] = alike2<u32>([](u32 a, u32 b) { return a + b; });
    t["v_sub_u32"] = alike2<u32>([](u32 a, u32 b) { return a - b; });
    t["v_subrev_u32"] = alike2<u32>([](u32 a, u32 b) { return b - a; });
    t["v_add_i32"] = t["v_add_u32"], t["v_sub_i32"] = t["v_sub_u32"];
    t["v_and_b32"] = alike2<u32>([](u32 a, u32 b) { return a & b; });
    t["v_or_b32"] = alike2<u32>([](u32 a, u32 b) { return a | b; });
    t["v_xor_b32"] = alike2<u32>([](u32 a, u32 b) { return a ^ b; });
    t["v_xnor_b32"] = alike2<u32>([](u32 a, u32 b) { return ~(a ^ b); });
    t["v_lshlrev_b32"] = alike2<u32>([](u32 a, u32 b) { return b << (a & 31); });
    t["v_lshrrev_b32"] = alike2<u32>([](u32 a, u32 b) { return b >> (a & 31); });
    t["v_ashrrev_i32"] = alike2<i32>([](i32 a, i32 b) { return b >> (a & 31); });
    t["v_min_u32"] = alike2<u32>([](u32 a, u32 b) { return least(a, b); });
    t["v_max_u32"] = alike2<u32>([](u32 a, u32 b) { return most(a, b); });
    t["v_min_i32"] = alike2<i32>([](i32 a, i32 b) { return least(a, b); });
    t["v_max_i32"] = alike2<i32>([](i32 a, i32 b) { return most(a, b); });
    t["v_mul_lo_u32"] = alike2<u32>([](u32 a, u32 b) { return a * b; });
    t["v_mul_hi_u32"] = alike2<u32>([](u32 a, u32 b) { return u32(u64(a) * b >> 32); });
    t["v_mul_hi_i32"] = alike2<i32>([](i32 a, i32 b) { return i32(i64(a) * b >> 32); });
    t["v_mul_u32_u24"] = alike2<u32>([](u32 a, u32 b) { return wide24(a) * wide24(b); });
    t["v_mul_i32_i24"] = alike2<i32>([](i32 a, i32 b) { return i32(u32(narrow24(a)) * u32(narrow24(b))); });
    t["v_mul_hi_u32_u24"] = alike2<u32>([](u32 a, u32 b) { return u32(u64(wide24(a)) * wide24(b) >> 32); });
    t["v_mul_hi_i32_i24"] = alike2<i32>([](i32 a, i32 b) { return i32(i64(narrow24(a)) * narrow24(b) >> 32); });
    t["v_mad_u32_u24"] = alike3<u32>([](u32 a, u32 b, u32 c) { return wide24(a) * wide24(b) + c; });
    t["v_mad_i32_i24"] = alike3<i32>([](i32 a, i32 b, i32 c) { return i32(u32(narrow24(a)) * u32(narrow24(b)) + u32(c)); });
    t["v_add3_u32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return a + b + c; });
    t["v_lshl_add_u32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return (a << (b & 31)) + c; });
    t["v_add_lshl_u32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return (a + b) << (c & 31); });
    t["v_lshl_or_b32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return (a << (b & 31)) | c; });
    t["v_and_or_b32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return (a & b) | c; });
    t["v_or3_b32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return a | b | c; });
    t["v_xor3_b32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return a ^ b ^ c; });
    t["v_xad_u32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return (a ^ b) + c; });
    t["v_bfi_b32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return (a & b) | (~a & c); });
    t["v_bfe_u32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return field(a, b, c); });
    t["v_bfe_i32"] = alike3<i32>([](i32 a, i32 b, i32 c) { return signed_field(a, u32(b), u32(c)); });
    t["v_bfm_b32"] = alike2<u32>([](u32 a, u32 b) { return ((1u << (a & 31)) - 1) << (b & 31); });
    t["v_perm_b32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return permuted(a, b, c); });
    t["v_alignbit_b32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return u32((u64(a) << 32 | b) >> (c & 31)); });
    t["v_alignbyte_b32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return u32((u64(a) << 32 | b) >> 8 * (c & 3)); });
    t["v_min3_u32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return least(least(a, b), c); });
    t["v_max3_u32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return most(most(a, b), c); });
    t["v_min3_i32"] = alike3<i32>([](i32 a, i32 b, i32 c) { return least(least(a, b), c); });
    t["v_max3_i32"] = alike3<i32>([](i32 a, i32 b, i32 c) { return most(most(a, b), c); });
    t["v_maxmin_i32"] = alike3<i32>([](i32 a, i32 b, i32 c) { return least(most(a, b), c); });
    t["v_minmax_i32"] = alike3<i32>([](i32 a, i32 b, i32 c) { return most(least(a, b), c); });
    t["v_maxmin_u32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return least(most(a, b), c); });
    t["v_minmax_u32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return most(least(a, b), c); });
    t["v_med3_i32"] = alike3<i32>([](i32 a, i32 b, i32 c) { return middle(a, b, c); });
    t["v_med3_u32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return middle(a, b, c); });
    t["v_sad_u32"] = alike3<u32>([](u32 a, u32 b, u32 c) { return (a < b ? b - a : a - b) + c; });
    t["v_lshl_add_u64"] = three<u64, u64, u32, u64>([](u64 a, u32 b, u64 c) { return (a << (b & 7)) + c; });
    t["v_lshlrev_b64"] = two<u64, u32, u64>([](u32 a, u64 b) { return b << (a & 63); });
    t["v_lshrrev_b64"] = two<u64, u32, u64>([](u32 a, u64 b) { return b >> (a & 63); });
    t["v_ashrrev_i64"] = two<i64, u32, i64>([](u32 a, i64 b) { return b >> (a & 63); });
}

inline void add_single(Table &t) {
    using F = float;
    t["v_add_f32"] = alike2<F>([](F a, F b) { return a + b; });
    t["v_sub_f32"] = alike2<F>([](F a, F b) { return a - b; });
    t["v_subrev_f32"] = alike2<F>([](F a, F b) { return b - a; });
    t["v_mul_f32"] = alike2<F>([](F a, F b) { return a * b; });
    t["v_mul_legacy_f32"] = alike2<F>([](F a, F b) { return a == 0 || b == 0 ? 0.0f : a * b; });
    t["v_min_f32"] = alike2<F>([](F a, F b) { return least_real(a, b); });
    t["v_max_f32"] = alike2<F>([](F a, F b) { return most_real(a, b); });
    t["v_fma_f32"] = alike3<F>([](F a, F b, F c) { return __builtin_fmaf(a, b, c); });
    t["v_fmaak_f32"] = t["v_fma_f32"];
    t["v_fmamk_f32"] = alike3<F>([](F a, F k, F c) { return __builtin_fmaf(a, k, c); });
    t["v_fmac_f32"] = added<F, F>([](F a, F b, F c) { return __builtin_fmaf(a, b, c); });
    // Multiply and add, rounded in between, without denormals.
    t["v_mad_f32"] = alike3<F>([](F a, F b, F c) { return flushed(flushed(flushed(a) * flushed(b)) + flushed(c)); });
    t["v_madak_f32"] = t["v_madmk_f32"] = t["v_mad_f32"];
    t["v_mac_f32"] = added<F, F>([](F a, F b, F c) { return flushed(flushed(flushed(a) * flushed(b)) + flushed(c)); });
    t["v_min3_f32"] = alike3<F>([](F a, F b, F c) { return least_real(least_real(a, b), c); });
    t["v_max3_f32"] = alike3<F>([](F a, F b, F c) { return most_real(most_real(a, b), c); });
    t["v_med3_f32"] = alike3<F>([](F a, F b, F c) { return middle_real(a, b, c); });
    t["v_maxmin_f32"] = alike3<F>([](F a, F b, F c) { return least_real(most_real(a, b), c); });
    t["v_minmax_f32"] = alike3<F>([](F a, F b, F c) { return most_real(least_real(a, b), c); });
    t["v_exp_f32"] = alike1<F>([](F a) { return F(std::exp2(double(a))); });
    t["v_log_f32"] = alike1<F>([](F a) { return F(std::log2(double(a))); });
    t["v_rcp_f32"] = t["v_rcp_iflag_f32"] = alike1<F>([](F a) { return F(1 / double(a)); });
    t["v_rsq_f32"] = alike1<F>([](F a) { return F(1 / std::sqrt(double(a))); });
    t["v_sqrt_f32"] = alike1<F>([](F a) { return F(std::sqrt(double(a))); });
    t["v_sin_f32"] = alike1<F>([](F a) { return turns(a, false); });
    t["v_cos_f32"] = alike1<F>([](F a) { return turns(a, true); });
    t["v_floor_f32"] = alike1<F>([](F a) { return __builtin_floorf(a); });
    t["v_ceil_f32"] = alike1<F>([](F a) { return __builtin_ceilf(a); });
    t["v_trunc_f32"] = alike1<F>([](F a) { return __builtin_truncf(a); });
    t["v_rndne_f32"] = alike1<F>([](F a) { return __builtin_rintf(a); });
    t["v_fract_f32"] = alike1<F>([](F a) { return least_real(a - __builtin_floorf(a), 0.99999994f); });
    t["v_ldexp_f32"] = two<F, F, i32>([](F a, i32 b) { return std::ldexp(a, b); });
    t["v_frexp_mant_f32"] = alike1<F>([](F a) { return mantissa(a); });
    t["v_frexp_exp_i32_f32"] = one<i32, F>([](F a) { return exponent(a); });
    t["v_cvt_f32_i32"] = one<F, i32>([](i32 a) { return F(a); });
    t["v_cvt_f32_u32"] = one<F, u32>([](u32 a) { return F(a); });
    t["v_cvt_i32_f32"] = one<i32, F>([](F a) { return whole<i32>(a); });
    t["v_cvt_u32_f32"] = one<u32, F>([](F a) { return whole<u32>(a); });
    t["v_cvt_f32_ubyte0"] = one<F, u32>([](u32 a) { return F(a & 255); });
    t["v_cvt_f32_ubyte1"] = one<F, u32>([](u32 a) { return F(a >> 8 & 255); });
    t["v_cvt_f32_ubyte2"] = one<F, u32>([](u32 a) { return F(a >> 16 & 255); });
    t["v_cvt_f32_ubyte3"] = one<F, u32>([](u32 a) { return F(a >> 24); });
}

inline void add_double(Table &t) {
    using D = double;
    t["v_add_f64"] = alike2<D>([](D a, D b) { return a + b; });
    t["v_mul_f64"] = alike2<D>([](D a, D b) { return a * b; });
    t["v_min_f64"] = alike2<D>([](D a, D b) { return least_real(a, b); });
    t["v_max_f64"] = alike2<D>([](D a, D b) { return most_real(a, b); });
    t["v_fma_f64"] = alike3<D>([](D a, D b, D c) { return __builtin_fma(a, b, c); });
    t["v_fmac_f64"] = added<D, D>([](D a, D b, D c) { return __builtin_fma(a, b, c); });
    t["v_rcp_f64"] = alike1<D>([](D a) { return 1 / a; });
    t["v_rsq_f64"] = alike1<D>([](D a) { return 1 / std::sqrt(a); });
    t["v_sqrt_f64"] = alike1<D>([](D a) { return std::sqrt(a); });
    t["v_floor_f64"] = alike1<D>([](D a) { return std::floor(a); });
    t["v_ceil_f64"] = alike1<D>([](D a) { return std::ceil(a); });
    t["v_trunc_f64"] = alike1<D>([](D a) { return std::trunc(a); });
    t["v_rndne_f64"] = alike1<D>([](D a) { return std::rint(a); });
    t["v_fract_f64"] = alike1<D>([](D a) { return least_real(a - std::floor(a), 0x1.fffffffffffffp-1); });
    t["v_ldexp_f64"] = two<D, D, i32>([](D a, i32 b) { return std::ldexp(a, b); });
    t["v_frexp_mant_f64"] = alike1<D>([](D a) { return mantissa(a); });
    t["v_frexp_exp_i32_f64"] = one<i32, D>([](D a) { return exponent(a); });
    t["v_cvt_f64_f32"] = one<D, float>([](float a) { return D(a); });
    t["v_cvt_f32_f64"] = one<float, D>([](D a) { return float(a); });
    t["v_cvt_f64_i32"] = one<D, i32>([](i32 a) { return D(a); });
    t["v_cvt_f64_u32"] = one<D, u32>([](u32 a) { return D(a); });
    t["v_cvt_i32_f64"] = one<i32, D>([](D a) { return whole<i32>(a); });
    t["v_cvt_u32_f64"] = one<u32, D>([](D a) { return whole<u32>(a); });
}

inline void add_words(Table &t) { add_whole(t), add_single(t), add_double(t); }

}  // namespace waves
