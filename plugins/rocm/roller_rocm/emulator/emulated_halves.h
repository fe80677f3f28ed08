// Vector instructions on 16 bits, on pairs, and sums of products of small numbers.
#pragma once
#include "emulated_words.h"

namespace waves {

inline half fused(half a, half b, half c) { return static_cast<half>(std::fma(double(a), double(b), double(c))); }
inline float bfloat(u32 x) { return bits<float>(x << 16); }
inline half towards_zero(float x) {
    const half near = static_cast<half>(x);
    const bool beyond = std::fabs(float(near)) > std::fabs(x);
    return beyond ? bits<half>(static_cast<u16>(bits<u16>(near) - 1)) : near;
}

// --- pairs ----------------------------------------------------------------------------------------------------------

// One half of an operand of an instruction on pairs: for the lower result or the upper.
template <class T> inline void half_of(const Wave &w, const Instruction &i, int n, bool upper, T *to) {
    const Operand &o = i.operands[n];
    const bool high = o.mods & (upper ? HIGH_OF_HIGH : HIGH), minus = o.mods & (upper ? NEG_OF_HIGH : NEG);
    if constexpr (sizeof(T) == 4) {
        if (o.kind == VECTOR || o.kind == SCALAR) words(w, i, n, high, reinterpret_cast<u32 *>(to));
        else if (high && constant<T>(o, false) != T(0)) throw Fault("the upper half of a constant is not modelled");
        else for (int l = 0; l < LANES; l++) to[l] = constant<T>(o, false);
    } else {
        gather<T>(w, i, n, to, high, false);
    }
    if (minus)
        for (int l = 0; l < LANES; l++) to[l] = signs(to[l], NEG);
}

template <class T> inline void put_pair(Wave &w, const Instruction &i, T (*r)[LANES]) {
    if (i.flags & CLAMP)
        for (int k = 0; k < 2; k++)
            for (int l = 0; l < LANES; l++) r[k][l] = limited(r[k][l], i);
    const int row = i.operands[0].index;
    if constexpr (sizeof(T) == 4) {
        put_row(w, row, reinterpret_cast<u32 *>(r[0])), put_row(w, row + 1, reinterpret_cast<u32 *>(r[1]));
    } else {
        Lanes<u32> both;
        for (int l = 0; l < LANES; l++) both.at[l] = bits<u16>(r[0][l]) | u32(bits<u16>(r[1][l])) << 16;
        put_row(w, row, both.at);
    }
}

template <class F, class T, int operands> void pairwise(Wave &w, const Instruction &i) {
    alignas(64) T x[3][LANES] = {}, r[2][LANES];
    for (int k = 0; k < 2; k++) {
        for (int n = 0; n < operands; n++) half_of(w, i, n + 1, k, x[n]);
        for (int l = 0; l < LANES; l++) r[k][l] = F()(x[0][l], x[1][l], x[2][l]);
    }
    put_pair(w, i, r);
}
template <class T, class F> Handler pairs2(F) { return pairwise<F, T, 2>; }
template <class T, class F> Handler pairs3(F) { return pairwise<F, T, 3>; }

template <class F, class T> void pair_onto(Wave &w, const Instruction &i) {
    alignas(64) T x[3][LANES] = {}, r[2][LANES];
    for (int k = 0; k < 2; k++) {
        for (int n = 0; n < 2; n++) half_of(w, i, n + 1, k, x[n]);
        for (int l = 0; l < LANES; l++) x[2][l] = bits<T>(static_cast<u16>(w.v[i.operands[0].index][l] >> 16 * k));
        for (int l = 0; l < LANES; l++) r[k][l] = F()(x[0][l], x[1][l], x[2][l]);
    }
    put_pair(w, i, r);
}
template <class T, class F> Handler pairs_added(F) { return pair_onto<F, T>; }

inline void pair_of_words(Wave &w, const Instruction &i) {
    Lanes<u32> low, high;
    words(w, i, 1, (i.operands[1].mods & HIGH) != 0, low.at), words(w, i, 2, (i.operands[2].mods & HIGH) != 0, high.at);
    put_row(w, i.operands[0].index, low.at), put_row(w, i.operands[0].index + 1, high.at);
}

template <class F, class A> void packing(Wave &w, const Instruction &i) {  // two values into the halves of a word
    Lanes<A> x, y;
    Lanes<u32> r;
    const A *a = source(w, i, 1, x), *b = source(w, i, 2, y);
    for (int l = 0; l < LANES; l++) r.at[l] = bits<u16>(F()(a[l])) | u32(bits<u16>(F()(b[l]))) << 16;
    put(w, i, r.at);
}
template <class A, class F> Handler packed(F) { return packing<F, A>; }

// --- mixed precision --------------------------------------------------------------------------------------------------

inline void mixed(const Wave &w, const Instruction &i, int n, float *to) {
    const Operand &o = i.operands[n];
    if (!(o.mods & HIGH_OF_HIGH)) return gather<float>(w, i, n, to, false);
    Lanes<half> x;
    gather<half>(w, i, n, x.at, o.mods & HIGH);
    for (int l = 0; l < LANES; l++) to[l] = x.at[l];
}

template <int to> void mix(Wave &w, const Instruction &i) {  // to: 0 a word, 1 the lower half, 2 the upper half
    Lanes<float> a, b, c;
    Lanes<u32> r;
    mixed(w, i, 1, a.at), mixed(w, i, 2, b.at), mixed(w, i, 3, c.at);
    const u32 *before = w.v[i.operands[0].index];
    for (int l = 0; l < LANES; l++) {
        if (to == 0) {
            r.at[l] = bits<u32>(limited(__builtin_fmaf(a.at[l], b.at[l], c.at[l]), i));
            continue;
        }
        const half sum = limited(static_cast<half>(std::fma(double(a.at[l]), double(b.at[l]), double(c.at[l]))), i);
        r.at[l] = to == 1 ? bits<u16>(sum) | (before[l] & 0xffff0000u) : (before[l] & 0xffff) | u32(bits<u16>(sum)) << 16;
    }
    put_row(w, i.operands[0].index, r.at);
}

// --- sums of products -------------------------------------------------------------------------------------------------

template <class F, class T> void dotted(Wave &w, const Instruction &i) {
    Lanes<u32> a, b;
    Lanes<T> z, r;
    words(w, i, 1, 0, a.at), words(w, i, 2, 0, b.at);
    const int third = i.count > 3 ? 3 : 0;
    const T *c = source(w, i, third, z);
    for (int l = 0; l < LANES; l++) r.at[l] = F()(a.at[l], b.at[l], c[l], i.operands[1].mods & NEG, i.operands[2].mods & NEG);
    put(w, i, r.at);
}
template <class T, class F> Handler dot(F) { return dotted<F, T>; }

inline i32 byte(u32 word, int k, bool sign) {
    const u32 x = word >> 8 * k & 255;
    return sign ? static_cast<int8_t>(x) : static_cast<i32>(x);
}
inline u32 four(u32 a, u32 b, u32 c, bool sign_a, bool sign_b) {
    for (int k = 0; k < 4; k++) c += static_cast<u32>(byte(a, k, sign_a) * byte(b, k, sign_b));
    return c;
}

inline void add_dots(Table &t) {
    t["v_dot4_i32_i8"] = t["v_dot4c_i32_i8"] = dot<u32>([](u32 a, u32 b, u32 c, bool, bool) { return four(a, b, c, true, true); });
    t["v_dot4_u32_u8"] = dot<u32>([](u32 a, u32 b, u32 c, bool, bool) { return four(a, b, c, false, false); });
    t["v_dot4_i32_iu8"] = dot<u32>([](u32 a, u32 b, u32 c, bool sa, bool sb) { return four(a, b, c, sa, sb); });
    t["v_dot2_i32_i16"] = t["v_dot2c_i32_i16"] = dot<u32>([](u32 a, u32 b, u32 c, bool, bool) {
        return c + u32(i32(i16(a)) * i16(b)) + u32(i32(i16(a >> 16)) * i16(b >> 16));
    });
    t["v_dot2_u32_u16"] = dot<u32>([](u32 a, u32 b, u32 c, bool, bool) { return c + u32(u16(a)) * u16(b) + (a >> 16) * (b >> 16); });
    t["v_dot2_f32_f16"] = t["v_dot2c_f32_f16"] = t["v_dot2acc_f32_f16"] = dot<float>([](u32 a, u32 b, float c, bool, bool) {
        const double low = double(bits<half>(u16(a))) * double(bits<half>(u16(b)));
        return float(low + double(bits<half>(u16(a >> 16))) * double(bits<half>(u16(b >> 16))) + c);
    });
    t["v_dot2_f32_bf16"] = dot<float>([](u32 a, u32 b, float c, bool, bool) {
        return float(double(bfloat(a & 0xffff)) * bfloat(b & 0xffff) + double(bfloat(a >> 16)) * bfloat(b >> 16) + c);
    });
}

// --- tables -----------------------------------------------------------------------------------------------------------

template <class T> void add_small(Table &t, const std::string &type) {
    t["v_min_" + type] = alike2<T>([](T a, T b) { return least(a, b); });
    t["v_max_" + type] = alike2<T>([](T a, T b) { return most(a, b); });
    t["v_min3_" + type] = alike3<T>([](T a, T b, T c) { return least(least(a, b), c); });
    t["v_max3_" + type] = alike3<T>([](T a, T b, T c) { return most(most(a, b), c); });
    t["v_med3_" + type] = alike3<T>([](T a, T b, T c) { return middle(a, b, c); });
    t["v_mad_" + type] = t["v_mad_legacy_" + type] = alike3<T>([](T a, T b, T c) { return T(u32(a) * u32(b) + u32(c)); });
    t["v_add_" + type] = alike2<T>([](T a, T b) { return T(a + b); });
    t["v_sub_" + type] = alike2<T>([](T a, T b) { return T(a - b); });
    t["v_subrev_" + type] = alike2<T>([](T a, T b) { return T(b - a); });
    t["v_pk_min_" + type] = pairs2<T>([](T a, T b, T) { return least(a, b); });
    t["v_pk_max_" + type] = pairs2<T>([](T a, T b, T) { return most(a, b); });
    t["v_pk_add_" + type] = pairs2<T>([](T a, T b, T) { return T(a + b); });
    t["v_pk_sub_" + type] = pairs2<T>([](T a, T b, T) { return T(a - b); });
    t["v_pk_mad_" + type] = pairs3<T>([](T a, T b, T c) { return T(u32(a) * u32(b) + u32(c)); });
}

template <class T> inline T saturated(i64 x) {
    return static_cast<T>(middle(x, i64(std::numeric_limits<T>::min()), i64(std::numeric_limits<T>::max())));
}
template <class T> void add_saturating(Table &t, const std::string &type) {  // with `clamp`
    t["v_add_" + type + "_clamp"] = alike2<T>([](T a, T b) { return saturated<T>(i64(a) + i64(b)); });
    t["v_sub_" + type + "_clamp"] = alike2<T>([](T a, T b) { return saturated<T>(i64(a) - i64(b)); });
    t["v_subrev_" + type + "_clamp"] = alike2<T>([](T a, T b) { return saturated<T>(i64(b) - i64(a)); });
}
template <class T> void add_saturating_pairs(Table &t, const std::string &type) {
    t["v_pk_add_" + type + "_clamp"] = pairs2<T>([](T a, T b, T) { return saturated<T>(i64(a) + i64(b)); });
    t["v_pk_sub_" + type + "_clamp"] = pairs2<T>([](T a, T b, T) { return saturated<T>(i64(a) - i64(b)); });
}

inline void add_integers16(Table &t) {
    add_small<u16>(t, "u16"), add_small<i16>(t, "i16");
    add_saturating<u32>(t, "u32"), add_saturating<i32>(t, "i32"), add_saturating<u16>(t, "u16"), add_saturating<i16>(t, "i16");
    add_saturating_pairs<u16>(t, "u16"), add_saturating_pairs<i16>(t, "i16");
    t["v_mov_b16"] = alike1<u16>([](u16 a) { return a; });
    t["v_not_b16"] = alike1<u16>([](u16 a) { return u16(~a); });
    t["v_and_b16"] = alike2<u16>([](u16 a, u16 b) { return u16(a & b); });
    t["v_or_b16"] = alike2<u16>([](u16 a, u16 b) { return u16(a | b); });
    t["v_xor_b16"] = alike2<u16>([](u16 a, u16 b) { return u16(a ^ b); });
    t["v_mul_lo_u16"] = alike2<u16>([](u16 a, u16 b) { return u16(u32(a) * b); });
    t["v_lshlrev_b16"] = alike2<u16>([](u16 a, u16 b) { return u16(b << (a & 15)); });
    t["v_lshrrev_b16"] = alike2<u16>([](u16 a, u16 b) { return u16(b >> (a & 15)); });
    t["v_ashrrev_i16"] = two<i16, u16, i16>([](u16 a, i16 b) { return i16(b >> (a & 15)); });
    t["v_pk_mul_lo_u16"] = pairs2<u16>([](u16 a, u16 b, u16) { return u16(u32(a) * b); });
    t["v_pk_lshlrev_b16"] = pairs2<u16>([](u16 a, u16 b, u16) { return u16(b << (a & 15)); });
    t["v_pk_lshrrev_b16"] = pairs2<u16>([](u16 a, u16 b, u16) { return u16(b >> (a & 15)); });
    t["v_pk_ashrrev_i16"] = pairs2<i16>([](i16 a, i16 b, i16) { return i16(b >> (a & 15)); });
    t["v_mad_u32_u16"] = three<u32, u16, u16, u32>([](u16 a, u16 b, u32 c) { return u32(a) * b + c; });
    t["v_mad_i32_i16"] = three<u32, i16, i16, u32>([](i16 a, i16 b, u32 c) { return u32(i32(a) * b) + c; });
    t["v_cvt_u32_u16"] = one<u32, u16>([](u16 a) { return u32(a); });
    t["v_cvt_i32_i16"] = one<i32, i16>([](i16 a) { return i32(a); });
    t["v_pack_b32_f16"] = packed<half>([](half a) { return a; });
    t["v_cvt_pk_i16_i32"] = packed<i32>([](i32 a) { return i16(middle(a, -32768, 32767)); });
    t["v_cvt_pk_u16_u32"] = packed<u32>([](u32 a) { return u16(least(a, 65535u)); });
    t["v_sat_pk_u8_i16"] = one<u32, u32>([](u32 a) {
        return u32(middle(i32(i16(a)), 0, 255)) | u32(middle(i32(i16(a >> 16)), 0, 255)) << 8;
    });
}

inline void add_halves(Table &t) {
    using H = half;
    add_dots(t), add_integers16(t);
    t["v_add_f16"] = alike2<H>([](H a, H b) { return H(a + b); });
    t["v_sub_f16"] = alike2<H>([](H a, H b) { return H(a - b); });
    t["v_subrev_f16"] = alike2<H>([](H a, H b) { return H(b - a); });
    t["v_mul_f16"] = alike2<H>([](H a, H b) { return H(a * b); });
    t["v_min_f16"] = alike2<H>([](H a, H b) { return H(least_real(float(a), float(b))); });
    t["v_max_f16"] = alike2<H>([](H a, H b) { return H(most_real(float(a), float(b))); });
    t["v_min3_f16"] = alike3<H>([](H a, H b, H c) { return H(least_real(least_real(float(a), float(b)), float(c))); });
    t["v_max3_f16"] = alike3<H>([](H a, H b, H c) { return H(most_real(most_real(float(a), float(b)), float(c))); });
    t["v_med3_f16"] = alike3<H>([](H a, H b, H c) { return H(middle_real(float(a), float(b), float(c))); });
    t["v_fma_f16"] = t["v_fmaak_f16"] = alike3<H>([](H a, H b, H c) { return fused(a, b, c); });
    t["v_fmamk_f16"] = alike3<H>([](H a, H k, H c) { return fused(a, k, c); });
    t["v_mad_f16"] = t["v_mad_legacy_f16"] = t["v_madak_f16"] = t["v_madmk_f16"] = alike3<H>([](H a, H b, H c) { return H(H(a * b) + c); });
    t["v_fmac_f16"] = added<H, H>([](H a, H b, H c) { return fused(a, b, c); });
    t["v_mac_f16"] = added<H, H>([](H a, H b, H c) { return H(H(a * b) + c); });
    t["v_exp_f16"] = alike1<H>([](H a) { return H(std::exp2(double(a))); });
    t["v_log_f16"] = alike1<H>([](H a) { return H(std::log2(double(a))); });
    t["v_rcp_f16"] = alike1<H>([](H a) { return H(1 / double(a)); });
    t["v_rsq_f16"] = alike1<H>([](H a) { return H(1 / std::sqrt(double(a))); });
    t["v_sqrt_f16"] = alike1<H>([](H a) { return H(std::sqrt(double(a))); });
    t["v_sin_f16"] = alike1<H>([](H a) { return H(turns(a, false)); });
    t["v_cos_f16"] = alike1<H>([](H a) { return H(turns(a, true)); });
    t["v_floor_f16"] = alike1<H>([](H a) { return H(std::floor(float(a))); });
    t["v_ceil_f16"] = alike1<H>([](H a) { return H(std::ceil(float(a))); });
    t["v_trunc_f16"] = alike1<H>([](H a) { return H(std::trunc(float(a))); });
    t["v_rndne_f16"] = alike1<H>([](H a) { return H(std::rint(float(a))); });
    t["v_fract_f16"] = alike1<H>([](H a) { return H(least_real(float(a) - std::floor(float(a)), 0.99951171875f)); });
    t["v_ldexp_f16"] = two<H, H, i16>([](H a, i16 b) { return H(std::ldexp(double(a), b)); });
    t["v_frexp_mant_f16"] = alike1<H>([](H a) { return H(mantissa(float(a))); });
    t["v_frexp_exp_i16_f16"] = one<i16, H>([](H a) { return i16(exponent(float(a))); });
    t["v_cvt_f16_f32"] = one<H, float>([](float a) { return H(a); });
    t["v_cvt_f32_f16"] = one<float, H>([](H a) { return float(a); });
    t["v_cvt_f16_u16"] = one<H, u16>([](u16 a) { return H(float(a)); });
    t["v_cvt_f16_i16"] = one<H, i16>([](i16 a) { return H(float(a)); });
    t["v_cvt_u16_f16"] = one<u16, H>([](H a) { return whole<u16>(float(a)); });
    t["v_cvt_i16_f16"] = one<i16, H>([](H a) { return whole<i16>(float(a)); });
    t["v_cvt_pkrtz_f16_f32"] = packed<float>([](float a) { return towards_zero(a); });
    t["v_pk_add_f16"] = pairs2<H>([](H a, H b, H) { return H(a + b); });
    t["v_pk_mul_f16"] = pairs2<H>([](H a, H b, H) { return H(a * b); });
    t["v_pk_min_f16"] = pairs2<H>([](H a, H b, H) { return H(least_real(float(a), float(b))); });
    t["v_pk_max_f16"] = pairs2<H>([](H a, H b, H) { return H(most_real(float(a), float(b))); });
    t["v_pk_fma_f16"] = pairs3<H>([](H a, H b, H c) { return fused(a, b, c); });
    t["v_pk_fmac_f16"] = pairs_added<H>([](H a, H b, H c) { return fused(a, b, c); });
    t["v_pk_add_f32"] = pairs2<float>([](float a, float b, float) { return a + b; });
    t["v_pk_mul_f32"] = pairs2<float>([](float a, float b, float) { return a * b; });
    t["v_pk_fma_f32"] = pairs3<float>([](float a, float b, float c) { return __builtin_fmaf(a, b, c); });
    t["v_pk_mov_b32"] = pair_of_words;
    t["v_fma_mix_f32"] = mix<0>, t["v_fma_mixlo_f16"] = mix<1>, t["v_fma_mixhi_f16"] = mix<2>;
    t["v_mad_mix_f32"] = mix<0>, t["v_mad_mixlo_f16"] = mix<1>, t["v_mad_mixhi_f16"] = mix<2>;
}

}  // namespace waves
