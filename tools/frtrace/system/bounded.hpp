// bounded.hpp - looking at files by path: on a server that is gone open() and stat() never come
// back, and not even SIGKILL ends who called them. A hung thing must not hang what explains it.
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

// Runs `work` in a child process; `heard` gets, in order, what it says. False: nothing was heard
// for so long, or all took so long, that it was given up; the child is left to the kernel.
bool in_child(const std::function<void(const Say&)>& work, const Say& heard,
              std::chrono::milliseconds patience = kPatience,
              std::chrono::milliseconds longest = std::chrono::hours(24));

struct Output {
  std::string text;    // of stdout and stderr
  bool ended = false;  // else it was given up
  int status = 127;    // of exit(); 127: it could not be started
};
// Runs a program, found in PATH, without standard input.
Output output_of(const std::vector<std::string>& argv, std::chrono::milliseconds longest);

// One path that did not answer speaks for all of its file system: they are not tried again.
void give_up_on(std::string_view path);
bool given_up_on(std::string_view path);

}  // namespace frtrace
