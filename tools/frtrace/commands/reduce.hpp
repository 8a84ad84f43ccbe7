// reduce.hpp - `frtrace reduce`: the summary of a node's rings and dumps, or of summaries.
#pragma once

namespace frtrace {

int reduce_command(int argc, char** argv);

}  // namespace frtrace
