// snapshot.cpp - the ring as a dict: in PyTorch's Flight Recorder layout, and record by record.
#include "snapshot.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "format/codes.hpp"
#include "format/view.hpp"
#include "fr/fr.h"

namespace py = pybind11;

namespace fr {
namespace {

// PyTorch's names of the operations where they differ from the public function names: what its
// analyzer and scripts written for NCCL dumps look for.
std::string torch_op_name(std::string_view op) {
  static const std::pair<std::string_view, std::string_view> kNames[] = {
      {"all_gather_into_tensor", "_all_gather_base"},
      {"reduce_scatter_tensor", "_reduce_scatter_base"},
      {"all_to_all_single", "all_to_all"},
      {"barrier", "all_reduce_barrier"},
      {"monitored_barrier", "all_reduce_barrier"},
      {"all_reduce_coalesced", "allreduce_coalesced"},
      {"all_gather_coalesced", "ALLGATHER_coalesced"},
      {"isend", "send"},
      {"irecv", "recv"}};
  for (const auto& [ours, theirs] : kNames) {
    if (op == ours) {
      return std::string(theirs);
    }
  }
  return std::string(op);
}

// Native frames (FR_STACKS=native) are recorded as linked.
std::string demangled(std::string_view symbol) {
  std::string name(symbol);
  if (name.starts_with("_Z")) {
    if (char* plain = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, nullptr)) {
      name = plain;
      std::free(plain);
    }
  }
  return name;
}

// "cpu:gloo,cuda:nccl" -> the accelerator's backend; "gloo" -> "gloo"
std::string backend_prefix(std::string_view backend) {
  const std::size_t comma = backend.rfind(',');
  std::string_view last = comma == std::string_view::npos ? backend : backend.substr(comma + 1);
  const std::size_t colon = last.find(':');
  return std::string(colon == std::string_view::npos ? last : last.substr(colon + 1));
}

std::vector<i64> ranks_of(const View& view, const GroupRow& row) {
  std::vector<i64> ranks;
  const std::span<const u32> words = view.group_ranks(row);
  for (std::size_t i = 0; i + 2 < words.size(); i += 3) {
    for (u32 k = 0; k < words[i + 1] && ranks.size() < 1u << 20; ++k) {
      ranks.push_back(static_cast<i64>(words[i]) + static_cast<i64>(k) * words[i + 2]);
    }
  }
  return ranks;
}

struct Tensors {
  py::list sizes;
  py::list dtypes;
};

// Sizes and dtypes from the shape words; one dtype per tensor, as PyTorch has it.
std::pair<Tensors, Tensors> tensors_of(const RecordCopy& r) {
  std::pair<Tensors, Tensors> result;
  if (r.shape == nullptr || r.n_shape == 0) {
    return result;
  }
  const u32* words = r.shape;
  const u32 head = words[0];
  const u32 n_in = head & 0xfff;
  const u32 n_out = head >> 12 & 0xfff;
  u32 at = 1;
  const auto read = [&](u32 count, Tensors& into) {
    for (u32 i = 0; i < count && at < r.n_shape; ++i) {
      const u32 ndim = words[at] & 0xff;
      const u8 dtype = static_cast<u8>(words[at] >> 8 & 0xff);
      ++at;
      py::list dims;
      for (u32 d = 0; d < ndim && at < r.n_shape; ++d) {
        dims.append(words[at++]);
      }
      into.sizes.append(dims);
      into.dtypes.append(dtype_name(dtype));
    }
  };
  read(n_in, result.first);
  if ((head & FR_SHAPE_SAME_OUT) != 0) {
    result.second = result.first;
  } else {
    read(n_out, result.second);
  }
  return result;
}

class Threads {
 public:
  // Threads of this process by kernel id; dead ones are "".
  const std::string& name(u32 tid) {
    auto [it, fresh] = names_.try_emplace(tid);
    if (fresh) {
      char path[64];
      std::snprintf(path, sizeof path, "/proc/self/task/%u/comm", tid);
      if (std::FILE* file = std::fopen(path, "re")) {
        char text[64];
        if (std::fgets(text, sizeof text, file) != nullptr) {
          text[std::strcspn(text, "\n")] = '\0';
          it->second = text;
        }
        std::fclose(file);
      }
    }
    return it->second;
  }

 private:
  std::unordered_map<u32, std::string> names_;
};

class Frames {
 public:
  explicit Frames(const View& view) : view_(view) {}

  // One dict per distinct frame and one list per distinct stack, shared by the entries.
  py::list stack(u32 id) {
    auto [it, fresh] = stacks_.try_emplace(id);
    if (fresh) {
      for (const u32 frame : view_.stack(id)) {
        it->second.append(dict(frame));
      }
    }
    return it->second;
  }

 private:
  py::dict dict(u32 id) {
    auto [it, fresh] = frames_.try_emplace(id);
    if (fresh) {
      const FrameRow row = view_.frame(id);
      const std::string function = demangled(view_.string(row.func));
      std::string_view name = function;
      const std::size_t dot = name.rfind('.');  // PyTorch gives co_name
      if (dot != std::string_view::npos) {
        name = name.substr(dot + 1);
      }
      it->second["name"] = py::str(name.data(), name.size());
      const std::string_view file = view_.string(row.file);
      it->second["filename"] = py::str(file.data(), file.size());
      it->second["line"] = row.line;
    }
    return it->second;
  }

  const View& view_;
  std::unordered_map<u32, py::dict> frames_;
  std::unordered_map<u32, py::list> stacks_;
};

struct Counters {
  u64 collective = 0;  // seq of the last one seen
  u64 p2p = 0;
};

py::object time_or_none(u64 ns) {
  return ns == 0 ? py::object(py::none()) : py::object(py::int_(ns));
}

py::str text(std::string_view s) {
  return py::str(s.data(), s.size());
}

// Whole records of the ring in order of issue. Copied first, so that Python's allocations do not
// run beside the ring for long.
std::vector<std::unique_ptr<RecordCopy>> copy_records(const View& view) {
  std::vector<std::unique_ptr<RecordCopy>> records;
  auto copy = std::make_unique<RecordCopy>();
  for (u32 slot = 0; slot < view.n_slots(); ++slot) {
    if (view.read(slot, *copy) == Slot::kWhole) {
      records.push_back(std::move(copy));
      copy = std::make_unique<RecordCopy>();
    }
  }
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a->ticket < b->ticket; });
  return records;
}

// The own region; not ok() while nothing is recorded.
View own_region() {
  std::size_t bytes = 0;
  const void* base = fr_region(&bytes);
  if (base == nullptr) {
    return View();
  }
  const View view = View::of(base, bytes);
  if (!view.ok()) {
    throw std::runtime_error(std::string("ring not readable: ") + view.error());
  }
  return view;
}

// pg_config and pg_status of PyTorch's layout.
void add_groups(const View& view, py::dict& result) {
  py::dict pg_config = result["pg_config"];
  py::dict pg_status = result["pg_status"];
  for (u32 g = 1; g < view.n_groups(); ++g) {
    const GroupRow* row = view.group(g);
    if (row == nullptr) {
      continue;
    }
    std::string ranks = "[";
    for (const i64 rank : ranks_of(view, *row)) {
      ranks += (ranks.size() > 1 ? ", " : "") + std::to_string(rank);
    }
    const std::string_view name = view.string(row->name);
    py::dict config;
    config["name"] = text(name);
    config["desc"] = text(view.string(row->desc));
    config["ranks"] = ranks + "]";
    pg_config[text(name)] = config;
    const auto last = [](u64 seq) { return seq == 0 ? i64{-1} : static_cast<i64>(seq); };
    py::dict status;
    status["last_enqueued_collective"] =
        last(row->issued.load(std::memory_order_relaxed) & kSeqMask);
    status["last_started_collective"] = last(row->started_seq.load(std::memory_order_relaxed));
    status["last_completed_collective"] = last(row->completed_seq.load(std::memory_order_relaxed));
    pg_status[py::str(std::to_string(g - 1))] = status;
  }
}

// PyTorch's counters of each group, as they were before the first record that is kept.
std::map<u32, Counters> counters_before(const View& view,
                                        const std::vector<std::unique_ptr<RecordCopy>>& records) {
  std::map<u32, u64> p2p_kept;
  for (const auto& r : records) {
    if (r->payload.kind != FR_COLLECTIVE) {
      ++p2p_kept[r->payload.group];
    }
  }
  std::map<u32, Counters> counters;
  for (const auto& [group, kept] : p2p_kept) {
    const GroupRow* row = view.group(group);
    const u64 issued = row != nullptr ? row->p2p_issued.load(std::memory_order_relaxed) : kept;
    counters[group].p2p = issued > kept ? issued - kept : 0;
  }
  return counters;
}

// "nccl:all_reduce", "nccl:send 0->1"
std::string profiling_name(const View& view, const GroupRow* row, const Payload& p) {
  const std::string prefix = row != nullptr ? backend_prefix(view.string(row->backend)) : "";
  if (p.kind == FR_COLLECTIVE) {
    return prefix + ":" + torch_op_name(view.string(p.op));
  }
  const i32 own = row != nullptr ? row->own_rank.load() : -1;
  return prefix + (p.kind == FR_SEND ? ":send " : ":recv ") + std::to_string(own) +
         (p.kind == FR_SEND ? "->" : "<-") + std::to_string(p.peer);
}

// How far an operation got.
struct Progress {
  bool started, completed, ended;
  explicit Progress(const RecordCopy& r)
      : started(r.has_status && r.state != State::kLocked && r.started_ticks != 0),
        completed(r.has_status && r.state == State::kCompleted),
        ended(completed ||
              (r.has_status && (r.state == State::kFailed || r.state == State::kReleased))) {}
};

// Records as the entries of PyTorch's layout.
class Entries {
 public:
  explicit Entries(const View& view) : view_(view), clock_(view.header()), frames_(view) {}

  py::dict entry(const RecordCopy& r, const Counters& count, bool include_stack_traces) {
    const Payload& p = r.payload;
    const Progress progress(r);
    const GroupRow* row = view_.group(p.group);
    auto [in, out] = tensors_of(r);
    py::dict e;
    e["record_id"] = r.ticket;
    e["pg_id"] = static_cast<i64>(p.group) - 1;
    e["process_group"] =
        py::make_tuple(text(row != nullptr ? view_.string(row->name) : std::string_view()),
                       text(row != nullptr ? view_.string(row->desc) : std::string_view()));
    e["thread_name"] = threads_.name(p.tid);
    e["thread_id"] = std::to_string(p.tid);
    e["collective_seq_id"] = count.collective;
    e["p2p_seq_id"] = count.p2p;
    e["op_id"] = count.collective + count.p2p;
    e["profiling_name"] = profiling_name(view_, row, p);
    e["time_created_ns"] = clock_.unix_ns(p.ticks);
    if (progress.completed && progress.started && r.ended_ticks > r.started_ticks) {
      e["duration_ms"] =
          static_cast<double>(clock_.unix_ns(r.ended_ticks) - clock_.unix_ns(r.started_ticks)) /
          1e6;
    }
    e["input_sizes"] = in.sizes;
    e["input_dtypes"] = in.dtypes;
    e["output_sizes"] = out.sizes;
    e["output_dtypes"] = out.dtypes;
    e["state"] = progress.completed ? "completed" : progress.started ? "started" : "scheduled";
    e["time_discovered_started_ns"] =
        time_or_none(progress.started ? clock_.unix_ns(r.started_ticks) : 0);
    e["time_discovered_completed_ns"] =
        time_or_none(progress.completed ? clock_.unix_ns(r.ended_ticks) : 0);
    e["retired"] = progress.ended;
    e["timeout_ms"] = p.timeout_ms;
    e["is_p2p"] = p.kind != FR_COLLECTIVE;
    if (include_stack_traces) {
      e["frames"] = frames_.stack(p.stack);
    }
    return e;
  }

 private:
  const View& view_;
  const TickClock clock_;
  Threads threads_;
  Frames frames_;
};

void add_entries(const View& view, bool include_stack_traces, bool only_active, py::list& list) {
  std::vector<std::unique_ptr<RecordCopy>> records = copy_records(view);
  std::erase_if(records, [](const auto& r) {
    const u16 kind = r->payload.kind;
    return kind != FR_COLLECTIVE && kind != FR_SEND && kind != FR_RECV;
  });
  std::map<u32, Counters> counters = counters_before(view, records);
  Entries entries(view);
  for (const auto& record : records) {
    const Payload& p = record->payload;
    Counters& count = counters[p.group];
    if (p.kind == FR_COLLECTIVE) {
      count.collective = p.seq;
    } else {
      ++count.p2p;
    }
    if (!only_active || !Progress(*record).ended) {
      list.append(entries.entry(*record, count, include_stack_traces));
    }
  }
}

}  // namespace

py::list records() {
  py::list result;
  const View view = own_region();
  if (!view.ok()) {
    return result;
  }
  for (const auto& record : copy_records(view)) {
    const RecordCopy& r = *record;
    const Payload& p = r.payload;
    const GroupRow* row = view.group(p.group);
    auto [in, out] = tensors_of(r);
    py::dict e;
    e["ticket"] = r.ticket;
    e["kind"] = word(static_cast<dump::Kind>(p.kind));
    e["op"] = text(view.string(p.op));
    e["group"] = p.group;
    e["group_name"] = row != nullptr ? text(view.string(row->name)) : text("");
    e["seq"] = p.seq;
    e["peer"] = p.peer;
    e["flags"] = p.flags;
    e["tid"] = p.tid;
    e["in_numel"] = p.in_numel;
    e["out_numel"] = p.out_numel;
    e["in_dtype"] = dtype_name(p.in_dtype);
    e["out_dtype"] = dtype_name(p.out_dtype);
    e["reduce_op"] = reduce_op_name(p.reduce_op);
    e["timeout_ms"] = p.timeout_ms;
    e["in_sizes"] = in.sizes;
    e["out_sizes"] = out.sizes;
    e["state"] = r.has_status ? word(dump_state(r.state)) : "enqueued";
    e["error"] = r.has_status ? text(view.string(r.error)) : text("");
    py::list words;
    if (p.kind != FR_NOTE) {
      for (u32 i = 0; r.shape != nullptr && i < r.n_shape; ++i) {
        words.append(r.shape[i]);
      }
    }
    e["shape"] = words;
    py::list stack;
    for (const u32 id : view.stack(p.stack)) {
      const FrameRow frame = view.frame(id);
      stack.append(py::make_tuple(text(view.string(frame.file)), frame.line,
                                  demangled(view.string(frame.func))));
    }
    e["stack"] = stack;
    result.append(e);
  }
  return result;
}

py::dict snapshot(bool include_collectives, bool include_stack_traces, bool only_active) {
  py::dict result;
  result["version"] = "2.10";
  result["pg_config"] = py::dict();
  result["pg_status"] = py::dict();
  result["comm_lib_version"] = "";
  const View view = own_region();
  if (view.ok()) {
    add_groups(view, result);
  }
  if (!include_collectives) {
    return result;
  }
  py::list list;
  if (view.ok()) {
    add_entries(view, include_stack_traces, only_active, list);
  }
  result["entries"] = list;
  return result;
}

}  // namespace fr
