#include "system/proc_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace frtrace {

// Not a std::ifstream: its iterators throw where read() fails.
std::optional<std::string> whole_file(const std::string& path, bool records) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    return std::nullopt;
  }
  std::string out;
  char part[16384];
  ssize_t n = 0;
  bool failed = false;
  while (out.size() < (records ? 64 * kMostBytes : kMostBytes)) {
    n = ::read(fd, part, sizeof part);
    if (n < 0 && errno == EPIPE && records) {
      continue;  // overwritten meanwhile
    }
    if (n <= 0) {
      failed = n < 0 && errno != EAGAIN;
      break;
    }
    out.append(part, static_cast<std::size_t>(n));
  }
  ::close(fd);
  return failed && out.empty() ? std::nullopt : std::optional(std::move(out));
}

std::map<std::string, std::string> environment_in(const std::string& environ) {
  std::map<std::string, std::string> out;
  for (std::size_t from = 0; from < environ.size();) {
    const std::size_t to = std::min(environ.find('\0', from), environ.size());
    const std::string entry = environ.substr(from, to - from);
    if (const std::size_t at = entry.find('='); at != std::string::npos) {
      out.emplace(entry.substr(0, at), entry.substr(at + 1));
    }
    from = to + 1;
  }
  return out;
}

}  // namespace frtrace
