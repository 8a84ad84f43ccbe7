// sentences.hpp - the sentences of each rule, in a table. {name}: a value, see summary.cpp;
// [one|many]: by the number of blamed ranks, else of the others that the cause names.
#pragma once

#include <iterator>

#include "causes/cause.hpp"

namespace frtrace::sentences {

using enum Rule;

struct Row {
  Rule rule;
  const char* first;  // first line: ranks, fault, operation
  // The reason, if the first line does not give it and one sentence is enough. For an open
  // question: the evidence that would decide between its candidates.
  const char* more = "";
};
inline constexpr Row kSentences[] = {
    {kGroupOrder, "{who} {new_groups}",
     "all ranks must call new_group for the same members in the same order, members or not"},
    {kSameRank, "{twins}"},
    {kOtherWorld,
     "{who} [was|were] started with world size {own_world}, {others} with {other_world}",
     "all ranks must be started with the same number of ranks (WORLD_SIZE, --nnodes)"},
    {kMismatch, "{mismatch}"},
    {kPastMismatch, "{mismatch}"},
    {kSkippedSlot, "{who} skipped {due_op} #{seq} of {group}{due_at} and issued {instead} instead"},
    {kUnequalEnds, "{unequal}"},
    {kExited, "{who} {ended}{waited_for}"},
    {kOneKilled, "{who} {ended}{waited_for}"},
    {kSeenEnded, "{who} {ended}, according to other ranks of its node{waited_for}"},
    {kKilledBefore, "{who} {ended}; the others were ended after it"},
    {kDeviceError, "{who} failed on the device: {device_error}{all_wait}"},
    {kDeviceBehind, "{who} {behind}{rest_of_group}", "{nothing_before}"},
    {kDeviceStalled, "{who} {stalled}{all_wait}"},
    {kNetwork, "{op} is stuck in the network{links}"},
    {kAllStarted, "{members} started {op} and none finished it"},
    {kUnresponsive, "{who} issued {op} and no longer respond[s|]; the others wait there"},
    {kNeverIssued, "{who_here} never issued {own_end}{wait_there}{elsewhere}"},
    {kOwesWrite, "{owed_write}"},
    {kLeft, "{who_here} {left} without issuing {own_end}{wait_there}{elsewhere}"},
    {kExtra, "{who} issued {op}{issued_at}, which {others} {did_without}", "{unusual}"},
    {kStoppedHost,
     "{who} stopped issuing operations, though other ranks that wait in {op} as well issued more"},
    {kElsewhere, "{who} [is|are] in the program's own code while most ranks wait"},
    {kLeftOrder, "{who} {departed}{wait_in_op}", "{wait_through_others}"},
    {kOtherOrder, "{who} issued operations in another order than the others: {cycle}"},
    {kCycle, "{who_or_others} wait for each other{no_order}: {cycle}", "{order_need}"},
    {kLockCycle, "{locks}"},
    {kNoEvidence, "{who} left no evidence; {waiting} for [it|them] in {op}"},
    {kOldFile,
     "{who} left no file since the others began to wait; {waiting} for [it|them] in {op}"},
    {kNeverStarted,
     "{who} [has|have] not entered {call} (not started, or cannot reach the {store}); "
     "{others_wait} "
     "there"},
    {kNoExit, "{who} [does|do] not exit: {exit_waits}"},
    {kLifecycle, "{who} never entered {call}; {others_wait} there"},
    {kUnreachedStore,
     "{who} [does|do] not reach the ranks' {own_store}; {others_wait} for [it|them] in {call}"},
    {kAtStore,
     "{who} [is|are] in no operation, and {others_wait} in the ranks' store for a key that another "
     "rank sets"},
    {kIdle, "{who} issued nothing for {idle}{usually}; {idle_place}"},
    {kSlow, "{late}"},
    {kSlowSteps, "{slower}"},
    {kLateInTurn, "{late_in_turn}"},
    {kOk, "nothing is stuck{young}"},
    {kOkToldToEnd,
     "{others} [was|were] told to end ({signal}), and ended orderly after {ended_after}"},
    {kOkTerminated, "nothing was stuck; {others} [was|were] terminated from outside ({how_ended})"},
    {kOpenDivergence,
     "members of {group} differ at #{seq} ({differences}); evidence of {missing} is lacking to say "
     "who is wrong",
     "a dump or ring of {missing}"},
    {kOpenFewOrMany,
     "{waiting} in {op}, which {others} never issued: either {waiters} should not have issued it, "
     "or {others} stopped before it",
     "what the program does at that call site{or_stacks}"},
    {kOpenUnrecorded,
     "{others} never issued {op} and operations of other groups; some of them may wait for each "
     "other in sends and receives, which these files do not record",
     "files that record sends and receives (fr, or NCCL's Flight Recorder) of {others}"},
    {kOpenCommunicator,
     "{others} never issued {op}; some of them may wait where NCCL makes a communicator, which "
     "it does before the first operation of a group is recorded",
     "the stacks of {others} (py-spy dump --native), or fr dumps"},
    {kOpenErrors,
     "{others} failed on their devices within seconds, and too little is in common to compare "
     "their clocks: the evidence does not show whose error came first",
     "the first Xid or CUDA error in the kernel logs of the hosts of {others}"},
    {kOpenOwnErrors,
     "{op} failed on {others}: {error}; no process ended before and {members} issued the same, so "
     "the evidence does not name who caused it",
     "the log of the backend on {others} from before that error"},
    {kOpenDevices,
     "{op} makes no progress on the devices of {others}, behind work that is not recorded: the "
     "evidence does not show whose device holds up the others",
     "what runs on those devices: nvidia-smi, cuda-gdb or py-spy on the hosts of {others}"},
    {kOpenKernel,
     "{op} makes no progress: the kernel of {others} runs and neither consumes nor produces data "
     "though both are possible; it may wait for a rank of its node that it reaches without the "
     "network, which is not observable",
     "state of the other devices on that node (NVLink errors, Xid messages in its kernel log)"},
    {kOpenBehind,
     "{others} issued {op} and did not start it on the device, but the evidence does not show "
     "whose device holds up the others",
     "device states of the other ranks: fr dumps with NCCL's profiler plugin, or later dumps"},
    {kOpenRunning,
     "{others} issued {op} and did not finish it, though others started or finished it: the "
     "evidence does not distinguish a stalled device from data that the network did not deliver",
     "device and transfer states of {others}: fr dumps with NCCL's profiler plugin"},
    {kOpenFailed,
     "{members} issued {op}, and it failed; no process ended before, so the evidence does not name "
     "who caused it",
     "the log of the backend on its members from before the failure"},
    {kOpenComplete, "{complete}", "{complete_need}"},
    {kOpenStreams,
     "{members} issued {op}, but it does not finish on {waiters}; they issued it and other "
     "operations in different orders, and the evidence does not show which of these share a stream",
     "the streams of {waiters}: NCCL 2.28 or newer reports them, and so do calls that fr hooks"},
    {kOpenBetween,
     "{others} had not yet issued {op}, or others that ranks wait in; nothing shows whether the "
     "job still ran when the files were written",
     "the files with the times when they were written (cp -p, rsync -a), or later ones"},
    {kOpenUnreachedStore, "{others} [does|do] not reach the ranks' {store}{served}",
     "whether MASTER_ADDR and MASTER_PORT name the host of rank 0 on all ranks, whether its store "
     "listens there, and whether a firewall lets the ranks through"},
    {kOpenAtStore,
     "{others_wait} in the ranks' store for a key; the evidence does not show which rank sets it"},
    {kOpenPolls,
     "{others} [waits|wait] in a polling loop and {waiting} in {op}: the evidence does not show "
     "which of them is to go on first",
     "what ends the loop at {polled_at}"},
    {kOpenNoEvidence, "{waiting} in {op}; evidence of {lacking} is lacking to say why",
     "a dump or ring of {lacking}, or stacks: py-spy dump --json -p PID > rank_N.json"},
    {kOpenTerminated,
     "{others} [was|were] terminated from outside ({how_ended}); evidence of {missing} is lacking "
     "to say why",
     "a dump or ring of {missing}"},
    {kOpenIdle,
     "{others} issued nothing for {idle}{usually} and [waits|wait] in no operation: [it is|all "
     "are] "
     "busy elsewhere, or stuck",
     "a second look at the stacks of {others}: frtrace stacks JOB"},
    {kOpenStillIssues,
     "{waiting} in {op} for {others}, which still issued operations when [its file was|their files "
     "were] written",
     "later files of {others}, or the stacks: py-spy dump --native"},
    {kOpenStale,
     "something is stuck, but the evidence of {others} is older than the waits of the others",
     "newer dumps of {others}"},
    {kOpenAtRest,
     "operations are in flight, but the files of {others} are old, cut off or without the time "
     "when they were written: nothing shows for how long",
     "whole and newer dumps of {others}"},
    {kOpenAlarm, "nothing is stuck on {read}, but {alarm}; evidence of {missing} is lacking",
     "a dump or ring of {missing}"},
    {kOpenAmid,
     "{others} stopped in the middle of an iteration with no collective in flight: they are in "
     "sends and receives, which these files do not record, or elsewhere",
     "Python stacks of {others}, or files that record sends and receives"},
    {kOpenResting,
     "no collective is in flight, and none of {others} has issued one for some time: they may be "
     "in sends and receives, which these files do not record, or elsewhere",
     "Python stacks of {others}, or files that record sends and receives"},
    {kOpenUnattributed,
     "{others} dumped for a reason ({reason}), but [its|their] operations are of groups, or have "
     "names, that found no room in the recorder: what is recorded shows nothing stuck",
     "the program's order of operations in its newest groups"},
    {kOpenUnmatched,
     "{others} dumped for a reason ({reason}) and what [it has|they have] in flight did not "
     "finish, but the evidence does not show who else takes part in it",
     "the members of its group: NCCL 2.27 or newer reports them, and so does a framework"},
    {kOpenNoOperations, "the files of {others} hold no operations: nothing shows what is stuck",
     "dumps of fr, or the job's log: PyTorch's dumps lack gloo's sends and receives"},
    {kOpenTimesOnly,
     "traces of the profiler show none of {others} late again and again; they do not show whether "
     "something is stuck",
     "dumps of fr or of PyTorch's Flight Recorder"},
    {kOpenCallsOnly,
     "something is stuck, but {others} recorded only what Python called (no torch adapter) and "
     "the other ranks all operations: what they issued cannot be compared",
     "the same capture on all ranks: python -m fr --build-adapter on each node, before the job"},
    {kOpenNoCompletions,
     "{others} issued nothing for {idle}, and the backend does not report completions to PyTorch's "
     "recorder: the files do not show whether the last operations completed",
     "Python stacks of {others}: py-spy dump --json -p PID > rank_N.json"},
    {kOpenLifecycle,
     "{others} [has|have] been in {call} for {longest}; no operation is in flight, and the "
     "evidence does not say what the call waits for{missing_too}",
     "Python stacks of all ranks, and evidence of ranks that left none"},
    {kOpenGraphs,
     "{others} [has|have] been in {call} for {longest}; CUDA graphs captured operations of the "
     "group, and NCCL 2.26 and newer waits there until the last such graph is destroyed",
     "whether graphs are alive there: destroy or reset() them before the group"},
};
static_assert(std::size(kSentences) == static_cast<std::size_t>(kOk) + 1);

}  // namespace frtrace::sentences
