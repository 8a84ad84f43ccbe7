// verdict.cpp - the thread fr-verdict. It sleeps on a futex for nearly all its life. Everything but
// prepare() is held to what a signal handler may do: the process may hang or be about to die.
#include "watch/verdict.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <ctime>

#include "format/text.hpp"
#include "format/ticks.hpp"
#include "recorder/log.hpp"
#include "recorder/recorder.hpp"
#include "watch/control_page.hpp"
#include "watch/durable_write.hpp"
#include "watch/error_file.hpp"
#include "watch/spawn.hpp"

namespace fr {
namespace {

constexpr u64 kSecond_ns = 1'000'000'000;
// For the lowest rank that lives to come forward: it may be stopped, and then another one does.
constexpr u64 kElection_ns = kSecond_ns;
constexpr u64 kPoll_ns = 10'000'000;
constexpr u64 kSkew_s =
    5;  // of the file system's clock; a file older than the incident is another's

void pause() noexcept {
  const timespec t{0, static_cast<long>(kPoll_ns)};
  nanosleep(&t, nullptr);
}

const PeerRow* lowest_living(const Control& page) noexcept {
  const PeerRow* lowest = nullptr;
  for (const PeerRow& row : page.peers) {
    if (row.state.load(std::memory_order_acquire) == kPeerLive && !is_dead(row) &&
        (lowest == nullptr || row.rank.load() < lowest->rank.load())) {
      lowest = &row;
    }
  }
  return lowest;
}

// "0,1,3": the ranks that this node's page names, dead ones too.
void list_ranks(const Control& page, i32 own, char* to, std::size_t bytes) noexcept {
  std::size_t used = format(to, bytes, "%d", own);
  for (const PeerRow& row : page.peers) {
    if (row.state.load(std::memory_order_acquire) >= kPeerLive && row.rank.load() >= 0) {
      used += format(to + used, bytes - used, ",%d", row.rank.load());
    }
  }
}

}  // namespace

void* VerdictThread::thread_main(void* self) noexcept {
  static_cast<VerdictThread*>(self)->run();
  return nullptr;
}

void VerdictThread::run() noexcept {
  for (;;) {
    const u32 posted = posted_.load(std::memory_order_acquire);
    const u64 asked = asked_.load();
    if (asked > settled_.load()) {
      if (frtrace_[0] != '\0' && elect(asked)) {
        start_frtrace(asked);
      }
      settled_.store(asked, std::memory_order_release);
    }
    if (word_.load(std::memory_order_acquire) == kWordAsked) {
      write_error_file();
      word_.store(kWordLeft, std::memory_order_release);
    }
    syscall(SYS_futex, &posted_, FUTEX_WAIT_PRIVATE, posted, nullptr, nullptr, 0);
  }
}

void VerdictThread::ask(u64 incident) noexcept {
  if (asked_.load() < incident) {
    asked_.store(incident);
    posted_.fetch_add(1, std::memory_order_release);
    syscall(SYS_futex, &posted_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
}

void VerdictThread::await_start(u64 limit_ns) const noexcept {
  const u64 deadline = monotonic_ns() + limit_ns;
  while (is_needed() && settled_.load(std::memory_order_acquire) < asked_.load() &&
         monotonic_ns() < deadline) {
    pause();
  }
}

void VerdictThread::leave_word(u64 limit_ns) noexcept {
  u32 none = kNoWord;
  if (error_file_[0] == '\0' || !word_.compare_exchange_strong(none, kWordAsking)) {
    return;
  }
  word_limit_ns_ = limit_ns - limit_ns / 4;  // the rest is for writing
  word_.store(kWordAsked, std::memory_order_release);
  posted_.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &posted_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  const u64 deadline = monotonic_ns() + limit_ns;
  while (word_.load(std::memory_order_acquire) != kWordLeft && monotonic_ns() < deadline) {
    pause();
  }
}

// True where this rank is to start frtrace for its node.
bool VerdictThread::elect(u64 incident) noexcept {
  Control& page = recorder_->control->page();
  const u64 deadline = monotonic_ns() + kElection_ns;
  for (;;) {
    u64 claimed = page.verdict.load(std::memory_order_acquire);
    if (claimed >= incident) {
      return false;
    }
    if (lowest_living(page) == recorder_->control->own() || monotonic_ns() > deadline) {
      if (page.verdict.compare_exchange_strong(claimed, incident)) {
        return true;
      }
      continue;
    }
    pause();
  }
}

void VerdictThread::start_frtrace(u64 incident) noexcept {
  const Recorder& r = *recorder_;
  const Header& h = r.region.header();
  static char numbers[5][24];  // of this thread, as the other texts
  static char here[kPeers * 11 + 16];
  static char host[sizeof h.host];
  format(numbers[0], sizeof numbers[0], "%d", h.attempt);
  format(numbers[1], sizeof numbers[1], "%l", incident);
  format(numbers[2], sizeof numbers[2], "%d", h.world_size.load());
  format(numbers[3], sizeof numbers[3], "%d", h.rank.load());
  format(numbers[4], sizeof numbers[4], "%d", h.local_world_size);
  format(host, sizeof host, "%s", h.host);
  list_ranks(r.control->page(), h.rank.load(), here, sizeof here);
  const char* const arguments[] = {
      "frtrace",
      "verdict",
      "--job",
      r.options.job.c_str(),
      "--attempt",
      numbers[0],
      "--incident",
      numbers[1],
      "--world-size",
      numbers[2],
      "--rank",
      numbers[3],
      "--node-size",
      numbers[4],
      "--here",
      here,
      "--host",
      host,
      r.options.log_level >= kLogWarn ? "--quiet=false" : "--quiet=true",
      r.dump_dirs[0],
      r.dump_dirs[1][0] != '\0' ? r.dump_dirs[1] : nullptr,
      nullptr};
  if (spawn(frtrace_, arguments, environment_)) {
    started_ = incident;
  }
}

// The text of the verdict on the last incident, cut to what fits; 0: none in time.
std::size_t VerdictThread::await_text(char* to, std::size_t bytes, u64 limit_ns) noexcept {
  const Recorder& r = *recorder_;
  static char path[PATH_MAX];
  static char mark[64];  // its last line says what it is of
  format(mark, sizeof mark, "attempt %d, incident %l\n", r.region.header().attempt, asked_.load());
  const u64 incident_ns = r.control->page().incident_unix_ns.load();
  const u64 deadline = monotonic_ns() + limit_ns;
  do {
    for (const auto& dir : r.dump_dirs) {
      format(path, sizeof path, "%s/%s.verdict.txt", dir, r.options.job.c_str());
      const int fd = dir[0] != '\0' ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
      if (fd < 0) {
        continue;
      }
      struct stat st{};
      const bool fresh = fstat(fd, &st) == 0 &&
                         static_cast<u64>(st.st_mtim.tv_sec) + kSkew_s >= incident_ns / kSecond_ns;
      const ssize_t n = fresh ? read(fd, to, bytes - 1) : 0;
      close(fd);
      if (n > 0) {
        to[n] = '\0';
        if (std::strstr(to, mark) != nullptr) {
          return static_cast<std::size_t>(n);
        }
      }
    }
    pause();
  } while (monotonic_ns() < deadline);
  to[0] = '\0';
  return 0;
}

void VerdictThread::write_error_file() noexcept {
  const Recorder& r = *recorder_;
  constexpr std::size_t kText = 16 * 1024;  // a screen of 24 lines of 120 characters, and more
  static char own[2048];
  static char verdict[kText];
  static char lines[kText + sizeof own + PATH_MAX + 128];
  static char json[2 * sizeof lines];
  const u64 asked = asked_.load();
  describe_end(r.view, own, sizeof own);
  // The text would stand in torchrun's report once for each rank: the others give their own line.
  const bool whole =
      asked != 0 && started_ == asked && await_text(verdict, sizeof verdict, word_limit_ns_) != 0;
  if (whole) {
    format(lines, sizeof lines, "%s\n\n%s", own, verdict);
  } else if (asked != 0) {
    format(lines, sizeof lines, "%s\nverdict: frtrace %s", own, r.dump_dirs[0]);
  } else {
    format(lines, sizeof lines, "%s", own);
  }
  const std::size_t bytes = format_error_file(json, sizeof json, own, lines,
                                              time_of_end_s(r.region.header(), unix_now_ns()));
  static char dir[PATH_MAX];
  static char path[PATH_MAX];
  format(dir, sizeof dir, "%s", error_file_);
  char* slash = std::strrchr(dir, '/');
  if (bytes == 0 || slash == nullptr) {
    return;
  }
  *slash = '\0';
  write_durably(dir, slash + 1, json, bytes, path, sizeof path, Existing::kKeep);
}

}  // namespace fr
