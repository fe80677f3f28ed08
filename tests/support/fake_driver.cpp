// A CUDA driver for tests: host memory poses as the GPUs', kernels run where the test says. It checks every call as the
// documentation of the driver's API demands it, keeps a log of them, and does work on streams as late as it may: only when somebody
// waits, the streams' operations in turn. What the driver would leave undefined goes to `faults`.
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

typedef int (*Run)(const char *kernel, void **arguments, unsigned blocks, unsigned threads);
struct Event { bool recorded = false, reached = false, timed = true; double at = 0; };
struct Image;
struct Operation { std::function<void()> work; Event *after; Image *of; };
struct Stream { int device; std::deque<Operation> waiting; };
struct Memory { size_t size; int device; bool pooled, leaving; };
struct Image { std::string bytes; bool loaded = true; };
struct Kernel { Image *image; std::string name; std::map<int, int> set; };
struct Plan { std::string parameters; int shared; };  // of a kernel: 'p' a pointer, 'm' a tensor map, 'l' and 'i' whole numbers
struct TensorMap {  // as the emulator of kernels reads it
    CUdeviceptr base;
    long long rank, element, swizzle, rounds, extents[5], strides[5], box[5], steps[5];
};
struct Encoded { std::string told; TensorMap map; };

static std::recursive_mutex one_at_a_time;
static int devices = 0, version = 12090;
static size_t capacity = 1 << 30;
static Run run_kernel;
static std::map<std::pair<int, int>, int> attributes;
static std::map<std::string, Plan> plans;
static std::map<std::string, std::pair<int, int>> failing;  // after so many calls: this status
static std::map<CUdeviceptr, Memory> memory;
static std::vector<std::string> calls, faults;
static std::set<Event *> events;
static std::vector<Stream *> streams;
static std::set<Kernel *> kernels;
static int contexts[8];  // their addresses are handles
static Stream legacy[8];
static thread_local std::vector<CUcontext> current;
static std::deque<Encoded> encoded;  // a map of 128 bytes holds the mark of the fake, and which of these it is
static const uint64_t MARK = 0x6d61702074657374;
static double milliseconds;  // that the work so far took: a kernel 1.25, everything else nothing

static CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(&contexts[device]); }
static int here() { return current.empty() || !current.back() ? -1 : int(reinterpret_cast<int *>(current.back()) - contexts); }
static const Encoded *encoded_at(CUdeviceptr place) {
    const auto *words = reinterpret_cast<const uint64_t *>(place);
    return place && words[0] == MARK && words[1] < encoded.size() ? &encoded[words[1]] : nullptr;
}
static CUresult fault(const std::string &what, CUresult status = CUDA_ERROR_INVALID_VALUE) { faults.push_back(what); return status; }

static CUresult begun(const char *name) {
    calls.push_back(name);
    auto found = failing.find(name);
    if (found != failing.end() && found->second.first-- == 0) { const int status = found->second.second; failing.erase(found); return CUresult(status); }
    return CUDA_SUCCESS;
}
#define BEGIN(name) std::lock_guard<std::recursive_mutex> guard(one_at_a_time); \
    if (const CUresult told = begun(#name)) return told
#define CONTEXT if (here() < 0) return CUDA_ERROR_INVALID_CONTEXT

static Stream *stream_of(CUstream handle) {
    if (handle == CU_STREAM_LEGACY) return &legacy[here()];
    if (!handle) { fault("stream 0 may be one a thread: say which"); return nullptr; }
    for (Stream *each : streams) if (reinterpret_cast<CUstream>(each) == handle) return each->device == here() ? each : nullptr;
    return nullptr;
}
#define ON(variable, handle) Stream *variable = stream_of(handle); if (!variable) return fault("no stream of this context", CUDA_ERROR_INVALID_HANDLE)

static std::map<CUdeviceptr, Memory>::iterator holding(CUdeviceptr address, size_t size) {
    auto found = memory.upper_bound(address);
    if (found == memory.begin()) return memory.end();
    --found;
    const bool inside = address - found->first + size <= found->second.size;
    return inside && !found->second.leaving && found->second.device == here() ? found : memory.end();
}
static bool step(Stream *stream) {  // one operation, if it may be done
    if (stream->waiting.empty()) return false;
    Operation &next = stream->waiting.front();
    if (next.after && next.after->recorded && !next.after->reached) return false;
    auto work = next.work;
    stream->waiting.pop_front();
    if (work) work();
    return true;
}
static std::vector<Stream *> all_streams() {
    std::vector<Stream *> every = streams;
    for (Stream &each : legacy) every.push_back(&each);
    return every;
}
static bool settle(const std::function<bool()> &done) {
    while (!done()) {
        bool moved = false;
        for (Stream *each : all_streams()) moved = step(each) || moved;
        if (!moved) { fault("streams wait for one another"); return false; }
    }
    return true;
}
static void enqueue(Stream *stream, std::function<void()> work, Event *after = nullptr, Image *of = nullptr) { stream->waiting.push_back({work, after, of}); }

// --- for the tests ---------------------------------------------------------------------------------------------------------
extern "C" {
void fake_reset(int count, Run run) {
    std::lock_guard<std::recursive_mutex> guard(one_at_a_time);
    devices = count; version = 12090; capacity = 1 << 30; run_kernel = run;
    attributes.clear(); plans.clear(); failing.clear(); calls.clear(); faults.clear(); encoded.clear(); current.clear();
    for (Stream *each : all_streams()) each->waiting.clear();
    for (Kernel *each : kernels) each->set.clear();
    for (auto &each : memory) std::free(reinterpret_cast<void *>(each.first));
    memory.clear();
    for (int device = 0; device < 8; device++) legacy[device].device = device;
}
void fake_version(int now) { version = now; }
void fake_take(double ms) { milliseconds += ms - 1.25; }  // what the kernel that runs takes instead
void fake_capacity(size_t bytes) { capacity = bytes; }
void fake_attribute(int device, int which, int value) { attributes[{device, which}] = value; }
void fake_plan(const char *kernel, const char *parameters, int shared) { plans[kernel] = {parameters, shared}; }
void fake_fail(const char *name, int after, int status) { failing[name] = {after, status}; }
const char *fake_call(size_t index) { return index < calls.size() ? calls[index].c_str() : nullptr; }
const char *fake_fault(size_t index) { return index < faults.size() ? faults[index].c_str() : nullptr; }
size_t fake_live(int device) { size_t n = 0; for (auto &each : memory) n += each.second.device == device && !each.second.leaving; return n; }
size_t fake_pending() { size_t n = 0; for (Stream *each : all_streams()) n += each->waiting.size(); return n; }
const char *fake_map(CUdeviceptr place) { const Encoded *found = encoded_at(place); return found ? found->told.c_str() : ""; }
size_t fake_held() { size_t n = events.size(); std::set<Image *> images; for (Kernel *k : kernels) if (k->image->loaded) images.insert(k->image); return n + images.size(); }
int fake_set(const char *kernel, int which) {  // of an attribute that a kernel was given; -1 where it was not
    for (Kernel *k : kernels) if (k->name == kernel && k->set.count(which)) return k->set[which];
    return -1;
}
void fake_current(int device) { current.clear(); if (device >= 0) current.push_back(context_of(device)); }
void fake_settle() { std::lock_guard<std::recursive_mutex> guard(one_at_a_time); settle([] { return fake_pending() == 0; }); }
int fake_device_of(CUdeviceptr address) { for (auto &m : memory) if (address >= m.first && address < m.first + m.second.size) return m.second.device; return -1; }

// --- the driver ------------------------------------------------------------------------------------------------------------
CUresult cuInit(unsigned) { BEGIN(cuInit); return devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
CUresult cuDriverGetVersion(int *v) { BEGIN(cuDriverGetVersion); *v = version; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *n) { BEGIN(cuDeviceGetCount); *n = devices; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *d, int n) { BEGIN(cuDeviceGet); if (n < 0 || n >= devices) return CUDA_ERROR_INVALID_DEVICE; *d = n; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) { BEGIN(cuDeviceGetAttribute); *v = attributes[{d, int(a)}]; return CUDA_SUCCESS; }
CUresult cuDeviceTotalMem(size_t *v, CUdevice d) { BEGIN(cuDeviceTotalMem); *v = size_t(attributes[{d, -1}]) << 20; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int size, CUdevice) { BEGIN(cuDeviceGetName); std::snprintf(name, size, "NVIDIA Test"); return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { BEGIN(cuDevicePrimaryCtxRetain); *c = context_of(d); return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *c) { BEGIN(cuCtxGetCurrent); *c = current.empty() ? nullptr : current.back(); return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *d) { BEGIN(cuCtxGetDevice); CONTEXT; *d = here(); return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext c) { BEGIN(cuCtxPushCurrent); current.push_back(c); return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext *c) { BEGIN(cuCtxPopCurrent); CONTEXT; *c = current.back(); current.pop_back(); return CUDA_SUCCESS; }
CUresult cuCtxSynchronize() {
    BEGIN(cuCtxSynchronize); CONTEXT;
    const int device = here();
    return settle([device] { for (Stream *s : all_streams()) if (s->device == device && !s->waiting.empty()) return false; return true; })
               ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
CUresult cuStreamCreate(CUstream *s, unsigned) { BEGIN(cuStreamCreate); CONTEXT; streams.push_back(new Stream{here(), {}}); *s = reinterpret_cast<CUstream>(streams.back()); return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream s) { BEGIN(cuStreamSynchronize); CONTEXT; ON(stream, s); settle([stream] { return stream->waiting.empty(); }); return CUDA_SUCCESS; }
CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned) {
    BEGIN(cuStreamWaitEvent); CONTEXT; ON(stream, s);
    enqueue(stream, nullptr, reinterpret_cast<Event *>(e));
    return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream s, CUcontext *c) { BEGIN(cuStreamGetCtx); ON(stream, s); *c = context_of(stream->device); return CUDA_SUCCESS; }
CUresult cuEventCreate(CUevent *e, unsigned flags) { BEGIN(cuEventCreate); CONTEXT; auto *made = new Event; made->timed = !(flags & CU_EVENT_DISABLE_TIMING); events.insert(made); *e = reinterpret_cast<CUevent>(made); return CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent e, CUstream s) {
    BEGIN(cuEventRecord); CONTEXT; ON(stream, s);
    auto *event = reinterpret_cast<Event *>(e);
    event->recorded = true; event->reached = false;
    enqueue(stream, [event] { event->reached = true; event->at = milliseconds; });
    return CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent e) { BEGIN(cuEventQuery); auto *event = reinterpret_cast<Event *>(e); return !event->recorded || event->reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }
CUresult cuEventElapsedTime(float *taken, CUevent first, CUevent second) {
    BEGIN(cuEventElapsedTime);
    const auto *a = reinterpret_cast<Event *>(first), *b = reinterpret_cast<Event *>(second);
    if (!a->timed || !b->timed) return fault("an event that keeps no time", CUDA_ERROR_INVALID_HANDLE);
    if (!a->reached || !b->reached) return CUDA_ERROR_NOT_READY;
    *taken = float(b->at - a->at);
    return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent e) { BEGIN(cuEventDestroy); return events.erase(reinterpret_cast<Event *>(e)) ? CUDA_SUCCESS : fault("no such event"); }

static CUresult given(CUdeviceptr *p, size_t size, bool pooled) {
    size_t used = 0;
    for (auto &each : memory) used += each.second.size;
    if (!size) return CUDA_ERROR_INVALID_VALUE;
    if (used + size > capacity) return CUDA_ERROR_OUT_OF_MEMORY;
    void *room = std::aligned_alloc(256, (size + 255) / 256 * 256);
    std::memset(room, 0xFF, size);  // a NaN of every floating type
    *p = reinterpret_cast<CUdeviceptr>(room);
    memory[*p] = {size, here(), pooled, false};
    return CUDA_SUCCESS;
}
static void gone(CUdeviceptr p) { memory.erase(p); std::free(reinterpret_cast<void *>(p)); }
CUresult cuMemPoolCreate(CUmemoryPool *p, const CUmemPoolProps *props) {
    BEGIN(cuMemPoolCreate);
    if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    *p = reinterpret_cast<CUmemoryPool>(&contexts[props->location.id]);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute a, void *v) {
    BEGIN(cuMemPoolSetAttribute);
    return a == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && *static_cast<cuuint64_t *>(v) == ~0ull ? CUDA_SUCCESS : fault("the pool's threshold");
}
CUresult cuMemPoolTrimTo(CUmemoryPool, size_t) { BEGIN(cuMemPoolTrimTo); return CUDA_SUCCESS; }
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t size, CUmemoryPool pool, CUstream s) {
    BEGIN(cuMemAllocFromPoolAsync); CONTEXT; ON(stream, s);
    if (pool != reinterpret_cast<CUmemoryPool>(&contexts[here()])) return fault("a pool of another GPU");
    return given(p, size, true);
}
CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) {
    BEGIN(cuMemFreeAsync); CONTEXT; ON(stream, s);
    auto found = memory.find(p);
    if (found == memory.end() || found->second.leaving) return fault("freed what is not there");
    found->second.leaving = true;
    enqueue(stream, [p] { gone(p); });
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr *p, size_t size) { BEGIN(cuMemAlloc); CONTEXT; return given(p, size, false); }
CUresult cuMemFree(CUdeviceptr p) {
    BEGIN(cuMemFree); CONTEXT;
    if (!memory.count(p) || memory[p].pooled) return fault("freed what is not there");
    gone(p);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size) {
    BEGIN(cuMemcpyHtoD); CONTEXT;
    if (holding(to, size) == memory.end()) return fault("copied beyond memory");
    std::memcpy(reinterpret_cast<void *>(to), from, size);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream s) {
    BEGIN(cuMemcpyHtoDAsync); CONTEXT; ON(stream, s);
    if (holding(to, size) == memory.end()) return fault("copied beyond memory");
    enqueue(stream, [=] { std::memcpy(reinterpret_cast<void *>(to), from, size); });
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream s) {
    BEGIN(cuMemcpyDtoHAsync); CONTEXT; ON(stream, s);
    if (holding(from, size) == memory.end()) return fault("copied from beyond memory");
    enqueue(stream, [=] { std::memcpy(to, reinterpret_cast<void *>(from), size); });
    return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t size, CUstream s) {
    BEGIN(cuMemsetD8Async); CONTEXT; ON(stream, s);
    if (holding(to, size) == memory.end()) return fault("set beyond memory");
    enqueue(stream, [=] { std::memset(reinterpret_cast<void *>(to), byte, size); });
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream s) {
    BEGIN(cuMemcpyDtoDAsync); CONTEXT; ON(stream, s);
    if (holding(from, size) == memory.end() || holding(to, size) == memory.end()) return fault("copied beyond memory");
    enqueue(stream, [=] { std::memcpy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), size); });
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *v, CUpointer_attribute a, CUdeviceptr p) {
    BEGIN(cuPointerGetAttribute);
    const int device = fake_device_of(p);
    if (device < 0) return CUDA_ERROR_INVALID_VALUE;
    const unsigned value = a == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? CU_MEMORYTYPE_DEVICE : a == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? device : 0;
    std::memcpy(v, &value, sizeof value);
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *which, void **to, CUdeviceptr p) {
    BEGIN(cuPointerGetAttributes);
    for (unsigned i = 0; i < n; i++) if (cuPointerGetAttribute(to[i], which[i], p)) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

// A cubin is an ELF file whose flags say for which architecture it is.
CUresult cuLibraryLoadData(CUlibrary *l, const void *code, CUjit_option *, void **, unsigned, CUlibraryOption *, void **, unsigned) {
    BEGIN(cuLibraryLoadData);
    const char *image = static_cast<const char *>(code);
    if (std::memcmp(image, "\x7f" "ELF", 4)) return CUDA_ERROR_INVALID_IMAGE;
    const int arch = static_cast<unsigned char>(image[48]);
    const int major = attributes[{here(), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR}], minor = attributes[{here(), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR}];
    if (arch / 10 != major || arch % 10 > minor) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    *l = reinterpret_cast<CUlibrary>(new Image);
    return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary l) {
    BEGIN(cuLibraryUnload); CONTEXT;
    auto *image = reinterpret_cast<Image *>(l);
    if (!image->loaded) return fault("unloaded twice");
    image->loaded = false;
    for (Stream *each : all_streams()) for (Operation &one : each->waiting) if (one.of == image) return fault("unloaded while a kernel waits");
    return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel *k, CUlibrary l, const char *name) {
    BEGIN(cuLibraryGetKernel);
    if (!plans.count(name)) return CUDA_ERROR_NOT_FOUND;
    auto *made = new Kernel{reinterpret_cast<Image *>(l), name, {}};
    kernels.insert(made);
    *k = reinterpret_cast<CUkernel>(made);
    return CUDA_SUCCESS;
}
CUresult cuKernelGetAttribute(int *v, CUfunction_attribute a, CUkernel k, CUdevice) {
    BEGIN(cuKernelGetAttribute);
    *v = a == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES ? plans[reinterpret_cast<Kernel *>(k)->name].shared : 1024;
    return CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute a, int v, CUkernel k, CUdevice) { BEGIN(cuKernelSetAttribute); reinterpret_cast<Kernel *>(k)->set[a] = v; return CUDA_SUCCESS; }

static CUresult started(CUfunction f, const CUlaunchConfig &c, int cluster, void **parameters) {
    CONTEXT; ON(stream, c.hStream);
    auto *kernel = reinterpret_cast<Kernel *>(f);
    if (!kernels.count(kernel) || !kernel->image->loaded) return fault("no kernel, or no longer", CUDA_ERROR_INVALID_HANDLE);
    const unsigned most = attributes[{here(), CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X}];
    if (!c.gridDimX || c.gridDimX > most || !c.blockDimX || c.blockDimX > 1024 || c.gridDimY != 1 || c.gridDimZ != 1) return fault("a grid past limits");
    const int allowed = kernel->set.count(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) ? kernel->set[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] : 48 << 10;
    if (int(c.sharedMemBytes) > allowed) return fault("more shared memory than was asked for");
    if (c.gridDimX % cluster || (cluster > 8 && !kernel->set[CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED])) return fault("clusters");
    std::vector<void *> passed;
    for (size_t i = 0; i < plans[kernel->name].parameters.size(); i++) {
        const char kind = plans[kernel->name].parameters[i];
        if (kind == 'm') {
            const CUdeviceptr at = reinterpret_cast<CUdeviceptr>(parameters[i]);
            const Encoded *map = at % 64 ? nullptr : encoded_at(at);
            if (!map || holding(map->map.base, 1) == memory.end()) return fault("no tensor map");
            passed.push_back(const_cast<TensorMap *>(&map->map));
            continue;
        }
        if (kind == 'l' || kind == 'i') {
            passed.push_back(reinterpret_cast<void *>(kind == 'l' ? *static_cast<int64_t *>(parameters[i]) : *static_cast<int32_t *>(parameters[i])));
            continue;
        }
        const CUdeviceptr address = *static_cast<CUdeviceptr *>(parameters[i]);
        if (address % 16 || holding(address, 1) == memory.end()) return fault("a kernel's argument points nowhere", CUDA_ERROR_ILLEGAL_ADDRESS);
        passed.push_back(reinterpret_cast<void *>(address));
    }
    const std::string name = kernel->name;
    calls.push_back("kernel " + name + " cluster " + std::to_string(cluster));
    const unsigned blocks = c.gridDimX, threads = c.blockDimX;
    enqueue(stream, [=]() mutable { milliseconds += 1.25; if (run_kernel(name.c_str(), passed.data(), blocks, threads)) fault("kernel " + name + " failed"); }, nullptr, kernel->image);
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **parameters, void **) {
    BEGIN(cuLaunchKernel);
    CUlaunchConfig config = {gx, gy, gz, bx, by, bz, shared, s, nullptr, 0};
    return started(f, config, 1, parameters);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters, void **) {
    BEGIN(cuLaunchKernelEx);
    if (c->numAttrs != 1 || c->attrs[0].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION || c->attrs[0].value.clusterDim.y != 1) return fault("launch attributes");
    return started(f, *c, c->attrs[0].value.clusterDim.x, parameters);
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *at, const cuuint64_t *extents, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    BEGIN(cuTensorMapEncodeTiled);
    const CUdeviceptr place = reinterpret_cast<CUdeviceptr>(map), address = reinterpret_cast<CUdeviceptr>(at);
    if (place % 64 || address % 16 || !rank || rank > 5) return fault("a tensor map that cannot be");
    static const int bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    Encoded made = {"type " + std::to_string(type) + " swizzle " + std::to_string(swizzle) + " interleave " + std::to_string(interleave) +
                        " promotion " + std::to_string(promotion) + " fill " + std::to_string(fill),
                    {address, rank, bytes[type], swizzle ? 16 << swizzle : 0, type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, {}, {}, {}, {}}};
    for (unsigned i = 0; i < rank; i++) {
        const cuuint64_t stride = i ? strides[i - 1] : 0;
        made.told += " | " + std::to_string(extents[i]) + " by " + (i ? std::to_string(stride) : "-") + " box " + std::to_string(box[i]) + " step " + std::to_string(steps[i]);
        made.map.extents[i] = extents[i], made.map.strides[i] = stride, made.map.box[i] = box[i], made.map.steps[i] = steps[i];
    }
    const uint64_t words[] = {MARK, encoded.size()};
    encoded.push_back(made);
    std::memset(map, 0, sizeof *map);
    std::memcpy(map, words, sizeof words);
    return CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void **, const CUuuid *) { return CUDA_ERROR_NOT_FOUND; }  // NVRTC looks for its cache there

#define NAMED(name) {#name, reinterpret_cast<void *>(name)}
CUresult cuGetProcAddress(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
static const std::map<std::string, void *> &functions() {
    static const std::map<std::string, void *> all = {
        NAMED(cuInit), NAMED(cuDriverGetVersion), NAMED(cuDeviceGetCount), NAMED(cuDeviceGet), NAMED(cuDeviceGetAttribute), NAMED(cuDeviceTotalMem), NAMED(cuDeviceGetName),
        NAMED(cuDevicePrimaryCtxRetain), NAMED(cuCtxGetCurrent), NAMED(cuCtxGetDevice), NAMED(cuCtxPushCurrent), NAMED(cuCtxPopCurrent),
        NAMED(cuCtxSynchronize), NAMED(cuStreamCreate), NAMED(cuStreamSynchronize), NAMED(cuStreamWaitEvent), NAMED(cuStreamGetCtx), NAMED(cuEventCreate),
        NAMED(cuEventRecord), NAMED(cuEventElapsedTime), NAMED(cuMemsetD8Async), NAMED(cuEventQuery), NAMED(cuEventDestroy), NAMED(cuMemPoolCreate), NAMED(cuMemPoolSetAttribute), NAMED(cuMemPoolTrimTo),
        NAMED(cuMemAllocFromPoolAsync), NAMED(cuMemFreeAsync), NAMED(cuMemAlloc), NAMED(cuMemFree), NAMED(cuMemcpyHtoD), NAMED(cuMemcpyHtoDAsync),
        NAMED(cuMemcpyDtoHAsync), NAMED(cuMemcpyDtoDAsync), NAMED(cuPointerGetAttribute), NAMED(cuPointerGetAttributes), NAMED(cuLibraryLoadData),
        NAMED(cuLibraryUnload), NAMED(cuLibraryGetKernel), NAMED(cuKernelGetAttribute), NAMED(cuKernelSetAttribute), NAMED(cuLaunchKernel),
        NAMED(cuLaunchKernelEx), NAMED(cuTensorMapEncodeTiled), NAMED(cuGetProcAddress)};
    return all;
}
CUresult cuGetProcAddress(const char *name, void **to, int, cuuint64_t, CUdriverProcAddressQueryResult *how) {
    auto found = functions().find(name);
    *to = found == functions().end() ? nullptr : found->second;
    if (how) *how = *to ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *to ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
}
