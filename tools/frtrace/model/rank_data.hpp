// rank_data.hpp - the one model: the content of one file about one rank, whatever its format.
//
// loaders -> RankEvidence -> Case (case.hpp) -> Report (diagnose.hpp) -> text, JSON, table
//
// Times are Unix nanoseconds, 0 = unknown. String ids index RankEvidence::strings, 0 = "".
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/codes.hpp"
#include "model/shared.hpp"
#include "model/threads.hpp"

namespace frtrace {

using Rank = std::int32_t;
using Time = std::int64_t;
inline constexpr Time kSecond = 1'000'000'000;
using Id = std::uint32_t;

// A time claimed by a file; 0 if it is out of range: sums and differences never overflow.
inline Time plausible(Time t) {
  return t > 0 && t < (Time{1} << 62) ? t : 0;
}

inline double seconds_between(Time from, Time to) {
  return static_cast<double>(to - from) * 1e-9;
}

enum class Source : std::uint8_t { kDump, kRing, kLiveRing };

// The codes of a dump; format/codes.hpp has their words.
using Kind = fr::dump::Kind;
using State = fr::dump::State;
using Salvage = fr::dump::Salvage;
using Trigger = fr::dump::Trigger;
using ExitBy = fr::dump::ExitBy;
using PeerState = fr::dump::Peer;
using DeviceState = fr::dump::DeviceState;
using PhaseKind = fr::dump::PhaseKind;
using PhaseWait = fr::dump::PhaseWait;

// The bits of Record::flags that are used here.
inline constexpr std::uint16_t kAsync = FR_ASYNC;
inline constexpr std::uint16_t kWaitOnly = FR_WAIT_ONLY;
inline constexpr std::uint16_t kUntracked = FR_UNTRACKED;

struct Frame {
  Id file = 0;
  Id func = 0;
  std::uint32_t line = 0;
};

// Stacks of frame indices, innermost first, in two blocks: every rank has dozens of stacks.
class Stacks {
 public:
  using Words = std::span<const std::uint32_t>;
  using value_type = std::initializer_list<std::uint32_t>;

  Stacks() = default;
  Stacks(std::initializer_list<std::initializer_list<std::uint32_t>> all) {
    for (const auto& stack : all) {
      push_back(stack);
    }
  }
  std::size_t size() const { return ends_.size(); }
  Words operator[](std::size_t i) const {
    const std::uint32_t first = i == 0 ? 0 : ends_[i - 1];
    return {words_.data() + first, ends_[i] - first};
  }
  template <class It>
  void emplace_back(It first, It last) {
    words_.insert(words_.end(), first, last);
    ends_.push_back(static_cast<std::uint32_t>(words_.size()));
  }
  void emplace_back() { ends_.push_back(static_cast<std::uint32_t>(words_.size())); }
  void push_back(Words stack) { emplace_back(stack.begin(), stack.end()); }
  void push_back(std::initializer_list<std::uint32_t> stack) {
    emplace_back(stack.begin(), stack.end());
  }
  void shrink_to_fit() {
    words_.shrink_to_fit();
    ends_.shrink_to_fit();
  }

 private:
  std::vector<std::uint32_t> words_;
  std::vector<std::uint32_t> ends_;  // for each stack, its end in words_
};

struct Record {
  std::uint64_t ticket = 0;
  Time time = 0;
  std::uint64_t seq = 0;
  std::uint64_t in_numel = 0;
  std::uint64_t out_numel = 0;
  Time started = 0;
  Time ended = 0;
  std::uint32_t group = 0;  // row in RankEvidence::groups
  Id op = 0;                // for a note: its text
  std::uint32_t stack = 0;
  std::uint32_t tid = 0;
  std::int32_t peer = -1;
  std::uint32_t timeout_ms = 0;
  std::uint32_t batch = 0;        // number of the batch of sends and receives; 0: not in a batch
  std::uint32_t shape_first = 0;  // into RankEvidence::shape_words
  std::uint32_t shape_count = 0;  // 0: not captured, or overwritten
  Id in_dtype = 0;
  Id out_dtype = 0;
  Id reduce_op = 0;
  Id error = 0;
  std::uint16_t flags = 0;
  Kind kind = Kind::kOther;
  State state = State::kUnknown;
};

struct RankRange {
  Rank first = 0;
  std::uint32_t count = 0;
  std::int32_t stride = 1;
  auto operator<=>(const RankRange&) const = default;
};

struct GroupEvidence {
  bool used = false;
  Id name = 0;
  Id desc = 0;
  Id backend = 0;
  std::uint32_t instance = 1;
  std::uint32_t generation = 0;  // of the process's groups; see model/generations.hpp
  std::int32_t n_ranks = 0;      // 0: unknown
  std::int32_t own_rank = -1;
  std::vector<RankRange> ranks;  // in group order; empty: not captured
  Time created = 0;
  Time destroyed = 0;
  // Frontiers of the collectives: exact even if the ring has overwritten records.
  std::uint64_t enqueued = 0, started = 0, completed = 0, ended = 0, failed = 0;
  Time enqueued_time = 0, started_time = 0, completed_time = 0;
  std::uint64_t p2p_enqueued = 0, p2p_ended = 0;
  std::uint64_t lifecycle = 0, lifecycle_ended = 0;
  std::uint64_t untracked = 0, wait_only = 0, wait_only_ended = 0, released = 0;
  // The group's records in the ring.
  std::uint64_t kept = 0, first_kept = 0, last_kept = 0, overwritten = 0, dropped = 0;
};

struct LaneEvidence {
  std::uint32_t group = 0;
  std::int32_t peer = -1;  // rank within the group
  bool send = false;
  bool relative = false;            // counted from the oldest message that the window holds
  bool guessed = false;             // and which message of the other end it matches is unknown
  std::uint64_t newest_number = 0;  // PyTorch's number of the newest message in the group
  std::uint64_t enqueued = 0, started = 0, completed = 0, ended = 0, failed = 0;
  Time enqueued_time = 0, completed_time = 0;
};

struct ThreadNotes {
  std::uint32_t tid = 0;
  std::string note;
  Time note_time = 0;
  std::vector<std::pair<std::string, Time>> spans;  // outermost first
};

struct ExitEvidence {
  bool present = false;
  fr::ExitState state = fr::kRunning;
  int status = 0;
  int signal = 0;
  int sender_pid = 0;
  ExitBy kind = ExitBy::kUnknown;
  std::string type, message;
  std::uint32_t stack = 0;
  Time time = 0;
};

struct PeerEvidence {
  Rank rank = -1;
  int pid = 0;
  PeerState state = PeerState::kOther;
  int status = 0;
  int signal = 0;
  Time exit_time = 0;
  std::string last_op = {}, last_site = {}, exit_site = {};
};

// ---- evidence of the communication library (NCCL) about a rank's work on its device

struct CommEvidence {
  bool used = false;
  bool ended = false;
  bool profiled = false;
  std::uint64_t hash = 0;      // equal on all its ranks; 0: unknown
  std::uint32_t group = 0;     // row of its own group; 0: all its work is a framework's
  std::uint32_t pg_group = 0;  // row of the framework's group it works for; 0: unknown
  std::int32_t n_ranks = 0;
  std::int32_t rank = -1;
  std::uint32_t n_nodes = 0;   // 0: unknown
  std::uint32_t captured = 0;  // operations captured in graphs
  Id name = 0;
  Id error = 0;  // its first asynchronous error
  Time error_time = 0;
};

// Bits of a device operation's flags.
inline constexpr std::uint32_t kDeviceP2p = fr::kDevP2p;
inline constexpr std::uint32_t kDeviceUnseen = fr::kDevUnseen;  // its end is not reported
inline constexpr std::uint32_t kDeviceTimed = fr::kDevTimed;    // CUDA events time it

struct DeviceOperation {
  std::uint32_t row = 0;
  std::uint32_t comm = 0;
  bool has_record = false;
  std::uint64_t ticket = 0;
  DeviceState state = DeviceState::kUnknown;
  std::uint32_t flags = 0;
  std::uint64_t stream = 0;  // 0: the default stream, or unknown
  Time launching = 0, launched = 0, started = 0;
  std::uint32_t channels = 0, channels_started = 0, channels_ended = 0;
  std::uint32_t transfers_started = 0, transfers_ended = 0;
  std::uint32_t algorithm = 0;                     // string
  std::uint32_t generation = 0;                    // of the row
  std::uint32_t phase_first = 0, phase_count = 0;  // into DeviceEvidence::phases
};

struct DevicePhase {
  std::uint32_t row = 0;  // its operation's row, in the process that has it
  bool has_record = false;
  std::uint64_t ticket = 0;
  PhaseKind kind = PhaseKind::kOther;
  PhaseWait wait = PhaseWait::kOther;
  std::uint32_t channel = 0;
  std::int32_t peer = -1;  // rank in the communicator
  std::uint32_t step = 0, n_steps = 0;
  Time time = 0;                                // of its last change
  std::int64_t nic = -1, qp = -1, socket = -1;  // -1: not reported
  int carrier = -1;  // evidence of the process that runs it; -1: the operation's own
};

// A transfer that this process runs for an operation of another process on its node (PXN).
struct CarriedPhase {
  DevicePhase phase;
  int pid = 0;
  std::uint32_t process = 0;     // as DeviceEvidence::process
  std::uint32_t generation = 0;  // of the operation's row
};
std::string over_text(const DevicePhase&);  // "NIC 0, queue pair 77", "socket 12"; "": not reported

// When the device ran an operation that has ended.
struct DeviceSpan {
  std::uint64_t ticket = 0;  // of its record
  Time start = 0, end = 0;
};

// The first asynchronous error of CUDA.
struct DeviceFailure {
  bool present = false;
  int code = 0;
  std::string name, text, call;
  bool has_record = false;
  std::uint64_t ticket = 0;  // of the operation in flight
  Time time = 0;
};

struct DeviceEvidence {
  bool present = false;
  std::uint32_t plugin_api = 0;  // 0: NCCL did not ask for fr
  std::uint32_t events = 0;      // bits of the events that fr requested from NCCL; 0: not reported
  std::uint32_t process = 0;     // NCCL's number of its process; 0: not reported
  std::uint64_t comms_lost = 0, ops_lost = 0, phases_lost = 0, unmatched = 0, threads_lost = 0;
  std::vector<CommEvidence> comms;  // by row
  std::vector<DeviceSpan> spans;    // by ticket
  // Only operations that have not ended, and their live phases.
  std::vector<DeviceOperation> operations;  // in order of issue
  std::vector<DevicePhase> phases;
  std::vector<CarriedPhase> carried;
  DeviceFailure failure;
  std::string observer_call;  // CUDA function that fr's own thread is in; "": none
  Time observer_since = 0;
};

bool is_unfinished(const DeviceOperation&);
// Drops operations that have ended, and gives each remaining one its phases.
void keep_unfinished(DeviceEvidence&);

// The answer of NCCL's RAS service to this rank.
struct RasEvidence {
  bool asked = false;
  std::string address, format, answer, error;  // error "": none
  bool cut = false;
};

// The nodes that this rank notified of the incident (libfr/net).
struct NodesEvidence {
  struct Silent {
    std::string host;
    Rank first_rank = -1;
    std::uint32_t n_ranks = 0, stride = 0;  // stride 0: the ranks are unknown
  };
  std::uint32_t asked = 0;  // 0: none
  std::uint64_t took_ns = 0;
  std::vector<Silent> unanswered;
};

struct Identity {
  std::string job, host, boot_id, command, cwd, recorder;
  int attempt = 0;
  Rank rank = -1;
  int local_rank = -1;
  int world_size = 0;  // 0: unknown
  int local_world_size = 0;
  int pid = 0;
  std::uint64_t proc_start = 0;
  std::uint64_t run = 0;  // equal on all ranks of one run of the job; 0: unknown
  Time start = 0;
  Time warned = 0;  // time of the last stall that was worth a warning; 0: none
  bool anonymous = false;
  std::uint64_t n_records = 0;
};

struct Losses {
  std::uint64_t dropped = 0, overwritten = 0, torn = 0, status_lost = 0, strings_lost = 0,
                stacks_lost = 0, groups_lost = 0, lanes_lost = 0, no_group = 0;
  std::uint64_t groups_forgotten = 0;  // destroyed groups, their rows reused
  std::uint64_t cut = 0;               // records behind the end of a truncated ring
  std::uint64_t trimmed = 0;  // records not kept in memory; the file has them (input/trim.hpp)

  // Whether the rank may have had a group that it does not list.
  bool may_have_had_other_groups() const { return groups_lost != 0 || groups_forgotten != 0; }
};

// Data that a format, or the moment of writing, could not provide. Nothing is set for fr's own
// files.
struct Holes {
  bool only_active = false;  // completed operations are left out
  bool no_stacks = false;
  bool no_status = false;     // no frontiers beside the records: taken from the window
  bool no_members = false;    // members of groups are inferred from the ranks that appear
  bool no_p2p = false;        // sends and receives happened and are not recorded
  bool relative_p2p = false;  // numbers of sends and receives count from the window, not from 1
  bool frontier_inferred = false;   // a frontier is inferred from waits of other ranks
  bool failure_inferred = false;    // a failed operation is inferred from absent members
  bool run_by_clock = false;        // only times distinguish its run from that of earlier files
  bool rank_from_name = false;      // only the file's name has the rank
  bool truncated = false;           // cut off in the middle: the rest is unknown
  bool frontiers_at_least = false;  // lower bounds: it may have issued more
  bool written_guessed = false;     // the time of writing is unknown: durations are meaningless
  bool from_log = false;            // lines of a log: operations inside NCCL's call are not counted
  bool only_stacks = false;         // from another tool: stacks of threads, no operations
  bool may_wait = false;            // and a thread may be in an operation, or wait for one
  bool reduced = false;             // from a summary, which is reduced (input/summary/shorten.hpp)
  std::uint64_t truncated_at = 0;   // records before the cut
  bool only_times = false;          // from a profiler: times of arrival, nothing about a hang
  bool calls_only = false;       // calls from Python only; operations that C++ issued are missing
  bool no_completions = false;   // for some operations, completion is unknown
  std::uint64_t unrecorded = 0;  // operations that its groups counted without a record
};

// How long a call site took before, as the rank's deadlines learned it.
struct LearnedSite {
  std::string site;
  std::uint64_t visits = 0;
  std::uint32_t absent_ms = 0, asleep_ms = 0, together_ms = 0;
  std::uint32_t false_warnings = 0, false_dumps = 0, doublings = 0;
};

struct RankEvidence {
  std::string file;
  std::string format;  // for PyTorch dumps: "torch 2.10 pickle"
  Holes holes;
  Time newest = 0;  // PyTorch dumps: latest time inside
  // PyTorch dumps: when the writer checked whether open operations had ended, by the rank's own
  // clock; 0: unknown.
  Time looked = 0;
  // How far the rank's clock was set while it ran; all times are by the clock before that.
  Time clock_set = 0;
  Time file_time = 0;  // PyTorch dumps: modification time
  Source source = Source::kDump;
  Identity id;
  std::string reason;
  Trigger trigger = Trigger::kUnknown;
  std::uint64_t incident = 0;
  Time written = 0;
  bool salvaged = false;
  Rank salvaged_by = -1;
  std::int64_t oom_kills =
      -1;  // of a dead rank: the kernel's, on its node while it ran; -1 unknown
  Salvage salvage = Salvage::kNone;  // why a peer wrote the dump
  bool process_gone = false;  // no process on this machine has that pid and start time any more
  std::vector<std::pair<std::string, std::string>> options;
  std::vector<std::pair<std::string, std::string>> layers;
  Shared<std::vector<std::string>> strings;
  Shared<std::vector<Frame>> frames;
  Shared<Stacks> stacks;
  Shared<std::vector<std::uint32_t>> shape_words;
  std::vector<GroupEvidence> groups;
  std::vector<LaneEvidence> lanes;
  std::vector<Record> records;  // by ticket
  bool has_step = false;
  std::int64_t step = 0;
  std::vector<ThreadNotes> notes;
  ExitEvidence exit;
  std::vector<PeerEvidence> peers;
  ThreadsEvidence threads;
  std::string threads_by;  // the tool that took them; "": the recorder itself
  DeviceEvidence device;
  RasEvidence ras;
  NodesEvidence nodes;
  std::vector<LearnedSite> deadlines;  // of sites that took a second or gave a false alarm
  std::vector<std::string> witness;    // statements of other tools about the job, in sentences
  Losses losses;
  std::uint64_t unreadable_rows = 0;  // of a damaged but readable file

  std::string_view text(Id i) const {
    return i < strings.size() ? std::string_view(strings[i]) : std::string_view();
  }
  std::size_t index_of(const Record& r) const {
    return static_cast<std::size_t>(&r - records.data());
  }
  // The last record that fulfils a condition; nullptr: none.
  template <typename Is>
  const Record* last_record(const Is& is) const {
    const auto it = std::find_if(records.rbegin(), records.rend(), is);
    return it == records.rend() ? nullptr : &*it;
  }
  double timeout_s() const;  // FR_TIMEOUT_S in force when this was written, else its default
};

// A place in user code. line 0: not captured.
struct Site {
  std::string file;
  std::uint32_t line = 0;
  std::string function;
  std::string within = {};  // "accelerate gather": the call into a package other than torch
  auto operator<=>(const Site&) const = default;
};

// The user's frame (format/call_site.hpp).
Site user_site(const RankEvidence&, std::uint32_t stack);
// The stack begins like that of a Python thread: not the main thread, nor a thread that the library
// started for backward passes.
bool is_of_thread(const RankEvidence&, std::uint32_t stack);
// The outermost frame of `a` in which two stacks differ; line 0: none, or a stack was not captured.
Site parting_site(const RankEvidence& a, std::uint32_t stack, const RankEvidence& b,
                  std::uint32_t other);
// "train.py:57 load_batch (in accelerate gather)"; "": not captured. Paths below the process's
// directory are relative.
std::string site_text(const Site&);

// The members passed to a call of new_group; empty: not captured.
std::vector<Rank> group_call_ranks(const RankEvidence&, const Record&);

// Describes an operation: "all_reduce [4096] Float SUM".
std::string operation_text(const RankEvidence&, const Record&);

// One tensor list of the shape words of an operation.
struct TensorShape {
  std::uint32_t dtype = 0;
  std::vector<std::uint64_t> dims;
};
struct Shape {
  bool known = false;
  std::vector<TensorShape> in, out;
  bool has_splits = false;
  std::vector<std::uint64_t> in_splits, out_splits;
};
Shape parse_shape(const RankEvidence&, const Record&);
std::string shape_text(const std::vector<TensorShape>&);

// Ranks of a group in group order; empty if not captured or out of range.
std::vector<Rank> expand(const std::vector<RankRange>&);

// "0-1,3-1023"; the list need not be sorted.
std::string fold_ranks(std::vector<Rank>);
// "rank 2", "ranks 0,1,3"
std::string ranks_words(const std::vector<Rank>&);
// "12.4 s", "350 ms"
std::string duration_text(double seconds);

}  // namespace frtrace
