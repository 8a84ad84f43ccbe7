// A device's evidence on an operation: the operation ahead of it on its stream, transfers carried
// by another process, its counterpart on another rank.
#include "facts/device/devices.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "facts/exits.hpp"
#include "facts/limits.hpp"
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
  constexpr std::uint32_t kTellsStreams = 5;  // in older versions, 0 may stand for any stream
  return a.stream == b.stream && (a.stream != 0 || e.device.plugin_api >= kTellsStreams);
}

}  // namespace

// The events that fr asked NCCL for decide. NCCL 2.31 is not asked.
bool tells_kernels(const DeviceEvidence& d, const DeviceOperation& o) {
  constexpr std::uint32_t kKernelEvents = 64;  // ncclProfileKernelCh
  constexpr std::uint32_t kTellsKernels = 3;   // version of the profiler's interface
  return d.plugin_api >= kTellsKernels && (d.events == 0 || (d.events & kKernelEvents) != 0) &&
         (o.flags & fr::kDevNoKernels) == 0;
}

std::size_t record_at(const RankEvidence& e, std::uint64_t ticket) {
  const auto it = std::ranges::lower_bound(e.records, ticket, {}, &Record::ticket);
  return it != e.records.end() && it->ticket == ticket ? e.index_of(*it) : SIZE_MAX;
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

// ---------------------------------------------------------------- the other end of an operation

Devices::Devices(const Case& c) : c_(c) {
  for (const int i : c.indices()) {
    const std::vector<CommEvidence>& comms = c.evidence_of(i).device.comms;
    for (const CommEvidence& comm : comms) {
      if (comm.used && comm.hash != 0 && comm.rank >= 0) {
        members_.try_emplace({comm.hash, comm.rank}, i);
      }
    }
  }
  find_carried();
}

void Devices::find_carried() {
  using Process = std::tuple<std::string_view, std::string_view, std::uint32_t, int>;
  const auto process = [](const RankEvidence& e, std::uint32_t number, int pid) {
    return Process(e.id.host, e.id.boot_id, number, pid);
  };
  std::map<Process, std::vector<int>> processes;
  for (const int i : c_.indices()) {
    const RankEvidence& e = c_.evidence_of(i);
    if (e.device.process != 0) {
      processes[process(e, e.device.process, e.id.pid)].push_back(i);
    }
  }
  for (const int carrier : c_.indices()) {
    const RankEvidence& e = c_.evidence_of(carrier);
    for (const CarriedPhase& x : e.device.carried) {
      const auto owner = processes.find(process(e, x.process, x.pid));
      if (owner == processes.end() || owner->second.size() != 1) {
        continue;
      }
      const int i = owner->second.front();
      const std::vector<DeviceOperation>& ops = c_.evidence_of(i).device.operations;
      const auto op = std::ranges::find_if(ops, [&](const DeviceOperation& o) {
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
  const int g = row != 0 ? c_.group_at(evidence, row) : -1;
  return g < 0 ? nullptr : &c_.groups[idx(g)];
}

// The group of the operation's record.
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
    return c_.evidence_of(it->second).id.rank;
  }
  for (const std::uint32_t row : {own->pg_group, own->group}) {
    const Group* g = group(at.evidence, row);
    if (g != nullptr && g->ranks_known && static_cast<int>(g->ranks.size()) == own->n_ranks &&
        comm_rank < own->n_ranks) {
      return g->ranks[idx(comm_rank)];
    }
  }
  return -1;
}

// Another member's record of the same collective, or of the other end of a message; nullptr: none
// is kept.
const Record* Devices::other_record(const OnDevice& at, int evidence) const {
  const RankEvidence& own = c_.evidence_of(at.evidence);
  const RankEvidence& other = c_.evidence_of(evidence);
  const Group* g = group(at);
  const std::size_t record = record_of(own, (*this)[at]);
  if (g == nullptr || record == SIZE_MAX) {
    return nullptr;
  }
  const int mine = g->at(own.id.rank), theirs = g->at(other.id.rank);
  if (mine < 0 || theirs < 0 || g->evidence[idx(theirs)] != evidence) {
    return nullptr;
  }
  const Record& r = own.records[record];
  const Kind kind = r.kind == Kind::kSend   ? Kind::kRecv
                    : r.kind == Kind::kRecv ? Kind::kSend
                                            : r.kind;
  return other.last_record([&](const Record& x) {
    return x.kind == kind && x.seq == r.seq && static_cast<int>(x.group) == g->row[idx(theirs)] &&
           (kind == Kind::kCollective || (x.peer == mine && r.peer == theirs));
  });
}

std::optional<OnDevice> Devices::counterpart(const OnDevice& at, int evidence) const {
  const Record* r = other_record(at, evidence);
  return r == nullptr ? std::nullopt : of(evidence, c_.evidence_of(evidence).index_of(*r));
}

// The other member has finished the operation, or its end of a send or receive.
bool Devices::is_done(const OnDevice& at, int evidence) const {
  const Record* r = other_record(at, evidence);
  return r != nullptr && r->state == State::kCompleted;
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
  return g != nullptr && std::ranges::any_of(g->evidence, [&](int other) {
           const Record* r = other < 0 || other == at.evidence ? nullptr : other_record(at, other);
           if (r == nullptr || (r->state != State::kStarted && r->state != State::kCompleted)) {
             return false;
           }
           const Time since = r->started != 0 ? r->started : r->ended;
           // The evidence was taken long enough after that to mean anything.
           return since == 0 || seconds_between(since, c_.evidence_of(at.evidence).written) >=
                                    limits::kDeviceLate_s;
         });
}

bool Devices::has_all_transfers(const OnDevice& at) const {
  return ((*this)[at].flags & fr::kDevTransfersLost) == 0;  // other operations' losses do not count
}

bool Devices::may_run(const OnDevice& at) const {
  const RankEvidence& e = c_.evidence_of(at.evidence);
  return (*this)[at].state == DeviceState::kLaunched && !tells_kernels(e.device, (*this)[at]) &&
         ((*this)[at].flags & kDeviceTimed) == 0 && !stream_busy_with(e, at.operation);
}

bool Devices::lacks_channels(const OnDevice& at) const {
  const auto lacks = [&](const OnDevice& x) {
    return (*this)[x].channels_started < (*this)[x].channels;
  };
  const RankEvidence& e = c_.evidence_of(at.evidence);
  const Group* g = group(at);
  // For sends and receives, and in older versions, the announced number is an upper bound.
  constexpr std::uint32_t kTellsChannels = 4;
  if (e.device.plugin_api < kTellsChannels || ((*this)[at].flags & kDeviceP2p) != 0 ||
      (*this)[at].channels_started == 0 || !lacks(at) || g == nullptr) {
    return false;
  }
  return std::ranges::any_of(g->evidence, [&](int other) {
    const auto theirs = other < 0 || other == at.evidence ? std::nullopt : counterpart(at, other);
    return theirs && (*this)[*theirs].channels != 0 && !lacks(*theirs);
  });
}

}  // namespace frtrace
