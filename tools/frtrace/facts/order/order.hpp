// order.hpp - the order in which each rank issued its operations, and what a rank usually issues
// next by its own earlier iterations.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/case.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

struct Step {
  // Group, operation, signature, call site; without the size where that varies on this rank.
  std::uint64_t key;
  int group;                // in Case::groups
  std::uint32_t record;     // in RankEvidence::records
  bool sized = true;        // its size is part of the key
  std::uint64_t exact = 0;  // the key with the size in any case: to compare ranks with each other
};

// The steps of the program that is stuck in that step, or of the one that issued last. Python threads
// that share no group are programs of their own, whose order nothing fixes; threads that Python did not
// start run backward passes for another one.
std::vector<std::size_t> steps_of_program(const RankEvidence&, const std::vector<Step>&,
                                          std::size_t stuck);

// Position of a record among a rank's steps; past the end if none is as late.
std::size_t step_of(const std::vector<Step>& steps, std::size_t record);

// The steps of every rank. A rank's steps are computed when they are first read.
class History {
 public:
  explicit History(const Case& c) : case_(c), steps_(c.ranks.size()), built_(c.ranks.size()) {}
  const std::vector<Step>& of(int evidence) const;
  const Record& record(int evidence, std::size_t step) const {
    return case_.evidence_of(evidence).records[of(evidence)[step].record];
  }

 private:
  const Case& case_;
  mutable std::vector<std::vector<Step>> steps_;
  mutable std::vector<bool> built_;
};

// No earlier step of the rank equals that one.
bool is_first_of_its_kind(std::span<const Step> steps, std::size_t at);

// What the program repeats begins with the first step that comes again; past the end: none does.
std::size_t first_repeated(std::span<const Step> steps);

// Earlier step that followed the longest context equal to the one before `pos`: what the rank
// usually issues there. `pos` may be one past the end.
std::optional<std::size_t> usual_next(const std::vector<Step>& steps, std::size_t pos);

// Where a rank did what it never did before after the same few operations. The kind follows from
// what came after: the usual operations without those left out, or with one exchanged or added.
struct Anomaly {
  enum Kind : std::uint8_t {
    kSkipped,   // went on with what usually follows `usual`
    kSwapped,   // issued what usually comes later, before `usual`
    kInserted,  // issued something more, then `usual`
    kReplaced   // issued something else in the place of `usual`
  };
  Kind kind = kReplaced;
  std::size_t issued = 0;   // step
  std::size_t usual = 0;    // earlier step that was due instead
  int usual_of = -1;        // evidence of the rank whose step that is; -1: its own
  bool novel = false;       // the rank never issued such an operation before
  bool part = false;        // compared within an iteration: it may have gone on to its next part
  std::size_t support = 0;  // steps after it that agree with the kind
  std::size_t context = 0;  // equal steps before it, here and where `usual` was issued
  // Of a rank's anomaly, the evidence that `usual` is a step of.
  int owner(int evidence) const { return usual_of < 0 ? evidence : usual_of; }
};
// Equal keys or roles from two places on, up to what proves a shift.
std::size_t equal_run(std::span<const std::uint64_t> a, std::size_t i,
                      std::span<const std::uint64_t> b, std::size_t j);
// The kind of a deviation, from the keys that were issued there and those that were due.
Anomaly::Kind kind_of(std::span<const std::uint64_t> issued, std::span<const std::uint64_t> due,
                      std::size_t& support);
// Of iterations that are like no other one, oldest first; nullopt: no whole iteration is kept.
// `stuck`: the step in which the rank is stuck; past the end if in none.
std::optional<std::vector<Anomaly>> odd_iterations(const std::vector<Step>& steps,
                                                   const RankEvidence& e, std::size_t stuck);
// The first one at or after step `from`, where no whole iteration is kept. `cut`: what came before
// the first step is lost.
std::optional<Anomaly> anomaly(const std::vector<Step>& steps, std::size_t from, bool cut);

// Anomalies of ranks that wait for each other, near where each is stuck (`stuck`: step).
class Anomalies {
  using Roles = std::vector<std::vector<std::uint64_t>>;

 public:
  Anomalies(const Case& c, const History& history)
      : c_(c), history_(history), roles_{Roles(c.ranks.size()), Roles(c.ranks.size())} {}
  // What the rank did, before step `until`, that it never did before and no peer does.
  std::optional<Anomaly> own(int evidence, std::size_t stuck, std::size_t until = SIZE_MAX) const;
  // The same at that step.
  std::optional<Anomaly> own_at(int evidence, std::size_t stuck, std::size_t step) const;
  // After that step, and before the one where it is stuck, it met all others: they ended a collective of
  // its largest group alike.
  std::optional<std::size_t> met_since(int evidence, std::size_t issued, std::size_t stuck) const;
  // The departure; from where it last met all others, if a message was due that it has not issued since.
  std::optional<Anomaly> since_met(int evidence, Anomaly a, std::size_t stuck) const;
  // Its departures, whoever else took the same way. `of_all`: or ended the same operation.
  std::vector<Anomaly> any(int evidence, std::size_t stuck, bool of_all) const;
  // The rank did what `deviant` of another rank is, peers or not.
  bool did_likewise(int evidence, std::size_t stuck, int other, const Anomaly& deviant) const;
  // The same where the rank's own records do not reach back: after the same few operations, three
  // or more peers agree on something that this rank did not do.
  std::optional<Anomaly> by_peers(int evidence, std::size_t until = SIZE_MAX) const;
  // The step of another rank that answers to a step of this one: both issued the same since the last
  // collective of both, or since the program began; nullopt: they did not.
  std::optional<std::size_t> place_at(int other, int evidence, std::size_t step) const;
  // A peer issued the same, but for two operations that are in each other's place.
  bool exchanged(int evidence, const Anomaly&) const;
  // The number of the operation that was due there: one past what the rank issued of that kind
  // before; 0: it is of another group than the rank's.
  std::uint64_t due_seq(int evidence, const Anomaly&) const;
  // Operation, call site and role without the group itself: equal on ranks that do the same in
  // other groups of the kind. A peer counts by its distance in the group, or not at all.
  std::uint64_t role(int evidence, const Step& step, bool peer = true) const;
  const std::vector<std::uint64_t>& roles(int evidence,
                                          bool peer = true) const;  // of all its steps
  // Members of its groups, at most limits::kPeers.
  std::vector<int> peers(int evidence, bool smaller_groups_first) const;

  // One thread issued all, or several that work for one another.
  bool is_one_program(int evidence) const;

  // Some receive of it took whichever message came first.
  bool receives_from_any(int evidence) const;

 private:
  bool shared(int evidence, const Anomaly& a) const;
  bool ended_alike(int evidence, std::size_t step) const;
  bool ended_by_all(int evidence, const Anomaly& a) const;
  bool came_to_new_together(int evidence, const Anomaly& a) const;
  // Later collectives of the group where one was left out, or added, came alike on its other members,
  // and not all from one line: a shift by one would show.
  bool kept_its_place(int evidence, const Anomaly& a, std::size_t stuck) const;
  bool leaves_order(int evidence, const Anomaly& a, std::size_t stuck) const;
  bool is_whole(int evidence) const;  // all that the program issued is there
  const Step& usual(int evidence, const Anomaly& a) const {
    return history_.of(a.owner(evidence))[a.usual];
  }
  struct Place {
    std::uint64_t file_hash = 0, line = 0;
    bool known = false;
  };
  const Place& place_of(int evidence, std::uint32_t stack) const;
  bool is_over(int evidence, const Anomaly& a, std::size_t stuck) const;
  bool is_between(int evidence, const Anomaly& a) const;
  bool is_size_only(int evidence, const Anomaly& a, std::size_t stuck) const;
  bool comes_later(int evidence, const Anomaly& a) const;
  // All near where the rank is stuck.
  std::vector<Anomaly> all(int evidence, std::size_t stuck) const;

  const Case& c_;
  const History& history_;
  // Computed when first read.
  mutable Roles roles_[2];                                   // whatever the peer; by the peer
  mutable std::unordered_map<std::uint64_t, Place> places_;  // by evidence and stack
};

}  // namespace frtrace
