// control_page.cpp - maps, claims and removes the page. A file lock, held for moments only, settles
// which process makes it and which removes it.
#include "watch/control_page.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <ctime>

#include "format/ticks.hpp"
#include "recorder/identity.hpp"
#include "sample/process.hpp"

namespace fr {
namespace {

bool lock_for_a_while(int fd) {
  for (int i = 0; i < 200; ++i) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
      return true;
    }
    const timespec pause{0, 5'000'000};
    nanosleep(&pause, nullptr);
  }
  return false;  // its holder is stopped: better alone than stuck
}

}  // namespace

void ControlPage::open(const std::string& dir, const std::string& job, i32 attempt,
                       u64 first_incident) {
  void* base = MAP_FAILED;
  int fd = -1;
  if (!dir.empty()) {
    path_ = dir + "/" + job + ".a" + std::to_string(attempt) + "." +
            std::to_string(pid_namespace()) + ".ctl";
    for (int tries = 0; tries < 10 && fd < 0; ++tries) {
      fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
      if (fd < 0) {
        break;
      }
      if (!lock_for_a_while(fd)) {
        close(fd);
        fd = -1;
        break;
      }
      struct stat mine;
      struct stat there;  // the last rank out may have removed it while we waited for the lock
      const bool is_same =
          fstat(fd, &mine) == 0 && stat(path_.c_str(), &there) == 0 && mine.st_ino == there.st_ino;
      if (!is_same) {
        close(fd);
        fd = -1;
      } else if (!S_ISREG(mine.st_mode) || mine.st_uid != geteuid()) {
        close(fd);  // put there while the directory was open to others
        fd = -1;
        break;
      }
    }
  }
  bool fresh = true;
  if (fd >= 0) {
    struct stat st;
    fresh = fstat(fd, &st) != 0 || st.st_size != sizeof(Control);
    if (!fresh ||
        (posix_fallocate(fd, 0, kControlBytes) == 0 && ftruncate(fd, sizeof(Control)) == 0)) {
      base = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
  }
  if (base == MAP_FAILED) {
    fresh = true;
    path_.clear();
    base =
        mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
      static Control none;  // no memory at all: still something to point at
      base = &none;
    }
  }
  page_ = static_cast<Control*>(base);
  const bool ours = page_->magic.load(std::memory_order_acquire) == kControlMagic &&
                    page_->version == kLayoutVersion && page_->row_bytes == sizeof(PeerRow) &&
                    page_->row_count == kPeers;
  if (fresh || !ours || !has_living_rank(*page_)) {
    // New, or left by an earlier run of the same job and attempt with all its ranks gone.
    std::memset(static_cast<void*>(page_), 0, kControlBytes);
    page_->version = kLayoutVersion;
    page_->row_bytes = sizeof(PeerRow);
    page_->row_count = kPeers;
    page_->attempt = attempt;
    page_->incident.store(first_incident);
    page_->incident_rank.store(-1);
    page_->nodes.told.store(first_incident);
    std::snprintf(page_->job, sizeof page_->job, "%s", job.c_str());
    page_->magic.store(kControlMagic, std::memory_order_release);
  }
  lock_fd_ = fd;  // until join(): a rank between the two would look like nobody
}

bool ControlPage::join(i32 pid, u64 proc_start, i32 rank, i32 local_rank,
                       const char* ring) noexcept {
  const struct Unlock {
    int& fd;
    ~Unlock() {
      if (fd >= 0) {
        flock(fd, LOCK_UN);  // said aloud: the mapping keeps the open file, and so the lock
        close(fd);
        fd = -1;
      }
    }
  } unlock{lock_fd_};
  for (int round = 0; round < 2; ++round) {
    for (PeerRow& row : page_->peers) {
      u32 state = row.state.load(std::memory_order_acquire);
      // second round: rows of ranks that ended, oldest evidence is in their dumps
      const bool free = state == kPeerFree || (round == 1 && state >= kPeerExitedClean) ||
                        (round == 1 && state == kPeerLive && is_dead(row));
      if (!free || !row.state.compare_exchange_strong(state, kPeerClaimed)) {
        continue;
      }
      row.pid.store(pid);
      row.proc_start.store(proc_start);
      row.rank.store(rank);
      row.local_rank.store(local_rank);
      row.heartbeat_unix_ns.store(unix_now_ns());
      row.dumped.store(page_->incident.load());
      row.exit_status.store(0);
      row.exit_signal.store(0);
      row.exit_unix_ns.store(0);
      row.salvaged.store(0);
      row.late_told.store(0);
      row.paused.store(0);
      row.hung.store(0);
      row.warned_unix_ns.store(0);
      for (Question& q : row.questions) {
        q.asked_ns.store(0);
        q.answers.store(0);
      }
      row.last_op[0] = '\0';
      std::memset(row.last_site, 0, sizeof row.last_site);
      std::snprintf(row.ring, sizeof row.ring, "%s", ring);
      row.state.store(kPeerLive, std::memory_order_release);
      own_ = &row;
      return true;
    }
  }
  return false;
}

bool ControlPage::make_room(u32 nodes) noexcept {
  if (path_.empty() || nodes > kNodes) {
    return false;
  }
  const int fd = ::open(path_.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  // All of it now: a full file system must say so here, not by SIGBUS at a row.
  const bool ok = posix_fallocate(fd, kControlBytes, nodes * sizeof(NodeRow)) == 0;
  close(fd);
  return ok;
}

void ControlPage::remove_if_last() noexcept {
  if (path_.empty()) {
    return;
  }
  const int fd = ::open(path_.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    return;
  }
  // A rank that opens the page, or looks for dead ones, holds the lock for a moment.
  if (lock_for_a_while(fd) && !has_living_rank(*page_)) {
    unlink(path_.c_str());
  }
  close(fd);
}

}  // namespace fr
