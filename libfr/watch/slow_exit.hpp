// slow_exit.hpp - records hanging exit hooks as an operation in flight. Exits are quick as a rule
// and leave no record; the watchdog begins one when an exiting process has used no processor for
// kQuickExit_ns.
#pragma once

#include <atomic>

#include "format/ticks.hpp"
#include "fr/fr.h"

namespace fr {

class SlowExit {
 public:
  // The exiting thread: its hooks are about to run. op: string id of the operation's name.
  void begin(u32 op, u64 now_ns) noexcept;
  void look(u64 now_ns) noexcept;  // the watchdog's thread, every tick
  // The exiting thread: all hooks have run. A hook that a signal (Ctrl-C) broke off did not return: the
  // operation stays in flight.
  void end() noexcept;

 private:
  static constexpr u64 kQuickExit_ns = 500'000'000;
  static constexpr u64 kBusy_ns = 3'000'000;  // of the processor between two looks
  enum Phase : u32 { kRuns, kExits, kRecorded, kEnded };

  std::atomic<u32> phase_{kRuns};
  u32 op_ = 0;
  u64 since_ns_ = 0;
  i32 signal_before_ = 0;
  u64 cpu_ns_ = 0;
  fr_ticket ticket_{};
};

}  // namespace fr
