// sentences.hpp - the sentences of each rule, in a table. {name}: a value, see summary.cpp;
// [one|many]: by the number of blamed ranks, else of the others that the cause names.
#pragma once

#include <iterator>

#include "causes/cause.hpp"

namespace frtrace::sentences {

using enum Rule;

struct Row {
  Rule rule;
  const char* first;  // line: who, what, which operation
  // Why that is so, where the first line does not say it and a sentence is enough; of an open
  // question the evidence that would decide between its candidates.
  const char* more = "";
};
inline constexpr Row kSentences[] = {
    {kGroupOrder, "{who} {new_groups}",
     "all ranks must call new_group for the same members in the same order, members or not"},
    {kMismatch, "{mismatch}"},
    {kPastMismatch, "{mismatch}"},
    {kSkippedSlot,
     "{who} skipped {due_op} #{seq} of {group}{due_at}; [it|they] issued what comes later "
     "instead"},
    {kUnequalEnds, "{unequal}"},
    {kExited, "{who} {ended}{waited_for}"},
    {kOneKilled, "{who} {ended}{waited_for}"},
    {kSeenEnded, "{who} {ended}, as the ranks of its node saw{waited_for}"},
    {kKilledBefore, "{who} {ended}; the others were ended after it"},
    {kDeviceError, "{who} failed on the device: {device_error}{all_wait}"},
    {kDeviceBehind, "{who} {behind}; {rest_of_group}",
     "all members{with_evidence} issued {op}, so no host is late; the device[|s] of {who} "
     "[is|are]"},
    {kDeviceStalled, "{who} {stalled}{all_wait}"},
    {kNetwork, "{op} is stuck in the network{links}"},
    {kAllStarted, "all members started {op} and none finished"},
    {kUnresponsive, "{who} issued {op} and no longer respond[s|]; the others wait there"},
    {kNeverIssued, "{who_here} never issued {own_end}{wait_there}{elsewhere}"},
    {kLeft, "{who_here} exited without issuing {own_end}{wait_there}{elsewhere}"},
    {kExtra, "{who} issued {op}{issued_at}, which {others} {did_without}",
     "{who} [is the only one|are the only ones] in it, and no rank issued it from there before"},
    {kStoppedHost,
     "{who} stopped after {op}, though peers that wait in the same operation went on"},
    {kLeftOrder, "{who} {departed}{wait_in_op}",
     "the waits of the others lead to {who}, and only [it|they] departed from the order of "
     "{order}"},
    {kOtherOrder, "{who} took another order than the others: {cycle}"},
    {kCycle, "{who_or_others} wait for each other{no_order}: {cycle}"},
    {kLockCycle, "{locks}"},
    {kNoEvidence, "{who} left no evidence; {waiting} for [it|them] in {op}"},
    {kNeverStarted,
     "{who} [has|have] not come to {call} (not started, or cannot reach {store}); {others_wait} "
     "there"},
    {kNoExit,
     "{who} [does|do] not exit: [it has|they have] destroyed [its|their] process groups, and "
     "Python waits for [its|their] other threads to end"},
    {kLifecycle, "{who} never entered {call}; {others_wait} there"},
    {kSlow, "{late}"},
    {kOk, "nothing is stuck{young}"},
    {kOkTerminated, "nothing was stuck; {others} [was|were] ended from outside ({how_ended})"},
    {kOpenDivergence,
     "members of {group} differ at #{seq} ({differences}); evidence of {missing} is lacking to say "
     "who is wrong",
     "a dump or ring of {missing}"},
    {kOpenFewOrMany,
     "{waiting} in {op}, {others} never issued it: the few may be wrong, or the many stopped",
     "the program's order at that call site{or_stacks}"},
    {kOpenUnrecorded,
     "{others} never issued {op} and others; some of them may wait for the others in sends and "
     "receives, which these files do not record",
     "files that record sends and receives (fr, or NCCL's Flight Recorder) of {others}"},
    {kOpenCommunicator,
     "{others} never issued {op}; some of them may wait where NCCL makes a communicator, which "
     "it does before the first operation of a group is recorded",
     "the stacks of {others} (py-spy dump --native), or a dump of fr with FR_STACKS"},
    {kOpenErrors,
     "{others} failed on their devices within seconds, and too little is in common to compare "
     "their clocks: the evidence does not show whose error came first",
     "the first Xid or CUDA error in the kernel logs of the hosts of {others}"},
    {kOpenOwnErrors,
     "{op} failed on {others}: {error}; nobody ended before and its members agree on what they "
     "issued, so the evidence does not name who caused it",
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
     "{op} failed though all its members issued it; no process ended before, so the evidence "
     "does not name who caused it",
     "the log of the backend on its members from before the failure"},
    {kOpenComplete, "{complete}", "{complete_need}"},
    {kOpenStreams,
     "all members issued {op}, but it does not finish on {waiters}; they issued it and others in "
     "orders that differ, and the evidence does not show which of them share a stream",
     "the streams of {waiters}: NCCL 2.28 or newer reports them, and so do calls that fr hooks"},
    {kOpenMoving,
     "{others} wait for each other, if the job was stuck when the files were written, which "
     "nothing tells: {cycle}",
     "the files with the times when they were written (cp -p, rsync -a), or later ones"},
    {kOpenBetween,
     "{others} did not issue {op} and others, if the job was stuck when the files were written, "
     "which nothing tells",
     "the files with the times when they were written (cp -p, rsync -a), or later ones"},
    {kOpenNoEvidence, "{waiting} in {op}; evidence of {lacking} is lacking to say why",
     "a dump or ring of {lacking}, or its stack: py-spy dump --json -p PID > rank_N.json"},
    {kOpenTerminated,
     "{others} [was|were] ended from outside ({how_ended}); evidence of {missing} is lacking to "
     "say why",
     "a dump or ring of {missing}"},
    {kOpenIdle,
     "nothing was in flight and {others} had issued nothing for {idle} when they were ended from "
     "outside: all were busy elsewhere, or stuck"},
    {kOpenStillIssues,
     "{waiting} in {op} for {others}, which still issued operations when [its file was|their files "
     "were] written",
     "later files of {others}, or the stacks: py-spy dump --native"},
    {kOpenStale,
     "something is stuck, but the evidence of {others} is older than the waits of the others",
     "newer dumps of {others}"},
    {kOpenAtRest,
     "operations are in flight, but the files of {others} are old, cut off or without the time "
     "when they were written, and do not show since when",
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
     "{others} dumped for a reason ({reason}), but its operations are of groups, or have names, "
     "that found no room in the recorder: what is recorded shows nothing stuck",
     "the program's order of operations in its newest groups"},
    {kOpenUnmatched,
     "{others} dumped for a reason ({reason}) and what {others} [has|have] in flight did not "
     "end, but the evidence does not show who else takes part in it",
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
    {kOpenLifecycle,
     "{others} [has|have] been in {call} for {longest}; no operation is in flight, and the "
     "evidence does not say what the call waits for{missing_too}",
     "Python stacks of all ranks, and evidence of ranks that left none"},
};
static_assert(std::size(kSentences) == static_cast<std::size_t>(kOk) + 1);

}  // namespace frtrace::sentences
