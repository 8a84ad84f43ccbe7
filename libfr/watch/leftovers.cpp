// leftovers.cpp - rings of dead processes that nobody has taken yet. Part of Salvage.
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

#include "format/file_name.hpp"
#include "format/hash.hpp"
#include "format/text.hpp"
#include "format/ticks.hpp"
#include "recorder/log.hpp"
#include "recorder/recorder.hpp"
#include "sample/directory.hpp"
#include "sample/map_file.hpp"
#include "sample/process.hpp"
#include "watch/control_page.hpp"
#include "watch/salvage.hpp"

namespace fr {
namespace {

constexpr u64 kSecond_ns = 1'000'000'000ull;
// Rings that one rank left of one incident, in files of their own: more start and die within the
// 10 ms before a watchdog looks only where something starts a job in a loop.
constexpr u64 kMostOfOneIncident = 16;

// Control pages of jobs in which nobody lives: the last rank removes its job's, unless it is killed.
// Ours has a living row.
void remove_dead_pages(const char* dir, u64 pid_namespace) noexcept {
  struct Context {
    const char* dir;
    char ending[32];
  } c{dir, {}};
  format(c.ending, sizeof c.ending, ".%l.ctl", pid_namespace);
  each_entry(
      dir,
      [](const char* name, void* context) {
        const auto& x = *static_cast<Context*>(context);
        const std::size_t n = std::strlen(name), m = std::strlen(x.ending);
        char path[PATH_MAX];
        if (n <= m || std::strcmp(name + n - m, x.ending) != 0 ||
            format(path, sizeof path, "%s/%s", x.dir, name) + 1 == sizeof path) {
          return;
        }
        Mapping file = map_file(path);
        // Under the lock that ranks take to open a page: a rank that waits for it makes a new page.
        if (file.bytes == sizeof(Control) && flock(file.fd, LOCK_EX | LOCK_NB) == 0) {
          const auto& page = *static_cast<const Control*>(file.base);
          if (page.magic.load(std::memory_order_acquire) == kControlMagic &&
              !has_living_rank(page)) {
            unlink(path);
          }
          flock(file.fd, LOCK_UN);
        }
        unmap_file(file);
      },
      &c);
}

// Rings of other jobs stay for so long; those of the job that died last, for a day.
constexpr u64 kStays_ns = 600 * kSecond_ns;
constexpr u64 kMaxAge_ns = 24 * 3600 * kSecond_ns;
constexpr u64 kMaxBytes = 512ull << 20;  // of other jobs' rings
constexpr u32 kMostLeftovers = 512;

// The ring of a dead process.
struct Leftover {
  char name[256];
  u64 last_ns;
  u64 bytes;
  i32 attempt;
  bool ours;
  bool safe;  // its own dump has everything
  u64 incident;
  u64 job;  // hash of its name and dump directory
};

struct Leftovers {
  const Recorder& recorder;
  Leftover* list;
  u32 n;
};

// A process of this run that died since the run began: an incident of ours will salvage it.
bool is_peer(const Recorder& r, const Header& h) noexcept {
  for (const PeerRow& row : r.control->page().peers) {
    if (row.state.load() >= kPeerLive && row.pid.load() == h.pid &&
        get(row.proc_start) == h.proc_start) {
      return true;
    }
  }
  return false;
}

void add_leftover(const char* name, void* context) noexcept {
  auto& to = *static_cast<Leftovers*>(context);
  NameParts parts;
  if (to.n == kMostLeftovers || !parse_name(name, parts) || parts.is_fr ||
      std::strlen(name) > 255) {
    return;
  }
  char path[PATH_MAX];
  format(path, sizeof path, "%s/%s", to.recorder.region.dir.c_str(), name);
  Mapping m = map_file(path);
  const View view = View::of(m.base, m.bytes);
  const Header& own = to.recorder.region.header();
  if (view.ok() && view.header().pid_namespace == own.pid_namespace &&
      !is_alive(view.header().pid, view.header().proc_start) &&
      !is_peer(to.recorder, view.header())) {
    const Header& h = view.header();
    Leftover& l = to.list[to.n++];
    format(l.name, sizeof l.name, "%s", name);
    l.last_ns = std::max(get(h.heartbeat_unix_ns), h.start_unix_ns);
    l.bytes = m.bytes;
    l.attempt = h.attempt;
    l.safe = get(h.crash_dumped) != 0;
    l.incident = get(h.incident) + 1;
    l.job = mix(hash_bytes(h.job, strnlen(h.job, sizeof h.job)),
                hash_bytes(h.dump_dir, strnlen(h.dump_dir, sizeof h.dump_dir)));
    // The same name in another place is another job, that had the same MASTER_PORT.
    l.ours = std::strncmp(h.job, own.job, sizeof h.job) == 0 && h.attempt <= own.attempt &&
             std::strncmp(h.dump_dir, own.dump_dir, sizeof h.dump_dir) == 0;
  }
  unmap_file(m);
}

// A ring of the other job that died last; nullptr: no other job left one.
const Leftover* newest_of_others(const Leftovers& left) noexcept {
  const Leftover* newest = nullptr;
  for (u32 i = 0; i < left.n; ++i) {
    const Leftover& l = left.list[i];
    if (!l.ours && !l.safe && (newest == nullptr || l.last_ns > newest->last_ns)) {
      newest = &l;
    }
  }
  return newest;
}

// Until what is left of other jobs is no more than kMaxBytes, the oldest first.
void bound_bytes(const char* dir, Leftovers& left) noexcept {
  u64 total = 0;
  for (u32 i = 0; i < left.n; ++i) {
    total += left.list[i].ours ? 0 : left.list[i].bytes;
  }
  while (total > kMaxBytes) {
    Leftover* oldest = nullptr;
    for (u32 i = 0; i < left.n; ++i) {
      Leftover& l = left.list[i];
      if (!l.ours && l.bytes != 0 && (oldest == nullptr || l.last_ns < oldest->last_ns)) {
        oldest = &l;
      }
    }
    if (oldest == nullptr) {
      return;
    }
    char path[PATH_MAX];
    format(path, sizeof path, "%s/%s", dir, oldest->name);
    unlink(path);
    total -= oldest->bytes;
    oldest->bytes = 0;
  }
}

// "90 s": a whole number of the largest unit of which it has two.
void format_age(char* out, std::size_t bytes, u64 ns) noexcept {
  constexpr u64 kMinute_s = 60, kHour_s = 3600;
  const u64 s = ns / kSecond_ns;
  if (s >= 2 * kHour_s) {
    format(out, bytes, "%l h", s / kHour_s);
  } else if (s >= 2 * kMinute_s) {
    format(out, bytes, "%l min", s / kMinute_s);
  } else {
    format(out, bytes, "%l s", s);
  }
}

// Files of a run that the user believes to be over are now in the directory of this one: said once
// per node, by the first rank that has made one.
void say_leftovers(const Recorder& r, const Leftover& first, u64 now_ns,
                   const char* dump) noexcept {
  u64 said = 0;
  if (!r.control->page().leftovers_said.compare_exchange_strong(said, 1)) {
    return;
  }
  char run[64] = "an earlier run", age[32];
  if (first.attempt < r.region.header().attempt) {
    format(run, sizeof run, "attempt %d", first.attempt);
  }
  format_age(age, sizeof age, now_ns > first.last_ns ? now_ns - first.last_ns : 0);
  log_line(kLogWarn,
           "%s of this job died %s ago and left its rings: what they hold is in %s "
           "and beside it",
           run, age, dump);
}

}  // namespace

// Makes a dump of that ring, under the first number of an incident that is free; false: it did not.
bool Salvage::take_leftover(const char* path, u64 incident) noexcept {
  // renamed first: one of the ranks that start now gets it
  char taken[PATH_MAX];
  format(taken, sizeof taken, "%s.%d", path, getpid());
  if (rename(path, taken) != 0) {
    return false;
  }
  bool stored = false, again = true;
  for (u64 k = 0; again && k < kMostOfOneIncident; ++k) {
    stored = salvage_file(taken, incident + k, dump::Salvage::kLeftOver, false);
    again = !stored && errno == EEXIST;
  }
  if (stored) {
    unlink(taken);
  } else {
    rename(taken, path);
  }
  return stored;
}

// Rings of dead processes in the ring directory: those of this job's earlier attempts (or of an
// earlier run under the same name) become dumps. Rings of the other job that died last stay
// for a day, those of the rest for ten minutes, 512 MiB together.
void Salvage::take_leftovers() noexcept {
  const char* dir = recorder_.region.dir.c_str();
  if (dir[0] == '\0') {
    return;
  }
  constexpr std::size_t kBytes = sizeof(Leftover) * kMostLeftovers;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return;
  }
  Leftovers left{recorder_, static_cast<Leftover*>(memory), 0};
  each_entry(dir, &add_leftover, &left);
  const u64 now = unix_now_ns();
  const Leftover* newest = newest_of_others(left);
  const u64 newest_job = newest != nullptr ? newest->job : 0;
  for (u32 i = 0; i < left.n; ++i) {
    Leftover& l = left.list[i];
    const u64 stays_ns = !l.ours && l.job != newest_job ? kStays_ns : kMaxAge_ns;
    char path[PATH_MAX];
    format(path, sizeof path, "%s/%s", dir, l.name);
    if (l.ours && !l.safe) {
      if (take_leftover(path, l.incident)) {
        say_leftovers(recorder_, l, now, store_.last_path());
      }
    } else if (l.safe || now > l.last_ns + stays_ns) {
      unlink(path);
      l.bytes = 0;
    }
  }
  bound_bytes(dir, left);
  munmap(memory, kBytes);
  remove_dead_pages(dir, recorder_.region.header().pid_namespace);
}

}  // namespace fr
