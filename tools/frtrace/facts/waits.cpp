// The graph of waits between ranks, and the places where the waits end.
#include "facts/waits.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "facts/file_locks.hpp"
#include "facts/pending.hpp"
#include "model/contains.hpp"

namespace frtrace {

namespace {

using Edges = std::vector<std::vector<int>>;

// The strongly connected component of each vertex; components that edges lead to come first.
// Tarjan's algorithm, iterative: the graph may be as deep as the job has ranks.
std::vector<int> components(const Edges& edges) {
  std::vector<int> order(edges.size(), -1), low(edges.size()), out(edges.size(), -1), open;
  int next = 0, count = 0;
  std::vector<std::pair<int, std::size_t>> path;  // vertex, edges followed
  for (std::size_t root = 0; root < edges.size(); ++root) {
    if (order[root] < 0) {
      path.emplace_back(static_cast<int>(root), 0);
    }
    while (!path.empty()) {
      const int v = path.back().first;
      const std::size_t i = idx(v), followed = path.back().second++;
      if (followed == 0) {
        order[i] = low[i] = next++;
        open.push_back(v);
      }
      if (followed < edges[i].size()) {
        const int w = edges[i][followed];
        if (order[idx(w)] < 0) {
          path.emplace_back(w, 0);
        } else if (out[idx(w)] < 0) {
          low[i] = std::min(low[i], order[idx(w)]);
        }
        continue;
      }
      if (low[i] == order[i]) {
        while (out[i] < 0) {
          out[idx(open.back())] = count;
          open.pop_back();
        }
        ++count;
      }
      path.pop_back();
      if (!path.empty()) {
        int& before = low[idx(path.back().first)];
        before = std::min(before, low[i]);
      }
    }
  }
  return out;
}

// Vertices: evidence, then ranks without evidence, then pending operations.
class Builder {
 public:
  Builder(const Case& c, const std::vector<Exit>& exits, WaitGraph& graph)
      : c_(c), exits_(exits), g_(graph), n_(static_cast<int>(c.ranks.size())) {
    for (const Pending& p : g_.pending) {
      unknown_.insert(unknown_.end(), p.unknown.begin(), p.unknown.end());
    }
    sort_unique(unknown_);
    g_.first_pending = n_ + static_cast<int>(unknown_.size());
    edges_.resize(idx(g_.first_pending) + g_.pending.size());
    reached_.resize(edges_.size());
    find_behind();
    for (std::size_t k = 0; k < g_.pending.size(); ++k) {
      connect(k);
    }
    for (int i = 0; i < n_; ++i) {
      const int holder = g_.lock_holders[idx(i)];
      if (holder >= 0 && reached_[idx(holder)]) {
        edge(i, holder);
      }
    }
  }

  void find_problems() {
    const std::vector<int> component = components(edges_);
    std::vector<bool> open(edges_.size(), false);  // by component
    Edges vertices(edges_.size());
    g_.back.resize(edges_.size());
    for (std::size_t v = 0; v < edges_.size(); ++v) {
      const std::size_t own = idx(component[v]);
      vertices[own].push_back(static_cast<int>(v));
      for (const int w : edges_[v]) {
        g_.back[idx(w)].push_back(static_cast<int>(v));
        open[own] = open[own] || component[idx(w)] != component[v];
      }
    }
    for (std::size_t k = 0; k < vertices.size(); ++k) {
      if (!vertices[k].empty() && !open[k] && reached_[idx(vertices[k].front())]) {
        add_problem(of_vertices(vertices[k]));
      }
    }
    // Ranks that keep the program's order wait in no circle, whatever a rank without evidence did.
    const bool unknown = std::ranges::all_of(g_.problems, [](const Problem& p) {
      return p.kind == Problem::kNoEvidence || p.kind == Problem::kStale;
    });
    for (std::size_t k = 0; k < vertices.size() && unknown; ++k) {
      if (open[k] && vertices[k].size() > 1) {
        Problem p = of_vertices(vertices[k]);
        p.kind = Problem::kCycle;
        if (!g_.on_all_circles(p).empty()) {
          g_.problems.push_back(std::move(p));
        }
      }
    }
  }

 private:
  void edge(int from, int to) {
    edges_[idx(from)].push_back(to);
    reached_[idx(from)] = true;
    reached_[idx(to)] = true;
  }

  // Others ended a collective that the rank's device did not end, so its earlier operations no
  // longer hold it up.
  void find_behind() {
    behind_.resize(idx(n_));
    for (const Pending& p : g_.pending) {
      for (const int i : p.lagging) {
        if (p.kind == Kind::kCollective && !p.starts_seen && contains(p.busy, i)) {
          behind_[idx(i)] = true;
        }
      }
    }
  }

  // The rank waits here now: it has no earlier pending operation, and it has not left.
  bool waits_now(const Pending& p, const Wait& w) const {
    const Exit& exit = exits_[idx(w.evidence)];
    const bool lags = behind_[idx(w.evidence)] || contains(p.lagging, w.evidence);
    const bool queued = contains(p.busy, w.evidence) ||
                        (!w.failed && runs_in_order(c_, p) && w.record != kNoRecord &&
                         !g_.fronts[idx(w.evidence)].holds(w.record));
    return !lags && !queued && !exit.clean() && (!exit.primary() || exit.kind == ExitKind::kGone);
  }

  void connect(std::size_t k) {
    const Pending& p = g_.pending[k];
    const int vertex = g_.first_pending + static_cast<int>(k);
    reached_[idx(vertex)] = true;
    for (const Wait& w : p.waits) {
      reached_[idx(w.evidence)] = true;
      if (waits_now(p, w)) {
        edge(w.evidence, vertex);
      }
    }
    for (const std::vector<int>* to : {&p.busy, &p.absent, &p.stale}) {
      for (const int i : *to) {
        edge(vertex, i);
      }
    }
    // Members that certainly did not issue it, and devices that lag, explain the wait without
    // members that may have issued it.
    if (p.absent.empty() && p.lagging.empty()) {
      for (const Rank r : p.unknown) {
        edge(vertex,
             n_ + static_cast<int>(std::ranges::lower_bound(unknown_, r) - unknown_.begin()));
      }
    }
    // Both ends issued the message, so other messages of their batches hold it up.
    if (p.kind != Kind::kCollective && p.complete && p.lagging.empty() && !p.unequal &&
        !p.in_transit) {
      const Group& g = c_.groups[idx(p.group)];
      for (const Rank r : {p.from, p.to}) {
        const int i = g.evidence[idx(g.position.at(r))];
        if (i >= 0 && g_.waits_in[idx(i)].size() > 1) {
          edge(vertex, i);
        }
      }
    }
  }

  Problem of_vertices(const std::vector<int>& vertices) const {
    Problem p;
    for (const int v : vertices) {
      if (v < n_) {
        p.evidence.push_back(v);
      } else if (v < g_.first_pending) {
        p.rank = unknown_[idx(v - n_)];
      } else {
        p.pending.push_back(v - g_.first_pending);
      }
    }
    p.explains = g_.leading_to(p.evidence, p.pending);
    return p;
  }

  void add_problem(Problem p) {
    if (p.rank >= 0) {
      p.kind = Problem::kNoEvidence;
      p.pending = g_.those([&](const Pending& op) { return contains(op.unknown, p.rank); });
      p.explains = g_.leading_to({}, p.pending);
    } else if (!p.pending.empty()) {
      const bool complete = std::ranges::all_of(
          p.pending, [&](int k) { return g_[k].complete && g_[k].busy.empty(); });
      p.kind = complete ? Problem::kComplete : Problem::kCycle;
    } else if (p.evidence.size() > 1) {  // only waits for locks
      p.kind = Problem::kCycle;
      for (const int i : p.evidence) {
        kind_of_rank(i, p.pending);
      }
      sort_unique(p.pending);
    } else {
      p.kind = kind_of_rank(p.evidence.front(), p.pending);
      if (p.pending.empty()) {
        return;  // it left, and no rank waits for it
      }
    }
    g_.problems.push_back(std::move(p));
  }

  // The kind of problem of a rank that waits for no rank. Adds the operations that wait for it.
  Problem::Kind kind_of_rank(int evidence, std::vector<int>& pending) const {
    bool absent = false, lags = false;
    const auto has = [&](const std::vector<int>& list) { return contains(list, evidence); };
    for (std::size_t k = 0; k < g_.pending.size(); ++k) {
      const Pending& p = g_.pending[k];
      const bool missing = has(p.absent), behind = has(p.lagging);
      absent = absent || missing;
      lags = lags || behind;
      if (missing || behind || has(p.stale) || has(p.busy)) {
        pending.push_back(static_cast<int>(k));
      }
    }
    return lags ? Problem::kLagging : absent ? Problem::kIdle : Problem::kStale;
  }

  const Case& c_;
  const std::vector<Exit>& exits_;
  WaitGraph& g_;
  int n_;
  std::vector<Rank> unknown_;  // ranks
  Edges edges_;
  std::vector<bool> behind_;  // evidence
  std::vector<bool> reached_;
};

// A batch ends when all its messages have passed. A message that has passed does not hold it up.
void drop_passed(std::vector<Pending>& all, const std::vector<Front>& fronts) {
  std::set<int> held;  // evidence of ranks that wait for a message of their batch
  const auto in_front = [&](const Wait& w) {
    return w.record != kNoRecord && fronts[idx(w.evidence)].holds(w.record);
  };
  for (const Pending& p : all) {
    for (const Wait& w : p.waits) {
      if (!p.passed && in_front(w)) {
        held.insert(w.evidence);
      }
    }
  }
  std::erase_if(all, [&](const Pending& p) {
    return p.passed && (held.contains(p.waits.front().evidence) || !in_front(p.waits.front()));
  });
}

}  // namespace

std::vector<int> WaitGraph::leading_to(const std::vector<int>& evidence,
                                       const std::vector<int>& operations) const {
  const int n = static_cast<int>(waits_in.size());
  std::vector<int> queue = evidence, out;
  for (const int k : operations) {
    queue.push_back(first_pending + k);
  }
  std::vector<bool> seen(back.size(), false);
  for (const int v : queue) {
    seen[idx(v)] = true;
  }
  for (std::size_t k = 0; k < queue.size(); ++k) {
    if (queue[k] < n && waits(queue[k])) {
      out.push_back(queue[k]);
    }
    for (const int v : back[idx(queue[k])]) {
      if (!seen[idx(v)]) {
        seen[idx(v)] = true;
        queue.push_back(v);
      }
    }
  }
  std::ranges::sort(out);
  return out;
}

namespace {

// The vertices of one problem, numbered from 0, and their edges.
struct Circles {
  std::vector<int> vertices;  // evidence first
  std::vector<std::vector<std::size_t>> to;

  Circles(const WaitGraph& g, const Problem& p) : vertices(p.evidence) {
    for (const int k : p.pending) {
      vertices.push_back(g.first_pending + k);
    }
    std::map<int, std::size_t> number;
    for (std::size_t v = 0; v < vertices.size(); ++v) {
      number.emplace(vertices[v], v);
    }
    to.resize(vertices.size());
    for (const auto& [vertex, v] : number) {
      for (const int from : g.back[idx(vertex)]) {
        if (const auto it = number.find(from); it != number.end()) {
          to[it->second].push_back(v);
        }
      }
    }
    // Another message of one of the two batches holds up a message that both ends issued. Only a
    // busy end is known to do so.
    for (std::size_t k = 0; k < p.pending.size(); ++k) {
      const Pending& op = g[p.pending[k]];
      if (op.kind != Kind::kCollective && op.complete) {
        std::erase_if(to[p.evidence.size() + k],
                      [&](std::size_t v) { return !contains(op.busy, vertices[v]); });
      }
    }
  }

  // The shortest circle through the first vertex.
  std::vector<std::size_t> one() const {
    std::vector<std::size_t> from(to.size(), SIZE_MAX), queue{0};
    for (std::size_t k = 0; k < queue.size(); ++k) {
      for (const std::size_t w : to[queue[k]]) {
        if (from[w] == SIZE_MAX) {
          from[w] = queue[k];
          queue.push_back(w);
        }
      }
    }
    std::vector<std::size_t> out;
    for (std::size_t v = 0; from[v] != SIZE_MAX && (out.empty() || v != 0); v = from[v]) {
      out.push_back(v);
    }
    return out;
  }

  // No circle is left without that vertex.
  bool all_through(std::size_t without) const {
    std::vector<std::size_t> edges_in(to.size(), 0), queue;
    for (std::size_t v = 0; v < to.size(); ++v) {
      for (const std::size_t w : to[v]) {
        edges_in[w] += v != without ? 1 : 0;
      }
    }
    for (std::size_t v = 0; v < to.size(); ++v) {
      if (edges_in[v] == 0) {
        queue.push_back(v);
      }
    }
    for (std::size_t k = 0; k < queue.size(); ++k) {
      for (const std::size_t w : to[queue[k]]) {
        if (queue[k] != without && --edges_in[w] == 0) {
          queue.push_back(w);
        }
      }
    }
    return queue.size() == to.size();
  }
};

}  // namespace

std::vector<int> WaitGraph::on_all_circles(const Problem& p) const {
  std::vector<int> out;
  const bool guessed =
      std::ranges::any_of(p.pending, [&](int k) { return (*this)[k].numbers_guessed; });
  if (p.evidence.empty() || guessed) {
    return out;
  }
  const Circles circles(*this, p);
  for (const std::size_t v : circles.one()) {
    if (v < p.evidence.size() && circles.all_through(v)) {
      out.push_back(p.evidence[v]);
    }
  }
  std::ranges::sort(out);
  return out;
}

WaitGraph wait_graph(const Case& c, const std::vector<Slots>& slots, const std::vector<Exit>& exits,
                     const std::vector<bool>& stale, double threshold_s,
                     const std::vector<HiddenFailure>& hidden) {
  WaitGraph graph;
  graph.waits_in.resize(c.ranks.size());
  graph.lock_holders = lock_holders(c, exits);
  for (const RankEvidence* e : c.ranks) {
    graph.fronts.push_back(front_of(*e));
  }
  const Attendance attendance(c, slots, exits, stale, graph.fronts, threshold_s);
  std::set<std::pair<int, int>> stuck;  // group, evidence
  std::vector<Pending> found;
  for (Pending& p : pending_operations(c, hidden)) {
    // An operation issued after a stuck one of the same communicator waits for the stuck one only.
    std::vector<int> earlier;
    if (p.kind == Kind::kCollective && runs_in_order(c, p)) {
      std::erase_if(p.waits, [&](const Wait& w) {
        const bool queued = !w.failed && stuck.contains({p.group, w.evidence});
        if (queued) {
          earlier.push_back(w.evidence);
        }
        return queued;
      });
      if (p.waits.empty()) {
        continue;
      }
    }
    if (!attendance.fill(p, earlier)) {
      ++graph.young;
      continue;
    }
    for (const Wait& w : p.waits) {
      stuck.insert({p.group, w.evidence});
    }
    found.push_back(std::move(p));
  }
  drop_passed(found, graph.fronts);
  for (Pending& p : found) {
    for (const Wait& w : p.waits) {
      std::vector<int>& in = graph.waits_in[idx(w.evidence)];
      const int k = static_cast<int>(graph.pending.size());
      if (in.empty() || in.back() != k) {
        in.push_back(k);
      }
    }
    graph.pending.push_back(std::move(p));
  }
  Builder(c, exits, graph).find_problems();
  return graph;
}

}  // namespace frtrace
