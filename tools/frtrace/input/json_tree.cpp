// json_tree.cpp - parses JSON into the same tree as pickles.
#include "input/json_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace frtrace {
namespace {

using pickle::Type;
using pickle::Value;

class JsonTree : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonTree(pickle::Arena& arena, std::size_t size) : arena_(arena), size_(size) {}

  bool null() override { return add(Value{}); }
  bool boolean(bool v) override {
    Value out;
    out.type = Type::kBool;
    out.i = v ? 1 : 0;
    return add(out);
  }
  bool number_integer(number_integer_t v) override { return integer(v); }
  bool number_unsigned(number_unsigned_t v) override {
    return integer(static_cast<std::int64_t>(std::min<std::uint64_t>(v, INT64_MAX)));
  }
  bool number_float(number_float_t v, const string_t&) override {
    Value out;
    out.type = Type::kFloat;
    out.f = v;
    return add(out);
  }
  bool string(string_t& s) override { return add(text(s)); }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& s) override { return add(text(s)); }
  bool start_object(std::size_t) override { return open(false); }
  bool start_array(std::size_t) override { return open(true); }
  bool end_object() override { return close(Type::kDict); }
  bool end_array() override { return close(Type::kList); }
  bool parse_error(std::size_t at, const std::string&,
                   const nlohmann::detail::exception&) override {
    cut_ = at >= size_;
    // A line of a log may begin with a bracket, too.
    why = values_.empty() && !cut_
              ? "not recognised: neither a dump nor a ring"
              : fmt::format("{} JSON at byte {}", cut_ ? "truncated" : "damaged", at);
    return false;
  }

  // After a cut, keeps the root's keys before it; if the last one is a list, its complete items.
  // The same for a root that is a list.
  bool salvage() {
    if (!cut_ || marks_.empty()) {
      return false;
    }
    const bool in_list = is_list_[marks_.size() > 1 ? 1 : 0];
    const std::size_t levels = !is_list_[0] && marks_.size() > 1 && in_list ? 2 : 1;
    if (marks_.size() > levels) {
      values_.resize(marks_[levels]);  // the unfinished item
      marks_.resize(levels);
    }
    if (levels == 2 && values_.size() == marks_[1]) {
      return false;
    }
    while (!marks_.empty()) {
      const bool list = is_list_[marks_.size() - 1];
      if (!list && (values_.size() - marks_.back()) % 2 != 0) {
        values_.pop_back();  // a key without its value
      }
      close(list ? Type::kList : Type::kDict);
    }
    return true;
  }

  Value root;
  std::string why;

 private:
  static constexpr std::size_t kMaxDepth = 64;

  bool add(Value v) {
    values_.push_back(v);
    root = v;
    return true;
  }
  bool integer(std::int64_t v) {
    Value out;
    out.type = Type::kInt;
    out.i = v;
    return add(out);
  }
  // Keys and names repeat: one copy each.
  Value text(const std::string& s) {
    auto it = kept_.find(std::string_view(s));
    if (it == kept_.end()) {
      const std::string_view copy = arena_.keep(s);
      it = kept_.emplace(copy, copy).first;
    }
    Value out;
    out.type = Type::kString;
    out.size = static_cast<std::uint32_t>(it->second.size());
    out.s = it->second.data();
    return out;
  }
  bool open(bool list) {
    if (marks_.size() >= kMaxDepth) {
      why = "not recognised: JSON nested deeper than any dump";
      return false;
    }
    is_list_[marks_.size()] = list;
    marks_.push_back(values_.size());
    return true;
  }
  bool close(Type type) {
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    Value v;
    v.type = type;
    v.node = new (arena_.allocate(sizeof(pickle::Node))) pickle::Node;
    if (values_.size() > mark) {
      pickle::append(arena_, *v.node, {values_.data() + mark, values_.size() - mark});
    }
    values_.resize(mark);
    return add(v);
  }

  pickle::Arena& arena_;
  std::vector<Value> values_;
  std::vector<std::size_t> marks_;
  std::array<bool, kMaxDepth> is_list_{};
  std::size_t size_;
  bool cut_ = false;
  std::unordered_map<std::string_view, std::string_view> kept_;
};

}  // namespace

bool parse_json(std::span<const unsigned char> bytes, pickle::Arena& arena, pickle::Value& root,
                std::string& why, bool& cut) {
  JsonTree tree(arena, bytes.size());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const bool whole = nlohmann::json::sax_parse(text, &tree);
  cut = !whole && tree.salvage();
  root = tree.root;
  why = whole ? "" : tree.why.empty() ? "damaged JSON" : tree.why;
  return whole;
}

}  // namespace frtrace
