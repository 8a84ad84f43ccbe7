// spare.hpp - evidence of this machine that the directory of dumps lacks: a full disk leaves some
// ranks' dumps in the fallback directory, or only their rings.
#pragma once

#include "format/layout.hpp"
#include "input/files.hpp"
#include "recorder/options.hpp"

namespace frtrace {

// For each job that lacks ranks: adds this machine's evidence of the same run, and a note.
void add_spare_evidence(LoadResult& input, const fr::Options& options);

}  // namespace frtrace
