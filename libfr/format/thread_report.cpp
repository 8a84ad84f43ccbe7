// thread_report.cpp - the words that dumps have for what a thread does.
#include "format/thread_report.hpp"

namespace fr {

const char* activity(const Task& t) noexcept {
  switch (t.state) {
    case 'T':
    case 't':
      return "stopped";
    case 'X':
    case 'Z':
      return "gone";
    case 'D':
      return "uninterruptible";
    default:
      break;
  }
  if (t.looked_ns != 0 && (t.cpu_ns + t.runqueue_ns) * 2 > t.looked_ns) {
    return t.cpu_ns >= t.runqueue_ns / 8 ? "running" : "runnable";
  }
  if (t.voluntary_switches > 0) {
    return "polling";  // also when the look met it awake
  }
  return t.state == 'R' ? "runnable" : "asleep";
}

const char* answer_name(Answer a) noexcept {
  static constexpr const char* kNames[] = {"not asked", "own",        "answered",
                                           "blocked",   "unanswered", "gone"};
  return kNames[static_cast<u32>(a)];
}

}  // namespace fr
