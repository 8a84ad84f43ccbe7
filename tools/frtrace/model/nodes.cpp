#include "model/nodes.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace frtrace {

namespace {

using Json = nlohmann::ordered_json;
constexpr char kNodesSchema[] = "frtrace.nodes/1";

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

std::string node_text(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

template <class T>
T node_number(const Json& object, const char* key, T otherwise) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<T>() : otherwise;
}

NodeRow row_of(const Json& object) {
  NodeRow row;
  row.node = node_text(object, "node");
  const auto answered = object.find("answered");
  row.answered = answered != object.end() && answered->is_boolean() && answered->get<bool>();
  row.exit = node_number(object, "exit", -1);
  row.seconds = node_number(object, "seconds", 0.0);
  const auto ranks = object.find("ranks");
  for (const Json& rank : ranks != object.end() && ranks->is_array() ? *ranks : Json::array()) {
    if (rank.is_number_integer()) {
      row.ranks.push_back(rank.get<int>());
    }
  }
  row.host = node_text(object, "host");
  row.boot_id = node_text(object, "boot_id");
  row.said = node_text(object, "said");
  row.why = node_text(object, "why");
  return row;
}

}  // namespace

std::string nodes_json(const NodesFile& file) {
  Json nodes = Json::array();
  for (const NodeRow& row : file.nodes) {
    nodes.push_back({{"node", row.node},
                     {"answered", row.answered},
                     {"exit", row.exit < 0 ? Json() : Json(row.exit)},
                     {"seconds", row.seconds},
                     {"ranks", row.ranks},
                     {"host", text_or_null(row.host)},
                     {"boot_id", text_or_null(row.boot_id)},
                     {"said", text_or_null(row.said)},
                     {"why", text_or_null(row.why)}});
  }
  const auto answered = std::count_if(file.nodes.begin(), file.nodes.end(),
                                      [](const NodeRow& row) { return row.answered; });
  const Json all{{"schema", kNodesSchema},     {"job", file.job},      {"launcher", file.launcher},
                 {"asked", file.nodes.size()}, {"answered", answered}, {"nodes", std::move(nodes)}};
  return all.dump(1, ' ', true, Json::error_handler_t::replace) + "\n";
}

bool parse_nodes(const std::string& text, NodesFile& file) {
  const Json all = Json::parse(text, nullptr, false);
  if (!all.is_object() || node_text(all, "schema") != kNodesSchema) {
    return false;
  }
  file.job = node_text(all, "job");
  file.launcher = node_text(all, "launcher");
  const auto nodes = all.find("nodes");
  for (const Json& object : nodes != all.end() && nodes->is_array() ? *nodes : Json::array()) {
    if (object.is_object()) {
      file.nodes.push_back(row_of(object));
    }
  }
  return true;
}

}  // namespace frtrace
