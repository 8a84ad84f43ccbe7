// words.hpp - from a judgement to a report: the only place that writes sentences about causes.
// Renderers (report/) lay the sentences out and add none.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "judge/judge.hpp"
#include "report/report.hpp"

namespace frtrace {

Report explain(const Facts&, const Judgement&);

// Names of things: operations, groups, places.
class Names {
 public:
  explicit Names(const Facts& f) : f_(f) {}
  // "all_reduce #41 of default_pg", "send #2 of pp to rank 3"
  std::string record(int evidence, const Record&) const;
  std::string record(int evidence, std::size_t index) const;
  // " at train.py:57 step"; "" not captured
  std::string at(int evidence, std::uint32_t stack) const;
  std::vector<std::string> stack(int evidence, std::uint32_t stack) const;
  std::string op(const Pending&) const;
  std::string pending(const Pending&) const;
  std::vector<Rank> waiting(const Pending&) const;  // sorted, none twice
  // "ended by SIGKILL", "ValueError: ..."
  std::string exit(const Exit&) const;
  // The same behind its subject: "was ended by SIGKILL", "raised ValueError: ..."; one line
  std::string exit_verb(const Exit&, std::size_t ranks) const;

 protected:
  const Facts& f_;
};

// How far operations got on devices.
class DeviceWords : public Names {
 public:
  using Names::Names;
  DeviceReport report(const OnDevice&) const;
  std::string line(const OnDevice&) const;  // a sentence without its subject
  std::string title(const OnDevice&) const;
};

// Who comes late, where, since when and by whose time.
class LateWords : public Names {
 public:
  using Names::Names;
  std::string summary(const Stragglers&) const;
  std::string line(const Straggler&) const;  // a sentence without its subject
  void add(const Stragglers&, Report&) const;

 private:
  std::string place(int evidence, const LateSite&) const;
  std::string since(int evidence, const LateSite&) const;
  std::string how(const LateSite&) const;
  std::string by(const Straggler&, const LateSite&) const;
  LateReport report(const Straggler&, const LateSite&) const;
  static void merge(const LateReport& from, LateReport& to);
  void add_line(const Straggler&, const LateSite&, Report&) const;
  void add_holes(const Stragglers&, Report&) const;
};

// "ranks 1,2 wait", "rank 1 waits"
std::string wait_verb(const std::vector<Rank>&);

// One blamed rank: where it is, what it did last, how it ended.
Blamed describe(const Facts&, const Cause&, const Guilty&);
std::string summary(const Facts&, const Cause&);
// The same where nobody is named; and what would decide it.
std::string open_summary(const Facts&, const Cause&);
void add_open(const Facts&, const Cause&, Report&);
// Where those are who wait in no operation and are not blamed.
void add_elsewhere(const Facts&, Report&);
// How often the blamed passed call sites, and where they first parted from the others.
void add_course(const Facts&, const Cause&, Report&);
// Sentences besides: why, who only follows, what the evidence cannot say.
void add_cause_findings(const Facts&, const Cause&, Report&);
void add_devices(const Facts&, const Cause&, Report&);
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

}  // namespace frtrace
