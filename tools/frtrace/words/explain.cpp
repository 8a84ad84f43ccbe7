// Turns a judgement into a report.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "facts/limits.hpp"
#include "model/contains.hpp"
#include "model/hints.hpp"
#include "model/operation.hpp"
#include "words/diagnose.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

Waiting waiting_in(const Group* g, std::string op) {
  Waiting w;
  w.op = std::move(op);
  if (g != nullptr) {
    w.group = g->name;
    w.desc = g->desc;
    w.title = g->title();
  }
  return w;
}

// Pending operations of each rank, by stream on its device. A communicator has one stream, which
// runs its operations one after the other; sends and receives outside of batches have one stream
// for each pair.
class Queues {
 public:
  explicit Queues(const Facts& f) : f_(f) {
    for (const Pending& p : f.graph.pending) {
      for (const Wait& w : p.waits) {
        if (is_ordered(p, w)) {
          streams_[key(p, w)].insert(w.record);
        }
      }
    }
  }
  bool is_behind(const Pending& p, const Wait& w) const {
    return is_ordered(p, w) && !is_head(w, *streams_.at(key(p, w)).begin());
  }
  // Number of operations that the rank has behind this one; 0: this one is itself behind another.
  std::size_t behind(const Pending& p, const Wait& w) const {
    if (!is_ordered(p, w) || *streams_.at(key(p, w)).begin() != w.record) {
      return 0;
    }
    const auto& all = f_.ev(w.evidence).records;
    std::size_t n = 0;
    for (std::size_t k = w.record + 1; k < all.size(); ++k) {
      n += blocks(all[k]) && communicates(all[k]) && all[k].group == all[w.record].group &&
                   peer_of(all[k]) == peer_of(all[w.record]) && !is_head({w.evidence, k}, w.record)
               ? 1
               : 0;
    }
    return n;
  }

 private:
  using Key = std::tuple<int, int, std::int32_t>;
  const Record& record(const Wait& w) const { return f_.ev(w.evidence).records[w.record]; }
  bool is_ordered(const Pending& p, const Wait& w) const {
    return w.record != kNoRecord && !w.failed && !f_.group(p.group).is_gloo();
  }
  static std::int32_t peer_of(const Record& r) { return is_p2p(r) && r.batch == 0 ? r.peer : -1; }
  Key key(const Pending& p, const Wait& w) const {
    return {w.evidence, p.group, peer_of(record(w))};
  }
  // The operation is the head of its stream, one that the rank waits in, or one of the head's
  // batch.
  bool is_head(const Wait& w, std::size_t head) const {
    const std::uint32_t batch = record(w).batch;
    return w.record == head || f_.graph.fronts[idx(w.evidence)].holds(w.record) ||
           (batch != 0 && batch == f_.ev(w.evidence).records[head].batch);
  }

  const Facts& f_;
  std::map<Key, std::set<std::size_t>> streams_;
};

// Adds the waiting ranks by operation and call site, because members may have issued different
// operations. `main`: the first line says that they wait there.
void add_waiting(const Facts& f, const Pending& p, const std::vector<Rank>& but,
                 const Queues& queues, bool main, Report& r) {
  const Names names(f);
  std::map<std::pair<std::string, std::string>, std::pair<Waiting, std::vector<int>>> by_site;
  const std::string usual = names.op(p);
  for (const Wait& w : p.waits) {
    const RankEvidence& e = f.ev(w.evidence);
    if (std::ranges::binary_search(but, e.id.rank)) {
      continue;
    }
    const Record* record = w.record != kNoRecord ? &e.records[w.record] : nullptr;
    const std::string op = record != nullptr ? std::string(e.text(record->op)) : usual;
    const Site site = record != nullptr ? user_site(e, record->stack) : Site{};
    auto& [out, who] = by_site[{op, site_text(site)}];
    if (who.empty()) {
      out = waiting_in(&f.group(p.group), op);
      out.seq = p.seq;
      out.site = site;
      out.stack = record != nullptr ? names.stack(w.evidence, record->stack) : out.stack;
      out.peer = record != nullptr ? names.peer(w.evidence, *record) : "";
    }
    who.push_back(w.evidence);
    if (!e.holes.written_guessed) {
      out.seconds = std::max(out.seconds, seconds_between(w.since, w.until));
    }
    if (!main && queues.is_behind(p, w)) {
      out.queued.push_back(e.id.rank);
    } else {
      out.behind[e.id.rank] += queues.behind(p, w);
    }
  }
  for (auto& [text, entry] : by_site) {
    entry.first.ranks = f.ranks(entry.second);
    r.waiting.push_back(std::move(entry.first));
  }
}

void add_lifecycle_waiting(const Facts& f, Report& r) {
  const auto is_in = [&](int i) {
    return f.lifecycle_in_flight(i) != nullptr && !contains(r.ranks, f.rank(i)) &&
           (!f.exit(i).ended() || f.exit(i).terminated);
  };
  for (const int i : ranks_that(f, is_in)) {
    const Record& call = *f.lifecycle_in_flight(i);
    Waiting w = waiting_in(f.group_of(i, call), std::string(f.ev(i).text(call.op)));
    w.site = user_site(f.ev(i), call.stack);
    w.stack = Names(f).stack(i, call.stack);
    w.seconds = seconds_between(call.time, f.ev(i).written);
    if (r.waiting.empty() || r.waiting.back().site != w.site || r.waiting.back().op != w.op) {
      r.waiting.push_back(w);
    }
    Waiting& out = r.waiting.back();
    out.ranks.push_back(f.rank(i));
    out.seconds = std::max(out.seconds, w.seconds);
  }
}

// The rank's place, " in load_batch() at train.py:57, asleep in flock", and its hints, "waits for
// the lock of data.lock, ...". Leaves out details that differ from rank to rank: addresses,
// sockets.
std::pair<std::string, std::string> place_of(const Facts& f, int i) {
  const RankEvidence& e = f.ev(i);
  const ThreadStack* t = told_thread(e);
  std::string where = t == nullptr ? "" : where_text(e.threads, *t, e.id.cwd);
  where.erase(std::min(where.size(), where.find(", within ")));  // the system call says as much
  if (where.empty()) {
    return {};
  }
  std::string out = " in " + where, does;
  if (t->activity != fr::Activity::kInterrupted && t->activity != fr::Activity::kUnknown) {
    // Samples find a loop of short sleeps asleep or polling: both are the same place.
    const bool naps = t->activity == fr::Activity::kPolling && t->syscall.ends_with("nanosleep");
    out +=
        led(", ", fr::word(naps ? fr::Activity::kAsleep : t->activity)) + led(" in ", t->syscall);
  }
  const int holder = f.graph.lock_holders[idx(i)];
  for (const Hint& hint : hints_of(e)) {
    const bool is_held = hint.kind == HintKind::kFileLock && holder >= 0;
    does += given(!does.empty(), "; ") + (is_held ? file_lock_text(e, f.rank(holder)) : hint.text);
  }
  return {out, does};
}

// Adds the places of ranks that wait in no operation and are not blamed.
void add_elsewhere(const Facts& f, const Cause& main, Report& r) {
  const bool only_idle = main.rule == Rule::kOpenIdle;  // their places are all there is to report
  const Names names(f);
  std::set<int> awaited;
  for (const Pending& p : f.graph.pending) {
    awaited.insert(p.absent.begin(), p.absent.end());
  }
  using Place = std::pair<std::string, std::string>;
  std::map<std::pair<bool, Place>, std::vector<int>> at;  // [(place is known, place)] -> evidence
  const auto is_elsewhere = [&](int i) {
    return !f.graph.waits(i) && !contains(r.ranks, f.rank(i)) &&
           (!f.exit(i).ended() || f.exit(i).clean() || only_idle) &&
           (r.kind == Verdict::kUndecided || awaited.contains(i));
  };
  for (const int i : ranks_that(f, is_elsewhere)) {
    const Record *last = f.last_operation(i), *call = f.lifecycle_in_flight(i);
    const bool ended = f.exit(i).ended() && !only_idle;
    Place place = ended ? Place() : place_of(f, i);
    if (place.first.empty() && !ended && call != nullptr) {
      place.first = " in " + names.record_at(i, *call);
    }
    const bool known = !place.first.empty();
    if (!known) {
      place.first =
          " in no operation: " + (ended             ? names.exit(f.exit(i))
                                  : last == nullptr ? "no operation in the file"
                                                    : "last issued " + names.record_at(i, *last));
    }
    at[{known, place}].push_back(i);
  }
  for (const auto& [what, who] : at) {
    const auto& [place, does] = what.second;
    const bool past = only_idle && f.exit(who.front()).ended();
    say(r, "elsewhere",
        ranks_do(f.ranks(who), past ? "was" : "is", past ? "were" : "are") + place +
            led(one_or(who.size(), "; ", "; each "), does));
  }
}

Time begin_of(const Facts& f, const Cause& c) {
  Time begin = c.pending >= 0 ? f.graph[c.pending].since : 0;
  for (const Guilty& g : c.guilty) {
    const Time t = g.evidence >= 0 && c.verdict == Verdict::kExited ? f.exit(g.evidence).time : 0;
    begin = t != 0 ? t : begin;
  }
  for (const RankEvidence* e : f.c.ranks) {
    begin = begin == 0 ? e->written : begin;
  }
  return begin;
}

// Adds a cause and its blamed ranks, each rank once.
void add_cause(const Facts& f, const Cause& c, const std::vector<Rank>& all_blamed, Report& r) {
  const auto waiting =
      std::ranges::count_if(f.graph.waits_in, [](auto& in) { return !in.empty(); });
  const double share =
      waiting == 0 ? 0 : static_cast<double>(c.explains.size()) / static_cast<double>(waiting);
  CauseReport cause{
      c.verdict, ranks_of(c.guilty), {}, std::min(1.0, share), summary(f, c, all_blamed)};
  for (const Guilty& g : c.guilty) {
    if (contains(r.ranks, g.rank)) {
      continue;
    }
    r.ranks.push_back(g.rank);
    r.blamed.push_back(describe(f, c, g));
    const Site& site = r.blamed.back().site;
    if (!site.file.empty() && !contains(cause.sites, site)) {
      cause.sites.push_back(site);
    }
  }
  if (c.verdict != Verdict::kOk) {
    r.causes.push_back(std::move(cause));
  }
}

// ---- the operation that is first in a rank's usual order, of several that lack the rank

// The step that the rank usually issues there; nullopt: too few steps before it are equal.
std::optional<std::size_t> usual_place(const std::vector<Step>& steps, std::size_t at) {
  const auto next = usual_next(steps, at);
  for (std::size_t back = 1; next && back <= limits::kContextLeast; ++back) {
    if (*next < back || steps[*next - back].key != steps[at - back].key) {
      return std::nullopt;
    }
  }
  return next;
}

// The operation of that step is like the rank's part in the pending operation.
bool is_part_in(const Facts& f, int i, const Step& step, const Pending& p) {
  const Record& r = f.ev(i).records[step.record];
  if (p.group != step.group || p.kind == Kind::kCollective || r.kind == Kind::kCollective) {
    return p.group == step.group && p.kind == r.kind;
  }
  const bool sends = p.from == f.rank(i);
  return (r.kind == Kind::kSend) == sends && r.peer >= 0 &&
         f.group(p.group).ranks[idx(r.peer)] == (sends ? p.to : p.from);
}

// The rank issued that operation before. A new operation has no place in its usual order.
bool knows(const Facts& f, int i, int pending) {
  return pending >= 0 && std::ranges::any_of(f.history.of(i), [&](const Step& step) {
           return is_part_in(f, i, step, f.graph[pending]);
         });
}

// The first due operation among those that lack this rank, which waits for nothing; -1: its records
// do not show it.
int first_awaited(const Facts& f, int i) {
  const std::vector<Step>& steps = f.history.of(i);
  if (f.graph.waits(i) || steps_of_program(f.ev(i), steps, steps.size()).size() != steps.size()) {
    return -1;
  }
  for (std::size_t k = usual_place(steps, steps.size()).value_or(steps.size()); k < steps.size();
       ++k) {
    int first = -1;
    for (const int p : f.graph.those([&](const Pending& x) {
           return contains(x.absent, i) && is_part_in(f, i, steps[k], x);
         })) {
      first = first < 0 || f.graph[p].seq < f.graph[first].seq ? p : first;
    }
    if (first >= 0) {
      return first;
    }
  }
  return -1;
}

// Names that operation instead of the operation in which most ranks wait.
void name_first(const Facts& f, Cause& c) {
  if (c.rule != Rule::kNeverIssued && c.rule != Rule::kLeft) {
    return;
  }
  std::set<int> first;
  for (const Guilty& g : c.guilty) {
    const bool known = g.evidence >= 0 && knows(f, g.evidence, c.pending);
    first.insert(known ? first_awaited(f, g.evidence) : -1);
  }
  if (first.size() == 1 && *first.begin() >= 0) {
    c.pending = *first.begin();
    for (Guilty& g : c.guilty) {
      g.pending = c.pending;
    }
  }
}

}  // namespace

Report explain(const Facts& f, const Judgement& judged) {
  Report r;
  add_inventory(f, r);
  Judgement j = judged;
  r.time = begin_of(f, j.main());
  for (Cause& c : j.causes) {
    name_first(f, c);
  }
  const Cause& main = j.main();
  r.kind = main.verdict;
  r.confidence = j.confidence;
  std::vector<Rank> blamed;
  for (const Cause& c : j.causes) {
    std::ranges::copy(ranks_of(c.guilty), std::back_inserter(blamed));
  }
  r.summary = summary(f, main, blamed);
  for (const Cause& c : j.causes) {
    add_cause(f, c, blamed, r);
  }
  std::ranges::sort(r.ranks);
  for (const Cause& c : j.causes) {
    if (&c != &main) {
      say(r, "cause", "also: " + summary(f, c, blamed));
    }
    add_cause_findings(f, c, r);
    add_course(f, c, r);
    add_devices(f, c, r);
    add_late(f, c.late, r);
  }
  // Blamed ranks that are stuck themselves are listed as waiting, too.
  const bool waits_too = main.rule == Rule::kLeftOrder || main.rule == Rule::kOtherOrder ||
                         main.rule == Rule::kCycle || main.rule == Rule::kLockCycle ||
                         main.rule == Rule::kExtra ||
                         std::ranges::count(main.guilty, Why::kSkipped, &Guilty::why) != 0;
  if (r.kind != Verdict::kOk && r.kind != Verdict::kSlow) {
    const std::vector<Rank> but = waits_too ? std::vector<Rank>{} : r.ranks;
    const Queues queues(f);
    if (main.pending >= 0) {
      add_waiting(f, f.graph[main.pending], but, queues, true, r);
    }
    for (const Pending& p : f.graph.pending) {
      if (main.pending < 0 || &p != &f.graph[main.pending]) {
        add_waiting(f, p, but, queues, false, r);
      }
    }
    add_elsewhere(f, main, r);
  }
  if (main.rule == Rule::kGroupOrder || !main.lifecycle.empty() ||
      (main.rule == Rule::kExited && f.graph.pending.empty())) {
    add_lifecycle_waiting(f, r);
  }
  add_told(f, r);
  add_consequences(f, j, r);
  add_losses(f, j, r);
  add_ending(f, j, r);
  add_reduced(f, r);
  return r;
}

Report diagnose(const Facts& f) {
  return explain(f, judge(f));
}

Report diagnose(const Case& c) {
  return diagnose(Facts(c));
}

}  // namespace frtrace
