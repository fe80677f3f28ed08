// Vector instructions that give or take one bit for each lane, that divide, or that hand values from lane to lane.
#pragma once
#include "emulated_words.h"

namespace waves {

// --- comparisons ----------------------------------------------------------------------------------------------------

template <class F, class T> void compare(Wave &w, const Instruction &i) {
    Lanes<T> x, y;
    Lanes<u32> r;
    const T *a = source(w, i, 1, x), *b = source(w, i, 2, y);
    for (int l = 0; l < LANES; l++) r.at[l] = F()(a[l], b[l]);
    u64 found = 0;
    for (int l = 0; l < LANES; l++) found |= u64(r.at[l]) << l;
    found &= w.exec;
    if (i.operands[0].kind != NOTHING) set_mask(w, i.operands[0], found);
    if (i.extra & NARROWS) set_exec(w, found);
}

template <class T, class F> void add_comparison(Table &t, const char *how, const char *type, F) {
    t[std::string("v_cmp_") + how + "_" + type] = compare<F, T>;
}

template <class T> void add_comparisons(Table &t, const char *type) {
    add_comparison<T>(t, "lt", type, [](T a, T b) { return a < b; });
    add_comparison<T>(t, "eq", type, [](T a, T b) { return a == b; });
    add_comparison<T>(t, "le", type, [](T a, T b) { return a <= b; });
    add_comparison<T>(t, "gt", type, [](T a, T b) { return a > b; });
    add_comparison<T>(t, "ge", type, [](T a, T b) { return a >= b; });
    if constexpr (real<T>) {
        add_comparison<T>(t, "lg", type, [](T a, T b) { return a < b || a > b; });
        add_comparison<T>(t, "o", type, [](T a, T b) { return a == a && b == b; });
        add_comparison<T>(t, "u", type, [](T a, T b) { return a != a || b != b; });
        add_comparison<T>(t, "nge", type, [](T a, T b) { return !(a >= b); });
        add_comparison<T>(t, "nlg", type, [](T a, T b) { return !(a < b || a > b); });
        add_comparison<T>(t, "ngt", type, [](T a, T b) { return !(a > b); });
        add_comparison<T>(t, "nle", type, [](T a, T b) { return !(a <= b); });
        add_comparison<T>(t, "neq", type, [](T a, T b) { return !(a == b); });
        add_comparison<T>(t, "nlt", type, [](T a, T b) { return !(a < b); });
    } else {
        add_comparison<T>(t, "ne", type, [](T a, T b) { return a != b; });
    }
}

template <class T> inline u32 kind_of(T x) {  // the bit of a number's class
    const bool minus = std::signbit(static_cast<double>(x));
    switch (std::fpclassify(static_cast<double>(x))) {
        case FP_NAN: return 2;
        case FP_INFINITE: return minus ? 4 : 512;
        case FP_ZERO: return minus ? 32 : 64;
        default: break;
    }
    const T small = sizeof(T) == 2 ? T(6.103515625e-05) : sizeof(T) == 4 ? T(1.17549435e-38f) : T(2.2250738585072014e-308);
    const bool tiny = (minus ? -x : x) < small;
    return minus ? (tiny ? 16 : 8) : (tiny ? 128 : 256);
}

template <class T> void classify(Wave &w, const Instruction &i) {
    Lanes<T> x;
    Lanes<u32> y;
    const T *a = source(w, i, 1, x);
    const u32 *b = source(w, i, 2, y);
    u64 found = 0;
    for (int l = 0; l < LANES; l++) {
        const u32 wanted = b[l] & 3 ? b[l] | 2 : b[l];  // signalling NaNs count as quiet ones
        found |= u64((kind_of(a[l]) & wanted) != 0) << l;
    }
    found &= w.exec;
    if (i.operands[0].kind != NOTHING) set_mask(w, i.operands[0], found);
    if (i.extra & NARROWS) set_exec(w, found);
}

// --- carries and choices ----------------------------------------------------------------------------------------------

template <class F, bool carries> void carrying(Wave &w, const Instruction &i) {  // result, carry, a, b, carry in
    Lanes<u32> x, y, r;
    const u32 *a = source(w, i, 2, x), *b = source(w, i, 3, y);
    const u64 before = carries ? mask(w, i.operands[4]) : 0;
    u64 after = 0;
    for (int l = 0; l < LANES; l++) {
        const u64 sum = F()(a[l], b[l], before >> l & 1);
        r.at[l] = static_cast<u32>(sum);
        after |= u64(sum >> 32 != 0) << l;
    }
    const Operand &to = i.operands[1];
    put(w, i, r.at);
    set_mask(w, to, after & w.exec);
}
template <bool carries, class F> Handler carry(F) { return carrying<F, carries>; }

template <class T> void choose(Wave &w, const Instruction &i) {
    Lanes<T> x, y, r;
    const T *a = source(w, i, 1, x), *b = source(w, i, 2, y);
    const u64 which = i.count > 3 ? mask(w, i.operands[3]) : vcc(w);
    for (int l = 0; l < LANES; l++) r.at[l] = which >> l & 1 ? b[l] : a[l];
    put(w, i, r.at);
}

template <class T> void long_mad(Wave &w, const Instruction &i) {  // 64 bits, carry, a, b, c
    Lanes<T> x, y;
    Lanes<u64> z, r;
    const T *a = source(w, i, 2, x), *b = source(w, i, 3, y);
    const u64 *c = source(w, i, 4, z);
    u64 carry = 0;
    for (int l = 0; l < LANES; l++) {
        const u64 product = std::is_signed_v<T> ? u64(i64(a[l]) * i64(b[l])) : u64(u32(a[l])) * u64(u32(b[l]));
        r.at[l] = product + c[l];
        carry |= u64(r.at[l] < product) << l;
    }
    put(w, i, r.at);
    set_mask(w, i.operands[1], carry & w.exec);
}

// --- division: the steps by which LLVM divides, as AMD's instruction sets describe them ------------------------------------

template <class T> struct Format;
template <> struct Format<float> { using Bits = u32; static constexpr int fraction = 23, high = 255, far = 96, scale = 64, vanishes = -150; };
template <> struct Format<double> { using Bits = u64; static constexpr int fraction = 52, high = 2047, far = 768, scale = 128, vanishes = -1075; };
template <class T> inline int power(T x) {
    return static_cast<int>(bits<typename Format<T>::Bits>(x) >> Format<T>::fraction & Format<T>::high);
}
template <class T> inline bool denormal(T x) { return x != 0 && power(x) == 0; }

template <class T> void div_scale(Wave &w, const Instruction &i) {  // result, mask, either, denominator, numerator
    using Of = Format<T>;
    Lanes<T> x, y, z, r;
    const T *a = source(w, i, 2, x), *d = source(w, i, 3, y), *n = source(w, i, 4, z);
    u64 scaled = 0;
    for (int l = 0; l < LANES; l++) {
        const T up = std::ldexp(a[l], Of::scale), down = std::ldexp(a[l], -Of::scale);
        T result = a[l];
        bool flag = false;
        if (n[l] == 0 || d[l] == 0) result = std::numeric_limits<T>::quiet_NaN();
        else if (power(n[l]) - power(d[l]) >= Of::far) flag = true, result = a[l] == d[l] ? up : a[l];
        else if (denormal(d[l])) result = up;
        else if (denormal(1 / d[l]) && denormal(n[l] / d[l])) flag = true, result = a[l] == d[l] ? down : a[l];
        else if (denormal(1 / d[l])) result = down;
        else if (denormal(n[l] / d[l])) flag = true, result = a[l] == n[l] ? up : a[l];
        else if (power(n[l]) <= Of::fraction) result = up;
        r.at[l] = result;
        scaled |= u64(flag) << l;
    }
    put(w, i, r.at);
    set_mask(w, i.operands[1], scaled & w.exec);
}

template <class T> void div_fmas(Wave &w, const Instruction &i) {
    Lanes<T> x, y, z, r;
    const T *a = source(w, i, 1, x), *b = source(w, i, 2, y), *c = source(w, i, 3, z);
    const u64 scaled = vcc(w);
    for (int l = 0; l < LANES; l++) {
        const T sum = std::fma(a[l], b[l], c[l]);
        const int by = power(c[l]) > Format<T>::high / 2 ? Format<T>::scale : -Format<T>::scale;
        r.at[l] = scaled >> l & 1 ? std::ldexp(sum, by) : sum;
    }
    put(w, i, r.at);
}

template <class T> inline T div_fixed(T quotient, T d, T n) {
    const T sign = std::copysign(T(1), d) * std::copysign(T(1), n), infinity = std::numeric_limits<T>::infinity();
    if (n != n) return n;
    if (d != d) return d;
    if ((d == 0 && n == 0) || (std::isinf(d) && std::isinf(n))) return -std::numeric_limits<T>::quiet_NaN();
    if (d == 0 || std::isinf(n)) return sign * infinity;
    if (std::isinf(d) || n == 0 || power(n) - power(d) < Format<T>::vanishes) return sign * T(0);
    return quotient != quotient ? sign * infinity : std::copysign(quotient, sign);  // the steps before exceed the type's range
}

// --- between lanes ----------------------------------------------------------------------------------------------------

inline void read_first(Wave &w, const Instruction &i) {
    Lanes<u32> x;
    const u32 *a = source(w, i, 1, x);
    set_scalar32(w, i.operands[0], a[w.exec ? __builtin_ctzll(w.exec) : 0]);
}

inline void read_lane(Wave &w, const Instruction &i) {
    Lanes<u32> x;
    const u32 *a = source(w, i, 1, x);
    set_scalar32(w, i.operands[0], a[scalar32(w, i.operands[2]) & (w.machine->lanes - 1)]);
}

inline void write_lane(Wave &w, const Instruction &i) {
    w.v[i.operands[0].index][scalar32(w, i.operands[2]) & (w.machine->lanes - 1)] = scalar32(w, i.operands[1]);
}

template <bool upper> void count_below(Wave &w, const Instruction &i) {  // bits of a mask below the lane's own
    Lanes<u32> x, y, r;
    const u32 *a = source(w, i, 1, x), *b = source(w, i, 2, y);
    for (int l = 0; l < LANES; l++) {
        const u64 below = (u64(1) << l) - 1;
        r.at[l] = b[l] + u32(__builtin_popcount(a[l] & static_cast<u32>(upper ? below >> 32 : below)));
    }
    put(w, i, r.at);
}

template <bool rows> void permlane_x(Wave &w, const Instruction &i) {  // from the other row of 16, at a place that two scalars say
    Lanes<u32> x, r;
    const u32 *a = source(w, i, 1, x);
    const u64 places = scalar32(w, i.operands[2]) | u64(scalar32(w, i.operands[3])) << 32;
    for (int l = 0; l < LANES; l++) {
        const int at = static_cast<int>(places >> 4 * (l & 15) & 15), from = ((rows ? l ^ 16 : l) & ~15) | at;
        r.at[l] = i.inactive || (w.exec >> from & 1) ? a[from] : i.bound ? 0 : w.v[i.operands[0].index][l];
    }
    put(w, i, r.at);
}

inline void add_masks(Table &t) {
    add_comparisons<u32>(t, "u32"), add_comparisons<i32>(t, "i32"), add_comparisons<u64>(t, "u64"), add_comparisons<i64>(t, "i64");
    add_comparisons<u16>(t, "u16"), add_comparisons<i16>(t, "i16");
    add_comparisons<float>(t, "f32"), add_comparisons<double>(t, "f64"), add_comparisons<half>(t, "f16");
    t["v_cmp_class_f32"] = classify<float>, t["v_cmp_class_f64"] = classify<double>, t["v_cmp_class_f16"] = classify<half>;
    t["v_add_co_u32"] = carry<false>([](u64 a, u64 b, u64 c) { return a + b + c; });
    t["v_addc_co_u32"] = carry<true>([](u64 a, u64 b, u64 c) { return a + b + c; });
    t["v_sub_co_u32"] = carry<false>([](u64 a, u64 b, u64 c) { return a - b - c; });
    t["v_subb_co_u32"] = carry<true>([](u64 a, u64 b, u64 c) { return a - b - c; });
    t["v_subrev_co_u32"] = carry<false>([](u64 a, u64 b, u64 c) { return b - a - c; });
    t["v_subbrev_co_u32"] = carry<true>([](u64 a, u64 b, u64 c) { return b - a - c; });
    t["v_cndmask_b32"] = choose<float>, t["v_cndmask_b16"] = choose<u16>;
    t["v_mad_u64_u32"] = long_mad<u32>, t["v_mad_i64_i32"] = long_mad<i32>;
    t["v_div_scale_f32"] = div_scale<float>, t["v_div_scale_f64"] = div_scale<double>;
    t["v_div_fmas_f32"] = div_fmas<float>, t["v_div_fmas_f64"] = div_fmas<double>;
    t["v_div_fixup_f32"] = alike3<float>([](float q, float d, float n) { return div_fixed(q, d, n); });
    t["v_div_fixup_f64"] = alike3<double>([](double q, double d, double n) { return div_fixed(q, d, n); });
    t["v_div_fixup_f16"] = t["v_div_fixup_legacy_f16"] = alike3<half>(
        [](half q, half d, half n) { return half(div_fixed(float(q), float(d), float(n))); });
    t["v_readfirstlane_b32"] = read_first, t["v_readlane_b32"] = read_lane, t["v_writelane_b32"] = write_lane;
    t["v_mbcnt_lo_u32_b32"] = count_below<false>, t["v_mbcnt_hi_u32_b32"] = count_below<true>;
    t["v_permlane16_b32"] = permlane_x<false>, t["v_permlanex16_b32"] = permlane_x<true>;
}

}  // namespace waves
