// pipeline.cpp - orders of forward and backward passes in a pipeline.
#include "pipeline.hpp"

#include <algorithm>

namespace hangsim {

int Pipeline::place_of(int stage, bool reversed) const {
  const int chunk = stage / places;
  int place = stage % places;
  if (folds && chunk % 2 == 1) {
    place = places - 1 - place;
  }
  return reversed ? places - 1 - place : place;
}

namespace {

class Scheduler {
 public:
  explicit Scheduler(const Pipeline& p)
      : p_(p),
        forward_(static_cast<std::size_t>(p.micro * p.stages()), kNotYet),
        backward_(forward_),
        inside_(static_cast<std::size_t>(p.places), 0) {}

  std::vector<Tick> run() {
    std::vector<Tick> out;
    int left = 2 * p_.micro * p_.stages();
    for (now_ = 0; left > 0; ++now_) {
      Tick tick;
      for (int place = 0; place < p_.places; ++place) {
        tick.of_place.push_back(-1);
        if (const int chosen = choose(place); chosen >= 0) {
          tick.of_place.back() = static_cast<int>(tick.passes.size());
          tick.passes.push_back(pass(chosen));
        }
      }
      for (const Pass& one : tick.passes) {
        finish(one, tick);
      }
      left -= static_cast<int>(tick.passes.size());
      if (tick.passes.empty()) {
        ++room_;  // all places hold as many micro-batches as they may
      } else {
        out.push_back(std::move(tick));
      }
    }
    return out;
  }

 private:
  static constexpr int kNotYet = -1;

  std::size_t at(int micro, int stage) const {
    return static_cast<std::size_t>(micro * p_.stages() + stage);
  }
  bool reversed(int micro) const { return p_.both_ways && micro % 2 == 1; }
  int place(int micro, int stage) const { return p_.place_of(stage, reversed(micro)); }
  Pass pass(int code) const {
    const int n = code / 2;
    return {n / p_.stages(), n % p_.stages(), code % 2 == 0};
  }
  bool before(int done) const { return done != kNotYet && done < now_; }

  bool ready(int micro, int stage, bool forward) const {
    if (forward) {
      return forward_[at(micro, stage)] == kNotYet &&
             (stage == 0 || before(forward_[at(micro, stage - 1)]));
    }
    const bool last = stage + 1 == p_.stages();
    return backward_[at(micro, stage)] == kNotYet &&
           before(last ? forward_[at(micro, stage)] : backward_[at(micro, stage + 1)]);
  }

  // 2 * (micro, stage) + backward, -1: nothing ready.
  int choose(int place) const {
    int best[2] = {-1, -1};  // forward, backward
    for (int m = 0; m < p_.micro; ++m) {
      for (int s = 0; s < p_.stages(); ++s) {
        if (this->place(m, s) != place) {
          continue;
        }
        for (const bool forward : {true, false}) {
          int& slot = best[forward ? 0 : 1];
          if (slot < 0 && ready(m, s, forward)) {
            slot = 2 * (m * p_.stages() + s) + (forward ? 0 : 1);
          }
        }
      }
    }
    const int most = p_.chunks * p_.places - place + room_;
    const bool full = !p_.forward_first && inside_[static_cast<std::size_t>(place)] >= most;
    const int forward = full ? -1 : best[0];
    const bool prefers_forward = p_.forward_first;
    if (forward >= 0 && (prefers_forward || best[1] < 0)) {
      return forward;
    }
    return best[1];
  }

  void finish(const Pass& one, Tick& tick) {
    auto& done = one.forward ? forward_ : backward_;
    done[at(one.micro, one.stage)] = now_;
    const int from = place(one.micro, one.stage);
    inside_[static_cast<std::size_t>(from)] += one.forward ? 1 : -1;
    const int next = one.stage + (one.forward ? 1 : -1);
    if (next < 0 || next >= p_.stages()) {
      return;
    }
    if (const int to = place(one.micro, next); to != from) {
      tick.messages.push_back({from, to, one.forward});
    }
  }

  const Pipeline& p_;
  std::vector<int> forward_, backward_;  // tick in which it is done
  std::vector<int> inside_;              // micro-batches between forward and backward, by place
  int now_ = 0, room_ = 0;
};

}  // namespace

std::vector<Tick> schedule(const Pipeline& p) {
  return Scheduler(p).run();
}

}  // namespace hangsim
