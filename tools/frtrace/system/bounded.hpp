// bounded.hpp - access to files by path, in a child process: if the file server is gone, open() and
// stat() never return, and not even SIGKILL ends the caller. A hang must not hang its diagnosis.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace frtrace {

using Say = std::function<void(std::string_view)>;
inline constexpr std::chrono::milliseconds kPatience{3000};

// Runs `work` in a child process; `heard` gets its messages in order. False: a time limit, between
// messages or in total, ran out; the child is then left to the kernel.
bool in_child(const std::function<void(const Say&)>& work, const Say& heard,
              std::chrono::milliseconds patience = kPatience,
              std::chrono::milliseconds longest = std::chrono::hours(24));

struct Output {
  std::string text;    // of stdout and stderr
  bool ended = false;  // false: abandoned
  int status = 127;    // exit status; 127: could not be started
};
// Runs a program, found in PATH, without standard input.
Output output_of(const std::vector<std::string>& argv, std::chrono::milliseconds longest);

// A path that did not answer stands for its whole file system, which is not tried again.
void give_up_on(std::string_view path);
bool given_up_on(std::string_view path);

}  // namespace frtrace
