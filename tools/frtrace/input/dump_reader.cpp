// The map of a dump to the model. Its grammar is libfr/format/README.md, its names are those of
// format/schema.hpp; what this reader does not know it ignores, and table columns are looked up by
// name.
#include "input/dump_reader.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "input/columns.hpp"
#include "input/threads.hpp"

namespace frtrace {

namespace {

namespace schema = fr::schema;

constexpr std::size_t kMaxTextBytes = 4096;                   // of a string; fr keeps 1024 at most
constexpr std::size_t kMaxGroups = std::size_t{1} << 16;      // fr writes 512 at most
constexpr std::size_t kMaxDeviceRows = std::size_t{1} << 16;  // of a table; fr writes 4096 at most

// ---- where columns and keys go

constexpr std::tuple kIdentity{
    Field{"job", &Identity::job},
    Field{"attempt", &Identity::attempt},
    Field{"rank", &Identity::rank},
    Field{"local_rank", &Identity::local_rank},
    Field{"world_size", &Identity::world_size},
    Field{"local_world_size", &Identity::local_world_size},
    Field{"host", &Identity::host},
    Field{"boot_id", &Identity::boot_id},
    Field{"pid", &Identity::pid},
    Field{"proc_start", &Identity::proc_start},
    Field{"run", &Identity::run},
    Field{"command", &Identity::command},
    Field{"cwd", &Identity::cwd},
    Field{"recorder", &Identity::recorder},
    Field{"n_records", &Identity::n_records},
};
static_assert(all_named(schema::kIdentity, kIdentity));

constexpr std::tuple kGroup{
    Field{"name", &GroupEvidence::name},
    Field{"desc", &GroupEvidence::desc},
    Field{"backend", &GroupEvidence::backend},
    Field{"instance", &GroupEvidence::instance},
    Field{"n_ranks", &GroupEvidence::n_ranks},
    Field{"own_rank", &GroupEvidence::own_rank},
    TimeField{"created", &GroupEvidence::created},
    TimeField{"destroyed", &GroupEvidence::destroyed},
    Field{"enqueued", &GroupEvidence::enqueued},
    TimeField{"enqueued_time", &GroupEvidence::enqueued_time},
    Field{"started", &GroupEvidence::started},
    TimeField{"started_time", &GroupEvidence::started_time},
    Field{"completed", &GroupEvidence::completed},
    TimeField{"completed_time", &GroupEvidence::completed_time},
    Field{"ended", &GroupEvidence::ended},
    Field{"failed", &GroupEvidence::failed},
    Field{"p2p_enqueued", &GroupEvidence::p2p_enqueued},
    Field{"p2p_ended", &GroupEvidence::p2p_ended},
    Field{"lifecycle", &GroupEvidence::lifecycle},
    Field{"lifecycle_ended", &GroupEvidence::lifecycle_ended},
    Field{"untracked", &GroupEvidence::untracked},
    Field{"wait_only", &GroupEvidence::wait_only},
    Field{"wait_only_ended", &GroupEvidence::wait_only_ended},
    Field{"released", &GroupEvidence::released},
    Field{"kept", &GroupEvidence::kept},
    Field{"first_kept", &GroupEvidence::first_kept},
    Field{"last_kept", &GroupEvidence::last_kept},
    Field{"overwritten", &GroupEvidence::overwritten},
    Field{"dropped", &GroupEvidence::dropped},
};
static_assert(all_named(schema::kGroups, kGroup));

constexpr std::tuple kLane{
    Field{"group", &LaneEvidence::group},
    Field{"peer", &LaneEvidence::peer},
    Field{"enqueued", &LaneEvidence::enqueued},
    TimeField{"enqueued_time", &LaneEvidence::enqueued_time},
    Field{"started", &LaneEvidence::started},
    Field{"completed", &LaneEvidence::completed},
    TimeField{"completed_time", &LaneEvidence::completed_time},
    Field{"ended", &LaneEvidence::ended},
    Field{"failed", &LaneEvidence::failed},
};
static_assert(all_named(schema::kLanes, kLane));

constexpr std::tuple kRecord{
    Field{"ticket", &Record::ticket},
    TimeField{"time", &Record::time},
    Field{"kind", &Record::kind},
    Field{"seq", &Record::seq},
    Field{"group", &Record::group},
    Field{"op", &Record::op},
    Field{"stack", &Record::stack},
    Field{"tid", &Record::tid},
    Field{"peer", &Record::peer},
    Field{"flags", &Record::flags},
    Field{"in_numel", &Record::in_numel},
    Field{"out_numel", &Record::out_numel},
    Field{"timeout_ms", &Record::timeout_ms},
    Field{"state", &Record::state},
    TimeField{"started", &Record::started},
    TimeField{"ended", &Record::ended},
    Field{"error", &Record::error},
};
static_assert(all_named(schema::kRecords, kRecord));

constexpr std::tuple kLosses{
    Field{"dropped", &Losses::dropped},
    Field{"overwritten", &Losses::overwritten},
    Field{"torn", &Losses::torn},
    Field{"status_lost", &Losses::status_lost},
    Field{"strings_lost", &Losses::strings_lost},
    Field{"stacks_lost", &Losses::stacks_lost},
    Field{"groups_lost", &Losses::groups_lost},
    Field{"groups_forgotten", &Losses::groups_forgotten},
    Field{"lanes_lost", &Losses::lanes_lost},
    Field{"no_group", &Losses::no_group},
};
static_assert(all_named(schema::kLosses, kLosses));

constexpr std::tuple kExit{
    Field{"state", &ExitEvidence::state},     Field{"status", &ExitEvidence::status},
    Field{"signal", &ExitEvidence::signal},   Field{"sender_pid", &ExitEvidence::sender_pid},
    Field{"kind", &ExitEvidence::kind},       Field{"type", &ExitEvidence::type},
    Field{"message", &ExitEvidence::message}, Field{"stack", &ExitEvidence::stack},
    TimeField{"time", &ExitEvidence::time},
};
static_assert(all_named(schema::kExit, kExit));

constexpr std::tuple kPeer{
    Field{"rank", &PeerEvidence::rank},           Field{"pid", &PeerEvidence::pid},
    Field{"state", &PeerEvidence::state},         Field{"status", &PeerEvidence::status},
    Field{"signal", &PeerEvidence::signal},       TimeField{"exit_time", &PeerEvidence::exit_time},
    Field{"last_op", &PeerEvidence::last_op},     Field{"last_site", &PeerEvidence::last_site},
    Field{"exit_site", &PeerEvidence::exit_site},
};
static_assert(all_named(schema::kPeer, kPeer));

constexpr std::tuple kComm{
    Field{"hash", &CommEvidence::hash},         Field{"group", &CommEvidence::group},
    Field{"pg_group", &CommEvidence::pg_group}, Field{"n_ranks", &CommEvidence::n_ranks},
    Field{"rank", &CommEvidence::rank},         Field{"n_nodes", &CommEvidence::n_nodes},
    Field{"name", &CommEvidence::name},         Field{"ended", &CommEvidence::ended},
    Field{"error", &CommEvidence::error},       TimeField{"error_time", &CommEvidence::error_time},
    Field{"profiled", &CommEvidence::profiled},
};
static_assert(all_named(schema::kComms, kComm));

constexpr std::tuple kOperation{
    Field{"op", &DeviceOperation::row},
    PresentField{"ticket", &DeviceOperation::has_record, &DeviceOperation::ticket},
    Field{"comm", &DeviceOperation::comm},
    Field{"state", &DeviceOperation::state},
    Field{"flags", &DeviceOperation::flags},
    Field{"stream", &DeviceOperation::stream},
    TimeField{"launching", &DeviceOperation::launching},
    TimeField{"launched", &DeviceOperation::launched},
    TimeField{"started", &DeviceOperation::started},
    Field{"channels", &DeviceOperation::channels},
    Field{"channels_started", &DeviceOperation::channels_started},
    Field{"channels_ended", &DeviceOperation::channels_ended},
    Field{"generation", &DeviceOperation::generation},
};
static_assert(all_named(schema::kOperations, kOperation));

constexpr std::tuple kPhase{
    PresentField{"ticket", &DevicePhase::has_record, &DevicePhase::ticket},
    Field{"kind", &DevicePhase::kind},
    Field{"waits_for", &DevicePhase::wait},
    Field{"channel", &DevicePhase::channel},
    Field{"peer", &DevicePhase::peer},
    Field{"step", &DevicePhase::step},
    Field{"n_steps", &DevicePhase::n_steps},
    TimeField{"time", &DevicePhase::time},
    Field{"nic", &DevicePhase::nic},
    Field{"qp", &DevicePhase::qp},
    Field{"socket", &DevicePhase::socket},
};
static_assert(all_named(schema::kPhases, kPhase));

constexpr std::tuple kDeviceLosses{
    Field{"comms_lost", &DeviceEvidence::comms_lost},
    Field{"ops_lost", &DeviceEvidence::ops_lost},
    Field{"phases_lost", &DeviceEvidence::phases_lost},
    Field{"unmatched", &DeviceEvidence::unmatched},
    Field{"threads_lost", &DeviceEvidence::threads_lost},
};
static_assert(all_named(schema::kDeviceLosses, kDeviceLosses));

constexpr std::tuple kObserver{
    Field{"call", &DeviceEvidence::observer_call},
    TimeField{"since", &DeviceEvidence::observer_since},
};
static_assert(all_named(schema::kObserver, kObserver));

constexpr std::tuple kCudaError{
    Field{"code", &DeviceFailure::code},
    Field{"name", &DeviceFailure::name},
    Field{"text", &DeviceFailure::text},
    Field{"call", &DeviceFailure::call},
    PresentField{"ticket", &DeviceFailure::has_record, &DeviceFailure::ticket},
    TimeField{"time", &DeviceFailure::time},
};
static_assert(all_named(schema::kCudaError, kCudaError));

constexpr std::tuple kRas{
    Field{"address", &RasEvidence::address}, Field{"format", &RasEvidence::format},
    Field{"answer", &RasEvidence::answer},   Field{"error", &RasEvidence::error},
    Field{"cut", &RasEvidence::cut},
};

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
      unset(e_.exit.time);
      for (PeerEvidence& p : e_.peers) {
        unset(p.exit_time);
      }
    }
  }

 private:
  void unset(Time& t) const { t -= t != 0 ? e_.clock_set : 0; }

  // By how much Unix time and the monotonic clock differ between the anchors at the start and last.
  // Times of records are counted in ticks from the start; what was read from the clock is not.
  void clock() {
    constexpr Time kSlewed = 2'000'000'000;  // less is a clock that was corrected bit by bit
    constexpr Time kLongest = Time{100} * 365 * 86400 * 1'000'000'000;
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

  // Who wrote it, when and why.
  void head() {
    const Object* identity = member(&root_, "identity");
    read_map(identity, kIdentity, times_, e_.id);
    e_.id.start = plausible(number<Time>(member(identity, "start_unix_ns")));
    e_.id.anonymous = text(member(identity, "memory")) == "anonymous";
    e_.threads = read_threads(member(&root_, "threads"), member(&root_, "thread_facts"));
    e_.reason = text(member(&root_, "reason"));
    e_.trigger = text(member(&root_, "trigger"));
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
        layer = nullptr;
      }
    }
  }

  // What ids stand for.
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
      if (const Id name = e_.frames.back().func; name < e_.strings.size()) {
        e_.strings[name] = demangled(std::move(e_.strings[name]));  // FR_STACKS=native
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

  // A dump salvaged from a dead process says nothing of the time after its death, however late it
  // was written. The last clock anchor is at most about a second older than the death.
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

  // Names that a dump holds as text (dtype, reduce op), as ids of this file's strings.
  Id intern(std::string_view s) {
    if (s.empty()) {
      return 0;
    }
    const auto [it, added] = interned_.try_emplace(s, static_cast<Id>(e_.strings.size()));
    if (added) {
      e_.strings.emplace_back(s);
    }
    return it->second;
  }

  // The same few words again and again.
  class Words {
   public:
    explicit Words(Reader& reader) : reader_(reader) {}
    Id id(std::string_view s) {
      if (s != last_) {
        last_ = s;
        id_ = reader_.intern(s);
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
        ++e_.unreadable_rows;  // damage: others count on from it
        continue;
      }
      if (r.kind == Kind::kNote) {
        r.op = intern(text(row[shape]));
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
    // Slot order is the order of the tickets, begun somewhere in the middle.
    const auto earlier = [](const Record& a, const Record& b) { return a.ticket < b.ticket; };
    const auto oldest = std::is_sorted_until(e_.records.begin(), e_.records.end(), earlier);
    std::rotate(e_.records.begin(), oldest, e_.records.end());
    if (!std::is_sorted(e_.records.begin(), e_.records.end(), earlier)) {
      std::sort(e_.records.begin(), e_.records.end(), earlier);
    }
  }

  void notes(const Object* o) {
    if (const auto step = to_int(member(o, "step"))) {
      e_.has_step = true;
      e_.step = *step;
    }
    for (const Object& thread : list(member(o, "threads"))) {
      ThreadNotes n;
      n.tid = number<std::uint32_t>(member(&thread, "tid"));
      n.note = text(member(&thread, "note"));
      n.note_time = times_(member(&thread, "note_time"));
      for (const Object& span : list(member(&thread, "spans"))) {
        const Row row(&span);
        n.spans.emplace_back(e_.text(number<Id>(row[0])), times_(row[1]));
      }
      e_.notes.push_back(std::move(n));
    }
  }

  void device(const Object* o) {
    if (!is_map(o)) {
      return;
    }
    DeviceEvidence& d = e_.device;
    d.present = true;
    d.plugin_api = number<std::uint32_t>(member(o, "plugin_api"));
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
    for (const Object& o : t.rows()) {
      const Row row(&o);
      if (row.empty() || e_.device.operations.size() >= kMaxDeviceRows) {
        continue;
      }
      DeviceOperation d;
      fields.read(row, d);
      if (is_unfinished(d)) {
        e_.device.operations.push_back(d);
      }
    }
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
  std::unordered_map<std::string_view, Id> interned_;
};

}  // namespace

void read_dump(const Object& root, RankEvidence& to) {
  Reader(root, to).read();
}

}  // namespace frtrace
