// error_file.hpp - the file that torchrun reads when a rank has failed (TORCHELASTIC_ERROR_FILE).
#pragma once

#include <cstddef>

#include "format/view.hpp"

namespace fr {

// How a process that ends describes itself: "rank 1 (host n1, pid 7) was ended by SIGTERM, sent by
// process 4 (torchrun), with all_reduce #41 of default_pg at train.py:57 (step) in flight". At most
// bytes - 1 characters. Async-signal-safe.
void describe_end(const View& view, char* out, std::size_t bytes) noexcept;

// When the process met its end, in seconds since 1970. torchrun takes the earliest for the root
// cause: a rank that only follows others (a signal ends it, or an operation failed) gets a time two
// seconds ahead. So it comes after ranks that left no file, which get the time of torchrun's look.
u64 time_of_end_s(const Header& header, u64 now_unix_ns) noexcept;

// The file's JSON; 0: does not fit.
std::size_t format_error_file(char* out, std::size_t bytes, const char* message, const char* lines,
                              u64 time_s) noexcept;

}  // namespace fr
