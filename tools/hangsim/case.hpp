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

// The correct answer to this evidence. It follows from the planted fault.
struct Truth {
  Answer answer;
  std::vector<Answer> also;                // as right as the answer
  std::vector<int> faulty;                 // every other named rank is blamed falsely
  std::vector<std::pair<int, int>> links;  // the only pairs that a transport verdict may name
  bool decidable = true;                   // the evidence names the answer
  std::string lacking;                     // why it is not decidable
  std::string why;                         // cause at the first guilty rank, if the report tells it
};

struct Evidence {
  bool written = true;
  bool timing = true;  // starts on the device are seen
  int ring = 2000;     // records per rank
  bool frames = true;
  int more_frames = 0;               // below the call site, in every stack
  std::vector<int> lost, truncated;  // ranks
  int stale = -1;                    // rank with a dump older than the hang; -1: none
  std::vector<Ns> at;                // per rank, when it was dumped; true time
  std::vector<Ns> clock;             // per rank, offset of its clock
  // fr dumps of NCCL jobs only
  int api = 6;  // version of its profiler's interface: below 5 no launches, below 3 no kernels
  bool nics = false;           // it tells the NIC of a transfer
  std::vector<int> no_device;  // ranks without device data
  std::vector<int> lossy;      // ranks that ran out of rows for transfers
  // PyTorch dumps only
  std::string version = "2.10";       // "list": the format of 2023
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

// The ranks that make a job slow, and how.
struct Slow {
  std::vector<int> ranks = {};
  std::string cause = "host", pattern = "always";
  int since = 1;  // step
  // Per rank: (group, sequence number of the first operation in or after step `since`).
  std::vector<std::vector<std::pair<int, std::uint64_t>>> first = {};
};

struct Case {
  std::string cls, name;
  std::uint64_t seed = 0;
  Job job;
  Run run;
  std::vector<int> plays;  // rank -> simulated rank that stands for it; empty: itself
  std::string fault;       // in words
  int fault_step = 0;
  std::vector<DeviceError> errors;
  bool wide = false;      // of the widely drawn jobs
  bool held_out = false;  // of a kind of job that no rule knows
  bool below = false;     // the fault is below the host; PyTorch dumps do not show it, so none
  Evidence fr, torch;
  std::optional<Slow> slow;
  std::vector<int> renamed;  // rank -> its new name
  int attempt = 0;
  std::shared_ptr<Case> earlier;  // the attempt before; its files still exist
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

// cls empty: any class, with `below` one of faults below the host. world 0, kind empty: drawn by
// seed. No rank keeps more than `ring` records.
Case make_case(std::uint64_t seed, std::string_view cls, std::string_view kind, int world,
               bool below = false, int ring = INT_MAX);

// A case of a widely drawn job, with its own space of seeds.
// faults: the maximum number of planted faults.
Case make_wide_case(std::uint64_t seed, std::string_view cls, std::string_view kind, int world,
                    Half half, int faults = INT_MAX, int ring = INT_MAX);

// A case of a slow job, in which nothing is stuck.
Case make_slow_case(std::uint64_t seed, std::string_view cls, std::string_view kind, int world);

// One operation as a recorder shows it at some moment.
struct Seen {
  const Issued* issued;
  std::uint64_t ticket;  // from 0, over all operations of the rank
  bool started, done;
};
// All operations that the rank had issued at that time, oldest first. A batch is listed by its
// members; with_batches: followed by the batch itself.
std::vector<Seen> seen(const RankRun&, Ns at, bool timing, bool with_batches);

inline constexpr Ns kEpoch = 1'760'000'000 * kSecond;  // when the job began

class DeviceView;

// The rank wrote a dump itself, or a living rank of its node dumped its ring.
bool leaves_fr_dump(const Case&, int rank);
// Writes the dumps of the ranks [first, last).
void write_fr(const Case&, const DeviceView&, const std::filesystem::path& dir, int first,
              int last);
void write_torch(const Case&, const std::filesystem::path& dir, int first, int last);
void write_truth(const Case&, const std::filesystem::path& file);
Ns unix_time(const Evidence&, int rank, Ns t);
void write_file(const std::filesystem::path&, std::string_view data, Ns modified);

}  // namespace hangsim
