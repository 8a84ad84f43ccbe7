// parts.hpp - how the folders above the recorder take part without being included by it or by each
// other: each has one row of functions in kParts (parts.cpp, the only file that knows them all).
//
// A row is a constant, not a registration at run time: no order of initialisation, no lock, and a
// signal handler may read it.
#pragma once

#include <span>

#include "format/layout.hpp"

namespace fr {

struct Recorder;
struct NodesAnswer;
struct RasAnswer;

struct Part {
  const char* name;
  // The recorder is whole, but nobody can see it yet. May throw: then nothing is recorded.
  void (*make)(Recorder& r) = nullptr;
  // recorder() gives it out.
  void (*start)(Recorder& r) noexcept = nullptr;

  // The watchdog thread's: no lock, no allocation, no device call.
  void (*every_tick)() noexcept = nullptr;  // 100 ms
  void (*every_second)() noexcept = nullptr;
  // A dump is near: begin to gather data that takes time.
  void (*before_dump)(Recorder& r) noexcept = nullptr;
  // The gathered answer, waited for at most limit_ns; nullptr: nothing was asked for.
  const RasAnswer* (*ras_answer)(u64 limit_ns) noexcept = nullptr;
  // Nodes that were told of this incident; waits until that is settled. nullptr: not by this rank.
  const NodesAnswer* (*nodes_answer)(u64 incident) noexcept = nullptr;

  // exit(): operations that nobody has waited for since then are not in flight.
  void (*before_exit)(u64 since_ticks) noexcept = nullptr;
  // The exit dump is written; make no more device calls.
  void (*stop)() noexcept = nullptr;
};

extern const std::span<const Part> kParts;

// Calls one function of every part that has it.
template <class Member, class... A>
void for_each_part(Member member, A&&... arguments) {
  for (const Part& part : kParts) {
    if (part.*member != nullptr) {
      (part.*member)(arguments...);
    }
  }
}

}  // namespace fr
