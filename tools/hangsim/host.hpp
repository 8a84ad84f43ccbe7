// host.hpp - builds groups, and the program of each rank.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "job.hpp"

namespace hangsim {

// Writes the program of one rank.
class Host {
 public:
  Host(Job& job, int rank, Program& ops) : job_(job), rank_(rank), ops_(ops) {}

  int rank() const { return rank_; }
  int place(int group) const { return at(group).position(rank_); }
  int size(int group) const { return static_cast<int>(at(group).ranks.size()); }

  void step(int n) {
    step_ = n;
    add(What::kStep);
  }
  void work(Ns host, Ns device) {
    Op& op = add(What::kWork);
    op.host = host;
    op.device = device;
  }
  void sync() { add(What::kSync); }
  void wait(int handle) { add(What::kWait).handle = handle; }

  // Returns the handle of an async operation.
  int collective(int group, std::string_view name, Dims in, Dims out, Site site, bool async = false,
                 std::string_view dtype = "Float", std::string_view reduce = "", int root = -1) {
    Op& op = add(What::kCollective);
    op.group = group;
    op.name = name;
    if (!in.empty()) {
      op.in = {std::move(in)};
      op.out = {std::move(out)};
    }
    op.dtype = op.in.empty() ? std::string_view() : dtype;
    op.reduce = reduce;
    op.peer = root;
    op.async = async;
    op.site = job_.site(site.file, site.line, site.function);
    op.handle = async ? handles_++ : -1;
    return op.handle;
  }
  int all_reduce(int group, std::int64_t n, const Site& site, bool async = false,
                 std::string_view dtype = "Float") {
    return collective(group, "all_reduce", {n}, {n}, site, async, dtype, "SUM");
  }
  // Several calls under _coalescing_manager: one operation.
  void all_reduce_coalesced(int group, const std::vector<std::int64_t>& sizes, const Site& site) {
    all_reduce(group, 0, site);
    Op whole = ops_.back();
    whole.in.clear();
    for (const std::int64_t n : sizes) {
      whole.in.push_back({n});
      Op& part = whole.parts.emplace_back(ops_.back());
      part.in = part.out = {{n}};
    }
    whole.out = whole.in;
    whole.name = "all_reduce_coalesced";
    ops_.back() = std::move(whole);
  }
  int all_gather(int group, std::int64_t n, const Site& site, bool async = false) {
    return collective(group, "all_gather_into_tensor", {n}, {n * size(group)}, site, async,
                      "BFloat16");
  }
  int reduce_scatter(int group, std::int64_t n, const Site& site, bool async = false) {
    return collective(group, "reduce_scatter_tensor", {n * size(group)}, {n}, site, async,
                      "BFloat16", "AVG");
  }
  void all_to_all(int group, const std::vector<std::int64_t>& to,
                  const std::vector<std::int64_t>& from, std::int64_t width, const Site& site) {
    std::int64_t rows_in = 0, rows_out = 0;
    for (std::size_t i = 0; i < to.size(); ++i) {
      rows_in += to[i];
      rows_out += from[i];
    }
    collective(group, "all_to_all_single", {rows_in, width}, {rows_out, width}, site, false,
               "BFloat16");
    ops_.back().in_splits = to;
    ops_.back().out_splits = from;
  }
  void barrier(int group, const Site& site) {
    collective(group, "barrier", {}, {}, site);
    sync();
  }

  Op p2p(What what, int group, int peer, Dims dims, const Site& site) {
    Op op;
    op.what = what;
    op.step = step_;
    op.group = group;
    op.peer = peer;
    op.name = what == What::kSend ? "send" : "recv";
    op.dtype = "BFloat16";
    op.in = {dims};
    op.out = {std::move(dims)};
    op.site = job_.site(site.file, site.line, site.function);
    op.host = 15 * kUs;
    return op;
  }
  // Together, or one after the other in an order that cannot lock two neighbours.
  void exchange(std::vector<Op> parts, bool host_waits) {
    if (parts.empty()) {
      return;
    }
    if (job_.batched_p2p) {
      Op& op = add(What::kBatch);
      op.group = parts.front().group;
      op.site = parts.front().site;
      op.name = "coalesced";
      op.parts = std::move(parts);
      op.handle = handles_++;
      op.async = true;
      wait(op_handle());
    } else {
      // Even places send first, odd ones receive first.
      const What early = place(parts.front().group) % 2 == 0 ? What::kSend : What::kRecv;
      std::stable_partition(parts.begin(), parts.end(),
                            [early](const Op& part) { return part.what == early; });
      issue_and_wait(std::move(parts));
    }
    if (host_waits) {
      sync();
    }
  }
  // The parts in an order that both ends of every pair keep.
  void exchange_in_order(std::vector<Op> parts, bool host_waits) {
    if (parts.empty() || job_.batched_p2p) {
      exchange(std::move(parts), host_waits);
      return;
    }
    issue_and_wait(std::move(parts));
    if (host_waits) {
      sync();
    }
  }
  // Several calls of one name under _coalescing_manager.
  int coalesced(int group, std::string_view name, const std::vector<std::int64_t>& sizes,
                const Site& site, bool async) {
    const bool gathers = name == "all_gather_into_tensor";
    const std::int64_t n = gathers ? size(group) : 1;
    const int handle =
        collective(group, name, {0}, {0}, site, async, "BFloat16", gathers ? "" : "SUM");
    Op whole = ops_.back();
    whole.in.clear();
    whole.out.clear();
    for (const std::int64_t one : sizes) {
      whole.in.push_back({one});
      whole.out.push_back({one * n});
      Op& part = whole.parts.emplace_back(ops_.back());
      part.in = {whole.in.back()};
      part.out = {whole.out.back()};
    }
    whole.name = gathers ? "all_gather_into_tensor_coalesced" : "all_reduce_coalesced";
    ops_.back() = std::move(whole);
    return handle;
  }

 private:
  void issue_and_wait(std::vector<Op> parts) {
    const int first = handles_;
    for (Op& part : parts) {
      part.async = true;
      part.handle = handles_++;
      ops_.push_back(std::move(part));
    }
    for (int h = first; h < handles_; ++h) {
      wait(h);
    }
  }
  const Group& at(int group) const { return job_.groups[static_cast<std::size_t>(group)]; }
  int op_handle() const { return handles_ - 1; }
  Op& add(What what) {
    Op& op = ops_.emplace_back();
    op.what = what;
    op.step = step_;
    op.host = 15 * kUs;
    return op;
  }

  Job& job_;
  int rank_;
  Program& ops_;
  int step_ = 0;
  int handles_ = 0;
};

// ---------------------------------------------------------------- groups

inline int add_group(Job& job, std::string desc, std::vector<int> ranks) {
  job.groups.push_back({fmt::format("{}", job.groups.size()), std::move(desc), std::move(ranks)});
  return static_cast<int>(job.groups.size()) - 1;
}

inline void add_world(Job& job) {
  std::vector<int> all(static_cast<std::size_t>(job.world));
  for (int r = 0; r < job.world; ++r) {
    all[static_cast<std::size_t>(r)] = r;
  }
  add_group(job, "default_pg", std::move(all));
}

// Ranks that differ only in one coordinate: `stride` apart, `n` of them. Per rank, its group.
inline std::vector<int> add_dimension(Job& job, const std::string& desc, int stride, int n) {
  std::vector<int> of_rank(static_cast<std::size_t>(job.world), -1);
  if (n < 2) {
    return of_rank;
  }
  for (int first = 0; first < job.world; ++first) {
    if ((first / stride) % n != 0) {
      continue;
    }
    std::vector<int> ranks;
    for (int i = 0; i < n; ++i) {
      ranks.push_back(first + i * stride);
    }
    const int g = add_group(job, desc, ranks);
    for (const int r : ranks) {
      of_rank[static_cast<std::size_t>(r)] = g;
    }
  }
  return of_rank;
}

inline int of(const std::vector<int>& groups, int rank) {
  return groups[static_cast<std::size_t>(rank)];
}

}  // namespace hangsim
