// string_ids.hpp - ids of strings, each stored once.
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
  // The memory of a new string must outlive this object. "": 0.
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
