// The table of all rules, and the names of verdicts, reasons and confidences.
#include "causes/rules.hpp"

namespace frtrace {

namespace {

// A comment gives the reason for a rule's tier if the name of the rule does not.
constexpr RuleRow kRules[] = {
    {Tier::kOrder, same_rank, false},
    {Tier::kOrder, other_world},  // ranks with different world sizes do not meet
    {Tier::kOrder, group_order},  // groups made in another order are other groups
    {Tier::kShown, mismatch},     // errors and exits may follow from it
    {Tier::kShown, unequal_ends},
    {Tier::kShown, one_killed, false},
    {Tier::kShown, exited, false},  // a process that ended explains all waits since
    {Tier::kShown, device_error, false},
    {Tier::kEnd, thread_ended},
    {Tier::kEnd, never_issued},
    {Tier::kEnd, device_behind},
    {Tier::kEnd, complete},
    {Tier::kEnd, stopped_host, true, true},
    {Tier::kEnd, stopped_by_stack, false, true},
    {Tier::kCycle, cycle},
    {Tier::kCycle, unequal_ends_tie},  // shifted sequence numbers look the same
    {Tier::kAbsent, no_evidence},
    {Tier::kAbsent, old_file},
    {Tier::kAbsent, never_started, false},
    {Tier::kOpen, calls_only, false},  // those ranks are not compared with the others
    {Tier::kOpen, no_exit, false},     // nothing is pending but the end of a process
    {Tier::kOpen, own_errors, false},
    {Tier::kOpen, complete_open},
    {Tier::kOpen, unreached_store, false},
    {Tier::kOpen, at_store, false},
    {Tier::kOpen, lifecycle, false},
    {Tier::kNoHang, all_idle, false},
    {Tier::kNoHang, terminated, false},
    {Tier::kNoHang, past_mismatch},  // results are wrong, nothing is stuck
    {Tier::kNoHang, stale},
    {Tier::kNoHang, at_rest},
    {Tier::kNoHang, alarm_alone},
    {Tier::kNoHang, stopped_amid_iteration},
    {Tier::kNoHang, unattributed},
    {Tier::kNoHang, unmatched},
    {Tier::kNoHang, without_operations, false},
    {Tier::kNoHang, without_completions},
    {Tier::kNoHang, slow},
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
                                           "idle",
                                           "late"};
  return kNames[static_cast<int>(w)];
}

Confidence confidence_of(const Assumption& a) {
  switch (a.what) {
    case Assume::kFewAreWrong:
    case Assume::kNoEarlierIterations:
      return a.ranks.empty() ? Confidence::kLikely : Confidence::kPossible;
    case Assume::kTie:
    case Assume::kStacksUnseen:
    case Assume::kLostOnly:
    case Assume::kEarlyFile:
    case Assume::kOldFile:
    case Assume::kMayMakeCommunicator:
    case Assume::kRootUnknown:
    case Assume::kNeedNotMeet:
    case Assume::kClocksAgree:
      return Confidence::kPossible;
    default:
      return Confidence::kLikely;
  }
}

}  // namespace frtrace
