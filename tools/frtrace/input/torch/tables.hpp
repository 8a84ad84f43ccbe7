// tables.hpp - strings, frames, stacks and shapes of one PyTorch dump, each stored once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "input/fr/string_ids.hpp"
#include "input/pickle.hpp"
#include "model/rank_data.hpp"

namespace frtrace::torch_dump {

class Tables {
 public:
  // steps: work on values, which through references may far exceed the bytes of the file.
  Tables(std::size_t steps, RankEvidence& e) : steps_(steps), e_(e) {}

  bool step(std::size_t n = 1);  // false: none are left

  Id intern(const pickle::Value& v);
  Id intern(std::string_view s) { return ids_(s); }  // the text must not move
  Id intern_copy(const std::string& s) { return ids_(ids_.has(s) ? s : arena_.keep(s)); }
  std::string_view keep(const std::string& s) { return arena_.keep(s); }

  std::uint32_t stack_of(const pickle::Value& frames);
  void keep_shape(const std::vector<std::uint32_t>& words, Record& r);

 private:
  struct Seen {
    const char* s = nullptr;
    std::uint32_t size = 0;
    Id id = 0;
  };

  std::uint32_t frame_of(const pickle::Value& dict);

  std::size_t steps_, spent_ = 0;
  RankEvidence& e_;
  pickle::Arena arena_;
  std::array<Seen, 512> seen_;
  StringIds ids_{e_.strings.edit()};
  std::map<std::tuple<Id, Id, std::uint32_t>, std::uint32_t> frames_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> stacks_;
  std::unordered_multimap<std::uint64_t, std::pair<std::uint32_t, std::uint32_t>> shapes_;
  std::vector<std::uint32_t> scratch_;
};

// Members of a group in group order, from a list or from its text ("[0, 1]"). Empty if a member is
// named twice, which is damage.
std::vector<Rank> members_of(const pickle::Value&, Tables&);

}  // namespace frtrace::torch_dump
