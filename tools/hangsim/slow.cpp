// slow.cpp - jobs in which nothing is stuck: ranks that keep the others waiting, and ranks that
// only look like it.
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "faults.hpp"

namespace hangsim {

namespace {

struct Draw {
  Job& job;
  Random& random;
  Slow slow;
  std::string text = {};

  template <class F>
  void each(int rank, const F& change) {
    for (Op& op : job.programs[static_cast<std::size_t>(rank)]) {
      if (op.step >= slow.since && op.step >= 1 && op.step <= job.steps) {
        change(op);
      }
    }
  }
  void host(int rank, Ns delay) {
    each(rank, [&](Op& op) { op.host += op.what == What::kStep ? delay : 0; });
  }
  void device(int rank, int times) {
    each(rank, [&](Op& op) { op.device *= op.what == What::kWork ? times : 1; });
  }
  void stall(int rank, int step, Ns delay) {
    each(rank, [&](Op& op) { op.host += op.what == What::kStep && op.step == step ? delay : 0; });
  }
};

bool slow_host(Draw& d) {
  const Ns delay = d.random.between(150, 900) * kMs;
  d.host(d.slow.ranks[0], delay);
  d.text = fmt::format("host {} ms late in every step", delay / kMs);
  return true;
}

bool slow_device(Draw& d) {
  const int times = d.random.between(2, 4);
  d.device(d.slow.ranks[0], times);
  d.slow.cause = "device";
  d.text = fmt::format("kernels take {} times as long", times);
  return true;
}

bool slow_node(Draw& d) {
  const int nodes = d.job.node(d.job.world - 1) + 1, node = d.random.below(nodes);
  if (nodes < 2) {
    return false;
  }
  d.slow.ranks.clear();
  for (int r = 0; r < d.job.world; ++r) {
    if (d.job.node(r) == node) {
      d.slow.ranks.push_back(r);
    }
  }
  const bool host = d.random.chance(50);
  const Ns delay = d.random.between(150, 900) * kMs;
  const int times = d.random.between(2, 4);
  for (const int r : d.slow.ranks) {
    host ? d.host(r, delay) : d.device(r, times);
  }
  d.slow.cause = "node";
  d.text = host ? fmt::format("all hosts of node {} {} ms late in every step", node, delay / kMs)
                : fmt::format("kernels of node {} take {} times as long", node, times);
  return true;
}

bool slow_rarely(Draw& d) {
  const Ns delay = d.random.between(3000, 10000) * kMs;
  const int first = d.random.between(5, 60);
  d.slow.since = first;
  for (int step = first; step < d.job.steps - 8; step += d.random.between(80, 120)) {
    d.stall(d.slow.ranks[0], step, delay);
  }
  d.slow.pattern = "now_and_then";
  d.text = fmt::format("host {} ms late in one of a hundred steps", delay / kMs);
  return true;
}

bool slow_drifting(Draw& d) {
  const Ns most = d.random.between(400, 1200) * kMs;
  const int steps = d.job.steps - d.slow.since + 1;
  d.each(d.slow.ranks[0], [&](Op& op) {
    op.host += op.what == What::kStep ? most * (op.step - d.slow.since + 1) / steps : 0;
  });
  d.slow.pattern = "growing";
  d.text = fmt::format("host later and later, by {} ms in the end", most / kMs);
  return true;
}

// No straggler: pauses of every job, of all ranks together and sometimes of single ranks.
bool slow_nobody(Draw& d) {
  d.slow.since = 1;
  for (int r = 0; r < d.job.world; ++r) {
    for (int step = 20; step < d.job.steps - 8; step += 50) {
      d.stall(r, step, 2 * kSecond);
    }
    d.stall(r, d.random.between(1, d.job.steps - 9), d.random.between(300, 3000) * kMs);
  }
  d.slow.ranks.clear();
  d.slow.cause = d.slow.pattern = "";
  d.text = "pauses of all, and of each rank once";
  return true;
}

struct Kind {
  Class cls;
  bool (*plant)(Draw&);
  int steps;
};
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kKinds = {
      {{"slow_host", "a host is late in every step, from some step on"}, slow_host, 50},
      {{"slow_device", "a device is slow, its host in time"}, slow_device, 50},
      {{"slow_node", "all ranks of a node are slow"}, slow_node, 50},
      {{"slow_rarely", "a host is late in one of a hundred steps"}, slow_rarely, 420},
      {{"slow_drifting", "a host is later and later"}, slow_drifting, 80},
      {{"slow_nobody", "all pause together, and each now and then"}, slow_nobody, 200},
  };
  return kKinds;
}

void choose_slow_evidence(Case& c, Random& random) {
  const bool timing = c.slow->cause == "device" || random.chance(60);
  std::vector<Ns> clock;
  for (int n = 0; n <= c.job.node(c.job.world - 1); ++n) {
    clock.push_back((random.below(401) - 200) * kMs);
  }
  Ns end = 0;
  for (const RankRun& r : c.run.ranks) {
    end = std::max(end, r.ended_at);
  }
  // Dump in the last steps, which have no pauses: a pause during the dump may look like a hang.
  Ns at = end;
  for (const RankRun& r : c.run.ranks) {
    for (const Issued& i : r.issued) {
      at = i.op->step >= c.job.steps - 2 ? std::min(at, i.created) : at;
    }
  }
  for (Evidence* e : {&c.fr, &c.torch}) {
    e->timing = timing;
    e->ring = 30'000;
    for (int r = 0; r < c.job.world; ++r) {
      e->at.push_back(at + random.below(20) * kMs);
      e->clock.push_back(clock[static_cast<std::size_t>(c.job.node(r))]);
    }
  }
}

// (group, sequence number of the rank's first collective from that step on).
std::vector<std::pair<int, std::uint64_t>> first_of(const RankRun& run, int step) {
  std::vector<std::pair<int, std::uint64_t>> out;
  for (const Issued& i : run.issued) {
    const bool known =
        std::any_of(out.begin(), out.end(), [&](const auto& x) { return x.first == i.op->group; });
    if (i.op->what == What::kCollective && i.op->step >= step && !known) {
      out.emplace_back(i.op->group, i.seq);
    }
  }
  return out;
}

}  // namespace

const std::vector<Class>& classes_slow() {
  static const std::vector<Class> kClasses = [] {
    std::vector<Class> out;
    for (const Kind& k : kinds()) {
      out.push_back(k.cls);
    }
    return out;
  }();
  return kClasses;
}

Case make_slow_case(std::uint64_t seed, std::string_view cls, std::string_view kind, int world) {
  const auto found = std::find_if(kinds().begin(), kinds().end(),
                                  [&](const Kind& k) { return k.cls.name == cls; });
  if (found == kinds().end()) {
    throw std::invalid_argument(fmt::format("no such class: {}", cls));
  }
  const std::vector<std::string> jobs = job_kinds();
  for (std::uint64_t attempt = 0; attempt < 100; ++attempt) {
    Random random(scramble(seed, scramble(scramble(cls), attempt)));
    static constexpr int kWorlds[] = {4, 8, 16};
    Case c;
    c.cls = cls;
    c.seed = seed;
    c.job = make_job(kind.empty() ? random.pick(jobs) : std::string(kind),
                     world > 0 ? world : kWorlds[random.below(3)], random, found->steps);
    c.job.ranks_per_node = c.job.world >= 16 && random.chance(50) ? 8 : 4;
    const bool gloo = cls != "slow_device" && cls != "slow_node" && random.chance(20);
    c.job.backend = gloo ? "gloo" : "nccl";
    const Run healthy = simulate(c.job, scramble(seed, 77));
    Draw d{c.job, random, {}};
    d.slow.ranks = {random.below(c.job.world)};
    d.slow.since = random.chance(50) ? 1 : random.between(c.job.steps / 4, c.job.steps / 2);
    if (!found->plant(d)) {
      continue;
    }
    c.run = simulate(c.job, scramble(seed, 77));
    // If the other ranks do not wait for it, the rank had time to spare and is not slow.
    const bool harm = c.run.last_event > healthy.last_event + healthy.last_event / 6;
    if (!c.run.finished || (!harm && !d.slow.ranks.empty())) {
      continue;
    }
    c.fault = d.text;
    c.fault_step = d.slow.since;
    c.slow = d.slow;
    c.name = fmt::format("{}-{}-{}", c.cls, c.job.kind, seed);
    for (const int r : c.slow->ranks) {
      c.slow->first.push_back(first_of(c.run_of(r), c.slow->since));
    }
    choose_slow_evidence(c, random);
    for (Truth* t : {&c.fr_truth, &c.torch_truth}) {
      t->answer = {c.slow->ranks.empty() ? "ok" : "slow", c.slow->ranks};
      t->faulty = c.slow->ranks;
    }
    return c;
  }
  throw std::runtime_error(fmt::format("no such fault possible: {}", cls));
}

}  // namespace hangsim
