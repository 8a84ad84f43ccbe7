// contains.hpp - whether a list holds a value.
#pragma once

#include <algorithm>

namespace frtrace {

template <typename List, typename Value>
bool contains(const List& list, const Value& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace frtrace
