// contains.hpp - whether a list contains a value, or a text another one; the unique values of a
// list.
#pragma once

#include <algorithm>
#include <string_view>

namespace frtrace {

template <typename List, typename Value>
bool contains(const List& list, const Value& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

template <typename List>
void sort_unique(List& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

}  // namespace frtrace
