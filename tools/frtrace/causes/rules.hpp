// rules.hpp - every rule, in the order in which the judge reads their proposals.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "causes/cause.hpp"

namespace frtrace {

// The strength of the evidence for the proposals of a rule. The judge reads the tiers one after the
// other; see judge.hpp.
enum class Tier : std::uint8_t {
  kOrder,   // every later sequence number is unreliable
  kShown,   // the fault itself is recorded: members that differ, a process that ended, an error
  kEnd,     // the end of the waits: an idle rank, a device that is behind
  kCycle,   // ranks that wait for each other: inferred from orders
  kAbsent,  // a rank without evidence
  kOpen,    // something is stuck and the evidence names no rank
  kNoHang,  // nothing is stuck; the report has something else to say
};

struct RuleRow {
  Tier tier;
  std::vector<Cause> (*propose)(const Facts&);
  bool compares = true;  // it compares sequence numbers of several ranks
  bool beside = false;   // never the only cause: the rank may wait for another cause
};
std::span<const RuleRow> rules();

std::vector<Cause> same_rank(const Facts&);
std::vector<Cause> other_world(const Facts&);
std::vector<Cause> group_order(const Facts&);
std::vector<Cause> mismatch(const Facts&);
std::vector<Cause> unequal_ends(const Facts&);
std::vector<Cause> unequal_ends_tie(const Facts&);
std::vector<Cause> exited(const Facts&);
std::vector<Cause> one_killed(const Facts&);
std::vector<Cause> device_error(const Facts&);
std::vector<Cause> device_behind(const Facts&);
std::vector<Cause> never_issued(const Facts&);
std::vector<Cause> stopped_host(const Facts&);
std::vector<Cause> stopped_by_stack(const Facts&);
std::vector<Cause> complete(const Facts&);
std::vector<Cause> thread_ended(const Facts&);
std::vector<Cause> cycle(const Facts&);
std::vector<Cause> own_errors(const Facts&);
std::vector<Cause> no_evidence(const Facts&);
std::vector<Cause> old_file(const Facts&);
std::vector<Cause> complete_open(const Facts&);
std::vector<Cause> never_started(const Facts&);
std::vector<Cause> unreached_store(const Facts&);
std::vector<Cause> no_exit(const Facts&);
std::vector<Cause> lifecycle(const Facts&);
std::vector<Cause> at_store(const Facts&);
// Evidence of the ranks that must enter the call that `members` are in, and never did.
std::vector<int> absent_from_call(const Facts&, const std::vector<int>& members);
std::vector<Cause> terminated(const Facts&);
std::vector<Cause> all_idle(const Facts&);
std::vector<Cause> past_mismatch(const Facts&);
std::vector<Cause> stale(const Facts&);
std::vector<Cause> at_rest(const Facts&);
std::vector<Cause> alarm_alone(const Facts&);
std::vector<Cause> stopped_amid_iteration(const Facts&);
std::vector<Cause> unattributed(const Facts&);
std::vector<Cause> unmatched(const Facts&);
std::vector<Cause> without_operations(const Facts&);
std::vector<Cause> without_completions(const Facts&);
std::vector<Cause> slow(const Facts&);
std::vector<Cause> calls_only(const Facts&);
bool only_times(const Facts&);  // the files are a profiler's

// ---- shared by rules

// Waits for a key of the ranks' store, as fr names them: python/fr/capture.py.
inline constexpr std::string_view kStoreCalls = "store.";

// The operation that says most about the blamed ranks: it has most waits, then began first; -1:
// none. `absent`: only operations that a blamed rank did not issue.
int main_pending(const Facts&, const std::vector<int>& blamed, bool absent = true);
Guilty guilty_rank(const Facts&, int evidence, Why why, int pending = -1);
// The operation started on the devices of all waiting ranks; all_started(): and all members wait.
bool who_wait_started(const Facts&, const Pending&);
bool all_started(const Facts&, const Pending&);
// The step at which that member of the group issued its collective of that sequence number;
// nullopt: its record is not kept.
std::optional<std::size_t> step_of_member(const Facts&, int group, std::size_t member,
                                          std::uint64_t seq);
// The rank waits for a key of the ranks' store. The rank that must set the key may itself be
// waiting for it.
bool is_at_store(const Facts&, int evidence);
// The same, but in a call of the program, not while it makes a group.
bool program_is_at_store(const Facts&, int evidence);
// Others wait for a write of some ranks to the ranks' store; nullopt: no such write is known.
std::optional<Cause> owes_write(const Facts&, const std::vector<int>& waiting);
std::vector<int> evidence_of(const std::vector<Guilty>&);  // without ranks that left none
std::vector<int> problem_ranks(const Facts&, Problem::Kind);
// These ranks are one node: by the node size that other ranks recorded, else as an aligned block of
// a usual size.
bool is_node(const Facts&, const std::vector<Rank>&);
// The rank has not used a group of that kind, so it may be making the communicator. PyTorch's NCCL
// does this before it records the first operation of a group, and waits there for all members.
bool makes_communicator(const Facts&, int evidence, int group);
// A running job may look like this: the files do not record when they were written, and several
// ranks are in no operation, each awaited by one other rank, in sends, receives and groups of two.
// Not so for members of one group or node, which stop together.
bool may_be_between(const Facts&);
void sort_by_rank(std::vector<Guilty>&);
// The rank repeats its operations, and never issued the operation of that step before.
bool is_new(const Facts&, int evidence, std::size_t step);
// Others wait for the rank in the next occurrence of that step of its own.
bool is_due_in(const Facts&, int evidence, std::size_t step, const Pending&);
// The rank's usual operation at that step (an earlier step of its own) if others wait for the rank
// in it, in one of the `pending` operations; nullopt: they do not.
std::optional<std::size_t> usual_if_awaited(const Facts&, int evidence, std::size_t step,
                                            const std::vector<int>& pending);
// A rank that departed from its usual order, and the departure.
struct Deviant {
  int evidence;
  Anomaly how;
};
Cause of_deviants(const Facts&, std::vector<Deviant>, bool by_peers, bool in_cycle);
// The departure from the usual order among ranks of a cycle or of an uncompleted operation;
// nullopt: unknown. `one_did`: one of the suspects must have departed, because all are on every
// cycle.
std::optional<Cause> left_order(const Facts&, const std::vector<int>& suspects, bool in_cycle,
                                bool one_did = false);
// Blames these ranks, each with the operation that it waits in.
void blame(const Facts&, const std::vector<int>& who, Why, Cause&);
// A thread of the rank did not issue an operation that others wait in. Its order relative to the
// operation that another thread of the rank waits in is undefined. nullopt: no such thread.
std::optional<Cause> other_thread_did_not_come(const Facts&, const Problem&, int evidence);

}  // namespace frtrace
