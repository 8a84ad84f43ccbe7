// What holds an operation on a device: what is before it on its stream, the transfers of its
// kernel, the ranks at their other ends. Nothing is taken from silence: a path that the evidence
// does not tell the end of is left open.
#include "facts/devices.hpp"

#include <algorithm>
#include <deque>
#include <iterator>
#include <set>
#include <tuple>

#include "facts/exits.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// From which version of the profiler's interface on.
constexpr std::uint32_t kTellsKernels = 3, kTellsLaunches = 5;

// Does silence mean that a kernel does not run? What was asked for decides: NCCL 2.31 is not asked.
bool tells_kernels(const DeviceEvidence& d) {
  constexpr std::uint32_t kKernelEvents = 64;  // ncclProfileKernelCh
  return d.plugin_api >= kTellsKernels && (d.events == 0 || (d.events & kKernelEvents) != 0);
}

bool is_launched(const DeviceOperation& o) {
  return o.state == DeviceState::kLaunched || o.state == DeviceState::kStarted;
}

bool same_stream(const RankEvidence& e, const DeviceOperation& a, const DeviceOperation& b) {
  // A communicator runs its operations one after the other, whatever their streams.
  if (a.comm == b.comm) {
    return true;
  }
  constexpr std::uint32_t kTellsStreams = 5;  // before, 0 may stand for any
  return a.stream == b.stream && (a.stream != 0 || e.device.plugin_api >= kTellsStreams);
}

}  // namespace

std::size_t record_at(const RankEvidence& e, std::uint64_t ticket) {
  const auto it =
      std::lower_bound(e.records.begin(), e.records.end(), ticket,
                       [](const Record& r, std::uint64_t value) { return r.ticket < value; });
  return it != e.records.end() && it->ticket == ticket
             ? static_cast<std::size_t>(it - e.records.begin())
             : SIZE_MAX;
}

std::optional<std::size_t> device_operation(const RankEvidence& e, std::size_t record) {
  if (record >= e.records.size()) {
    return std::nullopt;
  }
  const std::vector<DeviceOperation>& ops = e.device.operations;
  const std::uint64_t ticket = e.records[record].ticket;
  const auto it = std::partition_point(ops.begin(), ops.end(), [&](const DeviceOperation& o) {
    return o.has_record && o.ticket < ticket;
  });
  return it != ops.end() && it->has_record && it->ticket == ticket
             ? std::optional(static_cast<std::size_t>(it - ops.begin()))
             : std::nullopt;
}

std::size_t record_of(const RankEvidence& e, const DeviceOperation& o) {
  return o.has_record ? record_at(e, o.ticket) : SIZE_MAX;
}

std::optional<std::size_t> stream_busy_with(const RankEvidence& e, std::size_t operation) {
  const std::vector<DeviceOperation>& ops = e.device.operations;
  const DeviceOperation& o = ops[operation];
  if (o.state != DeviceState::kLaunched) {
    return std::nullopt;
  }
  const auto before = [](const DeviceOperation& a, const DeviceOperation& b) {
    return std::tuple(a.state != DeviceState::kStarted, a.launched, a.ticket) <
           std::tuple(b.state != DeviceState::kStarted, b.launched, b.ticket);
  };
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (i != operation && is_launched(ops[i]) && same_stream(e, ops[i], o) && before(ops[i], o) &&
        (!first || before(ops[i], ops[*first]))) {
      first = i;
    }
  }
  return first;
}

// ---------------------------------------------------------------- who is at the other end

Devices::Devices(const Case& c) : c_(c) {
  for (int i = 0; i < static_cast<int>(c.ranks.size()); ++i) {
    const std::vector<CommEvidence>& comms = c.evidence_of(i).device.comms;
    for (std::uint32_t row = 0; row < comms.size(); ++row) {
      if (comms[row].used && comms[row].hash != 0 && comms[row].rank >= 0) {
        members_.try_emplace({comms[row].hash, comms[row].rank}, Member{i, row});
      }
    }
  }
  find_carried();
}

void Devices::find_carried() {
  struct Process {
    std::string_view host, boot;
    std::uint32_t process;
    int pid;
    auto operator<=>(const Process&) const = default;
  };
  const auto process = [](const RankEvidence& e, std::uint32_t number, int pid) {
    return Process{e.id.host, e.id.boot_id, number, pid};
  };
  std::map<Process, std::vector<int>> processes;
  for (int i = 0; i < static_cast<int>(c_.ranks.size()); ++i) {
    const RankEvidence& e = c_.evidence_of(i);
    if (e.device.process != 0) {
      processes[process(e, e.device.process, e.id.pid)].push_back(i);
    }
  }
  for (int carrier = 0; carrier < static_cast<int>(c_.ranks.size()); ++carrier) {
    const RankEvidence& e = c_.evidence_of(carrier);
    for (const CarriedPhase& x : e.device.carried) {
      const auto owner = processes.find(process(e, x.process, x.pid));
      if (owner == processes.end() || owner->second.size() != 1) {
        continue;
      }
      const int i = owner->second.front();
      const std::vector<DeviceOperation>& ops = c_.evidence_of(i).device.operations;
      const auto op = std::find_if(ops.begin(), ops.end(), [&](const DeviceOperation& o) {
        return o.row == x.phase.row && o.generation == x.generation;
      });
      if (op != ops.end()) {
        auto& phases = carried_[{i, static_cast<std::size_t>(op - ops.begin())}];
        phases.push_back(x.phase);
        phases.back().carrier = carrier;
      }
    }
  }
}

std::vector<DevicePhase> Devices::phases(const OnDevice& at) const {
  const DeviceOperation& o = (*this)[at];
  const auto own = c_.evidence_of(at.evidence).device.phases.begin() + o.phase_first;
  std::vector<DevicePhase> out(own, own + o.phase_count);
  if (const auto it = carried_.find(at); it != carried_.end()) {
    out.insert(out.end(), it->second.begin(), it->second.end());
  }
  return out;
}

const DeviceOperation& Devices::operator[](const OnDevice& at) const {
  return c_.evidence_of(at.evidence).device.operations[at.operation];
}

std::optional<OnDevice> Devices::of(int evidence, std::size_t record) const {
  const auto operation = device_operation(c_.evidence_of(evidence), record);
  return operation ? std::optional(OnDevice{evidence, *operation}) : std::nullopt;
}

const CommEvidence* Devices::comm(const OnDevice& at) const {
  const auto& comms = c_.evidence_of(at.evidence).device.comms;
  const std::uint32_t row = (*this)[at].comm;
  return row < comms.size() && comms[row].used ? &comms[row] : nullptr;
}

const Group* Devices::group(int evidence, std::uint32_t row) const {
  const auto& rows = c_.group_of[static_cast<std::size_t>(evidence)];
  const int g = row != 0 && row < rows.size() ? rows[row] : -1;
  return g < 0 ? nullptr : &c_.groups[static_cast<std::size_t>(g)];
}

// That of its record.
const Group* Devices::group(const OnDevice& at) const {
  const RankEvidence& e = c_.evidence_of(at.evidence);
  const std::size_t record = record_of(e, (*this)[at]);
  return record == SIZE_MAX ? nullptr : group(at.evidence, e.records[record].group);
}

Rank Devices::peer(const OnDevice& at, std::int32_t comm_rank) const {
  const CommEvidence* own = comm(at);
  if (own == nullptr || comm_rank < 0) {
    return -1;
  }
  if (const auto it = members_.find({own->hash, comm_rank}); it != members_.end()) {
    return c_.evidence_of(it->second.evidence).id.rank;
  }
  for (const std::uint32_t row : {own->pg_group, own->group}) {
    const Group* g = group(at.evidence, row);
    if (g != nullptr && g->ranks_known && static_cast<int>(g->ranks.size()) == own->n_ranks &&
        comm_rank < own->n_ranks) {
      return g->ranks[static_cast<std::size_t>(comm_rank)];
    }
  }
  return -1;
}

bool Devices::lost_any(int evidence) const {
  const DeviceEvidence& d = c_.evidence_of(evidence).device;
  return d.comms_lost + d.ops_lost + d.phases_lost + d.unmatched + d.threads_lost != 0;
}

namespace {

// The record of the same meeting, in the evidence of another member.
std::size_t counterpart_record(const Case& c, const Group& g, const RankEvidence& own,
                               const Record& r, int evidence) {
  const auto position = [&](const RankEvidence& e) {
    const auto it = g.position.find(e.id.rank);
    return it == g.position.end() ? -1 : it->second;
  };
  const RankEvidence& other = c.evidence_of(evidence);
  const int mine = position(own), theirs = position(other);
  if (mine < 0 || theirs < 0 || g.evidence[static_cast<std::size_t>(theirs)] != evidence) {
    return SIZE_MAX;
  }
  const Kind kind = r.kind == Kind::kSend   ? Kind::kRecv
                    : r.kind == Kind::kRecv ? Kind::kSend
                                            : r.kind;
  const bool p2p = kind != Kind::kCollective;
  for (std::size_t i = other.records.size(); i-- > 0;) {
    const Record& x = other.records[i];
    if (x.kind == kind && x.seq == r.seq &&
        static_cast<int>(x.group) == g.row[static_cast<std::size_t>(theirs)] &&
        (!p2p || (x.peer == mine && r.peer == theirs))) {
      return i;
    }
  }
  return SIZE_MAX;
}

}  // namespace

std::optional<OnDevice> Devices::counterpart(const OnDevice& at, int evidence) const {
  const RankEvidence& e = c_.evidence_of(at.evidence);
  const Group* g = group(at);
  const std::size_t record = record_of(e, (*this)[at]);
  if (g == nullptr || record == SIZE_MAX) {
    return std::nullopt;
  }
  return of(evidence, counterpart_record(c_, *g, e, e.records[record], evidence));
}

// The other member has finished it, or its side of a send or receive.
bool Devices::is_done(const OnDevice& at, int evidence) const {
  const RankEvidence& e = c_.evidence_of(at.evidence);
  const Group* g = group(at);
  const std::size_t record = record_of(e, (*this)[at]);
  if (g == nullptr || record == SIZE_MAX) {
    return false;
  }
  const std::size_t other = counterpart_record(c_, *g, e, e.records[record], evidence);
  return other != SIZE_MAX && c_.evidence_of(evidence).records[other].state == State::kCompleted;
}

std::optional<DevicePhase> Devices::facing(const OnDevice& own, const DevicePhase& p,
                                           const OnDevice& other) const {
  const CommEvidence* mine = comm(own);
  const PhaseKind kind = p.kind == PhaseKind::kSend ? PhaseKind::kRecv : PhaseKind::kSend;
  for (const DevicePhase& f : phases(other)) {
    if (f.kind == kind && f.channel == p.channel && mine != nullptr && f.peer == mine->rank) {
      return f;
    }
  }
  return std::nullopt;
}

// ---------------------------------------------------------------- where the waits end

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
    if (std::find(it->channels.begin(), it->channels.end(), p.channel) == it->channels.end()) {
      it->channels.push_back(p.channel);
    }
    const std::string over = over_text(p);
    if (!over.empty() && std::find(it->over.begin(), it->over.end(), over) == it->over.end()) {
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
    // What the rank issued before may be waited for by this one's stream, or fill the queue that
    // its launch needs.
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
      out_.open = true;  // issued at a time that nothing tells
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
    constexpr double kMoves_s = 0.5;
    if (std::any_of(phases.begin(), phases.end(), [&](const DevicePhase& p) {
          return p.kind != PhaseKind::kKernel && p.time != 0 &&
                 seconds_between(p.time, e.written) < kMoves_s;
        })) {
      out_.open = true;  // slow, but it gets on: what it waits for now is not what holds it
      return;
    }
    if (all_seen && !tells_kernels(e.device) && stands_unseen(at, phases)) {
      add_stalled(at, StalledDevice::kUnseenKernel);
      return;
    }
    const auto kernels = std::count_if(phases.begin(), phases.end(), [](const DevicePhase& p) {
      return p.kind == PhaseKind::kKernel;
    });
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
          const bool runs = std::any_of(phases.begin(), phases.end(), [&](const DevicePhase& k) {
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
          break;  // not begun: behind what the same connection does first
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

  // Its network thread has begun none of its transfers: whose thread that is. Not beside a peer of
  // which nothing is known: how far transfers with the dead get is the network's affair.
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

  // What the kernel's block of this channel waits for goes over the network: with all peers, or with
  // both that a ring has, or with the one of a send or receive.
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
      return std::any_of(phases.begin(), phases.end(), [&](const DevicePhase& p) {
        return p.kind == kind && p.channel == channel;
      });
    };
    return c_.evidence_of(at.evidence).text(o.algorithm) == "RING" && has(PhaseKind::kSend) &&
           has(PhaseKind::kRecv);
  }

  // Where kernels are not told of: on some channel data came and is not taken, and there is room for
  // what it would send. The kernel does not run, or stands.
  bool stands_unseen(const OnDevice& at, const std::vector<DevicePhase>& phases) const {
    const bool p2p = (d_[at].flags & kDeviceP2p) != 0;
    return std::any_of(phases.begin(), phases.end(), [&](const DevicePhase& p) {
      const bool takes = p.kind == PhaseKind::kRecv && p.wait == PhaseWait::kOwnKernelTakes;
      const bool fills = p.kind == PhaseKind::kSend && p.wait == PhaseWait::kOwnKernel;
      return (takes || (p2p && fills)) && waits_for_network_alone(at, phases, p.channel) &&
             (p2p || std::all_of(phases.begin(), phases.end(), [&](const DevicePhase& other) {
                return other.channel != p.channel || other.kind != PhaseKind::kSend ||
                       other.wait == PhaseWait::kOwnKernel;
              }));
    });
  }

  // It runs, its transfers have ended, and all other members are through with it.
  bool is_owed_nothing(const OnDevice& at) const {
    const DeviceOperation& o = d_[at];
    const Group* g = d_.group(at);
    return o.state == DeviceState::kStarted && o.transfers_started != 0 &&
           o.transfers_started == o.transfers_ended && g != nullptr &&
           std::all_of(g->evidence.begin(), g->evidence.end(), [&](int other) {
             return other == at.evidence || (other >= 0 && d_.is_done(at, other));
           });
  }

  // A started operation's transfer waits for the other end, or for what is between.
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
      // Done there: what was handed to the network, or the word of it, is on the way.
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
      // A receive's transfer is its own process's, and told when it begins, if not before.
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

  // The sender has an acknowledgement of the step that did not come: it is at a later one, or its
  // transfer has ended, of as many as this end had.
  bool is_past(const OnDevice& at, const DevicePhase& p, const OnDevice& other,
               const std::optional<DevicePhase>& f) const {
    if (f) {
      return f->n_steps == p.n_steps && f->step > p.step;
    }
    const DeviceOperation &mine = d_[at], &theirs = d_[other];
    return d_.has_all_transfers(other) && theirs.transfers_started == mine.transfers_started &&
           theirs.transfers_ended > mine.transfers_ended;
  }

  // Its network thread has not begun with a transfer: it does one after the other.
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

bool Devices::started_elsewhere(const OnDevice& at) const {
  const RankEvidence& e = c_.evidence_of(at.evidence);
  const Group* g = group(at);
  const std::size_t record = record_of(e, (*this)[at]);
  if (g == nullptr || record == SIZE_MAX) {
    return false;
  }
  return std::any_of(g->evidence.begin(), g->evidence.end(), [&](int other) {
    if (other < 0 || other == at.evidence) {
      return false;
    }
    const std::size_t r = counterpart_record(c_, *g, e, e.records[record], other);
    if (r == SIZE_MAX) {
      return false;
    }
    const Record& theirs = c_.evidence_of(other).records[r];
    const Time since = theirs.started != 0 ? theirs.started : theirs.ended;
    // Looked at long enough after that to mean anything.
    constexpr double kLate_s = 1;
    return (theirs.state == State::kStarted || theirs.state == State::kCompleted) &&
           (since == 0 || seconds_between(since, e.written) >= kLate_s);
  });
}

bool Devices::has_all_transfers(const OnDevice& at) const {
  const DeviceEvidence& d = c_.evidence_of(at.evidence).device;
  const auto lost = [](const DeviceOperation& o) { return (o.flags & fr::kDevTransfersLost) != 0; };
  // Of an operation that is gone, or written by an fr that does not say of which: of any.
  return d.phases_lost == 0 ||
         (!lost((*this)[at]) && std::any_of(d.operations.begin(), d.operations.end(), lost));
}

bool Devices::may_run(const OnDevice& at) const {
  const RankEvidence& e = c_.evidence_of(at.evidence);
  return (*this)[at].state == DeviceState::kLaunched && !tells_kernels(e.device) &&
         ((*this)[at].flags & kDeviceTimed) == 0 && !stream_busy_with(e, at.operation);
}

bool Devices::lacks_channels(const OnDevice& at) const {
  const auto lacks = [&](const OnDevice& x) {
    return (*this)[x].channels_started < (*this)[x].channels;
  };
  const RankEvidence& e = c_.evidence_of(at.evidence);
  const Group* g = group(at);
  // Of sends and receives, and in older versions, what is announced is a bound.
  constexpr std::uint32_t kTellsChannels = 4;
  if (e.device.plugin_api < kTellsChannels || ((*this)[at].flags & kDeviceP2p) != 0 ||
      (*this)[at].channels_started == 0 || !lacks(at) || g == nullptr) {
    return false;
  }
  return std::any_of(g->evidence.begin(), g->evidence.end(), [&](int other) {
    const auto theirs = other < 0 || other == at.evidence ? std::nullopt : counterpart(at, other);
    return theirs && (*this)[*theirs].channels != 0 && !lacks(*theirs);
  });
}

DeviceChain Devices::follow(const std::vector<OnDevice>& from) const {
  return Walk(*this, from).take();
}

}  // namespace frtrace
