// job.hpp - a training job: ranks, their groups, and the program of each host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "random.hpp"

namespace hangsim {

using Ns = std::int64_t;
inline constexpr Ns kUs = 1'000, kMs = 1'000'000, kSecond = 1'000'000'000;
using Dims = std::vector<std::int64_t>;

struct Group {
  std::string name;  // as PyTorch numbers them
  std::string desc;  // "default_pg", "tp", ...
  std::vector<int> ranks;
  int position(int rank) const;  // -1: no member
};

// A place in the job's source.
struct Site {
  std::string file;
  int line = 0;
  std::string function;
  bool operator==(const Site&) const = default;
};

enum class What : std::uint8_t {
  kWork,  // host time, then a kernel
  kCollective,
  kSend,
  kRecv,
  kBatch,        // batch_isend_irecv
  kWait,         // work.wait()
  kSync,         // the host waits for the device: loss.item()
  kStep,         // a new iteration
  kHang,         // the host never comes back
  kStuckKernel,  // a kernel never ends
  kExit
};

enum class ExitHow : std::uint8_t { kClean, kException, kKilled };

// How far the host gets with an operation that it issues.
enum class Launch : std::uint8_t { kGoes, kNotBegun, kInside };

// A fault of one operation below the host. Members are positions in its group.
struct Trouble {
  enum Kind : std::uint8_t {
    kNone,
    kLost,     // data of `from` do not arrive at `to`
    kCredit,   // `from` does not learn of the buffers of `to`
    kFlush,    // data that arrived at `to` never get from its NIC to its device
    kThread,   // the network thread of `from` is stuck
    kChannel,  // a channel of the kernel of `from` never runs
    kKernel    // the kernel of `from` runs but makes no progress
  };
  Kind kind = kNone;
  int from = -1, to = -1;
  int channel = -1;  // -1: all
  int step = 0;      // the fault begins at this step of the transfer
};

// How NCCL connects the ranks.
struct Fabric {
  bool all_by_net = true;  // neither NVLink nor shared memory
  bool trees = false;      // for reductions over all
  bool pxn = false;        // another process of the node may send for a rank
  int channels = 1;
  int loops = 2;  // how often a ring goes round
};

struct Op {
  What what = What::kWork;
  bool async = false;
  bool broken = false;  // starts, never finishes
  bool lags = false;    // the others finish it, this rank does not
  int mark = 0;         // number of the planted change
  Launch launch = Launch::kGoes;
  Trouble trouble;
  bool stopped = false;  // kHang by SIGSTOP: the whole process stops
  int group = 0;
  int peer = -1;  // position in the group: peer of a send or receive, root of a collective
  int site = 0;
  int handle = -1;
  int step = 0;
  std::string_view name;  // PyTorch's function; literals only, like dtype and reduce
  std::string_view dtype = "Float", reduce;
  std::vector<Dims> in, out;
  std::vector<std::int64_t> in_splits, out_splits;  // rows
  std::vector<Op> parts;                            // of a batch, or of a coalesced collective
  Ns host = 0, device = 0;
  ExitHow exit = ExitHow::kClean;

  bool is_p2p() const { return what == What::kSend || what == What::kRecv; }
  bool communicates() const {
    return what == What::kCollective || what == What::kBatch || is_p2p();
  }
};

std::int64_t numel(const Dims&);
std::int64_t numel(const std::vector<Dims>&);

using Program = std::vector<Op>;

struct Job {
  std::string kind;     // "ddp", ...
  std::string backend;  // "nccl", "xccl", "gloo"
  int world = 0;
  int ranks_per_node = 8;
  int steps = 0;
  bool batched_p2p = true;
  int queue_limit = 256;         // operations in flight at which a host waits
  std::int64_t eager_bytes = 0;  // sends up to here end without a receiver
  bool early_end = false;        // on a size mismatch the smaller operations end
  bool launcher_kills = false;   // the launcher ends all ranks after the first has failed
  bool full_in_launch = false;   // a host at the queue limit waits inside the next launch
  Fabric fabric;
  std::vector<Group> groups;
  std::vector<Site> sites;
  std::vector<Program> programs;

  int site(const std::string& file, int line, const std::string& function);
  int node(int rank) const { return rank / ranks_per_node; }
};

std::vector<std::string> job_kinds();
// world 0: a random small one; steps 0: a few.
Job make_job(std::string_view kind, int world, Random&, int steps = 0);

// Kinds with widely drawn parameters. No rule of an analyzer may be written for the held-out kinds.
enum class Half : std::uint8_t { kKnown, kHeldOut, kAll };
std::vector<std::string> wide_job_kinds(Half);
bool is_held_out(std::string_view kind);
Job make_wide_job(std::string_view kind, int world, Random&);

}  // namespace hangsim
