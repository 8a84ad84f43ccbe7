// A stand-in for libcuda.so.1 and libcudart.so.12, for tests: contexts, streams as queues that one
// thread, the device, works off in order, events with the device's own clock, capture, errors that
// stay, and calls that never return. No memory and no kernels.
//
//   STANDIN_CUDA_BLOCK=FUNCTION:N[:RANK]   the N-th call of a driver function never returns,
//                                          in the process of that RANK or in all
//
// The few functions standin_* are not CUDA's: they act as a kernel or the library under test would.
// libcudart.so.12 is the same source with STANDIN_CUDART, over this libcuda.so.1.
#include <atomic>
#include <cstddef>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

#ifdef STANDIN_CUDART

extern "C" {
int cuEventRecord(void*, void*);
int cuEventRecordWithFlags(void*, void*, unsigned);
int cuEventDestroy_v2(void*);
int cuEventQuery(void*);
int cuEventSynchronize(void*);
int cuStreamDestroy_v2(void*);
int cuStreamQuery(void*);
int cuStreamSynchronize(void*);
int cuCtxSynchronize();
int cuStreamBeginCapture_v2(void*, int);
int cuStreamEndCapture(void*, void**);
int standin_cuda_error();
}

namespace {
thread_local int t_last = 0;
int keep(int result) {
  t_last = result != 0 && result != 600 ? result : t_last;
  return result;
}
}  // namespace

EXPORT int cudaGetLastError() {
  const int lasting = standin_cuda_error();
  const int last = lasting != 0 ? lasting : t_last;
  t_last = 0;
  return last;
}
EXPORT int cudaPeekAtLastError() {
  const int lasting = standin_cuda_error();
  return lasting != 0 ? lasting : t_last;
}
EXPORT int cudaEventRecord(void* event, void* stream) {
  return keep(cuEventRecord(event, stream));
}
EXPORT int cudaEventRecordWithFlags(void* event, void* stream, unsigned flags) {
  return keep(cuEventRecordWithFlags(event, stream, flags));
}
EXPORT int cudaEventDestroy(void* event) {
  return keep(cuEventDestroy_v2(event));
}
EXPORT int cudaStreamDestroy(void* stream) {
  return keep(cuStreamDestroy_v2(stream));
}
EXPORT int cudaEventQuery(void* event) {
  return keep(cuEventQuery(event));
}
EXPORT int cudaEventSynchronize(void* event) {
  return keep(cuEventSynchronize(event));
}
EXPORT int cudaStreamQuery(void* stream) {
  return keep(cuStreamQuery(stream));
}
EXPORT int cudaStreamSynchronize(void* stream) {
  return keep(cuStreamSynchronize(stream));
}
EXPORT int cudaDeviceSynchronize() {
  return keep(cuCtxSynchronize());
}
EXPORT int cudaMalloc(void**, size_t) {
  return keep(2);  // there is no memory
}
EXPORT int cudaStreamBeginCapture(void* stream, int mode) {
  return keep(cuStreamBeginCapture_v2(stream, mode));
}
EXPORT int cudaStreamBeginCaptureToGraph(void* stream, void*, const void*, const void*, size_t,
                                         int mode) {
  return keep(cuStreamBeginCapture_v2(stream, mode));
}
EXPORT int cudaStreamEndCapture(void* stream, void** graph) {
  return keep(cuStreamEndCapture(stream, graph));
}
EXPORT int cudaStreamBeginCapture_ptsz(void* stream, int mode) {
  return keep(cuStreamBeginCapture_v2(stream, mode));
}
EXPORT int cudaStreamEndCapture_ptsz(void* stream, void** graph) {
  return keep(cuStreamEndCapture(stream, graph));
}

#else

#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr int kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600,
              kCaptureUnsupported = 900, kWrongThread = 908;

struct Ctx {
  int device;
};

struct Stream;
struct Event {
  Ctx* context;
  std::atomic<uint64_t> wanted{0};   // records of it so far
  std::atomic<uint64_t> reached{0};  // the last one that the device has reached
  std::atomic<uint64_t> device_ns{0};
  std::atomic<bool> in_graph{false};
};

struct Item {
  Event* event = nullptr;
  uint64_t record = 0;
  std::atomic<int>* reached = nullptr;  // a gate: told when its turn comes
  std::atomic<int>* opened = nullptr;   // and held until this
};

struct Stream {
  Ctx* context;
  std::mutex lock;
  std::deque<Item> queue;
  std::atomic<int> capturing{0};
};

struct Device {
  std::mutex lock;
  std::vector<std::unique_ptr<Ctx> > contexts;
  std::vector<std::unique_ptr<Stream> > streams;
  std::vector<std::unique_ptr<Event> > events;
  std::vector<Event*> free_events;
  std::vector<Stream*> free_streams;
  std::vector<std::unique_ptr<Stream> > defaults;  // by context
  std::thread thread;
  std::atomic<int> error{0};
  std::atomic<int> global_captures{0};
  std::atomic<const char*> blocked{nullptr};
};

Device& device() {
  static auto* d = new Device;  // its thread runs until the process ends
  return *d;
}

thread_local Ctx* t_context = nullptr;
thread_local int t_capture_mode = 0;

// Its rate is the host's, its zero is not.
uint64_t device_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(ts.tv_nsec) +
         7'777'777'777ull;
}

void work(Stream& s) {
  const std::lock_guard guard(s.lock);
  while (!s.queue.empty() && device().error.load() == 0) {
    Item& item = s.queue.front();
    if (item.event != nullptr) {
      item.event->device_ns.store(device_ns());
      item.event->reached.store(item.record);
    } else {
      item.reached->store(1);
      if (item.opened->load() == 0) {
        return;
      }
    }
    s.queue.pop_front();
  }
}

void run() {
  for (;;) {
    {
      const std::lock_guard guard(device().lock);
      for (auto* all : {&device().streams, &device().defaults}) {
        for (auto& s : *all) {
          work(*s);
        }
      }
    }
    usleep(50);
  }
}

void start() {
  static std::once_flag once;
  std::call_once(once, [] {
    device().thread = std::thread(run);
    device().thread.detach();
  });
}

Stream* stream_of(void* stream) {
  if (reinterpret_cast<uintptr_t>(stream) > 2) {
    return static_cast<Stream*>(stream);
  }
  const std::lock_guard guard(device().lock);
  for (auto& s : device().defaults) {
    if (s->context == t_context) {
      return s.get();
    }
  }
  device().defaults.push_back(std::make_unique<Stream>());
  device().defaults.back()->context = t_context;
  return device().defaults.back().get();
}

// Does this call of the function never return?
void maybe_block(const char* function, std::atomic<int>& calls) {
  static const char* wanted = getenv("STANDIN_CUDA_BLOCK");
  const char* now = device().blocked.load();
  while (now != nullptr && std::strcmp(now, function) == 0) {
    pause();
  }
  if (wanted == nullptr) {
    return;
  }
  const size_t length = std::strlen(function);
  int n = 0;
  int rank = -1;
  if (std::strncmp(wanted, function, length) != 0 || wanted[length] != ':' ||
      std::sscanf(wanted + length, ":%d:%d", &n, &rank) < 1) {
    return;
  }
  const char* own = getenv("RANK");
  if ((rank < 0 || (own != nullptr && atoi(own) == rank)) && calls.fetch_add(1) + 1 >= n) {
    for (;;) {
      pause();
    }
  }
}

#define BEGIN()                              \
  static std::atomic<int> calls{0};          \
  maybe_block(__func__, calls);              \
  if (const int e = device().error.load()) { \
    return e;                                \
  }

}  // namespace

// ---------------------------------------------------------------- contexts

EXPORT int cuCtxCreate_v2(void** out, unsigned, int number) {
  start();
  BEGIN()
  const std::lock_guard guard(device().lock);
  device().contexts.push_back(std::make_unique<Ctx>(Ctx{number}));
  *out = t_context = device().contexts.back().get();
  return 0;
}
EXPORT int cuCtxGetCurrent(void** out) {
  *out = t_context;
  return 0;
}
EXPORT int cuCtxSetCurrent(void* context) {
  t_context = static_cast<Ctx*>(context);
  return 0;
}
EXPORT int cuCtxGetDevice(int* number) {
  if (t_context == nullptr) {
    return kInvalidContext;
  }
  *number = t_context->device;
  return 0;
}
EXPORT int cuCtxSynchronize() {
  BEGIN()
  for (bool empty = false; !empty; usleep(50)) {
    if (const int e = device().error.load()) {
      return e;
    }
    const std::lock_guard guard(device().lock);
    empty = true;
    for (auto* all : {&device().streams, &device().defaults}) {
      for (auto& s : *all) {
        const std::lock_guard inner(s->lock);
        empty = empty && (s->context != t_context || s->queue.empty());
      }
    }
  }
  return 0;
}

// ---------------------------------------------------------------- streams

EXPORT int cuStreamCreate(void** out, unsigned) {
  BEGIN()
  if (t_context == nullptr) {
    return kInvalidContext;
  }
  const std::lock_guard guard(device().lock);
  if (!device().free_streams.empty()) {
    auto* again = device().free_streams.back();
    device().free_streams.pop_back();
    again->context = t_context;
    *out = again;
    return 0;
  }
  device().streams.push_back(std::make_unique<Stream>());
  device().streams.back()->context = t_context;
  *out = device().streams.back().get();
  return 0;
}
// Work still in the stream is dropped; the next stream that is created reuses the address.
EXPORT int cuStreamDestroy_v2(void* stream) {
  BEGIN()
  auto* s = static_cast<Stream*>(stream);
  const std::lock_guard guard(device().lock);
  const std::lock_guard inner(s->lock);
  s->queue.clear();
  s->capturing.store(0);
  device().free_streams.push_back(s);
  return 0;
}
EXPORT int cuStreamGetCtx(void* stream, void** out) {
  BEGIN()
  *out = stream_of(stream)->context;
  return 0;
}
EXPORT int cuStreamQuery(void* stream) {
  BEGIN()
  Stream* s = stream_of(stream);
  const std::lock_guard guard(s->lock);
  return s->queue.empty() ? 0 : kNotReady;
}
EXPORT int cuStreamSynchronize(void* stream) {
  BEGIN()
  for (;; usleep(50)) {
    const int result = cuStreamQuery(stream);
    if (result != kNotReady) {
      return result;
    }
  }
}
EXPORT int cuStreamBeginCapture_v2(void* stream, int mode) {
  BEGIN()
  stream_of(stream)->capturing.store(1);
  device().global_captures.fetch_add(mode == 0 ? 1 : 0);
  return 0;
}
EXPORT int cuStreamBeginCapture(void* stream) {
  return cuStreamBeginCapture_v2(stream, 0);
}
EXPORT int cuStreamBeginCaptureToGraph(void* stream, void*, const void*, const void*, size_t,
                                       int mode) {
  return cuStreamBeginCapture_v2(stream, mode);
}
EXPORT int cuStreamEndCapture(void* stream, void** graph) {
  Stream* s = stream_of(stream);
  const int state = s->capturing.exchange(0);
  device().global_captures.store(0);
  *graph = s;
  return state == 1 ? 0 : kWrongThread;
}
EXPORT int cuStreamBeginCapture_v2_ptsz(void* stream, int mode) {
  return cuStreamBeginCapture_v2(stream, mode);
}
EXPORT int cuStreamEndCapture_ptsz(void* stream, void** graph) {
  return cuStreamEndCapture(stream, graph);
}
EXPORT int cuStreamIsCapturing(void* stream, int* state) {
  BEGIN()
  *state = stream_of(stream)->capturing.load();
  return 0;
}
EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  BEGIN()
  const int before = t_capture_mode;
  t_capture_mode = *mode;
  *mode = before;
  return 0;
}

// ---------------------------------------------------------------- events

EXPORT int cuEventCreate(void** out, unsigned) {
  BEGIN()
  if (t_context == nullptr) {
    return kInvalidContext;
  }
  const std::lock_guard guard(device().lock);
  if (!device().free_events.empty()) {
    *out = device().free_events.back();
    device().free_events.pop_back();
    static_cast<Event*>(*out)->context = t_context;
    return 0;
  }
  device().events.push_back(std::make_unique<Event>());
  device().events.back()->context = t_context;
  *out = device().events.back().get();
  return 0;
}
// A new one that was never recorded is as one that was reached.
EXPORT int cuEventDestroy_v2(void* event) {
  BEGIN()
  auto* e = static_cast<Event*>(event);
  const std::lock_guard guard(device().lock);
  e->reached.store(e->wanted.load());
  device().free_events.push_back(e);
  return 0;
}
EXPORT int cuEventRecord(void* event, void* stream) {
  BEGIN()
  auto* e = static_cast<Event*>(event);
  Stream* s = stream_of(stream);
  if (e == nullptr || s->context != e->context) {
    return kInvalidHandle;
  }
  e->in_graph.store(s->capturing.load() != 0);
  if (s->capturing.load() != 0) {
    return 0;
  }
  const std::lock_guard guard(s->lock);
  Item item;
  item.event = e;
  item.record = e->wanted.fetch_add(1) + 1;
  s->queue.push_back(item);
  return 0;
}
EXPORT int cuEventRecordWithFlags(void* event, void* stream, unsigned) {
  return cuEventRecord(event, stream);
}
EXPORT int cuEventQuery(void* event) {
  BEGIN()
  auto* e = static_cast<Event*>(event);
  if (t_capture_mode == 0 && device().global_captures.load() != 0) {
    for (auto& s : device().streams) {
      s->capturing.store(s->capturing.load() != 0 ? 2 : 0);  // this has broken the capture
    }
    return kCaptureUnsupported;
  }
  if (e->in_graph.load()) {
    return kInvalidValue;
  }
  return e->reached.load() == e->wanted.load() ? 0 : kNotReady;
}
EXPORT int cuEventSynchronize(void* event) {
  BEGIN()
  for (;; usleep(50)) {
    const int result = cuEventQuery(event);
    if (result != kNotReady) {
      return result;
    }
  }
}
EXPORT int cuEventElapsedTime(float* ms, void* start, void* end) {
  BEGIN()
  const auto* a = static_cast<Event*>(start);
  const auto* b = static_cast<Event*>(end);
  if (a->reached.load() != a->wanted.load() || b->reached.load() != b->wanted.load()) {
    return kNotReady;
  }
  const auto ns = static_cast<int64_t>(b->device_ns.load() - a->device_ns.load());
  *ms = static_cast<float>(static_cast<double>(ns) / 1e6);
  return 0;
}

// ---------------------------------------------------------------- not CUDA's

// A kernel: it runs when *reached becomes 1, until the caller sets *opened.
EXPORT void standin_cuda_gate(void* stream, std::atomic<int>* reached, std::atomic<int>* opened) {
  Stream* s = stream_of(stream);
  const std::lock_guard guard(s->lock);
  if (s->capturing.load() != 0) {
    reached->store(1);
    return;
  }
  Item item;
  item.reached = reached;
  item.opened = opened;
  s->queue.push_back(item);
}
// Work on the device failed: all calls return `code` from now on, and no stream makes progress.
EXPORT void standin_cuda_break(int code) {
  device().error.store(code);
}
// From now on, calls of this driver function do not return.
EXPORT void standin_cuda_block(const char* function) {
  device().blocked.store(strdup(function));
}
EXPORT int standin_cuda_error() {
  return device().error.load();
}
EXPORT int standin_cuda_capture_state(void* stream) {
  return stream_of(stream)->capturing.load();
}

#endif
