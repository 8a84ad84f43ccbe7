// The truth that the evidence of a widely drawn case decides. Strict: a case is not decidable if
// another explanation is as good.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "wide.hpp"

namespace hangsim {

namespace {

class Witness {
 public:
  Witness(const Case& c, bool torch) : c_(c), e_(torch ? c.torch : c.fr), torch_(torch) {
    for (int r = 0; r < c.job.world; ++r) {
      views_.push_back(view(r));
    }
  }

  // Why the evidence does not show that guilt; empty: it does.
  std::string lacks(const Guilt& g) const {
    switch (g.how) {
      case Guilt::kStopped:
      case Guilt::kGone:
      case Guilt::kFrozen:
        return lacks_absence(g);
      case Guilt::kStuckDevice:
        return lacks_device(g);
      case Guilt::kLags:
        return lacks_lag(g);
      case Guilt::kChanged:
        return lacks_slot(g);
      case Guilt::kOddSplit:
        return lacks_split(g);
      case Guilt::kSkipped:
      case Guilt::kAdded:
      case Guilt::kReordered:
        return lacks_sequence(g);
      case Guilt::kCircle:
        return !has_file(g.rank)       ? "a file of the group is lost"
               : !torch_ && !e_.frames ? "without stacks it may be one batch"
                                       : "";
      case Guilt::kBroken:
        return e_.timing ? lacks_files(g) : "starts not recorded";
      default:
        return lacks_exchange(g);
    }
  }

  // The record of an operation that is still in flight is overwritten on some rank.
  bool has_lost_front() const {
    return std::any_of(views_.begin(), views_.end(), [](const RankView& v) {
      return v.file && !v.pending.empty() && v.pending.front() < v.first_kept;
    });
  }
  bool is_idle(int rank) const { return of(rank).pending.empty(); }
  bool has_file(int rank) const { return of(rank).file; }
  bool is_awaited(const Guilt& g) const { return awaited_by(g.rank) >= 0; }

 private:
  const RankView& of(int rank) const { return views_[static_cast<std::size_t>(rank)]; }
  const Group& group(int g) const { return c_.job.groups[static_cast<std::size_t>(g)]; }

  RankView view(int r) const {
    const RankRun& run = c_.run_of(r);
    const Ns at = e_.at[static_cast<std::size_t>(r)];
    RankView v;
    const bool stopped = run.hung_in != nullptr && run.hung_in->stopped;
    const bool gone = run.ended && run.ended_at <= at;
    const bool left = torch_ ? !gone && !stopped : leaves_fr_dump(c_, r);
    v.file = left && !holds(e_.lost, r) && !holds(e_.truncated, r);
    v.ops = seen(run, run.ended ? std::min(at, run.ended_at) : at, e_.timing, torch_);
    const std::size_t ring = static_cast<std::size_t>(e_.ring);
    v.first_kept = v.ops.size() - std::min(v.ops.size(), ring);
    for (std::size_t i = 0; i < v.ops.size(); ++i) {
      const Issued& one = *v.ops[i].issued;
      const bool member = one.batch != nullptr && one.op->is_p2p();
      if (one.op->what == What::kCollective) {
        v.collectives[one.op->group] = one.seq;
      } else if (one.op->is_p2p()) {
        v.lanes[{one.op->group, one.op->peer, one.op->what}] = one.seq;
      }
      if (!v.ops[i].done && !(member && torch_)) {
        v.pending.push_back(i);
      }
    }
    return v;
  }

  // Whether that operation of `rank` cannot end before `other` issues its part.
  bool needs(int rank, const Issued& one, int other) const {
    const Group& g = group(one.op->group);
    const int theirs = g.position(other);
    if (theirs < 0 || rank == other) {
      return false;
    }
    if (one.op->what == What::kCollective) {
      const auto it = of(other).collectives.find(one.op->group);
      return it == of(other).collectives.end() || it->second < one.seq;
    }
    if (!one.op->is_p2p() || one.op->peer != theirs || one.done != kNever) {
      return false;
    }
    const What match = one.op->what == What::kSend ? What::kRecv : What::kSend;
    const auto it = of(other).lanes.find({one.op->group, g.position(rank), match});
    return it == of(other).lanes.end() || it->second < one.seq;
  }
  bool needs(int rank, std::size_t i, int other) const {
    const RankView& v = of(rank);
    const Issued& one = *v.ops[i].issued;
    if (one.op->what != What::kBatch) {
      return needs(rank, one, other);
    }
    for (std::size_t k = i; k-- > 0 && v.ops[k].issued->batch == one.op;) {
      if (needs(rank, *v.ops[k].issued, other)) {
        return true;
      }
    }
    return false;
  }

  // A rank with a file that waits for an operation that `rank` never issued; -1: none.
  int awaited_by(int rank) const {
    for (int w = 0; w < c_.job.world; ++w) {
      const RankView& v = of(w);
      for (const std::size_t i : v.pending) {
        if (v.file && i >= v.first_kept && needs(w, i, rank)) {
          return w;
        }
      }
    }
    return -1;
  }

  // Another rank with the same first operation in flight has issued more operations.
  bool has_twin(int rank) const {
    const RankView& mine = of(rank);
    const Issued& first = *mine.ops[mine.pending.front()].issued;
    if (first.op->what != What::kCollective || mine.pending.front() < mine.first_kept) {
      return false;
    }
    for (const int other : group(first.op->group).ranks) {
      const RankView& v = of(other);
      if (other == rank || !v.file || v.pending.size() < 2) {
        continue;
      }
      const Issued& its = *v.ops[v.pending.front()].issued;
      const bool same = its.op->what == What::kCollective && its.op->group == first.op->group &&
                        its.seq == first.seq;
      if (same && v.pending.front() >= v.first_kept &&
          std::any_of(v.pending.begin(), v.pending.end(),
                      [&](std::size_t i) { return needs(other, i, rank); })) {
        return true;
      }
    }
    return false;
  }

  std::string lacks_absence(const Guilt& g) const {
    if (awaited_by(g.rank) < 0) {
      return "nobody with a file waits for it";
    }
    const bool stays = g.how == Guilt::kStopped && has_file(g.rank);
    if (stays && !is_idle(g.rank) && !has_twin(g.rank)) {
      return "what it has in flight explains as much";
    }
    if (stays && !is_idle(g.rank) && holds(e_.truncated, g.rank)) {
      return "its file is cut: it may have gone on";
    }
    return "";
  }

  std::string lacks_device(const Guilt& g) const {
    if (!has_file(g.rank)) {
      return "its file is lost";
    }
    if (is_idle(g.rank)) {
      return lacks_absence(g);
    }
    return e_.timing ? "" : "starts not recorded";
  }

  bool keeps_records() const { return !(torch_ && e_.only_active); }

  // Requires a record of another member that finished the operation in flight here.
  std::string lacks_lag(const Guilt& g) const {
    if (!has_file(g.rank) || is_idle(g.rank)) {
      return "its file is lost";
    }
    if (!torch_) {
      return "what the network owes it is not simulated";
    }
    if (!keeps_records()) {
      return "completed operations are not kept";
    }
    for (const int other : group(g.group).ranks) {
      const RankView& v = of(other);
      for (std::size_t i = v.first_kept; other != g.rank && v.file && i < v.ops.size(); ++i) {
        const Issued& one = *v.ops[i].issued;
        if (v.ops[i].done && one.op->what == What::kCollective && one.op->group == g.group &&
            one.seq == g.seq) {
          return "";
        }
      }
    }
    return "that others finished it is overwritten";
  }

  std::string lacks_slot(const Guilt& g) const {
    int others = 0;
    bool own = false;
    for (const int r : group(g.group).ranks) {
      const RankView& v = of(r);
      for (std::size_t i = v.first_kept; v.file && i < v.ops.size(); ++i) {
        const Issued& one = *v.ops[i].issued;
        if (one.op->what == What::kCollective && one.op->group == g.group && one.seq == g.seq &&
            (keeps_records() || !v.ops[i].done)) {
          own = own || r == g.rank;
          others += r == g.rank ? 0 : 1;
        }
      }
    }
    if (!own || others == 0) {
      return "what happened is overwritten";
    }
    if (others == 1) {
      return lacks_history() ? "one against one, earlier iterations not kept" : "";
    }
    return "";
  }

  std::string lacks_split(const Guilt& g) const {
    if (const std::string why = lacks_slot(g); !why.empty()) {
      return why;
    }
    if (!torch_) {
      return "";
    }
    for (const int r : group(g.group).ranks) {
      if (!has_file(r)) {
        return "totals over all members are not known";
      }
      for (const Op& op : c_.job.programs[static_cast<std::size_t>(r)]) {
        if (op.name == "all_to_all_single" && op.group == g.group && r != g.rank &&
            std::adjacent_find(op.in_splits.begin(), op.in_splits.end(), std::not_equal_to<>()) !=
                op.in_splits.end()) {
          return "PyTorch does not record splits";
        }
      }
    }
    return group(g.group).ranks.size() < 3 ? "one against one" : "";
  }

  // The rings do not reach back to the last earlier step like the fault's step.
  bool lacks_history() const { return !keeps_records() || e_.ring < since(like_step()); }

  int since(int step) const {
    std::ptrdiff_t most = 0;
    for (const RankView& v : views_) {
      most = std::max(
          most, std::count_if(v.ops.begin(), v.ops.end(), [&](const Seen& s) {
            return (s.issued->batch != nullptr ? s.issued->batch : s.issued->op)->step >= step;
          }));
    }
    return static_cast<int>(most);
  }

  // The last earlier step in which an innocent rank did the same as in the fault's step; 0: none.
  int like_step() const {
    const auto shape = [&](int step) {
      std::vector<std::tuple<int, std::string_view, std::int64_t>> out;
      for (const Op& op : c_.job.programs[static_cast<std::size_t>(innocent_)]) {
        if (op.step == step && op.communicates()) {
          out.emplace_back(op.group, op.name, op.name == "all_to_all_single" ? 0 : numel(op.in));
        }
      }
      return out;
    };
    const auto wanted = shape(c_.fault_step);
    for (int step = c_.fault_step - 1; step > 0; --step) {
      if (shape(step) == wanted) {
        return step;
      }
    }
    return 0;
  }
  bool has_like_step() const { return like_step() > 0; }

  std::string lacks_files(const Guilt& g) const {
    for (const int r : group(g.group).ranks) {
      if (!has_file(r)) {
        return "a file of the group is lost";
      }
    }
    return "";
  }

  std::string lacks_sequence(const Guilt& g) const {
    if (const std::string why = lacks_files(g); !why.empty()) {
      return why;
    }
    if (torch_ && g.name == "all_to_all_single" && (!e_.frames || e_.json)) {
      return "one all_to_all looks like the other";
    }
    if (lacks_history() || !has_like_step()) {
      return "earlier iterations not kept";
    }
    return "";
  }

  std::string lacks_exchange(const Guilt& g) const {
    if (const std::string why = lacks_files(g); !why.empty()) {
      return why;
    }
    return lacks_history() || !has_like_step() ? "earlier iterations not kept" : "";
  }

  const Case& c_;
  const Evidence& e_;
  const bool torch_;
  std::vector<RankView> views_;

 public:
  int innocent_ = 0;  // a rank with an unchanged program, the model for the steps
};

// The kinds of verdict that are right for a guilty rank.
std::vector<std::string> kinds_of(const Guilt& g, const Witness& w, bool file) {
  std::vector<std::string> out = {std::string(kind_of(g.how))};
  const auto add = [&](const char* kind) { out.emplace_back(kind); };
  switch (g.how) {
    case Guilt::kStopped:
      file ? void() : add("exited");
      break;
    case Guilt::kFrozen:
      add("exited");
      add("device");
      break;
    case Guilt::kGone:
      file ? void() : add("missing");
      break;
    case Guilt::kSkipped:
      add("mismatch");  // its next collective meets the one that the others issued
      break;
    case Guilt::kAdded:
      add("missing");
      add("deadlock");
      break;
    case Guilt::kReordered:
      add("missing");  // it has not issued the first of the two
      break;
    case Guilt::kNoSend:
    case Guilt::kNoRecv:
      add("mismatch");
      break;
    case Guilt::kOtherPeer:
    case Guilt::kLoneSend:
      add("missing");
      add("deadlock");
      break;
    case Guilt::kStuckDevice:
      w.is_idle(g.rank) ? add("missing") : void();
      break;
    default:
      break;
  }
  if (!file) {
    add("exited");
    add("missing");
  }
  return out;
}

void accept(Truth& t, const std::vector<std::string>& kinds, std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  for (const std::string& kind : kinds) {
    t.also.push_back({kind, ranks});
  }
}

class TruthOf {
 public:
  TruthOf(const Case& c, const WideFault& fault, bool torch)
      : c_(c), fault_(fault), e_(torch ? c.torch : c.fr), torch_(torch), w_(c, torch) {
    for (const Guilt& g : fault.guilts) {
      guilty_.push_back(g.rank);
    }
    while (holds(guilty_, w_.innocent_)) {
      ++w_.innocent_;
    }
  }

  Truth run() {
    for (std::size_t i = 0; i < fault_.guilts.size(); ++i) {
      add(fault_.guilts[i], fault_.visible[i]);
    }
    std::sort(all_.begin(), all_.end());
    t_.answer = {kinds_.empty() ? "undecided" : kinds_.front(), all_};
    accept(t_, kinds_, all_);
    accept_unsure();
    find_holes();
    for (const std::string& why : lacking_) {
      t_.decidable = false;
      t_.lacking += (t_.lacking.empty() ? "" : "; ") + why;
    }
    accept_more();
    return t_;
  }

 private:
  const std::vector<int>& group(int g) const {
    return c_.job.groups[static_cast<std::size_t>(g)].ranks;
  }

  void add(const Guilt& g, bool visible) {
    if (!visible) {
      unsure_.push_back(g.rank);
      return;
    }
    for (const std::string& k : kinds_of(g, w_, w_.has_file(g.rank))) {
      kinds_.push_back(k);
    }
    if (g.how == Guilt::kSkipped || g.how == Guilt::kNoSend || g.how == Guilt::kNoRecv) {
      t_.why = "skipped";
    }
    const std::string why = w_.lacks(g);
    const bool absence = g.how <= Guilt::kFrozen;
    if (!why.empty() && absence && !w_.is_awaited(g) && fault_.guilts.size() > 1) {
      unsure_.push_back(g.rank);
      return;
    }
    // If another fault explains the hang, a rank without a file may be innocent and its file lost.
    const auto explains = [&](const Guilt& other) {
      return w_.has_file(other.rank) && (other.how != Guilt::kStopped || w_.is_idle(other.rank));
    };
    if (!w_.has_file(g.rank) && std::any_of(fault_.guilts.begin(), fault_.guilts.end(), explains)) {
      unsure_.push_back(g.rank);
      return;
    }
    if (!why.empty()) {
      lacking_.insert(why);
      open_.push_back(g.rank);
    }
    if (g.how == Guilt::kBroken) {
      nobody_ = true;
    } else {
      all_.push_back(g.rank);
    }
  }

  // Accepts the answer with any subset of the guilty ranks that no rank waits for yet.
  void accept_unsure() {
    for (std::size_t n = 1; n < 1u << unsure_.size(); ++n) {
      std::vector<int> more = all_;
      for (std::size_t i = 0; i < unsure_.size(); ++i) {
        if ((n >> i & 1) != 0) {
          more.push_back(unsure_[i]);
        }
      }
      accept(t_, kinds_, more);
    }
  }

  void find_holes() {
    if (all_.empty() && !nobody_) {
      lacking_.insert("nobody waits for any of them");
    }
    bool lost_innocent = false;
    for (const auto* gone : {&e_.lost, &e_.truncated}) {
      for (const int r : *gone) {
        (holds(guilty_, r) ? lost_own_ : lost_innocent) = true;
      }
    }
    for (const Guilt& g : fault_.guilts) {
      const bool seen =
          g.how == Guilt::kChanged || (g.how == Guilt::kStopped && w_.is_idle(g.rank));
      if (lost_innocent && !(seen && w_.has_file(g.rank))) {
        lacking_.insert("file of a rank lost");
      }
    }
    if (e_.stale >= 0) {
      lacking_.insert("one dump is older than the hang");
    }
    if (std::count_if(all_.begin(), all_.end(), [&](int r) { return !w_.has_file(r); }) > 1) {
      lacking_.insert("of several without a file one may wait for another");
    }
    if (w_.has_lost_front()) {
      lacking_.insert("what is in flight is overwritten");
    }
  }

  // Accepts further answers if the evidence does not decide.
  void accept_more() {
    const bool decided = lacking_.empty();
    for (const Guilt& g : fault_.guilts) {
      if (g.peer >= 0 && (!decided || g.how == Guilt::kOddSplit)) {
        accept(t_, kinds_, {g.rank, g.peer});
      }
      // Without earlier iterations all members of a group are equally suspect.
      const bool pair = group(g.group).size() == 2;
      if (holds(open_, g.rank) && (is_of_order(g.how) || (g.how == Guilt::kChanged && pair))) {
        accept(t_, kinds_, group(g.group));
        if (g.other_group >= 0) {
          accept(t_, kinds_, group(g.other_group));
        }
      }
    }
    if (!decided || lost_own_) {
      t_.also.push_back({"undecided", {}});
    }
    if (decided) {
      return;
    }
    for (const int r : all_) {
      accept(t_, kinds_, {r});
    }
    // All waits may lead to a rank without evidence, which may be called exited or missing.
    for (const auto* gone : {&e_.lost, &e_.truncated}) {
      for (const int r : *gone) {
        accept(t_, {"exited", "missing"}, {r});
      }
    }
    if (torch_ && e_.stale >= 0 && e_.copied) {
      accept(t_, {"missing"}, {e_.stale});  // nothing shows the age of the stale dump
    }
  }

  const Case& c_;
  const WideFault& fault_;
  const Evidence& e_;
  const bool torch_;
  Witness w_;
  Truth t_;
  std::vector<std::string> kinds_;
  std::set<std::string> lacking_;
  std::vector<int> guilty_;  // planted
  std::vector<int> all_;     // of the answer
  std::vector<int> unsure_;  // no rank waits for them yet
  std::vector<int> open_;    // not shown by the evidence
  bool nobody_ = false, lost_own_ = false;
};

}  // namespace

Truth wide_truth(const Case& c, const WideFault& fault, bool torch) {
  return TruthOf(c, fault, torch).run();
}

Truth running_truth(const Case& c, const WideFault& fault) {
  Truth t;
  if (c.cls == "late") {
    t.answer = {"slow", {fault.guilts[0].rank}};
    t.also.push_back({"ok", {}});
    return t;
  }
  t.answer = {"ok", {}};
  for (const Guilt& g : fault.guilts) {
    t.also.push_back({"slow", {g.rank}});
  }
  return t;
}

}  // namespace hangsim
