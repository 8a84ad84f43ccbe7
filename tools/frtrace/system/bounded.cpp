// bounded.cpp - looks at files from a child process, so that a hung mount costs only seconds.
#include "system/bounded.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

namespace frtrace {

namespace {

void write_all(int fd, const void* data, std::size_t n) {
  const auto* at = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t done = ::write(fd, at, n);
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      ::_exit(1);  // the reader is gone
    }
    at += done;
    n -= static_cast<std::size_t>(done);
  }
}

[[noreturn]] void run(const std::function<void(const Say&)>& work, int fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it may start others, and be given up itself
  ::signal(SIGPIPE, SIG_IGN);
  try {
    work([fd](std::string_view text) {
      const auto n = static_cast<std::uint32_t>(text.size());
      write_all(fd, &n, sizeof n);
      write_all(fd, text.data(), n);
    });
  } catch (...) {
    ::_exit(1);
  }
  ::_exit(0);
}

// Where the file system is mounted that a path lies on, by /proc alone; "" unknown.
std::string mount_of(std::string_view path) {
  std::ifstream mounts("/proc/self/mountinfo");
  std::string best;
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string skipped, where;
    for (int i = 0; i < 4; ++i) {
      words >> skipped;
    }
    words >> where;
    const bool above =
        path.starts_with(where) &&
        (where.ends_with('/') || path.size() == where.size() || path[where.size()] == '/');
    if (above && where.size() >= best.size()) {
      best = where;
    }
  }
  return best;
}

std::set<std::string> g_given_up;

int left_ms(std::chrono::steady_clock::time_point until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      until - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 24 * 3'600'000));
}

}  // namespace

void give_up_on(std::string_view path) {
  g_given_up.insert(mount_of(path));
}

bool given_up_on(std::string_view path) {
  return !g_given_up.empty() && g_given_up.contains(mount_of(path));
}

bool in_child(const std::function<void(const Say&)>& work, const Say& heard,
              std::chrono::milliseconds patience, std::chrono::milliseconds longest) {
  const auto until = std::chrono::steady_clock::now() + longest;
  int ends[2];
  if (::pipe(ends) != 0) {
    return false;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    run(work, ends[1]);
  }
  ::close(ends[1]);
  std::string buffer;
  bool ended = child < 0;
  while (!ended) {
    pollfd wait{ends[0], POLLIN, 0};
    const int ready =
        ::poll(&wait, 1, std::min(left_ms(until), static_cast<int>(patience.count())));
    if (ready < 0 && errno == EINTR) {
      continue;
    }
    if (ready <= 0) {
      break;
    }
    char bytes[4096];
    const ssize_t n = ::read(ends[0], bytes, sizeof bytes);
    ended = n <= 0;
    buffer.append(bytes, n > 0 ? static_cast<std::size_t>(n) : 0);
    std::size_t at = 0;
    for (std::uint32_t size = 0; buffer.size() - at >= sizeof size; at += sizeof size + size) {
      std::memcpy(&size, buffer.data() + at, sizeof size);
      if (buffer.size() - at - sizeof size < size) {
        break;
      }
      heard(std::string_view(buffer).substr(at + sizeof size, size));
    }
    buffer.erase(0, at);
  }
  ::close(ends[0]);
  if (child > 0) {
    if (!ended) {
      ::kill(child, SIGKILL);
    }
    ::waitpid(child, nullptr, ended ? 0 : WNOHANG);
  }
  return ended && child > 0;
}

Output output_of(const std::vector<std::string>& argv, std::chrono::milliseconds longest) {
  Output out;
  const auto until = std::chrono::steady_clock::now() + longest;
  std::vector<char*> arguments;
  for (const std::string& a : argv) {
    arguments.push_back(const_cast<char*>(a.c_str()));
  }
  arguments.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return out;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, 0);
    ::dup2(ends[1], 1);
    ::dup2(ends[1], 2);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  constexpr std::size_t kMost = std::size_t{16} << 20;
  while (child > 0 && !out.ended) {
    pollfd wait{ends[0], POLLIN, 0};
    const int ready = ::poll(&wait, 1, left_ms(until));
    if (ready < 0 && errno == EINTR) {
      continue;
    }
    if (ready <= 0 || out.text.size() > kMost) {
      break;
    }
    char bytes[4096];
    const ssize_t n = ::read(ends[0], bytes, sizeof bytes);
    out.ended = n <= 0;
    out.text.append(bytes, n > 0 ? static_cast<std::size_t>(n) : 0);
  }
  ::close(ends[0]);
  if (child > 0) {
    int status = 0;
    if (!out.ended) {
      ::kill(child, SIGKILL);
    }
    if (::waitpid(child, &status, out.ended ? 0 : WNOHANG) == child && WIFEXITED(status)) {
      out.status = WEXITSTATUS(status);
    }
  }
  return out;
}

}  // namespace frtrace
