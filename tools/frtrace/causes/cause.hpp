// cause.hpp - a possible cause of a hang, as data: who, what, which waits it explains, what it
// assumes. Rules propose causes from the facts; no rule sees what another proposed, and none writes
// a sentence (words/ does).
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

// Why a rank is blamed; the words of the contract.
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

// What a cause takes for true though the evidence does not show it, or what it was preferred for.
enum class Assume : std::uint8_t {
  kRankWithoutEvidence,  // ranks: without a file, they did nothing that matters
  kEndedSeenByPeers,     // the ended rank left no evidence of its own
  kOneEvent,             // several ended at about the same time
  kAllGone,              // all processes are gone and none says why
  kKilledLater,          // processes were killed after the hang
  kSignalOrder,          // only the order of the signals tells
  kOtherMayBeFirst,      // ranks: what stopped them may have come before
  kShortHang,            // seconds
  kEarlierIterations,    // the order of earlier iterations decides
  kPeersOrder,           // the order of most ranks decides
  kNoEarlierIterations,  // nothing tells which order is right
  kTieByPrecedent,       // as many on either side; earlier iterations decide
  kTie,                  // as many on either side, and nothing decides
  kFewAreWrong,          // the few are taken to be wrong, not the many
  kRecordsNotKept,       // not all members' records of that slot are kept
  kNotCome,              // members that have not issued that slot yet
  kCompleted,            // the operation completed
  kHostIsFree,           // ranks: their host does not wait there by itself
  kStuckThere,           // ranks: their hosts do not go on from where their stacks show them
  kOneStoppedOthers,     // several devices are stalled, and one may have stopped the others
  kNetworkToo,           // the network holds something back, too
  kNetworkThreadUnseen,  // why a network thread does not go on is not observable
  kChainOpen,            // not all waits of the devices could be followed
  kDeviceRowsLost,       // ranks
  kLowerLayer,           // the layer below is not observable
  kRootUnknown,          // of the operation that all issued, which members must agree on
  kErrorsAtOnce,         // the clocks do not tell whose error came first
  kNeedNotMeet,          // the call need not wait for all ranks
  kLostOnly,             // a rank without evidence may have lost its evidence only
  kRingsOnly,            // measured over what the rings still hold
  kClocksAgree,          // the ranks' clocks are taken to agree
  kBesideAnEnd,          // it may follow from the end of another process
  kGroupsUnknown,        // operations of unknown groups were not counted
  kMayMakeCommunicator,  // ranks that issued nothing: the blamed may wait for them, unrecorded
  kEarlyFile,            // a rank's file was written long before the others'
  kOldFile,              // a rank's file is older than the waits: seconds
  kPolls,                // ranks: they look again and again for what others may have to do
  kStacksUnseen,         // ranks: nothing shows where in the program they are
  kOwesWrite,            // what the others wrote to the store is due of these, too
  kTimesGuessed          // since when they wait: the files' times are those of copies
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
  kSkippedSlot,     // and what one issued there comes after what it left out
  kUnequalEnds,     // a send does not fit its receive
  kExited,          // a process ended
  kOneKilled,       // one process was told to end
  kDeviceError,     // a device or its library reported an error
  kDeviceBehind,    // a device did not get to what all issued, or did not end it
  kDeviceStalled,   // where the waits of devices end
  kNetwork,         // between two ranks
  kAllStarted,      // all started it and none ended it
  kUnresponsive,    // a process does not respond
  kNeverIssued,     // a rank that waits for nobody did not come
  kOwesWrite,       // others wait for what a rank writes to the ranks' store
  kLeft,            // and had ended with status 0
  kExtra,           // a few wait in an operation that is none of the job's
  kStoppedHost,     // a host stopped though peers in the same place went on
  kElsewhere,       // a host is elsewhere in the program, as its stack shows
  kLeftOrder,       // in a cycle: left out, exchanged or added an operation
  kOtherOrder,      // in a cycle: the order of fewer members
  kCycle,           // in a cycle: all on it
  kLockCycle,       // in a cycle: some wait for a file lock that another one of them holds
  kSeenEnded,       // a rank without evidence that peers saw end
  kNoEvidence,      // a rank without evidence at which all waits end
  kOldFile,         // likewise, a rank whose file is older than all waits
  kNoExit,          // its threads keep a process alive that has destroyed its groups
  kNeverStarted,    // ranks without evidence that all others await at the store
  kLifecycle,       // ranks that did not come to a call that makes or destroys groups
  kUnreachedStore,  // ranks that do not reach the ranks' store, for which the others wait
  kAtStore,         // ranks that are in nothing, while the others wait in the ranks' store
  kKilledBefore,    // told to end by another hand and before the others
  kPastMismatch,    // members differed in an operation that ended nevertheless
  kIdle,            // no rank waits and none issues: all are at one place of the program
  kSlow,
  kSlowSteps,   // steps became longer on all ranks at once
  kLateInTurn,  // another rank is late each time
  // Nobody is named: what is stuck, and which evidence is lacking.
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

// The same call of new_group, by the members that each rank named.
struct GroupCalls {
  struct Call {
    int evidence;
    std::size_t record;
  };
  std::int32_t ordinal = 0;  // torch's own number of the group
  std::map<std::vector<Rank>, std::vector<Call>> classes;
  std::vector<Rank> most;  // members that the ranks named whom the others contradict least
  bool tie = false;
};

struct Guilty {
  int evidence = -1;  // -1: the rank left none
  Rank rank = -1;
  Why why = Why::kNeverIssued;
  int pending = -1;                // operation that others wait in, or that it is stalled in
  std::size_t issued = kNoRecord;  // its own record that is wrong
  std::size_t usual = kNoRecord;   // its own earlier record that was due instead, or the first
                                   // that came once more
  int usual_of = -1;               // evidence of the rank whose record `usual` is
  std::uint64_t seq = 0;           // number of the operation that was left out; 0: of `issued`
  std::optional<OnDevice> device = {};
};

struct Cause {
  Cause() = default;
  Cause(Rule r, Verdict v) : rule(r), verdict(v) {}

  Rule rule = Rule::kOk;
  Verdict verdict = Verdict::kOk;
  std::vector<Guilty> guilty;
  std::vector<Assumption> assumes;
  std::vector<int> explains;    // evidence of ranks whose waits it explains
  int pending = -1;             // the operation that says most about it
  std::vector<int> operations;  // further ones: those of a cycle
  bool independent = false;     // a fault of its own even if another cause explains its waits

  // What a rule found besides; each is set by the rules that need it.
  std::optional<Divergence> divergence;
  // Slot from which on the guilty issued something else than the others did; 0: that one.
  std::uint64_t parted_since = 0;
  int right = -1;  // class of the divergence that is right; -1: nothing tells
  std::optional<GroupCalls> calls;
  std::optional<Anomaly> anomaly;  // of the first guilty
  bool by_peers = false;           // the anomaly was found by comparing with peers
  bool thread_ended = false;  // the thread of the guilty that issued its operations of the group
  DeviceChain chain;
  std::vector<DeviceError> errors;
  StalledDevice::Why stalled = StalledDevice::kNotStarted;
  std::string lifecycle;  // the call
  std::optional<OwedWrite> owed;
  std::optional<SlowerSteps> slower;
  std::optional<LateInTurn> in_turn;
  std::vector<int> others;  // evidence of ranks that the words name besides
  Stragglers late;
  int absent_too = -1;  // evidence of a rank that a killed one waited for in vain

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
