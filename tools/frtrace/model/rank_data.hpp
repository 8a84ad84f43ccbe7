// rank_data.hpp - the one model: what one file says about one rank, whatever the file's format.
//
// loaders -> RankEvidence -> Case (job.hpp) -> Report (diagnose.hpp) -> text, JSON, table
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

// What a file claims as a time, 0 when it is none: sums and differences of times never overflow.
inline Time plausible(Time t) {
  return t > 0 && t < (Time{1} << 62) ? t : 0;
}

inline double seconds_between(Time from, Time to) {
  return static_cast<double>(to - from) * 1e-9;
}

enum class Source : std::uint8_t { kDump, kRing, kLiveRing };

// The codes of a dump, their words in format/codes.hpp.
using Kind = fr::dump::Kind;
using State = fr::dump::State;
using Salvage = fr::dump::Salvage;
using Trigger = fr::dump::Trigger;
using ExitBy = fr::dump::ExitBy;
using PeerState = fr::dump::Peer;
using DeviceState = fr::dump::DeviceState;
using PhaseKind = fr::dump::PhaseKind;
using PhaseWait = fr::dump::PhaseWait;

// Bits of Record::flags that matter here.
inline constexpr std::uint16_t kAsync = FR_ASYNC;
inline constexpr std::uint16_t kWaitOnly = FR_WAIT_ONLY;
inline constexpr std::uint16_t kUntracked = FR_UNTRACKED;

struct Frame {
  Id file = 0;
  Id func = 0;
  std::uint32_t line = 0;
};

// Stacks of frame indices, innermost first; in two blocks, as every rank has dozens of them.
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
  std::vector<std::uint32_t> ends_;  // in words_, of each stack
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
  Id op = 0;                // of a note: its text
  std::uint32_t stack = 0;
  std::uint32_t tid = 0;
  std::int32_t peer = -1;
  std::uint32_t timeout_ms = 0;
  std::uint32_t batch = 0;        // number of the batch of sends and receives; 0: by itself
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
  std::int32_t n_ranks = 0;      // 0 unknown
  std::int32_t own_rank = -1;
  std::vector<RankRange> ranks;  // in group order; empty: not captured
  Time created = 0;
  Time destroyed = 0;
  // Frontiers of the collectives: exact whatever the ring has forgotten.
  std::uint64_t enqueued = 0, started = 0, completed = 0, ended = 0, failed = 0;
  Time enqueued_time = 0, started_time = 0, completed_time = 0;
  std::uint64_t p2p_enqueued = 0, p2p_ended = 0;
  std::uint64_t lifecycle = 0, lifecycle_ended = 0;
  std::uint64_t untracked = 0, wait_only = 0, wait_only_ended = 0, released = 0;
  // What the ring still holds.
  std::uint64_t kept = 0, first_kept = 0, last_kept = 0, overwritten = 0, dropped = 0;
};

struct LaneEvidence {
  std::uint32_t group = 0;
  std::int32_t peer = -1;  // rank within the group
  bool send = false;
  bool relative = false;            // counted from the oldest that the window holds
  bool guessed = false;             // and nothing tells which message of the other end that is
  std::uint64_t newest_number = 0;  // PyTorch's number of the newest, of the group's messages
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

// ---- what the communication library (NCCL) says of a rank's work on its device

struct CommEvidence {
  bool used = false;
  bool ended = false;
  bool profiled = false;
  std::uint64_t hash = 0;      // the same on all its ranks; 0 unknown
  std::uint32_t group = 0;     // row of its own group; 0: all its work is a framework's
  std::uint32_t pg_group = 0;  // row of the framework's group it works for, 0 unknown
  std::int32_t n_ranks = 0;
  std::int32_t rank = -1;
  std::uint32_t n_nodes = 0;   // 0 unknown
  std::uint32_t captured = 0;  // operations that graphs have captured
  Id name = 0;
  Id error = 0;  // its first asynchronous error
  Time error_time = 0;
};

// Bits of a device operation's flags.
inline constexpr std::uint32_t kDeviceP2p = fr::kDevP2p;
inline constexpr std::uint32_t kDeviceUnseen = fr::kDevUnseen;  // its end is not told
inline constexpr std::uint32_t kDeviceTimed = fr::kDevTimed;  // CUDA events tell its start and end

struct DeviceOperation {
  std::uint32_t row = 0;
  std::uint32_t comm = 0;
  bool has_record = false;
  std::uint64_t ticket = 0;
  DeviceState state = DeviceState::kUnknown;
  std::uint32_t flags = 0;
  std::uint64_t stream = 0;  // 0: the default one, or unknown
  Time launching = 0, launched = 0, started = 0;
  std::uint32_t channels = 0, channels_started = 0, channels_ended = 0;
  std::uint32_t transfers_started = 0, transfers_ended = 0;
  std::uint32_t algorithm = 0;                     // string
  std::uint32_t generation = 0;                    // of the row
  std::uint32_t phase_first = 0, phase_count = 0;  // into DeviceEvidence::phases
};

struct DevicePhase {
  std::uint32_t row = 0;  // of its operation, in the process that has it
  bool has_record = false;
  std::uint64_t ticket = 0;
  PhaseKind kind = PhaseKind::kOther;
  PhaseWait wait = PhaseWait::kOther;
  std::uint32_t channel = 0;
  std::int32_t peer = -1;  // rank of the communicator
  std::uint32_t step = 0, n_steps = 0;
  Time time = 0;                                // of its last change
  std::int64_t nic = -1, qp = -1, socket = -1;  // -1: not told
  int carrier = -1;  // evidence of the process that runs it; -1: the operation's own
};

// A transfer that this process runs for an operation of another one of its node (PXN).
struct CarriedPhase {
  DevicePhase phase;
  int pid = 0;
  std::uint32_t process = 0;     // as DeviceEvidence::process
  std::uint32_t generation = 0;  // of the operation's row
};
std::string over_text(const DevicePhase&);  // "NIC 0, queue pair 77", "socket 12"; "" not told

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
  std::uint32_t events = 0;      // bits of those that fr asked NCCL for; 0 not told
  std::uint32_t process = 0;     // a number that NCCL knows its process by; 0 not told
  std::uint64_t comms_lost = 0, ops_lost = 0, phases_lost = 0, unmatched = 0, threads_lost = 0;
  std::vector<CommEvidence> comms;  // by row
  std::vector<DeviceSpan> spans;    // by ticket
  // Of all else only what has not ended, and what is live of it.
  std::vector<DeviceOperation> operations;  // as they were issued
  std::vector<DevicePhase> phases;
  std::vector<CarriedPhase> carried;
  DeviceFailure failure;
  std::string observer_call;  // CUDA function that fr's own thread is in; "" none
  Time observer_since = 0;
};

bool is_unfinished(const DeviceOperation&);
// Drops what has ended and gives each operation its phases.
void keep_unfinished(DeviceEvidence&);

// NCCL's RAS service, as asked by this rank.
struct RasEvidence {
  bool asked = false;
  std::string address, format, answer, error;  // error "": none
  bool cut = false;
};

// Which other nodes this rank told of the incident (libfr/net).
struct NodesEvidence {
  struct Silent {
    std::string host;
    Rank first_rank = -1;
    std::uint32_t n_ranks = 0, stride = 0;  // stride 0: which ranks is not known
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
  int world_size = 0;  // 0 unknown
  int local_world_size = 0;
  int pid = 0;
  std::uint64_t proc_start = 0;
  std::uint64_t run = 0;  // the same on all ranks of one run of the job; 0 unknown
  Time start = 0;
  Time warned = 0;  // when a stall was last worth a warning; 0 none
  bool anonymous = false;
  std::uint64_t n_records = 0;
};

struct Losses {
  std::uint64_t dropped = 0, overwritten = 0, torn = 0, status_lost = 0, strings_lost = 0,
                stacks_lost = 0, groups_lost = 0, lanes_lost = 0, no_group = 0;
  std::uint64_t groups_forgotten = 0;  // destroyed ones whose row another group has now
  std::uint64_t cut = 0;               // records behind the end of a ring that was cut off
  std::uint64_t trimmed = 0;  // records not kept in memory; the file has them (load_window.hpp)

  // Whether a group that the rank does not list may be one that it had.
  bool may_have_had_other_groups() const { return groups_lost != 0 || groups_forgotten != 0; }
};

// What a format, or the moment it was written, could not say. Of fr's own files nothing is set.
struct Holes {
  bool only_active = false;  // completed operations are not in it
  bool no_stacks = false;
  bool no_status = false;     // no frontiers beside the records: taken from what the window holds
  bool no_members = false;    // members of groups inferred from the ranks that appear
  bool no_p2p = false;        // sends and receives happened that it does not record
  bool relative_p2p = false;  // numbers of sends and receives count from the window, not from 1
  bool frontier_inferred = false;   // a frontier follows from what other ranks still wait for
  bool failure_inferred = false;    // a failed operation follows from who never came to it
  bool run_by_clock = false;        // only times tell its run from an earlier one's files
  bool rank_from_name = false;      // the rank stands in the file's name only
  bool truncated = false;           // cut off in the middle: what comes after is unknown
  bool frontiers_at_least = false;  // lower bounds: it may have issued more than it shows
  bool written_guessed = false;     // nothing tells when it was written: no duration means anything
  bool from_log = false;            // lines of a log: operations in NCCL's call are not counted
  bool only_stacks = false;         // of another tool: where threads are, and no operation
  bool may_wait = false;  // such, of a thread that may be in an operation, or wait for one
  bool reduced = false;   // from a summary, which leaves things out (input/summary/shorten.hpp)
  std::uint64_t truncated_at = 0;  // records before the cut
  bool only_times = false;         // of a profiler: who came when, and nothing of a hang
  bool calls_only = false;         // what Python called; what C++ issued by itself is not in it
  bool no_completions = false;     // of some operations it cannot tell whether they completed
  std::uint64_t unrecorded = 0;    // operations that its groups counted and it does not hold
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
  std::string format;  // of PyTorch dumps: "torch 2.10 pickle"
  Holes holes;
  Time newest = 0;  // PyTorch dumps: latest time inside
  // PyTorch dumps: when their writer looked whether what had not ended before has, by the rank's own
  // clock; 0 unknown.
  Time looked = 0;
  // The rank's clock was set by so much while it ran; all its times are by the clock as it was.
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
  bool process_gone = false;  // no process with that pid and start time on this machine any more
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
  std::string threads_by;  // the tool that took them; "" the recorder itself
  DeviceEvidence device;
  RasEvidence ras;
  NodesEvidence nodes;
  std::vector<LearnedSite> deadlines;  // of sites that took a second or gave a false alarm
  std::vector<std::string> witness;    // what other tools say of the job, in sentences
  Losses losses;
  std::uint64_t unreadable_rows = 0;  // of a damaged but readable file

  std::string_view text(Id i) const {
    return i < strings.size() ? std::string_view(strings[i]) : std::string_view();
  }
  std::size_t index_of(const Record& r) const {
    return static_cast<std::size_t>(&r - records.data());
  }
  // The last record that is so; nullptr: none.
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
  std::string within = {};  // "accelerate gather": what it called of a package other than torch
  auto operator<=>(const Site&) const = default;
};

// The user's frame (format/call_site.hpp).
Site user_site(const RankEvidence&, std::uint32_t stack);
// The stack begins where a thread of Python's does: not the main one, nor one that the library started
// for backward passes.
bool is_of_thread(const RankEvidence&, std::uint32_t stack);
// The outermost frame of `a` in which two stacks differ; line 0: in none, or one was not captured.
Site parting_site(const RankEvidence& a, std::uint32_t stack, const RankEvidence& b,
                  std::uint32_t other);
// "train.py:57 load_batch (in accelerate gather)", "" when not captured. Paths below the process's
// directory lose it.
std::string site_text(const Site&);

// The members that a call of new_group named; empty: not captured.
std::vector<Rank> group_call_ranks(const RankEvidence&, const Record&);

// Words for one operation: "all_reduce [4096] Float SUM".
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

// Ranks of a group in group order; empty when not captured or absurd.
std::vector<Rank> expand(const std::vector<RankRange>&);

// "0-1,3-1023" of a sorted or unsorted list.
std::string fold_ranks(std::vector<Rank>);
// "rank 2", "ranks 0,1,3"
std::string ranks_words(const std::vector<Rank>&);
// "12.4 s", "350 ms"
std::string duration_text(double seconds);

}  // namespace frtrace
