// Dumps: a zstd frame around one msgpack map. The grammar is in libfr/README.md; this reader
// ignores what it does not know, looks table columns up by name, and believes no length before
// checking it.
#include <zstd.h>

#include <algorithm>
#include <exception>
#include <msgpack.hpp>
#include <optional>
#include <unordered_map>

#include "load.hpp"
#include "load_threads.hpp"

namespace frtrace {

namespace {

constexpr std::size_t kMaxDumpBytes = std::size_t{512} << 20;  // decompressed
constexpr std::size_t kMaxElements = std::size_t{1} << 23;
constexpr std::size_t kMaxDepth = 16;

using Object = msgpack::object;

// --- tolerant access: the wrong type reads as absent

std::optional<std::int64_t> to_int(const Object* o) {
  if (o == nullptr) {
    return std::nullopt;
  }
  switch (o->type) {
    case msgpack::type::POSITIVE_INTEGER:
      return static_cast<std::int64_t>(o->via.u64);
    case msgpack::type::NEGATIVE_INTEGER:
      return o->via.i64;
    case msgpack::type::BOOLEAN:
      return o->via.boolean ? 1 : 0;
    default:
      return std::nullopt;
  }
}

template <class T>
T number(const Object* o, T fallback = T{}) {
  const std::optional<std::int64_t> v = to_int(o);
  return v ? static_cast<T>(*v) : fallback;
}

std::string_view text(const Object* o) {
  if (o == nullptr) {
    return {};
  }
  if (o->type == msgpack::type::STR) {
    return {o->via.str.ptr, o->via.str.size};
  }
  if (o->type == msgpack::type::BIN) {
    return {o->via.bin.ptr, o->via.bin.size};
  }
  return {};
}

std::span<const Object> list(const Object* o) {
  if (o == nullptr || o->type != msgpack::type::ARRAY) {
    return {};
  }
  return {o->via.array.ptr, o->via.array.size};
}

const Object* item(std::span<const Object> items, std::size_t i) {
  return i < items.size() ? &items[i] : nullptr;
}

const Object* member(const Object* o, std::string_view key) {
  if (o == nullptr || o->type != msgpack::type::MAP) {
    return nullptr;
  }
  for (std::uint32_t i = 0; i < o->via.map.size; ++i) {
    const msgpack::object_kv& kv = o->via.map.ptr[i];
    if (text(&kv.key) == key) {
      return &kv.val;
    }
  }
  return nullptr;
}

bool is_map(const Object* o) {
  return o != nullptr && o->type == msgpack::type::MAP;
}

class Table {
 public:
  explicit Table(const Object* o) : rows_(list(member(o, "rows"))) {
    const std::span<const Object> fields = list(member(o, "fields"));
    for (std::size_t i = 0; i < fields.size(); ++i) {
      columns_.emplace(text(&fields[i]), i);
    }
  }
  std::size_t size() const { return rows_.size(); }
  // Column number, or one past every row when the table has no such column.
  std::size_t column(std::string_view name) const {
    const auto it = columns_.find(name);
    return it == columns_.end() ? SIZE_MAX : it->second;
  }
  std::span<const Object> row(std::size_t i) const { return list(&rows_[i]); }

 private:
  std::span<const Object> rows_;
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

class Reader {
 public:
  Reader(const Object& root, RankEvidence& to) : root_(root), e_(to) {}

  void read() {
    base_ = plausible(number<Time>(member(member(&root_, "clock"), "base_unix_ns")));
    identity(member(&root_, "identity"));
    e_.threads = read_threads(member(&root_, "threads"), member(&root_, "thread_facts"));
    e_.reason = text(member(&root_, "reason"));
    e_.trigger = text(member(&root_, "trigger"));
    e_.incident = number<std::uint64_t>(member(&root_, "incident"));
    e_.written = plausible(number<Time>(member(&root_, "written_unix_ns")));
    if (const Object* salvage = member(&root_, "salvage"); is_map(salvage)) {
      e_.salvaged = true;
      e_.salvaged_by = number<Rank>(member(salvage, "by_rank"), -1);
      e_.salvage_why = text(member(salvage, "why"));
      e_.process_gone = e_.salvage_why == "dead" || e_.salvage_why == "left over";
    }
    for (const Object& o : list(member(&root_, "options"))) {
      const auto row = list(&o);
      e_.options.emplace_back(text(item(row, 0)), text(item(row, 1)));
    }
    if (const Object* layers = member(&root_, "layers"); is_map(layers)) {
      for (std::uint32_t i = 0; i < layers->via.map.size; ++i) {
        e_.layers.emplace_back(text(&layers->via.map.ptr[i].key),
                               text(&layers->via.map.ptr[i].val));
      }
    }
    for (const Object& o : list(member(&root_, "strings"))) {
      e_.strings.emplace_back(text(&o));
    }
    if (e_.strings.empty()) {
      e_.strings.emplace_back();
    }
    for (const Object& o : list(member(&root_, "frames"))) {
      const auto row = list(&o);
      e_.frames.push_back({number<Id>(item(row, 0)), number<Id>(item(row, 1)),
                           number<std::uint32_t>(item(row, 2))});
    }
    for (const Object& o : list(member(&root_, "stacks"))) {
      std::vector<std::uint32_t> stack;
      for (const Object& f : list(&o)) {
        stack.push_back(number<std::uint32_t>(&f, UINT32_MAX));
      }
      e_.stacks.push_back(std::move(stack));
    }
    groups(Table(member(&root_, "groups")));
    lanes(Table(member(&root_, "lanes")));
    records(Table(member(&root_, "records")));
    notes(member(&root_, "notes"));
    losses(member(&root_, "losses"));
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
      last = std::max(last, plausible(number<Time>(item(list(&o), 1))));
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
    for (std::size_t i = 0; i < t.size(); ++i) {
      const auto row = t.row(i);
      if (row.empty()) {
        continue;
      }
      const auto at = [&](std::size_t column) { return item(row, column); };
      const auto u64 = [&](std::size_t column) { return number<std::uint64_t>(at(column)); };
      const std::size_t index = number<std::size_t>(at(group), i);
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
      for (const Object& o : list(at(ranks))) {
        const auto range = list(&o);
        g.ranks.push_back({number<Rank>(item(range, 0)), number<std::uint32_t>(item(range, 1)),
                           number<std::int32_t>(item(range, 2), 1)});
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
    for (std::size_t i = 0; i < t.size(); ++i) {
      const auto row = t.row(i);
      if (row.empty()) {
        continue;
      }
      LaneEvidence lane;
      lane.group = number<std::uint32_t>(item(row, group));
      lane.peer = number<std::int32_t>(item(row, peer), -1);
      lane.send = text(item(row, direction)) == "send";
      lane.enqueued = number<std::uint64_t>(item(row, enqueued));
      lane.started = number<std::uint64_t>(item(row, started));
      lane.completed = number<std::uint64_t>(item(row, completed));
      lane.ended = number<std::uint64_t>(item(row, ended));
      lane.failed = number<std::uint64_t>(item(row, failed));
      lane.enqueued_time = time(item(row, enqueued_time));
      lane.completed_time = time(item(row, completed_time));
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
    e_.records.reserve(t.size());
    for (std::size_t i = 0; i < t.size(); ++i) {
      const auto row = t.row(i);
      if (row.empty()) {
        continue;
      }
      const auto at = [&](std::size_t column) { return item(row, column); };
      Record r;
      r.ticket = number<std::uint64_t>(at(ticket));
      r.time = time(at(when));
      r.kind = kind_of(text(at(kind)));
      r.seq = number<std::uint64_t>(at(seq));
      r.group = number<std::uint32_t>(at(group));
      r.op = number<Id>(at(op));
      r.stack = number<std::uint32_t>(at(stack));
      r.tid = number<std::uint32_t>(at(tid));
      r.peer = number<std::int32_t>(at(peer), -1);
      r.flags = number<std::uint16_t>(at(flags));
      r.in_numel = number<std::uint64_t>(at(in_numel));
      r.out_numel = number<std::uint64_t>(at(out_numel));
      r.in_dtype = intern(text(at(in_dtype)));
      r.out_dtype = intern(text(at(out_dtype)));
      r.reduce_op = intern(text(at(reduce_op)));
      r.timeout_ms = number<std::uint32_t>(at(timeout_ms));
      r.state = state_of(text(at(state)));
      r.started = time(at(started));
      r.ended = time(at(ended));
      r.error = number<Id>(at(error));
      if (const auto words = list(at(shape)); !words.empty()) {
        r.shape_first = static_cast<std::uint32_t>(e_.shape_words.size());
        r.shape_count = static_cast<std::uint32_t>(words.size());
        for (const Object& w : words) {
          e_.shape_words.push_back(number<std::uint32_t>(&w));
        }
      }
      e_.records.push_back(r);
    }
    std::sort(e_.records.begin(), e_.records.end(),
              [](const Record& a, const Record& b) { return a.ticket < b.ticket; });
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
        const auto row = list(&span);
        n.spans.emplace_back(e_.text(number<Id>(item(row, 0))), time(item(row, 1)));
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

  void peers(std::span<const Object> items) {
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

// Bounded whatever the frame claims about its content.
bool decompress(std::span<const unsigned char> in, std::string& out, std::string& why) {
  struct Free {
    void operator()(ZSTD_DStream* s) const { ZSTD_freeDStream(s); }
  };
  const std::unique_ptr<ZSTD_DStream, Free> stream(ZSTD_createDStream());
  if (stream == nullptr) {
    why = "no memory";
    return false;
  }
  ZSTD_inBuffer from{in.data(), in.size(), 0};
  std::string chunk(ZSTD_DStreamOutSize(), '\0');
  std::size_t left = 1;
  while (from.pos < from.size && left != 0) {
    ZSTD_outBuffer to{chunk.data(), chunk.size(), 0};
    left = ZSTD_decompressStream(stream.get(), &to, &from);
    if (ZSTD_isError(left) != 0U) {
      why = std::string("damaged: ") + ZSTD_getErrorName(left);
      return false;
    }
    if (out.size() + to.pos > kMaxDumpBytes) {
      why = "larger than any dump (over 512 MiB unpacked)";
      return false;
    }
    out.append(chunk.data(), to.pos);
    // A full output buffer with all input taken: there is more to flush.
    while (left != 0 && from.pos == from.size && to.pos == to.size) {
      to.pos = 0;
      left = ZSTD_decompressStream(stream.get(), &to, &from);
      if (ZSTD_isError(left) != 0U || out.size() + to.pos > kMaxDumpBytes) {
        why = "damaged";
        return false;
      }
      out.append(chunk.data(), to.pos);
    }
  }
  if (left != 0) {
    why = "truncated";
    return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<RankEvidence> load_fr(std::span<const unsigned char> bytes, std::string& why) {
  try {
    std::string data;
    if (!decompress(bytes, data, why)) {
      return nullptr;
    }
    const std::size_t limit = std::min(kMaxElements, data.size());
    const msgpack::unpack_limit limits(limit, limit, data.size(), data.size(), data.size(),
                                       kMaxDepth);
    const msgpack::object_handle handle = msgpack::unpack(
        data.data(), data.size(),
        [](msgpack::type::object_type, std::size_t, void*) { return true; }, nullptr, limits);
    const Object& root = handle.get();
    if (text(member(&root, "format")) != "fr.dump") {
      why = "foreign: a zstd file that is no fr dump";
      return nullptr;
    }
    if (const int version = number<int>(member(&root, "version")); version != 1) {
      why = "format version " + std::to_string(version) + ", this frtrace reads 1";
      return nullptr;
    }
    auto e = std::make_unique<RankEvidence>();
    e->source = Source::kDump;
    Reader(root, *e).read();
    return e;
  } catch (const std::exception&) {
    why = "damaged: not a whole msgpack map";
    return nullptr;
  }
}

}  // namespace frtrace
