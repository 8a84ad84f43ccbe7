// limits.hpp - every number of the diagnosis that is a choice, with its unit and the reason.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/rank_data.hpp"

namespace frtrace::limits {

// ---- what counts as stuck
// An operation in flight for less is work in progress: collectives take milliseconds.
inline constexpr double kStuck_s = 1.0;
inline constexpr double kStuckByHand_s = 5;  // of dumps by hand alone, without a warning
// PyTorch dumps when a timeout of minutes has passed, or when somebody asks: its files are written
// seconds apart, and of a job that runs each has young operations. Never more than half a timeout.
inline constexpr double kStuckInTorch_s = 5.0;
// Of a job that nobody had a reason to dump, waits up to this many times the usual gap between two
// operations of a rank (its 95th percentile) are normal, but never more than kUsualWaitMost_s.
inline constexpr double kUsualWaitTimes = 3, kUsualWaitMost_s = 10;
inline constexpr std::size_t kUsualWaitRanks = 64, kUsualWaitRecords = 256, kUsualWaitFewest = 8;
// Of processes that were all killed, a wait shorter than that was a hang, too, where the job's usual
// waits are shorter: their last sign of life is up to two watchdog ticks (0.1 s) old.
inline constexpr double kStuckWhenKilled_s = 0.5;
inline constexpr std::size_t kUsualWaitFewestKilled = 20;  // of fewer, that percentile is the start
// Nothing in flight for so many times the longest pause of a rank before is no pause.
inline constexpr double kIdleTimes = 10;
// Without an alarm, a wait for a rank without evidence is unusual only when it lasts this long.
inline constexpr double kLongWait_s = 5;
// Likewise, dumps that are this far apart are no picture of one instant.
inline constexpr double kStaleApart_s = 10;
// A missing rank in a wait shorter than this, in a set without a timeout, is named with less
// confidence: hosts are late for seconds now and then (checkpoints, evaluation).
inline constexpr double kShortHang_s = 10;

// Files of PyTorch are written seconds apart, and completions are seen by a poll: a completion that
// lags by less is no stalled device.
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
inline constexpr std::size_t kContext = 8;  // equal steps before that make two places alike
inline constexpr std::size_t kContextLeast = 2;
inline constexpr std::size_t kWindow = 4096;  // steps searched backwards: ring sizes in use
inline constexpr std::size_t kLookahead = 8;  // steps within which an exchanged one comes
inline constexpr std::size_t kRecent = 64;    // steps before the stuck one that may hold the cause
inline constexpr std::size_t kIterations = 64;     // last ones that are compared
inline constexpr std::size_t kSharedContext = 16;  // of peers that did the same after the same
inline constexpr std::size_t kPeerContext = 4, kPeerContextBare = 8;  // with, without call sites
inline constexpr std::size_t kPeers = 32;      // peers compared with: more say the same, slower
inline constexpr std::size_t kPeersAgree = 2;  // this many peers make a common order
inline constexpr std::uint64_t kSkipLookahead = 4;  // slots by which a skip may shift
inline constexpr std::size_t kAgree = 64;  // equal steps that prove a shift: exchanges alternate
inline constexpr std::size_t kClearSupport = 4;     // and so many make it a fault beside another
inline constexpr std::size_t kLeftOutClearly = 12;  // before and after, that make it no variation
inline constexpr std::size_t kRepeats = 3;          // steps before which nothing can be new
// So many records before, a failure because a peer was gone makes what came next no fault: a rank
// that ends goes through few operations (what runs at exit).
inline constexpr std::ptrdiff_t kAfterFailure = 16;

inline constexpr std::uint64_t kForkLookback = 256;  // slots in which two were last at one line
inline constexpr std::size_t kCourses = 4;    // peers whose course is compared: more say the same
inline constexpr std::size_t kSuspects = 64;  // of more, each asks for its history
inline constexpr std::size_t kVoters = 256;   // members of a group that show an order
inline constexpr int kShifted = 2;            // slots one ahead that make a shift
inline constexpr std::size_t kOwnThread = 3;  // operations from a thread that make it the group's

// ---- ranks that are in no operation
// Evidence written so long after the last operation shows a rank at rest.
inline constexpr double kAtRest_s = 1;
// A job with pipeline stages has so many kinds of groups: all, across stages, along them.
inline constexpr std::size_t kStagedKinds = 3;
// One or two stop; so many between sends and receives, at no time that is known, may just move.
inline constexpr std::size_t kBetween = 3;

// ---- devices
// A device that is so much later than a peer's start of the same operation is late.
inline constexpr double kDeviceLate_s = 1;
// Other members that ended what one alone did not: of fewer, the network may be what is late.
inline constexpr std::size_t kEndedByAll = 3;
// No two devices compute for so long before a message between them.
inline constexpr double kBothCompute_s = 60;
// A transfer that moved so lately is slow, and not stuck.
inline constexpr double kMoves_s = 0.5;
// How far off clocks may be that were compared by operations which their members leave together: of
// one host, or by enough of them; by few; by fewer. No more of them are looked at than kMeetings.
inline constexpr Time kSameClock_ns = 1'000'000, kClockByFew_ns = 20'000'000,
                      kClockByFewest_ns = 100'000'000;
inline constexpr std::size_t kMeetingsFew = 3, kMeetingsEnough = 8, kMeetings = 256;

// ---- a host that stopped by itself
// Peers that wait in the same operation and issued more than this rank, out of all that wait there.
inline constexpr double kWentOnShare = 0.5;
inline constexpr std::size_t kWentOnFewest = 1;
// Beside a device that is at fault, in PyTorch files.
inline constexpr std::size_t kWentOnBeside = 2;
// Of hosts with so many operations in flight the peer must be ahead by more than this share of them:
// how many launches fit into a device's queue differs by a few. (On an H100 it was 1,024 launches, the
// same on all ranks; where hosts launch different kernels beside, fewer operations fit.)
inline constexpr std::size_t kQueueFewest = 24;
inline constexpr double kQueueVaries = 0.15;
// The peer went on so long before the evidence was taken that clocks and polls do not matter.
inline constexpr double kTwinLater_s = 10;
// So many ranks, and this share of all, wait inside torch: one whose stack shows it elsewhere, and that
// issued nothing for that share of the hang, has stopped. Where others stand at its line, most.
inline constexpr std::size_t kInTorchFewest = 2;
inline constexpr double kInTorchShare = 0.5, kInTorchMost = 0.75, kElsewhereShare = 0.8;

// ---- stragglers
// Lateness below this is what hosts differ by; more where clocks had to be compared.
inline constexpr double kLate_s = 0.005, kLateByClocks_s = 0.02;
// At one call site: so often at least, and most of the times, by more than jitter (a share of the
// usual time between its calls).
inline constexpr int kLateAgain = 5;
inline constexpr double kLateMostly = 0.6, kLateLeast_s = 0.001, kLateOfStep = 0.02;
// What the rank costs the others, of the time looked at.
inline constexpr double kLateShare = 0.1;
// Late only since some call: more of them, and clearer, as any series has bad stretches.
inline constexpr int kLateAgainSince = 16;
inline constexpr double kLateMostlySince = 0.8;
// A healthy job has a rank that comes so late in less than this share of jobs. A sequence repeats
// itself where it does so over this share of it.
inline constexpr double kLateChance = 0.001, kRepeatsShare = 0.7;
// Now and then: so often at least, by more than the usual time between its calls each (whole steps
// are lost), where chance would choose one rank so often in less than this share of jobs. What that
// costs is spread over many steps.
inline constexpr std::size_t kRareAgain = 3;
inline constexpr double kRareChance = 0.02, kRareShare = 0.05;
// More and more: of so many calls, the last third is this many times as late as the first, and each
// half has a part of the rise.
inline constexpr std::size_t kGrowFewest = 9;
inline constexpr double kGrowTimes = 1.5, kGrowEach = 0.2;
// Beside one that loses most, ranks that lose less than this share of it follow from it.
inline constexpr double kStandsOut = 0.5;
// Late in so many of its rounds only after another rank was late: because of that.
inline constexpr double kFollows = 0.8;
// Whose time a lateness is: so much of it, else nobody's clearly.
inline constexpr double kLateOfOne = 0.7;
// The time of a step changed: by a share, with steps enough on either side, beyond this chance; a
// report has room for a few.
inline constexpr double kChangeBy = 0.2, kChangeChance = 0.001;
inline constexpr std::size_t kChangeFewest = 8, kChanges = 4;

// A rank that has been idle for long is in a sleep that ends within this share of that time: it sleeps
// again and again.
inline constexpr double kNapShare = 0.2;

// Steps became slow: this many times as long, by this much at least.
inline constexpr double kSlowTimes = 3, kSlowLeast_s = 0.05;

// Ranks are late in turn: so many waits at least, one of so many operations at most, each this many
// times as long as the rest of a step and no shorter than that, which take this share of the time;
// none of the ranks makes more than its share of them.
inline constexpr std::size_t kPausesFewest = 6, kPauseEvery = 3, kPausesEach = 3;
inline constexpr double kPauseTimes = 3, kPauseLeast_s = 0.05, kPauseShare = 0.2;
inline constexpr double kPausesOfOne = 0.6;

// ---- comparisons that grow with the square of the members
inline constexpr std::size_t kSplitMembers = 512;

// Sizes of a node in use, where the evidence has no node size.
inline constexpr Rank kNodeSizes[] = {4, 8, 16};

}  // namespace frtrace::limits
