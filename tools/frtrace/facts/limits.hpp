// limits.hpp - every number of the diagnosis that is a choice, with its unit and the reason.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/rank_data.hpp"

namespace frtrace::limits {

// ---- thresholds of stuck operations
// An operation in flight for a shorter time is work in progress: collectives take milliseconds.
inline constexpr double kStuck_s = 1.0;
inline constexpr double kStuckByHand_s = 5;  // dumps by hand only, without a warning
// PyTorch dumps after a timeout of minutes, or on request. Its files are written seconds apart, and
// those of a running job have young operations. The threshold is at most half a timeout.
inline constexpr double kStuckInTorch_s = 5.0;
// In a job that no rank had a reason to dump, waits of up to this many times the usual gap between
// two operations of a rank (its 95th percentile) are normal, but never more than kUsualWaitMost_s.
inline constexpr double kUsualWaitTimes = 3, kUsualWaitMost_s = 10;
inline constexpr std::size_t kUsualWaitRanks = 64, kUsualWaitRecords = 256, kUsualWaitFewest = 8;
// Least threshold for processes that were all killed, where the job's usual waits are shorter:
// their last sign of life is up to two watchdog ticks (0.1 s) old.
inline constexpr double kStuckWhenKilled_s = 0.5;
// With fewer gaps, the 95th percentile is the gap at the program's start.
inline constexpr std::size_t kUsualWaitFewestKilled = 20;
// A rank with nothing in flight for this many times its longest earlier pause is not in a pause.
inline constexpr double kIdleTimes = 10;
// Without an alarm, a wait for a rank without evidence is unusual only when it lasts this long.
inline constexpr double kLongWait_s = 5;
// Dumps written this far apart do not show one instant.
inline constexpr double kStaleApart_s = 10;
// A missing rank in a wait shorter than this, in a set without a timeout, is named with less
// confidence: hosts are late for seconds now and then (checkpoints, evaluation).
inline constexpr double kShortHang_s = 10;

// PyTorch writes its files seconds apart and polls for completions. A completion that lags by less
// does not show a stalled device.
inline constexpr double kLag_s = 5;

// ---- exits
// The same end of several processes within this time is one event (the launcher's poll is 0.1 s,
// an OOM or a node's death takes about a second).
inline constexpr double kSameCause_s = 2.0;
// A killed process's last sign of life is up to two watchdog ticks (0.1 s) older than its end.
inline constexpr double kLastSign_s = 0.3;

// ---- sends and receives issued together
// batch_isend_irecv issues its members within microseconds, from one call site.
inline constexpr Time kTogether_ns = 5'000'000;

// ---- a rank's own earlier iterations
inline constexpr std::size_t kContext = 8;  // equal steps before two places that make them alike
inline constexpr std::size_t kContextLeast = 2;
inline constexpr std::size_t kWindow = 4096;  // steps searched backwards: ring sizes in use
inline constexpr std::size_t kLookahead = 8;  // steps within which an exchanged step comes
inline constexpr std::size_t kRecent = 64;    // steps before the stuck step that may hold the cause
inline constexpr std::size_t kIterations = 64;     // latest iterations that are compared
inline constexpr std::size_t kSharedContext = 16;  // longest context that is compared with peers
inline constexpr std::size_t kPeerContext = 4, kPeerContextBare = 8;  // with, without call sites
inline constexpr std::size_t kPeers = 32;      // peers compared: more give the same answer, slower
inline constexpr std::size_t kPeersAgree = 2;  // number of peers that make a common order
inline constexpr std::uint64_t kSkipLookahead = 4;  // slots by which a skip may shift
inline constexpr std::size_t kAgree = 64;  // equal steps that prove a shift: exchanges alternate
inline constexpr std::size_t kClearSupport = 4;     // equal steps that make a deviation clear
inline constexpr std::size_t kLeftOutClearly = 12;  // equal steps around a skip that make it clear
inline constexpr std::size_t kRepeats = 3;  // number of steps before which nothing can be new
// Operations within this many records after a failure because of a lost peer are no fault: a rank
// that ends issues a few operations (at exit).
inline constexpr std::ptrdiff_t kAfterFailure = 16;

inline constexpr std::uint64_t kForkLookback = 256;  // slots searched for the last common line
inline constexpr std::size_t kCourses = 4;           // peers compared: more give the same answer
inline constexpr std::size_t kSuspects = 64;  // suspects examined at most: each needs its history
inline constexpr std::size_t kVoters = 256;   // members examined at most for a common order
inline constexpr int kShifted = 2;            // slots with the peer one ahead that make a shift
inline constexpr std::size_t kOwnThread = 3;  // operations of one thread that make a group its own

// ---- ranks that are in no operation
// A rank is at rest if its evidence was written this long after its last operation.
inline constexpr double kAtRest_s = 1;
// A job with pipeline stages has this many kinds of groups: all, across stages, along stages.
inline constexpr std::size_t kStagedKinds = 3;
// One or two ranks stop. This many between messages, at an unknown time, may just move.
inline constexpr std::size_t kBetween = 3;

// ---- devices
// A device that starts an operation this much later than a peer's device is late.
inline constexpr double kDeviceLate_s = 1;
// Number of members that ended an operation which one other member did not end. With fewer, the
// network may be late.
inline constexpr std::size_t kEndedByAll = 3;
// Two devices do not both compute for this long before a message between them.
inline constexpr double kBothCompute_s = 60;
// A transfer that moved this recently is slow, not stuck.
inline constexpr double kMoves_s = 0.5;
// Error of clocks compared by operations that their members leave together: on one host or with
// kMeetingsEnough operations; with kMeetingsFew; with fewer. At most kMeetings operations are used.
inline constexpr Time kSameClock_ns = 1'000'000, kClockByFew_ns = 20'000'000,
                      kClockByFewest_ns = 100'000'000;
inline constexpr std::size_t kMeetingsFew = 3, kMeetingsEnough = 8, kMeetings = 256;

// ---- a host that stopped by itself
// Least share, and least number, of peers that issued more than this rank, among all peers that
// wait in the same operation.
inline constexpr double kWentOnShare = 0.5;
inline constexpr std::size_t kWentOnFewest = 1;
// The least number beside a device that is at fault, in PyTorch files.
inline constexpr std::size_t kWentOnBeside = 2;
// With at least kQueueFewest operations of the host in flight, the peer must be ahead by more than
// kQueueVaries of them: the number of launches that fit into a device's queue differs by a few. (On
// an H100 it was 1,024 launches on all ranks. Fewer operations fit if hosts launch other kernels,
// too.)
inline constexpr std::size_t kQueueFewest = 24;
inline constexpr double kQueueVaries = 0.15;
// The peer went on this long before the evidence was taken, so clocks and polls do not matter.
inline constexpr double kTwinLater_s = 10;
// At least this many ranks, and this share of all, wait inside torch. A rank has stopped if its
// stack shows it elsewhere and it issued nothing for kElsewhereShare of the hang. The share is
// kInTorchMost if other ranks stand at its line.
inline constexpr std::size_t kInTorchFewest = 2;
inline constexpr double kInTorchShare = 0.5, kInTorchMost = 0.75, kElsewhereShare = 0.8;

// ---- stragglers
// Hosts differ by a lateness below this; by more if clocks had to be compared.
inline constexpr double kLate_s = 0.005, kLateByClocks_s = 0.02;
// Late at one call site: at least this often, in this share of the calls, and by more than jitter
// (a share of the usual time between its calls).
inline constexpr int kLateAgain = 5;
inline constexpr double kLateMostly = 0.6, kLateLeast_s = 0.001, kLateOfStep = 0.02;
// Share of the observed time that the rank costs the others, at least.
inline constexpr double kLateShare = 0.1;
// Late only since some call: more calls and a larger share, as any series has bad stretches.
inline constexpr int kLateAgainSince = 16;
inline constexpr double kLateMostlySince = 0.8;
// Chance makes a rank this late in less than this share of healthy jobs. A sequence repeats itself
// at a distance if this share of it does.
inline constexpr double kLateChance = 0.001, kRepeatsShare = 0.7;
// Late now and then: at least this often, each time by more than the usual time between its calls
// (whole steps are lost), where chance would choose one rank as often in less than this share of
// jobs. The cost is spread over many steps.
inline constexpr std::size_t kRareAgain = 3;
inline constexpr double kRareChance = 0.02, kRareShare = 0.05;
// Increasingly late: over at least this many calls, the last third is this many times as late as
// the first, and each half has this part of the rise.
inline constexpr std::size_t kGrowFewest = 9;
inline constexpr double kGrowTimes = 1.5, kGrowEach = 0.2;
// Beside the rank that loses most, ranks that lose less than this share of its loss follow from it.
inline constexpr double kStandsOut = 0.5;
// A rank follows another rank if it is late after that rank in this share of its late rounds.
inline constexpr double kFollows = 0.8;
// Share of a lateness that its host or its device must have to be named.
inline constexpr double kLateOfOne = 0.7;
// The time of a step changed: by at least this share, with this many steps on either side, and less
// likely by chance than this. A report has room for kChanges of them.
inline constexpr double kChangeBy = 0.2, kChangeChance = 0.001;
inline constexpr std::size_t kChangeFewest = 8, kChanges = 4;

// A rank sleeps repeatedly if its current sleep ends within this share of its idle time.
inline constexpr double kNapShare = 0.2;

// Steps became slow: this many times as long, and longer by at least this much.
inline constexpr double kSlowTimes = 3, kSlowLeast_s = 0.05;

// Ranks are late in turn: at least this many long waits, in at most one of kPauseEvery operations.
// A long wait is this many times as long as the rest of a step, and at least kPauseLeast_s. The
// waits take this share of the time. No rank causes more than kPausesOfOne of them.
inline constexpr std::size_t kPausesFewest = 6, kPauseEvery = 3, kPausesEach = 3;
inline constexpr double kPauseTimes = 3, kPauseLeast_s = 0.05, kPauseShare = 0.2;
inline constexpr double kPausesOfOne = 0.6;

// ---- comparisons that grow with the square of the members
inline constexpr std::size_t kSplitMembers = 512;

// Sizes of a node in use, where the evidence has no node size.
inline constexpr Rank kNodeSizes[] = {4, 8, 16};

}  // namespace frtrace::limits
