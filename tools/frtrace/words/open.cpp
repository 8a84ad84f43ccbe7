// Verdicts that name nobody: what is stuck, what would decide it, and where the other ranks are.
#include <fmt/args.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "words/words.hpp"

namespace frtrace {

namespace {

struct OpenRow {
  Rule rule;
  const char* summary;
  const char* need;  // evidence that would separate the candidates; "": the summary says it
};

// {op}: the operation; {others}: the ranks that the cause names; {lacking}: those without evidence.
constexpr OpenRow kRows[] = {
    {Rule::kOpenFewOrMany,
     "{waiting} in {op}, {others} never issued it: the few may be wrong, or the many stopped",
     "the program's order at that call site, or the Python stacks of {others} (FR_STACKS)"},
    {Rule::kOpenUnrecorded,
     "{others} never issued {op} and others; some of them may wait for the others in sends and "
     "receives, which these files do not record",
     "files that record sends and receives (fr, or NCCL's Flight Recorder) of {others}"},
    {Rule::kOpenCommunicator,
     "{others} never issued {op}; some of them may wait where NCCL makes a communicator, which it "
     "does before the first operation of a group is recorded",
     "the stacks of {others} (py-spy dump --native), or a dump of fr with FR_STACKS"},
    {Rule::kOpenErrors,
     "{others} failed on their devices within seconds, and too little is in common to compare "
     "their clocks: the evidence does not show whose error came first",
     "the first Xid or CUDA error in the kernel logs of the hosts of {others}"},
    {Rule::kOpenOwnErrors,
     "{op} failed on {others}: {error}; nobody ended before and its members agree on what they "
     "issued, so the evidence does not name who caused it",
     "the log of the backend on {others} from before that error"},
    {Rule::kOpenDevices,
     "{op} makes no progress on the devices of {others}, behind work that is not recorded: the "
     "evidence does not show whose device holds up the others",
     "what runs on those devices: nvidia-smi, cuda-gdb or py-spy on the hosts of {others}"},
    {Rule::kOpenKernel,
     "{op} makes no progress: the kernel of {others} runs and neither consumes nor produces data "
     "though both are possible; it may wait for a rank of its node that it reaches without the "
     "network, which is not observable",
     "state of the other devices on that node (NVLink errors, Xid messages in its kernel log)"},
    {Rule::kOpenBehind,
     "{others} issued {op} and did not start it on the device, but the evidence does not show "
     "whose device holds up the others",
     "device states of the other ranks: fr dumps with NCCL's profiler plugin, or later dumps"},
    {Rule::kOpenRunning,
     "{others} issued {op} and did not finish it, though others started or finished it: the "
     "evidence does not tell a stalled device from data that the network did not deliver",
     "device and transfer states of {others}: fr dumps with NCCL's profiler plugin"},
    {Rule::kOpenFailed,
     "{op} failed though all its members issued it; no process ended before, so the evidence does "
     "not name who caused it",
     "the log of the backend on its members from before the failure"},
    {Rule::kOpenComplete,
     "all members issued {op} and it does not end on {waiters}; what devices and network do is not "
     "recorded",
     "device and transfer states of its members: fr dumps with NCCL's profiler plugin"},
    {Rule::kOpenStreams,
     "all members issued {op} and it does not end on {waiters}; they issued it and others in "
     "orders that differ, and the evidence does not tell which of them share a stream",
     "the streams of {waiters}: NCCL 2.28 or newer tells them, and so do calls that fr hooks"},
    {Rule::kOpenNoEvidence, "{waiting} in {op}; evidence of {lacking} is lacking to say why",
     "a dump or ring of {lacking}, or its stack: py-spy dump --json -p PID > rank_N.json"},
    {Rule::kOpenTerminated, "{told}; evidence of {missing} is lacking to say why",
     "a dump or ring of {missing}"},
    {Rule::kOkTerminated, "nothing was stuck; {told}", ""},
    {Rule::kOpenStale,
     "something is stuck, but the evidence of {others} is older than the waits of the others",
     "newer dumps of {others}"},
    {Rule::kOpenAtRest,
     "operations are in flight and ranks are at rest, but the files of {others} are old or cut off "
     "and do not show since when",
     "whole and newer dumps of {others}"},
    {Rule::kOpenAlarm,
     "nothing is stuck on {read}, but it dumped for a reason ({reason}); evidence of {missing} is "
     "lacking",
     "a dump or ring of {missing}"},
    {Rule::kOpenAmid,
     "{others} stopped in the middle of an iteration with no collective in flight: they are in "
     "sends and receives, which these files do not record, or elsewhere",
     "Python stacks of {others}, or files that record sends and receives"},
    {Rule::kOpenUnattributed,
     "{others} dumped for a reason ({reason}), but its operations are of groups, or have names, "
     "that "
     "found no room in the recorder: what is recorded shows nothing stuck",
     "the program's order of operations in its newest groups"},
    {Rule::kOpenUnmatched,
     "{others} dumped for a reason ({reason}) and what {others} {have} in flight did not end, but "
     "the evidence does not tell who else takes part in it",
     "the members of its group: NCCL 2.27 or newer tells them, and so does a framework"},
    {Rule::kOpenNoOperations,
     "the files of {others} hold no operations: nothing shows what is stuck",
     "dumps of fr or of PyTorch's Flight Recorder, or the job's log"},
    {Rule::kOpenTimesOnly,
     "traces of the profiler show none of {others} late again and again; whether something is "
     "stuck they do not tell",
     "dumps of fr or of PyTorch's Flight Recorder"},
    {Rule::kOpenCallsOnly,
     "something is stuck, but {others} recorded only what Python called (no torch adapter) and the "
     "other ranks all operations: what they issued cannot be compared",
     "the same capture on all ranks: python -m fr --build-adapter on each node, before the job"},
    {Rule::kOpenLifecycle,
     "{others} {have} been in {call} for {longest}; no operation is in flight, and the evidence "
     "does not say what the call waits for{missing_too}",
     "Python stacks of all ranks, and evidence of ranks that left none"},
    {Rule::kOpenDivergence, nullptr, "a dump or ring of {missing}"},
};

static_assert(std::size(kRows) == static_cast<std::size_t>(Rule::kOkTerminated) -
                                      static_cast<std::size_t>(Rule::kOpenDivergence) + 1);

std::vector<Rank> lacking(const Facts& f) {
  std::vector<Rank> out;
  for (const Problem& p : f.graph.problems) {
    if (p.kind == Problem::kNoEvidence) {
      out.push_back(p.rank);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string error_of(const Facts& f, const Cause& c) {
  std::string out =
      c.pending < 0 && !c.others.empty() ? Names(f).exit(f.exit(c.others.front())) : std::string();
  for (const Wait& w : c.pending >= 0 ? f.graph[c.pending].waits : std::vector<Wait>{}) {
    if (!c.others.empty() && w.evidence == c.others.front() && w.record != kNoRecord) {
      out = f.ev(w.evidence).text(f.ev(w.evidence).records[w.record].error);
    }
  }
  return out;
}

// The tag with which the rank is in a send or receive now; "" unknown.
std::string tag_of(const RankEvidence& e) {
  const ThreadStack* t = main_thread(e.threads, e.id.pid);
  for (const FrameVariables& v : t != nullptr ? t->variables : std::vector<FrameVariables>{}) {
    const std::string& in = e.threads.frames[t->stack[v.frame]].function;
    for (const auto& [name, value] : v.values) {
      if (name == "tag" && (in.ends_with("send") || in.ends_with("recv"))) {
        return value;
      }
    }
  }
  return "";
}

// A message of gloo that both ends issued and that does not end; "": it is none. Gloo matches by
// tags, which records do not hold.
std::string tags_text(const Facts& f, const Cause& c) {
  const Pending* p = c.pending >= 0 ? &f.graph[c.pending] : nullptr;
  if (c.rule != Rule::kOpenComplete || p == nullptr || p->kind == Kind::kCollective ||
      f.group(p->group).backend.find("gloo") == std::string::npos) {
    return "";
  }
  const auto tag = [&](Rank r) {
    const int i = f.group(p->group).evidence[idx(f.group(p->group).position.at(r))];
    return i < 0 ? std::string() : tag_of(f.ev(i));
  };
  const std::string sent = tag(p->from), received = tag(p->to);
  const std::string differ =
      sent.empty() || received.empty() || sent == received
          ? "their tags may differ, which are not recorded"
          : fmt::format("rank {} sends with tag {}, rank {} receives with {}", p->from, sent, p->to,
                        received);
  return fmt::format("both ends issued {} and do not meet: {}", Names(f).pending(*p), differ);
}

std::string alarm_of(const Facts& f) {
  for (const RankEvidence* e : f.c.ranks) {
    if (!e->trigger.empty()) {
      return e->reason.empty() ? e->trigger : e->reason;
    }
  }
  return "unknown";
}

std::string longest_call(const Facts& f, const Cause& c) {
  double longest = 0;
  for (const int i : c.others) {
    const Record* call = f.lifecycle_in_flight(i);
    longest = std::max(longest, call == nullptr ? 0 : seconds_between(call->time, f.ev(i).written));
  }
  return duration_text(longest);
}

std::string fill(const Facts& f, const Cause& c, const char* text) {
  const Names names(f);
  const Pending* p = c.pending >= 0 ? &f.graph[c.pending] : nullptr;
  const std::vector<Rank> waiting = p == nullptr ? std::vector<Rank>{} : names.waiting(*p);
  const std::string others = ranks_words(f.ranks(c.others));
  const std::string missing = ranks_words(f.c.missing);
  fmt::dynamic_format_arg_store<fmt::format_context> args;
  const std::string call = c.lifecycle.empty() ? "an operation" : c.lifecycle;
  args.push_back(fmt::arg("op", p == nullptr ? call : names.pending(*p)));
  args.push_back(fmt::arg("waiting", wait_verb(waiting)));
  args.push_back(fmt::arg("waiters", ranks_words(waiting)));
  args.push_back(fmt::arg("others", others));
  args.push_back(fmt::arg("have", c.others.size() == 1 ? "has" : "have"));
  args.push_back(fmt::arg("lacking", ranks_words(lacking(f))));
  args.push_back(fmt::arg("missing", missing));
  args.push_back(fmt::arg("missing_too", f.c.missing.empty()
                                             ? std::string()
                                             : "; evidence of " + missing + " is lacking"));
  args.push_back(fmt::arg(
      "read", f.c.ranks.size() == 1 ? ranks_words({f.rank(0)}) : "the ranks that were read"));
  args.push_back(fmt::arg("reason", alarm_of(f)));
  args.push_back(fmt::arg("error", error_of(f, c)));
  args.push_back(fmt::arg("call", c.lifecycle));
  args.push_back(fmt::arg("longest", longest_call(f, c)));
  args.push_back(fmt::arg("told", c.others.empty()
                                      ? std::string()
                                      : fmt::format("{} {} ended from outside ({})", others,
                                                    c.others.size() == 1 ? "was" : "were",
                                                    names.exit(f.exit(c.others.front())))));
  return fmt::vformat(text, args);
}

const OpenRow* row_of(Rule rule) {
  const auto* const row = std::find_if(std::begin(kRows), std::end(kRows),
                                       [&](const OpenRow& x) { return x.rule == rule; });
  return row == std::end(kRows) ? nullptr : row;
}

}  // namespace

std::string open_summary(const Facts& f, const Cause& c) {
  if (std::string tags = tags_text(f, c); !tags.empty()) {
    return tags;
  }
  const OpenRow* row = row_of(c.rule);
  if (row != nullptr && row->summary != nullptr) {
    return fill(f, c, row->summary);
  }
  const int young = f.graph.young;
  return "nothing is stuck" +
         (young == 0
              ? std::string()
              : fmt::format("; {} in flight, none older than {}",
                            young == 1 ? "1 operation is" : fmt::format("{} operations are", young),
                            duration_text(f.threshold_s)));
}

void add_open(const Facts& f, const Cause& c, Report& r) {
  if (r.kind != Verdict::kUndecided) {
    return;
  }
  if (const OpenRow* row = row_of(c.rule); row != nullptr && *row->need != '\0') {
    const bool tags = !tags_text(f, c).empty();
    say(r, "need",
        "what would decide it: " +
            (tags ? "which tag the program means at the places above" : fill(f, c, row->need)));
  }
}

}  // namespace frtrace
