// Follows the waits of devices to their ends: from an operation to the operation ahead of it on its
// stream, to the transfers that its kernel waits for, to the ranks at their other ends. Silence
// proves nothing: a path is left open if the evidence does not tell its end.
#include <algorithm>
#include <deque>
#include <set>

#include "facts/device/devices.hpp"
#include "facts/exits.hpp"
#include "facts/limits.hpp"
#include "model/contains.hpp"
#include "model/operation.hpp"

namespace frtrace {

class Devices::Walk {
 public:
  Walk(const Devices& d, const std::vector<OnDevice>& from) : d_(d), c_(d.c_) {
    for (const OnDevice& at : from) {
      go(at);
    }
    while (!next_.empty()) {
      const OnDevice at = next_.front();
      next_.pop_front();
      out_.visited.push_back(at);
      if (d_[at].state == DeviceState::kStarted || d_.may_run(at)) {
        running(at);
      } else {
        queued(at);
      }
    }
  }
  DeviceChain take() { return std::move(out_); }

 private:
  void go(const OnDevice& at) {
    if (seen_.insert(at).second) {
      next_.push_back(at);
    }
  }

  void add_stalled(const OnDevice& at, StalledDevice::Why why) {
    if (std::ranges::find(out_.stalled, at, &StalledDevice::at) == out_.stalled.end()) {
      out_.stalled.push_back({at, why});
    }
  }

  void lost_between(Rank from, Rank to, const DevicePhase& p) {
    auto it = std::ranges::find_if(out_.links,
                                   [&](const Link& l) { return l.from == from && l.to == to; });
    if (it == out_.links.end()) {
      it = out_.links.insert(it, {from, to, p.step, p.n_steps, {}, {}});
    }
    if (!contains(it->channels, p.channel)) {
      it->channels.push_back(p.channel);
    }
    const std::string over = over_text(p);
    if (!over.empty() && !contains(it->over, over)) {
      it->over.push_back(over);
    }
  }

  void queued(const OnDevice& at) {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    const DeviceOperation& o = d_[at];
    if (const auto busy = stream_busy_with(e, at.operation)) {
      go({at.evidence, *busy});
      return;
    }
    // This operation's stream may wait for an earlier operation of the rank. Or that operation
    // fills the queue that the launch needs.
    const std::size_t own = record_of(e, o);
    for (std::size_t r = 0; r < e.records.size() && r < own; ++r) {
      if (!blocks(e.records[r])) {
        continue;
      }
      if (const auto before = device_operation(e, r)) {
        go({at.evidence, *before});
      } else {
        out_.open = true;
      }
      return;
    }
    if (own == SIZE_MAX) {
      out_.open = true;  // issued at an unknown time
      return;
    }
    if (o.state == DeviceState::kScheduled && e.device.plugin_api < kTellsLaunches) {
      add_stalled(at, StalledDevice::kInLaunch);
      return;
    }
    add_stalled(at, o.state == DeviceState::kScheduled   ? StalledDevice::kUnlaunched
                    : o.state == DeviceState::kLaunching ? StalledDevice::kInLaunch
                                                         : StalledDevice::kNotStarted);
  }

  void running(const OnDevice& at) {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    const DeviceOperation& o = d_[at];
    const std::vector<DevicePhase> phases = d_.phases(at);
    const bool all_seen = d_.has_all_transfers(at);
    if (std::ranges::any_of(phases, [&](const DevicePhase& p) {
          return p.kind != PhaseKind::kKernel && p.time != 0 &&
                 seconds_between(p.time, e.written) < limits::kMoves_s;
        })) {
      out_.open = true;  // slow, but it moves: its wait at this instant is not the cause
      return;
    }
    if (all_seen && !tells_kernels(e.device, o) && stands_unseen(at, phases)) {
      add_stalled(at, StalledDevice::kUnseenKernel);
      return;
    }
    const auto kernels = std::ranges::count_if(
        phases, [](const DevicePhase& p) { return p.kind == PhaseKind::kKernel; });
    const bool kernels_kept = kernels + o.channels_ended >= o.channels_started;
    bool for_others = false, for_kernel = false, by_network = true;
    if (all_seen && d_.lacks_channels(at)) {
      add_stalled(at, StalledDevice::kChannelsAbsent);
      for_others = true;
    }
    for (const DevicePhase& p : phases) {
      if (p.kind != PhaseKind::kSend && p.kind != PhaseKind::kRecv) {
        continue;
      }
      switch (p.wait) {
        case PhaseWait::kInFlight:
        case PhaseWait::kPeerCredit:
        case PhaseWait::kData:
          for_others = true;
          transfer(at, p);
          break;
        case PhaseWait::kFlush:
          for_others = true;
          lost_between(e.id.rank, e.id.rank, p);
          break;
        case PhaseWait::kPosted:
        case PhaseWait::kOwnKernel:
        case PhaseWait::kOwnKernelTakes: {
          const bool runs = std::ranges::any_of(phases, [&](const DevicePhase& k) {
            return k.kind == PhaseKind::kKernel && k.channel == p.channel;
          });
          if (!runs && all_seen && kernels_kept && o.channels_started != 0 &&
              o.channels_started < o.channels) {
            add_stalled(at, StalledDevice::kChannelsAbsent);
            for_others = true;
          }
          for_kernel = for_kernel || runs;
          by_network = by_network && waits_for_network_alone(at, phases, p.channel);
          break;
        }
        default:
          break;  // not begun: the same connection does other work first
      }
    }
    if (for_others) {
      return;
    }
    if (const auto carrier = idle_carrier(at, phases)) {
      not_begun(at, *carrier);
      return;
    }
    if (all_seen && ((for_kernel && by_network) || is_owed_nothing(at))) {
      add_stalled(at, StalledDevice::kKernel);
      return;
    }
    if (for_kernel) {
      out_.busy.push_back(at);
    }
    out_.open = true;
  }

  // The carrier of the transfers (as DevicePhase::carrier) if its network thread has begun none of
  // them. nullopt if nothing is known of a peer, too: the progress of transfers with a dead peer
  // depends on the network.
  std::optional<int> idle_carrier(const OnDevice& at,
                                  const std::vector<DevicePhase>& phases) const {
    std::optional<int> carrier;
    for (const DevicePhase& p : phases) {
      if (p.kind == PhaseKind::kKernel) {
        continue;
      }
      if (p.wait != PhaseWait::kIdle || !c_.index.contains(d_.peer(at, p.peer))) {
        return std::nullopt;
      }
      carrier = carrier.value_or(p.carrier);
    }
    return carrier;
  }

  // The kernel's block of this channel waits only for the network: for all peers, for both
  // neighbours in a ring, or for the peer of a send or receive.
  bool waits_for_network_alone(const OnDevice& at, const std::vector<DevicePhase>& phases,
                               std::uint32_t channel) const {
    const CommEvidence* comm = d_.comm(at);
    const DeviceOperation& o = d_[at];
    if ((o.flags & kDeviceP2p) != 0 ||
        (comm != nullptr && comm->n_ranks > 0 &&
         comm->n_nodes == static_cast<std::uint32_t>(comm->n_ranks))) {
      return true;
    }
    const auto has = [&](PhaseKind kind) {
      return std::ranges::any_of(
          phases, [&](const DevicePhase& p) { return p.kind == kind && p.channel == channel; });
    };
    return c_.evidence_of(at.evidence).text(o.algorithm) == "RING" && has(PhaseKind::kSend) &&
           has(PhaseKind::kRecv);
  }

  // For kernels that are not reported: on some channel data arrived and is not taken, and there is
  // room for the data that it would send. The kernel does not run, or makes no progress.
  bool stands_unseen(const OnDevice& at, const std::vector<DevicePhase>& phases) const {
    const bool p2p = (d_[at].flags & kDeviceP2p) != 0;
    return std::ranges::any_of(phases, [&](const DevicePhase& p) {
      const bool takes = p.kind == PhaseKind::kRecv && p.wait == PhaseWait::kOwnKernelTakes;
      const bool fills = p.kind == PhaseKind::kSend && p.wait == PhaseWait::kOwnKernel;
      return (takes || (p2p && fills)) && waits_for_network_alone(at, phases, p.channel) &&
             (p2p || std::ranges::all_of(phases, [&](const DevicePhase& other) {
                return other.channel != p.channel || other.kind != PhaseKind::kSend ||
                       other.wait == PhaseWait::kOwnKernel;
              }));
    });
  }

  // The kernel runs, its transfers have ended, and all other members have completed the operation.
  bool is_owed_nothing(const OnDevice& at) const {
    const DeviceOperation& o = d_[at];
    const Group* g = d_.group(at);
    return o.state == DeviceState::kStarted && o.transfers_started != 0 &&
           o.transfers_started == o.transfers_ended && g != nullptr &&
           std::ranges::all_of(g->evidence, [&](int other) {
             return other == at.evidence || (other >= 0 && d_.is_done(at, other));
           });
  }

  // A started operation's transfer waits for the other end, or for the network between.
  void transfer(const OnDevice& at, const DevicePhase& p) {
    const Rank own = c_.evidence_of(at.evidence).id.rank;
    const Rank peer = d_.peer(at, p.peer);
    const auto found = c_.index.find(peer);
    if (found == c_.index.end()) {
      out_.open = true;
      return;
    }
    const bool send = p.kind == PhaseKind::kSend;
    const Rank from = send ? own : peer, to = send ? peer : own;
    const auto other = d_.counterpart(at, found->second);
    if (!other) {
      // The peer is done: the data, or its acknowledgement, is on the way.
      if (p.wait != PhaseWait::kPeerCredit && d_.is_done(at, found->second)) {
        lost_between(from, to, p);
      } else {
        out_.open = true;
      }
      return;
    }
    if (d_[*other].state != DeviceState::kStarted && !d_.may_run(*other)) {
      go(*other);
      return;
    }
    const std::optional<DevicePhase> f = d_.facing(at, p, *other);
    if (!send && p.wait == PhaseWait::kData && is_past(at, p, *other, f)) {
      lost_between(from, to, p);
      return;
    }
    if (!f) {
      // A receive's transfer runs in the receiver's process, and is reported when it begins, or
      // earlier.
      if (send && d_[*other].transfers_started == 0 && d_.has_all_transfers(*other)) {
        not_begun(*other, -1);
        return;
      }
      out_.open = true;
      go(*other);
      return;
    }
    // Both wait for each other: each has done its part, and the other did not learn of it.
    const bool waits = send ? f->wait == PhaseWait::kData
                            : f->wait == PhaseWait::kInFlight || f->wait == PhaseWait::kPeerCredit;
    if (waits) {
      lost_between(from, to, p);
    } else if (f->wait == PhaseWait::kIdle) {
      not_begun(*other, f->carrier);
    } else {
      go(*other);
    }
  }

  // The sender has an acknowledgement of the step that did not arrive: it is at a later step, or,
  // of as many transfers as this end has, more have ended.
  bool is_past(const OnDevice& at, const DevicePhase& p, const OnDevice& other,
               const std::optional<DevicePhase>& f) const {
    if (f) {
      return f->n_steps == p.n_steps && f->step > p.step;
    }
    const DeviceOperation &mine = d_[at], &theirs = d_[other];
    return d_.has_all_transfers(other) && theirs.transfers_started == mine.transfers_started &&
           theirs.transfers_ended > mine.transfers_ended;
  }

  // The network thread has not begun a transfer. It does one operation after the other, so the walk
  // goes on with the communicator's earliest unfinished operation, if that is another.
  void not_begun(const OnDevice& at, int carrier) {
    const auto& ops = c_.evidence_of(at.evidence).device.operations;
    for (std::size_t i = 0; i < at.operation; ++i) {
      if (ops[i].comm == d_[at].comm) {
        go({at.evidence, i});
        return;
      }
    }
    const auto own = carrier < 0 ? std::optional(at) : d_.counterpart(at, carrier);
    if (own) {
      add_stalled(*own, StalledDevice::kNetworkThread);
    } else {
      out_.open = true;
    }
  }

  const Devices& d_;
  const Case& c_;
  std::deque<OnDevice> next_;
  std::set<OnDevice> seen_;
  DeviceChain out_;
};

DeviceChain Devices::follow(const std::vector<OnDevice>& from) const {
  return Walk(*this, from).take();
}

}  // namespace frtrace
