// Decides which members of a pending operation issued it.
#include <algorithm>
#include <ranges>
#include <set>
#include <span>

#include "facts/limits.hpp"
#include "facts/pending.hpp"
#include "model/operation.hpp"

namespace frtrace {

const LaneEvidence* lane_of(const RankEvidence& e, const Group& g, int row, bool send, Rank other) {
  for (const LaneEvidence& lane : e.lanes) {
    if (static_cast<int>(lane.group) == row && lane.send == send && lane.peer >= 0 &&
        lane.peer < static_cast<int>(g.ranks.size()) && g.ranks[idx(lane.peer)] == other) {
      return &lane;
    }
  }
  return nullptr;
}

namespace {

// Number of the last operation that the member issued, of those that the pending one is counted
// with; nullopt: its evidence does not tell.
std::optional<std::uint64_t> frontier(const Case& c, const std::vector<Slots>& slots,
                                      const Pending& p, const Group& g, std::size_t member) {
  const int evidence = g.evidence[member];
  if (evidence < 0) {
    return std::nullopt;
  }
  const RankEvidence& e = c.evidence_of(evidence);
  // The counters of a truncated file are lower bounds.
  const auto known = [&](std::uint64_t n) {
    return e.holes.frontiers_at_least && n < p.seq ? std::nullopt : std::optional<std::uint64_t>(n);
  };
  // The rank has nothing in flight, so it never issued the other end of a message that is in
  // flight.
  if (p.kind != Kind::kCollective && !e.format.empty() && e.records.empty()) {
    return known(0);
  }
  if (g.row[member] < 0) {
    return e.losses.may_have_had_other_groups() ? std::nullopt : known(0);
  }
  if (p.kind == Kind::kCollective) {
    return known(c.member(g, member)->enqueued);
  }
  const bool send = p.from == g.ranks[member];
  const LaneEvidence* lane = lane_of(e, g, g.row[member], send, send ? p.to : p.from);
  // An operation in flight is in every window that reaches back to the wait, by this rank's clock.
  const auto kept = [&] {
    return e.holes.only_active ||
           (!e.records.empty() &&
            e.records.front().time <
                p.since + clock_offset(c, slots, p.waits.front().evidence, evidence).ns);
  };
  return lane != nullptr                       ? known(lane->enqueued)
         : e.losses.lanes_lost != 0 && !kept() ? std::nullopt
                                               : known(0);
}

bool is_guessed(const Case& c, const Pending& p) {
  const Group& g = c.groups[idx(p.group)];
  for (const Rank r : {p.from, p.to}) {
    const auto at = g.position.find(r);
    const int i =
        p.kind != Kind::kCollective && at != g.position.end() ? g.evidence[idx(at->second)] : -1;
    const bool send = r == p.from;
    const LaneEvidence* lane =
        i < 0 ? nullptr
              : lane_of(c.evidence_of(i), g, g.row[idx(at->second)], send, send ? p.to : p.from);
    if (lane != nullptr && lane->guessed) {
      return true;
    }
  }
  return false;
}

// The record of the other end of a send or receive; nullptr: not kept.
const Record* other_end(const Case& c, const Pending& p, const Group& g, std::size_t member) {
  const RankEvidence& e = c.evidence_of(g.evidence[member]);
  const Rank own = g.ranks[member];
  const Kind kind = p.from == own ? Kind::kSend : Kind::kRecv;
  const Rank other = p.from == own ? p.to : p.from;
  return e.last_record([&](const Record& r) {
    return r.kind == kind && r.seq == p.seq && static_cast<int>(r.group) == g.row[member] &&
           r.peer >= 0 && r.peer < static_cast<int>(g.ranks.size()) &&
           g.ranks[idx(r.peer)] == other;
  });
}

// The last operation, not before number `least`, that the member is known to have left and that no
// member leaves before all have entered it; 0: none. Sets `when` to its end.
std::uint64_t left_together(const Case& c, const Group& g, std::size_t member, std::uint64_t least,
                            Time& when) {
  const GroupEvidence* e = c.member(g, member);
  if (e == nullptr || e->completed < least) {
    return 0;
  }
  const RankEvidence& evidence = c.evidence_of(g.evidence[member]);
  for (auto it = evidence.records.rbegin(); it != evidence.records.rend(); ++it) {
    if (it->kind == Kind::kCollective && static_cast<int>(it->group) == g.row[member] &&
        it->seq >= least && it->seq <= e->completed && it->state == State::kCompleted &&
        meets_all(evidence.text(it->op))) {
      when = it->ended != 0 ? it->ended : e->completed_time;
      return it->seq;
    }
  }
  return 0;
}

// The same by files that keep only operations in flight: one member completed the operation and
// another member still holds it.
std::uint64_t left_by_counters(const Case& c, const Group& g) {
  std::uint64_t completed = 0, left = 0;
  for (std::size_t i = 0; i < g.ranks.size(); ++i) {
    const GroupEvidence* e = c.member(g, i);
    const bool counts = e != nullptr && c.evidence_of(g.evidence[i]).holes.only_active;
    completed = std::max(completed, counts ? e->completed : 0);
  }
  if (completed == 0 || g.is_gloo()) {
    return 0;
  }
  for (std::size_t i = 0; i < g.ranks.size(); ++i) {
    if (c.member(g, i) == nullptr) {
      continue;
    }
    const RankEvidence& e = c.evidence_of(g.evidence[i]);
    for (const Record& r : e.records) {
      if (r.kind == Kind::kCollective && static_cast<int>(r.group) == g.row[i] &&
          r.seq <= completed && meets_all(e.text(r.op))) {
        left = std::max(left, r.seq);
      }
    }
  }
  return left;
}

// The file was written before the rank's first operation.
bool is_blank(const RankEvidence& e) {
  return !e.format.empty() && e.records.empty() && e.groups.size() <= 1;
}

}  // namespace

std::string tag_of(const RankEvidence& e, const Record& r) {
  const ThreadStack* t = blocks(r) ? thread_of(e.threads, static_cast<int>(r.tid)) : nullptr;
  if (t == nullptr) {
    return "";
  }
  for (const FrameVariables& v : t->variables) {
    const std::string& in = e.threads.frames[t->stack[v.frame]].function;
    for (const auto& [name, value] : v.values) {
      if (name == "tag" && (in.ends_with("send") || in.ends_with("recv"))) {
        return value;
      }
    }
  }
  return "";
}

std::vector<bool> stale_evidence(const Case& c) {
  std::vector<bool> stale(c.ranks.size(), false);
  for (const Group& g : c.groups) {
    // PyTorch records the end of a gloo operation alike whether it succeeded or not.
    const bool gloo = g.is_gloo();
    bool blank = false;
    const auto enqueued = [&](std::size_t i) -> std::optional<std::uint64_t> {
      if (const GroupEvidence* e = c.member(g, i)) {
        return e->enqueued;
      }
      const bool own = g.evidence[i] >= 0 && is_blank(c.evidence_of(g.evidence[i]));
      blank = blank || own;
      return own ? std::optional<std::uint64_t>(0) : std::nullopt;
    };
    std::uint64_t left = 0, least = UINT64_MAX;
    for (std::size_t i = 0; i < g.ranks.size(); ++i) {
      least = std::min(least, enqueued(i).value_or(UINT64_MAX));
    }
    for (std::size_t i = 0; i < g.ranks.size(); ++i) {
      const GroupEvidence* e = c.member(g, i);
      // NCCL runs no operation of a group before all members have joined to make the communicator.
      left = std::max(left, std::uint64_t{blank && !gloo && e != nullptr && e->completed != 0});
      if (e != nullptr && e->completed > std::max(least, left) &&
          !(gloo && !c.evidence_of(g.evidence[i]).format.empty())) {
        Time when = 0;
        left = std::max(left, left_together(c, g, i, least + 1, when));
      }
    }
    left = std::max(left, left_by_counters(c, g));
    for (std::size_t i = 0; i < g.ranks.size() && left != 0; ++i) {
      const auto own = enqueued(i);
      if (own && *own < left && !c.evidence_of(g.evidence[i]).holes.frontiers_at_least) {
        stale[idx(g.evidence[i])] = true;
      }
    }
  }
  // Evidence that lacks a send which another rank has received is stale, too.
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    for (const LaneEvidence& got : c.ranks[i]->lanes) {
      const int at = c.group_at(static_cast<int>(i), got.group);
      if (got.send || got.relative || got.peer < 0 || at < 0) {
        continue;
      }
      const Group& g = c.groups[idx(at)];
      const auto from = idx(got.peer);
      if (from >= g.ranks.size() || g.evidence[from] < 0 || g.row[from] < 0) {
        continue;
      }
      const RankEvidence& sender = c.evidence_of(g.evidence[from]);
      const LaneEvidence* sent = lane_of(sender, g, g.row[from], true, c.ranks[i]->id.rank);
      const bool whole = !sender.holes.relative_p2p && !sender.holes.frontiers_at_least;
      if (whole && got.completed > (sent != nullptr ? sent->enqueued : 0)) {
        stale[idx(g.evidence[from])] = true;
      }
    }
  }
  return stale;
}

bool is_early(const Case& c, const std::vector<Slots>& slots, const Pending& p, int evidence) {
  const RankEvidence& e = c.evidence_of(evidence);
  // Comparing clocks is slow, so it is done only for files that are far apart.
  const auto waits = std::span(p.waits).first(std::min(p.waits.size(), limits::kPeers));
  return !e.format.empty() && !e.holes.written_guessed &&
         std::ranges::any_of(waits, [&](const Wait& w) {
           if (seconds_between(e.written, w.until) < limits::kStaleApart_s / 2) {
             return false;
           }
           const Offset offset = clock_offset(c, slots, w.evidence, evidence);
           return w.since + offset.ns + offset.error <= e.written &&
                  seconds_between(e.written, w.until + offset.ns - offset.error) >=
                      limits::kStaleApart_s;
         });
}

bool Attendance::is_first(const Seen& s) const {
  const auto& records = c_.evidence_of(s.evidence).records;
  return fronts_[idx(s.evidence)].holds(static_cast<std::size_t>(s.record - records.data()));
}

// The evidence was taken long enough after `since` to mean anything.
bool Attendance::is_late(const Seen& s, Time since) const {
  const RankEvidence& e = c_.evidence_of(s.evidence);
  return since == 0 || seconds_between(since, e.written) >= threshold_s_;
}

// The same, with `then` on the clock of another rank's evidence.
bool Attendance::is_late_after(const Seen& s, int other, Time then) const {
  const Offset offset = clock_offset(c_, slots_, other, s.evidence);
  return is_late(s, then + offset.ns + offset.error);
}

// The rank's device finished an operation just now, so it moves.
bool Attendance::ended_lately(const Seen& s) const {
  const RankEvidence& e = c_.evidence_of(s.evidence);
  return std::ranges::any_of(e.records, [&](const Record& r) {
    return r.ended != 0 && seconds_between(r.ended, e.written) < threshold_s_;
  });
}

// Some devices started the operation and others did not: finds the ranks that lag.
bool Attendance::lagging_starts(Pending& p, const Reached& at) const {
  std::pair<Time, int> since{0, -1};  // by the clock of that evidence
  bool first = true;
  for (const Seen& s : at.started) {
    // PyTorch sees that an operation in flight has started when it writes the file.
    const bool seen = c_.evidence_of(s.evidence).format.empty();
    since = std::max(since, {std::max(seen ? s.record->started : 0, s.record->time), s.evidence});
    first = first && is_first(s);
  }
  // If only a few started it, their evidence was taken later: the many are not behind the few.
  first = first && at.queued.size() <= at.started.size();
  for (const Seen& s : at.queued) {
    // An earlier operation of the rank holds it up, whenever its file was written.
    if (c_.evidence_of(s.evidence).holes.written_guessed && !first
            ? !is_first(s)
            : is_late_after(s, since.second, since.first) && !ended_lately(s)) {
      p.busy.push_back(s.evidence);
      if (is_first(s)) {  // else an earlier operation of its own holds it up
        p.lagging.push_back(s.evidence);
      }
    }
  }
  return true;
}

// Adds the ranks that issued it behind another operation.
void Attendance::add_queued(Pending& p) const {
  for (const Wait& w : p.waits) {
    if (w.record != kNoRecord && !w.failed &&
        !is_first({w.evidence, &c_.evidence_of(w.evidence).records[w.record]})) {
      p.busy.push_back(w.evidence);
    }
  }
}

// One device alone did not start an operation that several others started. A member that did not
// issue it, or left no evidence, cannot have held up that device.
void Attendance::lags_beside_unknown(Pending& p) const {
  Reached at;
  for (const Wait& w : p.waits) {
    if (p.kind == Kind::kCollective && w.record != kNoRecord) {
      at.add(w.evidence, c_.evidence_of(w.evidence).records[w.record]);
    }
  }
  if (at.queued.size() == 1 && at.started.size() > 1 && is_first(at.queued.front())) {
    p.starts_seen = lagging_starts(p, at);
  }
}

bool Attendance::has_left(const Pending& p, const Group& g, std::size_t member, Time& when) const {
  const GroupEvidence* e = c_.member(g, member);
  return e != nullptr && !p.waits_here(g.evidence[member]) &&
         (left_together(c_, g, member, p.seq, when) != 0 || e->completed >= p.seq);
}

// By the rank's own clock, its evidence was taken after the other rank's end (time 0: not dated).
bool Attendance::is_after(const Seen& s, const std::pair<int, Time>& end) const {
  const RankEvidence& own = c_.evidence_of(s.evidence);
  const double least_s = own.format.empty() ? threshold_s_ : limits::kLag_s;
  const bool guessed = own.holes.written_guessed;
  const bool old = guessed || seconds_between(s.record->time, own.written) >= least_s;
  if (guessed || !old || end.second == 0) {
    return old;
  }
  return is_late_after(s, end.first, end.second);
}

// Other members ended it, or a later operation that no member ends without all. A member that has
// it pending is behind with its device or with the thread that observes it. A completion is seen by
// a poll, so this holds only for evidence taken later than the others' end. False: evidence of
// different instants explains all of it.
bool Attendance::lagging_ends(Pending& p, const std::vector<Seen>& all) const {
  const Group& g = c_.groups[idx(p.group)];
  std::vector<std::pair<int, Time>> ended;  // evidence, its end by its clock (0: unknown)
  bool released = false;
  bool met = meets_all(c_.evidence_of(all.front().evidence).text(all.front().record->op));
  for (std::size_t i = 0; i < g.ranks.size(); ++i) {
    const GroupEvidence* e = c_.member(g, i);
    if (e == nullptr || p.waits_here(g.evidence[i])) {
      continue;
    }
    Time when = 0;
    if (has_left(p, g, i, when)) {
      ended.emplace_back(g.evidence[i], when != 0 ? when : e->completed_time);
      met = met || left_together(c_, g, i, p.seq, when) != 0;
    }
    released = released || (e->completed < p.seq && e->released != 0);
  }
  // A dated end can be compared: operations that both ranks left together relate their clocks.
  const auto dated = std::ranges::find_if(ended, [](const auto& x) { return x.second != 0; });
  // If not all members have to meet, a member is behind if it did not start an operation that
  // others ended, or if it alone did not end an operation that all others ended.
  const bool alone =
      all.size() == 1 && ended.size() + 1 == g.ranks.size() && ended.size() >= limits::kEndedByAll;
  for (const Seen& s : all) {
    const bool unstarted = s.record->state != State::kStarted && tells_starts(s.evidence);
    const bool behind = met || (is_first(s) && (alone || unstarted));
    if (!ended.empty() && behind && !stale_[idx(s.evidence)] &&
        is_after(s, dated != ended.end() ? *dated : ended.front())) {
      p.busy.push_back(s.evidence);
      p.lagging.push_back(s.evidence);
    }
  }
  return released || !met || !p.lagging.empty();
}

void Attendance::compare_ends(Pending& p, std::size_t other, const Record& its) const {
  if (p.waits.empty() || p.waits.front().record == kNoRecord) {
    return;
  }
  const Group& g = c_.groups[idx(p.group)];
  const int mine = p.waits.front().evidence, theirs = g.evidence[other];
  const Record& own = c_.evidence_of(mine).records[p.waits.front().record];
  const bool sends = p.kind == Kind::kSend;
  const Record& send = sends ? own : its;
  const Record& recv = sends ? its : own;
  const RankEvidence& sender = c_.evidence_of(sends ? mine : theirs);
  const RankEvidence& receiver = c_.evidence_of(sends ? theirs : mine);
  const std::uint64_t sent = send.in_numel != 0 ? send.in_numel : send.out_numel;
  const std::uint64_t room = recv.out_numel != 0 ? recv.out_numel : recv.in_numel;
  const auto type = [](const RankEvidence& e, Id first, Id second) {
    return e.text(first != 0 ? first : second);
  };
  const std::string_view sent_type = type(sender, send.in_dtype, send.out_dtype);
  const std::string_view room_type = type(receiver, recv.out_dtype, recv.in_dtype);
  const bool size = sent != 0 && room != 0 && sent != room;
  const bool dtype = !sent_type.empty() && !room_type.empty() && sent_type != room_type;
  std::string sent_tag, recv_tag;
  if (!size && !dtype && g.is_gloo()) {
    sent_tag = tag_of(sender, send);
    recv_tag = tag_of(receiver, recv);
  }
  const bool tags = !sent_tag.empty() && !recv_tag.empty() && sent_tag != recv_tag;
  if (size || dtype || tags) {
    p.unequal = Unequal{sends ? mine : theirs,   sends ? theirs : mine, sender.index_of(send),
                        receiver.index_of(recv), !size && dtype,        std::move(sent_tag),
                        std::move(recv_tag)};
  }
}

// PyTorch records the start of an operation only if it is asked to.
bool Attendance::tells_starts(int evidence) const {
  return std::ranges::any_of(c_.evidence_of(evidence).records,
                             [](const Record& r) { return r.started != 0; });
}

// Adds the other end of a message if it is pending, too. Else finds out whether the other end is
// over, and whether the message is in transit.
void Attendance::meet_other_end(Pending& p, Reached& at, bool in_order) const {
  const Group& g = c_.groups[idx(p.group)];
  const Rank waiter = p.kind == Kind::kSend ? p.from : p.to;
  const auto other = idx(g.position.at(waiter == p.from ? p.to : p.from));
  const Record* r = g.evidence[other] >= 0 ? other_end(c_, p, g, other) : nullptr;
  if (r != nullptr && blocks(*r)) {
    at.add(g.evidence[other], *r);
  }
  // gloo completes a send that does not fit.
  p.passed = r != nullptr && r->state == State::kCompleted;
  if (r != nullptr && !p.numbers_guessed) {
    compare_ends(p, other, *r);
    p.passed = p.passed && !p.unequal;
    const Seen own = at.queued.empty() ? at.started.front() : at.queued.front();
    const auto whole = [&](int i) {  // it counts messages from the first, and is not truncated
      const Holes& holes = c_.evidence_of(i).holes;
      return !holes.relative_p2p && !holes.truncated;
    };
    // With nothing ahead on its stream, only the device of this end can be behind. But a message
    // may be on its way while the receiver's device runs.
    if (p.passed && in_order && is_first(own) && whole(own.evidence) && whole(g.evidence[other]) &&
        is_after(own, {g.evidence[other], r->ended})) {
      p.in_transit = p.kind == Kind::kRecv && (!at.started.empty() || !tells_starts(own.evidence));
      if (!p.in_transit) {
        at = {};
        p.busy = p.lagging = {own.evidence};
      }
    }
  }
}

// The record is overwritten, and by the counters all other members have ended the operation.
void Attendance::lags_overwritten(Pending& p) const {
  const Group& g = c_.groups[idx(p.group)];
  const bool ended =
      std::ranges::all_of(std::views::iota(std::size_t{0}, g.ranks.size()), [&](std::size_t m) {
        const GroupEvidence* e = c_.member(g, m);
        return p.waits_here(g.evidence[m]) || (e != nullptr && e->completed >= p.seq);
      });
  const Wait& w = p.waits.front();
  if (p.kind == Kind::kCollective && runs_in_order(c_, p) && p.waits.size() == 1 && ended &&
      g.ranks.size() > limits::kEndedByAll && seconds_between(w.since, w.until) >= limits::kLag_s) {
    p.busy.push_back(w.evidence);
    p.lagging.push_back(w.evidence);
  }
}

// All members issued it. False: the waits come only from evidence taken before the others'.
bool Attendance::came_all(Pending& p, const std::vector<int>& earlier) const {
  const Group& g = c_.groups[idx(p.group)];
  Reached at;
  for (const Wait& w : p.waits) {
    if (w.record == kNoRecord) {
      lags_overwritten(p);
      return true;
    }
    at.add(w.evidence, c_.evidence_of(w.evidence).records[w.record]);
  }
  const bool in_order = runs_in_order(c_, p);
  std::size_t members = g.ranks.size();
  if (p.kind != Kind::kCollective) {
    members = 2;
    meet_other_end(p, at, in_order);
  }
  p.starts_seen = !at.started.empty();
  std::vector<Seen> all = at.queued;
  all.insert(all.end(), at.started.begin(), at.started.end());
  const std::size_t waiting = all.size() + earlier.size();
  p.busy.insert(p.busy.end(), earlier.begin(), earlier.end());
  if (p.kind == Kind::kCollective && waiting < members && in_order) {
    // Some members left it, so the remaining waits may come from older evidence.
    const bool holds = lagging_ends(p, all);
    if (p.lagging.empty()) {
      add_queued(p);
    }
    return holds;
  }
  if (p.kind == Kind::kCollective && !in_order && waiting < members) {
    for (std::size_t i = 0; i < g.ranks.size(); ++i) {
      Time when = 0;
      if (!p.waits_here(g.evidence[i]) && left_together(c_, g, i, p.seq + 1, when) != 0) {
        return false;
      }
    }
  }
  // The last member issued it only just now, and no file taken later shows that it stays.
  if (p.kind == Kind::kCollective && std::ranges::any_of(all, [&](const Seen& last) {
        return !c_.evidence_of(last.evidence).holes.written_guessed && is_first(last) &&
               !is_late(last, last.record->time) && std::ranges::none_of(all, [&](const Seen& s) {
                 return is_late(s, s.record->time) &&
                        is_late_after(s, last.evidence, last.record->time);
               });
      })) {
    return false;
  }
  if (!at.started.empty() && !at.queued.empty()) {
    return lagging_starts(p, at);
  }
  for (const Seen& s : at.queued) {
    if (!is_first(s)) {
      p.busy.push_back(s.evidence);
    }
  }
  return true;
}

// A member has left an operation that no member leaves before all have entered it, so members
// without evidence entered it, too.
bool Attendance::was_entered_by_all(const Pending& p) const {
  const Wait& w = p.waits.front();
  const RankEvidence& e = c_.evidence_of(w.evidence);
  if (p.kind != Kind::kCollective || w.record == kNoRecord ||
      !meets_all(e.text(e.records[w.record].op))) {
    return false;
  }
  const Group& g = c_.groups[idx(p.group)];
  for (std::size_t i = 0; i < g.ranks.size(); ++i) {
    Time when = 0;
    if (has_left(p, g, i, when)) {
      return true;
    }
  }
  return false;
}

bool Attendance::fill(Pending& p, const std::vector<int>& earlier) const {
  const Group& g = c_.groups[idx(p.group)];
  bool failed = false;
  double lasted_s = 0;  // the longest wait, each by its own clock: clocks of hosts may differ
  std::set<int> waiting;
  for (const Wait& w : p.waits) {
    p.since = p.since == 0 ? w.since : std::min(p.since, w.since);
    lasted_s = std::max(lasted_s, seconds_between(w.since, std::min(w.until, told_)));
    waiting.insert(w.evidence);
    failed = failed || (w.failed && w.until < told_);
  }
  std::vector<std::size_t> members;
  p.numbers_guessed = is_guessed(c_, p);
  if (p.kind == Kind::kCollective) {
    for (std::size_t i = 0; i < g.ranks.size(); ++i) {
      members.push_back(i);
    }
  } else {
    const Rank other = p.kind == Kind::kSend ? p.to : p.from;
    members.push_back(idx(g.position.at(other)));
  }
  const bool old_enough = lasted_s >= threshold_s_ || failed;
  bool young = false;
  for (const std::size_t member : members) {
    const int evidence = g.evidence[member];
    if (evidence >= 0 && waiting.contains(evidence)) {
      continue;
    }
    const auto reached = frontier(c_, slots_, p, g, member);
    if (!reached) {
      p.unknown.push_back(g.ranks[member]);
    } else if (*reached < p.seq) {
      const RankEvidence& e = c_.evidence_of(evidence);
      const bool ended = exits_[idx(evidence)].ended();
      if (stale_[idx(evidence)]) {
        p.stale.push_back(evidence);
      } else if (!old_enough) {
        young = true;
      } else if (ended || failed || e.written == 0 ||
                 seconds_between(p.since, e.written) >= threshold_s_ ||
                 is_early(c_, slots_, p, evidence)) {
        p.absent.push_back(evidence);
      } else {
        p.stale.push_back(evidence);
      }
    }
  }
  if ((!p.unknown.empty() || !p.stale.empty()) && was_entered_by_all(p)) {
    p.unknown.clear();
    p.stale.clear();
  }
  p.complete = p.absent.empty() && p.unknown.empty() && p.stale.empty() && !young;
  if (!p.complete && !young && old_enough && !failed) {
    lags_beside_unknown(p);
  }
  if (!p.complete && runs_in_order(c_, p)) {
    add_queued(p);
    p.busy.insert(p.busy.end(), earlier.begin(), earlier.end());
  }
  if (p.complete && !failed && !came_all(p, earlier)) {
    return false;
  }
  return old_enough && (!p.absent.empty() || !p.unknown.empty() || !p.stale.empty() || p.complete);
}

}  // namespace frtrace
