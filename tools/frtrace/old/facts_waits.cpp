#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "old/facts.hpp"

namespace frtrace {

bool blocks(const Record& r) {
  if (r.kind != Kind::kCollective && r.kind != Kind::kSend && r.kind != Kind::kRecv) {
    return false;
  }
  if (r.state == State::kWaiting) {
    return true;
  }
  return (r.state == State::kEnqueued || r.state == State::kStarted) &&
         (r.flags & (kWaitOnly | kUntracked)) == 0;
}

double Meeting::seconds() const {
  double longest = 0;
  for (const Wait& w : waits) {
    longest = std::max(longest, seconds_between(w.since, w.until));
  }
  return longest;
}

namespace {

// Everybody's waits, sorted into meetings.
std::vector<Meeting> meetings_of(const Case& c, const std::vector<HiddenFailure>& hidden) {
  using Key = std::tuple<int, Kind, std::uint64_t, Rank, Rank>;
  std::map<Key, std::size_t> index;
  std::vector<Meeting> out;
  const auto add = [&](const Key& key, const Wait& w) {
    const auto [it, added] = index.try_emplace(key, out.size());
    if (added) {
      Meeting m;
      std::tie(m.group, m.kind, m.seq, m.from, m.to) = key;
      out.push_back(std::move(m));
    }
    out[it->second].waits.push_back(w);
  };
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    const RankEvidence& e = *c.ranks[i];
    std::vector<std::uint64_t> found(e.groups.size(), 0);
    Time before = 0;  // when the last of the operations issued so far ended
    for (std::size_t r = 0; r < e.records.size(); ++r) {
      const Record& record = e.records[r];
      before = std::max(before, record.state == State::kCompleted ? record.ended : 0);
      const bool failed = record.state == State::kFailed &&
                          (record.kind == Kind::kCollective || record.kind == Kind::kSend ||
                           record.kind == Kind::kRecv);
      if ((!blocks(record) && !failed) || record.group >= e.groups.size()) {
        continue;
      }
      const int group = c.group_of[i][record.group];
      if (group < 0) {
        continue;
      }
      const GroupEvidence& own = e.groups[record.group];
      if (failed && record.kind == Kind::kCollective && own.completed > record.seq) {
        continue;  // the job went on
      }
      ++found[record.group];
      Wait w;
      w.evidence = static_cast<int>(i);
      w.record = r;
      w.since =
          record.state == State::kWaiting && record.started != 0 ? record.started : record.time;
      // Queued behind what was still running: it has waited since that ended.
      w.since = before != 0 && before < e.written ? std::max(w.since, before) : w.since;
      w.until = failed && record.ended != 0 ? record.ended : e.written;
      w.failed = failed;
      w.own_error = failed && record.error != 0 && !is_consequence(e.text(record.error));
      if (record.kind == Kind::kCollective) {
        add({group, Kind::kCollective, record.seq, -1, -1}, w);
      } else {
        const Group& g = c.groups[static_cast<std::size_t>(group)];
        if (record.peer < 0 || record.peer >= static_cast<int>(g.ranks.size()) || !g.ranks_known) {
          continue;  // from anybody
        }
        const Rank peer = g.ranks[static_cast<std::size_t>(record.peer)];
        const bool send = record.kind == Kind::kSend;
        add({group, record.kind, record.seq, send ? e.id.rank : peer, send ? peer : e.id.rank}, w);
      }
    }
    // In flight by its counters, its record overwritten since.
    for (std::size_t row = 1; row < e.groups.size(); ++row) {
      const GroupEvidence& own = e.groups[row];
      const int group = c.group_of[i][row];
      if (group < 0 || found[row] != 0 || own.untracked != 0 || own.wait_only != 0 ||
          own.enqueued <= own.ended || own.overwritten == 0 || own.completed >= own.enqueued) {
        continue;
      }
      if (own.kept != 0 && own.completed + 1 >= own.first_kept) {
        continue;
      }
      Wait w;
      w.evidence = static_cast<int>(i);
      w.since = own.completed_time != 0 ? own.completed_time : own.enqueued_time;
      w.until = e.written;
      add({group, Kind::kCollective, own.completed + 1, -1, -1}, w);
    }
    // Likewise a send or receive, its record behind the cut.
    for (const LaneEvidence& lane : e.lanes) {
      const int group = lane.group < e.groups.size() ? c.group_of[i][lane.group] : -1;
      if (!e.holes.truncated || group < 0 || lane.enqueued <= lane.ended || lane.peer < 0) {
        continue;
      }
      const GroupEvidence& own = e.groups[lane.group];
      const Group& g = c.groups[static_cast<std::size_t>(group)];
      if (found[lane.group] != 0 || own.untracked != 0 || own.wait_only > own.wait_only_ended ||
          !g.ranks_known || lane.peer >= static_cast<int>(g.ranks.size())) {
        continue;
      }
      const Rank peer = g.ranks[static_cast<std::size_t>(lane.peer)];
      Wait w;
      w.evidence = static_cast<int>(i);
      w.since = lane.enqueued_time;
      w.until = e.written;
      add({group, lane.send ? Kind::kSend : Kind::kRecv, lane.ended + 1,
           lane.send ? e.id.rank : peer, lane.send ? peer : e.id.rank},
          w);
    }
  }
  for (const HiddenFailure& f : hidden) {
    const RankEvidence& e = c.evidence_of(f.evidence);
    const Record& record = e.records[f.record];
    Wait w;
    w.evidence = f.evidence;
    w.record = f.record;
    w.since = record.time;
    w.until = e.written;
    w.failed = true;
    add({c.group_of[static_cast<std::size_t>(f.evidence)][record.group], Kind::kCollective,
         record.seq, -1, -1},
        w);
  }
  return out;
}

// How far a member got in what a meeting counts; nullopt when its evidence does not tell.
std::optional<std::uint64_t> frontier(const Case& c, const Meeting& m, const Group& g,
                                      std::size_t member) {
  const int evidence = g.evidence[member];
  if (evidence < 0) {
    return std::nullopt;
  }
  const RankEvidence& e = c.evidence_of(evidence);
  // Of a file that was cut off the counters are lower bounds.
  const auto known = [&](std::uint64_t n) {
    return e.holes.frontiers_at_least && n < m.seq ? std::nullopt : std::optional<std::uint64_t>(n);
  };
  if (g.row[member] < 0) {
    return e.losses.groups_lost != 0 ? std::nullopt : known(0);
  }
  if (m.kind == Kind::kCollective) {
    return known(c.member(g, member)->enqueued);
  }
  const Rank other = m.from == g.ranks[member] ? m.to : m.from;
  const bool send = m.from == g.ranks[member];
  for (const LaneEvidence& lane : e.lanes) {
    if (static_cast<int>(lane.group) == g.row[member] && lane.send == send && lane.peer >= 0 &&
        lane.peer < static_cast<int>(g.ranks.size()) &&
        g.ranks[static_cast<std::size_t>(lane.peer)] == other) {
      return known(lane.enqueued);
    }
  }
  return e.losses.lanes_lost != 0 ? std::nullopt : known(0);
}

// The record of the other end of a P2P meeting, nullptr when not kept.
const Record* other_end(const Case& c, const Meeting& m, const Group& g, std::size_t member) {
  const RankEvidence& e = c.evidence_of(g.evidence[member]);
  const Rank own = g.ranks[member];
  const Kind kind = m.from == own ? Kind::kSend : Kind::kRecv;
  const Rank other = m.from == own ? m.to : m.from;
  for (auto it = e.records.rbegin(); it != e.records.rend(); ++it) {
    if (it->kind == kind && it->seq == m.seq && static_cast<int>(it->group) == g.row[member] &&
        it->peer >= 0 && it->peer < static_cast<int>(g.ranks.size()) &&
        g.ranks[static_cast<std::size_t>(it->peer)] == other) {
      return &*it;
    }
  }
  return nullptr;
}

// What a rank waits in first: its first unfinished operation, or the batch of sends and receives
// that it is part of; these run together.
struct Front {
  std::size_t first = SIZE_MAX, last = SIZE_MAX;
  bool holds(std::size_t record) const { return first <= record && record <= last; }
};

Front front_of(const RankEvidence& e) {
  const auto it = std::find_if(e.records.begin(), e.records.end(), blocks);
  if (it == e.records.end()) {
    return {};
  }
  const auto p2p = [](const Record& r) { return r.kind == Kind::kSend || r.kind == Kind::kRecv; };
  constexpr Time kTogether_ns = 5'000'000;
  Front f;
  f.first = f.last = static_cast<std::size_t>(it - e.records.begin());
  const auto together = [&](std::size_t k) {
    const Record& r = e.records[k];
    return p2p(r) && r.group == it->group && r.stack == it->stack &&
           std::abs(r.time - it->time) <= kTogether_ns;
  };
  while (p2p(*it) && f.last + 1 < e.records.size() && together(f.last + 1)) {
    ++f.last;
  }
  // It was issued first, and another came before it on its stream.
  if (const auto queued = device_operation(e, f.first)) {
    if (const auto busy = stream_busy_with(e, *queued)) {
      const std::size_t r = record_of(e, e.device.operations[*busy]);
      if (r != SIZE_MAX && !f.holds(r) && blocks(e.records[r])) {
        f.first = f.last = r;
      }
    }
  }
  return f;
}

// Some members finished a later operation, which nobody can without all: the waits are those of
// ranks that were looked at before that.
bool overtaken(const Case& c, const Group& g, const Meeting& m) {
  for (std::size_t i = 0; i < g.ranks.size(); ++i) {
    const GroupEvidence* e = c.member(g, i);
    if (e == nullptr || e->completed <= m.seq) {
      continue;
    }
    const RankEvidence& evidence = c.evidence_of(g.evidence[i]);
    for (auto it = evidence.records.rbegin(); it != evidence.records.rend(); ++it) {
      if (it->kind == Kind::kCollective && static_cast<int>(it->group) == g.row[i] &&
          it->seq > m.seq && it->seq <= e->completed && it->state == State::kCompleted &&
          meets_all(evidence.text(it->op))) {
        return true;
      }
    }
  }
  return false;
}

// All members came. Whose device is behind the others'? `front`: each rank's first unfinished
// operation, behind which its later ones may be queued. False: the waits are only those of a rank
// that was looked at before the others. `earlier`: members who wait in one before it.
bool find_behind(const Case& c, const Group& g, const std::vector<Front>& front, double threshold_s,
                 const std::vector<int>& earlier, Meeting& m) {
  struct Seen {
    int evidence;
    const Record* record;
  };
  std::vector<Seen> queued, started;
  const auto look = [&](int evidence, const Record& r) {
    (r.state == State::kStarted ? started : queued).push_back({evidence, &r});
  };
  for (const Wait& w : m.waits) {
    if (w.record == SIZE_MAX) {
      return true;
    }
    look(w.evidence, c.evidence_of(w.evidence).records[w.record]);
  }
  std::size_t members = g.ranks.size();
  if (m.kind != Kind::kCollective) {
    members = 2;
    const Rank waiter = m.kind == Kind::kSend ? m.from : m.to;
    const auto other = static_cast<std::size_t>(g.position.at(waiter == m.from ? m.to : m.from));
    if (g.evidence[other] >= 0) {
      if (const Record* r = other_end(c, m, g, other); r != nullptr && blocks(*r)) {
        look(g.evidence[other], *r);
      }
    }
  }
  const auto first = [&](const Seen& s) {
    const auto& records = c.evidence_of(s.evidence).records;
    return front[static_cast<std::size_t>(s.evidence)].holds(
        static_cast<std::size_t>(s.record - records.data()));
  };
  // Looked at long enough after `since` to mean anything.
  const auto late = [&](const Seen& s, Time since) {
    const RankEvidence& e = c.evidence_of(s.evidence);
    return since == 0 || seconds_between(since, e.written) >= threshold_s;
  };
  m.devices_seen = !started.empty();
  if (m.kind == Kind::kCollective && overtaken(c, g, m)) {
    return false;
  }
  if (!started.empty() && !queued.empty()) {
    Time since = 0;
    bool stand = true;
    for (const Seen& s : started) {
      since = std::max({since, s.record->started, s.record->time});
      stand = stand && first(s);
    }
    for (const Seen& s : queued) {
      const bool old = c.evidence_of(s.evidence).holes.written_guessed && !stand;
      if (late(s, since) && !old) {
        m.behind.push_back(s.evidence);
        m.device.push_back(s.evidence);
      }
    }
    return true;
  }
  m.behind.insert(m.behind.end(), earlier.begin(), earlier.end());
  const std::size_t waiting = queued.size() + started.size() + earlier.size();
  const bool starts = g.backend.find("gloo") == std::string::npos;  // gloo tells none
  if (m.kind == Kind::kCollective && waiting < members && !m.waits.empty() && starts) {
    // Others finished it, or what became of it there is not seen.
    Time since = 0;
    bool unseen = false;
    for (std::size_t i = 0; i < g.ranks.size(); ++i) {
      const GroupEvidence* e = c.member(g, i);
      const bool waits = std::any_of(m.waits.begin(), m.waits.end(),
                                     [&](const Wait& w) { return w.evidence == g.evidence[i]; });
      if (e != nullptr && !waits && e->completed >= m.seq) {
        since = std::max(since, e->completed_time);
      }
      unseen = unseen || (e != nullptr && !waits && e->completed < m.seq && e->released != 0);
    }
    for (const std::vector<Seen>* seen : {&queued, &started}) {
      for (const Seen& s : *seen) {
        const bool guessed = c.evidence_of(s.evidence).holes.written_guessed;
        if (!guessed && since != 0 && late(s, since)) {
          m.behind.push_back(s.evidence);
          m.device.push_back(s.evidence);
        }
      }
    }
    return unseen || !m.device.empty();
  }
  for (const Seen& s : queued) {
    if (!first(s)) {
      m.behind.push_back(s.evidence);
    }
  }
  return true;
}

// Sets who came and who did not; false when the meeting is too young to mean anything.
bool fill(const Case& c, const std::vector<End>& ends, const std::vector<Front>& front,
          double threshold_s, const std::vector<int>& earlier, Meeting& m) {
  const Group& g = c.groups[static_cast<std::size_t>(m.group)];
  Time until = 0;
  for (const Wait& w : m.waits) {
    m.since = m.since == 0 ? w.since : std::min(m.since, w.since);
    until = std::max(until, w.until);
  }
  std::set<int> waiting;
  bool failed = false;
  for (const Wait& w : m.waits) {
    waiting.insert(w.evidence);
    failed = failed || w.failed;
  }
  std::vector<std::size_t> members;
  if (m.kind == Kind::kCollective) {
    for (std::size_t i = 0; i < g.ranks.size(); ++i) {
      members.push_back(i);
    }
  } else {
    const Rank waiter = m.kind == Kind::kSend ? m.from : m.to;
    const Rank other = waiter == m.from ? m.to : m.from;
    members.push_back(static_cast<std::size_t>(g.position.at(other)));
  }
  const bool old_enough = seconds_between(m.since, until) >= threshold_s || failed;
  bool young = false;
  for (const std::size_t member : members) {
    const int evidence = g.evidence[member];
    if (evidence >= 0 && waiting.contains(evidence)) {
      continue;
    }
    const auto reached = frontier(c, m, g, member);
    if (!reached) {
      m.unknown.push_back(g.ranks[member]);
    } else if (*reached < m.seq) {
      const RankEvidence& e = c.evidence_of(evidence);
      const bool ended = ends[static_cast<std::size_t>(evidence)].ended;
      const Time seen = ended || failed || e.written == 0 ? until : std::min(until, e.written);
      if (seconds_between(m.since, seen) >= threshold_s || failed) {
        m.absent.push_back(evidence);
      } else if (old_enough) {
        m.too_old.push_back(evidence);
      } else {
        young = true;
      }
    }
  }
  m.complete = m.absent.empty() && m.unknown.empty() && m.too_old.empty() && !young;
  if (m.complete && !failed && !find_behind(c, g, front, threshold_s, earlier, m)) {
    return false;
  }
  return old_enough &&
         (!m.absent.empty() || !m.unknown.empty() || !m.too_old.empty() || m.complete);
}

// Tarjan over ranks and meetings; iterative, the graph may be deep.
class Components {
 public:
  explicit Components(const std::vector<std::vector<int>>& edges)
      : edges_(edges), order_(edges.size(), -1), low_(edges.size()), component_(edges.size(), -1) {
    for (std::size_t v = 0; v < edges.size(); ++v) {
      if (order_[v] < 0) {
        visit(static_cast<int>(v));
      }
    }
  }
  int count() const { return count_; }
  int of(int v) const { return component_[static_cast<std::size_t>(v)]; }

 private:
  void visit(int root) {
    std::vector<std::pair<int, std::size_t>> path{{root, 0}};
    while (!path.empty()) {
      const int v = path.back().first;
      const std::size_t i = static_cast<std::size_t>(v);
      if (path.back().second == 0) {
        order_[i] = low_[i] = next_++;
        stack_.push_back(v);
      }
      if (path.back().second < edges_[i].size()) {
        const int w = edges_[i][path.back().second++];
        const std::size_t j = static_cast<std::size_t>(w);
        if (order_[j] < 0) {
          path.emplace_back(w, 0);
        } else if (component_[j] < 0) {
          low_[i] = std::min(low_[i], order_[j]);
        }
        continue;
      }
      if (low_[i] == order_[i]) {
        int w = -1;
        do {
          w = stack_.back();
          stack_.pop_back();
          component_[static_cast<std::size_t>(w)] = count_;
        } while (w != v);
        ++count_;
      }
      path.pop_back();
      if (!path.empty()) {
        const std::size_t parent = static_cast<std::size_t>(path.back().first);
        low_[parent] = std::min(low_[parent], low_[i]);
      }
    }
  }

  const std::vector<std::vector<int>>& edges_;
  std::vector<int> order_, low_, component_, stack_;
  int next_ = 0, count_ = 0;
};

}  // namespace

WaitGraph wait_graph(const Case& c, const std::vector<End>& ends, double threshold_s,
                     const std::vector<HiddenFailure>& hidden) {
  WaitGraph graph;
  graph.waits_in.resize(c.ranks.size());
  graph.device.resize(c.ranks.size());
  std::set<int> too_old;
  // Communicators other than gloo's run their operations one after the other: what was issued
  // after a stuck one waits for that, not for anybody.
  std::vector<Meeting> meetings = meetings_of(c, hidden);
  std::sort(meetings.begin(), meetings.end(), [](const Meeting& a, const Meeting& b) {
    return std::tie(a.group, a.kind, a.seq, a.from, a.to) <
           std::tie(b.group, b.kind, b.seq, b.from, b.to);
  });
  std::vector<Front> front(c.ranks.size());
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    front[i] = front_of(*c.ranks[i]);
  }
  const auto concurrent = [&](const Meeting& m) {
    return c.groups[static_cast<std::size_t>(m.group)].backend.find("gloo") != std::string::npos;
  };
  std::set<std::pair<int, int>> stuck;  // group, evidence
  std::set<int> held;                   // wait for one that was looked at too early
  for (Meeting& m : meetings) {
    const bool in_order = m.kind == Kind::kCollective && !concurrent(m);
    std::vector<int> earlier;
    if (in_order) {
      std::erase_if(m.waits, [&](const Wait& w) {
        const bool queued = !w.failed && stuck.contains({m.group, w.evidence});
        if (queued) {
          earlier.push_back(w.evidence);
        }
        return queued;
      });
      if (m.waits.empty()) {
        continue;
      }
    }
    if (!fill(c, ends, front, threshold_s, earlier, m)) {
      ++graph.fresh;
      continue;
    }
    for (const Wait& w : m.waits) {
      stuck.insert({m.group, w.evidence});
    }
    too_old.insert(m.too_old.begin(), m.too_old.end());
    if (!m.too_old.empty()) {
      graph.too_old_s = std::max(graph.too_old_s, m.seconds());
    }
    if (m.absent.empty() && m.unknown.empty() && !m.complete) {
      for (const Wait& w : m.waits) {
        held.insert(w.evidence);
      }
      continue;
    }
    for (const Wait& w : m.waits) {
      graph.waits_in[static_cast<std::size_t>(w.evidence)].push_back(
          static_cast<int>(graph.meetings.size()));
    }
    graph.meetings.push_back(std::move(m));
  }
  graph.too_old.assign(too_old.begin(), too_old.end());

  // Vertices: evidence, ranks without evidence, meetings.
  std::map<Rank, int> unknown;
  for (const Meeting& m : graph.meetings) {
    for (const Rank r : m.unknown) {
      unknown.try_emplace(r, 0);
    }
  }
  const int n = static_cast<int>(c.ranks.size());
  int next = n;
  std::vector<Rank> unknown_rank;
  for (auto& [rank, vertex] : unknown) {
    vertex = next++;
    unknown_rank.push_back(rank);
  }
  const int first_meeting = next;
  std::vector<std::vector<int>> edges(static_cast<std::size_t>(first_meeting) +
                                      graph.meetings.size());
  std::vector<bool> reached(edges.size(), false);
  for (std::size_t k = 0; k < graph.meetings.size(); ++k) {
    const Meeting& m = graph.meetings[k];
    const std::size_t vertex = static_cast<std::size_t>(first_meeting) + k;
    reached[vertex] = true;
    for (const Wait& w : m.waits) {
      // One that left by itself waits no more; one that was ended from outside did until then.
      const End& end = ends[static_cast<std::size_t>(w.evidence)];
      const bool behind =
          std::find(m.behind.begin(), m.behind.end(), w.evidence) != m.behind.end() ||
          (!w.failed && !concurrent(m) && w.record != SIZE_MAX &&
           !front[static_cast<std::size_t>(w.evidence)].holds(w.record));
      if (!behind && !end.clean && (!end.primary() || end.why == "gone")) {
        edges[static_cast<std::size_t>(w.evidence)].push_back(static_cast<int>(vertex));
      }
      reached[static_cast<std::size_t>(w.evidence)] = true;
    }
    for (const int a : m.behind) {
      edges[vertex].push_back(a);
      reached[static_cast<std::size_t>(a)] = true;
    }
    for (const int a : m.absent) {
      edges[vertex].push_back(a);
      reached[static_cast<std::size_t>(a)] = true;
    }
    // Those who certainly did not come explain the wait without those who may have come.
    if (m.absent.empty()) {
      for (const Rank r : m.unknown) {
        edges[vertex].push_back(unknown[r]);
        reached[static_cast<std::size_t>(unknown[r])] = true;
      }
    }
  }
  const Components components(edges);
  std::vector<bool> leaves(static_cast<std::size_t>(components.count()), true);
  std::vector<std::vector<int>> vertices(static_cast<std::size_t>(components.count()));
  for (std::size_t v = 0; v < edges.size(); ++v) {
    const int own = components.of(static_cast<int>(v));
    vertices[static_cast<std::size_t>(own)].push_back(static_cast<int>(v));
    for (const int w : edges[v]) {
      if (components.of(w) != own) {
        leaves[static_cast<std::size_t>(own)] = false;
      }
    }
  }
  for (std::size_t k = 0; k < vertices.size(); ++k) {
    if (!leaves[k] || !reached[static_cast<std::size_t>(vertices[k].front())]) {
      continue;
    }
    if (vertices[k].size() > 1) {
      std::vector<int> cycle;
      for (const int v : vertices[k]) {
        if (v < n) {
          cycle.push_back(v);
        }
      }
      graph.cycles.push_back(std::move(cycle));
    } else if (const int v = vertices[k].front(); v < n) {
      if (!held.contains(v)) {
        graph.sinks.push_back(v);
      }
    } else if (v < first_meeting) {
      graph.unknown_sinks.push_back(unknown_rank[static_cast<std::size_t>(v - n)]);
    } else {
      graph.complete.push_back(v - first_meeting);
    }
  }
  std::sort(graph.sinks.begin(), graph.sinks.end());
  for (const Meeting& m : graph.meetings) {
    for (const int b : m.device) {
      graph.device[static_cast<std::size_t>(b)] = true;
    }
  }
  return graph;
}

}  // namespace frtrace
