// sim.cpp - the events: hosts issue, devices execute, until nothing moves.
#include "sim.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "wires.hpp"

namespace hangsim {

namespace {

constexpr int kNone = -1;
constexpr const char* kPeerGone =
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
    "[10.0.0.2]:31047";

// Work that a device (with gloo, a worker thread) executes.
struct Item {
  int rank = 0;
  int pending = 0;         // items before it that are not done
  std::vector<int> after;  // items that wait for it
  int issued = kNone;      // in RankRun::issued
  int parts = 0;           // sends and receives that are not done
  int first_part = kNone;  // in RankRun::issued
  const Op* op = nullptr;  // nullptr: a kernel, or a stream that waits
  Ns duration = 0;
  Ns done = kNever;
  bool endless = false;
  bool started = false;
  bool failed = false;
};

struct Meeting {
  std::vector<int> items;
  bool stuck = false;
};

struct Part {
  int item;
  int issued;
};
struct Lane {
  std::deque<Part> sends, recvs;
};

struct HostState {
  std::size_t pc = 0;
  int waits_for = kNone;  // item
  bool full = false;      // too much in flight
  bool stopped = false;
  int in_flight = 0;
  int in_launch = kNone;                             // item that waits for room in its launch
  int last_issued = kNone;                           // item
  int compute = kNone;                               // last item of the compute stream
  std::map<std::tuple<int, int, int>, int> streams;  // (group, low, high) -> last item
  std::vector<int> handles;                          // -> item
  std::map<std::tuple<int, int, bool>, std::uint64_t> lanes;
  struct Count {
    std::uint64_t collectives = 0, p2p = 0, ops = 0;
  };
  std::map<int, Count> counts;
};

enum class Event { kHost, kDone, kPartDone, kFail, kKill };

class Engine {
 public:
  Engine(const Job& job, std::uint64_t seed)
      : job_(job),
        gloo_(job.backend == "gloo"),
        random_(seed),
        hosts_(job.programs.size()),
        meetings_(job.groups.size()) {
    run_.ranks.resize(job.programs.size());
  }

  Run run() {
    for (int r = 0; r < job_.world; ++r) {
      push(random_.below(20) * kMs, Event::kHost, r, 0);
    }
    while (!events_.empty()) {
      const Next n = events_.top();
      events_.pop();
      now_ = n.time;
      switch (n.event) {
        case Event::kHost:
          host(n.a);
          break;
        case Event::kDone:
          done(n.a);
          break;
        case Event::kPartDone:
          part_done(n.a, n.b);
          break;
        case Event::kFail:
          fail(n.a);
          break;
        case Event::kKill:
          terminate(n.a);
          break;
      }
    }
    run_.finished = std::all_of(run_.ranks.begin(), run_.ranks.end(), [](const RankRun& r) {
      return r.ended && r.how == ExitHow::kClean;
    });
    return std::move(run_);
  }

 private:
  struct Next {
    Ns time;
    std::uint64_t order;
    Event event;
    int a, b;
    bool operator<(const Next& o) const {
      return std::tie(time, order) > std::tie(o.time, o.order);
    }
  };

  void push(Ns time, Event event, int a, int b) { events_.push({time, ++order_, event, a, b}); }
  HostState& host_of(int rank) { return hosts_[static_cast<std::size_t>(rank)]; }
  RankRun& run_of(int rank) { return run_.ranks[static_cast<std::size_t>(rank)]; }
  Item& item(int i) { return items_[static_cast<std::size_t>(i)]; }
  Issued& issued(int rank, int i) { return run_of(rank).issued[static_cast<std::size_t>(i)]; }
  const Group& group(int g) const { return job_.groups[static_cast<std::size_t>(g)]; }
  Ns jitter(Ns t) { return t + static_cast<Ns>(random_.next() % 64) * (t / 1024 + 1); }

  // ------------------------------------------------------------ hosts

  void host(int rank) {
    HostState& h = host_of(rank);
    if (h.stopped || h.waits_for != kNone || h.full) {
      return;
    }
    const Program& program = job_.programs[static_cast<std::size_t>(rank)];
    if (h.pc >= program.size()) {
      end(rank, ExitHow::kClean, "");
      return;
    }
    const Op& op = program[h.pc];
    if (op.communicates() && h.in_flight >= job_.queue_limit && !gloo_) {
      h.full = true;
      if (job_.full_in_launch) {
        ++h.pc;
        issue(rank, op, Launch::kInside);
        h.in_launch = h.last_issued;
      }
      return;
    }
    ++h.pc;
    run_of(rank).step = op.step;
    switch (op.what) {
      case What::kWork:
        if (gloo_) {
          push(now_ + jitter(op.host + op.device), Event::kHost, rank, 0);
          return;
        }
        if (op.device > 0) {
          kernel(rank, jitter(op.device));
        }
        break;
      case What::kStuckKernel:
        if (gloo_) {
          h.stopped = true;
          return;
        }
        kernel(rank, 0, kNone, true);
        break;
      case What::kCollective:
      case What::kSend:
      case What::kRecv:
      case What::kBatch:
        if (issue(rank, op, op.launch)) {
          return;
        }
        if (op.launch != Launch::kGoes) {
          h.stopped = true;
          return;
        }
        break;
      case What::kWait:
        if (wait(rank, op.handle)) {
          return;
        }
        break;
      case What::kSync:
        if (block(rank, h.compute)) {
          return;
        }
        break;
      case What::kStep:
        break;
      case What::kHang:
        run_of(rank).hung_in = &op;
        h.stopped = true;
        return;
      case What::kExit:
        run_of(rank).own_fault = true;
        end(rank, op.exit, op.exit == ExitHow::kException ? "ValueError: loss is not finite" : "");
        return;
    }
    push(now_ + jitter(op.host + kUs), Event::kHost, rank, 0);
  }

  bool block(int rank, int i) {
    if (i == kNone || (item(i).done != kNever && !item(i).failed)) {
      return false;
    }
    if (item(i).failed) {
      end(rank, ExitHow::kException, kPeerGone);
      return true;
    }
    host_of(rank).waits_for = i;
    return true;
  }

  bool wait(int rank, int handle) {
    HostState& h = host_of(rank);
    if (handle < 0 || static_cast<std::size_t>(handle) >= h.handles.size() ||
        h.handles[static_cast<std::size_t>(handle)] == kNone) {
      return false;
    }
    const int i = h.handles[static_cast<std::size_t>(handle)];
    if (gloo_) {
      return block(rank, i);
    }
    kernel(rank, 0, i);
    return false;
  }

  void end(int rank, ExitHow how, const std::string& error) {
    RankRun& r = run_of(rank);
    if (r.ended) {
      return;
    }
    host_of(rank).stopped = true;
    r.ended = true;
    r.ended_at = now_;
    r.how = how;
    r.error = error;
    if (how != ExitHow::kClean && job_.launcher_kills && !killing_) {
      killing_ = true;
      for (int other = 0; other < job_.world; ++other) {
        push(now_ + 2 * kSecond + other % 8 * kMs, Event::kKill, other, 0);
      }
    }
    // With gloo a rank that waits for it finds the connection closed.
    if (gloo_) {
      for (std::size_t i = 0; i < items_.size(); ++i) {
        if (items_[i].done == kNever && items_[i].started && needs(items_[i], rank)) {
          push(now_ + jitter(3 * kMs), Event::kFail, static_cast<int>(i), 0);
        }
      }
    }
  }

  bool needs(const Item& it, int rank) const {
    if (it.op == nullptr || it.rank == rank) {
      return false;
    }
    const Group& g = group(it.op->group);
    if (it.op->what == What::kCollective) {
      return g.position(rank) >= 0;
    }
    const auto to = [&](const Op& op) {
      return g.ranks[static_cast<std::size_t>(op.peer)] == rank;
    };
    return it.op->is_p2p() ? to(*it.op) : std::any_of(it.op->parts.begin(), it.op->parts.end(), to);
  }

  void fail(int i) {
    Item& it = item(i);
    if (it.done != kNever || run_of(it.rank).ended) {
      return;
    }
    finish(i, true);
    HostState& h = host_of(it.rank);
    if (h.waits_for == i) {
      end(it.rank, ExitHow::kException, kPeerGone);
    }
  }

  void terminate(int rank) {
    RankRun& r = run_of(rank);
    if (!r.ended) {
      r.terminated = true;
      end(rank, ExitHow::kKilled, "");
    }
  }

  // ------------------------------------------------------------ items

  int new_item(int rank, const std::vector<int>& before) {
    const int id = static_cast<int>(items_.size());
    items_.emplace_back();
    Item& it = items_.back();
    it.rank = rank;
    for (const int b : before) {
      if (b != kNone && item(b).done == kNever) {
        item(b).after.push_back(id);
        ++items_.back().pending;
      }
    }
    return id;
  }

  // On the compute stream: a kernel, or a wait for what another stream does.
  void kernel(int rank, Ns duration, int before = kNone, bool endless = false) {
    HostState& h = host_of(rank);
    const int id = new_item(rank, {h.compute, before});
    item(id).duration = duration;
    item(id).endless = endless;
    h.compute = id;
    start_if_ready(id);
  }

  // True when the host must wait.
  bool issue(int rank, const Op& op, Launch launch) {
    HostState& h = host_of(rank);
    RankRun& r = run_of(rank);
    std::tuple<int, int, int> stream{op.group, -1, -1};
    if (op.is_p2p()) {
      const int own = group(op.group).position(rank);
      stream = {op.group, std::min(own, op.peer), std::max(own, op.peer)};
    }
    int& tail = h.streams.try_emplace(stream, kNone).first->second;
    const int id = gloo_ ? new_item(rank, {}) : new_item(rank, {tail, h.compute});
    tail = id;
    h.last_issued = id;
    Item& it = item(id);
    it.pending += launch == Launch::kGoes ? 0 : 1;
    it.op = &op;
    it.first_part = static_cast<int>(r.issued.size());
    HostState::Count& count = h.counts[op.group];
    const auto note = [&](const Op& one, const Op* batch, std::uint64_t seq) {
      r.issued.push_back({&one, batch, now_, launch == Launch::kGoes ? now_ : kNever, kNever,
                          kNever, false, seq, count.collectives, count.p2p, count.ops});
    };
    const auto lane = [&](const Op& one) {
      return ++h.lanes[{one.group, one.peer, one.what == What::kSend}];
    };
    if (op.what == What::kCollective) {
      ++count.collectives;
      ++count.ops;
      note(op, nullptr, count.collectives);
    } else if (op.is_p2p()) {
      ++count.p2p;
      ++count.ops;
      it.parts = 1;
      note(op, nullptr, lane(op));
    } else {
      ++count.p2p;
      it.parts = static_cast<int>(op.parts.size());
      for (const Op& part : op.parts) {
        ++count.ops;
        note(part, &op, lane(part));
      }
      it.issued = static_cast<int>(r.issued.size());
      note(op, &op, 0);
    }
    if (it.issued == kNone) {
      it.issued = it.first_part;
    }
    ++h.in_flight;
    run_.last_event = now_;
    if (op.handle >= 0) {
      if (h.handles.size() <= static_cast<std::size_t>(op.handle)) {
        h.handles.resize(static_cast<std::size_t>(op.handle) + 1, kNone);
      }
      h.handles[static_cast<std::size_t>(op.handle)] = id;
    }
    start_if_ready(id);
    if (gloo_) {
      return !op.async && block(rank, id);
    }
    if (!op.async) {
      kernel(rank, 0, id);
    }
    return false;
  }

  void start_if_ready(int id) {
    Item& it = item(id);
    if (it.pending > 0 || it.started || run_of(it.rank).ended) {
      return;
    }
    it.started = true;
    if (it.endless) {
      run_of(it.rank).device_stuck = now_;
    }
    if (it.op == nullptr) {
      if (!it.endless && it.duration == 0) {
        finish(id, false);
      } else if (!it.endless) {
        push(now_ + it.duration, Event::kDone, id, 0);
      }
      return;
    }
    run_.last_event = now_;
    mark_started(it);
    if (it.op->what == What::kCollective) {
      meet(id);
    } else {
      exchange(id);
    }
    if (gloo_) {
      for (int r = 0; r < job_.world; ++r) {
        if (run_of(r).ended && needs(item(id), r)) {
          push(now_ + jitter(3 * kMs), Event::kFail, id, 0);
          break;
        }
      }
    }
  }

  void mark_started(const Item& it) {
    for (int i = it.first_part; i <= it.issued; ++i) {
      issued(it.rank, i).started = now_;
    }
  }

  void done(int id) {
    if (item(id).done == kNever && !run_of(item(id).rank).ended) {
      finish(id, false);
    }
  }

  void finish(int id, bool failed) {
    const int rank = item(id).rank;
    item(id).done = now_;
    item(id).failed = failed;
    HostState& h = host_of(rank);
    if (item(id).op != nullptr) {
      run_.last_event = now_;
      for (int i = item(id).first_part; i <= item(id).issued; ++i) {
        Issued& one = issued(rank, i);
        if (one.done == kNever) {
          one.done = now_;
          one.failed = failed;
        }
      }
      --h.in_flight;
      if (h.full) {
        h.full = false;
        push(now_ + kUs, Event::kHost, rank, 0);
        if (h.in_launch != kNone) {
          const int launched = std::exchange(h.in_launch, kNone);
          for (int i = item(launched).first_part; i <= item(launched).issued; ++i) {
            issued(rank, i).launched = now_;
          }
          if (--item(launched).pending == 0) {
            start_if_ready(launched);
          }
        }
      }
    }
    if (h.waits_for == id && !failed) {
      h.waits_for = kNone;
      push(now_ + 5 * kUs, Event::kHost, rank, 0);
    }
    const std::vector<int> after = item(id).after;
    for (const int next : after) {
      if (--item(next).pending == 0) {
        start_if_ready(next);
      }
    }
  }

  // ------------------------------------------------------------ meetings

  // Whether two members agree on everything that the collective needs to end.
  static bool fit(const Op& a, const Op& b) {
    if (a.name != b.name || a.dtype != b.dtype || a.peer != b.peer) {
      return false;
    }
    return a.name == "all_to_all_single" || (a.in == b.in && a.out == b.out);
  }

  bool splits_fit(const Meeting& m) {
    const std::size_t n = m.items.size();
    if (item(m.items.front()).op->in_splits.empty()) {
      return true;
    }
    for (const int x : m.items) {
      const auto& to = item(x).op->in_splits;
      const std::size_t at =
          static_cast<std::size_t>(group(item(x).op->group).position(item(x).rank));
      for (const int y : m.items) {
        const auto& from = item(y).op->out_splits;
        const std::size_t its =
            static_cast<std::size_t>(group(item(y).op->group).position(item(y).rank));
        if (to.size() == n && from.size() == n && to[its] != from[at]) {
          return false;
        }
      }
    }
    return true;
  }

  void meet(int id) {
    const Op& op = *item(id).op;
    const std::uint64_t seq = issued(item(id).rank, item(id).issued).seq;
    auto& of_group = meetings_[static_cast<std::size_t>(op.group)];
    if (of_group.size() < seq) {
      of_group.resize(seq);
    }
    Meeting& m = of_group[seq - 1];
    m.items.push_back(id);
    if (m.items.size() < group(op.group).ranks.size()) {
      return;
    }
    std::int64_t least = INT64_MAX;
    for (const int i : m.items) {
      m.stuck =
          m.stuck || item(i).op->broken || !fit(op, *item(i).op) || run_of(item(i).rank).ended;
      least = std::min(least, numel(item(i).op->in));
    }
    m.stuck = m.stuck || !splits_fit(m);
    const Ns took = jitter(kMs);
    if (!m.stuck && troubled(m, took)) {
      return;
    }
    for (const int i : m.items) {
      const bool small = job_.early_end && numel(item(i).op->in) == least &&
                         item(i).op->name == "all_reduce" && !item(i).op->broken &&
                         std::any_of(m.items.begin(), m.items.end(), [&](int j) {
                           return item(j).op->name == "all_reduce" && numel(item(j).op->in) > least;
                         });
      if (item(i).op->lags) {
        continue;
      }
      if (!m.stuck || (small && !gloo_)) {
        push(now_ + took, Event::kDone, i, 0);
      }
    }
  }

  // A collective with faults below the host: ends on the members with kernels that can end. False:
  // no fault.
  bool troubled(const Meeting& m, Ns took) {
    const Op& op = *item(m.items.front()).op;
    Setting s;
    s.stages.assign(m.items.size(), Stage::kRuns);
    for (const int i : m.items) {
      if (item(i).op->trouble.kind != Trouble::kNone) {
        s.troubles.push_back(item(i).op->trouble);
      }
    }
    if (s.troubles.empty()) {
      return false;
    }
    const Flow f = flow(job_, op, s);
    for (const int i : m.items) {
      if (f.done[static_cast<std::size_t>(group(op.group).position(item(i).rank))]) {
        push(now_ + took, Event::kDone, i, 0);
      }
    }
    return true;
  }

  void exchange(int id) {
    const Op& op = *item(id).op;
    if (op.is_p2p()) {
      exchange(id, op, item(id).first_part);
      return;
    }
    int part = item(id).first_part;
    for (const Op& one : op.parts) {
      exchange(id, one, part++);
    }
  }

  void exchange(int id, const Op& op, int part) {
    const Group& g = group(op.group);
    const int own = g.position(item(id).rank);
    const bool send = op.what == What::kSend;
    Lane& lane = lanes_[{op.group, send ? own : op.peer, send ? op.peer : own}];
    std::deque<Part>& mine = send ? lane.sends : lane.recvs;
    std::deque<Part>& theirs = send ? lane.recvs : lane.sends;
    const Ns took = jitter(2 * kMs);
    if (theirs.empty()) {
      mine.push_back({id, part});
      if (send && !op.broken && numel(op.in) * 2 <= job_.eager_bytes) {
        push(now_ + took, Event::kPartDone, id, part);
      }
      return;
    }
    const Part other = theirs.front();
    theirs.pop_front();
    const Op& match = *issued(item(other.item).rank, other.issued).op;
    if (op.broken || match.broken || op.trouble.kind != Trouble::kNone ||
        match.trouble.kind != Trouble::kNone || op.in != match.in || op.dtype != match.dtype ||
        run_of(item(other.item).rank).ended) {
      return;
    }
    push(now_ + took, Event::kPartDone, id, part);
    push(now_ + took, Event::kPartDone, other.item, other.issued);
  }

  void part_done(int id, int part) {
    Item& it = item(id);
    if (it.done != kNever || run_of(it.rank).ended || issued(it.rank, part).done != kNever) {
      return;
    }
    issued(it.rank, part).done = now_;
    if (--it.parts == 0) {
      finish(id, false);
    }
  }

  const Job& job_;
  const bool gloo_;
  Random random_;
  Run run_;
  Ns now_ = 0;
  std::uint64_t order_ = 0;
  bool killing_ = false;
  std::priority_queue<Next> events_;
  std::vector<HostState> hosts_;
  std::deque<Item> items_;
  std::vector<std::vector<Meeting>> meetings_;
  std::map<std::tuple<int, int, int>, Lane> lanes_;
};

}  // namespace

Run simulate(const Job& job, std::uint64_t seed) {
  return Engine(job, seed).run();
}

}  // namespace hangsim
