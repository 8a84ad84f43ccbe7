// kineto.cpp - one pass over the events; only those of collectives are kept (torch 2.13, tested
// with gloo; for NCCL the argument names are those of torch/csrc/profiler/util.h):
//
//   {"cat": "cpu_op", "name": "record_param_comms", "ts": .., "dur": .., "args": {"External id": 7,
//    "Collective name": "allreduce", "Seq": 3, "Process Group Name": "0", ...}}   issued
//   {"cat": "kernel", "name": "ncclDevKernel_AllReduce...", ..., "args": {"External id": 7, ...}}
//   {"cat": "user_annotation", "name": "gloo:all_reduce", ...}   ran; neither group nor number
//
// Times are microseconds since baseTimeNanoseconds.
#include "input/other_tools/kineto.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "input/files.hpp"
#include "input/fr/string_ids.hpp"
#include "input/memory.hpp"

namespace frtrace {

namespace {

constexpr std::size_t kMostOfTrace = std::size_t{1} << 22, kMostTraceGroups = 4096,
                      kMostTraceText = 256, kMostTraceStrings = 4 * kMostTraceGroups;

// One event of the trace.
struct TraceEvent {
  std::string name, category, collective, group, desc;
  double begin_us = -1, length_us = -1;
  std::int64_t id = -1, seq = -1;
};

struct TraceOperation {
  std::string op, group, desc;
  double issued_us = 0, begin_us = 0, length_us = -1;  // -1: it has no kernel
  std::int64_t id = -1, seq = -1;
};

struct TraceGroup {
  std::string name, desc, backend;
  std::vector<Rank> ranks;
};

class ProfilerTrace : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t v) override { return number(static_cast<double>(v), v); }
  bool number_unsigned(number_unsigned_t v) override {
    const auto whole = static_cast<std::int64_t>(std::min<std::uint64_t>(v, INT64_MAX));
    return number(static_cast<double>(v), whole);
  }
  bool number_float(number_float_t v, const string_t&) override {
    return number(v, std::abs(v) < 9e18 ? static_cast<std::int64_t>(v) : 0);
  }
  bool string(string_t& s) override {
    text(std::string_view(s).substr(0, kMostTraceText));
    return true;
  }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& s) override {
    keys_[depth_] = std::string_view(s).substr(0, kMostTraceText);
    return true;
  }
  bool start_object(std::size_t) override {
    if (!open()) {
      return false;
    }
    if (in_events(3)) {
      event_ = {};
    } else if (in_groups(4) && groups.size() < kMostTraceGroups) {
      groups.emplace_back();
    }
    return true;
  }
  bool end_object() override {
    if (in_events(3)) {
      keep();
    }
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

  Rank rank = -1;
  int world = 0;
  std::string host, backend;
  Time base = 0;
  std::vector<TraceGroup> groups;
  std::vector<TraceOperation> issued, kernels, gloo;

 private:
  static constexpr std::size_t kMaxDepth = 64;

  bool open() {
    if (++depth_ >= kMaxDepth) {
      return false;
    }
    keys_[depth_].clear();
    return true;
  }
  bool in_events(std::size_t depth) const { return depth_ == depth && keys_[1] == "traceEvents"; }
  bool in_groups(std::size_t depth) const {
    return depth_ == depth && keys_[1] == "distributedInfo" && keys_[2] == "pg_config";
  }
  const std::string& key() const { return keys_[depth_]; }

  bool number(double v, std::int64_t whole) {
    if (in_events(3)) {
      event_.begin_us = key() == "ts" ? v : event_.begin_us;
      event_.length_us = key() == "dur" ? v : event_.length_us;
    } else if (in_events(4) && keys_[3] == "args") {
      event_.id = key() == "External id" ? whole : event_.id;
      event_.seq = key() == "Seq" ? whole : event_.seq;
    } else if (depth_ == 1 && key() == "baseTimeNanoseconds") {
      base = whole;
    } else if (depth_ == 2 && keys_[1] == "distributedInfo") {
      rank = key() == "rank" && whole >= 0 && whole < (1 << 24) ? static_cast<Rank>(whole) : rank;
      world =
          key() == "world_size" && whole > 0 && whole < (1 << 24) ? static_cast<int>(whole) : world;
    } else if (in_groups(5) && keys_[4] == "ranks" && !groups.empty() && whole >= 0 &&
               whole < (1 << 24)) {
      FileMemory::take(sizeof(Rank));
      groups.back().ranks.push_back(static_cast<Rank>(whole));
    }
    return true;
  }

  void text(std::string_view v) {
    const auto set = [&](std::string& to, std::string_view name) {
      if (key() == name) {
        to = v;
      }
    };
    if (in_events(3)) {
      set(event_.name, "name");
      set(event_.category, "cat");
    } else if (in_events(4) && keys_[3] == "args") {
      set(event_.collective, "Collective name");
      set(event_.group, "Process Group Name");
      set(event_.desc, "Process Group Description");
    } else if (depth_ == 1) {
      set(host, "host_name");
    } else if (depth_ == 2 && keys_[1] == "distributedInfo") {
      set(backend, "backend");
    } else if (in_groups(4) && !groups.empty()) {
      set(groups.back().name, "pg_name");
      set(groups.back().desc, "pg_desc");
    }
  }

  void keep() {
    const TraceEvent& e = event_;
    constexpr std::string_view kGloo = "gloo:";
    const bool ours = e.name == "record_param_comms" || e.category == "kernel";
    if (e.begin_us < 0 || e.length_us < 0 ||
        issued.size() + kernels.size() + gloo.size() >= kMostOfTrace) {
      return;
    }
    TraceOperation op{e.collective, e.group,     e.desc, e.begin_us,
                      e.begin_us,   e.length_us, e.id,   e.seq};
    if (e.name.starts_with(kGloo) && e.category == "user_annotation") {
      op.op = e.name.substr(kGloo.size());
      add(std::move(op), gloo);
    } else if (ours && e.category == "kernel" && e.name.starts_with("nccl")) {
      add(std::move(op), kernels);
    } else if (ours && e.category != "kernel" && !e.collective.empty() && !e.group.empty()) {
      op.length_us = -1;
      add(std::move(op), issued);
    }
  }
  static void add(TraceOperation op, std::vector<TraceOperation>& to) {
    FileMemory::take(sizeof op + op.op.size() + op.group.size() + op.desc.size());
    to.push_back(std::move(op));
  }

  std::array<std::string, kMaxDepth + 1> keys_;  // of the open objects
  std::size_t depth_ = 0;
  TraceEvent event_;
};

// Names used by Kineto, with those of torch.distributed.
std::string_view name_of_op(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kSame[] = {
      {"allreduce", "all_reduce"},
      {"allgather", "all_gather"},
      {"_allgather_base", "all_gather_into_tensor"},
      {"reducescatter", "reduce_scatter"},
      {"_reduce_scatter_base", "reduce_scatter_tensor"},
      {"all_to_all", "all_to_all"},
      {"all_to_allv", "all_to_all_single"}};
  for (const auto& [theirs, ours] : kSame) {
    if (name == theirs) {
      return ours;
    }
  }
  return name;
}

// A kernel belongs to the call with its id, else to the call with its group and number.
void join_kernels(ProfilerTrace& t) {
  std::unordered_map<std::int64_t, TraceOperation*> by_id;
  std::map<std::tuple<std::string_view, std::int64_t>, TraceOperation*> by_number;
  for (TraceOperation& op : t.issued) {
    if (op.id >= 0) {
      by_id.try_emplace(op.id, &op);
    }
    if (op.seq >= 0) {
      by_number.try_emplace({op.group, op.seq}, &op);
    }
  }
  for (const TraceOperation& kernel : t.kernels) {
    const auto id = by_id.find(kernel.id);
    const auto number = by_number.find({kernel.group, kernel.seq});
    TraceOperation* const op = id != by_id.end()           ? id->second
                               : number != by_number.end() ? number->second
                                                           : nullptr;
    if (op == nullptr) {
      continue;
    }
    const double end = kernel.begin_us + kernel.length_us;
    const bool first = op->length_us < 0;
    const double begin = first ? kernel.begin_us : std::min(op->begin_us, kernel.begin_us);
    op->length_us = (first ? end : std::max(op->begin_us + op->length_us, end)) - begin;
    op->begin_us = begin;
  }
}

// gloo's events name no group: they are assigned only if the trace has a single group.
bool give_group(ProfilerTrace& t) {
  const auto one = [](const TraceGroup& g) { return g.ranks.size() > 1; };
  if (std::count_if(t.groups.begin(), t.groups.end(), one) != 1) {
    return false;
  }
  const TraceGroup& group = *std::find_if(t.groups.begin(), t.groups.end(), one);
  for (TraceOperation& op : t.gloo) {
    op.group = group.name;
    op.desc = group.desc;
    t.issued.push_back(std::move(op));
  }
  return true;
}

class TraceWriter {
 public:
  TraceWriter(const ProfilerTrace& t, RankEvidence& e) : t_(t), e_(e), ids_(e.strings.edit()) {
    e.strings.emplace_back();
    e.strings.edit().reserve(kMostTraceStrings + 8);  // the strings must not move
    e.stacks.emplace_back();
    e.groups.emplace_back();
    e.groups[0].used = true;
    for (const TraceGroup& g : t.groups) {
      if (e.groups.size() > kMostTraceGroups) {
        break;
      }
      GroupEvidence& own = e.groups[row(g.name, g.desc)];
      own.n_ranks = static_cast<std::int32_t>(g.ranks.size());
      own.ranks.clear();
      for (const Rank r : g.ranks) {
        own.ranks.push_back({r, 1, 1});
      }
    }
  }

  // Must be called in the order of the calls.
  void write(const TraceOperation& op) {
    if (e_.groups.size() > kMostTraceGroups || e_.strings.size() > kMostTraceStrings) {
      return;
    }
    Record r;
    r.group = row(op.group, op.desc);
    r.op = ids_(name_of_op(op.op));
    r.time = at(op.issued_us);
    r.started = op.length_us < 0 ? 0 : std::max(r.time, at(op.begin_us));
    r.ended = op.length_us < 0 ? 0 : std::max(r.started, at(op.begin_us + op.length_us));
    r.state = State::kCompleted;
    r.kind = op.op == "send" ? Kind::kSend : op.op == "recv" ? Kind::kRecv : Kind::kCollective;
    if (r.time == 0) {
      return;
    }
    if (r.kind == Kind::kCollective) {
      std::uint64_t& last = seqs_[r.group];
      r.seq = op.seq >= 0 ? static_cast<std::uint64_t>(op.seq) + 1 : last + 1;
      if (r.seq <= last || r.seq >> 62 != 0) {
        return;  // another part of a batch
      }
      last = r.seq;
      GroupEvidence& g = e_.groups[r.group];
      g.enqueued = g.completed = g.ended = r.seq;
    }
    r.ticket = e_.records.size();
    e_.written = e_.newest = std::max({e_.newest, r.time, r.ended});
    e_.records.push_back(r);
  }

 private:
  Time at(double us) const {
    return us < 9e15 ? plausible(t_.base + static_cast<Time>(us * 1000)) : 0;
  }
  std::uint32_t row(const std::string& name, const std::string& desc) {
    const auto [it, added] = rows_.try_emplace(name, static_cast<std::uint32_t>(e_.groups.size()));
    if (added) {
      GroupEvidence& g = e_.groups.emplace_back();
      g.used = true;
      g.name = ids_(name);
      g.desc = desc == "undefined" ? 0 : ids_(desc);
      g.backend = ids_(t_.backend);
    }
    return it->second;
  }

  const ProfilerTrace& t_;
  RankEvidence& e_;
  StringIds ids_;
  std::map<std::string, std::uint32_t> rows_;
  std::map<std::uint32_t, std::uint64_t> seqs_;
};

// The range of numbers that all members have.
struct TraceRange {
  std::uint64_t first = 0, last = UINT64_MAX, most = 0;
};

std::string folder_of_trace(const std::string& file) {
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash);
}

}  // namespace

bool is_kineto(std::span<const unsigned char> begin) {
  constexpr std::size_t kBegin = 4096;
  const std::string_view text(reinterpret_cast<const char*>(begin.data()),
                              std::min(begin.size(), kBegin));
  return text.find("\"schemaVersion\"") != std::string_view::npos &&
         (text.find("\"distributedInfo\"") != std::string_view::npos ||
          text.find("\"traceEvents\"") != std::string_view::npos);
}

std::unique_ptr<RankEvidence> load_kineto(std::span<const unsigned char> json, std::string& why) {
  ProfilerTrace t;
  const std::string_view text(reinterpret_cast<const char*>(json.data()), json.size());
  if (!nlohmann::json::sax_parse(text, &t)) {
    why = "a trace of torch.profiler that is damaged or cut off";
    return nullptr;
  }
  if (t.rank < 0 || t.base <= 0) {
    why = "a trace of torch.profiler that does not tell its rank (distributedInfo)";
    return nullptr;
  }
  if (!t.gloo.empty() && !give_group(t)) {
    why = "a trace of torch.profiler that does not tell of which group gloo's operations are";
    return nullptr;
  }
  join_kernels(t);
  std::stable_sort(
      t.issued.begin(), t.issued.end(),
      [](const TraceOperation& a, const TraceOperation& b) { return a.issued_us < b.issued_us; });
  auto e = std::make_unique<RankEvidence>();
  e->id.rank = t.rank;
  e->id.world_size = t.world;
  e->id.host = t.host;
  e->id.recorder = "torch.profiler";
  e->format = "Kineto trace";
  e->holes.only_times = true;
  TraceWriter writer(t, *e);
  for (const TraceOperation& op : t.issued) {
    writer.write(op);
  }
  if (e->records.empty()) {
    why = "a trace of torch.profiler without collectives";
    return nullptr;
  }
  count_kept(*e);
  return e;
}

void settle_kineto(std::vector<std::unique_ptr<RankEvidence>>& all) {
  const auto is_trace = [](const auto& e) { return e->holes.only_times; };
  const auto tells_more = [&](const auto& e) {
    return !is_trace(e) && e->id.recorder != "NCCL's Inspector";
  };
  if (std::any_of(all.begin(), all.end(), tells_more)) {
    std::erase_if(all, is_trace);
  }
  std::map<std::tuple<std::string, std::string>, TraceRange> ranges;  // by folder and group
  const auto range_of = [&](const RankEvidence& e, const GroupEvidence& g) -> TraceRange& {
    return ranges[{folder_of_trace(e.file), std::string(e.text(g.name))}];
  };
  for (const auto& e : all) {
    for (const GroupEvidence& g : is_trace(e) ? e->groups : std::vector<GroupEvidence>{}) {
      if (g.enqueued != 0) {
        TraceRange& r = range_of(*e, g);
        r.first = std::max(r.first, g.first_kept);
        r.last = std::min(r.last, g.enqueued);
        r.most = std::max(r.most, g.enqueued);
      }
    }
  }
  for (const auto& e : all) {
    if (!is_trace(e)) {
      continue;
    }
    std::vector<TraceRange> rows;
    for (GroupEvidence& g : e->groups) {
      rows.push_back(g.enqueued != 0 ? range_of(*e, g) : TraceRange());
      if (e->text(g.backend) == "gloo" && rows.back().last != rows.back().most) {
        rows.back().last = 0;  // gloo counts from the beginning of the trace, which differs by rank
      }
      g.enqueued = g.completed = g.ended = std::min(g.enqueued, rows.back().last);
    }
    std::erase_if(e->records, [&](const Record& x) {
      const TraceRange& r = rows[x.group];
      return x.kind == Kind::kCollective && (x.seq < r.first || x.seq > r.last);
    });
    count_kept(*e);
    const std::string folder = folder_of_trace(e->file);
    e->id.job = folder.empty() ? "traces" : folder.substr(folder.rfind('/') + 1);
  }
}

}  // namespace frtrace
