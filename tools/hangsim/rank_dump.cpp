// rank_dump.cpp - the tables of a dump but the device's: records, groups, lanes, peers, exit.
#include "rank_dump.hpp"

#include <fmt/format.h>
#include <zstd.h>

namespace hangsim {

using fr::dump::Kind;
using fr::dump::State;

namespace {

std::vector<std::uint32_t> shape_words(const Op& op) {
  if (op.in.empty()) {
    return {};
  }
  const bool same = op.in == op.out;
  std::vector<std::uint32_t> words = {static_cast<std::uint32_t>(op.in.size()) |
                                      static_cast<std::uint32_t>(op.out.size()) << 12 |
                                      (same ? FR_SHAPE_SAME_OUT : 0)};
  const auto add = [&](const std::vector<Dims>& tensors) {
    for (const Dims& dims : tensors) {
      words.push_back(static_cast<std::uint32_t>(dims.size()) |
                      std::uint32_t{fr::dtype_code(op.dtype)} << 8);
      for (const std::int64_t d : dims) {
        words.push_back(static_cast<std::uint32_t>(d));
      }
    }
  };
  add(op.in);
  if (!same) {
    add(op.out);
  }
  if (!op.in_splits.empty()) {
    words[0] |= FR_SHAPE_SPLITS;
    for (const auto* list : {&op.in_splits, &op.out_splits}) {
      words.push_back(static_cast<std::uint32_t>(list->size()));
      for (const std::int64_t v : *list) {
        words.push_back(static_cast<std::uint32_t>(v));
      }
    }
  }
  return words;
}

// First, count and stride of each run of evenly spaced ranks.
std::vector<std::array<int, 3>> runs_of(const std::vector<int>& ranks) {
  std::vector<std::array<int, 3>> out;
  for (std::size_t i = 0; i < ranks.size();) {
    const int stride = i + 1 < ranks.size() ? ranks[i + 1] - ranks[i] : 1;
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] - ranks[end - 1] == stride) {
      ++end;
    }
    out.push_back({ranks[i], static_cast<int>(end - i), stride});
    i = end;
  }
  return out;
}

}  // namespace

std::string RankDump::write() {
  // A dead process observes nothing after its end.
  ended_ = run_.ended && run_.ended_at <= how_.at;
  const Ns at = ended_ ? run_.ended_at : how_.at;
  ops_ = seen(run_, at, e_.timing, false);
  as_devices_tell(at);
  for (std::size_t g = 0; g < c_.job.groups.size(); ++g) {
    if (c_.job.groups[g].position(rank_) >= 0) {
      row_of_[static_cast<int>(g)] = static_cast<int>(row_of_.size()) + 1;
    }
  }
  body(at);
  return compress();
}

std::vector<bool> RankDump::kept() const {
  std::vector<bool> out(ops_.size(), false);
  const std::size_t ring = static_cast<std::size_t>(e_.ring);
  const std::size_t quota =
      std::min<std::size_t>(64, ring / 2 / std::max<std::size_t>(1, row_of_.size()));
  std::map<int, std::size_t> later;
  for (std::size_t i = ops_.size(); i-- > 0;) {
    out[i] = ops_.size() - i <= ring || later[ops_[i].issued->op->group] < quota;
    ++later[ops_[i].issued->op->group];
  }
  return out;
}

void RankDump::records(Packer& p, const std::vector<bool>& keep) {
  columns<schema::kRecords>(
      p, {"ticket",   "time",      "kind",      "seq",        "group",    "op",
          "stack",    "tid",       "peer",      "flags",      "in_numel", "out_numel",
          "in_dtype", "out_dtype", "reduce_op", "timeout_ms", "shape",    "state",
          "started",  "ended",     "error",     "end_tid"});
  p.pack_array(static_cast<std::uint32_t>(std::count(keep.begin(), keep.end(), true)));
  const bool gloo = c_.job.backend == "gloo";
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (!keep[i]) {
      continue;
    }
    const Seen& s = ops_[i];
    const Op& op = *s.issued->op;
    const bool p2p = op.is_p2p();
    p.pack_array(22);
    p.pack(s.ticket);
    p.pack(s.issued->created);
    p.pack(fr::word(op.what == What::kSend   ? Kind::kSend
                    : op.what == What::kRecv ? Kind::kRecv
                                             : Kind::kCollective));
    p.pack(s.issued->seq);
    p.pack(row_of_.at(op.group));
    p.pack(text(op.name));
    p.pack(e_.frames ? stack_of(op.site) : 0);
    p.pack(4000 + rank_);
    p.pack(op.peer);
    p.pack((op.async || s.issued->batch != nullptr ? FR_ASYNC : 0) |
           (gloo && p2p ? FR_WAIT_ONLY : 0));
    p.pack(numel(op.in));
    p.pack(numel(op.out));
    p.pack(std::string(op.dtype));
    p.pack(std::string(op.dtype));
    p.pack(std::string(op.reduce));
    p.pack(600'000);
    const std::vector<std::uint32_t> words = shape_words(op);
    if (words.empty()) {
      p.pack_nil();
    } else {
      p.pack(words);
    }
    p.pack(fr::word(released_[i]   ? State::kReleased
                    : i == failed_ ? State::kFailed
                    : s.done       ? (s.issued->failed ? State::kFailed : State::kCompleted)
                    : gloo && p2p  ? State::kWaiting
                    : s.started    ? State::kStarted
                                   : State::kEnqueued));
    time(p, s.started ? s.issued->started : kNever);
    time(p, released_[i]   ? s.issued->launched
            : i == failed_ ? error_->at
            : s.done       ? s.issued->done
                           : kNever);
    p.pack(text(i == failed_                 ? error_->name + ": " + error_->text
                : s.done && s.issued->failed ? "Connection closed by peer"
                                             : ""));
    p.pack(s.done || released_[i] || i == failed_ ? 4100 + rank_ : 0);
  }
}

int RankDump::stack_of(int site) {
  const auto [it, added] = by_site_.try_emplace(site, static_cast<int>(stacks_.size()) + 1);
  if (added) {
    const Site& s = c_.job.sites[static_cast<std::size_t>(site)];
    std::vector<int>& stack = stacks_.emplace_back();
    stack = {frame("/venv/site-packages/torch/distributed/distributed_c10d.py", 3245, "wrapper"),
             frame("/job/" + s.file, s.line, s.function)};
    for (int i = 0; i < e_.more_frames; ++i) {
      stack.push_back(frame(fmt::format("/job/model/blocks_{}.py", i % 4), 100 + i,
                            fmt::format("layer_{}", i)));
    }
    stack.push_back(frame("/job/train.py", 150, "main"));
    stack.push_back(frame("/job/train.py", 163, "<module>"));
  }
  return it->second;
}

int RankDump::frame(const std::string& file, int line, const std::string& function) {
  const std::array<std::uint32_t, 3> f = {text(file), text(function),
                                          static_cast<std::uint32_t>(line)};
  const auto it = std::find(frames_.begin(), frames_.end(), f);
  if (it != frames_.end()) {
    return static_cast<int>(it - frames_.begin());
  }
  frames_.push_back(f);
  return static_cast<int>(frames_.size()) - 1;
}

std::map<int, RankDump::Sums> RankDump::sums_of(const std::vector<bool>& keep) const {
  std::map<int, Sums> sums;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const Seen& s = ops_[i];
    Sums& g = sums[s.issued->op->group];
    if (s.issued->op->is_p2p()) {
      ++g.p2p;
      g.p2p_ended += s.done || is_over(i) ? 1 : 0;
      g.p2p_time = s.issued->created;
      continue;
    }
    g.all.add(s, is_over(i), i == failed_);
    g.released += released_[i] ? 1 : 0;
    if (keep[i]) {
      g.first = g.kept == 0 ? s.issued->seq : g.first;
      g.last = s.issued->seq;
      ++g.kept;
    }
  }
  return sums;
}

void RankDump::groups(Packer& p, const std::vector<bool>& keep) {
  std::map<int, Sums> sums = sums_of(keep);
  columns<schema::kGroups>(p, {"group",
                               "name",
                               "desc",
                               "backend",
                               "instance",
                               "n_ranks",
                               "own_rank",
                               "ranks",
                               "created",
                               "destroyed",
                               "enqueued",
                               "enqueued_time",
                               "started",
                               "started_time",
                               "completed",
                               "completed_time",
                               "ended",
                               "failed",
                               "p2p_enqueued",
                               "p2p_time",
                               "p2p_ended",
                               "lifecycle",
                               "lifecycle_ended",
                               "untracked",
                               "wait_only",
                               "wait_only_ended",
                               "released",
                               "kept",
                               "first_kept",
                               "last_kept",
                               "overwritten",
                               "dropped"});
  p.pack_array(static_cast<std::uint32_t>(row_of_.size()) + 1);
  p.pack_nil();
  for (const auto& [index, row] : row_of_) {
    const Group& g = c_.job.groups[static_cast<std::size_t>(index)];
    const Sums& s = sums[index];
    p.pack_array(32);
    p.pack(row);
    p.pack(text(g.name));
    p.pack(text(g.desc));
    p.pack(text(c_.job.backend));
    p.pack(1);
    p.pack(g.ranks.size());
    p.pack(g.position(rank_));
    p.pack(runs_of(g.ranks));
    time(p, 0);
    p.pack_nil();
    p.pack(s.all.enqueued);
    time(p, s.all.enqueued_time);
    p.pack(s.all.started);
    time(p, s.all.started_time);
    p.pack(s.all.completed);
    time(p, s.all.completed_time);
    p.pack(s.all.ended);
    p.pack(s.all.failed);
    p.pack(s.p2p);
    time(p, s.p2p_time);
    p.pack(s.p2p_ended);
    p.pack(1);
    p.pack(1);
    for (int i = 0; i < 3; ++i) {
      p.pack(0);
    }
    p.pack(s.released);
    p.pack(s.kept);
    if (s.kept == 0) {
      p.pack_nil();
      p.pack_nil();
    } else {
      p.pack(s.first);
      p.pack(s.last);
    }
    p.pack(s.all.enqueued - s.kept);
    p.pack(0);
  }
}

void RankDump::lanes(Packer& p) {
  std::map<std::tuple<int, int, bool>, Frontier> lanes;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const Op& op = *ops_[i].issued->op;
    if (op.is_p2p()) {
      lanes[{row_of_.at(op.group), op.peer, op.what == What::kSend}].add(ops_[i], is_over(i),
                                                                         i == failed_);
    }
  }
  columns<schema::kLanes>(p, {"group", "peer", "direction", "enqueued", "enqueued_time", "started",
                              "completed", "completed_time", "ended", "failed"});
  p.pack_array(static_cast<std::uint32_t>(lanes.size()));
  for (const auto& [lane, f] : lanes) {
    p.pack_array(10);
    p.pack(std::get<0>(lane));
    p.pack(std::get<1>(lane));
    p.pack(fr::word(std::get<2>(lane) ? Kind::kSend : Kind::kRecv));
    p.pack(f.enqueued);
    time(p, f.enqueued_time);
    p.pack(f.started);
    p.pack(f.completed);
    time(p, f.completed_time);
    p.pack(f.ended);
    p.pack(f.failed);
  }
}

void RankDump::identity(Packer& p) {
  const int node = c_.job.node(rank_);
  const int last = std::min(c_.job.world, (node + 1) * c_.job.ranks_per_node);
  key(p, "identity");
  p.pack_map(17);
  field(p, "job", c_.name);
  field(p, "attempt", c_.attempt);
  field(p, "rank", rank_);
  field(p, "local_rank", rank_ % c_.job.ranks_per_node);
  field(p, "world_size", c_.job.world);
  field(p, "local_world_size", last - node * c_.job.ranks_per_node);
  field(p, "host", fmt::format("node{:03}", node));
  field(p, "boot_id", fmt::format("boot-{}", node));
  field(p, "pid", 4000 + rank_);
  field(p, "run", c_.seed + static_cast<std::uint64_t>(c_.attempt) + 1);
  field(p, "start_unix_ns", unix_time(e_, rank_, -20 * kSecond));
  field(p, "proc_start", 1000 + rank_);
  field(p, "command", "train.py");
  field(p, "cwd", "/job");
  field(p, "recorder", "hangsim");
  field(p, "memory", "shm");
  field(p, "n_records", e_.ring);
}

void RankDump::peers(Packer& p) {
  const int node = c_.job.node(rank_);
  const int first = node * c_.job.ranks_per_node;
  const int last = std::min(c_.job.world, first + c_.job.ranks_per_node);
  key(p, "peers");
  p.pack_array(static_cast<std::uint32_t>(last - first - 1));
  for (int r = first; r < last; ++r) {
    if (r == rank_) {
      continue;
    }
    const RankRun& run = c_.run_of(r);
    const bool ended = run.ended && run.ended_at <= how_.at;
    p.pack_map(9);
    field(p, "rank", r);
    field(p, "local_rank", r - first);
    field(p, "pid", 4000 + r);
    field(p, "state",
          std::string(fr::word(!ended                           ? fr::dump::Peer::kLive
                               : run.how == ExitHow::kClean     ? fr::dump::Peer::kExitedClean
                               : run.how == ExitHow::kException ? fr::dump::Peer::kExited
                                                                : fr::dump::Peer::kGone)));
    field(p, "status", ended && run.how == ExitHow::kException ? 1 : 0);
    field(p, "signal", 0);
    key(p, "exit_time");
    time(p, ended && run.how != ExitHow::kKilled ? run.ended_at : kNever);
    const bool known = ended && !run.issued.empty();
    field(p, "last_op", known ? std::string(run.issued.back().op->name) : std::string());
    field(p, "last_site", std::string());
  }
}

void RankDump::exit_record(Packer& p) {
  key(p, "exit");
  if (!ended_ || (run_.how == ExitHow::kKilled && !run_.terminated)) {
    p.pack_nil();
    return;
  }
  const std::size_t colon = run_.error.find(": ");
  p.pack_map(9);
  field(p, "state", run_.terminated ? "signalled" : "exiting");
  field(p, "status", run_.terminated ? 0 : 1);
  field(p, "signal", run_.terminated ? 15 : 0);
  field(p, "sender_pid", run_.terminated ? 3000 : 0);
  field(p, "kind",
        std::string(
            fr::word(run_.terminated ? fr::dump::ExitBy::kSignal : fr::dump::ExitBy::kException)));
  field(p, "type", colon == std::string::npos ? "" : run_.error.substr(0, colon));
  field(p, "message", colon == std::string::npos ? "" : run_.error.substr(colon + 2));
  field(p, "stack", 0);
  key(p, "time");
  time(p, run_.ended_at);
}

void RankDump::body(Ns at) {
  const std::vector<bool> keep = kept();
  msgpack::sbuffer group_table, lane_table, record_table;
  Packer g(group_table), l(lane_table), r(record_table);
  error_id_ = error_ == nullptr ? 0 : text(error_->name + ": " + error_->text);
  groups(g, keep);
  lanes(l);
  records(r, keep);

  Packer p(out_);
  p.pack_map(24);
  field(p, "format", "fr.dump");
  field(p, "version", 1);
  identity(p);
  field(p, "reason", how_.reason);
  field(p, "incident", 1);
  field(p, "trigger", how_.trigger);
  field(p, "written_unix_ns", unix_time(e_, rank_, how_.at));
  key(p, "salvage");
  if (how_.salvaged_by) {
    p.pack_map(2);
    field(p, "by_rank", *how_.salvaged_by);
    field(p, "why", ended_ ? "dead" : "unresponsive");
  } else {
    p.pack_nil();
  }
  key(p, "options");
  p.pack_array(1);
  p.pack(std::vector<std::string>{"FR_TIMEOUT_S", "60", "default"});
  key(p, "layers");
  p.pack_map(1);
  field(p, "torch", "simulated");
  key(p, "clock");
  p.pack_map(3);
  field(p, "kind", "monotonic");
  field(p, "base_unix_ns", unix_time(e_, rank_, 0));
  key(p, "anchors");
  p.pack_array(1);
  p.pack(std::vector<Ns>{at, unix_time(e_, rank_, at), at});
  field(p, "strings", strings_);
  field(p, "frames", frames_);
  key(p, "stacks");
  p.pack_array(static_cast<std::uint32_t>(stacks_.size()) + 1);
  p.pack_array(0);
  for (const auto& s : stacks_) {
    p.pack(s);
  }
  key(p, "groups");
  out_.write(group_table.data(), group_table.size());
  key(p, "lanes");
  out_.write(lane_table.data(), lane_table.size());
  key(p, "records");
  out_.write(record_table.data(), record_table.size());
  key(p, "notes");
  p.pack_map(3);
  field(p, "step", step_at(at));
  key(p, "step_time");
  p.pack_nil();
  key(p, "threads");
  p.pack_array(0);
  key(p, "losses");
  p.pack_map(1);
  field(p, "overwritten", static_cast<std::uint64_t>(std::count(keep.begin(), keep.end(), false)));
  device(p, at);
  exit_record(p);
  peers(p);
  key(p, "threads");
  p.pack_array(0);
  field(p, "simulated", true);
}

int RankDump::step_at(Ns at) const {
  int step = 0;
  for (const Seen& s : ops_) {
    if (s.issued->created <= at) {
      step = s.issued->batch != nullptr ? s.issued->batch->step : s.issued->op->step;
    }
  }
  return step;
}

std::string RankDump::compress() const {
  std::string out(ZSTD_compressBound(out_.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), out_.data(), out_.size(), 1));
  return out;
}

}  // namespace hangsim
