// dumps.hpp - dumps of PyTorch's recorder, written entry by entry and read back. Differences
// between the layouts:
//   2023     a bare list; pg_id, seq_id (sends and collectives counted together), time_created_us
//   1.x      a dict with entries, version, pg_config; record_id
//   2.0-2.2  seq_id split in collective_seq_id and p2p_seq_id; is_p2p, dtypes
//   2.3-2.9  pg_status; from 2.7 each operation of a coalesced batch beside the batch itself
//   2.10     thread_id, thread_name; written for every backend
//   2.11     split sizes of all_to_all
// JSON: the same keys without frames, absent times are 0, numbers of pg_status are strings.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "builder.hpp"
#include "catch.hpp"
#include "input/files.hpp"
#include "input/torch/dump.hpp"
#include "model/case.hpp"
#include "report/pickle_writer.hpp"
#include "report/render.hpp"
#include "report/to_torch.hpp"
#include "words/diagnose.hpp"

namespace frtest {

using json = nlohmann::ordered_json;

inline constexpr Time kBase = 1'700'000'000'000'000'000;

inline void write(PickleWriter& p, const json& v, bool tuple = false) {
  switch (v.type()) {
    case json::value_t::null:
      p.none();
      return;
    case json::value_t::boolean:
      p.boolean(v.get<bool>());
      return;
    case json::value_t::string:
      p.text(v.get_ref<const std::string&>());
      return;
    case json::value_t::object:
      p.open_dict();
      for (const auto& [key, item] : v.items()) {
        p.text(key);
        write(p, item, key == "process_group");
      }
      p.close_dict();
      return;
    case json::value_t::array:
      if (tuple && v.size() == 2) {
        write(p, v[0]);
        write(p, v[1]);
        p.pair();
        return;
      }
      p.open_list();
      for (const json& item : v) {
        write(p, item);
      }
      p.close_list();
      return;
    default:
      p.number(v.get<std::int64_t>());
  }
}

inline std::vector<unsigned char> pickle_of(const json& v) {
  PickleWriter p;
  write(p, v);
  const std::string text = p.finish();
  return {text.begin(), text.end()};
}

inline std::unique_ptr<RankEvidence> load(const json& v, std::string* why = nullptr) {
  std::string reason;
  auto e = load_torch_pickle(pickle_of(v), reason);
  if (why != nullptr) {
    *why = reason;
  } else {
    INFO(reason);
    REQUIRE(e != nullptr);
  }
  return e;
}

inline std::unique_ptr<RankEvidence> load_json(const json& v) {
  std::string why;
  const std::string text = v.dump();
  auto e = load_torch_json(frtest::bytes_of(text), why);
  INFO(why);
  REQUIRE(e != nullptr);
  return e;
}

// One operation of 2.10 on NCCL. `state`: completed, started or scheduled.
inline json entry(int id, int seq, const char* state = "completed",
                  const char* op = "nccl:all_reduce", const char* group = "0",
                  const char* desc = "default_pg") {
  const Time at = kBase + Time{id} * 1'000'000;
  const bool done = std::string(state) == "completed", started = done || state[2] == 'a';
  return {{"frames",
           {{{"name", "all_reduce"}, {"filename", "/x/torch/distributed/c10d.py"}, {"line", 3}},
            {{"name", "step"}, {"filename", "/home/u/train.py"}, {"line", 10 + id % 3}}}},
          {"record_id", id},
          {"pg_id", std::atoi(group)},
          {"process_group", {group, desc}},
          {"thread_name", "pt"},
          {"thread_id", "139677688753024"},
          {"collective_seq_id", seq},
          {"p2p_seq_id", 0},
          {"op_id", seq},
          {"profiling_name", op},
          {"time_created_ns", at},
          {"input_sizes", {{8, 4}}},
          {"input_dtypes", {"Float"}},
          {"output_sizes", {{8, 4}}},
          {"output_dtypes", {"Float"}},
          {"state", state},
          {"time_discovered_started_ns", started ? json(at + 1000) : json()},
          {"time_discovered_completed_ns", done ? json(at + 5000) : json()},
          {"retired", done},
          {"timeout_ms", 600000},
          {"is_p2p", false}};
}

inline json p2p(int id, int seq, const char* name, const char* state = "completed",
                const char* group = "0") {
  json e = entry(id, 0, state, name, group, "pp");
  e["p2p_seq_id"] = seq;
  e["is_p2p"] = true;
  return e;
}

inline json dump(json entries, const char* ranks = "[0, 1, 2, 3]") {
  return {{"version", "2.10"},
          {"pg_config", {{"0", {{"name", "0"}, {"desc", "default_pg"}, {"ranks", ranks}}}}},
          {"comm_lib_version", "2.27.3"},
          {"entries", std::move(entries)}};
}

inline void status(json& d, const char* pg_id, int enqueued, int started, int completed) {
  d["pg_status"][pg_id] = {{"last_enqueued_collective", enqueued},
                           {"last_started_collective", started},
                           {"last_completed_collective", completed}};
}

using Evidence = std::vector<std::unique_ptr<RankEvidence>>;

// A rank's dump, written `age` seconds after its newest time.
inline void add(Evidence& all, const json& d, const std::string& file, double age = 600) {
  all.push_back(load(d));
  all.back()->file = file;
  all.back()->file_time = all.back()->newest == 0
                              ? kBase + static_cast<Time>(age * 1e9)
                              : all.back()->newest + static_cast<Time>(age * 1e9);
}

inline Report report(Evidence& all) {
  settle_torch(all);
  const std::vector<Case> cases = make_cases(all, {});
  REQUIRE(cases.size() == 1);
  return diagnose(cases.front());
}

}  // namespace frtest
