// ras.hpp - the answer of NCCL's RAS service in lines: a witness beside fr's own evidence, no
// verdict.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// The faults that RAS found, one sentence each: operation counts that differ, ranks that are
// missing or dead, states and errors. Empty if all agree, if there is no answer, or if it is
// garbage.
std::vector<std::string> ras_lines(const RasEvidence&);

// Reads a file of `ncclras -f json -v`: the processes of its largest communicator, by their ranks
// there; the first one holds the answer. Empty: not such a file.
std::vector<std::unique_ptr<RankEvidence>> load_ras(std::span<const unsigned char> json);

}  // namespace frtrace
