// dump_reader.hpp - converts the map of a dump to the model.
#pragma once

#include "input/msgpack_tree.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

// root: a map, maybe cut; absent values and values of the wrong type stay as they are in `to`.
void read_dump(const Object& root, RankEvidence& to);

}  // namespace frtrace
