// Who comes late, in words.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "facts/limits.hpp"
#include "facts/order/course.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

const char* by_name(LateBy by) {
  switch (by) {
    case LateBy::kHost:
      return "host";
    case LateBy::kDevice:
      return "device";
    case LateBy::kNode:
      return "node";
    case LateBy::kUnknown:
      break;
  }
  return "unknown";
}

const char* pattern_name(LatePattern p) {
  return p == LatePattern::kAlways    ? "always"
         : p == LatePattern::kGrowing ? "growing"
                                      : "now_and_then";
}

// Of one rank whose node is late every site is.
LateBy by_of(const Straggler& s, const LateSite& site) {
  return s.by == LateBy::kNode ? LateBy::kNode : site.by;
}

const Straggler& worst_of(const std::vector<Straggler>& all) {
  return *std::max_element(all.begin(), all.end(), [](const Straggler& a, const Straggler& b) {
    return a.lost_s < b.lost_s;
  });
}

}  // namespace

// "all_reduce of default_pg at train.py:57 step"
std::string LateWords::place(int evidence, const LateSite& s) const {
  const Record& r = f_.ev(evidence).records[s.record];
  return fmt::format("{} of {}{}", f_.ev(evidence).text(r.op), f_.group(s.group).title(),
                     at(evidence, r.stack));
}

std::string LateWords::since(int evidence, const LateSite& s) const {
  const RankEvidence& e = f_.ev(evidence);
  const auto step = step_number(e, s.first);
  const std::string when =
      step ? fmt::format("step {}", *step) : fmt::format("#{}", e.records[s.first].seq);
  return s.since_kept ? fmt::format("since {} at least, the first compared", when)
                      : "since " + when;
}

// "by 300 ms in 10 of 10"
std::string LateWords::how(const LateSite& s) const {
  return fmt::format("by {} in {} of {}", duration_text(s.typical_s), s.late, s.of);
}

std::string LateWords::by(const Straggler& s, const LateSite& site) const {
  switch (by_of(s, site)) {
    case LateBy::kHost:
      return "its own host time before them makes the difference";
    case LateBy::kDevice:
      return "issued in time; its device begins them late";
    case LateBy::kNode:
      return "as most ranks of its node";
    case LateBy::kUnknown:
      break;
  }
  return "whether its host or its device makes the difference is not clear";
}

std::string LateWords::summary(const Stragglers& all) const {
  std::vector<int> who;
  for (const Straggler& s : all.ranks) {
    who.push_back(s.evidence);
  }
  const Straggler& worst = worst_of(all.ranks);
  const LateSite& site = worst.worst();
  const bool one = who.size() == 1;
  std::string name = ranks_words(f_.ranks(who));
  name += all.node.empty() ? "" : fmt::format(", on node {},", all.node);
  return fmt::format("{} {} late {}: {}, {}; the others wait for {}", name, one ? "is" : "are",
                     site.pattern == LatePattern::kNowAndThen ? "now and then" : "repeatedly",
                     place(worst.evidence, site), how(site), one ? "it" : "them");
}

std::string LateWords::line(const Straggler& s) const {
  const LateSite& site = s.worst();
  return fmt::format("late in {} of {} {}, by {} each; {}, {:.0f} % of {}", site.late, site.of,
                     place(s.evidence, site), duration_text(site.typical_s), by(s, site),
                     100 * s.lost_s / s.span_s, duration_text(s.span_s));
}

LateReport LateWords::report(const Straggler& s, const LateSite& site) const {
  const RankEvidence& e = f_.ev(s.evidence);
  const Record& last = e.records[site.record];
  const Group& g = f_.group(site.group);
  LateReport l;
  l.rank = e.id.rank;
  l.host = e.id.host;
  l.group = g.name;
  l.desc = g.desc;
  l.op = e.text(last.op);
  l.site = user_site(e, last.stack);
  l.late = site.late;
  l.last = site.last;
  l.of = site.of;
  l.median_s = site.typical_s;
  l.worst_s = site.worst_s;
  l.since_step = step_number(e, site.first);
  l.since_seq = e.records[site.first].seq;
  l.since_kept = site.since_kept;
  l.pattern = pattern_name(site.pattern);
  l.cause = by_name(by_of(s, site));
  l.starts = site.starts;
  l.followers = f_.ranks(s.followers);
  for (const Change& c : site.steps) {
    const Record& at = e.records[c.at];
    l.steps.push_back(
        {step_number(e, c.at + 1), at.kind == Kind::kStep ? 0 : at.seq, c.before, c.after});
  }
  return l;
}

// The same place after another operation, or one more place.
void LateWords::merge(const LateReport& from, LateReport& to) {
  const LateReport::Place place{from.group, from.desc, from.op,       from.site,   from.late,
                                from.last,  from.of,   from.median_s, from.worst_s};
  const auto same = [&](const auto& p) {
    return p.group == place.group && p.desc == place.desc && p.op == place.op &&
           p.site == place.site;
  };
  const auto add = [&](auto& p) {
    p.late += place.late;
    p.last += place.last;
    p.of += place.of;
    p.worst_s = std::max(p.worst_s, place.worst_s);
  };
  const auto it = std::find_if(to.also.begin(), to.also.end(), same);
  if (same(to)) {
    add(to);
  } else if (it != to.also.end()) {
    add(*it);
  } else {
    to.also.push_back(place);
  }
}

// One entry for each rank and cause, who loses most first.
void LateWords::add(const Stragglers& all, Report& r) const {
  std::vector<const Straggler*> order;
  for (const Straggler& s : all.ranks) {
    order.push_back(&s);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Straggler* a, const Straggler* b) { return a->lost_s > b->lost_s; });
  for (const Straggler* s : order) {
    std::vector<LateReport> causes;
    for (const LateSite& site : s->sites) {
      LateReport one = report(*s, site);
      const auto it = std::find_if(causes.begin(), causes.end(),
                                   [&](const LateReport& l) { return l.cause == one.cause; });
      if (it == causes.end()) {
        if (r.kind == Verdict::kSlow && causes.empty()) {
          add_line(*s, site, r);
        }
        causes.push_back(std::move(one));
      } else {
        merge(one, *it);
      }
    }
    std::move(causes.begin(), causes.end(), std::back_inserter(r.late));
  }
  if (r.kind == Verdict::kSlow && !all.ranks.empty()) {
    add_holes(all, r);
  }
}

void LateWords::add_line(const Straggler& s, const LateSite& site, Report& r) const {
  say(r, "late",
      fmt::format("rank {}: {}: last of all in {} of {}, {} late, {} at most, {}{}",
                  f_.rank(s.evidence), place(s.evidence, site), site.last, site.of,
                  duration_text(site.typical_s), duration_text(site.worst_s),
                  site.pattern == LatePattern::kGrowing ? "more and more, " : "",
                  since(s.evidence, site)));
  if (!s.followers.empty()) {
    const std::vector<Rank> who = f_.ranks(s.followers);
    say(r, "late",
        fmt::format("{} {} late after rank {} each time: because of it", ranks_words(who),
                    who.size() == 1 ? "is" : "are", f_.rank(s.evidence)));
  }
}

void LateWords::add_holes(const Stragglers& all, Report& r) const {
  const Straggler& worst = worst_of(all.ranks);
  const LateSite& site = worst.worst();
  const RankEvidence& e = f_.ev(worst.evidence);
  for (const Change& c : site.steps) {
    const auto step = step_number(e, c.at + 1);
    say(r, "late",
        fmt::format("the time of a step changed from {} to {} at {}, on rank {}",
                    duration_text(c.before), duration_text(c.after),
                    step ? fmt::format("step {}", *step)
                         : fmt::format("{} #{}", e.text(e.records[c.at].op), e.records[c.at].seq),
                    e.id.rank));
  }
  if (!site.starts && !f_.group(site.group).is_gloo()) {
    say(r, "context",
        "when operations began on the devices is not recorded: a host that waits for its slow "
        "device looks like a slow host");
  }
}

}  // namespace frtrace
