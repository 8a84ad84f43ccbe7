// device_builder.hpp - what NCCL says of the devices of a job that builder.hpp makes.
#pragma once

#include "builder.hpp"

namespace frtest {

class DeviceJob : public JobBuilder {
 public:
  explicit DeviceJob(int world) : JobBuilder(world) {}

  // A communicator of a group. n_nodes 0: each rank alone on its node.
  void comm(int g, const std::vector<Rank>& members, std::uint32_t n_nodes = 0) {
    for (std::size_t m = 0; m < members.size(); ++m) {
      RankEvidence& e = rank(members[m]);
      e.device.present = true;
      e.device.plugin_api = 6;
      e.device.comms.resize(std::max<std::size_t>(e.device.comms.size(), 1));
      CommEvidence c;
      c.used = c.profiled = true;
      c.hash = 0x100u + static_cast<std::uint64_t>(g);
      c.pg_group = group_row(members[m], g);
      c.n_ranks = static_cast<int>(members.size());
      c.rank = static_cast<int>(m);
      c.n_nodes = n_nodes != 0 ? n_nodes : static_cast<std::uint32_t>(members.size());
      comm_rows_[{members[m], g}] = static_cast<std::uint32_t>(e.device.comms.size());
      e.device.comms.push_back(c);
    }
  }

  // The last operation added.
  struct Added {
    RankEvidence& e;
    DeviceOperation& op() { return e.device.operations.back(); }
    Added& channels(std::uint32_t running, std::uint32_t of = 0) {
      op().channels = of != 0 ? of : running;
      op().channels_started = running;
      for (std::uint32_t c = 0; c < running; ++c) {
        phase(PhaseKind::kKernel, PhaseWait::kRunning, -1, c, 0, 0);
      }
      return *this;
    }
    Added& send(int peer, PhaseWait wait, std::uint32_t step = 0, std::uint32_t channel = 0) {
      return phase(PhaseKind::kSend, wait, peer, channel, step, 4);
    }
    Added& recv(int peer, PhaseWait wait, std::uint32_t step = 0, std::uint32_t channel = 0) {
      return phase(PhaseKind::kRecv, wait, peer, channel, step, 4);
    }
    Added& phase(PhaseKind kind, PhaseWait wait, int peer, std::uint32_t channel,
                 std::uint32_t step, std::uint32_t n_steps) {
      DevicePhase p;
      p.row = op().row;
      p.has_record = op().has_record;
      p.ticket = op().ticket;
      p.kind = kind;
      p.wait = wait;
      p.channel = channel;
      p.peer = peer;
      p.step = step;
      p.n_steps = n_steps;
      e.device.phases.push_back(p);
      return *this;
    }
  };

  Added on_device(Rank r, int g, const Op& op, DeviceState state, std::uint64_t stream = 0x700) {
    const Record record = issue(
        r, g, op, state == DeviceState::kStarted ? frtrace::State::kStarted : State::kEnqueued);
    RankEvidence& e = rank(r);
    if (state == DeviceState::kStarted) {
      e.records.back().started = now();
    }
    DeviceOperation d;
    d.row = static_cast<std::uint32_t>(e.device.operations.size());
    d.comm = comm_rows_.at({r, g});
    d.has_record = true;
    d.ticket = record.ticket;
    d.state = state;
    d.stream = stream;
    d.launching = state >= DeviceState::kLaunching ? now() : 0;
    d.launched = state >= DeviceState::kLaunched ? now() : 0;
    d.started = state >= DeviceState::kStarted ? now() : 0;
    e.device.operations.push_back(d);
    return {e};
  }

  // One collective of a ring in flight on all members: each has what it gave taken, and waits for
  // the one before it.
  void ring(int g, const std::vector<Rank>& members, const Op& op) {
    const int n = static_cast<int>(members.size());
    for (int m = 0; m < n; ++m) {
      on_device(members[static_cast<std::size_t>(m)], g, op, DeviceState::kStarted)
          .channels(1)
          .send((m + 1) % n, PhaseWait::kOwnKernel, 1)
          .recv((m + n - 1) % n, PhaseWait::kData, 1);
    }
  }
  DevicePhase& phase(Rank r, PhaseKind kind, std::size_t operation = 0) {
    RankEvidence& e = rank(r);
    return *std::find_if(e.device.phases.begin(), e.device.phases.end(), [&](const DevicePhase& p) {
      return p.row == operation && p.kind == kind;
    });
  }

  Report diagnose() {
    const auto evidence = take();
    for (const auto& e : evidence) {
      keep_unfinished(e->device);
    }
    const std::vector<Case> cases = make_cases(evidence, {});
    Report out = cases.size() == 1 ? frtrace::diagnose(cases[0]) : Report{};
    for (const auto& e : evidence) {
      e->device = {};
    }
    const std::vector<Case> bare = make_cases(evidence, {});
    without_ = bare.size() == 1 ? frtrace::diagnose(bare[0]) : Report{};
    return out;
  }
  // The verdict on the same evidence without that of the devices.
  const Report& without() const { return without_; }

 private:
  std::uint32_t group_row(Rank r, int g) {
    return static_cast<std::uint32_t>(&row(r, g) - rank(r).groups.data());
  }
  std::map<std::pair<Rank, int>, std::uint32_t> comm_rows_;
  Report without_;
};

}  // namespace frtest
