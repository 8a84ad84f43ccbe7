// threads.cpp - the reader of thread sections.
#include "input/fr/threads.hpp"

#include <tuple>

#include "input/fr/columns.hpp"

namespace frtrace {

namespace {

namespace schema = fr::schema;

constexpr std::tuple kThreadRow{
    FR_FIELDS(ThreadStack, tid, name, state, activity, wchan, syscall, syscall_on, gil, answer,
              answer_us, looked_ns, cpu_ns, runqueue_ns, whole, handling),
};
static_assert(all_named(schema::kThreads, kThreadRow));

constexpr std::tuple kFrame{
    FR_FIELDS(ThreadFrame, function, file, line, offset),
};
static_assert(all_named(schema::kFrames, kFrame));

constexpr std::tuple kChild{
    FR_FIELDS(ChildProcess, pid, name, state, activity, wchan, syscall, syscall_on, wait_status),
};
static_assert(all_named(schema::kChildren, kChild));

constexpr std::tuple kLock{
    FR_FIELDS(FileLock, waits, kind, holder, holder_name, file),
};
static_assert(all_named(schema::kLocks, kLock));

constexpr std::tuple kModule{
    FR_FIELDS(ThreadModule, file, build_id),
};
static_assert(all_named(schema::kModules, kModule));

constexpr std::tuple kFacts{
    FR_FIELDS(ThreadsEvidence, signal, not_asked, took_ns, asking_ns, threads_lost, frames_lost,
              modules_lost),
};
static_assert(all_named(schema::kThreadFacts, kFacts));

// The key of a list within a thread or the facts; a key outside the schema does not compile.
template <const auto& kTable>
struct Key {
  consteval Key(const char* key) : text(schema::column(kTable, key)) {}
  const char* text;
};
List of_thread(const Object* o, Key<schema::kThreads> key) {
  return list(member(o, key.text));
}
List of_facts(const Object* o, Key<schema::kThreadFacts> key) {
  return list(member(o, key.text));
}

std::vector<std::uint32_t> read_stack(const List& indices, std::size_t n_frames) {
  std::vector<std::uint32_t> out;
  for (const Object& index : indices) {
    const auto i = number<std::int64_t>(&index, -1);
    if (i >= 0 && static_cast<std::size_t>(i) < n_frames) {
      out.push_back(static_cast<std::uint32_t>(i));
    }
  }
  return out;
}

ThreadStack read_thread(const Object& o, std::size_t n_frames) {
  ThreadStack t;
  read_map(&o, kThreadRow, {}, t);
  t.stack = read_stack(of_thread(&o, "stack"), n_frames);
  const Row cut(member(&o, schema::column(schema::kThreads, "cut")));
  t.cut_after = number<std::uint32_t>(cut[0]);
  t.cut = number<std::uint32_t>(cut[1]);
  for (const Object& of_frame : of_thread(&o, "variables")) {
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
  read_row<schema::kFrames>(row, kFrame, f);
  f.python = text(row[schema::position(schema::kFrames, "kind")]) == "python";
  if (!f.python) {
    f.function = demangled(std::move(f.function));
  }
  return f;
}

}  // namespace

ThreadsEvidence read_threads(const Object* threads, const Object* facts) {
  ThreadsEvidence out;
  if (!is_map(facts)) {
    return out;  // nil: stacks were disabled in the recorder
  }
  out.present = true;
  read_map(facts, kFacts, {}, out);
  for (const Object& row : of_facts(facts, "frames")) {
    out.frames.push_back(read_frame(Row(&row)));
  }
  out.children_known = member(facts, "children") != nullptr;
  for (const Object& o : of_facts(facts, "children")) {
    ChildProcess& c = out.children.emplace_back();
    read_map(&o, kChild, {}, c);
    c.stack =
        read_stack(list(member(&o, schema::column(schema::kChildren, "stack"))), out.frames.size());
  }
  for (const Object& o : of_facts(facts, "locks")) {
    read_map(&o, kLock, {}, out.locks.emplace_back());
  }
  for (const Object& module : of_facts(facts, "modules")) {
    read_row<schema::kModules>(Row(&module), kModule, out.modules.emplace_back());
  }
  for (const Object& o : list(threads)) {
    if (is_map(&o)) {
      out.threads.push_back(read_thread(o, out.frames.size()));
    }
  }
  return out;
}

}  // namespace frtrace
