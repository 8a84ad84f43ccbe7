// crash.hpp - SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT.
#pragma once

namespace fr {

struct Recorder;

void install_crash_handlers(Recorder& r) noexcept;
// The watchdog's thread, every second: has the process lived on after the crash that was recorded?
void check_survived() noexcept;

}  // namespace fr
