// threads.hpp - the parts `threads` and `thread_facts` of a dump, for any parser of msgpack.
//
// In says how to look into the parser's objects; what is of the wrong type reads as absent:
//   using Object = ...;
//   static const Object* member(const Object*, std::string_view key);  // nullptr: no such key, no
//   map static std::string_view text(const Object*);                       // "" for everything
//   else static std::int64_t integer(const Object*);                        // booleans too; 0
//   static void each(const Object*, fn(const Object*));                // elements of an array
//   static bool is_map(const Object*);
// All take nullptr.
#pragma once

#include <string_view>
#include <utility>

#include "model/threads.hpp"

namespace frtrace {

// The plain name of a C++ symbol; others as they are.
std::string demangled(std::string symbol);

// What /proc says alike of threads and of child processes.
template <class In, class Task>
void read_task(const typename In::Object* o, Task& task) {
  const auto text = [o](std::string_view key) { return std::string(In::text(In::member(o, key))); };
  task.name = text("name");
  task.state = text("state");
  task.activity = text("activity");
  task.wchan = text("wchan");
  task.syscall = text("syscall");
  task.syscall_on = text("syscall_on");
}

template <class In>
ThreadStack read_thread(const typename In::Object* o, std::size_t n_frames) {
  using Object = typename In::Object;
  const auto text = [o](std::string_view key) { return std::string(In::text(In::member(o, key))); };
  const auto number = [o](std::string_view key) {
    return static_cast<std::uint64_t>(In::integer(In::member(o, key)));
  };
  ThreadStack t;
  t.tid = static_cast<int>(number("tid"));
  read_task<In>(o, t);
  t.gil = text("gil");
  t.answer = text("answer");
  t.answer_us = static_cast<std::uint32_t>(number("answer_us"));
  t.looked_ns = number("looked_ns");
  t.cpu_ns = number("cpu_ns");
  t.runqueue_ns = number("runqueue_ns");
  t.whole = number("whole") != 0;
  In::each(In::member(o, "stack"), [&](const Object* index) {
    const std::int64_t i = In::integer(index);
    if (i >= 0 && static_cast<std::size_t>(i) < n_frames) {
      t.stack.push_back(static_cast<std::uint32_t>(i));
    }
  });
  std::size_t at = 0;
  In::each(In::member(o, "cut"), [&](const Object* x) {
    (at++ == 0 ? t.cut_after : t.cut) = static_cast<std::uint32_t>(In::integer(x));
  });
  In::each(In::member(o, "variables"), [&](const Object* row) {
    FrameVariables& to = t.variables.emplace_back();
    std::size_t column = 0;
    In::each(row, [&](const Object* x) {
      if (column++ == 0) {
        to.frame = static_cast<std::uint32_t>(In::integer(x));
        return;
      }
      In::each(x, [&](const Object* pair) {
        auto& [name, value] = to.values.emplace_back();
        std::size_t side = 0;
        In::each(pair, [&, &n = name, &v = value](const Object* s) {
          (side++ == 0 ? n : v) = In::text(s);
        });
      });
    });
  });
  return t;
}

template <class In>
ThreadsEvidence read_threads(const typename In::Object* threads, const typename In::Object* facts) {
  using Object = typename In::Object;
  ThreadsEvidence out;
  if (!In::is_map(facts)) {
    return out;  // nil: the recorder was told not to look
  }
  const auto number = [facts](std::string_view key) {
    return static_cast<std::uint64_t>(In::integer(In::member(facts, key)));
  };
  out.present = true;
  out.signal = static_cast<int>(number("signal"));
  out.not_asked = In::text(In::member(facts, "not_asked"));
  out.took_ns = number("took_ns");
  out.asking_ns = number("asking_ns");
  out.threads_lost = number("threads_lost");
  out.frames_lost = number("frames_lost");
  out.modules_lost = number("modules_lost");
  In::each(In::member(facts, "frames"), [&](const Object* row) {
    ThreadFrame& f = out.frames.emplace_back();
    std::size_t column = 0;
    In::each(row, [&](const Object* x) {
      switch (column++) {
        case 0:
          f.python = In::text(x) == "python";
          break;
        case 1:
          f.function = f.python ? std::string(In::text(x)) : demangled(std::string(In::text(x)));
          break;
        case 2:
          f.file = In::text(x);
          break;
        case 3:
          f.line = static_cast<std::uint32_t>(In::integer(x));
          break;
        case 4:
          f.offset = static_cast<std::uint64_t>(In::integer(x));
          break;
        default:
          break;  // a later version's
      }
    });
  });
  out.children_known = In::member(facts, "children") != nullptr;
  In::each(In::member(facts, "children"), [&](const Object* o) {
    ChildProcess& c = out.children.emplace_back();
    c.pid = static_cast<int>(In::integer(In::member(o, "pid")));
    read_task<In>(o, c);
    c.wait_status = static_cast<int>(In::integer(In::member(o, "wait_status")));
  });
  In::each(In::member(facts, "modules"), [&](const Object* row) {
    ThreadModule& m = out.modules.emplace_back();
    std::size_t column = 0;
    In::each(row, [&](const Object* x) {
      if (column < 2) {
        (column++ == 0 ? m.file : m.build_id) = In::text(x);
      }
    });
  });
  In::each(threads, [&](const Object* o) {
    if (In::is_map(o)) {
      out.threads.push_back(read_thread<In>(o, out.frames.size()));
    }
  });
  return out;
}

// The two values as the bytes that they were found as; bytes that do not parse read as absent.
ThreadsEvidence read_threads(std::string_view threads, std::string_view facts);

}  // namespace frtrace
