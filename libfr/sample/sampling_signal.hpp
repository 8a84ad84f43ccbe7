// sampling_signal.hpp - the signal that interrupts a thread, its handler, and the slots that the
// handler copies into. All of it is async-signal-safe.
#pragma once

#include <signal.h>

#include <atomic>

#include "fr/fr.h"
#include "sample/unwind.hpp"

namespace fr {

inline constexpr u32 kSlots = 16;
inline constexpr u32 kStackBytes = 64 * 1024;
inline constexpr u32 kPythonFrames = 512;  // of one thread

// kLate: nobody waits for the answer any more. The signal is still on its way, and the thread's
// call must be made again all the same.
enum SlotState : u64 { kIdle, kRequested, kWriting, kAnswered, kLate };
inline constexpr u32 kLateSlots = kSlots / 2;  // at most; the others are for the next dump

// Room for the copy that one thread makes. word = token << 8 | SlotState.
struct SampleSlot {
  std::atomic<u64> word;
  u32 row;
  u64 requested_ns;
  u64 answered_ns;
  // the system call that /proc saw the thread in, and where; -1: none that can be made again
  i64 call;
  u64 call_pc;
  u64 call_sp;
  u64 call_arg;
  Registers registers;
  u64 stack_base;
  u64 stack_bytes;
  u32 n_python;
  u32 python_total;
  u32 python_facts;
  u64 handled;  // exception that the thread handles; 0 none
  bool interrupted;
  fr_python_frame python[kPythonFrames];
  unsigned char stack[kStackBytes];
};

// Null before install_slots(); never unmapped, for any thread may be in the handler at any time.
SampleSlot* sample_slots() noexcept;
// Maps the slots and installs the handler on a real-time signal that nobody has. 0: no memory, or
// no signal is free. In a forked child the parent's slots and signal are kept, and emptied.
int install_sampling() noexcept;
// 0: none. Another handler may have taken its place since.
int sampling_signal() noexcept;
bool is_ours(int signal) noexcept;
// Can the call be made again after the handler interrupted it?
bool can_repeat(i64 call) noexcept;

// A futex: grows with each answer.
inline std::atomic<u32> g_answers{0};

}  // namespace fr
