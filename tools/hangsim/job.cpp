// job.cpp - the program of each host, per kind of job.
#include "job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "host.hpp"

namespace hangsim {

int Group::position(int rank) const {
  if (rank >= 0 && static_cast<std::size_t>(rank) < ranks.size() &&
      ranks[static_cast<std::size_t>(rank)] == rank) {
    return rank;
  }
  const auto it = std::find(ranks.begin(), ranks.end(), rank);
  return it == ranks.end() ? -1 : static_cast<int>(it - ranks.begin());
}

std::int64_t numel(const Dims& dims) {
  std::int64_t n = 1;
  for (const std::int64_t d : dims) {
    n *= d;
  }
  return n;
}

std::int64_t numel(const std::vector<Dims>& tensors) {
  std::int64_t n = 0;
  for (const Dims& dims : tensors) {
    n += numel(dims);
  }
  return n;
}

int Job::site(const std::string& file, int line, const std::string& function) {
  const Site s{file, line, function};
  const auto it = std::find(sites.begin(), sites.end(), s);
  if (it != sites.end()) {
    return static_cast<int>(it - sites.begin());
  }
  sites.push_back(s);
  return static_cast<int>(sites.size()) - 1;
}

namespace {

// Parameters that differ between runs of one kind of job.
struct Style {
  Ns compute;          // of one layer or micro-batch
  bool equal_buckets;  // then a shifted sequence shows late
  int sync_every;      // steps between two loss.item()
  bool p2p_host_waits;
  bool megatron_names;
  bool coalesced;

  explicit Style(Random& r)
      : compute(r.between(8, 40) * kMs),
        equal_buckets(r.chance(35)),
        sync_every(r.chance(60) ? 1 : r.between(2, 4)),
        p2p_host_waits(r.chance(40)),
        megatron_names(r.chance(50)),
        coalesced(r.chance(30)) {}
};

// Groups split off with local synchronization carry a hash; torchft's and others' carry one name in
// all replicas.
void rename_groups(Job& job, Random& random) {
  const int how = random.below(100);
  if (how >= 16) {
    return;
  }
  std::map<std::string, std::string> by_desc;
  for (std::size_t g = 1; g < job.groups.size(); ++g) {
    Group& group = job.groups[g];
    std::uint64_t h = 0;
    for (const int r : group.ranks) {
      h = scramble(h, static_cast<std::uint64_t>(r));
    }
    group.name = how < 8 ? fmt::format("{:016x}", h)
                         : by_desc.try_emplace(group.desc, group.name).first->second;
  }
}

template <class F>
void write_programs(Job& job, F&& one) {
  job.programs.resize(static_cast<std::size_t>(job.world));
  for (int r = 0; r < job.world; ++r) {
    Host h(job, r, job.programs[static_cast<std::size_t>(r)]);
    h.step(0);
    h.work(500 * kMs, 0);
    h.collective(0, "broadcast", {1}, {1}, {"train.py", 31, "setup"}, false, "Long", "", 0);
    h.sync();
    for (int step = 1; step <= job.steps; ++step) {
      h.step(step);
      one(h, step);
    }
    h.step(job.steps + 1);
    h.barrier(0, {"train.py", 140, "main"});
  }
}

void end_of_step(Host& h, const Style& style, int step) {
  h.work(kMs, style.compute);
  h.all_reduce(0, 1, {"train.py", 96, "mean_loss"});
  if (step % style.sync_every == 0) {
    h.sync();
  }
}

// ---------------------------------------------------------------- the kinds of jobs

void ddp(Job& job, Random& random, const Style& style) {
  add_world(job);
  const int buckets = random.between(2, 6);
  write_programs(job, [&](Host& h, int step) {
    h.work(3 * kMs, 6 * style.compute);
    std::vector<int> handles;
    for (int b = 0; b < buckets; ++b) {
      h.work(200 * kUs, 2 * style.compute);
      handles.push_back(h.all_reduce(0, style.equal_buckets ? 65536 : 16384 * (b + 1) + 64,
                                     {"train.py", 71, "train_step"}, true));
    }
    for (const int handle : handles) {
      h.wait(handle);
    }
    end_of_step(h, style, step);
    if (step % 5 == 0) {
      h.collective(0, "broadcast", {4096}, {4096}, {"ema.py", 22, "share"}, false, "Float", "", 0);
    }
    if (step % 6 == 0) {
      h.barrier(0, {"checkpoint.py", 48, "save"});
    }
  });
}

void fsdp(Job& job, Random& random, const Style& style) {
  add_world(job);
  const bool hybrid = job.world % 4 == 0 && job.world > 4 && random.chance(50);
  const int shard_size =
      hybrid ? (job.world % 8 == 0 && random.chance(50) ? job.world / 4 : 4) : job.world;
  const std::vector<int> shard = add_dimension(job, "mesh_shard", 1, shard_size);
  const std::vector<int> replicate =
      add_dimension(job, "mesh_replicate", shard_size, job.world / shard_size);
  const int layers = random.between(2, 5);
  const bool prefetch = random.chance(70);
  write_programs(job, [&](Host& h, int step) {
    const int g = of(shard, h.rank());
    const int all = of(replicate, h.rank());
    const auto gather = [&](int layer, bool forward) {
      return h.all_gather(
          g, style.equal_buckets ? 8192 : 4096 + 1024 * layer,
          {"fsdp.py", forward ? 204 : 261, forward ? "unshard" : "backward_unshard"}, true);
    };
    std::vector<int> pending;
    h.work(3 * kMs, 0);
    int next = gather(0, true);
    for (int l = 0; l < layers; ++l) {
      h.wait(next);
      if (prefetch && l + 1 < layers) {
        next = gather(l + 1, true);
      }
      h.work(300 * kUs, 3 * style.compute);
      if (!prefetch && l + 1 < layers) {
        next = gather(l + 1, true);
      }
    }
    next = gather(layers - 1, false);
    for (int l = layers - 1; l >= 0; --l) {
      h.wait(next);
      if (l > 0) {
        next = gather(l - 1, false);
      }
      h.work(300 * kUs, 5 * style.compute);
      const int scattered = h.reduce_scatter(g, style.equal_buckets ? 8192 : 4096 + 1024 * l,
                                             {"fsdp.py", 318, "post_backward"}, true);
      if (all >= 0) {
        h.wait(scattered);
        pending.push_back(h.all_reduce(all, style.equal_buckets ? 8192 : 4096 + 1024 * l,
                                       {"fsdp.py", 325, "post_backward"}, true));
      } else {
        pending.push_back(scattered);
      }
    }
    for (const int handle : pending) {
      h.wait(handle);
    }
    end_of_step(h, style, step);
  });
}

// Degrees of tensor x data x pipeline parallelism.
struct Degrees {
  int tp = 2, dp = 1, pp = 2;
};

Degrees draw_degrees(int world, Random& random) {
  Degrees n;
  if (world % 8 == 0 && world >= 16) {
    n.tp = random.chance(50) ? 4 : 2;
    n.pp = world / n.tp >= 8 && random.chance(50) ? 4 : 2;
  }
  n.dp = world / (n.tp * n.pp);
  if (n.tp * n.pp * n.dp != world || n.dp < 1) {
    throw std::invalid_argument("world must be a multiple of 4 (8 from 16 on)");
  }
  return n;
}

// The micro-batches of one step on one rank: 1F1B.
class PipelineStage {
 public:
  PipelineStage(Host& h, const Style& style, int tensor, int pipe, int layers)
      : h_(h),
        style_(style),
        tensor_(tensor),
        pipe_(pipe),
        layers_(layers),
        stage_(h.place(pipe)),
        last_(h.size(pipe) - 1) {}

  void run(int micro) {
    const int warmup = std::min(last_ - stage_, micro);
    for (int i = 0; i < warmup; ++i) {
      recv_forward();
      compute(true);
      if (stage_ != last_) {
        exchange({send(stage_ + 1, {"schedules.py", 231, "send_forward"})});
      }
    }
    if (warmup < micro) {
      recv_forward();
    }
    for (int i = 0; i < micro - warmup; ++i) {
      compute(true);
      if (stage_ != last_) {
        const Site site{"schedules.py", 255, "send_forward_recv_backward"};
        exchange({send(stage_ + 1, site), recv(stage_ + 1, site)});
      }
      compute(false);
      send_backward(i + 1 < micro - warmup);
    }
    for (int i = 0; i < warmup; ++i) {
      if (stage_ != last_) {
        exchange({recv(stage_ + 1, {"schedules.py", 219, "recv_backward"})});
      }
      compute(false);
      send_backward(false);
    }
  }

 private:
  void compute(bool forward) {
    for (int l = 0; l < layers_; ++l) {
      h_.work(200 * kUs, style_.compute * (forward ? 1 : 2));
      h_.all_reduce(tensor_, 2048 * 512,
                    {"layers.py", forward ? 88 : 131, forward ? "forward" : "backward"}, false,
                    "BFloat16");
    }
  }
  void recv_forward() {
    if (stage_ != 0) {
      exchange({recv(stage_ - 1, {"schedules.py", 210, "recv_forward"})});
    }
  }
  // more: together with the next forward's receive.
  void send_backward(bool more) {
    if (stage_ == 0) {
      return;
    }
    const Site site{"schedules.py", more ? 268 : 240,
                    more ? "send_backward_recv_forward" : "send_backward"};
    std::vector<Op> parts = {send(stage_ - 1, site)};
    if (more) {
      parts.push_back(recv(stage_ - 1, site));
    }
    exchange(std::move(parts));
  }
  Op send(int to, const Site& site) { return h_.p2p(What::kSend, pipe_, to, activation(), site); }
  Op recv(int from, const Site& site) {
    return h_.p2p(What::kRecv, pipe_, from, activation(), site);
  }
  static Dims activation() { return {2048, 1, 512}; }
  void exchange(std::vector<Op> parts) { h_.exchange(std::move(parts), style_.p2p_host_waits); }

  Host& h_;
  const Style& style_;
  const int tensor_, pipe_;  // groups
  const int layers_;
  const int stage_, last_;
};

// Tensor x data x pipeline parallel. Ranks: tensor fastest, then data, then pipeline.
void three_d(Job& job, Random& random, const Style& style) {
  add_world(job);
  const auto [tp, dp, pp] = draw_degrees(job.world, random);
  const bool m = style.megatron_names;
  const std::vector<int> tensor =
      add_dimension(job, m ? "TENSOR_MODEL_PARALLEL_GROUP" : "mesh_tp", 1, tp);
  const std::vector<int> data = add_dimension(job, m ? "DATA_PARALLEL_GROUP" : "mesh_dp", tp, dp);
  for (int first = 0; m && first < tp * dp; ++first) {
    add_group(job, "EMBEDDING_GROUP", {first, first + tp * dp * (pp - 1)});  // not used here
  }
  const std::vector<int> pipe =
      add_dimension(job, m ? "PIPELINE_MODEL_PARALLEL_GROUP" : "mesh_pp", tp * dp, pp);
  const int layers = random.between(1, 2);
  const int micro = random.between(pp, 2 * pp);
  const int buckets = random.between(1, 3);
  write_programs(job, [&](Host& h, int step) {
    const int t = of(tensor, h.rank()), d = of(data, h.rank()), p = of(pipe, h.rank());
    h.work(3 * kMs, 0);
    PipelineStage(h, style, t, p, layers).run(micro);
    if (d >= 0) {
      std::vector<int> handles;
      for (int b = 0; b < buckets; ++b) {
        handles.push_back(h.all_reduce(d, style.equal_buckets ? 65536 : 32768 * (b + 1),
                                       {"optimizer.py", 57, "reduce_gradients"}, true));
      }
      for (const int handle : handles) {
        h.wait(handle);
      }
    }
    if (style.coalesced) {
      h.all_reduce_coalesced(t, {1, 7, 64}, {"optimizer.py", 81, "reduce_norms"});
    }
    h.all_reduce(t, 1, {"optimizer.py", 74, "grad_norm"});
    end_of_step(h, style, step);
  });
}

// Expert parallel within data parallel: uneven all_to_all there and back.
void moe(Job& job, Random& random, const Style& style) {
  add_world(job);
  const int ep = job.world % 8 == 0 && job.world > 8 ? (random.chance(50) ? 8 : 4)
                                                     : (job.world % 4 == 0 ? 4 : job.world);
  const std::vector<int> expert = add_dimension(job, "ep", 1, ep);
  const std::vector<int> data = add_dimension(job, "expert_dp", ep, job.world / ep);
  const int layers = random.between(1, 3);
  const std::uint64_t seed = random.next();
  write_programs(job, [&](Host& h, int step) {
    const int e = of(expert, h.rank()), d = of(data, h.rank());
    const int n = h.size(e), own = h.place(e);
    h.work(3 * kMs, 0);
    for (int pass = 0; pass < 2 * layers; ++pass) {
      const auto tokens = [&](int from, int to) {
        const std::uint64_t key =
            scramble(static_cast<std::uint64_t>(e * 4096 + step),
                     static_cast<std::uint64_t>(pass * 4096 + from * 64 + to));
        return static_cast<std::int64_t>(scramble(seed, key) % 96);
      };
      std::vector<std::int64_t> to, from;
      for (int i = 0; i < n; ++i) {
        to.push_back(tokens(own, i));
        from.push_back(tokens(i, own));
      }
      h.work(300 * kUs, style.compute);
      h.all_to_all(e, to, from, 128, {"moe.py", 112, "dispatch"});
      h.work(300 * kUs, 2 * style.compute);
      h.all_to_all(e, from, to, 128, {"moe.py", 129, "combine"});
    }
    std::vector<int> handles = {
        h.all_reduce(0, 65536, {"optimizer.py", 57, "reduce_gradients"}, true)};
    if (d >= 0) {
      handles.push_back(
          h.all_reduce(d, 32768, {"optimizer.py", 61, "reduce_expert_gradients"}, true));
    }
    for (const int handle : handles) {
      h.wait(handle);
    }
    end_of_step(h, style, step);
  });
}

// Context parallel: keys and values go round a ring.
void ring(Job& job, Random& random, const Style& style) {
  add_world(job);
  const int cp = job.world % 8 == 0 && random.chance(50) ? 8 : (job.world % 4 == 0 ? 4 : job.world);
  const std::vector<int> context = add_dimension(job, "cp", 1, cp);
  const std::vector<int> data = add_dimension(job, "dp", cp, job.world / cp);
  const int layers = random.between(1, 2);
  write_programs(job, [&](Host& h, int step) {
    const int c = of(context, h.rank()), d = of(data, h.rank());
    const int n = h.size(c), own = h.place(c);
    h.work(3 * kMs, 0);
    for (int l = 0; l < 2 * layers; ++l) {
      for (int hop = 0; hop + 1 < n; ++hop) {
        const Site site{"ring_attention.py", l < layers ? 64 : 103,
                        l < layers ? "forward" : "backward"};
        std::vector<Op> parts = {h.p2p(What::kSend, c, (own + 1) % n, {4096, 128}, site),
                                 h.p2p(What::kRecv, c, (own + n - 1) % n, {4096, 128}, site)};
        h.exchange(std::move(parts), style.p2p_host_waits && hop == 0);
        h.work(100 * kUs, style.compute / 2);
      }
    }
    h.all_reduce(0, 65536, {"optimizer.py", 57, "reduce_gradients"});
    if (d >= 0 && style.coalesced) {
      h.all_reduce(d, 1024, {"optimizer.py", 63, "reduce_norms"});
    }
    end_of_step(h, style, step);
  });
}

struct Kind {
  const char* name;
  void (*make)(Job&, Random&, const Style&);
};
constexpr Kind kKinds[] = {
    {"ddp", ddp}, {"fsdp", fsdp}, {"3d", three_d}, {"moe", moe}, {"ring", ring}};

}  // namespace

std::vector<std::string> job_kinds() {
  std::vector<std::string> out;
  for (const Kind& k : kKinds) {
    out.emplace_back(k.name);
  }
  return out;
}

Job make_job(std::string_view kind, int world, Random& random, int steps) {
  for (const Kind& k : kKinds) {
    if (k.name != kind) {
      continue;
    }
    Job job;
    job.kind = kind;
    static constexpr int kWorlds[] = {4, 8, 8, 8, 16, 16, 32};
    job.world = world > 0 ? world : kWorlds[random.below(7)];
    if (kind != "ddp" && kind != "fsdp" && job.world % 4 != 0) {
      job.kind = "ddp";
      return make_job("ddp", world, random, steps);
    }
    job.backend = "nccl";
    job.ranks_per_node = job.world >= 16 ? 8 : (random.chance(50) ? 4 : 8);
    job.steps = random.between(7, 12);
    job.steps = steps > 0 ? steps : job.steps;
    job.batched_p2p = kind == "ring" ? true : random.chance(60);
    job.queue_limit = random.between(16, 120);
    job.early_end = random.chance(30);
    const Style style(random);
    k.make(job, random, style);
    rename_groups(job, random);
    return job;
  }
  throw std::invalid_argument(fmt::format("no such kind of job: {}", kind));
}

}  // namespace hangsim
