// How an incident ended: the job went on, or its processes were ended. Told by what the ranks wrote
// after their first dump, which the diagnosis does not look at: it is about the hang.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "words/words.hpp"

namespace frtrace {

namespace {

const RankEvidence* went_on(const Facts& f, int i) {
  const auto& later = f.c.later[idx(i)];
  const auto it = std::find_if(later.begin(), later.end(), [&](const RankEvidence* e) {
    return e->trigger == "went_on" && e->incident >= f.c.incident;
  });
  return it == later.end() ? nullptr : *it;
}

// When the last of those that hung went on; 0: not all of them did.
Time all_went_on(const Facts& f, const Judgement& j) {
  Time last = 0;
  bool all = true;
  const auto look = [&](int i) {
    const RankEvidence* on = went_on(f, i);
    all = all && on != nullptr;
    last = std::max(last, on != nullptr ? on->written : 0);
  };
  const bool crashed = j.main().rule == Rule::kExited;
  for (int i = 0; i < static_cast<int>(f.c.ranks.size()) && !crashed; ++i) {
    if (f.graph.waits(i) || f.lifecycle_in_flight(i) != nullptr) {
      look(i);
    }
  }
  for (const Guilty& g : j.main().guilty) {
    if (crashed && g.evidence >= 0) {
      look(g.evidence);  // the process lives with the signal
    } else if (crashed) {
      all = false;
    }
  }
  return all ? last : 0;
}

std::uint64_t issued(const RankEvidence& e) {
  std::uint64_t n = 0;
  for (const GroupEvidence& g : e.groups) {
    n += g.enqueued + g.p2p_enqueued;
  }
  return n;
}

// What an end shows besides how it came.
std::string more_of(const RankEvidence& then, const RankEvidence& later) {
  std::string out;
  if (later.oom_kills > 0) {
    out += fmt::format("; the kernel's OOM killer has killed {} of its control group",
                       later.oom_kills);
  }
  if (const std::uint64_t now = issued(later), before = issued(then); now > before) {
    out += fmt::format("; it had issued {} more operation{}", now - before,
                       now - before == 1 ? "" : "s");
  }
  return out;
}

std::vector<Rank> waiting_ranks(const Report& r) {
  std::vector<Rank> who;
  for (const Waiting& w : r.waiting) {
    who.insert(who.end(), w.ranks.begin(), w.ranks.end());
  }
  std::sort(who.begin(), who.end());
  who.erase(std::unique(who.begin(), who.end()), who.end());
  return who;
}

std::string past_summary(const Facts& f, const Judgement& j, const Report& r) {
  const std::string after = duration_text(r.ended->after_s);
  const std::vector<Rank> who = waiting_ranks(r);
  const std::string in = j.main().pending >= 0
                             ? " in " + Names(f).pending(f.graph[j.main().pending])
                         : !r.waiting.empty() ? " in " + r.waiting.front().op
                                              : "";
  if (j.main().rule == Rule::kExited) {
    return fmt::format("{} met a fatal signal, handled it and went on", ranks_words(r.ranks));
  }
  if (!r.ranks.empty() && !who.empty()) {
    return fmt::format("nothing is stuck: {} kept {} waiting{}; all went on after {}",
                       ranks_words(r.ranks), ranks_words(who), in, after);
  }
  return fmt::format("nothing is stuck: {} waited{} and went on after {}",
                     who.empty() ? "the job" : ranks_words(who), in, after);
}

void take_back(const Facts& f, const Judgement& j, Report& r) {
  const std::string text = past_summary(f, j, r);
  for (const Blamed& b : r.blamed) {
    if (!b.site.file.empty()) {
      say(r, "was_late", fmt::format("rank {} was then at {}", b.rank, site_text(b.site)));
    }
  }
  r.kind = Verdict::kOk;
  r.summary = text;
  r.ranks.clear();
  r.causes.clear();
  r.blamed.clear();
  r.waiting.clear();
  r.devices.clear();
  r.links.clear();
  std::erase_if(r.findings, [](const Finding& x) {
    return x.id != "was_late" && x.id != "lost" && x.id != "input";
  });
}

}  // namespace

void add_ending(const Facts& f, const Judgement& j, Report& r) {
  if (r.kind == Verdict::kOk || r.kind == Verdict::kSlow) {
    return;
  }
  if (const Time on = all_went_on(f, j); on != 0) {
    r.ended = Ended{"went_on", "", seconds_between(r.time, on), {}};
    if (f.c.asked_for) {
      say(r, "ended", "the job went on after " + duration_text(r.ended->after_s));
    } else {
      take_back(f, j, r);
    }
    return;
  }
  // Processes that ended after their dump; the same end of several in one line.
  std::map<std::string, std::pair<std::vector<int>, Exit>> ends;
  for (int i = 0; i < static_cast<int>(f.c.ranks.size()); ++i) {
    for (const RankEvidence* e : f.c.later[idx(i)]) {
      Exit exit = own_exit(*e);
      if (exit.ended() && !f.exit(i).ended()) {
        auto& [who, first] = ends[Names(f).exit(exit) + more_of(f.ev(i), *e)];
        if (who.empty() || (exit.time != 0 && exit.time < first.time)) {
          first = std::move(exit);
        }
        who.push_back(i);
        break;
      }
    }
  }
  std::vector<std::pair<std::string, const std::pair<std::vector<int>, Exit>*>> order;
  for (const auto& [text, end] : ends) {
    order.emplace_back(text, &end);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second->second.time < b.second->second.time;
  });
  for (const auto& [text, end] : order) {
    const auto& [who, exit] = *end;
    const double after = r.time != 0 && exit.time != 0 ? seconds_between(r.time, exit.time) : 0;
    const std::vector<Rank> ranks = f.ranks(who);
    say(r, "ended",
        fmt::format("then {}: {}{}", ranks_words(ranks), text,
                    after > 0 ? ", after " + duration_text(after) : ""));
    if (!r.ended) {
      r.ended = Ended{
          exit.kind == ExitKind::kException || exit.kind == ExitKind::kStatus ? "exited" : "killed",
          text, after, ranks};
    }
  }
}

}  // namespace frtrace
