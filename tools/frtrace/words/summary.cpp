// The first line of a verdict: who, what, which operation.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "model/contains.hpp"
#include "model/hints.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

class Summary : public Names {
 public:
  Summary(const Facts& f, const Cause& c) : Names(f), c_(c) {
    for (const Guilty& g : c.guilty) {
      guilty_.push_back(g.rank);
    }
    std::sort(guilty_.begin(), guilty_.end());
    guilty_.erase(std::unique(guilty_.begin(), guilty_.end()), guilty_.end());
    if (c.pending >= 0) {
      p_ = &f.graph[c.pending];
    }
  }

  std::string text() const;

 private:
  bool one() const { return guilty_.size() == 1; }
  std::string who() const { return ranks_words(guilty_); }
  std::string others() const { return ranks_words(f_.ranks(c_.others)); }
  std::string op_text() const { return p_ == nullptr ? "an operation" : pending(*p_); }
  std::vector<Rank> innocent_waiting() const {
    std::vector<Rank> out = p_ == nullptr ? std::vector<Rank>{} : waiting(*p_);
    std::erase_if(out, [&](Rank r) { return contains(guilty_, r); });
    return out;
  }
  // "; ranks 0,1 wait in all_reduce #41 of default_pg"
  std::string who_waits(const char* in) const {
    const std::vector<Rank> out = innocent_waiting();
    return out.empty() ? "" : fmt::format("; {} {}", wait_verb(out), in);
  }
  std::string all_waiting() const;
  std::string differences() const;
  std::string size_difference(const FieldDifference&) const;
  std::string mismatch() const;
  std::string unequal() const;
  std::string exited() const;
  std::string skipped() const;
  std::string left_order() const;
  bool started_it() const;
  std::string behind() const;
  std::string device_error() const;
  std::string network() const;
  std::string group_order() const;
  std::string stalled_text(const std::string& operation) const;
  std::string cycle_parts() const;
  std::string never_started() const;
  std::string never_issued() const;
  std::string other_end() const;
  std::string extra() const;
  std::string no_exit() const;
  std::string lock_cycle() const;

  const Cause& c_;
  const Pending* p_ = nullptr;
  std::vector<Rank> guilty_;
};

std::string Summary::all_waiting() const {
  std::vector<int> waiting;
  for (const Pending& p : f_.graph.pending) {
    for (const Wait& w : p.waits) {
      if (std::find(guilty_.begin(), guilty_.end(), f_.rank(w.evidence)) == guilty_.end()) {
        waiting.push_back(w.evidence);
      }
    }
  }
  return waiting.empty() ? "" : "; " + wait_verb(f_.ranks(waiting));
}

// Sizes as shapes, where these are known: "shape [20,8] instead of [18,8]".
std::string Summary::size_difference(const FieldDifference& x) const {
  const Divergence& d = *c_.divergence;
  const Group& g = f_.group(d.group);
  if (x.field.ends_with("size") && d.classes.size() == 2) {
    const auto shape_of = [&](std::size_t side) {
      const int m = d.classes[side].front();
      const RankEvidence& e = f_.ev(g.evidence[idx(m)]);
      const Shape s = parse_shape(e, *f_.slots[idx(d.group)].at(f_.c, g, idx(m), d.seq));
      return s.known ? shape_text(s.in.empty() ? s.out : s.in) : std::string();
    };
    const std::size_t right = c_.right == 1 ? 1 : 0;
    const std::string own = shape_of(1 - right), others = shape_of(right);
    if (!own.empty() && !others.empty() && own != others) {
      return fmt::format("shape {} instead of {}", own, others);
    }
  }
  return fmt::format("{} {} instead of {}", x.field, x.own, x.others);
}

std::string Summary::differences() const {
  const Divergence& d = *c_.divergence;
  if (d.splits) {
    return fmt::format("rank {} sends {} rows to rank {}, which expects {}", d.splits->from,
                       d.splits->sent, d.splits->to, d.splits->expected);
  }
  std::vector<std::string> out;
  for (const FieldDifference& x : d.fields) {
    std::string text = size_difference(x);
    if (std::find(out.begin(), out.end(), text) == out.end()) {
      out.push_back(std::move(text));
    }
  }
  return fmt::format("{}", fmt::join(out, "; "));
}

std::string Summary::mismatch() const {
  const Divergence& d = *c_.divergence;
  const Group& g = f_.group(d.group);
  const int reference = d.classes[idx(std::max(c_.right, 0))].front();
  const int evidence = g.evidence[idx(reference)];
  const Record& due = *f_.slots[idx(d.group)].at(f_.c, g, idx(reference), d.seq);
  const std::string due_op(f_.ev(evidence).text(due.op));
  const std::string slot = fmt::format("#{} of {}", d.seq, g.title());
  if (c_.rule == Rule::kOpenDivergence) {
    return fmt::format(
        "members of {} differ at #{} ({}); evidence of {} is lacking to say who is wrong",
        g.title(), d.seq, differences(), ranks_words(f_.c.missing));
  }
  if (c_.right < 0) {
    return fmt::format("{} differ at {} {}: {}", who(), due_op, slot, differences());
  }
  std::vector<Rank> others;
  for (const int m : d.classes[idx(c_.right)]) {
    others.push_back(g.ranks[idx(m)]);
  }
  if (c_.rule == Rule::kSkippedSlot) {
    return fmt::format("{} skipped {} {}{}; {} issued the operation after it instead", who(),
                       due_op, slot, at(evidence, due.stack), one() ? "it" : "they");
  }
  const Guilty& first = c_.guilty.front();
  const std::string own_op(
      f_.ev(first.evidence).text(f_.ev(first.evidence).records[first.issued].op));
  if (own_op != due_op) {
    return fmt::format("{} issued {} {} where {} issued {}", who(), own_op, slot,
                       ranks_words(others), due_op);
  }
  // The same operation from another place is another call: its size is beside the point.
  const Site own_site = user_site(f_.ev(first.evidence),
                                  f_.ev(first.evidence).records[first.issued].stack),
             due_site = user_site(f_.ev(evidence), due.stack);
  if (!own_site.file.empty() && !due_site.file.empty() && own_site != due_site) {
    return fmt::format("{} issued {} {} at {}, where {} issued it at {} ({})", who(), due_op, slot,
                       site_text(own_site), ranks_words(others), site_text(due_site),
                       differences());
  }
  return fmt::format("{} issued {} {} with {}{}; {} {}", who(), due_op, slot,
                     d.splits ? "splits that do not fit: " : "", differences(), ranks_words(others),
                     others.size() > 1 ? "agree"
                     : d.splits        ? "differs"
                                       : "has the latter");
}

std::string Summary::unequal() const {
  const Unequal& u = *p_->unequal;
  const RankEvidence &s = f_.ev(u.sender), &r = f_.ev(u.receiver);
  const Record &send = s.records[u.send], &recv = r.records[u.recv];
  const auto text = [&](const RankEvidence& e, const Record& x, bool in) {
    const Id type = (in ? x.in_dtype != 0 : x.out_dtype == 0) ? x.in_dtype : x.out_dtype;
    const auto n = (in ? x.in_numel != 0 : x.out_numel == 0) ? x.in_numel : x.out_numel;
    return u.dtype ? std::string(e.text(type)) : fmt::format("{} elements", n);
  };
  return fmt::format(
      "rank {} sends {} to rank {}, which receives {}: {} #{} of {}{}", s.id.rank,
      text(s, send, true), r.id.rank, text(r, recv, false), s.text(send.op), send.seq,
      f_.group(p_->group).title(),
      one() ? fmt::format("; rank {} differs from its earlier iterations", guilty_.front())
            : std::string());
}

std::string Summary::exited() const {
  const Guilty& first = c_.guilty.front();
  const auto missing = std::find(f_.c.missing.begin(), f_.c.missing.end(), first.rank);
  const Exit& e = first.evidence >= 0
                      ? f_.exit(first.evidence)
                      : f_.missing_exits[static_cast<std::size_t>(missing - f_.c.missing.begin())];
  std::string out =
      fmt::format("{} {}{}", who(), exit_verb(e, guilty_.size()),
                  c_.rule == Rule::kSeenEnded ? ", as the ranks of its node saw" : "");
  const std::vector<Rank> waiting = innocent_waiting();
  if (!waiting.empty()) {
    const bool failed =
        c_.rule == Rule::kOneKilled ||
        std::any_of(p_->waits.begin(), p_->waits.end(), [](const Wait& w) { return w.failed; });
    out += fmt::format("; {} for it in {}",
                       failed ? ranks_words(waiting) + " waited" : wait_verb(waiting), op_text());
  }
  return out;
}

std::string Summary::skipped() const {
  const Guilty& g = c_.guilty.front();
  const RankEvidence& e = f_.ev(g.evidence);
  const Record &issued = e.records[g.issued], &usual = e.records[g.usual];
  const Group* group = f_.group_of(g.evidence, usual);
  std::string what(e.text(usual.op));
  what += g.seq != 0 ? fmt::format(" #{}", g.seq) : "";
  what += group != nullptr ? " of " + group->title() : "";
  if (c_.verdict == Verdict::kMissing) {
    return fmt::format("{} skipped {}{} and issued {}{} instead{}", who(), what,
                       at(g.evidence, usual.stack), record(g.evidence, issued),
                       at(g.evidence, issued.stack), who_waits(("in " + op_text()).c_str()));
  }
  return fmt::format("{} took another order: {}{} came before {}{}", who(),
                     record(g.evidence, issued), at(g.evidence, issued.stack), what,
                     who_waits(("in " + op_text()).c_str()));
}

std::string Summary::left_order() const {
  const Guilty& g = c_.guilty.front();
  const RankEvidence& e = f_.ev(g.evidence);
  const Record &issued = e.records[g.issued], &usual = e.records[g.usual];
  if (c_.verdict == Verdict::kMissing) {
    return skipped();
  }
  std::string had(e.text(usual.op));
  if (const Group* in = f_.group_of(g.evidence, usual);
      in != nullptr && usual.peer != issued.peer && usual.kind == issued.kind && usual.peer >= 0) {
    had += fmt::format(" {} rank {}", usual.kind == Kind::kSend ? "to" : "from",
                       in->ranks[idx(usual.peer)]);
  }
  return fmt::format("{} issued {}{} where {} had {}{}{}", who(), record(g.evidence, issued),
                     at(g.evidence, issued.stack),
                     c_.by_peers ? "other ranks" : "its earlier iterations", had,
                     at(g.evidence, usual.stack), who_waits(("in " + op_text()).c_str()));
}

std::string Summary::stalled_text(const std::string& operation) const {
  const char* device = one() ? "its device" : "their devices";
  switch (c_.stalled) {
    case StalledDevice::kUnlaunched:
      return fmt::format("issued {} and never launched it", operation);
    case StalledDevice::kInLaunch:
      return fmt::format("{} in the launch of {}, which does not return", one() ? "is" : "are",
                         operation);
    case StalledDevice::kNotStarted:
      return fmt::format("launched {}, but {} did not start it: earlier work there is unfinished",
                         operation, device);
    case StalledDevice::kChannelsAbsent:
      return fmt::format("started {}, but {} did not start all its channels", operation, device);
    case StalledDevice::kKernel:
      return fmt::format("started {}, but the kernel on {} makes no progress", operation, device);
    case StalledDevice::kUnseenKernel:
      return fmt::format(
          "launched {}, but {} did not take what came, nor fill what is free: the "
          "kernel did not start, or stands",
          operation, device);
    case StalledDevice::kNetworkThread:
      return fmt::format("started {}, but NCCL's network thread there has not begun its transfers",
                         operation);
  }
  return "";
}

// Whether the device of a blamed rank started the operation that it is behind in.
bool Summary::started_it() const {
  return std::any_of(c_.guilty.begin(), c_.guilty.end(), [&](const Guilty& g) {
    return g.issued != kNoRecord && f_.ev(g.evidence).records[g.issued].state == State::kStarted;
  });
}

std::string Summary::behind() const {
  std::vector<Rank> others = f_.group(p_->group).ranks;
  std::sort(others.begin(), others.end());
  std::erase_if(others, [&](Rank r) { return contains(guilty_, r) || contains(p_->unknown, r); });
  const char* device = one() ? "its device" : "their devices";
  const std::string own =
      p_->starts_seen && !c_.chain.stalled.empty() ? stalled_text(op_text())
      : started_it() ? fmt::format("started {}, but {} did not finish it", op_text(), device)
      : p_->starts_seen
          ? fmt::format("issued {}, but {} did not start it: earlier work there is unfinished",
                        op_text(), device)
          : fmt::format("issued {}, but {} did not finish it", op_text(), device);
  const char* rest = !p_->starts_seen     ? "finished it"
                     : others.size() == 1 ? "started it and waits"
                                          : "started it and wait";
  return fmt::format("{} {}; {} {}", who(), own, ranks_words(others), rest);
}

std::string Summary::device_error() const {
  const DeviceError& e = c_.errors.front();
  std::string out = fmt::format("{} failed on the device: {}", who(), e.text);
  if (e.record != kNoRecord) {
    out += ", in " + record(e.evidence, e.record);
  }
  return out + all_waiting();
}

std::string Summary::network() const {
  const Link& l = c_.chain.links.front();
  std::string out =
      fmt::format("{} is stuck in the network, {}", op_text(),
                  l.from == l.to ? fmt::format("between card and device of rank {}", l.from)
                                 : fmt::format("from rank {} to rank {}", l.from, l.to));
  if (c_.chain.links.size() > 1) {
    out += fmt::format(" and over {} more link{}", c_.chain.links.size() - 1,
                       c_.chain.links.size() == 2 ? "" : "s");
  }
  return out;
}

std::string Summary::group_order() const {
  const GroupCalls& calls = *c_.calls;
  if (calls.tie) {
    return fmt::format("{} called new_group for group {}, each with other members", who(),
                       calls.ordinal);
  }
  std::vector<int> most;
  for (const GroupCalls::Call& call : calls.classes.at(calls.most)) {
    most.push_back(call.evidence);
  }
  const auto other = std::find_if(calls.classes.begin(), calls.classes.end(),
                                  [&](const auto& x) { return x.first != calls.most; });
  return fmt::format("{} called new_group for group {} with {}, where {} called it with {}", who(),
                     calls.ordinal, ranks_words(other->first), ranks_words(f_.ranks(most)),
                     ranks_words(calls.most));
}

std::string Summary::cycle_parts() const {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < c_.operations.size() && i < kShown; ++i) {
    const Pending& p = f_.graph[c_.operations[i]];
    parts.push_back(fmt::format("{} in {}", ranks_words(waiting(p)), pending(p)));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

// "rank 0 holds the lock of data.lock, which ranks 1-3 wait for, and waits for them in barrier #2"
std::string Summary::lock_cycle() const {
  std::map<int, std::vector<int>> waiters;  // by holder
  for (const Guilty& g : c_.guilty) {
    if (const int holder = f_.graph.lock_holders[idx(g.evidence)]; holder >= 0) {
      waiters[holder].push_back(g.evidence);
    }
  }
  std::vector<std::string> parts;
  for (const auto& [holder, who] : waiters) {
    const RankEvidence& e = f_.ev(who.front());
    std::string part =
        fmt::format("rank {} holds the lock of {}, which {} for", f_.rank(holder),
                    short_file(file_lock_wait(e).file, e.id.cwd), wait_verb(f_.ranks(who)));
    if (f_.graph.waits(holder)) {
      part += fmt::format(", and waits for {} in {}", who.size() == 1 ? "it" : "them",
                          pending(f_.graph[f_.graph.waits_in[idx(holder)].front()]));
    }
    parts.push_back(std::move(part));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string Summary::never_started() const {
  std::string address;
  for (const int i : c_.others) {
    address = address.empty() ? rendezvous_of(f_.ev(i)).address : address;
  }
  return fmt::format("{} {} not come to {} (not started, or cannot reach {}); {} there", who(),
                     one() ? "has" : "have", c_.lifecycle,
                     address.empty() ? "the store" : "the store at " + address,
                     wait_verb(f_.ranks(c_.others)));
}

std::string Summary::never_issued() const {
  const bool further = std::any_of(c_.guilty.begin(), c_.guilty.end(),
                                   [&](const Guilty& g) { return g.pending != c_.pending; });
  return fmt::format("{} {} {}{}{}", who(),
                     c_.rule == Rule::kLeft ? "exited without issuing" : "never issued",
                     other_end(), who_waits("there"), further ? ", and others elsewhere" : "");
}

// Of a send or receive what is missing is the other end of what is pending.
std::string Summary::other_end() const {
  if (p_ == nullptr || p_->kind == Kind::kCollective || !one() ||
      (guilty_.front() != p_->from && guilty_.front() != p_->to)) {
    return op_text();
  }
  const bool sends = guilty_.front() == p_->from;
  return fmt::format("the {} rank {} that {} #{} of {} waits for", sends ? "send to" : "recv from",
                     sends ? p_->to : p_->from, op(*p_), p_->seq, f_.group(p_->group).title());
}

std::string Summary::extra() const {
  const Guilty& g = c_.guilty.front();
  const bool finished =
      std::all_of(c_.others.begin(), c_.others.end(), [&](int i) { return f_.is_leaving(i); });
  return fmt::format(
      "{} issued {}{}, which no other rank issued; {} {}", who(), op_text(),
      g.issued == kNoRecord ? "" : at(g.evidence, f_.ev(g.evidence).records[g.issued].stack),
      others(), finished ? "finished without it" : "never issued it");
}

std::string Summary::no_exit() const {
  return fmt::format(
      "{} {} not exit: {} destroyed {} process groups, and Python waits for {} "
      "other threads to end",
      who(), one() ? "does" : "do", one() ? "it has" : "they have", one() ? "its" : "their",
      one() ? "its" : "their");
}

std::string Summary::text() const {
  switch (c_.rule) {
    case Rule::kGroupOrder:
      return group_order();
    case Rule::kMismatch:
    case Rule::kSkippedSlot:
    case Rule::kPastMismatch:
    case Rule::kOpenDivergence:
      return mismatch();
    case Rule::kUnequalEnds:
      return unequal();
    case Rule::kExited:
    case Rule::kOneKilled:
    case Rule::kSeenEnded:
      return exited();
    case Rule::kKilledBefore:
      return fmt::format("{} {}; the others were ended after it", who(),
                         exit_verb(f_.exit(c_.guilty.front().evidence), guilty_.size()));
    case Rule::kDeviceError:
      return device_error();
    case Rule::kDeviceBehind:
      return behind();
    case Rule::kDeviceStalled:
      return fmt::format("{} {}{}", who(),
                         stalled_text(DeviceWords(f_).title(*c_.guilty.front().device)),
                         all_waiting());
    case Rule::kNetwork:
      return network();
    case Rule::kAllStarted:
      return fmt::format("all members started {} and none finished", op_text());
    case Rule::kUnresponsive:
      return fmt::format("{} issued {} and no longer respond{}; the others wait there", who(),
                         op_text(), one() ? "s" : "");
    case Rule::kNeverIssued:
    case Rule::kLeft:
      return never_issued();
    case Rule::kExtra:
      return extra();
    case Rule::kStoppedHost:
      return fmt::format(
          "{} stopped after {}, though peers that wait in the same operation went on", who(),
          op_text());
    case Rule::kLeftOrder:
      return left_order();
    case Rule::kOtherOrder:
      return fmt::format("{} took another order than the others: {}", who(), cycle_parts());
    case Rule::kCycle:
      if (c_.guilty.empty()) {
        return fmt::format("{} wait for each other, and nothing tells who left the usual order: {}",
                           others(), cycle_parts());
      }
      return fmt::format("{} wait for each other: {}", who(), cycle_parts());
    case Rule::kLockCycle:
      return lock_cycle();
    case Rule::kNoEvidence:
      return fmt::format("{} left no evidence; {} for {} in {}", who(), wait_verb(waiting(*p_)),
                         one() ? "it" : "them", op_text());
    case Rule::kNeverStarted:
      return never_started();
    case Rule::kNoExit:
      return no_exit();
    case Rule::kLifecycle:
      return fmt::format("{} never entered {}; {} there", who(), c_.lifecycle,
                         wait_verb(f_.ranks(c_.others)));
    case Rule::kSlow:
      return LateWords(f_).summary(c_.late);
    case Rule::kOpenFewOrMany:
    case Rule::kOpenUnrecorded:
    case Rule::kOpenCommunicator:
    case Rule::kOpenErrors:
    case Rule::kOpenOwnErrors:
    case Rule::kOpenDevices:
    case Rule::kOpenKernel:
    case Rule::kOpenBehind:
    case Rule::kOpenRunning:
    case Rule::kOpenComplete:
    case Rule::kOpenStreams:
    case Rule::kOpenFailed:
    case Rule::kOpenNoEvidence:
    case Rule::kOpenLifecycle:
    case Rule::kOpenTerminated:
    case Rule::kOpenStale:
    case Rule::kOpenAtRest:
    case Rule::kOpenAlarm:
    case Rule::kOpenAmid:
    case Rule::kOpenUnattributed:
    case Rule::kOpenUnmatched:
    case Rule::kOpenNoOperations:
    case Rule::kOpenTimesOnly:
    case Rule::kOpenCallsOnly:
    case Rule::kOkTerminated:
    case Rule::kOk:
      return open_summary(f_, c_);
  }
  return {};
}

}  // namespace

std::string summary(const Facts& f, const Cause& c) {
  return Summary(f, c).text();
}

}  // namespace frtrace
