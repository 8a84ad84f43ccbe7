#include "commands/output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "commands/arguments.hpp"

namespace frtrace {

int status_of(const std::vector<Report>& reports) {
  int status = kNoFault;
  for (const Report& r : reports) {
    if (r.kind == Verdict::kUndecided) {
      status = status == kFault ? kFault : kNotDecided;
    } else if (r.kind != Verdict::kOk) {
      status = kFault;
    }
  }
  return status;
}

// Beside it: a rename does not cross file systems. Not *.prom, which node_exporter would read.
std::optional<std::string> write_whole(const std::string& path, const std::string& bytes) {
  const std::string beside = fmt::format("{}.{}.tmp", path, ::getpid());
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file << bytes;
  file.close();
  if (!file || std::rename(beside.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(beside.c_str());
    return std::strerror(error);
  }
  return std::nullopt;
}

}  // namespace frtrace
