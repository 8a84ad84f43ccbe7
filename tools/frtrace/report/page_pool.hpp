// page_pool.hpp - the strings of a page, each stored once.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/rank_data.hpp"
#include "report/lines.hpp"

namespace frtrace {

class PagePool {
 public:
  using Json = nlohmann::json;

  PagePool() { text(""); }
  std::size_t text(std::string_view s) {
    const auto [at, fresh] = known_.try_emplace(std::string(s), strings_.size());
    if (fresh) {
      strings_.push_back(printable(s));
    }
    return at->second;
  }
  std::size_t ranks(const std::vector<Rank>& r) { return text(fold_ranks(r)); }
  Json take() { return std::move(strings_); }

 private:
  std::unordered_map<std::string, std::size_t> known_;
  Json strings_ = Json::array();
};

// Parts of a page's data.
struct Facts;
struct Report;
nlohmann::json page_waits(const Facts&, const Report&, PagePool&);  // graph and timeline

}  // namespace frtrace
