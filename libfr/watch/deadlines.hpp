// deadlines.hpp - when a group that stands still is worth a warning and a dump: by what is known of
// the members that it waits for, and by how long its call site took before. Pure: no clock, no
// process, no file. The watchdog and the simulated weeks of tests/unit/watch/ use the same code.
//
// FR_WARN_S and FR_TIMEOUT_S are floors: a site that was seen to take long gets a multiple of its
// longest wait. Time with a member missing and time after all have come are learned apart: a rank
// that saves a checkpoint for minutes says nothing of how long an operation may take that all
// members are in.
#pragma once

#include "format/layout.hpp"

namespace fr {

// State of the members of a stalled group, as far as this process can see.
enum class Others : u8 {
  kUnseen,  // all that this node has came or wait, and some are on other nodes
  kCame,    // all have issued the operation
  kAsleep,  // one has not; nothing on this node that it could come from computes
  kBusy,    // one has not; a process computes, compiles, or is in uninterruptible sleep
  kGone     // the process of one has ended before it issued the operation
};

struct Floors {
  u64 warn_ns;
  u64 dump_ns;
  // Set by the user: as they stand for what was never seen. Otherwise they are the table's of
  // libfr/watch/README.md, which knows a state in which 30 s are enough and one that needs 11 min.
  bool warn_is_set;
  bool dump_is_set;
  bool adapt;
};

// All times count from the last progress of the group.
struct Standstill {
  Others others = Others::kUnseen;
  u64 since_ns = 0;  // kCame, kAsleep: since when that is so
  u64 limit_ns = 0;  // before_timeout() of the operation's own timeout; ~0: none known
};

struct Deadline {
  u64 warn_ns;
  u64 dump_ns;
};

// `site` may be nullptr: nothing is known of it.
Deadline deadline_of(const SiteRow* site, const Standstill& now, const Floors& floors) noexcept;
// The same for a node with ranks that issue nothing and wait in no operation, counted from the last
// one; `site` is the row of these silences. Before the job has shown a rhythm, and while a process
// computes, silence is ordinary: the deadlines are those of a first compilation at least. Before a
// first collective (`has_met`) that holds even where the user set shorter ones.
struct Silent {
  bool is_busy;        // a process of the node computes
  bool has_met;        // this process has issued an operation
  u64 asleep_from_ns;  // since when no process computes
};
Deadline silence_deadline_of(const SiteRow& site, const Silent& now, const Floors& floors) noexcept;
// Until when torch's own timeout leaves time for a dump: 60 s less, of a short one a fifth.
constexpr u64 before_timeout(u64 timeout_ns) noexcept {
  constexpr u64 kMargin_ns = 60'000'000'000;
  return timeout_ns - (timeout_ns / 5 < kMargin_ns ? timeout_ns / 5 : kMargin_ns);
}

// A standstill from this long on is looked at, and learned from; shorter ones change nothing.
constexpr u64 noted_from(const Floors& floors) noexcept {
  const u64 least = (floors.warn_ns < floors.dump_ns ? floors.warn_ns : floors.dump_ns) / 4;
  return least < 1'000'000'000 ? least : 1'000'000'000;
}
// The longest of all times learned for the site.
u64 longest_ns(const SiteRow& site) noexcept;

// ---- what is learned, by the only writer of the rows

// A wait that is over.
struct Waited {
  u64 absent_ns;    // until all members had come; whole where that was not seen
  u64 asleep_ns;    // the longest time of it in which a member that had not come slept
  u64 together_ns;  // the rest
};
void learn(SiteRow& site, const Waited& waited, u64 now_ns) noexcept;
// An operation ended that was dumped, in that state of the others. True: the site's deadlines for
// that state are twice as long from now on.
bool note_false_dump(SiteRow& site, Others others, u64 now_ns) noexcept;
// Once in a while: what was learned long ago counts for less.
void decay(SiteRow& site, u64 now_ns) noexcept;
// The row of a key, made where there is none; the last row where all are taken.
SiteRow& site_of(SiteRow* rows, u32 n, u64 key, const char* text) noexcept;

}  // namespace fr
