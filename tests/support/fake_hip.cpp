// HIP's runtime for tests, without a GPU: host memory poses as the GPUs', kernels run where the test says. Every call is logged and
// held against what HIP's documentation asks for; what it would leave undefined goes to `faults`. Work on streams is done as late as
// it may be: when somebody waits, the streams in turn.
#include <unistd.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

enum Status { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200, NO_BINARY = 209,
              INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, UNKNOWN = 999 };
static const std::map<int, const char *> NAMES = {
    {0, "hipSuccess"}, {1, "hipErrorInvalidValue"}, {2, "hipErrorOutOfMemory"}, {3, "hipErrorNotInitialized"}, {9, "hipErrorInvalidConfiguration"},
    {35, "hipErrorInsufficientDriver"}, {100, "hipErrorNoDevice"}, {101, "hipErrorInvalidDevice"}, {200, "hipErrorInvalidImage"},
    {209, "hipErrorNoBinaryForGpu"}, {303, "hipErrorSharedObjectInitFailed"}, {400, "hipErrorInvalidHandle"}, {500, "hipErrorNotFound"},
    {600, "hipErrorNotReady"}, {700, "hipErrorIllegalAddress"}, {701, "hipErrorLaunchOutOfResources"}, {719, "hipErrorLaunchFailure"},
    {999, "hipErrorUnknown"}};
typedef uintptr_t Handle;
typedef int (*Run)(const char *kernel, void **arguments, unsigned blocks, unsigned threads);
struct Event { bool recorded = false, reached = false, timing = true; double at = 0; };
struct Operation { std::function<void()> work; std::shared_ptr<Event> after; Handle module; };
struct Stream { int device; std::deque<Operation> waiting; };
struct Memory { size_t size; int device; bool ours; };
struct Module { int device; std::string image; };
struct Kernel { Handle module; std::string name; };
struct Plan { int arguments, lds, lanes; };
struct Device { std::string arch; unsigned mach; size_t memory; std::map<int, int> attributes; };

static std::recursive_mutex one_at_a_time;
static pid_t process;
static int version;
static size_t capacity;
static Run run_kernel;
static std::vector<Device> devices;
static std::map<std::pair<std::string, std::string>, Plan> plans;  // of a code object, or of any, by the name of a kernel
static std::map<std::string, std::pair<int, int>> failing;  // after so many calls: this status
static std::map<Handle, Memory> memory;
static std::map<Handle, std::shared_ptr<Event>> events;
static std::map<Handle, Stream> streams;  // those of the default are 1, 2, ...
static std::map<Handle, Module> modules;
static std::map<Handle, Kernel> kernels;
static std::vector<std::string> calls, faults;
static Handle last_handle = 0x10000;
static Handle captured, nothing;
static std::string running;  // the code object of the kernel that runs
static double milliseconds;
static int lost;  // what everybody who waits is told: a kernel failed
static thread_local int here = 0;
static const size_t GUARD = 64;

static int fault(const std::string &what, int status = INVALID_VALUE) { faults.push_back(what); return status; }
static Handle named() { return last_handle += 16; }
static int begun(const char *name) {
    if (getpid() != process) fault(std::string(name) + " in a forked process");
    calls.push_back(name);
    auto found = failing.find(name);
    if (found == failing.end() || found->second.first-- > 0) return OK;
    const int status = found->second.second;
    failing.erase(found);
    return status;
}
#define BEGIN(name) std::lock_guard<std::recursive_mutex> guard(one_at_a_time); if (const int told = begun(#name)) return told
#define GPU if (devices.empty()) return NO_DEVICE
#define OF(device) if ((device) < 0 || (device) >= int(devices.size())) return INVALID_DEVICE

static Stream *stream_of(Handle handle) {
    auto found = streams.find(handle ? handle : Handle(1 + here));
    return found == streams.end() || found->second.device != here ? nullptr : &found->second;
}
#define ON(variable, handle) Stream *variable = stream_of(handle); if (!variable) return fault("no stream of this GPU", INVALID_HANDLE)

static void enqueue(Stream *stream, std::function<void()> work, std::shared_ptr<Event> after = nullptr, Handle module = 0) {
    stream->waiting.push_back({work, after, module});
}
static bool step(Stream &stream) {  // one operation, if it may be done
    if (stream.waiting.empty()) return false;
    Operation next = stream.waiting.front();
    if (next.after && next.after->recorded && !next.after->reached) return false;
    stream.waiting.pop_front();
    if (next.work) next.work();
    return true;
}
static bool settled(const std::function<bool()> &done) {
    while (!done()) {
        bool moved = false;
        for (auto &each : streams) moved = step(each.second) || moved;
        if (!moved) { fault("streams wait for one another"); return false; }
    }
    return true;
}

static const Plan *plan_of(const std::string &image, const std::string &name) {
    auto found = plans.find({image, name});
    if (found == plans.end()) found = plans.find({"", name});
    return found == plans.end() ? nullptr : &found->second;
}
static const Plan &plan_of(Handle function) { const Kernel &kernel = kernels.at(function); return *plan_of(modules.at(kernel.module).image, kernel.name); }
static std::string image_of(const unsigned char *code) {
    uint64_t start; uint16_t size, count;
    std::memcpy(&start, code + 40, 8), std::memcpy(&size, code + 58, 2), std::memcpy(&count, code + 60, 2);
    return std::string(reinterpret_cast<const char *>(code), start + size * count);
}

static Handle given(size_t size, bool ours) {
    const size_t room = (size + GUARD + 255) / 256 * 256;
    void *place = std::aligned_alloc(256, room);
    std::memset(place, 0xFF, room);  // a NaN of every floating type
    memory[Handle(place)] = {size, here, ours};
    return Handle(place);
}
static void gone(Handle place) {
    const Memory &one = memory.at(place);
    const unsigned char *end = reinterpret_cast<unsigned char *>(place) + one.size;
    for (size_t n = 0; n < GUARD; n++) if (end[n] != 0xFF) { fault("written beyond memory"); break; }
    memory.erase(place);
    std::free(reinterpret_cast<void *>(place));
}
static bool inside(Handle address, size_t size) {
    auto found = memory.upper_bound(address);
    if (found == memory.begin()) return false;
    --found;
    return address - found->first + size <= found->second.size && found->second.device == here;
}

// --- for the tests ---------------------------------------------------------------------------------------------------------
extern "C" {
void fake_reset(int count, Run run) {
    std::lock_guard<std::recursive_mutex> guard(one_at_a_time);
    process = getpid(), version = 60'342'134, capacity = size_t(1) << 30, run_kernel = run, here = 0, captured = nothing = 0, milliseconds = 0, lost = OK;
    for (auto &each : memory) std::free(reinterpret_cast<void *>(each.first));
    devices.assign(count, Device{"gfx906", 0x2f, size_t(1) << 34, {}});
    plans.clear(), failing.clear(), memory.clear(), events.clear(), streams.clear(), modules.clear(), kernels.clear();
    calls.clear(), faults.clear();
    for (int device = 0; device < count; device++) streams[1 + device].device = device;
}
void fake_version(int now) { version = now; }
void fake_capacity(size_t bytes) { capacity = bytes; }
void fake_device(int device, const char *arch, unsigned mach, size_t bytes) { devices[device].arch = arch, devices[device].mach = mach, devices[device].memory = bytes; }
void fake_attribute(int device, int which, int value) { devices[device].attributes[which] = value; }
void fake_plan(const char *kernel, int arguments, int local, int lanes) { plans[{"", kernel}] = {arguments, local, lanes}; }
void fake_plan_of(const unsigned char *code, const char *kernel, int arguments, int local, int lanes) { plans[{image_of(code), kernel}] = {arguments, local, lanes}; }
size_t fake_running() { return std::hash<std::string>()(running); }
size_t fake_code(const unsigned char *code) { return std::hash<std::string>()(image_of(code)); }
void fake_fail(const char *name, int after, int status) { failing[name] = {after, status}; }
const char *fake_call(size_t index) { return index < calls.size() ? calls[index].c_str() : nullptr; }
const char *fake_fault(size_t index) { return index < faults.size() ? faults[index].c_str() : nullptr; }
size_t fake_place(int device, size_t size) { std::lock_guard<std::recursive_mutex> guard(one_at_a_time); const int before = here; here = device; const Handle made = given(size, false); here = before; return made; }
size_t fake_live(int device) { size_t n = 0; for (auto &each : memory) n += each.second.ours && each.second.device == device; return n; }
size_t fake_pending() { size_t n = 0; for (auto &each : streams) n += each.second.waiting.size(); return n; }
size_t fake_events() { return events.size(); }
size_t fake_modules() { return modules.size(); }
void fake_nothing() { nothing = 1; }
void fake_capture(size_t stream) { captured = stream; }
void fake_current(int device) { here = device; }
void fake_settle() { std::lock_guard<std::recursive_mutex> guard(one_at_a_time); settled([] { return fake_pending() == 0; }); }

// --- the runtime -----------------------------------------------------------------------------------------------------------
const char *hipGetErrorName(int status) { auto found = NAMES.find(status); return found == NAMES.end() ? "hipErrorTbd" : found->second; }
const char *hipGetErrorString(int) { return "said by the fake"; }
int hipRuntimeGetVersion(int *v) { BEGIN(hipRuntimeGetVersion); *v = version; return OK; }
int hipGetLastError() { BEGIN(hipGetLastError); return OK; }
int hipInit(unsigned) { BEGIN(hipInit); return devices.empty() ? INVALID_DEVICE : OK; }  // as HIP 5.2 answers where there is none
int hipGetDeviceCount(int *n) { BEGIN(hipGetDeviceCount); *n = int(devices.size()); return devices.empty() ? NO_DEVICE : OK; }
int hipGetDevice(int *d) { BEGIN(hipGetDevice); GPU; *d = here; return OK; }
int hipSetDevice(int d) { BEGIN(hipSetDevice); OF(d); here = d; return OK; }
int hipDeviceGetAttribute(int *v, int which, int d) {
    BEGIN(hipDeviceGetAttribute); OF(d);
    auto found = devices[d].attributes.find(which);
    if (found == devices[d].attributes.end()) return fault("no attribute " + std::to_string(which));
    *v = found->second;
    return OK;
}
int hipDeviceGetName(char *name, int size, int d) { BEGIN(hipDeviceGetName); OF(d); std::snprintf(name, size, "AMD Test"); return OK; }
int hipDeviceTotalMem(size_t *bytes, int d) { BEGIN(hipDeviceTotalMem); OF(d); *bytes = devices[d].memory; return OK; }
int hipGetDeviceProperties(char *to, int d) {  // the structure of HIP 5
    BEGIN(hipGetDeviceProperties); OF(d);
    std::memset(to, 0x55, 792);
#ifdef HIP5
    std::snprintf(to + 396, 256, "%s:sramecc+:xnack-", devices[d].arch.c_str());
#endif
    return OK;
}
#ifndef HIP5
int hipGetDevicePropertiesR0600(char *to, int d) {
    BEGIN(hipGetDevicePropertiesR0600); OF(d);
    std::memset(to, 0x55, 1472);
    std::snprintf(to + 1160, 256, "%s:sramecc+:xnack-", devices[d].arch.c_str());
    return OK;
}
#endif
int hipDeviceSynchronize() {
    BEGIN(hipDeviceSynchronize); GPU;
    const int device = here;
    return settled([device] { for (auto &s : streams) if (s.second.device == device && !s.second.waiting.empty()) return false; return true; }) ? OK : UNKNOWN;
}

int hipStreamCreateWithFlags(Handle *s, unsigned flags) { BEGIN(hipStreamCreateWithFlags); GPU; if (flags > 1) return INVALID_VALUE; streams[*s = named()].device = here; return OK; }
int hipStreamSynchronize(Handle s) { BEGIN(hipStreamSynchronize); GPU; ON(stream, s); return settled([stream] { return stream->waiting.empty(); }) ? lost : UNKNOWN; }
int hipStreamQuery(Handle s) { BEGIN(hipStreamQuery); GPU; ON(stream, s); return settled([stream] { return stream->waiting.empty(); }) ? lost : UNKNOWN; }
int hipStreamWaitEvent(Handle s, Handle e, unsigned flags) {
    BEGIN(hipStreamWaitEvent); GPU; ON(stream, s);
    if (flags || !events.count(e)) return fault("no such event", INVALID_HANDLE);
    enqueue(stream, nullptr, events[e]);
    return OK;
}
int hipStreamIsCapturing(Handle s, int *status) { BEGIN(hipStreamIsCapturing); GPU; ON(stream, s); *status = captured == s; return OK; }
int hipEventCreateWithFlags(Handle *e, unsigned flags) { BEGIN(hipEventCreateWithFlags); GPU; if (flags != 2 && flags) return INVALID_VALUE; (events[*e = named()] = std::make_shared<Event>())->timing = !flags; return OK; }
int hipEventRecord(Handle e, Handle s) {
    BEGIN(hipEventRecord); GPU; ON(stream, s);
    if (!events.count(e)) return fault("no such event", INVALID_HANDLE);
    auto event = events[e];
    event->recorded = true, event->reached = false;
    enqueue(stream, [event] { event->reached = true, event->at = milliseconds += 0.001; });
    return OK;
}
int hipEventQuery(Handle e) { BEGIN(hipEventQuery); if (!events.count(e)) return fault("no such event", INVALID_HANDLE); return !events[e]->recorded || events[e]->reached ? OK : NOT_READY; }
int hipEventDestroy(Handle e) { BEGIN(hipEventDestroy); return events.erase(e) ? OK : fault("no such event", INVALID_HANDLE); }

int hipEventElapsedTime(float *taken, Handle first, Handle second) {
    BEGIN(hipEventElapsedTime);
    if (!events.count(first) || !events.count(second)) return fault("no such event", INVALID_HANDLE);
    const Event &a = *events[first], &b = *events[second];
    if (!a.timing || !b.timing || !a.recorded || !b.recorded) return fault("an event without a time", INVALID_HANDLE);
    if (!a.reached || !b.reached) return NOT_READY;
    *taken = float(b.at - a.at);
    return OK;
}

static bool full(size_t size) { size_t used = size; for (auto &each : memory) used += each.second.ours ? each.second.size : 0; return used > capacity; }
int hipMalloc(Handle *p, size_t size) {
    BEGIN(hipMalloc); GPU;
    if (nothing) { *p = nothing = 0; return OK; }  // as HIP 5.4 did where memory ran out
    if (full(size)) return OUT_OF_MEMORY;
    *p = given(size, true);
    return OK;
}
int hipFree(Handle p) {
    BEGIN(hipFree); GPU;
    if (!memory.count(p)) return fault("freed what is not there");
    for (auto &each : streams) if (each.second.device == here && !each.second.waiting.empty()) return fault("freed while work waits");
    gone(p);
    return OK;
}
static int copied(Handle to, Handle from, size_t size, Handle s, bool to_there, bool from_there) {
    GPU; ON(stream, s);
    if ((to_there && !inside(to, size)) || (from_there && !inside(from, size))) return fault("copied beyond memory");
    enqueue(stream, [=] { std::memcpy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), size); });
    return OK;
}
int hipMemcpyHtoDAsync(Handle to, Handle from, size_t size, Handle s) { BEGIN(hipMemcpyHtoDAsync); return copied(to, from, size, s, true, false); }
int hipMemcpyDtoHAsync(Handle to, Handle from, size_t size, Handle s) { BEGIN(hipMemcpyDtoHAsync); return copied(to, from, size, s, false, true); }
int hipMemcpyDtoDAsync(Handle to, Handle from, size_t size, Handle s) { BEGIN(hipMemcpyDtoDAsync); return copied(to, from, size, s, true, true); }
int hipMemsetD8Async(Handle to, unsigned char value, size_t size, Handle s) {
    BEGIN(hipMemsetD8Async); GPU; ON(stream, s);
    if (!inside(to, size)) return fault("filled beyond memory");
    enqueue(stream, [=] { std::memset(reinterpret_cast<void *>(to), value, size); milliseconds += 0.1; });
    return OK;
}
int hipMemcpyDtoH(void *to, Handle from, size_t size) {
    BEGIN(hipMemcpyDtoH); GPU;
    if (!inside(from, size)) return fault("copied beyond memory");
    Stream *stream = stream_of(0);
    if (!settled([stream] { return stream->waiting.empty(); })) return UNKNOWN;
    std::memcpy(to, reinterpret_cast<void *>(from), size);
    return lost;
}
int hipMemcpyHtoD(Handle to, const void *from, size_t size) {
    BEGIN(hipMemcpyHtoD); GPU;
    if (!inside(to, size)) return fault("copied beyond memory");
    std::memcpy(reinterpret_cast<void *>(to), from, size);
    return OK;
}

// A code object is an ELF file for machine 224, whose flags say for which processor it is; its end is that of its section headers.
int hipModuleLoadData(Handle *m, const unsigned char *code) {
    BEGIN(hipModuleLoadData); GPU;
    if (std::memcmp(code, "\x7f" "ELF", 4) || code[18] != 224) return INVALID_IMAGE;
    if (code[48] != devices[here].mach) return NO_BINARY;
    modules[*m = named()] = {here, image_of(code)};
    return OK;
}
int hipModuleUnload(Handle m) {
    BEGIN(hipModuleUnload); GPU;
    if (!modules.erase(m)) return fault("unloaded what is not there", INVALID_HANDLE);
    for (auto &each : streams) for (Operation &one : each.second.waiting) if (one.module == m) return fault("unloaded while a kernel waits");
    return OK;
}
int hipModuleGetFunction(Handle *f, Handle m, const char *name) {
    BEGIN(hipModuleGetFunction); GPU;
    if (!modules.count(m) || modules[m].device != here) return fault("no module of this GPU", INVALID_HANDLE);
    if (!plan_of(modules[m].image, name) || modules[m].image.find(name) == std::string::npos) return NOT_FOUND;
    kernels[*f = named()] = {m, name};
    return OK;
}
int hipFuncGetAttribute(int *v, int which, Handle f) {
    BEGIN(hipFuncGetAttribute);
    if (!kernels.count(f) || which < 0 || which > 1) return fault("no attribute of a kernel");
    *v = which ? plan_of(f).lds : plan_of(f).lanes;
    return OK;
}
int hipModuleLaunchKernel(Handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned local, Handle s,
                          void **given, void **extra) {
    BEGIN(hipModuleLaunchKernel); GPU; ON(stream, s);
    auto found = kernels.find(f);
    if (found == kernels.end() || !modules.count(found->second.module) || modules[found->second.module].device != here) return fault("no kernel, or no longer", INVALID_HANDLE);
    const Plan plan = plan_of(f);
    std::map<int, int> &has = devices[here].attributes;
    if (!gx || gy != 1 || gz != 1 || gx > unsigned(has[29]) || !bx || by != 1 || bz != 1 || bx > unsigned(has[56]) || bx > unsigned(plan.lanes) || uint64_t(gx) * bx >> 32)
        return fault("a grid past limits");
    if (local || plan.lds > has[74] || extra) return fault("local memory, or arguments twice");
    std::vector<void *> passed;
    for (int n = 0; n < plan.arguments; n++) {
        const Handle address = *static_cast<Handle *>(given[n]);
        if (address % 16 || !inside(address, 1)) return fault("a kernel's argument points nowhere", ILLEGAL_ADDRESS);
        passed.push_back(reinterpret_cast<void *>(address));
    }
    const std::string name = found->second.name;
    calls.push_back("kernel " + name);
    const std::string image = modules[found->second.module].image;
    enqueue(stream, [=]() mutable {
        running = image, milliseconds += 0.01;
        const int told = run_kernel(name.c_str(), passed.data(), gx, bx);
        if (told == ILLEGAL_ADDRESS) lost = told;
        else if (told) fault("kernel " + name + " failed");
    }, nullptr, found->second.module);
    return OK;
}
}
