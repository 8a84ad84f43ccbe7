// Faults below the host: in a device, in NCCL's network thread or in the network, and asynchronous
// errors; with complete evidence, and with the gaps that occur in practice.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "faults.hpp"
#include "wires.hpp"

namespace hangsim {

namespace {

// ---------------------------------------------------------------- devices

std::optional<Plan> stream(Context& c) {
  return c.at_some(communicates, [&](int r, int i) {
    Plan p{.kind = "device",
           .ranks = {r},
           .text = "a kernel before " + c.words(c.at(r, i)) + " never ends"};
    p.kernels_tell = true;
    c.insert(r, i, plain(What::kStuckKernel));
    return p;
  });
}

std::optional<Plan> launch(Context& c) {
  return c.at_some(communicates, [&](int r, int i) {
    const bool inside = c.random.chance(50);
    c.at(r, i).launch = inside ? Launch::kInside : Launch::kNotBegun;
    return Plan{.kind = "device",
                .ranks = {r},
                .text = fmt::format(
                    "{} {}", inside ? "never comes back from the launch of" : "never launches",
                    c.words(c.at(r, i))),
                .also = {"missing"}};
  });
}

// Plants a trouble at one member of a collective.
std::optional<Plan> at_member(Context& c, Trouble::Kind kind) {
  return c.at_some([&](const Op& op) { return collective(op) && c.size(op) > 1; },
                   [&](int r, int i) {
                     Op& op = c.at(r, i);
                     const int channels = c.job.fabric.channels;
                     op.trouble.kind = kind;
                     op.trouble.from = c.group(op.group).position(r);
                     op.trouble.channel = kind == Trouble::kThread ||
                                                  (kind == Trouble::kKernel && c.random.chance(30))
                                              ? -1
                                              : c.random.below(channels);
                     op.trouble.step = c.random.chance(30) ? 0 : c.random.below(12);
                     return Plan{.kind = "device", .ranks = {r}, .text = c.words(op)};
                   });
}

std::optional<Plan> channel(Context& c) {
  c.job.fabric.channels = c.random.between(2, 3);
  auto p = at_member(c, Trouble::kChannel);
  if (p) {
    p->text = "one channel of its kernel never runs in " + p->text;
    p->kernels_tell = true;
  }
  return p;
}

std::optional<Plan> kernel(Context& c) {
  auto p = at_member(c, Trouble::kKernel);
  if (p) {
    p->text = "its kernel stands in " + p->text;
    // The kernel may wait for a rank that it reaches without the network; in a tree of two ranks
    // each waits for the other's data.
    p->undecided = c.job.ranks_per_node > 1 || c.job.fabric.trees;
    p->kernels_tell = true;
  }
  return p;
}

std::optional<Plan> net_thread(Context& c) {
  auto p = at_member(c, Trouble::kThread);
  if (p) {
    p->text = "its network thread stands in " + p->text;
    p->alternatives = {{"transport", {}}};
    p->undecided = c.job.ranks_per_node > 1;  // as with a kernel
    const int r = p->ranks[0];
    for (int other = 0; other < c.job.world; ++other) {
      p->links.emplace_back(r, other);
      p->links.emplace_back(other, r);
      // Transfers that it carries for other ranks of its node.
      for (int beside = 0; c.job.fabric.pxn && beside < c.job.world; ++beside) {
        if (c.job.node(beside) == c.job.node(r) && c.job.node(other) != c.job.node(r)) {
          p->links.emplace_back(beside, other);
        }
      }
    }
  }
  return p;
}

// ---------------------------------------------------------------- the network

std::optional<Plan> between(Context& c, Trouble::Kind kind, bool carried) {
  const int r = c.any_rank();
  const int i = c.find(r, [&](const Op& op) { return op.communicates() && c.size(op) > 1; });
  if (i < 0) {
    return std::nullopt;
  }
  Op& whole = c.at(r, i);
  const bool batch = whole.what == What::kBatch;
  Op& op = batch ? whole.parts[static_cast<std::size_t>(
                       c.random.below(static_cast<int>(whole.parts.size())))]
                 : whole;
  const Group& g = c.group(op.group);
  const int own = g.position(r);
  std::vector<Wire> wires = op.is_p2p() ? op.what == What::kSend ? wires_of(c.job, op, own, op.peer)
                                                                 : wires_of(c.job, op, op.peer, own)
                                        : wires_of(c.job, op);
  std::erase_if(wires, [&](const Wire& w) {
    return !w.net || w.steps == 0 || (carried && w.carrier == w.from);
  });
  if (wires.empty()) {
    return std::nullopt;
  }
  const Wire w = c.random.pick(wires);
  Trouble& t = op.trouble;
  t.kind = kind;
  t.from = w.from;
  t.to = w.to;
  t.channel = c.random.chance(50) ? w.channel : -1;
  t.step = c.random.chance(30) ? 0 : c.random.below(op.is_p2p() ? w.steps - 8 : w.steps);
  const auto rank = [&](int place) { return g.ranks[static_cast<std::size_t>(place)]; };
  static constexpr const char* kWords[] = {"", "what is sent is lost", "credit does not arrive",
                                           "a flush does not end"};
  Plan p{.kind = "transport",
         .ranks = {},
         .text = fmt::format("{} from rank {} to {} from step {} on in {}", kWords[kind],
                             rank(w.from), rank(w.to), t.step, c.words(op))};
  if (kind == Trouble::kFlush) {
    p.links = {{rank(w.to), rank(w.to)}};
  } else {
    p.links = {{rank(w.from), rank(w.to)}, {rank(w.carrier), rank(w.to)}};
  }
  return p;
}

std::optional<Plan> lost(Context& c) {
  return between(c, Trouble::kLost, false);
}
std::optional<Plan> credit(Context& c) {
  return between(c, Trouble::kCredit, false);
}
std::optional<Plan> flush(Context& c) {
  return between(c, Trouble::kFlush, false);
}
std::optional<Plan> pxn(Context& c) {
  if (c.job.world < 3) {
    return std::nullopt;
  }
  c.job.ranks_per_node = c.job.world % 4 == 0 && c.job.world > 4 ? 4 : 2;
  c.job.fabric.pxn = true;
  c.job.fabric.all_by_net = false;
  return between(c, c.random.chance(60) ? Trouble::kLost : Trouble::kCredit, true);
}

// ---------------------------------------------------------------- errors

std::optional<Plan> cuda_error(Context& c) {
  auto p = stream(c);
  if (p) {
    p->text = "an asynchronous CUDA error: " + p->text;
    p->also = {"exited"};
    p->kernels_tell = false;
  }
  return p;
}

std::optional<Plan> nccl_error(Context& c) {
  auto p = between(c, Trouble::kLost, false);
  if (p) {
    p->text = "an error of NCCL: " + p->text;
    p->suspects = {p->links[0].first};
  }
  return p;
}

// ---------------------------------------------------------------- with holes

std::optional<Plan> any(Context& c) {
  using Plant = std::optional<Plan> (*)(Context&);
  static constexpr Plant kAll[] = {stream, launch, channel, kernel, net_thread,
                                   lost,   credit, lost,    credit, pxn};
  return kAll[c.random.below(10)](c);
}

// Healthy ranks behind the others: their hosts wait for the device where other hosts go on.
std::optional<Plan> behind(Context& c) {
  auto p = any(c);
  for (int n = p ? c.random.between(1, 3) : 0; n > 0; --n) {
    const int r = c.any_rank();
    const int i = c.find(r, communicates);
    if (i >= 0 && !holds(p->ranks, r)) {
      c.insert(r, i + 1, plain(What::kSync));
    }
  }
  return p;
}

}  // namespace

const std::vector<Recipe>& recipes_below() {
  static const std::vector<std::string> kAll = {"ddp", "fsdp", "3d", "moe", "ring"};
  static const std::vector<Recipe> kRecipes = {
      {{"stream", "launched, not started: a kernel before it never ends"},
       stream,
       Outcome::kHang,
       kAll},
      {{"launch", "issued, never launched, or the launch does not come back"},
       launch,
       Outcome::kHang,
       kAll},
      {{"channel", "a channel of a kernel never runs"}, channel, Outcome::kHang, kAll},
      {{"kernel", "a kernel runs and does nothing"}, kernel, Outcome::kHang, kAll},
      {{"net_thread", "NCCL's network thread stands"}, net_thread, Outcome::kHang, kAll},
      {{"lost", "the network loses what is sent"}, lost, Outcome::kHang, kAll},
      {{"credit", "a sender does not learn of the receiver's buffers"},
       credit,
       Outcome::kHang,
       kAll},
      {{"flush", "what came does not get from the card to the device"},
       flush,
       Outcome::kHang,
       kAll},
      {{"pxn", "the network, of what another process of the node sends"},
       pxn,
       Outcome::kHang,
       kAll},
      {{"cuda_error", "an asynchronous CUDA error, those of others after it"},
       cuda_error,
       Outcome::kHang,
       kAll},
      {{"nccl_error", "the network is lost, and NCCL says so"}, nccl_error, Outcome::kHang, kAll},
      {{"old_nccl", "any of these, NCCL tells less"}, any, Outcome::kHang, kAll},
      {{"no_device", "any of these, some ranks' devices tell nothing, or not all"},
       any,
       Outcome::kHang,
       kAll},
      {{"lost_file", "any of these, a rank's file lost or older than the hang"},
       any,
       Outcome::kHang,
       kAll},
      {{"behind", "any of these, healthy hosts behind by some operations"},
       behind,
       Outcome::kHang,
       kAll},
      {{"clocks", "any of these, clocks that differ by seconds"}, any, Outcome::kHang, kAll},
  };
  return kRecipes;
}

void choose_evidence_below(Case& c, const Plan& plan, Random& random) {
  Evidence& e = c.fr;
  const bool apart = random.chance(40);
  const Ns off = c.cls == "clocks" ? 2000 * kMs : random.chance(40) ? 200 * kMs : 100 * kUs;
  std::vector<Ns> node_clock;
  for (int n = 0; n <= c.job.node(c.job.world - 1); ++n) {
    node_clock.push_back(off / 1000 * (random.below(2001) - 1000));
  }
  for (int r = 0; r < c.job.world; ++r) {
    const Ns spread = (apart ? 3 * kSecond : 200 * kMs) / 1000 * random.below(1000);
    e.at.push_back(c.run.last_event + 60 * kSecond + spread);
    e.clock.push_back(node_clock[static_cast<std::size_t>(c.job.node(r))]);
  }
  e.frames = !random.chance(15);
  e.nics = random.chance(50);
  if (c.cls == "old_nccl") {
    static constexpr int kVersions[] = {2, 2, 3, 4};
    e.api = kVersions[random.below(4)];
  }
  if (c.cls == "no_device") {
    std::vector<int>& which = random.chance(50) ? e.no_device : e.lossy;
    for (int n = random.between(1, &which == &e.lossy ? 3 : 1); n > 0; --n) {
      which.push_back(random.below(c.job.world));
    }
  }
  if (c.cls == "lost_file") {
    const int r = random.below(c.job.world);
    if (random.chance(30)) {
      e.stale = r;
      e.at[static_cast<std::size_t>(r)] = c.run.last_event - random.between(1, 6) * kSecond / 2;
    } else {
      e.lost.push_back(r);
    }
  }
  if (c.cls == "cuda_error") {
    const int r = plan.ranks[0];
    RankRun& run = c.run.ranks[static_cast<std::size_t>(r)];
    const Ns first = std::max<Ns>(run.device_stuck, 0) + random.between(1, 20) * kMs;
    c.errors.push_back(
        {r, first, true, "cudaErrorIllegalAddress", "an illegal memory access was encountered"});
    const Ns later[] = {100 * kMs, 2 * kSecond, 20 * kSecond};
    for (int other = 0; other < c.job.world; ++other) {
      const int how = random.below(5);
      const Ns at = first + later[random.below(3)] + random.below(50) * kMs;
      if (other == r || how < 2) {
        continue;
      }
      if (how == 2) {
        c.errors.push_back(
            {other, at, true, "cudaErrorLaunchFailure", "unspecified launch failure"});
      } else {
        c.errors.push_back({other, at, false, "ncclRemoteError",
                            "remote process exited or there was a network error"});
      }
    }
    if (random.chance(40) && !run.ended) {
      run.ended = run.own_fault = true;
      run.ended_at = first + 5 * kMs;
      run.how = ExitHow::kException;
      run.error = "RuntimeError: CUDA error: an illegal memory access was encountered";
    }
  }
  if (c.cls == "nccl_error") {
    const Ns first = c.run.last_event + 20 * kSecond;
    c.errors.push_back({plan.suspects[0], first, false, "ncclSystemError",
                        "System call (e.g. socket, malloc) or external library call failed"});
    for (int other = 0; other < c.job.world; ++other) {
      if (other != plan.suspects[0] && random.chance(50)) {
        c.errors.push_back({other, first + random.between(1, 20) * kSecond, false,
                            "ncclRemoteError",
                            "remote process exited or there was a network error"});
      }
    }
  }
}

Truth truth_below(const Case& c, const Plan& plan) {
  const Evidence& e = c.fr;
  Truth t;
  t.answer = {plan.kind, plan.ranks};
  t.links = plan.links;
  for (const std::string& kind : plan.also) {
    t.also.push_back({kind, plan.ranks});
  }
  t.also.insert(t.also.end(), plan.alternatives.begin(), plan.alternatives.end());
  if (!plan.suspects.empty()) {
    t.also.push_back({"device", plan.suspects});
  }
  const auto undecidable = [&](const std::string& why) {
    t.decidable = false;
    t.lacking = t.lacking.empty() ? why : t.lacking + "; " + why;
    t.also.push_back({"undecided", {}});
    t.also.push_back({"transport", {}});
  };
  if (plan.undecided) {
    undecidable("it may be a neighbour that it reaches without the network");
  }
  if (!e.lost.empty()) {
    undecidable("file of a rank lost");
    if (e.lost == plan.ranks) {
      t.also.push_back({"exited", plan.ranks});
      t.also.push_back({"missing", plan.ranks});
    }
  }
  if (e.stale >= 0) {
    undecidable("one dump is older than the hang");
  }
  if (!e.no_device.empty() || !e.lossy.empty()) {
    undecidable("not all of the devices is told");
  }
  if (e.api < 3 || (e.api == 3 && plan.kernels_tell)) {
    undecidable("kernels are not told");
  }
  return t;
}

}  // namespace hangsim
