// Ranks that left the order that they kept before, or that peers in the same place keep.
#include <algorithm>
#include <map>
#include <set>

#include "facts/limits.hpp"
#include "facts/order/order.hpp"
#include "model/contains.hpp"
#include "model/hash.hpp"
#include "model/operation.hpp"

namespace frtrace {

std::uint64_t Anomalies::role(int i, const Step& step, bool peer) const {
  const RankEvidence& e = c_.evidence_of(i);
  const Record& r = e.records[step.record];
  const Place& place = place_of(i, r.stack);
  std::uint64_t key = mix(mix(11, canonical_op(e.text(r.op))), place.file_hash);
  key = place.known ? mix(key, place.line) : mix(key, signature_hash(e, r, step.sized));
  if (step.group >= 0) {
    const Group& g = c_.groups[idx(step.group)];
    // A group without a description has a number as its name; ranks make groups in the same order.
    const bool numbered = g.desc.empty();
    key = numbered ? mix(key, (g.ranks.size() << 32) + (g.made_by < 0 ? r.group : idx(g.made_by)))
                   : mix(key, g.desc.empty() ? g.name : g.desc);
    if (peer && r.kind != Kind::kCollective && r.peer >= 0 &&
        r.peer < static_cast<int>(g.ranks.size())) {
      const int n = static_cast<int>(g.ranks.size());
      key = mix(key, static_cast<std::uint64_t>((r.peer - g.position.at(e.id.rank) + n) % n));
    }
  }
  return key;
}

const Anomalies::Place& Anomalies::place_of(int i, std::uint32_t stack) const {
  const auto [it, added] = places_.try_emplace(static_cast<std::uint64_t>(i) << 32 | stack);
  if (added) {
    const Site site = user_site(c_.evidence_of(i), stack);
    it->second = {std::hash<std::string_view>{}(site.file), site.line, !site.file.empty()};
  }
  return it->second;
}

std::vector<int> Anomalies::peers(int i, bool smaller_groups_first) const {
  std::vector<int> groups, out;
  for (const int g : c_.group_of[idx(i)]) {
    if (g >= 0) {
      groups.push_back(g);
    }
  }
  const auto group = [&](int g) -> const Group& { return c_.groups[idx(g)]; };
  if (smaller_groups_first) {  // these are most alike
    std::ranges::stable_sort(
        groups, [&](int x, int y) { return group(x).ranks.size() < group(y).ranks.size(); });
  }
  std::set<int> seen{i};
  for (const int g : groups) {
    const std::vector<int>& members = group(g).evidence;
    // Stops early: every rank asks, and one group has all ranks.
    for (auto j = members.begin(); j != members.end() && out.size() < limits::kPeers; ++j) {
      if (*j >= 0 && seen.insert(*j).second) {
        out.push_back(*j);
      }
    }
  }
  return out;
}

const std::vector<std::uint64_t>& Anomalies::roles(int i, bool peer) const {
  std::vector<std::uint64_t>& out = roles_[peer][idx(i)];
  if (out.empty()) {
    out.reserve(history_.of(i).size());
    for (const Step& s : history_.of(i)) {
      out.push_back(role(i, s, peer));
    }
  }
  return out;
}

// A peer that has the usual way, too, did the same after the same steps. The program does so, then,
// unless most members that wait now wait in the usual way.
bool Anomalies::shared(int i, const Anomaly& a) const {
  const std::vector<std::uint64_t>& own = roles(i);
  const auto here = own.begin() + static_cast<std::ptrdiff_t>(a.issued);
  auto context = static_cast<std::ptrdiff_t>(std::min(a.context, limits::kSharedContext));
  // In a loop of few operations, the context must tell this turn from the rank's other turns.
  const auto usual_here = [&] {
    for (auto q = own.begin() + std::min<std::ptrdiff_t>(context, here - own.begin()); q < here;
         ++q) {
      if (*q == *here && std::equal(here - context, here, q - context)) {
        return true;
      }
    }
    return false;
  };
  const auto usual = own.begin() + static_cast<std::ptrdiff_t>(a.usual);
  while (context < std::min(usual, here) - own.begin() &&
         *(here - context - 1) == *(usual - context - 1) && usual_here()) {
    ++context;
  }
  // If the rank waits in another group than was due, the members of both groups count by where they
  // wait.
  const Step &stands = history_.of(i)[a.issued], &due = history_.of(i)[a.usual];
  const auto waits = [&](int j, const Step& s) {
    const Record& r = c_.evidence_of(j).records[s.record];
    return r.kind == Kind::kCollective && blocks(r);
  };
  const bool asked = waits(i, stands) && stands.group != due.group;
  const bool came =
      a.kind == Anomaly::kReplaced && history_.record(i, a.issued).kind == Kind::kCollective;
  bool custom = false;
  std::size_t with = 1, against = 0, likewise = 1, others = 0;
  for (const int j : peers(i, true)) {
    const std::vector<std::uint64_t>& other = roles(j);
    std::size_t did = 0;
    bool does = false, last = false;
    // If neither the waiting members nor a peer's last operation count, a peer that has both ways
    // is enough.
    const auto open = [&] { return asked || came || did == 0 || !does; };
    for (auto q = other.begin() + std::min<std::ptrdiff_t>(context, other.end() - other.begin());
         q != other.end() && open(); ++q) {
      if ((*q == *here || *q == own[a.usual]) && std::equal(here - context, here, q - context)) {
        const Step& step = history_.of(j)[static_cast<std::size_t>(q - other.begin())];
        did += *q == *here;
        does = does || *q == own[a.usual];
        last = *q == *here;
        with += asked && step.group == stands.group && *q == *here && waits(j, step);
        against += asked && step.group == due.group && *q == own[a.usual] && waits(j, step);
      }
    }
    // An operation that a peer issued once, and last, may be the same fault.
    const bool first = came && did == 1 && last;
    likewise += does && first;
    others += !first;
    custom = custom || (did != 0 && does && !first);
    if (custom && !asked) {
      return true;
    }
  }
  return (custom && with > against) || (!custom && likewise > others);
}

namespace {

// No other member of the collective before it went on with the due operation in this round, so that
// comes in some rounds only.
bool is_not_due(const Case& c, const History& history, const Anomalies& all, int i,
                const Anomaly& a) {
  const std::size_t at = a.issued - std::min<std::size_t>(a.issued, 1);
  const Step& met = history.of(i)[at];
  const Record& before = c.evidence_of(i).records[met.record];
  if (a.issued == 0 || before.kind != Kind::kCollective || met.group < 0) {
    return false;
  }
  bool others = false;
  for (const int j : all.peers(i, true)) {
    const std::vector<std::uint64_t>& roles = all.roles(j);
    bool now = false, ever = false;
    for (std::size_t q = 0; q + 1 < roles.size(); ++q) {
      const Step& step = history.of(j)[q];
      const bool there = roles[q] == all.roles(i)[at];
      const bool same = there && step.group == met.group &&
                        c.evidence_of(j).records[step.record].seq == before.seq;
      const bool due = there && roles[q + 1] == all.roles(i)[a.usual];
      if (same && due) {
        return false;
      }
      now = now || same;
      ever = ever || due;
    }
    others = others || (now && ever);
  }
  return others;
}

}  // namespace

bool Anomalies::receives_from_any(int i) const {
  return std::ranges::any_of(c_.evidence_of(i).records,
                             [](const Record& r) { return r.kind == Kind::kRecv && r.peer < 0; });
}

namespace {

// The anomalies near `stuck`, a step.
std::vector<Anomaly> anomalies_of(const std::vector<Step>& steps, const RankEvidence& e,
                                  std::size_t stuck) {
  const bool cut = !steps.empty() && e.records.front().ticket > 1;
  if (auto odd = odd_iterations(steps, e, stuck)) {
    // Iterations vary. The step in which the rank is stuck stands out of all of them if it was
    // never issued before. If they are too short to differ, so does a step that never came after so
    // many equal steps.
    const auto here = anomaly(steps, stuck, cut);
    const bool stands_out =
        here && (here->novel || (odd->empty() && here->kind == Anomaly::kSkipped &&
                                 here->context > limits::kClearSupport));
    if (stands_out && here->issued == stuck) {
      odd->push_back(*here);
    }
    return std::move(*odd);
  }
  std::size_t from = stuck - std::min(stuck, limits::kRecent);
  std::vector<Anomaly> out;
  while (const auto a = anomaly(steps, from, cut)) {
    out.push_back(*a);
    out.back().part = a->part && a->issued != stuck;
    from = a->issued + 1;
  }
  return out;
}

}  // namespace

// A file without completed operations shows no order of earlier iterations. A rank that receives
// from any rank has no order of its own.
std::vector<Anomaly> Anomalies::all(int i, std::size_t stuck) const {
  const RankEvidence& e = c_.evidence_of(i);
  if (e.holes.only_active || receives_from_any(i)) {
    return {};
  }
  const std::vector<Step>& steps = history_.of(i);
  const std::vector<std::size_t> places = steps_of_program(e, steps, stuck);
  if (places.size() == steps.size()) {
    return anomalies_of(steps, e, stuck);
  }
  std::vector<Step> own;
  for (const std::size_t k : places) {
    own.push_back(steps[k]);
  }
  const auto at = std::ranges::lower_bound(places, stuck);
  std::vector<Anomaly> out = anomalies_of(own, e, static_cast<std::size_t>(at - places.begin()));
  for (Anomaly& a : out) {
    a.issued = places[a.issued];
    a.usual = places[a.usual];
  }
  return out;
}

// Two exchanged operations that both ended are no reason to wait now. An added operation, if as
// clear, shifts the later ones.
bool Anomalies::is_over(int i, const Anomaly& a, std::size_t stuck) const {
  if (a.kind != Anomaly::kSwapped || a.novel || a.issued + limits::kLookahead >= stuck) {
    return false;
  }
  return a.context < limits::kContext ||
         equal_run(roles(i), a.issued + 1, roles(i), a.usual) < limits::kLookahead;
}

// A new collective where an iteration was due to begin: the end of the program, or an operation of
// every few iterations.
bool Anomalies::is_between(int i, const Anomaly& a) const {
  const std::vector<Step>& steps = history_.of(i);
  const RankEvidence& e = c_.evidence_of(i);
  if (!a.novel || e.records[steps[a.issued].record].kind != Kind::kCollective) {
    return false;
  }
  const std::size_t first = first_repeated(std::span(steps).first(a.issued));
  const bool whole_program = e.records.front().ticket <= 1;
  return whole_program && first < a.issued && steps[first].key == steps[a.usual].key &&
         (a.usual == 0 ||
          steps[first].key != steps[a.usual - 1].key);  // not inside a run of equal steps
}

std::uint64_t Anomalies::due_seq(int i, const Anomaly& a) const {
  const int group = usual(i, a).group;
  if (group >= 0 && !c_.groups[idx(group)].position.contains(c_.evidence_of(i).id.rank)) {
    return 0;
  }
  const Record& due = history_.record(a.owner(i), a.usual);
  std::uint64_t seq = 1;
  for (std::size_t k = 0; k < a.issued; ++k) {
    const Record& r = history_.record(i, k);
    const bool same = history_.of(i)[k].group == group && r.kind == due.kind && r.peer == due.peer;
    seq = same ? r.seq + 1 : seq;
  }
  return seq;
}

bool Anomalies::is_whole(int i) const {
  const RankEvidence& e = c_.evidence_of(i);
  return !e.records.empty() && e.records.front().ticket <= 1 && !e.holes.only_active;
}

namespace {

// The steps of another rank that are the same collectives as a rank's, or the other ends of its
// messages. Messages are counted since a collective of both: in rings that lost some, numbers start
// at different places.
class Alignment {
 public:
  Alignment(const Case& c, const History& history, int own, int other, std::size_t before)
      : c_(c), own_{own, history.of(own)}, other_{other, history.of(other)} {
    std::size_t tried = 0;
    for (std::size_t k = before; k-- > 0 && anchor_ == SIZE_MAX && tried < limits::kRecent;) {
      const Record& r = own_.record(c_, k);
      if (r.kind == Kind::kCollective && is_shared(own_.steps[k], r)) {
        anchor_ = place(own_.steps[k], r, r.seq);
        own_anchor_ = k;
        ++tried;
      }
    }
    const bool relative =
        c.evidence_of(own).holes.relative_p2p || c.evidence_of(other).holes.relative_p2p;
    counts_ = !relative || anchor_ != SIZE_MAX;
  }

  // The other rank's step for an operation like step `as`, with that number; SIZE_MAX: none.
  std::size_t place(const Step& as, const Record& r, std::uint64_t seq) const {
    if (!is_shared(as, r) || (r.kind != Kind::kCollective && !counts_)) {
      return SIZE_MAX;
    }
    const bool together = r.kind == Kind::kCollective;
    std::uint64_t shift = 0;
    if (!together && anchor_ != SIZE_MAX) {
      const Kind kind = r.kind == Kind::kSend ? Kind::kRecv : Kind::kSend;
      shift = last(other_, anchor_, as.group, kind, own_) -
              last(own_, own_anchor_, as.group, r.kind, other_);
    }
    for (std::size_t k = other_.steps.size(); k-- > 0;) {
      const Record& q = other_.record(c_, k);
      const bool same =
          together ? q.kind == r.kind
                   : q.kind != Kind::kCollective && q.kind != r.kind && is_to(as.group, q, own_);
      if (same && other_.steps[k].group == as.group && q.seq == seq + shift) {
        return k;
      }
    }
    return SIZE_MAX;
  }

 private:
  struct Side {
    int evidence;
    const std::vector<Step>& steps;
    const Record& record(const Case& c, std::size_t k) const {
      return c.evidence_of(evidence).records[steps[k].record];
    }
  };

  bool is_shared(const Step& step, const Record& r) const {
    return step.group >= 0 &&
           (r.kind == Kind::kCollective ? c_.groups[idx(step.group)].position.contains(
                                              c_.evidence_of(other_.evidence).id.rank)
                                        : is_to(step.group, r, other_));
  }

  bool is_to(int group, const Record& r, const Side& side) const {
    const std::vector<Rank>& ranks = c_.groups[idx(group)].ranks;
    return r.peer >= 0 && r.peer < static_cast<int>(ranks.size()) &&
           ranks[idx(r.peer)] == c_.evidence_of(side.evidence).id.rank;
  }

  // The number of the last such message before the anchor; 0: none.
  std::uint64_t last(const Side& of, std::size_t anchor, int group, Kind kind,
                     const Side& to) const {
    for (std::size_t k = anchor; k-- > 0;) {
      const Record& r = of.record(c_, k);
      if (r.kind == kind && of.steps[k].group == group && is_to(group, r, to)) {
        return r.seq;
      }
    }
    return 0;
  }

  const Case& c_;
  Side own_, other_;
  std::size_t own_anchor_ = 0, anchor_ = SIZE_MAX;  // steps
  bool counts_ = false;                             // messages of the two can be told apart
};

}  // namespace

// By the order of a peer that issued the due operation, an operation that this rank issued since
// comes first.
bool Anomalies::comes_later(int i, const Anomaly& a) const {
  const std::vector<Step>& steps = history_.of(i);
  const RankEvidence& e = c_.evidence_of(i);
  const std::uint64_t seq = due_seq(i, a);
  const std::size_t end = std::min(steps.size(), a.issued + limits::kRecent);
  for (const int j : peers(i, true)) {
    const Alignment to(c_, history_, i, j, a.issued);
    const std::size_t due = to.place(steps[a.usual], e.records[steps[a.usual].record], seq);
    // Messages of a batch have no order.
    const auto batch = [&](std::size_t k) {
      const RankEvidence& other = c_.evidence_of(j);
      return other.records[history_.of(j)[k].record].batch;
    };
    for (std::size_t k = a.issued; due != SIZE_MAX && k < end; ++k) {
      const Record& r = e.records[steps[k].record];
      const std::size_t at = to.place(steps[k], r, r.seq);
      if (at < due && (batch(due) == 0 || batch(at) != batch(due))) {
        return true;
      }
    }
  }
  return false;
}

std::optional<std::size_t> Anomalies::place_at(int j, int i, std::size_t step) const {
  const auto after = [&](std::size_t met, std::size_t at) -> std::optional<std::size_t> {
    const auto own = std::span(roles(i)).subspan(met, step - met);
    const auto other = std::span(roles(j)).subspan(at);
    const bool same =
        own.size() <= other.size() && std::ranges::equal(own, other.first(own.size()));
    return same ? std::optional(at + own.size()) : std::nullopt;
  };
  const Alignment to(c_, history_, i, j, step);
  for (std::size_t met = step; met-- > 0;) {
    const Record& r = history_.record(i, met);
    const std::size_t at =
        r.kind == Kind::kCollective ? to.place(history_.of(i)[met], r, r.seq) : SIZE_MAX;
    if (at != SIZE_MAX) {
      return after(met, at);
    }
  }
  return is_whole(i) && is_whole(j) ? after(0, 0) : std::nullopt;
}

// A peer that issued the same since they last met went on with the same operations as this rank,
// but for two that this rank issued in each other's place.
bool Anomalies::exchanged(int i, const Anomaly& a) const {
  const auto own = std::span(roles(i)).subspan(a.issued);
  return std::ranges::any_of(peers(i, true), [&](int j) {
    const auto at = place_at(j, i, a.issued);
    const auto other = at ? std::span(roles(j)).subspan(*at) : std::span<const std::uint64_t>();
    const auto later = static_cast<std::size_t>(
        other.empty() ? 0 : std::ranges::find(own, other[0]) - own.begin());
    if (later == 0 || later >= own.size() || own.size() > other.size() || other[later] != own[0]) {
      return false;
    }
    const auto same = [&](std::size_t from, std::size_t n) {
      return std::ranges::equal(own.subspan(from, n), other.subspan(from, n));
    };
    return same(1, later - 1) && same(later + 1, own.size() - later - 1);
  });
}

// The other members issued that collective of the rank from the same line, and ended it.
bool Anomalies::ended_alike(int i, std::size_t at) const {
  const Step& step = history_.of(i)[at];
  const Record& r = history_.record(i, at);
  if (r.kind != Kind::kCollective || blocks(r) || step.group < 0) {
    return false;
  }
  const std::vector<int>& members = c_.groups[idx(step.group)].evidence;
  std::size_t others = 0;
  for (std::size_t m = 0; m < std::min(members.size(), limits::kPeers); ++m) {
    const int j = members[m];
    if (j < 0 || j == i) {
      continue;
    }
    const std::vector<Step>& steps = history_.of(j);
    const auto same = std::find_if(steps.rbegin(), steps.rend(), [&](const Step& s) {
      const Record& its = c_.evidence_of(j).records[s.record];
      return s.group == step.group && its.kind == r.kind && its.seq == r.seq;
    });
    if (same == steps.rend() || role(j, *same) != role(i, step) ||
        blocks(c_.evidence_of(j).records[same->record])) {
      return false;
    }
    ++others;
  }
  return others != 0;
}

// All members issued the collective from the same line and ended it, as they did the due operation:
// their program is so in this iteration. A collective of another group than the due operation tells
// nothing.
bool Anomalies::ended_by_all(int i, const Anomaly& a) const {
  const bool message = history_.record(a.owner(i), a.usual).kind != Kind::kCollective;
  const bool elsewhere = (a.kind == Anomaly::kSkipped || a.kind == Anomaly::kSwapped ||
                          (a.kind == Anomaly::kReplaced && message)) &&
                         usual(i, a).group != history_.of(i)[a.issued].group;
  const bool alike = history_.record(i, a.usual).kind != Kind::kCollective || a.usual >= a.issued ||
                     ended_alike(i, a.usual);
  return !elsewhere && alike && ended_alike(i, a.issued);
}

// The rank never issued that before, and peers issued it for the first time, too.
bool Anomalies::came_to_new_together(int i, const Anomaly& a) const {
  const std::vector<int> others = a.novel ? peers(i, true) : std::vector<int>();
  return std::ranges::any_of(others,
                             [&](int j) { return did_likewise(j, history_.of(j).size(), i, a); });
}

bool Anomalies::leaves_order(int i, const Anomaly& a, std::size_t stuck) const {
  return !is_over(i, a, stuck) && !is_between(i, a) && !is_size_only(i, a, stuck) &&
         !is_not_due(c_, history_, *this, i, a) && !ended_by_all(i, a) && !comes_later(i, a) &&
         !kept_its_place(i, a, stuck);
}

std::optional<Anomaly> Anomalies::own(int i, std::size_t stuck, std::size_t until) const {
  // A new operation is a clearer fault than a changed order, and so is the step in which the rank
  // is stuck.
  const auto weight = [&](const Anomaly& x) { return 2 * x.novel + (x.issued == stuck); };
  std::optional<Anomaly> first;
  for (const Anomaly& a : all(i, stuck)) {
    if (a.issued < until && (!first || weight(a) > weight(*first)) && leaves_order(i, a, stuck) &&
        !came_to_new_together(i, a) && !shared(i, a)) {
      first = a;
    }
  }
  return first;
}

std::optional<Anomaly> Anomalies::own_at(int i, std::size_t stuck, std::size_t step) const {
  const std::vector<Anomaly> found = all(i, stuck);
  const auto a = std::ranges::find_if(
      found, [&](const Anomaly& x) { return x.issued == step && leaves_order(i, x, stuck); });
  return a == found.end() ? std::nullopt : std::optional(*a);
}

// The same operation in another size, which ended: the order is the same.
bool Anomalies::is_size_only(int i, const Anomaly& a, std::size_t stuck) const {
  const std::vector<Step>& steps = history_.of(i);
  const std::vector<Record>& records = c_.evidence_of(i).records;
  const Record &x = records[steps[a.issued].record], &y = records[steps[a.usual].record];
  return a.kind == Anomaly::kReplaced && a.issued < stuck && x.kind == y.kind && x.op == y.op &&
         x.group == y.group && x.peer == y.peer && x.stack == y.stack && x.in_dtype == y.in_dtype;
}

std::vector<Anomaly> Anomalies::any(int i, std::size_t stuck, bool of_all) const {
  std::vector<Anomaly> out = all(i, stuck);
  std::erase_if(out, [&](const Anomaly& a) {
    return is_between(i, a) || is_size_only(i, a, stuck) || (!of_all && ended_by_all(i, a));
  });
  return out;
}

bool Anomalies::did_likewise(int i, std::size_t stuck, int other, const Anomaly& deviant) const {
  const std::uint64_t issued = roles(other)[deviant.issued], usual = roles(other)[deviant.usual];
  const std::vector<Step>& steps = history_.of(i);
  for (std::size_t p = stuck - std::min(stuck, limits::kRecent); deviant.novel && p < steps.size();
       ++p) {
    if (roles(i)[p] == issued && is_first_of_its_kind(steps, p)) {
      return true;
    }
  }
  const std::vector<Anomaly> found = all(i, stuck);
  return std::ranges::any_of(found, [&](const Anomaly& a) {
    return roles(i)[a.issued] == issued && (deviant.novel || roles(i)[a.usual] == usual);
  });
}

}  // namespace frtrace
