#include "doctor/examine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "report/lines.hpp"
#include "system/bounded.hpp"
#include "system/here.hpp"

namespace frtrace::doctor {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kScreen = 24, kColumn = 6;

Json about(Machine& m, const std::string& job) {
  const std::string named = m.line("/proc/sys/kernel/hostname");
  Json ranks = Json::array();
  for (const Process& p : m.processes()) {
    if (p.rank >= 0 && m.is_job()) {
      ranks.push_back(p.rank);
    }
  }
  return {{"host", named.empty() ? host_name() : named},
          {"boot_id", m.line("/proc/sys/kernel/random/boot_id")},
          {"job", job},
          {"ranks", std::move(ranks)},
          {"processes", m.is_job() ? m.processes().size() : 0}};
}

void hear(std::string_view said, Examination& out) {
  const Json json = Json::parse(said, nullptr, false);
  if (!json.is_object()) {
    return;
  }
  if (json.contains("host")) {
    out.host = json["host"];
    out.boot_id = json["boot_id"];
    out.job = json["job"];
    out.ranks = json["ranks"].get<std::vector<int>>();
    out.processes = json["processes"];
    return;
  }
  Result r;
  r.check = &all_checks()[json["check"].get<std::size_t>()];
  r.finding = {static_cast<State>(json["state"].get<int>()), json["value"], json["why"],
               json["remedy"]};
  r.values = json["values"].get<std::map<std::string, std::string>>();
  out.results.push_back(std::move(r));
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace

const char* state_name(State s) {
  constexpr const char* kNames[] = {"ok", "ok", "unknown", "warn", "bad"};
  return kNames[static_cast<std::size_t>(s)];
}

Examination examine(const Where& where, const std::function<bool(const Check&)>& chosen,
                    Patience patience) {
  Examination out;
  std::vector<std::size_t> todo;
  for (std::size_t i = 0; i < all_checks().size(); ++i) {
    if (chosen(all_checks()[i])) {
      todo.push_back(i);
    }
  }
  const auto until = std::chrono::steady_clock::now() + patience.all;
  while (out.results.size() < todo.size()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      break;
    }
    const std::size_t before = out.results.size();
    in_child(
        [&](const Say& say) {
          Machine m(where);
          say(text_of(about(m, where.job)));
          for (std::size_t i = before; i < todo.size(); ++i) {
            const Finding f = all_checks()[todo[i]].look(m);
            say(text_of({{"check", todo[i]},
                         {"state", static_cast<int>(f.state)},
                         {"value", f.value},
                         {"why", f.why},
                         {"remedy", f.remedy},
                         {"values", m.take_values()}}));
          }
        },
        [&](std::string_view said) { hear(said, out); }, patience.each, left);
    if (out.results.size() < todo.size()) {  // that one hangs, or has ended the child
      out.results.push_back(
          {&all_checks()[todo[out.results.size()]], unknown("it did not come to an end"), {}});
    }
  }
  return out;
}

std::vector<Item> items_of(const Examination& e) {
  std::vector<Item> out;
  for (const Result& r : e.results) {
    const Finding& f = r.finding;
    out.push_back({f.state, r.check->name, f.value, f.why.empty() ? r.check->why : f.why,
                   f.remedy.empty() ? r.check->remedy : f.remedy, r.check->matters});
  }
  return out;
}

int status_of(const std::vector<Item>& items) {
  int status = 0;
  for (const Item& i : items) {
    if (i.state == State::kBad) {
      return 1;
    }
    status = i.state == State::kUnknown && i.matters ? 4 : status;
  }
  return status;
}

namespace {

std::string label(State s, bool colour) {
  const char* name = s == State::kBad ? "BAD" : s == State::kWarn ? "WARN" : "";
  const char* start = s == State::kBad ? "\033[31;1m" : "\033[33;1m";
  const std::string padded = fmt::format("{:{}}", name, kColumn);
  return colour && *name != '\0' ? start + padded + "\033[0m" : padded;
}

// "unknown: a, b, c" in few lines.
std::vector<std::string> unknown_lines(const std::vector<Item>& items, const Style& style) {
  std::string text;
  for (const Item& i : items) {
    if (i.state == State::kUnknown) {
      text += fmt::format("{}{} (needs {})", text.empty() ? "unknown: " : "; ", i.name, i.value);
    }
  }
  return text.empty() ? std::vector<std::string>()
                      : wrapped(printable(text), style.width, style.full ? 1000 : 3);
}

std::string fine_line(const std::vector<Item>& items, bool full) {
  const auto count = [&](State s) {
    return std::count_if(items.begin(), items.end(), [&](const Item& i) { return i.state == s; });
  };
  const auto fine = count(State::kOk), away = count(State::kNotHere);
  return fmt::format("{} check{} fine, {} of things that are not here{}\n", fine,
                     fine == 1 ? "" : "s", away, full ? "" : "; -v lists them");
}

}  // namespace

std::string render_items(const std::string& title, std::vector<Item> items, const Style& style) {
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.state > b.state; });
  std::string out = shortened(printable(title), style.width) + "\n";
  const std::vector<std::string> unknowns = unknown_lines(items, style);
  const auto told = static_cast<std::size_t>(std::count_if(
      items.begin(), items.end(), [](const Item& i) { return i.state >= State::kWarn; }));
  const std::size_t room = kScreen - 2 - unknowns.size();
  const std::size_t shown = style.full || told <= room ? told : room - 1;
  std::size_t spare = style.full ? 10'000 : room - shown - (shown < told ? 1 : 0);
  const std::size_t width = style.width - kColumn;
  for (std::size_t k = 0; k < shown; ++k) {
    const Item& i = items[k];
    const std::string head = printable(i.name + ": " + i.value);
    out += label(i.state, style.colour) + (style.full ? head : shortened(head, width)) + "\n";
    const std::size_t most = std::min<std::size_t>(spare, style.full ? 10 : 2);
    for (const std::string& line :
         most == 0 ? std::vector<std::string>()
                   : wrapped(printable(i.why + ". Remedy: " + i.remedy), width, most)) {
      out += std::string(kColumn, ' ') + line + "\n";
      --spare;
    }
  }
  if (shown < told) {
    out += fmt::format("{:{}}and {} more: -v\n", "", kColumn, told - shown);
  }
  for (const std::string& line : unknowns) {
    out += line + "\n";
  }
  for (const Item& i : items) {
    if (style.full && i.state <= State::kOk) {
      out += printable(fmt::format("{:{}}{}: {}", i.state == State::kOk ? "ok" : "-", kColumn,
                                   i.name, i.value)) +
             "\n";
    }
  }
  return out + fine_line(items, style.full);
}

std::string examination_json(const Examination& e) {
  Json checks = Json::array(), counts = {{"bad", 0}, {"warn", 0}, {"unknown", 0}, {"ok", 0}};
  for (const Result& r : e.results) {
    const bool fine = r.finding.state <= State::kOk;
    const char* state = state_name(r.finding.state);
    counts[state] = counts[state].get<int>() + 1;
    const std::string why = r.finding.why.empty() ? r.check->why : r.finding.why;
    const std::string remedy = r.finding.remedy.empty() ? r.check->remedy : r.finding.remedy;
    checks.push_back({{"id", r.check->id},
                      {"name", r.check->name},
                      {"state", state},
                      {"here", r.finding.state != State::kNotHere},
                      {"matters", r.check->matters},
                      {"value", r.finding.value},
                      {"why", fine ? Json() : Json(why)},
                      {"remedy", fine ? Json() : Json(remedy)},
                      {"values", r.values}});
  }
  const Json out = {{"schema", "frtrace.doctor/1"},
                    {"node", e.host},
                    {"boot_id", e.boot_id},
                    {"job", e.job},
                    {"ranks", e.ranks},
                    {"status", status_of(items_of(e))},
                    {"counts", std::move(counts)},
                    {"checks", std::move(checks)}};
  return out.dump(1, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace frtrace::doctor
