// calls.cpp - hooks on calls of CUDA that the program makes anyway: their results, and what the
// program waits for.
#include <dlfcn.h>

#include <iterator>

#include "cuda/abi.hpp"
#include "cuda/captures.hpp"
#include "cuda/errors.hpp"
#include "cuda/events.hpp"
#include "cuda/waits.hpp"

namespace fr::cuda {
namespace {

// Passes a call through and looks at its result.
template <CallName kCall, class... A>
int watched(A... arguments) noexcept {
  const int result = pass_on<kCall>(arguments...);
  if (result != kSuccess && result != kNotReady) [[unlikely]] {
    if (result == kCaptureUnsupported || result == kCaptureInvalidated) {
      captures_ended();  // it does not say which, and ending it is the program's affair
    }
    report_error(result, kCall.text);
  }
  return result;
}

// The hooks below observe the end of operations that NCCL does not report as ended; see waits.hpp.

template <CallName kCall, class... More>
int record_event(Event event, Stream stream, More... more) noexcept {
  if (!tracks_any()) [[likely]] {
    return watched<kCall>(event, stream, more...);
  }
  StreamPositions positions;
  find_stream(stream, positions);
  dissociate(event);
  const int result = watched<kCall>(event, stream, more...);
  if (result == kSuccess && !is_capturing()) {
    associate(event, positions);
  }
  return result;
}

template <CallName kCall>
int query_event(Event event) noexcept {
  if (!tracks_any()) [[likely]] {
    return watched<kCall>(event);
  }
  StreamPositions positions;
  find_event(event, positions);
  const int result = watched<kCall>(event);
  polled(positions, event, result);
  return result;
}

template <CallName kCall>
int query_stream(Stream stream) noexcept {
  if (!tracks_any()) [[likely]] {
    return watched<kCall>(stream);
  }
  StreamPositions positions;
  find_stream(stream, positions);
  const int result = watched<kCall>(stream);
  polled(positions, nullptr, result);
  return result;
}

// find: what the call waits for.
template <CallName kCall, class Find, class... A>
int wait_for(Event event, Find find, A... arguments) noexcept {
  if (!tracks_any()) [[likely]] {
    return watched<kCall>(arguments...);
  }
  StreamPositions positions;
  find(positions);
  begin_wait(positions);
  const int result = watched<kCall>(arguments...);
  end_wait(positions, event, result);
  return result;
}

template <CallName kCall>
int await_event(Event event) noexcept {
  return wait_for<kCall>(event, [event](StreamPositions& out) { find_event(event, out); }, event);
}

template <CallName kCall>
int await_stream(Stream stream) noexcept {
  return wait_for<kCall>(
      nullptr, [stream](StreamPositions& out) { find_stream(stream, out); }, stream);
}

template <CallName kCall>
int await_device() noexcept {
  return wait_for<kCall>(nullptr, find_all);
}

// Its address may soon be another one's.
template <CallName kCall>
int destroy_event(Event event) noexcept {
  if (tracks_any()) {
    dissociate(event);
  }
  return watched<kCall>(event);
}

template <CallName kCall>
int destroy_stream(Stream stream) noexcept {
  capture_ended(stream);
  if (tracks_any()) {
    abandon_stream(stream);
  }
  return watched<kCall>(stream);
}

template <CallName kCall, class... More>
int begin_capture(Stream stream, More... more) noexcept {
  const int result = pass_on<kCall>(stream, more...);
  if (result == kSuccess) {
    capture_began(stream);
  }
  return result;
}

template <CallName kCall>
int end_capture(Stream stream, void* graph) noexcept {
  capture_ended(stream);  // failed or not, the capture is over
  return pass_on<kCall>(stream, graph);
}

// Its context's events go with it.
template <CallName kCall>
int device_reset() noexcept {
  abandon_all();
  captures_ended();
  lose_contexts();
  return pass_on<kCall>();
}

// Calls that begin and end captures, in the runtime and the driver. _ptsz: the names that programs
// compiled for the per-thread default stream call. The driver's first version of the call takes no
// mode, and reads none.
#define FR_CAPTURE_HOOKS(begin, begin_to_graph, end)                                             \
  FR_HOOK(begin, begin_capture, int),                                                            \
      FR_HOOK(begin_to_graph, begin_capture, void*, const void*, const void*, std::size_t, int), \
      FR_HOOK(end, end_capture)

Redirect g_rows[] = {
    FR_CAPTURE_HOOKS("cudaStreamBeginCapture", "cudaStreamBeginCaptureToGraph",
                     "cudaStreamEndCapture"),
    FR_CAPTURE_HOOKS("cudaStreamBeginCapture_ptsz", "cudaStreamBeginCaptureToGraph_ptsz",
                     "cudaStreamEndCapture_ptsz"),
    FR_CAPTURE_HOOKS("cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph",
                     "cuStreamEndCapture"),
    FR_CAPTURE_HOOKS("cuStreamBeginCapture_v2_ptsz", "cuStreamBeginCaptureToGraph_ptsz",
                     "cuStreamEndCapture_ptsz"),
    FR_HOOK("cuStreamBeginCapture", begin_capture, int),
    FR_HOOK("cuStreamBeginCapture_ptsz", begin_capture, int),
    FR_HOOK("cudaDeviceReset", device_reset),
    FR_HOOK("cudaStreamDestroy", destroy_stream),
    FR_HOOK("cudaEventDestroy", destroy_event),
    FR_HOOK("cudaEventRecord", record_event),
    FR_HOOK("cudaEventRecordWithFlags", record_event, unsigned),
    FR_HOOK("cudaGetLastError", watched),
    FR_HOOK("cudaPeekAtLastError", watched),
    FR_HOOK("cudaEventQuery", query_event),
    FR_HOOK("cudaEventSynchronize", await_event),
    FR_HOOK("cudaStreamQuery", query_stream),
    FR_HOOK("cudaStreamSynchronize", await_stream),
    FR_HOOK("cudaDeviceSynchronize", await_device),
    FR_HOOK("cudaMemcpy", watched, void*, const void*, std::size_t, int),
    FR_HOOK("cudaMemcpyAsync", watched, void*, const void*, std::size_t, int, Stream),
    FR_HOOK("cuStreamDestroy_v2", destroy_stream),
    FR_HOOK("cuEventDestroy_v2", destroy_event),
    FR_HOOK("cuEventRecord", record_event),
    FR_HOOK("cuEventRecordWithFlags", record_event, unsigned),
    FR_HOOK("cuEventQuery", query_event),
    FR_HOOK("cuEventSynchronize", await_event),
    FR_HOOK("cuStreamQuery", query_stream),
    FR_HOOK("cuStreamSynchronize", await_stream),
    FR_HOOK("cuCtxSynchronize", await_device),
};

RedirectTable g_table = {g_rows, std::size(g_rows), {"libcudart", "libcuda.so"}, {0}, {0}};

}  // namespace

RedirectTable& calls() noexcept {
  return g_table;
}

bool sees_waits() noexcept {
  return g_table.in_force.load(std::memory_order_relaxed) != 0;
}

void find_originals() noexcept {
  for (const char* name :
       {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcuda.so.1"}) {
    if (void* library = dlopen(name, RTLD_NOLOAD | RTLD_LAZY)) {
      g_table.learn_all(library);
      dlclose(library);
    }
  }
}

}  // namespace fr::cuda
