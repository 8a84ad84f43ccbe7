// shorten.hpp - reduces a rank's evidence to the part that goes into a summary.
#pragma once

#include "model/rank_data.hpp"

namespace frtrace::reduce {

void shorten(RankEvidence& e);

}  // namespace frtrace::reduce
