// Runs a CUDA kernel on the CPU: one block, or one cluster of blocks, at a time, one fiber for each thread, switched at barriers and exchanges.
// It answers whether the numbers are right. It knows nothing of time, coalescing, bank conflicts or races within a step.
#pragma once
#define ROLLER_EMULATED
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

// The GPU's own functions, off by the greatest error that PTX and CUDA's guide document for them, one way or the other.
extern "C" __attribute__((visibility("default"))) int roller_error_sign;
static inline float roller_off(double exact, double relative) { return float(exact * (1.0 + roller_error_sign * relative)); }
static inline float roller_ex2(float x) { return roller_off(std::exp2(double(x)), 0x1p-22); }
static inline float roller_rcp(float x) { return roller_off(1.0 / double(x), 0x1p-23); }
static inline float roller_fn_exp(float x) { return roller_off(std::exp(double(x)), 0x1p-22); }
static inline float roller_fn_tanh(float x) {  // tanhf is exactly 1 or -1 at infinities
    return std::isinf(x) ? std::copysign(1.0f, x) : roller_off(std::tanh(double(x)), 0x1p-22);
}
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

// 8 bytes of shared memory; `seen`: somebody waited for the end of the last phase, as the PTX manual wants before the next arrival.
struct Signal { int64_t bytes : 22; uint64_t phase : 1, seen : 1, expected : 20, pending : 20; };
static_assert(sizeof(Signal) == 8);

struct Meeting { int present = 0, turn = 0; };


constexpr int WARP = 32, WARPS = 512;
extern int current, count;  // a thread of the cluster; threads of a block
extern Dim block_index, block_size, grid_size;
extern Meeting warps[WARPS];
extern unsigned long long exchanged[WARPS][WARP];
extern void *shown[WARPS][WARP];
extern char *shared;  // the memory of the block whose thread runs
extern bool misaligned;  // an access that the GPU would refuse
extern bool undefined;  // an operand whose value the GPU does not define

void meet(Meeting &meeting, int expected);  // wait until so many have come
void synchronise();  // the threads of a block
void join();  // those of a cluster
char *shared_of(int rank);  // the memory of a block of the cluster

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
template <class Work> inline void together(void *mine, Work work) {
    const int warp = current / WARP;
    shown[warp][current % WARP] = mine;
    if (warps[warp].present + 1 == WARP) work(shown[warp]);
    meet(warps[warp], WARP);
    meet(warps[warp], WARP);  // nobody goes on while others still need what it shows
}

struct SmallMatrices { const void *row; unsigned *to; };

template <int count, bool trans> void ldmatrix(unsigned *to, const void *from);

template <class T> inline float half_of(unsigned pair, int which) {
    const uint16_t bits = which ? pair >> 16 : pair & 0xffff;
    T value;
    std::memcpy(&value, &bits, sizeof(value));
    return static_cast<float>(value);
}

struct Product { float *d[4]; const unsigned *a, *b; };

template <class T> void mma_m16n8k16(float *d0, float *d1, float *d2, float *d3, const unsigned *a, const unsigned *b);

#include "emulated_tf32.h"

struct IntegerProduct { int *d[4]; const unsigned *a, *b; };

inline int byte_of(unsigned word, int which) { return static_cast<int8_t>(word >> 8 * which & 0xff); }

void mma_m16n8k32_s8(int *d0, int *d1, int *d2, int *d3, const unsigned *a, const unsigned *b);

struct QuadProduct { float *d[8]; const unsigned *a, *b; };  // results in the order of registers

// Each pair of quads, lanes 4 p to 4 p + 3 and those 16 further, has 8 x 8 results of its own; four steps of a depth of 4.
template <bool left_turned, bool right_turned>
void mma_quads(float *d0, float *d1, float *d4, float *d5, float *d2, float *d3, float *d6, float *d7, const unsigned *a, const unsigned *b);



void start(const Copy &copy);

void close_copies();
void wait(size_t last);  // until only so many last groups of copies are under way

#include "emulated_hopper.h"

// 0: every thread came to its end; less: what is wrong; otherwise the number of threads that wait for one that never comes.
int launch(
    void (*kernel)(void **), void **given, int grid, int together, Dim threads, size_t shared_bytes, size_t told_bytes, bool backwards, bool eager
);

inline Dim thread_index() {
    const int thread = current % count;
    return {thread % block_size.x, thread / block_size.x % block_size.y, thread / (block_size.x * block_size.y)};
}

}  // namespace emulator

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
inline void roller_copies_close() { emulator::close_copies(); }
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
inline void roller_leaving_close() { emulator::close_leaving(); }
template <int open> inline void roller_leaving_wait() { emulator::wait_leaving(open); }
inline void roller_warp_together() { emulator::meet_warp(); }
template <int count> inline void roller_registers_more() {}
template <int count> inline void roller_registers_fewer() {}
inline void roller_products_begin() {}
template <int count> inline void roller_products_settled(const void *) {}
inline void roller_products_close() { emulator::close_products(); }
template <int open> inline void roller_products_wait() { emulator::wait_products(open); }
#define __grid_constant__
#define __launch_bounds__(...)
#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index)
#define __syncthreads() emulator::synchronise()
#define __shfl_xor_sync(mask, value, distance, width) emulator::exchange((value), (emulator::current % 32) ^ (distance))
