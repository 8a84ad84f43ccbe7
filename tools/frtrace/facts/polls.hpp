// polls.hpp - ranks that wait by polling the ranks' store or something else, and the ranks' writes
// to that store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "facts/facts.hpp"

namespace frtrace {

// The main thread sleeps and wakes in a loop: it looks for something that other ranks may have to
// do. False if its stack shows that it waits for a file outside of the job.
bool polls(const RankEvidence&);

// The ranks among these that poll. A sample may find a polling rank between two sleeps, so a rank
// that runs at a line where another one polls counts, too.
std::vector<int> that_poll(const Facts&, const std::vector<int>& ranks);

// A write to the ranks' store that some ranks wait for, and that others made before.
struct OwedWrite {
  std::string call;                 // "store.set ready-#": the call, and its key without numbers
  Site site;                        // place where the others made it before
  std::uint64_t made = 0;           // number of times that they did
  std::uint64_t awaited_after = 0;  // the same of the waiting ranks; 0: they only wait for the key
  std::vector<int> owing;           // evidence of other ranks that owe the write
};

// The write that these ranks wait for: the others made it less often at the same place, and these
// ranks did nothing since; or they wait for a key that only others wrote before. nullopt: neither.
std::optional<OwedWrite> owed_write(const Facts&, const std::vector<int>& waiting);

}  // namespace frtrace
