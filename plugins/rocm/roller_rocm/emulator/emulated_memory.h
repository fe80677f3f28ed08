// Memory: loads and stores that are under way until a wait covers them, local memory with its banks, scalar loads, scratch.
#pragma once
#include "emulated_operands.h"
#include <algorithm>

namespace waves {

enum Unit : i32 { NO_UNIT, GLOBAL, LOCAL, CONSTANT };

inline std::deque<Access> &queue_of(Wave &w, const Access &a) {
    if (a.unit == GLOBAL) return a.store && w.machine->separate_stores ? w.underway[2] : w.underway[0];
    return w.underway[1];
}

inline int words_of(const Instruction &i) { return std::max(1, i.width / 4); }

// --- data arrive ------------------------------------------------------------------------------------------------------

inline void arrive_in_lane(Wave &w, const Access &a, int l, const u8 *from, int first) {
    const Instruction &i = *a.of;
    const int row = i.operands[0].index + first;
    if (i.width >= 4) {
        for (int k = 0; k < i.width / 4; k++) std::memcpy(&w.v[row + k][l], from + 4 * k, 4);
        return;
    }
    u32 value = i.width == 2 ? from[0] | from[1] << 8 : from[0];
    if (i.extra & SIGN) value = i.width == 2 ? u32(i32(i16(value))) : u32(i32(int8_t(value)));
    u32 &to = w.v[row][l];
    if (i.extra & D16_LOW) to = (to & 0xffff0000u) | (value & 0xffff);
    else if (i.extra & D16_HIGH) to = (to & 0xffff) | value << 16;
    else to = value;
}

inline void leave_from_lane(const Access &a, int l, u8 *to, int first) {
    const Instruction &i = *a.of;
    if (i.width >= 4) {
        for (int k = 0; k < i.width / 4; k++) std::memcpy(to + 4 * k, &a.data[first + k].at[l], 4);
        return;
    }
    const u32 value = a.data[first].at[l] >> (i.extra & D16_HIGH ? 16 : 0);
    std::memcpy(to, &value, i.width);
}

inline void land(Wave &w, Access &a) {
    if (a.done) return;
    a.done = true;
    if (a.unit == GLOBAL && a.load && w.machine->separate_stores)
        for (Access &store : w.underway[2]) land(w, store);
    const Instruction &i = *a.of;
    if (a.unit == CONSTANT) {
        for (int k = 0; k < a.words; k++) {
            u32 value;
            std::memcpy(&value, reinterpret_cast<const u8 *>(a.address.at[0]) + 4 * k, 4);
            Operand to = i.operands[0];
            to.index += k;
            set_scalar32(w, to, value);
        }
        return;
    }
    for (int l = 0; l < LANES; l++) {
        if (!(a.exec >> l & 1)) continue;
        if (a.moved) {
            w.v[i.operands[0].index][l] = a.data[0].at[l];
            continue;
        }
        u8 *const at = reinterpret_cast<u8 *>(a.address.at[l]);
        for (int part = 0; part < (i.extra & TWO ? 2 : 1); part++) {
            u8 *const memory = at + (part ? i.offset1 - i.offset0 : 0);
            if (a.load) arrive_in_lane(w, a, l, memory, part * words_of(i));
            else leave_from_lane(a, l, memory, part * words_of(i));
        }
    }
}

inline void marked(Wave &w, const Access &a, int by) {
    if (!a.load) return;
    const Operand &to = a.of->operands[0];
    for (int k = 0; k < a.words; k++) {
        if (a.unit == CONSTANT) w.scalar_pending[to.index + k] += by;
        else w.vector_pending[to.index + k][a.unit] += by;
    }
    w.loads_underway += by;
}

inline void start(Wave &w, Access &&a) {
    std::deque<Access> &queue = queue_of(w, a);
    queue.push_back(std::move(a));
    marked(w, queue.back(), 1);
    if (!w.machine->lazy) land(w, queue.back());
}

// Until at most `left` accesses are under way. What scalar loads bring comes in any order: all of it, or nothing is certain.
inline void settle(Wave &w, std::deque<Access> &queue, int left) {
    int ordered = 0;
    for (const Access &a : queue) ordered += a.unit != CONSTANT;
    for (auto a = queue.begin(); a != queue.end();) {
        const bool over = a->unit == CONSTANT ? left == 0 : ordered > left;
        if (!over) {
            ++a;
            continue;
        }
        ordered -= a->unit != CONSTANT;
        land(w, *a);
        marked(w, *a, -1);
        a = queue.erase(a);
    }
}

inline void wait(Wave &w, const Instruction &i) {
    const int left[3] = {i.vm, i.lgkm, i.vs};
    for (int k = 0; k < 3; k++)
        if (left[k] >= 0 && !w.underway[k].empty()) settle(w, w.underway[k], left[k]);
}

// --- global memory ------------------------------------------------------------------------------------------------------

inline Access access(Wave &w, const Instruction &i, int unit) {
    Access a;
    a.of = &i, a.load = !(i.extra & WRITES), a.store = i.extra & WRITES, a.done = a.moved = false, a.unit = unit, a.exec = w.exec;
    a.words = words_of(i) * (i.extra & TWO ? 2 : 1);
    return a;
}

inline void take_data(Wave &w, const Instruction &i, Access &a, int n, int first) {
    for (int k = 0; k < words_of(i); k++) words(w, i, n, k, a.data[first + k].at);
}

inline void count_lines(Wave &w, const Instruction &i, const u64 *addresses) {
    u64 small[2 * LANES * 2], large[2 * LANES * 2];
    int n = 0, active = 0;
    const u64 line = static_cast<u64>(w.machine->line_bytes);
    for (int l = 0; l < LANES; l++) {
        if (!(w.exec >> l & 1)) continue;
        active++;
        for (const u64 byte : {addresses[l], addresses[l] + i.width - 1}) small[n] = byte / 64, large[n++] = byte / line;
    }
    std::sort(small, small + n), std::sort(large, large + n);
    count(w, i, BYTES, i64(active) * i.width);
    count(w, i, LINES_64, std::unique(small, small + n) - small);
    count(w, i, LINES, std::unique(large, large + n) - large);
}

inline void global(Wave &w, const Instruction &i) {  // a load: to, address, base; a store: address, data, base
    Access a = access(w, i, GLOBAL);
    const int from = a.store ? 0 : 1;
    Lanes<u64> at;
    Lanes<u32> low;
    const Operand &base = i.operands[2];
    if (base.kind == SCALAR) {
        words(w, i, from, 0, low.at);
        for (int l = 0; l < LANES; l++) at.at[l] = scalar64(w, base) + low.at[l] + i64(i.offset0);
    } else {
        gather<u64>(w, i, from, at.at, false);
        for (int l = 0; l < LANES; l++) at.at[l] += i64(i.offset0);
    }
    if (a.store) take_data(w, i, a, 1, 0);
    for (int l = 0; l < LANES; l++)
        if (a.exec >> l & 1) a.address.at[l] = reinterpret_cast<u64>(place(*w.machine, at.at[l], i.width, a.store));
    if (w.machine->counters) count_lines(w, i, at.at);
    start(w, std::move(a));
}

// Scratch: every lane has its own; spilled registers and arrays with varying indices live there.
inline void scratch(Wave &w, const Instruction &i) {  // a load: to, address, base; a store: address, data, base; buffers: data first
    const bool buffer = i.extra & BUFFER;
    Access a = access(w, i, GLOBAL);
    const int from = a.store && !buffer ? 0 : 1, base = buffer ? 3 : 2;
    Lanes<u32> at = {};
    if (i.operands[from].kind == VECTOR) words(w, i, from, 0, at.at);
    const u32 all = i.operands[base].kind == NOTHING ? 0 : scalar32(w, i.operands[base]);
    if (a.store) take_data(w, i, a, buffer ? 0 : 1, 0);
    for (int l = 0; l < LANES; l++) {
        if (!(a.exec >> l & 1)) continue;
        const i64 byte = i64(i32(at.at[l] + all)) + i.offset0;
        if (byte < 0 || byte + i.width > w.machine->scratch_bytes)
            throw Fault("byte " + std::to_string(byte) + " of scratch, of which there are " + std::to_string(w.machine->scratch_bytes));
        a.address.at[l] = reinterpret_cast<u64>(w.scratch.data() + size_t(l) * w.machine->scratch_bytes + byte);
    }
    start(w, std::move(a));
}

inline void scalar_load(Wave &w, const Instruction &i) {  // to, base, offset
    Access a = access(w, i, CONSTANT);
    const u64 at = scalar64(w, i.operands[1]) + (i.operands[2].kind == NOTHING ? 0 : scalar32(w, i.operands[2])) + i64(i.offset0);
    if (at % 4) throw Fault("a scalar load from " + number(at) + ", which is no multiple of 4");
    a.address.at[0] = reinterpret_cast<u64>(place(*w.machine, at, i.width, false));
    start(w, std::move(a));
}

// --- local memory -------------------------------------------------------------------------------------------------------

// Lanes whose accesses go together, by the bytes of each: 128 bytes a cycle. The order of lanes in wide reads is Composable
// Kernel's; no hardware was asked.
inline int group_of(int l, int bytes, bool load) {
    if (bytes <= 4) return l / 32;
    if (bytes <= 8) return l / 16;
    if (!load) return l / 8;
    static const int together[8] = {0, 1, 2, 3, 1, 0, 3, 2};  // lanes 20-23 go with 0-3, 16-19 with 4-7, 28-31 with 8-11, 24-27 with 12-15
    return together[l % 32 / 4] + 4 * (l / 32);
}

inline void count_banks(Wave &w, const Instruction &i, const u32 *addresses) {
    if (!w.machine->counters) return;
    for (int part = 0; part < (i.extra & TWO ? 2 : 1); part++) {
        const u32 offset = static_cast<u32>(part ? i.offset1 : i.offset0);
        for (int group = 0; group < 8; group++) {
            u32 seen[LANES * 4], banks[32] = {};
            int n = 0;
            for (int l = 0; l < LANES; l++) {
                if (!(w.exec >> l & 1) || group_of(l, i.width, !(i.extra & WRITES)) != group) continue;
                const u32 first = (addresses[l] + offset) / 4, last = (addresses[l] + offset + i.width - 1) / 4;
                for (u32 word = first; word <= last && n < LANES * 4; word++) seen[n++] = word;
            }
            if (!n) continue;
            std::sort(seen, seen + n);
            n = static_cast<int>(std::unique(seen, seen + n) - seen);
            u32 most = 0;
            for (int k = 0; k < n; k++) most = std::max(most, ++banks[seen[k] % 32]);
            count(w, i, LDS_IDEAL, 1), count(w, i, LDS_ACTUAL, most);
        }
    }
}

inline void local(Wave &w, const Instruction &i) {  // a load: to, address; a store: address, data, data
    Access a = access(w, i, LOCAL);
    const int from = a.store ? 0 : 1;
    Lanes<u32> at;
    words(w, i, from, 0, at.at);
    if (a.store) {
        take_data(w, i, a, 1, 0);
        if (i.extra & TWO) take_data(w, i, a, 2, words_of(i));
    }
    const u64 size = w.machine->lds.size();
    for (int l = 0; l < LANES; l++) {
        if (!(a.exec >> l & 1)) continue;
        for (int part = 0; part < (i.extra & TWO ? 2 : 1); part++) {
            // In 32 bits: LLVM gives places below zero where an offset brings them back. Any byte will do, for pairs, too: drivers set
            // unaligned mode, and LLVM joins loads whatever their alignment, except for gfx1250 (hasUnalignedDS2Bug).
            const u64 byte = at.at[l] + static_cast<u32>(part ? i.offset1 : i.offset0);
            if (byte + i.width > size) throw Fault("byte " + std::to_string(byte) + " of local memory, of which there are " + std::to_string(size));
        }
        a.address.at[l] = reinterpret_cast<u64>(w.machine->lds.data() + (at.at[l] + static_cast<u32>(i.offset0)));
    }
    count_banks(w, i, at.at);
    start(w, std::move(a));
}

template <bool pull> void exchange(Wave &w, const Instruction &i) {  // ds_bpermute, ds_permute: to, lane * 4, value
    Access a = access(w, i, LOCAL);
    Lanes<u32> at, value;
    words(w, i, 1, 0, at.at), words(w, i, 2, 0, value.at);
    a.moved = true;
    if (!pull) std::memset(a.data[0].at, 0, sizeof(a.data[0].at));
    for (int l = 0; l < LANES; l++) {
        if (!(w.exec >> l & 1)) continue;
        const int other = static_cast<int>((at.at[l] + static_cast<u32>(i.offset0)) / 4) & (w.machine->lanes - 1);
        if (pull) a.data[0].at[l] = w.exec >> other & 1 ? value.at[other] : 0;
        else a.data[0].at[other] = value.at[l];
    }
    start(w, std::move(a));
}

inline void swizzle(Wave &w, const Instruction &i) {  // ds_swizzle: to, value; the pattern is the offset
    Access a = access(w, i, LOCAL);
    Lanes<u32> value;
    words(w, i, 1, 0, value.at);
    a.moved = true;
    for (int l = 0; l < LANES; l++) {
        const int how = i.offset0, in = l & 31;
        const int other = how & 0x8000 ? (l & ~3) | (how >> 2 * (l & 3) & 3) : (l & ~31) | ((((in & how) | (how >> 5)) ^ (how >> 10)) & 31);
        a.data[0].at[l] = w.exec >> other & 1 ? value.at[other] : 0;
    }
    start(w, std::move(a));
}

inline void add_memory(Table &t) {
    t["global"] = global, t["scratch"] = scratch, t["s_load"] = scalar_load, t["local"] = local;
    t["ds_bpermute_b32"] = exchange<true>, t["ds_permute_b32"] = exchange<false>, t["ds_swizzle_b32"] = swizzle;
    t["s_waitcnt"] = wait;
}

}  // namespace waves
