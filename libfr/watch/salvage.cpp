// salvage.cpp - dumps of peers that are dead or do not answer, written from their rings.
#include "watch/salvage.hpp"

#include <unistd.h>

#include <cerrno>
#include <climits>

#include "format/file_name.hpp"
#include "format/text.hpp"
#include "recorder/log.hpp"
#include "recorder/recorder.hpp"
#include "sample/map_file.hpp"
#include "sample/process.hpp"
#include "watch/control_page.hpp"
#include "watch/oom.hpp"

namespace fr {
namespace {

constexpr u64 kSecond_ns = 1'000'000'000ull;
// A peer that has not answered an incident by then is salvaged.
constexpr u64 kUnresponsive_ns = 2 * kSecond_ns;
// By then everyone has answered an incident or been salvaged.
constexpr u64 kSettled_ns = 8 * kSecond_ns;

}  // namespace

Salvage::Salvage(Recorder& recorder, DumpEncoder& encoder, ThreadStacks& threads,
                 DumpStore& store) noexcept
    : recorder_(recorder), encoder_(encoder), threads_(threads), store_(store) {}

void Salvage::init() noexcept {
  oom_kills_ = oom_kills();
  incident_.store(recorder_.first_incident);
  checked_incident_ = recorder_.first_incident;
}

void Salvage::expect_answers(u64 incident, u64 now_ns) noexcept {
  incident_.store(incident);
  if (incident > checked_incident_) {
    incident_seen_ns_ = now_ns;
  }
}

bool Salvage::is_awaited() const noexcept {
  bool awaited = salvaging_.load();
  for (const PeerRow& row : recorder_.control->page().peers) {
    awaited = awaited || is_awaited(row, incident_.load());
  }
  return awaited;
}

void Salvage::check_peers(u64 now) noexcept {
  Recorder& r = recorder_;
  const u64 incident = incident_.load();
  if (incident == checked_incident_) {
    return;
  }
  const u64 age = now > incident_seen_ns_ ? now - incident_seen_ns_ : 0;
  for (PeerRow& row : r.control->page().peers) {
    if (&row == r.control->own() || row.state.load(std::memory_order_acquire) != kPeerLive) {
      continue;
    }
    if (is_dead(row)) {
      salvage(row, dump::Salvage::kDead);
    } else if (get(row.dumped) < incident &&
               (age > kUnresponsive_ns || is_stopped(row.pid.load()))) {
      // A heart that beats is a watchdog that cannot write: no descriptor, no space, no permission.
      const u64 beat = row.heartbeat_unix_ns.load();
      const bool beats = unix_now_ns() - beat < kSecond_ns && !is_stopped(row.pid.load());
      salvage(row, beats ? dump::Salvage::kUnwritten : dump::Salvage::kUnresponsive);
    }
  }
  if (age > kSettled_ns) {
    checked_incident_ = incident;  // everyone has answered or been salvaged
  }
}

// It has neither answered the incident nor been salvaged.
bool Salvage::is_awaited(const PeerRow& row, u64 incident) const noexcept {
  return &row != recorder_.control->own() &&
         row.state.load(std::memory_order_acquire) == kPeerLive && row.ring[0] != '\0' &&
         get(row.dumped) < incident && get(row.salvaged) <= incident;
}

void Salvage::salvage(PeerRow& row, dump::Salvage why) noexcept {
  Recorder& r = recorder_;
  const bool dead = why == dump::Salvage::kDead;
  const u64 incident = incident_.load();
  u64 claimed = get(row.salvaged);
  salvaging_.store(true);  // before the claim: our own exit waits for what we have claimed
  if (row.ring[0] != '\0' && claimed <= incident &&
      row.salvaged.compare_exchange_strong(claimed, incident + 1)) {
    char path[PATH_MAX];
    format(path, sizeof path, "%s/%s", r.region.dir.c_str(), row.ring);
    if (salvage_file(path, incident, why, get(row.dumped) >= incident)) {
      log_line(kLogWarn, "rank %d (pid %d) %s: its evidence is in %s", row.rank.load(),
               row.pid.load(),
               why == dump::Salvage::kUnwritten ? "could not write its dump"
               : dead                           ? "is dead"
                                                : "is unresponsive",
               store_.last_path());
      if (dead) {
        unlink(path);
        row.dumped.store(incident);
      }
    }
  }
  salvaging_.store(false);
}

// A dump that the rank wrote itself is never replaced: it has the threads' stacks, and the state
// when the others hung. The later state goes beside it.
bool Salvage::salvage_file(const char* ring, u64 incident, dump::Salvage why,
                           bool has_dumped) noexcept {
  Recorder& r = recorder_;
  Mapping m = map_file(ring);
  const View view = View::of(m.base, m.bytes);
  bool ok = false;
  int error = EINVAL;  // no region
  if (view.ok()) {
    const Header& h = view.header();
    DumpFacts facts;
    facts.reason = word(why);
    facts.trigger = word(dump::Trigger::kSalvage);
    facts.incident = incident;
    facts.salvaged_by = r.region.header().rank.load();
    facts.salvage = why;
    // The page's rows are of the ranks that run now: an earlier run's are not among them.
    facts.control = why == dump::Salvage::kLeftOver ? nullptr : &r.control->page();
    facts.is_alive = is_alive;
    if (h.pid_namespace == r.region.header().pid_namespace && is_alive(h.pid, h.proc_start)) {
      facts.threads = threads_.sample_process(h.pid);  // stopped, or its watchdog is
    }
    const i64 kills = why == dump::Salvage::kDead && oom_kills_ >= 0 ? oom_kills() : -1;
    facts.oom_kills = kills >= 0 && kills >= oom_kills_ ? kills - oom_kills_ : -1;
    DumpEncoder::Bytes bytes = encoder_.encode(view, facts);
    const bool encoded = bytes.data != nullptr;
    if (!encoded) {
      bytes = {m.base, m.bytes};  // larger than ours: as it is
    }
    char name[kNameBytes];
    format_dump_name(name, sizeof name, h, incident, NameParts::Beside::kNone, encoded);
    const bool to_sink = store_.has_sink();
    ok = !(to_sink && has_dumped) && store_.store(name, bytes, Existing::kKeep);
    if (!ok && (to_sink ? has_dumped : errno == EEXIST) && dump::is_gone(why)) {
      format_dump_name(name, sizeof name, h, incident, NameParts::Beside::kDead, encoded);
      // Processes that came one after the other keep one file each; a peer salvages each once.
      ok = store_.store(name, bytes,
                        why == dump::Salvage::kLeftOver ? Existing::kKeep : Existing::kReplace);
    }
    error = errno;
  }
  unmap_file(m);
  errno = error;
  return ok;
}

}  // namespace fr
