// Kinds of jobs with widely drawn parameters, in two halves: analyzers may have rules for the known
// kinds; the others are held out.
#include <algorithm>
#include <map>
#include <stdexcept>

#include "host.hpp"
#include "pipeline.hpp"

namespace hangsim {

namespace {

// Limits that a kind of job sets for a dimension of the mesh of ranks.
struct Want {
  const char* name;
  int least, most;
};

struct Mesh {
  std::map<std::string, std::vector<int>> groups;  // of each rank, -1: none
  std::map<std::string, int> size;

  int of(const std::string& dim, int rank) const {
    return groups.at(dim)[static_cast<std::size_t>(rank)];
  }
};

// Parameters that differ between runs of one kind of job.
struct Draw {
  Ns compute;
  bool equal, host_waits, coalesced;
  int sync_every, layers, buckets, micro;
  std::int64_t hidden;

  explicit Draw(Random& r)
      : compute(r.between(4, 60) * kMs),
        equal(r.chance(30)),
        host_waits(r.chance(35)),
        coalesced(r.chance(30)),
        sync_every(r.chance(50) ? 1 : r.between(2, 6)),
        layers(r.between(1, 5)),
        buckets(r.between(1, 7)),
        micro(r.between(2, 10)),
        hidden(64 * r.between(1, 40)) {}
  std::int64_t elements(int n) const { return equal ? 64 * hidden : hidden * (n + 1) + 64; }
};

// Most jobs are small.
int most_ranks(Random& r) {
  const int n = r.below(1000);
  return n < 380   ? 8
         : n < 650 ? 16
         : n < 850 ? 32
         : n < 960 ? 64
         : n < 990 ? 128
         : n < 998 ? 320
                   : 1024;
}

// Sizes of the dimensions; their product is `world`, or a random world size if `world` is 0.
std::vector<int> draw_sizes(const std::vector<Want>& dims, int world, Random& random) {
  const int limit = world > 0 ? world : most_ranks(random);
  for (int tries = 0; tries < 4000; ++tries) {
    std::vector<int> sizes;
    int product = 1;
    for (const Want& d : dims) {
      sizes.push_back(random.between(d.least, std::max(d.least, std::min(d.most, limit))));
      product *= sizes.back();
    }
    // A random world uses more than a third of the limit.
    const bool fits = world > 0 ? product == world : product <= limit && 3 * product > limit;
    if (fits && product >= 3) {
      return sizes;
    }
  }
  throw std::invalid_argument("no mesh of so many ranks");
}

Mesh make_mesh(Job& job, const std::vector<Want>& dims, int world, Random& random) {
  const std::vector<int> sizes = draw_sizes(dims, world, random);
  job.world = 1;
  for (const int s : sizes) {
    job.world *= s;
  }
  add_world(job);
  std::vector<std::size_t> layout(dims.size()), created(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    layout[i] = created[i] = i;
  }
  const auto shuffle = [&](std::vector<std::size_t>& list) {
    for (std::size_t i = list.size(); i > 1; --i) {
      std::swap(list[i - 1], list[static_cast<std::size_t>(random.below(static_cast<int>(i)))]);
    }
  };
  if (random.chance(40)) {
    shuffle(layout);  // else the first dimension is that of neighbours
  }
  shuffle(created);
  std::vector<int> stride(dims.size());
  int next = 1;
  for (const std::size_t d : layout) {
    stride[d] = next;
    next *= sizes[d];
  }
  static constexpr const char* kPrefixes[] = {"", "mesh_", "MODEL_"};
  const std::string prefix = kPrefixes[random.below(3)];
  Mesh mesh;
  for (const std::size_t d : created) {
    mesh.size[dims[d].name] = sizes[d];
    mesh.groups[dims[d].name] = add_dimension(job, prefix + dims[d].name, stride[d], sizes[d]);
  }
  return mesh;
}

// Adds a second group over the ranks of each group; returns it per rank.
std::vector<int> another(Job& job, const std::vector<int>& of_rank, const std::string& desc) {
  std::map<int, int> copies;
  std::vector<int> out(of_rank.size(), -1);
  for (std::size_t r = 0; r < of_rank.size(); ++r) {
    if (of_rank[r] < 0) {
      continue;
    }
    auto it = copies.find(of_rank[r]);
    if (it == copies.end()) {
      std::vector<int> ranks = job.groups[static_cast<std::size_t>(of_rank[r])].ranks;
      it = copies.emplace(of_rank[r], add_group(job, desc, std::move(ranks))).first;
    }
    out[r] = it->second;
  }
  return out;
}

// Names the groups by numbers, by hashes, by one name per dimension (DeviceMesh), or removes their
// descriptions.
void rename(Job& job, Random& random) {
  const int how = random.below(100);
  std::map<std::string, std::string> by_desc;
  for (std::size_t g = 1; g < job.groups.size() && how < 40; ++g) {
    Group& group = job.groups[g];
    std::uint64_t h = 0;
    for (const int r : group.ranks) {
      h = scramble(h, static_cast<std::uint64_t>(r));
    }
    if (how < 10) {
      group.name = fmt::format("{:016x}", scramble(h, group.desc.size()));
    } else if (how < 32) {
      group.name = by_desc.try_emplace(group.desc, group.name).first->second;
    } else {
      group.desc = "undefined";
    }
  }
}

template <class F>
void write_programs(Job& job, Random& random, F&& one) {
  job.programs.resize(static_cast<std::size_t>(job.world));
  const bool set_up = random.chance(80);
  for (int r = 0; r < job.world; ++r) {
    Host h(job, r, job.programs[static_cast<std::size_t>(r)]);
    h.step(0);
    h.work(500 * kMs, 0);
    if (set_up) {
      h.collective(0, "broadcast", {1}, {1}, {"train.py", 31, "setup"}, false, "Long", "", 0);
      h.sync();
    }
    for (int step = 1; step <= job.steps; ++step) {
      h.step(step);
      one(h, step);
    }
    h.step(job.steps + 1);
    h.barrier(0, {"train.py", 140, "main"});
    h.work(20 * kSecond, 0);  // the last checkpoint that is written
  }
}

void all_reduce_if(Host& h, int group, std::int64_t n, const Site& site) {
  if (group >= 0) {
    h.all_reduce(group, n, site);
  }
}

void reduce_gradients(Host& h, int group, const Draw& d, const Site& site) {
  if (group < 0) {
    return;
  }
  std::vector<int> handles;
  for (int b = 0; b < d.buckets; ++b) {
    handles.push_back(h.all_reduce(group, d.elements(b), site, true));
  }
  for (const int handle : handles) {
    h.wait(handle);
  }
}

void end_of_step(Host& h, const Draw& d, int step) {
  h.work(kMs, d.compute);
  h.all_reduce(0, 1, {"train.py", 96, "mean_loss"});
  if (step % d.sync_every == 0) {
    h.sync();
  }
}

// ---------------------------------------------------------------- pipelines

struct PipelineStyle {
  Dims activation;
  int tensor = -1, pipe = -1, context = -1;  // dimensions' groups of the rank
  bool host_waits = false;
};

// Keys and values go round the group once.
void go_round(Host& h, int group, const Dims& block, const Site& site, bool host_waits) {
  const int n = h.size(group), own = h.place(group);
  for (int hop = 0; hop + 1 < n; ++hop) {
    const int next = (own + 1) % n, previous = (own + n - 1) % n;
    std::vector<Op> parts = {h.p2p(What::kSend, group, next, block, site),
                             h.p2p(What::kRecv, group, previous, block, site)};
    if (own > previous && own == n - 1) {
      std::swap(parts[0], parts[1]);  // otherwise all ranks would wait for their sends
    }
    h.exchange_in_order(std::move(parts), host_waits && hop == 0);
    h.work(100 * kUs, 2 * kMs);
  }
}

void run_pipeline(Host& h, const std::vector<Tick>& ticks, const PipelineStyle& s, const Draw& d) {
  const int own = s.pipe < 0 ? 0 : h.place(s.pipe);
  for (const Tick& tick : ticks) {
    const int mine = tick.of_place[static_cast<std::size_t>(own)];
    if (mine >= 0) {
      const bool forward = tick.passes[static_cast<std::size_t>(mine)].forward;
      const Site site{"layers.py", forward ? 88 : 131, forward ? "forward" : "backward"};
      h.work(200 * kUs, d.compute * (forward ? 1 : 2) / 4);
      for (int l = 0; l < std::min(d.layers, 2) && s.tensor >= 0; ++l) {
        h.all_reduce(s.tensor, 8 * d.hidden, site, false, "BFloat16");
      }
      if (s.context >= 0) {
        go_round(h, s.context, {d.hidden, 64}, {"ring_attention.py", forward ? 64 : 103, "rotate"},
                 false);
      }
    }
    std::vector<Op> parts;
    for (const Message& m : tick.messages) {
      const Site site{"schedules.py", m.forward ? 231 : 240,
                      m.forward ? "exchange_forward" : "exchange_backward"};
      if (m.from == own) {
        parts.push_back(h.p2p(What::kSend, s.pipe, m.to, s.activation, site));
      } else if (m.to == own) {
        parts.push_back(h.p2p(What::kRecv, s.pipe, m.from, s.activation, site));
      }
    }
    h.exchange_in_order(std::move(parts), s.host_waits);
  }
}

struct PipelineKind {
  int chunks = 1;
  bool folds = false, both_ways = false, context = false;
  bool warms_up = false;  // a collective or two of the pipe's group, then sends and receives only
};

void pipeline_job(Job& job, int world, Random& random, const Draw& d, const PipelineKind& kind) {
  std::vector<Want> dims = {{"tp", 1, 4}, {"dp", 1, 64}, {"pp", 2, 12}};
  if (kind.context) {
    dims[1] = {"dp", 1, 16};
    dims.push_back({"cp", 2, 6});
  }
  const Mesh mesh = make_mesh(job, dims, world, random);
  Pipeline p;
  p.places = mesh.size.at("pp");
  p.chunks = kind.chunks;
  p.folds = kind.folds;
  p.both_ways = kind.both_ways;
  p.forward_first = random.chance(25);
  p.micro = std::min(random.between(2, 2 * p.places + 2), 12);
  const std::vector<Tick> ticks = schedule(p);
  p.micro = std::max(1, p.micro / 2);
  const std::vector<Tick> fewer = schedule(p);  // of the last, uneven batch
  const bool uneven = random.chance(30);
  const bool norms = random.chance(50);
  const int warm_ups = kind.warms_up ? random.between(1, 2) : 0;
  write_programs(job, random, [&](Host& h, int step) {
    PipelineStyle s;
    s.activation = {d.hidden, 1, 16 * (1 + d.layers)};
    s.tensor = mesh.of("tp", h.rank());
    s.pipe = mesh.of("pp", h.rank());
    s.context = kind.context ? mesh.of("cp", h.rank()) : -1;
    s.host_waits = d.host_waits;
    for (int i = 0; step == 1 && i < warm_ups; ++i) {
      h.all_reduce(s.pipe, 1, {"schedules.py", 40 + i, "warm_up"});
    }
    h.work(2 * kMs, 0);
    run_pipeline(h, uneven && step % 4 == 3 ? fewer : ticks, s, d);
    reduce_gradients(h, mesh.of("dp", h.rank()), d, {"optimizer.py", 57, "reduce_gradients"});
    if (s.tensor >= 0 && norms) {
      if (d.coalesced) {
        h.coalesced(s.tensor, "all_reduce", {1, 7, 64}, {"optimizer.py", 81, "reduce_norms"},
                    false);
      }
      h.all_reduce(s.tensor, 1, {"optimizer.py", 74, "grad_norm"});
    }
    // The groups meet in each step, or only now and then.
    if (!kind.warms_up || step % 3 == 0) {
      end_of_step(h, d, step);
    }
  });
}

void deep_pipe(Job& job, int world, Random& random, const Draw& d) {
  pipeline_job(job, world, random, d, {});
}
void interleaved(Job& job, int world, Random& random, const Draw& d) {
  pipeline_job(job, world, random, d, {.chunks = random.between(2, 3)});
}
void pipe_ring(Job& job, int world, Random& random, const Draw& d) {
  pipeline_job(job, world, random, d, {.context = true});
}
void two_way(Job& job, int world, Random& random, const Draw& d) {
  pipeline_job(job, world, random, d, {.both_ways = true});
}
void folded(Job& job, int world, Random& random, const Draw& d) {
  pipeline_job(job, world, random, d, {.chunks = 2, .folds = true, .both_ways = random.chance(30)});
}
void warm_pipe(Job& job, int world, Random& random, const Draw& d) {
  pipeline_job(job, world, random, d, {.chunks = random.between(1, 2), .warms_up = true});
}

// ---------------------------------------------------------------- data parallel

// Gradients are summed over some micro-batches before they are reduced.
void accumulate(Job& job, int world, Random& random, const Draw& d) {
  make_mesh(job, {{"dp", 3, 1024}}, world, random);
  const int every = random.between(2, 4);
  write_programs(job, random, [&](Host& h, int step) {
    h.work(2 * kMs, 4 * d.compute);
    if (step % every == 0) {
      reduce_gradients(h, 0, d, {"train.py", 71, "train_step"});
    } else if (d.coalesced) {
      h.collective(0, "broadcast", {d.hidden}, {d.hidden}, {"train.py", 66, "share_buffers"}, false,
                   "Float", "", 0);
    }
    end_of_step(h, d, step);
    if (step % 5 == 0) {
      h.barrier(0, {"checkpoint.py", 48, "save"});
    }
  });
}

void gather_layers(Host& h, int shard, const Draw& d, const std::vector<int>& layers,
                   const Site& site) {
  int next = -1;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (i == 0) {
      next = d.coalesced ? h.coalesced(shard, "all_gather_into_tensor",
                                       {d.elements(layers[0]), 64, 8}, site, true)
                         : h.all_gather(shard, d.elements(layers[0]), site, true);
    }
    h.wait(next);
    if (i + 1 < layers.size()) {
      next = h.all_gather(shard, d.elements(layers[i + 1]), site, true);
    }
    h.work(300 * kUs, d.compute);
  }
}

// Parameters are gathered layer by layer; now and then an evaluation runs, without a backward pass.
void sharded(Job& job, int world, Random& random, const Draw& d, bool evaluates) {
  const Mesh mesh = make_mesh(job, {{"shard", 2, 256}, {"replicate", 1, 4}}, world, random);
  const int every = random.between(2, 4), batches = random.between(1, 3);
  std::vector<int> forward, backward;
  for (int l = 0; l < d.layers; ++l) {
    forward.push_back(l);
    backward.insert(backward.begin(), l);
  }
  write_programs(job, random, [&](Host& h, int step) {
    const int g = mesh.of("shard", h.rank()), all = mesh.of("replicate", h.rank());
    h.work(2 * kMs, 0);
    gather_layers(h, g, d, forward, {"fsdp.py", 204, "unshard"});
    gather_layers(h, g, d, backward, {"fsdp.py", 261, "backward_unshard"});
    for (const int l : backward) {
      h.reduce_scatter(g, d.elements(l), {"fsdp.py", 318, "post_backward"});
      all_reduce_if(h, all, d.elements(l), {"fsdp.py", 325, "post_backward"});
    }
    if (evaluates && step % every == 0) {
      for (int b = 0; b < batches; ++b) {
        gather_layers(h, g, d, forward, {"eval.py", 41, "evaluate"});
        h.all_reduce(0, 2, {"eval.py", 52, "accuracy"});
      }
      h.sync();
    }
    end_of_step(h, d, step);
  });
}
void coalescing(Job& job, int world, Random& random, const Draw& d) {
  Draw changed = d;
  changed.coalesced = true;
  sharded(job, world, random, changed, false);
}
void evaluation(Job& job, int world, Random& random, const Draw& d) {
  sharded(job, world, random, d, true);
}

// Checkpoints are agreed upon in a group of their own while training goes on.
void checkpoints(Job& job, int world, Random& random, const Draw& d) {
  const Mesh mesh = make_mesh(job, {{"dp", 2, 256}, {"tp", 1, 4}}, world, random);
  const std::vector<int> all(static_cast<std::size_t>(job.world), 0);
  const std::vector<int> planner = another(job, all, "checkpoint");
  const int every = random.between(2, 3);
  std::vector<int> pending(static_cast<std::size_t>(job.world), -1);
  write_programs(job, random, [&](Host& h, int step) {
    const int t = mesh.of("tp", h.rank());
    int& handle = pending[static_cast<std::size_t>(h.rank())];
    for (int l = 0; l < d.layers; ++l) {
      h.work(300 * kUs, d.compute);
      all_reduce_if(h, t, 8 * d.hidden, {"layers.py", 88, "forward"});
    }
    reduce_gradients(h, mesh.of("dp", h.rank()), d, {"optimizer.py", 57, "reduce_gradients"});
    if (handle >= 0) {
      h.wait(handle);
      handle = -1;
    }
    if (step % every == 0) {
      h.collective(planner[0], "broadcast", {64}, {64}, {"async_checkpoint.py", 30, "plan"}, true,
                   "Long", "", 0);
      handle = h.all_gather(planner[0], 256, {"async_checkpoint.py", 44, "gather_metadata"}, true);
    }
    end_of_step(h, d, step);
  });
}

// ---------------------------------------------------------------- many groups

// Tensor x context x data, each with some communicators over the same ranks.
void many_groups(Job& job, int world, Random& random, const Draw& d, int copies) {
  const Mesh mesh = make_mesh(job, {{"tp", 2, 4}, {"cp", 1, 4}, {"dp", 1, 32}}, world, random);
  std::vector<std::vector<int>> groups;
  for (const char* dim : {"tp", "cp", "dp"}) {
    groups.push_back(mesh.groups.at(dim));
    for (int i = 1; i < copies; ++i) {
      static constexpr const char* kDescs[] = {"_overlap", "_grads", "_norms", "_fp8"};
      groups.push_back(another(job, mesh.groups.at(dim), std::string(dim) + kDescs[i - 1]));
    }
  }
  std::vector<int> order;
  for (int n = 0; n < d.layers + static_cast<int>(groups.size()); ++n) {
    order.push_back(
        n < static_cast<int>(groups.size()) ? n : random.below(static_cast<int>(groups.size())));
  }
  write_programs(job, random, [&](Host& h, int step) {
    h.work(2 * kMs, 0);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const int g = groups[static_cast<std::size_t>(order[i])][static_cast<std::size_t>(h.rank())];
      if (g < 0) {
        continue;
      }
      const int line = 60 + 3 * static_cast<int>(i);
      h.work(200 * kUs, d.compute / 3);
      const bool async = i % 3 == 2;
      const int handle = i % 2 == 0 ? h.all_reduce(g, d.elements(static_cast<int>(i)),
                                                   {"blocks.py", line, "forward"}, async)
                                    : h.all_gather(g, d.elements(static_cast<int>(i)),
                                                   {"blocks.py", line, "forward"}, async);
      if (async) {
        h.wait(handle);
      }
    }
    end_of_step(h, d, step);
  });
}
void mesh_names(Job& job, int world, Random& random, const Draw& d) {
  many_groups(job, world, random, d, 1);
}
void many_small(Job& job, int world, Random& random, const Draw& d) {
  many_groups(job, world, random, d, random.between(4, 5));
}
void communicators(Job& job, int world, Random& random, const Draw& d) {
  many_groups(job, world, random, d, random.between(2, 3));
}

// ---------------------------------------------------------------- experts, context

void dispatch(Host& h, int group, std::int64_t rows, int line) {
  const std::vector<std::int64_t> even(static_cast<std::size_t>(h.size(group)), rows);
  h.all_to_all(group, even, even, 128, {"moe.py", line, line < 120 ? "dispatch" : "combine"});
}

// Every expert takes as many tokens as the others.
void even_experts(Job& job, int world, Random& random, const Draw& d) {
  const Mesh mesh = make_mesh(job, {{"ep", 3, 16}, {"dp", 1, 32}}, world, random);
  write_programs(job, random, [&](Host& h, int step) {
    h.work(2 * kMs, 0);
    for (int l = 0; l < 2 * std::min(d.layers, 3); ++l) {
      h.work(300 * kUs, d.compute);
      dispatch(h, mesh.of("ep", h.rank()), d.hidden / 8, 112);
      h.work(300 * kUs, d.compute);
      dispatch(h, mesh.of("ep", h.rank()), d.hidden / 8, 129);
    }
    all_reduce_if(h, mesh.of("dp", h.rank()), d.elements(1),
                  {"optimizer.py", 61, "reduce_experts"});
    reduce_gradients(h, 0, d, {"optimizer.py", 57, "reduce_gradients"});
    end_of_step(h, d, step);
  });
}

// Within a node first, then across.
void experts_2d(Job& job, int world, Random& random, const Draw& d) {
  const Mesh mesh =
      make_mesh(job, {{"ep_inner", 2, 8}, {"ep_outer", 2, 8}, {"dp", 1, 8}}, world, random);
  const bool even = random.chance(50);
  const std::uint64_t seed = random.next();
  write_programs(job, random, [&](Host& h, int step) {
    h.work(2 * kMs, 0);
    for (int pass = 0; pass < 2 * std::min(d.layers, 2); ++pass) {
      for (const char* dim : {"ep_inner", "ep_outer"}) {
        const int g = mesh.of(dim, h.rank());
        const int line = (pass % 2 == 0 ? 112 : 129) + (dim[3] == 'i' ? 0 : 4);
        const auto tokens = [&](int from, int to) {
          const std::uint64_t key =
              scramble(static_cast<std::uint64_t>(g * 4096 + step),
                       static_cast<std::uint64_t>(pass * 4096 + from * 64 + to));
          return even ? d.hidden / 8 : static_cast<std::int64_t>(scramble(seed, key) % 96);
        };
        std::vector<std::int64_t> to, from;
        for (int i = 0; i < h.size(g); ++i) {
          to.push_back(tokens(h.place(g), i));
          from.push_back(tokens(i, h.place(g)));
        }
        h.work(300 * kUs, d.compute / 2);
        h.all_to_all(g, to, from, 128, {"moe.py", line, pass % 2 == 0 ? "dispatch" : "combine"});
      }
    }
    all_reduce_if(h, mesh.of("dp", h.rank()), d.elements(1),
                  {"optimizer.py", 61, "reduce_experts"});
    end_of_step(h, d, step);
  });
}

void context_ring(Job& job, int world, Random& random, const Draw& d) {
  const Mesh mesh = make_mesh(job, {{"tp", 1, 3}, {"cp", 2, 10}, {"dp", 1, 16}}, world, random);
  write_programs(job, random, [&](Host& h, int step) {
    const int t = mesh.of("tp", h.rank()), c = mesh.of("cp", h.rank());
    for (int l = 0; l < d.layers; ++l) {
      h.work(300 * kUs, d.compute / 2);
      go_round(h, c, {d.hidden, 128}, {"ring_attention.py", 64, "forward"}, d.host_waits);
      all_reduce_if(h, t, 8 * d.hidden, {"layers.py", 88, "forward"});
    }
    reduce_gradients(h, mesh.of("dp", h.rank()), d, {"optimizer.py", 57, "reduce_gradients"});
    end_of_step(h, d, step);
  });
}

// Heads are exchanged by all_to_all, then keys and values go round a second group.
void heads_and_ring(Job& job, int world, Random& random, const Draw& d) {
  const Mesh mesh = make_mesh(job, {{"heads", 2, 4}, {"cp", 2, 6}, {"dp", 1, 8}}, world, random);
  write_programs(job, random, [&](Host& h, int step) {
    for (int l = 0; l < std::min(d.layers, 3); ++l) {
      h.work(300 * kUs, d.compute / 2);
      dispatch(h, mesh.of("heads", h.rank()), d.hidden / 16 + 1, 112);
      go_round(h, mesh.of("cp", h.rank()), {d.hidden, 128}, {"ring_attention.py", 64, "forward"},
               d.host_waits);
      dispatch(h, mesh.of("heads", h.rank()), d.hidden / 16 + 1, 129);
    }
    reduce_gradients(h, 0, d, {"optimizer.py", 57, "reduce_gradients"});
    end_of_step(h, d, step);
  });
}

struct Kind {
  const char* name;
  bool held_out;
  void (*make)(Job&, int world, Random&, const Draw&);
};
constexpr Kind kKinds[] = {{"deep_pipe", false, deep_pipe},
                           {"interleaved", false, interleaved},
                           {"context_ring", false, context_ring},
                           {"accumulate", false, accumulate},
                           {"coalescing", false, coalescing},
                           {"mesh_names", false, mesh_names},
                           {"many_small", false, many_small},
                           {"even_experts", false, even_experts},
                           {"two_way", true, two_way},
                           {"folded", true, folded},
                           {"warm_pipe", true, warm_pipe},
                           {"pipe_ring", true, pipe_ring},
                           {"evaluation", true, evaluation},
                           {"checkpoints", true, checkpoints},
                           {"communicators", true, communicators},
                           {"experts_2d", true, experts_2d},
                           {"heads_and_ring", true, heads_and_ring}};

}  // namespace

std::vector<std::string> wide_job_kinds(Half half) {
  std::vector<std::string> out;
  for (const Kind& k : kKinds) {
    if (half == Half::kAll || (half == Half::kHeldOut) == k.held_out) {
      out.emplace_back(k.name);
    }
  }
  return out;
}

bool is_held_out(std::string_view kind) {
  return std::any_of(std::begin(kKinds), std::end(kKinds),
                     [&](const Kind& k) { return k.name == kind && k.held_out; });
}

Job make_wide_job(std::string_view kind, int world, Random& random) {
  for (const Kind& k : kKinds) {
    if (k.name != kind) {
      continue;
    }
    Job job;
    job.kind = kind;
    job.backend = random.chance(6) ? "xccl" : "nccl";
    static constexpr int kNodes[] = {1, 2, 4, 8, 8, 8};
    job.ranks_per_node = kNodes[random.below(6)];
    job.steps = random.between(5, 10);
    job.batched_p2p = random.chance(65);
    job.queue_limit = random.chance(30) ? random.between(4, 16) : random.between(16, 200);
    job.early_end = random.chance(15);
    const Draw d(random);
    k.make(job, world, random, d);
    rename(job, random);
    return job;
  }
  throw std::invalid_argument(fmt::format("no such kind of job: {}", kind));
}

}  // namespace hangsim
