// symbols.hpp - names of functions that a library does not export: the recorder reads mapped memory
// only, which lacks them.
#pragma once

#include <memory>
#include <vector>

#include "input/files.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

// Names the native frames without a name, from the symbol table of their file or from a separate
// debug file, if the file is here and has the recorded build id. Files that do not answer are
// reported in `unreadable`. Without libdw: does nothing.
void name_functions(const std::vector<std::unique_ptr<RankEvidence>>& evidence,
                    std::vector<Unreadable>& unreadable);

}  // namespace frtrace
