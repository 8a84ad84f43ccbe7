// Counts per call site, and where courses parted.
#include "facts/order/course.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "facts/facts.hpp"
#include "facts/limits.hpp"
#include "model/operation.hpp"

namespace frtrace {

// ---- counts

namespace {

using Place = SiteCounts::Place;

struct Count {
  std::uint64_t times = 0, first = 0;  // number of the first
  Site site;
  std::string op;  // as the rank calls it
};

std::uint64_t first_kept(const Case& c, int group, int evidence) {
  const Group& g = c.groups[idx(group)];
  const auto at = g.position.find(c.evidence_of(evidence).id.rank);
  const GroupEvidence* e = at == g.position.end() ? nullptr : c.member(g, idx(at->second));
  return e == nullptr ? 1 : std::max<std::uint64_t>(1, e->first_kept);
}

std::map<Place, Count> counts_of(const Case& c, int group, int evidence, std::uint64_t from) {
  const RankEvidence& e = c.evidence_of(evidence);
  const std::vector<int>& groups = c.group_of[idx(evidence)];
  std::map<std::pair<Id, std::uint32_t>, Count> by_id;
  for (const Record& r : e.records) {
    if (r.kind == Kind::kCollective && r.seq >= from && r.group < groups.size() &&
        groups[r.group] == group) {
      Count& n = by_id[{r.op, r.stack}];
      n.first = n.times++ == 0 ? r.seq : n.first;
    }
  }
  std::map<Place, Count> out;
  for (auto& [id, n] : by_id) {
    Site site = user_site(e, id.second);
    if (site.file.empty()) {
      continue;
    }
    Count& to = out[{canonical_op(e.text(id.first)), site.file, site.line}];
    to.first = to.times == 0 ? n.first : std::min(to.first, n.first);
    to.times += n.times;
    to.op = e.text(id.first);
    to.site = std::move(site);
  }
  return out;
}

}  // namespace

std::optional<std::int64_t> step_number(const RankEvidence& e, std::size_t record) {
  for (std::size_t k = std::min(record, e.records.size()); k-- > 0;) {
    if (e.records[k].kind == Kind::kStep) {
      return static_cast<std::int64_t>(e.records[k].seq);
    }
  }
  return std::nullopt;
}

SiteCounts::SiteCounts(const Case& c, int group, std::vector<int> others)
    : c_(c), group_(group), others_(std::move(others)) {
  for (const int i : others_) {
    from_ = std::max(from_, first_kept(c_, group_, i));
  }
}

const SiteCounts::OfOthers& SiteCounts::of_others(std::uint64_t from) {
  const auto [it, added] = of_others_.try_emplace(from);
  for (std::size_t k = 0; added && k < others_.size(); ++k) {
    for (auto& [place, n] : counts_of(c_, group_, others_[k], from)) {
      Seen& to = it->second[place];
      if (to.ranks++ == 0) {
        to.out = {n.op, n.site, 0, n.times, n.times, from == 1};
        to.first = n.first;
      }
      to.out.least = std::min(to.out.least, n.times);
      to.out.most = std::max(to.out.most, n.times);
    }
  }
  return it->second;
}

std::vector<SiteCount> SiteCounts::of(int evidence) {
  const std::uint64_t from = std::max(from_, first_kept(c_, group_, evidence));
  OfOthers all = of_others(from);
  for (const auto& [place, n] : counts_of(c_, group_, evidence, from)) {
    const auto [to, fresh] = all.try_emplace(place);
    to->second.out.own = n.times;
    if (fresh) {
      to->second.out = {n.op, n.site, n.times, 0, 0, from == 1};
      to->second.first = n.first;
    }
  }
  std::vector<Seen> found;
  for (auto& [place, seen] : all) {
    seen.out.least = seen.ranks < others_.size() ? 0 : seen.out.least;
    if (seen.out.own < seen.out.least || seen.out.own > seen.out.most) {
      found.push_back(std::move(seen));
    }
  }
  std::ranges::stable_sort(found, [](const Seen& a, const Seen& b) { return a.first < b.first; });
  std::vector<SiteCount> out;
  for (Seen& seen : found) {
    out.push_back(std::move(seen.out));
  }
  return out;
}

// ---- partings

namespace {

using Roles = std::vector<std::uint64_t>;

// The steps of a rank that a peer has too, or would have had to take part in.
struct Course {
  Roles roles;
  std::vector<std::size_t> steps;

  Course(const Case& c, const std::vector<Step>& all, const Roles& own, const Roles& others,
         Rank other, std::size_t from) {
    const std::set<std::uint64_t> known(others.begin(), others.end());
    for (std::size_t k = from; k < all.size(); ++k) {
      const int g = all[k].group;
      if (known.contains(own[k]) || (g >= 0 && c.groups[idx(g)].position.contains(other))) {
        roles.push_back(own[k]);
        steps.push_back(k);
      }
    }
  }
  std::uint64_t count(std::uint64_t role, std::size_t to = SIZE_MAX) const {
    const auto end = roles.begin() + static_cast<std::ptrdiff_t>(std::min(to, roles.size()));
    return static_cast<std::uint64_t>(std::count(roles.begin(), end, role));
  }
};

// The step from which on no record of the rank is lost: a ring keeps the last operations of each
// group longer than what came between them.
std::size_t whole_from(const Case& c, const History& h, int evidence) {
  const std::vector<Record>& records = c.evidence_of(evidence).records;
  std::size_t first = records.empty() ? 0 : records.size() - 1;
  while (first > 0 && records[first - 1].ticket + 1 == records[first].ticket) {
    --first;
  }
  return step_of(h.of(evidence), first);
}

// Where both rings have the same operation of the group that they share most of, and all since;
// 0, 0 where both have all.
std::optional<std::pair<std::size_t, std::size_t>> common_start(const Case& c, const History& h,
                                                                int a, int b) {
  const auto whole = [&](int i) {
    const Losses& l = c.evidence_of(i).losses;
    return l.overwritten == 0 && l.trimmed == 0 && l.dropped == 0;
  };
  if (whole(a) && whole(b)) {
    return std::pair<std::size_t, std::size_t>(0, 0);
  }
  // First place at or after `from` of a collective of the group, not before its number `seq`.
  const auto find = [&](int i, std::size_t from, int group, std::uint64_t seq) {
    const std::vector<Step>& steps = h.of(i);
    const std::vector<Record>& records = c.evidence_of(i).records;
    while (from < steps.size()) {
      const Record& r = records[steps[from].record];
      if (steps[from].group == group && r.kind == Kind::kCollective && r.seq >= seq) {
        break;
      }
      ++from;
    }
    return from;
  };
  const auto seq_at = [&](int i, std::size_t step) {
    return c.evidence_of(i).records[h.of(i)[step].record].seq;
  };
  const std::size_t from_a = whole_from(c, h, a), from_b = whole_from(c, h, b);
  std::optional<std::pair<std::size_t, std::size_t>> best;
  for (std::size_t g = 0; g < c.groups.size(); ++g) {
    const auto& position = c.groups[g].position;
    const int group = static_cast<int>(g);
    if (!position.contains(c.evidence_of(a).id.rank) ||
        !position.contains(c.evidence_of(b).id.rank)) {
      continue;
    }
    std::pair at(find(a, from_a, group, 0), find(b, from_b, group, 0));
    if (at.first == h.of(a).size() || at.second == h.of(b).size()) {
      continue;
    }
    const std::uint64_t seq = std::max(seq_at(a, at.first), seq_at(b, at.second));
    at = {find(a, at.first, group, seq), find(b, at.second, group, seq)};
    const bool there = at.first < h.of(a).size() && at.second < h.of(b).size() &&
                       seq_at(a, at.first) == seq_at(b, at.second);
    if (there && (!best || at.first + at.second < best->first + best->second)) {
      best = at;
    }
  }
  return best;
}

class Pair {
 public:
  Pair(const Case& c, const History& h, const Anomalies& roles, int own, int peer)
      : c_(c), h_(h), roles_(roles), own_(own), peer_(peer) {}

  bool went_the_same_way() const { return same_; }  // as far as both are known

  // nullopt: nothing can be said.
  std::optional<Parting> parting() {
    const auto start = common_start(c_, h_, own_, peer_);
    if (!start) {
      return std::nullopt;
    }
    const Roles &own_roles = roles_.roles(own_), &peer_roles = roles_.roles(peer_);
    const Course own(c_, h_.of(own_), own_roles, peer_roles, rank(peer_), start->first);
    const Course peer(c_, h_.of(peer_), peer_roles, own_roles, rank(own_), start->second);
    std::size_t at = 0;
    while (at < own.roles.size() && at < peer.roles.size() && own.roles[at] == peer.roles[at]) {
      ++at;
    }
    if (at == own.roles.size() || at == peer.roles.size()) {
      same_ = true;
      return std::nullopt;
    }
    std::size_t skipped = 0, added = 0;
    for (std::size_t k = 1; k <= limits::kLookahead; ++k) {
      skipped = std::max(skipped, equal_run(own.roles, at, peer.roles, at + k));
      added = std::max(added, equal_run(own.roles, at + k, peer.roles, at));
    }
    // In a loop of two operations one too few looks like one too many of the other: counts tell,
    // where the others are not just ahead of the rank in both.
    const std::uint64_t due = peer.roles[at], done = own.roles[at];
    if (skipped >= limits::kClearSupport && own.count(due) < peer.count(due) &&
        own.count(done) <= peer.count(done)) {
      return left_out(own, peer, at);
    }
    if (added >= limits::kClearSupport && own.count(done) > peer.count(done) &&
        own.count(due) >= peer.count(due) && is_collective(own_, own.steps[at])) {
      return of(own_, own.steps[at], own, own.roles[at], at, false);
    }
    return std::nullopt;
  }

 private:
  Rank rank(int i) const { return c_.evidence_of(i).id.rank; }
  // Of messages the stages of a pipeline have other numbers and orders by right.
  bool is_collective(int i, std::size_t step) const {
    return c_.evidence_of(i).records[h_.of(i)[step].record].kind == Kind::kCollective;
  }

  Parting of(int who, std::size_t step, const Course& own, std::uint64_t role, std::size_t at,
             bool left_out) const {
    const Step& s = h_.of(who)[step];
    const RankEvidence& e = c_.evidence_of(who);
    const Record& r = e.records[s.record];
    Parting out;
    out.left_out = left_out;
    out.op = e.text(r.op);
    out.site = user_site(e, r.stack);
    out.group = s.group;
    out.before = own.count(role, at);
    out.issued = own.steps[at];
    out.step = step_number(e, s.record);
    return out;
  }

  std::optional<Parting> left_out(const Course& own, const Course& peer, std::size_t at) const {
    Parting out = of(peer_, peer.steps[at], own, peer.roles[at], at, true);
    const std::vector<Step>& steps = h_.of(own_);
    const std::vector<Record>& records = c_.evidence_of(own_).records;
    if (!is_collective(peer_, peer.steps[at])) {
      return std::nullopt;
    }
    // The rank's own group of that kind: the peer's may be a sister of it.
    const Roles& roles = roles_.roles(own_);
    const auto same = std::ranges::find(roles, peer.roles[at]);
    out.group = same != roles.end() ? steps[static_cast<std::size_t>(same - roles.begin())].group
                                    : out.group;
    for (std::size_t k = out.issued; k < steps.size(); ++k) {
      out.wrong_since = out.wrong_since || (steps[k].group == out.group &&
                                            records[steps[k].record].state == State::kCompleted);
    }
    return out;
  }

  const Case& c_;
  const History& h_;
  const Anomalies& roles_;
  int own_, peer_;
  bool same_ = false;
};

}  // namespace

std::optional<Parting> parting(const Case& c, const History& h, const Anomalies& roles,
                               int evidence, const std::vector<int>& peers) {
  std::optional<Parting> out;
  for (std::size_t k = 0; k < std::min(peers.size(), limits::kCourses); ++k) {
    Pair pair(c, h, roles, evidence, peers[k]);
    const auto found = pair.parting();
    if (pair.went_the_same_way()) {
      return std::nullopt;
    }
    if (found && out && (out->issued != found->issued || out->left_out != found->left_out)) {
      return std::nullopt;
    }
    out = out ? out : found;
  }
  return out;
}

}  // namespace frtrace
