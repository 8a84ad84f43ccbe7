// text.hpp - Prometheus' text format.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/lines.hpp"

namespace frtrace {

using Labels = std::vector<std::pair<std::string, std::string>>;

inline std::string label_text(const Labels& labels) {
  std::string out;
  for (const auto& [name, value] : labels) {
    out += fmt::format("{}{}=\"", out.empty() ? "{" : ",", name);
    for (const char c : printable(value)) {
      out += c == '\\' ? "\\\\" : c == '"' ? "\\\"" : std::string(1, c);
    }
    out += '"';
  }
  return out.empty() ? out : out + "}";
}

// Families in the order in which they are first named.
class MetricsText {
 public:
  void add(std::string_view family, std::string_view type, std::string_view help,
           const Labels& labels, double value, std::string_view suffix = "") {
    auto [at, is_new] = index_.try_emplace(std::string(family), bodies_.size());
    if (is_new) {
      bodies_.push_back(fmt::format("# HELP {} {}\n# TYPE {} {}\n", family, help, family, type));
    }
    bodies_[at->second] += fmt::format("{}{}{} {}\n", family, suffix, label_text(labels), value);
    ++series_;
  }
  std::string text() const {
    std::string out;
    for (const std::string& body : bodies_) {
      out += body;
    }
    return out;
  }
  std::size_t series() const { return series_; }

 private:
  std::vector<std::string> bodies_;
  std::map<std::string, std::size_t> index_;
  std::size_t series_ = 0;
};

}  // namespace frtrace
