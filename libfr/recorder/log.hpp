// log.hpp - one line on stderr, prefixed [fr host:rank], in one write.
#pragma once

#include <cstdarg>

namespace fr {

enum LogLevel { kLogError = 0, kLogWarn = 1, kLogInfo = 2, kLogDebug = 3 };

// Sets the level shown and the host that the lines name; the host's text must stay.
void set_log(int level, const char* host) noexcept;
void set_log_rank(int rank) noexcept;

// No allocation, no lock.
[[gnu::format(printf, 2, 3)]] void log_line(LogLevel level, const char* text, ...) noexcept;

}  // namespace fr
