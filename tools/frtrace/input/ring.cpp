// Regions: what a process maps while it runs, what it leaves when it dies, and raw copies of both.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <unordered_map>

#include "format/codes.hpp"
#include "format/view.hpp"
#include "input/files.hpp"
#include "format/hash.hpp"

namespace frtrace {

namespace {

std::string fixed_text(const char* s, std::size_t n) {
  return {s, strnlen(s, n)};
}

std::string read_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

bool same_machine(const Identity& id) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return !id.boot_id.empty() && id.boot_id == read_line("/proc/sys/kernel/random/boot_id") &&
         id.host == host;
}

// Field 22 of /proc/<pid>/stat; 0 when there is no such process.
std::uint64_t proc_start_of(int pid) {
  const std::string line = read_line("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t after_name = line.rfind(')');
  if (after_name == std::string::npos) {
    return 0;
  }
  std::size_t at = after_name + 1;
  // The state is field 3; a zombie holds its number but runs no more.
  if (line.size() > at + 1 && (line[at + 1] == 'Z' || line[at + 1] == 'X')) {
    return 0;
  }
  for (int field = 3; field <= 22; ++field) {
    at = line.find_first_not_of(' ', at);
    if (at == std::string::npos) {
      return 0;
    }
    if (field == 22) {
      std::uint64_t value = 0;
      std::from_chars(line.data() + at, line.data() + line.size(), value);
      return value;
    }
    at = line.find(' ', at);
    if (at == std::string::npos) {
      return 0;
    }
  }
  return 0;
}

State state_of(const fr::RecordCopy& r) {
  if (!r.has_status) {
    return (r.payload.flags & kUntracked) != 0 ? State::kUnknown : State::kEnqueued;
  }
  switch (r.state) {
    case fr::State::kStarted:
      return State::kStarted;
    case fr::State::kCompleted:
      return State::kCompleted;
    case fr::State::kFailed:
      return State::kFailed;
    case fr::State::kReleased:
      return State::kReleased;
    case fr::State::kWaiting:
      return State::kWaiting;
    case fr::State::kIdle:
      return State::kIdle;
    case fr::State::kLocked:
      break;
  }
  return State::kEnqueued;
}

PhaseWait phase_wait(fr::Wait wait) {
  switch (wait) {
    case fr::Wait::kNone:
      return PhaseWait::kIdle;
    case fr::Wait::kPosted:
      return PhaseWait::kPosted;
    case fr::Wait::kOwnKernel:
      return PhaseWait::kOwnKernel;
    case fr::Wait::kPeerCredit:
      return PhaseWait::kPeerCredit;
    case fr::Wait::kInFlight:
      return PhaseWait::kInFlight;
    case fr::Wait::kData:
      return PhaseWait::kData;
    case fr::Wait::kFlush:
      return PhaseWait::kFlush;
    case fr::Wait::kOwnKernelTakes:
      return PhaseWait::kOwnKernelTakes;
  }
  return PhaseWait::kOther;
}

Kind kind_of(std::uint16_t kind) {
  return kind >= 1 && kind <= 7 ? static_cast<Kind>(kind) : Kind::kOther;
}

// A region whose file ends early: what was cut off reads as never written. Only where header and
// tables are whole; a row that was cut in the middle goes, too.
class Completed {
 public:
  explicit Completed(std::span<const unsigned char> bytes) {
    if (bytes.size() < fr::kHeaderBytes) {
      return;
    }
    const auto& header = *reinterpret_cast<const fr::Header*>(bytes.data());
    constexpr std::uint64_t kMost = std::uint64_t{1} << 31;
    if (header.region_bytes <= bytes.size() || header.region_bytes > kMost ||
        header.section_count < fr::kFirstSections) {
      return;
    }
    std::uint64_t kept = bytes.size();
    for (std::uint32_t s = 0; s < std::min<std::uint32_t>(header.section_count, fr::kSections);
         ++s) {
      const fr::SectionRow& row = header.sections[s];
      const std::uint64_t size = std::uint64_t{row.count} * row.stride_bytes;
      if (row.count == 0) {
        continue;  // not in this ring
      }
      if (row.offset_bytes > header.region_bytes || size > header.region_bytes - row.offset_bytes ||
          row.stride_bytes == 0) {
        return;
      }
      if (row.offset_bytes + size <= bytes.size()) {
        continue;
      }
      if (s < fr::kSecStatus) {
        return;
      }
      if (row.offset_bytes <= bytes.size()) {
        kept = row.offset_bytes +
               (bytes.size() - row.offset_bytes) / row.stride_bytes * row.stride_bytes;
      }
    }
    void* p = ::mmap(nullptr, header.region_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED) {
      data_ = p;
      size_ = header.region_bytes;
      std::memcpy(data_, bytes.data(), kept);
    }
  }
  ~Completed() {
    if (data_ != nullptr) {
      ::munmap(data_, size_);
    }
  }
  Completed(const Completed&) = delete;
  Completed& operator=(const Completed&) = delete;

  fr::View view() const { return fr::View::of(data_, size_); }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

class Reader {
 public:
  Reader(const fr::View& view, RankEvidence& to)
      : view_(view), header_(view.header()), clock_(view.header()), e_(to) {}

  void read() {
    identity();
    for (fr::u32 i = 0; i < view_.n_strings(); ++i) {
      e_.strings.emplace_back(view_.string(i));
    }
    if (e_.strings.empty()) {
      e_.strings.emplace_back();
    }
    for (fr::u32 i = 0; i < view_.n_frames(); ++i) {
      const fr::FrameRow f = view_.frame(i);
      e_.frames.push_back({f.file, f.func, f.line});
    }
    for (fr::u32 i = 0; i < view_.n_stacks(); ++i) {
      const auto stack = view_.stack(i);
      e_.stacks.emplace_back(stack.begin(), stack.end());
    }
    options();
    groups();
    lanes();
    records();
    crumbs();
    device();
    ends();
  }

 private:
  Time time(std::uint64_t ticks) const {
    return plausible(static_cast<Time>(clock_.unix_ns(ticks)));
  }

  Id intern(const char* s) {
    if (s == nullptr || *s == '\0') {
      return 0;
    }
    const auto [it, added] = interned_.try_emplace(s, static_cast<Id>(e_.strings.size()));
    if (added) {
      e_.strings.emplace_back(s);
    }
    return it->second;
  }

  void identity() {
    Identity& id = e_.id;
    id.job = fixed_text(header_.job, sizeof header_.job);
    id.host = fixed_text(header_.host, sizeof header_.host);
    id.boot_id = fixed_text(header_.boot_id, sizeof header_.boot_id);
    id.command = fixed_text(header_.command, sizeof header_.command);
    id.cwd = fixed_text(header_.cwd, sizeof header_.cwd);
    id.recorder = fixed_text(header_.recorder, sizeof header_.recorder);
    id.attempt = header_.attempt;
    id.rank = header_.rank.load();
    id.local_rank = header_.local_rank.load();
    id.world_size = header_.world_size.load();
    id.local_world_size = header_.local_world_size;
    id.pid = header_.pid;
    id.proc_start = header_.proc_start;
    id.start = plausible(static_cast<Time>(header_.start_unix_ns));
    id.anonymous = header_.anonymous != 0;
    id.n_records = header_.n_records;
    e_.incident = header_.incident.load();
    for (const auto& layer : header_.layers) {
      if (layer.name[0] != '\0') {
        char text[sizeof layer.text];
        e_.layers.emplace_back(fixed_text(layer.name, sizeof layer.name), layer_text(layer, text));
      }
    }
    Losses& l = e_.losses;
    l.dropped = header_.dropped.load();
    l.status_lost = header_.status_lost.load();
    l.strings_lost = header_.strings_lost.load();
    l.stacks_lost = header_.stacks_lost.load();
    l.groups_lost = header_.groups_lost.load();
    l.lanes_lost = header_.lanes_lost.load();
    l.no_group = header_.no_group.load();
  }

  // "NAME=value\tsource\n"...
  void options() {
    std::string_view rest = view_.options();
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      const std::size_t equals = line.find('=');
      if (equals != std::string_view::npos) {
        const std::size_t tab = std::min(line.find('\t', equals), line.size());
        e_.options.emplace_back(line.substr(0, equals), line.substr(equals + 1, tab - equals - 1));
      }
    }
  }

  void groups() {
    for (fr::u32 i = 0; i < view_.n_groups(); ++i) {
      GroupEvidence g;
      if (const fr::GroupRow* row = view_.group(i)) {
        g.used = true;
        g.name = row->name;
        g.desc = row->desc;
        g.backend = row->backend;
        g.instance = row->instance;
        g.n_ranks = row->n_ranks;
        g.own_rank = row->own_rank;
        const auto words = view_.group_ranks(*row);
        for (std::size_t w = 0; w + 2 < words.size(); w += 3) {
          g.ranks.push_back(
              {static_cast<Rank>(words[w]), words[w + 1], static_cast<std::int32_t>(words[w + 2])});
        }
        g.created = time(row->created_ticks.load());
        g.destroyed = time(row->destroyed_ticks.load());
        const std::uint64_t issued = row->issued.load();
        g.enqueued = issued & fr::kSeqMask;
        issued_records_.push_back((issued >> fr::kIndexShift) & fr::kIndexMask);
        g.enqueued_time = time(row->enqueued_ticks.load());
        g.started = row->started_seq.load();
        g.started_time = time(row->started_ticks.load());
        g.completed = row->completed_seq.load();
        g.completed_time = time(row->completed_ticks.load());
        g.ended = row->ended.load();
        g.failed = row->failed.load();
        g.p2p_enqueued = row->p2p_issued.load();
        g.p2p_ended = row->p2p_ended.load();
        g.lifecycle = row->lifecycle_issued.load();
        g.lifecycle_ended = row->lifecycle_ended.load();
        g.untracked = row->untracked.load();
        g.wait_only = row->wait_only.load();
        g.wait_only_ended = row->wait_only_ended.load();
        g.released = row->released.load();
        g.dropped = row->dropped.load();
      } else {
        issued_records_.push_back(0);
      }
      e_.groups.push_back(std::move(g));
    }
  }

  void lanes() {
    for (fr::u32 i = 0; i < view_.n_lanes(); ++i) {
      const fr::LaneRow* row = view_.lane(i);
      if (row == nullptr) {
        continue;
      }
      const std::uint64_t key = row->key.load();
      LaneEvidence lane;
      lane.group = static_cast<std::uint32_t>((key >> 33) & 0x3fffffff);
      lane.send = ((key >> 32) & 1) != 0;
      lane.peer = static_cast<std::int32_t>(static_cast<std::uint32_t>(key)) - 1;
      lane.enqueued = row->enqueued.load();
      lane.enqueued_time = time(row->enqueued_ticks.load());
      lane.started = row->started_seq.load();
      lane.completed = row->completed_seq.load();
      lane.completed_time = time(row->completed_ticks.load());
      lane.ended = row->ended.load();
      lane.failed = row->failed.load();
      e_.lanes.push_back(lane);
    }
  }

  void records() {
    auto copy = std::make_unique<fr::RecordCopy>();
    std::vector<std::uint64_t> kept_records(e_.groups.size(), 0);
    for (fr::u32 slot = 0; slot < view_.n_slots(); ++slot) {
      const fr::Slot what = view_.read(slot, *copy);
      if (what == fr::Slot::kTorn) {
        ++e_.losses.torn;
      }
      if (what != fr::Slot::kWhole) {
        continue;
      }
      const fr::Payload& p = copy->payload;
      Record r;
      r.ticket = copy->ticket;
      r.time = time(p.ticks);
      r.seq = p.seq;
      r.group = p.group;
      r.op = p.op;
      r.stack = p.stack;
      r.tid = p.tid;
      r.peer = p.peer;
      r.kind = kind_of(p.kind);
      r.flags = p.flags;
      r.in_numel = p.in_numel;
      r.out_numel = p.out_numel;
      r.in_dtype = intern(fr::dtype_name(p.in_dtype));
      r.out_dtype = intern(fr::dtype_name(p.out_dtype));
      r.reduce_op = intern(fr::reduce_op_name(p.reduce_op));
      r.timeout_ms = p.timeout_ms;
      r.state = state_of(*copy);
      r.started = copy->has_status ? time(copy->started_ticks) : 0;
      r.ended = copy->has_status ? time(copy->ended_ticks) : 0;
      r.error = copy->has_status ? copy->error : 0;
      if (r.kind == Kind::kNote && copy->shape != nullptr && copy->n_shape <= fr::kNoteBytes) {
        r.op = static_cast<Id>(e_.strings.size());
        e_.strings.emplace_back(reinterpret_cast<const char*>(copy->shape), copy->n_shape);
      } else if (r.kind != Kind::kNote && copy->shape != nullptr && copy->n_shape <= 512) {
        r.shape_first = static_cast<std::uint32_t>(e_.shape_words.size());
        r.shape_count = copy->n_shape;
        e_.shape_words.insert(e_.shape_words.end(), copy->shape, copy->shape + copy->n_shape);
      }
      if (r.group < e_.groups.size()) {
        ++kept_records[r.group];
        if (r.kind == Kind::kCollective) {
          GroupEvidence& g = e_.groups[r.group];
          g.first_kept = g.kept == 0 ? r.seq : std::min(g.first_kept, r.seq);
          g.last_kept = std::max(g.last_kept, r.seq);
          ++g.kept;
        }
      }
      e_.records.push_back(r);
    }
    std::sort(e_.records.begin(), e_.records.end(),
              [](const Record& a, const Record& b) { return a.ticket < b.ticket; });
    for (std::size_t i = 0; i < e_.groups.size(); ++i) {
      GroupEvidence& g = e_.groups[i];
      const std::uint64_t present = kept_records[i] + g.dropped;
      g.overwritten = issued_records_[i] > present ? issued_records_[i] - present : 0;
      e_.losses.overwritten += g.overwritten;
    }
  }

  void crumbs() {
    if (const std::int64_t step = header_.step.load(); step != INT64_MIN) {
      e_.has_step = true;
      e_.step = step;
    }
    for (fr::u32 i = 0; i < view_.n_crumbs(); ++i) {
      const fr::Crumb* c = view_.crumb(i);
      if (c == nullptr) {
        continue;
      }
      ThreadNotes n;
      n.tid = c->tid.load();
      char buffer[fr::kNoteBytes];
      for (std::size_t w = 0; w < fr::kNoteBytes / 4; ++w) {
        const std::uint32_t word = c->note[w].load();
        std::memcpy(buffer + 4 * w, &word, 4);
      }
      n.note.assign(buffer, std::min<std::size_t>(c->note_bytes.load(), sizeof buffer));
      n.note_time = time(c->note_ticks.load());
      const std::uint32_t depth = std::min<std::uint32_t>(c->depth.load(), fr::kSpanDepth);
      for (std::uint32_t d = 0; d < depth; ++d) {
        n.spans.emplace_back(e_.text(c->span[d].load()), time(c->span_ticks[d].load()));
      }
      e_.notes.push_back(std::move(n));
    }
  }

  void device() {
    const fr::Device* device = view_.device();
    if (!view_.has_device()) {
      return;
    }
    DeviceEvidence& d = e_.device;
    d.present = true;
    d.plugin_api = device->plugin_api.load();
    d.process = fr::handle_salt(view_.header().pid, view_.header().proc_start);
    d.comms_lost = device->comms_lost.load();
    d.ops_lost = device->ops_lost.load();
    d.phases_lost = device->phases_lost.load();
    d.unmatched = device->unmatched.load();
    d.threads_lost = device->threads_lost.load();
    d.comms.resize(view_.n_comms());
    for (fr::u32 i = 0; i < view_.n_comms(); ++i) {
      const fr::CommRow* row = view_.comm(i);
      if (row == nullptr) {
        continue;
      }
      d.comms[i] = {.used = true,
                    .ended = row->in_use.load() == 3,
                    .profiled = row->is_profiled.load() != 0,
                    .hash = row->hash.load(),
                    .group = row->group.load(),
                    .pg_group = row->pg_group.load(),
                    .n_ranks = row->n_ranks.load(),
                    .rank = row->rank.load(),
                    .n_nodes = row->n_nodes.load(),
                    .name = row->name.load(),
                    .error = row->error.load(),
                    .error_time = time(row->error_ticks.load())};
    }
    for (fr::u32 i = 0; i < view_.n_device_ops(); ++i) {
      fr::DeviceOpCopy from;
      if (!view_.read_device_op(i, from)) {
        continue;
      }
      DeviceOperation op;
      op.state = from.ended_ticks != 0       ? DeviceState::kEnded
                 : from.started_ticks != 0   ? DeviceState::kStarted
                 : from.launched_ticks != 0  ? DeviceState::kLaunched
                 : from.launching_ticks != 0 ? DeviceState::kLaunching
                                             : DeviceState::kScheduled;
      op.flags = from.flags;
      if (!is_unfinished(op)) {
        continue;
      }
      op.row = i;
      op.comm = from.comm;
      op.has_record = from.ticket != 0;
      op.ticket = from.ticket != 0 ? from.ticket - 1 : 0;
      op.stream = from.stream;
      op.launching = time(from.launching_ticks);
      op.launched = time(from.launched_ticks);
      op.started = time(from.started_ticks);
      op.channels = from.channels;
      op.channels_started = from.channels_started;
      op.channels_ended = from.channels_ended;
      op.generation = from.claim >> 1 & 0xfffff;
      d.operations.push_back(op);
    }
    for (fr::u32 i = 0; i < view_.n_phases(); ++i) {
      fr::PhaseCopy from;
      const bool told = view_.read_phase(i, from) && from.is_live();
      const bool own = told && from.op != 0;
      if (!told || (!own && from.ticket == 0)) {
        continue;
      }
      const fr::HandleParts other = fr::handle_parts(from.ticket);
      DevicePhase p;
      p.row = own ? from.op - 1 : other.op;
      p.has_record = own && from.ticket != 0;
      p.ticket = p.has_record ? from.ticket - 1 : 0;
      p.kind = from.kind == fr::kPhaseKernel ? PhaseKind::kKernel
               : from.kind == fr::kPhaseSend ? PhaseKind::kSend
                                             : PhaseKind::kRecv;
      p.wait = p.kind == PhaseKind::kKernel ? PhaseWait::kRunning : phase_wait(from.wait());
      p.channel = from.channel;
      p.peer = from.peer;
      p.step = from.oldest_step();
      p.n_steps = from.n_steps;
      p.time = time(from.ticks);
      if (from.net() == fr::Net::kIb) {
        p.nic = from.net_device();
        p.qp = from.net_number();
      } else if (from.net() == fr::Net::kSocket) {
        p.socket = from.net_number();
      }
      if (own) {
        d.phases.push_back(p);
      } else {
        d.carried.push_back({p, static_cast<int>(from.pid), other.process, other.generation});
      }
    }
    keep_unfinished(d);
    if (const fr::Cuda* cuda = view_.cuda()) {
      cuda_calls(*cuda);
    }
  }

  void cuda_calls(const fr::Cuda& cuda) {
    DeviceEvidence& d = e_.device;
    if (const fr::u32 call = cuda.call.load(); cuda.observer_tid.load() != 0 && call != 0) {
      d.observer_call = e_.text(call);
      d.observer_since = time(cuda.call_ticks.load());
    }
    if (cuda.error_ready.load(std::memory_order_acquire) == 0) {
      return;
    }
    const fr::u64 ticket = cuda.error_ticket.load();
    d.failure = {.present = true,
                 .code = cuda.error_code.load(),
                 .name = std::string(e_.text(cuda.error_name.load())),
                 .text = std::string(e_.text(cuda.error_text.load())),
                 .call = std::string(e_.text(cuda.error_call.load())),
                 .has_record = ticket != 0,
                 .ticket = ticket != 0 ? ticket - 1 : 0,
                 .time = time(cuda.error_ticks.load())};
  }

  void ends() {
    const fr::ExitRecord& x = header_.exit;
    const std::uint32_t state = x.state.load();
    if (state == fr::kRunning && x.ready.load() == 0) {
      return;
    }
    ExitEvidence& out = e_.exit;
    out.present = true;
    out.state = state == fr::kSignalled ? "signalled" : state == fr::kExiting ? "exiting" : "noted";
    out.status = x.status.load();
    out.signal = x.signal.load();
    out.sender_pid = x.sender_pid.load();
    out.time = plausible(static_cast<Time>(x.time_unix_ns.load()));
    if (x.ready.load() != 0) {
      out.stack = x.stack.load();
      out.kind = fixed_text(x.kind, sizeof x.kind);
      out.type = fixed_text(x.type, sizeof x.type);
      out.message = fixed_text(x.message, sizeof x.message);
    }
  }

  const fr::View& view_;
  const fr::Header& header_;
  fr::TickClock clock_;
  RankEvidence& e_;
  std::vector<std::uint64_t> issued_records_;
  std::unordered_map<std::string, Id> interned_;
};

}  // namespace

std::unique_ptr<RankEvidence> load_ring(std::span<const unsigned char> bytes, Time now,
                                        RingKind kind, std::string& why) {
  fr::View view = fr::View::of(bytes.data(), bytes.size());
  std::optional<Completed> completed;
  if (!view.ok() && std::string_view(view.error()) == "truncated") {
    view = completed.emplace(bytes).view();
    if (!view.ok()) {
      why = "truncated ring: its tables are not whole";
      return nullptr;
    }
  }
  if (!view.ok()) {
    why = std::string("damaged ring: ") + view.error();
    return nullptr;
  }
  auto e = std::make_unique<RankEvidence>();
  e->source = Source::kRing;
  Reader(view, *e).read();
  if (completed) {
    const std::uint64_t written =
        std::min<std::uint64_t>(view.header().head.load(), view.n_slots());
    const std::uint64_t present = e->records.size() + e->losses.torn;
    e->losses.cut = written > present ? written - present : 0;
    e->losses.overwritten -= std::min(e->losses.overwritten, e->losses.cut);
    e->holes.truncated = true;
    e->holes.truncated_at = e->records.size();
    count_kept(*e);
  }
  e->written = plausible(static_cast<Time>(view.header().heartbeat_unix_ns.load()));
  for (const Record& r : e->records) {
    e->written = std::max({e->written, r.time, r.ended});
  }
  e->written = std::max(e->written, e->exit.time);
  if (kind == RingKind::kCopy && e->exit.signal != 0) {
    return e;  // its own last words, taken in its signal handler
  }
  if (same_machine(e->id)) {
    if (e->id.pid > 0 && proc_start_of(e->id.pid) == e->id.proc_start) {
      if (kind == RingKind::kRegion) {
        e->source = Source::kLiveRing;
        e->written = now;
      }
    } else {
      e->process_gone = true;
    }
  } else {
    // A copy without last words was taken from a dead process by a peer.
    e->process_gone = kind == RingKind::kCopy;
  }
  return e;
}

}  // namespace frtrace
