// columns.hpp - maps the columns of a dump's tables and the keys of its maps to rank_data.hpp.
//
// A list of fields names columns of one table of format/schema.hpp and the members they fill; a
// name outside the schema does not compile. Absent columns and cells of the wrong type leave a
// member unchanged.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "format/schema.hpp"
#include "input/msgpack_tree.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

template <class T, class M>
struct Field {  // number, text, truth (not 0) or code word, by the member's type
  const char* name;
  M T::* to;
};
template <class T, class M>
Field(const char*, M T::*) -> Field<T, M>;

template <class T>
struct TimeField {  // ns since the dump's base
  const char* name;
  Time T::* to;
};
template <class T>
TimeField(const char*, Time T::*) -> TimeField<T>;

template <class T>
struct PresentField {  // a number that may be nil
  const char* name;
  bool T::* is_present;
  std::uint64_t T::* to;
};
template <class T>
PresentField(const char*, bool T::*, std::uint64_t T::*) -> PresentField<T>;

// Members with the names of their columns: FR_FIELDS(Lane, group, peer) is Field{"group",
// &Lane::group}, Field{"peer", &Lane::peer}; FR_TIMES does the same for TimeField. Up to 64.
#define FR_FIELDS(T, ...) FR_EXPAND(FR_EACH(Field, T, __VA_ARGS__))
#define FR_TIMES(T, ...) FR_EXPAND(FR_EACH(TimeField, T, __VA_ARGS__))
#define FR_EACH(Kind, T, member, ...) \
  Kind{#member, &T::member} __VA_OPT__(, FR_AGAIN FR_PARENS(Kind, T, __VA_ARGS__))
#define FR_AGAIN() FR_EACH
#define FR_PARENS ()
#define FR_EXPAND(...) FR_EXPAND1(FR_EXPAND1(FR_EXPAND1(FR_EXPAND1(__VA_ARGS__))))
#define FR_EXPAND1(...) FR_EXPAND2(FR_EXPAND2(FR_EXPAND2(FR_EXPAND2(__VA_ARGS__))))
#define FR_EXPAND2(...) FR_EXPAND3(FR_EXPAND3(FR_EXPAND3(FR_EXPAND3(__VA_ARGS__))))
#define FR_EXPAND3(...) __VA_ARGS__

template <class... C, class... F>
consteval bool all_named(const std::tuple<C...>& table, const std::tuple<F...>& fields) {
  return std::apply([&](const auto&... f) { return (fr::schema::has(table, f.name) && ...); },
                    fields);
}

// Times of a dump; a time out of range is unknown.
struct DumpTimes {
  Time base = 0;
  Time operator()(const Object* o) const {
    const std::optional<std::int64_t> v = to_int(o);
    constexpr Time kYear = Time{366} * 86'400 * kSecond;
    return v && *v > -kYear && *v < 10 * kYear ? plausible(base + *v) : 0;
  }
};

template <class T, class M>
void set(const Field<T, M>& f, const DumpTimes&, const Object* cell, T& to) {
  M& member = to.*f.to;
  if constexpr (std::is_same_v<M, std::string>) {
    member = text(cell);
  } else if constexpr (std::is_same_v<M, bool>) {
    member = number<int>(cell) != 0;
  } else if constexpr (std::is_enum_v<M>) {
    member = fr::code<M>(text(cell));
  } else {
    member = number<M>(cell, member);
  }
}
template <class T>
void set(const TimeField<T>& f, const DumpTimes& times, const Object* cell, T& to) {
  to.*f.to = times(cell);
}
template <class T>
void set(const PresentField<T>& f, const DumpTimes&, const Object* cell, T& to) {
  const std::optional<std::int64_t> v = to_int(cell);
  to.*f.is_present = v.has_value();
  to.*f.to = static_cast<std::uint64_t>(v.value_or(0));
}

// Reads the members of a map.
template <class T, class... F>
void read_map(const Object* map, const std::tuple<F...>& fields, const DumpTimes& times, T& to) {
  std::apply([&](const auto&... f) { (set(f, times, member(map, f.name), to), ...); }, fields);
}

// Reads a row of unnamed cells in the order of the schema.
template <const auto& kTable, class T, class... F>
void read_row(const Row& row, const std::tuple<F...>& fields, T& to) {
  std::apply(
      [&](const auto&... f) {
        (set(f, DumpTimes{}, row[fr::schema::position(kTable, f.name)], to), ...);
      },
      fields);
}

// A table; its columns are looked up once.
class Table {
 public:
  explicit Table(const Object* o) : rows_(list(member(o, "rows"))) {
    std::size_t i = 0;
    for (const Object& field : list(member(o, "fields"))) {
      columns_.emplace(text(&field), i++);
    }
  }
  List rows() const { return rows_; }
  // The column's number, or SIZE_MAX if the table has no such column.
  std::size_t column(std::string_view name) const {
    const auto it = columns_.find(name);
    return it == columns_.end() ? SIZE_MAX : it->second;
  }

 private:
  List rows_;
  std::unordered_map<std::string_view, std::size_t> columns_;
};

template <class... F>
class RowReader {
 public:
  RowReader(const Table& table, const std::tuple<F...>& fields, const DumpTimes& times)
      : fields_(fields), times_(times) {
    std::apply([&](const auto&... f) { at_ = {table.column(f.name)...}; }, fields);
  }
  template <class T>
  void read(const Row& row, T& to) const {
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      (set(std::get<i>(fields_), times_, row[at_[i]], to), ...);
    }(std::index_sequence_for<F...>{});
  }

 private:
  const std::tuple<F...>& fields_;
  const DumpTimes& times_;
  std::array<std::size_t, sizeof...(F)> at_;
};

}  // namespace frtrace
