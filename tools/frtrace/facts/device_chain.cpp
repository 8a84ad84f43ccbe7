// Where the waits of devices end.
//
// An operation that has not ended is queued (scheduled, in its launch, on its stream) or runs. A
// queued one waits for what its stream is busy with, of whatever communicator, else for what its
// rank issued before and has not ended; where there is neither, the rank itself holds it up. One
// that runs waits for what the oldest step of each of its transfers waits for: the peer (its
// credit, its data, or that it takes what is in flight), its own kernel, or its network thread. A
// peer is followed to its own operation of the same meeting, unless both ends wait for each other:
// then the network between them is where it ends. On a channel where all wait for the own kernel,
// and the kernel waits for nothing but the network, that kernel stands. Where kernels are not told
// of, what is on its stream may run. Nothing is taken from silence: a path that the evidence does
// not tell the end of is left open.
#include <algorithm>
#include <deque>
#include <set>

#include "facts/devices.hpp"
#include "facts/exits.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

enum class For : std::uint8_t { kPeer, kCard, kKernel, kThread, kNothing };

// What a transfer's oldest step waits for.
For waits_for(const DevicePhase& p) {
  if (p.kind != PhaseKind::kSend && p.kind != PhaseKind::kRecv) {
    return For::kNothing;
  }
  switch (p.wait) {
    case PhaseWait::kInFlight:
    case PhaseWait::kPeerCredit:
    case PhaseWait::kData:
      return For::kPeer;
    case PhaseWait::kFlush:
      return For::kCard;
    case PhaseWait::kPosted:
    case PhaseWait::kOwnKernel:
    case PhaseWait::kOwnKernelTakes:
      return For::kKernel;
    case PhaseWait::kIdle:
      return For::kThread;
    default:
      return For::kNothing;
  }
}

StalledDevice::Why why_queued(const RankEvidence& e, DeviceState state) {
  constexpr std::uint32_t kTellsLaunches = 5;  // version of the profiler's interface
  return state == DeviceState::kLaunched ? StalledDevice::kNotStarted
         : state == DeviceState::kLaunching || e.device.plugin_api < kTellsLaunches
             ? StalledDevice::kInLaunch
             : StalledDevice::kUnlaunched;
}

}  // namespace

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
      d_.runs(at) ? running(at) : queued(at);
    }
  }
  DeviceChain take() { return std::move(out_); }

 private:
  using Phases = std::vector<DevicePhase>;

  void go(const OnDevice& at) {
    if (seen_.insert(at).second) {
      next_.push_back(at);
    }
  }

  void stalls(const OnDevice& at, StalledDevice::Why why) {
    const auto same = [&](const StalledDevice& s) { return s.at == at; };
    if (std::none_of(out_.stalled.begin(), out_.stalled.end(), same)) {
      out_.stalled.push_back({at, why});
    }
  }

  void lost_between(Rank from, Rank to, const DevicePhase& p) {
    auto it = std::find_if(out_.links.begin(), out_.links.end(),
                           [&](const Link& l) { return l.from == from && l.to == to; });
    if (it == out_.links.end()) {
      it = out_.links.insert(it, {from, to, p.step, p.n_steps, {}, {}});
    }
    const auto add = [](auto& all, const auto& one) {
      if (std::find(all.begin(), all.end(), one) == all.end()) {
        all.push_back(one);
      }
    };
    add(it->channels, p.channel);
    if (const std::string over = over_text(p); !over.empty()) {
      add(it->over, over);
    }
  }

  void queued(const OnDevice& at) {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    if (const auto busy = stream_busy_with(e, at.operation)) {
      go({at.evidence, *busy});
      return;
    }
    // What the rank issued before may be waited for by this one's stream, or fill the queue that
    // its launch needs.
    const std::size_t first = first_in_flight(e);
    if (first >= record_of(e, d_[at])) {
      stalls(at, why_queued(e, d_[at].state));
    } else if (const auto before = device_operation(e, first)) {
      go({at.evidence, *before});
    } else {
      out_.open = true;
    }
  }

  void running(const OnDevice& at) {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    const Phases phases = d_.phases(at);
    constexpr double kMoves_s = 0.5;
    if (std::any_of(phases.begin(), phases.end(), [&](const DevicePhase& p) {
          return p.kind != PhaseKind::kKernel && p.time != 0 &&
                 seconds_between(p.time, e.written) < kMoves_s;
        })) {
      out_.open = true;  // slow, but it gets on: what it waits for now is not what holds it
      return;
    }
    bool ends = d_.has_all_transfers(at) && stands(at, phases);
    bool kernel = false;
    for (const DevicePhase& p : phases) {
      const For what = waits_for(p);
      ends = ends || what == For::kPeer || what == For::kCard;
      kernel = kernel || (what == For::kKernel && channel_runs(phases, p.channel));
      if (what == For::kPeer) {
        transfer(at, p);
      } else if (what == For::kCard) {
        lost_between(e.id.rank, e.id.rank, p);
      }
    }
    if (ends) {
      return;
    }
    if (const auto carrier = idle_carrier(at, phases)) {
      not_begun(at, *carrier);
      return;
    }
    if (kernel) {
      out_.busy.push_back(at);
    }
    out_.open = true;
  }

  static bool channel_runs(const Phases& phases, std::uint32_t channel) {
    return std::any_of(phases.begin(), phases.end(), [&](const DevicePhase& k) {
      return k.kind == PhaseKind::kKernel && k.channel == channel;
    });
  }

  // It holds itself up, as far as its own kernel tells. All of its transfers are known.
  bool stands(const OnDevice& at, const Phases& phases) {
    const DeviceOperation& o = d_[at];
    const bool told = tells_kernels(c_.evidence_of(at.evidence).device);
    const bool may_lack = o.channels_started != 0 && o.channels_started < o.channels;
    bool lacks = d_.lacks_channels(at), kernel = d_.is_owed_nothing(at);
    for (const DevicePhase& p : phases) {
      if (waits_for(p) == For::kKernel) {
        const bool runs = channel_runs(phases, p.channel);
        lacks = lacks || (may_lack && !runs);
        kernel = kernel || ((runs || !told) && d_.is_by_network_alone(at) &&
                            std::all_of(phases.begin(), phases.end(), [&](const DevicePhase& x) {
                              return x.channel != p.channel || x.kind == PhaseKind::kKernel ||
                                     waits_for(x) == For::kKernel;
                            }));
      }
    }
    if (lacks || kernel) {
      stalls(at, lacks  ? StalledDevice::kChannelsAbsent
                 : told ? StalledDevice::kKernel
                        : StalledDevice::kUnseenKernel);
    }
    return lacks || kernel;
  }

  // Its network thread has begun none of its transfers: whose thread that is. Not beside a peer of
  // which nothing is known: how far transfers with the dead get is the network's affair.
  std::optional<int> idle_carrier(const OnDevice& at, const Phases& phases) const {
    std::optional<int> carrier;
    for (const DevicePhase& p : phases) {
      if (p.kind != PhaseKind::kKernel) {
        if (waits_for(p) != For::kThread || !c_.index.contains(d_.peer(at, p.peer))) {
          return std::nullopt;
        }
        carrier = carrier.value_or(p.carrier);
      }
    }
    return carrier;
  }

  void not_begun(const OnDevice& at, int carrier) {
    if (const auto own = carrier < 0 ? at : d_.counterpart(at, c_.evidence_of(carrier).id.rank)) {
      stalls(*own, StalledDevice::kNetworkThread);
    } else {
      out_.open = true;
    }
  }

  // The other end holds the transfer up, or what is between.
  void transfer(const OnDevice& at, const DevicePhase& p) {
    const Rank own = c_.evidence_of(at.evidence).id.rank, peer = d_.peer(at, p.peer);
    const bool send = p.kind == PhaseKind::kSend;
    const Rank from = send ? own : peer, to = send ? peer : own;
    const auto other = d_.counterpart(at, peer);
    if (!other) {
      // Done there: what was handed to the network, or the word of it, is on the way.
      if (d_.is_done(at, peer)) {
        lost_between(from, to, p);
      } else {
        out_.open = true;
      }
      return;
    }
    const auto f = d_.runs(*other) ? d_.facing(at, p, *other) : std::nullopt;
    if (!f) {
      go(*other);
      return;
    }
    // Each has done its part, and the other did not learn of it.
    const bool lost = send ? f->wait == PhaseWait::kData
                           : f->wait == PhaseWait::kInFlight || f->wait == PhaseWait::kPeerCredit ||
                                 f->step > p.step;
    if (lost) {
      lost_between(from, to, p);
    } else if (waits_for(*f) == For::kThread) {
      not_begun(*other, f->carrier);
    } else {
      go(*other);
    }
  }

  const Devices& d_;
  const Case& c_;
  std::deque<OnDevice> next_;
  std::set<OnDevice> seen_;
  DeviceChain out_;
};

DeviceChain Devices::follow(const std::vector<RecordAt>& from) const {
  std::vector<OnDevice> known;
  for (const auto& [evidence, record] : from) {
    if (const auto at = of(evidence, record)) {
      known.push_back(*at);
    }
  }
  DeviceChain chain = Walk(*this, known).take();
  chain.open = chain.open || known.size() < from.size();
  return chain;
}

}  // namespace frtrace
