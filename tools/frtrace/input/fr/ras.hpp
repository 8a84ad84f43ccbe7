// ras.hpp - what NCCL's RAS service said, in lines: a witness beside fr's own evidence, no verdict.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// What it found wrong, one sentence each: operation counts that differ, ranks that are missing or
// dead, states and errors. Empty where all agree, where there is no answer, or where it is garbage.
std::vector<std::string> ras_lines(const RasEvidence&);

// A file of `ncclras -f json -v`: the processes of its largest communicator, by their ranks there; the
// first has the answer. Empty: it is none.
std::vector<std::unique_ptr<RankEvidence>> load_ras(std::span<const unsigned char> json);

}  // namespace frtrace
