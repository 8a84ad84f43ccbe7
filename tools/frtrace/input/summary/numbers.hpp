// numbers.hpp - a rank's evidence as numbers, and back. Other data is in the tables of the summary,
// which hold each text, frame and list once, and a number refers to it. So the evidence of two
// ranks with equal history differs in few numbers.
//
// `sizes` has the lengths of all lists of the evidence, `words` everything else, in the order of
// fields.hpp. Ranks with equal sizes have the same data at the same position. Lists of plain
// structs are stored by columns, each number as the difference to the one above it.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "input/summary/fields.hpp"
#include "model/rank_data.hpp"

namespace frtrace::reduce {

// Data that the ranks of a summary share. The first entry of each table is empty.
struct Tables {
  std::vector<std::string> strings{""};
  std::vector<Frame> frames{{}};
  std::vector<ThreadFrame> thread_frames;
  Stacks lists{{}};  // stacks of frames, shapes, stacks of threads
  std::vector<std::uint32_t> list_words;
  std::vector<std::uint32_t> list_begins{0};
};

struct Evidence {
  std::vector<std::uint64_t> sizes, words;
};

struct Damaged : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class T>
inline constexpr bool kPlain = false;  // numbers only, without lists
template <>
inline constexpr bool kPlain<Record> = true;
template <>
inline constexpr bool kPlain<RankRange> = true;
template <>
inline constexpr bool kPlain<LaneEvidence> = true;
template <>
inline constexpr bool kPlain<CommEvidence> = true;
template <>
inline constexpr bool kPlain<DeviceSpan> = true;
template <>
inline constexpr bool kPlain<DeviceOperation> = true;
template <>
inline constexpr bool kPlain<DevicePhase> = true;
template <>
inline constexpr bool kPlain<CarriedPhase> = true;

// The last code of each kind.
constexpr Source last_of(Source) {
  return Source::kLiveRing;
}
template <class Code>
constexpr Code last_of(Code code) {
  Code last{};
  for (const fr::Word<Code>& w : fr::words_of(code)) {
    last = std::max(last, w.code);
  }
  return last;
}

// The sequence numbers of a group's operations increase by one, and an operation starts and ends
// soon after it was issued: a record stores only the difference to these expectations.
class Expected {
 public:
  void leave_out(Record&);
  void put_back(Record&);

 private:
  std::uint64_t& last(const Record& r) { return last_[{r.group, r.kind, r.peer}]; }
  std::map<std::tuple<std::uint32_t, Kind, std::int32_t>, std::uint64_t> last_;
};

// For each record, whether every reader needs it: the last ones, also of each group, those in
// flight, and calls that make or destroy groups. A summary has no times of the others.
inline constexpr std::size_t kRecent = 32;
std::vector<bool> recent(const RankEvidence&, std::size_t last = kRecent);

class TableBuilder {
 public:
  std::uint32_t string(std::string_view);  // the text must not move
  std::uint32_t frame(Frame);              // with ids of this builder's strings
  std::uint32_t thread_frame(const ThreadFrame&);
  std::uint32_t list(std::vector<std::uint32_t>);

  std::vector<std::string_view> strings{""};
  std::vector<Frame> frames{{}};
  std::vector<std::array<std::uint64_t, 5>> thread_frames;  // python, function, file, line, offset
  std::vector<const std::vector<std::uint32_t>*> lists;

 private:
  std::unordered_map<std::string_view, std::uint32_t> string_ids_{{"", 0}};
  std::map<std::array<std::uint32_t, 3>, std::uint32_t> frame_ids_{{{}, 0}};
  std::map<std::array<std::uint64_t, 5>, std::uint32_t> thread_frame_ids_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> list_ids_;
};

class Writer {
 public:
  Writer(TableBuilder& tables, RankEvidence& e);
  Evidence take() { return std::move(row_); }

  template <class... T>
  void operator()(T&... all) {
    (put(all), ...);
  }
  void id(Id i) { word(tables_.string(e_.text(i))); }
  void stack(std::uint32_t i);
  void shape(std::uint32_t first, std::uint32_t count);
  void thread_stack(const std::vector<std::uint32_t>&);
  void raw(std::int64_t v) { word(static_cast<std::uint64_t>(v)); }
  void history(std::vector<Record>&);

 private:
  void word(std::uint64_t w) { row_.words.push_back(w); }
  template <class T>
    requires std::integral<T> || std::is_enum_v<T>
  void put(T v) {
    word(static_cast<std::uint64_t>(v));
  }
  void put(std::string& s) { word(tables_.string(s)); }
  template <class A, class B>
  void put(std::pair<A, B>& p) {
    put(p.first), put(p.second);
  }
  template <class T>
  void put(std::vector<T>& all) {
    row_.sizes.push_back(all.size());
    const std::size_t begin = row_.words.size();
    Expected expected;
    for (T& one : all) {
      if constexpr (std::is_same_v<T, Record>) {
        Record less = one;
        expected.leave_out(less);
        put(less);
      } else {
        put(one);
      }
    }
    if constexpr (kPlain<T>) {
      by_columns(begin, all.size());
    }
  }
  template <class T>
    requires std::is_class_v<T>
  void put(T& all) {
    fields(*this, all);
  }
  void by_columns(std::size_t begin, std::size_t rows);

  TableBuilder& tables_;
  RankEvidence& e_;
  std::vector<std::uint32_t> stacks_, thread_frames_;  // as numbers of the tables; kNoNumber
  Evidence row_;
};

class Reader {
 public:
  Reader(const Tables& tables, std::span<const std::uint64_t> sizes,
         std::span<const std::uint64_t> words)
      : tables_(tables), sizes_(sizes), words_(words) {}
  // Throws Damaged if the numbers are not a rank's evidence. Without `all_records`, as for a large
  // set, older records are left out: `Losses::trimmed` counts them.
  void read(RankEvidence& e, bool all_records);

  template <class... T>
  void operator()(T&... all) {
    (get(all), ...);
  }
  void id(Id& i) { get(i); }
  void stack(std::uint32_t& i) { get(i); }
  void shape(std::uint32_t& first, std::uint32_t& count);
  void thread_stack(std::vector<std::uint32_t>&);
  void raw(std::int64_t& v) { v = static_cast<std::int64_t>(word()); }
  void history(std::vector<Record>&);

 private:
  std::uint64_t word() {
    if (at_ == words_.size()) {
      throw Damaged("damaged: a summary that ends too early");
    }
    return words_[at_++];
  }
  template <class T>
    requires std::integral<T>
  void get(T& v) {
    const std::uint64_t w = word();
    if constexpr (std::is_same_v<T, Time>) {
      v = plausible(static_cast<Time>(w));
    } else if constexpr (std::is_same_v<T, bool>) {
      v = w != 0;
    } else {
      v = static_cast<T>(w);
    }
  }
  template <class T>
    requires std::is_enum_v<T>
  void get(T& v) {
    const std::uint64_t w = word();
    v = w <= static_cast<std::uint64_t>(last_of(T{})) ? static_cast<T>(w) : T{};
  }
  void get(std::string& s) {
    if (const std::uint64_t i = word(); i != 0 && i < tables_.strings.size()) {
      s = tables_.strings[i];
    }
  }
  template <class A, class B>
  void get(std::pair<A, B>& p) {
    get(p.first), get(p.second);
  }
  std::size_t size();
  template <class T>
  void get(std::vector<T>& all) {
    const std::size_t n = size();
    all.resize(n);
    if constexpr (kPlain<T>) {
      get_columns(all);
    } else {
      for (T& one : all) {
        get(one);
      }
    }
  }
  template <class T>
    requires std::is_class_v<T>
  void get(T& all) {
    fields(*this, all);
  }
  template <class T>
  void get_columns(std::vector<T>& all) {
    if (all.empty()) {
      return;
    }
    const std::span<const std::uint64_t> rows = rows_of(all.size(), width<T>());
    Reader one(tables_, {}, rows);
    Expected expected;
    for (T& to : all) {
      one.get(to);
      if constexpr (std::is_same_v<T, Record>) {
        expected.put_back(to);
      }
    }
  }
  // The number of words of a plain struct.
  template <class T>
  static std::size_t width() {
    static const std::size_t n = [] {
      TableBuilder none;
      RankEvidence of_nobody;
      Writer count(none, of_nobody);
      T one{};
      count(one);
      return count.take().words.size();
    }();
    return n;
  }
  std::span<const std::uint64_t> rows_of(std::size_t n, std::size_t width);

  const Tables& tables_;
  std::span<const std::uint64_t> sizes_, words_;
  std::size_t next_size_ = 0, at_ = 0;
  std::uint64_t left_out_ = 0;  // older records
  bool all_records_ = true;
  std::vector<std::uint64_t> rows_;  // a list's words, row by row
};

}  // namespace frtrace::reduce
