// case.hpp - one case: a job with a fault, how it ran, what evidence of it is kept, and the truth.
#pragma once

#include <algorithm>
#include <climits>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim.hpp"

namespace hangsim {

inline bool holds(const std::vector<int>& ranks, int r) {
  return std::find(ranks.begin(), ranks.end(), r) != ranks.end();
}

struct Answer {
  std::string kind;
  std::vector<int> ranks;
};

// What an analyzer of this evidence ought to say. It comes from the fault that was planted.
struct Truth {
  Answer answer;
  std::vector<Answer> also;                // as right as the answer
  std::vector<int> faulty;                 // whoever else is named is blamed falsely
  std::vector<std::pair<int, int>> links;  // of a transport verdict; no others
  bool decidable = true;                   // the evidence names the answer
  std::string lacking;                     // why not
  std::string why;                         // of the first guilty rank, where it is told
};

struct Evidence {
  bool written = true;
  bool timing = true;  // starts on the device are seen
  int ring = 2000;     // records per rank
  bool frames = true;
  int more_frames = 0;               // below the call site, in every stack
  std::vector<int> lost, truncated;  // ranks
  int stale = -1;                    // rank whose dump is older than the hang
  std::vector<Ns> at;                // per rank, when it was dumped; true time
  std::vector<Ns> clock;             // per rank, what its clock is off by
  // fr's only, of NCCL
  int api = 6;  // version of its profiler's interface: below 5 no launches, below 3 no kernels
  bool nics = false;           // it tells which one a transfer goes over
  std::vector<int> no_device;  // ranks of which nothing is told
  std::vector<int> lossy;      // ranks that ran out of rows for transfers
  // PyTorch's only
  std::string version = "2.10";       // "list": that of 2023
  std::vector<std::string> versions;  // per rank, where they differ
  bool only_active = false;
  bool json = false;
  bool copied = false;  // files carry the time of a copy
  std::string prefix = "nccl_trace_rank_";
  const std::string& version_of(int rank) const {
    return versions.empty() ? version : versions[static_cast<std::size_t>(rank)];
  }
  bool has_status() const { return has_status(version); }
  static bool has_status(const std::string& version);
};

// An asynchronous error, as the rank's process learnt of it.
struct DeviceError {
  int rank = 0;
  Ns at = 0;
  bool cuda = false;  // else NCCL's
  std::string name, text;
};

// Of a job that is slow: who makes it so.
struct Slow {
  std::vector<int> ranks = {};
  std::string cause = "host", pattern = "always";
  int since = 1;  // step
  // Per rank, of each of its groups the number of the first operation since then.
  std::vector<std::vector<std::pair<int, std::uint64_t>>> first = {};
};

struct Case {
  std::string cls, name;
  std::uint64_t seed = 0;
  Job job;
  Run run;
  std::vector<int> plays;  // whose run stands for each rank's; empty: its own
  std::string fault;       // in words
  int fault_step = 0;
  std::vector<DeviceError> errors;
  bool wide = false;      // of the widely drawn jobs
  bool held_out = false;  // of a kind of job that no rule knows
  bool below = false;     // the fault is below the host: no PyTorch dumps, they do not tell of it
  Evidence fr, torch;
  std::optional<Slow> slow;
  std::vector<int> renamed;  // rank -> its new name
  int attempt = 0;
  std::shared_ptr<Case> earlier;  // the attempt before, whose files are still there
  Truth fr_truth, torch_truth;

  const RankRun& run_of(int rank) const {
    const std::size_t r = static_cast<std::size_t>(rank);
    return run.ranks[plays.empty() ? r : static_cast<std::size_t>(plays[r])];
  }
};

struct Class {
  const char* name;
  const char* text;
};
const std::vector<Class>& classes();
const std::vector<Class>& classes_below();
const std::vector<Class>& classes_wide();
const std::vector<Class>& classes_slow();

// cls empty: any, of those below the host if `below`. world 0, kind empty: by seed. No rank keeps
// more than `ring` records.
Case make_case(std::uint64_t seed, std::string_view cls, std::string_view kind, int world,
               bool below = false, int ring = INT_MAX);

// Of the widely drawn jobs, in a space of seeds of its own.
// faults: no more than so many of those that its class plants.
Case make_wide_case(std::uint64_t seed, std::string_view cls, std::string_view kind, int world,
                    Half half, int faults = INT_MAX, int ring = INT_MAX);

// Of jobs in which nothing is stuck.
Case make_slow_case(std::uint64_t seed, std::string_view cls, std::string_view kind, int world);

// One operation as a recorder shows it at some moment.
struct Seen {
  const Issued* issued;
  std::uint64_t ticket;  // from 0, over all operations of the rank
  bool started, done;
};
// All that the rank had issued by then, by age. Of a batch its members; with_batches: and itself.
std::vector<Seen> seen(const RankRun&, Ns at, bool timing, bool with_batches);

inline constexpr Ns kEpoch = 1'760'000'000 * kSecond;  // when the job began

class DeviceView;

// The rank wrote one itself, or somebody alive on its node wrote what it left.
bool leaves_fr_dump(const Case&, int rank);
// The ranks from first to last, without last.
void write_fr(const Case&, const DeviceView&, const std::filesystem::path& dir, int first,
              int last);
void write_torch(const Case&, const std::filesystem::path& dir, int first, int last);
void write_truth(const Case&, const std::filesystem::path& file);
Ns unix_time(const Evidence&, int rank, Ns t);
void write_file(const std::filesystem::path&, std::string_view data, Ns modified);

}  // namespace hangsim
