// devices.hpp - progress of operations on the ranks' devices, and the ends of their waits.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "facts/slots.hpp"
#include "model/case.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

// An unfinished operation of a rank's device: its place in RankEvidence::device.operations.
struct OnDevice {
  int evidence = -1;
  std::size_t operation = 0;
  auto operator<=>(const OnDevice&) const = default;
};

// Index of the unfinished device operation of a record; nullopt: none was reported, or it ended.
std::optional<std::size_t> device_operation(const RankEvidence&, std::size_t record);
// Index of the operation's record; SIZE_MAX: it has none, or none that is kept.
std::size_t record_of(const RankEvidence&, const DeviceOperation&);
std::size_t record_at(const RankEvidence&, std::uint64_t ticket);  // SIZE_MAX: not kept
// Versions of the profiler interface before this one report no launches.
inline constexpr std::uint32_t kTellsLaunches = 5;
// Silence means that the kernel does not run.
bool tells_kernels(const DeviceEvidence&, const DeviceOperation&);
// The first unfinished operation on the stream of a launched operation; nullopt: that is this one.
std::optional<std::size_t> stream_busy_with(const RankEvidence&, std::size_t operation);

// A rank that others wait for, with a device that waits for no other rank by the evidence.
struct StalledDevice {
  enum Why {
    kUnlaunched,      // issued, and its launch never began
    kInLaunch,        // the host is inside the launch
    kNotStarted,      // on the stream, with nothing before it that fr knows
    kChannelsAbsent,  // channels of its kernel that its transfers wait for do not run
    kKernel,          // its kernel runs and makes no progress though it could
    kUnseenKernel,    // the same where kernels are not reported: or it does not run
    kNetworkThread    // launched, and the library's network thread has not begun it
  };
  OnDevice at;
  Why why = kNotStarted;
};

// Two ranks, one of which waits for the network to deliver data that the other has handed to it.
// from == to: between the rank's own network card and its device.
struct Link {
  Rank from = -1, to = -1;
  std::uint32_t step = 0, n_steps = 0;
  std::vector<std::uint32_t> channels;
  std::vector<std::string> over;  // NIC and queue pair, or socket, of each known channel
};

// The ends of the waits of device operations, followed over streams, transfers and ranks.
struct DeviceChain {
  std::vector<OnDevice> visited;  // in the order of the walk
  std::vector<Link> links;
  std::vector<StalledDevice> stalled;
  // Operations with a kernel that runs and makes no progress though it could. Either that kernel is
  // at fault or one on its node that it reaches without the network, which is not observable.
  std::vector<OnDevice> busy;
  bool open = false;  // a path ends where the evidence does not tell
};

class Devices {
 public:
  explicit Devices(const Case&);
  std::optional<OnDevice> of(int evidence, std::size_t record) const;
  DeviceChain follow(const std::vector<OnDevice>& from) const;
  const DeviceOperation& operator[](const OnDevice&) const;
  // Phases of its kernel channels and transfers, whichever process runs these.
  std::vector<DevicePhase> phases(const OnDevice&) const;
  // Global rank of a rank of the operation's communicator; -1: unknown.
  Rank peer(const OnDevice&, std::int32_t comm_rank) const;
  // The table had room for all transfers of the operation.
  bool has_all_transfers(const OnDevice&) const;
  // Another member's device started it.
  bool started_elsewhere(const OnDevice&) const;
  // Launched, and no evidence would show that its kernel runs: only its transfers are reported.
  bool may_run(const OnDevice&) const;
  // Not all channels of its kernel run, though all channels of another member's kernel do.
  bool lacks_channels(const OnDevice&) const;

 private:
  class Walk;
  const CommEvidence* comm(const OnDevice&) const;
  const Group* group(int evidence, std::uint32_t row) const;
  const Group* group(const OnDevice&) const;
  const Record* other_record(const OnDevice&, int evidence) const;
  std::optional<OnDevice> counterpart(const OnDevice&, int evidence) const;
  bool is_done(const OnDevice&, int evidence) const;
  std::optional<DevicePhase> facing(const OnDevice& own, const DevicePhase&,
                                    const OnDevice& other) const;
  void find_carried();

  const Case& c_;
  std::map<std::pair<std::uint64_t, std::int32_t>, int> members_;  // comm hash and rank -> evidence
  std::map<OnDevice, std::vector<DevicePhase>> carried_;  // by processes other than the operation's
};

// The offset between the clocks of two ranks, by the operations that they left together.
inline constexpr Time kUnmeasured = 5'000'000'000;
struct Offset {
  Time ns = 0;     // b's clock minus a's
  Time error = 0;  // at most; kUnmeasured: nothing tells
};
Offset clock_offset(const Case&, const std::vector<Slots>&, int a, int b);

// First asynchronous error that a rank's device library, or its CUDA, reported.
struct DeviceError {
  int evidence = -1;
  Time time = 0;
  std::string text;
  bool cuda = false;
  bool consequence = false;  // it says that another process is gone
  std::size_t record = SIZE_MAX;
};
std::vector<DeviceError> device_errors(const Case&);
// The errors that may have been the first, by what the ranks' clocks allow.
struct FirstErrors {
  std::vector<DeviceError> errors;
  bool unmeasured = false;  // nothing tells how far apart some of the clocks are
};
FirstErrors first_errors(const Case&, const std::vector<Slots>&, const std::vector<DeviceError>&);

}  // namespace frtrace
