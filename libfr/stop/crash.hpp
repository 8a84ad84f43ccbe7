// crash.hpp - SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT.
#pragma once

namespace fr {

struct Recorder;

void install_crash_handlers(Recorder& r) noexcept;
// Gives the calling thread an alternate stack for signals where it has none, until it ends: without
// one an overflow of its own stack leaves no crash record. Not in a signal handler.
void guard_thread() noexcept;
// The watchdog's thread, every second: has the process lived on after the crash that was recorded?
void check_survived() noexcept;

}  // namespace fr
