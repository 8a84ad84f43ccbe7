// One blamed rank: where it is, what it did last, how it ended.
#include <algorithm>
#include <iterator>

#include "model/contains.hpp"
#include "model/crumbs.hpp"
#include "model/hints.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

class Describe : public Names {
 public:
  Describe(const Facts& f, const Cause& c, const Guilty& g) : Names(f), c_(c), g_(g) {}

  Blamed run() {
    b_.rank = g_.rank;
    b_.why = why_name(g_.why);
    slot();
    if (g_.evidence < 0) {
      without_evidence();
      return std::move(b_);
    }
    e_ = &f_.ev(g_.evidence);
    where();
    last_issued();
    ended();
    std::ranges::copy(crumb_lines(f_.c, *e_), std::back_inserter(b_.evidence));
    wrong_operation();
    by_rule();
    return std::move(b_);
  }

 private:
  void in(const Group& g) {
    b_.group = g.name;
    b_.desc = g.desc;
  }
  void line(std::string text) { b_.evidence.push_back(std::move(text)); }
  void first(std::string text) { b_.evidence.insert(b_.evidence.begin(), std::move(text)); }
  const Record& issued() const { return e_->records[g_.issued]; }
  const Pending& pending_of() const { return f_.graph[g_.pending >= 0 ? g_.pending : c_.pending]; }

  void without_evidence() {
    if (const Exit x = exit_of(f_, g_); x.ended()) {
      line(exit(x) + ", as the ranks of its node saw");
      if (x.last_place.empty()) {
        line("left no file, so its place in the code is not known");
      }
      return;
    }
    line(g_.why == Why::kNeverStarted
             ? "left no file, and no rank of its node knows of its process"
             : "left no file, so its place in the code is not known; all waits lead to it");
  }

  // Of a process that was on its way out the place where its dump was written explains nothing.
  void where() {
    b_.host = e_->id.host;
    b_.pid = e_->id.pid;
    b_.lock = lock_wait(*e_);
    const Exit& x = f_.exit(g_.evidence);
    raised_ = x.kind == ExitKind::kException && e_->exit.kind == "exception";
    if (raised_) {
      b_.evidence = raised_lines(*e_, exit(x));
      b_.site = user_site(*e_, e_->exit.stack);
    } else if (x.kind == ExitKind::kStatus) {
      line(exit(x));
    } else {
      b_.evidence = e_->exit.kind == "crash" ? crash_lines(*e_) : where_lines(*e_);
      b_.site = now_at(*e_);
      // The rank in the place of the process that holds what this one waits for.
      if (const int holder = f_.graph.lock_holders[idx(g_.evidence)]; holder >= 0) {
        std::replace(b_.evidence.begin(), b_.evidence.end(), file_lock_text(*e_),
                     file_lock_text(*e_, f_.rank(holder)));
      }
    }
  }

  void last_issued() {
    const Record* last = f_.last_operation(g_.evidence);
    if (last == nullptr) {
      line(e_->holes.only_stacks || e_->threads.present
               ? "left only its stack, by " + e_->threads_by
           : e_->holes.from_log          ? "is at a place that the log does not say"
           : e_->losses.overwritten != 0 ? "has no record left of its last operations"
                                         : "issued no operation at all");
      return;
    }
    b_.last_site = user_site(*e_, last->stack);
    b_.site = b_.site.file.empty() ? b_.last_site : b_.site;
    b_.stack = stack(g_.evidence, raised_ && e_->exit.stack != 0 ? e_->exit.stack : last->stack);
    if ((c_.rule == Rule::kMismatch || c_.rule == Rule::kDeviceBehind) && g_.issued != kNoRecord &&
        last == &issued()) {
      return;  // the first line about it names this operation
    }
    line("last issued " + record_at(g_.evidence, *last) +
         led(", ", before_evidence(*e_, last->time)));
  }

  void ended() {
    const Exit& x = f_.exit(g_.evidence);
    if (x.ended()) {
      const std::string text = exit(x);
      if (!raised_ && e_->exit.kind != "crash" && !contains(b_.evidence, text)) {
        line(text);
      }
      if (e_->oom_kills > 0) {
        line(fmt::format("the kernel's OOM killer has killed {} process{} of its control group",
                         e_->oom_kills, one_or(idx(static_cast<int>(e_->oom_kills)), "", "es")));
      }
      return;
    }
    const ThreadStack* t = main_thread(e_->threads, e_->id.pid);
    if (e_->salvage == Salvage::kUnresponsive && (t == nullptr || t->activity != "stopped")) {
      line("its process exists but does not respond (stopped?)");
    }
    if (const Record* call = f_.lifecycle_in_flight(g_.evidence)) {
      line("is in " + op_at(g_.evidence, *call));
    }
  }

  void slot() {
    if (g_.pending >= 0) {
      const Pending& p = f_.graph[g_.pending];
      in(f_.group(p.group));
      b_.op = op(p);
      b_.seq = p.seq;
    }
    if (!c_.lifecycle.empty()) {
      b_.op = c_.lifecycle;
    }
  }

  // The rank's own operation that is wrong, or that it is stalled in.
  void wrong_operation() {
    if (g_.issued == kNoRecord) {
      return;
    }
    b_.site = user_site(*e_, issued().stack);
    b_.stack = stack(g_.evidence, issued().stack);
    const bool left_out = c_.rule == Rule::kLeftOrder && c_.verdict != Verdict::kMismatch;
    const Record& r = left_out ? e_->records[g_.usual] : issued();
    b_.op = e_->text(r.op);
    b_.seq = left_out ? g_.seq : r.seq;
    if (c_.rule == Rule::kGroupOrder) {
      b_.op = "new_group";
      b_.group = std::to_string(c_.calls->ordinal);
    } else if (const Group* g = f_.group_of(g_.evidence, r)) {
      in(*g);
    }
  }

  void by_rule() {
    switch (c_.rule) {
      case Rule::kLeftOrder:
        return c_.verdict == Verdict::kMissing  // as the first line has it
                   ? line("and issued " + record_at(g_.evidence, issued()) + " instead")
                   : first(departure(f_, c_, g_));
      case Rule::kMismatch:
      case Rule::kPastMismatch:
      case Rule::kSkippedSlot:
      case Rule::kUnequalEnds:
        return differs();
      case Rule::kGroupOrder:
        return g_.issued == kNoRecord  // the first line has all there is
                   ? void()
                   : first(fmt::format("called new_group for group {} with {}{}", c_.calls->ordinal,
                                       ranks_words(group_call_ranks(*e_, issued())),
                                       at(g_.evidence, issued().stack)));
      case Rule::kExtra:
        return line("has waited there for " + duration_text(f_.graph[c_.pending].seconds()));
      case Rule::kDeviceBehind:
        return behind();
      case Rule::kDeviceStalled:
        return first(device_line(f_, *g_.device));
      case Rule::kDeviceError:
        return device_error();
      case Rule::kKilledBefore: {
        const Exit &own = f_.exit(g_.evidence), &next = f_.exit(c_.others[1]);
        return line(fmt::format("by process {}, {} before the others were ended by {}",
                                own.sender_pid, duration_text(seconds_between(own.time, next.time)),
                                next.sender_pid));
      }
      case Rule::kSlow:
        return first(
            late_line(f_, *std::ranges::find(c_.late.ranks, g_.evidence, &Straggler::evidence)));
      case Rule::kNeverIssued:
      case Rule::kLeft:
        parted();
        return usually();
      case Rule::kStoppedHost:
        return usually();
      default:
        return;
    }
  }

  void differs() {
    first(fmt::format("issued {}{} as #{}", operation_text(*e_, issued()),
                      at(g_.evidence, issued().stack), issued().seq));
    if (c_.rule == Rule::kSkippedSlot) {  // the operation that it left out
      const Side due = side_of(f_, *c_.divergence, c_.right);
      b_.op = f_.ev(due.evidence).text(due.record->op);
      b_.seq = c_.divergence->seq;
    }
  }

  void behind() {
    if (g_.issued == kNoRecord) {
      return;
    }
    const Pending& p = f_.graph[g_.pending];
    const Record& r = issued();
    b_.op = op(p);
    b_.seq = p.seq;
    if (const auto on_device = f_.devices.of(g_.evidence, g_.issued)) {
      first(device_line(f_, *on_device));
    }
    first(fmt::format("issued {}{}{}; its device has not {} it", pending(p),
                      at(g_.evidence, r.stack), led(" ", before_evidence(*e_, r.time)),
                      p.starts_seen && r.state != State::kStarted ? "started" : "finished"));
  }

  void device_error() {
    const DeviceError& x = *std::ranges::find(c_.errors, g_.evidence, &DeviceError::evidence);
    const std::string op =
        x.record == kNoRecord ? "" : record_at(x.evidence, e_->records[x.record]);
    first(x.text + led("; in flight was ", op) + led(", ", before_evidence(*e_, x.time)));
  }

  // What the rank usually does next.
  void usually() {
    const int group = pending_of().group;
    const std::vector<Step>& steps = f_.history.of(g_.evidence);
    const auto usual = steps.empty() ? std::nullopt : usual_next(steps, steps.size());
    if (usual && (steps[*usual].group == group || c_.rule == Rule::kStoppedHost)) {
      line("next, by its earlier iterations, would be " +
           op_at(g_.evidence, e_->records[steps[*usual].record]));
    }
    const Group& g = f_.group(group);
    for (std::size_t m = 0; m < g.ranks.size() && g_.why == Why::kSkipped; ++m) {
      const Record* r = f_.slots[idx(group)].at(f_.c, g, m, g_.seq);
      if (r != nullptr && g.evidence[m] != g_.evidence && c_.rule == Rule::kNeverIssued) {
        line(fmt::format(
            "left out {} as early as #{}: its call sites are one ahead of the others' since",
            op_at(g.evidence[m], *r), g_.seq));
        break;
      }
    }
    const auto position = g.position.find(g_.rank);
    // A ring without room for all groups, or a file that names only those of its records, may lack
    // one that the rank has.
    const bool all_listed = !e_->holes.only_stacks && !e_->losses.may_have_had_other_groups() &&
                            (e_->format.empty() || e_->losses.overwritten == 0);
    if (all_listed && position != g.position.end() && g.row[idx(position->second)] < 0) {
      line("never created the group " + g.title());
    }
  }

  // Where a rank that waits for it went on.
  void parted() {
    const Pending& p = pending_of();
    const auto other =
        std::ranges::find_if(p.waits, [&](auto& w) { return w.evidence != g_.evidence; });
    if (other != p.waits.end()) {
      b_.divergence = fork_of(f_.c, f_.history, p.group, g_.evidence, other->evidence);
    }
  }

  const Cause& c_;
  const Guilty& g_;
  const RankEvidence* e_ = nullptr;
  bool raised_ = false;
  Blamed b_;
};

}  // namespace

Blamed describe(const Facts& f, const Cause& c, const Guilty& g) {
  return Describe(f, c, g).run();
}

}  // namespace frtrace
