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
  bool waits_in_step = false;  // for checkpoints and evaluations too: no barrier of their own
};

enum class Rule { kLearned, kFixed, kFiveTimesLongest };

struct WeekResult {
  u32 false_warnings = 0, false_dumps = 0;
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

  // One of the healthy waits.
  void wait(Place place, double absent_s, double together_s) {
    // Some checkpoints are uploaded by another process: the rank sleeps meanwhile.
    const bool sleeps = place == kCheckpoint && chance(0.3);
    const Others absent = !job_.sees_all ? Others::kUnseen
                          : sleeps       ? Others::kAsleep
                                         : Others::kBusy;
    const double whole_s = absent_s + together_s;
    const Deadline first = deadline(place, absent, 0);
    const double first_s = job_.sees_all ? absent_s : whole_s;
    bool is_warned = ns(first_s) >= first.warn_ns;
    bool is_dumped = ns(first_s) >= first.dump_ns;
    bool is_late = false;  // it took long after all had come
    if (job_.sees_all) {
      const Deadline then = deadline(place, Others::kCame, absent_s);
      is_warned = is_warned || ns(whole_s) >= then.warn_ns;
      is_late = !is_dumped && ns(whole_s) >= then.dump_ns;
      is_dumped = is_dumped || is_late;
    }
    now_s_ += whole_s;
    result_.false_warnings += is_warned ? 1 : 0;
    result_.false_dumps += is_dumped ? 1 : 0;
    SiteRow& row = rows_[place];
    row.visits.store(row.visits.load() + 1);
    if (ns(whole_s) >= noted_from({ns(10), ns(60), false, false, true})) {
      learn(row, {ns(first_s), absent == Others::kAsleep ? ns(absent_s) : 0, ns(whole_s - first_s)},
            ns(now_s_));
    }
    if (is_dumped) {
      note_false_dump(row, is_late ? Others::kCame : absent, ns(now_s_));
    }
    longest_[place] = visits_[place] == 0 && place == kStep
                          ? 0  // NVRx leaves the start out
                          : std::max(longest_[place], ns(whole_s));
    ++visits_[place];
  }

  void plant() {
    const auto dumped = [&](std::vector<double>& to, Place place, Others others) {
      const Others seen = job_.sees_all ? others : Others::kUnseen;
      const double s = static_cast<double>(deadline(place, seen, 0).dump_ns) / 1e9;
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
