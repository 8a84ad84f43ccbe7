// rules.hpp - every rule, in the order in which the judge reads their proposals.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "causes/cause.hpp"

namespace frtrace {

// How strongly the evidence shows what a rule proposes. The judge reads the tiers one after the
// other; see judge.hpp.
enum class Tier : std::uint8_t {
  kOrder,   // every later number of an operation is unreliable
  kShown,   // the fault itself is recorded: members that differ, a process that ended, an error
  kEnd,     // a closed end of the waits: an idle rank, a device that is behind
  kCycle,   // ranks that wait for each other: inferred from orders
  kAbsent,  // a rank without evidence
  kOpen,    // something is stuck and the evidence names nobody
  kNoHang,  // nothing is stuck; something else is to be said
};

struct RuleRow {
  Tier tier;
  std::vector<Cause> (*propose)(const Facts&);
  bool compares = true;  // operations of several ranks by their numbers
  bool beside = false;   // never the only cause: another may be what that one waits for
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
// Those who have to come to the call that these ranks are in, and never entered it.
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

// The operation that says most about the blamed: most waiting, then earliest; -1: none. `absent`:
// only operations that one of them did not come to.
int main_pending(const Facts&, const std::vector<int>& blamed, bool absent = true);
Guilty guilty_rank(const Facts&, int evidence, Why why, int pending = -1);
// The operation has begun on the devices of those who wait in it; of all members.
bool who_wait_started(const Facts&, const Pending&);
bool all_started(const Facts&, const Pending&);
// The step at which that member of the group issued its collective of that number; nullopt: none is kept.
std::optional<std::size_t> step_of_member(const Facts&, int group, std::size_t member,
                                          std::uint64_t seq);
// It waits for a key of the ranks' store: who is to set it may be among those who wait for it.
bool is_at_store(const Facts&, int evidence);
// Likewise, by a call of the program's, and not while it makes a group.
bool program_is_at_store(const Facts&, int evidence);
// Others wait, in the ranks' store or after a write to it, for what some ranks have to write.
std::optional<Cause> owes_write(const Facts&, const std::vector<int>& waiting);
std::vector<int> evidence_of(const std::vector<Guilty>&);  // without those that left none
std::vector<int> problem_ranks(const Facts&, Problem::Kind);
// These ranks are one machine: by the node size that others know, else as an aligned block of a
// usual size.
bool is_node(const Facts&, const std::vector<Rank>&);
// PyTorch's NCCL makes a communicator before it records the first operation of a group, and waits
// there for all members. The rank had not used a group of that kind.
bool makes_communicator(const Facts&, int evidence, int group);
// Nothing tells when the files were written, and several ranks are in no operation, all awaited by one
// other each, in sends, receives and groups of two: so looks a job that moves. Members of one group,
// or node, stop together.
bool may_be_between(const Facts&);
void sort_by_rank(std::vector<Guilty>&);
// That step of a rank that repeats itself is one that it never issued before.
bool is_new(const Facts&, int evidence, std::size_t step);
// Others wait for the rank in what that step of its own was an earlier one of.
bool is_due_in(const Facts&, int evidence, std::size_t step, const Pending&);
// The rank's usual operation at that step (a step of its own), if others wait for the rank in it: in one
// of these pending operations.
std::optional<std::size_t> usual_if_awaited(const Facts&, int evidence, std::size_t step,
                                            const std::vector<int>& pending);
// A rank that left its order, and how.
struct Deviant {
  int evidence;
  Anomaly how;
};
Cause of_deviants(const Facts&, std::vector<Deviant>, bool by_peers, bool in_cycle);
// What a cycle's or an uncompleted operation's ranks did against their order, if that can be told.
// `one_did`: one of the suspects must have left it, as all are on every circle.
std::optional<Cause> left_order(const Facts&, const std::vector<int>& suspects, bool in_cycle,
                                bool one_did = false);
// Blames these, each in the operation that it waits in.
void blame(const Facts&, const std::vector<int>& who, Why, Cause&);
// A thread of that rank did not come to what others wait in; what another one waits in is of no order
// with that.
std::optional<Cause> other_thread_did_not_come(const Facts&, const Problem&, int evidence);

}  // namespace frtrace
