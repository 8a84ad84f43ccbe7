// clean.cpp - `frtrace --clean`: removes rings and control pages of dead processes. Files of
// another pid namespace (a container) stay: its processes cannot be seen from here.
#include "commands/clean.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "commands/arguments.hpp"
#include "format/layout.hpp"
#include "live/mapped_ring.hpp"
#include "report/lines.hpp"
#include "sample/process.hpp"

namespace frtrace {

namespace {

// The first bytes of a file as one of the shared structs; nullptr: it has fewer.
template <class T>
std::unique_ptr<T> read_front(int fd) {
  auto out = std::make_unique<T>();
  return ::pread(fd, static_cast<void*>(out.get()), sizeof(T), 0) == ssize_t{sizeof(T)}
             ? std::move(out)
             : nullptr;
}

bool is_dead_ring(int fd, std::uint64_t own_namespace) {
  const auto h = read_front<fr::Header>(fd);
  return h != nullptr && h->magic.load() == fr::kRegionMagic && h->pid_namespace == own_namespace &&
         !fr::is_alive(h->pid, h->proc_start);
}

// Lock held while the page is removed: a rank that starts meanwhile waits and makes a new page.
bool is_dead_page(int fd, std::string_view name, std::uint64_t own_namespace) {
  if (!name.ends_with(fmt::format(".{}.ctl", own_namespace)) ||
      ::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return false;
  }
  const auto page = read_front<fr::Control>(fd);
  return page != nullptr && page->magic.load() == fr::kControlMagic &&
         page->version == fr::kLayoutVersion && page->row_bytes == sizeof(fr::PeerRow) &&
         !fr::has_living_rank(*page);
}

// The socket of `frtrace attach`, "<namespace>.<pid>.attach".
bool is_dead_socket(const std::string& name, std::uint64_t own_namespace) {
  const std::string front = fmt::format("{}.", own_namespace);
  return name.starts_with(front) && name.ends_with(".attach") &&
         ::access(fmt::format("/proc/{}", std::atoi(name.c_str() + front.size())).c_str(), F_OK) !=
             0;
}

}  // namespace

int clean_rings(const std::string& shm_dir) {
  const std::string path = ring_directory(shm_dir);
  const int dir = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat st{};
  if (dir < 0 || ::fstat(dir, &st) != 0 || st.st_uid != ::geteuid()) {
    fmt::print(stderr, "frtrace: {}: {}\n", printable(path),
               dir < 0 ? std::strerror(errno) : "is another user's");
    if (dir >= 0) {
      ::close(dir);
    }
    return kNothing;
  }
  std::vector<std::string> names;
  if (DIR* d = ::fdopendir(::dup(dir))) {
    while (const dirent* e = ::readdir(d)) {
      names.emplace_back(e->d_name);
    }
    ::closedir(d);
  }
  const std::uint64_t own_namespace = fr::pid_namespace();
  std::size_t rings = 0, pages = 0, stay = 0;
  std::uintmax_t bytes = 0;
  for (const std::string& name : names) {
    if (is_dead_socket(name, own_namespace)) {
      ::unlinkat(dir, name.c_str(), 0);
    }
    const bool ring = name.ends_with(".ring"), page = name.ends_with(".ctl");
    const int fd = ring || page
                       ? ::openat(dir, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
                       : -1;
    if (fd < 0) {
      continue;
    }
    const bool dead =
        ::fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
        (ring ? is_dead_ring(fd, own_namespace) : is_dead_page(fd, name, own_namespace));
    if (dead && ::unlinkat(dir, name.c_str(), 0) == 0) {
      (ring ? rings : pages) += 1;
      bytes += static_cast<std::uintmax_t>(st.st_size);
    } else {
      stay += ring ? 1 : 0;
    }
    ::close(fd);
  }
  ::close(dir);
  fmt::print("removed {} rings and {} control pages of dead jobs, {:.1f} MiB; {} rings stay\n",
             rings, pages, static_cast<double>(bytes) / (1 << 20), stay);
  return kNoFault;
}

}  // namespace frtrace
