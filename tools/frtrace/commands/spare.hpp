// spare.hpp - evidence of this machine that the directory of dumps lacks: a full disk leaves some
// ranks' dumps in the fallback directory, or only their rings.
#pragma once

#include "format/layout.hpp"
#include "input/files.hpp"
#include "recorder/options.hpp"

namespace frtrace {

// For each job whose ranks are not all there: adds what this machine has of the same run, and a note.
void add_spare_evidence(LoadResult& input, const fr::Options& options);

}  // namespace frtrace
