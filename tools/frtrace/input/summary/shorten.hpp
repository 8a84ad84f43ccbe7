// shorten.hpp - what of a rank's evidence goes into a summary.
#pragma once

#include "model/rank_data.hpp"

namespace frtrace::reduce {

void shorten(RankEvidence& e);

}  // namespace frtrace::reduce
