#include "old/diagnose.hpp"

#include "old/diagnosis.hpp"

namespace frtrace {

const char* verdict_name(Verdict v) {
  static constexpr const char* kNames[] = {"ok",        "missing", "mismatch", "deadlock", "device",
                                           "transport", "exited",  "slow",     "undecided"};
  return kNames[static_cast<int>(v)];
}

const char* confidence_name(Confidence v) {
  static constexpr const char* kNames[] = {"certain", "likely", "possible"};
  return kNames[static_cast<int>(v)];
}

namespace {

// Something went wrong when it was written; nobody merely asked.
bool is_alarm(const RankEvidence* e) {
  return e->trigger == "timeout" || e->trigger == "peer" || e->trigger == "failure" ||
         e->trigger == "salvage";
}

}  // namespace

bool Diagnosis::p2p_unseen() const {
  return std::any_of(c_.ranks.begin(), c_.ranks.end(),
                     [](const RankEvidence* e) { return e->holes.no_p2p; });
}

bool Diagnosis::alarmed() const {
  return std::any_of(c_.ranks.begin(), c_.ranks.end(), is_alarm);
}

// Nobody had a reason to dump: three times what a rank is usually busy, or waits, between two
// operations is no hang. Seconds, at most ten.
double Diagnosis::usual_wait_s() const {
  constexpr std::size_t kAsked = 64, kRecent = 256;
  constexpr double kMost_s = 10, kTimes = 3;
  std::vector<double> usual;
  for (std::size_t i = 0; i < c_.ranks.size(); i += 1 + c_.ranks.size() / kAsked) {
    const std::vector<Record>& records = c_.ranks[i]->records;
    std::vector<double> gaps;
    for (std::size_t r = records.size() - std::min(records.size(), kRecent) + 1; r < records.size();
         ++r) {
      gaps.push_back(seconds_between(records[r - 1].time, records[r].time));
    }
    if (gaps.size() >= 8) {
      const auto high = gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() * 95 / 100);
      std::nth_element(gaps.begin(), high, gaps.end());
      usual.push_back(*high);
    }
  }
  if (usual.empty()) {
    return 0;
  }
  const auto middle = usual.begin() + static_cast<std::ptrdiff_t>(usual.size() / 2);
  std::nth_element(usual.begin(), middle, usual.end());
  return std::min(kMost_s, kTimes * *middle);
}

Report Diagnosis::run() {
  inventory();
  double threshold = kStuckSeconds;
  for (const RankEvidence* e : c_.ranks) {
    threshold = std::min(threshold, 0.5 * e->timeout_s());
  }
  if (!alarmed()) {
    threshold = std::max(threshold, usual_wait_s());
  }
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    if (ends_[i].primary()) {
      primary_.push_back(static_cast<int>(i));
    }
  }
  for (std::size_t i = 0; i < missing_ends_.size(); ++i) {
    if (missing_ends_[i].primary()) {
      missing_primary_.push_back(static_cast<int>(i));
    }
  }
  const bool somebody_died = !primary_.empty() || !missing_primary_.empty();
  hidden_ = hidden_failures(c_, history_);
  const WaitGraph settled = wait_graph(c_, ends_, threshold, hidden_);
  graph_ = somebody_died ? wait_graph(c_, ends_, 0, hidden_) : settled;
  divergence_ = first_divergence(c_, slots_);
  device_errors_ = device_errors(c_);

  (void)(group_order() || (divergence_ && !divergence_->past && mismatch(*divergence_)) ||
         (somebody_died && exited(settled)) || ended_alone() || device_failed() ||
         device_behind() || left_early_or_missing() || cycle() || own_errors() || no_evidence() ||
         everybody_came() || lifecycle() || terminated() ||
         (divergence_ && divergence_->past && divergence_->strict && mismatch(*divergence_)) ||
         stale() || nothing_stuck());
  tell_device_errors();
  consequences();
  if (r_.kind != Verdict::kOk) {
    other_witnesses();
  }
  finish();
  return std::move(r_);
}
bool Diagnosis::own_errors() {
  std::set<int> blamed;
  Time first = 0;
  const Wait* earliest = nullptr;
  const Meeting* where = nullptr;
  for (const Meeting& m : graph_.meetings) {
    for (const Wait& w : m.waits) {
      if (w.own_error && (first == 0 || w.until < first)) {
        first = w.until;
        earliest = &w;
        where = &m;
      }
    }
  }
  if (earliest == nullptr) {
    return false;
  }
  std::vector<Rank> who;
  for (const Wait& w : where->waits) {
    if (w.own_error) {
      who.push_back(rank(w.evidence));
    }
  }
  r_.kind = Verdict::kUndecided;
  const Record& record = ev(earliest->evidence).records[earliest->record];
  r_.summary = fmt::format(
      "{} failed on {}: {}; its members agree on what they issued, so the "
      "evidence does not name who caused it",
      meeting_text(*where), ranks_words(who), ev(earliest->evidence).text(record.error));
  add_all_waiting(static_cast<int>(where - graph_.meetings.data()), {});
  return true;
}

bool Diagnosis::stale() {
  // Dumps seconds apart of a job that nobody had a reason to dump.
  constexpr double kLong_s = 10;
  if (graph_.too_old.empty() || (!alarmed() && graph_.too_old_s < kLong_s)) {
    return false;
  }
  r_.kind = Verdict::kUndecided;
  r_.summary = fmt::format(
      "something is stuck, but the evidence of {} is older than the waits "
      "of the others",
      ranks_words(ranks(graph_.too_old)));
  return true;
}

bool Diagnosis::nothing_stuck() {
  // Somebody had a reason to dump, and it is not among what was read.
  const auto alarm = std::find_if(c_.ranks.begin(), c_.ranks.end(), is_alarm);
  if (!c_.missing.empty() && alarm != c_.ranks.end()) {
    r_.kind = Verdict::kUndecided;
    r_.summary = fmt::format(
        "nothing is stuck on {}, but it dumped for a reason ({}); evidence of "
        "{} is lacking",
        c_.ranks.size() == 1 ? ranks_words({c_.ranks[0]->id.rank}) : "the ranks that were read",
        (*alarm)->reason.empty() ? (*alarm)->trigger : (*alarm)->reason, ranks_words(c_.missing));
    return true;
  }
  // All at rest in the middle of an iteration, in what this format does not record.
  if (p2p_unseen() && graph_.fresh == 0) {
    std::vector<int> amid;
    for (int i = 0; i < static_cast<int>(c_.ranks.size()); ++i) {
      if (stopped_amid(c_, history_, i)) {
        amid.push_back(i);
      }
    }
    if (2 * amid.size() > c_.ranks.size()) {
      r_.kind = Verdict::kUndecided;
      r_.summary = fmt::format(
          "{} stopped in the middle of an iteration with no collective in flight: they are in "
          "sends and receives, which these files do not record, or elsewhere",
          ranks_words(ranks(amid)));
      return true;
    }
  }
  if (slow()) {
    return true;
  }
  r_.kind = Verdict::kOk;
  r_.summary = "nothing is stuck";
  if (graph_.fresh > 0) {
    r_.summary +=
        fmt::format("; {} in flight, all young",
                    graph_.fresh == 1 ? "1 operation" : fmt::format("{} operations", graph_.fresh));
  }
  if (!c_.missing.empty()) {
    lower(Confidence::kLikely, fmt::format("no evidence of {}", ranks_words(c_.missing)));
  }
  return true;
}

Report diagnose(const Case& c) {
  return Diagnosis(c).run();
}

}  // namespace frtrace
