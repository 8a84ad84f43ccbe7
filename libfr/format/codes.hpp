// codes.hpp - the codes of a dump and their words: one table for each, read in both directions.
//
// A dump holds words where a region holds numbers: a reader that does not know a word of a later
// version reads "unknown", never another state. Encoder, frtrace, fr.snapshot(), the simulator and
// the test of the documentation use these tables; nothing else translates.
#pragma once

#include <iterator>
#include <span>
#include <string_view>

#include "format/view.hpp"
#include "fr/fr.h"

namespace fr {

// The codes as dumps distinguish them. 0 is what a reader does not know.
namespace dump {

enum class Kind : u8 {
  kOther,
  kCollective = FR_COLLECTIVE,
  kSend = FR_SEND,
  kRecv = FR_RECV,
  kLifecycle = FR_LIFECYCLE,
  kNote = FR_NOTE,
  kSpan = FR_SPAN,
  kStep = FR_STEP,
  kSample = FR_SAMPLE,
  kStore = FR_STORE
};

// State of a record.
enum class State : u8 {
  kUnknown,   // completion is not observed
  kEnqueued,  // issued, and nothing was observed of it yet
  kStarted,
  kWaiting,  // FR_WAIT_ONLY, FR_UNTRACKED: a thread waits for it
  kIdle,     // and now no thread does; it is not done
  kCompleted,
  kFailed,
  kReleased  // the handle was dropped, the outcome was not observed
};

// State of an operation of the device library.
enum class DeviceState : u8 {
  kUnknown,
  kScheduled,  // the call was made
  kLaunching,  // the host is inside the launch
  kLaunched,   // on the stream
  kStarted,    // its kernel runs
  kEnded       // two words: "completed", "failed"
};

enum class PhaseKind : u8 { kOther, kKernel, kSend, kRecv };

// Reason that a kernel channel, or the oldest unfinished step of a transfer, waits.
enum class PhaseWait : u8 {
  kOther,      // it has ended
  kRunning,    // kernel channel
  kIdle,       // no step has begun
  kPosted,     // send: buffer posted
  kOwnKernel,  // send: the own kernel has not filled it
  kPeerCredit,
  kInFlight,
  kData,
  kFlush,
  kOwnKernelTakes
};

enum class Peer : u8 { kOther, kLive, kExitedClean, kExited, kGone };

// Why a dump was written.
enum class Trigger : u8 {
  kUnknown,
  kTimeout,
  kPeer,  // of the same node, or of another one
  kManual,
  kPipe,
  kSignal,
  kFailure,
  kException,
  kExit,
  kCrash,
  kSalvage,  // a peer wrote it
  kWentOn    // the hang that the incident was opened for is over
};

// The first cause of a process's end, by its own record.
enum class ExitBy : u8 { kUnknown, kException, kExit, kSignal, kCrash };

// Why a peer wrote a rank's dump. kNone: the rank wrote it itself, or a word of a later version.
enum class Salvage : u8 {
  kNone,
  kDead,
  kUnresponsive,  // it lives and did not answer
  kUnwritten,     // its watchdog lives and could not write
  kLeftOver       // an earlier run left its ring behind
};

// The process is no more: nothing of it comes after what was salvaged.
constexpr bool is_gone(Salvage s) noexcept {
  return s == Salvage::kDead || s == Salvage::kLeftOver;
}

}  // namespace dump

template <class Code>
struct Word {
  Code code;
  const char* word;
};

// clang-format off
inline constexpr Word<dump::Kind> kKindWords[] = {
    {dump::Kind::kCollective, "collective"}, {dump::Kind::kSend, "send"},
    {dump::Kind::kRecv, "recv"},             {dump::Kind::kLifecycle, "lifecycle"},
    {dump::Kind::kNote, "note"},             {dump::Kind::kSpan, "span"},
    {dump::Kind::kStep, "step"},             {dump::Kind::kSample, "sample"},
    {dump::Kind::kStore, "store"}};

inline constexpr Word<dump::State> kStateWords[] = {
    {dump::State::kUnknown, "unknown"},     {dump::State::kEnqueued, "enqueued"},
    {dump::State::kStarted, "started"},     {dump::State::kWaiting, "waiting"},
    {dump::State::kIdle, "idle"},           {dump::State::kCompleted, "completed"},
    {dump::State::kFailed, "failed"},       {dump::State::kReleased, "released"}};

inline constexpr Word<dump::DeviceState> kDeviceStateWords[] = {
    {dump::DeviceState::kScheduled, "scheduled"}, {dump::DeviceState::kLaunching, "launching"},
    {dump::DeviceState::kLaunched, "launched"},   {dump::DeviceState::kStarted, "started"},
    {dump::DeviceState::kEnded, "completed"},     {dump::DeviceState::kEnded, "failed"}};

inline constexpr Word<dump::PhaseKind> kPhaseKindWords[] = {
    {dump::PhaseKind::kKernel, "kernel"}, {dump::PhaseKind::kSend, "send"},
    {dump::PhaseKind::kRecv, "recv"}};

inline constexpr Word<dump::PhaseWait> kPhaseWaitWords[] = {
    {dump::PhaseWait::kRunning, "running"},      {dump::PhaseWait::kPosted, "posted"},
    {dump::PhaseWait::kOwnKernel, "own_kernel"}, {dump::PhaseWait::kPeerCredit, "peer_credit"},
    {dump::PhaseWait::kInFlight, "in_flight"},   {dump::PhaseWait::kData, "data"},
    {dump::PhaseWait::kFlush, "flush"},
    {dump::PhaseWait::kOwnKernelTakes, "own_kernel_takes"},
    {dump::PhaseWait::kIdle, "idle"},            {dump::PhaseWait::kOther, "ended"}};

inline constexpr Word<dump::Peer> kPeerWords[] = {
    {dump::Peer::kLive, "live"}, {dump::Peer::kExitedClean, "exited_clean"},
    {dump::Peer::kExited, "exited"}, {dump::Peer::kGone, "gone"}};

inline constexpr Word<dump::Trigger> kTriggerWords[] = {
    {dump::Trigger::kUnknown, ""},           {dump::Trigger::kTimeout, "timeout"},
    {dump::Trigger::kPeer, "peer"},          {dump::Trigger::kManual, "manual"},
    {dump::Trigger::kPipe, "pipe"},          {dump::Trigger::kSignal, "signal"},
    {dump::Trigger::kFailure, "failure"},    {dump::Trigger::kException, "exception"},
    {dump::Trigger::kExit, "exit"},          {dump::Trigger::kCrash, "crash"},
    {dump::Trigger::kSalvage, "salvage"},    {dump::Trigger::kWentOn, "went_on"}};

inline constexpr Word<dump::ExitBy> kExitByWords[] = {
    {dump::ExitBy::kUnknown, ""},     {dump::ExitBy::kException, "exception"},
    {dump::ExitBy::kExit, "exit"},    {dump::ExitBy::kSignal, "signal"},
    {dump::ExitBy::kCrash, "crash"}};

inline constexpr Word<dump::Salvage> kSalvageWords[] = {
    {dump::Salvage::kDead, "dead"}, {dump::Salvage::kUnresponsive, "unresponsive"},
    {dump::Salvage::kUnwritten, "unwritten"}, {dump::Salvage::kLeftOver, "left over"}};

inline constexpr Word<ExitState> kExitWords[] = {
    {kExitNoted, "noted"}, {kSignalled, "signalled"}, {kExiting, "exiting"}};

inline constexpr Word<ClockKind> kClockWords[] = {
    {ClockKind::kTsc, "tsc"}, {ClockKind::kCntvct, "cntvct"},
    {ClockKind::kMonotonic, "monotonic"}};

// By code: torch's ScalarType + 1 and ReduceOp + 1; 0 is unknown.
inline constexpr const char* kDtypes[] = {
    "", "Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "ComplexHalf",
    "ComplexFloat", "ComplexDouble", "Bool", "QInt8", "QUInt8", "QInt32", "BFloat16",
    "QUInt4x2", "QUInt2x4", "Bits1x8", "Bits2x4", "Bits4x2", "Bits8", "Bits16", "Float8_e5m2",
    "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz", "UInt16", "UInt32", "UInt64",
    "UInt1", "UInt2", "UInt3", "UInt4", "UInt5", "UInt6", "UInt7", "Int1", "Int2", "Int3",
    "Int4", "Int5", "Int6", "Int7", "Float8_e8m0fnu", "Float4_e2m1fn_x2"};
static_assert(std::size(kDtypes) == 47);
inline constexpr const char* kReduceOps[] = {"", "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND",
                                             "BOR", "BXOR", "PREMUL_SUM"};
// clang-format on

// The table that a type of code has.
constexpr std::span<const Word<dump::Kind>> words_of(dump::Kind) {
  return kKindWords;
}
constexpr std::span<const Word<dump::State>> words_of(dump::State) {
  return kStateWords;
}
constexpr std::span<const Word<dump::DeviceState>> words_of(dump::DeviceState) {
  return kDeviceStateWords;
}
constexpr std::span<const Word<dump::PhaseKind>> words_of(dump::PhaseKind) {
  return kPhaseKindWords;
}
constexpr std::span<const Word<dump::PhaseWait>> words_of(dump::PhaseWait) {
  return kPhaseWaitWords;
}
constexpr std::span<const Word<dump::Peer>> words_of(dump::Peer) {
  return kPeerWords;
}
constexpr std::span<const Word<dump::Trigger>> words_of(dump::Trigger) {
  return kTriggerWords;
}
constexpr std::span<const Word<dump::ExitBy>> words_of(dump::ExitBy) {
  return kExitByWords;
}
constexpr std::span<const Word<dump::Salvage>> words_of(dump::Salvage) {
  return kSalvageWords;
}
constexpr std::span<const Word<ExitState>> words_of(ExitState) {
  return kExitWords;
}
constexpr std::span<const Word<ClockKind>> words_of(ClockKind) {
  return kClockWords;
}

// The first word of a code; "?" where it has none.
template <class Code>
constexpr const char* word(Code code) noexcept {
  for (const Word<Code>& w : words_of(code)) {
    if (w.code == code) {
      return w.word;
    }
  }
  return "?";
}

// The code of a word; Code{}, which is "unknown", of any other text.
template <class Code>
constexpr Code code(std::string_view text) noexcept {
  for (const Word<Code>& w : words_of(Code{})) {
    if (text == w.word) {
      return w.code;
    }
  }
  return Code{};
}

// "Float", "SUM", ... "" for 0, "?" when unknown.
constexpr const char* dtype_name(u8 code) noexcept {
  return code < std::size(kDtypes) ? kDtypes[code] : "?";
}
constexpr const char* reduce_op_name(u8 code) noexcept {
  return code < std::size(kReduceOps) ? kReduceOps[code] : "?";
}
constexpr u8 dtype_code(std::string_view name) noexcept {
  for (u32 i = 1; i < std::size(kDtypes); ++i) {
    if (name == kDtypes[i]) {
      return static_cast<u8>(i);
    }
  }
  return 0;
}

// ---- a region's codes as a dump's

constexpr dump::State dump_state(State s) noexcept {
  switch (s) {
    case State::kLocked:  // what no observer has written yet; a copy never has it
      return dump::State::kEnqueued;
    case State::kStarted:
      return dump::State::kStarted;
    case State::kCompleted:
      return dump::State::kCompleted;
    case State::kFailed:
      return dump::State::kFailed;
    case State::kReleased:
      return dump::State::kReleased;
    case State::kWaiting:
      return dump::State::kWaiting;
    case State::kIdle:
      return dump::State::kIdle;
  }
  return dump::State::kUnknown;
}

constexpr dump::State dump_state(const RecordCopy& r) noexcept {
  return r.has_status                            ? dump_state(r.state)
         : (r.payload.flags & FR_UNTRACKED) != 0 ? dump::State::kUnknown
                                                 : dump::State::kEnqueued;
}

constexpr dump::DeviceState dump_state(const DeviceOpCopy& o) noexcept {
  return o.ended_ticks != 0       ? dump::DeviceState::kEnded
         : o.started_ticks != 0   ? dump::DeviceState::kStarted
         : o.launched_ticks != 0  ? dump::DeviceState::kLaunched
         : o.launching_ticks != 0 ? dump::DeviceState::kLaunching
                                  : dump::DeviceState::kScheduled;
}

constexpr dump::PhaseKind dump_kind(PhaseKind kind) noexcept {
  return kind == kPhaseKernel ? dump::PhaseKind::kKernel
         : kind == kPhaseSend ? dump::PhaseKind::kSend
         : kind == kPhaseRecv ? dump::PhaseKind::kRecv
                              : dump::PhaseKind::kOther;
}

// The last wait of a transfer stays readable when its communicator was ended under it.
inline dump::PhaseWait dump_wait(const PhaseCopy& f) noexcept {
  if (f.kind == kPhaseKernel) {
    return f.is_live() ? dump::PhaseWait::kRunning : dump::PhaseWait::kOther;
  }
  switch (f.wait()) {
    case Wait::kNone:
      break;
    case Wait::kPosted:
      return dump::PhaseWait::kPosted;
    case Wait::kOwnKernel:
      return dump::PhaseWait::kOwnKernel;
    case Wait::kPeerCredit:
      return dump::PhaseWait::kPeerCredit;
    case Wait::kInFlight:
      return dump::PhaseWait::kInFlight;
    case Wait::kData:
      return dump::PhaseWait::kData;
    case Wait::kFlush:
      return dump::PhaseWait::kFlush;
    case Wait::kOwnKernelTakes:
      return dump::PhaseWait::kOwnKernelTakes;
  }
  return f.is_live() ? dump::PhaseWait::kIdle : dump::PhaseWait::kOther;
}

}  // namespace fr
