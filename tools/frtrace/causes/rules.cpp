// The table of all rules, and the words of the contract.
#include "causes/rules.hpp"

#include <array>

namespace frtrace {

namespace {

constexpr RuleRow kRules[] = {
    {Tier::kOrder, "group order", group_order,
     "groups made in another order are other groups: no number of theirs can be compared"},
    {Tier::kShown, "mismatch", mismatch,
     "members that differ in one slot never end it; errors and exits may follow from that"},
    {Tier::kShown, "unequal ends", unequal_ends, "a send that does not fit its receive never ends"},
    {Tier::kShown, "one killed", one_killed, "one process was told to end before the waits began",
     false},
    {Tier::kShown, "exited", exited, "a process that ended explains all waits since", false},
    {Tier::kShown, "device error", device_error, "a recorded error of the device that others need",
     false},
    {Tier::kEnd, "left out", left_out,
     "others wait for it in what it left out, wherever it waits itself"},
    {Tier::kEnd, "never issued", never_issued, "others wait for it and it waits for nobody"},
    {Tier::kEnd, "device behind", device_behind,
     "all issued it and others' devices started or ended it"},
    {Tier::kEnd, "complete", complete,
     "every member issued it; the devices' own waits are followed"},
    {Tier::kEnd, "stopped host", stopped_host,
     "beside another cause: its peers in the same place went on"},
    {Tier::kCycle, "cycle", cycle, "ranks that wait for each other; orders decide"},
    {Tier::kCycle, "unequal ends, a tie", unequal_ends_tie,
     "either end may be wrong, and a shift of numbers looks the same"},
    {Tier::kAbsent, "no evidence", no_evidence, "waits end at a rank of which nothing is known"},
    {Tier::kAbsent, "never started", never_started,
     "all others wait at the store where the ranks meet, and of it there is nothing", false},
    {Tier::kOpen, "calls only", calls_only,
     "ranks that recorded less than the others are not compared with them", false},
    {Tier::kOpen, "no exit", no_exit, "nothing is pending but the end of a process", false},
    {Tier::kOpen, "own errors", own_errors, "an operation failed and nobody ended before", false},
    {Tier::kOpen, "complete", complete_open,
     "every member issued it, and nothing shows why it stays"},
    {Tier::kOpen, "lifecycle", lifecycle, "no operation is pending, a call on groups is", false},
    {Tier::kNoHang, "idle", idle_when_ended,
     "told to end while nothing was in flight, for far longer than ever before", false},
    {Tier::kNoHang, "terminated", terminated, "processes were told to end and nothing was stuck",
     false},
    {Tier::kNoHang, "past mismatch", past_mismatch, "results are wrong, nothing is stuck"},
    {Tier::kNoHang, "stale", stale, "the evidence is older than the waits"},
    {Tier::kNoHang, "at rest", at_rest, "nothing shows how long what is in flight has lasted"},
    {Tier::kNoHang, "alarm", alarm_alone, "the reason of the dump is not among what was read"},
    {Tier::kNoHang, "amid", stopped_amid_iteration, "at rest in what the files do not record"},
    {Tier::kNoHang, "unattributed", unattributed,
     "the hang that was seen is among the operations that found no room"},
    {Tier::kNoHang, "unmatched", unmatched,
     "the hang that was seen is in an operation whose other members are not known"},
    {Tier::kNoHang, "without operations", without_operations,
     "stacks and counters alone do not show what is in flight", false},
    {Tier::kNoHang, "slow", slow, "late again and again"},
};

}  // namespace

std::span<const RuleRow> rules() {
  return kRules;
}

const char* verdict_name(Verdict v) {
  static constexpr const char* kNames[] = {"ok",        "missing", "mismatch", "deadlock", "device",
                                           "transport", "exited",  "slow",     "undecided"};
  return kNames[static_cast<int>(v)];
}

const char* confidence_name(Confidence c) {
  static constexpr const char* kNames[] = {"certain", "likely", "possible"};
  return kNames[static_cast<int>(c)];
}

const char* why_name(Why w) {
  static constexpr const char* kNames[] = {"never_issued",
                                           "never_started",
                                           "skipped",
                                           "unresponsive",
                                           "left_early",
                                           "killed",
                                           "exception",
                                           "exit",
                                           "gone",
                                           "no_evidence",
                                           "minority",
                                           "differs",
                                           "extra_operation",
                                           "other_order",
                                           "on_cycle",
                                           "cuda_error",
                                           "nccl_error",
                                           "never_launched",
                                           "in_launch",
                                           "not_started",
                                           "not_finished",
                                           "channels_not_started",
                                           "kernel_stands",
                                           "network_thread",
                                           "late"};
  return kNames[static_cast<int>(w)];
}

Confidence confidence_of(const Assumption& a) {
  switch (a.what) {
    case Assume::kFewAreWrong:
    case Assume::kNoEarlierIterations:
      return a.ranks.empty() ? Confidence::kLikely : Confidence::kPossible;
    case Assume::kTie:
    case Assume::kLostOnly:
    case Assume::kEarlyFile:
    case Assume::kMayMakeCommunicator:
    case Assume::kNeedNotMeet:
    case Assume::kClocksAgree:
      return Confidence::kPossible;
    default:
      return Confidence::kLikely;
  }
}

}  // namespace frtrace
