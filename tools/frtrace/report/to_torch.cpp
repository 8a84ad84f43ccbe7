// to_torch.cpp - the records as PyTorch Flight Recorder pickles.
#include "report/to_torch.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <unordered_map>

#include "model/operation.hpp"
#include "report/lines.hpp"
#include "report/pickle_writer.hpp"

namespace frtrace {

namespace {

// Operation names that PyTorch's tools accept; they stop at any other.
std::string_view known_op(std::string_view op) {
  static const std::map<std::string, std::string_view, std::less<>> kNames = {
      {"allreduce", "all_reduce"},
      {"allreducecoalesced", "allreduce_coalesced"},
      {"broadcast", "broadcast"},
      {"reduce", "reduce"},
      {"gather", "gather"},
      {"scatter", "scatter"},
      {"allgather", "all_gather"},
      {"allgatherbase", "_all_gather_base"},
      {"allgatherintotensor", "_all_gather_base"},
      {"allgatherintotensorcoalesced", "all_gather_into_tensor_coalesced"},
      {"reducescatter", "reduce_scatter"},
      {"reducescatterbase", "_reduce_scatter_base"},
      {"reducescattertensor", "_reduce_scatter_base"},
      {"reducescattertensorcoalesced", "reduce_scatter_tensor_coalesced"},
      {"alltoall", "all_to_all"},
      {"alltoallbase", "all_to_all"},
      {"alltoallsingle", "all_to_all"},
      {"barrier", "barrier"},
  };
  const auto it = kNames.find(canonical_op(op));
  return it == kNames.end() ? op : it->second;
}

std::string_view known_backend(std::string_view backend) {
  for (const std::string_view known :
       {"nccl", "ncclx", "xccl", "gloo", "rccl", "rcclx", "mccl", "hccl"}) {
    if (backend == known) {
      return known;
    }
  }
  return "nccl";
}

class RankWriter {
 public:
  explicit RankWriter(const RankEvidence& e) : e_(e), names_(e.groups.size()) {
    for (std::size_t row = 1; row < e.groups.size(); ++row) {
      const GroupEvidence& g = e.groups[row];
      names_[row] = e.text(g.name);
      if (g.instance > 1) {
        names_[row] += fmt::format(".{}", g.instance);  // a reused name is another group
      }
    }
  }

  std::string write() {
    w_.open_dict();
    w_.text("version"), w_.text("2.10");
    w_.text("pg_config");
    w_.open_dict();
    each_group([&](std::size_t row, const GroupEvidence& g) {
      w_.text(names_[row]);
      w_.open_dict();
      w_.text("name"), w_.text(names_[row]);
      w_.text("desc"), w_.text(e_.text(g.desc));
      w_.text("ranks"), w_.text(fmt::format("[{}]", fmt::join(members(g), ", ")));
      w_.close_dict();
    });
    w_.close_dict();
    w_.text("pg_status");
    w_.open_dict();
    each_group([&](std::size_t row, const GroupEvidence& g) {
      w_.text(fmt::format("{}", row - 1));
      w_.open_dict();
      field("last_enqueued_collective", g.enqueued);
      field("last_started_collective", std::max(g.started, g.completed));
      field("last_completed_collective", g.completed);
      w_.close_dict();
    });
    w_.close_dict();
    w_.text("comm_lib_version"), w_.text("fr");
    w_.text("entries");
    w_.open_list();
    for (const Record& r : e_.records) {
      if (r.group < e_.groups.size() && r.group != 0 &&
          (r.kind == Kind::kCollective || r.kind == Kind::kSend || r.kind == Kind::kRecv)) {
        entry(r);
      }
    }
    w_.close_list();
    w_.close_dict();
    return w_.finish();
  }

 private:
  template <class F>
  void each_group(F&& f) {
    for (std::size_t row = 1; row < e_.groups.size(); ++row) {
      if (e_.groups[row].used) {
        f(row, e_.groups[row]);
      }
    }
  }

  void field(std::string_view key, std::uint64_t v) {
    w_.text(key);
    w_.number(static_cast<std::int64_t>(v));
  }
  void time(std::string_view key, Time t) {
    w_.text(key);
    if (t == 0) {
      w_.none();
    } else {
      w_.number(t);
    }
  }

  std::vector<Rank> members(const GroupEvidence& g) const {
    std::vector<Rank> out = expand(g.ranks);
    if (out.empty() && g.n_ranks > 0 && g.n_ranks == e_.id.world_size) {
      for (Rank r = 0; r < g.n_ranks; ++r) {
        out.push_back(r);
      }
    }
    return out;
  }

  void sizes(std::string_view key, const std::vector<TensorShape>& tensors, bool known,
             std::uint64_t numel) {
    w_.text(key);
    w_.open_list();
    if (known) {
      for (const TensorShape& t : tensors) {
        w_.open_list();
        for (const std::uint64_t d : t.dims) {
          w_.number(static_cast<std::int64_t>(d));
        }
        w_.close_list();
      }
    } else {
      w_.open_list();
      w_.number(static_cast<std::int64_t>(numel));
      w_.close_list();
    }
    w_.close_list();
  }

  void dtypes(std::string_view key, std::size_t n, Id dtype) {
    w_.text(key);
    w_.open_list();
    for (std::size_t i = 0; i < n; ++i) {
      w_.text(e_.text(dtype));
    }
    w_.close_list();
  }

  void frames(std::uint32_t stack) {
    w_.text("frames");
    w_.open_list();
    if (stack < e_.stacks.size()) {
      for (const std::uint32_t i : e_.stacks[stack]) {
        if (i >= e_.frames.size()) {
          continue;
        }
        if (const auto it = frames_.find(i); it != frames_.end()) {
          w_.get(it->second);
          continue;
        }
        const Frame& f = e_.frames[i];
        w_.open_dict();
        w_.text("name"), w_.text(e_.text(f.func));
        w_.text("filename"), w_.text(e_.text(f.file));
        field("line", f.line);
        w_.close_dict();
        frames_.emplace(i, w_.put());
      }
    }
    w_.close_list();
  }

  void entry(const Record& r) {
    const GroupEvidence& g = e_.groups[r.group];
    const bool p2p = r.kind != Kind::kCollective;
    Count& count = counts_[r.group];
    std::string name = fmt::format("{}:", known_backend(e_.text(g.backend)));
    if (p2p) {
      ++count.p2p;
      name += r.kind == Kind::kSend ? fmt::format("send {}->{}", g.own_rank, r.peer)
                                    : fmt::format("recv {}<-{}", g.own_rank, r.peer);
    } else {
      count.collectives = r.seq;
      name += known_op(e_.text(r.op));
    }
    const bool done = r.state == State::kCompleted || r.state == State::kReleased;
    const bool started = r.state == State::kStarted || r.started != 0;
    const Shape shape = parse_shape(e_, r);

    w_.open_dict();
    frames(r.stack);
    field("record_id", r.ticket);
    field("pg_id", r.group - 1);
    w_.text("process_group"), w_.text(names_[r.group]), w_.text(e_.text(g.desc)), w_.pair();
    w_.text("thread_name"), w_.text("");
    w_.text("thread_id"), w_.text(fmt::format("{}", r.tid));
    field("collective_seq_id", count.collectives);
    field("p2p_seq_id", p2p ? count.p2p : 0);
    field("op_id", ++count.ops);
    w_.text("profiling_name"), w_.text(name);
    w_.text("time_created_ns"), w_.number(r.time);
    sizes("input_sizes", shape.in, shape.known, r.in_numel);
    dtypes("input_dtypes", shape.known ? shape.in.size() : 1, r.in_dtype);
    sizes("output_sizes", shape.out, shape.known, r.out_numel);
    dtypes("output_dtypes", shape.known ? shape.out.size() : 1,
           r.out_dtype != 0 ? r.out_dtype : r.in_dtype);
    w_.text("state"), w_.text(done ? "completed" : started ? "started" : "scheduled");
    time("time_discovered_started_ns", r.started);
    time("time_discovered_completed_ns", done ? r.ended : 0);
    w_.text("retired"), w_.boolean(done);
    field("timeout_ms", r.timeout_ms);
    w_.text("is_p2p"), w_.boolean(p2p);
    w_.close_dict();
  }

  struct Count {
    std::uint64_t collectives = 0, p2p = 0, ops = 0;
  };

  const RankEvidence& e_;
  PickleWriter w_;
  std::vector<std::string> names_;
  std::map<std::uint32_t, Count> counts_;
  std::unordered_map<std::uint32_t, std::uint32_t> frames_;
};

// A pickle has no time of writing; readers use the file's modification time.
void date_file(const std::filesystem::path& path, const RankEvidence& e) {
  if (e.written == 0 || e.holes.written_guessed) {
    return;
  }
  const ::timespec at{static_cast<std::time_t>(e.written / kSecond),
                      static_cast<long>(e.written % kSecond)};
  const ::timespec both[] = {at, at};
  ::utimensat(AT_FDCWD, path.c_str(), both, 0);  // best effort
}

}  // namespace

std::string torch_pickle(const RankEvidence& e) {
  return RankWriter(e).write();
}

int save_torch(const std::vector<Case>& cases, const std::string& dir, std::string& why) {
  namespace fs = std::filesystem;
  int written = 0;
  std::set<std::string> taken;
  for (const Case& c : cases) {
    fs::path to(dir);
    if (cases.size() > 1) {
      std::string job = c.job.empty() ? "job" : printable(c.job);
      std::replace(job.begin(), job.end(), '/', '_');
      if (job.find_first_not_of('.') == std::string::npos) {
        job += "_";
      }
      while (!taken.insert(job).second) {
        job += "_";
      }
      to /= job;
    }
    std::error_code ec;
    fs::create_directories(to, ec);
    for (const RankEvidence* e : c.ranks) {
      const fs::path path = to / fmt::format("fr_trace_rank_{}", std::max(e->id.rank, 0));
      std::ofstream file(path, std::ios::binary | std::ios::trunc);
      const std::string data = torch_pickle(*e);
      file.write(data.data(), static_cast<std::streamsize>(data.size()));
      if (!file.flush()) {
        why = path.string();
        return -1;
      }
      file.close();
      date_file(path, *e);
      ++written;
    }
  }
  return written;
}

}  // namespace frtrace
