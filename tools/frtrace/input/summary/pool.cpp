#include "input/summary/pool.hpp"

#include <concepts>
#include <tuple>
#include <type_traits>

#include "input/summary/fields.hpp"

namespace frtrace::reduce {

namespace {

constexpr std::uint32_t kUnset = UINT32_MAX;
constexpr std::size_t kEntryBytes = 160;  // of an entry and its index, about

bool has_own_thread_frames(const RankEvidence& e) {
  return !e.threads.modules.empty();
}

}  // namespace

// Replaces indices into a rank's own tables by those of the pool. Ranks of one file share tables:
// look-ups for one are reused for the next.
class Pool::Mover {
 public:
  explicit Mover(Pool& pool) : pool_(pool) {}

  void move(RankEvidence& e) {
    e_ = &e;
    const std::tuple own{&*e.strings, &*e.frames, &*e.stacks, &*e.shape_words, &*e.threads.frames};
    if (own != tables_) {
      tables_ = own;
      strings_.assign(e.strings.size(), kUnset);
      stacks_.assign(e.stacks.size(), kUnset);
      thread_frames_.assign(e.threads.frames.size(), kUnset);
      shapes_.clear();
    }
    fields(*this, e);
  }

  template <class... T>
  void operator()(T&... all) {
    (visit(all), ...);
  }
  void id(Id& i) { i = i < strings_.size() ? string(i) : 0; }
  void raw(std::int64_t&) {}
  void history(std::vector<Record>& all) { visit(all); }

  void stack(std::uint32_t& i) {
    if (i >= stacks_.size() || e_->stacks[i].empty()) {
      i = 0;
      return;
    }
    std::uint32_t& known = stacks_[i];
    if (known == kUnset) {
      std::vector<std::uint32_t> frames;
      for (const std::uint32_t f : e_->stacks[i]) {
        frames.push_back(f < e_->frames.size() ? frame(e_->frames[f]) : kUnset);
      }
      const auto [it, added] = pool_.stack_ids_.try_emplace(
          std::move(frames), static_cast<std::uint32_t>(pool_.stacks_.size()));
      if (added) {
        pool_.stacks_.push_back(it->first);
        pool_.bytes_ += kEntryBytes + it->first.size() * 2 * sizeof(std::uint32_t);
      }
      known = it->second;
    }
    i = known;
  }

  void shape(std::uint32_t& first, std::uint32_t& count) {
    if (count == 0 || std::uint64_t{first} + count > e_->shape_words.size()) {
      first = count = 0;
      return;
    }
    const auto [known, fresh] = shapes_.try_emplace({first, count}, 0);
    if (fresh) {
      const auto begin = e_->shape_words.begin() + first;
      std::vector<std::uint32_t>& words = pool_.shape_words_;
      const auto [it, added] = pool_.shape_begins_.try_emplace(
          {begin, begin + count}, static_cast<std::uint32_t>(words.size()));
      if (added) {
        words.insert(words.end(), it->first.begin(), it->first.end());
        pool_.bytes_ += kEntryBytes + it->first.size() * 2 * sizeof(std::uint32_t);
      }
      known->second = it->second;
    }
    first = known->second;
  }

  void thread_stack(std::vector<std::uint32_t>& stack) {
    if (has_own_thread_frames(*e_)) {
      return;
    }
    for (std::uint32_t& f : stack) {
      f = f < thread_frames_.size() ? thread_frame(f) : kUnset;
    }
  }

 private:
  template <class T>
    requires std::integral<T> || std::is_enum_v<T> || std::same_as<T, std::string>
  void visit(T&) {}
  template <class A, class B>
  void visit(std::pair<A, B>&) {}  // pairs of texts and times
  template <class T>
  void visit(std::vector<T>& all) {
    for (T& one : all) {
      visit(one);
    }
  }
  template <class T>
    requires std::is_class_v<T> && (!std::same_as<T, std::string>)
  void visit(T& all) {
    fields(*this, all);
  }

  std::uint32_t string(Id i) {
    std::uint32_t& known = strings_[i];
    if (known == kUnset) {
      const auto [it, added] = pool_.string_ids_.try_emplace(
          e_->strings[i], static_cast<std::uint32_t>(pool_.strings_.size()));
      if (added) {
        pool_.strings_.push_back(it->first);
        pool_.bytes_ += kEntryBytes + 2 * it->first.size();
      }
      known = it->second;
    }
    return known;
  }
  std::uint32_t frame(Frame f) {
    id(f.file), id(f.func);
    const auto [it, added] = pool_.frame_ids_.try_emplace(
        {f.file, f.func, f.line}, static_cast<std::uint32_t>(pool_.frames_.size()));
    if (added) {
      pool_.frames_.push_back(f);
      pool_.bytes_ += kEntryBytes;
    }
    return it->second;
  }
  std::uint32_t thread_frame(std::uint32_t i) {
    std::uint32_t& known = thread_frames_[i];
    if (known == kUnset) {
      const ThreadFrame& f = e_->threads.frames[i];
      const auto number = [&](const std::string& text) {
        return pool_.thread_texts_.try_emplace(text, pool_.thread_texts_.size()).first->second;
      };
      const auto [it, added] = pool_.thread_frame_ids_.try_emplace(
          {f.python ? 1u : 0u, number(f.function), number(f.file), f.line, f.offset},
          static_cast<std::uint32_t>(pool_.thread_frames_.size()));
      if (added) {
        pool_.thread_frames_.push_back(f);
        pool_.bytes_ += 2 * kEntryBytes + 2 * (f.function.size() + f.file.size());
      }
      known = it->second;
    }
    return known;
  }

  Pool& pool_;
  RankEvidence* e_ = nullptr;
  std::tuple<const void*, const void*, const void*, const void*, const void*> tables_{};
  std::vector<std::uint32_t> strings_, stacks_, thread_frames_;  // new indices, or kUnset
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> shapes_;  // by begin and length
};

std::size_t Pool::take(const std::vector<RankEvidence*>& all) {
  const std::lock_guard lock(mutex_);
  const std::size_t before = bytes_;
  Mover mover(*this);
  for (RankEvidence* e : all) {
    mover.move(*e);
  }
  for (RankEvidence* e : all) {
    e->strings = {};
    e->frames = {};
    e->stacks = {};
    e->shape_words = {};
    if (!has_own_thread_frames(*e)) {
      e->threads.frames = {};
    }
    taken_.push_back(e);
  }
  return bytes_ - before;
}

void Pool::hand_out() {
  strings_.shrink_to_fit();
  frames_.shrink_to_fit();
  stacks_.shrink_to_fit();
  const Shared<std::vector<std::string>> strings(std::move(strings_));
  const Shared<std::vector<Frame>> frames(std::move(frames_));
  const Shared<Stacks> stacks(std::move(stacks_));
  const Shared<std::vector<std::uint32_t>> shapes(std::move(shape_words_));
  const Shared<std::vector<ThreadFrame>> thread_frames(std::move(thread_frames_));
  for (RankEvidence* e : taken_) {
    e->strings = strings;
    e->frames = frames;
    e->stacks = stacks;
    e->shape_words = shapes;
    if (!has_own_thread_frames(*e)) {
      e->threads.frames = thread_frames;
    }
  }
}

}  // namespace frtrace::reduce
