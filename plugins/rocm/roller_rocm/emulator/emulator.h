// A kernel on the CPU: one workgroup at a time, its waves in turn, each until a barrier or its end.
#pragma once
#include "emulated_halves.h"
#include "emulated_masks.h"
#include "emulated_matrices.h"
#include "emulated_memory.h"
#include "emulated_scalars.h"
#include "emulated_words.h"
#include <memory>

namespace waves {

inline const Table &table() {
    static const Table made = [] {
        Table t;
        add_words(t), add_masks(t), add_halves(t), add_scalars(t), add_memory(t), add_matrices(t);
        return t;
    }();
    return made;
}

inline const std::vector<std::pair<std::string, Handler>> &numbered() {
    static const std::vector<std::pair<std::string, Handler>> made(table().begin(), table().end());
    return made;
}

struct Launch {  // as `emulator.py` fills it in
    i32 blocks, threads, lanes, kernarg_scalar, block_scalar, lds_bytes, scratch_bytes, line_bytes, separate_stores;
    i32 backwards, lazy, vectors, accumulators;  // how many registers to fill before each wave
    u32 poison;
    i64 steps;
};

inline std::string register_name(int row) { return row >= 256 ? "a" + std::to_string(row - 256) : "v" + std::to_string(row); }

// A register that a load has still to fill may be neither read nor written; loads of one kind come in order.
inline void check_arrived(const Wave &w, const Instruction &i) {
    for (int n = 0; n < i.count; n++) {
        const Operand &o = i.operands[n];
        for (int k = 0; k < o.words; k++) {
            if (o.kind == VECTOR) {
                const u8 *pending = w.vector_pending[o.index + k];
                const bool in_order = n == 0 && i.unit && !(i.extra & WRITES);
                for (int unit = 1; unit < 4; unit++)
                    if (pending[unit] && !(in_order && unit == i.unit)) throw Fault(register_name(o.index + k) + " is used before its load was waited for");
            } else if (o.kind == SCALAR && w.scalar_pending[o.index + k]) {
                throw Fault("s" + std::to_string(o.index + k) + " is used before its load was waited for");
            }
        }
    }
}

// Two instructions at once: the first's result goes aside until the second has read.
inline void run_pair(Wave &w, const Instruction &i) {
    Machine &m = *w.machine;
    Instruction first = i;
    const int to = i.operands[0].index;
    std::memcpy(w.v[SPARE], w.v[to], sizeof(w.v[to]));
    first.operands[0].index = SPARE;
    const Instruction &second = m.program[w.pc++];
    if (w.loads_underway) check_arrived(w, second);
    m.handlers[i.opcode](w, first);
    m.handlers[second.opcode](w, second);
    std::memcpy(w.v[to], w.v[SPARE], sizeof(w.v[to]));
}

inline void run_wave(Wave &w) {
    Machine &m = *w.machine;
    w.waiting = false;
    while (!w.done && !w.waiting) {
        if (w.pc < 0 || w.pc >= m.length) throw Fault("the kernel runs past its end");
        if (--m.steps_left < 0) throw Fault("too many steps: the kernel seems not to end");
        const Instruction &i = m.program[w.pc++];
        if (m.counters) m.counters[(w.pc - 1) * COUNTERS + RUN]++;
        if (w.loads_underway) check_arrived(w, i);
        if (i.flags & PAIRED) run_pair(w, i);
        else m.handlers[i.opcode](w, i);
    }
    if (w.done)
        for (auto &queue : w.underway) settle(w, queue, 0);
    if (w.waiting)
        for (const Access &a : w.underway[1])
            if (a.unit == LOCAL && a.store) throw Fault("a barrier with a write to local memory under way");
}

inline void prepare(Wave &w, const Launch &launch, int number, int block) {
    w.number = number, w.pc = 0, w.scc = false, w.done = w.waiting = false, w.loads_underway = 0;
    for (auto &queue : w.underway) queue.clear();
    std::memset(w.vector_pending, 0, sizeof(w.vector_pending)), std::memset(w.scalar_pending, 0, sizeof(w.scalar_pending));
    for (int r = 0; r < SCALARS; r++) w.s[r] = launch.poison;
    for (int r = 0; r <= SPARE; r++)
        if (r < launch.vectors || (r >= 256 && r < 256 + launch.accumulators) || r == SPARE)
            for (int l = 0; l < LANES; l++) w.v[r][l] = launch.poison;
    w.scratch.assign(size_t(LANES) * launch.scratch_bytes, static_cast<u8>(launch.poison));
    u64 on = 0;
    for (int l = 0; l < launch.lanes; l++) {
        const int thread = number * launch.lanes + l;
        w.v[0][l] = static_cast<u32>(thread);
        if (thread < launch.threads) on |= u64(1) << l;
    }
    set_exec(w, on);
    const u64 arguments = u64(1) << REGION_BITS;  // the first array holds the kernel's arguments
    w.s[launch.kernarg_scalar] = static_cast<u32>(arguments), w.s[launch.kernarg_scalar + 1] = static_cast<u32>(arguments >> 32);
    w.s[launch.block_scalar] = static_cast<u32>(block);
}

struct Place { int wave = 0, pc = 0; };

inline void run_block(Machine &m, const Launch &launch, std::vector<std::unique_ptr<Wave>> &all, int block, Place &where) {
    const int count = static_cast<int>(all.size());
    for (size_t k = 0; k < m.lds.size(); k++) m.lds[k] = static_cast<u8>(launch.poison >> 8 * (k % 4));
    for (int n = 0; n < count; n++) prepare(*all[n], launch, n, block);
    for (;;) {
        int waiting = 0, ended = 0, meeting = -1;
        for (int turn = 0; turn < count; turn++) {
            Wave &w = *all[launch.backwards ? count - 1 - turn : turn];
            try {
                run_wave(w);
            } catch (...) {
                where = {w.number, w.pc - 1};
                throw;
            }
            where = {w.number, w.pc - 1};
            waiting += w.waiting, ended += w.done;
            if (w.waiting && meeting >= 0 && meeting != w.pc) throw Fault("waves of a workgroup wait at different barriers");
            if (w.waiting) meeting = w.pc;
        }
        if (ended == count) return;
        if (ended) throw Fault(std::to_string(waiting) + " waves wait at a barrier for " + std::to_string(ended) + " that have ended");
    }
}

}  // namespace waves

extern "C" {

int bytes_of_instruction() { return static_cast<int>(sizeof(waves::Instruction)); }

int opcode_of(const char *name) {
    const auto &all = waves::numbered();
    for (size_t n = 0; n < all.size(); n++)
        if (all[n].first == name) return static_cast<int>(n);
    return -1;
}

// 0, or 1 with words on what is wrong, and where: block, wave, instruction.
int run_kernel(const waves::Instruction *program, int length, const waves::Launch *launch, int regions, void **data, const int64_t *sizes,
               const int32_t *writable, int64_t *counters, char *words, int room, int32_t *where) {
    using namespace waves;
    std::vector<Handler> handlers;
    for (const auto &entry : numbered()) handlers.push_back(entry.second);
    Machine m;
    m.program = program, m.handlers = handlers.data(), m.length = length, m.lanes = launch->lanes;
    m.separate_stores = launch->separate_stores, m.lazy = launch->lazy, m.counters = counters;
    m.line_bytes = launch->line_bytes, m.scratch_bytes = launch->scratch_bytes, m.steps_left = launch->steps;
    for (int r = 0; r < regions; r++) m.regions.push_back({static_cast<u8 *>(data[r]), static_cast<u64>(sizes[r]), writable[r] != 0});
    m.lds.resize(launch->lds_bytes);
    std::vector<std::unique_ptr<Wave>> all;
    for (int n = 0; n < (launch->threads + launch->lanes - 1) / launch->lanes; n++) all.emplace_back(new Wave), all.back()->machine = &m;
    for (int turn = 0; turn < launch->blocks; turn++) {
        const int block = launch->backwards ? launch->blocks - 1 - turn : turn;
        Place place;
        try {
            run_block(m, *launch, all, block, place);
        } catch (const Fault &fault) {
            snprintf(words, room, "%s", fault.what());
            where[0] = block, where[1] = place.wave, where[2] = place.pc;
            return 1;
        }
    }
    return 0;
}

}
