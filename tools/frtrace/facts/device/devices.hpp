// devices.hpp - how far operations got on the ranks' devices, and where their waits end.
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

// What the device library says of a record; nullopt: nothing, or that it ended.
std::optional<std::size_t> device_operation(const RankEvidence&, std::size_t record);
// SIZE_MAX: it has none, or none that is kept.
std::size_t record_of(const RankEvidence&, const DeviceOperation&);
std::size_t record_at(const RankEvidence&, std::uint64_t ticket);  // SIZE_MAX: not kept
// Versions of the profiler interface before this one report no launches.
inline constexpr std::uint32_t kTellsLaunches = 5;
// Whether silence means that a kernel does not run.
bool tells_kernels(const DeviceEvidence&, const DeviceOperation&);
// The first unfinished operation on the stream of a launched one, if it is another.
std::optional<std::size_t> stream_busy_with(const RankEvidence&, std::size_t operation);

// A rank that others wait for, and whose device waits for nobody else that the evidence shows.
struct StalledDevice {
  enum Why {
    kUnlaunched,      // issued, and its launch never began
    kInLaunch,        // the host is inside the launch
    kNotStarted,      // on the stream, with nothing before it that fr knows
    kChannelsAbsent,  // channels of its kernel do not run that its transfers wait for
    kKernel,          // its kernel runs and makes no progress though it could
    kUnseenKernel,    // the same where kernels are not told of: or it does not run
    kNetworkThread    // launched, and the library's network thread has not begun with it
  };
  OnDevice at;
  Why why = kNotStarted;
};

// Two ranks of which one waits for the network to deliver what the other has handed to it. from ==
// to: between the rank's own network card and its device.
struct Link {
  Rank from = -1, to = -1;
  std::uint32_t step = 0, n_steps = 0;
  std::vector<std::uint32_t> channels;
  std::vector<std::string> over;  // NIC and queue pair, or socket, of each channel that is known
};

// Where the waits of device operations end, followed over streams, transfers and ranks.
struct DeviceChain {
  std::vector<OnDevice> visited;  // in the order they were come to
  std::vector<Link> links;
  std::vector<StalledDevice> stalled;
  // The kernel runs and makes no progress though it could: it, or one on its node that it reaches
  // without the network, which is not observable.
  std::vector<OnDevice> busy;
  bool open = false;  // a path ends where the evidence does not tell
};

class Devices {
 public:
  explicit Devices(const Case&);
  std::optional<OnDevice> of(int evidence, std::size_t record) const;
  DeviceChain follow(const std::vector<OnDevice>& from) const;
  const DeviceOperation& operator[](const OnDevice&) const;
  // Of its kernel channels and transfers, whichever process runs these.
  std::vector<DevicePhase> phases(const OnDevice&) const;
  // Rank of the job of a rank of the operation's communicator; -1 unknown.
  Rank peer(const OnDevice&, std::int32_t comm_rank) const;
  // The table had room for all of them.
  bool has_all_transfers(const OnDevice&) const;
  // Another member's device got to it.
  bool started_elsewhere(const OnDevice&) const;
  // Launched, and nothing would tell if its kernel ran: its transfers are all that there is.
  bool may_run(const OnDevice&) const;
  // Not all channels of its kernel run, though all of another member's do.
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
  std::map<std::pair<std::uint64_t, std::int32_t>, int> members_;  // hash, rank of it -> evidence
  std::map<OnDevice, std::vector<DevicePhase>> carried_;  // by other processes than the operation's
};

// How far the clocks of two ranks are apart, by the operations that they left together.
inline constexpr Time kUnmeasured = 5'000'000'000;
struct Offset {
  Time ns = 0;     // what b's clock is ahead of a's
  Time error = 0;  // at most; kUnmeasured: nothing tells
};
Offset clock_offset(const Case&, const std::vector<Slots>&, int a, int b);

// First asynchronous error that a rank's device library, or its CUDA, told of.
struct DeviceError {
  int evidence = -1;
  Time time = 0;
  std::string text;
  bool cuda = false;
  bool consequence = false;  // says that somebody else is gone
  std::size_t record = SIZE_MAX;
};
std::vector<DeviceError> device_errors(const Case&);
// Those of the errors that may have been the first, by what the ranks' clocks allow.
struct FirstErrors {
  std::vector<DeviceError> errors;
  bool unmeasured = false;  // nothing tells how far the clocks of some are apart
};
FirstErrors first_errors(const Case&, const std::vector<Slots>&, const std::vector<DeviceError>&);

}  // namespace frtrace
