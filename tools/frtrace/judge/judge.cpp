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
      // A profiler's files tell nothing of a hang.
      // Numbers that some ranks counted by what Python called fit nobody else's.
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
      // Who went on must not be at fault: it may have gone another way.
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
  // Nothing tells when the files were written: of a job that moves, devices look behind, too. So does
  // an earlier file, where nobody else waits.
  bool may_be_moving(const Cause& c, const Judgement& j) const {
    const bool others_wait = std::ranges::any_of(c.explains, [&](int i) {
      return std::ranges::none_of(c.guilty, [&](const Guilty& g) { return g.evidence == i; });
    });
    return c.rule == Rule::kDeviceBehind && (!j.unexplained.empty() || !others_wait) &&
           std::ranges::all_of(c.others, [&](int i) { return f_.ev(i).holes.written_guessed; });
  }

  bool named() const { return !named_.empty(); }

  // A host by itself, whatever else is stuck.
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

  // It explains a rank that waits and that nothing taken so far explains.
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

  // All who are named are hosts that did not come.
  bool only_idle() const {
    return std::ranges::all_of(named_, [](const Cause& c) {
      return c.rule == Rule::kNeverIssued && std::ranges::all_of(c.guilty, [](const Guilty& g) {
               return g.why == Why::kNeverIssued;
             });
    });
  }

  // All that it blames are blamed already.
  bool is_known(const Cause& c) const {
    return std::ranges::all_of(c.guilty, [&](const Guilty& g) { return is_named(g.rank); });
  }

  // The files of the idle ranks and of those who wait for them record all there was.
  bool records_all(const Cause& c) const {
    return std::ranges::all_of(
        c.explains, [&](int i) { return !f_.ev(i).holes.no_members && !f_.ev(i).holes.no_p2p; });
  }

  // Beside a named cause only what is a fault by itself is blamed: something recorded, an idle rank,
  // one rank against several, one that clearly left its own order, one device that others' are ahead
  // of, or a rank without evidence where no wait is explained. Circles may follow from the first
  // cause.
  bool stands_beside(Tier tier, const Cause& c) const {
    return tier <= Tier::kShown || tier == Tier::kAbsent || c.independent ||
           (c.rule == Rule::kNeverIssued && records_all(c));
  }

  // Its library reported that another process is gone: that took the operation off its device.
  bool lost_a_peer(const Cause& c) const {
    return std::ranges::any_of(f_.device_errors, [&](const DeviceError& e) {
      return e.consequence && blames(c, f_.rank(e.evidence));
    });
  }

  // What differs in a group shifts the numbers after it: others' devices may have started another
  // operation. Who came no further shifts none. A process that ended takes messages off the devices of
  // its peers.
  bool in_doubt(const Cause& c) const {
    return c.rule == Rule::kDeviceBehind && std::ranges::any_of(named_, [&](const Cause& n) {
             return (n.verdict == Verdict::kExited &&
                     (f_.graph[c.pending].kind != Kind::kCollective || lost_a_peer(c))) ||
                    (n.rule != Rule::kDeviceBehind && n.rule != Rule::kNeverIssued &&
                     n.pending >= 0 && f_.graph[n.pending].group == f_.graph[c.pending].group &&
                     f_.graph[n.pending].seq <= f_.graph[c.pending].seq);
           });
  }

  // It left its order with what most issued in the slot in which somebody else is named.
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
    // Beside a device or the network it may be held up by these; of PyTorch's files, which say little
    // of either, several that went on are enough beside a device.
    const auto has_verdict = [&](Verdict v) {
      return std::ranges::count(named_, v, &Cause::verdict) != 0;
    };
    if (c.rule == Rule::kStoppedHost &&
        (has_verdict(Verdict::kTransport) ||
         (has_verdict(Verdict::kDevice) && (f_.ev(c.guilty.front().evidence).format.empty() ||
                                            c.others.size() < limits::kWentOnBeside)))) {
      return;
    }
    if (c.rule != Rule::kOpenBehind) {  // orders may still tell
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
    // What nobody waits for is a fault only if nothing else is: a process that ended stops what its
    // peers' devices run.
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
