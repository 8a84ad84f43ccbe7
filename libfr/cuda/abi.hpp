// abi.hpp - the little of CUDA's driver and runtime interface that fr calls or passes on. Own
// definitions: libfr is built without CUDA's headers and bound at run time. Both interfaces number
// their results alike.
#pragma once

#include "format/layout.hpp"

namespace fr::cuda {

using Context = void*;
using Stream = void*;
using Event = void*;

inline constexpr int kSuccess = 0;
inline constexpr int kDeinitialized = 4;
inline constexpr int kNotReady = 600;
inline constexpr int kContextDestroyed = 709;
inline constexpr int kCaptureUnsupported = 900;  // this call has invalidated a capture
inline constexpr int kCaptureInvalidated = 901;  // an earlier one has
inline constexpr int kCaptureImplicit = 906;     // a default stream, while another one is captured

inline constexpr int kCaptureActive = 1;       // of cuStreamIsCapturing; 0 none, 2 invalidated
inline constexpr int kCaptureModeRelaxed = 2;  // of cuThreadExchangeStreamCaptureMode
inline constexpr unsigned kTimingEvent = 0;
inline constexpr unsigned kNonBlockingStream = 1;

// NULL, the legacy and the per-thread default stream: they belong to whatever context is current.
inline bool is_default_stream(Stream s) noexcept {
  return reinterpret_cast<u64>(s) <= 2;
}

// The driver functions that fr calls.
struct Driver {
  int (*ctx_get_current)(Context*);
  int (*ctx_set_current)(Context);
  int (*ctx_get_device)(int*);
  int (*stream_create)(Stream*, unsigned);
  int (*stream_get_ctx)(Stream, Context*);
  int (*stream_is_capturing)(Stream, int*);
  int (*thread_capture_mode)(int*);
  int (*event_create)(Event*, unsigned);
  int (*event_record)(Event, Stream);
  int (*event_query)(Event);
  int (*event_elapsed_ms)(float*, Event, Event);
};

}  // namespace fr::cuda
