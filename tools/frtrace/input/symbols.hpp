// symbols.hpp - names of functions that a library does not export: the recorder reads mapped memory
// only, where they are not.
#pragma once

#include <memory>
#include <vector>

#include "input/files.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

// Names the native frames that have none, from the symbol table of their file or from a separate
// debug file, where the file is here and has the build id that was recorded. Files that do not
// answer are told. Without libdw: nothing.
void name_functions(const std::vector<std::unique_ptr<RankEvidence>>& evidence,
                    std::vector<Unreadable>& unreadable);

}  // namespace frtrace
