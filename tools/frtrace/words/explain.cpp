// The report of a judgement.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "model/contains.hpp"
#include "model/hints.hpp"
#include "words/diagnose.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

Waiting waiting_in(const Group* g, const std::string& op) {
  Waiting w;
  w.op = op;
  if (g != nullptr) {
    w.group = g->name;
    w.desc = g->desc;
    w.title = g->title();
  }
  return w;
}

// Who waits where, by operation and call site: members may have met with different ones.
void add_waiting(const Facts& f, const Pending& p, const std::set<int>& but, Report& r) {
  const Names names(f);
  std::map<std::pair<std::string, std::string>, std::pair<Waiting, std::vector<int>>> by_site;
  const std::string usual = names.op(p);
  for (const Wait& w : p.waits) {
    if (but.contains(w.evidence)) {
      continue;
    }
    const RankEvidence& e = f.ev(w.evidence);
    const Record* record = w.record != kNoRecord ? &e.records[w.record] : nullptr;
    const std::string op = record != nullptr ? std::string(e.text(record->op)) : usual;
    const Site site = record != nullptr ? user_site(e, record->stack) : Site{};
    auto& [out, who] = by_site[{op, site_text(site)}];
    if (who.empty()) {
      out = waiting_in(&f.group(p.group), op);
      out.seq = p.seq;
      out.site = site;
      out.stack = record != nullptr ? names.stack(w.evidence, record->stack) : out.stack;
    }
    who.push_back(w.evidence);
    out.seconds = std::max(out.seconds, seconds_between(w.since, w.until));
  }
  for (auto& [text, entry] : by_site) {
    entry.first.ranks = f.ranks(entry.second);
    r.waiting.push_back(std::move(entry.first));
  }
}

void add_lifecycle_waiting(const Facts& f, const std::set<int>& but, Report& r) {
  for (int i = 0; i < static_cast<int>(f.c.ranks.size()); ++i) {
    const Record* call = f.lifecycle_in_flight(i);
    if (call == nullptr || but.contains(i) || f.exit(i).ended()) {
      continue;
    }
    Waiting w = waiting_in(f.group_of(i, *call), std::string(f.ev(i).text(call->op)));
    w.ranks = {f.rank(i)};
    w.site = user_site(f.ev(i), call->stack);
    w.seconds = seconds_between(call->time, f.ev(i).written);
    w.stack = Names(f).stack(i, call->stack);
    if (!r.waiting.empty() && r.waiting.back().site == w.site && r.waiting.back().op == w.op) {
      r.waiting.back().ranks.push_back(f.rank(i));
      r.waiting.back().seconds = std::max(r.waiting.back().seconds, w.seconds);
    } else {
      r.waiting.push_back(std::move(w));
    }
  }
}

// " in load_batch() at train.py:57, asleep in flock; waits for the lock of data.lock, ...". Without what differs from rank to rank: addresses, sockets.
std::string place_of(const Facts& f, int i) {
  const RankEvidence& e = f.ev(i);
  const ThreadStack* t = told_thread(e);
  std::string where = t == nullptr ? "" : where_text(e.threads, *t, e.id.cwd);
  where.erase(std::min(where.size(), where.find(", within ")));  // the system call says as much
  if (where.empty()) {
    return {};
  }
  std::string out = " in " + where;
  if (t->activity != "interrupted" && !t->activity.empty()) {
    out += fmt::format(", {}{}{}", t->activity, t->syscall.empty() ? "" : " in ", t->syscall);
  }
  const int holder = f.graph.lock_holders[idx(i)];
  for (const Hint& hint : hints_of(e)) {
    out +=
        "; " + (hint.kind == HintKind::kFileLock && holder >= 0 ? file_lock_text(e, f.rank(holder))
                                                                : hint.text);
  }
  return out;
}

// Where those are who wait in no operation and are not blamed.
void add_elsewhere(const Facts& f, Report& r) {
  const Names names(f);
  std::set<int> awaited;
  for (const Pending& p : f.graph.pending) {
    awaited.insert(p.absent.begin(), p.absent.end());
  }
  std::map<std::pair<bool, std::string>, std::vector<int>> at;  // it has a place
  for (int i = 0; i < static_cast<int>(f.c.ranks.size()); ++i) {
    const bool ended = f.exit(i).ended();
    if (f.graph.waits(i) || contains(r.ranks, f.rank(i)) || (ended && !f.exit(i).clean()) ||
        (r.kind != Verdict::kUndecided && !awaited.contains(i))) {
      continue;
    }
    const Record* last = f.last_operation(i);
    const Record* call = f.lifecycle_in_flight(i);
    std::string place = ended ? "" : place_of(f, i);
    if (place.empty() && !ended && call != nullptr) {
      place = " in " + names.record_at(i, *call);
    }
    at[{!place.empty(), !place.empty()    ? place
                        : ended           ? names.exit(f.exit(i))
                        : last == nullptr ? "no operation in the file"
                                          : "last issued " + names.record_at(i, *last)}]
        .push_back(i);
  }
  for (const auto& [what, who] : at) {
    say(r, "elsewhere",
        what.first ? ranks_do(f.ranks(who), "is", "are") + what.second
                   : ranks_do(f.ranks(who), "is", "are") + " in no operation: " + what.second);
  }
}

CauseReport cause_report(const Facts& f, const Cause& c, std::size_t waiting) {
  CauseReport out;
  out.kind = c.verdict;
  out.summary = summary(f, c);
  out.share =
      waiting == 0
          ? 0
          : std::min(1.0, static_cast<double>(c.explains.size()) / static_cast<double>(waiting));
  out.ranks = ranks_of(c.guilty);
  return out;
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

}  // namespace

Report explain(const Facts& f, const Judgement& j) {
  Report r;
  add_inventory(f, r);
  const Cause& main = j.main();
  r.kind = main.verdict;
  r.confidence = j.confidence;
  r.summary = summary(f, main);
  r.time = begin_of(f, main);
  std::size_t waiting = 0;
  for (std::size_t i = 0; i < f.c.ranks.size(); ++i) {
    waiting += f.graph.waits(static_cast<int>(i)) ? 1 : 0;
  }
  std::set<int> blamed;
  for (const Cause& c : j.causes) {
    CauseReport cause = cause_report(f, c, waiting);
    for (const Guilty& g : c.guilty) {
      if (contains(r.ranks, g.rank)) {
        continue;
      }
      r.ranks.push_back(g.rank);
      blamed.insert(g.evidence);
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
  std::sort(r.ranks.begin(), r.ranks.end());
  for (const Cause& c : j.causes) {
    if (&c != &main) {
      say(r, "cause", "also: " + summary(f, c));
    }
    add_cause_findings(f, c, r);
    add_course(f, c, r);
    add_devices(f, c, r);
    LateWords(f).add(c.late, r);
  }
  // One that is stuck itself waits, too, unless its own wait is the fault.
  const bool cycle = main.rule == Rule::kLeftOrder || main.rule == Rule::kOtherOrder ||
                     main.rule == Rule::kCycle || main.rule == Rule::kLockCycle ||
                     main.rule == Rule::kExtra;
  const bool hung = r.kind != Verdict::kOk && r.kind != Verdict::kSlow;
  if (hung) {
    const std::set<int> but = cycle ? std::set<int>{} : blamed;
    if (main.pending >= 0) {
      add_waiting(f, f.graph[main.pending], but, r);
    }
    for (const Pending& p : f.graph.pending) {
      if (main.pending < 0 || &p != &f.graph[main.pending]) {
        add_waiting(f, p, but, r);
      }
    }
    add_elsewhere(f, r);
  }
  if (main.rule == Rule::kGroupOrder || !main.lifecycle.empty()) {
    add_lifecycle_waiting(f, blamed, r);
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
