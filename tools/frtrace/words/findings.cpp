// What a verdict says besides its first line.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "facts/limits.hpp"
#include "input/ras.hpp"
#include "model/contains.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

// Without the place in its library's source, the port, which is another on each rank, and what
// follows the first sentence: "RuntimeError: Connection closed by peer [127.0.0.1]".
std::string short_error(std::string_view error) {
  std::string out(error.substr(0, error.find('\n')));
  const std::size_t open = out.find('[');
  const std::size_t close = open != std::string::npos ? out.find("] ", open) : open;
  if (close != std::string::npos && out[close - 1] >= '0' && out[close - 1] <= '9' &&
      out.substr(open, close - open).find(".cc:") != std::string::npos) {
    out.erase(open, close + 2 - open);
  }
  for (std::size_t at = out.find("]:"); at != std::string::npos; at = out.find("]:", at + 1)) {
    const std::size_t end = out.find_first_not_of("0123456789", at + 2);
    out.erase(at + 1, (end == std::string::npos ? out.size() : end) - at - 1);
  }
  out = out.substr(0, out.find(". "));
  constexpr std::size_t kShown = 160;
  return out.size() > kShown ? out.substr(0, kShown) + "..." : out;
}

std::string branch_text(const Branch& x) {
  if (x.op.empty()) {
    return "nothing";
  }
  const std::string site = site_text(x.site);
  return fmt::format("{}{}{} ({})", x.op, site.empty() ? "" : " at ", site,
                     x.count == 1 ? "once" : fmt::format("{} times", x.count));
}

// Of a message that waits the other end.
std::string not_issued(const Names& names, const Pending& p, Rank who) {
  const std::string op = names.pending(p);
  return p.kind == Kind::kCollective ? op
         : p.from == who             ? "the send for " + op
                                     : "the recv for " + op;
}

// Why the others are not to blame: each waits, and for whom.
void add_excluded(const Facts& f, Report& r) {
  const Names names(f);
  std::set<int> seen;
  std::map<std::pair<int, int>, std::vector<int>> chains;  // did not come to, waits in -> who
  for (std::size_t k = 0; k < f.graph.pending.size(); ++k) {
    for (const int a : f.graph.pending[k].absent) {
      if (!contains(r.ranks, f.rank(a)) && f.graph.waits(a) && seen.insert(a).second) {
        chains[{static_cast<int>(k), f.graph.waits_in[idx(a)].front()}].push_back(a);
      }
    }
  }
  constexpr std::size_t kShown = 4;
  std::size_t shown = 0;
  for (const auto& [ops, who] : chains) {
    if (shown++ == kShown) {
      say(r, "excluded", fmt::format("and {} more likewise", chains.size() - kShown));
      return;
    }
    say(r, "excluded",
        fmt::format("{} never issued {} because {} in {}", ranks_words(f.ranks(who)),
                    not_issued(names, f.graph[ops.first], f.rank(who.front())),
                    who.size() == 1 ? "it waits" : "they wait",
                    names.pending(f.graph[ops.second])));
  }
}

// Those who ended after the first, in that order; the same end of neighbours in one line.
void add_followers(const Facts& f, const Cause& c, Report& r) {
  const Names names(f);
  std::vector<int> blamed = {}, followers;
  Time first = 0;
  for (const Guilty& g : c.guilty) {
    if (g.evidence >= 0) {
      blamed.push_back(g.evidence);
      const Time t = f.exit(g.evidence).time;
      first = first == 0 || (t != 0 && t < first) ? t : first;
    }
  }
  for (const int i : f.primary) {
    if (!contains(blamed, i)) {
      followers.push_back(i);
    }
  }
  std::stable_sort(followers.begin(), followers.end(), [&](int a, int b) {
    const Time ta = f.exit(a).time, tb = f.exit(b).time;
    return ta != tb && ta != 0 && (tb == 0 || ta < tb);
  });
  constexpr std::size_t kLines = 8;
  std::size_t lines = 0;
  for (std::size_t k = 0; k < followers.size();) {
    const Exit& e = f.exit(followers[k]);
    std::vector<int> who;
    for (; k < followers.size() && f.exit(followers[k]).same_as(e); ++k) {
      who.push_back(followers[k]);
    }
    if (++lines > kLines) {
      say(r, "excluded",
          fmt::format("{} more ranks ended after them", followers.size() - k + who.size()));
      return;
    }
    std::string when = "later or while it waited";
    if (first != 0 && e.time > first) {
      when = duration_text(seconds_between(first, e.time)) + " later";
    }
    say(r, "excluded",
        fmt::format("{} {} too, {}", ranks_words(f.ranks(who)), names.exit_verb(e, who.size()),
                    when));
  }
}

// What those issued who are right, in a slot whose members differ.
void add_expected(const Facts& f, const Cause& c, const std::vector<Rank>& guilty, Report& r) {
  const Names names(f);
  if (c.right < 0) {
    return;
  }
  const Divergence& d = *c.divergence;
  const Group& g = f.group(d.group);
  std::vector<Rank> others;
  for (const int m : d.classes[idx(c.right)]) {
    others.push_back(g.ranks[idx(m)]);
  }
  const int m = d.classes[idx(c.right)].front(), i = g.evidence[idx(m)];
  const Record& due = *f.slots[idx(d.group)].at(f.c, g, idx(m), d.seq);
  const Guilty& first = c.guilty.front();
  const Record& own = f.ev(first.evidence).records[first.issued];
  const std::string text = fmt::format("{} issued {}{}", ranks_words(others),
                                       operation_text(f.ev(i), due), names.at(i, due.stack));
  say(r, "why",
      c.rule == Rule::kSkippedSlot
          ? fmt::format("as #{} {}: one operation was left out, all later ones are shifted", d.seq,
                        text)
          : text + fmt::format(" as #{}", d.seq));
  // `if rank == 0: dist.barrier()` and its like
  const std::string_view due_op = f.ev(i).text(due.op);
  const bool few = f.ev(first.evidence).text(own.op) == "barrier";
  if (c.rule == Rule::kMismatch && few && due_op != "barrier") {
    say(r, "hint",
        fmt::format("{} called barrier, {} did not: {} ahead of them, or {} it under a condition",
                    ranks_words(guilty), ranks_words(others),
                    guilty.size() == 1 ? "it is" : "they are",
                    guilty.size() == 1 ? "calls" : "call"));
  }
}

void add_why(const Facts& f, const Cause& c, Report& r) {
  const Names names(f);
  std::vector<Rank> guilty;
  for (const Guilty& g : c.guilty) {
    guilty.push_back(g.rank);
  }
  const bool one = guilty.size() == 1;
  switch (c.rule) {
    case Rule::kMismatch:
    case Rule::kSkippedSlot:
      add_expected(f, c, guilty, r);
      return;
    case Rule::kNeverIssued:
      if (one && c.guilty.front().evidence >= 0 && f.graph.waits(c.guilty.front().evidence)) {
        say(r, "why",
            fmt::format("the thread of rank {} that issued its operations of {} has ended",
                        guilty.front(), f.group(f.graph[c.pending].group).title()));
      }
      return;
    case Rule::kPastMismatch:
      say(r, "context",
          "all members completed it nevertheless: their results are wrong, not stuck");
      return;
    case Rule::kGroupOrder:
      say(r, "why",
          "all ranks must call new_group for the same members in the same order, members or not");
      return;
    case Rule::kExtra:
      say(r, "why",
          fmt::format("{} {} in it, and no rank issued it from there before", ranks_words(guilty),
                      one ? "is the only one" : "are the only ones"));
      return;
    case Rule::kLeftOrder:
      say(r, "why",
          fmt::format(
              "the ranks wait for each other in a cycle; only {} departed from the order of {}",
              ranks_words(guilty),
              c.by_peers ? "the other ranks"
              : one      ? "its own earlier iterations"
                         : "their own earlier iterations"));
      return;
    case Rule::kDeviceBehind:
      say(r, "why",
          fmt::format("all members{} issued {}, so no host is late; the device{} of {} {}",
                      f.graph[c.pending].unknown.empty() ? "" : " with evidence",
                      names.pending(f.graph[c.pending]), one ? "" : "s", ranks_words(guilty),
                      one ? "is" : "are"));
      return;
    case Rule::kExited:
      if (c.absent_too >= 0) {
        say(r, "why",
            fmt::format("{} ended in a wait of its own: for rank {}, which waits for nobody",
                        ranks_words(guilty), f.rank(c.absent_too)));
      }
      return;
    case Rule::kOk:
      if (!c.late.ranks.empty()) {
        say(r, "context",
            fmt::format("{} ranks of {} come later than the others to some operations: uneven "
                        "work, not stragglers",
                        c.late.ranks.size(), f.c.ranks.size()));
      }
      return;
    case Rule::kOpenNoEvidence: {
      if (!f.hidden.empty() && f.hidden.front().doubtful) {
        say(r, "input",
            fmt::format("rank {} stopped after its last operation, or that one failed: these files "
                        "show a failure only by what follows it",
                        f.rank(f.hidden.front().evidence)));
      }
      const std::set<Rank> alive = missing_seen(f.c, true);
      for (const Problem& p : f.graph.problems) {
        if (p.kind == Problem::kNoEvidence && alive.contains(p.rank) &&
            !f.c.stacks.contains(p.rank)) {
          say(r, "input",
              fmt::format("other ranks saw the process of {} alive", ranks_words({p.rank})));
        }
      }
      return;
    }
    default:
      return;
  }
}

}  // namespace

void add_cause_findings(const Facts& f, const Cause& c, Report& r) {
  add_why(f, c, r);
  add_open(f, c, r);
  for (const Blamed& b : r.blamed) {
    if (b.divergence && b.rank == c.guilty.front().rank) {
      say(r, "divergence",
          fmt::format("last operation in common: {}; after it rank {} issued {}, rank {} {}",
                      branch_text(b.divergence->common), b.rank, branch_text(b.divergence->own),
                      b.divergence->reference, branch_text(b.divergence->others)));
    }
  }
  if (c.rule == Rule::kExited) {
    add_followers(f, c, r);
  } else if (c.names() && c.verdict != Verdict::kMismatch && c.verdict != Verdict::kTransport &&
             c.verdict != Verdict::kSlow &&
             std::none_of(r.findings.begin(), r.findings.end(),
                          [](const Finding& x) { return x.id == "excluded"; })) {
    add_excluded(f, r);
  }
  if (c.rule == Rule::kDeviceError && c.errors.size() < f.device_errors.size()) {
    std::vector<Rank> who;
    for (const Guilty& g : c.guilty) {
      who.push_back(g.rank);
    }
    say(r, "why", fmt::format("the error of {} came before those of the others", ranks_words(who)));
  }
}

namespace {

// Operations that failed, in which the rank waited: the text of the first one; "" none.
std::vector<std::string> failed_waits(const Facts& f) {
  std::vector<std::string> out(f.c.ranks.size());
  for (const Pending& p : f.graph.pending) {
    for (const Wait& w : p.waits) {
      const RankEvidence& e = f.ev(w.evidence);
      if (w.failed && w.record != kNoRecord && out[idx(w.evidence)].empty()) {
        out[idx(w.evidence)] = e.text(e.records[w.record].error);
      }
    }
  }
  return out;
}

struct Follow {
  std::vector<int> who;
  Time time = 0;  // 0 unknown
};

void add_follow(std::map<std::string, Follow>& to, const std::string& text, int who, Time time) {
  Follow& f = to[text];
  f.who.push_back(who);
  f.time = f.time == 0 || (time != 0 && time < f.time) ? time : f.time;
}

void add_device_errors(const Facts& f, Report& r) {
  const Names names(f);
  constexpr std::size_t kShown = 8;
  std::size_t shown = 0, left = 0;
  for (const DeviceError& x : f.device_errors) {
    const bool blamed = contains(r.ranks, f.rank(x.evidence));
    if (blamed && r.kind == Verdict::kDevice) {
      continue;  // it is part of what is said of that rank
    }
    if (shown == kShown) {
      ++left;
      continue;
    }
    ++shown;
    const RankEvidence& e = f.ev(x.evidence);
    std::string line = fmt::format("rank {}: {}", e.id.rank, x.text);
    if (x.record != kNoRecord) {
      line += " in " + names.record(x.evidence, x.record);
    }
    if (x.time != 0 && e.written > x.time) {
      line +=
          fmt::format(", {} before its dump", duration_text(seconds_between(x.time, e.written)));
    }
    say(r, "error", std::move(line));
  }
  if (left > 0) {
    say(r, "error", fmt::format("and errors of {} more ranks", left));
  }
}

}  // namespace

// What became of the others, in the order in which it began.
void add_consequences(const Facts& f, const Judgement& j, Report& r) {
  add_device_errors(f, r);
  if (r.kind == Verdict::kOk) {
    return;
  }
  for (const RankEvidence* e : f.c.ranks) {
    const DeviceEvidence& d = e->device;
    const double stuck = d.observer_since == 0 ? 0 : seconds_between(d.observer_since, e->written);
    if (!d.observer_call.empty() && stuck >= limits::kStuck_s) {
      say(r, "device",
          fmt::format(
              "rank {}: fr's own thread has been in {} for {}: that CUDA call does not return",
              e->id.rank, d.observer_call, duration_text(stuck)));
    }
  }
  if (f.scene == Scene::kAllKilled) {
    say(r, "end",
        "all processes are gone and left no exit status: killed from outside, after the hang");
  }
  const Names names(f);
  const std::set<Rank> blamed(r.ranks.begin(), r.ranks.end());
  const std::vector<std::string> failed = failed_waits(f);
  const bool told_of_ends = j.causes.front().verdict != Verdict::kExited;  // else as its followers
  std::map<std::string, Follow> after, told;
  Time first = 0;
  for (std::size_t i = 0; i < f.exits.size(); ++i) {
    const int who = static_cast<int>(i);
    const Exit& e = f.exits[i];
    if (blamed.contains(f.rank(who))) {
      first = e.ended() && e.time != 0 && (first == 0 || e.time < first) ? e.time : first;
    } else if (e.terminated) {
      add_follow(told, names.exit(e), who, e.time);
    } else if (e.consequence) {
      add_follow(after, short_error(names.exit(e)), who, e.time);
    } else if (e.primary() && told_of_ends) {
      add_follow(told, names.exit(e), who, e.time);
    } else if (!failed[i].empty()) {
      add_follow(after, short_error(failed[i]), who, 0);
    }
  }
  const auto in_order = [](const std::map<std::string, Follow>& from) {
    std::vector<std::pair<std::string, Follow>> out(from.begin(), from.end());
    std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
      const Time ta = a.second.time, tb = b.second.time;
      return ta != tb && ta != 0 && (tb == 0 || ta < tb);
    });
    return out;
  };
  const auto later = [first](const Follow& x) {
    return first != 0 && x.time > first
               ? fmt::format(", {} later", duration_text(seconds_between(first, x.time)))
               : std::string();
  };
  for (const auto& [text, x] : in_order(after)) {
    say(r, "consequence",
        fmt::format("{} failed after that{}: {}", ranks_words(f.ranks(x.who)), later(x), text));
  }
  for (const auto& [text, x] : in_order(told)) {
    const std::string when = later(x);
    say(r, "consequence",
        fmt::format("{} {}{}", ranks_words(f.ranks(x.who)),
                    names.exit_verb(f.exit(x.who.front()), x.who.size()),
                    when.empty() ? " after that" : when));
  }
}

}  // namespace frtrace
