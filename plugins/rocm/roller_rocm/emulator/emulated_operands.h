// Operands: lanes of registers and constants as values of a type, with what instructions do to them on the way in and out.
#pragma once
#include "emulated_machine.h"
#include <type_traits>

namespace waves {

template <class T, class S> inline T bits(S value) {
    static_assert(sizeof(T) == sizeof(S));
    T result;
    std::memcpy(&result, &value, sizeof(T));
    return result;
}

// --- scalars --------------------------------------------------------------------------------------------------------

inline u32 scalar32(const Wave &w, const Operand &o, int word = 0) {
    switch (o.kind) {
        case SCALAR: return w.s[o.index + word];
        case INTEGER: return static_cast<u32>(word ? o.integer >> 32 : o.integer);
        case REAL: return bits<u32>(static_cast<float>(o.real));
        case NOTHING: return 0;
        default: throw Fault("an operand that is no scalar");
    }
}

inline u64 scalar64(const Wave &w, const Operand &o) {
    if (o.kind == SCALAR) return w.s[o.index] | u64(w.s[o.index + 1]) << 32;
    if (o.kind == REAL) return bits<u64>(o.real);
    return o.kind == INTEGER ? static_cast<u64>(o.integer) : 0;
}

inline void set_scalar32(Wave &w, const Operand &o, u32 value) {
    if (o.kind == NOTHING) return;
    if (o.kind != SCALAR) throw Fault("a result that is no scalar register");
    w.s[o.index] = value;
    if (o.index == EXEC) set_exec(w, (w.exec & ~u64(0xffffffff)) | value);
    if (o.index == EXEC + 1) set_exec(w, (w.exec & 0xffffffff) | u64(value) << 32);
}

inline void set_scalar64(Wave &w, const Operand &o, u64 value) {
    if (o.kind == NOTHING) return;
    if (o.kind != SCALAR) throw Fault("a result that is no scalar register");
    w.s[o.index] = static_cast<u32>(value), w.s[o.index + 1] = static_cast<u32>(value >> 32);
    if (o.index == EXEC) set_exec(w, value);
}

// One bit for each lane: a pair of registers, or one where a wave has 32 lanes.
inline u64 mask(const Wave &w, const Operand &o) { return w.machine->lanes == 32 ? scalar32(w, o) : scalar64(w, o); }

inline void set_mask(Wave &w, const Operand &o, u64 value) {
    if (w.machine->lanes == 32) set_scalar32(w, o, static_cast<u32>(value));
    else set_scalar64(w, o, value);
}

inline u64 vcc(const Wave &w) { return w.machine->lanes == 32 ? w.s[VCC] : w.s[VCC] | u64(w.s[VCC + 1]) << 32; }

// --- lanes ----------------------------------------------------------------------------------------------------------

// The lane from which a lane reads under data-parallel primitives, -1: from none.
inline int lane_of(const Instruction &i, int l) {
    const int row = l & ~15, at = l & 15, by = i.dpp_argument;
    switch (i.dpp) {
        case QUAD_PERM: return (l & ~3) | (by >> 2 * (l & 3) & 3);
        case ROW_SHL: return at + by < 16 ? l + by : -1;
        case ROW_SHR: return at - by >= 0 ? l - by : -1;
        case ROW_ROR: return row | ((at - by) & 15);
        case WAVE_SHL: return l + 1 < LANES ? l + 1 : -1;
        case WAVE_ROL: return (l + 1) & 63;
        case WAVE_SHR: return l - 1;
        case WAVE_ROR: return (l - 1) & 63;
        case ROW_MIRROR: return row | (15 - at);
        case ROW_HALF_MIRROR: return (l & ~7) | (7 - (l & 7));
        case ROW_BCAST15: return row ? row - 1 : -1;
        case ROW_BCAST31: return l >= 32 ? 31 : -1;
        case ROW_SHARE: return row | by;
        case ROW_XMASK: return row | (at ^ by);
        case DPP8: return (l & ~7) | (by >> 3 * (l & 7) & 7);
        default: return l;
    }
}

// The lanes that write: those that are on, less those that data-parallel primitives leave as they are.
inline u64 writers(const Wave &w, const Instruction &i) {
    if (!i.dpp) return w.exec;
    u64 found = 0;
    for (int l = 0; l < LANES; l++) {
        const int from = lane_of(i, l);
        const bool valid = from >= 0 && (i.inactive || (w.exec >> from & 1));
        const bool chosen = (i.row_mask >> (l / 16) & 1) && (i.bank_mask >> (l / 4 % 4) & 1);
        if ((w.exec >> l & 1) && chosen && (valid || i.bound)) found |= u64(1) << l;
    }
    return found;
}

inline u32 selected(u32 word, const Operand &o) {
    const bool sign = o.mods & SIGNED;
    if (o.select < 4) {
        const u32 byte = word >> 8 * o.select & 255;
        return sign ? static_cast<u32>(static_cast<i32>(static_cast<int8_t>(byte))) : byte;
    }
    if (o.select == 6) return word;
    const u32 part = word >> 16 * (o.select - 4) & 0xffff;
    return sign ? static_cast<u32>(static_cast<i32>(static_cast<i16>(part))) : part;
}

// One word of an operand in every lane, before a type says what it means.
__attribute__((noinline)) inline void words(const Wave &w, const Instruction &i, int n, int word, u32 *to) {
    const Operand &o = i.operands[n];
    if (o.kind != VECTOR) {
        const u32 value = scalar32(w, o, word);
        for (int l = 0; l < LANES; l++) to[l] = value;
    } else if (i.dpp && n == 1) {
        for (int l = 0; l < LANES; l++) {
            const int from = lane_of(i, l);
            const bool valid = from >= 0 && (i.inactive || (w.exec >> from & 1));
            to[l] = valid ? w.v[o.index + word][from] : 0;
        }
    } else {
        std::memcpy(to, w.v[o.index + word], sizeof(u32) * LANES);
    }
    if (o.select != 6)
        for (int l = 0; l < LANES; l++) to[l] = selected(to[l], o);
}

template <class T> constexpr bool real = std::is_floating_point_v<T> || std::is_same_v<T, half>;

template <class T> inline T constant(const Operand &o, bool high) {
    if constexpr (sizeof(T) == 8) {
        if (o.kind == REAL) return bits<T>(o.real);
        const bool spelled = o.integer < -16 || o.integer > 64;  // a literal is the upper half of a double
        if (real<T> && spelled) return bits<T>(u64(static_cast<u32>(o.integer)) << 32);
        return bits<T>(static_cast<u64>(o.integer));
    } else if constexpr (sizeof(T) == 2) {
        if (o.kind == REAL) return high ? T(0) : bits<T>(static_cast<half>(o.real));
        return bits<T>(static_cast<u16>(high ? o.integer >> 16 : o.integer));
    } else {
        if (o.kind == REAL) return bits<T>(static_cast<float>(o.real));
        return bits<T>(static_cast<u32>(o.integer));
    }
}

template <class T> inline T signs(T value, int mods) {
    using U = std::conditional_t<sizeof(T) == 8, u64, std::conditional_t<sizeof(T) == 4, u32, u16>>;
    constexpr U top = U(1) << (8 * sizeof(T) - 1);
    U raw = bits<U>(value);
    if (mods & ABS) raw &= static_cast<U>(~top);
    if (mods & NEG) raw ^= top;
    return bits<T>(raw);
}

template <class T> __attribute__((noinline)) void gather(const Wave &w, const Instruction &i, int n, T *to, bool high, bool signed_too = true) {
    const Operand &o = i.operands[n];
    if (o.kind == INTEGER || o.kind == REAL) {
        const T value = constant<T>(o, high);
        for (int l = 0; l < LANES; l++) to[l] = value;
    } else {
        Lanes<u32> low, upper;
        words(w, i, n, 0, low.at);
        if constexpr (sizeof(T) == 8) {
            words(w, i, n, 1, upper.at);
            for (int l = 0; l < LANES; l++) to[l] = bits<T>(low.at[l] | u64(upper.at[l]) << 32);
        } else if constexpr (sizeof(T) == 2) {
            for (int l = 0; l < LANES; l++) to[l] = bits<T>(static_cast<u16>(high ? low.at[l] >> 16 : low.at[l]));
        } else {
            std::memcpy(to, low.at, sizeof(low.at));
        }
    }
    if (!signed_too || !(o.mods & (NEG | ABS))) return;
    if (!real<T>) throw Fault("a sign change of an integer");
    for (int l = 0; l < LANES; l++) to[l] = signs(to[l], o.mods);
}

// An operand's values: the register itself where nothing is done to it.
template <class T> inline const T *source(const Wave &w, const Instruction &i, int n, Lanes<T> &room) {
    const Operand &o = i.operands[n];
    if constexpr (sizeof(T) == 4)
        if (o.kind == VECTOR && !o.mods && !(i.flags & SPECIAL)) return reinterpret_cast<const T *>(w.v[o.index]);
    gather<T>(w, i, n, room.at, o.mods & HIGH);
    return room.at;
}

// --- results --------------------------------------------------------------------------------------------------------

inline void put_row(Wave &w, int row, const u32 *values) {
    if (w.full) {
        std::memcpy(w.v[row], values, sizeof(w.v[row]));
        return;
    }
    for (int l = 0; l < LANES; l++) w.v[row][l] = (values[l] & w.active[l]) | (w.v[row][l] & ~w.active[l]);
}

// A row under the rules of sub-word selects and data-parallel primitives.
__attribute__((noinline)) inline void put_special(Wave &w, const Instruction &i, int row, const u32 *values) {
    const u64 on = writers(w, i);
    for (int l = 0; l < LANES; l++) {
        if (!(on >> l & 1)) continue;
        u32 value = values[l];
        const u32 before = w.v[row][l];
        if (i.dst_select < 6) {
            const int size = i.dst_select < 4 ? 8 : 16, at = i.dst_select < 4 ? 8 * i.dst_select : 16 * (i.dst_select - 4);
            const u32 part = size == 8 ? 0xff : 0xffff;
            value = (value & part) << at;
            if (i.dst_unused == 2) value |= before & ~(part << at);
            if (i.dst_unused == 1 && (value >> (at + size - 1) & 1)) value |= at + size < 32 ? ~u32(0) << (at + size) : 0;
        }
        w.v[row][l] = value;
    }
}

template <class T> inline T limited(T value, const Instruction &i) {
    if constexpr (real<T>) {
        value = static_cast<T>(i.omod == 1 ? value * T(2) : i.omod == 2 ? value * T(4) : i.omod == 3 ? value / T(2) : value);
        if (i.flags & CLAMP) value = value > T(1) ? T(1) : value > T(0) ? value : T(0);
    }
    return value;
}

template <class T> __attribute__((noinline)) void put(Wave &w, const Instruction &i, T *values, int n = 0) {
    const Operand &o = i.operands[n];
    if (o.kind != VECTOR) throw Fault("a result that is no vector register");
    if ((i.flags & CLAMP) || i.omod) {
        if (!real<T>) throw Fault("clamping of integers is not modelled");
        for (int l = 0; l < LANES; l++) values[l] = limited(values[l], i);
    }
    if constexpr (sizeof(T) == 8) {
        Lanes<u32> low, high;
        for (int l = 0; l < LANES; l++) {
            const u64 raw = bits<u64>(values[l]);
            low.at[l] = static_cast<u32>(raw), high.at[l] = static_cast<u32>(raw >> 32);
        }
        put_row(w, o.index, low.at), put_row(w, o.index + 1, high.at);
    } else if constexpr (sizeof(T) == 4) {
        const u32 *raw = reinterpret_cast<const u32 *>(values);
        if (i.flags & SPECIAL) put_special(w, i, o.index, raw);
        else put_row(w, o.index, raw);
    } else {
        Lanes<u32> both;
        for (int l = 0; l < LANES; l++) {
            const u32 value = bits<u16>(values[l]), before = w.v[o.index][l];
            if (o.mods & HIGH) both.at[l] = value << 16 | (before & 0xffff);
            else both.at[l] = i.flags & KEEPS_HIGH ? value | (before & 0xffff0000u) : value;
        }
        if (i.flags & SPECIAL) put_special(w, i, o.index, both.at);
        else put_row(w, o.index, both.at);
    }
}

// --- instructions that do the same in every lane ----------------------------------------------------------------------

template <class F, class R, class A> void unary(Wave &w, const Instruction &i) {
    Lanes<A> x;
    Lanes<R> r;
    const A *a = source(w, i, 1, x);
    for (int l = 0; l < LANES; l++) r.at[l] = F()(a[l]);
    put(w, i, r.at);
}

template <class F, class R, class A, class B> void binary(Wave &w, const Instruction &i) {
    Lanes<A> x;
    Lanes<B> y;
    Lanes<R> r;
    const A *a = source(w, i, 1, x);
    const B *b = source(w, i, 2, y);
    for (int l = 0; l < LANES; l++) r.at[l] = F()(a[l], b[l]);
    put(w, i, r.at);
}

template <class F, class R, class A, class B, class C> void ternary(Wave &w, const Instruction &i) {
    Lanes<A> x;
    Lanes<B> y;
    Lanes<C> z;
    Lanes<R> r;
    const A *a = source(w, i, 1, x);
    const B *b = source(w, i, 2, y);
    const C *c = source(w, i, 3, z);
    for (int l = 0; l < LANES; l++) r.at[l] = F()(a[l], b[l], c[l]);
    put(w, i, r.at);
}

// The same with the result's register as third operand.
template <class F, class T, class A> void onto(Wave &w, const Instruction &i) {
    Lanes<A> x, y;
    Lanes<T> z, r;
    const A *a = source(w, i, 1, x), *b = source(w, i, 2, y);
    const T *c = source(w, i, 0, z);
    for (int l = 0; l < LANES; l++) r.at[l] = F()(a[l], b[l], c[l]);
    put(w, i, r.at);
}

// Bits at the top that are as the sign, the sign itself among them; all ones where nothing differs from it.
inline u32 like_sign(u32 a) {
    const u32 differ = i32(a) < 0 ? ~a : a;
    return differ ? u32(__builtin_clz(differ)) : ~0u;
}

template <class R, class A, class F> constexpr Handler one(F) { return unary<F, R, A>; }
template <class R, class A, class B, class F> constexpr Handler two(F) { return binary<F, R, A, B>; }
template <class R, class A, class B, class C, class F> constexpr Handler three(F) { return ternary<F, R, A, B, C>; }
template <class T, class F> constexpr Handler alike1(F) { return unary<F, T, T>; }
template <class T, class F> constexpr Handler alike2(F) { return binary<F, T, T, T>; }
template <class T, class F> constexpr Handler alike3(F) { return ternary<F, T, T, T, T>; }
template <class T, class A, class F> constexpr Handler added(F) { return onto<F, T, A>; }

}  // namespace waves
