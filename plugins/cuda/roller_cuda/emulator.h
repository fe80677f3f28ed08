// Runs a CUDA kernel on the CPU: one block, or one cluster of blocks, at a time, one fiber for each thread, switched at barriers and exchanges.
// It answers whether the numbers are right. It knows nothing of time, coalescing, bank conflicts or races within a step.
#pragma once
#define ROLLER_EMULATED
#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <ucontext.h>
#include <vector>

// The GPU's own functions, off by the greatest error that PTX and CUDA's guide document for them, one way or the other.
extern "C" { int roller_error_sign = 1; }
static inline float roller_off(double exact, double relative) { return float(exact * (1.0 + roller_error_sign * relative)); }
static inline float roller_ex2(float x) { return roller_off(std::exp2(double(x)), 0x1p-22); }
static inline float roller_rcp(float x) { return roller_off(1.0 / double(x), 0x1p-23); }
static inline float roller_fn_exp(float x) { return roller_off(std::exp(double(x)), 0x1p-22); }
static inline float roller_fn_tanh(float x) { return roller_off(std::tanh(double(x)), 0x1p-22); }
static inline float roller_fn_rsqrt(float x) { return roller_off(1.0 / std::sqrt(double(x)), 0x1p-22); }

namespace emulator {

struct Dim { int x, y, z; };

struct Pointer {  // to an array of whatever type the kernel takes
    void *place;
    template <class T> operator T *() const { return static_cast<T *>(place); }
};

struct Copy { void *to; const void *from; int size, inside; };

struct Started { void (*compute)(void *, const void *, const void *); void *d; const void *a, *b; };  // a product that runs by itself

struct TensorMap {
    char *base;
    long long rank, element, swizzle, rounds;  // rounds: to tf32
    long long extents[5], strides[5], box[5], steps[5];  // strides in bytes, the innermost is one element
};

struct Box { char *to, *memory; TensorMap map; struct Signal *signal; int corner[5]; };  // a copy of a part of an array, and whose memory

// What a thread has started and runs by itself: of the group that is open, and of those closed since, the oldest first.
template <class T> struct Underway {
    std::vector<T> open;
    std::vector<std::vector<T>> groups;

    void start(const T &thing) { open.push_back(thing); }
    void close() { groups.push_back(std::move(open)), open.clear(); }
    template <class Done> void wait(size_t last, Done done) {  // until only so many last groups are under way
        for (; groups.size() > last; groups.erase(groups.begin()))
            for (const T &thing : groups.front()) done(thing);
    }
    void forget() { open.clear(), groups.clear(); }
    bool empty() const { return open.empty() && groups.empty(); }
};

struct Fiber {
    ucontext_t first;
    jmp_buf at;
    std::vector<char> stack;
    bool started = false, done = false;
    int waits_for = 0;  // the turn of the barrier that lets it go on, or of its warp's
    int *turn = nullptr;
    Underway<Copy> copies;
    Underway<Started> products;
    Underway<Box> leaving;
    const struct Signal *signal = nullptr;  // what it waits for, and the parity of the phase that has to end
    int phase = 0;
};

// 8 bytes of shared memory; `seen`: somebody waited for the end of the last phase, as the PTX manual wants before the next arrival.
struct Signal { int64_t bytes : 22; uint64_t phase : 1, seen : 1, expected : 20, pending : 20; };
static_assert(sizeof(Signal) == 8);

struct Meeting { int present = 0, turn = 0; };

struct Block { char *shared; Dim index; Meeting everyone; };

constexpr int WARP = 32, WARPS = 512, STACK_BYTES = 1 << 16;
static size_t memory;  // bytes that a block's threads share
static std::vector<Fiber> fibers;
static std::vector<Block> blocks;  // of a cluster
static int current, count;  // a thread of the cluster; threads of a block
static jmp_buf scheduler;
static ucontext_t origin;
static Dim block_index, block_size, grid_size;
static Meeting cluster, warps[WARPS];
static unsigned long long exchanged[WARPS][WARP];
static char *shared;  // the memory of the block whose thread runs
static bool at_once;  // copies arrive when they are started, not when somebody waits for them
static bool misaligned;  // an access that the GPU would refuse
static bool forsaken;  // a thread that came to its end before what it sent away had left shared memory
static bool beyond;  // values behind the shared memory that a block was launched with
static bool unseen;  // an arrival though nobody waited for the end of the phase before
static bool undefined;  // an operand whose value the GPU does not define
static void (*body)(void **);
static void **arguments;

inline void leave() {
    if (_setjmp(fibers[current].at) == 0) _longjmp(scheduler, 1);
}

inline void meet(Meeting &meeting, int expected) {
    const int turn = meeting.turn;
    if (++meeting.present == expected) {
        meeting.present = 0;
        meeting.turn++;
        return;
    }
    Fiber &fiber = fibers[current];
    fiber.turn = &meeting.turn;
    fiber.waits_for = turn + 1;
    leave();
    fiber.turn = nullptr;
}

inline void synchronise() { meet(blocks[current / count].everyone, count); }

inline void join() { meet(cluster, static_cast<int>(fibers.size())); }

inline int members(int warp) {
    const int left = count - warp * WARP % ((count + WARP - 1) / WARP * WARP);
    return left < WARP ? left : WARP;
}

inline void meet_warp() { meet(warps[current / WARP], members(current / WARP)); }

template <class T> inline T exchange(T value, int source) {
    const int warp = current / WARP;
    static_assert(sizeof(T) <= sizeof(unsigned long long));
    std::memcpy(&exchanged[warp][current % WARP], &value, sizeof(T));
    meet(warps[warp], members(warp));
    T found;
    std::memcpy(&found, &exchanged[warp][source & (WARP - 1)], sizeof(T));
    meet(warps[warp], members(warp));
    return found;
}

// What a warp does together: every lane shows its part, one of them does the work for all once the last one is here.
static void *shown[WARPS][WARP];

template <class Work> inline void together(void *mine, Work work) {
    const int warp = current / WARP;
    shown[warp][current % WARP] = mine;
    if (warps[warp].present + 1 == WARP) work(shown[warp]);
    meet(warps[warp], WARP);
    meet(warps[warp], WARP);  // nobody goes on while others still need what it shows
}

struct SmallMatrices { const void *row; unsigned *to; };

template <int count, bool trans> inline void ldmatrix(unsigned *to, const void *from) {
    SmallMatrices mine{from, to};
    if (reinterpret_cast<uintptr_t>(from) % 16) misaligned = true;
    together(&mine, [](void **all) {
        for (int matrix = 0; matrix < count; matrix++) {
            uint16_t values[8][8];
            for (int row = 0; row < 8; row++)
                std::memcpy(values[row], static_cast<SmallMatrices *>(all[8 * matrix + row])->row, 16);
            for (int lane = 0; lane < WARP; lane++) {
                const int row = lane / 4, column = 2 * (lane % 4);
                const unsigned low = trans ? values[column][row] : values[row][column];
                const unsigned high = trans ? values[column + 1][row] : values[row][column + 1];
                static_cast<SmallMatrices *>(all[lane])->to[matrix] = low | high << 16;
            }
        }
    });
}

template <class T> inline float half_of(unsigned pair, int which) {
    const uint16_t bits = which ? pair >> 16 : pair & 0xffff;
    T value;
    std::memcpy(&value, &bits, sizeof(value));
    return static_cast<float>(value);
}

struct Product { float *d[4]; const unsigned *a, *b; };

template <class T> inline void mma_m16n8k16(float *d0, float *d1, float *d2, float *d3, const unsigned *a, const unsigned *b) {
    Product mine{{d0, d1, d2, d3}, a, b};
    together(&mine, [](void **all) {
        float left[16][16], right[16][8];
        for (int lane = 0; lane < WARP; lane++) {
            const Product &part = *static_cast<Product *>(all[lane]);
            for (int which = 0; which < 2; which++) {
                const int far = lane / 4, near = 2 * (lane % 4) + which;
                for (int r = 0; r < 4; r++) left[far + 8 * (r % 2)][near + 8 * (r / 2)] = half_of<T>(part.a[r], which);
                for (int r = 0; r < 2; r++) right[near + 8 * r][far] = half_of<T>(part.b[r], which);
            }
        }
        for (int lane = 0; lane < WARP; lane++)
            for (int r = 0; r < 4; r++) {
                float &sum = *static_cast<Product *>(all[lane])->d[r];
                for (int k = 0; k < 16; k++) sum += left[lane / 4 + 8 * (r / 2)][k] * right[k][2 * (lane % 4) + r % 2];
            }
    });
}

#include "emulated_tf32.h"

struct IntegerProduct { int *d[4]; const unsigned *a, *b; };

inline int byte_of(unsigned word, int which) { return static_cast<int8_t>(word >> 8 * which & 0xff); }

inline void mma_m16n8k32_s8(int *d0, int *d1, int *d2, int *d3, const unsigned *a, const unsigned *b) {
    IntegerProduct mine{{d0, d1, d2, d3}, a, b};
    together(&mine, [](void **all) {
        int left[16][32], right[32][8];
        for (int lane = 0; lane < WARP; lane++) {
            const IntegerProduct &part = *static_cast<IntegerProduct *>(all[lane]);
            for (int which = 0; which < 4; which++) {
                const int far = lane / 4, near = 4 * (lane % 4) + which;
                for (int r = 0; r < 4; r++) left[far + 8 * (r % 2)][near + 16 * (r / 2)] = byte_of(part.a[r], which);
                for (int r = 0; r < 2; r++) right[near + 16 * r][far] = byte_of(part.b[r], which);
            }
        }
        for (int lane = 0; lane < WARP; lane++)
            for (int r = 0; r < 4; r++) {
                int &sum = *static_cast<IntegerProduct *>(all[lane])->d[r];
                for (int k = 0; k < 32; k++) sum += left[lane / 4 + 8 * (r / 2)][k] * right[k][2 * (lane % 4) + r % 2];
            }
    });
}

struct QuadProduct { float *d[8]; const unsigned *a, *b; };  // results in the order of registers

// Each pair of quads, lanes 4 p to 4 p + 3 and those 16 further, has 8 x 8 results of its own; four steps of a depth of 4.
template <bool left_turned, bool right_turned>
inline void mma_quads(float *d0, float *d1, float *d4, float *d5, float *d2, float *d3, float *d6, float *d7, const unsigned *a, const unsigned *b) {
    QuadProduct mine{{d0, d1, d2, d3, d4, d5, d6, d7}, a, b};
    together(&mine, [](void **all) {
        for (int step = 0; step < 4; step++)
            for (int pair = 0; pair < 4; pair++) {
                float left[8][4], right[4][8];
                for (int member = 0; member < 8; member++) {
                    const QuadProduct &part = *static_cast<QuadProduct *>(all[4 * pair + member % 4 + member / 4 * 16]);
                    for (int n = 0; n < 4; n++) {
                        const float x = half_of<_Float16>(part.a[2 * step + n / 2], n % 2), y = half_of<_Float16>(part.b[2 * step + n / 2], n % 2);
                        if (left_turned) left[n + member / 4 * 4][member % 4] = x;
                        else left[member][n] = x;
                        if (right_turned) right[member % 4][n + member / 4 * 4] = y;
                        else right[n][member] = y;
                    }
                }
                for (int member = 0; member < 8; member++) {
                    const int lane = 4 * pair + member % 4 + member / 4 * 16;
                    for (int r = 0; r < 8; r++) {
                        float &sum = *static_cast<QuadProduct *>(all[lane])->d[r];
                        const int row = (lane & 1) + (r & 2) + member / 4 * 4, column = (lane & 2) + (r & 1) + (r & 4);
                        for (int k = 0; k < 4; k++) sum += left[row][k] * right[k][column];
                    }
                }
            }
    });
}

inline void arrive(const Copy &copy) {
    if (copy.inside) std::memcpy(copy.to, copy.from, copy.size);
    else std::memset(copy.to, 0, copy.size);
}

inline void start(const Copy &copy) {
    if ((reinterpret_cast<uintptr_t>(copy.to) | (copy.inside ? reinterpret_cast<uintptr_t>(copy.from) : 0)) % copy.size) misaligned = true;
    if (at_once) arrive(copy);
    else fibers[current].copies.start(copy);
}

inline void wait(size_t last) {
    fibers[current].copies.wait(last, [](const Copy &copy) { arrive(copy); });
}

#include "emulated_hopper.h"

inline void enter() {
    body(arguments);
    Fiber &fiber = fibers[current];
    forsaken |= !fiber.leaving.empty();
    fiber.done = true;
    _longjmp(scheduler, 1);
}

inline bool resume(int thread) {
    Fiber &fiber = fibers[thread];
    if (fiber.done || (fiber.turn != nullptr && *fiber.turn < fiber.waits_for)) return false;
    if (fiber.signal != nullptr && fiber.signal->phase == fiber.phase) return false;
    current = thread;
    shared = blocks[thread / count].shared, block_index = blocks[thread / count].index;
    if (_setjmp(scheduler) == 0) {
        if (fiber.started) _longjmp(fiber.at, 1);
        fiber.started = true;
        setcontext(&fiber.first);
    }
    return true;
}

// True if one of so many threads went on.
inline bool take_turns(int first, int number, bool backwards) {
    bool moved = false;
    for (int n = 0; n < number; n++) moved |= resume(first + (backwards ? number - 1 - n : n));
    return moved;
}

// The same for the threads of a block; a warp goes on as long as it can.
inline bool take_turns_of_warps(int first, bool backwards) {
    bool moved = false;
    for (int start = 0; start < count; start += WARP) {
        const int number = count - start < WARP ? count - start : WARP;
        while (take_turns(first + (backwards ? count - number - start : start), number, backwards)) moved = true;
    }
    return moved;
}

// 0: every thread came to its end; otherwise the number of threads that wait for one that never comes.
inline int run_blocks(bool backwards) {
    const int all = static_cast<int>(fibers.size());
    for (Block &block : blocks) std::memset(block.shared, 0xff, memory), block.everyone = Meeting();
    cluster = Meeting();
    boxes.clear();
    for (auto &warp : warps) warp = Meeting();
    for (int thread = 0; thread < all; thread++) {
        Fiber &fiber = fibers[thread];
        fiber.started = fiber.done = false;
        fiber.turn = nullptr;
        fiber.copies.forget(), fiber.products.forget(), fiber.leaving.forget();
        fiber.signal = nullptr;
        fiber.stack.resize(STACK_BYTES);
        getcontext(&fiber.first);
        fiber.first.uc_stack.ss_sp = fiber.stack.data();
        fiber.first.uc_stack.ss_size = fiber.stack.size();
        fiber.first.uc_link = &origin;
        makecontext(&fiber.first, enter, 0);
    }
    // All threads take turns, or each block goes as far as it can before the next one's turn, and in it each warp.
    const bool apart = backwards == at_once;
    for (;;) {
        bool moved = false;
        for (int start = 0; start < all; start += apart ? count : all) {
            const int first = apart && backwards ? all - count - start : start;
            while (apart ? take_turns_of_warps(first, backwards) : take_turns(first, all, backwards)) moved = true;
        }
        int waiting = 0;
        for (const Fiber &fiber : fibers) waiting += !fiber.done;
        if (!waiting) return 0;
        if (!moved && !deliver()) return waiting;
    }
}

inline int launch(
    void (*kernel)(void **), void **given, int grid, int together, Dim threads, size_t shared_bytes, size_t told_bytes, bool backwards, bool eager
) {
    at_once = eager, memory = shared_bytes;
    body = kernel, arguments = given, grid_size = {grid, 1, 1}, block_size = threads, misaligned = forsaken = undefined = beyond = unseen = false;
    count = threads.x * threads.y * threads.z;
    fibers.resize(count * together);
    blocks.assign(together, Block());
    const size_t each = (memory + 1023) / 1024 * 1024;
    std::vector<char> room(each * together + 1024);
    char *const first = room.data() + (1024 - reinterpret_cast<uintptr_t>(room.data()) % 1024) % 1024;
    int stuck = 0;
    for (int x = 0; x < grid && !stuck && !misaligned && !forsaken && !undefined && !beyond && !unseen; x += together) {
        for (int rank = 0; rank < together; rank++) blocks[rank].shared = first + rank * each, blocks[rank].index = {x + rank, 0, 0};
        stuck = run_blocks(backwards);
        for (const Block &block : blocks)
            for (size_t at = told_bytes; at < memory; at++) beyond |= block.shared[at] != static_cast<char>(0xff);
    }
    std::vector<Fiber>().swap(fibers);  // a library stays loaded: it must not hold stacks of megabytes
    return stuck ? stuck : misaligned ? -1 : forsaken ? -2 : undefined ? -3 : unseen ? -4 : beyond ? -5 : 0;
}

inline Dim thread_index() {
    const int thread = current % count;
    return {thread % block_size.x, thread / block_size.x % block_size.y, thread / (block_size.x * block_size.y)};
}

}  // namespace emulator

// What -fsanitize=alignment calls at an access whose address is no multiple of its type's alignment: the GPU refuses it.
extern "C" {
void __ubsan_handle_type_mismatch_v1(void *, void *) { emulator::misaligned = true; }
void __ubsan_handle_type_mismatch_v1_abort(void *, void *) { emulator::misaligned = true; }
}

#define VECTORS(T, name) \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; }; \
    struct alignas(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; }; \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(float, float)
VECTORS(double, double)
VECTORS(int, int)
VECTORS(unsigned int, uint)
VECTORS(long long, longlong)
VECTORS(short, short)
VECTORS(unsigned short, ushort)
VECTORS(signed char, char)
VECTORS(unsigned char, uchar)
#undef VECTORS

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
using half = _Float16;

struct nv_bfloat16 {
    uint16_t bits;
    nv_bfloat16() = default;
    template <class T> nv_bfloat16(T given) {
        const float value = static_cast<float>(given);
        uint32_t wide;
        std::memcpy(&wide, &value, sizeof(wide));
        bits = value != value ? 0x7fff : (wide + 0x7fff + (wide >> 16 & 1)) >> 16;  // to the nearest, to even of two
    }
    operator float() const {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, sizeof(value));
        return value;
    }
};

struct alignas(4) half2 { half x, y; };
struct alignas(4) nv_bfloat162 { nv_bfloat16 x, y; };

inline nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
inline half __float2half_rn(float value) { return static_cast<half>(value); }
inline float __int_as_float(int bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}
inline double __longlong_as_double(long long bits) {
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}
template <class... A> inline void roller_ldmatrix_x1(A... a) { emulator::ldmatrix<1, false>(a...); }
template <class... A> inline void roller_ldmatrix_x2(A... a) { emulator::ldmatrix<2, false>(a...); }
template <class... A> inline void roller_ldmatrix_x4(A... a) { emulator::ldmatrix<4, false>(a...); }
template <class... A> inline void roller_ldmatrix_x1_trans(A... a) { emulator::ldmatrix<1, true>(a...); }
template <class... A> inline void roller_ldmatrix_x2_trans(A... a) { emulator::ldmatrix<2, true>(a...); }
template <class... A> inline void roller_ldmatrix_x4_trans(A... a) { emulator::ldmatrix<4, true>(a...); }
template <class... A> inline void roller_mma_m16n8k16_f16(A... a) { emulator::mma_m16n8k16<half>(a...); }
template <class... A> inline void roller_mma_m16n8k16_bf16(A... a) { emulator::mma_m16n8k16<nv_bfloat16>(a...); }
template <class... A> inline void roller_mma_m16n8k32_s8(A... a) { emulator::mma_m16n8k32_s8(a...); }
template <class... A> inline void roller_mma_quads_row_col(A... a) { emulator::mma_quads<false, false>(a...); }
template <class... A> inline void roller_mma_quads_row_row(A... a) { emulator::mma_quads<false, true>(a...); }
template <class... A> inline void roller_mma_quads_col_col(A... a) { emulator::mma_quads<true, false>(a...); }
template <class... A> inline void roller_mma_quads_col_row(A... a) { emulator::mma_quads<true, true>(a...); }
template <class... A> inline void roller_mma_m16n8k8_tf32(A... a) { emulator::mma_m16n8k8_tf32(a...); }
inline unsigned roller_tf32(float value) { return emulator::round_away(value); }
inline unsigned roller_tf32(unsigned bits) { return emulator::round_away(emulator::float_of(bits)); }
inline float roller_tf32_value(float value) { return emulator::float_of(emulator::round_away(value)); }
inline void roller_copy_async_4(void *to, const void *from, int inside) { emulator::start({to, from, 4, inside}); }
inline void roller_copy_async_8(void *to, const void *from, int inside) { emulator::start({to, from, 8, inside}); }
inline void roller_copy_async_16(void *to, const void *from, int inside) { emulator::start({to, from, 16, inside}); }
inline void roller_copies_close() { emulator::fibers[emulator::current].copies.close(); }
template <int open> inline void roller_copies_wait() { emulator::wait(open); }
using RollerTensorMap = emulator::TensorMap;
inline void roller_signals(void *pair, int full, int empty) {
    emulator::begin(pair, full);
    emulator::begin(static_cast<char *>(pair) + 8, empty);
}
inline void roller_signals_ready() {}
inline void roller_signal_arrive_at(void *signal, int rank) { emulator::arrive_at(emulator::there(signal, rank)); }
inline void roller_cluster_join() { emulator::join(); }
inline void roller_stores_visible() {}
inline void roller_signal_wait(void *signal, int phase) { emulator::await(signal, phase); }
inline void roller_signal_expect(void *signal, int size) { emulator::expect(signal, size); }
inline void roller_signal_arrive(void *signal) { emulator::arrive_at(signal); }
inline void roller_signal_arrive_expecting(void *signal, int size) { emulator::expect(signal, size), emulator::arrive_at(signal); }
template <class... A> inline void roller_copy_box_1(A... a) { emulator::copy_box(a...); }
template <class... A> inline void roller_copy_box_2(A... a) { emulator::copy_box(a...); }
template <class... A> inline void roller_copy_box_3(A... a) { emulator::copy_box(a...); }
template <class... A> inline void roller_copy_box_4(A... a) { emulator::copy_box(a...); }
template <class... A> inline void roller_copy_box_5(A... a) { emulator::copy_box(a...); }
template <int cluster, class... A> inline void roller_spread_box_1(A... a) { emulator::spread_box(cluster, a...); }
template <int cluster, class... A> inline void roller_spread_box_2(A... a) { emulator::spread_box(cluster, a...); }
template <int cluster, class... A> inline void roller_spread_box_3(A... a) { emulator::spread_box(cluster, a...); }
template <int cluster, class... A> inline void roller_spread_box_4(A... a) { emulator::spread_box(cluster, a...); }
template <int cluster, class... A> inline void roller_spread_box_5(A... a) { emulator::spread_box(cluster, a...); }
template <class... A> inline void roller_leave_box_1(A... a) { emulator::leave_box(a...); }
template <class... A> inline void roller_leave_box_2(A... a) { emulator::leave_box(a...); }
template <class... A> inline void roller_leave_box_3(A... a) { emulator::leave_box(a...); }
template <class... A> inline void roller_leave_box_4(A... a) { emulator::leave_box(a...); }
template <class... A> inline void roller_leave_box_5(A... a) { emulator::leave_box(a...); }
inline void roller_leaving_close() { emulator::fibers[emulator::current].leaving.close(); }
template <int open> inline void roller_leaving_wait() { emulator::wait_leaving(open); }
inline void roller_warp_together() { emulator::meet_warp(); }
template <int count> inline void roller_registers_more() {}
template <int count> inline void roller_registers_fewer() {}
inline void roller_products_begin() {}
template <int count> inline void roller_products_settled(const void *) {}
inline void roller_products_close() { emulator::fibers[emulator::current].products.close(); }
template <int open> inline void roller_products_wait() { emulator::wait_products(open); }
#define __grid_constant__
#define __launch_bounds__(...)
#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index)
#define __syncthreads() emulator::synchronise()
#define __shfl_xor_sync(mask, value, distance, width) emulator::exchange((value), (emulator::current % 32) ^ (distance))
