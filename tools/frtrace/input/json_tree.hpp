// json_tree.hpp - JSON as a tree of pickle values, so that one reader serves both.
#pragma once

#include <span>
#include <string>

#include "input/pickle.hpp"

namespace frtrace {

// Like pickle::parse: false, with a short reason in `why`, if the input is damaged or ends too
// early. If it ends too early, sets `cut`, and `root` has the complete part: the root's keys, and
// of a list at the end its complete items.
bool parse_json(std::span<const unsigned char> bytes, pickle::Arena& arena, pickle::Value& root,
                std::string& why, bool& cut);

}  // namespace frtrace
