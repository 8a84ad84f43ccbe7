// calls.cpp - hooks on calls of CUDA that the program makes anyway: their results, and what the
// program waits for.
#include <dlfcn.h>

#include "cuda/abi.hpp"
#include "cuda/errors.hpp"
#include "cuda/events.hpp"
#include "cuda/waits.hpp"

namespace fr::cuda {
namespace {

enum Row : u32 {
  kBeginCapture,
  kBeginCaptureToGraph,
  kEndCapture,
  kDeviceReset,
  kStreamDestroy,
  kEventDestroy,
  kEventRecord,
  kEventRecordWithFlags,
  kGetLastError,
  kPeekAtLastError,
  kEventQuery,
  kEventSynchronize,
  kStreamQuery,
  kStreamSynchronize,
  kDeviceSynchronize,
  kMemcpy,
  kMemcpyAsync,
  kRuntimeRows,
  kDriverStreamDestroy = kRuntimeRows,
  kDriverEventDestroy,
  kDriverEventRecord,
  kDriverEventRecordWithFlags,
  kDriverEventQuery,
  kDriverEventSynchronize,
  kDriverStreamQuery,
  kDriverStreamSynchronize,
  kDriverCtxSynchronize,
  kRows
};
extern Redirect g_rows[kRows];

template <class F>
F real(Row row) noexcept {
  return reinterpret_cast<F>(g_rows[row].real.load(std::memory_order_acquire));
}

// Passes a call through and looks at its result.
template <Row kRow, class... A>
int watched(A... arguments) noexcept {
  const int result = real<int (*)(A...)>(kRow)(arguments...);
  if (result != kSuccess && result != kNotReady) [[unlikely]] {
    report_error(result, g_rows[kRow].name);
  }
  return result;
}

// What follows observes the end of operations whose completion NCCL does not report; waits.hpp.

template <Row kRow, class... More>
int record_event(Event event, Stream stream, More... more) noexcept {
  if (!tracks_any()) [[likely]] {
    return watched<kRow>(event, stream, more...);
  }
  StreamPositions positions;
  find_stream(stream, positions);
  dissociate(event);
  const int result = watched<kRow>(event, stream, more...);
  if (result == kSuccess && !is_capturing()) {
    associate(event, positions);
  }
  return result;
}

template <Row kRow>
int query_event(Event event) noexcept {
  if (!tracks_any()) [[likely]] {
    return watched<kRow>(event);
  }
  StreamPositions positions;
  find_event(event, positions);
  const int result = watched<kRow>(event);
  polled(positions, event, result);
  return result;
}

template <Row kRow>
int query_stream(Stream stream) noexcept {
  if (!tracks_any()) [[likely]] {
    return watched<kRow>(stream);
  }
  StreamPositions positions;
  find_stream(stream, positions);
  const int result = watched<kRow>(stream);
  polled(positions, nullptr, result);
  return result;
}

// find: what the call waits for.
template <Row kRow, class Find, class... A>
int wait_for(Event event, Find find, A... arguments) noexcept {
  if (!tracks_any()) [[likely]] {
    return watched<kRow>(arguments...);
  }
  StreamPositions positions;
  find(positions);
  begin_wait(positions);
  const int result = watched<kRow>(arguments...);
  end_wait(positions, event, result);
  return result;
}

template <Row kRow>
int await_event(Event event) noexcept {
  return wait_for<kRow>(event, [event](StreamPositions& out) { find_event(event, out); }, event);
}

template <Row kRow>
int await_stream(Stream stream) noexcept {
  return wait_for<kRow>(
      nullptr, [stream](StreamPositions& out) { find_stream(stream, out); }, stream);
}

template <Row kRow>
int await_device() noexcept {
  return wait_for<kRow>(nullptr, find_all);
}

// Its address may soon be another one's.
template <Row kRow>
int destroy_event(Event event) noexcept {
  if (tracks_any()) {
    dissociate(event);
  }
  return watched<kRow>(event);
}

template <Row kRow>
int destroy_stream(Stream stream) noexcept {
  if (tracks_any()) {
    abandon_stream(stream);
  }
  return watched<kRow>(stream);
}

int begin_capture(Stream stream, int mode) noexcept {
  const int result = real<decltype(&begin_capture)>(kBeginCapture)(stream, mode);
  if (result == kSuccess) {
    capture_began();
  }
  return result;
}

int begin_capture_to_graph(Stream stream, void* graph, const void* nodes, const void* edges,
                           std::size_t n, int mode) noexcept {
  const int result = real<decltype(&begin_capture_to_graph)>(kBeginCaptureToGraph)(
      stream, graph, nodes, edges, n, mode);
  if (result == kSuccess) {
    capture_began();
  }
  return result;
}

int end_capture(Stream stream, void* graph) noexcept {
  capture_ended();  // failed or not, the capture is over
  return real<decltype(&end_capture)>(kEndCapture)(stream, graph);
}

// Its context's events go with it.
int device_reset() noexcept {
  abandon_all();
  lose_contexts();
  return real<decltype(&device_reset)>(kDeviceReset)();
}

#define FR_ROW(name, function) {name, reinterpret_cast<void*>(&function), {nullptr}, false}
#define FR_CALL(name, function, ...) \
  {name, reinterpret_cast<void*>(static_cast<int (*)(__VA_ARGS__)>(&function)), {nullptr}, false}
#define FR_WATCH(name, row, ...) FR_CALL(name, watched<row>, __VA_ARGS__)
Redirect g_rows[kRows] = {
    FR_ROW("cudaStreamBeginCapture", begin_capture),
    FR_ROW("cudaStreamBeginCaptureToGraph", begin_capture_to_graph),
    FR_ROW("cudaStreamEndCapture", end_capture),
    FR_ROW("cudaDeviceReset", device_reset),
    FR_CALL("cudaStreamDestroy", destroy_stream<kStreamDestroy>, Stream),
    FR_CALL("cudaEventDestroy", destroy_event<kEventDestroy>, Event),
    FR_CALL("cudaEventRecord", record_event<kEventRecord>, Event, Stream),
    FR_CALL("cudaEventRecordWithFlags", record_event<kEventRecordWithFlags>, Event, Stream,
            unsigned),
    FR_WATCH("cudaGetLastError", kGetLastError),
    FR_WATCH("cudaPeekAtLastError", kPeekAtLastError),
    FR_CALL("cudaEventQuery", query_event<kEventQuery>, Event),
    FR_CALL("cudaEventSynchronize", await_event<kEventSynchronize>, Event),
    FR_CALL("cudaStreamQuery", query_stream<kStreamQuery>, Stream),
    FR_CALL("cudaStreamSynchronize", await_stream<kStreamSynchronize>, Stream),
    FR_CALL("cudaDeviceSynchronize", await_device<kDeviceSynchronize>),
    FR_WATCH("cudaMemcpy", kMemcpy, void*, const void*, std::size_t, int),
    FR_WATCH("cudaMemcpyAsync", kMemcpyAsync, void*, const void*, std::size_t, int, Stream),
    FR_CALL("cuStreamDestroy_v2", destroy_stream<kDriverStreamDestroy>, Stream),
    FR_CALL("cuEventDestroy_v2", destroy_event<kDriverEventDestroy>, Event),
    FR_CALL("cuEventRecord", record_event<kDriverEventRecord>, Event, Stream),
    FR_CALL("cuEventRecordWithFlags", record_event<kDriverEventRecordWithFlags>, Event, Stream,
            unsigned),
    FR_CALL("cuEventQuery", query_event<kDriverEventQuery>, Event),
    FR_CALL("cuEventSynchronize", await_event<kDriverEventSynchronize>, Event),
    FR_CALL("cuStreamQuery", query_stream<kDriverStreamQuery>, Stream),
    FR_CALL("cuStreamSynchronize", await_stream<kDriverStreamSynchronize>, Stream),
    FR_CALL("cuCtxSynchronize", await_device<kDriverCtxSynchronize>),
};
#undef FR_ROW
#undef FR_CALL
#undef FR_WATCH

RedirectTable g_table = {g_rows, kRows, {"libcudart", "libcuda.so"}, {0}, {0}};

}  // namespace

RedirectTable& calls() noexcept {
  return g_table;
}

void find_originals() noexcept {
  const auto look = [](const char* name, u32 first, u32 end) {
    if (void* library = dlopen(name, RTLD_NOLOAD | RTLD_LAZY)) {
      for (u32 i = first; i < end; ++i) {
        void* none = nullptr;
        if (void* found = dlsym(library, g_rows[i].name)) {
          g_rows[i].real.compare_exchange_strong(none, found);
        }
      }
      dlclose(library);
    }
  };
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
    look(name, 0, kRuntimeRows);
  }
  look("libcuda.so.1", kRuntimeRows, kRows);
}

}  // namespace fr::cuda
