// memory_read.cpp - process_vm_readv; on this process /proc/self/mem where that is missing.
#include "sample/memory_read.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace fr {
namespace {

// Where seccomp forbids process_vm_readv. A descriptor of the parent's would read the parent.
std::atomic<int> g_mem_fd{-1};

// Read in signal handlers: no lazy allocation.
thread_local i32 t_other __attribute__((tls_model("initial-exec"))) = 0;

constexpr std::size_t kPage = 4096;

}  // namespace

PeekOther::PeekOther(i32 pid) noexcept {
  t_other = pid;
}

PeekOther::~PeekOther() {
  t_other = 0;
}

void prepare_peek() noexcept {
  const int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  const int before = g_mem_fd.exchange(fd);
  if (before >= 0) {
    close(before);
  }
}

std::size_t peek_some(u64 address, void* to, std::size_t bytes) noexcept {
  const int kept_errno = errno;
  if (address < kPage || address + bytes < address) {
    return 0;
  }
  const iovec local{to, bytes};
  const iovec remote{reinterpret_cast<void*>(address), bytes};
  ssize_t n = process_vm_readv(t_other != 0 ? t_other : getpid(), &local, 1, &remote, 1, 0);
  if (n < 0 && errno != EFAULT && t_other == 0) {
    const int fd = g_mem_fd.load();
    n = fd >= 0 ? pread(fd, to, bytes, static_cast<off_t>(address)) : 0;
  }
  errno = kept_errno;
  return n > 0 ? static_cast<std::size_t>(n) : 0;
}

bool peek_text(u64 address, char* to, std::size_t size) noexcept {
  std::size_t used = 0;
  while (used + 1 < size) {
    const std::size_t to_page_end = kPage - ((address + used) & (kPage - 1));
    const std::size_t room = size - 1 - used;
    const std::size_t n =
        peek_some(address + used, to + used, room < to_page_end ? room : to_page_end);
    if (n == 0) {
      to[used] = '\0';
      return false;
    }
    if (std::memchr(to + used, '\0', n) != nullptr) {
      return true;
    }
    used += n;
  }
  to[used] = '\0';
  return true;
}

}  // namespace fr
