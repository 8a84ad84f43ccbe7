// where.cpp - lines about the place where a rank is, and how it crashed.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "format/call_site.hpp"
#include "model/contains.hpp"
#include "model/hints.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// An object may have dozens of attributes, most of them private ones of a base class
// (threading.Thread): the others come first. Only the dump has those without room.
std::string variables_text(const FrameVariables& v) {
  constexpr std::size_t kWidth = 360;  // for local variables, and again for attributes
  std::size_t used[2] = {};
  std::size_t more = 0;
  std::string out;
  const auto add = [&](const std::string& name, const std::string& value) {
    std::size_t& width = used[name.starts_with("self.") ? 1 : 0];
    const std::size_t bytes = name.size() + value.size() + 5;
    if (width != 0 && width + bytes > kWidth) {
      ++more;
      return;
    }
    width += bytes;
    out += (out.empty() ? "" : ", ") + name + " = " + value;
  };
  for (const bool is_private : {false, true}) {
    for (const auto& [name, value] : v.values) {
      if (name.starts_with("self._") == is_private) {
        add(name, value);
      }
    }
  }
  return more != 0 ? out + fmt::format(", and {} more", more) : out;
}

}  // namespace

std::vector<std::string> where_lines(const RankEvidence& e) {
  std::vector<std::string> out;
  const ThreadStack* t = told_thread(e);
  if (t == nullptr) {
    return out;
  }
  const std::string where = where_text(e.threads, *t, e.id.cwd);
  const std::string doing = doing_text(e.threads, *t);
  const std::vector<Hint> hints = hints_of(e);
  const bool stopped = !hints.empty() && hints.back().kind == HintKind::kStopped;
  // At exit Python waits for the program's other threads.
  const bool at_exit = e.exit.kind != ExitBy::kCrash && t->tid != e.id.pid;
  out.push_back(at_exit          ? fmt::format("is in {}, in its thread {}", where, t->tid)
                : !where.empty() ? "is in " + where
                : stopped        ? hints.back().text
                : script_is_over(e.threads, e.id.pid) ? "is ending: its script is over"
                                                      : "is " + doing);
  if (!t->handling.empty()) {
    out.push_back("while it handles " + t->handling);
  }
  if (!where.empty()) {
    out.push_back(doing);
  }
  if (at_exit) {
    out.emplace_back("its script is over: its main thread waits for that thread to end");
  }
  for (const Hint& hint : hints) {
    if (hint.text != out.front() && !at_exit) {  // hints describe the main thread
      out.push_back(hint.text);
    }
  }
  if (const std::string holes = thread_holes(e); !holes.empty()) {
    out.push_back(holes);
  }
  return out;
}

std::vector<std::string> variable_lines(const RankEvidence& e, ShownVariables variables) {
  const ThreadStack* t = told_thread(e);
  if (t == nullptr) {
    return {};
  }
  // Variables of library frames say little about the program: they come last if all are requested,
  // and are left out otherwise. Without a user frame, or if the program itself is installed as a
  // library, they are shown.
  const ThreadFrame* user = user_frame(e.threads, *t);
  const bool only_users =
      variables == ShownVariables::kUsers && user != nullptr && !fr::is_library_file(user->file);
  std::vector<std::string> out, of_library;
  for (const FrameVariables& v : t->variables) {
    const std::string line = variables_text(v);
    if (!line.empty() && v.frame < t->stack.size()) {
      const ThreadFrame& frame = e.threads.frames[t->stack[v.frame]];
      const bool is_library = fr::is_library_file(frame.file);
      if (has(frame.file, "/torch/distributed/") || (is_library && only_users)) {
        continue;
      }
      // The lines before already show the line of the innermost user frame.
      const bool told = &frame == user || frame.line == 0;
      (is_library ? of_library : out)
          .push_back(fmt::format("in {}(){}: {}", frame.function,
                                 told ? "" : fmt::format(", line {}", frame.line), line));
    }
  }
  out.insert(out.end(), of_library.begin(), of_library.end());
  return out;
}

std::string thread_holes(const RankEvidence& e) {
  for (const auto& [layer, text] : e.layers) {
    if (layer == "threads") {
      return text;
    }
  }
  return {};
}

namespace {

// Frames through which a process aborts itself; the caller matters.
bool raises_abort(const ThreadFrame& f) {
  return !f.python && (has(f.file, "libc.so") || has(f.file, "libc-") || has(f.file, "libstdc++"));
}

}  // namespace

std::vector<std::string> crash_lines(const RankEvidence& e) {
  // Example: "address 0x8: nothing is mapped there; thread 7 (python) in f (a.so+0x1) < g
  // (train.py:3)"
  const std::string& message = e.exit.message;
  const std::size_t semicolon = message.find("; thread ");
  const std::size_t in = message.find(") in ");
  std::string first = fmt::format("got {}, {}", e.exit.type, message.substr(0, semicolon));
  const ThreadStack* t = told_thread(e);
  if (t != nullptr && t->tid != e.id.pid) {
    first += fmt::format(", in thread {} ({})", t->tid, t->name);
  }
  std::vector<std::string> out{std::move(first)};
  std::string stack;
  constexpr std::size_t kShown = 4;
  for (std::size_t i = 0, shown = 0; t != nullptr && i < t->stack.size() && shown < kShown; ++i) {
    const ThreadFrame& f = e.threads.frames[t->stack[i]];
    if (!is_plumbing(f) && !(e.exit.type == "SIGABRT" && raises_abort(f))) {
      stack += (shown++ == 0 ? "" : " < ") + short_frame(frame_text(f, e.id.cwd));
    }
  }
  if (stack.empty() && in != std::string::npos) {
    stack = message.substr(in + 5);
  }
  if (!stack.empty()) {
    out.push_back("stack: " + stack);
  }
  // A thread without Python has no place besides its stack; the main thread has the user's line.
  const ThreadStack* main = main_thread(e.threads, e.id.pid);
  const bool python = t != nullptr && user_frame(e.threads, *t) != nullptr;
  if (!python && main != nullptr && main != t) {
    const std::string where = where_text(e.threads, *main, e.id.cwd);
    if (!where.empty()) {
      out.push_back("its main thread is in " + where);
    }
    return out;
  }
  std::ranges::copy(where_lines(e), std::back_inserter(out));
  return out;
}

}  // namespace frtrace
