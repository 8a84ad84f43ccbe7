// salvage.cpp - evidence that its own process cannot bring: of dead and unresponsive peers, of
// earlier attempts, of other nodes. Part of the watchdog.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "recorder/log.hpp"
#include "recorder/recorder.hpp"
#include "sample/files.hpp"
#include "watch/oom.hpp"

namespace fr {
namespace {

constexpr u64 kSecond_ns = 1'000'000'000ull;
// A peer that has not answered an incident by then is salvaged.
constexpr u64 kUnresponsive_ns = 2 * kSecond_ns;
// By then everyone has answered an incident or been salvaged.
constexpr u64 kSettled_ns = 8 * kSecond_ns;
constexpr timespec kFollowPeriod{0, 500'000'000};
constexpr u32 kLooksAfterChange = 4;  // 2 s, the coarsest clock of a file system

u64 get(const std::atomic<u64>& a) {
  return a.load(std::memory_order_acquire);
}

}  // namespace

void Watchdog::check_peers(u64 now) noexcept {
  Recorder& r = *recorder_;
  const u64 incident = incident_.load();
  if (incident == peers_checked_incident_) {
    return;
  }
  const u64 age = now > incident_seen_ns_ ? now - incident_seen_ns_ : 0;
  for (PeerRow& row : r.control.page().peers) {
    if (&row == r.control.own() || row.state.load(std::memory_order_acquire) != kPeerLive) {
      continue;
    }
    if (is_dead(row)) {
      salvage(row, "dead");
    } else if (get(row.dumped) < incident &&
               (age > kUnresponsive_ns || is_stopped(row.pid.load()))) {
      salvage(row, "unresponsive");
    }
  }
  if (age > kSettled_ns) {
    peers_checked_incident_ = incident;  // everyone has answered or been salvaged
  }
}

// It has neither answered the incident nor been salvaged.
bool Watchdog::is_awaited(const PeerRow& row, u64 incident) const noexcept {
  return &row != recorder_->control.own() &&
         row.state.load(std::memory_order_acquire) == kPeerLive && row.ring[0] != '\0' &&
         get(row.dumped) < incident && get(row.salvaged) <= incident;
}

void Watchdog::await_peers() noexcept {
  const Control& page = recorder_->control.page();
  const u64 incident = incident_.load();
  if (!running_ || incident == recorder_->first_incident ||
      unix_now_ns() - page.incident_unix_ns.load() > kSettled_ns) {
    return;
  }
  constexpr timespec kPause{0, 5'000'000};
  const u64 deadline = monotonic_ns() + kUnresponsive_ns + kSecond_ns / 2;
  while (monotonic_ns() < deadline) {
    bool awaited = salvaging_.load();
    for (const PeerRow& row : page.peers) {
      awaited = awaited || is_awaited(row, incident);
    }
    if (!awaited) {
      return;
    }
    wake();
    nanosleep(&kPause, nullptr);
  }
}

void Watchdog::salvage(PeerRow& row, const char* why) noexcept {
  Recorder& r = *recorder_;
  const bool dead = std::strcmp(why, "dead") == 0;
  const u64 incident = incident_.load();
  u64 claimed = get(row.salvaged);
  salvaging_.store(true);  // before the claim: our own exit waits for what we have claimed
  if (row.ring[0] != '\0' && claimed <= incident &&
      row.salvaged.compare_exchange_strong(claimed, incident + 1)) {
    char path[PATH_MAX];
    format(path, sizeof path, "%s/%s", r.region.dir.c_str(), row.ring);
    if (salvage_file(path, incident, why, get(row.dumped) >= incident)) {
      log_line(kLogWarn, "rank %d (pid %d) is %s: its evidence is in %s", row.rank.load(),
               row.pid.load(), why, last_path_);
      if (dead) {
        unlink(path);
        row.dumped.store(incident);
      }
    }
  }
  salvaging_.store(false);
}

// What the rank wrote itself is never replaced: it has the threads' stacks, and how it was when the
// others hung. What became of it later goes beside that.
bool Watchdog::salvage_file(const char* ring, u64 incident, const char* why,
                            bool has_dumped) noexcept {
  Recorder& r = *recorder_;
  Mapping m = map_file(ring);
  const View view = View::of(m.base, m.bytes);
  bool ok = false;
  if (view.ok()) {
    const Header& h = view.header();
    DumpFacts facts;
    facts.reason = why;
    facts.trigger = "salvage";
    facts.incident = incident;
    facts.salvaged_by = r.region.header().rank.load();
    facts.salvage_why = why;
    facts.control = &r.control.page();
    if (h.pid_namespace == r.region.header().pid_namespace && is_alive(h.pid, h.proc_start)) {
      facts.threads = threads_.look_at(h.pid);  // stopped, or its watchdog is
    }
    const i64 kills = std::strcmp(why, "dead") == 0 && oom_kills_ >= 0 ? oom_kills() : -1;
    facts.oom_kills = kills >= 0 && kills >= oom_kills_ ? kills - oom_kills_ : -1;
    char name[256];
    DumpEncoder::Bytes bytes = encoder_.encode(view, facts);
    const bool encoded = bytes.data != nullptr;
    if (!encoded) {
      bytes = {m.base, m.bytes};  // larger than ours: as it is
    }
    char job[sizeof h.job];
    std::memcpy(job, h.job, sizeof job);
    job[sizeof job - 1] = '\0';
    const i32 rank = h.rank.load() >= 0 ? h.rank.load() : -1;
    const char* ending = encoded ? "fr" : "ring";
    format_name(name, sizeof name, job, h.attempt, rank, incident, ending);
    const bool to_sink = sink_.load() != nullptr;
    ok = !(to_sink && has_dumped) && store(name, bytes, Existing::kKeep);
    if (!ok && (to_sink ? has_dumped : errno == EEXIST) && std::strcmp(why, "unresponsive") != 0) {
      format_name(name, sizeof name, job, h.attempt, rank, incident,
                  encoded ? "dead.fr" : "dead.ring");
      ok = store(name, bytes);
    }
  }
  unmap_file(m);
  return ok;
}

// Rings of dead processes in the ring directory: those of this job's earlier attempts (or of an
// earlier run under the same name) become dumps; others are cleaned up by age and total size.
void Watchdog::take_leftovers() noexcept {
  Recorder& r = *recorder_;
  if (r.region.dir.empty()) {
    return;
  }
  constexpr u64 kMaxAge_ns = 24 * 3600 * kSecond_ns;
  constexpr u64 kMaxBytes = 512ull << 20;
  struct Leftover {
    char name[256];
    u64 last_ns;
    u64 bytes;
    bool ours;
    bool safe;  // its own dump has everything
    u64 incident;
  };
  struct Context {
    const Recorder& recorder;
    Leftover* list;
    u32 n;
  };
  constexpr u32 kMost = 512;
  void* memory = mmap(nullptr, sizeof(Leftover) * kMost, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return;
  }
  Context c{r, static_cast<Leftover*>(memory), 0};
  each_entry(
      r.region.dir.c_str(),
      [](const char* name, void* context) {
        auto& x = *static_cast<Context*>(context);
        NameParts parts;
        if (x.n == kMost || !parse_name(name, parts) || parts.is_fr || std::strlen(name) > 255) {
          return;
        }
        char path[PATH_MAX];
        format(path, sizeof path, "%s/%s", x.recorder.region.dir.c_str(), name);
        Mapping m = map_file(path);
        const View view = View::of(m.base, m.bytes);
        const Header& own = x.recorder.region.header();
        if (view.ok() && view.header().pid_namespace == own.pid_namespace &&
            !is_alive(view.header().pid, view.header().proc_start)) {
          const Header& h = view.header();
          bool peer = false;  // died since this run began: an incident of ours will salvage it
          for (const PeerRow& row : x.recorder.control.page().peers) {
            peer = peer || (row.state.load() >= kPeerLive && row.pid.load() == h.pid &&
                            get(row.proc_start) == h.proc_start);
          }
          if (!peer) {
            Leftover& l = x.list[x.n++];
            format(l.name, sizeof l.name, "%s", name);
            l.last_ns = get(h.heartbeat_unix_ns) > h.start_unix_ns ? get(h.heartbeat_unix_ns)
                                                                   : h.start_unix_ns;
            l.bytes = m.bytes;
            l.safe = get(h.crash_dumped) != 0;
            l.incident = get(h.incident) + 1;
            l.ours = std::strncmp(h.job, own.job, sizeof h.job) == 0 && h.attempt <= own.attempt;
          }
        }
        unmap_file(m);
      },
      &c);

  u64 total = 0;
  for (u32 i = 0; i < c.n; ++i) {
    total += c.list[i].ours ? 0 : c.list[i].bytes;
  }
  const u64 now = unix_now_ns();
  for (u32 i = 0; i < c.n; ++i) {
    Leftover& l = c.list[i];
    char path[PATH_MAX];
    char taken[PATH_MAX];
    format(path, sizeof path, "%s/%s", r.region.dir.c_str(), l.name);
    if (l.safe) {
      unlink(path);
    } else if (l.ours) {
      // renamed first: one of the ranks that start now gets it
      format(taken, sizeof taken, "%s/%s.%d", r.region.dir.c_str(), l.name, getpid());
      if (rename(path, taken) == 0) {
        if (salvage_file(taken, l.incident, "left over", false)) {
          unlink(taken);
        } else {
          rename(taken, path);
        }
      }
    } else if (now > l.last_ns + kMaxAge_ns) {
      unlink(path);
      total -= l.bytes;
    }
  }
  while (total > kMaxBytes) {
    Leftover* oldest = nullptr;
    for (u32 i = 0; i < c.n; ++i) {
      Leftover& l = c.list[i];
      if (!l.ours && l.bytes != 0 && now <= l.last_ns + kMaxAge_ns &&
          (oldest == nullptr || l.last_ns < oldest->last_ns)) {
        oldest = &l;
      }
    }
    if (oldest == nullptr) {
      break;
    }
    char path[PATH_MAX];
    format(path, sizeof path, "%s/%s", r.region.dir.c_str(), oldest->name);
    unlink(path);
    total -= oldest->bytes;
    oldest->bytes = 0;
  }
  munmap(memory, sizeof(Leftover) * kMost);
}

// The lead rank of the node looks into FR_DUMP_DIR for incidents of other nodes.
void* Watchdog::follower_main(void* self) noexcept {
  auto& w = *static_cast<Watchdog*>(self);
  Recorder& r = *w.recorder_;
  timespec seen{};
  u32 unchanged = 0;  // looks
  for (;;) {
    nanosleep(&kFollowPeriod, nullptr);
    const PeerRow* lead = nullptr;
    for (const PeerRow& row : r.control.page().peers) {
      if (row.state.load(std::memory_order_acquire) == kPeerLive && !is_dead(row)) {
        lead = &row;
        break;
      }
    }
    struct stat st;
    if (lead != r.control.own() || stat(r.dump_dirs[0], &st) != 0) {
      continue;
    }
    // Two changes within one tick of the file system's clock look like one.
    const bool same = st.st_mtim.tv_sec == seen.tv_sec && st.st_mtim.tv_nsec == seen.tv_nsec;
    unchanged = same ? unchanged + 1 : 0;
    seen = st.st_mtim;
    if (unchanged > kLooksAfterChange) {
      continue;
    }
    struct Context {
      const Header& header;
      u64 newest;
    } c{r.region.header(), 0};
    each_entry(
        r.dump_dirs[0],
        [](const char* name, void* context) {
          auto& x = *static_cast<Context*>(context);
          NameParts parts;
          if (parse_name(name, parts) && parts.attempt == x.header.attempt &&
              std::strcmp(parts.job, x.header.job) == 0 && parts.number > x.newest) {
            x.newest = parts.number;
          }
        },
        &c);
    if (c.newest > get(r.control.page().incident)) {
      r.control.follow(c.newest);
      w.wake();
    }
  }
}

}  // namespace fr
