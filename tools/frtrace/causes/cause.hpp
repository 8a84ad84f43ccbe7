// cause.hpp - a possible cause of a hang, as data: the blamed ranks, the operation, the waits that
// it explains, its assumptions. Rules propose causes from the facts. No rule sees the proposals of
// another rule, and none writes a sentence (words/ does).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "facts/facts.hpp"
#include "facts/late/arrivals.hpp"
#include "facts/late/rhythm.hpp"
#include "facts/late/stragglers.hpp"
#include "facts/polls.hpp"

namespace frtrace {

enum class Verdict : std::uint8_t {
  kOk,
  kMissing,
  kMismatch,
  kDeadlock,
  kDevice,
  kTransport,
  kExited,
  kSlow,
  kUndecided
};
const char* verdict_name(Verdict);

enum class Confidence : std::uint8_t { kCertain, kLikely, kPossible };
const char* confidence_name(Confidence);

// Why a rank is blamed. The names are part of the output's contract.
enum class Why : std::uint8_t {
  kNeverIssued,
  kNeverStarted,
  kSkipped,
  kUnresponsive,
  kLeftEarly,
  kKilled,
  kException,
  kExit,
  kGone,
  kNoEvidence,
  kMinority,
  kDiffers,
  kExtraOperation,
  kOtherOrder,
  kOnCycle,
  kCudaError,
  kNcclError,
  kNeverLaunched,
  kInLaunch,
  kNotStarted,
  kNotFinished,
  kChannelsNotStarted,
  kKernelStalled,
  kNetworkThread,
  kIdle,
  kLate
};
const char* why_name(Why);

// An assumption of a cause that the evidence does not show, or the reason why a candidate was
// preferred. "ranks" and "seconds" below: the fields of Assumption that are set.
enum class Assume : std::uint8_t {
  kRankWithoutEvidence,  // ranks: they left no file and did nothing that matters
  kEndedSeenByPeers,     // the ended rank left no evidence of its own
  kOneEvent,             // several ended at about the same time
  kAllGone,              // all processes are gone and none says why
  kKilledLater,          // processes were killed after the hang
  kSignalOrder,          // only the order of the signals tells
  kOtherMayBeFirst,      // ranks: the first may have stopped the job before
  kShortHang,            // seconds
  kEarlierIterations,    // the order of earlier iterations decides
  kPeersOrder,           // the order of most ranks decides
  kNoEarlierIterations,  // nothing tells which order is right
  kTieByPrecedent,       // the sides have equal size; earlier iterations decide
  kTie,                  // the sides have equal size, and nothing decides
  kFewAreWrong,          // the few are taken to be wrong, not the many
  kRecordsNotKept,       // not all members' records of that slot are kept
  kNotCome,              // ranks: members that have not issued that slot yet
  kCompleted,            // the operation completed
  kHostIsFree,           // ranks: the operation does not block their host
  kStuckThere,           // ranks: their hosts are stuck where their stacks show them
  kOneStoppedOthers,     // several devices are stalled, and one may have stopped the others
  kNetworkToo,           // the network holds something back, too
  kNetworkThreadUnseen,  // why a network thread does not go on is not observable
  kChainOpen,            // not all waits of the devices could be followed
  kDeviceRowsLost,       // ranks
  kLowerLayer,           // the layer below is not observable
  kRootUnknown,          // no file records the root, on which members must agree
  kErrorsAtOnce,         // the clocks do not show which rank's error came first
  kNeedNotMeet,          // the call need not wait for all ranks
  kLostOnly,             // ranks: they may live, and only their evidence is lost
  kRingsOnly,            // measured over the records that the rings still hold
  kClocksAgree,          // the ranks' clocks are taken to agree
  kBesideAnEnd,          // it may be a consequence of another process's end
  kGroupsUnknown,        // operations of unknown groups were not counted
  kMayMakeCommunicator,  // ranks that issued nothing: the blamed may wait for them, unrecorded
  kEarlyFile,            // ranks: their file was written long before the others'
  kOldFile,              // ranks, seconds: their file is that much older
  kPolls,                // ranks: they poll, possibly for an action of another rank
  kStacksUnseen,         // ranks: nothing shows where in the program they are
  kOwesWrite,            // the blamed must make the same writes to the store, too
  kTimesGuessed          // the waits are long: the files are copies with new times
};
struct Assumption {
  Assume what;
  std::vector<Rank> ranks;
  double seconds = 0;
};
Confidence confidence_of(const Assumption&);

enum class Rule : std::uint8_t {
  kGroupOrder,      // new_group of other members, or in another order
  kSameRank,        // several processes say they are the same rank
  kOtherWorld,      // started with another number of ranks than most
  kMismatch,        // members differ in one slot
  kSkippedSlot,     // a member left an operation out and issued a later one
  kUnequalEnds,     // a send does not fit its receive
  kExited,          // a process ended
  kOneKilled,       // one process was told to end
  kDeviceError,     // a device or its library reported an error
  kDeviceBehind,    // a device did not start or end an operation that all issued
  kDeviceStalled,   // the device at which the waits of devices end
  kNetwork,         // the network between two ranks
  kAllStarted,      // all members started it and none ended it
  kUnresponsive,    // a process does not respond
  kNeverIssued,     // a rank that waits for nothing did not issue it
  kOwesWrite,       // others wait for a write of the rank to the ranks' store
  kLeft,            // it did not issue it and had ended with status 0
  kExtra,           // a few wait in an operation that others do not issue
  kStoppedHost,     // a host stopped though peers in the same place went on
  kElsewhere,       // a host is elsewhere in the program, as its stack shows
  kLeftOrder,       // in a cycle: a rank left out, exchanged or added an operation
  kOtherOrder,      // in a cycle: one rank issued in another order
  kCycle,           // in a cycle: all ranks on it
  kLockCycle,       // in a cycle: some wait for a file lock held by a rank on it
  kSeenEnded,       // a rank without evidence that peers saw end
  kNoEvidence,      // a rank without evidence at which all waits end
  kOldFile,         // a rank with a file older than all waits, which end at it
  kNoExit,          // its threads keep alive a process that destroyed its groups
  kNeverStarted,    // ranks without evidence that all others await at the store
  kLifecycle,       // ranks that did not enter a call that makes or destroys groups
  kUnreachedStore,  // ranks that do not reach the ranks' store, for which the others wait
  kAtStore,         // ranks in no operation while the others wait in the store
  kKilledBefore,    // ended by another sender and before the others
  kPastMismatch,    // members differed in an operation that ended nevertheless
  kIdle,            // no rank waits and none issues: all are at one place of the program
  kSlow,
  kSlowSteps,   // steps became longer on all ranks at once
  kLateInTurn,  // another rank is late each time
  // No rank is named. The sentence says which operation is stuck and which evidence is missing.
  kOpenDivergence,
  kOpenFewOrMany,
  kOpenUnrecorded,
  kOpenCommunicator,
  kOpenErrors,
  kOpenOwnErrors,
  kOpenDevices,
  kOpenKernel,
  kOpenBehind,
  kOpenRunning,
  kOpenComplete,
  kOpenStreams,
  kOpenBetween,
  kOpenFailed,
  kOpenNoEvidence,
  kOpenLifecycle,
  kOpenAtStore,
  kOpenUnreachedStore,
  kOpenPolls,
  kOpenGraphs,
  kOpenTerminated,
  kOpenIdle,
  kOpenStillIssues,
  kOpenStale,
  kOpenAtRest,
  kOpenAlarm,
  kOpenAmid,
  kOpenResting,
  kOpenUnattributed,
  kOpenUnmatched,
  kOpenNoOperations,
  kOpenTimesOnly,
  kOpenCallsOnly,
  kOpenNoCompletions,
  kOkTerminated,
  kOkToldToEnd,
  kOk
};

// One call of new_group, grouped by the members that each rank passed.
struct GroupCalls {
  struct Call {
    int evidence;
    std::size_t record;
  };
  std::int32_t ordinal = 0;  // torch's own number of the group
  std::map<std::vector<Rank>, std::vector<Call>> classes;
  std::vector<Rank> most;  // passed by the ranks that the fewest calls contradict
  bool tie = false;
};

struct Guilty {
  int evidence = -1;  // -1: the rank left none
  Rank rank = -1;
  Why why = Why::kNeverIssued;
  int pending = -1;                // operation that others wait in, or in which it is stalled
  std::size_t issued = kNoRecord;  // its own record that is wrong
  std::size_t usual = kNoRecord;   // its own earlier record that was due instead, or the first
                                   // that came once more
  int usual_of = -1;               // evidence of the rank that issued `usual`
  std::uint64_t seq = 0;           // sequence number left out; 0: that of `issued`
  std::optional<OnDevice> device = {};
};

struct Cause {
  Cause() = default;
  Cause(Rule r, Verdict v) : rule(r), verdict(v) {}

  Rule rule = Rule::kOk;
  Verdict verdict = Verdict::kOk;
  std::vector<Guilty> guilty;
  std::vector<Assumption> assumes;
  std::vector<int> explains;    // evidence of the waiting ranks that it explains
  int pending = -1;             // the operation that tells most about it; -1: none
  std::vector<int> operations;  // the operations of a cycle
  bool independent = false;     // a fault of its own even if another cause explains its waits

  // Further results of a rule. Each is set by the rules that need it.
  std::optional<Divergence> divergence;
  // First slot in which the guilty rank issued a different operation than the others; 0: the slot
  // of the divergence.
  std::uint64_t parted_since = 0;
  int right = -1;  // class of the divergence that is right; -1: unknown
  std::optional<GroupCalls> calls;
  std::optional<Anomaly> anomaly;  // of the first guilty rank
  bool by_peers = false;           // the anomaly was found by comparing with peers
  bool thread_ended = false;       // the guilty rank's issuing thread in the group ended
  DeviceChain chain;
  std::vector<DeviceError> errors;
  StalledDevice::Why stalled = StalledDevice::kNotStarted;
  std::string lifecycle;  // name of a call that makes or destroys groups
  std::optional<OwedWrite> owed;
  std::optional<SlowerSteps> slower;
  std::optional<LateInTurn> in_turn;
  std::vector<int> others;  // evidence of further ranks that the report names
  Stragglers late;
  int absent_too = -1;  // evidence of a rank that a killed rank waited for; -1: none

  void set(Rule r, Verdict v) {
    rule = r;
    verdict = v;
  }
  void assume(Assume what, std::vector<Rank> ranks = {}, double seconds = 0) {
    assumes.push_back({what, std::move(ranks), seconds});
  }
  bool names() const { return !guilty.empty() || verdict == Verdict::kTransport; }
};

}  // namespace frtrace
