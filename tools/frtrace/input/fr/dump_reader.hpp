// dump_reader.hpp - the map of a dump to the model.
#pragma once

#include "input/msgpack_tree.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

// root: a map, maybe cut; what it lacks, or has of another type, stays as it is in `to`.
void read_dump(const Object& root, RankEvidence& to);

}  // namespace frtrace
