#include <iterator>

#include "old/diagnosis.hpp"

namespace frtrace {

bool Diagnosis::device_failed() {
  std::vector<DeviceError> own;
  std::copy_if(device_errors_.begin(), device_errors_.end(), std::back_inserter(own),
               [](const DeviceError& x) { return !x.consequence; });
  if (own.empty() || graph_.meetings.empty()) {
    return false;
  }
  // It must be what the others wait for, or where it ended for all.
  const auto holds_up = [&](int i) {
    if (std::find(graph_.sinks.begin(), graph_.sinks.end(), i) != graph_.sinks.end()) {
      return true;
    }
    if (!graph_.sinks.empty()) {
      return false;  // the waits end elsewhere
    }
    return std::any_of(graph_.complete.begin(), graph_.complete.end(), [&](int k) {
      const Meeting& m = graph_.meetings[at(k)];
      return std::any_of(m.waits.begin(), m.waits.end(),
                         [&](const Wait& w) { return w.evidence == i; });
    });
  };
  const auto [first, unmeasured] = first_errors(c_, slots_, own);
  if (!std::all_of(first.begin(), first.end(),
                   [&](const DeviceError& x) { return holds_up(x.evidence); })) {
    return false;
  }
  std::set<int> blamed;
  for (const DeviceError& x : first) {
    blamed.insert(x.evidence);
  }
  if (first.size() > 1 && unmeasured) {
    r_.kind = Verdict::kUndecided;
    r_.summary = fmt::format(
        "{} failed on their devices within seconds, and too little is in common to compare their "
        "clocks: the evidence does not tell whose error came first",
        ranks_words(ranks({blamed.begin(), blamed.end()})));
    add_all_waiting(-1, {});
    return true;
  }
  r_.kind = Verdict::kDevice;
  int k = -1;
  for (std::size_t j = 0; j < graph_.meetings.size(); ++j) {
    const Meeting& m = graph_.meetings[j];
    if (k < 0 || m.since < graph_.meetings[at(k)].since) {
      k = static_cast<int>(j);
    }
  }
  for (const DeviceError& x : first) {
    const RankEvidence& e = ev(x.evidence);
    Blamed& b = blame(x.evidence, x.cuda ? "cuda_error" : "nccl_error");
    fill_slot(b, graph_.meetings[at(k)]);
    std::string line = x.text;
    if (x.record != SIZE_MAX) {
      const Record& record = e.records[x.record];
      b.op = e.text(record.op);
      b.seq = record.seq;
      if (const Group* g = group_of(x.evidence, record)) {
        b.group = g->name;
        b.desc = g->desc;
      }
      b.site = user_site(e, record.stack);
      b.stack = stack_lines(x.evidence, record.stack);
      line += fmt::format("; in flight was {}{}", record_text(x.evidence, record),
                          at_site(x.evidence, record.stack));
    }
    if (x.time != 0 && e.written > x.time) {
      line +=
          fmt::format(", {} before its dump", duration_text(seconds_between(x.time, e.written)));
    }
    b.evidence.insert(b.evidence.begin(), std::move(line));
  }
  std::sort(r_.ranks.begin(), r_.ranks.end());
  std::set<Rank> waiting;
  for (const Meeting& m : graph_.meetings) {
    for (const Wait& w : m.waits) {
      if (!blamed.contains(w.evidence)) {
        waiting.insert(rank(w.evidence));
      }
    }
  }
  r_.summary = fmt::format("{} failed on the device: {}", ranks_words(r_.ranks), first[0].text);
  if (first[0].record != SIZE_MAX) {
    r_.summary += fmt::format(
        ", in {}", record_text(first[0].evidence, ev(first[0].evidence).records[first[0].record]));
  }
  if (!waiting.empty()) {
    r_.summary += fmt::format("; {} {}", ranks_words({waiting.begin(), waiting.end()}),
                              waiting.size() == 1 ? "waits" : "wait");
  }
  if (first.size() > 1) {
    lower(Confidence::kLikely, "the clocks do not tell whose error came first");
  }
  if (first.size() < own.size()) {
    say("why",
        fmt::format("the error of {} came before those of the others", ranks_words(r_.ranks)));
  }
  explain_waits(blamed);
  add_all_waiting(k, blamed);
  return true;
}

void Diagnosis::tell_device_errors() {
  constexpr std::size_t kShown = 8;
  std::size_t shown = 0, left = 0;
  for (const DeviceError& x : device_errors_) {
    const bool blamed =
        std::find(r_.ranks.begin(), r_.ranks.end(), rank(x.evidence)) != r_.ranks.end();
    if (blamed && r_.kind == Verdict::kDevice) {
      continue;  // stands in its evidence
    }
    if (shown == kShown) {
      ++left;
      continue;
    }
    ++shown;
    std::string line = fmt::format("rank {}: {}", rank(x.evidence), x.text);
    if (x.record != SIZE_MAX) {
      line += fmt::format(" in {}", record_text(x.evidence, ev(x.evidence).records[x.record]));
    }
    if (x.time != 0 && ev(x.evidence).written > x.time) {
      line += fmt::format(", {} before its dump",
                          duration_text(seconds_between(x.time, ev(x.evidence).written)));
    }
    say("error", std::move(line));
  }
  if (left > 0) {
    say("error", fmt::format("and errors of {} more ranks", left));
  }
  if (r_.kind == Verdict::kOk) {
    return;
  }
  for (const RankEvidence* e : c_.ranks) {
    const DeviceEvidence& d = e->device;
    const double stuck = d.observer_since == 0 ? 0 : seconds_between(d.observer_since, e->written);
    if (!d.observer_call.empty() && stuck >= kStuckSeconds) {
      say("device", fmt::format("rank {}: fr's own thread has been in {} for {}: CUDA does not "
                                "answer there",
                                e->id.rank, d.observer_call, duration_text(stuck)));
    }
  }
}

}  // namespace frtrace
