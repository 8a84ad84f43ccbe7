// threads.cpp - the reader of thread sections.
#include "input/threads.hpp"

#include <tuple>

#include "input/columns.hpp"

namespace frtrace {

namespace {

// What /proc says alike of threads and of child processes.
template <class Task>
constexpr std::tuple kTask{
    FR_FIELDS(Task, name, state, activity, wchan, syscall, syscall_on),
};

constexpr std::tuple kThread{
    FR_FIELDS(ThreadStack, tid, gil, answer, answer_us, looked_ns, cpu_ns, runqueue_ns, whole,
              handling),
};

constexpr std::tuple kChild{
    FR_FIELDS(ChildProcess, pid, wait_status),
};

constexpr std::tuple kLock{
    FR_FIELDS(FileLock, waits, kind, holder, holder_name, file),
};

constexpr std::tuple kFacts{
    FR_FIELDS(ThreadsEvidence, signal, not_asked, took_ns, asking_ns, threads_lost, frames_lost,
              modules_lost),
};

ThreadStack read_thread(const Object& o, std::size_t n_frames) {
  ThreadStack t;
  read_map(&o, kTask<ThreadStack>, {}, t);
  read_map(&o, kThread, {}, t);
  for (const Object& index : list(member(&o, "stack"))) {
    const auto i = number<std::int64_t>(&index, -1);
    if (i >= 0 && static_cast<std::size_t>(i) < n_frames) {
      t.stack.push_back(static_cast<std::uint32_t>(i));
    }
  }
  const Row cut(member(&o, "cut"));
  t.cut_after = number<std::uint32_t>(cut[0]);
  t.cut = number<std::uint32_t>(cut[1]);
  for (const Object& of_frame : list(member(&o, "variables"))) {
    const Row row(&of_frame);
    FrameVariables& to = t.variables.emplace_back();
    to.frame = number<std::uint32_t>(row[0]);
    for (const Object& variable : list(row[1])) {
      const Row pair(&variable);
      to.values.emplace_back(text(pair[0]), text(pair[1]));
    }
  }
  return t;
}

ThreadFrame read_frame(const Row& row) {
  ThreadFrame f;
  f.python = text(row[0]) == "python";
  f.function = f.python ? std::string(text(row[1])) : demangled(std::string(text(row[1])));
  f.file = text(row[2]);
  f.line = number<std::uint32_t>(row[3]);
  f.offset = number<std::uint64_t>(row[4]);
  return f;
}

}  // namespace

ThreadsEvidence read_threads(const Object* threads, const Object* facts) {
  ThreadsEvidence out;
  if (!is_map(facts)) {
    return out;  // nil: the recorder was told not to look
  }
  out.present = true;
  read_map(facts, kFacts, {}, out);
  for (const Object& row : list(member(facts, "frames"))) {
    out.frames.push_back(read_frame(Row(&row)));
  }
  out.children_known = member(facts, "children") != nullptr;
  for (const Object& o : list(member(facts, "children"))) {
    ChildProcess& c = out.children.emplace_back();
    read_map(&o, kTask<ChildProcess>, {}, c);
    read_map(&o, kChild, {}, c);
  }
  for (const Object& o : list(member(facts, "locks"))) {
    read_map(&o, kLock, {}, out.locks.emplace_back());
  }
  for (const Object& module : list(member(facts, "modules"))) {
    const Row row(&module);
    out.modules.push_back({std::string(text(row[0])), std::string(text(row[1]))});
  }
  for (const Object& o : list(threads)) {
    if (is_map(&o)) {
      out.threads.push_back(read_thread(o, out.frames.size()));
    }
  }
  return out;
}

}  // namespace frtrace
