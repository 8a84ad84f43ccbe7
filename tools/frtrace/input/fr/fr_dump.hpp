// fr_dump.hpp - a region as the evidence that a dump of it would be. Dumps: load_fr() in files.hpp.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "format/view.hpp"
#include "input/msgpack_tree.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

// Packs the region as libfr packs a dump, and reads that. On failure nullptr, and `why` says in a
// few words what is wrong. `written` is the time of the call.
std::unique_ptr<RankEvidence> read_region(const fr::View& view, std::string& why);

// A zstd frame around one msgpack map, whole: `use` gets that. Else, and where `use` throws, `why` says
// what is wrong.
void read_unpacked(std::span<const unsigned char> bytes,
                   const std::function<void(const Object& root)>& use, std::string& why);

}  // namespace frtrace
