#include "live/proc_file.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace frtrace {

// Not a std::ifstream: its iterators throw where read() fails.
std::string proc_file(const std::string& path) {
  std::string out;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return out;
  }
  char part[16384];
  for (ssize_t n = 0; (n = ::read(fd, part, sizeof part)) > 0;) {
    out.append(part, static_cast<std::size_t>(n));
  }
  ::close(fd);
  return out;
}

}  // namespace frtrace
