// wires.cpp - steps of transfers between ranks, until nothing moves.
#include "wires.hpp"

#include <algorithm>
#include <map>

namespace hangsim {

namespace {

constexpr int kBuffers = 8;    // of a wire
constexpr int kLargest = 256;  // members; a ring of more members moves a single step

// One round of a group of a kernel's threads: takes a step from each of `in`, then fills a step of
// each of `out`.
struct Move {
  std::vector<int> in, out;  // wires
};
struct Strand {
  int member = 0, channel = 0;
  std::vector<Move> moves;
  std::size_t next = 0;
};

class Builder {
 public:
  // moves: also builds the moves of the kernels.
  Builder(const Job& job, const Op& op, bool moves)
      : job_(job), op_(op), g_(job.groups[static_cast<std::size_t>(op.group)]), moves_(moves) {}

  void pair(int from, int to, int channel, int steps) {
    const int w = wire(from, to, channel, steps);
    if (!moves_) {
      return;
    }
    Strand give{from, channel, {}, 0}, take{to, channel, {}, 0};
    for (int s = 0; s < steps; ++s) {
      give.moves.push_back({{}, {w}});
      take.moves.push_back({{w}, {}});
    }
    strands.push_back(std::move(give));
    strands.push_back(std::move(take));
  }

  void collective() {
    const int n = size();
    if (n < 2) {
      return;
    }
    const Fabric& f = job_.fabric;
    if (op_.name == "all_to_all_single") {
      for (int a = 0; a < n; ++a) {
        for (int b = 0; b < n; ++b) {
          if (a != b) {
            pair(a, b, (a + b) % f.channels, f.loops);
          }
        }
      }
      return;
    }
    const bool reduces = op_.name.starts_with("all_reduce") || op_.name == "barrier";
    for (int c = 0; c < f.channels; ++c) {
      if (reduces && f.trees) {
        tree(c);
      } else {
        ring(c, n <= kLargest ? (reduces ? 2 : 1) * (n - 1) : 1);
      }
    }
  }

  std::vector<Wire> wires;
  std::vector<Strand> strands;

 private:
  int size() const { return static_cast<int>(g_.ranks.size()); }
  int node(int member) const { return job_.node(g_.ranks[static_cast<std::size_t>(member)]); }

  // The members by node; each node's members are rotated so that every channel leaves the node at
  // another member.
  std::vector<std::vector<int>> nodes(int channel) const {
    std::map<int, std::vector<int>> by_node;
    for (int m = 0; m < size(); ++m) {
      by_node[node(m)].push_back(m);
    }
    std::vector<std::vector<int>> out;
    for (auto& [_, members] : by_node) {
      const auto turn = channel % static_cast<int>(members.size());
      std::rotate(members.begin(), members.begin() + turn, members.end());
      out.push_back(std::move(members));
    }
    return out;
  }

  int wire(int from, int to, int channel, int steps) {
    Wire w;
    w.channel = channel;
    w.from = w.carrier = from;
    w.to = to;
    w.steps = steps;
    w.net = job_.fabric.all_by_net || node(from) != node(to);
    if (w.net && job_.fabric.pxn) {
      const auto all = nodes(0);
      for (const std::vector<int>& members : all) {
        if (std::find(members.begin(), members.end(), from) != members.end()) {
          w.carrier = members[static_cast<std::size_t>(to + channel) % members.size()];
        }
      }
    }
    wires.push_back(w);
    return static_cast<int>(wires.size()) - 1;
  }

  void ring(int channel, int hops) {
    std::vector<int> order;
    for (const std::vector<int>& members : nodes(channel)) {
      order.insert(order.end(), members.begin(), members.end());
    }
    const std::size_t n = order.size();
    std::vector<int> out(n);
    for (std::size_t i = 0; i < n; ++i) {
      out[i] = wire(order[i], order[(i + 1) % n], channel, hops * job_.fabric.loops);
    }
    for (std::size_t i = 0; i < n && moves_; ++i) {
      Strand s{order[i], channel, {}, 0};
      const int in = out[(i + n - 1) % n];
      for (int loop = 0; loop < job_.fabric.loops; ++loop) {
        s.moves.push_back({{}, {out[i]}});
        for (int h = 1; h < hops; ++h) {
          s.moves.push_back({{in}, {out[i]}});
        }
        s.moves.push_back({{in}, {}});
      }
      strands.push_back(std::move(s));
    }
  }

  // A chain in each node and a binary tree over the chains' heads: reduces upwards, broadcasts
  // downwards.
  void tree(int channel) {
    std::vector<int> parent(static_cast<std::size_t>(size()), -1);
    std::vector<int> heads;
    for (const std::vector<int>& members : nodes(channel)) {
      for (std::size_t i = 1; i < members.size(); ++i) {
        parent[static_cast<std::size_t>(members[i])] = members[i - 1];
      }
      heads.push_back(members.front());
    }
    for (std::size_t i = 1; i < heads.size(); ++i) {
      parent[static_cast<std::size_t>(heads[i])] = heads[(i - 1) / 2];
    }
    const int steps = 3 * job_.fabric.loops;
    std::vector<std::vector<int>> from_children(parent.size()), to_children(parent.size());
    std::vector<int> up(parent.size(), -1), down(parent.size(), -1);
    for (int m = 0; m < size(); ++m) {
      const std::size_t i = static_cast<std::size_t>(m);
      if (parent[i] >= 0) {
        up[i] = wire(m, parent[i], channel, steps);
        down[i] = wire(parent[i], m, channel, steps);
        from_children[static_cast<std::size_t>(parent[i])].push_back(up[i]);
        to_children[static_cast<std::size_t>(parent[i])].push_back(down[i]);
      }
    }
    for (int m = 0; m < size() && moves_; ++m) {
      const std::size_t i = static_cast<std::size_t>(m);
      const std::size_t n = static_cast<std::size_t>(steps);
      if (parent[i] < 0) {
        strands.push_back({m, channel, {n, Move{from_children[i], to_children[i]}}, 0});
        continue;
      }
      strands.push_back({m, channel, {n, Move{from_children[i], {up[i]}}}, 0});
      strands.push_back({m, channel, {n, Move{{down[i]}, to_children[i]}}, 0});
    }
  }

  const Job& job_;
  const Op& op_;
  const Group& g_;
  const bool moves_;
};

Builder build(const Job& job, const Op& op, int from, int to, bool moves) {
  Builder b(job, op, moves);
  if (from >= 0) {
    b.pair(from, to, 0, kBuffers + 4 * job.fabric.loops);
  } else {
    b.collective();
  }
  return b;
}

bool concerns(const Trouble& t, const Wire& w) {
  return t.from == w.from && t.to == w.to && (t.channel < 0 || t.channel == w.channel);
}

}  // namespace

const Wire* Flow::same(const Wire& w) const {
  for (const Wire& x : wires) {
    if (x.channel == w.channel && x.from == w.from && x.to == w.to) {
      return &x;
    }
  }
  return nullptr;
}

std::vector<Wire> wires_of(const Job& job, const Op& op, int from, int to) {
  return build(job, op, from, to, false).wires;
}

namespace {

// Moves steps over the wires until nothing moves any more.
class Mover {
 public:
  Mover(Builder& b, const Setting& s) : b_(b), s_(s) {}

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Wire& w : b_.wires) {
        moved = (w.net && network(w)) || moved;
      }
      for (Strand& strand : b_.strands) {
        if (channel_runs(strand.member, strand.channel)) {
          moved = kernel(strand) || moved;
        }
      }
    }
  }

  bool channel_runs(int member, int channel) const {
    return stage(member) == Stage::kRuns &&
           limit_of(Trouble::kChannel, member, channel) == INT32_MAX;
  }

 private:
  Stage stage(int member) const { return s_.stages[static_cast<std::size_t>(member)]; }
  Wire& wire(int i) const { return b_.wires[static_cast<std::size_t>(i)]; }

  // Number of steps after which a trouble of that kind stops its wire; INT32_MAX: none.
  template <class Applies>
  int limit(Trouble::Kind kind, const Applies& applies) const {
    int steps = INT32_MAX;
    for (const Trouble& t : s_.troubles) {
      if (t.kind == kind && applies(t)) {
        steps = std::min(steps, t.step);
      }
    }
    return steps;
  }
  int limit_of(Trouble::Kind kind, int member, int channel) const {
    return limit(kind, [&](const Trouble& t) {
      return t.from == member && (t.channel < 0 || t.channel == channel);
    });
  }
  int thread_limit(int member) const {
    return limit(Trouble::kThread, [&](const Trouble& t) { return t.from == member; });
  }

  // Work of the network threads at both ends of a wire; true if a step moved.
  bool network(Wire& w) const {
    const Wire before = w;
    const auto here = [&](const Trouble& t) { return concerns(t, w); };
    const int sender = thread_limit(w.carrier), receiver = thread_limit(w.to);
    w.sends = w.sends || (stage(w.from) >= Stage::kLaunched && sender > 0);
    w.receives = w.receives || (stage(w.to) >= Stage::kLaunched && receiver > 0);
    if (const Wire* earlier = s_.before != nullptr ? s_.before->same(w) : nullptr) {
      w.sends = w.sends && earlier->sent();
      w.receives = w.receives && earlier->received();
    }
    if (w.receives) {
      const int posted = std::min(
          {w.steps, w.taken + kBuffers, receiver == INT32_MAX ? w.steps : receiver + kBuffers});
      w.room = std::min(posted, limit(Trouble::kCredit, here));
    }
    if (w.sends) {
      w.given = std::max(w.given, std::min({w.filled, w.room, sender}));
      w.gone = std::min({w.given, limit(Trouble::kLost, here)});
      const int there = std::min(w.gone, receiver);
      const int flushed = limit(Trouble::kFlush, here);
      w.flushing = there > flushed;
      w.arrived = std::min(there, flushed);
    }
    return before.given != w.given || before.gone != w.gone || before.arrived != w.arrived ||
           before.room != w.room;
  }

  // Moves of a kernel's threads as far as their wires allow; true if there was a move.
  bool kernel(Strand& strand) const {
    const int most = limit_of(Trouble::kKernel, strand.member, strand.channel);
    const auto ready = [&](int i) {
      const Wire& w = wire(i);
      return (w.net ? w.arrived : w.filled) > w.taken;
    };
    const auto free = [&](int i) {
      const Wire& w = wire(i);
      return w.filled - (w.net ? w.gone : w.taken) < kBuffers && (!w.net || w.sends);
    };
    bool moved = false;
    while (strand.next < strand.moves.size() && static_cast<int>(strand.next) < most) {
      const Move& m = strand.moves[strand.next];
      if (!std::all_of(m.in.begin(), m.in.end(), ready) ||
          !std::all_of(m.out.begin(), m.out.end(), free)) {
        break;
      }
      for (const int i : m.in) {
        ++wire(i).taken;
      }
      for (const int i : m.out) {
        ++wire(i).filled;
      }
      ++strand.next;
      moved = true;
    }
    return moved;
  }

  Builder& b_;
  const Setting& s_;
};

}  // namespace

Flow flow(const Job& job, const Op& op, const Setting& s, int from, int to) {
  const bool runs =
      std::find(s.stages.begin(), s.stages.end(), Stage::kRuns) != s.stages.end() && !s.frozen;
  Builder b = build(job, op, from, to, runs);
  Mover mover(b, s);
  mover.run();
  Flow out;
  const std::size_t members = s.stages.size();
  out.done.assign(members, runs);
  for (const Strand& strand : b.strands) {
    const std::size_t m = static_cast<std::size_t>(strand.member);
    out.done[m] = out.done[m] && strand.next == strand.moves.size();
  }
  for (std::size_t m = 0; m < members; ++m) {
    int running = 0;
    for (int c = 0; c < (from >= 0 ? 1 : job.fabric.channels); ++c) {
      running += mover.channel_runs(static_cast<int>(m), c) ? 1 : 0;
    }
    out.channels.push_back(running);
  }
  out.wires = std::move(b.wires);
  return out;
}

}  // namespace hangsim
