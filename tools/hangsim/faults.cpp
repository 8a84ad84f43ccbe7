// The classes of cases: plants the fault of each class.
#include "faults.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace hangsim {

Op plain(What what) {
  Op op;
  op.what = what;
  op.host = 10 * kUs;
  return op;
}

namespace {

bool sized(const Op& op) {
  return collective(op) && !op.in.empty() && op.name != "all_to_all_single";
}

std::optional<Plan> hang(Context& c) {
  const int r = c.any_rank();
  const bool loader = c.random.chance(30);
  const int i = loader ? c.find(r, [](const Op& op) { return op.what == What::kStep; })
                       : c.find(r, communicates);
  if (i < 0) {
    return std::nullopt;
  }
  const std::string text =
      loader ? "data loader never returns" : "host is elsewhere instead of " + c.words(c.at(r, i));
  c.insert(r, loader ? i + 1 : i, plain(What::kHang));
  return Plan{.kind = "missing", .ranks = {r}, .text = text};
}

std::optional<Plan> stopped(Context& c) {
  return c.at_some(communicates, [&](int r, int i) {
    Op op = plain(What::kHang);
    op.stopped = true;
    Plan p{.kind = "missing",
           .ranks = {r},
           .text = "stopped (SIGSTOP) before " + c.words(c.at(r, i)),
           .also = {"exited", "device"}};
    c.insert(r, i, op);
    return p;
  });
}

std::optional<Plan> skip(Context& c) {
  return c.at_some(collective, [&](int r, int i) {
    Plan p{.kind = "missing",
           .ranks = {r},
           .text = "skips " + c.words(c.at(r, i)),
           .also = {"mismatch", "deadlock"}};
    p.group = c.group(c.at(r, i).group).ranks;
    p.needs_history = true;
    c.program(r).erase(c.program(r).begin() + i);
    return p;
  });
}

std::optional<Plan> extra(Context& c) {
  return c.at_some(collective, [&](int r, int i) {
    Op op = c.at(r, i);
    op.name = c.random.chance(50) ? "all_reduce" : "broadcast";
    op.reduce = op.name == "all_reduce" ? "SUM" : "";
    op.peer = op.name == "all_reduce" ? -1 : 0;
    op.in = op.out = {{37}};
    op.dtype = "Float";
    op.in_splits = op.out_splits = {};
    op.parts = {};
    op.async = false;
    op.handle = -1;
    op.site = c.job.site("debug.py", 17, "log_stats");
    Plan p{.kind = "mismatch",
           .ranks = {r},
           .text = "one more " + c.words(op),
           .also = {"missing", "deadlock"}};
    p.group = c.group(op.group).ranks;
    p.needs_history = true;
    c.insert(r, i, op);
    return p;
  });
}

// Changes an operation: another one, or other arguments, in the same slot.
std::optional<Plan> change(Context& c, const std::function<bool(const Op&)>& wanted,
                           const std::function<std::string(Op&)>& f) {
  const int r = c.any_rank();
  const int i = c.find(r, wanted);
  if (i < 0) {
    return std::nullopt;
  }
  Op& op = c.at(r, i);
  Plan p{.kind = "mismatch", .ranks = {r}, .text = c.words(op)};
  p.group = c.group(op.group).ranks;
  p.text = f(op) + " in " + p.text;
  return p;
}

std::optional<Plan> branch(Context& c) {
  return change(c, sized, [&](Op& op) {
    const bool reduce = op.name == "all_reduce";
    op.parts = {};
    op.name = reduce ? "broadcast" : "all_reduce";
    op.peer = reduce ? 0 : -1;
    op.reduce = reduce ? "" : "SUM";
    op.out = op.in;
    op.site = c.job.site("eval.py", 33, "evaluate");
    return "another operation";
  });
}

std::optional<Plan> size(Context& c) {
  return change(c, sized, [&](Op& op) {
    const std::int64_t factor = c.random.chance(50) ? 2 : 3;
    op.in[0][0] = op.in[0][0] * factor;
    op.out[0][0] = op.out[0][0] * factor;
    if (!op.parts.empty()) {
      op.parts[0].in = op.parts[0].out = {op.in[0]};
    }
    return "another size";
  });
}

std::optional<Plan> dtype(Context& c) {
  return change(c, sized, [&](Op& op) {
    op.dtype = op.dtype == "Float" ? "Double" : "Float";
    for (Op& part : op.parts) {
      part.dtype = op.dtype;
    }
    return "another dtype";
  });
}

std::optional<Plan> root(Context& c) {
  auto p = change(
      c, [](const Op& op) { return op.name == "broadcast"; },
      [&](Op& op) {
        op.peer = 1;
        return "another root";
      });
  if (p) {
    p->torch_blind = true;
  }
  return p;
}

std::optional<Plan> split(Context& c) {
  return c.at_some(
      [](const Op& op) { return op.name == "all_to_all_single"; },
      [&](int r, int i) {
        Op& op = c.at(r, i);
        const int n = c.size(op), own = c.group(op.group).position(r);
        const int other = (own + 1 + c.random.below(n - 1)) % n;
        const std::int64_t more = c.random.between(1, 9);
        op.in_splits[static_cast<std::size_t>(other)] += more;
        op.in[0][0] += more;
        const int peer = c.group(op.group).ranks[static_cast<std::size_t>(other)];
        Plan p{.kind = "mismatch",
               .ranks = {std::min(r, peer), std::max(r, peer)},
               .text = fmt::format("sends {} rows more to rank {} than that expects in {}", more,
                                   peer, c.words(op)),
               .alternatives = {{"mismatch", {r}}}};
        p.group = c.group(op.group).ranks;
        p.torch_blind = true;
        return p;
      });
}

std::optional<Plan> inversion(Context& c) {
  const int r = c.any_rank();
  Program& p = c.program(r);
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  std::size_t previous = SIZE_MAX;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (p[i].step != c.step || p[i].what == What::kSync ||
        (p[i].communicates() && !collective(p[i]))) {
      previous = SIZE_MAX;
    }
    if (p[i].step != c.step || !collective(p[i]) || p[i].async) {
      continue;
    }
    if (previous != SIZE_MAX && p[previous].group != p[i].group) {
      const auto& a = c.group(p[previous].group).ranks;
      const auto& b = c.group(p[i].group);
      const auto shared =
          std::count_if(a.begin(), a.end(), [&](int m) { return b.position(m) >= 0; });
      if (shared >= 2) {
        pairs.emplace_back(previous, i);
      }
    }
    previous = i;
  }
  if (pairs.empty()) {
    return std::nullopt;
  }
  const auto [a, b] = c.random.pick(pairs);
  Plan plan{.kind = "deadlock", .ranks = {r}, .text = c.words(p[b]) + " before " + c.words(p[a])};
  const bool smaller = c.size(p[a]) < c.size(p[b]);
  plan.group = c.group((smaller ? p[a] : p[b]).group).ranks;
  // Operations between the two then also change places with one of them.
  for (std::size_t i = a + 1; i < b; ++i) {
    if (collective(p[i])) {
      plan.also = {"mismatch", "missing"};
    }
  }
  std::swap(p[a], p[b]);
  return plan;
}

// ---------------------------------------------------------------- point to point

// All members of a group send to the next member and only then receive.
std::optional<Plan> circle(Context& c) {
  int g = -1;
  for (int tries = 0; tries < 8 && g < 0; ++tries) {
    const int r = c.any_rank();
    const int i = c.find(r, exchange);
    g = i < 0 ? -1 : c.at(r, i).group;
  }
  if (g < 0) {
    return std::nullopt;
  }
  const std::vector<int> ranks = c.group(g).ranks;
  const int n = static_cast<int>(ranks.size());
  const int site = c.job.site("ring.py", 12, "rotate");
  for (int m = 0; m < n; ++m) {
    const int r = ranks[static_cast<std::size_t>(m)];
    // Insert before the step's reduction over all ranks, which every rank reaches.
    const Program& p = c.program(r);
    int i = -1;
    for (std::size_t k = 0; k < p.size(); ++k) {
      if (p[k].step == c.step && collective(p[k]) && p[k].group == 0 && !p[k].async) {
        i = static_cast<int>(k);
        break;
      }
    }
    if (i < 0) {
      return std::nullopt;
    }
    Op send = plain(What::kSend), recv = plain(What::kRecv);
    send.name = "send";
    recv.name = "recv";
    send.group = recv.group = g;
    send.peer = (m + 1) % n;
    recv.peer = (m + n - 1) % n;
    send.site = site;
    recv.site = c.job.site("ring.py", 13, "rotate");
    send.in = send.out = recv.in = recv.out = {{1 << 20}};
    send.async = recv.async = false;
    c.insert(r, i, recv);
    c.insert(r, i, send);
  }
  Plan plan{.kind = "deadlock",
            .ranks = ranks,
            .text = fmt::format("all of {} send before they receive", c.group(g).name)};
  return plan;
}

std::optional<Plan> lone_send(Context& c) {
  return c.at_some(exchange, [&](int r, int i) {
    Op op = c.at(r, i);
    Op send = op.what == What::kBatch ? op.parts[0] : op;
    const int n = c.size(op), own = c.group(op.group).position(r);
    send.what = What::kSend;
    send.name = "send";
    send.peer = own + 1 < n ? own + 1 : own - 1;
    send.async = false;
    send.handle = -1;
    send.site = c.job.site("debug.py", 44, "push_stats");
    send.in = send.out = {{512}};
    Plan p{.kind = "mismatch",
           .ranks = {r},
           .text = "a send that nobody receives in step " + std::to_string(c.step),
           .also = {"missing", "deadlock"}};
    p.needs_history = true;
    p.between_two = true;
    c.insert(r, i, send);
    return p;
  });
}

std::optional<Plan> missing_recv(Context& c) {
  return c.at_some(
      [](const Op& op) {
        return op.what == What::kRecv ||
               (op.what == What::kBatch &&
                std::any_of(op.parts.begin(), op.parts.end(),
                            [](const Op& part) { return part.what == What::kRecv; }));
      },
      [&](int r, int i) {
        Op& op = c.at(r, i);
        Plan p{.kind = "missing",
               .ranks = {r},
               .text = "does not receive in step " + std::to_string(c.step),
               .also = {"mismatch", "deadlock"}};
        p.needs_history = true;
        p.between_two = true;
        if (op.what == What::kRecv || op.parts.size() == 1) {
          c.program(r).erase(c.program(r).begin() + i);
        } else {
          std::erase_if(op.parts, [](const Op& part) { return part.what == What::kRecv; });
        }
        return p;
      });
}

std::optional<Plan> wrong_peer(Context& c) {
  return c.at_some([&](const Op& op) { return exchange(op) && c.size(op) > 2; },
                   [&](int r, int i) {
                     Op& op = c.at(r, i);
                     const int n = c.size(op), own = c.group(op.group).position(r);
                     for (Op* part : op.what == What::kBatch ? std::vector<Op*>{&op.parts[0]}
                                                             : std::vector<Op*>{&op}) {
                       const int before = part->peer;
                       do {
                         part->peer = c.random.below(n);
                       } while (part->peer == before || part->peer == own);
                     }
                     Plan p{.kind = "mismatch",
                            .ranks = {r},
                            .text = "exchanges with another peer in step " + std::to_string(c.step),
                            .also = {"missing", "deadlock"}};
                     p.needs_history = true;
                     p.between_two = true;
                     return p;
                   });
}

// ---------------------------------------------------------------- ends

std::optional<Plan> leave(Context& c, ExitHow how) {
  const int r = c.any_rank();
  const bool at_step = how == ExitHow::kClean;
  const int i = at_step ? c.find(r, [](const Op& op) { return op.what == What::kStep; })
                        : c.find(r, communicates);
  if (i < 0) {
    return std::nullopt;
  }
  Op op = plain(What::kExit);
  op.exit = how;
  c.insert(r, i, op);
  static constexpr const char* kWords[] = {"ends early", "exception", "killed"};
  return Plan{.kind = "exited",
              .ranks = {r},
              .text = fmt::format("{} in step {}", kWords[static_cast<int>(how)], c.step)};
}

std::optional<Plan> node_lost(Context& c) {
  const int nodes = (c.job.world + c.job.ranks_per_node - 1) / c.job.ranks_per_node;
  if (nodes < 2) {
    return std::nullopt;
  }
  const int node = c.random.below(nodes);
  Plan p{.kind = "exited",
         .ranks = {},
         .text = fmt::format("node {} is lost in step {}", node, c.step)};
  for (int r = 0; r < c.job.world; ++r) {
    if (c.job.node(r) == node) {
      const int i = c.find(r, [](const Op& op) { return op.what == What::kStep; });
      Op op = plain(What::kExit);
      op.exit = ExitHow::kKilled;
      c.insert(r, i + 1, op);
      p.ranks.push_back(r);
    }
  }
  return p;
}

// ---------------------------------------------------------------- devices

std::optional<Plan> device(Context& c) {
  return c.at_some(communicates, [&](int r, int i) {
    Plan p{.kind = "device",
           .ranks = {r},
           .text = "a kernel before " + c.words(c.at(r, i)) + " never ends"};
    p.needs_timing = true;
    c.insert(r, i, plain(What::kStuckKernel));
    return p;
  });
}

std::optional<Plan> transport(Context& c) {
  return c.at_some([](const Op& op) { return collective(op); },
                   [&](int r, int i) {
                     Plan p{.kind = "transport",
                            .ranks = {},
                            .text = c.words(c.at(r, i)) + " starts and never ends"};
                     p.needs_timing = true;
                     c.at(r, i).broken = true;
                     return p;
                   });
}

std::optional<Plan> two_faults(Context& c) {
  auto a = hang(c);
  auto b = c.random.chance(50) ? hang(c) : leave(c, ExitHow::kKilled);
  if (!a || !b || a->ranks == b->ranks) {
    return std::nullopt;
  }
  a->text += "; rank " + std::to_string(b->ranks[0]) + ": " + b->text;
  a->ranks.push_back(b->ranks[0]);
  a->also = {"exited"};
  return a;
}

// ---------------------------------------------------------------- nothing stuck

std::optional<Plan> healthy(Context&) {
  return Plan{.kind = "ok", .ranks = {}, .text = "nothing"};
}

std::optional<Plan> straggler(Context& c) {
  const int r = c.any_rank();
  const Ns delay = c.random.between(300, 900) * kMs;
  for (Op& op : c.program(r)) {
    if (op.what == What::kStep && op.step > 0) {
      op.host += delay;
    }
  }
  return Plan{.kind = "slow",
              .ranks = {r},
              .text = fmt::format("comes {} ms late to every step", delay / kMs),
              .alternatives = {{"ok", {}}}};
}

std::optional<Plan> killed(Context& c) {
  return leave(c, ExitHow::kKilled);
}
std::optional<Plan> exception(Context& c) {
  return leave(c, ExitHow::kException);
}
std::optional<Plan> exit_early(Context& c) {
  return leave(c, ExitHow::kClean);
}
std::optional<Plan> cascade(Context& c) {
  c.job.launcher_kills = c.random.chance(50);
  return leave(c, c.random.chance(50) ? ExitHow::kException : ExitHow::kKilled);
}

}  // namespace

const std::vector<Recipe>& recipes() {
  static const std::vector<std::string> kAll = {"ddp", "fsdp", "3d", "moe", "ring"};
  static const std::vector<Recipe> kRecipes = {
      {{"missing", "a host never comes: sleep, endless loop, data loader"},
       hang,
       Outcome::kHang,
       kAll},
      {{"skip", "a rank leaves out one collective"}, skip, Outcome::kHang, kAll},
      {{"extra", "a rank issues one collective more"}, extra, Outcome::kHang, kAll},
      {{"branch", "another operation in the slot"}, branch, Outcome::kHang, kAll},
      {{"size", "another size"}, size, Outcome::kHang, kAll},
      {{"dtype", "another dtype"}, dtype, Outcome::kHang, kAll},
      {{"root", "another root of a broadcast"}, root, Outcome::kHang, {"ddp"}},
      {{"split", "all_to_all: one pair disagrees"}, split, Outcome::kHang, {"moe"}},
      {{"inversion", "two groups in the other order"},
       inversion,
       Outcome::kHang,
       {"3d", "moe", "ring"}},
      {{"circle", "all send before they receive"}, circle, Outcome::kHang, {"3d", "ring"}},
      {{"lone_send", "a send that nobody receives"}, lone_send, Outcome::kHang, {"3d", "ring"}},
      {{"missing_recv", "a receive left out"}, missing_recv, Outcome::kHang, {"3d", "ring"}},
      {{"wrong_peer", "an exchange with another peer"}, wrong_peer, Outcome::kHang, {"3d", "ring"}},
      {{"killed", "a process is killed"}, killed, Outcome::kHang, kAll},
      {{"exception", "a process ends with an exception"}, exception, Outcome::kHang, kAll},
      {{"exit_early", "a rank runs out of data and ends"}, exit_early, Outcome::kHang, kAll},
      {{"node_lost", "all ranks of a node are gone, without files"},
       node_lost,
       Outcome::kHang,
       kAll},
      {{"cascade", "gloo: a process ends, the others fail after it"},
       cascade,
       Outcome::kHang,
       kAll},
      {{"stopped", "a process is stopped"}, stopped, Outcome::kHang, kAll},
      {{"device", "a device is stuck, its host enqueues on"}, device, Outcome::kHang, kAll},
      {{"transport", "all started, none finished"}, transport, Outcome::kHang, kAll},
      {{"no_file", "a host never comes, and its file is lost"}, hang, Outcome::kHang, kAll},
      {{"two_faults", "two faults at once"}, two_faults, Outcome::kHang, kAll},
      {{"straggler", "one rank late in every step, nothing stuck"},
       straggler,
       Outcome::kRuns,
       kAll},
      {{"in_flight", "a healthy job, dumps seconds apart"}, healthy, Outcome::kRuns, kAll},
  };
  return kRecipes;
}

}  // namespace hangsim
