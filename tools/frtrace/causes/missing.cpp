// Ranks that wait for nobody and did not come to what others wait in.
#include <algorithm>
#include <set>
#include <span>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "facts/pending.hpp"
#include "model/contains.hpp"
#include "model/hints.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// A minority waits in an operation that is none of the job's: all others have gone, or nobody ever
// issued it before. So does who left its order with a message.
bool is_extra(const Facts& f, const Pending& p, const std::vector<int>& absent) {
  if (p.kind != Kind::kCollective) {
    const int i = p.waits.front().evidence;
    const auto a = f.anomalies.own(i, f.stuck_step(i), f.stuck_end(i));
    return a && a->issued == f.stuck_step(i) && a->context >= limits::kContext;
  }
  if (absent.size() < 2 || p.waits.size() >= absent.size()) {
    return false;
  }
  if (std::ranges::all_of(absent, [&](int i) { return f.is_leaving(i); })) {
    return true;
  }
  return std::ranges::all_of(p.waits, [&](const Wait& w) {
    const std::vector<Step>& steps = f.history.of(w.evidence);
    const std::size_t pos = step_of(steps, w.record);
    // One added before in that group, whatever it is taken for, shifts all later ones.
    const auto a = f.anomalies.own(w.evidence, f.stuck_step(w.evidence));
    if (a && (a->kind == Anomaly::kInserted || a->kind == Anomaly::kSwapped) &&
        steps[a->issued].group == p.group) {
      return true;
    }
    // Only a rank that repeats itself can do something new.
    if (pos >= steps.size() || pos < limits::kRepeats || !usual_next(steps, pos)) {
      return false;
    }
    const std::span<const Step> own(steps.data(), pos), other(f.history.of(absent.front()));
    const auto same = [&](const Step& s) { return s.key == steps[pos].key; };
    return std::ranges::none_of(own, same) && std::ranges::none_of(other, same);
  });
}

// By its waiters' earlier iterations the operation was due.
bool was_due(const Facts& f, const Pending& p) {
  return std::ranges::any_of(p.waits, [&](const Wait& w) {
    const std::vector<Step>& steps = f.history.of(w.evidence);
    const std::size_t pos = step_of(steps, w.record);
    const auto usual = pos < steps.size() ? usual_next(steps, pos) : std::nullopt;
    return usual && steps[*usual].key == steps[pos].key;
  });
}

// Its call sites are one ahead of a peer's from some slot on: it left that operation out and
// nothing hung there. The number of the slot; 0: it is not so.
std::uint64_t shifted_since(const Facts& f, int i, int group) {
  const Group& g = f.group(group);
  const Slots& s = f.slots[idx(group)];
  const auto mine = g.position.find(f.rank(i));
  const std::size_t own = mine == g.position.end() ? g.ranks.size() : idx(mine->second);
  std::size_t other = 0;
  while (other < g.ranks.size() && (other == own || s.records[other].empty())) {
    ++other;
  }
  if (own == g.ranks.size() || other == g.ranks.size()) {
    return 0;
  }
  const auto site_of = [&](std::size_t m, std::uint64_t seq) {
    const Record* r = s.at(f.c, g, m, seq);
    return r == nullptr ? Site() : user_site(f.ev(g.evidence[m]), r->stack);
  };
  std::uint64_t since = 0;
  int compared = 0;
  for (const std::size_t index : s.records[own]) {
    const std::uint64_t seq = f.ev(i).records[index].seq;
    const Site site = site_of(own, seq), same = site_of(other, seq), next = site_of(other, seq + 1);
    if (since == 0 && (site == same || site.file.empty() || same.file.empty())) {
      continue;
    }
    if (next.file.empty()) {
      break;
    }
    if (!(site == next)) {
      return 0;
    }
    since = since == 0 ? seq : since;
    ++compared;
  }
  return compared >= limits::kShifted ? since : 0;
}

// Beside a process that ended, an idle rank is a fault of its own only if it stopped long before
// and waits for nothing that the ended one may owe it.
bool stands_alone(const Facts& f, int i) {
  const RankEvidence& e = f.ev(i);
  if (f.exit(i).ended() || !e.format.empty() || f.settled.waits(i) ||
      f.lifecycle_in_flight(i) != nullptr || f.is_leaving(i) || e.losses.no_group != 0 ||
      e.records.empty()) {
    return false;
  }
  for (const Hint& hint : hints_of(e)) {
    if (hint.kind == HintKind::kStore || hint.kind == HintKind::kLockFile ||
        hint.kind == HintKind::kFifo) {
      return false;
    }
  }
  const double hang_s = e.timeout_s();
  return seconds_between(e.records.back().time, e.written) >= hang_s / 2 &&
         std::ranges::any_of(f.settled.pending, [&](const Pending& p) {
           return contains(p.absent, i) && p.seconds() >= hang_s;
         });
}

// Where sends and receives are not recorded, several that did not come, or left no file, rather wait
// for each other than stopped; but not two of a job with few kinds of groups, which has no stages.
bool may_wait_unseen(const Facts& f, const std::vector<int>& idle, const Pending& p) {
  const std::size_t several = idle.size() + f.c.missing.size();
  const bool deaf = std::ranges::any_of(idle, [&](int i) {
    return !f.ev(i).format.empty() && !runs_in_order(f.c, p) && f.ev(i).lanes.empty();
  });
  std::set<std::string> kinds;
  for (const Group& g : f.c.groups) {
    kinds.insert(g.desc);
  }
  return several > 1 &&
         (f.p2p_unseen || (deaf && (several > 2 || kinds.size() >= limits::kStagedKinds)));
}

// It issued operations until its evidence was written: it is late, and not stuck.
bool is_moving(const Facts& f, int i) {
  const RankEvidence& e = f.ev(i);
  if (e.format.empty() || e.holes.written_guessed || e.records.empty() || f.exit(i).ended()) {
    return false;
  }
  const bool failed = std::ranges::any_of(f.graph.pending, [&](const Pending& p) {
    return contains(p.absent, i) &&
           std::ranges::any_of(p.waits, [](const Wait& w) { return w.failed; });
  });
  return !failed && seconds_between(e.records.back().time, e.written) < f.threshold_s;
}

Cause extra(const Facts& f, int k) {
  const Pending& p = f.graph[k];
  Cause c(Rule::kExtra, Verdict::kMismatch);
  c.pending = k;
  c.others = p.absent;
  std::set<int> seen;
  for (const Wait& w : p.waits) {
    if (seen.insert(w.evidence).second) {
      Guilty g = guilty_rank(f, w.evidence, Why::kExtraOperation, k);
      g.issued = w.record;
      c.guilty.push_back(g);
    }
  }
  c.explains = f.graph.leading_to({seen.begin(), seen.end()}, {k});
  c.assume(Assume::kFewAreWrong);
  sort_by_rank(c.guilty);
  return c;
}

// The operation that most others wait in for this rank; the main one if it is one of them.
int waited_in(const Facts& f, int i, int main) {
  return contains(f.graph[main].absent, i) ? main : main_pending(f, {i});
}

bool is_at_rest(const RankEvidence& e) {
  return !e.holes.no_members && !e.holes.no_p2p &&
         std::ranges::none_of(
             e.records, [](const Record& r) { return r.state == State::kFailed || blocks(r); });
}

// PyTorch's NCCL makes a communicator before it records the first operation of a group, and waits
// there for all members. Rank i had not used a group of that kind.
bool makes_communicator(const Facts& f, int i, int group) {
  const auto kind = [&](int g) { return std::pair(f.group(g).ranks.size(), f.group(g).desc); };
  const RankEvidence& e = f.ev(i);
  for (std::uint32_t row = 1; row < e.groups.size() && group >= 0; ++row) {
    const int own = f.c.group_at(i, row);
    if (own >= 0 && kind(own) == kind(group)) {
      return false;
    }
  }
  return !e.format.empty() && group >= 0;
}

// The group of what peers issued after all that rank i issued last; -1: unknown.
int next_group_of_peers(const Facts& f, int i) {
  const std::vector<std::uint64_t>& own = f.anomalies.roles(i);
  std::size_t most = 0;
  int group = -1;
  for (const int j : f.anomalies.peers(i, true)) {
    const std::vector<std::uint64_t>& other = f.anomalies.roles(j);
    for (std::size_t q = 0; q + 1 < other.size(); ++q) {
      std::size_t n = 0;
      while (n <= q && n < own.size() && own[own.size() - 1 - n] == other[q - n]) {
        ++n;
      }
      if (n > most) {
        most = n;
        group = f.history.of(j)[q + 1].group;
      }
    }
  }
  return most >= std::min(own.size(), limits::kContextLeast) ? group : -1;
}

// By its own earlier iterations its next operation is one in which others wait for it.
bool is_next(const Facts& f, int i) {
  const std::vector<Step>& steps = f.history.of(i);
  const auto next = usual_next(steps, steps.size());
  if (!next) {
    return false;
  }
  const Record& r = f.ev(i).records[steps[*next].record];
  return std::ranges::any_of(f.graph.pending, [&](const Pending& p) {
    const Rank other = p.from == f.rank(i) ? p.to : p.from;
    const bool same = r.kind == Kind::kCollective
                          ? p.kind == r.kind
                          : p.kind != Kind::kCollective && r.peer >= 0 &&
                                f.group(p.group).ranks[idx(r.peer)] == other;
    return p.group == steps[*next].group && same && contains(p.absent, i);
  });
}

// Several that seem to be idle may wait for each other in the making of a communicator: so do those
// whose peers issued the first operation of a kind of group next. Where nothing tells what was next,
// most of a job that all stand still do.
void drop_makers(const Facts& f, std::vector<int>& idle) {
  std::size_t still = 0;
  for (int i = 0; i < static_cast<int>(f.c.ranks.size()); ++i) {
    still += !f.graph.waits(i) && !f.exit(i).ended() && !f.stale[idx(i)] ? 1 : 0;
  }
  if (still < 2 || f.ev(idle.front()).format.empty()) {
    return;
  }
  std::erase_if(idle, [&](int i) {
    const int next = next_group_of_peers(f, i);
    return next >= 0 ? makes_communicator(f, i, next)
                     : 2 * still > f.c.ranks.size() && !is_next(f, i);
  });
}

// All of them are in one call that makes a group, and fewer left it out than are in it, waited for
// or not: these wait for them, and they for these.
bool are_in_call(const Facts& f, const std::vector<int>& idle) {
  const auto call = [&](int i) {
    const Record* r = f.lifecycle_in_flight(i);
    return r == nullptr ? std::pair<std::string_view, std::uint64_t>()
                        : std::pair(f.ev(i).text(r->op), r->seq);
  };
  const bool one = std::ranges::all_of(
      idle, [&](int i) { return call(i).first == "new_group" && call(i) == call(idle.front()); });
  std::size_t inside = 0;
  for (int i = 0; i < static_cast<int>(f.c.ranks.size()) && one; ++i) {
    inside += call(i) == call(idle.front()) ? 1 : 0;
  }
  const std::size_t absent = one ? absent_from_call(f, idle).size() : 0;
  return absent != 0 && absent < inside;
}

// It waits for a key of the store: who is to set it may be among those who wait for it.
bool is_at_store(const Facts& f, int i) {
  const std::vector<Hint> hints = hints_of(f.ev(i));
  return std::ranges::any_of(hints, [](const Hint& h) { return h.kind == HintKind::kStore; });
}

// Nothing tells when the files were written, and several ranks are in no operation, all awaited by one
// other each, in sends, receives and groups of two: so looks a job that moves. Members of one group
// stop together.
bool may_be_between(const Facts& f) {
  const std::vector<int> idle = problem_ranks(f, Problem::kIdle);
  return idle.size() >= limits::kBetween &&
         std::ranges::any_of(f.c.ranks, [](auto* e) { return e->holes.written_guessed; }) &&
         std::ranges::none_of(
             f.graph.pending,
             [&](const Pending& p) {
               return p.kind == Kind::kCollective && f.group(p.group).ranks.size() > 2 &&
                      std::ranges::any_of(p.absent, [&](int i) { return contains(idle, i); });
             }) &&
         std::ranges::none_of(f.c.groups, [&](const Group& g) { return g.ranks == f.ranks(idle); });
}

Cause missing(const Facts& f, const std::vector<int>& who, int main, bool left) {
  Cause c(left ? Rule::kLeft : Rule::kNeverIssued, left ? Verdict::kExited : Verdict::kMissing);
  c.pending = main;
  for (const int i : who) {
    const int k = waited_in(f, i, main);
    Guilty g = guilty_rank(f, i,
                           f.exit(i).clean()                           ? Why::kLeftEarly
                           : f.ev(i).salvage == Salvage::kUnresponsive ? Why::kUnresponsive
                                                                       : Why::kNeverIssued,
                           k);
    if (const std::uint64_t seq = shifted_since(f, i, f.graph[k].group)) {
      g.seq = seq;
      g.why = g.why == Why::kNeverIssued ? Why::kSkipped : g.why;
    }
    c.guilty.push_back(g);
  }
  sort_by_rank(c.guilty);
  c.explains = f.graph.leading_to(who);
  const Pending& p = f.graph[main];
  if (!p.unknown.empty()) {
    c.assume(Assume::kRankWithoutEvidence, p.unknown);
  }
  const bool failed = std::ranges::any_of(p.waits, [](const Wait& w) { return w.failed; });
  if (p.seconds() < limits::kShortHang_s && !failed && !f.timed_out) {
    c.assume(Assume::kShortHang, {}, p.seconds());
  }
  return c;
}

}  // namespace

std::vector<Cause> never_issued(const Facts& f) {
  std::vector<int> idle = problem_ranks(f, Problem::kIdle);
  const bool beside = f.scene == Scene::kExits || f.scene == Scene::kOneKilled;
  if (beside) {
    std::erase_if(idle, [&](int i) { return !stands_alone(f, i); });
  }
  std::erase_if(idle, [&](int i) { return is_moving(f, i); });
  const int k = main_pending(f, idle);
  if (idle.empty() || k < 0) {
    return {};
  }
  const Pending& p = f.graph[k];
  if (p.absent.size() == idle.size() && p.unknown.empty() && is_extra(f, p, idle)) {
    return {extra(f, k)};
  }
  if (are_in_call(f, idle)) {
    return {};
  }
  const bool left = std::ranges::all_of(idle, [&](int i) { return f.exit(i).clean(); });
  Cause open;
  open.verdict = Verdict::kUndecided;
  open.pending = k;
  open.others = idle;
  open.explains = f.graph.leading_to(idle);
  // One that waits alone for most others: either is wrong, and nothing tells which.
  const auto many = static_cast<std::size_t>(
      std::ranges::count_if(idle, [&](int i) { return contains(p.absent, i); }));
  if (p.kind == Kind::kCollective && p.waits.size() * 2 < many && many > 2 &&
      many * 2 > f.group(p.group).ranks.size() && !left &&
      (!was_due(f, p) || std::ranges::all_of(idle, [&](int i) { return is_at_store(f, i); }))) {
    std::vector<int> few = idle;
    for (const Wait& w : p.waits) {
      few.push_back(w.evidence);
    }
    if (auto c = left_order(f, few, true)) {
      return {*c};
    }
    open.rule = Rule::kOpenFewOrMany;
    return {open};
  }
  if (!left && may_wait_unseen(f, idle, p)) {
    open.rule = Rule::kOpenUnrecorded;
    return {open};
  }
  if (!left && may_be_between(f)) {
    open.rule = Rule::kOpenBetween;
    return {open};
  }
  if (runs_in_order(f.c, p)) {
    drop_makers(f, idle);
  }
  if (idle.empty()) {
    open.rule = Rule::kOpenCommunicator;
    return {open};
  }
  Cause c = missing(f, idle, main_pending(f, idle), left);
  // Nothing of theirs failed or hangs: whatever else is wrong did not stop them.
  c.independent =
      std::ranges::all_of(idle, [&](int i) { return !f.exit(i).ended() && is_at_rest(f.ev(i)); });
  if (beside) {
    c.independent = true;
    c.assume(Assume::kBesideAnEnd);
  }
  return {c};
}

namespace {

// What a rank issued. Records of equal programs have equal tickets.
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
  // Without its steps and their roles, which take long to find for every rank of a large job.
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

// Records, own and other's.
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
    const auto member = f.group(group).position.find(f.rank(other.evidence));
    const Record* its =
        member == f.group(group).position.end()
            ? nullptr
            : f.slots[idx(group)].at(f.c, f.group(group), idx(member->second), r.seq);
    if (its == nullptr) {
      continue;
    }
    const auto b = static_cast<std::size_t>(its - other.records.data());
    if (own.role(a) == other.role(b)) {  // numbers may come twice: several communicators
      return Meeting{a, b};
    }
  }
  return std::nullopt;
}

// Who is in no group of a kind runs another program than those that are. A rank that stopped early
// has not come to all of its own.
bool has_groups_of(const Facts& f, int i, int j) {
  const auto kinds = [&](int k) {
    std::set<std::pair<std::size_t, std::string_view>> out;
    for (const int g : f.c.group_of[idx(k)]) {
      if (g >= 0) {
        out.emplace(f.group(g).ranks.size(), f.group(g).desc);
      }
    }
    return out;
  };
  return std::ranges::includes(kinds(i), kinds(j));
}

// Of two ranks that issued the same so far the other one waits for at least as much, and since as
// early a place of its program. Answers what the other one issued next: a step, its size for none.
std::optional<std::size_t> twin_went_on(const Program& own, const Program& other,
                                        const std::optional<Meeting>& met) {
  if (!met) {
    return std::nullopt;
  }
  const std::size_t n = own.steps().size(), m = other.steps().size();
  const std::size_t met_own = step_of(own.steps(), met->own),
                    met_other = step_of(other.steps(), met->other);
  std::size_t a = met_own, b = met_other;
  // Where the ring of either kept less, what is before is of another place of the program.
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
    if (own.roles()[a] != other.roles()[b] ||
        (blocks(r) && !blocks(other.records[other.steps()[b].record]))) {
      return std::nullopt;
    }
  }
  return b;
}

// The other one issued next what this one never issued; or, in a pipeline, what this one never issued
// after the same operations.
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
  return (otherwise && !likewise) ||
         (contains(std::span(other.roles()).first(next), role) && !contains(mine, role));
}

}  // namespace

// Peers that did the same, wait for the same and issued more: their hosts were free to go on, and
// so was this one's. It stopped by itself.
std::vector<Cause> stopped_host(const Facts& f) {
  std::vector<Cause> out;
  if (may_be_between(f)) {
    return out;
  }
  for (int i = 0; i < static_cast<int>(f.c.ranks.size()); ++i) {
    const auto own = program_of(f, i);
    // Rank 0 is the one that logs and saves between iterations now and then.
    if (!own || f.ev(i).holes.truncated || (f.rank(i) == 0 && !stopped_amid(f.c, f.history, i))) {
      continue;
    }
    struct Peer {
      Program program;
      std::optional<Meeting> met;
    };
    std::vector<Peer> peers;
    std::size_t ahead = 0;  // that issued more since; to compare whole programs is slow
    for (const int j : f.anomalies.peers(i, true)) {
      if (const auto program = program_of(f, j); program && has_groups_of(f, j, i)) {
        const auto met = meeting(*own, *program);
        ahead += met && own->issued_after(met->own) < program->issued_after(met->other);
        peers.push_back({*program, met});
      }
    }
    if (ahead < limits::kWentOnFewest) {
      continue;
    }
    std::size_t twins = 0;
    std::vector<int> further;
    for (const Peer& peer : peers) {
      const Program& other = peer.program;
      auto next = twin_went_on(*own, other, peer.met);
      if (next && *next < other.steps().size() &&
          (is_of_another_program(*own, other, *next) ||
           makes_communicator(f, i, other.steps()[*next].group))) {
        next.reset();
      }
      twins += next ? 1 : 0;
      // At a time that this one's evidence covers, each by its own clock since they met.
      if (next && *next < other.steps().size() &&
          seconds_between(own->records[peer.met->own].time, f.ev(i).written) -
                  seconds_between(other.records[peer.met->other].time,
                                  other.records[other.steps()[*next].record].time) >=
              limits::kTwinLater_s) {
        further.push_back(other.evidence);
      }
    }
    if (further.size() >= limits::kWentOnFewest &&
        static_cast<double>(further.size()) > limits::kWentOnShare * static_cast<double>(twins)) {
      Cause c(Rule::kStoppedHost, Verdict::kMissing);
      c.pending = f.graph.waits_in[idx(i)].front();
      c.guilty = {guilty_rank(f, i, Why::kNeverIssued, -1)};
      c.explains = {i};
      c.others = std::move(further);
      c.independent = true;
      c.assume(Assume::kHostIsFree, {f.rank(i)});
      out.push_back(std::move(c));
    }
  }
  return out;
}

}  // namespace frtrace
