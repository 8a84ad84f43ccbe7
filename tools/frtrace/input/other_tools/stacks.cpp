// stacks.cpp - threads of py-spy's JSON, an array of objects, and of faulthandler's text:
//
//   Thread 0x00007f6b2b7fe700 [loader] (most recent call first):
//     File "/x/data.py", line 57 in load
//   Current thread 0x00007f6b31c8d740 (most recent call first):
//     File ...
//
// faulthandler prints the main thread last.
#include "input/other_tools/stacks.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "input/json_tree.hpp"
#include "input/memory.hpp"
#include "input/pickle.hpp"

namespace frtrace {

namespace {

using pickle::Value;

constexpr std::size_t kMostThreads = 4096, kMostFrames = 512;
constexpr std::string_view kThreadMark = "hread 0x", kFirstMark = "(most recent call first):";

std::string_view member_text(const Value& dict, std::string_view key) {
  const Value* v = pickle::find(dict, key);
  return v != nullptr ? v->text() : std::string_view();
}

std::int64_t member_number(const Value& dict, std::string_view key) {
  const Value* v = pickle::find(dict, key);
  return v != nullptr && v->type == pickle::Type::kInt ? v->i : 0;
}

bool member_is_true(const Value& dict, std::string_view key) {
  const Value* v = pickle::find(dict, key);
  return v != nullptr && v->type == pickle::Type::kBool && v->i != 0;
}

std::uint32_t add_frame(ThreadsEvidence& t, ThreadFrame frame) {
  FileMemory::take(sizeof frame + frame.function.size() + frame.file.size());
  t.frames.push_back(std::move(frame));
  return static_cast<std::uint32_t>(t.frames.size() - 1);
}

std::unique_ptr<RankEvidence> empty_evidence(const char* tool) {
  auto e = std::make_unique<RankEvidence>();
  e->strings.emplace_back();
  e->stacks.emplace_back();
  e->groups.emplace_back();
  e->groups[0].used = true;
  e->id.recorder = tool;
  e->holes.only_stacks = true;
  e->threads.present = true;
  return e;
}

void read_py_spy_thread(const Value& from, ThreadsEvidence& t) {
  ThreadStack& thread = t.threads.emplace_back();
  const std::int64_t os_id = member_number(from, "os_thread_id");
  thread.tid = static_cast<int>(os_id != 0 ? os_id : 0);
  thread.name = member_text(from, "thread_name").substr(0, 64);
  thread.gil = member_is_true(from, "owns_gil") ? fr::Gil::kHolds : fr::Gil::kNone;
  thread.activity = member_is_true(from, "active") ? fr::Activity::kRunning : fr::Activity::kAsleep;
  thread.answer = fr::Answer::kAnswered;
  thread.whole = true;
  const Value* frames = pickle::find(from, "frames");
  if (frames == nullptr) {
    return;
  }
  for (const Value& f : pickle::items(*frames)) {
    if (f.type != pickle::Type::kDict || thread.stack.size() == kMostFrames) {
      continue;
    }
    ThreadFrame frame;
    const std::int64_t line = member_number(f, "line");
    frame.python = line > 0 || member_text(f, "module").empty();
    frame.function = member_text(f, "name");
    frame.file = member_text(f, "filename");
    frame.line = static_cast<std::uint32_t>(std::clamp<std::int64_t>(line, 0, INT32_MAX));
    thread.stack.push_back(add_frame(t, std::move(frame)));
    const Value* locals = pickle::find(f, "locals");
    if (locals == nullptr || locals->type != pickle::Type::kList) {
      continue;
    }
    FrameVariables variables;
    variables.frame = static_cast<std::uint32_t>(thread.stack.size() - 1);
    for (const Value& v : pickle::items(*locals)) {
      if (v.type == pickle::Type::kDict && variables.values.size() < 16) {
        variables.values.emplace_back(member_text(v, "name").substr(0, 64),
                                      member_text(v, "repr").substr(0, 160));
      }
    }
    thread.variables.push_back(std::move(variables));
  }
}

// "  File "/x/data.py", line 57 in load"
bool read_text_frame(std::string_view line, ThreadFrame& frame) {
  const std::size_t at = line.find("File \""), end = line.rfind("\", line ");
  if (at == std::string_view::npos || end == std::string_view::npos || end < at + 6) {
    return false;
  }
  frame.python = true;
  frame.file = line.substr(at + 6, end - at - 6);
  const char* const number = line.data() + end + 8;
  const auto parsed = std::from_chars(number, line.data() + line.size(), frame.line);
  const std::string_view rest(parsed.ptr,
                              static_cast<std::size_t>(line.data() + line.size() - parsed.ptr));
  const std::size_t in = rest.find("in ");
  frame.function = in == std::string_view::npos ? "" : rest.substr(in + 3);
  return parsed.ec == std::errc();
}

}  // namespace

std::unique_ptr<RankEvidence> load_py_spy(std::span<const unsigned char> json, std::string& why) {
  pickle::Arena arena;
  Value root;
  bool cut = false;
  if (!parse_json(json, arena, root, why, cut)) {
    return nullptr;
  }
  auto e = empty_evidence("py-spy");
  for (const Value& thread : pickle::items(root)) {
    if (thread.type != pickle::Type::kDict || pickle::find(thread, "frames") == nullptr ||
        pickle::find(thread, "thread_id") == nullptr) {
      why = "not recognised: an array, but not of py-spy's threads";
      return nullptr;
    }
    if (e->threads.threads.size() == kMostThreads) {
      ++e->threads.threads_lost;
      continue;
    }
    e->id.pid = static_cast<int>(member_number(thread, "pid"));
    read_py_spy_thread(thread, e->threads);
  }
  if (e->threads.threads.empty()) {
    why = "not recognised: no threads";
    return nullptr;
  }
  for (ThreadStack& t : e->threads.threads) {
    t.tid = t.tid == 0 && t.name == "MainThread" ? e->id.pid : t.tid;
  }
  return e;
}

bool has_faulthandler(std::span<const unsigned char> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t at = text.find(kFirstMark);
  return at != std::string_view::npos && text.rfind(kThreadMark, at) != std::string_view::npos;
}

std::unique_ptr<RankEvidence> load_faulthandler(std::span<const unsigned char> bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  auto e = empty_evidence("faulthandler");
  ThreadsEvidence& t = e->threads;
  bool within = false;  // inside a thread's frames, not between threads
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t thread = line.find(kThreadMark);
    ThreadFrame frame;
    if (thread != std::string_view::npos && line.find(kFirstMark) != std::string_view::npos) {
      if (!within) {
        t.threads.clear();  // of an earlier dump
        t.frames = {};
      }
      within = true;
      if (t.threads.size() < kMostThreads) {
        ThreadStack& next = t.threads.emplace_back();
        next.tid = static_cast<int>(t.threads.size());
        next.answer = fr::Answer::kAnswered;
        next.activity = fr::Activity::kUnknown;
        const std::size_t open = line.find('['), close = line.find(']');
        next.name =
            open != std::string_view::npos && close > open && close != std::string_view::npos
                ? line.substr(open + 1, std::min<std::size_t>(close - open - 1, 64))
                : "";
      }
    } else if (within && read_text_frame(line, frame)) {
      if (t.threads.back().stack.size() < kMostFrames) {
        t.threads.back().stack.push_back(add_frame(t, std::move(frame)));
      }
    } else if (!line.empty() && line.find_first_not_of(" \t\r") != std::string_view::npos) {
      within = within && line.find("...") != std::string_view::npos;
    }
  }
  if (t.threads.empty()) {
    return nullptr;
  }
  t.threads.back().tid = 0;  // the main thread; the process's id is unknown
  return e;
}

}  // namespace frtrace
