// slower_steps.hpp - says once, while the job runs, that the steps of all ranks of this node became
// several times as long. Nothing is recorded for that: the watchdog of one rank of the node compares
// the times of the last steps in its own ring, then in those of its peers. No allocation, no lock.
#pragma once

#include "format/view.hpp"

namespace fr {

struct Recorder;
class ThreadStacks;

// How long the steps of a rank take: the newest ones, and those before them.
struct StepTimes {
  u64 before_ns = 0;       // median; 0: too few steps
  u64 now_ns = 0;          // median of the newest
  u64 idle_before_ns = 0;  // of a step: time with no operation in flight
  u64 idle_now_ns = 0;
  u64 since_unix_ns = 0;  // begin of the first long step
  i64 since_step = -1;    // its number where the program calls fr.step; -1 unknown
  bool are_slower() const noexcept;
  // Most of the time that a step takes longer is spent with no operation in flight.
  bool are_idle() const noexcept;
};
// Step times from the newest records of a ring. A step begins at fr.step, else where the newest
// completed collective is issued again with the same size.
StepTimes step_times(const View& view) noexcept;

class SlowerSteps {
 public:
  explicit SlowerSteps(Recorder& recorder) noexcept : recorder_(recorder) {}
  void look(u64 now_ns, ThreadStacks& threads) noexcept;  // every tick

 private:
  bool is_first_of_node() const noexcept;
  void tell(const StepTimes& own, u32 ranks, ThreadStacks& threads) noexcept;

  Recorder& recorder_;
  u64 looked_ns_ = 0;
  bool has_told_ = false;
};

}  // namespace fr
