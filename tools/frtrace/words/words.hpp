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
  // " of mesh_pp (2 groups)": group and peer of what the ranks issued, or of what was due; of several
  // ranks what holds for all.
  std::string group_and_peer(const std::vector<Guilty>&, bool due) const;
  // What was due in the place of what was issued, by what differs: "all_gather at a.py:2".
  std::string due(const Guilty&) const;
  // " at train.py:57 step"; "" not captured
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
  std::string waited(const Pending&) const;  // as its only waiter has it: "send #2 of pp to rank 3"
  // The part of that rank in it: of a send or receive the end that the other one waits for.
  std::string own_end(const Pending&, Rank) const;
  std::vector<Rank> waiting(const Pending&) const;  // sorted, none twice
  // Of these who have nothing before it on the same device.
  std::vector<Rank> in_front(const Pending&) const;
  // "ended by SIGKILL", "ValueError: ..."
  std::string exit(const Exit&) const;
  // The same behind its subject: "was ended by SIGKILL", "raised ValueError: ..."; one line
  std::string exit_did(const Exit&, std::size_t ranks) const;

  const Facts& f;
};

// How far an operation got on a device: its name, and a sentence without its subject.
std::string device_title(const Facts&, const OnDevice&);
// `reasons`: with what may keep one that never started, where nothing before it is known.
std::string device_line(const Facts&, const OnDevice&, bool reasons = true);
// Of what devices did not start, where nothing shows what keeps it; "" the lines about devices do.
std::string before_unstarted(const Facts&, const Cause&);
// Who comes late, where, since when and by whose time; of one a sentence without its subject.
std::string late_summary(const Facts&, const Stragglers&);
// "steps take 1.2 s since step 120 (110 ms before), on all ranks at once"
std::string slower_text(const SlowerSteps&);
// "ranks are late in turn: 30 of 120 all_reduce at train.py:9 waited 400 ms for one rank, 90 % of the
// time"
std::string late_in_turn_text(const Facts&, const LateInTurn&);
// "broadcast instead of all_reduce; shape [20,8] instead of [18,8]": shapes where these are known,
// else sizes.
std::string differences_text(const Facts&, const Cause&);
// "rank 1 called store.add barrier/# at train.py:9 30 times, ranks 0,2 31 times; ranks 0,2 wait for it
// there"; "ranks 0,1 wait for key ready-# of the ranks' store, which rank 2 wrote before (20 times)".
std::string owed_text(const Facts&, const Cause&);
// "ranks 0,1,3 are connected to the store at 127.0.0.1:33251"; "" where no stack shows it.
std::string reached_store_text(const Facts&, const Cause&);
std::string polled_text(const Facts&, const Cause&);  // "train.py:10 file_barrier"
// "two processes say they are rank 2 (pids 811 on n1, 640 on n2); no rank 3"
std::string twins_text(const Facts&);
// "rank 1 caught RuntimeError at train.py:12 in step: bad batch; all ranks made their groups anew and
// went on 812 ms later, in try 2": each restart within the processes.
std::vector<std::string> restart_lines(const Facts&);
// "rank 0 holds the lock of data.lock, which ranks 1-3 wait for, and waits for them in barrier #2"
std::string locks_text(const Facts&, const Cause&);
std::string late_line(const Facts&, const Straggler&);

// "12.4 s before its dump"; "" where one of the times is not known
std::string before_evidence(const RankEvidence&, Time);
// "got SIGTERM from process 4711, which the program handles"; empty: it got none.
std::string handled_text(const Exit&);
const char* exit_verb(ExitKind, std::size_t ranks);      // "was ", "were ", "raised ", ""
std::vector<Rank> ranks_of(const std::vector<Guilty>&);  // sorted, none twice
std::set<int> blamed_by(const Cause&);                   // evidence
// By the evidence of its peers where it left none.
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
// "all are in next_shard() at data.py:13": of ranks that are at one place, see stopped_at().
std::string idle_place_text(const Facts&, const std::vector<int>& idle);

// What happened to ranks one after the other; the same thing is one entry.
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

// One blamed rank: where it is, what it did last, how it ended.
Blamed describe(const Facts&, const Cause&, const Guilty&);
// "issued all_gather #7 of tp at a.py:3 where its earlier iterations had broadcast at a.py:2"
std::string departure(const Facts&, const Cause&, const Guilty&);
// Of one cause; none of the `blamed`, of whichever cause, is said to wait.
std::string summary(const Facts&, const Cause&, const std::vector<Rank>& blamed);
// Without the place in its library's source, the port, which is another on each rank, and what
// follows the first sentence: "RuntimeError: Connection closed by peer [127.0.0.1]".
std::string short_error(std::string_view error);
// Why that is so, and of what names nobody the evidence that would decide it.
void add_reasons(const Facts&, const Cause&, Report&);
// How often the blamed passed call sites, and where they first parted from the others.
void add_course(const Facts&, const Cause&, Report&);
// Sentences besides: why, who only follows, what the evidence cannot say.
void add_cause_findings(const Facts&, const Cause&, Report&);
void add_devices(const Facts&, const Cause&, Report&);
void add_late(const Facts&, const Stragglers&, Report&);
void say_in_turn(const Facts&, const LateInTurn&, Report&);
void add_consequences(const Facts&, const Judgement&, Report&);
void add_inventory(const Facts&, Report&);
void add_losses(const Facts&, const Judgement&, Report&);
// What the recorder said while the job ran: ranks that issue different operations...
void add_told(const Facts&, Report&);
// What became of the job after the dumps; a hang that went on is none any more.
void add_ending(const Facts&, const Judgement&, Report&);
// What summaries leave out, and whose whole dumps would tell.
void add_reduced(const Facts&, Report&);

inline void say(Report& r, const char* id, std::string text) {
  r.findings.push_back({id, std::move(text)});
}
template <typename One, typename... More>
void say(Report& r, const char* id, fmt::format_string<One, More...> text, One&& one,
         More&&... more) {
  say(r, id, fmt::format(text, std::forward<One>(one), std::forward<More>(more)...));
}
// The first few of them; then "and 3 more likewise", by `rest`.
void say_few(Report&, const char* id, const std::vector<std::string>& lines, std::size_t most,
             const char* rest);

}  // namespace frtrace
