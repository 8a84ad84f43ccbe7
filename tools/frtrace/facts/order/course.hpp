// course.hpp - the place where a rank's course through its program parted from its peers', even if
// nothing was stuck there: counts per call site, the first operation left out or added, and the
// next operations after the last common line.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "facts/order/order.hpp"
#include "model/case.hpp"

namespace frtrace {

struct Facts;

// Operations of one group from one call site, counted from the first number that all compared ranks
// still have.
struct SiteCount {
  std::string op;
  Site site;
  std::uint64_t own = 0, own_ended = 0;                // issued by the rank; of these, not pending
  std::uint64_t least = 0, least_ended = 0, most = 0;  // by the others
  bool whole = true;  // counted from the first operation of the group
};
// Compares ranks of a group with the same other ranks, which are counted once.
class SiteCounts {
 public:
  SiteCounts(const Case&, int group, std::vector<int> others);
  bool has_others() const { return !others_.empty(); }
  // Call sites where the rank's count is below, or above, that of every other rank, in the order in
  // which the others came there. `waits`: include sites where this is so only because ranks wait
  // there, as the rank had issued another operation then.
  std::vector<SiteCount> of(int evidence, bool waits);

 private:
  struct Place {
    std::string op, file;
    std::uint32_t line = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Seen {
    SiteCount at;
    std::uint64_t first = 0;  // number of the first operation there
    std::size_t ranks = 0;    // number of other ranks that came there
  };
  using Counts = std::map<Place, Seen>;
  Counts count(int evidence, std::uint64_t from) const;  // fills `own` and `own_ended`
  const Counts& of_others(std::uint64_t from);

  const Case& c_;
  int group_;
  std::vector<int> others_;
  std::uint64_t from_ = 1;                     // the first number that all others still have
  std::map<std::uint64_t, Counts> of_others_;  // by the number that counting starts from
};

// The program's step in which the rank issued the record; nullopt: it reports none, or the ring
// lost it.
std::optional<std::int64_t> step_number(const RankEvidence&, std::size_t record);

// The first place where a rank left out an operation that its peers issued, or added an operation.
struct Parting {
  bool left_out = true;
  std::string op;
  Site site;
  int group = -1;                    // of the rank, or of the peer if the rank has no such group
  std::uint64_t before = 0;          // times that the rank had passed that place
  std::size_t issued = 0;            // the rank's step there
  std::optional<std::int64_t> step;  // of the program, if it reports steps
  bool wrong_since = false;          // later operations in that group met another iteration's
};
std::optional<Parting> parting(const Facts&, int evidence, const std::vector<int>& peers);

// ---- the fork of two ranks that were last at one line, in the latest round of a group

// count: number of the rank's records with that call site; 0 with an empty op: no operation
// followed.
struct Branch {
  std::string op;
  Site site;
  std::uint64_t count = 0;
};
struct Fork {
  Rank reference = -1;
  Branch common, own, others;  // the last common call; the next call of each
};

// nullopt: the records no longer tell, or the reference is not further.
std::optional<Fork> fork_of(const Case&, const History&, int group, int evidence, int reference);

}  // namespace frtrace
