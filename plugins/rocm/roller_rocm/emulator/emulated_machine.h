// What runs AMDGPU instructions on the CPU: instructions as `decoding.py` hands them over, waves with their registers, memory.
// It answers whether numbers are right and waits suffice. It knows nothing of time; hazards that want s_nop are not modelled.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace waves {

using u8 = uint8_t;
using u16 = uint16_t;
using i16 = int16_t;
using u32 = uint32_t;
using i32 = int32_t;
using u64 = uint64_t;
using i64 = int64_t;
using half = _Float16;

constexpr int LANES = 64;  // rows are this long for waves of 32 too, whose upper lanes are never active
constexpr int SPARE = 512;  // a row beside the 256 vector and 256 accumulation registers
constexpr int VCC = 106, EXEC = 126, SCALARS = 128;
constexpr int REGION_BITS = 40;  // every array has its own 2^40 addresses

enum Kind : i32 { ABSENT, VECTOR, SCALAR, INTEGER, REAL, NOTHING };
enum Mods : i32 { NEG = 1, ABS = 2, HIGH = 4, HIGH_OF_HIGH = 8, NEG_OF_HIGH = 16, SIGNED = 32 };
enum Flags : i32 { SPECIAL = 1, KEEPS_HIGH = 2, PAIRED = 4, CLAMP = 8 };
enum Extra : i32 { SIGN = 1, D16_LOW = 2, D16_HIGH = 4, TWO = 8, WRITES = 16, BUFFER = 32, NARROWS = 64 };
enum Counter : i32 { RUN, LDS_IDEAL, LDS_ACTUAL, BYTES, LINES_64, LINES, COUNTERS };
enum Dpp : i32 { NO_DPP, QUAD_PERM, ROW_SHL, ROW_SHR, ROW_ROR, WAVE_SHL, WAVE_ROL, WAVE_SHR, WAVE_ROR, ROW_MIRROR, ROW_HALF_MIRROR,
                 ROW_BCAST15, ROW_BCAST31, ROW_SHARE, ROW_XMASK, DPP8 };

struct Operand {
    i32 kind, index, words, mods, select, unused;
    i64 integer;
    double real;
};

struct Instruction {
    i32 opcode, count, flags, target;
    i32 vm, lgkm, vs;  // what a wait leaves outstanding, -1: as many as there are
    i32 offset0, offset1, width, extra;  // memory: bytes of an access
    i32 dpp, dpp_argument, row_mask, bank_mask, bound, inactive;
    i32 dst_select, dst_unused, omod;
    i32 shape[4];  // matrix instructions: m, n, k, type
    i32 unit;  // whose results it is: 0 none, 1 vector memory, 2 local memory, 3 scalar memory
    Operand operands[8];
};

struct Fault : std::runtime_error { using std::runtime_error::runtime_error; };

template <class T> struct Lanes { alignas(64) T at[LANES]; };

struct Region { u8 *data; u64 size; bool writable; };

struct Access {  // of memory, under way
    const Instruction *of;
    bool load, store, done, moved;  // done: data have arrived, only the wait is missing; moved: from lane to lane, not through memory
    int unit, words;  // words of registers that it fills
    u64 exec;
    Lanes<u64> address;
    Lanes<u32> data[4];
};

struct Machine;

struct Wave {
    alignas(64) u32 v[SPARE + 1][LANES];
    alignas(64) u32 active[LANES];  // all bits of lanes that are on
    u32 s[SCALARS];
    u64 exec;
    bool scc, done, waiting, full;
    int pc, number;
    std::deque<Access> underway[3];  // what vmcnt, lgkmcnt and vscnt count
    int loads_underway;  // registers on their way
    u8 vector_pending[SPARE + 1][4], scalar_pending[SCALARS];
    std::vector<u8> scratch;  // of all lanes
    Machine *machine;
};

using Handler = void (*)(Wave &, const Instruction &);

struct Machine {
    const Instruction *program;
    const Handler *handlers;
    int length, lanes;  // instructions; lanes of a wave
    bool separate_stores;  // stores count by themselves (vscnt)
    bool lazy;
    std::vector<Region> regions;
    std::vector<u8> lds;
    i64 *counters;  // of each instruction; null: nothing is counted
    int line_bytes, scratch_bytes;
    i64 steps_left;
};

inline void set_exec(Wave &w, u64 mask) {
    if (w.machine->lanes == 32) mask &= 0xffffffffu;
    w.exec = mask;
    w.s[EXEC] = static_cast<u32>(mask), w.s[EXEC + 1] = static_cast<u32>(mask >> 32);
    w.full = mask == (w.machine->lanes == 32 ? 0xffffffffu : ~u64(0)) && w.machine->lanes == LANES;
    for (int l = 0; l < LANES; l++) w.active[l] = mask >> l & 1 ? ~0u : 0;
}

inline void count(Wave &w, const Instruction &i, Counter which, i64 many) {
    if (w.machine->counters) w.machine->counters[(&i - w.machine->program) * COUNTERS + which] += many;
}

inline std::string number(u64 value) {
    char text[32];
    snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

// The place in memory of an address, all of whose bytes lie in one array.
inline u8 *place(Machine &m, u64 address, u64 bytes, bool write) {
    const u64 region = address >> REGION_BITS, offset = address & ((u64(1) << REGION_BITS) - 1);
    if (region == 0 || region > m.regions.size()) throw Fault("address " + number(address) + " lies in no array");
    Region &found = m.regions[region - 1];
    const std::string name = region == 1 ? "the list of arguments" : "argument " + std::to_string(region - 2);
    if (offset + bytes > found.size) throw Fault("byte " + std::to_string(offset) + " of " + name + ", which has " + std::to_string(found.size));
    if (write && !found.writable) throw Fault("a write to " + name + ", which is only read");
    return found.data + offset;
}

using Table = std::unordered_map<std::string, Handler>;

}  // namespace waves
