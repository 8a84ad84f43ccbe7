// Sentences about stragglers.
#include <algorithm>
#include <iterator>
#include <tuple>

#include "facts/order/course.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

// The part that takes the time, in JSON and in a sentence; by LateBy.
constexpr struct {
  const char *name, *text;
} kBy[] = {{"unknown", "whether its host or its device is slow is not recorded"},
           {"host", "its host takes longer before them"},
           {"device", "its host issues them in time, its device starts them late"},
           {"node", "as most ranks of its node"}};
static_assert(std::size(kBy) == static_cast<std::size_t>(LateBy::kNode) + 1);

constexpr const char* kPatterns[] = {"always", "growing", "now_and_then"};  // by LatePattern

// A late node makes its rank late at every call site.
const auto& by_of(const Straggler& s, const LateSite& site) {
  return kBy[static_cast<std::size_t>(s.by == LateBy::kNode ? s.by : site.by)];
}

const Straggler& worst_of(const Stragglers& all) {
  return *std::ranges::max_element(all.ranks, {}, &Straggler::lost_s);
}

// "all_reduce of default_pg at train.py:57 step"
std::string late_place(const Facts& f, int evidence, const LateSite& s) {
  const Record& r = f.ev(evidence).records[s.record];
  return fmt::format("{} of {}{}", f.ev(evidence).text(r.op), f.group(s.group).title(),
                     Names(f).at(evidence, r.stack));
}

LateReport late_report(const Facts& f, const Straggler& s, const LateSite& site) {
  const RankEvidence& e = f.ev(s.evidence);
  const Record& last = e.records[site.record];
  const Group& g = f.group(site.group);
  const std::string op(e.text(last.op));
  const Site place = user_site(e, last.stack);
  LateReport l;
  static_cast<LatePlace&>(l) = {g.name,  g.desc,         op,          place, site.late, site.last,
                                site.of, site.typical_s, site.worst_s};
  l.rank = e.id.rank;
  l.host = e.id.host;
  l.since_step = step_number(e, site.first);
  l.since_seq = e.records[site.first].seq;
  l.since_kept = site.since_kept;
  l.pattern = kPatterns[static_cast<std::size_t>(site.pattern)];
  l.cause = by_of(s, site).name;
  l.starts = site.starts;
  l.followers = f.ranks(s.followers);
  for (const Change& c : site.steps) {
    const Record& at = e.records[c.at];
    l.steps.push_back(
        {step_number(e, c.at + 1), at.kind == Kind::kStep ? 0 : at.seq, c.before, c.after});
  }
  return l;
}

// Adds the counts of an equal place, or adds one more place.
void merge(const LatePlace& from, LateReport& to) {
  const auto same = [&](const LatePlace& p) {
    return std::tie(p.group, p.desc, p.op, p.site) ==
           std::tie(from.group, from.desc, from.op, from.site);
  };
  const auto it = std::ranges::find_if(to.also, same);
  if (!same(to) && it == to.also.end()) {
    to.also.push_back(from);
    return;
  }
  LatePlace& p = same(to) ? to : *it;
  p.late += from.late;
  p.last += from.last;
  p.of += from.of;
  p.worst_s = std::max(p.worst_s, from.worst_s);
}

void say_late(const Facts& f, const Straggler& s, Report& r) {
  const LateSite& site = s.worst();
  const RankEvidence& e = f.ev(s.evidence);
  const auto step = step_number(e, site.first);
  say(r, "late", "rank {} is the last to issue {} in {} of {}, by up to {}, {}since {}{}",
      e.id.rank, late_place(f, s.evidence, site), site.last, site.of, duration_text(site.worst_s),
      given(site.pattern == LatePattern::kGrowing, "more and more, "),
      step ? fmt::format("step {}", *step) : fmt::format("#{}", e.records[site.first].seq),
      given(site.since_kept, " or earlier"));
  if (!s.followers.empty()) {
    say(r, "late", "{} late after rank {} each time, because of it",
        ranks_do(f.ranks(s.followers), "is", "are"), e.id.rank);
  }
}

void say_changes(const Facts& f, const Straggler& worst, Report& r) {
  const LateSite& site = worst.worst();
  const RankEvidence& e = f.ev(worst.evidence);
  for (const Change& c : site.steps) {
    const Record& at = e.records[c.at];
    const auto step = step_number(e, c.at + 1);
    say(r, "late", "the time of a step changed from {} to {} at {}, on rank {}",
        duration_text(c.before), duration_text(c.after),
        step ? fmt::format("step {}", *step) : fmt::format("{} #{}", e.text(at.op), at.seq),
        e.id.rank);
  }
}

}  // namespace

std::string slower_text(const SlowerSteps& s) {
  const std::string since = s.step ? fmt::format(" since step {}", *s.step) : " now";
  return fmt::format("steps take {}{} ({} before), on all ranks at once", duration_text(s.after_s),
                     since, duration_text(s.before_s));
}

std::string late_in_turn_text(const Facts& f, const LateInTurn& t) {
  const Record& r = f.ev(t.evidence).records[t.record];
  return fmt::format(
      "ranks are late in turn: {} of {} {}{} waited {} for one rank, {:.0f} % of the time",
      t.pauses, t.slots, f.ev(t.evidence).text(r.op), Names(f).at(t.evidence, r.stack),
      duration_text(t.typical_s), 100 * t.share);
}

void say_in_turn(const Facts& f, const LateInTurn& t, Report& r) {
  constexpr std::size_t kShown = 8;
  std::string each;
  for (std::size_t k = 0; k < t.members.size() && k < kShown; ++k) {
    each += fmt::format("{}rank {} in {}", k == 0 ? "" : ", ", f.rank(t.members[k].evidence),
                        t.members[k].pauses);
  }
  say(r, "late", "of these {}, the late rank was {}{}", t.pauses, each,
      given(t.members.size() > kShown, fmt::format(", and {} more", t.members.size() - kShown)));
  say(r, "hint",
      "frtrace stacks of a rank that is late shows what it does; usual reasons: garbage collection "
      "(gc.freeze(), gc.disable()), checkpoints in turn, other jobs on the node");
}

std::string late_summary(const Facts& f, const Stragglers& all) {
  const Straggler& worst = worst_of(all);
  const LateSite& site = worst.worst();
  const std::vector<Rank> who = f.ranks(each(all.ranks, &Straggler::evidence));
  return fmt::format("{}{} {} late {}: {}, by {} in {} of {}; the others wait for {}",
                     ranks_words(who), given(!all.node.empty(), ", on node " + all.node + ","),
                     one_or(who.size(), "is", "are"),
                     site.pattern == LatePattern::kNowAndThen ? "now and then" : "repeatedly",
                     late_place(f, worst.evidence, site), duration_text(site.typical_s), site.late,
                     site.of, one_or(who.size(), "it", "them"));
}

std::string late_line(const Facts& f, const Straggler& s) {
  const LateSite& site = s.worst();
  return fmt::format(
      "is late in {} of {} {}, by {} each; {}; this costs {:.0f} % of the {} recorded", site.late,
      site.of, late_place(f, s.evidence, site), duration_text(site.typical_s), by_of(s, site).text,
      std::min(100.0, 100 * s.lost_s / s.span_s), duration_text(s.span_s));
}

// Adds one entry for each rank and cause, the rank that loses most time first.
void add_late(const Facts& f, const Stragglers& all, Report& r) {
  auto order = each(all.ranks, [](const Straggler& s) { return &s; });
  std::ranges::stable_sort(order, std::greater(), &Straggler::lost_s);
  for (const Straggler* s : order) {
    std::vector<LateReport> causes;
    for (const LateSite& site : s->sites) {
      LateReport one = late_report(f, *s, site);
      const auto it = std::ranges::find(causes, one.cause, &LateReport::cause);
      if (it != causes.end()) {
        merge(one, *it);
      } else {
        causes.push_back(std::move(one));
      }
    }
    std::ranges::move(causes, std::back_inserter(r.late));
    if (r.kind == Verdict::kSlow && !s->sites.empty()) {
      say_late(f, *s, r);
    }
  }
  if (r.kind == Verdict::kSlow && !all.ranks.empty()) {
    say_changes(f, worst_of(all), r);
  }
}

}  // namespace frtrace
