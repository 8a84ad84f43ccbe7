// order.hpp - the order in which each rank issued its operations, and the operation that usually
// comes next by the rank's own earlier iterations.
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
  // Hash of group, operation, signature and call site; without the size if that varies on this
  // rank.
  std::uint64_t key;
  int group;                // in Case::groups
  std::uint32_t record;     // in RankEvidence::records
  bool sized = true;        // its size is part of the key
  std::uint64_t exact = 0;  // the key with the size in any case, to compare ranks
};

// The steps of the program that is stuck in that step, or of the program that issued last. Python
// threads that share no group are separate programs, and no order is fixed between them. Threads
// that Python did not start run backward passes for another thread.
std::vector<std::size_t> steps_of_program(const RankEvidence&, const std::vector<Step>&,
                                          std::size_t stuck);

// Index of the first step at or after a record; the number of steps: none.
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

// No earlier step of the rank equals the step at `at`.
bool is_first_of_its_kind(std::span<const Step> steps, std::size_t at);

// The first step that comes again, where the repeated part of the program begins; past the end:
// none.
std::size_t first_repeated(std::span<const Step> steps);

// The earlier step that followed the longest context equal to the one before `pos`: the rank
// usually issues it there. `pos` may be one past the end.
std::optional<std::size_t> usual_next(const std::vector<Step>& steps, std::size_t pos);

// A place where the rank did something that it never did before after the same few operations. The
// kind follows from the later steps: the usual operations with some left out, or with one exchanged
// or added.
struct Anomaly {
  enum Kind : std::uint8_t {
    kSkipped,   // went on with the operations that usually follow `usual`
    kSwapped,   // issued an operation that usually comes later, before `usual`
    kInserted,  // issued an additional operation, then `usual`
    kReplaced   // issued another operation in the place of `usual`
  };
  Kind kind = kReplaced;
  std::size_t issued = 0;   // step
  std::size_t usual = 0;    // earlier step that was due instead
  int usual_of = -1;        // evidence of the rank with that step; -1: this rank
  bool novel = false;       // the rank never issued such an operation before
  bool part = false;        // compared within an iteration: the rank may be in its next part
  std::size_t support = 0;  // steps after it that agree with the kind
  std::size_t context = 0;  // equal steps before it, here and where `usual` was issued
  // The evidence that `usual` is a step of, for an anomaly of that rank.
  int owner(int evidence) const { return usual_of < 0 ? evidence : usual_of; }
};
// Number of equal keys or roles from two places on, up to limits::kAgree.
std::size_t equal_run(std::span<const std::uint64_t> a, std::size_t i,
                      std::span<const std::uint64_t> b, std::size_t j);
// The kind of a deviation, from the keys issued there and the keys due. Sets `support`.
Anomaly::Kind kind_of(std::span<const std::uint64_t> issued, std::span<const std::uint64_t> due,
                      std::size_t& support);
// Anomalies of iterations that equal no other iteration, oldest first; nullopt: no whole iteration
// is kept. `stuck`: the step in which the rank is stuck; past the end if in none.
std::optional<std::vector<Anomaly>> odd_iterations(const std::vector<Step>& steps,
                                                   const RankEvidence& e, std::size_t stuck);
// The first anomaly at or after step `from`, if no whole iteration is kept. `cut`: records before
// the first step are lost.
std::optional<Anomaly> anomaly(const std::vector<Step>& steps, std::size_t from, bool cut);

// Anomalies of ranks that wait for each other, near the step in which each is stuck (`stuck`).
class Anomalies {
  using Roles = std::vector<std::vector<std::uint64_t>>;

 public:
  Anomalies(const Case& c, const History& history)
      : c_(c), history_(history), roles_{Roles(c.ranks.size()), Roles(c.ranks.size())} {}
  // The rank's first departure, before step `until`, from its own earlier order and from its peers'
  // order.
  std::optional<Anomaly> own(int evidence, std::size_t stuck, std::size_t until = SIZE_MAX) const;
  // A departure at that step, even if peers did the same.
  std::optional<Anomaly> own_at(int evidence, std::size_t stuck, std::size_t step) const;
  // The last step after `issued`, and before the rank is stuck, in which it met all others: they
  // ended a collective of its largest group alike. nullopt: none.
  std::optional<std::size_t> met_since(int evidence, std::size_t issued, std::size_t stuck) const;
  // The departure. If the rank met all others since: from there on, if a message was due that it
  // has not issued since, else nullopt.
  std::optional<Anomaly> since_met(int evidence, Anomaly a, std::size_t stuck) const;
  // The rank's departures, even if other ranks did the same. `of_all`: also if all ended the same
  // operation.
  std::vector<Anomaly> any(int evidence, std::size_t stuck, bool of_all) const;
  // The rank departed in the same way as another rank in `deviant`, whether they are peers or not.
  bool did_likewise(int evidence, std::size_t stuck, int other, const Anomaly& deviant) const;
  // The same if the rank's own records do not reach back: after the same few operations, at least
  // limits::kPeersAgree peers agree on an operation that this rank did not issue.
  std::optional<Anomaly> by_peers(int evidence, std::size_t until = SIZE_MAX) const;
  // The step of another rank that corresponds to a step of this rank: both issued the same since
  // the last collective of both, or since the program began; nullopt: they did not.
  std::optional<std::size_t> place_at(int other, int evidence, std::size_t step) const;
  // A peer issued the same operations, with two of them in each other's place.
  bool exchanged(int evidence, const Anomaly&) const;
  // The number of the operation that was due there: one past the rank's last operation of that kind
  // before; 0: the rank is not in its group.
  std::uint64_t due_seq(int evidence, const Anomaly&) const;
  // Hash of operation, call site and role without the group itself: equal on ranks that do the same
  // in other groups of the kind. `peer`: with the peer, as its distance in the group.
  std::uint64_t role(int evidence, const Step& step, bool peer = true) const;
  const std::vector<std::uint64_t>& roles(int evidence,
                                          bool peer = true) const;  // of all its steps
  // Members of its groups, at most limits::kPeers.
  std::vector<int> peers(int evidence, bool smaller_groups_first) const;

  // One thread issued all operations, or several threads that work for one another.
  bool is_one_program(int evidence) const;

  // Some receive of the rank took a message from any peer.
  bool receives_from_any(int evidence) const;

 private:
  bool shared(int evidence, const Anomaly& a) const;
  bool ended_alike(int evidence, std::size_t step) const;
  bool ended_by_all(int evidence, const Anomaly& a) const;
  bool came_to_new_together(int evidence, const Anomaly& a) const;
  // Later collectives of the group of an operation left out, or added, came alike on its other
  // members, and not all from one line: a shift by one would show.
  bool kept_its_place(int evidence, const Anomaly& a, std::size_t stuck) const;
  bool leaves_order(int evidence, const Anomaly& a, std::size_t stuck) const;
  bool is_whole(int evidence) const;  // all records of the program are there
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
  // All anomalies near the step in which the rank is stuck.
  std::vector<Anomaly> all(int evidence, std::size_t stuck) const;

  const Case& c_;
  const History& history_;
  // Computed when first read.
  mutable Roles roles_[2];                                   // [0] without the peer, [1] with it
  mutable std::unordered_map<std::uint64_t, Place> places_;  // by evidence and stack
};

}  // namespace frtrace
