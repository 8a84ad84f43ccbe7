// compare.cpp - values that should be the same on several nodes and are not.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "doctor/examine.hpp"

namespace frtrace::doctor {

namespace {

using Json = nlohmann::json;
using Nodes = std::vector<std::string>;

std::string text_in(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

std::string nodes_text(const Nodes& nodes) {
  constexpr std::size_t kShown = 4;
  const Nodes first(nodes.begin(),
                    nodes.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, nodes.size())));
  return fmt::format(
      "{}{}", fmt::join(first, ", "),
      nodes.size() > kShown ? fmt::format(" and {} more", nodes.size() - kShown) : "");
}

struct Seen {
  // by name of a value and value
  std::map<std::string, std::map<std::string, Nodes>> values;
  // by state and what was found
  std::map<std::pair<State, std::string>, Nodes> findings;
};

State state_of(const std::string& name) {
  return name == "bad"       ? State::kBad
         : name == "warn"    ? State::kWarn
         : name == "unknown" ? State::kUnknown
                             : State::kOk;
}

void take(const Json& check, const std::string& node, Seen& seen) {
  const State state = state_of(text_in(check, "state"));
  if (state != State::kOk) {
    seen.findings[{state, text_in(check, "value")}].push_back(node);
  }
  const Json values = check.value("values", Json::object());
  for (const auto& [name, value] : values.items()) {
    if (value.is_string()) {
      seen.values[name][value.get<std::string>()].push_back(node);
    }
  }
}

// The values of a name and their nodes, the most frequent value first.
std::string difference(const std::string& name, const std::map<std::string, Nodes>& of,
                       std::size_t n) {
  std::vector<std::pair<std::string, Nodes>> order(of.begin(), of.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  std::string out = name + ": ";
  std::size_t told = 0;
  for (const auto& [value, nodes] : order) {
    out += fmt::format("{}{} on {}", told == 0 ? "" : "; ", value, nodes_text(nodes));
    told += nodes.size();
  }
  return out + (told < n ? fmt::format("; nothing on {}", n - told) : "");
}

}  // namespace

Comparison compare(const std::vector<std::string>& files) {
  Comparison out;
  std::map<std::string, Seen> seen;
  for (const std::string& path : files) {
    std::ifstream file(path);
    const Json json = Json::parse(file, nullptr, false);
    if (!json.is_object() || text_in(json, "schema") != "frtrace.doctor/1" ||
        !json.contains("checks") || !json["checks"].is_array()) {
      out.wrong = path;
      return out;
    }
    std::string node = text_in(json, "node");
    if (std::find(out.nodes.begin(), out.nodes.end(), node) != out.nodes.end()) {
      node = path;  // two containers of one machine
    }
    out.nodes.push_back(node);
    for (const Json& check : json["checks"]) {
      if (check.is_object()) {
        take(check, node, seen[text_in(check, "id")]);
      }
    }
  }
  Json list = Json::array();
  for (const Check& c : all_checks()) {
    const Seen& s = seen[c.id];
    for (const auto& [what, nodes] : s.findings) {
      out.items.push_back({what.first, fmt::format("{} ({})", c.name, nodes_text(nodes)),
                           what.second, c.why, c.remedy, c.matters});
      list.push_back({{"id", c.id},
                      {"state", state_name(what.first)},
                      {"value", what.second},
                      {"nodes", nodes}});
    }
    bool differs = false;
    for (const auto& [name, of] : s.values) {
      std::size_t told = 0;
      for (const auto& [value, nodes] : of) {
        told += nodes.size();
      }
      if (c.differs != State::kOk && (of.size() > 1 || told < out.nodes.size())) {
        differs = true;
        const std::string text = difference(name, of, out.nodes.size());
        out.items.push_back(
            {c.differs, std::string(c.name) + " differs", text, c.why, c.remedy, c.matters});
        list.push_back({{"id", c.id},
                        {"state", state_name(c.differs)},
                        {"differs", name},
                        {"value", text},
                        {"values", of}});
      }
    }
    if (s.findings.empty() && !differs) {
      out.items.push_back({State::kOk, c.name, "", "", "", c.matters});
    }
  }
  const Json json = {{"schema", "frtrace.doctor/1"},
                     {"nodes", out.nodes},
                     {"status", status_of(out.items)},
                     {"checks", std::move(list)}};
  out.json = json.dump(1, ' ', true, Json::error_handler_t::replace) + "\n";
  return out;
}

}  // namespace frtrace::doctor
