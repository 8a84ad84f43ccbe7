// waits.hpp - pending operations, the graph of waits between ranks, and the ends of the waits.
//
//   rank --> its first pending operation --> members that never issued it,
//                                            members without evidence,
//                                            members that wait in an earlier operation,
//                                            members with a device that is behind
//   rank --> the rank that holds the file lock that it waits for
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
  bool own_error = false;  // and the error does not follow from a peer's end
};

// A send and its receive that do not match.
struct Unequal {
  int sender = -1, receiver = -1;  // evidence
  std::size_t send = 0, recv = 0;  // records
  bool dtype = false;              // they differ in dtype, else in the number of elements
  std::string sent_tag, recv_tag;  // set if they differ in nothing but these
};
// The tag of the send or receive that the rank is in now, from its stack: records do not hold it.
// "": the stack does not tell.
std::string tag_of(const RankEvidence&, const Record&);

// An operation in which a rank waits.
struct Pending {
  int group = -1;
  Kind kind = Kind::kCollective;
  std::uint64_t seq = 0;
  Rank from = -1, to = -1;  // of a send or receive
  std::vector<Wait> waits;
  std::vector<int> absent;    // evidence that shows that the rank never issued it
  std::vector<Rank> unknown;  // ranks that may have issued it: no evidence tells
  std::vector<int> stale;     // evidence older than the wait
  std::vector<int> busy;      // evidence of ranks that issued it and wait in an earlier operation
  std::vector<int> lagging;   // their device did not start it, or not end it; others' devices did
  std::optional<Unequal> unequal;
  bool starts_seen = false;      // the evidence tells which devices started it
  bool complete = false;         // every member issued it
  bool numbers_guessed = false;  // of a send or receive: counted from the ends of two windows
  bool passed = false;           // a send or receive with its other end over: it holds up no rank
  bool in_transit = false;       // and this end may wait for the network
  Time since = 0;
  double seconds() const;
  bool waits_here(int evidence) const;
  bool root_unknown(const Case&) const;  // its members must agree on a root, which no file records
};

// A gloo operation that PyTorch records as done and that may have failed, because it needed a
// member without evidence. doubtful: it is as likely that the rank stopped by itself after it.
struct HiddenFailure {
  int evidence = -1;
  std::size_t record = 0;
  bool doubtful = false;
};
std::vector<HiddenFailure> hidden_failures(const Case&, const History&);
// The rank has been at rest, and not where its iterations begin.
bool stopped_amid(const Case&, const History&, int evidence);

// A rank's first pending operation, or the batch of sends and receives that contains it.
struct Front {
  std::size_t first = kNoRecord, last = kNoRecord;
  bool holds(std::size_t record) const { return first <= record && record <= last; }
};
Front front_of(const RankEvidence&);

// A place at which waits end.
struct Problem {
  enum Kind : std::uint8_t {
    kIdle,        // a rank that waits for no rank and never issued an operation that others wait in
    kLagging,     // a rank with a device that is behind
    kStale,       // a rank with evidence too old to tell
    kNoEvidence,  // a rank without evidence
    kCycle,       // ranks that wait for each other
    kComplete     // an operation that every member issued
  };
  Kind kind = kIdle;
  std::vector<int> evidence;  // the ranks in it
  Rank rank = -1;             // for kNoEvidence
  std::vector<int> pending;   // the operations in it; for a rank: operations that wait for it
  std::vector<int> explains;  // evidence of all ranks from which waits lead here
};

struct WaitGraph {
  std::vector<Pending> pending;            // operations that count as stuck
  std::vector<std::vector<int>> waits_in;  // [evidence] -> pending
  std::vector<Front> fronts;               // [evidence]
  std::vector<int> lock_holders;           // [evidence] -> evidence, see file_locks.hpp
  std::vector<Problem> problems;
  int young = 0;  // operations in flight for less than the threshold
  bool waits(int evidence) const { return !waits_in[idx(evidence)].empty(); }
  // Indices of the operations that satisfy `is`.
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
  // Evidence of all waiting ranks from which waits lead to one of these ranks or operations.
  std::vector<int> leading_to(const std::vector<int>& evidence,
                              const std::vector<int>& pending = {}) const;
  // Evidence of the ranks in a deadlock that are on every circle of waits. A rank that keeps the
  // program's order waits only for ranks behind it, so a single rank that left the order is on
  // every circle.
  std::vector<int> on_all_circles(const Problem&) const;
  const Pending& operator[](int k) const { return this->pending[idx(k)]; }

  std::vector<std::vector<int>> back;  // reversed edges; vertices: evidence, unknown, pending
  int first_pending = 0;               // vertex of the first pending operation
};
// Per evidence: the rank had not issued an operation that others ended together with it, so its
// evidence was taken before theirs.
std::vector<bool> stale_evidence(const Case&);
// Waits shorter than `threshold_s` are operations in flight of a healthy job.
WaitGraph wait_graph(const Case&, const std::vector<Slots>&, const std::vector<Exit>&,
                     const std::vector<bool>& stale, double threshold_s,
                     const std::vector<HiddenFailure>&);

}  // namespace frtrace
