// What runs a kernel's threads, moves what is copied by itself and multiplies matrices: the same for all kernels, compiled once.
#include "emulator.h"
#include <csetjmp>
#include <ucontext.h>
#include <utility>
#include <vector>

int roller_error_sign = 1;

namespace emulator {

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

struct Block { char *shared; Dim index; Meeting everyone; };

constexpr int STACK_BYTES = 1 << 16;
static size_t memory;  // bytes that a block's threads share
static std::vector<Fiber> fibers;
static std::vector<Block> blocks;  // of a cluster
int current, count;  // a thread of the cluster; threads of a block
static jmp_buf scheduler;
static ucontext_t origin;
Dim block_index, block_size, grid_size;
static Meeting cluster;
Meeting warps[WARPS];
unsigned long long exchanged[WARPS][WARP];
void *shown[WARPS][WARP];
char *shared;  // the memory of the block whose thread runs
static bool at_once;  // copies arrive when they are started, not when somebody waits for them
bool misaligned;  // an access that the GPU would refuse
static bool forsaken;  // a thread that came to its end before what it sent away had left shared memory
static bool beyond;  // values behind the shared memory that a block was launched with
static bool unseen;  // an arrival though nobody waited for the end of the phase before
bool undefined;  // an operand whose value the GPU does not define
static void (*body)(void **);
static void **arguments;
static std::vector<Box> boxes;  // under way

void check(Signal &signal) {
    if (signal.pending || signal.bytes) return;
    signal.phase ^= 1, signal.seen = 0;
    signal.pending = signal.expected;
}

void leave() {
    if (_setjmp(fibers[current].at) == 0) _longjmp(scheduler, 1);
}

void meet(Meeting &meeting, int expected) {
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

void synchronise() { meet(blocks[current / count].everyone, count); }

void join() { meet(cluster, static_cast<int>(fibers.size())); }

char *shared_of(int rank) { return blocks[rank].shared; }

void begin(void *place, int arrivals) {
    Signal &signal = *static_cast<Signal *>(place);
    signal.bytes = 0, signal.phase = 0, signal.seen = 1;
    signal.expected = signal.pending = arrivals;
}

void arrive_at(void *place) {
    Signal &signal = *static_cast<Signal *>(place);
    unseen |= !signal.seen;
    signal.pending--;
    check(signal);
}

void await(void *place, int phase) {
    Fiber &fiber = fibers[current];
    Signal *signal = static_cast<Signal *>(place);
    fiber.signal = signal;
    fiber.phase = phase;
    if (signal->phase == phase) leave();
    fiber.signal = nullptr;
    signal->seen = 1;
}

void expect(void *place, int bytes) { static_cast<Signal *>(place)->bytes += bytes; }

void close_copies() { fibers[current].copies.close(); }

void close_products() { fibers[current].products.close(); }

void close_leaving() { fibers[current].leaving.close(); }

template <int count, bool trans> void ldmatrix(unsigned *to, const void *from) {
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

template <class T> void mma_m16n8k16(float *d0, float *d1, float *d2, float *d3, const unsigned *a, const unsigned *b) {
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

void mma_m16n8k32_s8(int *d0, int *d1, int *d2, int *d3, const unsigned *a, const unsigned *b) {
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

template <bool left_turned, bool right_turned>
void mma_quads(float *d0, float *d1, float *d4, float *d5, float *d2, float *d3, float *d6, float *d7, const unsigned *a, const unsigned *b) {
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

void mma_m16n8k8_tf32(float *d0, float *d1, float *d2, float *d3, const unsigned *a, const unsigned *b) {
    Product mine{{d0, d1, d2, d3}, a, b};
    together(&mine, [](void **all) {
        float left[16][8], right[8][8];
        for (int lane = 0; lane < WARP; lane++) {
            const Product &part = *static_cast<Product *>(all[lane]);
            const int far = lane / 4, near = lane % 4;
            for (int r = 0; r < 4; r++) left[far + 8 * (r % 2)][near + 4 * (r / 2)] = tf32_of(part.a[r]);
            for (int r = 0; r < 2; r++) right[near + 4 * r][far] = tf32_of(part.b[r]);
        }
        for (int lane = 0; lane < WARP; lane++)
            for (int r = 0; r < 4; r++) {
                float &sum = *static_cast<Product *>(all[lane])->d[r];
                for (int k = 0; k < 8; k++) sum += left[lane / 4 + 8 * (r / 2)][k] * right[k][2 * (lane % 4) + r % 2];
            }
    });
}

void arrive(const Copy &copy) {
    if (copy.inside) std::memcpy(copy.to, copy.from, copy.size);
    else std::memset(copy.to, 0, copy.size);
}

void start(const Copy &copy) {
    if ((reinterpret_cast<uintptr_t>(copy.to) | (copy.inside ? reinterpret_cast<uintptr_t>(copy.from) : 0)) % copy.size) misaligned = true;
    if (at_once) arrive(copy);
    else fibers[current].copies.start(copy);
}

void wait(size_t last) {
    fibers[current].copies.wait(last, [](const Copy &copy) { arrive(copy); });
}

// The elements of a box, in the order in which they lie in shared memory: `each(place, address, inside)`.
template <class Each> long long over_box(const Box &box, Each each) {
    const TensorMap &map = box.map;
    long long counts[5], all = 1;
    for (int d = 0; d < 5; d++) {
        counts[d] = d < map.rank ? (map.box[d] + map.steps[d] - 1) / map.steps[d] : 1;
        all *= counts[d];
    }
    for (long long number = 0; number < all; number++) {
        char *address = map.base;
        bool inside = true;
        long long rest = number;
        for (int d = 0; d < map.rank; d++) {
            const long long at = box.corner[d] + rest % counts[d] * map.steps[d];
            rest /= counts[d];
            inside &= at >= 0 && at < map.extents[d];
            address += at * (d ? map.strides[d] : map.element);
        }
        const size_t place = static_cast<size_t>(box.to - box.memory) + number * map.element;
        each(box.memory + (map.swizzle ? swizzled(place, map.swizzle) : place), address, inside);
    }
    return all;
}

void arrive(const Box &box) {
    const long long all = over_box(box, [&](char *place, char *address, bool inside) {
        if (inside && box.map.rounds) round_even(place, address);
        else if (inside) std::memcpy(place, address, box.map.element);
        else std::memset(place, 0, box.map.element);
    });
    box.signal->bytes -= static_cast<int>(all * box.map.element);
    check(*box.signal);
}

bool deliver() {  // the oldest box that is under way
    if (boxes.empty()) return false;
    const Box box = boxes.front();
    boxes.erase(boxes.begin());
    arrive(box);
    return true;
}

void start(const Box &box) {
    if (at_once) arrive(box);
    else boxes.push_back(box);
}

void start_product(const Started &product) {
    if (at_once) product.compute(product.d, product.a, product.b);
    else fibers[current].products.start(product);
}

void wait_products(size_t last) {
    fibers[current].products.wait(last, [](const Started &product) { product.compute(product.d, product.a, product.b); });
    meet_warp();  // it is a warp's instruction: nobody goes on before all of the warp have what they waited for
}

void leave(const Box &box) {
    over_box(box, [&](char *place, char *address, bool inside) {
        if (inside) std::memcpy(address, place, box.map.element);
    });
}

void start_leaving(const Box &box) {
    if (at_once) leave(box);
    fibers[current].leaving.start(box);
}

void wait_leaving(size_t last) {
    fibers[current].leaving.wait(last, [](const Box &box) {
        if (!at_once) leave(box);
    });
}

void enter() {
    body(arguments);
    Fiber &fiber = fibers[current];
    forsaken |= !fiber.leaving.empty();
    fiber.done = true;
    _longjmp(scheduler, 1);
}

bool resume(int thread) {
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
bool take_turns(int first, int number, bool backwards) {
    bool moved = false;
    for (int n = 0; n < number; n++) moved |= resume(first + (backwards ? number - 1 - n : n));
    return moved;
}

// The same for the threads of a block; a warp goes on as long as it can.
bool take_turns_of_warps(int first, bool backwards) {
    bool moved = false;
    for (int start = 0; start < count; start += WARP) {
        const int number = count - start < WARP ? count - start : WARP;
        while (take_turns(first + (backwards ? count - number - start : start), number, backwards)) moved = true;
    }
    return moved;
}

// 0: every thread came to its end; otherwise the number of threads that wait for one that never comes.
int run_blocks(bool backwards) {
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

int launch(
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

// The shapes that the header's names stand for.
template void ldmatrix<1, false>(unsigned *, const void *);
template void ldmatrix<2, false>(unsigned *, const void *);
template void ldmatrix<4, false>(unsigned *, const void *);
template void ldmatrix<1, true>(unsigned *, const void *);
template void ldmatrix<2, true>(unsigned *, const void *);
template void ldmatrix<4, true>(unsigned *, const void *);
template void mma_m16n8k16<half>(float *, float *, float *, float *, const unsigned *, const unsigned *);
template void mma_m16n8k16<nv_bfloat16>(float *, float *, float *, float *, const unsigned *, const unsigned *);
template void mma_quads<false, false>(float *, float *, float *, float *, float *, float *, float *, float *, const unsigned *, const unsigned *);
template void mma_quads<false, true>(float *, float *, float *, float *, float *, float *, float *, float *, const unsigned *, const unsigned *);
template void mma_quads<true, false>(float *, float *, float *, float *, float *, float *, float *, float *, const unsigned *, const unsigned *);
template void mma_quads<true, true>(float *, float *, float *, float *, float *, float *, float *, float *, const unsigned *, const unsigned *);

}  // namespace emulator

// What -fsanitize=alignment calls at an access whose address is no multiple of its type's alignment: the GPU refuses it.
extern "C" {
void __ubsan_handle_type_mismatch_v1(void *, void *) { emulator::misaligned = true; }
void __ubsan_handle_type_mismatch_v1_abort(void *, void *) { emulator::misaligned = true; }
}
