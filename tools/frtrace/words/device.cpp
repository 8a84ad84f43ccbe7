// Sentences about operations on devices, and the fields of the report that they are made of.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "model/contains.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

std::string channels_text(const std::vector<std::uint32_t>& channels) {
  return fmt::format("{} {}", one_or(channels.size(), "channel", "channels"),
                     fold_ranks({channels.begin(), channels.end()}));
}

std::string over_words(const std::vector<std::string>& over) {
  return led("; over ", fmt::format("{}", fmt::join(over, ", ")));
}

std::string transfer_text(const TransferReport& t) {
  static const std::map<std::string_view, const char*> kTexts = {
      {"posted", "the kernel here has not filled {}"},
      {"own_kernel", "the kernel here has not filled {}"},
      {"peer_credit", "no free buffer at the receiver for {}"},
      {"in_flight", "{} sent to the network, not acknowledged"},
      {"data", "{} has not arrived"},
      {"flush", "{} arrived, not yet in the device's memory"},
      {"own_kernel_takes", "{} arrived, the kernel here does not consume it"},
      {"idle", "not begun"}};
  const auto text = kTexts.find(t.waits_for);
  return fmt::format("{} {}: {} ({}{})", t.kind == "send" ? "send to" : "receive from",
                     t.peer < 0 ? "a peer" : fmt::format("rank {}", t.peer),
                     text == kTexts.end()
                         ? "waits for what this frtrace does not know"
                         : fmt::format(fmt::runtime(text->second),
                                       fmt::format("step {} of {}", t.step, t.n_steps)),
                     channels_text(t.channels), over_words(t.over));
}

std::string ago(double seconds) {
  return given(seconds > 0, fmt::format(" {} ago", duration_text(seconds)));
}

std::string channels_running(const DeviceReport& d) {
  return given(!d.channels.empty(), fmt::format(", {} running", channels_text(d.channels)));
}

std::string running_text(const DeviceReport& d) {
  return "started" + ago(d.seconds) + channels_running(d);
}

// A line about an operation on the devices of one or several ranks.
struct Said {
  std::string text;
  DeviceReport first;
  std::vector<Rank> ranks = {};
  double least = 0, most = 0;  // seconds
};

// If several ranks started it, their times differ a little: gives a range.
std::string said_line(const Said& x) {
  const std::string least = duration_text(x.least), most = duration_text(x.most);
  return ranks_words(x.ranks) + ": " +
         (x.ranks.size() == 1 || x.first.state != fr::word(DeviceState::kStarted) || x.least <= 0
              ? x.text
              : fmt::format("{} started {} ago{}", x.first.operation,
                            least == most ? most : least + " to " + most,
                            channels_running(x.first)));
}

DeviceReport device_report(const Facts& f, const OnDevice& at) {
  const RankEvidence& e = f.ev(at.evidence);
  const DeviceOperation& o = f.devices[at];
  DeviceReport out;
  out.rank = e.id.rank;
  out.operation = device_title(f, at);
  out.state = o.state == DeviceState::kUnknown ? "unknown"
              : o.state == DeviceState::kEnded ? "ended"  // completed or failed
                                               : fr::word(o.state);
  out.stream = o.stream;
  const std::size_t record = record_of(e, o);
  const Time since = o.state == DeviceState::kStarted     ? o.started
                     : o.state == DeviceState::kLaunched  ? o.launched
                     : o.state == DeviceState::kLaunching ? o.launching
                     : record != SIZE_MAX                 ? e.records[record].time
                                                          : 0;
  out.seconds = since != 0 ? std::max(0.0, seconds_between(since, e.written)) : 0;
  if (const auto busy = stream_busy_with(e, at.operation)) {
    const DeviceReport head = device_report(f, {at.evidence, *busy});
    out.behind = fmt::format("{} ({})", head.operation,
                             f.devices[{at.evidence, *busy}].state == DeviceState::kStarted
                                 ? running_text(head)
                                 : fmt::format("launched{}, not started", ago(head.seconds)));
  }
  for (const DevicePhase& p : f.devices.phases(at)) {
    if (p.kind == PhaseKind::kKernel) {
      out.channels.push_back(p.channel);
    } else if (p.kind != PhaseKind::kOther) {
      const auto key = [](const TransferReport& x) {
        return std::tie(x.kind, x.peer, x.waits_for, x.step, x.n_steps);
      };
      const char* kind = p.kind == PhaseKind::kSend ? "send" : "recv";
      const char* wait = p.wait == PhaseWait::kOther ? "unknown" : fr::word(p.wait);
      const Rank peer = f.devices.peer(at, p.peer);
      const TransferReport t{kind, peer, wait, p.step, p.n_steps, {}, {}};
      const auto same = std::ranges::find(out.transfers, key(t), key);
      TransferReport& x = same == out.transfers.end() ? out.transfers.emplace_back(t) : *same;
      x.channels.push_back(p.channel);
      if (std::string over = over_text(p); !over.empty()) {
        x.over.push_back(std::move(over));
      }
    }
  }
  return out;
}

void add_links(const Facts& f, const DeviceChain& chain, Report& r) {
  const auto named = [&](Rank x) {
    const auto it = f.c.index.find(x);
    const std::string host = it == f.c.index.end() ? std::string() : f.ev(it->second).id.host;
    return fmt::format("rank {}{}", x, given(!host.empty(), " (host " + host + ")"));
  };
  const auto line = [&](const Link& l) {
    const std::string where = fmt::format("step {} of {}, {}{}", l.step, l.n_steps,
                                          channels_text(l.channels), over_words(l.over));
    return l.from != l.to ? fmt::format("suspect the network from {} to {}: {}", named(l.from),
                                        named(l.to), where)
                          : fmt::format(
                                "rank {}: received data does not get from its network card "
                                "to its device ({})",
                                l.from, where);
  };
  r.links = chain.links;
  say_few(r, "link", each(chain.links, line), 8, "and {} more likewise");
}

// First the devices at which waits end, then those on the way there, then those of waiting ranks.
std::vector<OnDevice> in_order(const Facts& f, const DeviceChain& chain) {
  std::vector<OnDevice> order;
  std::set<OnDevice> seen;
  const auto add = [&](const OnDevice& at) {
    if (seen.insert(at).second) {
      order.push_back(at);
    }
  };
  for (const StalledDevice& s : chain.stalled) {
    add(s.at);
  }
  for (const OnDevice& at : chain.visited) {
    const Rank rank = f.rank(at.evidence);
    if (std::ranges::any_of(chain.links, [&](auto& l) { return l.from == rank || l.to == rank; })) {
      add(at);
    }
  }
  std::ranges::for_each(chain.visited, add);
  for (const Pending& p : f.graph.pending) {
    for (const Wait& w : p.waits) {
      if (const auto waits = f.devices.of(w.evidence, w.record)) {
        add(*waits);
      }
    }
  }
  return order;
}

}  // namespace

std::string device_title(const Facts& f, const OnDevice& at) {
  const std::size_t index = record_of(f.ev(at.evidence), f.devices[at]);
  return index != kNoRecord         ? Names(f).record(at.evidence, index)
         : f.devices[at].has_record ? "an operation whose record is overwritten"
                                    : "a send or receive that was not launched";
}

std::string device_line(const Facts& f, const OnDevice& at, bool reasons) {
  const DeviceReport d = device_report(f, at);
  const DeviceState state = f.devices[at].state;
  if (state == DeviceState::kScheduled) {
    return fmt::format("{} issued{}, its launch was not seen to begin", d.operation,
                       ago(d.seconds));
  }
  if (state == DeviceState::kLaunching) {
    return fmt::format("{}: the host has been inside its launch for {}", d.operation,
                       duration_text(d.seconds));
  }
  if (state == DeviceState::kLaunched) {
    const std::string on = d.stream == 0 ? "its stream" : fmt::format("stream {:#x}", d.stream);
    const std::string why =
        d.behind.empty()
            ? given(reasons, fmt::format("; before it on {} is a kernel that is no recorded "
                                         "operation, or the device has no room for it",
                                         on))
            : fmt::format("; {} is busy with {}", on, d.behind);
    return fmt::format("{} launched{}, never started on its device{}", d.operation, ago(d.seconds),
                       why);
  }
  std::string out = d.operation + ' ' + running_text(d);
  constexpr std::size_t kShown = 4;
  const std::size_t n = d.transfers.size();
  for (std::size_t i = 0; i < std::min(n, kShown); ++i) {
    out += "; " + transfer_text(d.transfers[i]);
  }
  return out + given(n > kShown, fmt::format("; and {} more transfers", n - kShown));
}

std::string before_unstarted(const Facts& f, const Cause& c) {
  const bool first = std::ranges::all_of(c.guilty, [&](const Guilty& g) {
    return g.issued != kNoRecord && f.graph.fronts[idx(g.evidence)].holds(g.issued) &&
           f.ev(g.evidence).records[g.issued].state != State::kStarted &&
           !f.devices.of(g.evidence, g.issued);
  });
  const bool unstarted = f.graph[c.pending].starts_seen || c.guilty.front().why == Why::kNotStarted;
  const std::size_t n = c.guilty.size();
  return !first || !unstarted
             ? ""
             : fmt::format(
                   "no operation that {} recorded before it is unfinished: other work on "
                   "{} may be in its way, or {} stuck",
                   ranks_words(ranks_of(c.guilty)), one_or(n, "its device", "their devices"),
                   one_or(n, "the device is", "the devices are"));
}

void add_devices(const Facts& f, const Cause& c, Report& r) {
  if (c.verdict == Verdict::kTransport) {  // else a stalled device explains them
    add_links(f, c.chain, r);
  }
  if (c.chain.visited.empty() && c.chain.links.empty()) {
    return;
  }
  constexpr std::size_t kReported = 256;
  std::vector<Said> said;
  std::map<std::string, std::size_t> alike;  // those with no known reason for their wait
  for (const OnDevice& at : in_order(f, c.chain)) {
    const Rank rank = f.rank(at.evidence);
    const DeviceReport d = said.size() < kReported ? device_report(f, at) : DeviceReport{};
    if (r.devices.size() < kReported) {
      r.devices.push_back(d);
    }
    if (!contains(r.ranks, rank)) {  // else it is part of the lines about that rank
      const DeviceState state = f.devices[at].state;
      const bool unknown = state == DeviceState::kLaunched && d.behind.empty();
      const bool runs =
          state == DeviceState::kStarted && d.transfers.empty() && !d.operation.empty();
      const std::string key = unknown ? d.operation
                              : runs  ? d.operation + " runs" + channels_running(d)
                                      : fmt::format("{} {}", rank, said.size());
      const auto [it, fresh] = alike.try_emplace(key, said.size());
      if (fresh) {
        // Possible reasons are given only for blamed ranks.
        said.push_back({said.size() < kReported ? device_line(f, at, !unknown) : "", d});
        said.back().least = d.seconds;
      }
      Said& x = said[it->second];
      x.ranks.push_back(rank);
      x.least = std::min(x.least, d.seconds);
      x.most = std::max(x.most, d.seconds);
    }
  }
  say_few(r, "device", each(said, said_line), 6, "and {} more operations on devices");
}

}  // namespace frtrace
