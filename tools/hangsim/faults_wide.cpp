// The faults that are planted in widely drawn jobs.
#include <fmt/format.h>

#include <algorithm>

#include "wide.hpp"

namespace hangsim {

namespace {

using Guilts = std::vector<Guilt>;

bool reduces(const Op& op) {
  return collective(op) && op.parts.empty() && !op.in.empty() && op.name != "all_to_all_single";
}

std::uint64_t slot_of(Context& c, int rank, int i) {
  const Program& p = c.program(rank);
  const int g = p[static_cast<std::size_t>(i)].group;
  return static_cast<std::uint64_t>(std::count_if(
      p.begin(), p.begin() + i + 1, [&](const Op& op) { return collective(op) && op.group == g; }));
}

Guilt guilt(Context& c, Guilt::How how, int rank, int i) {
  Guilt g;
  g.how = how;
  g.rank = rank;
  const Op& op = c.at(rank, i);
  g.group = op.group;
  g.name = op.name;
  g.seq = collective(op) ? slot_of(c, rank, i) : 0;
  g.text = c.words(op);
  return g;
}

struct Place {
  int rank, i;
};
std::optional<Place> somewhere(Context& c, bool (*wanted)(const Op&), int not_rank = -1) {
  for (int tries = 0; tries < 6; ++tries) {
    const int r = c.any_rank();
    const int i = r == not_rank ? -1 : c.find(r, wanted);
    if (i >= 0) {
      return Place{r, i};
    }
  }
  return std::nullopt;
}

Guilts stuck(Context& c) {
  const auto at = somewhere(c, communicates);
  if (!at) {
    return {};
  }
  Guilt g = guilt(c, Guilt::kStopped, at->rank, at->i);
  g.text = "host is elsewhere instead of " + g.text;
  c.insert(at->rank, at->i, plain(What::kHang));
  return {g};
}

// Several hosts that stop independently, at different points.
Guilts stuck_apart(Context& c) {
  Guilts out;
  const int n = c.random.between(2, 3);
  for (int tries = 0; tries < 8 && static_cast<int>(out.size()) < n; ++tries) {
    const Guilts more = stuck(c);
    if (!more.empty() && std::none_of(out.begin(), out.end(),
                                      [&](const Guilt& g) { return g.rank == more[0].rank; })) {
      out.push_back(more[0]);
    }
  }
  return out.size() < 2 ? Guilts{} : out;
}

Guilts gone(Context& c) {
  const auto at = somewhere(c, communicates);
  if (!at) {
    return {};
  }
  Op op = plain(What::kExit);
  static constexpr ExitHow kHow[] = {ExitHow::kKilled, ExitHow::kKilled, ExitHow::kException,
                                     ExitHow::kClean};
  op.exit = kHow[c.random.below(4)];
  Guilt g = guilt(c, Guilt::kGone, at->rank, at->i);
  g.text = "process ends before " + g.text;
  c.insert(at->rank, at->i, op);
  return {g};
}

Guilts skip(Context& c) {
  const auto at = somewhere(c, collective);
  if (!at) {
    return {};
  }
  Guilt g = guilt(c, Guilt::kSkipped, at->rank, at->i);
  g.text = "skips " + g.text;
  c.program(at->rank).erase(c.program(at->rank).begin() + at->i);
  return {g};
}

Guilts extra(Context& c) {
  const auto at = somewhere(c, reduces);
  if (!at) {
    return {};
  }
  Op op = c.at(at->rank, at->i);
  const bool same = c.random.chance(30);  // as if the loop ran one iteration more
  Guilt g = guilt(c, Guilt::kAdded, at->rank, at->i);
  if (!same) {
    op.name = "all_reduce";
    op.reduce = "SUM";
    op.peer = -1;
    op.in = op.out = {{37}};
    op.dtype = "Float";
    op.site = c.job.site("debug.py", 17, "log_stats");
  }
  op.async = false;
  op.handle = -1;
  op.mark = 1;
  g.text = "one more " + c.words(op);
  c.insert(at->rank, at->i, op);
  return {g};
}

Guilts change(Context& c, const char* what, void (*f)(Context&, Op&)) {
  const auto at = somewhere(c, reduces);
  if (!at) {
    return {};
  }
  Guilt g = guilt(c, Guilt::kChanged, at->rank, at->i);
  g.text = std::string(what) + " in " + g.text;
  Op& op = c.at(at->rank, at->i);
  op.mark = 1;
  f(c, op);
  return {g};
}

Guilts branch(Context& c) {
  return change(c, "another operation", [](Context& in, Op& op) {
    const bool reduce = op.name == "all_reduce";
    op.name = reduce ? "broadcast" : "all_reduce";
    op.peer = reduce ? 0 : -1;
    op.reduce = reduce ? "" : "SUM";
    op.out = op.in;
    op.site = in.job.site("eval.py", 33, "evaluate");
  });
}
Guilts size(Context& c) {
  return change(c, "another size", [](Context& in, Op& op) {
    const std::int64_t factor = in.random.between(2, 4);
    op.in[0][0] *= factor;
    op.out[0][0] *= factor;
  });
}
Guilts dtype(Context& c) {
  return change(c, "another dtype",
                [](Context&, Op& op) { op.dtype = op.dtype == "Float" ? "Double" : "Float"; });
}

Guilts odd_split(Context& c) {
  const auto at =
      somewhere(c, [](const Op& op) { return collective(op) && op.name == "all_to_all_single"; });
  if (!at) {
    return {};
  }
  Op& op = c.at(at->rank, at->i);
  const int n = c.size(op), own = c.group(op.group).position(at->rank);
  const int other = (own + 1 + c.random.below(n - 1)) % n;
  const std::int64_t more = c.random.between(1, 9);
  op.in_splits[static_cast<std::size_t>(other)] += more;
  op.in[0][0] += more;
  Guilt g = guilt(c, Guilt::kOddSplit, at->rank, at->i);
  g.peer = c.group(op.group).ranks[static_cast<std::size_t>(other)];
  g.text =
      fmt::format("sends {} rows more to rank {} than that expects in {}", more, g.peer, g.text);
  return {g};
}

// Two collectives that follow each other, on groups with two ranks in common.
Guilts inversion(Context& c) {
  const int r = c.any_rank();
  Program& p = c.program(r);
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  std::size_t previous = SIZE_MAX;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const bool here = p[i].step == c.step && collective(p[i]) && !p[i].async;
    if (here && previous != SIZE_MAX && p[previous].group != p[i].group) {
      const Group& b = c.group(p[i].group);
      const auto& a = c.group(p[previous].group).ranks;
      if (std::count_if(a.begin(), a.end(), [&](int m) { return b.position(m) >= 0; }) >= 2) {
        pairs.emplace_back(previous, i);
      }
    }
    const bool between = p[i].what == What::kWork || p[i].what == What::kWait;
    previous = here ? i : between ? previous : SIZE_MAX;
  }
  if (pairs.empty()) {
    return {};
  }
  const auto [a, b] = c.random.pick(pairs);
  Guilt g = guilt(c, Guilt::kReordered, r, static_cast<int>(a));
  g.text = c.words(p[b]) + " before " + c.words(p[a]);
  g.other_group = p[b].group;
  std::swap(p[a], p[b]);
  return {g};
}

// ---------------------------------------------------------------- sends and receives

// One end of an exchange: a single operation, or a member of a batch.
struct End {
  Place at;
  int part;  // -1: the operation itself
};

std::optional<End> some_end(Context& c, std::optional<What> what) {
  const auto at = somewhere(c, exchange);
  if (!at) {
    return std::nullopt;
  }
  const Op& op = c.at(at->rank, at->i);
  if (op.is_p2p()) {
    return !what || op.what == *what ? std::optional<End>({*at, -1}) : std::nullopt;
  }
  std::vector<int> found;
  for (std::size_t i = 0; i < op.parts.size(); ++i) {
    if (!what || op.parts[i].what == *what) {
      found.push_back(static_cast<int>(i));
    }
  }
  return found.empty() ? std::nullopt : std::optional<End>({*at, c.random.pick(found)});
}

Op& op_of(Context& c, const End& e) {
  Op& op = c.at(e.at.rank, e.at.i);
  return e.part < 0 ? op : op.parts[static_cast<std::size_t>(e.part)];
}

Guilt guilt(Context& c, Guilt::How how, const End& e) {
  Guilt g = guilt(c, how, e.at.rank, e.at.i);
  const Op& op = op_of(c, e);
  g.name = op.name;
  g.peer = c.group(op.group).ranks[static_cast<std::size_t>(op.peer)];
  g.text = fmt::format("{} {} rank {} in step {}", op.name, op.what == What::kSend ? "to" : "from",
                       g.peer, c.step);
  return g;
}

Guilts leave_out(Context& c, What what) {
  const auto end = some_end(c, what);
  if (!end) {
    return {};
  }
  Guilt g = guilt(c, what == What::kSend ? Guilt::kNoSend : Guilt::kNoRecv, *end);
  g.text = "leaves out " + g.text;
  Program& p = c.program(end->at.rank);
  Op& op = p[static_cast<std::size_t>(end->at.i)];
  if (end->part >= 0 && op.parts.size() > 1) {
    op.parts.erase(op.parts.begin() + end->part);
  } else {
    p.erase(p.begin() + end->at.i);
  }
  return {g};
}
Guilts no_send(Context& c) {
  return leave_out(c, What::kSend);
}
Guilts no_recv(Context& c) {
  return leave_out(c, What::kRecv);
}

Guilts p2p_size(Context& c) {
  const auto end = some_end(c, std::nullopt);
  if (!end) {
    return {};
  }
  Guilt g = guilt(c, Guilt::kOtherSize, *end);
  g.text = "another size of " + g.text;
  Op& op = op_of(c, *end);
  op.mark = 1;
  op.in[0][0] = c.random.chance(50) ? 77 : op.in[0][0] * 2;
  op.out = op.in;
  return {g};
}

Guilts other_peer(Context& c) {
  const auto end = some_end(c, std::nullopt);
  if (!end || c.size(op_of(c, *end)) < 3) {
    return {};
  }
  Guilt g = guilt(c, Guilt::kOtherPeer, *end);
  g.text = "exchanges with another peer instead of " + g.text;
  Op& op = op_of(c, *end);
  const int before = op.peer, own = c.group(op.group).position(g.rank);
  while (op.peer == before || op.peer == own) {
    op.peer = c.random.below(c.size(op));
  }
  op.mark = 1;
  return {g};
}

Guilts lone_send(Context& c) {
  const auto end = some_end(c, std::nullopt);
  if (!end) {
    return {};
  }
  Guilt g = guilt(c, Guilt::kLoneSend, *end);
  Op send = op_of(c, *end);
  send.what = What::kSend;
  send.name = "send";
  send.async = false;
  send.handle = -1;
  send.mark = 1;
  send.site = c.job.site("debug.py", 44, "push_stats");
  send.in = send.out = {{512}};
  g.text = fmt::format("a send to rank {} that nobody receives in step {}", g.peer, c.step);
  c.insert(g.rank, end->at.i, send);
  return {g};
}

// All members of a group send to the next member and only then receive.
Guilts circle(Context& c) {
  const auto at = somewhere(c, exchange);
  if (!at) {
    return {};
  }
  const int group = c.at(at->rank, at->i).group;
  const std::vector<int> ranks = c.group(group).ranks;
  const int n = static_cast<int>(ranks.size());
  if (n > 16) {
    return {};
  }
  Guilts out;
  for (int m = 0; m < n; ++m) {
    const int r = ranks[static_cast<std::size_t>(m)];
    const int i = c.find(r, [](const Op& op) { return op.what == What::kStep; });
    Op send = plain(What::kSend);
    send.name = "send";
    send.group = group;
    send.peer = (m + 1) % n;
    send.site = c.job.site("ring.py", 12, "rotate");
    send.in = send.out = {{1 << 20}};
    Op recv = send;
    recv.what = What::kRecv;
    recv.name = "recv";
    recv.peer = (m + n - 1) % n;
    recv.site = c.job.site("ring.py", 13, "rotate");
    c.insert(r, i + 1, recv);
    c.insert(r, i + 1, send);
    Guilt g = guilt(c, Guilt::kCircle, r, i + 1);
    g.text = fmt::format("sends before it receives, as all of {}", c.group(group).name);
    out.push_back(g);
  }
  return out;
}

// ---------------------------------------------------------------- devices

Guilts stuck_device(Context& c) {
  const auto at = somewhere(c, communicates);
  if (!at) {
    return {};
  }
  Guilt g = guilt(c, Guilt::kStuckDevice, at->rank, at->i);
  g.text = "a kernel before " + g.text + " never ends";
  c.insert(at->rank, at->i, plain(What::kStuckKernel));
  return {g};
}

Guilts two_devices(Context& c) {
  Guilts out = stuck_device(c), more = stuck_device(c);
  if (out.empty() || more.empty() || out[0].rank == more[0].rank) {
    return {};
  }
  out.push_back(more[0]);
  return out;
}

Guilts lags(Context& c) {
  const auto at = somewhere(c, [](const Op& op) { return collective(op); });
  if (!at) {
    return {};
  }
  Guilt g = guilt(c, Guilt::kLags, at->rank, at->i);
  g.text = "does not get over " + g.text + ", which all others finish";
  c.at(at->rank, at->i).lags = true;
  return {g};
}

Guilts broken(Context& c) {
  const auto at = somewhere(c, collective);
  if (!at) {
    return {};
  }
  Guilt g = guilt(c, Guilt::kBroken, at->rank, at->i);
  g.text = "and all others start " + g.text + ", which never ends";
  c.at(at->rank, at->i).broken = true;
  return {g};
}

Guilts two_faults(Context& c) {
  static constexpr Guilts (*kFirst[])(Context&) = {stuck, gone, size, stuck_device, lags, no_send};
  static constexpr Guilts (*kSecond[])(Context&) = {stuck, gone, stuck, gone, branch, skip};
  Guilts out = kFirst[c.random.below(6)](c);
  const Guilts more = kSecond[c.random.below(6)](c);
  if (out.empty() || more.empty() || out[0].rank == more[0].rank) {
    return {};
  }
  out.push_back(more[0]);
  return out;
}

// The process exists but is stopped: operations in flight may end, no others follow.
Guilts frozen(Context& c) {
  const auto at = somewhere(c, communicates);
  if (!at) {
    return {};
  }
  Guilt g = guilt(c, Guilt::kFrozen, at->rank, at->i);
  Op op = plain(What::kHang);
  op.stopped = true;
  g.text = "stopped (SIGSTOP) before " + g.text;
  c.insert(at->rank, at->i, op);
  return {g};
}

Guilts late(Context& c) {
  Guilt g;
  g.rank = c.any_rank();
  const Ns delay = c.random.between(300, 900) * kMs;
  for (Op& op : c.program(g.rank)) {
    op.host += op.what == What::kStep && op.step > 0 ? delay : 0;
  }
  g.text = fmt::format("comes {} ms late to every step", delay / kMs);
  return {g};
}

Guilts nothing(Context&) {
  return {};
}

// A stall that is over long before the dumps are taken.
Guilts stall(Context& c) {
  const int r = c.any_rank();
  const int i = c.find(r, communicates);
  if (i < 0) {
    return {};
  }
  Guilt g = guilt(c, Guilt::kStopped, r, i);
  Op pause = plain(What::kWork);
  pause.host = c.random.between(60, 400) * kSecond;
  g.text = fmt::format("host pauses for {} s before {}", pause.host / kSecond, g.text);
  c.insert(r, i, pause);
  return {g};
}

}  // namespace

const std::vector<WideRecipe>& wide_recipes() {
  static const std::vector<WideRecipe> kRecipes = {
      {{"stuck", "a host never comes"}, stuck},
      {{"stuck_apart", "two or three hosts stop, at different points"}, stuck_apart},
      {{"gone", "a process ends: killed, exception, too early"}, gone},
      {{"cut_file", "a host never comes, and its file is cut"}, stuck},
      {{"left_out", "a rank leaves out one collective"}, skip},
      {{"added", "a rank issues one collective more"}, extra},
      {{"other_op", "another operation in the slot"}, branch},
      {{"other_size", "another size"}, size},
      {{"other_dtype", "another dtype"}, dtype},
      {{"odd_split", "all_to_all: one sends more than is expected"}, odd_split},
      {{"other_order", "two groups in the other order"}, inversion},
      {{"no_send", "a send left out"}, no_send},
      {{"no_recv", "a receive left out"}, no_recv},
      {{"p2p_size", "a send and its receive of different sizes"}, p2p_size},
      {{"other_peer", "an exchange with another peer"}, other_peer},
      {{"stuck_device", "a device is stuck, its host enqueues on"}, stuck_device},
      {{"two_devices", "two devices are stuck"}, two_devices},
      {{"lagging", "a device does not get over what all others finish"}, lags},
      {{"two_kinds", "two independent faults"}, two_faults},
      {{"lone_send", "a send that nobody receives"}, lone_send},
      {{"circle", "all of a group send before they receive"}, circle},
      {{"frozen", "a process is stopped"}, frozen},
      {{"broken", "all started, none finished"}, broken},
      {{"rejoined",
        "a host never comes or its process ends; files of an earlier attempt are there"},
       [](Context& c) { return c.random.chance(50) ? stuck(c) : gone(c); }},
      {{"late", "one rank late in every step, nothing stuck"}, late, Outcome::kRuns},
      {{"running", "a healthy job, dumps seconds apart"}, nothing, Outcome::kRuns},
      {{"finished", "a job at its end, clocks of nodes apart"}, nothing, Outcome::kRuns},
      {{"went_on", "a stall that went on"}, stall, Outcome::kRuns},
  };
  return kRecipes;
}

std::string_view kind_of(Guilt::How how) {
  switch (how) {
    case Guilt::kStopped:
    case Guilt::kFrozen:
    case Guilt::kSkipped:
    case Guilt::kNoSend:
    case Guilt::kNoRecv:
      return "missing";
    case Guilt::kGone:
      return "exited";
    case Guilt::kReordered:
    case Guilt::kCircle:
      return "deadlock";
    case Guilt::kBroken:
      return "transport";
    case Guilt::kStuckDevice:
    case Guilt::kLags:
      return "device";
    default:
      return "mismatch";
  }
}

bool is_of_order(Guilt::How how) {
  switch (how) {
    case Guilt::kSkipped:
    case Guilt::kAdded:
    case Guilt::kReordered:
    case Guilt::kNoSend:
    case Guilt::kNoRecv:
    case Guilt::kOtherPeer:
    case Guilt::kLoneSend:
      return true;
    default:
      return false;
  }
}

}  // namespace hangsim
