// Pending operations, and which of their members came.
#include "facts/pending.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "facts/limits.hpp"
#include "model/operation.hpp"

namespace frtrace {

double Pending::seconds() const {
  double longest = 0;
  for (const Wait& w : waits) {
    longest = std::max(longest, seconds_between(w.since, w.until));
  }
  return longest;
}

bool Pending::waits_here(int evidence) const {
  return std::any_of(waits.begin(), waits.end(),
                     [&](const Wait& w) { return w.evidence == evidence; });
}

Front front_of(const RankEvidence& e) {
  const auto it = std::find_if(e.records.begin(), e.records.end(), blocks);
  if (it == e.records.end()) {
    return {};
  }
  Front f;
  f.first = f.last = static_cast<std::size_t>(it - e.records.begin());
  const auto together = [&](const Record& r) {
    if (!is_p2p(r) || r.group != it->group) {
      return false;
    }
    return it->batch != 0 || !e.format.empty()
               ? r.batch == it->batch && r.batch != 0
               : r.stack == it->stack && std::abs(r.time - it->time) <= limits::kTogether_ns;
  };
  // A batch moves at most one message each way with a peer.
  const auto again = [&](const Record& r) {
    for (std::size_t k = f.first; k <= f.last; ++k) {
      if (e.records[k].kind == r.kind && e.records[k].peer == r.peer) {
        return it->batch == 0;
      }
    }
    return false;
  };
  while (is_p2p(*it) && f.last + 1 < e.records.size() && together(e.records[f.last + 1]) &&
         !again(e.records[f.last + 1])) {
    ++f.last;
  }
  // It was issued first, and another came before it on its stream.
  if (const auto queued = device_operation(e, f.first)) {
    if (const auto busy = stream_busy_with(e, *queued)) {
      const std::size_t r = record_of(e, e.device.operations[*busy]);
      if (r != kNoRecord && !f.holds(r) && blocks(e.records[r])) {
        f.first = f.last = r;
      }
    }
  }
  return f;
}

bool runs_in_order(const Case& c, const Pending& p) {
  return c.groups[static_cast<std::size_t>(p.group)].backend.find("gloo") == std::string::npos;
}

namespace {

// Collects waits by operation.
class Collector {
 public:
  explicit Collector(const Case& c) : c_(c) {}

  void add(int evidence) {
    const std::size_t i = static_cast<std::size_t>(evidence);
    const RankEvidence& e = *c_.ranks[i];
    found_.assign(e.groups.size(), 0);
    Time before = 0;  // when the last of the operations issued so far ended
    for (std::size_t r = 0; r < e.records.size(); ++r) {
      const Record& record = e.records[r];
      before = std::max(before, record.state == State::kCompleted ? record.ended : 0);
      const int group = c_.group_at(evidence, record.group);
      const bool failed = record.state == State::kFailed && communicates(record);
      if ((!blocks(record) && !failed) || group < 0) {
        continue;
      }
      const bool went_on = failed && record.kind == Kind::kCollective &&
                           e.groups[record.group].completed > record.seq;
      if (!went_on) {
        ++found_[record.group];
        add_record(evidence, r, before, failed, group);
      }
    }
    add_overwritten(evidence);
    add_cut_lanes(evidence);
  }

  void add_hidden(const HiddenFailure& f) {
    const RankEvidence& e = c_.evidence_of(f.evidence);
    const Record& record = e.records[f.record];
    const int group = c_.group_of[static_cast<std::size_t>(f.evidence)][record.group];
    put({group, Kind::kCollective, record.seq, -1, -1},
        {f.evidence, f.record, record.time, e.written, true, false});
  }

  std::vector<Pending> take() {
    std::sort(out_.begin(), out_.end(), [](const Pending& a, const Pending& b) {
      return std::tie(a.group, a.kind, a.seq, a.from, a.to) <
             std::tie(b.group, b.kind, b.seq, b.from, b.to);
    });
    return std::move(out_);
  }

 private:
  using Key = std::tuple<int, Kind, std::uint64_t, Rank, Rank>;

  void put(const Key& key, const Wait& w) {
    const auto [it, added] = index_.try_emplace(key, out_.size());
    if (added) {
      Pending p;
      std::tie(p.group, p.kind, p.seq, p.from, p.to) = key;
      out_.push_back(std::move(p));
    }
    out_[it->second].waits.push_back(w);
  }

  void add_record(int evidence, std::size_t r, Time before, bool failed, int group) {
    const RankEvidence& e = c_.evidence_of(evidence);
    const Record& record = e.records[r];
    Wait w;
    w.evidence = evidence;
    w.record = r;
    w.since = record.state == State::kWaiting && record.started != 0 ? record.started : record.time;
    // Queued behind what was still running: it has waited since that ended.
    w.since = before != 0 && before < e.written ? std::max(w.since, before) : w.since;
    w.until = failed && record.ended != 0 ? record.ended : e.written;
    w.failed = failed;
    w.own_error = failed && record.error != 0 && !is_consequence(e.text(record.error));
    if (record.kind == Kind::kCollective) {
      put({group, Kind::kCollective, record.seq, -1, -1}, w);
      return;
    }
    const Group& g = c_.groups[static_cast<std::size_t>(group)];
    if (record.peer < 0 || record.peer >= static_cast<int>(g.ranks.size()) || !g.ranks_known) {
      return;  // from any rank
    }
    const Rank peer = g.ranks[static_cast<std::size_t>(record.peer)];
    if (peer == e.id.rank) {
      return;  // to itself
    }
    const bool send = record.kind == Kind::kSend;
    put({group, record.kind, record.seq, send ? e.id.rank : peer, send ? peer : e.id.rank}, w);
  }

  // In flight by the group's counters, its record overwritten since.
  void add_overwritten(int evidence) {
    const std::size_t i = static_cast<std::size_t>(evidence);
    const RankEvidence& e = *c_.ranks[i];
    for (std::size_t row = 1; row < e.groups.size(); ++row) {
      const GroupEvidence& own = e.groups[row];
      const int group = c_.group_of[i][row];
      const bool in_flight = own.enqueued > own.ended && own.completed < own.enqueued;
      const bool kept = own.kept != 0 && own.completed + 1 >= own.first_kept;
      if (group < 0 || found_[row] != 0 || own.untracked != 0 || own.wait_only != 0 ||
          own.overwritten == 0 || !in_flight || kept) {
        continue;
      }
      const Time since = own.completed_time != 0 ? own.completed_time : own.enqueued_time;
      put({group, Kind::kCollective, own.completed + 1, -1, -1},
          {evidence, kNoRecord, since, e.written, false, false});
    }
  }

  // Likewise a send or receive whose record is behind the end of a file that was cut off.
  void add_cut_lanes(int evidence) {
    const std::size_t i = static_cast<std::size_t>(evidence);
    const RankEvidence& e = *c_.ranks[i];
    for (const LaneEvidence& lane : e.lanes) {
      const int group = c_.group_at(evidence, lane.group);
      if (!e.holes.truncated || group < 0 || lane.enqueued <= lane.ended || lane.peer < 0) {
        continue;
      }
      const GroupEvidence& own = e.groups[lane.group];
      const Group& g = c_.groups[static_cast<std::size_t>(group)];
      if (found_[lane.group] != 0 || own.untracked != 0 || own.wait_only > own.wait_only_ended ||
          !g.ranks_known || lane.peer >= static_cast<int>(g.ranks.size())) {
        continue;
      }
      const Rank peer = g.ranks[static_cast<std::size_t>(lane.peer)];
      put({group, lane.send ? Kind::kSend : Kind::kRecv, lane.ended + 1,
           lane.send ? e.id.rank : peer, lane.send ? peer : e.id.rank},
          {evidence, kNoRecord, lane.enqueued_time, e.written, false, false});
    }
  }

  const Case& c_;
  std::map<Key, std::size_t> index_;
  std::vector<Pending> out_;
  std::vector<std::uint64_t> found_;  // pending records of the rank at hand, by row
};

const LaneEvidence* lane_of(const RankEvidence& e, const Group& g, int row, bool send, Rank other) {
  for (const LaneEvidence& lane : e.lanes) {
    if (static_cast<int>(lane.group) == row && lane.send == send && lane.peer >= 0 &&
        lane.peer < static_cast<int>(g.ranks.size()) &&
        g.ranks[static_cast<std::size_t>(lane.peer)] == other) {
      return &lane;
    }
  }
  return nullptr;
}

// How far a member got in what the pending operation counts; nullopt: its evidence does not tell.
std::optional<std::uint64_t> frontier(const Case& c, const Pending& p, const Group& g,
                                      std::size_t member) {
  const int evidence = g.evidence[member];
  if (evidence < 0) {
    return std::nullopt;
  }
  const RankEvidence& e = c.evidence_of(evidence);
  // Of a file that was cut off the counters are lower bounds.
  const auto known = [&](std::uint64_t n) {
    return e.holes.frontiers_at_least && n < p.seq ? std::nullopt : std::optional<std::uint64_t>(n);
  };
  if (g.row[member] < 0) {
    return e.losses.may_have_had_other_groups() ? std::nullopt : known(0);
  }
  if (p.kind == Kind::kCollective) {
    return known(c.member(g, member)->enqueued);
  }
  const bool send = p.from == g.ranks[member];
  const LaneEvidence* lane = lane_of(e, g, g.row[member], send, send ? p.to : p.from);
  // What is in flight is in every window that reaches back to the wait.
  const bool kept = e.holes.only_active || (!e.records.empty() && e.records.front().time < p.since);
  return lane != nullptr                     ? known(lane->enqueued)
         : e.losses.lanes_lost != 0 && !kept ? std::nullopt
                                             : known(0);
}

// The record of the other end of a send or receive, nullptr when not kept.
const Record* other_end(const Case& c, const Pending& p, const Group& g, std::size_t member) {
  const RankEvidence& e = c.evidence_of(g.evidence[member]);
  const Rank own = g.ranks[member];
  const Kind kind = p.from == own ? Kind::kSend : Kind::kRecv;
  const Rank other = p.from == own ? p.to : p.from;
  for (auto it = e.records.rbegin(); it != e.records.rend(); ++it) {
    if (it->kind == kind && it->seq == p.seq && static_cast<int>(it->group) == g.row[member] &&
        it->peer >= 0 && it->peer < static_cast<int>(g.ranks.size()) &&
        g.ranks[static_cast<std::size_t>(it->peer)] == other) {
      return &*it;
    }
  }
  return nullptr;
}

// The highest number that the member is known to have left in an operation that no member leaves
// before all have entered it; 0: none.
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

// Written before its first operation.
bool is_blank(const RankEvidence& e) {
  return !e.format.empty() && e.records.empty() && e.groups.size() <= 1;
}

}  // namespace

std::vector<bool> stale_evidence(const Case& c) {
  std::vector<bool> stale(c.ranks.size(), false);
  for (const Group& g : c.groups) {
    // PyTorch's records of gloo end alike whether an operation succeeded or not.
    const bool gloo = g.backend.find("gloo") != std::string::npos;
    const auto enqueued = [&](std::size_t i) -> std::optional<std::uint64_t> {
      if (const GroupEvidence* e = c.member(g, i)) {
        return e->enqueued;
      }
      const bool blank = g.evidence[i] >= 0 && is_blank(c.evidence_of(g.evidence[i]));
      return blank ? std::optional<std::uint64_t>(0) : std::nullopt;
    };
    std::uint64_t left = 0, least = UINT64_MAX;
    for (std::size_t i = 0; i < g.ranks.size(); ++i) {
      least = std::min(least, enqueued(i).value_or(UINT64_MAX));
    }
    for (std::size_t i = 0; i < g.ranks.size(); ++i) {
      const GroupEvidence* e = c.member(g, i);
      if (e != nullptr && e->completed > std::max(least, left) &&
          !(gloo && !c.evidence_of(g.evidence[i]).format.empty())) {
        Time when = 0;
        left = std::max(left, left_together(c, g, i, least + 1, when));
      }
    }
    for (std::size_t i = 0; i < g.ranks.size() && left != 0; ++i) {
      const auto own = enqueued(i);
      if (own && *own < left && !c.evidence_of(g.evidence[i]).holes.frontiers_at_least) {
        stale[static_cast<std::size_t>(g.evidence[i])] = true;
      }
    }
  }
  return stale;
}

std::vector<Pending> pending_operations(const Case& c, const std::vector<HiddenFailure>& hidden) {
  Collector all(c);
  for (int i = 0; i < static_cast<int>(c.ranks.size()); ++i) {
    all.add(i);
  }
  for (const HiddenFailure& f : hidden) {
    all.add_hidden(f);
  }
  return all.take();
}

bool Attendance::is_first(const Seen& s) const {
  const auto& records = c_.evidence_of(s.evidence).records;
  return fronts_[static_cast<std::size_t>(s.evidence)].holds(
      static_cast<std::size_t>(s.record - records.data()));
}

// Its evidence was taken long enough after `since` to mean anything.
bool Attendance::is_late(const Seen& s, Time since) const {
  const RankEvidence& e = c_.evidence_of(s.evidence);
  return since == 0 || seconds_between(since, e.written) >= threshold_s_;
}

// Its device finished something just now: it moves.
bool Attendance::ended_lately(const Seen& s) const {
  const RankEvidence& e = c_.evidence_of(s.evidence);
  return std::any_of(e.records.begin(), e.records.end(), [&](const Record& r) {
    return r.ended != 0 && seconds_between(r.ended, e.written) < threshold_s_;
  });
}

// Some devices started it and others did not get to it.
bool Attendance::lagging_starts(Pending& p, const Reached& at) const {
  Time since = 0;
  bool first = true;
  for (const Seen& s : at.started) {
    // PyTorch sees that one in flight has started when it writes the file.
    const bool seen = c_.evidence_of(s.evidence).format.empty();
    since = std::max({since, seen ? s.record->started : 0, s.record->time});
    first = first && is_first(s);
  }
  // The many are not behind the few: the few were looked at later.
  if (at.queued.size() > at.started.size() &&
      c_.evidence_of(at.queued.front().evidence).holes.written_guessed) {
    return true;
  }
  for (const Seen& s : at.queued) {
    const bool guessed = c_.evidence_of(s.evidence).holes.written_guessed && !first;
    if (is_late(s, since) && !guessed && !ended_lately(s)) {
      p.busy.push_back(s.evidence);
      if (is_first(s)) {  // else something earlier of its own holds it up
        p.lagging.push_back(s.evidence);
      }
    }
  }
  return true;
}

// One device alone did not get to what several others started: nothing that a member without
// evidence did or left out holds it up.
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

// Others ended it, or something later that nobody ends without all: whoever has it pending is
// behind with its device or with the thread that observes it. A completion is seen by a poll, so
// this holds only for evidence that was taken later than the others' end. False: all of it is
// explained by evidence of different instants.
bool Attendance::lagging_ends(Pending& p, const std::vector<Seen>& all) const {
  const Group& g = c_.groups[static_cast<std::size_t>(p.group)];
  std::vector<std::pair<int, Time>> ended;  // evidence, when by its clock; 0 unknown
  bool released = false;
  for (std::size_t i = 0; i < g.ranks.size(); ++i) {
    const GroupEvidence* e = c_.member(g, i);
    if (e == nullptr || p.waits_here(g.evidence[i])) {
      continue;
    }
    Time when = 0;
    if (has_left(p, g, i, when)) {
      ended.emplace_back(g.evidence[i], when != 0 ? when : e->completed_time);
    }
    released = released || (e->completed < p.seq && e->released != 0);
  }
  for (const Seen& s : all) {
    const RankEvidence& own = c_.evidence_of(s.evidence);
    const double least_s = own.format.empty() ? threshold_s_ : limits::kLag_s;
    const bool old =
        own.holes.written_guessed || seconds_between(s.record->time, own.written) >= least_s;
    // By the clock of the rank itself; the others' ends are dated by what the two left together.
    const auto dated =
        std::find_if(ended.begin(), ended.end(), [](const auto& x) { return x.second != 0; });
    bool late = old && !ended.empty();
    if (late && dated != ended.end() && !own.holes.written_guessed) {
      const Offset offset = clock_offset(c_, slots_, dated->first, s.evidence);
      late = is_late(s, dated->second + offset.ns + offset.error);
    }
    if (late) {
      p.busy.push_back(s.evidence);
      p.lagging.push_back(s.evidence);
    }
  }
  // Who started it waits for who did not.
  const auto started = [&](int i) {
    return std::any_of(all.begin(), all.end(), [&](const Seen& s) {
      return s.evidence == i && s.record->state == State::kStarted;
    });
  };
  if (p.starts_seen && !std::all_of(p.lagging.begin(), p.lagging.end(), started)) {
    std::erase_if(p.lagging, started);
    std::erase_if(p.busy, started);
  }
  // The many are not behind the few: the few were looked at later.
  if (p.lagging.size() > ended.size() &&
      c_.evidence_of(all.front().evidence).holes.written_guessed) {
    p.busy.clear();
    p.lagging.clear();
  }
  return released || !p.lagging.empty();
}

void Attendance::compare_ends(Pending& p, std::size_t other, const Record& its) const {
  if (p.waits.empty() || p.waits.front().record == kNoRecord) {
    return;
  }
  const Group& g = c_.groups[static_cast<std::size_t>(p.group)];
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
  if (size || dtype) {
    p.unequal = Unequal{sends ? mine : theirs, sends ? theirs : mine,
                        static_cast<std::size_t>(&send - sender.records.data()),
                        static_cast<std::size_t>(&recv - receiver.records.data()), !size};
  }
}

// All members issued it. False: the waits are only those of evidence taken before the others'.
bool Attendance::came_all(Pending& p, const std::vector<int>& earlier) const {
  const Group& g = c_.groups[static_cast<std::size_t>(p.group)];
  Reached at;
  for (const Wait& w : p.waits) {
    if (w.record == kNoRecord) {
      return true;
    }
    at.add(w.evidence, c_.evidence_of(w.evidence).records[w.record]);
  }
  std::size_t members = g.ranks.size();
  if (p.kind != Kind::kCollective) {
    members = 2;
    const Rank waiter = p.kind == Kind::kSend ? p.from : p.to;
    const auto other = static_cast<std::size_t>(g.position.at(waiter == p.from ? p.to : p.from));
    const Record* r = g.evidence[other] >= 0 ? other_end(c_, p, g, other) : nullptr;
    if (r != nullptr && blocks(*r)) {
      at.add(g.evidence[other], *r);
      compare_ends(p, other, *r);
    }
    p.passed = r != nullptr && r->state == State::kCompleted;
  }
  p.starts_seen = !at.started.empty();
  std::vector<Seen> all = at.queued;
  all.insert(all.end(), at.started.begin(), at.started.end());
  const bool in_order = runs_in_order(c_, p);
  const std::size_t waiting = all.size() + earlier.size();
  p.busy.insert(p.busy.end(), earlier.begin(), earlier.end());
  if (p.kind == Kind::kCollective && waiting < members && in_order) {
    if (lagging_ends(p, all)) {
      return true;
    }
    // Some members left it: what is left of the waits is older than that.
    return false;
  }
  if (p.kind == Kind::kCollective && !in_order && waiting < members) {
    for (std::size_t i = 0; i < g.ranks.size(); ++i) {
      Time when = 0;
      if (!p.waits_here(g.evidence[i]) && left_together(c_, g, i, p.seq + 1, when) != 0) {
        return false;
      }
    }
  }
  // The last one came only just now.
  if (p.kind == Kind::kCollective && std::any_of(all.begin(), all.end(), [&](const Seen& s) {
        return !c_.evidence_of(s.evidence).holes.written_guessed && is_first(s) &&
               !is_late(s, s.record->time);
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

// A member has left an operation that nobody leaves before all have entered it: those without
// evidence, too.
bool Attendance::was_entered_by_all(const Pending& p) const {
  const Wait& w = p.waits.front();
  const RankEvidence& e = c_.evidence_of(w.evidence);
  if (p.kind != Kind::kCollective || w.record == kNoRecord ||
      !meets_all(e.text(e.records[w.record].op))) {
    return false;
  }
  const Group& g = c_.groups[static_cast<std::size_t>(p.group)];
  for (std::size_t i = 0; i < g.ranks.size(); ++i) {
    Time when = 0;
    if (has_left(p, g, i, when)) {
      return true;
    }
  }
  return false;
}

bool Attendance::fill(Pending& p, const std::vector<int>& earlier) const {
  const Group& g = c_.groups[static_cast<std::size_t>(p.group)];
  bool failed = false;
  double lasted_s = 0;  // the longest, each by its own clock: those of hosts may be apart
  std::set<int> waiting;
  for (const Wait& w : p.waits) {
    p.since = p.since == 0 ? w.since : std::min(p.since, w.since);
    lasted_s = std::max(lasted_s, seconds_between(w.since, w.until));
    waiting.insert(w.evidence);
    failed = failed || w.failed;
  }
  std::vector<std::size_t> members;
  if (p.kind == Kind::kCollective) {
    for (std::size_t i = 0; i < g.ranks.size(); ++i) {
      members.push_back(i);
    }
  } else {
    const Rank other = p.kind == Kind::kSend ? p.to : p.from;
    members.push_back(static_cast<std::size_t>(g.position.at(other)));
  }
  const bool old_enough = lasted_s >= threshold_s_ || failed;
  bool young = false;
  for (const std::size_t member : members) {
    const int evidence = g.evidence[member];
    if (evidence >= 0 && waiting.contains(evidence)) {
      continue;
    }
    const auto reached = frontier(c_, p, g, member);
    if (!reached) {
      p.unknown.push_back(g.ranks[member]);
    } else if (*reached < p.seq) {
      const RankEvidence& e = c_.evidence_of(evidence);
      const bool ended = exits_[static_cast<std::size_t>(evidence)].ended();
      if (stale_[static_cast<std::size_t>(evidence)]) {
        p.stale.push_back(evidence);
      } else if (!old_enough) {
        young = true;
      } else if (ended || failed || e.written == 0 ||
                 seconds_between(p.since, e.written) >= threshold_s_) {
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
  const bool open = !p.unknown.empty() || !p.stale.empty();
  if (open && p.absent.empty() && old_enough && !failed) {
    lags_beside_unknown(p);
  }
  if (p.complete && !failed && !came_all(p, earlier)) {
    return false;
  }
  return old_enough && (!p.absent.empty() || !p.unknown.empty() || !p.stale.empty() || p.complete);
}

}  // namespace frtrace
