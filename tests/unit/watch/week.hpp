// week.hpp - seven days of a job in simulated time, through the very code with which the watchdog
// decides: what it would warn of and dump though nothing hangs, and how soon it dumps what does.
//
// The job: steps of 1 s (lognormal, sigma 1) with a collective each, pauses of a garbage collector,
// ranks that take three times as long for a while, a checkpoint of 30 s every 500 steps, an
// evaluation of 300 s every 2,000, in which all others wait for one rank, and a first step of 10
// minutes. Hangs are planted 400 times a week and do not end the job.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "watch/deadlines.hpp"

namespace fr::test {

struct Job {
  u64 seed = 1;
  double step_s = 1;
  double timeout_s = 1800;     // of the group: torch's for gloo
  bool sees_all = true;        // all members are on this node
  bool tells = false;          // where not: nodes tell each other (attendance.hpp)
  bool waits_in_step = false;  // for checkpoints and evaluations too: no barrier of their own
};

enum class Rule { kLearned, kFixed, kFiveTimesLongest };

struct WeekResult {
  u32 false_warnings = 0, false_dumps = 0;
  u32 ended = 0;                    // healthy waits that torch's timeout would have ended
  u32 missed = 0;                   // hangs that torch's timeout ended before a dump
  std::vector<double> steady_s;     // to the dump: all members are in the collective of a step
  std::vector<double> sleeping_s;   // one is missing there, and sleeps
  std::vector<double> computing_s;  // one is missing there, and computes
  std::vector<double> rare_s;       // one is missing at an evaluation
};

class Week {
 public:
  Week(const Job& job, Rule rule) : job_(job), rule_(rule), random_(job.seed) {}

  WeekResult run() {
    for (u64 step = 0; now_s_ < 7 * 86'400.0; ++step) {
      now_s_ += lognormal(job_.step_s);
      double absent = lognormal(0.1);
      absent += chance(0.005) ? lognormal(2) : 0;  // a collector's pause
      straggles_ = chance(0.0002) ? 200 : std::max(0, straggles_ - 1);
      absent += straggles_ > 0 ? 2 * lognormal(job_.step_s) : 0;  // three times as long as others
      absent += step == 0 ? 600 : 0;
      if (step != 0 && step % 500 == 0) {
        wait(job_.waits_in_step ? kStep : kCheckpoint, lognormal(30, 0.2), lognormal(0.02));
      }
      if (step != 0 && step % 2000 == 0) {
        wait(job_.waits_in_step ? kStep : kEvaluation, lognormal(300, 0.2), lognormal(0.02));
      }
      wait(kStep, absent, lognormal(0.02));
      if (step > 100 && chance(400 * job_.step_s * 1.65 / (7 * 86'400.0))) {
        plant();
      }
    }
    return result_;
  }

 private:
  enum Place { kStep, kCheckpoint, kEvaluation, kPlaces };

  bool chance(double p) { return std::uniform_real_distribution<>()(random_) < p; }
  double lognormal(double median, double sigma = 1) {
    return median * std::exp(sigma * std::normal_distribution<>()(random_));
  }
  static u64 ns(double s) { return static_cast<u64>(s * 1e9); }

  Deadline deadline(Place place, Others others, double since_s) {
    if (rule_ == Rule::kFiveTimesLongest) {
      const u64 longest = visits_[place] < 5 ? ~0ull / 8 : longest_[place];
      return {~0ull, 5 * longest};
    }
    const Floors floors{ns(10), ns(60), false, false, rule_ == Rule::kLearned};
    return deadline_of(&rows_[place], {others, ns(since_s), before_timeout(ns(job_.timeout_s))},
                       floors);
  }

  // When the others' state is known: of one node in the next look, over nodes after half of the warn
  // floor, a round of messages and a second look; one datagram of ten is lost.
  double known_s() {
    if (job_.sees_all || !job_.tells) {
      return job_.sees_all ? 0 : 1e9;
    }
    double s = 5 + 1 + 2.1 * std::uniform_real_distribution<>()(random_);
    for (; chance(0.2); s += 2.1) {
    }
    return s;
  }

  // Simulates a healthy wait.
  void wait(Place place, double absent_s, double together_s) {
    // Some checkpoints are uploaded by another process: the rank sleeps meanwhile.
    const bool sleeps = place == kCheckpoint && chance(0.3);
    const double whole_s = absent_s + together_s;
    const double from_s = known_s();
    const Others absent = from_s >= absent_s ? Others::kUnseen
                          : sleeps           ? Others::kAsleep
                                             : Others::kBusy;
    // The node learns one round later that all members have issued the operation.
    const double came_s = job_.sees_all ? absent_s : std::max(from_s, absent_s + from_s - 6);
    const bool came = came_s < whole_s;
    const double first_s = came ? absent_s : whole_s;
    bool is_warned = false;
    bool is_dumped = false;
    Others dumped = absent;
    const auto pass = [&](Others others, double since_s, double until_s) {
      const Deadline d = deadline(place, others, since_s);
      is_warned = is_warned || ns(until_s) >= d.warn_ns;
      dumped = !is_dumped && ns(until_s) >= d.dump_ns ? others : dumped;
      is_dumped = is_dumped || ns(until_s) >= d.dump_ns;
    };
    if (!job_.sees_all) {
      pass(Others::kUnseen, 0, std::min(from_s, whole_s));
    }
    if (absent != Others::kUnseen) {
      pass(absent, 0, came ? came_s : whole_s);
    }
    if (came) {
      pass(Others::kCame, absent_s, whole_s);
    }
    now_s_ += whole_s;
    result_.false_warnings += is_warned ? 1 : 0;
    // A wait beyond torch's timeout is no healthy one: the dump before it is right.
    const bool is_ended = whole_s >= job_.timeout_s;
    result_.ended += is_ended ? 1 : 0;
    result_.false_dumps += is_dumped && !is_ended ? 1 : 0;
    SiteRow& row = rows_[place];
    row.visits.store(row.visits.load() + 1);
    if (ns(whole_s) >= noted_from({ns(10), ns(60), false, false, true})) {
      const bool may_sleep = absent == Others::kAsleep || (absent == Others::kUnseen && job_.tells);
      learn(row, {ns(first_s), may_sleep ? ns(absent_s) : 0, ns(whole_s - first_s)}, ns(now_s_));
    }
    if (is_dumped) {
      note_false_dump(row, dumped, ns(now_s_));
    }
    longest_[place] = visits_[place] == 0 && place == kStep
                          ? 0  // NVRx leaves the start out
                          : std::max(longest_[place], ns(whole_s));
    ++visits_[place];
  }

  void plant() {
    const auto dumped = [&](std::vector<double>& to, Place place, Others others) {
      const double unseen_s =
          static_cast<double>(deadline(place, Others::kUnseen, 0).dump_ns) / 1e9;
      const double seen_s = static_cast<double>(deadline(place, others, 0).dump_ns) / 1e9;
      const double from_s = known_s();
      const double s = from_s >= unseen_s ? unseen_s : std::max(from_s, seen_s);
      s >= job_.timeout_s ? static_cast<void>(++result_.missed) : to.push_back(s);
    };
    dumped(result_.steady_s, kStep, Others::kCame);
    dumped(result_.sleeping_s, kStep, Others::kAsleep);
    dumped(result_.computing_s, kStep, Others::kBusy);
    dumped(result_.rare_s, job_.waits_in_step ? kStep : kEvaluation, Others::kBusy);
  }

  const Job job_;
  const Rule rule_;
  std::mt19937_64 random_;
  double now_s_ = 0;
  int straggles_ = 0;
  std::unique_ptr<SiteRow[]> rows_ = std::make_unique<SiteRow[]>(kPlaces);
  std::array<u64, kPlaces> visits_{}, longest_{};
  WeekResult result_;
};

}  // namespace fr::test
