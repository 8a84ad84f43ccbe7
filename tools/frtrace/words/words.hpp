// words.hpp - from a judgement to a report: the only place that writes sentences about causes.
// Renderers (report/) lay the sentences out and add none.
#pragma once

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "judge/judge.hpp"
#include "model/phrases.hpp"
#include "words/report.hpp"

namespace frtrace {

Report explain(const Facts&, const Judgement&);

// Names of things: operations, groups, places, ends.
struct Names {
  explicit Names(const Facts& facts) : f(facts) {}
  // "all_reduce #41 of default_pg", "send #2 of pp to rank 3"
  std::string record(int evidence, const Record&) const;
  std::string record(int evidence, std::size_t index) const {
    return record(evidence, f.ev(evidence).records[index]);
  }
  std::string peer(int evidence, const Record&) const;  // " to rank 3"; "" of a collective
  // " of mesh_pp (2 groups)": group and peer of the operations issued, or, with `due`, of those
  // that were due; for several ranks, the part that all share.
  std::string group_and_peer(const std::vector<Guilty>&, bool due) const;
  // The operation that was due instead of the issued one, by the parts that differ: "all_gather at
  // a.py:2".
  std::string due(const Guilty&) const;
  // " at train.py:57 step"; "": not captured
  std::string at(int evidence, std::uint32_t stack) const;
  std::string record_at(int evidence, const Record& r) const {
    return record(evidence, r) + at(evidence, r.stack);
  }
  // "all_reduce at train.py:57 step"
  std::string op_at(int evidence, const Record& r) const {
    return std::string(f.ev(evidence).text(r.op)) + at(evidence, r.stack);
  }
  std::vector<std::string> stack(int evidence, std::uint32_t stack) const;
  std::string op(const Pending&) const;
  std::string pending(const Pending&) const;
  std::string waited(const Pending&) const;  // for the only waiter: "send #2 of pp to rank 3"
  // The rank's part in it; for a send or receive, the end that the other rank waits for.
  std::string own_end(const Pending&, Rank) const;
  std::vector<Rank> waiting(const Pending&) const;  // sorted, none twice
  // The waiting ranks that have no earlier operation on the same device.
  std::vector<Rank> in_front(const Pending&) const;
  // "ended by SIGKILL", "ValueError: ..."
  std::string exit(const Exit&) const;
  // The same after a subject: "was ended by SIGKILL", "raised ValueError: ..."; one line
  std::string exit_did(const Exit&, std::size_t ranks) const;

  const Facts& f;
};

// An operation on a device: its name, and its progress as a sentence without a subject.
std::string device_title(const Facts&, const OnDevice&);
// `reasons`: adds possible reasons why an operation never started, if no operation before it is
// known.
std::string device_line(const Facts&, const OnDevice&, bool reasons = true);
// About operations that devices did not start, if nothing shows the reason; "": the lines about
// devices do.
std::string before_unstarted(const Facts&, const Cause&);
// The late ranks, where they are late, how often and by how much.
std::string late_summary(const Facts&, const Stragglers&);
// "steps take 1.2 s since step 120 (110 ms before), on all ranks at once"
std::string slower_text(const SlowerSteps&);
// "ranks are late in turn: 30 of 120 all_reduce at train.py:9 waited 400 ms for one rank, 90 % of
// the time"
std::string late_in_turn_text(const Facts&, const LateInTurn&);
// "broadcast instead of all_reduce; shape [20,8] instead of [18,8]": shapes if they are known, else
// sizes.
std::string differences_text(const Facts&, const Cause&);
// "rank 1 called store.add barrier/# at train.py:9 30 times, ranks 0,2 31 times; ranks 0,2 wait for
// it there"; "ranks 0,1 wait for key ready-# of the ranks' store, which rank 2 wrote before (20
// times)".
std::string owed_text(const Facts&, const Cause&);
// "ranks 0,1,3 are connected to the store at 127.0.0.1:33251"; "": no stack shows it.
std::string reached_store_text(const Facts&, const Cause&);
std::string polled_text(const Facts&, const Cause&);  // "train.py:10 file_barrier"
// "two processes say they are rank 2 (pids 811 on n1, 640 on n2); no rank 3"
std::string twins_text(const Facts&);
// "rank 1 caught RuntimeError at train.py:12 in step: bad batch; all ranks made their groups anew
// and went on 812 ms later, in try 2": each restart within the processes.
std::vector<std::string> restart_lines(const Facts&);
// "rank 0 holds the lock of data.lock, which ranks 1-3 wait for, and waits for them in barrier #2"
std::string locks_text(const Facts&, const Cause&);
std::string late_line(const Facts&, const Straggler&);

// "12.4 s before its dump"; "": one of the times is not known
std::string before_evidence(const RankEvidence&, Time);
// "got SIGTERM from process 4711, which the program handles"; empty: it got none.
std::string handled_text(const Exit&);
const char* exit_verb(ExitKind, std::size_t ranks);      // "was ", "were ", "raised ", ""
std::vector<Rank> ranks_of(const std::vector<Guilty>&);  // sorted, none twice
std::set<int> blamed_by(const Cause&);                   // evidence
// From the evidence of its peers if the rank left none.
Exit exit_of(const Facts&, const Guilty&);

// The members that issued the same in a slot in which members differ.
struct Side {
  int evidence;  // of one of them
  const Record* record;
  std::vector<Rank> ranks;
};
Side side_of(const Facts&, const Divergence&, int of_class);

// " (usually every 20 ms)": the median time between two operations that the rank issued; empty:
// too few are known.
std::string usual_gap_text(const RankEvidence&);
// "17.0 s": since the last of these ranks [evidence] issued or ended an operation.
std::string idle_text(const Facts&, const std::vector<int>& idle);
// "all are in next_shard() at data.py:13": for ranks at one place, see stopped_at().
std::string idle_place_text(const Facts&, const std::vector<int>& idle);

// Events on ranks, one after the other. Equal events share an entry.
struct Event {
  std::string text;
  std::vector<int> who;  // evidence
  Time time = 0;         // of the first; 0 unknown
};
class Events {
 public:
  void add(const std::string& text, int who, Time);
  std::vector<Event> in_order() const;  // unknown times last

 private:
  std::map<std::string, Event> all_;
};

// One blamed rank: its place, its last operation, its end.
Blamed describe(const Facts&, const Cause&, const Guilty&);
// "issued all_gather #7 of tp at a.py:3 where its earlier iterations had broadcast at a.py:2"
std::string departure(const Facts&, const Cause&, const Guilty&);
// The first line of a cause. It lists none of the `blamed`, of all causes, as waiting.
std::string summary(const Facts&, const Cause&, const std::vector<Rank>& blamed);
// The error without the place in its library's source, without the port, which differs from rank to
// rank, and without all after the first sentence: "RuntimeError: Connection closed by peer
// [127.0.0.1]".
std::string short_error(std::string_view error);
// The reason of a cause; for a cause that names no rank, the evidence that would decide it.
void add_reasons(const Facts&, const Cause&, Report&);
// How often the blamed ranks passed call sites, and where they first departed from the others.
void add_course(const Facts&, const Cause&, Report&);
// Further sentences: reasons, ranks that only follow, gaps of the evidence.
void add_cause_findings(const Facts&, const Cause&, Report&);
void add_devices(const Facts&, const Cause&, Report&);
void add_late(const Facts&, const Stragglers&, Report&);
void say_in_turn(const Facts&, const LateInTurn&, Report&);
void add_consequences(const Facts&, const Judgement&, Report&);
void add_inventory(const Facts&, Report&);
void add_losses(const Facts&, const Judgement&, Report&);
// Messages of the recorder while the job ran: ranks that issue different operations...
void add_told(const Facts&, Report&);
// The job's course after the dumps. A hang that went on is no longer reported as a hang.
void add_ending(const Facts&, const Judgement&, Report&);
// The gaps of summaries, and the ranks with whole dumps that would tell more.
void add_reduced(const Facts&, Report&);

inline void say(Report& r, const char* id, std::string text) {
  r.findings.push_back({id, std::move(text)});
}
template <typename One, typename... More>
void say(Report& r, const char* id, fmt::format_string<One, More...> text, One&& one,
         More&&... more) {
  say(r, id, fmt::format(text, std::forward<One>(one), std::forward<More>(more)...));
}
// The first `most` lines; then "and 3 more likewise", by `rest`.
void say_few(Report&, const char* id, const std::vector<std::string>& lines, std::size_t most,
             const char* rest);

}  // namespace frtrace
