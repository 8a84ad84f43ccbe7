// Dumps of PyTorch's own recorder: pickle as torch::jit::Pickler writes it, or JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "case.hpp"

namespace hangsim {

namespace {

// Its own, not frtrace's: --to-torch is compared with dumps that share no code with it.
class Pickle {
 public:
  static constexpr bool kJson = false;
  void none() { out_ += 'N'; }
  void boolean(bool v) { out_ += v ? '\x88' : '\x89'; }
  void number(std::int64_t v) {
    if (v >= 0 && v < 256) {
      out_ += 'K';
      out_ += static_cast<char>(v);
    } else if (v >= 0 && v < 65536) {
      out_ += 'M';
      little(static_cast<std::uint16_t>(v));
    } else if (v >= INT32_MIN && v <= INT32_MAX) {
      out_ += 'J';
      little(static_cast<std::int32_t>(v));
    } else {
      out_ += "\x8a\x08";
      little(v);
    }
  }
  void text(std::string_view s) {
    const auto [it, added] = memo_.try_emplace(std::string(s), next_);
    if (!added) {
      get(it->second);
      return;
    }
    out_ += 'X';
    little(static_cast<std::uint32_t>(s.size()));
    out_ += s;
    put();
  }
  void key(std::string_view s) { text(s); }
  void open_dict() { out_ += "}("; }
  void close_dict() { out_ += 'u'; }
  void open_list() { out_ += "]("; }
  void close_list() { out_ += 'e'; }
  void pair(std::string_view a, std::string_view b) {
    text(a);
    text(b);
    out_ += '\x86';
  }
  // One object for equal frames.
  bool shared(int id) {
    const auto it = objects_.find(id);
    if (it == objects_.end()) {
      return false;
    }
    get(it->second);
    return true;
  }
  void share(int id) { objects_.emplace(id, put()); }
  std::string finish() { return "\x80\x02" + out_ + '.'; }

 private:
  template <class T>
  void little(T v) {
    char bytes[sizeof v];
    std::memcpy(bytes, &v, sizeof v);
    out_.append(bytes, sizeof bytes);
  }
  std::uint32_t put() {
    if (next_ < 256) {
      out_ += 'q';
      out_ += static_cast<char>(next_);
    } else {
      out_ += 'r';
      little(next_);
    }
    return next_++;
  }
  void get(std::uint32_t i) {
    if (i < 256) {
      out_ += 'h';
      out_ += static_cast<char>(i);
    } else {
      out_ += 'j';
      little(i);
    }
  }
  std::string out_;
  std::unordered_map<std::string, std::uint32_t> memo_;
  std::unordered_map<int, std::uint32_t> objects_;
  std::uint32_t next_ = 0;
};

// The same calls, to text.
class JsonText {
 public:
  static constexpr bool kJson = true;
  void none() { number(0); }  // so it writes times that are not known
  void boolean(bool v) { add(v ? "true" : "false"); }
  void number(std::int64_t v) { add(fmt::format("{}", v)); }
  void text(std::string_view s) { add(nlohmann::json(s).dump()); }
  void key(std::string_view s) {
    text(s);
    out_ += ':';
    first_ = true;
  }
  void open_dict() { open('{'); }
  void close_dict() { close('}'); }
  void open_list() { open('['); }
  void close_list() { close(']'); }
  void pair(std::string_view a, std::string_view b) {
    open_list();
    text(a);
    text(b);
    close_list();
  }
  bool shared(int) { return false; }
  void share(int) {}
  std::string finish() { return out_; }

 private:
  void add(std::string_view s) {
    out_ += first_ ? "" : ",";
    out_ += s;
    first_ = false;
  }
  void open(char c) {
    add(std::string(1, c));
    first_ = true;
  }
  void close(char c) {
    out_ += c;
    first_ = false;
  }
  std::string out_;
  bool first_ = true;
};

// The names that the backends give their operations.
std::string_view profiling(std::string_view op) {
  static const std::map<std::string_view, std::string_view> kNames = {
      {"all_gather_into_tensor", "_all_gather_base"},
      {"reduce_scatter_tensor", "_reduce_scatter_base"},
      {"all_to_all_single", "all_to_all"},
      {"barrier", "all_reduce_barrier"}};
  const auto it = kNames.find(op);
  return it == kNames.end() ? op : it->second;
}

// The name of an operation in gloo, which builds some operations from others.
std::string_view gloo_name(std::string_view op) {
  static const std::map<std::string_view, std::string_view> kNames = {
      {"all_gather_into_tensor", "all_gather"},
      {"reduce_scatter_tensor", "all_reduce"},
      {"all_reduce_coalesced", "all_reduce"},
      {"all_to_all_single", "all_to_all"}};
  const auto it = kNames.find(op);
  return it == kNames.end() ? op : it->second;
}

template <class Out>
class RankDump {
 public:
  RankDump(const Case& c, int rank)
      : c_(c), e_(c.torch), rank_(rank), gloo_(c.job.backend == "gloo"), run_(c.run_of(rank)) {
    if (version() != "list") {
      major_ = std::atoi(version().c_str());
      minor_ = std::atoi(version().c_str() + version().find('.') + 1);
    }
    for (std::size_t g = 0; g < c.job.groups.size(); ++g) {
      if (c.job.groups[g].position(rank) >= 0) {
        pg_id_[static_cast<int>(g)] = static_cast<int>(pg_id_.size());
      }
    }
  }

  std::string write() {
    const Ns at =
        std::min(e_.at[static_cast<std::size_t>(rank_)], run_.ended ? run_.ended_at : INT64_MAX);
    ops_ = seen(run_, at, e_.timing && !gloo_, true);
    if (gloo_) {
      // gloo counts sends and receives (op_id), and does not record them.
      std::erase_if(ops_, [](const Seen& s) { return s.issued->op->what != What::kCollective; });
      for (std::size_t i = 0; i < ops_.size(); ++i) {
        ops_[i].ticket = i;
      }
    }
    if (major_ > 0) {
      w_.open_dict();
      w_.key("version"), w_.text(version());
      config();
      if (since(2, 6)) {
        w_.key(since(2, 9) ? "comm_lib_version" : "nccl_version");
        w_.text(gloo_ ? "" : "2.27.3");
      }
      if (Evidence::has_status(version())) {
        status();
      }
      w_.key("entries");
    }
    w_.open_list();
    const std::size_t first =
        ops_.size() - std::min(ops_.size(), static_cast<std::size_t>(e_.ring));
    for (std::size_t i = first; i < ops_.size(); ++i) {
      // Members of a batch have no events of their own and so never end.
      const bool member = ops_[i].issued->batch != nullptr && ops_[i].issued->op->is_p2p();
      // Nor do the members of a coalesced collective.
      const bool parts = c_.wide && since(2, 7) && !ops_[i].issued->op->parts.empty() && !member;
      if (e_.only_active && ops_[i].done && parts) {
        for (const Op& part : ops_[i].issued->op->parts) {
          if (part.what == What::kCollective) {
            entry(ops_[i], part, true);
          }
        }
      }
      if (!e_.only_active || !ops_[i].done || member || gloo_) {
        if (since(2, 7) && ops_[i].issued->op->what == What::kCollective && !gloo_) {
          for (const Op& part : ops_[i].issued->op->parts) {
            entry(ops_[i], part, true);
          }
        }
        entry(ops_[i], *ops_[i].issued->op, member);
      }
    }
    w_.close_list();
    if (major_ > 0) {
      w_.close_dict();
    }
    return w_.finish();
  }

 private:
  const std::string& version() const { return e_.version_of(rank_); }
  bool since(int major, int minor) const {
    return std::pair(major_, minor_) >= std::pair(major, minor);
  }
  const Group& group(int g) const { return c_.job.groups[static_cast<std::size_t>(g)]; }

  // A group is known once its communicator is: at its first operation.
  void config() {
    w_.key("pg_config");
    w_.open_dict();
    std::vector<int> used;
    for (const Seen& s : ops_) {
      if (std::find(used.begin(), used.end(), s.issued->op->group) == used.end()) {
        used.push_back(s.issued->op->group);
      }
    }
    for (const auto& [g, id] : pg_id_) {
      if (std::find(used.begin(), used.end(), g) != used.end() && !gloo_) {
        one_config(group(g).name, group(g).desc,
                   fmt::format("[{}]", fmt::join(group(g).ranks, ", ")));
      }
    }
    if (gloo_) {
      one_config("", "", "[]");
    }
    w_.close_dict();
  }
  void one_config(std::string_view name, std::string_view desc, const std::string& ranks) {
    w_.key(name);
    w_.open_dict();
    w_.key("name"), w_.text(name);
    w_.key("desc"), w_.text(desc);
    w_.key("ranks"), w_.text(ranks);
    w_.close_dict();
  }

  void status() {
    struct Last {
      std::int64_t enqueued = -1, started = -1, completed = -1;
    };
    std::map<int, Last> last;
    for (const Seen& s : ops_) {
      const Op& op = *s.issued->op;
      if (op.is_p2p() && s.issued->batch != nullptr) {
        continue;
      }
      const auto seq = static_cast<std::int64_t>(gloo_                          ? s.issued->ops
                                                 : op.what == What::kCollective ? s.issued->seq
                                                                                : s.issued->p2p);
      Last& l = last[pg_id_.at(op.group)];
      l.enqueued = seq;
      l.started = s.started ? seq : l.started;
      l.completed = s.done && !s.issued->failed ? seq : l.completed;
    }
    w_.key("pg_status");
    w_.open_dict();
    for (const auto& [id, l] : last) {
      w_.key(fmt::format("{}", id));
      w_.open_dict();
      const auto field = [&](std::string_view key, std::int64_t v) {
        w_.key(key);
        if (Out::kJson) {
          w_.text(fmt::format("{}", v));
        } else {
          w_.number(v);
        }
      };
      field("last_enqueued_collective", l.enqueued);
      field("last_started_collective", l.started);
      field("last_completed_collective", l.completed);
      w_.close_dict();
    }
    w_.close_dict();
  }

  void number(std::string_view key, std::int64_t v) {
    w_.key(key);
    w_.number(v);
  }
  void time(std::string_view key, Ns t) {
    w_.key(key);
    if (t == kNever) {
      w_.none();
    } else {
      w_.number(unix_time(e_, rank_, t));
    }
  }
  void tensors(std::string_view key, std::vector<Dims> list) {
    w_.key(key);
    w_.open_list();
    for (const Dims& dims : list) {
      w_.open_list();
      for (const std::int64_t d : dims) {
        w_.number(d);
      }
      w_.close_list();
    }
    w_.close_list();
  }
  void dtypes(std::string_view key, std::size_t n, std::string_view dtype) {
    w_.key(key);
    w_.open_list();
    for (std::size_t i = 0; i < n; ++i) {
      w_.text(dtype);
    }
    w_.close_list();
  }

  void frame(const std::string& file, int line, const std::string& function, int id) {
    if (w_.shared(id)) {
      return;
    }
    w_.open_dict();
    w_.key("name"), w_.text(function);
    w_.key("filename"), w_.text(file);
    number("line", line);
    w_.close_dict();
    w_.share(id);
  }

  // Members of a batch or of a coalesced collective have entries too, without events of their own.
  void entry(const Seen& s, const Op& op, bool member) {
    const Issued& i = *s.issued;
    const Group& g = group(op.group);
    const bool batch = op.what == What::kBatch;
    const bool p2p = batch || op.is_p2p();
    const bool whole = op.what == What::kCollective && !op.parts.empty() && !gloo_;
    std::string name = fmt::format("{}:", c_.job.backend);
    if (op.is_p2p()) {
      const bool send = op.what == What::kSend;
      name += fmt::format("{} {}{}{}", op.name, g.position(rank_), send ? "->" : "<-", op.peer);
    } else {
      name += whole ? "coalesced" : gloo_ ? gloo_name(op.name) : profiling(op.name);
    }
    w_.open_dict();
    if (e_.frames && !Out::kJson) {
      w_.key("frames");
      w_.open_list();
      const Site& site = c_.job.sites[static_cast<std::size_t>(op.site)];
      frame("/venv/site-packages/torch/distributed/distributed_c10d.py", 3245, "wrapper", -1);
      frame("/job/" + site.file, site.line, site.function, op.site);
      for (int below = 0; below < e_.more_frames; ++below) {
        frame(fmt::format("/job/model/blocks_{}.py", below % 4), 100 + below,
              fmt::format("layer_{}", below), -4 - below);
      }
      frame("/job/train.py", 150, "main", -2);
      frame("/job/train.py", 163, "<module>", -3);
      w_.close_list();
    }
    if (major_ > 0) {
      number("record_id", static_cast<std::int64_t>(s.ticket));
    }
    number("pg_id", pg_id_.at(op.group));
    if (major_ > 0) {
      w_.key("process_group"), w_.pair(g.name, g.desc);
    }
    if (since(2, 10)) {
      w_.key("thread_name"), w_.text("pt_main_thread");
      w_.key("thread_id"), w_.text("140456728394624");
    }
    if (major_ < 2) {
      number("seq_id", static_cast<std::int64_t>(i.collectives + i.p2p));
    } else {
      number("collective_seq_id", static_cast<std::int64_t>(i.collectives));
      number("p2p_seq_id", gloo_ ? 0 : static_cast<std::int64_t>(i.p2p));
      number("op_id", static_cast<std::int64_t>(i.ops));
    }
    w_.key("profiling_name"), w_.text(name);
    number("time_created_ns", unix_time(e_, rank_, i.created));
    // NCCL's barrier is an all_reduce of one element.
    std::vector<Dims> in = op.in;
    std::vector<Dims> out = op.out;
    std::string_view dtype = op.dtype;
    if (op.name == "barrier" && !gloo_) {
      in = out = {{1}};
      dtype = "Float";
    }
    if (gloo_ && op.name == "all_gather_into_tensor") {
      out = {{static_cast<std::int64_t>(g.ranks.size()), numel(in)}};
    }
    if (gloo_ && op.name == "reduce_scatter_tensor") {
      out = in;
    }
    if (whole) {
      in = out = {};
    }
    tensors("input_sizes", in);
    if (since(2, 2)) {
      dtypes("input_dtypes", in.size(), dtype);
    }
    tensors("output_sizes", out);
    if (since(2, 2)) {
      dtypes("output_dtypes", out.size(), dtype);
    }
    if (since(2, 11) && !op.in_splits.empty()) {
      splits("input_split_sizes", op.in_splits, op.in[0]);
      splits("output_split_sizes", op.out_splits, op.out[0]);
    }
    const bool done = s.done && !member;
    const bool started = s.started && !member;
    w_.key("state"), w_.text(gloo_     ? "scheduled"
                             : done    ? "completed"
                             : started ? "started"
                                       : "scheduled");
    // An operation in flight is observed when the file is written.
    const Ns begun = done ? i.started : e_.at[static_cast<std::size_t>(rank_)];
    time("time_discovered_started_ns", started && !gloo_ && e_.timing ? begun : kNever);
    time("time_discovered_completed_ns", done && !gloo_ ? i.done + 40 * kMs : kNever);
    w_.key("retired"), w_.boolean(done);
    if (since(2, 3)) {
      number("timeout_ms", 600'000);
    }
    if (since(2, 2)) {
      w_.key("is_p2p"), w_.boolean(p2p);
    }
    w_.close_dict();
  }

  void splits(std::string_view key, const std::vector<std::int64_t>& rows, const Dims& dims) {
    const std::int64_t width = numel(dims) / std::max<std::int64_t>(1, dims[0]);
    w_.key(key);
    w_.open_list();
    for (const std::int64_t n : rows) {
      w_.number(n * (dims[0] == 0 ? 1 : width));
    }
    w_.close_list();
  }

  const Case& c_;
  const Evidence& e_;
  const int rank_;
  const bool gloo_;
  const RankRun& run_;
  int major_ = 0, minor_ = 0;  // 0: the bare list of 2023
  std::map<int, int> pg_id_;
  std::vector<Seen> ops_;
  Out w_;
};

}  // namespace

void write_torch(const Case& c, const std::filesystem::path& dir, int first, int last) {
  std::filesystem::create_directories(dir);
  for (int r = first; r < last; ++r) {
    const RankRun& run = c.run_of(r);
    const Ns at = c.torch.at[static_cast<std::size_t>(r)];
    // A process that ended has not written a file, unless its script does so when a peer fails it.
    const bool gone = run.ended && run.ended_at <= at;
    const bool handler = c.job.backend == "gloo" && run.how == ExitHow::kException;
    const bool stopped = run.hung_in != nullptr && run.hung_in->stopped;
    if ((gone && !handler) || stopped || holds(c.torch.lost, r)) {
      continue;
    }
    std::string data =
        c.torch.json ? RankDump<JsonText>(c, r).write() : RankDump<Pickle>(c, r).write();
    if (holds(c.torch.truncated, r)) {
      data.resize(data.size() * 3 / 5);
    }
    const Ns written = gone ? run.ended_at : at;
    const Ns modified =
        c.torch.copied ? kEpoch + 200'000 * kSecond + r * 20 * kMs : unix_time(c.torch, r, written);
    write_file(dir / fmt::format("{}{}{}", c.torch.prefix, r, c.torch.json ? ".json" : ""), data,
               modified);
  }
}

}  // namespace hangsim
