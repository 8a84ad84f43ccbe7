// Describes one blamed rank: its place, its last operation, its end; how often blamed ranks passed
// call sites, and where they first departed from the others.
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "facts/order/course.hpp"
#include "model/contains.hpp"
#include "model/crumbs.hpp"
#include "model/hints.hpp"
#include "model/operation.hpp"
#include "model/threads.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

class Describe : public Names {
 public:
  Describe(const Facts& facts, const Cause& c, const Guilty& g) : Names(facts), c_(c), g_(g) {}

  Blamed run() {
    b_.rank = g_.rank;
    b_.why = why_name(g_.why);
    slot();
    if (g_.evidence < 0) {
      without_evidence();
      return std::move(b_);
    }
    e_ = &f.ev(g_.evidence);
    where();
    last_issued();
    ended();
    died();
    std::ranges::copy(crumb_lines(f.c, *e_), std::back_inserter(b_.evidence));
    wrong_operation();
    by_rule();
    if (is_there_) {
      std::ranges::copy(variable_lines(*e_), std::back_inserter(b_.evidence));
    }
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
  const Pending& pending_of() const { return f.graph[g_.pending >= 0 ? g_.pending : c_.pending]; }

  void without_evidence() {
    const Exit x = exit_of(f, g_);
    const bool told = c_.rule == Rule::kSeenEnded && c_.guilty.size() == 1;  // in the first line
    line(told                    ? "left no file"
         : !x.last_place.empty() ? exit_did(x, 1) + ", according to other ranks of its node"
         : g_.why == Why::kNeverStarted
             ? "left no file, and no rank of its node knows of its process"
             : "left no file, so its place in the code is not known");
    if (g_.why == Why::kNeverStarted) {
      twins();
    }
  }

  // A copied launch command gives two processes the same rank, and leaves another rank without a
  // process.
  void twins() {
    std::map<Rank, std::set<int>> pids;
    for (const RankEvidence* e : f.c.ranks) {
      std::map<Rank, std::set<int>> of_node{{e->id.rank, {e->id.pid}}};
      for (const PeerEvidence& p : e->peers) {
        if (p.state == PeerState::kLive && p.pid > 0) {
          of_node[p.rank].insert(p.pid);
        }
      }
      for (auto& [rank, all] : of_node) {
        if (all.size() > 1) {
          pids[rank].merge(all);
        }
      }
    }
    for (const auto& [rank, all] : pids) {
      line(fmt::format("processes {} all call themselves rank {}", fmt::join(all, ", "), rank));
    }
  }

  // If the process was already exiting, the place where its dump was written explains nothing.
  void where() {
    b_.host = e_->id.host;
    b_.pid = e_->id.pid;
    b_.lock = lock_wait(*e_);
    const Exit& x = f.exit(g_.evidence);
    raised_ = x.kind == ExitKind::kException && e_->exit.kind == ExitBy::kException;
    if (raised_) {
      b_.evidence = raised_lines(*e_, exit(x));
      b_.site = user_site(*e_, e_->exit.stack);
    } else if (x.kind == ExitKind::kStatus) {
      line(exit(x));
      b_.site = e_->exit.type == "SystemExit" ? user_site(*e_, e_->exit.stack) : Site{};
    } else if (script_is_over(e_->threads, e_->id.pid) && g_.why == Why::kLeftEarly) {
      line("is ending: its script is over");
    } else {
      b_.evidence = e_->exit.kind == ExitBy::kCrash ? crash_lines(*e_) : where_lines(*e_);
      b_.site = x.exit_place.empty() ? now_at(*e_) : user_site(*e_, e_->exit.stack);
      is_there_ = true;
      // Names the rank, not the process, that holds the lock.
      if (const int holder = f.graph.lock_holders[idx(g_.evidence)]; holder >= 0) {
        std::replace(b_.evidence.begin(), b_.evidence.end(), file_lock_text(*e_),
                     file_lock_text(*e_, f.rank(holder)));
      }
    }
  }

  void last_issued() {
    const Record* last = f.last_operation(g_.evidence);
    if (last == nullptr) {
      line(!e_->threads_by.empty() && (e_->holes.only_stacks || e_->threads.present)
               ? "left only its stack, by " + e_->threads_by
           : e_->holes.from_log          ? "is at a place that the log does not say"
           : e_->holes.only_active       ? "had no operation in flight"
           : e_->losses.overwritten != 0 ? "has no record left of its last operations"
                                         : "issued no operation at all");
      return;
    }
    b_.last_site = user_site(*e_, last->stack);
    b_.site = b_.site.file.empty() ? b_.last_site : b_.site;
    b_.stack = stack(g_.evidence, raised_ && e_->exit.stack != 0 ? e_->exit.stack : last->stack);
    if ((c_.rule == Rule::kMismatch || c_.rule == Rule::kSkippedSlot ||
         c_.rule == Rule::kDeviceBehind) &&
        g_.issued != kNoRecord && last == &issued()) {
      return;  // the first line about the rank names this operation
    }
    line("last issued " + record_at(g_.evidence, *last) +
         led(", ", before_evidence(*e_, last->time)));
    // Ranks wait for it in vain, wherever it is now.
    const auto destroyed = std::find_if(
        e_->records.begin() + (last - e_->records.data()), e_->records.end(), [&](const Record& r) {
          return r.kind == Kind::kLifecycle && r.ended != 0 &&
                 canonical_op(e_->text(r.op)) == "destroyprocessgroup";
        });
    if (destroyed != e_->records.end() && &*destroyed != last) {
      line("then destroyed its process groups" + at(g_.evidence, destroyed->stack));
    }
  }

  void ended() {
    const Exit& x = f.exit(g_.evidence);
    if (const std::string got = handled_text(x); !got.empty()) {
      line(got);
    }
    if (x.ended()) {
      const std::string text = exit(x);
      if (!raised_ && e_->exit.kind != ExitBy::kCrash && !contains(b_.evidence, text)) {
        line(text);
      }
      if (e_->oom_kills > 0) {
        line(fmt::format("the kernel's OOM killer has killed {} process{} of its control group",
                         e_->oom_kills, one_or(idx(static_cast<int>(e_->oom_kills)), "", "es")));
      }
      return;
    }
    const ThreadStack* t = main_thread(e_->threads, e_->id.pid);
    if (e_->salvage == Salvage::kUnresponsive &&
        (t == nullptr || t->activity != fr::Activity::kStopped)) {
      line("its process exists but does not respond (stopped?)");
    }
    if (const Record* call = f.lifecycle_in_flight(g_.evidence)) {
      line("is in " + op_at(g_.evidence, *call));
    }
  }

  // The rank may be waiting for a thread that is gone: the lines follow the rank's place.
  void died() {
    const std::vector<std::string> lines = died_lines(*e_);
    const std::size_t after =
        raised_ ? b_.evidence.size() : std::min<std::size_t>(1, b_.evidence.size());
    b_.evidence.insert(b_.evidence.begin() + static_cast<std::ptrdiff_t>(after), lines.begin(),
                       lines.end());
  }

  void slot() {
    if (g_.pending >= 0) {
      const Pending& p = f.graph[g_.pending];
      in(f.group(p.group));
      b_.op = op(p);
      b_.seq = p.seq;
    }
    if (!c_.lifecycle.empty()) {
      b_.op = c_.lifecycle;
    }
  }

  // The rank's own operation that is wrong, or in which it is stalled.
  void wrong_operation() {
    if (g_.issued == kNoRecord) {
      return;
    }
    b_.site = user_site(*e_, issued().stack);
    b_.stack = stack(g_.evidence, issued().stack);
    const bool left_out = c_.rule == Rule::kLeftOrder && c_.verdict != Verdict::kMismatch;
    const int of = left_out ? g_.usual_of : g_.evidence;
    const Record& r = left_out ? f.ev(of).records[g_.usual] : issued();
    b_.op = f.ev(of).text(r.op);
    b_.seq = left_out ? g_.seq : r.seq;
    if (c_.rule == Rule::kGroupOrder) {
      b_.op = "new_group";
      b_.group = std::to_string(c_.calls->ordinal);
    } else if (const Group* g = f.group_of(of, r)) {
      in(*g);
    }
  }

  void by_rule() {
    switch (c_.rule) {
      case Rule::kLeftOrder:
        return c_.verdict != Verdict::kMissing  // kMissing: the first line says it
                   ? first(departure(f, c_, g_))
                   : line("and issued " + record_at(g_.evidence, issued()) + " instead");
      case Rule::kMismatch:
      case Rule::kPastMismatch:
      case Rule::kSkippedSlot:
      case Rule::kUnequalEnds:
        return differs();
      case Rule::kGroupOrder:
        return g_.issued == kNoRecord  // the first line says all
                   ? void()
                   : first(fmt::format("called new_group for group {} with {}{}", c_.calls->ordinal,
                                       ranks_words(group_call_ranks(*e_, issued())),
                                       at(g_.evidence, issued().stack)));
      case Rule::kDeviceBehind:
        return behind();
      case Rule::kDeviceStalled:
        return first(device_line(f, *g_.device));
      case Rule::kDeviceError:
        return device_error(*std::ranges::find(c_.errors, g_.evidence, &DeviceError::evidence));
      case Rule::kKilledBefore: {
        const Exit &own = f.exit(g_.evidence), &next = f.exit(c_.others[1]);
        return line(fmt::format("by process {}, {} before the others were ended by {}",
                                own.sender_pid, duration_text(seconds_between(own.time, next.time)),
                                next.sender_pid));
      }
      case Rule::kSlow:
        return first(
            late_line(f, *std::ranges::find(c_.late.ranks, g_.evidence, &Straggler::evidence)));
      case Rule::kLeft:
        return parted();
      case Rule::kNeverIssued:
        parted();
        return usually();
      case Rule::kStoppedHost:
      case Rule::kElsewhere:
        return usually();
      default:
        return;
    }
  }

  void differs() {
    first(fmt::format("issued {}{} as #{}", operation_text(*e_, issued()),
                      at(g_.evidence, issued().stack), issued().seq));
    if (c_.rule == Rule::kSkippedSlot) {  // the operation that it left out
      const Side due = side_of(f, *c_.divergence, c_.right);
      b_.op = f.ev(due.evidence).text(due.record->op);
      b_.seq = c_.divergence->seq;
    }
  }

  void behind() {
    if (g_.issued == kNoRecord) {
      return;
    }
    const Pending& p = f.graph[g_.pending];
    const Record& r = issued();
    b_.op = op(p);
    b_.seq = p.seq;
    if (const auto on_device = f.devices.of(g_.evidence, g_.issued)) {
      first(device_line(f, *on_device));
    }
    const std::string more = at(g_.evidence, r.stack) + led(", ", before_evidence(*e_, r.time));
    if (!more.empty() || b_.evidence.empty()) {  // else the first line says all
      first("issued " + record(g_.evidence, r) + more);
    }
  }

  void device_error(const DeviceError& x) {
    first(x.text +
          led("; in flight was ",
              x.record == kNoRecord ? "" : record_at(x.evidence, e_->records[x.record])) +
          led(", ", before_evidence(*e_, x.time)));
  }

  // The rank's usual next operation, an operation that it left out, and a group that it never
  // created.
  void usually() {
    const int group = pending_of().group;
    const std::vector<Step>& steps = f.history.of(g_.evidence);
    const auto usual = steps.empty() ? std::nullopt : usual_next(steps, steps.size());
    const Record* due = usual ? &e_->records[steps[*usual].record] : nullptr;
    const bool awaited = due != nullptr && steps[*usual].group == group &&
                         canonical_op(e_->text(due->op)) == canonical_op(op(pending_of()));
    if (due != nullptr && (awaited || g_.pending < 0)) {
      const Record& next = *due;
      if (!user_site(*e_, next.stack).file.empty()) {
        line("in earlier iterations next issued " + op_at(g_.evidence, next));
      }
    }
    const Group& g = f.group(group);
    for (std::size_t m = 0; m < g.ranks.size() && g_.why == Why::kSkipped; ++m) {
      const Record* r = f.slots[idx(group)].at(f.c, g, m, g_.seq);
      if (r != nullptr && g.evidence[m] != g_.evidence && c_.rule == Rule::kNeverIssued) {
        line(fmt::format(
            "left out {} as #{}: its later operations have lower numbers than the others'",
            op_at(g.evidence[m], *r), g_.seq));
        break;
      }
    }
    const auto position = g.position.find(g_.rank);
    // A ring without room for all groups, or a file that names only the groups of its records
    // (PyTorch's), may lack a group that the rank has.
    const bool all_listed = e_->format.empty() && !e_->losses.may_have_had_other_groups();
    if (all_listed && position != g.position.end() && g.row[idx(position->second)] < 0) {
      line("never created the group " + g.title());
    }
  }

  // Where a rank that waits for this rank went on.
  void parted() {
    const Pending& p = pending_of();
    const auto other =
        std::ranges::find_if(p.waits, [&](auto& w) { return w.evidence != g_.evidence; });
    if (other != p.waits.end()) {
      b_.divergence = fork_of(f.c, f.history, p.group, g_.evidence, other->evidence);
    }
  }

  const Cause& c_;
  const Guilty& g_;
  const RankEvidence* e_ = nullptr;
  bool raised_ = false;
  bool is_there_ = false;  // the place of its thread is known
  Blamed b_;
};

// The group of the wrong or missing operation; -1: the cause has none.
int group_of(const Facts& f, const Cause& c, const Guilty& g) {
  const int pending = g.pending >= 0 ? g.pending : c.pending;
  return c.divergence ? c.divergence->group : pending >= 0 ? f.graph[pending].group : -1;
}

// Members of the group that are not blamed.
std::vector<int> others_in(const Facts& f, const Cause& c, int group) {
  std::vector<int> out = f.group(group).evidence;
  const std::set<int> blamed = blamed_by(c);
  std::erase_if(out, [&](int i) { return i < 0 || blamed.contains(i) || f.ev(i).records.empty(); });
  return out;
}

// "issued all_reduce of default_pg at train.py:19 8 times, the others 9 times"
std::string count_text(const SiteCount& n, const std::string& group) {
  const std::string own = fmt::format("issued {} of {} at {}", n.op, group, site_text(n.site));
  return (n.own == 0 ? "never " + own : own + ' ' + times(n.own)) + ", the others " +
         (n.least == n.most ? times(n.most) : fmt::format("{} to {} times", n.least, n.most)) +
         given(!n.whole, ", in the records that all have kept");
}

void add_counts(const Facts& f, const Cause& c, Report& r) {
  constexpr std::size_t kShown = 2;
  std::vector<std::pair<std::string, std::vector<Rank>>> said;
  std::map<int, SiteCounts> of_group;
  for (const Guilty& g : c.guilty) {
    const bool counted = g.evidence >= 0 && !f.ev(g.evidence).holes.only_stacks;
    int group = counted ? group_of(f, c, g) : -1;
    group = group >= 0 && f.group(group).at(g.rank) < 0 ? -1 : group;  // it is no member
    if (group >= 0 && !of_group.contains(group)) {
      of_group.try_emplace(group, f.c, group, others_in(f, c, group));
    }
    if (group < 0 || !of_group.at(group).has_others()) {
      continue;
    }
    std::vector<SiteCount> counts = of_group.at(group).of(g.evidence, c.rule == Rule::kMismatch);
    // If some call sites were passed by both sides, those of only one side follow from the counts
    // that differ.
    const auto both = [](const SiteCount& n) { return n.own != 0 && n.most != 0; };
    // If the kept records begin in the middle, a rank may have passed a call site before them.
    const bool some = std::ranges::any_of(counts, both);
    std::erase_if(counts, [&](const SiteCount& n) { return !both(n) && (some || !n.whole); });
    counts.resize(std::min(counts.size(), kShown));
    for (const SiteCount& n : counts) {
      const std::string text = count_text(n, f.group(group).title());
      auto same = std::ranges::find(said, text, &decltype(said)::value_type::first);
      same = same == said.end() ? said.insert(same, {text, {}}) : same;
      same->second.push_back(g.rank);
    }
  }
  for (const auto& [text, who] : said) {
    say(r, "counts", ranks_words(who) + ' ' + text);
  }
}

// The rule itself already reported the rank's earliest deviation.
bool is_known(const Facts& f, const Cause& c, const Guilty& g, const Parting& p) {
  const std::vector<Step>& steps = f.history.of(g.evidence);
  if (c.rule == Rule::kSkippedSlot && p.left_out && !p.wrong_since) {
    const Side due = side_of(f, *c.divergence, c.right);
    return p.site == user_site(f.ev(due.evidence), due.record->stack);
  }
  return p.issued >= steps.size() ||
         (g.issued != kNoRecord && steps[p.issued].record >= g.issued) ||
         (g.why == Why::kSkipped && c.rule == Rule::kNeverIssued);
}

}  // namespace

std::string departure(const Facts& f, const Cause& c, const Guilty& g) {
  const Names names(f);
  const RankEvidence& e = f.ev(g.evidence);
  const Record& issued = e.records[g.issued];
  std::string due = names.due(g);
  if (due == e.text(issued.op) && c.pending >= 0) {  // same: name the waiters' group
    due += " of " + f.group(f.graph[c.pending].group).title();
  }
  return fmt::format("issued {} where {} had {}", names.record_at(g.evidence, issued),
                     c.by_peers                     ? "other ranks"
                     : c.anomaly && c.anomaly->part ? "before it"
                     : c.guilty.size() == 1         ? "its earlier iterations"
                                                    : "earlier iterations",
                     due);
}

Blamed describe(const Facts& f, const Cause& c, const Guilty& g) {
  return Describe(f, c, g).run();
}

void add_course(const Facts& f, const Cause& c, Report& r) {
  if (!c.names() || c.verdict == Verdict::kSlow) {
    return;
  }
  if (c.verdict != Verdict::kDevice) {  // no host is late there
    add_counts(f, c, r);
  }
  constexpr std::size_t kShown = 4;  // more ranks: a pattern, not a slip
  for (const Guilty& g : c.guilty) {
    if (g.evidence < 0 || c.guilty.size() > kShown) {
      continue;
    }
    std::vector<int> peers = f.anomalies.peers(g.evidence, true);
    std::erase_if(peers, [&](int i) { return blamed_by(c).contains(i); });
    const auto p = parting(f, g.evidence, peers);
    if (!p || is_known(f, c, g, *p)) {
      continue;
    }
    say(r, "parted", "rank {} {} {}{}{}{}", g.rank, p->left_out ? "left out" : "added", p->op,
        led(" at ", site_text(p->site)),
        p->step          ? fmt::format(" in step {}", *p->step)
        : p->before != 0 ? ", which it had issued " + times(p->before) + " before"
                         : given(!p->left_out, ", which it had never issued before"),
        p->wrong_since && p->group >= 0
            ? fmt::format("; since then its operations in {} are matched with the wrong ones of "
                          "the other ranks: results are wrong from there",
                          f.group(p->group).title())
            : "");
  }
}

}  // namespace frtrace
