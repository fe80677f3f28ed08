// Signals between lanes that fill panels and lanes that compute, boxes copied by the tensor memory accelerator, products of warp groups.
#ifndef ROLLER_EMULATED
struct alignas(64) RollerTensorMap { unsigned long long words[16]; };
__device__ __forceinline__ unsigned roller_place(const void *at) { return static_cast<unsigned>(__cvta_generic_to_shared(at)); }
__device__ __forceinline__ void roller_signals(void *pair, int full, int empty) {
    const unsigned place = roller_place(pair);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(place), "r"(full) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(place + 8), "r"(empty) : "memory");
}
__device__ __forceinline__ void roller_signals_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}
__device__ __forceinline__ void roller_signal_wait(void *signal, int phase) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" : : "r"(roller_place(signal)), "r"(phase) : "memory");
}
__device__ __forceinline__ void roller_signal_expect(void *signal, int size) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" : : "r"(roller_place(signal)), "r"(size) : "memory");
}
__device__ __forceinline__ void roller_signal_arrive_expecting(void *signal, int size) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(roller_place(signal)), "r"(size) : "memory");
}
__device__ __forceinline__ void roller_signal_arrive(void *signal) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(roller_place(signal)) : "memory");
}
// One arrival at the signal that lies there in another block of the cluster. What is given back was read by products that have been
// waited for: the scope of the default is enough, one of the whole cluster would make every step wait for the stores of the chip.
__device__ __forceinline__ void roller_signal_arrive_at(void *signal, int rank) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" : : "r"(roller_place(signal)), "r"(rank) : "memory");
}
__device__ __forceinline__ void roller_cluster_join() {
    asm volatile("barrier.cluster.arrive.release;" : : : "memory");
    asm volatile("barrier.cluster.wait.acquire;" : : : "memory");
}
__device__ __forceinline__ void roller_stores_visible() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }
#define ROLLER_BOX(rank, where, ...) \
    __device__ __forceinline__ void roller_copy_box_##rank(void *to, const void *map, void *signal, __VA_ARGS__) { \
        asm volatile("cp.async.bulk.tensor." #rank "d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {" where "}], [%2];" \
                     : : "r"(roller_place(to)), "l"(map), "r"(roller_place(signal)), ROLLER_CORNER_##rank : "memory"); \
    }
#define ROLLER_SPREAD(rank, where, last, ...) \
    template <int cluster> __device__ __forceinline__ void roller_spread_box_##rank(void *to, const void *map, void *signal, __VA_ARGS__) { \
        asm volatile("cp.async.bulk.tensor." #rank "d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster " \
                     "[%0], [%1, {" where "}], [%2], " last ";" \
                     : : "r"(roller_place(to)), "l"(map), "r"(roller_place(signal)), ROLLER_CORNER_##rank, \
                         "h"(static_cast<unsigned short>((1 << cluster) - 1)) : "memory"); \
    }
#define ROLLER_CORNER_1 "r"(c0)
#define ROLLER_CORNER_2 ROLLER_CORNER_1, "r"(c1)
#define ROLLER_CORNER_3 ROLLER_CORNER_2, "r"(c2)
#define ROLLER_CORNER_4 ROLLER_CORNER_3, "r"(c3)
#define ROLLER_CORNER_5 ROLLER_CORNER_4, "r"(c4)
ROLLER_BOX(1, "%3", int c0)
ROLLER_BOX(2, "%3, %4", int c0, int c1)
ROLLER_BOX(3, "%3, %4, %5", int c0, int c1, int c2)
ROLLER_BOX(4, "%3, %4, %5, %6", int c0, int c1, int c2, int c3)
ROLLER_BOX(5, "%3, %4, %5, %6, %7", int c0, int c1, int c2, int c3, int c4)
ROLLER_SPREAD(1, "%3", "%4", int c0)
ROLLER_SPREAD(2, "%3, %4", "%5", int c0, int c1)
ROLLER_SPREAD(3, "%3, %4, %5", "%6", int c0, int c1, int c2)
ROLLER_SPREAD(4, "%3, %4, %5, %6", "%7", int c0, int c1, int c2, int c3)
ROLLER_SPREAD(5, "%3, %4, %5, %6, %7", "%8", int c0, int c1, int c2, int c3, int c4)
#define ROLLER_LEAVE(rank, where, ...) \
    __device__ __forceinline__ void roller_leave_box_##rank(const void *from, const void *map, __VA_ARGS__) { \
        asm volatile("cp.async.bulk.tensor." #rank "d.global.shared::cta.bulk_group [%1, {" where "}], [%0];" \
                     : : "r"(roller_place(from)), "l"(map), ROLLER_CORNER_##rank : "memory"); \
    }
ROLLER_LEAVE(1, "%2", int c0)
ROLLER_LEAVE(2, "%2, %3", int c0, int c1)
ROLLER_LEAVE(3, "%2, %3, %4", int c0, int c1, int c2)
ROLLER_LEAVE(4, "%2, %3, %4, %5", int c0, int c1, int c2, int c3)
ROLLER_LEAVE(5, "%2, %3, %4, %5, %6", int c0, int c1, int c2, int c3, int c4)
__device__ __forceinline__ void roller_leaving_close() { asm volatile("cp.async.bulk.commit_group;" : : : "memory"); }
template <int open> __device__ __forceinline__ void roller_leaving_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(open) : "memory");
}
__device__ __forceinline__ void roller_warp_together() { __syncwarp(); }
#ifdef ROLLER_REGISTERS_AS_LAUNCHED
template <int count> __device__ __forceinline__ void roller_registers_more() {}
template <int count> __device__ __forceinline__ void roller_registers_fewer() {}
#else
template <int count> __device__ __forceinline__ void roller_registers_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(count));
}
template <int count> __device__ __forceinline__ void roller_registers_fewer() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(count));
}
#endif
__device__ __forceinline__ void roller_products_begin() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
__device__ __forceinline__ void roller_products_close() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
template <int open> __device__ __forceinline__ void roller_products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(open) : "memory");
}
template <int count> __device__ __forceinline__ void roller_products_settled(float *d) {
#pragma unroll
    for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i]) : : "memory");
}
template <int count> __device__ __forceinline__ void roller_products_settled(int *d) {
#pragma unroll
    for (int i = 0; i < count; ++i) asm volatile("" : "+r"(d[i]) : : "memory");
}
// Where an operand lies: its rows are 8 to a core matrix, one after another; `across` bytes further it goes on along the rows.
template <int row, int across> __device__ __forceinline__ unsigned long long roller_operand(const void *panels, int offset) {
    constexpr unsigned mode = row == 128 ? 1 : row == 64 ? 2 : 3;
    constexpr unsigned high = mode << 30 | 8u * row >> 4, low = (static_cast<unsigned>(across) >> 4 & 0x3fff) << 16;
    return static_cast<unsigned long long>(high) << 32 | (low | (roller_place(panels) + offset) >> 4 & 0x3fff);
}
#endif
// Neighbouring results, with one store.
template <class T> __device__ __forceinline__ void roller_lay(void *at, T a, T b) {
    struct alignas(2 * sizeof(T)) Pair { T a, b; };
    *static_cast<Pair *>(at) = Pair{a, b};
}
