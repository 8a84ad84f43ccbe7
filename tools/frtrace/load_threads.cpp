#include "load_threads.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <exception>
#include <span>

namespace frtrace {

namespace {

using Object = msgpack::object;

constexpr std::size_t kMaxThreads = 1 << 16;
constexpr std::size_t kMaxFrames = 1 << 20;

const Object* member(const Object* o, std::string_view key) {
  if (o == nullptr || o->type != msgpack::type::MAP) {
    return nullptr;
  }
  for (std::uint32_t i = 0; i < o->via.map.size; ++i) {
    const msgpack::object_kv& kv = o->via.map.ptr[i];
    if (kv.key.type == msgpack::type::STR &&
        std::string_view(kv.key.via.str.ptr, kv.key.via.str.size) == key) {
      return &kv.val;
    }
  }
  return nullptr;
}

std::string text(const Object* o) {
  return o != nullptr && o->type == msgpack::type::STR
             ? std::string(o->via.str.ptr, o->via.str.size)
             : std::string();
}

template <class T>
T number(const Object* o) {
  if (o == nullptr) {
    return T{};
  }
  if (o->type == msgpack::type::POSITIVE_INTEGER) {
    return static_cast<T>(o->via.u64);
  }
  return o->type == msgpack::type::NEGATIVE_INTEGER ? static_cast<T>(o->via.i64) : T{};
}

std::span<const Object> list(const Object* o) {
  if (o == nullptr || o->type != msgpack::type::ARRAY) {
    return {};
  }
  return {o->via.array.ptr, o->via.array.size};
}

const Object* item(std::span<const Object> items, std::size_t i) {
  return i < items.size() ? &items[i] : nullptr;
}

std::string demangled(std::string name) {
  if (name.compare(0, 2, "_Z") != 0) {
    return name;
  }
  int status = 0;
  char* plain = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  if (plain != nullptr && status == 0) {
    name = plain;
  }
  std::free(plain);
  return name;
}

ThreadStack thread(const Object& o, std::size_t n_frames) {
  ThreadStack t;
  t.tid = number<int>(member(&o, "tid"));
  t.name = text(member(&o, "name"));
  t.state = text(member(&o, "state"));
  t.activity = text(member(&o, "activity"));
  t.wchan = text(member(&o, "wchan"));
  t.syscall = text(member(&o, "syscall"));
  t.syscall_on = text(member(&o, "syscall_on"));
  t.gil = text(member(&o, "gil"));
  t.answer = text(member(&o, "answer"));
  t.answer_us = number<std::uint32_t>(member(&o, "answer_us"));
  t.looked_ns = number<std::uint64_t>(member(&o, "looked_ns"));
  t.cpu_ns = number<std::uint64_t>(member(&o, "cpu_ns"));
  t.runqueue_ns = number<std::uint64_t>(member(&o, "runqueue_ns"));
  const Object* whole = member(&o, "whole");
  t.whole = whole != nullptr && whole->type == msgpack::type::BOOLEAN && whole->via.boolean;
  for (const Object& index : list(member(&o, "stack"))) {
    const auto i = number<std::uint64_t>(&index);
    if (i < n_frames) {
      t.stack.push_back(static_cast<std::uint32_t>(i));
    }
  }
  const auto cut = list(member(&o, "cut"));
  t.cut_after = number<std::uint32_t>(item(cut, 0));
  t.cut = number<std::uint32_t>(item(cut, 1));
  for (const Object& v : list(member(&o, "variables"))) {
    const auto row = list(&v);
    FrameVariables& to = t.variables.emplace_back();
    to.frame = number<std::uint32_t>(item(row, 0));
    for (const Object& pair : list(item(row, 1))) {
      to.values.emplace_back(text(item(list(&pair), 0)), text(item(list(&pair), 1)));
    }
  }
  return t;
}

}  // namespace

ThreadsEvidence read_threads(const Object* threads, const Object* facts) {
  ThreadsEvidence out;
  if (facts == nullptr || facts->type != msgpack::type::MAP) {
    return out;  // nil: the recorder was told not to look
  }
  out.present = true;
  out.signal = number<int>(member(facts, "signal"));
  out.not_asked = text(member(facts, "not_asked"));
  out.took_ns = number<std::uint64_t>(member(facts, "took_ns"));
  out.asking_ns = number<std::uint64_t>(member(facts, "asking_ns"));
  out.threads_lost = number<std::uint64_t>(member(facts, "threads_lost"));
  out.frames_lost = number<std::uint64_t>(member(facts, "frames_lost"));
  out.modules_lost = number<std::uint64_t>(member(facts, "modules_lost"));
  for (const Object& o : list(member(facts, "frames"))) {
    if (out.frames.size() == kMaxFrames) {
      break;
    }
    const auto row = list(&o);
    ThreadFrame& f = out.frames.emplace_back();
    f.python = text(item(row, 0)) == "python";
    f.function = text(item(row, 1));
    f.file = text(item(row, 2));
    f.line = number<std::uint32_t>(item(row, 3));
    f.offset = number<std::uint64_t>(item(row, 4));
    if (!f.python) {
      f.function = demangled(std::move(f.function));
    }
  }
  for (const Object& o : list(threads)) {
    if (out.threads.size() == kMaxThreads) {
      break;
    }
    if (o.type == msgpack::type::MAP) {
      out.threads.push_back(thread(o, out.frames.size()));
    }
  }
  return out;
}

ThreadsEvidence read_threads(std::string_view threads, std::string_view facts) {
  try {
    const msgpack::object_handle t = threads.empty()
                                         ? msgpack::object_handle()
                                         : msgpack::unpack(threads.data(), threads.size());
    const msgpack::object_handle f =
        facts.empty() ? msgpack::object_handle() : msgpack::unpack(facts.data(), facts.size());
    return read_threads(threads.empty() ? nullptr : &t.get(), facts.empty() ? nullptr : &f.get());
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace frtrace
