// The part of the emulator for signals, boxes that are copied by themselves, and products of warp groups; included by emulator.h.
// Boxes arrive when they are started, or when nobody can go on without them; products are computed when they are started, or when
// somebody waits for them. What is stored is seen at once by whoever reads: it is not noticed where a fence is missing.
static std::vector<Box> boxes;  // under way

inline size_t swizzled(size_t place, int row) {  // of a byte in shared memory
    return place ^ ((place >> 7 & (row / 16 - 1)) << 4);
}

inline void check(Signal &signal) {
    if (signal.pending || signal.bytes) return;
    signal.phase ^= 1, signal.seen = 0;
    signal.pending = signal.expected;
}

inline void begin(void *place, int arrivals) {
    Signal &signal = *static_cast<Signal *>(place);
    signal.bytes = 0, signal.phase = 0, signal.seen = 1;
    signal.expected = signal.pending = arrivals;
}

inline void arrive_at(void *place) {
    Signal &signal = *static_cast<Signal *>(place);
    unseen |= !signal.seen;
    signal.pending--;
    check(signal);
}

inline void expect(void *place, int bytes) { static_cast<Signal *>(place)->bytes += bytes; }

inline void await(void *place, int phase) {
    Fiber &fiber = fibers[current];
    Signal *signal = static_cast<Signal *>(place);
    fiber.signal = signal;
    fiber.phase = phase;
    if (signal->phase == phase) leave();
    fiber.signal = nullptr;
    signal->seen = 1;
}

// The elements of a box, in the order in which they lie in shared memory: `each(place, address, inside)`.
template <class Each> inline long long over_box(const Box &box, Each each) {
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

inline void arrive(const Box &box) {
    const long long all = over_box(box, [&](char *place, char *address, bool inside) {
        if (inside && box.map.rounds) round_even(place, address);
        else if (inside) std::memcpy(place, address, box.map.element);
        else std::memset(place, 0, box.map.element);
    });
    box.signal->bytes -= static_cast<int>(all * box.map.element);
    check(*box.signal);
}

inline bool deliver() {  // the oldest box that is under way
    if (boxes.empty()) return false;
    const Box box = boxes.front();
    boxes.erase(boxes.begin());
    arrive(box);
    return true;
}

inline void check_box(const char *place, const TensorMap &map, int first) {  // first: where it lies along rows, in elements: the GPU takes whole pieces of 16 bytes only
    if ((place - shared) % 128 || reinterpret_cast<uintptr_t>(map.base) % 16 || first * map.element % 16) misaligned = true;
    for (int d = 1; d < map.rank; d++) misaligned |= map.strides[d] % 16 != 0;
}

template <class... C> inline void copy_box(void *to, const void *map, void *signal, C... corner) {
    const Box box{static_cast<char *>(to), shared, *static_cast<const TensorMap *>(map), static_cast<Signal *>(signal), {corner...}};
    check_box(box.to, box.map, box.corner[0]);
    if (at_once) arrive(box);
    else boxes.push_back(box);
}

template <class T> inline T *there(T *place, int rank) {  // the same place in the memory of another block of the cluster
    return reinterpret_cast<T *>(blocks[rank].shared + (static_cast<char *>(static_cast<void *>(place)) - shared));
}

template <class... C> inline void spread_box(int ranks, void *to, const void *map, void *signal, C... corner) {
    for (int rank = 0; rank < ranks; rank++) {
        Box box{static_cast<char *>(to), shared, *static_cast<const TensorMap *>(map), static_cast<Signal *>(signal), {corner...}};
        check_box(box.to, box.map, box.corner[0]);
        box.to = there(box.to, rank), box.signal = there(box.signal, rank), box.memory = blocks[rank].shared;
        if (at_once) arrive(box);
        else boxes.push_back(box);
    }
}

// One element of an operand in rows of `row` bytes; `across` bytes further it goes on along the rows.
template <class T, class Sum, int row, int across, bool turned> inline Sum element(const void *at, int side, int depth) {
    const int down = turned ? depth : side, along = (turned ? side : depth) * static_cast<int>(sizeof(T));
    size_t place = static_cast<size_t>(static_cast<const char *>(at) - shared);
    place += turned ? along / row * across + along % row : along;
    place += down * row;
    T value;
    std::memcpy(&value, shared + swizzled(place, row), sizeof(T));
    return static_cast<Sum>(value);
}

template <class T, class Sum, int columns, int up, int over, int row_a, int across_a, int turned_a, int row_b, int across_b, int turned_b>
inline void wgmma(void *results, const void *a, const void *b) {
    constexpr int depth = 32 / sizeof(T);
    Sum *d = static_cast<Sum *>(results);
    const int lane = current % 128, first = lane / WARP * 16 + lane % WARP / 4;
    for (int lower = 0; lower < 2; lower++) {
        Sum left[depth];
        for (int k = 0; k < depth; k++) left[k] = element<T, Sum, row_a, across_a, turned_a>(a, first + 8 * lower, k);
        for (int one = 0; one < columns / 4; one++) {
            const int column = one / 2 * 8 + 2 * (lane % 4) + one % 2;
            Sum &sum = d[lower * up + one * over];
            for (int k = 0; k < depth; k++) sum += left[k] * element<T, Sum, row_b, across_b, turned_b>(b, column, k);
        }
    }
}

inline void start_product(const Started &product) {
    if (at_once) product.compute(product.d, product.a, product.b);
    else fibers[current].products.start(product);
}

inline void wait_products(size_t last) {
    fibers[current].products.wait(last, [](const Started &product) { product.compute(product.d, product.a, product.b); });
    meet_warp();  // it is a warp's instruction: nobody goes on before all of the warp have what they waited for
}

// Boxes that leave: read from shared memory when they are started, or when somebody waits until they have been.
inline void leave(const Box &box) {
    over_box(box, [&](char *place, char *address, bool inside) {
        if (inside) std::memcpy(address, place, box.map.element);
    });
}

template <class... C> inline void leave_box(const void *from, const void *map, C... corner) {
    const Box box{static_cast<char *>(const_cast<void *>(from)), shared, *static_cast<const TensorMap *>(map), nullptr, {corner...}};
    check_box(box.to, box.map, box.corner[0]);
    if (at_once) leave(box);
    fibers[current].leaving.start(box);
}

inline void wait_leaving(size_t last) {
    fibers[current].leaving.wait(last, [](const Box &box) {
        if (!at_once) leave(box);
    });
}
