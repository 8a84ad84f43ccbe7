// Chooses among proposed causes.
#include "judge/judge.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "causes/rules.hpp"
#include "facts/limits.hpp"

namespace frtrace {

namespace {

class Judge {
 public:
  explicit Judge(const Facts& f) : f_(f) {}

  Judgement run() {
    const bool times = only_times(f_);
    std::vector<Cause> further;
    for (const RuleRow& rule : rules()) {
      // A profiler's files tell nothing about a hang. Sequence numbers that some ranks counted from
      // Python's calls do not match those of other ranks.
      if (!is_needed(rule.tier) || (times && rule.propose != slow) ||
          (f_.records_less && rule.compares)) {
        continue;
      }
      for (Cause& c : rule.propose(f_)) {
        if (rule.beside) {
          further.push_back(std::move(c));
        } else {
          consider(rule.tier, std::move(c));
        }
      }
    }
    for (Cause& c : further) {
      // The ranks that went on must not be at fault: they may have taken another way.
      const bool stands = c.others.empty() || !all_named(c.others);
      if (named() && stands && !(c.rule == Rule::kElsewhere && is_known(c))) {
        consider(Tier::kEnd, std::move(c));
      }
    }
    Judgement j = settle();
    j.unexplained =
        ranks_that(f_, [&](int i) { return f_.graph.waits(i) && !explained_.contains(i); });
    Cause& only = j.causes.front();
    if (j.causes.size() == 1 && may_be_moving(only, j)) {
      only.set(Rule::kOpenBehind, Verdict::kUndecided);
      only.guilty.clear();
    }
    return j;
  }

 private:
  // No file records when it was written: in a running job devices look behind, too. So does an
  // earlier file if no other rank waits.
  bool may_be_moving(const Cause& c, const Judgement& j) const {
    const bool others_wait = std::ranges::any_of(c.explains, [&](int i) {
      return std::ranges::none_of(c.guilty, [&](const Guilty& g) { return g.evidence == i; });
    });
    return c.rule == Rule::kDeviceBehind && (!j.unexplained.empty() || !others_wait) &&
           std::ranges::all_of(c.others, [&](int i) { return f_.ev(i).holes.written_guessed; });
  }

  bool named() const { return !named_.empty(); }

  // A host stopped by itself, whatever else is stuck.
  static bool is_stopped(const Cause& c) {
    return c.rule == Rule::kStoppedHost || c.rule == Rule::kElsewhere;
  }

  bool is_needed(Tier tier) const {
    switch (tier) {
      case Tier::kAbsent:
        return std::ranges::none_of(
            named_, [](const Cause& n) { return n.verdict == Verdict::kTransport; });
      case Tier::kOpen:
        return !named();
      case Tier::kNoHang:
        return !named() && open_.empty();
      case Tier::kOrder:
        return true;
      default:
        return named_.empty() || named_.front().rule != Rule::kGroupOrder;
    }
  }

  // The cause explains a waiting rank that no cause taken so far explains.
  bool adds(const Cause& c) const {
    return std::ranges::any_of(c.explains, [&](int i) { return !explained_.contains(i); });
  }

  static bool blames(const Cause& c, Rank rank) {
    return std::ranges::any_of(c.guilty, [&](const Guilty& g) { return g.rank == rank; });
  }

  bool is_named(Rank rank) const {
    return std::ranges::any_of(named_, [&](const Cause& c) { return blames(c, rank); });
  }

  bool all_named(const std::vector<int>& who) const {
    return std::ranges::all_of(who, [&](int i) { return is_named(f_.rank(i)); });
  }

  // All named causes are hosts that never issued an operation.
  bool only_idle() const {
    return std::ranges::all_of(named_, [](const Cause& c) {
      return c.rule == Rule::kNeverIssued && std::ranges::all_of(c.guilty, [](const Guilty& g) {
               return g.why == Why::kNeverIssued;
             });
    });
  }

  // All ranks that the cause blames are blamed already.
  bool is_known(const Cause& c) const {
    return std::ranges::all_of(c.guilty, [&](const Guilty& g) { return is_named(g.rank); });
  }

  // The files of the idle ranks, and of the ranks that wait for them, record all operations.
  bool records_all(const Cause& c) const {
    return std::ranges::all_of(
        c.explains, [&](int i) { return !f_.ev(i).holes.no_members && !f_.ev(i).holes.no_p2p; });
  }

  // Beside a named cause only an independent fault is blamed: a recorded fault, an idle rank, one
  // rank against several, a rank that clearly left its own order, a single device that is behind
  // the others' devices, or a rank without evidence where no wait is explained. Cycles may follow
  // from the first cause.
  bool stands_beside(Tier tier, const Cause& c) const {
    return tier <= Tier::kShown || tier == Tier::kAbsent || c.independent ||
           (c.rule == Rule::kNeverIssued && records_all(c));
  }

  // The rank's library reported that another process is gone, which took the operation off its
  // device.
  bool lost_a_peer(const Cause& c) const {
    return std::ranges::any_of(f_.device_errors, [&](const DeviceError& e) {
      return e.consequence && blames(c, f_.rank(e.evidence));
    });
  }

  // A difference in a group shifts the later sequence numbers: other devices may have started
  // another operation. A rank that issued no further operation shifts none. A process that ended
  // takes messages off the devices of its peers.
  bool in_doubt(const Cause& c) const {
    return c.rule == Rule::kDeviceBehind && std::ranges::any_of(named_, [&](const Cause& n) {
             return (n.verdict == Verdict::kExited &&
                     (f_.graph[c.pending].kind != Kind::kCollective || lost_a_peer(c))) ||
                    (n.rule != Rule::kDeviceBehind && n.rule != Rule::kNeverIssued &&
                     n.pending >= 0 && f_.graph[n.pending].group == f_.graph[c.pending].group &&
                     f_.graph[n.pending].seq <= f_.graph[c.pending].seq);
           });
  }

  // The rank left its order with the operation that most members issued, in a slot for which
  // another rank is named.
  bool issued_as_most(const Cause& c) const {
    return c.rule == Rule::kLeftOrder && std::ranges::any_of(named_, [&](const Cause& n) {
             const Guilty& g = c.guilty.front();
             const Record& r = f_.ev(g.evidence).records[g.issued];
             return n.divergence && n.right >= 0 && r.kind == Kind::kCollective &&
                    n.divergence->seq == r.seq &&
                    n.divergence->group == f_.c.group_at(g.evidence, r.group) && !blames(n, g.rank);
           });
  }

  void consider(Tier tier, Cause c) {
    const bool first = named_.empty() && open_.empty();
    if (issued_as_most(c)) {
      return;
    }
    c.independent = (c.independent || (c.rule == Rule::kLeftOrder && !c.by_peers)) && !in_doubt(c);
    if (!first && (c.independent ? is_known(c) : !adds(c))) {
      return;
    }
    if (tier == Tier::kAbsent && !explained_.empty() && !(c.independent && only_idle())) {
      return;
    }
    const bool weak = named() && !stands_beside(tier, c);
    // A stalled device or the network may hold up the host. PyTorch's files say little about
    // either, so beside a device several peers that went on are enough for them.
    const auto has_verdict = [&](Verdict v) {
      return std::ranges::count(named_, v, &Cause::verdict) != 0;
    };
    if (c.rule == Rule::kStoppedHost &&
        (has_verdict(Verdict::kTransport) ||
         (has_verdict(Verdict::kDevice) && (f_.ev(c.guilty.front().evidence).format.empty() ||
                                            c.others.size() < limits::kWentOnBeside)))) {
      return;
    }
    if (c.rule != Rule::kOpenBehind) {  // the orders may still name a rank
      explained_.insert(c.explains.begin(), c.explains.end());
    }
    if (weak || (!c.names() && c.verdict == Verdict::kUndecided) ||
        c.rule == Rule::kOpenNoEvidence) {
      open_.push_back(std::move(c));
    } else if (!named_.empty() || open_.empty() || tier < Tier::kAbsent ||
               c.rule == Rule::kLeftOrder) {
      named_.push_back(std::move(c));
    }
  }

  Judgement settle() {
    Judgement j;
    // A device fault that no rank waits for counts only if there is no other cause: a process that
    // ended stops the operations on its peers' devices.
    if (named_.size() > 1) {
      std::erase_if(named_, [](const Cause& c) {
        return c.verdict == Verdict::kDevice && c.explains.empty() && !c.independent;
      });
    }
    std::ranges::stable_sort(named_, [](const Cause& a, const Cause& b) {
      return is_stopped(a) != is_stopped(b) ? is_stopped(b) : a.explains.size() > b.explains.size();
    });
    j.causes = std::move(named_);
    j.open = std::move(open_);
    if (j.causes.empty() && !j.open.empty()) {
      j.causes.push_back(std::move(j.open.front()));
      j.open.erase(j.open.begin());
      j.causes.front().guilty.clear();
    }
    if (j.causes.empty()) {
      j.causes.emplace_back();  // ok
    }
    for (const Cause& c : j.causes) {
      for (const Assumption& a : c.assumes) {
        j.confidence = std::max(j.confidence, confidence_of(a));
      }
    }
    return j;
  }

  const Facts& f_;
  std::vector<Cause> named_, open_;
  std::set<int> explained_;
};

}  // namespace

Judgement judge(const Facts& f) {
  return Judge(f).run();
}

}  // namespace frtrace
