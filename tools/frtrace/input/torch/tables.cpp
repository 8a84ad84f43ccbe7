// tables.cpp - strings, frames, stacks and shapes of one PyTorch dump, each stored once.
#include "input/torch/tables.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <ranges>
#include <span>

#include "input/memory.hpp"
#include "input/torch/entry.hpp"

namespace frtrace::torch_dump {

using pickle::items;
using pickle::pairs;
using pickle::Type;
using pickle::Value;

namespace {

constexpr std::size_t kMaxFrames = 512;  // of one stack

std::uint64_t hash(const std::vector<std::uint32_t>& words) {
  std::uint64_t h = 0x9e3779b97f4a7c15ull + words.size();
  for (const std::uint32_t w : words) {
    h = (h ^ w) * 0xff51afd7ed558ccdull;
    h ^= h >> 32;
  }
  return h;
}

}  // namespace

bool Tables::step(std::size_t n) {
  if (steps_ < n) {
    steps_ = 0;
    return false;
  }
  steps_ -= n;
  // A step keeps at most four bytes.
  constexpr std::size_t kBatch = std::size_t{1} << 20;
  for (spent_ += n; spent_ >= kBatch; spent_ -= kBatch) {
    FileMemory::take(4 * kBatch);
  }
  return true;
}

// Strings shared through the memo share memory: the address finds most of them.
Id Tables::intern(const Value& v) {
  if (v.type != Type::kString || v.size == 0) {
    return 0;
  }
  Seen& seen = seen_[(reinterpret_cast<std::uintptr_t>(v.s) >> 1) % seen_.size()];
  if (seen.s != v.s || seen.size != v.size) {
    seen = {v.s, v.size, intern(v.text())};
  }
  return seen.id;
}

std::uint32_t Tables::stack_of(const Value& frames) {
  const auto list = items(frames);
  if (list.empty()) {
    return 0;
  }
  if (frames.node->tag != 0) {
    return frames.node->tag;
  }
  const std::size_t depth = std::min(list.size(), kMaxFrames);
  if (!step(depth)) {
    return 0;
  }
  scratch_.clear();
  for (std::size_t i = 0; i < depth; ++i) {
    if (list[i].type == Type::kDict) {
      scratch_.push_back(frame_of(list[i]));
    }
  }
  const std::uint64_t h = hash(scratch_);
  const auto [first, last] = stacks_.equal_range(h);
  for (auto it = first; it != last; ++it) {
    if (std::ranges::equal(e_.stacks[it->second], scratch_)) {
      return frames.node->tag = it->second;
    }
  }
  const auto id = static_cast<std::uint32_t>(e_.stacks.size());
  e_.stacks.push_back(scratch_);
  stacks_.emplace(h, id);
  return frames.node->tag = id;
}

std::uint32_t Tables::frame_of(const Value& dict) {
  if (dict.node->tag != 0) {
    return dict.node->tag - 1;
  }
  Frame f;
  const auto all = pairs(dict);
  for (std::size_t i = 0; i + 1 < all.size() && step(); i += 2) {
    const std::string_view key = all[i].text();
    if (key == "name") {
      f.func = intern(all[i + 1]);
    } else if (key == "filename") {
      f.file = intern(all[i + 1]);
    } else if (key == "line") {
      f.line =
          static_cast<std::uint32_t>(std::clamp<std::int64_t>(number(all[i + 1]), 0, UINT32_MAX));
    }
  }
  const auto key = std::tuple(f.file, f.func, f.line);
  const auto [it, added] = frames_.try_emplace(key, static_cast<std::uint32_t>(e_.frames.size()));
  if (added) {
    e_.frames.push_back(f);
  }
  dict.node->tag = it->second + 1;
  return it->second;
}

void Tables::keep_shape(const std::vector<std::uint32_t>& words, Record& r) {
  const std::uint64_t h = hash(words);
  const auto [first, last] = shapes_.equal_range(h);
  for (auto it = first; it != last; ++it) {
    const auto [at, n] = it->second;
    if (n == words.size() &&
        std::memcmp(e_.shape_words->data() + at, words.data(), n * sizeof words[0]) == 0) {
      r.shape_first = at;
      r.shape_count = n;
      return;
    }
  }
  r.shape_first = static_cast<std::uint32_t>(e_.shape_words.size());
  r.shape_count = static_cast<std::uint32_t>(words.size());
  e_.shape_words.edit().insert(e_.shape_words.end(), words.begin(), words.end());
  shapes_.emplace(h, std::pair(r.shape_first, r.shape_count));
}

std::vector<Rank> members_of(const Value& v, Tables& tables) {
  std::vector<Rank> out;
  const auto add = [&](std::int64_t r) {
    constexpr std::int64_t kMaxRank = 1 << 24;
    if (r >= 0 && r < kMaxRank && tables.step()) {
      out.push_back(static_cast<Rank>(r));
    }
  };
  if (v.type == Type::kString) {
    const std::string_view text = v.whole_text();
    const char* p = text.data();
    const char* const end = p + (tables.step(text.size()) ? text.size() : 0);
    while (p < end) {
      std::int64_t r = 0;
      if (*p < '0' || *p > '9') {
        ++p;
      } else if (const auto parsed = std::from_chars(p, end, r); parsed.ec == std::errc()) {
        add(r);
        p = parsed.ptr;
      } else {
        p = parsed.ptr;
      }
    }
  } else {
    for (const Value& item : items(v)) {
      if (const auto r = to_int(item)) {
        add(*r);
      }
    }
  }
  // In group order, which is the order of the ranks as far as known; a duplicate is damage.
  std::vector<Rank> sorted = out;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return {};
  }
  return out;
}

}  // namespace frtrace::torch_dump
