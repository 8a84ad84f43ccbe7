// dump_reader.cpp - converts the map of a dump to the model. Its grammar is libfr/format/README.md,
// its names are those of format/schema.hpp. Unknown parts are ignored, and table columns are looked
// up by name.
#include "input/fr/dump_reader.hpp"

#include <algorithm>
#include <string_view>

#include "input/fr/columns.hpp"
#include "input/fr/string_ids.hpp"
#include "input/fr/threads.hpp"

namespace frtrace {

namespace {

namespace schema = fr::schema;

constexpr std::size_t kMaxTextBytes = 4096;                   // of a string; fr keeps at most 1024
constexpr std::size_t kMaxGroups = std::size_t{1} << 16;      // fr writes at most 512
constexpr std::size_t kMaxDeviceRows = std::size_t{1} << 16;  // of a table; fr writes at most 4096

// ---- destinations of columns and keys

constexpr std::tuple kIdentity{
    FR_FIELDS(Identity, job, attempt, rank, local_rank, world_size, local_world_size, host, boot_id,
              pid, proc_start, run, command, cwd, recorder, n_records),
    FR_TIMES(Identity, warned),
};
static_assert(all_named(schema::kIdentity, kIdentity));

constexpr std::tuple kGroup{
    FR_FIELDS(GroupEvidence, name, desc, backend, instance, n_ranks, own_rank, enqueued, started,
              completed, ended, failed, p2p_enqueued, p2p_ended, lifecycle, lifecycle_ended,
              untracked, wait_only, wait_only_ended, released, kept, first_kept, last_kept,
              overwritten, dropped),
    FR_TIMES(GroupEvidence, created, destroyed, enqueued_time, started_time, completed_time),
};
static_assert(all_named(schema::kGroups, kGroup));

constexpr std::tuple kLane{
    FR_FIELDS(LaneEvidence, group, peer, enqueued, started, completed, ended, failed),
    FR_TIMES(LaneEvidence, enqueued_time, completed_time),
};
static_assert(all_named(schema::kLanes, kLane));

constexpr std::tuple kRecord{
    FR_FIELDS(Record, ticket, kind, seq, group, op, stack, tid, peer, flags, in_numel, out_numel,
              timeout_ms, state, error),
    FR_TIMES(Record, time, started, ended),
};
static_assert(all_named(schema::kRecords, kRecord));

constexpr std::tuple kDeadline{
    FR_FIELDS(LearnedSite, site, visits, absent_ms, asleep_ms, together_ms, false_warnings,
              false_dumps, doublings),
};
static_assert(all_named(schema::kDeadlines, kDeadline));

constexpr std::tuple kLosses{
    FR_FIELDS(Losses, dropped, overwritten, torn, status_lost, strings_lost, stacks_lost,
              groups_lost, groups_forgotten, lanes_lost, no_group),
};
static_assert(all_named(schema::kLosses, kLosses));

constexpr std::tuple kExit{
    FR_FIELDS(ExitEvidence, state, status, signal, sender_pid, kind, type, message, stack),
    FR_TIMES(ExitEvidence, time),
};
static_assert(all_named(schema::kExit, kExit));

constexpr std::tuple kPeer{
    FR_FIELDS(PeerEvidence, rank, pid, state, status, signal, last_op, last_site, exit_site),
    FR_TIMES(PeerEvidence, exit_time),
};
static_assert(all_named(schema::kPeer, kPeer));

constexpr std::tuple kComm{
    FR_FIELDS(CommEvidence, hash, group, pg_group, n_ranks, rank, n_nodes, name, ended, error,
              profiled, captured),
    FR_TIMES(CommEvidence, error_time),
};
static_assert(all_named(schema::kComms, kComm));

constexpr std::tuple kOperation{
    FR_FIELDS(DeviceOperation, comm, state, flags, stream, channels, channels_started,
              channels_ended, transfers_started, transfers_ended, algorithm, generation),
    FR_TIMES(DeviceOperation, launching, launched, started),
    Field{"op", &DeviceOperation::row},
    PresentField{"ticket", &DeviceOperation::has_record, &DeviceOperation::ticket},
};
static_assert(all_named(schema::kOperations, kOperation));

constexpr std::tuple kDeviceSpan{
    TimeField{"device_start", &DeviceSpan::start},
    TimeField{"device_end", &DeviceSpan::end},
};
static_assert(all_named(schema::kOperations, kDeviceSpan));

constexpr std::tuple kPhase{
    FR_FIELDS(DevicePhase, kind, channel, peer, step, n_steps, nic, qp, socket),
    FR_TIMES(DevicePhase, time),
    PresentField{"ticket", &DevicePhase::has_record, &DevicePhase::ticket},
    Field{"waits_for", &DevicePhase::wait},
};
static_assert(all_named(schema::kPhases, kPhase));

constexpr std::tuple kDeviceLosses{
    FR_FIELDS(DeviceEvidence, comms_lost, ops_lost, phases_lost, unmatched, threads_lost),
};
static_assert(all_named(schema::kDeviceLosses, kDeviceLosses));

constexpr std::tuple kObserver{
    Field{"call", &DeviceEvidence::observer_call},
    TimeField{"since", &DeviceEvidence::observer_since},
};
static_assert(all_named(schema::kObserver, kObserver));

constexpr std::tuple kCudaError{
    FR_FIELDS(DeviceFailure, code, name, text, call),
    FR_TIMES(DeviceFailure, time),
    PresentField{"ticket", &DeviceFailure::has_record, &DeviceFailure::ticket},
};
static_assert(all_named(schema::kCudaError, kCudaError));

constexpr std::tuple kRas{
    FR_FIELDS(RasEvidence, address, format, answer, error, cut),
};
static_assert(all_named(schema::kRas, kRas));

constexpr std::tuple kNodes{
    FR_FIELDS(NodesEvidence, asked, took_ns),
};
static_assert(all_named(schema::kNodes, kNodes));

constexpr std::tuple kNotes{
    FR_FIELDS(ThreadNotes, tid, note),
    FR_TIMES(ThreadNotes, note_time),
};
static_assert(all_named(schema::kThreadNotes, kNotes));

class Reader {
 public:
  Reader(const Object& root, RankEvidence& to) : root_(root), e_(to) {}

  void read() {
    times_.base = plausible(number<Time>(member(member(&root_, "clock"), "base_unix_ns")));
    head();
    clock();
    tables();
    groups(Table(member(&root_, "groups")));
    lanes(Table(member(&root_, "lanes")));
    records(Table(member(&root_, "records")));
    if (const Object* ras = member(&root_, "ras"); is_map(ras)) {
      e_.ras.asked = true;
      read_map(ras, kRas, times_, e_.ras);
    }
    nodes(member(&root_, "nodes"));
    deadlines(Table(member(&root_, "deadlines")));
    notes(member(&root_, "notes"));
    read_map(member(&root_, "losses"), kLosses, times_, e_.losses);
    device(member(&root_, "device"));
    if (const Object* exit = member(&root_, "exit"); is_map(exit)) {
      e_.exit.present = true;
      read_map(exit, kExit, times_, e_.exit);
    }
    for (const Object& o : list(member(&root_, "peers"))) {
      read_map(&o, kPeer, times_, e_.peers.emplace_back());
    }
    if (e_.process_gone) {
      last_sign_of_life();
    }
    if (e_.clock_set != 0) {
      unset(e_.written);
      unset(e_.id.warned);
      unset(e_.exit.time);
      for (PeerEvidence& p : e_.peers) {
        unset(p.exit_time);
      }
    }
  }

 private:
  void unset(Time& t) const { t -= t != 0 ? e_.clock_set : 0; }

  // The change of the difference between Unix time and the monotonic clock, from the first anchor
  // to the last. Times of records are ticks counted from the start; other times were read from the
  // clock.
  void clock() {
    constexpr Time kSlewed = 2'000'000'000;  // a smaller change is gradual correction
    constexpr Time kLongest = Time{100} * 365 * 86400 * kSecond;
    const List anchors = list(member(member(&root_, "clock"), "anchors"));
    const Object* first = nullptr;
    for (const Object& o : anchors) {
      const Row a(first != nullptr ? first : &o), b(&o);
      first = first != nullptr ? first : &o;
      const Time unix_then = plausible(number<Time>(a[1])),
                 unix_now = plausible(number<Time>(b[1]));
      const auto then = number<Time>(a[2]), now = number<Time>(b[2]);
      const bool sound =
          unix_then != 0 && unix_now != 0 && then > 0 && now >= then && now - then < kLongest;
      const Time set = sound ? (unix_now - unix_then) - (now - then) : 0;
      e_.clock_set = set > kSlewed || set < -kSlewed ? set : 0;
    }
  }

  void nodes(const Object* nodes) {
    read_map(nodes, kNodes, times_, e_.nodes);
    for (const Object& o : list(member(nodes, "unanswered"))) {
      if (e_.nodes.unanswered.size() == fr::NodesAnswer::kNamed) {
        return;
      }
      const Row row(&o);
      const auto cell = [&row](const char* name) {
        return row[position(schema::kUnanswered, name)];
      };
      NodesEvidence::Silent& node = e_.nodes.unanswered.emplace_back();
      node.host = text(cell("host"));
      node.first_rank = number<Rank>(cell("first_rank"));
      node.n_ranks = number<std::uint32_t>(cell("n_ranks"));
      node.stride = number<std::uint32_t>(cell("stride"));
    }
  }

  // The process, the time and the reason of the dump.
  void head() {
    const Object* identity = member(&root_, "identity");
    read_map(identity, kIdentity, times_, e_.id);
    e_.id.start = plausible(number<Time>(member(identity, "start_unix_ns")));
    e_.id.anonymous = text(member(identity, "memory")) == "anonymous";
    e_.threads = read_threads(member(&root_, "threads"), member(&root_, "thread_facts"));
    e_.reason = text(member(&root_, "reason"));
    e_.trigger = fr::code<Trigger>(text(member(&root_, "trigger")));
    e_.incident = number<std::uint64_t>(member(&root_, "incident"));
    e_.written = plausible(number<Time>(member(&root_, "written_unix_ns")));
    if (const Object* salvage = member(&root_, "salvage"); is_map(salvage)) {
      e_.salvaged = true;
      e_.salvaged_by = number<Rank>(member(salvage, "by_rank"), -1);
      e_.salvage = fr::code<Salvage>(text(member(salvage, "why")));
      e_.oom_kills = number<std::int64_t>(member(salvage, "oom_kills"), -1);
      e_.process_gone = fr::dump::is_gone(e_.salvage);
    }
    for (const Object& o : list(member(&root_, "options"))) {
      const Row row(&o);
      e_.options.emplace_back(text(row[0]), text(row[1]));
    }
    const Object* layer = nullptr;
    for (const Object& o : List(member(&root_, "layers"), Object::kMap)) {
      if (layer == nullptr) {
        layer = &o;
      } else {
        e_.layers.emplace_back(text(layer), text(&o));
        // python/fr/fallback.py, LAYER
        e_.holes.calls_only =
            e_.holes.calls_only ||
            (e_.layers.back().first == "torch" && e_.layers.back().second.starts_with("Python"));
        layer = nullptr;
      }
    }
  }

  // The tables that ids refer to.
  void tables() {
    for (const Object& o : list(member(&root_, "strings"))) {
      e_.strings.emplace_back(text(&o).substr(0, kMaxTextBytes));
    }
    if (e_.strings.empty()) {
      e_.strings.emplace_back();
    }
    for (const Object& o : list(member(&root_, "frames"))) {
      const Row row(&o);
      e_.frames.push_back({number<Id>(row[0]), number<Id>(row[1]), number<std::uint32_t>(row[2])});
      if (const Id name = (*e_.frames).back().func; name < e_.strings.size()) {
        e_.strings.edit()[name] = demangled(e_.strings[name]);  // FR_STACKS=native
      }
    }
    std::vector<std::uint32_t> stack;
    for (const Object& o : list(member(&root_, "stacks"))) {
      stack.clear();
      for (const Object& f : list(&o)) {
        stack.push_back(number<std::uint32_t>(&f, UINT32_MAX));
      }
      e_.stacks.push_back(stack);
    }
  }

  // A dump salvaged from a dead process has no information about the time after its death, however
  // late it was written. The last clock anchor is at most about a second older than the death.
  void last_sign_of_life() {
    Time last =
        std::max(e_.exit.time,
                 plausible(number<Time>(member(member(&root_, "salvage"), "last_sign_unix_ns"))));
    for (const Object& o : list(member(member(&root_, "clock"), "anchors"))) {
      last = std::max(last, plausible(number<Time>(Row(&o)[1])));
    }
    for (const Record& r : e_.records) {
      last = std::max({last, r.time, r.ended});
    }
    if (last != 0) {
      e_.written = e_.written == 0 ? last : std::min(e_.written, last);
    }
  }

  // Interns texts from a column with few different ones.
  class Words {
   public:
    explicit Words(Reader& reader) : reader_(reader) {}
    Id id(std::string_view s) {
      if (s != last_) {
        last_ = s;
        id_ = reader_.ids_(s);
      }
      return id_;
    }

   private:
    Reader& reader_;
    std::string_view last_;
    Id id_ = 0;
  };

  void groups(const Table& t) {
    const RowReader fields(t, kGroup, times_);
    const std::size_t group = t.column(schema::column(schema::kGroups, "group"));
    const std::size_t ranks = t.column(schema::column(schema::kGroups, "ranks"));
    std::size_t i = 0;
    for (const Object& o : t.rows()) {
      const Row row(&o);
      const std::size_t position = i++;
      if (row.empty()) {
        continue;
      }
      const std::size_t index = number<std::size_t>(row[group], position);
      if (index >= kMaxGroups) {
        ++e_.unreadable_rows;
        continue;
      }
      if (index >= e_.groups.size()) {
        e_.groups.resize(index + 1);
      }
      GroupEvidence& g = e_.groups[index];
      g.used = true;
      fields.read(row, g);
      for (const Object& r : list(row[ranks])) {
        const Row range(&r);
        g.ranks.push_back({number<Rank>(range[0]), number<std::uint32_t>(range[1]),
                           number<std::int32_t>(range[2], 1)});
      }
    }
  }

  void lanes(const Table& t) {
    const RowReader fields(t, kLane, times_);
    const std::size_t direction = t.column(schema::column(schema::kLanes, "direction"));
    for (const Object& o : t.rows()) {
      if (const Row row(&o); !row.empty()) {
        LaneEvidence& lane = e_.lanes.emplace_back();
        fields.read(row, lane);
        lane.send = fr::code<Kind>(text(row[direction])) == Kind::kSend;
      }
    }
  }

  void records(const Table& t) {
    const RowReader fields(t, kRecord, times_);
    const auto column = [&](const char* name) { return t.column(name); };
    const std::size_t shape = column(schema::column(schema::kRecords, "shape"));
    const std::size_t in_dtype = column(schema::column(schema::kRecords, "in_dtype"));
    const std::size_t out_dtype = column(schema::column(schema::kRecords, "out_dtype"));
    const std::size_t reduce_op = column(schema::column(schema::kRecords, "reduce_op"));
    Words dtypes(*this), reduce_ops(*this), out_dtypes(*this);
    for (const Object& o : t.rows()) {
      const Row row(&o);
      if (row.empty()) {
        continue;
      }
      Record r;
      fields.read(row, r);
      if (r.seq >> 62 != 0) {
        ++e_.unreadable_rows;  // damage: later numbers would count from it
        continue;
      }
      if (r.kind == Kind::kNote) {
        r.op = ids_(text(row[shape]));
      }
      r.in_dtype = dtypes.id(text(row[in_dtype]));
      r.out_dtype = out_dtypes.id(text(row[out_dtype]));
      r.reduce_op = reduce_ops.id(text(row[reduce_op]));
      r.shape_first = static_cast<std::uint32_t>(e_.shape_words.size());
      for (const Object& w : list(row[shape])) {
        e_.shape_words.push_back(number<std::uint32_t>(&w));
      }
      r.shape_count = static_cast<std::uint32_t>(e_.shape_words.size()) - r.shape_first;
      if (r.shape_count == 0) {
        r.shape_first = 0;
      }
      e_.records.push_back(r);
    }
    // Slots are in the order of tickets, rotated by some number of slots.
    const auto earlier = [](const Record& a, const Record& b) { return a.ticket < b.ticket; };
    const auto oldest = std::is_sorted_until(e_.records.begin(), e_.records.end(), earlier);
    std::rotate(e_.records.begin(), oldest, e_.records.end());
    if (!std::is_sorted(e_.records.begin(), e_.records.end(), earlier)) {
      std::sort(e_.records.begin(), e_.records.end(), earlier);
    }
  }

  void notes(const Object* o) {
    if (const auto step = to_int(member(o, schema::column(schema::kNotes, "step")))) {
      e_.has_step = true;
      e_.step = *step;
    }
    for (const Object& thread : list(member(o, schema::column(schema::kNotes, "threads")))) {
      ThreadNotes& n = e_.notes.emplace_back();
      read_map(&thread, kNotes, times_, n);
      for (const Object& span :
           list(member(&thread, schema::column(schema::kThreadNotes, "spans")))) {
        const Row row(&span);
        n.spans.emplace_back(e_.text(number<Id>(row[0])), times_(row[1]));
      }
    }
  }

  void device(const Object* o) {
    if (!is_map(o)) {
      return;
    }
    DeviceEvidence& d = e_.device;
    d.present = true;
    d.plugin_api = number<std::uint32_t>(member(o, "plugin_api"));
    d.events = number<std::uint32_t>(member(o, "events"));
    d.process = number<std::uint32_t>(member(o, "process"));
    read_map(member(o, "losses"), kDeviceLosses, times_, d);
    comms(Table(member(o, "comms")));
    operations(Table(member(o, "operations")));
    phases(Table(member(o, "phases")));
    keep_unfinished(d);
    if (const Object* error = member(o, "error"); is_map(error)) {
      d.failure.present = true;
      read_map(error, kCudaError, times_, d.failure);
    }
    read_map(member(o, "observer"), kObserver, times_, d);
  }

  void deadlines(const Table& t) {
    constexpr std::uint32_t kNoted_ms = 1000;
    constexpr std::size_t kMost = 256;
    const RowReader fields(t, kDeadline, times_);
    for (const Object& o : t.rows()) {
      const Row row(&o);
      LearnedSite site;
      if (row.empty() || e_.deadlines.size() >= kMost) {
        continue;
      }
      fields.read(row, site);
      if (std::max({site.absent_ms, site.asleep_ms, site.together_ms}) >= kNoted_ms ||
          site.false_warnings + site.false_dumps != 0) {
        e_.deadlines.push_back(std::move(site));
      }
    }
  }

  void comms(const Table& t) {
    const RowReader fields(t, kComm, times_);
    const std::size_t comm = t.column(schema::column(schema::kComms, "comm"));
    for (const Object& o : t.rows()) {
      const Row row(&o);
      const std::size_t index = number<std::size_t>(row[comm], SIZE_MAX);
      if (row.empty() || index >= kMaxDeviceRows) {
        continue;
      }
      if (index >= e_.device.comms.size()) {
        e_.device.comms.resize(index + 1);
      }
      e_.device.comms[index].used = true;
      fields.read(row, e_.device.comms[index]);
    }
  }

  void operations(const Table& t) {
    const RowReader fields(t, kOperation, times_);
    const RowReader times(t, kDeviceSpan, times_);
    for (const Object& o : t.rows()) {
      const Row row(&o);
      if (row.empty() || e_.device.operations.size() >= kMaxDeviceRows) {
        continue;
      }
      DeviceOperation d;
      fields.read(row, d);
      if (is_unfinished(d)) {
        e_.device.operations.push_back(d);
      } else if (DeviceSpan span{.ticket = d.ticket}; d.has_record) {
        times.read(row, span);
        if (span.start != 0 && span.end >= span.start) {
          e_.device.spans.push_back(span);
        }
      }
    }
    // If a record has several device operations, the first one comes first.
    std::sort(e_.device.spans.begin(), e_.device.spans.end(),
              [](const DeviceSpan& a, const DeviceSpan& b) {
                return std::tie(a.ticket, a.start) < std::tie(b.ticket, b.start);
              });
  }

  void phases(const Table& t) {
    const RowReader fields(t, kPhase, times_);
    const std::size_t op = t.column(schema::column(schema::kPhases, "op"));
    const std::size_t live = t.column(schema::column(schema::kPhases, "live"));
    const std::size_t pid = t.column(schema::column(schema::kPhases, "pid"));
    const std::size_t of_process = t.column(schema::column(schema::kPhases, "of_process"));
    const std::size_t of_op = t.column(schema::column(schema::kPhases, "of_op"));
    const std::size_t of_generation = t.column(schema::column(schema::kPhases, "of_generation"));
    for (const Object& o : t.rows()) {
      const Row row(&o);
      const bool own = number<std::int64_t>(row[op], -1) >= 0;
      if (row.empty() || number<int>(row[live]) == 0 || (!own && !to_int(row[of_op])) ||
          e_.device.phases.size() + e_.device.carried.size() >= kMaxDeviceRows) {
        continue;
      }
      DevicePhase p;
      fields.read(row, p);
      p.row = number<std::uint32_t>(own ? row[op] : row[of_op]);
      if (own) {
        e_.device.phases.push_back(p);
      } else {
        e_.device.carried.push_back({p, number<int>(row[pid]),
                                     number<std::uint32_t>(row[of_process]),
                                     number<std::uint32_t>(row[of_generation])});
      }
    }
  }

  const Object& root_;
  RankEvidence& e_;
  DumpTimes times_;
  StringIds ids_{e_.strings.edit()};  // for names that a dump holds as text: dtype, reduce op
};

}  // namespace

void read_dump(const Object& root, RankEvidence& to) {
  Reader(root, to).read();
}

}  // namespace frtrace
