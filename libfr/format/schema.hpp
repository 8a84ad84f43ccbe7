// schema.hpp - what stands in a dump: the columns of each table and the keys of each map that has
// a fixed set of them, in order, with their names and how each follows from a region.
//
// The encoder packs these and nothing else. frtrace looks columns up by these names, the simulator
// writes under them, and tests/unit/format/test_schema.cpp compares the grammar in README.md with them: a
// name that is spelled otherwise does not compile, or fails that test.
//
// To add a column: one line here, at the end of its table (readers of earlier versions ignore it),
// its name in README.md, and where frtrace wants it a line in tools/frtrace/input/fr/dump_reader.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <span>
#include <string_view>
#include <tuple>

#include "format/codes.hpp"
#include "format/hash.hpp"
#include "format/nodes_answer.hpp"
#include "format/ras_answer.hpp"
#include "format/syscalls.hpp"
#include "format/thread_report.hpp"
#include "format/view.hpp"

namespace fr {

inline constexpr Word<Gil> kGilWords[] = {
    {Gil::kNone, ""}, {Gil::kHolds, "holds"}, {Gil::kWaits, "waits"}};
constexpr std::span<const Word<Gil>> words_of(Gil) {
  return kGilWords;
}

inline constexpr Word<Activity> kActivityWords[] = {{Activity::kUnknown, ""},
                                                    {Activity::kRunning, "running"},
                                                    {Activity::kRunnable, "runnable"},
                                                    {Activity::kPolling, "polling"},
                                                    {Activity::kAsleep, "asleep"},
                                                    {Activity::kUninterruptible, "uninterruptible"},
                                                    {Activity::kStopped, "stopped"},
                                                    {Activity::kGone, "gone"},
                                                    {Activity::kInterrupted, "interrupted"}};
constexpr std::span<const Word<Activity>> words_of(Activity) {
  return kActivityWords;
}

inline constexpr Word<Answer> kAnswerWords[] = {
    {Answer::kNotAsked, "not asked"},    {Answer::kOwn, "own"},
    {Answer::kAnswered, "answered"},     {Answer::kBlocked, "blocked"},
    {Answer::kUnanswered, "unanswered"}, {Answer::kGone, "gone"}};
constexpr std::span<const Word<Answer>> words_of(Answer) {
  return kAnswerWords;
}

}  // namespace fr

namespace fr::schema {

// ---- what a cell may hold beside integers and text

struct Ticks {  // a moment by the region's clock, packed as ns since clock.base_unix_ns; 0: nil
  u64 value;
};
struct UnixNs {  // the same, of a Unix time
  u64 value;
};
struct DeviceNs {  // the same, of the device's clock, or of the host's monotonic one
  u64 value;
  bool is_host_clock;
};
template <class T>
struct Maybe {  // nil where it is not known
  bool is_known;
  T value;
};
struct RankRuns {  // [[first, count, stride]...], nil where not captured
  std::span<const u32> words;
};
struct Shape {  // the shape words, or the text of a note; nil where not captured or overwritten
  const RecordCopy& record;
};
struct Truth {  // true or false; a bool is 1 or 0
  bool value;
};
// A list of n maps with these keys, or of n rows [cell...], of get(0) to get(n - 1). A list of
// numbers is a span.
template <class Columns, class Get>
struct Maps {
  const Columns& columns;
  u32 n;
  Get get;
};
template <class Columns, class Get>
Maps(const Columns&, u32, Get) -> Maps<Columns, Get>;
template <class Columns, class Get>
struct Rows {
  const Columns& columns;
  u32 n;
  Get get;
};
template <class Columns, class Get>
Rows(const Columns&, u32, Get) -> Rows<Columns, Get>;

template <class Get>
struct Column {
  const char* name;
  Get get;
};
template <class Get>
Column(const char*, Get) -> Column<Get>;

// ---- rows that are made of more than one structure

// Which of a group's collectives the ring still has, by seq.
struct KeptOfGroup {
  u64 kept, first, last;
  u32 records;  // of all kinds
};
struct GroupCells {
  u32 index;
  const GroupRow& row;
  std::span<const u32> ranks;
  const KeptOfGroup& kept;
  u64 overwritten;
};
struct LaneCells {
  u64 key;
  const LaneRow& row;
};
struct CommCells {
  u32 index;
  const CommRow& row;
};
struct OperationCells {
  u32 index;
  const DeviceOpCopy& op;
};
struct PhaseCells {
  explicit PhaseCells(const PhaseCopy& p)
      : phase(p),
        is_kernel(p.kind == kPhaseKernel),
        is_of_other(p.op == 0 && p.ticket != 0),
        other(handle_parts(p.ticket)) {}
  const PhaseCopy& phase;
  bool is_kernel;
  bool is_of_other;  // of another process, named by its handle
  HandleParts other;
};
struct PeerCells {
  const PeerRow& row;
  dump::Peer state;
};
// Over all groups.
struct LossCells {
  const Header& header;
  u64 records = 0;
  u64 torn = 0;
  u64 shapes_overwritten = 0;
  u64 overwritten = 0;
};
struct ExitCells {
  const ExitRecord& record;
  ExitState state;
  bool has_texts;
};
struct ObserverCells {
  const View& view;
  const Cuda& cuda;
  u32 call;
};
struct CudaErrorCells {
  const View& view;
  const Cuda& cuda;
};
// A thread's breadcrumbs, the note as it was at one moment.
struct CrumbCells {
  explicit CrumbCells(const Crumb& of) noexcept;
  const Crumb& crumb;
  u32 note[kNoteBytes / 4];
  u32 note_bytes = 0;
  u64 note_ticks = 0;
  bool is_whole = false;
  u32 depth = 0;
};
struct NotesCells {
  const Header& header;
  u64 step_ticks;  // 0: no step was said
  std::span<const Crumb* const> crumbs;
};
struct SpanCells {
  const Crumb& crumb;
  u32 i;
};
struct ThreadCells {
  const ThreadReport& all;
  const ThreadRow& row;
};
struct ChildCells {
  const ThreadReport& all;
  const ChildRow& row;
};
struct FrameCells {
  const ThreadReport& all;
  const NamedFrame& frame;
};
struct ModuleCells {
  ModuleCells(const ThreadReport& all, const ModuleRow& row) noexcept;
  const char* file;
  char build_id[2 * sizeof(ModuleRow::build_id) + 1] = "";  // in hex
};
// The variables of one frame: some that lie together in ThreadReport::variables.
struct VariablesCells {
  const ThreadReport& all;
  std::span<const VariableRow> rows;
};
struct VariableCells {
  const ThreadReport& all;
  const VariableRow& row;
};
// Those of the thread's i-th frame that has any; no rows behind the last one.
VariablesCells variables_of(const ThreadCells& t, u32 i) noexcept;
inline u32 frames_with_variables(const ThreadCells& t) noexcept {
  u32 n = 0;
  while (!variables_of(t, n).rows.empty()) {
    ++n;
  }
  return n;
}

// ---- how cells are got

// Counters are written by others meanwhile: any value that they had is good.
template <class T>
T get(const std::atomic<T>& a) noexcept {
  return a.load(std::memory_order_relaxed);
}
inline u32 longest_ms(const SiteLongest& l) noexcept {
  return std::max({get(l.ms), get(l.recent_ms[0]), get(l.recent_ms[1])});
}
template <std::size_t N>
std::string_view fixed(const char (&s)[N]) noexcept {
  return {s, strnlen(s, N)};
}

// A second text behind the first one's NUL.
template <std::size_t N>
std::string_view second(const char (&s)[N]) noexcept {
  const std::size_t from = strnlen(s, N) + 1;
  return from < N ? std::string_view{s + from, strnlen(s + from, N - from)} : std::string_view{};
}

using RecordCells = RecordCopy;

// clang-format off

// ---------------------------------------------------------------- tables

inline constexpr std::tuple kRecords{
    Column{"ticket", [](const RecordCells& r) { return r.ticket; }},
    Column{"time", [](const RecordCells& r) { return Ticks{r.payload.ticks}; }},
    Column{"kind", [](const RecordCells& r) { return word(static_cast<dump::Kind>(r.payload.kind)); }},
    Column{"seq", [](const RecordCells& r) { return static_cast<i64>(r.payload.seq); }},
    Column{"group", [](const RecordCells& r) { return r.payload.group; }},
    Column{"op", [](const RecordCells& r) { return r.payload.op; }},
    Column{"stack", [](const RecordCells& r) { return r.payload.stack; }},
    Column{"tid", [](const RecordCells& r) { return r.payload.tid; }},
    Column{"peer", [](const RecordCells& r) { return r.payload.peer; }},
    Column{"flags", [](const RecordCells& r) { return r.payload.flags; }},
    Column{"in_numel", [](const RecordCells& r) { return r.payload.in_numel; }},
    Column{"out_numel", [](const RecordCells& r) { return r.payload.out_numel; }},
    Column{"in_dtype", [](const RecordCells& r) { return dtype_name(r.payload.in_dtype); }},
    Column{"out_dtype", [](const RecordCells& r) { return dtype_name(r.payload.out_dtype); }},
    Column{"reduce_op", [](const RecordCells& r) { return reduce_op_name(r.payload.reduce_op); }},
    Column{"timeout_ms", [](const RecordCells& r) { return r.payload.timeout_ms; }},
    Column{"shape", [](const RecordCells& r) { return Shape{r}; }},
    Column{"state", [](const RecordCells& r) { return word(dump_state(r)); }},
    Column{"started", [](const RecordCells& r) { return Ticks{r.started_ticks}; }},
    Column{"ended", [](const RecordCells& r) { return Ticks{r.ended_ticks}; }},
    Column{"error", [](const RecordCells& r) { return r.error; }},
    Column{"end_tid", [](const RecordCells& r) { return r.end_tid; }},
};

inline constexpr std::tuple kGroups{
    Column{"group", [](const GroupCells& g) { return g.index; }},
    Column{"name", [](const GroupCells& g) { return get(g.row.name); }},
    Column{"desc", [](const GroupCells& g) { return get(g.row.desc); }},
    Column{"backend", [](const GroupCells& g) { return get(g.row.backend); }},
    Column{"instance", [](const GroupCells& g) { return get(g.row.instance); }},
    Column{"n_ranks", [](const GroupCells& g) { return get(g.row.n_ranks); }},
    Column{"own_rank", [](const GroupCells& g) { return get(g.row.own_rank); }},
    Column{"ranks", [](const GroupCells& g) { return RankRuns{g.ranks}; }},
    Column{"created", [](const GroupCells& g) { return Ticks{get(g.row.created_ticks)}; }},
    Column{"destroyed", [](const GroupCells& g) { return Ticks{get(g.row.destroyed_ticks)}; }},
    Column{"enqueued", [](const GroupCells& g) { return get(g.row.issued) & kSeqMask; }},
    Column{"enqueued_time", [](const GroupCells& g) { return Ticks{get(g.row.enqueued_ticks)}; }},
    Column{"started", [](const GroupCells& g) { return get(g.row.started_seq); }},
    Column{"started_time", [](const GroupCells& g) { return Ticks{get(g.row.started_ticks)}; }},
    Column{"completed", [](const GroupCells& g) { return get(g.row.completed_seq); }},
    Column{"completed_time", [](const GroupCells& g) { return Ticks{get(g.row.completed_ticks)}; }},
    Column{"ended", [](const GroupCells& g) { return get(g.row.ended); }},
    Column{"failed", [](const GroupCells& g) { return get(g.row.failed); }},
    Column{"p2p_enqueued", [](const GroupCells& g) { return get(g.row.p2p_issued); }},
    Column{"p2p_time", [](const GroupCells& g) { return Ticks{get(g.row.p2p_ticks)}; }},
    Column{"p2p_ended", [](const GroupCells& g) { return get(g.row.p2p_ended); }},
    Column{"lifecycle", [](const GroupCells& g) { return get(g.row.lifecycle_issued); }},
    Column{"lifecycle_ended", [](const GroupCells& g) { return get(g.row.lifecycle_ended); }},
    Column{"untracked", [](const GroupCells& g) { return get(g.row.untracked); }},
    Column{"wait_only", [](const GroupCells& g) { return get(g.row.wait_only); }},
    Column{"wait_only_ended", [](const GroupCells& g) { return get(g.row.wait_only_ended); }},
    Column{"released", [](const GroupCells& g) { return get(g.row.released); }},
    Column{"kept", [](const GroupCells& g) { return g.kept.kept; }},
    Column{"first_kept", [](const GroupCells& g) { return Maybe<u64>{g.kept.kept != 0, g.kept.first}; }},
    Column{"last_kept", [](const GroupCells& g) { return Maybe<u64>{g.kept.kept != 0, g.kept.last}; }},
    Column{"overwritten", [](const GroupCells& g) { return g.overwritten; }},
    Column{"dropped", [](const GroupCells& g) { return get(g.row.dropped); }},
};

inline constexpr std::tuple kLanes{
    Column{"group", [](const LaneCells& l) { return static_cast<u32>(l.key >> 33) & 0xffffff; }},
    Column{"peer", [](const LaneCells& l) { return static_cast<i64>(l.key & 0xffffffff) - 1; }},
    Column{"direction", [](const LaneCells& l) { return word((l.key >> 32 & 1) != 0 ? dump::Kind::kSend : dump::Kind::kRecv); }},
    Column{"enqueued", [](const LaneCells& l) { return get(l.row.enqueued); }},
    Column{"enqueued_time", [](const LaneCells& l) { return Ticks{get(l.row.enqueued_ticks)}; }},
    Column{"started", [](const LaneCells& l) { return get(l.row.started_seq); }},
    Column{"completed", [](const LaneCells& l) { return get(l.row.completed_seq); }},
    Column{"completed_time", [](const LaneCells& l) { return Ticks{get(l.row.completed_ticks)}; }},
    Column{"ended", [](const LaneCells& l) { return get(l.row.ended); }},
    Column{"failed", [](const LaneCells& l) { return get(l.row.failed); }},
};

inline constexpr std::tuple kComms{
    Column{"comm", [](const CommCells& c) { return c.index; }},
    Column{"hash", [](const CommCells& c) { return get(c.row.hash); }},
    Column{"group", [](const CommCells& c) { return get(c.row.group); }},
    Column{"pg_group", [](const CommCells& c) { return get(c.row.pg_group); }},
    Column{"n_ranks", [](const CommCells& c) { return get(c.row.n_ranks); }},
    Column{"rank", [](const CommCells& c) { return get(c.row.rank); }},
    Column{"n_nodes", [](const CommCells& c) { return get(c.row.n_nodes); }},
    Column{"name", [](const CommCells& c) { return get(c.row.name); }},
    Column{"ended", [](const CommCells& c) { return get(c.row.in_use) == 3; }},
    Column{"error", [](const CommCells& c) { return get(c.row.error); }},
    Column{"error_time", [](const CommCells& c) { return Ticks{get(c.row.error_ticks)}; }},
    Column{"profiled", [](const CommCells& c) { return get(c.row.is_profiled); }},
    Column{"captured", [](const CommCells& c) { return get(c.row.captured); }},
};

inline constexpr std::tuple kOperations{
    Column{"op", [](const OperationCells& o) { return o.index; }},
    Column{"ticket", [](const OperationCells& o) { return Maybe<u64>{o.op.ticket != 0, o.op.ticket - 1}; }},
    Column{"comm", [](const OperationCells& o) { return o.op.comm; }},
    Column{"state", [](const OperationCells& o) {
      const dump::DeviceState s = dump_state(o.op);
      return s == dump::DeviceState::kEnded && (o.op.flags & kDevFailed) != 0 ? "failed" : word(s);
    }},
    Column{"flags", [](const OperationCells& o) { return o.op.flags; }},
    Column{"stream", [](const OperationCells& o) { return o.op.stream; }},
    Column{"launching", [](const OperationCells& o) { return Ticks{o.op.launching_ticks}; }},
    Column{"launched", [](const OperationCells& o) { return Ticks{o.op.launched_ticks}; }},
    Column{"started", [](const OperationCells& o) { return Ticks{o.op.started_ticks}; }},
    Column{"ended", [](const OperationCells& o) { return Ticks{o.op.ended_ticks}; }},
    Column{"device_start", [](const OperationCells& o) { return DeviceNs{o.op.device_start_ns, (o.op.flags & kDevHostTimes) != 0}; }},
    Column{"device_end", [](const OperationCells& o) { return DeviceNs{o.op.device_end_ns, (o.op.flags & kDevHostTimes) != 0}; }},
    Column{"channels", [](const OperationCells& o) { return o.op.channels; }},
    Column{"channels_started", [](const OperationCells& o) { return o.op.channels_started; }},
    Column{"channels_ended", [](const OperationCells& o) { return o.op.channels_ended; }},
    Column{"transfers_started", [](const OperationCells& o) { return o.op.transfers_started; }},
    Column{"transfers_ended", [](const OperationCells& o) { return o.op.transfers_ended; }},
    Column{"algorithm", [](const OperationCells& o) { return o.op.algorithm; }},
    Column{"protocol", [](const OperationCells& o) { return o.op.protocol; }},
    Column{"parts", [](const OperationCells& o) { return o.op.parts; }},
    Column{"parts_launched", [](const OperationCells& o) { return o.op.parts_launched; }},
    // as much of it as handles hold
    Column{"generation", [](const OperationCells& o) { return o.op.claim >> 1 & 0xfffff; }},
};

inline constexpr std::tuple kPhases{
    Column{"op", [](const PhaseCells& f) { return static_cast<i64>(f.phase.op) - 1; }},
    Column{"ticket", [](const PhaseCells& f) { return Maybe<u64>{f.phase.op != 0 && f.phase.ticket != 0, f.phase.ticket - 1}; }},
    Column{"kind", [](const PhaseCells& f) { return word(dump_kind(f.phase.kind)); }},
    Column{"channel", [](const PhaseCells& f) { return f.phase.channel; }},
    Column{"peer", [](const PhaseCells& f) { return f.phase.peer; }},
    Column{"waits_for", [](const PhaseCells& f) { return word(dump_wait(f.phase)); }},
    Column{"step", [](const PhaseCells& f) { return f.phase.oldest_step(); }},
    Column{"n_steps", [](const PhaseCells& f) { return f.phase.n_steps; }},
    Column{"next_step", [](const PhaseCells& f) { return f.phase.next_step; }},
    Column{"time", [](const PhaseCells& f) { return Ticks{f.phase.ticks}; }},
    Column{"bytes", [](const PhaseCells& f) { return f.is_kernel ? 0 : f.phase.first; }},
    Column{"device_start", [](const PhaseCells& f) { return DeviceNs{f.is_kernel ? f.phase.first : 0, false}; }},
    Column{"device_end", [](const PhaseCells& f) { return DeviceNs{f.is_kernel ? f.phase.second : 0, false}; }},
    Column{"pid", [](const PhaseCells& f) { return f.phase.pid; }},
    Column{"generation", [](const PhaseCells& f) { return f.phase.claim >> 1; }},
    Column{"live", [](const PhaseCells& f) { return f.phase.is_live(); }},
    Column{"nic", [](const PhaseCells& f) { return Maybe<u32>{f.phase.net() == Net::kIb, f.phase.net_device()}; }},
    Column{"qp", [](const PhaseCells& f) { return Maybe<u32>{f.phase.net() == Net::kIb, f.phase.net_number()}; }},
    Column{"socket", [](const PhaseCells& f) { return Maybe<u32>{f.phase.net() == Net::kSocket, f.phase.net_number()}; }},
    Column{"of_process", [](const PhaseCells& f) { return Maybe<u32>{f.is_of_other, f.other.process}; }},
    Column{"of_op", [](const PhaseCells& f) { return Maybe<u32>{f.is_of_other, f.other.op}; }},
    Column{"of_generation", [](const PhaseCells& f) { return Maybe<u32>{f.is_of_other, f.other.generation}; }},
};

inline constexpr std::tuple kDeadlines{
    Column{"site", [](const SiteRow& s) { return fixed(s.text); }},
    Column{"visits", [](const SiteRow& s) { return get(s.visits); }},
    Column{"absent_ms", [](const SiteRow& s) { return longest_ms(s.absent); }},
    Column{"asleep_ms", [](const SiteRow& s) { return longest_ms(s.asleep); }},
    Column{"together_ms", [](const SiteRow& s) { return longest_ms(s.together); }},
    Column{"noted", [](const SiteRow& s) { return get(s.noted); }},
    Column{"false_warnings", [](const SiteRow& s) { return get(s.false_warnings); }},
    Column{"false_dumps", [](const SiteRow& s) { return u32{get(s.absent.false_dumps)} + get(s.asleep.false_dumps) + get(s.together.false_dumps); }},
    Column{"doublings", [](const SiteRow& s) { return u32{std::max({get(s.absent.doublings), get(s.asleep.doublings), get(s.together.doublings)})}; }},
};

// ---------------------------------------------------------------- maps

inline constexpr std::tuple kIdentity{
    Column{"job", [](const Header& h) { return fixed(h.job); }},
    Column{"attempt", [](const Header& h) { return h.attempt; }},
    Column{"rank", [](const Header& h) { return get(h.rank); }},
    Column{"local_rank", [](const Header& h) { return get(h.local_rank); }},
    Column{"world_size", [](const Header& h) { return get(h.world_size); }},
    Column{"local_world_size", [](const Header& h) { return h.local_world_size; }},
    Column{"host", [](const Header& h) { return fixed(h.host); }},
    Column{"boot_id", [](const Header& h) { return fixed(h.boot_id); }},
    Column{"pid", [](const Header& h) { return h.pid; }},
    Column{"run", [](const Header& h) { return get(h.run); }},
    Column{"start_unix_ns", [](const Header& h) { return h.start_unix_ns; }},
    Column{"proc_start", [](const Header& h) { return h.proc_start; }},
    Column{"command", [](const Header& h) { return fixed(h.command); }},
    Column{"cwd", [](const Header& h) { return fixed(h.cwd); }},
    Column{"recorder", [](const Header& h) { return fixed(h.recorder); }},
    Column{"memory", [](const Header& h) { return h.anonymous != 0 ? "anonymous" : "shm"; }},
    Column{"n_records", [](const Header& h) { return h.n_records; }},
    Column{"warned", [](const Header& h) { return UnixNs{get(h.warned_unix_ns)}; }},
    Column{"false_warnings", [](const Header& h) { return get(h.false_warnings); }},
    Column{"false_dumps", [](const Header& h) { return get(h.false_dumps); }},
};

inline constexpr std::tuple kLosses{
    Column{"dropped", [](const LossCells& l) { return get(l.header.dropped); }},
    Column{"skipped", [](const LossCells& l) { return get(l.header.skipped); }},
    Column{"overwritten", [](const LossCells& l) { return l.overwritten; }},
    Column{"torn", [](const LossCells& l) { return l.torn; }},
    Column{"shapes_overwritten", [](const LossCells& l) { return l.shapes_overwritten; }},
    Column{"status_lost", [](const LossCells& l) { return get(l.header.status_lost); }},
    Column{"strings_lost", [](const LossCells& l) { return get(l.header.strings_lost); }},
    Column{"stacks_lost", [](const LossCells& l) { return get(l.header.stacks_lost); }},
    Column{"groups_lost", [](const LossCells& l) { return get(l.header.groups_lost); }},
    Column{"groups_forgotten", [](const LossCells& l) { return get(l.header.groups_forgotten); }},
    Column{"lanes_lost", [](const LossCells& l) { return get(l.header.lanes_lost); }},
    Column{"crumbs_lost", [](const LossCells& l) { return get(l.header.crumbs_lost); }},
    Column{"no_group", [](const LossCells& l) { return get(l.header.no_group); }},
    Column{"kept", [](const LossCells& l) { return l.records; }},
};

inline constexpr std::tuple kExit{
    Column{"state", [](const ExitCells& e) { return word(e.state); }},
    Column{"status", [](const ExitCells& e) { return get(e.record.status); }},
    Column{"signal", [](const ExitCells& e) { return get(e.record.signal); }},
    Column{"sender_pid", [](const ExitCells& e) { return get(e.record.sender_pid); }},
    Column{"kind", [](const ExitCells& e) { return e.has_texts ? fixed(e.record.kind) : ""; }},
    Column{"type", [](const ExitCells& e) { return e.has_texts ? fixed(e.record.type) : ""; }},
    Column{"message", [](const ExitCells& e) { return e.has_texts ? fixed(e.record.message) : ""; }},
    Column{"stack", [](const ExitCells& e) { return get(e.record.stack); }},
    Column{"time", [](const ExitCells& e) { return UnixNs{get(e.record.time_unix_ns)}; }},
};

inline constexpr std::tuple kPeer{
    Column{"rank", [](const PeerCells& x) { return get(x.row.rank); }},
    Column{"local_rank", [](const PeerCells& x) { return get(x.row.local_rank); }},
    Column{"pid", [](const PeerCells& x) { return get(x.row.pid); }},
    Column{"state", [](const PeerCells& x) { return word(x.state); }},
    Column{"status", [](const PeerCells& x) { return get(x.row.exit_status); }},
    Column{"signal", [](const PeerCells& x) { return get(x.row.exit_signal); }},
    Column{"exit_time", [](const PeerCells& x) { return UnixNs{get(x.row.exit_unix_ns)}; }},
    Column{"dumped", [](const PeerCells& x) { return get(x.row.dumped); }},
    // written before that state is stored, so not to be read in any other
    Column{"last_op", [](const PeerCells& x) { return x.state == dump::Peer::kExitedClean ? fixed(x.row.last_op) : ""; }},
    Column{"last_site", [](const PeerCells& x) { return x.state == dump::Peer::kExitedClean ? fixed(x.row.last_site) : ""; }},
    Column{"exit_site", [](const PeerCells& x) { return x.state == dump::Peer::kExitedClean ? second(x.row.last_site) : ""; }},
};

inline constexpr std::tuple kDeviceLosses{
    Column{"comms_lost", [](const Device& d) { return get(d.comms_lost); }},
    Column{"ops_lost", [](const Device& d) { return get(d.ops_lost); }},
    Column{"phases_lost", [](const Device& d) { return get(d.phases_lost); }},
    Column{"stale_handles", [](const Device& d) { return get(d.stale_handles); }},
    Column{"foreign_handles", [](const Device& d) { return get(d.foreign_handles); }},
    Column{"unknown_events", [](const Device& d) { return get(d.unknown_events); }},
    Column{"unmatched", [](const Device& d) { return get(d.unmatched); }},
    Column{"threads_lost", [](const Device& d) { return get(d.threads_lost); }},
};
// After those, where fr watches CUDA.
inline constexpr std::tuple kCudaLosses{
    Column{"events_exhausted", [](const Cuda& c) { return get(c.exhausted); }},
    Column{"events_captured", [](const Cuda& c) { return get(c.captured); }},
    Column{"events_no_context", [](const Cuda& c) { return get(c.no_context); }},
    Column{"events_refused", [](const Cuda& c) { return get(c.refused); }},
    Column{"events_unread", [](const Cuda& c) { return get(c.unread); }},
    Column{"ends_unfollowed", [](const Cuda& c) { return get(c.unfollowed); }},
    Column{"ends_unasked", [](const Cuda& c) { return get(c.unasked); }},
    Column{"events_untied", [](const Cuda& c) { return get(c.untied); }},
};

inline constexpr std::tuple kObserver{
    Column{"tid", [](const ObserverCells& o) { return get(o.cuda.observer_tid); }},
    Column{"call", [](const ObserverCells& o) { return o.view.string(o.call); }},
    Column{"since", [](const ObserverCells& o) { return Ticks{o.call != 0 ? get(o.cuda.call_ticks) : 0}; }},
    Column{"polled", [](const ObserverCells& o) { return Ticks{get(o.cuda.polled_ticks)}; }},
    Column{"pairs", [](const ObserverCells& o) { return get(o.cuda.pairs); }},
    Column{"timed", [](const ObserverCells& o) { return get(o.cuda.timed); }},
};

inline constexpr std::tuple kCudaError{
    Column{"code", [](const CudaErrorCells& e) { return get(e.cuda.error_code); }},
    Column{"name", [](const CudaErrorCells& e) { return e.view.string(get(e.cuda.error_name)); }},
    Column{"text", [](const CudaErrorCells& e) { return e.view.string(get(e.cuda.error_text)); }},
    Column{"call", [](const CudaErrorCells& e) { return e.view.string(get(e.cuda.error_call)); }},
    Column{"ticket", [](const CudaErrorCells& e) { return Maybe<u64>{get(e.cuda.error_ticket) != 0, get(e.cuda.error_ticket) - 1}; }},
    Column{"time", [](const CudaErrorCells& e) { return Ticks{get(e.cuda.error_ticks)}; }},
    Column{"tid", [](const CudaErrorCells& e) { return get(e.cuda.error_tid); }},
    Column{"stack", [](const CudaErrorCells& e) { return get(e.cuda.error_stack); }},
};

inline constexpr std::tuple kRas{
    Column{"address", [](const RasAnswer& a) { return fixed(a.address); }},
    Column{"asked_unix_ns", [](const RasAnswer& a) { return a.asked_unix_ns; }},
    Column{"took_ns", [](const RasAnswer& a) { return a.took_ns; }},
    Column{"format", [](const RasAnswer& a) { return a.json ? "json" : "text"; }},
    Column{"answer", [](const RasAnswer& a) { return std::string_view{a.text, a.bytes}; }},
    Column{"cut", [](const RasAnswer& a) { return a.cut; }},
    Column{"error", [](const RasAnswer& a) { return a.error; }},
};

inline constexpr std::tuple kUnanswered{
    Column{"host", [](const NodesAnswer::Node& n) { return fixed(n.host); }},
    Column{"first_rank", [](const NodesAnswer::Node& n) { return Maybe<i32>{n.stride != 0, n.first_rank}; }},
    Column{"n_ranks", [](const NodesAnswer::Node& n) { return n.n_ranks; }},
    Column{"stride", [](const NodesAnswer::Node& n) { return n.stride; }},
};

inline constexpr std::tuple kNodes{
    Column{"nodes", [](const NodesAnswer& a) { return a.nodes; }},
    Column{"asked", [](const NodesAnswer& a) { return a.asked; }},
    Column{"answered", [](const NodesAnswer& a) { return a.answered; }},
    Column{"took_ns", [](const NodesAnswer& a) { return a.took_ns; }},
    Column{"unanswered", [](const NodesAnswer& a) {
      return Rows{kUnanswered, a.n_named, [&a](u32 i) -> const NodesAnswer::Node& { return a.named[i]; }};
    }},
};

// ---- notes, spans, steps

inline constexpr std::tuple kSpans{
    Column{"name", [](const SpanCells& s) { return get(s.crumb.span[s.i]); }},
    Column{"time", [](const SpanCells& s) { return Ticks{get(s.crumb.span_ticks[s.i])}; }},
};

inline constexpr std::tuple kThreadNotes{
    Column{"tid", [](const CrumbCells& c) { return get(c.crumb.tid); }},
    Column{"note", [](const CrumbCells& c) {
      return Maybe<std::string_view>{c.is_whole && c.note_bytes <= kNoteBytes, {reinterpret_cast<const char*>(c.note), c.note_bytes}};
    }},
    Column{"note_time", [](const CrumbCells& c) { return Ticks{c.is_whole ? c.note_ticks : 0}; }},
    Column{"spans", [](const CrumbCells& c) {
      return Rows{kSpans, c.depth < kSpanDepth ? c.depth : kSpanDepth, [&c](u32 i) { return SpanCells{c.crumb, i}; }};
    }},
    Column{"depth", [](const CrumbCells& c) { return c.depth; }},
};

inline constexpr std::tuple kNotes{
    Column{"step", [](const NotesCells& n) { return Maybe<i64>{n.step_ticks != 0, get(n.header.step)}; }},
    Column{"step_time", [](const NotesCells& n) { return Ticks{n.step_ticks}; }},
    Column{"threads", [](const NotesCells& n) {
      return Maps{kThreadNotes, static_cast<u32>(n.crumbs.size()), [&n](u32 i) { return CrumbCells{*n.crumbs[i]}; }};
    }},
};

// ---- threads

inline constexpr std::tuple kVariables{
    Column{"name", [](const VariableCells& v) { return v.all.text + v.row.name; }},
    Column{"value", [](const VariableCells& v) { return v.all.text + v.row.value; }},
};

inline constexpr std::tuple kFrameVariables{
    Column{"position", [](const VariablesCells& v) { return v.rows.front().frame; }},
    Column{"values", [](const VariablesCells& v) {
      return Rows{kVariables, static_cast<u32>(v.rows.size()), [&v](u32 i) { return VariableCells{v.all, v.rows[i]}; }};
    }},
};

inline constexpr std::tuple kThreads{
    Column{"tid", [](const ThreadCells& t) { return t.row.task.tid; }},
    Column{"name", [](const ThreadCells& t) { return fixed(t.row.task.name); }},
    Column{"state", [](const ThreadCells& t) { return std::string_view{&t.row.task.state, 1}; }},
    Column{"activity", [](const ThreadCells& t) { return word(t.row.interrupted ? Activity::kInterrupted : activity(t.row.task)); }},
    Column{"wchan", [](const ThreadCells& t) { return fixed(t.row.task.wchan); }},
    Column{"syscall", [](const ThreadCells& t) { return syscall_name(t.row.task.syscall); }},
    Column{"syscall_number", [](const ThreadCells& t) { return t.row.task.syscall; }},
    Column{"syscall_args", [](const ThreadCells& t) { return std::span<const u64>{t.row.task.args, t.row.task.syscall >= 0 ? 6u : 0u}; }},
    Column{"syscall_on", [](const ThreadCells& t) { return fixed(t.row.task.target); }},
    Column{"looked_ns", [](const ThreadCells& t) { return t.row.task.looked_ns; }},
    Column{"cpu_ns", [](const ThreadCells& t) { return t.row.task.cpu_ns; }},
    Column{"runqueue_ns", [](const ThreadCells& t) { return t.row.task.runqueue_ns; }},
    Column{"voluntary_switches", [](const ThreadCells& t) { return t.row.task.voluntary_switches; }},
    Column{"involuntary_switches", [](const ThreadCells& t) { return t.row.task.involuntary_switches; }},
    Column{"gil", [](const ThreadCells& t) { return word(t.row.gil); }},
    Column{"answer", [](const ThreadCells& t) { return word(t.row.answer); }},
    Column{"answer_us", [](const ThreadCells& t) { return t.row.answer_us; }},
    Column{"whole", [](const ThreadCells& t) { return Truth{t.row.whole}; }},
    Column{"handling", [](const ThreadCells& t) { return t.all.text + t.row.handling; }},
    Column{"stack", [](const ThreadCells& t) { return std::span<const u32>{t.all.stack + t.row.first_frame, t.row.n_frames}; }},
    Column{"cut", [](const ThreadCells& t) {
      return Maybe<std::array<u32, 2>>{t.row.python_cut != 0, {t.row.cut_after, t.row.python_cut}};
    }},
    Column{"variables", [](const ThreadCells& t) {
      return Rows{kFrameVariables, frames_with_variables(t), [&t](u32 i) { return variables_of(t, i); }};
    }},
};

inline constexpr std::tuple kFrames{
    Column{"kind", [](const FrameCells& f) { return f.frame.python ? "python" : "native"; }},
    Column{"function", [](const FrameCells& f) { return f.all.text + f.frame.function; }},
    Column{"file", [](const FrameCells& f) { return f.all.text + f.frame.file; }},
    Column{"line", [](const FrameCells& f) { return f.frame.line; }},
    Column{"offset", [](const FrameCells& f) { return f.frame.offset; }},
};

inline constexpr std::tuple kChildren{
    Column{"pid", [](const ChildCells& c) { return c.row.task.tid; }},
    Column{"name", [](const ChildCells& c) { return fixed(c.row.task.name); }},
    Column{"state", [](const ChildCells& c) { return std::string_view{&c.row.task.state, 1}; }},
    Column{"activity", [](const ChildCells& c) { return word(activity(c.row.task)); }},
    Column{"wchan", [](const ChildCells& c) { return fixed(c.row.task.wchan); }},
    Column{"syscall", [](const ChildCells& c) { return syscall_name(c.row.task.syscall); }},
    Column{"syscall_on", [](const ChildCells& c) { return fixed(c.row.task.target); }},
    Column{"wait_status", [](const ChildCells& c) { return c.row.wait_status; }},
    Column{"stack", [](const ChildCells& c) { return std::span<const u32>{c.all.stack + c.row.first_frame, c.row.n_frames}; }},
};

inline constexpr std::tuple kLocks{
    Column{"waits", [](const LockRow& l) { return Truth{l.waits}; }},
    Column{"kind", [](const LockRow& l) { return fixed(l.kind); }},
    Column{"holder", [](const LockRow& l) { return l.holder; }},
    Column{"holder_name", [](const LockRow& l) { return fixed(l.holder_name); }},
    Column{"inode", [](const LockRow& l) { return l.inode; }},
    Column{"file", [](const LockRow& l) { return fixed(l.file); }},
};

inline constexpr std::tuple kModules{
    Column{"file", [](const ModuleCells& m) { return m.file; }},
    Column{"build_id", [](const ModuleCells& m) { return fixed(m.build_id); }},
};

inline constexpr std::tuple kThreadFacts{
    Column{"signal", [](const ThreadReport& t) { return t.signal; }},
    Column{"not_asked", [](const ThreadReport& t) { return t.why; }},
    Column{"took_ns", [](const ThreadReport& t) { return t.took_ns; }},
    Column{"asking_ns", [](const ThreadReport& t) { return t.asking_ns; }},
    Column{"threads_lost", [](const ThreadReport& t) { return t.threads_lost; }},
    Column{"frames_lost", [](const ThreadReport& t) { return t.frames_lost; }},
    Column{"modules_lost", [](const ThreadReport& t) { return t.modules_lost; }},
    Column{"frames", [](const ThreadReport& t) { return Rows{kFrames, t.n_frames, [&t](u32 i) { return FrameCells{t, t.frames[i]}; }}; }},
    Column{"children_lost", [](const ThreadReport& t) { return t.children_lost; }},
    Column{"children", [](const ThreadReport& t) { return Maps{kChildren, t.n_children, [&t](u32 i) { return ChildCells{t, t.children[i]}; }}; }},
    Column{"locks_lost", [](const ThreadReport& t) { return t.locks_lost; }},
    Column{"locks", [](const ThreadReport& t) { return Maps{kLocks, t.n_locks, [&t](u32 i) -> const LockRow& { return t.locks[i]; }}; }},
    Column{"modules", [](const ThreadReport& t) { return Rows{kModules, t.n_modules, [&t](u32 i) { return ModuleCells{t, t.modules[i]}; }}; }},
};

// clang-format on

// ---- looking names up, while compiling

template <class... C>
constexpr bool has(const std::tuple<C...>& table, std::string_view name) {
  return std::apply([&](const auto&... c) { return ((name == c.name) || ...); }, table);
}

// Where it stands in a row; the number of columns when it is not in the table.
template <class... C>
constexpr std::size_t position(const std::tuple<C...>& table, std::string_view name) {
  std::size_t i = 0;
  std::apply([&](const auto&... c) { ((name != c.name && (++i, true)) && ...); }, table);
  return i;
}

// The name itself; one that is not in the table does not compile.
template <class... C>
consteval const char* column(const std::tuple<C...>& table, const char* name) {
  if (!has(table, name)) {
    throw "no such column";  // NOLINT: stops the compiler, never thrown
  }
  return name;
}

}  // namespace fr::schema
