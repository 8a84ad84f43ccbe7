#include "format/codes.hpp"

#include "fr/fr.h"

namespace fr {

const char* kind_name(u16 kind) noexcept {
  static constexpr const char* kNames[] = {"?",         "collective", "send", "recv",
                                           "lifecycle", "note",       "span", "step"};
  return kind < sizeof kNames / sizeof *kNames ? kNames[kind] : "?";
}

const char* state_name(State state) noexcept {
  switch (state) {
    case State::kLocked:
      return "enqueued";
    case State::kStarted:
      return "started";
    case State::kCompleted:
      return "completed";
    case State::kFailed:
      return "failed";
    case State::kReleased:
      return "released";
    case State::kWaiting:
      return "waiting";
    case State::kIdle:
      return "idle";
  }
  return "unknown";
}

const char* dtype_name(u8 code) noexcept {
  // torch's ScalarType, in its order
  // clang-format off
  static constexpr const char* kNames[] = {
      "", "Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "ComplexHalf",
      "ComplexFloat", "ComplexDouble", "Bool", "QInt8", "QUInt8", "QInt32", "BFloat16",
      "QUInt4x2", "QUInt2x4", "Bits1x8", "Bits2x4", "Bits4x2", "Bits8", "Bits16", "Float8_e5m2",
      "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz", "UInt16", "UInt32", "UInt64",
      "UInt1", "UInt2", "UInt3", "UInt4", "UInt5", "UInt6", "UInt7", "Int1", "Int2", "Int3",
      "Int4", "Int5", "Int6", "Int7", "Float8_e8m0fnu", "Float4_e2m1fn_x2",
  };
  // clang-format on
  static_assert(sizeof kNames / sizeof *kNames == 47);
  return code < sizeof kNames / sizeof *kNames ? kNames[code] : "?";
}

const char* reduce_op_name(u8 code) noexcept {
  static constexpr const char* kNames[] = {"",    "SUM",  "AVG", "PRODUCT", "MIN",
                                           "MAX", "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return code < sizeof kNames / sizeof *kNames ? kNames[code] : "?";
}

const char* clock_name(ClockKind kind) noexcept {
  switch (kind) {
    case ClockKind::kMonotonic:
      return "monotonic";
    case ClockKind::kTsc:
      return "tsc";
    case ClockKind::kCntvct:
      return "cntvct";
  }
  return "?";
}

const char* wait_name(Wait wait) noexcept {
  switch (wait) {
    case Wait::kNone:
      return "";
    case Wait::kPosted:
      return "posted";
    case Wait::kOwnKernel:
      return "own_kernel";
    case Wait::kPeerCredit:
      return "peer_credit";
    case Wait::kInFlight:
      return "in_flight";
    case Wait::kData:
      return "data";
    case Wait::kFlush:
      return "flush";
    case Wait::kOwnKernelTakes:
      return "own_kernel_takes";
  }
  return "?";
}

const char* phase_kind_name(PhaseKind kind) noexcept {
  switch (kind) {
    case kPhaseKernel:
      return "kernel";
    case kPhaseSend:
      return "send";
    case kPhaseRecv:
      return "recv";
  }
  return "?";
}

}  // namespace fr
