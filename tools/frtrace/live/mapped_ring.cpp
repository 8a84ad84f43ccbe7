#include "live/mapped_ring.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "sample/process.hpp"

namespace frtrace {

MappedRing::MappedRing(int directory, const std::string& name) {
  const int fd = ::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  struct stat st{};
  constexpr off_t kMost = off_t{1} << 31;
  if (fd >= 0 && ::fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 &&
      st.st_size < kMost) {
    size_ = static_cast<std::size_t>(st.st_size);
    inode_ = st.st_ino;
    void* p = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED) {
      data_ = p;
      view_ = fr::View::of(data_, size_);
    }
  }
  if (fd >= 0) {
    ::close(fd);
  }
}

MappedRing::~MappedRing() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
}

std::string ring_directory(const std::string& shm_dir) {
  return fmt::format("{}/fr-{}", shm_dir, ::geteuid());
}

void for_each_ring(const std::string& directory, const TakesRing& take, const WantsRing& wanted) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR* d = fd >= 0 ? ::fdopendir(fd) : nullptr;
  while (const dirent* e = d != nullptr ? ::readdir(d) : nullptr) {
    const std::string name = e->d_name;
    if (name.ends_with(".ring") && (!wanted || wanted(name))) {
      auto mapped = std::make_unique<MappedRing>(fd, name);
      if (mapped->view().ok()) {
        take(name, std::move(mapped));
      }
    }
  }
  if (d != nullptr) {
    ::closedir(d);
  }
}

std::string fixed(const char* text, std::size_t most) {
  return {text, ::strnlen(text, most)};
}

bool lives(const fr::Header& h, Time now, Time sign) {
  const auto heartbeat = static_cast<Time>(h.heartbeat_unix_ns.load());
  return h.pid_namespace == fr::pid_namespace() ? fr::is_alive(h.pid, h.proc_start)
                                                : now - heartbeat < sign;
}

}  // namespace frtrace
