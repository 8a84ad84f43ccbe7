// examine.hpp - runs checks and reports their findings as text and JSON; compares nodes.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "doctor/check.hpp"

namespace frtrace::doctor {

struct Examination {
  std::string host, boot_id, job;
  std::vector<int> ranks;       // of the job, here
  std::size_t processes = 0;    // that are the job's; 0 without a job
  std::vector<Result> results;  // in the order of the table
};

struct Patience {
  std::chrono::milliseconds each, all;
};

// Runs the checks in a child process: a check that hangs is unknown, and the next one runs.
Examination examine(const Where&, const std::function<bool(const Check&)>& chosen, Patience);

// One shown line: a finding, or a difference between nodes.
struct Item {
  State state = State::kOk;
  std::string name, value, why, remedy;
  bool matters = false;
};

std::vector<Item> items_of(const Examination&);
struct Style {
  bool full = false, colour = false;
  std::size_t width = 120;
};
// At most 24 lines unless full.
std::string render_items(const std::string& title, std::vector<Item>, const Style&);
std::string examination_json(const Examination&);
int status_of(const std::vector<Item>&);

// Reads files of examination_json() from several nodes: their differences, and the nodes' faults.
struct Comparison {
  std::vector<std::string> nodes;
  std::vector<Item> items;
  std::string json;
  std::string wrong;  // a file that could not be read
};
Comparison compare(const std::vector<std::string>& files);

const char* state_name(State);

}  // namespace frtrace::doctor
