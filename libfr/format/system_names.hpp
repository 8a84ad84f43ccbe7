// system_names.hpp - names of signals and texts of errors. The C library's own are younger than what
// libfr runs on (glibc 2.32), take locks (strerror) or write files (psignal).
#pragma once

namespace fr {

// "TERM" of SIGTERM; null: a real-time signal or none.
const char* signal_name(int signal) noexcept;

// Text of an errno that file operations give, as strerror has it; "error" for others.
const char* error_text(int error) noexcept;

}  // namespace fr
