// Where two ranks parted.
#include "facts/order/fork.hpp"

#include <string_view>

#include "facts/limits.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

struct CallPlace {
  std::string op;
  Site site;
  bool operator==(const CallPlace&) const = default;
};

class Track {
 public:
  Track(const Case& c, const History& history, int evidence)
      : e_(c.evidence_of(evidence)), steps_(history.of(evidence)) {}

  std::size_t size() const { return steps_.size(); }
  CallPlace place(std::size_t step) const {
    const Record& r = e_.records[steps_[step].record];
    return {canonical_op(e_.text(r.op)), user_site(e_, r.stack)};
  }
  const Record& record(std::size_t step) const { return e_.records[steps_[step].record]; }
  // Position of the group's operation with that seq; size() when not kept.
  std::size_t find(int group, std::uint64_t seq) const {
    for (std::size_t i = steps_.size(); i-- > 0;) {
      if (steps_[i].group == group && record(i).kind == Kind::kCollective && record(i).seq == seq) {
        return i;
      }
    }
    return steps_.size();
  }
  Branch branch(std::size_t step) const {
    Branch out;
    if (step >= steps_.size()) {
      return out;
    }
    const CallPlace p = place(step);
    out.op = std::string(e_.text(record(step).op));
    out.site = p.site;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      out.count += steps_[i].key == steps_[step].key || place(i) == p ? 1 : 0;
    }
    return out;
  }

 private:
  const RankEvidence& e_;
  const std::vector<Step>& steps_;
};

}  // namespace

std::optional<Fork> fork_of(const Case& c, const History& history, int group, int evidence,
                            int reference) {
  const Group& g = c.groups[idx(group)];
  const auto enqueued = [&](int i) -> std::uint64_t {
    const auto p = g.position.find(c.evidence_of(i).id.rank);
    const GroupEvidence* m = p == g.position.end() ? nullptr : c.member(g, idx(p->second));
    return m == nullptr ? 0 : m->enqueued;
  };
  const Track own(c, history, evidence), other(c, history, reference);
  // The last slot of the group in which both stood at the same line.
  std::uint64_t seq = std::min(enqueued(evidence), enqueued(reference));
  std::size_t a = own.size(), b = other.size();
  for (std::uint64_t n = 0; n < limits::kForkLookback && seq > 0; ++n, --seq) {
    const std::size_t i = own.find(group, seq), j = other.find(group, seq);
    if (i == own.size() || j == other.size()) {
      return std::nullopt;  // overwritten
    }
    if (own.place(i) == other.place(j)) {
      a = i;
      b = j;
      break;
    }
  }
  if (a == own.size()) {
    return std::nullopt;
  }
  while (a + 1 < own.size() && b + 1 < other.size() && own.place(a + 1) == other.place(b + 1)) {
    ++a;
    ++b;
  }
  if (b + 1 >= other.size()) {
    return std::nullopt;  // the other one is not further
  }
  Fork out;
  out.reference = c.evidence_of(reference).id.rank;
  out.common = own.branch(a);
  out.own = own.branch(a + 1);
  out.others = other.branch(b + 1);
  return out.common.site.file.empty() && out.others.site.file.empty() ? std::nullopt
                                                                      : std::optional<Fork>(out);
}

}  // namespace frtrace
