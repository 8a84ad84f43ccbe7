// crash.hpp - SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT.
#pragma once

namespace fr {

struct Recorder;

void install_crash_handlers(Recorder& r) noexcept;

}  // namespace fr
