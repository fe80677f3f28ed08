// A driver without a GPU, for tests: device memory is the host's, kernels are functions that the test hands over, time is a counter.
// It refuses what a driver refuses: unknown handles, calls without a context, launches beyond limits or without the attributes they need.
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

using Kernel = int (*)(void **arguments, int blocks, int threads);  // gives a result code: what goes wrong while it runs
struct Image { std::string data, kernel; int arguments; Kernel run; };  // one of a binary's kernels
struct TensorMap { uint64_t base; long long rank, element, swizzle, rounds, extents[5], strides[5], box[5], steps[5]; };  // as the emulator reads it
struct Function { const Image *image; int shared = 48 << 10, carved = -1; bool wide = false; };
struct Event { double at = -1; bool done = false; };
struct Attribute { int id, pad; unsigned x, y, z; unsigned char rest[52]; };
struct Config { unsigned grid[3], block[3], shared; void *stream; Attribute *attributes; unsigned count; };
static_assert(sizeof(Attribute) == 72 && sizeof(Config) == 56, "as in cuda.h");

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, INVALID_IMAGE = 200, INVALID_HANDLE = 400, NOT_FOUND = 500,
       NOT_READY = 600, ILLEGAL_ADDRESS = 700 };
static const std::map<int, const char *> NAMES = {
    {1, "CUDA_ERROR_INVALID_VALUE"}, {3, "CUDA_ERROR_NOT_INITIALIZED"}, {200, "CUDA_ERROR_INVALID_IMAGE"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"}, {400, "CUDA_ERROR_INVALID_HANDLE"}, {500, "CUDA_ERROR_NOT_FOUND"},
    {600, "CUDA_ERROR_NOT_READY"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}};

static std::deque<Image> images;
static std::deque<TensorMap> maps;  // a map of 128 bytes holds the address of its array, the mark of the fake, and which of these it is
static const uint64_t MARK = 0x6d61702074657374;
static std::set<const Image **> modules;
static std::set<Function *> functions;
static std::set<Event *> events;
static bool initialised, current;
static int lost, pending;  // a code that every call gives from now on; one that the next wait gives
static double milliseconds;
static std::map<int, int> attributes = {{16, 108}, {38, 1 << 20}, {75, 8}, {76, 0}, {13, 1410000}, {36, 1215000}, {97, 166912}};
static size_t memory_bytes = size_t(40) << 30;
static std::string calls;
static int carved = -1;  // what the kernel that was launched last prefers

#define ENTER(name) calls += name " "; if (!initialised) return NOT_INITIALIZED; if (lost) return lost
#define IN_CONTEXT(name) ENTER(name); if (!current) return INVALID_CONTEXT

static int launched(Function *f, const unsigned *grid, const unsigned *block, unsigned shared, unsigned cluster, void **given) {
    if (!functions.count(f)) return INVALID_HANDLE;
    uint64_t threads = uint64_t(block[0]) * block[1] * block[2];
    if (!threads || threads > 1024 || !grid[0] || grid[0] > 0x7fffffffu || grid[1] != 1 || grid[2] != 1) return INVALID_VALUE;
    if (shared > unsigned(f->shared)) return INVALID_VALUE;
    if (!cluster || grid[0] % cluster || (cluster > 8 && !f->wide) || cluster > 16) return INVALID_VALUE;
    if (!given) return INVALID_VALUE;
    milliseconds += 0.01;
    carved = f->carved;
    pending = f->image->run(given, int(grid[0]), int(threads));
    return OK;
}

extern "C" {
// What the test says.
void fake_image(const char *data, size_t size, const char *kernel, int arguments, Kernel run) {
    images.push_back({std::string(data, size), kernel, arguments, run});
}
const char *fake_calls() { static std::string said; said.swap(calls); calls.clear(); return said.c_str(); }
void fake_attribute(int number, int value) { attributes[number] = value; }
void fake_memory(size_t bytes) { memory_bytes = bytes; }
void fake_take(double ms) { milliseconds += ms - 0.01; }  // what the kernel that runs takes, instead of the 0.01 ms of every launch
const void *fake_map(const void *map) {
    uint64_t words[3];
    memcpy(words, map, sizeof words);
    return words[1] == MARK && words[2] < maps.size() && maps[words[2]].base == words[0] ? &maps[words[2]] : nullptr;
}
int fake_carved() { return carved; }
int fake_alive() { return int(modules.size()); }

// What the driver has.
int cuGetErrorName(int code, const char **text) { *text = NAMES.count(code) ? NAMES.at(code) : nullptr; return OK; }
int cuGetErrorString(int, const char **text) { *text = "said by the fake"; return OK; }
int cuInit(unsigned flags) { initialised = true; return flags ? INVALID_VALUE : OK; }
int cuDriverGetVersion(int *version) { *version = 12090; return OK; }
int cuDeviceGet(int *device, int ordinal) { ENTER("cuDeviceGet"); *device = 0; return ordinal ? 101 : OK; }
int cuDeviceGetName(char *name, int size, int) { strncpy(name, "Fake GPU", size); return OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int) { *bytes = memory_bytes; return OK; }
int cuDeviceGetAttribute(int *value, int number, int) {
    ENTER("cuDeviceGetAttribute");
    if (!attributes.count(number)) return INVALID_VALUE;
    *value = attributes.at(number);
    return OK;
}
int cuDevicePrimaryCtxRetain(void **context, int) { ENTER("cuDevicePrimaryCtxRetain"); *context = &current; return OK; }
int cuDevicePrimaryCtxRelease_v2(int) { ENTER("cuDevicePrimaryCtxRelease"); current = false; return OK; }
int cuCtxSetCurrent(void *context) { ENTER("cuCtxSetCurrent"); current = context == &current; return current ? OK : INVALID_CONTEXT; }

int cuModuleLoadData(void **module, const char *data) {
    IN_CONTEXT("cuModuleLoadData");
    for (const Image &image : images)
        if (!memcmp(image.data.data(), data, image.data.size())) {
            auto *made = new const Image *(&image);
            modules.insert(made);
            *module = made;
            return OK;
        }
    return INVALID_IMAGE;
}
int cuModuleUnload(void *module) {
    IN_CONTEXT("cuModuleUnload");
    return modules.erase(static_cast<const Image **>(module)) ? OK : INVALID_HANDLE;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    IN_CONTEXT("cuModuleGetFunction");
    auto *found = static_cast<const Image **>(module);
    if (!modules.count(found)) return INVALID_HANDLE;
    for (const Image &image : images)
        if (image.data == (*found)->data && image.kernel == name) {
            auto *made = new Function{&image};
            functions.insert(made);
            *function = made;
            return OK;
        }
    return NOT_FOUND;
}
int cuFuncSetAttribute(void *function, int number, int value) {
    IN_CONTEXT("cuFuncSetAttribute");
    auto *f = static_cast<Function *>(function);
    if (!functions.count(f)) return INVALID_HANDLE;
    if (number == 8 && value <= attributes.at(97)) f->shared = value;
    else if (number == 9 && value >= -1 && value <= 100) f->carved = value;
    else if (number == 14) f->wide = value;
    else return INVALID_VALUE;
    return OK;
}
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *,
                   void **given, void **extra) {
    IN_CONTEXT("cuLaunchKernel");
    unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    return extra ? INVALID_VALUE : launched(static_cast<Function *>(f), grid, block, shared, 1, given);
}
int cuLaunchKernelEx(const Config *config, void *f, void **given, void **) {
    IN_CONTEXT("cuLaunchKernelEx");
    if (config->count != 1 || config->attributes->id != 4 || config->attributes->y != 1 || config->attributes->z != 1) return INVALID_VALUE;
    return launched(static_cast<Function *>(f), config->grid, config->block, config->shared, config->attributes->x, given);
}
int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *extents, const uint64_t *strides,
                           const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int outside) {
    IN_CONTEXT("cuTensorMapEncodeTiled");
    static const int bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    if (uintptr_t(map) % 64 || uintptr_t(address) % 16 || type < 0 || type > 12 || rank < 1 || rank > 5) return INVALID_VALUE;
    if (interleave || outside || promotion != 3 || swizzle < 0 || swizzle > 3) return INVALID_VALUE;
    for (uint32_t n = 0; n < rank; ++n)
        if (!extents[n] || !box[n] || box[n] > 256 || !steps[n] || (n + 1 < rank && strides[n] % 16)) return INVALID_VALUE;
    if (swizzle && box[0] * bytes[type] > 16u << swizzle) return INVALID_VALUE;
    TensorMap made = {uint64_t(address), rank, bytes[type], swizzle ? 16 << swizzle : 0, type == 11, {}, {}, {}, {}};
    for (uint32_t n = 0; n < rank; ++n) {
        made.extents[n] = extents[n], made.box[n] = box[n], made.steps[n] = steps[n];
        made.strides[n] = n ? strides[n - 1] : 0;
    }
    const uint64_t words[] = {made.base, MARK, maps.size()};
    maps.push_back(made);
    memset(map, 0, 128);
    memcpy(map, words, sizeof words);
    return OK;
}

int cuEventCreate(void **event, unsigned) { IN_CONTEXT("cuEventCreate"); *event = *events.insert(new Event).first; return OK; }
int cuEventDestroy_v2(void *event) { IN_CONTEXT("cuEventDestroy"); return events.erase(static_cast<Event *>(event)) ? OK : INVALID_HANDLE; }
int cuEventRecord(void *event, void *) {
    IN_CONTEXT("cuEventRecord");
    auto *e = static_cast<Event *>(event);
    if (!events.count(e)) return INVALID_HANDLE;
    e->at = milliseconds += 0.001;
    e->done = false;
    return OK;
}
int cuEventElapsedTime(float *taken, void *first, void *second) {
    IN_CONTEXT("cuEventElapsedTime");
    auto *a = static_cast<Event *>(first), *b = static_cast<Event *>(second);
    if (!events.count(a) || !events.count(b)) return INVALID_HANDLE;
    if (!a->done || !b->done) return NOT_READY;
    *taken = float(b->at - a->at);
    return OK;
}
int cuMemsetD8Async(uint64_t address, unsigned char byte, size_t size, void *) {
    IN_CONTEXT("cuMemsetD8Async");
    memset(reinterpret_cast<void *>(address), byte, size);
    milliseconds += 0.1;
    return OK;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    IN_CONTEXT("cuMemcpyDtoH");
    memcpy(to, reinterpret_cast<const void *>(from), size);
    return OK;
}
int cuStreamQuery(void *) {
    IN_CONTEXT("cuStreamQuery");
    return pending == NOT_READY ? NOT_READY : OK;
}
int cuStreamSynchronize(void *) {
    IN_CONTEXT("cuStreamSynchronize");
    for (Event *e : events) e->done = e->at >= 0;
    int code = pending;
    pending = OK;
    if (code == ILLEGAL_ADDRESS) lost = code;
    return code;
}
}
