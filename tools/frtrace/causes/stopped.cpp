// Hosts that stopped though peers at the same place of the program went on.
#include <algorithm>
#include <set>
#include <span>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "facts/polls.hpp"
#include "model/contains.hpp"
#include "model/hints.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// The operations that a rank issued. Records of equal programs have equal tickets.
struct Program {
  const Facts& f;
  int evidence;
  const std::vector<Record>& records;
  std::uint64_t front;  // ticket of its first pending operation

  const std::vector<Step>& steps() const { return f.history.of(evidence); }
  const std::vector<std::uint64_t>& roles() const { return f.anomalies.roles(evidence); }
  std::uint64_t ticket(std::size_t step) const { return records[steps()[step].record].ticket; }
  std::size_t find(std::uint64_t wanted) const {
    const auto it = std::partition_point(steps().begin(), steps().end(), [&](const Step& s) {
      return records[s.record].ticket < wanted;
    });
    return static_cast<std::size_t>(it - steps().begin());
  }
  // Avoids steps() and roles(), which are slow to compute for every rank of a large job.
  std::uint64_t role(std::size_t record) const {
    const int group = f.c.group_at(evidence, records[record].group);
    return f.anomalies.role(evidence, {0, group, static_cast<std::uint32_t>(record)});
  }
  std::size_t issued_after(std::size_t record) const {
    return static_cast<std::size_t>(std::count_if(
        records.begin() + static_cast<std::ptrdiff_t>(record) + 1, records.end(), communicates));
  }
};

std::optional<Program> program_of(const Facts& f, int i) {
  const Front& front = f.graph.fronts[idx(i)];
  if (!f.graph.waits(i) || f.stale[idx(i)] || front.first == kNoRecord) {
    return std::nullopt;
  }
  const std::vector<Record>& records = f.ev(i).records;
  return Program{f, i, records, records[front.first].ticket};
}

// One record of each rank.
struct Meeting {
  std::size_t own, other;
};

// The last operation that both took part in.
std::optional<Meeting> meeting(const Program& own, const Program& other) {
  const Facts& f = own.f;
  std::size_t steps = 1;
  for (std::size_t a = own.records.size(); a-- > 0 && steps < limits::kRecent;) {
    const Record& r = own.records[a];
    steps += communicates(r) ? 1 : 0;
    const int group = r.kind == Kind::kCollective ? f.c.group_at(own.evidence, r.group) : -1;
    if (group < 0) {
      continue;
    }
    const int member = f.group(group).at(f.rank(other.evidence));
    const Record* its =
        member < 0 ? nullptr : f.slots[idx(group)].at(f.c, f.group(group), idx(member), r.seq);
    if (its == nullptr) {
      continue;
    }
    const std::size_t b = f.ev(other.evidence).index_of(*its);
    if (own.role(a) == other.role(b)) {  // a sequence number may come twice: several communicators
      return Meeting{a, b};
    }
  }
  return std::nullopt;
}

// Rank `i` has groups of all kinds that rank `j` has; if not, it runs another program. The reverse
// does not hold: a rank that stopped early has not made all of its groups.
bool has_groups_of(const Facts& f, int i, int j) {
  const auto kinds = [&](int k) {
    std::set<GroupKind> out;
    for (const int g : f.c.group_of[idx(k)]) {
      if (g >= 0) {
        out.insert(f.group(g).kind());
      }
    }
    return out;
  };
  return std::ranges::includes(kinds(i), kinds(j));
}

// The two steps are equal, with or without sizes: a size may seem to vary on one rank only.
bool issued_alike(const Program& own, std::size_t a, const Program& other, std::size_t b) {
  return own.roles()[a] == other.roles()[b] ||
         own.role(own.steps()[a].record) == other.role(other.steps()[b].record);
}

// The two ranks issued the same so far, and the other rank waits for at least as much, since at
// least as early a place of its program. Returns the step that the other rank issued next, its
// number of steps if it issued none; nullopt: the ranks are no twins.
std::optional<std::size_t> twin_went_on(const Program& own, const Program& other,
                                        const std::optional<Meeting>& met) {
  if (!met) {
    return std::nullopt;
  }
  const std::size_t n = own.steps().size(), m = other.steps().size();
  const std::size_t met_own = step_of(own.steps(), met->own),
                    met_other = step_of(other.steps(), met->other);
  std::size_t a = met_own, b = met_other;
  // If either ring kept fewer records, earlier records are of another place of the program.
  while (a > 0 && b > 0 &&
         own.ticket(a) - own.ticket(a - 1) == other.ticket(b) - other.ticket(b - 1)) {
    --a, --b;
  }
  if (own.front < own.ticket(a) ||
      other.find(other.front) + met_own > own.find(own.front) + met_other) {
    return std::nullopt;
  }
  for (; a < n && b < m; ++a, ++b) {
    const Record& r = own.records[own.steps()[a].record];
    if (!issued_alike(own, a, other, b) ||
        (blocks(r) && !blocks(other.records[other.steps()[b].record]))) {
      return std::nullopt;
    }
  }
  return b;
}

// The other rank issued next an operation that this rank never issued or, in a pipeline, never
// issued after the same operations.
bool is_of_another_program(const Program& own, const Program& other, std::size_t next) {
  const std::uint64_t role = other.roles()[next];
  const std::vector<std::uint64_t>& mine = own.roles();
  const auto now =
      mine.end() - static_cast<std::ptrdiff_t>(std::min(mine.size(), limits::kContextLeast));
  const bool pipeline = own.records[own.steps().back().record].kind != Kind::kCollective;
  bool likewise = false, otherwise = false;
  for (auto at = mine.begin(); pipeline && at < now; ++at) {
    if (std::equal(now, mine.end(), at)) {
      const std::uint64_t after = *(at + (mine.end() - now));
      likewise = likewise || after == role;
      otherwise = otherwise || after != role;
    }
  }
  const std::uint64_t sized = other.role(other.steps()[next].record);
  const auto issued = [&](const Program& p, std::size_t before) {
    return std::ranges::any_of(std::span(p.steps()).first(before),
                               [&](const Step& s) { return p.role(s.record) == sized; });
  };
  return (otherwise && !likewise) ||
         (!contains(mine, role) && issued(other, next) && !issued(own, mine.size()));
}

// The other host is too far ahead for a full launch queue: hosts that issue ahead of their devices
// stop where the queue is full, some an operation later than others.
bool is_far_ahead(const Program& own, const Program& other, const Meeting& met) {
  const std::size_t by = other.issued_after(met.other) - own.issued_after(met.own);
  const std::size_t in_queue = own.steps().size() - own.find(own.front);
  return in_queue < limits::kQueueFewest ||
         static_cast<double>(by) > limits::kQueueVaries * static_cast<double>(in_queue);
}

// All its twins in one of its groups are at the same place: they are the ranks of one stage, and
// stopped for the same reason.
bool stands_with(const Facts& f, int i, const std::vector<int>& twins,
                 const std::vector<int>& further) {
  return std::ranges::any_of(f.c.group_of[idx(i)], [&](int g) {
    const auto in_group = [&](int j) { return g >= 0 && f.group(g).at(f.rank(j)) >= 0; };
    return std::ranges::any_of(twins, in_group) && std::ranges::none_of(further, in_group);
  });
}

Cause stopped(const Facts& f, int i, Rule rule, std::vector<int> others, Assume why) {
  Cause c(rule, Verdict::kMissing);
  c.pending = f.graph.waits(i) ? f.graph.waits_in[idx(i)].front() : main_pending(f, {}, false);
  c.guilty = {guilty_rank(f, i, Why::kNeverIssued, -1)};
  c.explains = {i};
  c.others = std::move(others);
  c.independent = true;
  c.assume(why, {f.rank(i)});
  return c;
}

}  // namespace

// Most ranks wait inside torch, and the stack of this rank shows it elsewhere in the program, for
// most of that time.
std::vector<Cause> stopped_by_stack(const Facts& f) {
  double hang_s = 0;
  for (const Pending& p : f.graph.pending) {
    hang_s = std::max(hang_s, p.seconds());
  }
  std::vector<int> waiting, apart;
  for (const int i : f.c.indices()) {
    const RankEvidence& e = f.ev(i);
    if (f.exit(i).ended() || f.stale[idx(i)]) {
      continue;
    }
    if (is_in_torch(e)) {
      waiting.push_back(i);
    } else if (idle_s(e) >= limits::kElsewhereShare * hang_s && is_in_program(e) &&
               !program_is_at_store(f, i) && !polls(e)) {
      apart.push_back(i);
    }
  }
  const auto share = static_cast<double>(waiting.size()) / static_cast<double>(f.c.ranks.size());
  std::vector<Cause> out;
  for (const int i : apart) {
    // The program may end at a place where several ranks are.
    const auto stands_there = [&](int j) { return now_at(f.ev(j)) == now_at(f.ev(i)); };
    const bool alone = std::ranges::count_if(apart, stands_there) == 1;
    if (hang_s != 0 && waiting.size() >= limits::kInTorchFewest &&
        share >= (alone ? limits::kInTorchShare : limits::kInTorchMost)) {
      out.push_back(stopped(f, i, Rule::kElsewhere, waiting, Assume::kStuckThere));
    }
  }
  return out;
}

// Peers that did the same and wait for the same issued more: their hosts were free to go on, and so
// was the host of this rank. It stopped by itself.
std::vector<Cause> stopped_host(const Facts& f) {
  std::vector<Cause> out;
  if (may_be_between(f)) {
    return out;
  }
  for (const int i : f.c.indices()) {
    const auto own = program_of(f, i);
    // Rank 0 may log or save between iterations now and then.
    if (!own || f.ev(i).holes.truncated || (f.rank(i) == 0 && !stopped_amid(f.c, f.history, i))) {
      continue;
    }
    struct Peer {
      Program program;
      std::optional<Meeting> met;
    };
    std::vector<Peer> peers;
    std::size_t ahead = 0;  // peers that issued more since; comparing whole programs is slow
    for (const int j : f.anomalies.peers(i, true)) {
      if (const auto program = program_of(f, j)) {
        const auto met = meeting(*own, *program);
        ahead += met && own->issued_after(met->own) < program->issued_after(met->other);
        peers.push_back({*program, met});
      }
    }
    if (ahead < limits::kWentOnFewest) {
      continue;
    }
    std::vector<int> twins, further;
    for (const Peer& peer : peers) {
      const Program& other = peer.program;
      auto next = twin_went_on(*own, other, peer.met);
      if (next && (!has_groups_of(f, other.evidence, i) ||
                   (*next < other.steps().size() &&
                    (is_of_another_program(*own, other, *next) ||
                     makes_communicator(f, i, other.steps()[*next].group))))) {
        next.reset();
      }
      if (next) {
        twins.push_back(other.evidence);
      }
      // The evidence of this rank covers that time, measured on each rank's clock since they met.
      if (next && *next < other.steps().size() && is_far_ahead(*own, other, *peer.met) &&
          seconds_between(own->records[peer.met->own].time, f.ev(i).written) -
                  seconds_between(other.records[peer.met->other].time,
                                  other.records[other.steps()[*next].record].time) >=
              limits::kTwinLater_s) {
        further.push_back(other.evidence);
      }
    }
    if (further.size() >= limits::kWentOnFewest &&
        static_cast<double>(further.size()) >
            limits::kWentOnShare * static_cast<double>(twins.size()) &&
        !stands_with(f, i, twins, further)) {
      out.push_back(stopped(f, i, Rule::kStoppedHost, std::move(further), Assume::kHostIsFree));
    }
  }
  return out;
}

}  // namespace frtrace
