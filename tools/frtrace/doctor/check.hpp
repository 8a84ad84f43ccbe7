// check.hpp - a check for one cause of hangs, crashes or slow jobs, and its finding on this
// machine.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "doctor/machine.hpp"

namespace frtrace::doctor {

enum class State : std::uint8_t { kNotHere, kOk, kUnknown, kWarn, kBad };

struct Finding {
  State state = State::kOk;
  std::string value;        // the observation; for kUnknown: the missing precondition
  std::string why, remedy;  // "": those of the check
};

inline Finding ok(std::string value) {
  return {State::kOk, std::move(value), "", ""};
}
inline Finding not_here(std::string value) {
  return {State::kNotHere, std::move(value), "", ""};
}
inline Finding unknown(std::string needs) {
  return {State::kUnknown, std::move(needs), "", ""};
}
inline Finding warn(std::string value, std::string why = "", std::string remedy = "") {
  return {State::kWarn, std::move(value), std::move(why), std::move(remedy)};
}
inline Finding bad(std::string value, std::string why = "", std::string remedy = "") {
  return {State::kBad, std::move(value), std::move(why), std::move(remedy)};
}

// Kinds of trouble that a check may explain.
enum Bears : unsigned {
  kNothingElse = 0,
  kMeeting = 1,  // ranks do not find or reach each other
  kKill = 2,     // the kernel or a container ends processes
  kDevices = 4,
  kFiles = 8,  // a file system does not answer or has no room
  kRings = 16  // evidence is lost
};

struct Check {
  const char* id;
  const char* name;
  Finding (*look)(Machine&);
  bool matters;   // if unknown, the doctor does not report a healthy machine
  State differs;  // state for a difference between nodes; kOk: not compared
  unsigned bears;
  const char* why;
  const char* remedy;
};

std::span<const Check> all_checks();

struct Result {
  const Check* check = nullptr;
  Finding finding;
  std::map<std::string, std::string> values;  // that should be the same on all nodes
};

}  // namespace frtrace::doctor
