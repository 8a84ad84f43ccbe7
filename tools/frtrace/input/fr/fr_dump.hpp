// fr_dump.hpp - reads a region as if it were a dump of it. Dumps: load_fr() in files.hpp.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "format/view.hpp"
#include "input/msgpack_tree.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

// Packs the region as libfr packs a dump, and reads the result. On failure returns nullptr, and
// `why` is a short reason. `written` is the time of the call.
std::unique_ptr<RankEvidence> read_region(const fr::View& view, std::string& why);

// Unpacks a complete zstd frame around one msgpack map and calls `use` with the map. On failure,
// including exceptions from `use`, `why` is the reason.
void read_unpacked(std::span<const unsigned char> bytes,
                   const std::function<void(const Object& root)>& use, std::string& why);

}  // namespace frtrace
