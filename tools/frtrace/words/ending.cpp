// How an incident ended: the job went on, or its processes were ended. Told by what the ranks wrote
// after their first dump, which the diagnosis does not look at: it is about the hang.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "model/operation.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

// What the rank waited in failed, and nothing came after it.
bool ended_in_failure(const Facts& f, int i, const RankEvidence& later) {
  const auto last = std::find_if(later.records.rbegin(), later.records.rend(), communicates);
  return last != later.records.rend() && last->state == State::kFailed &&
         std::ranges::any_of(f.graph.waits_in[idx(i)], [&](int k) {
           return std::ranges::any_of(f.graph[k].waits, [&](const Wait& w) {
             return w.evidence == i && w.record != kNoRecord &&
                    f.ev(i).records[w.record].ticket == last->ticket;
           });
         });
}

// When the rank went on after the incident; 0: it did not.
Time went_on(const Facts& f, int i) {
  for (const RankEvidence* e : f.c.later[idx(i)]) {
    if (e->trigger == "went_on" && e->incident >= f.c.incident && !ended_in_failure(f, i, *e)) {
      return e->written;
    }
  }
  return 0;
}

// When the last of those that hung went on; 0: not all of them did.
Time all_went_on(const Facts& f, const Judgement& j) {
  std::set<int> hung;
  if (j.main().rule == Rule::kExited) {
    hung = blamed_by(j.main());  // the process lives with the signal
  } else {
    for (int i = 0; i < static_cast<int>(f.c.ranks.size()); ++i) {
      if (f.graph.waits(i) || f.lifecycle_in_flight(i) != nullptr) {
        hung.insert(i);
      }
    }
  }
  Time last = 0;
  for (const int i : hung) {
    const Time on = i < 0 ? 0 : went_on(f, i);
    if (on == 0) {
      return 0;
    }
    last = std::max(last, on);
  }
  return last;
}

// What an end shows besides how it came.
std::string more_of(const RankEvidence& then, const RankEvidence& later) {
  const auto issued = [](const RankEvidence& e) {
    std::uint64_t n = 0;
    for (const GroupEvidence& g : e.groups) {
      n += g.enqueued + g.p2p_enqueued;
    }
    return n;
  };
  const std::uint64_t now = issued(later), before = issued(then);
  return given(later.oom_kills > 0,
               fmt::format("; the kernel's OOM killer has killed {} of its control group",
                           later.oom_kills)) +
         given(now > before, "; it had issued " + counted(now - before, "more operation"));
}

std::string past_summary(const Facts& f, const Judgement& j, const Report& r) {
  if (j.main().rule == Rule::kExited) {
    return fmt::format("{} met a fatal signal, handled it and went on", ranks_words(r.ranks));
  }
  std::set<Rank> waited;
  for (const Waiting& w : r.waiting) {
    waited.insert(w.ranks.begin(), w.ranks.end());
  }
  const std::string after = duration_text(r.ended->after_s);
  const std::string who = waited.empty() ? "the job" : ranks_words({waited.begin(), waited.end()});
  const std::string in = j.main().pending >= 0
                             ? " in " + Names(f).pending(f.graph[j.main().pending])
                         : !r.waiting.empty() ? " in " + r.waiting.front().op
                                              : "";
  return r.ranks.empty() || waited.empty()
             ? fmt::format("nothing is stuck: {} waited{} and went on after {}", who, in, after)
             : fmt::format("nothing is stuck: {} kept {} waiting{}; all went on after {}",
                           ranks_words(r.ranks), who, in, after);
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
  Events ends;
  std::map<std::string, ExitKind> kinds;
  for (int i = 0; i < static_cast<int>(f.c.ranks.size()); ++i) {
    for (const RankEvidence* e : f.c.later[idx(i)]) {
      const Exit exit = own_exit(*e);
      if (exit.ended() && !f.exit(i).ended()) {
        const std::string text = Names(f).exit(exit) + more_of(f.ev(i), *e);
        ends.add(text, i, exit.time);
        kinds[text] = exit.kind;
        break;
      }
    }
  }
  for (const Event& x : ends.in_order()) {
    const std::vector<Rank> ranks = f.ranks(x.who);
    const double after = r.time != 0 && x.time != 0 ? seconds_between(r.time, x.time) : 0;
    say(r, "ended",
        fmt::format("then {}: {}{}", ranks_words(ranks), x.text,
                    given(after > 0, ", after " + duration_text(after))));
    if (!r.ended) {
      const ExitKind kind = kinds[x.text];
      r.ended =
          Ended{kind == ExitKind::kException || kind == ExitKind::kStatus ? "exited" : "killed",
                x.text, after, ranks};
    }
  }
}

}  // namespace frtrace
