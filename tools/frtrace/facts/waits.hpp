// waits.hpp - pending operations, who waits in them and for whom, and where the waits end.
//
//   rank --> its first pending operation --> members that never issued it,
//                                            members without evidence,
//                                            members that wait in something earlier,
//                                            members whose device is behind
//   rank --> the rank that holds the file lock which it waits for
//
// The closed components of this graph are the problems: every waiting rank reaches at least one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "facts/device/devices.hpp"
#include "facts/exits.hpp"
#include "facts/order/order.hpp"
#include "model/case.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

inline constexpr std::size_t kNoRecord = SIZE_MAX;

struct Wait {
  int evidence = -1;
  std::size_t record = kNoRecord;  // kNoRecord: overwritten
  Time since = 0, until = 0;
  bool failed = false;     // it ended in an error
  bool own_error = false;  // and the error is no consequence of a peer's end
};

// A send and its receive that do not fit each other.
struct Unequal {
  int sender = -1, receiver = -1;  // evidence
  std::size_t send = 0, recv = 0;  // records
  bool dtype = false;              // they differ in the type, else in the number of elements
  std::string sent_tag, recv_tag;  // where they differ in nothing but these
};
// The tag with which the rank is in that send or receive now; records do not hold it. "": its stack
// does not tell.
std::string tag_of(const RankEvidence&, const Record&);

// An operation in which somebody waits.
struct Pending {
  int group = -1;
  Kind kind = Kind::kCollective;
  std::uint64_t seq = 0;
  Rank from = -1, to = -1;  // of a send or receive
  std::vector<Wait> waits;
  std::vector<int> absent;    // evidence that shows that they never issued it
  std::vector<Rank> unknown;  // nothing tells whether they issued it
  std::vector<int> stale;     // their evidence is older than the wait
  std::vector<int> busy;      // issued it, and wait in something earlier
  std::vector<int> lagging;   // their device did not get to it, or did not end it; others' did
  std::optional<Unequal> unequal;
  bool starts_seen = false;      // the evidence tells whose device started it
  bool complete = false;         // every member issued it
  bool numbers_guessed = false;  // of a send or receive: two windows are counted from their ends
  bool passed = false;           // a send or receive whose other end is over: it holds nobody up
  bool in_transit = false;       // and this end may be waiting for the network
  Time since = 0;
  double seconds() const;
  bool waits_here(int evidence) const;
  bool root_unknown(const Case&) const;  // its members must agree on a root, which no file records
};

// An operation of gloo that PyTorch records as done and that may have failed, as a member without
// evidence was needed for it. doubtful: as likely the rank stopped by itself after it.
struct HiddenFailure {
  int evidence = -1;
  std::size_t record = 0;
  bool doubtful = false;
};
std::vector<HiddenFailure> hidden_failures(const Case&, const History&);
// The rank has been at rest, and not where its iterations begin.
bool stopped_amid(const Case&, const History&, int evidence);

// A rank's first pending operation, or the batch of sends and receives that it is part of.
struct Front {
  std::size_t first = kNoRecord, last = kNoRecord;
  bool holds(std::size_t record) const { return first <= record && record <= last; }
};
Front front_of(const RankEvidence&);

// A place at which waits end.
struct Problem {
  enum Kind : std::uint8_t {
    kIdle,        // a rank that waits for nobody and did not issue what others wait for
    kLagging,     // a rank whose device is behind
    kStale,       // a rank whose evidence is too old to tell
    kNoEvidence,  // a rank without evidence
    kCycle,       // ranks that wait for each other
    kComplete     // an operation that every member issued
  };
  Kind kind = kIdle;
  std::vector<int> evidence;  // the ranks in it
  Rank rank = -1;             // of kNoEvidence
  std::vector<int> pending;   // the operations in it; of a rank: those that wait for it
  std::vector<int> explains;  // evidence of all ranks whose waits lead here
};

struct WaitGraph {
  std::vector<Pending> pending;            // those that count as stuck
  std::vector<std::vector<int>> waits_in;  // [evidence] -> pending
  std::vector<Front> fronts;               // [evidence]
  std::vector<int> lock_holders;           // [evidence] -> evidence, see file_locks.hpp
  std::vector<Problem> problems;
  int young = 0;  // operations in flight for less than the threshold
  bool waits(int evidence) const { return !waits_in[idx(evidence)].empty(); }
  // The operations that are so.
  template <typename Is>
  std::vector<int> those(const Is& is) const {
    std::vector<int> out;
    for (std::size_t k = 0; k < pending.size(); ++k) {
      if (is(pending[k])) {
        out.push_back(static_cast<int>(k));
      }
    }
    return out;
  }
  // Evidence of all waiting ranks whose waits lead to one of these ranks or operations.
  std::vector<int> leading_to(const std::vector<int>& evidence,
                              const std::vector<int>& pending = {}) const;
  // Of ranks that wait for each other, those without whose wait nobody would wait in a circle. Who
  // keeps the program's order waits only for who is behind it, so one rank that left the order is on
  // every circle.
  std::vector<int> on_all_circles(const Problem&) const;
  const Pending& operator[](int k) const { return this->pending[idx(k)]; }

  std::vector<std::vector<int>> back;  // edges turned round; vertices: evidence, unknown, pending
  int first_pending = 0;               // vertex
};
// Per evidence: it had not issued what others, by their evidence, ended together with it: it was
// taken before the others'.
std::vector<bool> stale_evidence(const Case&);
// Waits shorter than `threshold_s` are operations in flight of a healthy job.
WaitGraph wait_graph(const Case&, const std::vector<Slots>&, const std::vector<Exit>&,
                     const std::vector<bool>& stale, double threshold_s,
                     const std::vector<HiddenFailure>&);

}  // namespace frtrace
