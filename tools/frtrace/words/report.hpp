// report.hpp - the content of a diagnosis. Renderers turn it into text, JSON and tables and add
// nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "causes/cause.hpp"
#include "facts/device/devices.hpp"
#include "facts/order/course.hpp"
#include "model/hints.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

struct Blamed {
  Rank rank = -1;
  std::string host;
  int pid = 0;
  std::string why;  // never_issued, exception, killed, ...
  std::string group, desc, op;
  std::uint64_t seq = 0;
  Site site;  // of the operation that is wrong; else where the rank is; else its last operation's
  Site last_site;  // of its last operation
  std::vector<std::string> evidence;
  std::vector<std::string> stack;
  std::optional<Fork> divergence;
  LockWait lock;
};

struct Waiting {
  std::vector<Rank> ranks;
  std::string group, desc, op;
  std::string title;  // of the group, told apart from others of its name
  std::string peer;   // of a send or receive: " to rank 3"
  std::uint64_t seq = 0;
  Site site;
  double seconds = 0;  // at the dump, longest
  std::vector<std::string> stack;
  // Devices run the operations of a stream one after the other:
  std::vector<Rank> queued;            // ranks that have it behind another pending one
  std::map<Rank, std::size_t> behind;  // number of operations that a rank has behind it
};

struct LatePlace {
  std::string group, desc, op;
  Site site;
  int late = 0, last = 0, of = 0;
  double median_s = 0, worst_s = 0;
};

// A rank that comes late again and again, for one cause: the call site where it loses most.
struct LateReport : LatePlace {
  struct Step {  // the time of its steps changed here
    std::optional<std::int64_t> step;
    std::uint64_t seq = 0;  // 0: measured by steps, not by operations
    double before_s = 0, after_s = 0;
  };
  Rank rank = -1;
  std::string host;
  std::optional<std::int64_t> since_step;  // none: the program does not tell its steps
  std::uint64_t since_seq = 0;
  bool since_kept = false;  // since_seq is the first compared: late before, perhaps
  std::string pattern;      // always, growing, now_and_then
  std::string cause;        // host, device, node, unknown
  bool starts = false;      // starts on devices are recorded
  std::vector<Step> steps;
  std::vector<LatePlace> also;  // where it is late for the same cause
  std::vector<Rank> followers;  // late because of it
};

struct Finding {
  std::string id;  // "why", "consequence", "lost", "input", "excluded", "context", "end", ...
  std::string text;
};

// A transfer of a device operation, or several equal transfers.
struct TransferReport {
  std::string kind;  // send, recv
  Rank peer = -1;    // -1 unknown
  std::string waits_for;
  std::uint32_t step = 0, n_steps = 0;
  std::vector<std::uint32_t> channels;
  std::vector<std::string> over;  // NIC and queue pair, or socket, of each channel if recorded
};

// How far a stuck operation got on a rank's device.
struct DeviceReport {
  Rank rank = -1;
  std::string operation;  // "all_reduce #41 of default_pg"
  std::string state;      // scheduled, launching, launched, started
  std::uint64_t stream = 0;
  double seconds = 0;                   // in that state, at the dump; 0 unknown
  std::vector<std::uint32_t> channels;  // the running channels of its kernel
  std::string behind;                   // the operation that its stream is busy with
  std::vector<TransferReport> transfers;
};

// One independent fault.
struct CauseReport {
  Verdict kind = Verdict::kUndecided;
  std::vector<Rank> ranks;
  std::vector<Site> sites;  // of the ranks, without repeats
  double share = 0;         // of the waiting ranks that it explains, 0 to 1
  std::string summary;
};

// A check that fails on this machine and bears on the verdict.
struct DoctorReport {
  std::string id, name, value, remedy;
};

// How the incident ended, if that is known.
struct Ended {
  std::string how;          // "went_on", "killed", "exited"
  std::string by;           // "ended by SIGINT", an exception, ...; of the first process to end
  double after_s = 0;       // since the first wait of the verdict began
  std::vector<Rank> ranks;  // ranks that ended in this way
};

struct GroupReport {
  std::string name, desc, backend;
  std::uint32_t instance = 1;
  std::vector<Rank> ranks;
  std::uint64_t enqueued_min = 0, enqueued_max = 0, completed_min = 0, completed_max = 0;
  std::uint64_t overwritten = 0, dropped = 0;
  std::uint32_t generation = 0;  // how often the process had destroyed its groups before
};

struct RankReport {
  Rank rank = -1;
  std::string host, file, source, reason, state;
  int pid = 0;
  bool from_ring = false;  // read from a ring, not from a dump
  bool runs_now = false;   // known only for the process of a ring
  std::uint64_t incident = 0;
  std::string last_op;
  Site site;
  std::string note;
};

// A node that did not answer when a rank told it of the incident.
struct SilentNode {
  std::string host;
  std::vector<Rank> ranks;    // empty: not known
  std::uint32_t n_ranks = 0;  // number of its ranks
  bool has_files = false;     // some of its ranks left files
};

struct Report {
  std::string job;
  int attempt = 0;
  std::uint64_t incident = 0;
  Verdict kind = Verdict::kOk;
  std::vector<Rank> ranks;
  Confidence confidence = Confidence::kCertain;
  std::string summary;
  std::vector<CauseReport> causes;
  std::optional<Ended> ended;  // none: it lasts, or nothing is known
  Time time = 0;  // when the first wait of the verdict began, else when the evidence was taken
  std::vector<Blamed> blamed;
  std::vector<Waiting> waiting;
  std::vector<LateReport> late;
  std::vector<Finding> findings;
  std::vector<DeviceReport> devices;  // only if the verdict follows from devices
  std::vector<Link> links;
  std::vector<GroupReport> groups;
  std::vector<RankReport> rank_reports;
  std::vector<DoctorReport> doctor;
  int read = 0, expected = 0;
  std::vector<Rank> missing_ranks;
  int reduced = 0;                // ranks read from summaries
  std::vector<Rank> in_question;  // of those, ranks to get whole dumps of (words/question.hpp)
  std::vector<SilentNode> silent_nodes;
};

// Order of several jobs: the worst comes first; among equal ones, jobs that still run here, then
// the newest.
inline std::tuple<int, bool, Time> severity(const Report& r) {
  return {r.kind == Verdict::kOk          ? 0
          : r.kind == Verdict::kUndecided ? 1
                                          : 2,
          std::ranges::any_of(r.rank_reports, &RankReport::runs_now), r.time};
}

}  // namespace frtrace
