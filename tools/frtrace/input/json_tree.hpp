// json_tree.hpp - JSON as a tree of pickle's values, so that one reader serves both.
#pragma once

#include <span>
#include <string>

#include "input/pickle.hpp"

namespace frtrace {

// Like pickle::parse: false, and `why` says in a few words, when the input is damaged or ends too
// early. Of one that ends too early, `cut`, `root` is what is whole before: the root's keys, and of
// a list at the end its items.
bool parse_json(std::span<const unsigned char> bytes, pickle::Arena& arena, pickle::Value& root,
                std::string& why, bool& cut);

}  // namespace frtrace
