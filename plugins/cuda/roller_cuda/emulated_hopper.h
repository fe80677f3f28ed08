// The part of the emulator for signals, boxes that are copied by themselves, and products of warp groups; included by emulator.h.
// Boxes arrive when they are started, or when nobody can go on without them; products are computed when they are started, or when
// somebody waits for them. What is stored is seen at once by whoever reads: it is not noticed where a fence is missing.
struct TensorMap {
    char *base;
    long long rank, element, swizzle, rounds;  // rounds: to tf32
    long long extents[5], strides[5], box[5], steps[5];  // strides in bytes, the innermost is one element
};

struct Box { char *to; TensorMap map; Signal *signal; int corner[5]; };

static std::vector<Box> boxes;  // under way

inline size_t swizzled(size_t place, int row) {  // of a byte in shared memory
    return place ^ ((place >> 7 & (row / 16 - 1)) << 4);
}

inline void check(Signal &signal) {
    if (signal.pending || signal.bytes) return;
    signal.phase ^= 1;
    signal.pending = signal.expected;
}

inline void begin(void *place, int arrivals) {
    Signal &signal = *static_cast<Signal *>(place);
    signal.bytes = 0, signal.phase = 0;
    signal.expected = signal.pending = static_cast<uint16_t>(arrivals);
}

inline void arrive_at(void *place) {
    Signal &signal = *static_cast<Signal *>(place);
    signal.pending--;
    check(signal);
}

inline void expect(void *place, int bytes) { static_cast<Signal *>(place)->bytes += bytes; }

inline void await(void *place, int phase) {
    Fiber &fiber = fibers[current];
    fiber.signal = static_cast<Signal *>(place);
    fiber.phase = phase;
    if (fiber.signal->phase == phase) leave();
    fiber.signal = nullptr;
}

inline void arrive(const Box &box) {
    const TensorMap &map = box.map;
    long long counts[5], all = 1;
    for (int d = 0; d < 5; d++) {
        counts[d] = d < map.rank ? (map.box[d] + map.steps[d] - 1) / map.steps[d] : 1;
        all *= counts[d];
    }
    for (long long number = 0; number < all; number++) {
        const char *from = map.base;
        bool inside = true;
        long long rest = number;
        for (int d = 0; d < map.rank; d++) {
            const long long at = box.corner[d] + rest % counts[d] * map.steps[d];
            rest /= counts[d];
            inside &= at >= 0 && at < map.extents[d];
            from += at * (d ? map.strides[d] : map.element);
        }
        const size_t place = static_cast<size_t>(box.to - shared) + number * map.element;
        char *to = shared + (map.swizzle ? swizzled(place, map.swizzle) : place);
        if (inside && map.rounds) round_even(to, from);
        else if (inside) std::memcpy(to, from, map.element);
        else std::memset(to, 0, map.element);
    }
    box.signal->bytes -= static_cast<int>(all * map.element);
    check(*box.signal);
}

inline bool deliver() {  // the oldest box that is under way
    if (boxes.empty()) return false;
    const Box box = boxes.front();
    boxes.erase(boxes.begin());
    arrive(box);
    return true;
}

template <class... C> inline void copy_box(void *to, const void *map, void *signal, C... corner) {
    Box box{static_cast<char *>(to), *static_cast<const TensorMap *>(map), static_cast<Signal *>(signal), {corner...}};
    if ((box.to - shared) % 128 || reinterpret_cast<uintptr_t>(box.map.base) % 16) misaligned = true;
    for (int d = 1; d < box.map.rank; d++) misaligned |= box.map.strides[d] % 16 != 0;
    if (at_once) arrive(box);
    else boxes.push_back(box);
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
    else fibers[current].products.push_back(product);
}

inline void close_products() {
    Fiber &fiber = fibers[current];
    fiber.product_groups.push_back(std::move(fiber.products));
    fiber.products.clear();
}

inline void wait_products(size_t last) {
    auto &groups = fibers[current].product_groups;
    for (; groups.size() > last; groups.erase(groups.begin()))
        for (const Started &product : groups.front()) product.compute(product.d, product.a, product.b);
}
