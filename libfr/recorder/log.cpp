// log.cpp - lines on stderr, each in one write.
#include "recorder/log.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "format/text.hpp"

namespace fr {
namespace {
std::atomic<int> g_level{kLogWarn};
std::atomic<int> g_rank{-1};
std::atomic<const char*> g_host{nullptr};
}  // namespace

void set_log(int level, const char* host) noexcept {
  g_level.store(level);
  g_host.store(host);
}

void set_log_rank(int rank) noexcept {
  g_rank.store(rank);
}

void log_line(LogLevel level, const char* text, ...) noexcept {
  if (level > g_level.load()) {
    return;
  }
  char line[1024];
  char printable[sizeof line];
  const char* host = g_host.load();
  const int rank = g_rank.load();
  int n = rank >= 0
              ? std::snprintf(line, sizeof line, "[fr %s:%d] ", host != nullptr ? host : "?", rank)
              : std::snprintf(line, sizeof line, "[fr %s:?] ", host != nullptr ? host : "?");
  va_list args;
  va_start(args, text);
  n += std::vsnprintf(line + n, sizeof line - static_cast<unsigned>(n), text, args);
  va_end(args);
  if (n > static_cast<int>(sizeof line) - 1) {
    n = static_cast<int>(sizeof line) - 1;
  }
  // Names of jobs, exceptions and files of other users stand in it.
  std::size_t bytes =
      format_line(printable, sizeof printable - 1, line, static_cast<std::size_t>(n));
  printable[bytes++] = '\n';
  // nowhere to report a failure to write to stderr
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, printable, bytes);
}

}  // namespace fr
