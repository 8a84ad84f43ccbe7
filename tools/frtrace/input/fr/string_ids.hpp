// string_ids.hpp - ids of strings that are each kept once.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

class StringIds {
 public:
  explicit StringIds(std::vector<std::string>& strings) : strings_(strings) {}

  bool has(std::string_view s) const { return s.empty() || ids_.contains(s); }
  // A string that is new must stay where it is. "": 0.
  Id operator()(std::string_view s) {
    if (s.empty()) {
      return 0;
    }
    const auto [it, added] = ids_.try_emplace(s, static_cast<Id>(strings_.size()));
    if (added) {
      strings_.emplace_back(s);
    }
    return it->second;
  }

 private:
  std::vector<std::string>& strings_;
  std::unordered_map<std::string_view, Id> ids_;
};

}  // namespace frtrace
