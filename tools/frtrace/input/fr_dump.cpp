// Dumps: a zstd frame around one msgpack map. The grammar is in libfr/format/README.md; this reader
// ignores what it does not know, looks table columns up by name, and believes no length before
// checking it.
#include <zstd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <msgpack.hpp>
#include <optional>
#include <unordered_map>

#include "input/files.hpp"
#include "input/threads.hpp"

namespace frtrace {

namespace {

constexpr std::size_t kMaxDumpBytes = std::size_t{512} << 20;  // decompressed
constexpr std::size_t kMaxElements = std::size_t{1} << 23;
constexpr std::size_t kMaxDepth = 16;
constexpr std::size_t kMaxDeviceRows = std::size_t{1} << 16;  // of a table; fr writes 4096 at most

// One element of the input, in its order. The children of a container come right after it.
struct Object {
  enum Type : std::uint8_t { kOther, kInt, kText, kArray, kMap } type = kOther;
  std::uint32_t size = 0;  // of a text; of a container: elements to the one after it
  union {
    std::int64_t i = 0;
    const char* s;
  };
  bool is_container() const { return type >= kArray; }
};

const Object* after(const Object* o) {
  return o + (o->is_container() ? o->size : 1);
}

// msgpack-c's parser, to a flat list of elements: no allocation per element, and what stands
// before a cut stays readable.
class Tape : public msgpack::null_visitor {
 public:
  explicit Tape(std::vector<Object>& to) : to_(to) {}

  bool visit_nil() { return add({}); }
  bool visit_boolean(bool v) { return integer(v ? 1 : 0); }
  bool visit_positive_integer(std::uint64_t v) { return integer(static_cast<std::int64_t>(v)); }
  bool visit_negative_integer(std::int64_t v) { return integer(v); }
  bool visit_float32(float) { return add({}); }
  bool visit_float64(double) { return add({}); }
  bool visit_ext(const char*, std::uint32_t) { return add({}); }
  bool visit_str(const char* s, std::uint32_t size) {
    Object o;
    o.type = Object::kText;
    o.size = size;
    o.s = s;
    return add(o);
  }
  bool visit_bin(const char* s, std::uint32_t size) { return visit_str(s, size); }
  bool start_array(std::uint32_t) { return open(Object::kArray); }
  bool start_map(std::uint32_t) { return open(Object::kMap); }
  bool end_array() { return close(); }
  bool end_map() { return close(); }
  void insufficient_bytes(std::size_t, std::size_t) { cut_ = true; }

  bool cut() const { return cut_; }
  bool empty() const { return size_ == 0; }
  // After a cut: drops the row of a table that is not whole, closes what holds it.
  void close_all() {
    constexpr std::size_t kRowDepth = 3;  // in the rows of a table of the root
    if (open_.size() > kRowDepth) {
      size_ = open_[kRowDepth];
      open_.resize(kRowDepth);
    }
    while (!open_.empty()) {
      close();
    }
  }

 private:
  bool add(const Object& o) {
    if (size_ == to_.size()) {
      if (size_ >= kMaxElements) {
        return false;
      }
      to_.resize(std::max<std::size_t>(4096, 2 * size_));  // stays from file to file
    }
    to_[size_++] = o;
    return true;
  }
  bool integer(std::int64_t v) {
    Object o;
    o.type = Object::kInt;
    o.i = v;
    return add(o);
  }
  bool open(Object::Type type) {
    if (open_.size() >= kMaxDepth) {
      return false;
    }
    open_.push_back(size_);
    Object o;
    o.type = type;
    return add(o);
  }
  bool close() {
    to_[open_.back()].size = static_cast<std::uint32_t>(size_ - open_.back());
    open_.pop_back();
    return true;
  }

  std::vector<Object>& to_;
  std::size_t size_ = 0;
  std::vector<std::size_t> open_;
  bool cut_ = false;
};

// --- tolerant access: the wrong type reads as absent

std::optional<std::int64_t> to_int(const Object* o) {
  return o != nullptr && o->type == Object::kInt ? std::optional(o->i) : std::nullopt;
}

template <class T>
T number(const Object* o, T fallback = T{}) {
  return o != nullptr && o->type == Object::kInt ? static_cast<T>(o->i) : fallback;
}

std::string_view text(const Object* o) {
  return o != nullptr && o->type == Object::kText ? std::string_view(o->s, o->size)
                                                  : std::string_view();
}

// The children of an array, of a map its keys and values in turn.
class List {
 public:
  List() = default;
  List(const Object* o, Object::Type type) {
    if (o != nullptr && o->type == type) {
      first_ = o + 1;
      last_ = o + o->size;
    }
  }
  struct Iterator {
    const Object* at;
    const Object& operator*() const { return *at; }
    Iterator& operator++() {
      at = after(at);
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at != other.at; }
  };
  Iterator begin() const { return {first_}; }
  Iterator end() const { return {last_}; }
  bool empty() const { return first_ == last_; }

 private:
  const Object* first_ = nullptr;
  const Object* last_ = nullptr;
};

List list(const Object* o) {
  return {o, Object::kArray};
}

// A short array by position.
class Row {
 public:
  explicit Row(const Object* o) {
    for (const Object& cell : list(o)) {
      if (size_ == cells_.size()) {
        break;  // columns of a future version: nobody asks for them
      }
      cells_[size_++] = &cell;
    }
  }
  const Object* operator[](std::size_t i) const { return i < size_ ? cells_[i] : nullptr; }
  bool empty() const { return size_ == 0; }

 private:
  std::size_t size_ = 0;
  std::array<const Object*, 64> cells_;
};

const Object* member(const Object* o, std::string_view key) {
  const Object* k = nullptr;
  for (const Object& item : List(o, Object::kMap)) {
    if (k == nullptr) {
      k = &item;
    } else if (text(k) == key) {
      return &item;
    } else {
      k = nullptr;
    }
  }
  return nullptr;
}

bool is_map(const Object* o) {
  return o != nullptr && o->type == Object::kMap;
}

class Table {
 public:
  explicit Table(const Object* o) : rows_(list(member(o, "rows"))) {
    std::size_t i = 0;
    for (const Object& field : list(member(o, "fields"))) {
      columns_.emplace(text(&field), i++);
    }
  }
  List rows() const { return rows_; }
  // Column number, or one past every row when the table has no such column.
  std::size_t column(std::string_view name) const {
    const auto it = columns_.find(name);
    return it == columns_.end() ? SIZE_MAX : it->second;
  }

 private:
  List rows_;
  std::unordered_map<std::string_view, std::size_t> columns_;
};

Kind kind_of(std::string_view s) {
  static constexpr std::pair<std::string_view, Kind> kNames[] = {{"collective", Kind::kCollective},
                                                                 {"send", Kind::kSend},
                                                                 {"recv", Kind::kRecv},
                                                                 {"lifecycle", Kind::kLifecycle},
                                                                 {"note", Kind::kNote},
                                                                 {"span", Kind::kSpan},
                                                                 {"step", Kind::kStep}};
  for (const auto& [name, kind] : kNames) {
    if (name == s) {
      return kind;
    }
  }
  return Kind::kOther;
}

State state_of(std::string_view s) {
  static constexpr std::pair<std::string_view, State> kNames[] = {
      {"enqueued", State::kEnqueued},   {"started", State::kStarted},
      {"waiting", State::kWaiting},     {"idle", State::kIdle},
      {"completed", State::kCompleted}, {"failed", State::kFailed},
      {"released", State::kReleased}};
  for (const auto& [name, state] : kNames) {
    if (name == s) {
      return state;
    }
  }
  return State::kUnknown;
}

DeviceState device_state_of(std::string_view s) {
  static constexpr std::pair<std::string_view, DeviceState> kNames[] = {
      {"scheduled", DeviceState::kScheduled}, {"launching", DeviceState::kLaunching},
      {"launched", DeviceState::kLaunched},   {"started", DeviceState::kStarted},
      {"completed", DeviceState::kEnded},     {"failed", DeviceState::kEnded}};
  for (const auto& [name, state] : kNames) {
    if (name == s) {
      return state;
    }
  }
  return DeviceState::kUnknown;
}

PhaseKind phase_kind_of(std::string_view s) {
  return s == "kernel" ? PhaseKind::kKernel
         : s == "send" ? PhaseKind::kSend
         : s == "recv" ? PhaseKind::kRecv
                       : PhaseKind::kOther;
}

PhaseWait phase_wait_of(std::string_view s) {
  static constexpr std::pair<std::string_view, PhaseWait> kNames[] = {
      {"running", PhaseWait::kRunning},
      {"idle", PhaseWait::kIdle},
      {"posted", PhaseWait::kPosted},
      {"own_kernel", PhaseWait::kOwnKernel},
      {"peer_credit", PhaseWait::kPeerCredit},
      {"in_flight", PhaseWait::kInFlight},
      {"data", PhaseWait::kData},
      {"flush", PhaseWait::kFlush},
      {"own_kernel_takes", PhaseWait::kOwnKernelTakes}};
  for (const auto& [name, wait] : kNames) {
    if (name == s) {
      return wait;
    }
  }
  return PhaseWait::kOther;
}

// What read_threads() needs.
struct ThreadAccess {
  using Object = frtrace::Object;
  static const Object* member(const Object* o, std::string_view key) {
    return frtrace::member(o, key);
  }
  static std::string_view text(const Object* o) { return frtrace::text(o); }
  static std::int64_t integer(const Object* o) { return number<std::int64_t>(o); }
  static bool is_map(const Object* o) { return frtrace::is_map(o); }
  template <class Fn>
  static void each(const Object* o, Fn fn) {
    for (const Object& element : list(o)) {
      fn(&element);
    }
  }
};

class Reader {
 public:
  Reader(const Object& root, RankEvidence& to) : root_(root), e_(to) {}

  void read() {
    base_ = plausible(number<Time>(member(member(&root_, "clock"), "base_unix_ns")));
    identity(member(&root_, "identity"));
    e_.threads =
        read_threads<ThreadAccess>(member(&root_, "threads"), member(&root_, "thread_facts"));
    e_.reason = text(member(&root_, "reason"));
    e_.trigger = text(member(&root_, "trigger"));
    e_.incident = number<std::uint64_t>(member(&root_, "incident"));
    e_.written = plausible(number<Time>(member(&root_, "written_unix_ns")));
    if (const Object* salvage = member(&root_, "salvage"); is_map(salvage)) {
      e_.salvaged = true;
      e_.salvaged_by = number<Rank>(member(salvage, "by_rank"), -1);
      e_.salvage_why = text(member(salvage, "why"));
      e_.oom_kills = number<std::int64_t>(member(salvage, "oom_kills"), -1);
      e_.process_gone = e_.salvage_why == "dead" || e_.salvage_why == "left over";
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
    for (const Object& o : list(member(&root_, "strings"))) {
      e_.strings.emplace_back(text(&o));
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
    for (const Object& o : list(member(&root_, "stacks"))) {
      std::vector<std::uint32_t> stack;
      for (const Object& f : list(&o)) {
        stack.push_back(number<std::uint32_t>(&f, UINT32_MAX));
      }
      e_.stacks.push_back(stack);
    }
    groups(Table(member(&root_, "groups")));
    lanes(Table(member(&root_, "lanes")));
    records(Table(member(&root_, "records")));
    ras(member(&root_, "ras"));
    notes(member(&root_, "notes"));
    losses(member(&root_, "losses"));
    device(member(&root_, "device"));
    exit(member(&root_, "exit"));
    peers(list(member(&root_, "peers")));
    if (e_.process_gone) {
      last_sign_of_life();
    }
  }

 private:
  Time time(const Object* o) const {
    const std::optional<std::int64_t> v = to_int(o);
    constexpr Time kYear = Time{366} * 86'400 * 1'000'000'000;
    return v && *v > -kYear && *v < 10 * kYear ? plausible(base_ + *v) : 0;
  }

  // A dump salvaged from a dead process says nothing of the time after its death, however late it
  // was written. The last clock anchor is at most about a second older than the death.
  void last_sign_of_life() {
    Time last = e_.exit.time;
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

  void identity(const Object* o) {
    Identity& id = e_.id;
    id.job = text(member(o, "job"));
    id.host = text(member(o, "host"));
    id.boot_id = text(member(o, "boot_id"));
    id.command = text(member(o, "command"));
    id.cwd = text(member(o, "cwd"));
    id.recorder = text(member(o, "recorder"));
    id.attempt = number<int>(member(o, "attempt"));
    id.rank = number<Rank>(member(o, "rank"), -1);
    id.local_rank = number<int>(member(o, "local_rank"), -1);
    id.world_size = number<int>(member(o, "world_size"));
    id.local_world_size = number<int>(member(o, "local_world_size"));
    id.pid = number<int>(member(o, "pid"));
    id.proc_start = number<std::uint64_t>(member(o, "proc_start"));
    id.start = plausible(number<Time>(member(o, "start_unix_ns")));
    id.anonymous = text(member(o, "memory")) == "anonymous";
    id.n_records = number<std::uint64_t>(member(o, "n_records"));
  }

  void groups(const Table& t) {
    const auto c = [&](const char* name) { return t.column(name); };
    const std::size_t group = c("group"), name = c("name"), desc = c("desc"),
                      backend = c("backend"), instance = c("instance"), n_ranks = c("n_ranks"),
                      own_rank = c("own_rank"), ranks = c("ranks"), created = c("created"),
                      destroyed = c("destroyed"), enqueued = c("enqueued"),
                      enqueued_time = c("enqueued_time"), started = c("started"),
                      started_time = c("started_time"), completed = c("completed"),
                      completed_time = c("completed_time"), ended = c("ended"),
                      failed = c("failed"), p2p_enqueued = c("p2p_enqueued"),
                      p2p_ended = c("p2p_ended"), lifecycle = c("lifecycle"),
                      lifecycle_ended = c("lifecycle_ended"), untracked = c("untracked"),
                      wait_only = c("wait_only"), wait_only_ended = c("wait_only_ended"),
                      released = c("released"), kept = c("kept"), first_kept = c("first_kept"),
                      last_kept = c("last_kept"), overwritten = c("overwritten"),
                      dropped = c("dropped");
    std::size_t i = 0;
    for (const Object& o : t.rows()) {
      const Row row(&o);
      const std::size_t position = i++;
      if (row.empty()) {
        continue;
      }
      const auto at = [&](std::size_t column) { return row[column]; };
      const auto u64 = [&](std::size_t column) { return number<std::uint64_t>(at(column)); };
      const std::size_t index = number<std::size_t>(at(group), position);
      if (index > kMaxElements) {
        ++e_.unreadable_rows;
        continue;
      }
      if (index >= e_.groups.size()) {
        e_.groups.resize(index + 1);
      }
      GroupEvidence& g = e_.groups[index];
      g.used = true;
      g.name = number<Id>(at(name));
      g.desc = number<Id>(at(desc));
      g.backend = number<Id>(at(backend));
      g.instance = number<std::uint32_t>(at(instance), 1);
      g.n_ranks = number<std::int32_t>(at(n_ranks));
      g.own_rank = number<std::int32_t>(at(own_rank), -1);
      for (const Object& r : list(at(ranks))) {
        const Row range(&r);
        g.ranks.push_back({number<Rank>(range[0]), number<std::uint32_t>(range[1]),
                           number<std::int32_t>(range[2], 1)});
      }
      g.created = time(at(created));
      g.destroyed = time(at(destroyed));
      g.enqueued = u64(enqueued);
      g.started = u64(started);
      g.completed = u64(completed);
      g.ended = u64(ended);
      g.failed = u64(failed);
      g.enqueued_time = time(at(enqueued_time));
      g.started_time = time(at(started_time));
      g.completed_time = time(at(completed_time));
      g.p2p_enqueued = u64(p2p_enqueued);
      g.p2p_ended = u64(p2p_ended);
      g.lifecycle = u64(lifecycle);
      g.lifecycle_ended = u64(lifecycle_ended);
      g.untracked = u64(untracked);
      g.wait_only = u64(wait_only);
      g.wait_only_ended = u64(wait_only_ended);
      g.released = u64(released);
      g.kept = u64(kept);
      g.first_kept = u64(first_kept);
      g.last_kept = u64(last_kept);
      g.overwritten = u64(overwritten);
      g.dropped = u64(dropped);
    }
  }

  void lanes(const Table& t) {
    const std::size_t group = t.column("group"), peer = t.column("peer"),
                      direction = t.column("direction"), enqueued = t.column("enqueued"),
                      enqueued_time = t.column("enqueued_time"), started = t.column("started"),
                      completed = t.column("completed"),
                      completed_time = t.column("completed_time"), ended = t.column("ended"),
                      failed = t.column("failed");
    for (const Object& o : t.rows()) {
      const Row row(&o);
      if (row.empty()) {
        continue;
      }
      LaneEvidence lane;
      lane.group = number<std::uint32_t>(row[group]);
      lane.peer = number<std::int32_t>(row[peer], -1);
      lane.send = text(row[direction]) == "send";
      lane.enqueued = number<std::uint64_t>(row[enqueued]);
      lane.started = number<std::uint64_t>(row[started]);
      lane.completed = number<std::uint64_t>(row[completed]);
      lane.ended = number<std::uint64_t>(row[ended]);
      lane.failed = number<std::uint64_t>(row[failed]);
      lane.enqueued_time = time(row[enqueued_time]);
      lane.completed_time = time(row[completed_time]);
      e_.lanes.push_back(lane);
    }
  }

  void records(const Table& t) {
    const auto c = [&](const char* name) { return t.column(name); };
    const std::size_t ticket = c("ticket"), when = c("time"), kind = c("kind"), seq = c("seq"),
                      group = c("group"), op = c("op"), stack = c("stack"), tid = c("tid"),
                      peer = c("peer"), flags = c("flags"), in_numel = c("in_numel"),
                      out_numel = c("out_numel"), in_dtype = c("in_dtype"),
                      out_dtype = c("out_dtype"), reduce_op = c("reduce_op"),
                      timeout_ms = c("timeout_ms"), shape = c("shape"), state = c("state"),
                      started = c("started"), ended = c("ended"), error = c("error");
    Words dtypes(*this), reduce_ops(*this), out_dtypes(*this);
    for (const Object& o : t.rows()) {
      const Row row(&o);
      if (row.empty()) {
        continue;
      }
      Record r;
      r.ticket = number<std::uint64_t>(row[ticket]);
      r.time = time(row[when]);
      r.kind = kind_of(text(row[kind]));
      r.seq = number<std::uint64_t>(row[seq]);
      if (r.seq >> 62 != 0) {
        ++e_.unreadable_rows;  // damage: others count on from it
        continue;
      }
      r.group = number<std::uint32_t>(row[group]);
      r.op = r.kind == Kind::kNote ? intern(text(row[shape])) : number<Id>(row[op]);
      r.stack = number<std::uint32_t>(row[stack]);
      r.tid = number<std::uint32_t>(row[tid]);
      r.peer = number<std::int32_t>(row[peer], -1);
      r.flags = number<std::uint16_t>(row[flags]);
      r.in_numel = number<std::uint64_t>(row[in_numel]);
      r.out_numel = number<std::uint64_t>(row[out_numel]);
      r.in_dtype = dtypes.id(text(row[in_dtype]));
      r.out_dtype = out_dtypes.id(text(row[out_dtype]));
      r.reduce_op = reduce_ops.id(text(row[reduce_op]));
      r.timeout_ms = number<std::uint32_t>(row[timeout_ms]);
      r.state = state_of(text(row[state]));
      r.started = time(row[started]);
      r.ended = time(row[ended]);
      r.error = number<Id>(row[error]);
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

  void ras(const Object* o) {
    if (!is_map(o)) {
      return;
    }
    RasEvidence& r = e_.ras;
    r.asked = true;
    r.address = text(member(o, "address"));
    r.format = text(member(o, "format"));
    r.answer = text(member(o, "answer"));
    r.error = text(member(o, "error"));
    r.cut = number<int>(member(o, "cut")) != 0;
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
      n.note_time = time(member(&thread, "note_time"));
      for (const Object& span : list(member(&thread, "spans"))) {
        const Row row(&span);
        n.spans.emplace_back(e_.text(number<Id>(row[0])), time(row[1]));
      }
      e_.notes.push_back(std::move(n));
    }
  }

  void losses(const Object* o) {
    Losses& l = e_.losses;
    const auto u64 = [&](const char* key) { return number<std::uint64_t>(member(o, key)); };
    l.dropped = u64("dropped");
    l.overwritten = u64("overwritten");
    l.torn = u64("torn");
    l.status_lost = u64("status_lost");
    l.strings_lost = u64("strings_lost");
    l.stacks_lost = u64("stacks_lost");
    l.groups_lost = u64("groups_lost");
    l.lanes_lost = u64("lanes_lost");
    l.no_group = u64("no_group");
  }

  void device(const Object* o) {
    if (!is_map(o)) {
      return;
    }
    DeviceEvidence& d = e_.device;
    d.present = true;
    d.plugin_api = number<std::uint32_t>(member(o, "plugin_api"));
    d.process = number<std::uint32_t>(member(o, "process"));
    const Object* lost = member(o, "losses");
    const auto u64 = [&](const char* key) { return number<std::uint64_t>(member(lost, key)); };
    d.comms_lost = u64("comms_lost");
    d.ops_lost = u64("ops_lost");
    d.phases_lost = u64("phases_lost");
    d.unmatched = u64("unmatched");
    d.threads_lost = u64("threads_lost");
    comms(Table(member(o, "comms")));
    operations(Table(member(o, "operations")));
    phases(Table(member(o, "phases")));
    keep_unfinished(d);
    if (const Object* error = member(o, "error"); is_map(error)) {
      DeviceFailure& f = d.failure;
      f.present = true;
      f.code = number<int>(member(error, "code"));
      f.name = text(member(error, "name"));
      f.text = text(member(error, "text"));
      f.call = text(member(error, "call"));
      const auto ticket = to_int(member(error, "ticket"));
      f.has_record = ticket.has_value();
      f.ticket = static_cast<std::uint64_t>(ticket.value_or(0));
      f.time = time(member(error, "time"));
    }
    if (const Object* observer = member(o, "observer"); is_map(observer)) {
      d.observer_call = text(member(observer, "call"));
      d.observer_since = time(member(observer, "since"));
    }
  }

  void comms(const Table& t) {
    const std::size_t comm = t.column("comm"), hash = t.column("hash"), group = t.column("group"),
                      pg_group = t.column("pg_group"), n_ranks = t.column("n_ranks"),
                      rank = t.column("rank"), n_nodes = t.column("n_nodes"),
                      name = t.column("name"), ended = t.column("ended"), error = t.column("error"),
                      error_time = t.column("error_time"), profiled = t.column("profiled");
    for (const Object& o : t.rows()) {
      const Row row(&o);
      const std::size_t index = number<std::size_t>(row[comm], SIZE_MAX);
      if (row.empty() || index >= kMaxDeviceRows) {
        continue;
      }
      if (index >= e_.device.comms.size()) {
        e_.device.comms.resize(index + 1);
      }
      CommEvidence& c = e_.device.comms[index];
      c.used = true;
      c.hash = number<std::uint64_t>(row[hash]);
      c.group = number<std::uint32_t>(row[group]);
      c.pg_group = number<std::uint32_t>(row[pg_group]);
      c.n_ranks = number<std::int32_t>(row[n_ranks]);
      c.rank = number<std::int32_t>(row[rank], -1);
      c.n_nodes = number<std::uint32_t>(row[n_nodes]);
      c.name = number<Id>(row[name]);
      c.ended = number<int>(row[ended]) != 0;
      c.error = number<Id>(row[error]);
      c.error_time = time(row[error_time]);
      c.profiled = number<int>(row[profiled]) != 0;
    }
  }

  void operations(const Table& t) {
    const auto c = [&](const char* name) { return t.column(name); };
    const std::size_t op = c("op"), ticket = c("ticket"), comm = c("comm"), state = c("state"),
                      flags = c("flags"), stream = c("stream"), launching = c("launching"),
                      launched = c("launched"), started = c("started"), channels = c("channels"),
                      channels_started = c("channels_started"),
                      channels_ended = c("channels_ended"), generation = c("generation");
    for (const Object& o : t.rows()) {
      const Row row(&o);
      if (row.empty() || e_.device.operations.size() >= kMaxDeviceRows) {
        continue;
      }
      DeviceOperation d;
      d.state = device_state_of(text(row[state]));
      d.flags = number<std::uint32_t>(row[flags]);
      if (!is_unfinished(d)) {
        continue;
      }
      d.row = number<std::uint32_t>(row[op]);
      d.comm = number<std::uint32_t>(row[comm]);
      const auto number_of_record = to_int(row[ticket]);
      d.has_record = number_of_record.has_value();
      d.ticket = static_cast<std::uint64_t>(number_of_record.value_or(0));
      d.stream = number<std::uint64_t>(row[stream]);
      d.launching = time(row[launching]);
      d.launched = time(row[launched]);
      d.started = time(row[started]);
      d.channels = number<std::uint32_t>(row[channels]);
      d.channels_started = number<std::uint32_t>(row[channels_started]);
      d.channels_ended = number<std::uint32_t>(row[channels_ended]);
      d.generation = number<std::uint32_t>(row[generation]);
      e_.device.operations.push_back(d);
    }
  }

  void phases(const Table& t) {
    const auto c = [&](const char* name) { return t.column(name); };
    const std::size_t op = c("op"), ticket = c("ticket"), kind = c("kind"), channel = c("channel"),
                      peer = c("peer"), waits_for = c("waits_for"), step = c("step"),
                      n_steps = c("n_steps"), when = c("time"), live = c("live"), nic = c("nic"),
                      qp = c("qp"), socket = c("socket"), pid = c("pid"),
                      of_process = c("of_process"), of_op = c("of_op"),
                      of_generation = c("of_generation");
    for (const Object& o : t.rows()) {
      const Row row(&o);
      const bool own = number<std::int64_t>(row[op], -1) >= 0;
      const auto other = to_int(row[of_op]);
      if (row.empty() || number<int>(row[live]) == 0 || (!own && !other) ||
          e_.device.phases.size() + e_.device.carried.size() >= kMaxDeviceRows) {
        continue;
      }
      DevicePhase p;
      p.row = number<std::uint32_t>(own ? row[op] : row[of_op]);
      const auto number_of_record = to_int(row[ticket]);
      p.has_record = number_of_record.has_value();
      p.ticket = static_cast<std::uint64_t>(number_of_record.value_or(0));
      p.kind = phase_kind_of(text(row[kind]));
      p.wait = phase_wait_of(text(row[waits_for]));
      p.channel = number<std::uint32_t>(row[channel]);
      p.peer = number<std::int32_t>(row[peer], -1);
      p.step = number<std::uint32_t>(row[step]);
      p.n_steps = number<std::uint32_t>(row[n_steps]);
      p.time = time(row[when]);
      p.nic = number<std::int64_t>(row[nic], -1);
      p.qp = number<std::int64_t>(row[qp], -1);
      p.socket = number<std::int64_t>(row[socket], -1);
      if (own) {
        e_.device.phases.push_back(p);
      } else {
        e_.device.carried.push_back({p, number<int>(row[pid]),
                                     number<std::uint32_t>(row[of_process]),
                                     number<std::uint32_t>(row[of_generation])});
      }
    }
  }

  void exit(const Object* o) {
    if (!is_map(o)) {
      return;
    }
    ExitEvidence& x = e_.exit;
    x.present = true;
    x.state = text(member(o, "state"));
    x.status = number<int>(member(o, "status"));
    x.signal = number<int>(member(o, "signal"));
    x.sender_pid = number<int>(member(o, "sender_pid"));
    x.kind = text(member(o, "kind"));
    x.type = text(member(o, "type"));
    x.message = text(member(o, "message"));
    x.stack = number<std::uint32_t>(member(o, "stack"));
    x.time = time(member(o, "time"));
  }

  void peers(List items) {
    for (const Object& o : items) {
      PeerEvidence p;
      p.rank = number<Rank>(member(&o, "rank"), -1);
      p.pid = number<int>(member(&o, "pid"));
      p.state = text(member(&o, "state"));
      p.status = number<int>(member(&o, "status"));
      p.signal = number<int>(member(&o, "signal"));
      p.exit_time = time(member(&o, "exit_time"));
      p.last_op = text(member(&o, "last_op"));
      p.last_site = text(member(&o, "last_site"));
      e_.peers.push_back(std::move(p));
    }
  }

  const Object& root_;
  RankEvidence& e_;
  Time base_ = 0;
  std::unordered_map<std::string_view, Id> interned_;
};

// Buffers that a thread takes from file to file: pages that the kernel need not clear anew.
struct Buffers {
  std::vector<char> data;
  std::vector<Object> tape;
  struct Free {
    void operator()(ZSTD_DCtx* c) const { ZSTD_freeDCtx(c); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> zstd;

  void shrink() {  // one huge file does not stay
    constexpr std::size_t kKept = std::size_t{32} << 20;
    if (data.size() > kKept) {
      std::vector<char>().swap(data);
    }
    if (tape.capacity() > kKept / sizeof(Object)) {
      std::vector<Object>().swap(tape);
    }
  }
};

enum class Unpacked { kWhole, kCut, kFailed };

// Bounded whatever the frame claims about its content.
Unpacked decompress(std::span<const unsigned char> in, Buffers& b, std::size_t& size,
                    std::string& why) {
  if (b.zstd == nullptr) {
    b.zstd.reset(ZSTD_createDCtx());
  }
  if (b.zstd == nullptr) {
    why = "no memory";
    return Unpacked::kFailed;
  }
  ZSTD_DCtx_reset(b.zstd.get(), ZSTD_reset_session_only);
  ZSTD_inBuffer from{in.data(), in.size(), 0};
  size = 0;
  for (;;) {
    if (size == b.data.size()) {
      b.data.resize(std::max<std::size_t>(std::size_t{1} << 18, 2 * size));
    }
    ZSTD_outBuffer to{b.data.data(), b.data.size(), size};
    const std::size_t left = ZSTD_decompressStream(b.zstd.get(), &to, &from);
    size = to.pos;
    if (ZSTD_isError(left) != 0U) {
      why = std::string("damaged: ") + ZSTD_getErrorName(left);
      return Unpacked::kFailed;
    }
    if (size > kMaxDumpBytes) {
      why = "larger than any dump (over 512 MiB unpacked)";
      return Unpacked::kFailed;
    }
    if (left == 0) {
      return Unpacked::kWhole;
    }
    if (from.pos == from.size && to.pos < to.size) {
      return Unpacked::kCut;
    }
  }
}

std::unique_ptr<RankEvidence> read(std::span<const unsigned char> bytes, Buffers& b,
                                   std::string& why) {
  std::size_t size = 0;
  const Unpacked unpacked = decompress(bytes, b, size, why);
  if (unpacked == Unpacked::kFailed) {
    return nullptr;
  }
  Tape tape(b.tape);
  std::size_t end = 0;
  const bool whole = msgpack::parse(b.data.data(), size, end, tape);
  const bool cut = !whole && tape.cut();
  if ((!whole && !cut) || tape.empty()) {
    why = unpacked == Unpacked::kCut ? "truncated" : "damaged: not a whole msgpack map";
    return nullptr;
  }
  tape.close_all();
  const Object& root = b.tape.front();
  // Who wrote it and how far it got stand before the records: a cut behind that leaves a dump
  // without its newest records.
  if (cut && (!is_map(member(&root, "records")) || !is_map(member(&root, "groups")))) {
    why = "truncated";
    return nullptr;
  }
  if (text(member(&root, "format")) != "fr.dump") {
    why = "not recognised: a zstd file that is no fr dump";
    return nullptr;
  }
  if (const int version = number<int>(member(&root, "version")); version != 1) {
    why = "format version " + std::to_string(version) + ", this frtrace reads 1";
    return nullptr;
  }
  auto e = std::make_unique<RankEvidence>();
  e->source = Source::kDump;
  Reader(root, *e).read();
  if (cut) {
    e->holes.truncated = true;
    e->holes.truncated_at = e->records.size();
    count_kept(*e);
  }
  return e;
}

}  // namespace

std::unique_ptr<RankEvidence> load_fr(std::span<const unsigned char> bytes, std::string& why) {
  thread_local Buffers buffers;
  try {
    auto e = read(bytes, buffers, why);
    buffers.shrink();
    return e;
  } catch (const std::exception&) {
    why = "damaged: not a whole msgpack map";
    return nullptr;
  }
}

}  // namespace frtrace
