// Who left the order that it kept before, or that others in the same place keep.
#include <fmt/ranges.h>

#include "model/hash.hpp"
#include "old/diagnosis.hpp"

namespace frtrace {

namespace {

constexpr std::size_t kRecent = 64;  // operations before the stuck one that may hold the cause

}  // namespace

// Operation, place and role, but not the group itself: equal on ranks that do the same in other
// groups of the kind.
std::uint64_t Diagnosis::role(int i, const Step& step) const {
  const RankEvidence& e = ev(i);
  const Record& r = e.records[step.record];
  const Site site = user_site(e, r.stack);
  std::uint64_t key = mix(mix(11, canonical_op(e.text(r.op))), site.file);
  key = site.file.empty() ? mix(key, signature_hash(e, r))
                          : mix(key, static_cast<std::uint64_t>(site.line));
  if (step.group >= 0) {
    const Group& g = group(step.group);
    key = mix(key, g.desc.empty() ? g.name : g.desc);
    if (r.kind != Kind::kCollective && r.peer >= 0 && r.peer < static_cast<int>(g.ranks.size())) {
      const int n = static_cast<int>(g.ranks.size());
      key = mix(key, static_cast<std::uint64_t>((r.peer - g.position.at(rank(i)) + n) % n));
    }
  }
  return key;
}

// Somebody else, who has the usual way too, did the same after the same: it is the program's way.
bool Diagnosis::shared(int i, const Anomaly& a) {
  const std::vector<Step>& steps = history_.of(i);
  const std::uint64_t before = role(i, steps[a.issued - 1]), now = role(i, steps[a.issued]);
  const std::uint64_t usual = role(i, steps[a.usual]);
  constexpr int kAsked = 32;
  int asked = 0;
  const auto same = [&](int j) {
    const std::vector<Step>& other = history_.of(j);
    std::uint64_t last = 0;
    bool did = false, does = false;
    for (const Step& step : other) {
      const std::uint64_t key = role(j, step);
      did = did || (last == before && key == now);
      does = does || (last == before && key == usual);
      last = key;
    }
    return did && does;
  };
  // Members of its smaller groups first, they are most alike.
  std::set<int> seen{i};
  std::vector<int> groups;
  for (const int g : c_.group_of[at(i)]) {
    if (g >= 0) {
      groups.push_back(g);
    }
  }
  std::sort(groups.begin(), groups.end(),
            [&](int x, int y) { return group(x).ranks.size() < group(y).ranks.size(); });
  for (const int g : groups) {
    for (const int j : group(g).evidence) {
      if (j >= 0 && asked < kAsked && seen.insert(j).second) {
        ++asked;
        if (same(j)) {
          return true;
        }
      }
    }
  }
  return false;
}

// What the rank did that it never did before and nobody else does, near where it is stuck.
std::optional<Anomaly> Diagnosis::own_anomaly(int i) {
  const std::vector<Step>& steps = history_.of(i);
  std::size_t stuck = steps.size();
  for (const int k : graph_.waits_in[at(i)]) {
    for (const Wait& w : graph_.meetings[at(k)].waits) {
      if (w.evidence == i && w.record != SIZE_MAX) {
        stuck = std::min(stuck, step_of(steps, w.record));
      }
    }
  }
  std::size_t from = stuck - std::min(stuck, kRecent);
  while (const auto a = anomaly(steps, from)) {
    if (!shared(i, *a)) {
      return a;
    }
    from = a->issued + 1;
  }
  return std::nullopt;
}

// The same where the rank's own records do not reach back: after the same few operations, what did
// the other ranks do? Nobody what this one did, and three or more agree on something else.
std::optional<Anomaly> Diagnosis::peer_anomaly(int i) {
  constexpr std::size_t kAsked = 32;
  constexpr int kAgree = 3;
  std::vector<int> peers;
  std::set<int> seen{i};
  for (const int g : c_.group_of[at(i)]) {
    for (std::size_t m = 0; g >= 0 && m < group(g).evidence.size(); ++m) {
      const int j = group(g).evidence[m];
      if (j >= 0 && peers.size() < kAsked && seen.insert(j).second) {
        peers.push_back(j);
      }
    }
  }
  const std::vector<Step>& steps = history_.of(i);
  if (steps.empty()) {
    return std::nullopt;
  }
  // Without call sites much looks alike that is not.
  const bool sites = !user_site(ev(i), ev(i).records[steps.back().record].stack).file.empty();
  const std::size_t context = sites ? 4 : 8;
  std::vector<std::uint64_t> own;
  for (const Step& s : steps) {
    own.push_back(role(i, s));
  }
  std::vector<std::vector<std::uint64_t>> others;
  for (const int j : peers) {
    others.emplace_back();
    for (const Step& s : history_.of(j)) {
      others.back().push_back(role(j, s));
    }
  }
  const std::size_t from = steps.size() - std::min(steps.size(), kRecent);
  for (std::size_t p = std::max(from, context); p < steps.size(); ++p) {
    std::map<std::uint64_t, int> next;  // what followed -> on how many ranks
    for (const std::vector<std::uint64_t>& other : others) {
      std::set<std::uint64_t> here;
      for (std::size_t q = context; q < other.size(); ++q) {
        if (std::equal(own.begin() + static_cast<std::ptrdiff_t>(p - context),
                       own.begin() + static_cast<std::ptrdiff_t>(p),
                       other.begin() + static_cast<std::ptrdiff_t>(q - context))) {
          here.insert(other[q]);
        }
      }
      for (const std::uint64_t key : here) {
        ++next[key];
      }
    }
    if (next.empty() || next.contains(own[p])) {
      continue;
    }
    const auto most = std::max_element(
        next.begin(), next.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most->second < kAgree) {
      continue;
    }
    Anomaly a;
    a.issued = p;
    const auto later =
        std::find(own.begin() + static_cast<std::ptrdiff_t>(p), own.end(), most->first);
    const auto before =
        std::find(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(p), most->first);
    a.kind = later != own.end() ? Anomaly::kSwapped : Anomaly::kSkipped;
    a.usual = later != own.end() ? static_cast<std::size_t>(later - own.begin())
              : before != own.begin() + static_cast<std::ptrdiff_t>(p)
                  ? static_cast<std::size_t>(before - own.begin())
                  : p;
    return a;
  }
  return std::nullopt;
}

// The ranks of a cycle that left their order.
bool Diagnosis::blame_anomalies(const std::set<int>& suspects, bool ask_peers) {
  std::vector<std::pair<int, Anomaly>> deviants;
  for (const int i : suspects) {
    if (const auto a = own_anomaly(i)) {
      deviants.emplace_back(i, *a);
    }
  }
  bool by_peers = false;
  if (ask_peers && (deviants.empty() || deviants.size() == suspects.size())) {
    deviants.clear();
    by_peers = true;
    for (const int i : suspects) {
      if (const auto a = peer_anomaly(i)) {
        deviants.emplace_back(i, *a);
      }
    }
  }
  if (deviants.empty() || deviants.size() * 2 > suspects.size()) {
    return false;
  }
  // Several that did different things for the first time: any of them may be in order.
  const auto what = [&](const std::pair<int, Anomaly>& d) {
    return role(d.first, history_.of(d.first)[d.second.issued]);
  };
  if (std::any_of(deviants.begin(), deviants.end(),
                  [&](const auto& d) { return what(d) != what(deviants.front()); })) {
    return false;
  }
  const Anomaly& a = deviants.front().second;
  // A rank that waits in what it took too early has not gone past what it left out: by all that
  // can be seen it takes them in another order.
  const bool order = ask_peers /* a cycle */ &&
                     (a.kind == Anomaly::kSwapped ||
                      (a.kind == Anomaly::kSkipped &&
                       (a.novel || a.issued + 1 == history_.of(deviants.front().first).size())));
  r_.kind = order                         ? Verdict::kDeadlock
            : a.kind == Anomaly::kSkipped ? Verdict::kMissing
                                          : Verdict::kMismatch;
  std::set<int> blamed;
  std::string first;
  for (const auto& [i, how] : deviants) {
    blamed.insert(i);
    const std::vector<Step>& steps = history_.of(i);
    const Record& issued = ev(i).records[steps[how.issued].record];
    const Record& usual = ev(i).records[steps[how.usual].record];
    Blamed& b = blame(i, order                            ? "other_order"
                         : how.kind == Anomaly::kSkipped  ? "never_issued"
                         : how.kind == Anomaly::kInserted ? "extra_operation"
                                                          : "differs");
    const bool left_out = r_.kind != Verdict::kMismatch;
    const Record& shown = left_out ? usual : issued;
    if (const Group* g = group_of(i, shown)) {
      b.group = g->name;
      b.desc = g->desc;
    }
    b.op = ev(i).text(shown.op);
    b.seq = issued.seq;
    if (left_out) {  // the slot it did not come to in time
      b.seq = 1;
      for (std::size_t k = 0; k < how.issued; ++k) {
        const Record& r = ev(i).records[steps[k].record];
        b.seq = r.group == usual.group && r.kind == usual.kind && r.peer == usual.peer ? r.seq + 1
                                                                                       : b.seq;
      }
    }
    b.site = user_site(ev(i), issued.stack);
    b.stack = stack_lines(i, issued.stack);
    const std::string words =
        fmt::format("issued {}{} where {} had {}{}", record_text(i, issued),
                    at_site(i, issued.stack), by_peers ? "other ranks" : "its earlier iterations",
                    ev(i).text(usual.op), at_site(i, usual.stack));
    b.evidence.insert(b.evidence.begin(), words);
    first = first.empty() ? words : first;
  }
  std::sort(r_.ranks.begin(), r_.ranks.end());
  r_.summary =
      fmt::format("{} {}{}", ranks_words(r_.ranks),
                  a.kind == Anomaly::kSkipped && !order ? "left an operation out: " : "", first);
  int k = main_meeting(blamed);
  k = k < 0 ? main_meeting(blamed, false) : k;
  if (k >= 0) {
    std::vector<Rank> who = waiting_ranks(graph_.meetings[at(k)]);
    drop_blamed(who);
    if (!who.empty()) {
      r_.summary +=
          fmt::format("; {} {} in {}", ranks_words(who), who.size() == 1 ? "waits" : "wait",
                      meeting_text(graph_.meetings[at(k)]));
    }
  }
  say("why",
      "the ranks wait for each other; only the blamed did what neither they did before nor "
      "others do");
  explain_waits(blamed);
  add_all_waiting(k, {});
  lower(Confidence::kLikely,
        by_peers ? "the order of most ranks decides" : "the order of earlier iterations decides");
  return true;
}

}  // namespace frtrace
