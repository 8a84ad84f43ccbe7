// symbols.hpp - names of functions that a library does not export: the recorder reads mapped memory
// only, where they are not.
#pragma once

#include <memory>
#include <vector>

#include "evidence.hpp"

namespace frtrace {

// Names the native frames that have none, from the symbol table of their file or from a separate
// debug file, where the file is here and has the build id that was recorded. Without libdw:
// nothing.
void name_functions(const std::vector<std::unique_ptr<RankEvidence>>& evidence);

}  // namespace frtrace
