#include "live/by_address.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <optional>
#include <string_view>

#include "input/files.hpp"
#include "live/ask_stacks.hpp"
#include "model/rank_data.hpp"
#include "model/threads.hpp"
#include "report/lines.hpp"

namespace frtrace {

namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

const std::string* find_variable(const Variables& all, std::string_view name) {
  for (const auto& [key, value] : all) {
    if (key == name) {
      return &value;
    }
  }
  return nullptr;
}

// "len(x)" gives x.
std::optional<std::string_view> inside_len(std::string_view e) {
  return e.starts_with("len(") && e.ends_with(")") ? std::optional(e.substr(4, e.size() - 5))
                                                   : std::nullopt;
}

// Length from "list of 3", or a tensor's first dimension; nullopt: no length.
std::optional<std::string> length_of(std::string_view value) {
  for (const std::string_view kind : {"list of ", "tuple of ", "dict of "}) {
    if (value.starts_with(kind)) {
      return std::string(value.substr(kind.size()));
    }
  }
  const std::size_t open = value.find('[');
  if (value.starts_with("tensor ") && open != std::string_view::npos) {
    return std::string(value.substr(open + 1, value.find_first_of(",]", open) - open - 1));
  }
  return std::nullopt;
}

// Shape, dtype or device from "tensor float32[64, 32] cuda:0"; nullopt: none.
std::optional<std::string> tensor_part(std::string_view value, std::string_view part) {
  const std::size_t open = value.find('['), close = value.find(']');
  if (!value.starts_with("tensor ") || open > close || close == std::string_view::npos) {
    return std::nullopt;
  }
  return part == "shape"   ? std::optional(std::string(value.substr(open, close - open + 1)))
         : part == "dtype" ? std::optional(std::string(value.substr(7, open - 7)))
         : part == "device" && close + 2 <= value.size()
             ? std::optional(std::string(value.substr(close + 2)))
             : std::nullopt;
}

std::optional<std::string> value_of(const Variables& all, std::string_view e) {
  if (const std::string* value = find_variable(all, e)) {
    return *value;
  }
  if (const auto name = inside_len(e)) {
    const std::string* value = find_variable(all, *name);
    return value != nullptr ? length_of(*value) : std::nullopt;
  }
  const std::size_t dot = e.rfind('.');
  const std::string* value =
      dot != std::string_view::npos ? find_variable(all, e.substr(0, dot)) : nullptr;
  return value != nullptr ? tensor_part(*value, e.substr(dot + 1)) : std::nullopt;
}

const ThreadStack* chosen_thread(const ThreadsEvidence& all, const FoundRing& ring,
                                 const std::string& wanted) {
  if (wanted.empty()) {
    return main_thread(all, ring.pid);
  }
  for (const ThreadStack& t : all.threads) {
    if (t.name == wanted || std::to_string(t.tid) == wanted) {
      return &t;
    }
  }
  return nullptr;
}

// Positions of the Python frames in the stack.
std::vector<std::size_t> python_frames(const ThreadsEvidence& all, const ThreadStack& t) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < t.stack.size(); ++i) {
    if (all.frames->at(t.stack[i]).python) {
      out.push_back(i);
    }
  }
  return out;
}

void say_who_holds_the_gil(const ThreadsEvidence& all, int rank) {
  const ThreadStack* holder = gil_holder(all);
  std::cerr << "rank " << rank << " does not get the GIL"
            << (holder != nullptr
                    ? fmt::format(": thread {} ({}) has it, {}, in {}", holder->tid,
                                  printable(holder->name), printable(doing_text(all, *holder)),
                                  printable(where_text(all, *holder)))
                    : "")
            << ". Plain values are read by address:\n";
}

bool look(const ThreadsEvidence& all, const FoundRing& ring, const Look& look,
          const std::string& expression, bool frames) {
  const ThreadStack* t = chosen_thread(all, ring, look.thread);
  if (t == nullptr) {
    std::cerr << "frtrace: there is no thread " << printable(look.thread) << "\n";
    return false;
  }
  const std::vector<std::size_t> positions = python_frames(all, *t);
  const ThreadFrame* user = user_frame(all, *t);
  std::optional<std::size_t> chosen;
  for (std::size_t n = 0; n < positions.size(); ++n) {
    const ThreadFrame& f = all.frames->at(t->stack[positions[n]]);
    const bool is_it = look.frame >= 0 ? n == static_cast<std::size_t>(look.frame) : &f == user;
    chosen = is_it && !chosen ? positions[n] : chosen;
    if (frames) {
      std::cout << (is_it ? "-> #" : "   #") << n << " " << printable(frame_text(f)) << "\n";
    }
  }
  if (frames) {
    return true;
  }
  if (!chosen) {
    std::cerr << "frtrace: no such Python frame is known of thread " << t->tid << "\n";
    return false;
  }
  Variables variables;
  for (const FrameVariables& v : t->variables) {
    if (v.frame == *chosen) {
      variables = v.values;
    }
  }
  if (const auto value = value_of(variables, expression)) {
    std::cout << printable(*value) << "\n";
    return true;
  }
  if (!expression.empty()) {
    std::cerr << "frtrace: not readable without the GIL: " << printable(expression)
              << ". What is, of this frame:\n";
  }
  for (const auto& [name, value] : variables) {
    std::cout << printable(name) << " = " << printable(value) << "\n";
  }
  return expression.empty();
}

}  // namespace

bool look_by_address(const FoundRing& ring, const Look& what, const std::string& expression,
                     bool frames) {
  const std::vector<std::string> answers = ask_stacks({ring});
  const LoadResult input = load_paths(answers, "");
  for (const std::string& path : answers) {
    ::unlink(path.c_str());
  }
  if (input.evidence.empty()) {
    std::cerr << "frtrace: rank " << ring.rank << " (pid " << ring.pid << ") "
              << (is_stopped_process(ring.pid) ? "is stopped" : "does not answer") << "\n";
    return false;
  }
  const ThreadsEvidence& all = input.evidence.front()->threads;
  say_who_holds_the_gil(all, ring.rank);
  return look(all, ring, what, expression, frames);
}

}  // namespace frtrace
