// Scalar instructions: one value for a wave, and its flow.
#pragma once
#include "emulated_operands.h"

namespace waves {

template <class F, class T> inline T scalar_of(Wave &w, const Operand &o) {
    if constexpr (sizeof(T) == 8) return bits<T>(scalar64(w, o));
    else return bits<T>(scalar32(w, o));
}
template <class T> inline void set_scalar(Wave &w, const Operand &o, T value) {
    if constexpr (sizeof(T) == 8) set_scalar64(w, o, bits<u64>(value));
    else set_scalar32(w, o, bits<u32>(value));
}

// The functor gives the result and sets the flag as it wants.
template <class F, class R, class A> void scalar_unary(Wave &w, const Instruction &i) {
    set_scalar<R>(w, i.operands[0], F()(scalar_of<F, A>(w, i.operands[1]), w.scc));
}
template <class F, class R, class A, class B> void scalar_binary(Wave &w, const Instruction &i) {
    const A a = scalar_of<F, A>(w, i.operands[1]);
    const B b = scalar_of<F, B>(w, i.operands[2]);
    set_scalar<R>(w, i.operands[0], F()(a, b, w.scc));
}
template <class F, class T> void scalar_onto(Wave &w, const Instruction &i) {  // the first operand is source and result
    const T a = scalar_of<F, T>(w, i.operands[0]), b = scalar_of<F, T>(w, i.operands[1]);
    set_scalar<T>(w, i.operands[0], F()(a, b, w.scc));
}
template <class F, class T> void scalar_compare(Wave &w, const Instruction &i) {
    w.scc = F()(scalar_of<F, T>(w, i.operands[0]), scalar_of<F, T>(w, i.operands[1]));
}
template <class T, class F> Handler s1(F) { return scalar_unary<F, T, T>; }
template <class T, class F> Handler s2(F) { return scalar_binary<F, T, T, T>; }
template <class T, class B, class F> Handler shifted(F) { return scalar_binary<F, T, T, B>; }
template <class T, class F> Handler s_onto(F) { return scalar_onto<F, T>; }
template <class T, class F> Handler s_compare(F) { return scalar_compare<F, T>; }

// A mask of lanes is combined with the lanes that are on, which are kept.
template <class F, bool kept> void save_exec(Wave &w, const Instruction &i) {
    const u64 before = w.exec, given = mask(w, i.operands[1]), all = w.machine->lanes == 32 ? 0xffffffffu : ~u64(0);
    const u64 after = F()(given, before) & all;
    if (kept) set_mask(w, i.operands[0], before);
    set_exec(w, after);
    if (!kept) set_mask(w, i.operands[0], after);
    w.scc = after != 0;
}

inline u64 quads(u64 x) {
    u64 r = 0;
    for (int k = 0; k < 64; k += 4) r |= (x >> k & 15) ? u64(15) << k : 0;
    return r;
}

template <class T> void add_logic(Table &t, const std::string &type) {
    t["s_mov_" + type] = s1<T>([](T a, bool &) { return a; });
    t["s_cmov_" + type] = [](Wave &w, const Instruction &i) {
        if (w.scc) set_scalar<T>(w, i.operands[0], scalar_of<void, T>(w, i.operands[1]));
    };
    t["s_not_" + type] = s1<T>([](T a, bool &c) { return c = T(~a) != 0, T(~a); });
    t["s_wqm_" + type] = s1<T>([](T a, bool &c) { const T r = T(quads(a)); return c = r != 0, r; });
    t["s_brev_" + type] = s1<T>([](T a, bool &) {
        T r = 0;
        for (size_t k = 0; k < 8 * sizeof(T); k++) r |= (a >> k & 1) << (8 * sizeof(T) - 1 - k);
        return r;
    });
    t["s_and_" + type] = s2<T>([](T a, T b, bool &c) { const T r = a & b; return c = r != 0, r; });
    t["s_or_" + type] = s2<T>([](T a, T b, bool &c) { const T r = a | b; return c = r != 0, r; });
    t["s_xor_" + type] = s2<T>([](T a, T b, bool &c) { const T r = a ^ b; return c = r != 0, r; });
    t["s_andn2_" + type] = t["s_and_not1_" + type] = s2<T>([](T a, T b, bool &c) { const T r = a & ~b; return c = r != 0, r; });
    t["s_orn2_" + type] = t["s_or_not1_" + type] = s2<T>([](T a, T b, bool &c) { const T r = a | ~b; return c = r != 0, r; });
    t["s_nand_" + type] = s2<T>([](T a, T b, bool &c) { const T r = ~(a & b); return c = r != 0, r; });
    t["s_nor_" + type] = s2<T>([](T a, T b, bool &c) { const T r = ~(a | b); return c = r != 0, r; });
    t["s_xnor_" + type] = s2<T>([](T a, T b, bool &c) { const T r = ~(a ^ b); return c = r != 0, r; });
    constexpr u32 last = 8 * sizeof(T) - 1;
    t["s_lshl_" + type] = shifted<T, u32>([](T a, u32 b, bool &c) { const T r = a << (b & last); return c = r != 0, r; });
    t["s_lshr_" + type] = shifted<T, u32>([](T a, u32 b, bool &c) { const T r = a >> (b & last); return c = r != 0, r; });
    t["s_bfm_" + type] = scalar_binary<decltype([](u32 a, u32 b, bool &) { return T(((T(1) << (a & last)) - 1) << (b & last)); }), T, u32, u32>;
    t["s_cselect_" + type] = s2<T>([](T a, T b, bool &c) { return c ? a : b; });
    t["s_and_saveexec_" + type] = save_exec<decltype([](u64 a, u64 e) { return a & e; }), true>;
    t["s_or_saveexec_" + type] = save_exec<decltype([](u64 a, u64 e) { return a | e; }), true>;
    t["s_xor_saveexec_" + type] = save_exec<decltype([](u64 a, u64 e) { return a ^ e; }), true>;
    t["s_andn2_saveexec_" + type] = t["s_and_not1_saveexec_" + type] = save_exec<decltype([](u64 a, u64 e) { return a & ~e; }), true>;
    t["s_orn2_saveexec_" + type] = t["s_or_not1_saveexec_" + type] = save_exec<decltype([](u64 a, u64 e) { return a | ~e; }), true>;
    t["s_andn1_saveexec_" + type] = t["s_and_not0_saveexec_" + type] = save_exec<decltype([](u64 a, u64 e) { return ~a & e; }), true>;
    t["s_andn2_wrexec_" + type] = t["s_and_not1_wrexec_" + type] = save_exec<decltype([](u64 a, u64 e) { return a & ~e; }), false>;
    t["s_andn1_wrexec_" + type] = t["s_and_not0_wrexec_" + type] = save_exec<decltype([](u64 a, u64 e) { return ~a & e; }), false>;
}

template <class T> void add_ordering(Table &t, const std::string &type) {
    for (const std::string prefix : {"s_cmp_", "s_cmpk_"}) {
        t[prefix + "eq_" + type] = s_compare<T>([](T a, T b) { return a == b; });
        t[prefix + "lg_" + type] = s_compare<T>([](T a, T b) { return a != b; });
        t[prefix + "gt_" + type] = s_compare<T>([](T a, T b) { return a > b; });
        t[prefix + "ge_" + type] = s_compare<T>([](T a, T b) { return a >= b; });
        t[prefix + "lt_" + type] = s_compare<T>([](T a, T b) { return a < b; });
        t[prefix + "le_" + type] = s_compare<T>([](T a, T b) { return a <= b; });
    }
    t["s_min_" + type] = s2<T>([](T a, T b, bool &c) { return c = a < b, a < b ? a : b; });
    t["s_max_" + type] = s2<T>([](T a, T b, bool &c) { return c = a > b, a > b ? a : b; });
}

inline u64 bit_field(u64 x, u32 how, int all, bool sign) {
    const int at = how & (all - 1), size = std::min<int>(how >> 16 & 127, all);
    if (size == 0) return 0;
    const u64 raw = x >> at & (size == 64 ? ~u64(0) : (u64(1) << size) - 1);
    const bool minus = sign && at + size <= all && (raw >> (size - 1) & 1);
    return minus && size < 64 ? raw | ~u64(0) << size : raw;
}

inline void add_arithmetic(Table &t) {
    t["s_movk_i32"] = s1<u32>([](u32 a, bool &) { return a; });
    t["s_cmovk_i32"] = [](Wave &w, const Instruction &i) { if (w.scc) set_scalar32(w, i.operands[0], scalar32(w, i.operands[1])); };
    t["s_add_u32"] = s2<u32>([](u32 a, u32 b, bool &c) { return c = (u64(a) + b) >> 32, a + b; });
    t["s_addc_u32"] = s2<u32>([](u32 a, u32 b, bool &c) { const u64 r = u64(a) + b + c; return c = r >> 32, u32(r); });
    t["s_sub_u32"] = s2<u32>([](u32 a, u32 b, bool &c) { return c = b > a, a - b; });
    t["s_subb_u32"] = s2<u32>([](u32 a, u32 b, bool &c) { const u64 r = u64(a) - b - c; return c = r >> 32 != 0, u32(r); });
    t["s_add_i32"] = s2<i32>([](i32 a, i32 b, bool &c) { i32 r; return c = __builtin_add_overflow(a, b, &r), r; });
    t["s_sub_i32"] = s2<i32>([](i32 a, i32 b, bool &c) { i32 r; return c = __builtin_sub_overflow(a, b, &r), r; });
    t["s_addk_i32"] = s_onto<i32>([](i32 a, i32 b, bool &c) { i32 r; return c = __builtin_add_overflow(a, b, &r), r; });
    t["s_mulk_i32"] = s_onto<u32>([](u32 a, u32 b, bool &) { return a * b; });
    t["s_mul_i32"] = s2<u32>([](u32 a, u32 b, bool &) { return a * b; });
    t["s_mul_hi_u32"] = s2<u32>([](u32 a, u32 b, bool &) { return u32(u64(a) * b >> 32); });
    t["s_mul_hi_i32"] = s2<i32>([](i32 a, i32 b, bool &) { return i32(i64(a) * b >> 32); });
    t["s_ashr_i32"] = s2<i32>([](i32 a, i32 b, bool &c) { const i32 r = a >> (b & 31); return c = r != 0, r; });
    t["s_ashr_i64"] = shifted<i64, u32>([](i64 a, u32 b, bool &c) { const i64 r = a >> (b & 63); return c = r != 0, r; });
    t["s_lshl1_add_u32"] = s2<u32>([](u32 a, u32 b, bool &c) { const u64 r = (u64(a) << 1) + b; return c = r >> 32 != 0, u32(r); });
    t["s_lshl2_add_u32"] = s2<u32>([](u32 a, u32 b, bool &c) { const u64 r = (u64(a) << 2) + b; return c = r >> 32 != 0, u32(r); });
    t["s_lshl3_add_u32"] = s2<u32>([](u32 a, u32 b, bool &c) { const u64 r = (u64(a) << 3) + b; return c = r >> 32 != 0, u32(r); });
    t["s_lshl4_add_u32"] = s2<u32>([](u32 a, u32 b, bool &c) { const u64 r = (u64(a) << 4) + b; return c = r >> 32 != 0, u32(r); });
    t["s_bfe_u32"] = s2<u32>([](u32 a, u32 b, bool &c) { const u32 r = u32(bit_field(a, b, 32, false)); return c = r != 0, r; });
    t["s_bfe_i32"] = s2<u32>([](u32 a, u32 b, bool &c) { const u32 r = u32(bit_field(a, b, 32, true)); return c = r != 0, r; });
    t["s_bfe_u64"] = shifted<u64, u32>([](u64 a, u32 b, bool &c) { const u64 r = bit_field(a, b, 64, false); return c = r != 0, r; });
    t["s_bfe_i64"] = shifted<u64, u32>([](u64 a, u32 b, bool &c) { const u64 r = bit_field(a, b, 64, true); return c = r != 0, r; });
    t["s_sext_i32_i8"] = s1<u32>([](u32 a, bool &) { return u32(i32(int8_t(a))); });
    t["s_sext_i32_i16"] = s1<u32>([](u32 a, bool &) { return u32(i32(i16(a))); });
    t["s_abs_i32"] = s1<u32>([](u32 a, bool &c) { return c = a != 0, i32(a) < 0 ? 0 - a : a; });
    t["s_absdiff_i32"] = s2<u32>([](u32 a, u32 b, bool &c) { const u32 d = i32(a) < i32(b) ? b - a : a - b; return c = d != 0, d; });
    t["s_bcnt1_i32_b32"] = s1<u32>([](u32 a, bool &c) { const u32 r = u32(__builtin_popcount(a)); return c = r != 0, r; });
    t["s_bcnt1_i32_b64"] = scalar_unary<decltype([](u64 a, bool &c) { const u32 r = u32(__builtin_popcountll(a)); return c = r != 0, r; }), u32, u64>;
    t["s_ff1_i32_b32"] = t["s_ctz_i32_b32"] = s1<u32>([](u32 a, bool &) { return a ? u32(__builtin_ctz(a)) : ~0u; });
    t["s_flbit_i32_b32"] = t["s_clz_i32_u32"] = s1<u32>([](u32 a, bool &) { return a ? u32(__builtin_clz(a)) : ~0u; });
    t["s_flbit_i32"] = t["s_cls_i32"] = s1<u32>([](u32 a, bool &) { return like_sign(a); });
    t["s_bitset1_b32"] = s_onto<u32>([](u32 a, u32 b, bool &) { return a | 1u << (b & 31); });
    t["s_bitset0_b32"] = s_onto<u32>([](u32 a, u32 b, bool &) { return a & ~(1u << (b & 31)); });
    t["s_bitcmp1_b32"] = s_compare<u32>([](u32 a, u32 b) { return (a >> (b & 31) & 1) == 1; });
    t["s_bitcmp0_b32"] = s_compare<u32>([](u32 a, u32 b) { return (a >> (b & 31) & 1) == 0; });
    t["s_cmp_eq_u64"] = s_compare<u64>([](u64 a, u64 b) { return a == b; });
    t["s_cmp_lg_u64"] = s_compare<u64>([](u64 a, u64 b) { return a != b; });
    t["s_pack_ll_b32_b16"] = s2<u32>([](u32 a, u32 b, bool &) { return (a & 0xffff) | b << 16; });
    t["s_pack_lh_b32_b16"] = s2<u32>([](u32 a, u32 b, bool &) { return (a & 0xffff) | (b & 0xffff0000u); });
    t["s_pack_hl_b32_b16"] = s2<u32>([](u32 a, u32 b, bool &) { return a >> 16 | b << 16; });
    t["s_pack_hh_b32_b16"] = s2<u32>([](u32 a, u32 b, bool &) { return a >> 16 | (b & 0xffff0000u); });
}

template <class F> void branch(Wave &w, const Instruction &i) {
    if (F()(w)) w.pc = i.target;
}

inline void add_scalars(Table &t) {
    add_logic<u32>(t, "b32"), add_logic<u64>(t, "b64");
    add_ordering<u32>(t, "u32"), add_ordering<i32>(t, "i32");
    add_arithmetic(t);
    t["s_branch"] = branch<decltype([](const Wave &) { return true; })>;
    t["s_cbranch_scc0"] = branch<decltype([](const Wave &w) { return !w.scc; })>;
    t["s_cbranch_scc1"] = branch<decltype([](const Wave &w) { return w.scc; })>;
    t["s_cbranch_execz"] = branch<decltype([](const Wave &w) { return w.exec == 0; })>;
    t["s_cbranch_execnz"] = branch<decltype([](const Wave &w) { return w.exec != 0; })>;
    t["s_cbranch_vccz"] = branch<decltype([](const Wave &w) { return vcc(w) == 0; })>;
    t["s_cbranch_vccnz"] = branch<decltype([](const Wave &w) { return vcc(w) != 0; })>;
    for (const char *name : {"s_nop", "s_clause", "s_delay_alu", "s_setprio", "s_sleep", "s_inst_prefetch", "s_waitcnt_depctr", "s_sethalt",
                             "s_code_end", "s_set_inst_prefetch_distance", "s_sendmsg", "s_icache_inv", "v_nop"})
        t[name] = [](Wave &, const Instruction &) {};
    t["s_endpgm"] = [](Wave &w, const Instruction &) { w.done = true; };
    t["s_barrier"] = [](Wave &w, const Instruction &) { w.waiting = true; };
}

}  // namespace waves
