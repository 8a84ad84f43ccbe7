// device.cpp - what NCCL's profiler interface would report at a moment.
#include "device.hpp"

#include <algorithm>

namespace hangsim {

namespace {

constexpr int kTellsKernels = 3;  // version of the profiler's interface
constexpr int kTellsLaunches = 5;

Comm comm_of(const Group& g, int rank, const Issued& i) {
  const Op& op = *i.op;
  if (!op.is_p2p() || i.batch != nullptr) {
    return {op.group, -1, -1};
  }
  const int own = g.position(rank);
  return {op.group, std::min(own, op.peer), std::max(own, op.peer)};
}

}  // namespace

DeviceView::DeviceView(const Case& c) : c_(c), issued_(c.run.ranks.size()) {
  for (std::size_t r = 0; r < c.run.ranks.size(); ++r) {
    for (const Issued& i : c.run.ranks[r].issued) {
      if (i.op->what != What::kBatch) {
        const Key key = key_of(static_cast<int>(r), i);
        issued_[r].emplace(key, &i);
        if (i.op->trouble.kind != Trouble::kNone) {
          troubled_.insert(key);
        }
      }
    }
  }
}

DeviceView::Key DeviceView::key_of(int rank, const Issued& i) const {
  const Op& op = *i.op;
  const int own = group(op.group).position(rank);
  if (!op.is_p2p()) {
    return {op.group, -1, -1, i.seq};
  }
  return op.what == What::kSend ? Key{op.group, own, op.peer, i.seq}
                                : Key{op.group, op.peer, own, i.seq};
}

const Issued* DeviceView::find(int rank, const Key& key) const {
  const std::size_t r = static_cast<std::size_t>(rank);
  const std::size_t run = c_.plays.empty() ? r : static_cast<std::size_t>(c_.plays[r]);
  const auto it = issued_[run].find(key);
  return it == issued_[run].end() ? nullptr : it->second;
}

Stage DeviceView::stage(int rank, const Key& key, Ns at) const {
  const Issued* i = find(rank, key);
  const RankRun& run = c_.run_of(rank);
  if (i == nullptr || i->launched == kNever || i->launched > at ||
      (run.ended && run.ended_at <= at)) {
    return Stage::kAway;
  }
  return i->started != kNever && i->started <= at ? Stage::kRuns : Stage::kLaunched;
}

const Flow& DeviceView::flow_of(const Issued& issued, const Key& key, Ns at) const {
  at = std::min(at, c_.run.last_event);  // nothing changes after that
  std::unique_ptr<Flow>& cached = flows_[{key, at}];
  if (cached != nullptr) {
    return *cached;
  }
  const Group& g = group(key.group);
  Setting s;
  s.stages.assign(g.ranks.size(), Stage::kAway);
  const Op* first = nullptr;
  for (std::size_t m = 0; m < g.ranks.size(); ++m) {
    if (key.from >= 0 && static_cast<int>(m) != key.from && static_cast<int>(m) != key.to) {
      continue;
    }
    s.stages[m] = stage(g.ranks[m], key, at);
    const Issued* i = find(g.ranks[m], key);
    if (i == nullptr) {
      continue;
    }
    first = first == nullptr ? i->op : first;
    s.frozen =
        s.frozen ||
        (key.from < 0 &&
         (i->op->name != first->name || i->op->in != first->in || i->op->dtype != first->dtype) &&
         i->op->name != "all_to_all_single");
    if (i->op->trouble.kind != Trouble::kNone) {
      s.troubles.push_back(i->op->trouble);
    }
    if (i->op->broken) {  // all data that the rank sends are lost
      for (const Wire& w : wires_of(c_.job, *i->op, key.from, key.to)) {
        if (w.from == static_cast<int>(m) || key.from >= 0) {
          s.troubles.push_back({Trouble::kLost, w.from, w.to, -1, 0});
        }
      }
    }
  }
  Key before = key;
  --before.seq;
  for (const int r : g.ranks) {
    if (const Issued* i = find(r, before); i != nullptr && (i->done == kNever || i->done > at)) {
      s.before = &flow_of(*i, before, at);
      break;
    }
  }
  cached = std::make_unique<Flow>(flow(c_.job, *issued.op, s, key.from, key.to));
  return *cached;
}

Ns DeviceView::last_change(const Key& key, Ns at) const {
  const auto [it, added] = last_changes_.try_emplace({key, at}, 0);
  if (added) {
    for (const int r : group(key.group).ranks) {
      if (const Issued* i = find(r, key); i != nullptr) {
        it->second = std::max(
            {it->second, i->launched <= at ? i->launched : 0, i->started <= at ? i->started : 0});
      }
    }
  }
  return it->second;
}

std::size_t DeviceView::nodes_of(const Comm& comm) const {
  const auto [it, added] = nodes_.try_emplace(comm, 0);
  if (added) {
    const std::vector<int>& members = group(comm.group).ranks;
    std::set<int> nodes;
    for (std::size_t m = 0; m < members.size(); ++m) {
      if (!comm.is_pair() || static_cast<int>(m) == comm.low || static_cast<int>(m) == comm.high) {
        nodes.insert(c_.job.node(members[m]));
      }
    }
    it->second = nodes.size();
  }
  return it->second;
}

void DeviceView::transfers(int rank, const Issued& issued, const Key& key, Ns at,
                           std::vector<PhaseRow>& own,
                           std::map<int, std::vector<PhaseRow>>* carried) const {
  const Group& g = group(key.group);
  const int me = g.position(rank);
  if (stage(rank, key, at) == Stage::kAway) {
    return;
  }
  const Comm comm = comm_of(g, rank, issued);
  const auto comm_rank = [&](int member) {
    return comm.is_pair() ? (member == comm.low ? 0 : 1) : member;
  };
  const Ns last = last_change(key, at);
  for (const Wire& w : flow_of(issued, key, at).wires) {
    if (!w.net) {
      continue;
    }
    const bool p2p = key.from >= 0;
    if (w.from == me && !w.sent() && (!p2p || issued.op->what == What::kSend)) {
      const int step = w.sends ? w.gone : 0;
      const char* wait = !w.sends             ? "idle"
                         : w.filled <= w.gone ? "own_kernel"
                         : w.given <= w.gone  ? (w.room <= w.gone ? "peer_credit" : "own_kernel")
                                              : "in_flight";
      const PhaseRow row{"send", w.channel, comm_rank(w.to), wait, step, w.steps, last};
      if (w.carrier == me) {
        own.push_back(row);
      } else if (carried != nullptr) {
        (*carried)[g.ranks[static_cast<std::size_t>(w.carrier)]].push_back(row);
      }
    }
    if (w.to == me && !w.received() && (!p2p || issued.op->what == What::kRecv)) {
      const int step = w.receives ? w.taken : 0;
      const char* wait = !w.receives           ? "idle"
                         : w.arrived > w.taken ? "own_kernel_takes"
                         : w.flushing          ? "flush"
                                               : "data";
      own.push_back({"recv", w.channel, comm_rank(w.from), wait, step, w.steps, last});
    }
  }
}

bool DeviceView::is_unseen(int rank, const Op& op) const {
  if (c_.fr.api >= kTellsKernels) {
    return false;
  }
  const int me = group(op.group).position(rank);
  const int from = op.what == What::kSend ? me : op.peer,
            to = op.what == What::kSend ? op.peer : me;
  const std::vector<Wire> wires =
      op.is_p2p() ? wires_of(c_.job, op, from, to) : wires_of(c_.job, op);
  return std::none_of(wires.begin(), wires.end(), [&](const Wire& w) {
    return w.net && ((w.from == me && w.carrier == me) || w.to == me);
  });
}

bool DeviceView::is_started(int rank, const Issued& issued, Ns at) const {
  const Key key = key_of(rank, issued);
  if (stage(rank, key, at) != Stage::kRuns) {
    return false;
  }
  if (c_.fr.api >= kTellsKernels) {
    const int me = group(key.group).position(rank);
    const Flow& f = flow_of(issued, key, at);
    return f.wires.empty() || f.channels[static_cast<std::size_t>(me)] > 0;
  }
  // Only its transfers show it: one has taken a buffer from the kernel, or given it one.
  const int me = group(key.group).position(rank);
  const std::vector<Wire>& wires = flow_of(issued, key, at).wires;
  return std::any_of(wires.begin(), wires.end(), [&](const Wire& w) {
    return w.net && ((w.from == me && w.carrier == me && w.sends && w.filled > 0) ||
                     (w.to == me && w.taken > 0));
  });
}

std::vector<OperationRow> DeviceView::operations(int rank, Ns at) const {
  std::vector<OperationRow> out;
  const RankRun& run = c_.run_of(rank);
  for (const Seen& s : seen(run, at, true, false)) {
    const Issued& i = *s.issued;
    OperationRow row;
    row.issued = &i;
    row.ticket = s.ticket;
    const Group& g = group(i.op->group);
    row.comm = comm_of(g, rank, i);
    if (g.ranks.size() < 2) {
      continue;
    }
    const Key key = key_of(rank, i);
    if (s.done && !troubled_.contains(key)) {
      continue;
    }
    const bool launched = i.launched != kNever && i.launched <= at;
    const bool unseen = is_unseen(rank, *i.op);
    const bool started = launched && !unseen && (s.done || is_started(rank, i, at));
    row.state = s.done                                                              ? "completed"
                : started                                                           ? "started"
                : launched                                                          ? "launched"
                : (i.op->launch == Launch::kNotBegun || c_.fr.api < kTellsLaunches) ? "scheduled"
                                                                                    : "launching";
    row.launching =
        c_.fr.api < kTellsLaunches || i.op->launch == Launch::kNotBegun ? kNever : i.created;
    row.launched = launched ? i.launched : kNever;
    row.started = started ? i.started : kNever;
    const bool kernels = c_.fr.api >= kTellsKernels;
    row.channels = launched ? (i.op->is_p2p() ? 1 : c_.job.fabric.channels) : 0;
    if (started && kernels) {
      const int me = g.position(rank);
      const Flow& f = flow_of(i, key, at);
      const int running = f.wires.empty() ? row.channels : f.channels[static_cast<std::size_t>(me)];
      row.channels_started = running;
      int channel = 0;
      for (int n = 0; n < running && !s.done; ++n, ++channel) {
        const auto absent = [&] {
          const Issued* own = find(rank, key);
          const Trouble& t = own->op->trouble;
          return t.kind == Trouble::kChannel && t.from == me &&
                 (t.channel < 0 || t.channel == channel);
        };
        while (absent() && channel < row.channels) {
          ++channel;
        }
        row.phases.push_back({"kernel", channel, -1, "running", 0, 0, i.started});
      }
    }
    transfers(rank, i, key, at, row.phases, nullptr);
    if (s.done && row.phases.empty()) {
      continue;
    }
    out.push_back(std::move(row));
  }
  return out;
}

std::vector<CarriedRow> DeviceView::carried(int rank, Ns at) const {
  std::vector<CarriedRow> out;
  if (!c_.job.fabric.pxn) {
    return out;
  }
  for (int other = 0; other < c_.job.world; ++other) {
    const RankRun& run = c_.run_of(other);
    if (other == rank || c_.job.node(other) != c_.job.node(rank) ||
        (run.ended && run.ended_at <= at)) {
      continue;
    }
    const std::vector<OperationRow> rows = operations(other, at);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::vector<PhaseRow> own;
      std::map<int, std::vector<PhaseRow>> carried;
      transfers(other, *rows[i].issued, key_of(other, *rows[i].issued), at, own, &carried);
      for (const PhaseRow& p : carried[rank]) {
        out.push_back({other, rows[i].ticket, p});
      }
    }
  }
  return out;
}

}  // namespace hangsim
