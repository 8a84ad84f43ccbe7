// pipeline.hpp - orders of forward and backward passes in a pipeline, of many kinds, by one rule.
#pragma once

#include <vector>

#include "random.hpp"

namespace hangsim {

// Placement of a model's stages, and the order in which a place runs passes that are ready.
struct Pipeline {
  int places = 2;
  int chunks = 1;          // stages per place
  bool folds = false;      // the second chunk goes back from the last place to the first (a V)
  bool both_ways = false;  // half of the micro-batches enter at the last place
  bool forward_first = false;
  int micro = 4;
  int stages() const { return places * chunks; }
  int place_of(int stage, bool reversed) const;
};

struct Pass {
  int micro = 0, stage = 0;
  bool forward = true;
};
struct Message {
  int from = 0, to = 0;  // places
  bool forward = true;
};
// One step of the schedule: at most one pass per place, then the messages of these passes.
struct Tick {
  std::vector<int> of_place;  // in passes, -1: none
  std::vector<Pass> passes;
  std::vector<Message> messages;
};

std::vector<Tick> schedule(const Pipeline&);

}  // namespace hangsim
