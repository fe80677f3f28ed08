// The part of the emulator for signals, boxes that are copied by themselves, and products of warp groups; included by emulator.h.
// Boxes arrive when they are started, or when nobody can go on without them; products are computed when they are started, or when
// somebody waits for them. What is stored is seen at once by whoever reads: it is not noticed where a fence is missing.

inline size_t swizzled(size_t place, int row) {  // of a byte in shared memory
    return place ^ ((place >> 7 & (row / 16 - 1)) << 4);
}

void begin(void *place, int arrivals);
void arrive_at(void *place);
void expect(void *place, int bytes);

void await(void *place, int phase);
void start(const Box &box);  // a copy of a box into shared memory


inline void check_box(const char *place, const TensorMap &map, int first) {  // first: where it lies along rows, in elements: the GPU takes whole pieces of 16 bytes only
    if ((place - shared) % 128 || reinterpret_cast<uintptr_t>(map.base) % 16 || first * map.element % 16) misaligned = true;
    for (int d = 1; d < map.rank; d++) misaligned |= map.strides[d] % 16 != 0;
}

template <class... C> inline void copy_box(void *to, const void *map, void *signal, C... corner) {
    const Box box{static_cast<char *>(to), shared, *static_cast<const TensorMap *>(map), static_cast<Signal *>(signal), {corner...}};
    check_box(box.to, box.map, box.corner[0]);
    start(box);
}

template <class T> inline T *there(T *place, int rank) {  // the same place in the memory of another block of the cluster
    return reinterpret_cast<T *>(shared_of(rank) + (static_cast<char *>(static_cast<void *>(place)) - shared));
}

template <class... C> inline void spread_box(int ranks, void *to, const void *map, void *signal, C... corner) {
    for (int rank = 0; rank < ranks; rank++) {
        Box box{static_cast<char *>(to), shared, *static_cast<const TensorMap *>(map), static_cast<Signal *>(signal), {corner...}};
        check_box(box.to, box.map, box.corner[0]);
        box.to = there(box.to, rank), box.signal = there(box.signal, rank), box.memory = shared_of(rank);
        start(box);
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

void start_product(const Started &product);

void close_products();
void wait_products(size_t last);

// Boxes that leave: read from shared memory when they are started, or when somebody waits until they have been.
void start_leaving(const Box &box);

template <class... C> inline void leave_box(const void *from, const void *map, C... corner) {
    const Box box{static_cast<char *>(const_cast<void *>(from)), shared, *static_cast<const TensorMap *>(map), nullptr, {corner...}};
    check_box(box.to, box.map, box.corner[0]);
    start_leaving(box);
}

void close_leaving();
void wait_leaving(size_t last);
