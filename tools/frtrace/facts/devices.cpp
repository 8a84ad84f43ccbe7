// What a device says of an operation: what is before it on its stream, whose transfers it carries,
// its counterpart on another rank.
#include "facts/devices.hpp"

#include <algorithm>
#include <tuple>

#include "facts/exits.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

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

// What was asked for decides: NCCL 2.31 is not asked.
bool tells_kernels(const DeviceEvidence& d) {
  constexpr std::uint32_t kKernelEvents = 64;  // ncclProfileKernelCh
  constexpr std::uint32_t kTellsKernels = 3;   // version of the profiler's interface
  return d.plugin_api >= kTellsKernels && (d.events == 0 || (d.events & kKernelEvents) != 0);
}

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

std::size_t first_in_flight(const RankEvidence& e) {
  return static_cast<std::size_t>(std::find_if(e.records.begin(), e.records.end(), blocks) -
                                  e.records.begin());
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
  std::size_t first = operation;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (is_launched(ops[i]) && same_stream(e, ops[i], o) && before(ops[i], ops[first])) {
      first = i;
    }
  }
  return first == operation ? std::nullopt : std::optional(first);
}

// ---------------------------------------------------------------- who is at the other end

Devices::Devices(const Case& c) : c_(c) {
  for (int i = 0; i < static_cast<int>(c.ranks.size()); ++i) {
    const RankEvidence& e = c.evidence_of(i);
    for (const CommEvidence& comm : e.device.comms) {
      if (comm.used && comm.hash != 0 && comm.rank >= 0) {
        members_.try_emplace({comm.hash, comm.rank}, e.id.rank);
      }
    }
  }
  find_carried();
}

void Devices::find_carried() {
  // Host, boot, number and pid of the process; row and generation there.
  using Key = std::tuple<std::string_view, std::string_view, std::uint32_t, int, std::uint32_t,
                         std::uint32_t>;
  const int n = static_cast<int>(c_.ranks.size());
  std::map<Key, OnDevice> owners;
  for (int i = 0; i < n; ++i) {
    const RankEvidence& e = c_.evidence_of(i);
    for (std::size_t k = 0; k < e.device.operations.size() && e.device.process != 0; ++k) {
      const DeviceOperation& o = e.device.operations[k];
      owners.try_emplace(
          Key{e.id.host, e.id.boot_id, e.device.process, e.id.pid, o.row, o.generation},
          OnDevice{i, k});
    }
  }
  for (int carrier = 0; carrier < n; ++carrier) {
    const RankEvidence& e = c_.evidence_of(carrier);
    for (const CarriedPhase& x : e.device.carried) {
      const auto owner =
          owners.find({e.id.host, e.id.boot_id, x.process, x.pid, x.phase.row, x.generation});
      if (owner != owners.end()) {
        carried_[owner->second].push_back(x.phase);
        carried_[owner->second].back().carrier = carrier;
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
  const int g = row != 0 ? c_.group_at(evidence, row) : -1;
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
    return it->second;
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

std::optional<RecordAt> Devices::meeting(const OnDevice& at, Rank rank) const {
  const Group* g = group(at);
  const RankEvidence& e = c_.evidence_of(at.evidence);
  if (g == nullptr || !g->position.contains(rank)) {
    return std::nullopt;
  }
  const Record& r = e.records[record_of(e, (*this)[at])];
  const int mine = g->position.at(e.id.rank), theirs = g->position.at(rank);
  const int evidence = g->evidence[static_cast<std::size_t>(theirs)];
  const Kind kind = r.kind == Kind::kSend   ? Kind::kRecv
                    : r.kind == Kind::kRecv ? Kind::kSend
                                            : r.kind;
  for (std::size_t i = evidence < 0 ? 0 : c_.evidence_of(evidence).records.size(); i-- > 0;) {
    const Record& x = c_.evidence_of(evidence).records[i];
    if (x.kind == kind && x.seq == r.seq &&
        static_cast<int>(x.group) == g->row[static_cast<std::size_t>(theirs)] &&
        (kind == Kind::kCollective || (x.peer == mine && r.peer == theirs))) {
      return RecordAt{evidence, i};
    }
  }
  return std::nullopt;
}

std::optional<OnDevice> Devices::counterpart(const OnDevice& at, Rank other) const {
  const auto there = meeting(at, other);
  return there ? of(there->first, there->second) : std::nullopt;
}

// The other member has finished it, or its side of a send or receive.
bool Devices::is_done(const OnDevice& at, Rank other) const {
  const auto there = meeting(at, other);
  return there && c_.evidence_of(there->first).records[there->second].state == State::kCompleted;
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

bool Devices::started_elsewhere(const OnDevice& at) const {
  const Group* g = group(at);
  const RankEvidence& e = c_.evidence_of(at.evidence);
  return g != nullptr && std::any_of(g->ranks.begin(), g->ranks.end(), [&](Rank other) {
           const auto there = other == e.id.rank ? std::nullopt : meeting(at, other);
           if (!there) {
             return false;
           }
           const Record& theirs = c_.evidence_of(there->first).records[there->second];
           const Time since = theirs.started != 0 ? theirs.started : theirs.ended;
           // Looked at long enough after that to mean anything.
           constexpr double kLate_s = 1;
           return (theirs.state == State::kStarted || theirs.state == State::kCompleted) &&
                  (since == 0 || seconds_between(since, e.written) >= kLate_s);
         });
}

// The table had room for all of them.
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

bool Devices::runs(const OnDevice& at) const {
  return (*this)[at].state == DeviceState::kStarted || may_run(at);
}

// All that its kernel waits for comes and goes over the network.
bool Devices::is_by_network_alone(const OnDevice& at) const {
  const CommEvidence* own = comm(at);
  return ((*this)[at].flags & kDeviceP2p) != 0 ||
         (own != nullptr && own->n_ranks > 0 &&
          own->n_nodes == static_cast<std::uint32_t>(own->n_ranks));
}

// Not all channels of its kernel run, though all of another member's do.
bool Devices::lacks_channels(const OnDevice& at) const {
  // Of sends and receives, and in older versions, what is announced is a bound.
  constexpr std::uint32_t kTellsChannels = 4;
  const DeviceOperation& o = (*this)[at];
  const Group* g = group(at);
  return o.channels_started != 0 && o.channels_started < o.channels &&
         (o.flags & kDeviceP2p) == 0 && g != nullptr &&
         c_.evidence_of(at.evidence).device.plugin_api >= kTellsChannels &&
         std::any_of(
             g->ranks.begin(), g->ranks.end(),
             [&](Rank other) {
               const auto there = counterpart(at, other);
               return there && (*this)[*there].channels != 0 &&
                      (*this)[*there].channels_started >= (*this)[*there].channels;
             });
}

// It runs, its transfers have ended, and all other members are through with it.
bool Devices::is_owed_nothing(const OnDevice& at) const {
  const DeviceOperation& o = (*this)[at];
  const Group* g = group(at);
  return o.state == DeviceState::kStarted && o.transfers_started != 0 &&
         o.transfers_started == o.transfers_ended && g != nullptr &&
         std::all_of(g->ranks.begin(), g->ranks.end(), [&](Rank other) {
           return other == c_.evidence_of(at.evidence).id.rank || is_done(at, other);
         });
}

}  // namespace frtrace
