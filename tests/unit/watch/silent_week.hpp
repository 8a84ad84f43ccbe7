// silent_week.hpp - seven days of times in which no rank of a job issues an operation, through the
// code with which the watchdog decides whether that is a hang.
//
// Training: steps of 1 s (lognormal, sigma 1), a data set that is opened anew for 40 s each 2,000
// steps, a checkpoint of 90 s that all ranks write each 500 steps, an evaluation of 300 s without
// collectives each 2,000. Half of them sleep, for a file server or another process, and half
// compute. A server: requests of which the gaps are lognormal with sigma 2, median 5 s; all ranks
// sleep in between.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>

#include "watch/deadlines.hpp"

namespace fr::test {

struct SilentJob {
  u64 seed = 1;
  bool is_server = false;
};

struct SilentWeekResult {
  u32 false_warnings = 0, false_dumps = 0;
  double to_dump_asleep_s = 0;  // at the end of the week, in a silence in which all ranks sleep
  double to_dump_busy_s = 0;    // likewise, and a process computes
};

class SilentWeek {
 public:
  explicit SilentWeek(const SilentJob& job) : job_(job), random_(job.seed) {}

  SilentWeekResult run() {
    for (u64 step = 0; now_s_ < 7 * 86'400.0; ++step) {
      if (job_.is_server) {
        wait(lognormal(5, 2), true);
        continue;
      }
      wait(lognormal(1), chance(0.5));
      if (step % 500 == 499) {
        wait(lognormal(90, 0.2), chance(0.5));
      }
      if (step % 2000 == 1999) {
        wait(lognormal(40, 0.5), chance(0.5));
        wait(lognormal(300, 0.2), chance(0.5));
      }
    }
    result_.to_dump_asleep_s = deadline(true).dump_ns / 1e9;
    result_.to_dump_busy_s = deadline(false).dump_ns / 1e9;
    return result_;
  }

 private:
  static constexpr Floors kFloors{30'000'000'000, 60'000'000'000, false, false, true};
  static u64 ns(double s) { return static_cast<u64>(s * 1e9); }
  bool chance(double p) { return std::uniform_real_distribution<>()(random_) < p; }
  double lognormal(double median, double sigma = 1) {
    return median * std::exp(sigma * std::normal_distribution<>()(random_));
  }
  Deadline deadline(bool is_asleep) {
    return silence_deadline_of(row_, {!is_asleep, true, 0}, kFloors);
  }

  void wait(double silent_s, bool is_asleep) {
    const Deadline d = deadline(is_asleep);
    now_s_ += silent_s;
    row_.visits.store(row_.visits.load() + 1);
    result_.false_warnings += ns(silent_s) >= d.warn_ns ? 1 : 0;
    if (ns(silent_s) >= noted_from(kFloors)) {
      learn(row_, {ns(silent_s), is_asleep ? ns(silent_s) : 0, 0}, ns(now_s_));
    }
    if (ns(silent_s) >= d.dump_ns) {
      ++result_.false_dumps;
      note_false_dump(row_, is_asleep ? Others::kAsleep : Others::kBusy, ns(now_s_));
    }
  }

  SilentJob job_;
  std::mt19937_64 random_;
  SiteRow row_{};
  double now_s_ = 0;
  SilentWeekResult result_;
};

}  // namespace fr::test
