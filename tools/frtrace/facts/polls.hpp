// polls.hpp - ranks that wait by looking again and again, in the ranks' store or elsewhere, and what
// ranks write to that store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "facts/facts.hpp"

namespace frtrace {

// Its main thread sleeps and wakes in a loop: it looks for something that others may have to do. Not
// where its stack shows that it waits for a file outside of the job.
bool polls(const RankEvidence&);

// The ranks among these that poll. A sample may find a rank between two naps: a rank that runs at the
// line where another one of them polls does, too.
std::vector<int> that_poll(const Facts&, const std::vector<int>& ranks);

// A write to the ranks' store that some ranks wait for, and that others made before.
struct OwedWrite {
  std::string call;                 // "store.set ready-#": the call, and its key without numbers
  Site site;                        // where the others made it before
  std::uint64_t made = 0;           // how often they did
  std::uint64_t awaited_after = 0;  // how often those who wait did; 0: they only wait for the key
  std::vector<int> owing;           // evidence, none of those who wait
};

// These ranks did nothing since a write to the store that the others made less often at the same place,
// or wait for a key that only others wrote before; nullopt: neither.
std::optional<OwedWrite> owed_write(const Facts&, const std::vector<int>& waiting);

}  // namespace frtrace
