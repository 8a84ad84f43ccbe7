// The report of a judgement.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "model/contains.hpp"
#include "words/diagnose.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

// Who waits where, by operation and call site.
void add_waiting(const Facts& f, const Pending& p, const std::set<int>& but, Report& r) {
  const Names names(f);
  // by operation and site: members may have met with different ones
  std::map<std::pair<std::string, std::string>, std::pair<Waiting, std::vector<int>>> by_site;
  const std::string usual = names.op(p);
  for (const Wait& w : p.waits) {
    if (but.contains(w.evidence)) {
      continue;
    }
    Site site;
    std::uint32_t stack = 0;
    std::string op = usual;
    if (w.record != kNoRecord) {
      op = f.ev(w.evidence).text(f.ev(w.evidence).records[w.record].op);
      stack = f.ev(w.evidence).records[w.record].stack;
      site = user_site(f.ev(w.evidence), stack);
    }
    auto& [out, who] = by_site[{op, site_text(site)}];
    if (who.empty()) {
      out.op = op;
      out.site = site;
      out.stack = w.record != kNoRecord ? names.stack(w.evidence, stack) : out.stack;
    }
    who.push_back(w.evidence);
    out.seconds = std::max(out.seconds, seconds_between(w.since, w.until));
  }
  for (auto& [text, entry] : by_site) {
    Waiting& w = entry.first;
    const Group& g = f.group(p.group);
    w.ranks = f.ranks(entry.second);
    w.group = g.name;
    w.desc = g.desc;
    w.title = g.title();
    w.seq = p.seq;
    r.waiting.push_back(std::move(w));
  }
}

void add_all_waiting(const Facts& f, int first, const std::set<int>& but, Report& r) {
  if (first >= 0) {
    add_waiting(f, f.graph[first], but, r);
  }
  for (std::size_t k = 0; k < f.graph.pending.size(); ++k) {
    if (static_cast<int>(k) != first) {
      add_waiting(f, f.graph.pending[k], but, r);
    }
  }
}

void add_lifecycle_waiting(const Facts& f, const std::set<int>& but, Report& r) {
  const Names names(f);
  for (int i = 0; i < static_cast<int>(f.c.ranks.size()); ++i) {
    const Record* call = f.lifecycle_in_flight(i);
    if (call == nullptr || but.contains(i) || f.exit(i).ended()) {
      continue;
    }
    Waiting w;
    w.ranks = {f.rank(i)};
    w.op = f.ev(i).text(call->op);
    if (const Group* g = f.group_of(i, *call)) {
      w.group = g->name;
      w.desc = g->desc;
      w.title = g->title();
    }
    w.site = user_site(f.ev(i), call->stack);
    w.seconds = seconds_between(call->time, f.ev(i).written);
    w.stack = names.stack(i, call->stack);
    if (!r.waiting.empty() && r.waiting.back().site == w.site && r.waiting.back().op == w.op) {
      r.waiting.back().ranks.push_back(f.rank(i));
      r.waiting.back().seconds = std::max(r.waiting.back().seconds, w.seconds);
    } else {
      r.waiting.push_back(std::move(w));
    }
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
  for (const Guilty& g : c.guilty) {
    out.ranks.push_back(g.rank);
  }
  std::sort(out.ranks.begin(), out.ranks.end());
  out.ranks.erase(std::unique(out.ranks.begin(), out.ranks.end()), out.ranks.end());
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
      if (!site.file.empty() &&
          std::find(cause.sites.begin(), cause.sites.end(), site) == cause.sites.end()) {
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
    add_all_waiting(f, main.pending, cycle ? std::set<int>{} : blamed, r);
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
