// How often the blamed passed call sites, and where their course first parted from the others'.
#include "facts/order/course.hpp"

#include <algorithm>
#include <map>

#include "words/words.hpp"

namespace frtrace {

namespace {

// The group whose operation is wrong or missing; -1: the cause is of none.
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

// "issued all_reduce at train.py:19 8 times, the others 9 times"
std::string count_text(const SiteCount& n) {
  const std::string own = fmt::format("issued {} at {}", n.op, site_text(n.site));
  return (n.own == 0 ? "never " + own : own + ' ' + times(n.own)) + ", the others " +
         (n.least == n.most ? times(n.most) : fmt::format("{} to {} times", n.least, n.most)) +
         given(!n.whole, ", of what the rings still hold");
}

// Counts that differ only because the others wait there say nothing new.
bool is_plain(const Cause& c, const Facts& f, const std::vector<SiteCount>& counts) {
  if (counts.size() != 1 || counts[0].own + 1 != counts[0].most || c.pending < 0 ||
      (c.rule != Rule::kNeverIssued && c.rule != Rule::kLeft && c.rule != Rule::kExited)) {
    return false;
  }
  const Pending& p = f.graph[c.pending];
  return std::ranges::any_of(p.waits, [&](const Wait& w) {
    return w.record != kNoRecord &&
           user_site(f.ev(w.evidence), f.ev(w.evidence).records[w.record].stack) == counts[0].site;
  });
}

void add_counts(const Facts& f, const Cause& c, Report& r) {
  constexpr std::size_t kShown = 2;
  std::vector<std::pair<std::string, std::vector<Rank>>> said;
  std::map<int, SiteCounts> of_group;
  for (const Guilty& g : c.guilty) {
    const bool counted = g.evidence >= 0 && !f.ev(g.evidence).holes.only_stacks;
    const int group = counted ? group_of(f, c, g) : -1;
    if (group >= 0 && !of_group.contains(group)) {
      of_group.try_emplace(group, f.c, group, others_in(f, c, group));
    }
    if (group < 0 || !of_group.at(group).has_others()) {
      continue;
    }
    std::vector<SiteCount> counts = of_group.at(group).of(g.evidence);
    // What only one side issued is there because the counts before it differ.
    const auto both = [](const SiteCount& n) { return n.own != 0 && n.most != 0; };
    if (std::ranges::any_of(counts, both)) {
      std::erase_if(counts, [&](const SiteCount& n) { return !both(n); });
    }
    counts.resize(is_plain(c, f, counts) ? 0 : std::min(counts.size(), kShown));
    for (const SiteCount& n : counts) {
      const std::string text = count_text(n);
      auto same = std::ranges::find(said, text, &decltype(said)::value_type::first);
      same = same == said.end() ? said.insert(same, {text, {}}) : same;
      same->second.push_back(g.rank);
    }
  }
  for (const auto& [text, who] : said) {
    say(r, "counts", ranks_words(who) + ' ' + text);
  }
}

// What was said of the rank's earliest deviation by the rule itself.
bool is_known(const Facts& f, const Cause& c, const Guilty& g, const Parting& p) {
  const std::vector<Step>& steps = f.history.of(g.evidence);
  return p.issued >= steps.size() ||
         (g.issued != kNoRecord && steps[p.issued].record >= g.issued) ||
         (g.why == Why::kSkipped && c.rule == Rule::kNeverIssued);
}

}  // namespace

void add_course(const Facts& f, const Cause& c, Report& r) {
  if (!c.names() || c.verdict == Verdict::kSlow) {
    return;
  }
  add_counts(f, c, r);
  constexpr std::size_t kShown = 4;  // a pattern of more is no slip of a rank
  for (const Guilty& g : c.guilty) {
    if (g.evidence < 0 || c.guilty.size() > kShown) {
      continue;
    }
    std::vector<int> peers = f.anomalies.peers(g.evidence, true);
    std::erase_if(peers, [&](int i) { return blamed_by(c).contains(i); });
    const auto p = parting(f.c, f.history, f.anomalies, g.evidence, peers);
    if (!p || is_known(f, c, g, *p)) {
      continue;
    }
    say(r, "parted",
        fmt::format("rank {} {} {}{}{}", g.rank, p->left_out ? "left out" : "added", p->op,
                    led(" at ", site_text(p->site)),
                    p->step          ? fmt::format(" in step {}", *p->step)
                    : p->before == 0 ? ", which it had never issued before"
                                     : ", which it had issued " + times(p->before) + " before") +
            (p->wrong_since && p->group >= 0
                 ? fmt::format("; since then its operations in {} are matched with the wrong ones "
                               "of the other ranks: results are wrong from there",
                               f.group(p->group).title())
                 : ""));
  }
}

}  // namespace frtrace
