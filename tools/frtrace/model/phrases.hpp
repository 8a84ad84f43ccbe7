// phrases.hpp - parts of sentences: singular or plural, words that depend on known values.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// A list of one member of each element, or of the results of a function.
template <typename List, typename Of>
auto each(const List& list, Of of) {
  std::vector<std::decay_t<decltype(std::invoke(of, *list.begin()))>> out;
  for (const auto& x : list) {
    out.push_back(std::invoke(of, x));
  }
  return out;
}
inline std::string given(bool is, std::string text) {
  return is ? std::move(text) : std::string();
}
// `by` before a text; "" stays "".
inline std::string led(const char* by, const std::string& text) {
  return text.empty() ? text : by + text;
}
inline const char* one_or(std::size_t n, const char* one, const char* many) {
  return n == 1 ? one : many;
}
// "never", "once", "3 times"
inline std::string times(std::uint64_t n) {
  return n == 0 ? "never" : n == 1 ? "once" : fmt::format("{} times", n);
}
// "1 record", "3 records"
inline std::string counted(std::uint64_t n, const char* noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}
// "rank 1 waits", "ranks 1,2 wait"
inline std::string ranks_do(const std::vector<Rank>& who, const char* one, const char* many) {
  return ranks_words(who) + ' ' + one_or(who.size(), one, many);
}
inline std::string wait_verb(const std::vector<Rank>& who) {
  return ranks_do(who, "waits", "wait");
}

}  // namespace frtrace
