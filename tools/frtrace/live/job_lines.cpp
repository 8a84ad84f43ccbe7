#include "live/job_lines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

namespace frtrace {

namespace {

using Json = nlohmann::json;

double number(const Json& row, std::size_t i) {
  return row.is_array() && i < row.size() && row[i].is_number() ? row[i].get<double>() : 0;
}

template <class T>
T value(const Json& object, const char* key, T none) {
  const auto it = object.find(key);
  if constexpr (std::is_same_v<T, std::string>) {
    return it != object.end() && it->is_string() ? it->template get<T>() : none;
  } else if constexpr (std::is_same_v<T, bool>) {
    return it != object.end() && it->is_boolean() ? it->template get<T>() : none;
  } else {
    return it != object.end() && it->is_number() ? it->template get<T>() : none;
  }
}

const Json& below(const Json& object, const char* key) {
  static const Json none = Json::object();
  const auto it = object.find(key);
  return it != object.end() && it->is_object() ? *it : none;
}

}  // namespace

bool JobLines::add(const std::string& node, std::string_view text) {
  const Json line = Json::parse(text, nullptr, false);
  if (!line.is_object() || value(line, "frtrace", std::string()) != "lines/1") {
    return false;
  }
  Node& to = nodes_[node];
  const int attempt = value(line, "attempt", 0);
  if (attempt < to.attempt) {
    return true;  // what an earlier attempt has left
  }
  if (attempt > to.attempt) {
    to = {};
  }
  to.attempt = attempt;
  to.job = value(line, "job", std::string());
  for (const auto& [key, group] : below(line, "groups").items()) {
    GroupNames& g = to.groups[key];
    g.name = value(group, "name", std::string());
    const std::string desc = value(group, "desc", std::string());
    g.label = desc.empty() || desc == "undefined" ? g.name : desc;
    g.instance = value(group, "instance", 0);
    g.n_ranks = value(group, "n_ranks", 0);
  }
  for (const auto& [key, said] : below(line, "ranks").items()) {
    const int rank = std::atoi(key.c_str());
    Rank& r = to.ranks[rank];
    r.now.rank = rank;
    r.now.pid = value(said, "pid", r.now.pid);
    r.now.alive = value(said, "alive", r.now.alive);
    if (said.is_object() && said.contains("step")) {
      r.now.step = value(said, "step", std::int64_t{0});
    }
    for (const auto& [group, row] : below(said, "groups").items()) {
      r.rows[group] = {number(row, 0), number(row, 2), number(row, 5), number(row, 6),
                       std::max(number(row, 3), number(row, 4))};
      r.now.last = r.rows[group].moved != 0 ? "its last operation" : r.now.last;
    }
  }
  return true;
}

JobNow JobLines::look(Time now) {
  JobNow out;
  std::map<std::string, std::map<std::pair<std::string, int>, std::vector<Member>>> by_label;
  for (const auto& [name, node] : nodes_) {
    out.attempt = std::max(out.attempt, node.attempt);
  }
  for (auto& [name, node] : nodes_) {
    out.job = node.job;
    for (auto& [rank, r] : node.ranks) {
      if (node.attempt != out.attempt) {
        continue;
      }
      ++out.ranks;
      out.alive += r.now.alive ? 1 : 0;
      r.now.lag = 0;
      if (r.now.step && r.now.alive) {
        out.first_step = std::min(out.first_step.value_or(*r.now.step), *r.now.step);
        out.last_step = std::max(out.last_step.value_or(*r.now.step), *r.now.step);
      }
      for (const auto& [key, row] : r.rows) {
        const GroupNames& g = node.groups[key];
        out.world = std::max(out.world, g.n_ranks);
        by_label[g.label][{g.name, g.instance}].push_back({&r, &row});
      }
    }
  }
  out.expected = std::max(out.ranks, static_cast<std::size_t>(std::max(out.world, 0)));
  steps_.tell(out, now);
  for (const auto& [label, groups] : by_label) {
    GroupNow of;
    of.label = label;
    of.groups = groups.size();
    double issued = 0;
    for (const auto& [key, members] : groups) {
      tell_group(of, members, now);
      for (const Member& m : members) {
        issued += m.row->issued + m.row->p2p_issued;
      }
    }
    std::sort(of.behind.begin(), of.behind.end());
    finish_group(of, issued_, issued, now);
    out.stuck = out.stuck || is_stuck(of, stuck_);
    out.groups.push_back(std::move(of));
  }
  sort_groups(out.groups);
  for (const auto& [name, node] : nodes_) {
    for (const auto& [rank, r] : node.ranks) {
      if (node.attempt == out.attempt && (!r.now.alive || (out.stuck && r.now.lag != 0))) {
        out.behind.push_back(r.now);
      }
    }
  }
  sort_ranks(out.behind);
  return out;
}

void JobLines::tell_group(GroupNow& of, const std::vector<Member>& members, Time now) {
  double front = 0, last = members.front().row->issued, moved = 0;
  for (const Member& m : members) {
    front = std::max(front, m.row->issued);
    last = std::min(last, m.row->issued);
    moved = std::max(moved, m.row->moved);
    const bool busy = m.row->issued > m.row->completed || m.row->p2p_issued > m.row->p2p_ended;
    of.in_flight += m.rank->now.alive && busy ? 1 : 0;
  }
  const auto lag = static_cast<std::uint64_t>(front - last);
  of.ranks += members.size();
  if (lag > of.lag) {
    of.behind.clear();
    of.lag = lag;
  }
  for (const Member& m : members) {
    const auto own = static_cast<std::uint64_t>(front - m.row->issued);
    if (own == 0) {
      continue;
    }
    RankNow& r = m.rank->now;
    if (own > r.lag) {
      r.lag = own;
      r.group = of.label;
      r.last_s = std::max(0.0, static_cast<double>(now) * 1e-9 - m.row->moved);
    }
    if (own == of.lag) {
      of.behind.push_back(r.rank);
    }
  }
  if (moved != 0) {
    const double still = std::max(0.0, static_cast<double>(now) * 1e-9 - moved);
    of.still_s = std::min(of.still_s.value_or(still), still);
  }
  if (static_cast<std::uint64_t>(front) > of.front || of.at.empty()) {
    of.front = static_cast<std::uint64_t>(front);
    of.at = front == 0 ? "" : fmt::format("#{}", of.front);
  }
}

}  // namespace frtrace
