// Pending operations: every one in which a rank waits or that failed.
#include "facts/pending.hpp"

#include <algorithm>
#include <map>
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

bool Pending::root_unknown(const Case& c) const {
  return std::ranges::any_of(waits, [&](const Wait& w) {
    const RankEvidence& e = c.evidence_of(w.evidence);
    return w.record != kNoRecord && lacks_root(e, e.records[w.record]);
  });
}

bool Pending::waits_here(int evidence) const {
  return std::ranges::any_of(waits, [&](const Wait& w) { return w.evidence == evidence; });
}

Front front_of(const RankEvidence& e) {
  const auto it = std::ranges::find_if(e.records, blocks);
  if (it == e.records.end()) {
    return {};
  }
  Front f;
  f.first = f.last = static_cast<std::size_t>(it - e.records.begin());
  const Site site = user_site(e, it->stack);  // torch's own lines differ between send and receive
  const auto together = [&](const Record& r) {
    if (!is_p2p(r) || r.group != it->group) {
      return false;
    }
    return it->batch != 0 || !e.format.empty()
               ? r.batch == it->batch && r.batch != 0
               : user_site(e, r.stack) == site &&
                     std::abs(r.time - it->time) <= limits::kTogether_ns;
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
  // The rank issued it first, but another operation is ahead of it on its stream.
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
  return !c.groups[idx(p.group)].is_gloo();
}

namespace {

// Collects waits by operation.
class Collector {
 public:
  explicit Collector(const Case& c) : c_(c) {}

  void add(int evidence) {
    const std::size_t i = idx(evidence);
    const RankEvidence& e = *c_.ranks[i];
    // A crash concerns every message of the batch, not only the message that the rank waited for.
    const Front crash = e.exit.present && e.exit.kind == ExitBy::kCrash ? front_of(e) : Front{};
    Time before = 0;  // end of the last operation issued so far
    for (std::size_t r = 0; r < e.records.size(); ++r) {
      const Record& record = e.records[r];
      before = std::max(before, record.state == State::kCompleted ? record.ended : 0);
      const int group = c_.group_at(evidence, record.group);
      const bool failed = record.state == State::kFailed && communicates(record);
      const bool crashed = crash.holds(r) && is_p2p(record) && record.state != State::kCompleted;
      if ((!blocks(record) && !failed && !crashed) || group < 0) {
        continue;
      }
      const bool went_on = failed && record.kind == Kind::kCollective &&
                           e.groups[record.group].completed > record.seq;
      if (!went_on) {
        add_record(evidence, r, before, failed, group);
      }
    }
    add_overwritten(evidence);
  }

  void add_hidden(const HiddenFailure& f) {
    const RankEvidence& e = c_.evidence_of(f.evidence);
    const Record& record = e.records[f.record];
    const int group = c_.group_of[idx(f.evidence)][record.group];
    put({group, Kind::kCollective, record.seq, -1, -1},
        {f.evidence, f.record, record.time, e.written, true, false});
  }

  std::vector<Pending> take() {
    std::vector<Pending> out;
    for (auto& [key, p] : operations_) {
      out.push_back(std::move(p));
    }
    return out;
  }

 private:
  using Key = std::tuple<int, Kind, std::uint64_t, Rank, Rank>;

  void put(const Key& key, const Wait& w) {
    Pending& p = operations_[key];
    std::tie(p.group, p.kind, p.seq, p.from, p.to) = key;
    p.waits.push_back(w);
  }

  void add_record(int evidence, std::size_t r, Time before, bool failed, int group) {
    const RankEvidence& e = c_.evidence_of(evidence);
    const Record& record = e.records[r];
    Wait w;
    w.evidence = evidence;
    w.record = r;
    w.since = record.state == State::kWaiting && record.started != 0 ? record.started : record.time;
    // An operation queued behind a running one has waited since the running one ended.
    w.since = before <= e.written ? std::max(w.since, before) : w.since;
    w.until = failed && record.ended != 0 ? record.ended : e.written;
    w.failed = failed;
    w.own_error = failed && record.error != 0 && !is_consequence(e.text(record.error));
    if (record.kind == Kind::kCollective) {
      put({group, Kind::kCollective, record.seq, -1, -1}, w);
      return;
    }
    const Group& g = c_.groups[idx(group)];
    if (record.peer < 0 && record.kind == Kind::kRecv && !failed) {
      add_from_any(group, w);
    }
    if (record.peer < 0 || record.peer >= static_cast<int>(g.ranks.size()) || !g.ranks_known) {
      return;
    }
    const Rank peer = g.ranks[idx(record.peer)];
    if (peer == e.id.rank) {
      return;  // a message to itself
    }
    const bool send = record.kind == Kind::kSend;
    put({group, record.kind, record.seq, send ? e.id.rank : peer, send ? peer : e.id.rank}, w);
  }

  // A receive from any rank waits for the next message of each member that waits in nothing itself;
  // if all members wait, for one of each.
  void add_from_any(int group, const Wait& w) {
    const Group& g = c_.groups[idx(group)];
    const Rank own = c_.evidence_of(w.evidence).id.rank;
    std::vector<std::size_t> free, waiting;
    bool lost = false;
    for (std::size_t m = 0; m < g.ranks.size(); ++m) {
      const int j = g.evidence[m];
      lost = lost || j < 0;
      if (j >= 0 && j != w.evidence) {
        (front_of(c_.evidence_of(j)).first == kNoRecord ? free : waiting).push_back(m);
      }
    }
    for (const std::size_t m : free.empty() && !lost ? waiting : free) {
      const LaneEvidence* sent = lane_of(c_.evidence_of(g.evidence[m]), g, g.row[m], true, own);
      put({group, Kind::kRecv, (sent != nullptr ? sent->enqueued : 0) + 1, g.ranks[m], own}, w);
    }
  }

  // An operation in flight by the group's counters, with a record that is overwritten.
  void add_overwritten(int evidence) {
    const std::size_t i = idx(evidence);
    const RankEvidence& e = *c_.ranks[i];
    for (std::size_t row = 1; row < e.groups.size(); ++row) {
      const GroupEvidence& own = e.groups[row];
      const int group = c_.group_of[i][row];
      const bool in_flight = own.enqueued > own.ended && own.completed < own.enqueued;
      const bool kept = own.kept != 0 && own.completed + 1 >= own.first_kept;
      if (group < 0 || own.untracked != 0 || own.wait_only != 0 || own.overwritten == 0 ||
          !in_flight || kept) {
        continue;
      }
      const Time since = own.completed_time != 0 ? own.completed_time : own.enqueued_time;
      put({group, Kind::kCollective, own.completed + 1, -1, -1},
          {evidence, kNoRecord, since, e.written, false, false});
    }
  }

  const Case& c_;
  std::map<Key, Pending> operations_;
};

}  // namespace

std::vector<Pending> pending_operations(const Case& c, const std::vector<HiddenFailure>& hidden) {
  Collector all(c);
  for (const int i : c.indices()) {
    all.add(i);
  }
  for (const HiddenFailure& f : hidden) {
    all.add_hidden(f);
  }
  return all.take();
}

}  // namespace frtrace
