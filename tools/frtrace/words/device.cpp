// Sentences about operations on devices, and the fields of the report that they are made of.
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "model/contains.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

const char* state_name(DeviceState s) {
  return s == DeviceState::kUnknown ? "unknown"
         : s == DeviceState::kEnded ? "ended"  // completed or failed
                                    : fr::word(s);
}

const char* wait_name(PhaseWait w) {
  return w == PhaseWait::kOther ? "unknown" : fr::word(w);
}

std::string channels_text(const std::vector<std::uint32_t>& channels) {
  return fmt::format("{} {}", channels.size() == 1 ? "channel" : "channels",
                     fold_ranks({channels.begin(), channels.end()}));
}

std::string over_words(const std::vector<std::string>& over) {
  return over.empty() ? "" : fmt::format("; over {}", fmt::join(over, ", "));
}

std::string transfer_text(const TransferReport& t) {
  const std::string peer = t.peer < 0 ? "a peer" : fmt::format("rank {}", t.peer);
  const std::string step = fmt::format("step {} of {}", t.step, t.n_steps);
  std::string out = fmt::format("{} {}: ", t.kind == "send" ? "send to" : "receive from", peer);
  if (t.waits_for == "posted" || t.waits_for == "own_kernel") {
    out += fmt::format("its own kernel has not filled {}", step);
  } else if (t.waits_for == "peer_credit") {
    out += fmt::format("no free buffer there for {}", step);
  } else if (t.waits_for == "in_flight") {
    out += fmt::format("{} sent to the network, not acknowledged", step);
  } else if (t.waits_for == "data") {
    out += fmt::format("{} has not arrived", step);
  } else if (t.waits_for == "flush") {
    out += fmt::format("{} arrived, not yet in the device's memory", step);
  } else if (t.waits_for == "own_kernel_takes") {
    out += fmt::format("{} arrived, its own kernel does not consume it", step);
  } else {
    out += t.waits_for == "idle" ? "not begun" : "waits for what this frtrace does not know";
  }
  return out + fmt::format(" ({}{})", channels_text(t.channels), over_words(t.over));
}

std::string ago(double seconds) {
  return seconds > 0 ? fmt::format(" {} ago", duration_text(seconds)) : "";
}

std::string running_text(const DeviceReport& d) {
  std::string out = "started" + ago(d.seconds);
  if (!d.channels.empty()) {
    out += fmt::format(", {} spinning", channels_text(d.channels));
  }
  return out;
}

}  // namespace

std::string DeviceWords::title(const OnDevice& at) const {
  const RankEvidence& e = f_.ev(at.evidence);
  const std::size_t index = record_of(e, f_.devices[at]);
  if (index != kNoRecord) {
    return record(at.evidence, e.records[index]);
  }
  return f_.devices[at].has_record ? "an operation whose record is overwritten"
                                   : "a send or receive that was not launched";
}

DeviceReport DeviceWords::report(const OnDevice& at) const {
  const RankEvidence& e = f_.ev(at.evidence);
  const DeviceOperation& o = f_.devices[at];
  DeviceReport out;
  out.rank = e.id.rank;
  out.operation = title(at);
  out.state = state_name(o.state);
  out.stream = o.stream;
  const std::size_t record = record_of(e, o);
  const Time since = o.state == DeviceState::kStarted     ? o.started
                     : o.state == DeviceState::kLaunched  ? o.launched
                     : o.state == DeviceState::kLaunching ? o.launching
                     : record != SIZE_MAX                 ? e.records[record].time
                                                          : 0;
  out.seconds = since != 0 ? std::max(0.0, seconds_between(since, e.written)) : 0;
  if (const auto busy = stream_busy_with(e, at.operation)) {
    const DeviceReport head = report({at.evidence, *busy});
    out.behind = fmt::format("{} ({})", head.operation,
                             f_.devices[{at.evidence, *busy}].state == DeviceState::kStarted
                                 ? running_text(head)
                                 : fmt::format("launched{}, not started", ago(head.seconds)));
  }
  for (const DevicePhase& p : f_.devices.phases(at)) {
    if (p.kind == PhaseKind::kKernel) {
      out.channels.push_back(p.channel);
      continue;
    }
    if (p.kind == PhaseKind::kOther) {
      continue;
    }
    TransferReport t{.kind = p.kind == PhaseKind::kSend ? "send" : "recv",
                     .peer = f_.devices.peer(at, p.peer),
                     .waits_for = wait_name(p.wait),
                     .step = p.step,
                     .n_steps = p.n_steps,
                     .channels = {p.channel},
                     .over = {}};
    const std::string over = over_text(p);
    if (!over.empty()) {
      t.over.push_back(over);
    }
    const auto same =
        std::find_if(out.transfers.begin(), out.transfers.end(), [&](const TransferReport& x) {
          return x.kind == t.kind && x.peer == t.peer && x.waits_for == t.waits_for &&
                 x.step == t.step && x.n_steps == t.n_steps;
        });
    if (same != out.transfers.end()) {
      same->channels.push_back(p.channel);
      same->over.insert(same->over.end(), t.over.begin(), t.over.end());
    } else {
      out.transfers.push_back(std::move(t));
    }
  }
  return out;
}

std::string DeviceWords::line(const OnDevice& at) const {
  const DeviceReport d = report(at);
  const std::string stream = d.stream == 0 ? "its stream" : fmt::format("stream {:#x}", d.stream);
  switch (f_.devices[at].state) {
    case DeviceState::kScheduled:
      return fmt::format("{} issued{}, its launch was not seen to begin", d.operation,
                         ago(d.seconds));
    case DeviceState::kLaunching:
      return fmt::format("{}: the host has been inside its launch for {}", d.operation,
                         duration_text(d.seconds));
    case DeviceState::kLaunched:
      return fmt::format(
          "{} launched{}, never started on its device; {}", d.operation, ago(d.seconds),
          d.behind.empty()
              ? fmt::format("nothing that fr sees is before it on {}: a kernel of the user's, "
                            "or no room on the device",
                            stream)
              : fmt::format("{} is busy with {}", stream, d.behind));
    default:
      break;
  }
  std::string out = fmt::format("{} {}", d.operation, running_text(d));
  constexpr std::size_t kShown = 4;
  for (std::size_t i = 0; i < d.transfers.size() && i < kShown; ++i) {
    out += "; " + transfer_text(d.transfers[i]);
  }
  if (d.transfers.size() > kShown) {
    out += fmt::format("; and {} more transfers", d.transfers.size() - kShown);
  }
  return out;
}

namespace {

void add_links(const Facts& f, const DeviceChain& chain, Report& r) {
  constexpr std::size_t kShown = 8;
  r.links = chain.links;
  for (std::size_t i = 0; i < std::min(kShown, chain.links.size()); ++i) {
    const Link& l = chain.links[i];
    if (l.from == l.to) {
      say(r, "link",
          fmt::format("rank {}: received data does not get from its network card to its device "
                      "(step {} of {}, {}{})",
                      l.from, l.step, l.n_steps, channels_text(l.channels), over_words(l.over)));
      continue;
    }
    const auto host = [&](Rank x) {
      const auto it = f.c.index.find(x);
      const std::string name = it == f.c.index.end() ? std::string() : f.ev(it->second).id.host;
      return name.empty() ? "" : fmt::format(" (host {})", name);
    };
    say(r, "link",
        fmt::format("suspect the network from rank {}{} to rank {}{}: step {} of {}, {}{}", l.from,
                    host(l.from), l.to, host(l.to), l.step, l.n_steps, channels_text(l.channels),
                    over_words(l.over)));
  }
  if (chain.links.size() > kShown) {
    say(r, "link", fmt::format("and {} more likewise", chain.links.size() - kShown));
  }
}

}  // namespace

void add_devices(const Facts& f, const Cause& c, Report& r) {
  const DeviceWords words(f);
  const DeviceChain& chain = c.chain;
  if (chain.visited.empty() && chain.links.empty()) {
    return;
  }
  if (c.verdict == Verdict::kTransport) {  // else what is stalled elsewhere explains them
    add_links(f, chain, r);
  }
  // Where the waits end first, then on the way there, then who waits for that.
  std::vector<OnDevice> order;
  std::set<OnDevice> seen;
  const auto add = [&](const OnDevice& at) {
    if (seen.insert(at).second) {
      order.push_back(at);
    }
  };
  std::set<Rank> at_links;
  for (const Link& l : chain.links) {
    at_links.insert({l.from, l.to});
  }
  for (const StalledDevice& s : chain.stalled) {
    add(s.at);
  }
  for (const OnDevice& at : chain.visited) {
    if (at_links.contains(f.rank(at.evidence))) {
      add(at);
    }
  }
  for (const OnDevice& at : chain.visited) {
    add(at);
  }
  for (const Pending& p : f.graph.pending) {
    for (const Wait& w : p.waits) {
      if (const auto waits = f.devices.of(w.evidence, w.record)) {
        add(*waits);
      }
    }
  }
  constexpr std::size_t kShown = 6, kReported = 256;
  std::size_t shown = 0, left = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i < kReported) {
      r.devices.push_back(words.report(order[i]));
    }
    const Rank rank = f.rank(order[i].evidence);
    if (contains(r.ranks, rank)) {
      continue;  // it is part of what is said of that rank
    }
    if (shown == kShown) {
      ++left;
    } else {
      ++shown;
      say(r, "device", fmt::format("rank {}: {}", rank, words.line(order[i])));
    }
  }
  if (left > 0) {
    say(r, "device", fmt::format("and {} more operations on devices", left));
  }
}

}  // namespace frtrace
