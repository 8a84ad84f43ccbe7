// Counts per call site, and the first and the last parting of courses.
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

// The rank's counters of a group; nullptr: none.
const GroupEvidence* member(const Case& c, int group, int evidence) {
  const Group& g = c.groups[idx(group)];
  const int m = g.at(c.evidence_of(evidence).id.rank);
  return m < 0 ? nullptr : c.member(g, idx(m));
}

std::uint64_t first_kept(const Case& c, int group, int evidence) {
  const GroupEvidence* e = member(c, group, evidence);
  return e == nullptr ? 1 : std::max<std::uint64_t>(1, e->first_kept);
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

SiteCounts::Counts SiteCounts::count(int evidence, std::uint64_t from) const {
  const RankEvidence& e = c_.evidence_of(evidence);
  std::map<std::pair<Id, std::uint32_t>, Seen> by_id;
  for (const Record& r : e.records) {
    if (r.kind == Kind::kCollective && r.seq >= from && c_.group_at(evidence, r.group) == group_) {
      Seen& n = by_id[{r.op, r.stack}];
      n.first = n.at.own++ == 0 ? r.seq : n.first;
      n.at.own_ended += !blocks(r);
    }
  }
  Counts out;
  for (const auto& [id, n] : by_id) {
    const Site site = user_site(e, id.second);
    if (site.file.empty()) {
      continue;
    }
    const std::string op(e.text(id.first));  // as the rank calls it
    Seen& to = out[{canonical_op(op), site.file, site.line}];
    to.first = to.at.own == 0 ? n.first : std::min(to.first, n.first);
    to.at.op = op;
    to.at.site = site;
    to.at.own += n.at.own;
    to.at.own_ended += n.at.own_ended;
    to.at.whole = from == 1;
  }
  return out;
}

const SiteCounts::Counts& SiteCounts::of_others(std::uint64_t from) {
  const auto [all, added] = of_others_.try_emplace(from);
  for (std::size_t k = 0; added && k < others_.size(); ++k) {
    for (const auto& [place, n] : count(others_[k], from)) {
      Seen& to = all->second.try_emplace(place, n).first->second;
      const bool first = to.ranks++ == 0;
      to.at.least = first ? n.at.own : std::min(to.at.least, n.at.own);
      to.at.least_ended = first ? n.at.own_ended : std::min(to.at.least_ended, n.at.own_ended);
      to.at.most = std::max(to.at.most, n.at.own);
      to.at.own = to.at.own_ended = 0;
    }
  }
  return all->second;
}

std::vector<SiteCount> SiteCounts::of(int evidence, bool waits) {
  const std::uint64_t from = std::max(from_, first_kept(c_, group_, evidence));
  Counts all = of_others(from);
  for (const auto& [place, n] : count(evidence, from)) {
    SiteCount& at = all.try_emplace(place, n).first->second.at;
    at.own = n.at.own;
    at.own_ended = n.at.own_ended;
  }
  std::vector<Seen> found;
  for (auto& [place, seen] : all) {
    SiteCount& n = seen.at;
    n.least = seen.ranks < others_.size() ? 0 : n.least;
    const bool fewer = n.own < (waits ? n.least : std::min(n.least, n.least_ended));
    const bool more = n.own > n.most && (waits || n.most == 0 || n.own_ended > n.most);
    if (fewer || more) {
      found.push_back(std::move(seen));
    }
  }
  std::ranges::stable_sort(found, {}, &Seen::first);
  std::vector<SiteCount> out;
  for (Seen& seen : found) {
    out.push_back(std::move(seen.at));
  }
  return out;
}

// ---- partings

namespace {

using Roles = std::vector<std::uint64_t>;

// A value for each of two ranks.
template <typename T>
struct Both {
  T own, peer;
};

// The steps of a rank that a peer has, too, or would have had to take part in.
struct Course {
  Roles roles;
  std::vector<std::size_t> steps;

  Course(const Facts& f, int own, int peer, std::size_t from) {
    const Roles &all = f.anomalies.roles(own), &others = f.anomalies.roles(peer);
    const std::set<std::uint64_t> known(others.begin(), others.end());
    for (std::size_t k = from; k < all.size(); ++k) {
      const int g = f.history.of(own)[k].group;
      if (known.contains(all[k]) || (g >= 0 && f.group(g).at(f.rank(peer)) >= 0)) {
        roles.push_back(all[k]);
        steps.push_back(k);
      }
    }
  }
  std::uint64_t count(std::uint64_t role, std::size_t to = SIZE_MAX) const {
    const auto end = roles.begin() + static_cast<std::ptrdiff_t>(std::min(to, roles.size()));
    return static_cast<std::uint64_t>(std::count(roles.begin(), end, role));
  }
};

// The step from which on no record of the rank is lost. A ring keeps the last operations of each
// group longer than the operations between them.
std::size_t whole_from(const Facts& f, int i) {
  const std::vector<Record>& records = f.ev(i).records;
  std::size_t first = records.empty() ? 0 : records.size() - 1;
  while (first > 0 && records[first - 1].ticket + 1 == records[first].ticket) {
    --first;
  }
  return step_of(f.history.of(i), first);
}

// The earliest collective of a common group that both rings have, with all operations since; 0, 0
// if both rings are complete. nullopt: none.
std::optional<Both<std::size_t>> common_start(const Facts& f, int own, int peer) {
  const auto whole = [&](int i) {
    const Losses& l = f.ev(i).losses;
    return l.overwritten == 0 && l.trimmed == 0 && l.dropped == 0;
  };
  if (whole(own) && whole(peer)) {
    return Both<std::size_t>{0, 0};
  }
  // First step at or after `from` that is a collective of the group, with number `seq` or later.
  const auto find = [&](int i, std::size_t from, int group, std::uint64_t seq) {
    const std::vector<Step>& steps = f.history.of(i);
    const auto is_it = [&](const Step& s) {
      const Record& r = f.ev(i).records[s.record];
      return s.group == group && r.kind == Kind::kCollective && r.seq >= seq;
    };
    const auto begin = steps.begin() + static_cast<std::ptrdiff_t>(from);
    return static_cast<std::size_t>(std::find_if(begin, steps.end(), is_it) - steps.begin());
  };
  const std::size_t own_end = f.history.of(own).size(), peer_end = f.history.of(peer).size();
  const Both<std::size_t> from{whole_from(f, own), whole_from(f, peer)};
  std::optional<Both<std::size_t>> best;
  for (int g = 0; g < static_cast<int>(f.c.groups.size()); ++g) {
    if (f.group(g).at(f.rank(own)) < 0 || f.group(g).at(f.rank(peer)) < 0) {
      continue;
    }
    Both<std::size_t> at{find(own, from.own, g, 0), find(peer, from.peer, g, 0)};
    if (at.own == own_end || at.peer == peer_end) {
      continue;
    }
    const std::uint64_t seq =
        std::max(f.history.record(own, at.own).seq, f.history.record(peer, at.peer).seq);
    at = {find(own, at.own, g, seq), find(peer, at.peer, g, seq)};
    if (at.own < own_end && at.peer < peer_end &&
        f.history.record(own, at.own).seq == f.history.record(peer, at.peer).seq &&
        (!best || at.own + at.peer < best->own + best->peer)) {
      best = at;
    }
  }
  return best;
}

// Messages are not compared: stages of a pipeline legitimately number and order them differently.
bool is_collective(const Facts& f, int i, std::size_t step) {
  return f.history.record(i, step).kind == Kind::kCollective;
}

// The rank's parting at place `at` of its course, by a step of its own or of its peer.
Parting parting_at(const Facts& f, int who, std::size_t step, const Course& own, std::size_t at) {
  const RankEvidence& e = f.ev(who);
  const Record& r = f.history.record(who, step);
  Parting out;
  out.op = e.text(r.op);
  out.site = user_site(e, r.stack);
  out.group = f.history.of(who)[step].group;
  out.before = own.count(f.anomalies.roles(who)[step], at);
  out.issued = own.steps[at];
  out.step = step_number(e, e.index_of(r));
  return out;
}

// The rank left out the operation that the peer issued in that step.
Parting left_out(const Facts& f, const Both<int>& who, std::size_t step, const Course& own,
                 std::size_t at) {
  Parting out = parting_at(f, who.peer, step, own, at);
  const std::vector<Step>& steps = f.history.of(who.own);
  // The rank's own group of that kind: the peer's may be another group of the kind.
  const Roles& roles = f.anomalies.roles(who.own);
  const auto same = std::ranges::find(roles, f.anomalies.roles(who.peer)[step]);
  out.group =
      same != roles.end() ? steps[static_cast<std::size_t>(same - roles.begin())].group : out.group;
  for (std::size_t k = out.issued; k < steps.size(); ++k) {
    out.wrong_since = out.wrong_since || (steps[k].group == out.group &&
                                          f.history.record(who.own, k).state == State::kCompleted);
  }
  return out;
}

// nullopt: nothing can be said, or (sets `same`) both went the same way as far as is known.
std::optional<Parting> parting_of(const Facts& f, const Both<int>& who, bool& same) {
  // Between threads there is no order to leave.
  const bool ordered = f.anomalies.is_one_program(who.own) && f.anomalies.is_one_program(who.peer);
  const auto start = ordered ? common_start(f, who.own, who.peer) : std::nullopt;
  if (!start) {
    return std::nullopt;
  }
  const Course own(f, who.own, who.peer, start->own), peer(f, who.peer, who.own, start->peer);
  const auto parted = std::ranges::mismatch(own.roles, peer.roles);
  same = parted.in1 == own.roles.end() || parted.in2 == peer.roles.end();
  if (same) {
    return std::nullopt;
  }
  const auto at = static_cast<std::size_t>(parted.in1 - own.roles.begin());
  std::size_t skipped = 0, added = 0;
  for (std::size_t k = 1; k <= limits::kLookahead; ++k) {
    skipped = std::max(skipped, equal_run(own.roles, at, peer.roles, at + k));
    added = std::max(added, equal_run(own.roles, at + k, peer.roles, at));
  }
  // In a loop of two operations, one too few of one looks like one too many of the other. Counts
  // tell them apart, unless the others are just ahead of the rank in both.
  const std::uint64_t due = peer.roles[at], done = own.roles[at];
  if (skipped >= limits::kClearSupport && own.count(due) < peer.count(due) &&
      own.count(done) <= peer.count(done)) {
    return is_collective(f, who.peer, peer.steps[at])
               ? std::optional(left_out(f, who, peer.steps[at], own, at))
               : std::nullopt;
  }
  if (added >= limits::kClearSupport && own.count(done) > peer.count(done) &&
      own.count(due) >= peer.count(due) && is_collective(f, who.own, own.steps[at])) {
    Parting out = parting_at(f, who.own, own.steps[at], own, at);
    out.left_out = false;
    return out;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Parting> parting(const Facts& f, int evidence, const std::vector<int>& peers) {
  std::optional<Parting> out;
  for (std::size_t k = 0; k < std::min(peers.size(), limits::kCourses); ++k) {
    bool same = false;
    const auto found = parting_of(f, {evidence, peers[k]}, same);
    if (same ||
        (found && out && (out->issued != found->issued || out->left_out != found->left_out))) {
      return std::nullopt;
    }
    out = out ? out : found;
  }
  return out;
}

// ---- forks

namespace {

struct CallPlace {
  std::string op;
  Site site;
  bool operator==(const CallPlace&) const = default;
};

struct Track {
  const Case& c;
  const History& history;
  int evidence;

  std::size_t size() const { return history.of(evidence).size(); }
  const Record& record(std::size_t step) const { return history.record(evidence, step); }
  CallPlace place(std::size_t step) const {
    const RankEvidence& e = c.evidence_of(evidence);
    return {canonical_op(e.text(record(step).op)), user_site(e, record(step).stack)};
  }
  // Number of the last operation of the group that the rank issued.
  std::uint64_t enqueued(int group) const {
    const GroupEvidence* own = member(c, group, evidence);
    return own == nullptr ? 0 : own->enqueued;
  }
  // The step of the group's operation with that number; size() when not kept.
  std::size_t find(int group, std::uint64_t seq) const {
    for (std::size_t k = size(); k-- > 0;) {
      const Record& r = record(k);
      if (history.of(evidence)[k].group == group && r.kind == Kind::kCollective && r.seq == seq) {
        return k;
      }
    }
    return size();
  }
  Branch branch(std::size_t step) const {
    if (step >= size()) {
      return {};
    }
    const CallPlace own = place(step);
    Branch out{std::string(c.evidence_of(evidence).text(record(step).op)), own.site};
    const std::vector<Step>& steps = history.of(evidence);
    for (std::size_t k = 0; k < size(); ++k) {
      out.count += steps[k].key == steps[step].key || place(k) == own ? 1 : 0;
    }
    return out;
  }
};

}  // namespace

std::optional<Fork> fork_of(const Case& c, const History& history, int group, int evidence,
                            int reference) {
  const Track own{c, history, evidence}, other{c, history, reference};
  // The last slot of the group in which both stood at the same line.
  std::uint64_t seq = std::min(own.enqueued(group), other.enqueued(group));
  std::size_t a = own.size(), b = other.size();
  for (std::uint64_t n = 0; n < limits::kForkLookback && seq > 0; ++n, --seq) {
    const std::size_t i = own.find(group, seq), j = other.find(group, seq);
    if (i == own.size() || j == other.size()) {
      return std::nullopt;  // overwritten
    }
    if (own.place(i) == other.place(j)) {
      a = i;
      b = j;
      break;
    }
  }
  if (a == own.size()) {
    return std::nullopt;
  }
  while (a + 1 < own.size() && b + 1 < other.size() && own.place(a + 1) == other.place(b + 1)) {
    ++a;
    ++b;
  }
  if (b + 1 >= other.size()) {
    return std::nullopt;  // the other rank is not further
  }
  const Fork out{c.evidence_of(reference).id.rank, own.branch(a), own.branch(a + 1),
                 other.branch(b + 1)};
  return out.common.site.file.empty() && out.others.site.file.empty() ? std::nullopt
                                                                      : std::optional(out);
}

}  // namespace frtrace
